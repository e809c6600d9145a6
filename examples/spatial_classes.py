"""Two classes over a map of 50,000 points: where it is wet, with the probability in between, drawn as a picture.

Run: python examples/spatial_classes.py --rows 50000 --out wet.png
"""

import argparse
from pathlib import Path

import numpy as np
import torch

import flashgp as fgp


def field(x: np.ndarray) -> np.ndarray:
    """Probit of wet at places (n, 2) of the unit square."""
    return 2.0 * np.sin(9.0 * x[:, 0] + 4.0 * x[:, 1]) + 1.5 * np.cos(14.0 * x[:, 1] * x[:, 0])


def main(rows: int = 50_000, out: Path | None = None) -> float:
    """Mean distance of the probabilities found from the true ones."""
    draw = np.random.default_rng(0)
    x = draw.uniform(size=(rows, 2))
    wet = field(x) + draw.normal(size=rows) > 0.0

    gp = fgp.GP(1.0 * fgp.kernels.Matern(nu=2.5), fgp.means.Constant(), fgp.likelihoods.Bernoulli())
    places, labels = torch.from_numpy(x), torch.from_numpy(wet).double()
    fit = fgp.fit(gp, places, labels, approximation="full_scale", inducing=64, neighbours=16)

    side = 40
    line = torch.linspace(0.0, 1.0, side, dtype=torch.float64)
    grid = torch.cartesian_prod(line, line)
    probability = fit.posterior.predict(grid).probability
    true = torch.special.ndtr(torch.from_numpy(field(grid.numpy())))
    error = float((probability - true).abs().mean())
    print(f"{rows:,} places, {wet.mean():.0%} wet; probabilities are {error:.3f} from the true ones in the mean")
    if out is not None:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(5, 4), layout="constrained")
        ax = figure.subplots()
        image = ax.imshow(probability.reshape(side, side).mT, origin="lower", extent=(0, 1, 0, 1), vmin=0, vmax=1)
        figure.colorbar(image, label="probability of wet")
        figure.savefig(out, dpi=120)
        print(f"drawn in {out}")
    return error


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--out", type=Path, default=Path("wet.png"))
    options = parser.parse_args()
    main(options.rows, options.out)
