"""Agreement with scikit-learn in float64: value and gradient norm of the likelihood at 20 random parameter vectors."""

import sys
from collections.abc import Sequence
from typing import Any

import numpy
import torch
from common import RECORDS, arguments, smooth_data

import flashgp as fgp
from flashgp.bench import write_record

COLUMNS = [
    {"key": "work", "title": "agreement"},
    {"key": "vectors", "title": "vectors", "format": "integer"},
    {"key": "value_error", "title": "largest relative error of the value", "format": "error"},
    {"key": "gradient_error", "title": "of the gradient norm", "format": "error"},
    {"key": "largest_condition", "title": "largest condition number", "format": "error"},
    {"key": "target", "title": "at most", "format": "error"},
]
TARGET, LARGEST_CONDITION = 1e-8, 1e8


def compare_at(theta: numpy.ndarray, x: torch.Tensor, y: torch.Tensor, regressor: Any) -> tuple[float, float, float]:
    """(relative error of the value, of the gradient norm, condition number) at one vector of logarithms."""
    values = numpy.exp(theta)
    gp = fgp.GP(
        float(values[0]) * fgp.kernels.Matern(nu=2.5, lengthscale=torch.from_numpy(values[1:-1].copy())),
        fgp.means.Zero(),
        fgp.likelihoods.Gaussian(float(values[-1])),
    )
    ours = gp.log_marginal_likelihood(x, y)
    gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(ours, list(gp.parameters()))])
    theirs, their_gradient = regressor.log_marginal_likelihood(theta, eval_gradient=True)
    kernel = regressor.kernel.clone_with_theta(theta)
    condition = float(numpy.linalg.cond(kernel(x.numpy())))
    norm, their_norm = float(gradient.norm()), float(numpy.linalg.norm(their_gradient))
    return abs(ours.item() - theirs) / abs(theirs), abs(norm - their_norm) / their_norm, condition


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv, __doc__ or "")
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    n, d, vectors = (10, 2, 3) if options.toy else (200, 4, 20)
    x, y = smooth_data(n, d, torch.float64)
    kernel = ConstantKernel(1.0) * Matern(numpy.ones(d), nu=2.5) + WhiteKernel(0.1)
    regressor = GaussianProcessRegressor(kernel, alpha=1e-300, optimizer=None).fit(x.numpy(), y.numpy())
    generator = numpy.random.default_rng(0)
    errors: list[tuple[float, float, float]] = []
    while len(errors) < vectors:
        theta = numpy.concatenate(
            [generator.normal(0, 1, 1), generator.normal(0.5, 1, d), generator.uniform(numpy.log(1e-5), 0, 1)]
        )
        one = compare_at(theta, x, y, regressor)
        if one[2] <= LARGEST_CONDITION:
            errors.append(one)
    value, gradient, condition = (max(column) for column in zip(*errors, strict=True))
    row = {
        "work": f"log marginal likelihood, Matern-5/2 ARD, n={n}, d={d}, float64", "vectors": vectors,
        "value_error": value, "gradient_error": gradient, "largest_condition": condition, "target": TARGET,
        "met": max(value, gradient) <= TARGET,
    }  # fmt: skip
    print(row)
    if not options.toy:
        write_record(
            RECORDS / "agreement.json", {"title": "Agreement with scikit-learn", "columns": COLUMNS, "rows": [row]}
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
