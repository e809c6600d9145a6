"""Sampled variance against exact solves: four estimates from the same number of solves, Matern-3/2, unit cube.

"sampled" is what `variance_probes` gives; "deviations" are its pathwise deviations alone; "control" regresses these on
the deviations of a Nystrom posterior, point by point; "probes" estimate what data explain from solves with the
preconditioner's own draws, with its own solves as control. Errors are relative to the latent variance.
"""

import sys
from collections.abc import Sequence

import torch
from common import RECORDS, arguments
from torch import Tensor

import flashgp as fgp
from flashgp.bench import write_record
from flashgp.inference.predict.prior_draws import pivots_of
from flashgp.inference.predict.sampled_variance import VarianceProbes, variance_probes
from flashgp.planner.variances import ProbeSizes

F64 = torch.float64
COLUMNS = [
    {"key": "work", "title": "rows and noise"},
    {"key": "sampled", "title": "sampled", "format": "error"},
    {"key": "coverage", "title": "truth in the 95 % interval", "format": "percent"},
    {"key": "bound", "title": "the bound alone", "format": "error"},
    {"key": "deviations", "title": "deviations", "format": "error"},
    {"key": "control", "title": "with a Nystrom control", "format": "error"},
    {"key": "probes", "title": "probes", "format": "error"},
]


def regressed(values: Tensor, control: Tensor, known: Tensor) -> Tensor:
    """The mean of values, corrected by what the mean of the control misses, with a coefficient for each point."""
    centred = control - control.mean(-1, keepdim=True)
    slope = ((values - values.mean(-1, keepdim=True)) * centred).sum(-1) / centred.square().sum(-1)
    return values.mean(-1) - slope * (control.mean(-1) - known)


def others(probes: VarianceProbes, factor: Tensor, pivots: Tensor, x_test: Tensor, seed: int) -> dict[str, Tensor]:
    """The three estimates that were not chosen."""
    post = probes.state
    kernel, x = post.prior.kernel, post.x
    noise = float(post.prior.likelihood.variance(x.device)) * torch.eye(post.count, dtype=F64)
    cross, approximate = kernel(x_test, x).to_dense(), factor @ factor.mT + noise
    drawn = torch.cat([draw(x_test) for draw in probes.draws], dim=-1)
    deviations = (drawn - cross @ probes.solutions).square()
    at_test = torch.linalg.solve_triangular(factor[pivots], kernel(x[pivots], x_test).to_dense(), upper=False).mT
    weights = at_test @ torch.linalg.solve(approximate, factor).mT
    exact = kernel(x).to_dense() + noise
    known = 1.0 - 2.0 * (weights * cross).sum(-1) + ((weights @ exact) * weights).sum(-1)
    normal = torch.randn(drawn.shape[-1], post.count, generator=torch.Generator().manual_seed(seed), dtype=F64).mT
    z = torch.linalg.cholesky(approximate) @ normal
    left, right = cross @ torch.linalg.solve(exact, z), cross @ torch.linalg.solve(approximate, z)
    explained = (cross * torch.linalg.solve(approximate, cross.mT).mT).sum(-1)
    return {
        "deviations": deviations.mean(-1),
        "control": regressed(deviations, (drawn - weights @ probes.noisy).square(), known),
        "probes": 1.0 - regressed(left * right, right.square(), explained),
    }


def row(n: int, d: int, noise: float, seeds: int, samples: int, rank: int) -> dict[str, object]:
    generator = torch.Generator().manual_seed(d)
    x, x_test = (torch.rand(size, d, generator=generator, dtype=F64) for size in (n, max(5, n // 8)))
    kernel = fgp.kernels.Matern(1.5, 0.3 * d**0.5)
    post = fgp.GP(kernel, likelihood=fgp.likelihoods.Gaussian(noise)).condition(x, x[:, 0])
    truth = post.predict(x_test).variance
    errors: dict[str, list[Tensor]] = {}
    for seed in range(seeds):
        pivots, factor, _ = pivots_of(post.gp, x, rank, torch.Generator().manual_seed(seed))
        probes = variance_probes(post.state, ProbeSizes(samples, rank, min(64, n // 4)), factor=factor, seed=seed)
        sampled = probes(x_test)
        estimates = {
            "sampled": sampled.variance,
            "bound": sampled.bound,
            **others(probes, factor, pivots, x_test, seed),
        }
        for name, estimate in estimates.items():
            errors.setdefault(name, []).append((estimate / truth - 1).square().mean())
        inside = (sampled.lower <= truth) & (truth <= sampled.upper)
        errors.setdefault("coverage", []).append(inside.double().mean())
    means = {name: float(torch.stack(values).mean()) for name, values in errors.items()}
    return {
        "work": f"n={n}, d={d}, noise variance {noise:g}, {samples} samples",
        **{name: value if name == "coverage" else value**0.5 for name, value in means.items()},
    }


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv, __doc__ or "")
    n, seeds, samples, rank = (40, 1, 8, 6) if options.toy else (800, 6, 64, 100)
    with torch.no_grad():
        rows = []
        for d in (2, 4):
            for noise in (1e-1, 1e-3, 1e-5):
                rows.append(row(n, d, noise, seeds, samples, rank))
                print(rows[-1], flush=True)
    if not options.toy and not options.only:
        write_record(RECORDS / "variance.json", {"title": "Sampled variance", "columns": COLUMNS, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
