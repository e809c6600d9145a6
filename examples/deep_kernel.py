"""A network inside a kernel, trained by Adam on minibatches, beside ridge regressions.

The kernel sees what a small network makes of the columns. Network, lengthscales and noise follow the gradient of a
lower bound on log p(y) that each minibatch estimates; the distribution of the inducing values follows by itself.

Run: python examples/deep_kernel.py
"""

import gzip
from pathlib import Path

import numpy
import torch
from torch import Tensor, nn

import flashgp as fgp

TABLE = Path(__file__).parents[1] / "data" / "kin40k_6000.csv.gz"  # 8 columns, the target last


def table(rows: int) -> tuple[Tensor, Tensor]:
    """Standardised columns (rows, 8) and target (rows,), float64."""
    with gzip.open(TABLE, "rt") as file:
        numbers = torch.from_numpy(numpy.loadtxt(file, delimiter=",", skiprows=1, max_rows=rows))
    numbers = (numbers - numbers.mean(0)) / numbers.std(0)
    return numbers[:, :-1], numbers[:, -1]


def model(columns: int, features: int = 8) -> fgp.GP:
    """A Matern-5/2 of what a network of two hidden layers returns."""
    network = nn.Sequential(
        nn.Linear(columns, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, features)
    ).double()  # fmt: skip
    kernel = 1.0 * fgp.kernels.Warped(network, fgp.kernels.Matern(nu=2.5, lengthscale=torch.ones(features)))
    return fgp.GP(kernel, likelihood=fgp.likelihoods.Gaussian(0.1))


def train(gp: fgp.GP, x: Tensor, y: Tensor, *, epochs: int, batch: int = 250, inducing: int = 128) -> fgp.Posterior:
    """Move gp's parameters in place; the posterior of all rows."""
    z = gp.inducing_points(x, inducing)
    optimiser = torch.optim.Adam(gp.parameters(), lr=0.005)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs)
    generator, q = torch.Generator().manual_seed(0), None
    for epoch in range(epochs):
        total = 0.0
        parts = torch.randperm(len(x), generator=generator).split(batch)
        for index in parts:
            step = gp.minibatch_bound(x[index], y[index], count=len(x), inducing=z, q=q)
            optimiser.zero_grad()
            (-step.value).backward()
            optimiser.step()
            q = step.q
            total += step.value.item() / len(x) / len(parts)
        schedule.step()
        if epoch % 10 == 9:
            print(f"epoch {epoch + 1}: bound {total:.3f} nats a row, steps of q(u) of size {q.step_size:.2f}")
    return gp.condition(x, y, approximation="sparse", inducing=z)  # one pass: the best q(u) of all rows


def ridge(x: Tensor, y: Tensor, x_test: Tensor) -> Tensor:
    """Predictions of a linear model with an intercept, its penalty by generalised cross-validation."""
    centre, height = x.mean(0), y.mean()
    u, s, v = torch.linalg.svd(x - centre, full_matrices=False)
    projected = u.mT @ (y - height)
    best, weights = torch.inf, torch.zeros_like(projected)
    for penalty in torch.logspace(-6, 4, 41, dtype=x.dtype):
        shrink = s.square() / (s.square() + penalty)
        left = (y - height - u @ (shrink * projected)).square().mean()
        score = float(left / (1.0 - (1.0 + shrink.sum()) / len(x)) ** 2)
        if score < best:
            best, weights = score, v.mT @ (shrink * projected / s)
    return height + (x_test - centre) @ weights


def main(rows: int = 6000, epochs: int = 60) -> dict[str, float]:
    torch.manual_seed(0)
    x, y = table(rows)
    held_out = len(x) // 6
    x_test, y_test, x, y = x[:held_out], y[:held_out], x[held_out:], y[held_out:]
    gp = model(x.shape[1])
    post = train(gp, x, y, epochs=epochs)
    network = gp.kernel.kernel.module
    with torch.no_grad():
        features, features_test = network(x), network(x_test)
    means = {
        "deep kernel": post.predict(x_test).mean,
        "ridge regression on its features": ridge(features, y, features_test),
        "ridge regression on the columns": ridge(x, y, x_test),
    }
    errors = {name: float((mean - y_test).square().mean().sqrt()) for name, mean in means.items()}
    for name, error in errors.items():
        print(f"{name}: RMSE {error:.3f} of {held_out:,} held-out rows, in standard deviations of the target")
    return errors


if __name__ == "__main__":
    main()
