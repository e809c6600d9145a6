"""One training step: the log marginal likelihood and its gradient by every parameter, against GPyTorch.

Both use exp for positivity, the same values and the same data; both return the value and the gradient by the
logarithms of the lengthscales, of the variance and of the noise, and by the mean. The reference is the textbook
formula in dense float64.
"""

import functools
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import peer_models
import torch
from common import RECORDS, arguments, interleaved, peer, smooth_data
from tables import CLAIM_COLUMNS, claim_row

import flashgp as fgp
from flashgp.bench import compare, write_record

LENGTHSCALE, VARIANCE, NOISE = 1.7, 1.3, 0.05
Step = Callable[..., list[torch.Tensor]]
# (n, d, dtype, target ratio)
SIZES = [
    (50, 6, torch.float64, 4.0),
    (200, 6, torch.float64, 2.5),
    (800, 6, torch.float64, 4.0),
    (2000, 8, torch.float32, 2.0),
    (5000, 8, torch.float32, 3.5),
]
INSIDE_FIT = {50: 8.0}  # target ratios as fit calls it, where they are others


def flashgp_step(d: int, dtype: torch.dtype) -> Step:
    """FlashGP's public objective with autograd's gradient, whose backward is in closed form."""
    kernel = VARIANCE * fgp.kernels.SquaredExponential(torch.full((d,), LENGTHSCALE, dtype=torch.float64))
    gp = fgp.GP(kernel, fgp.means.Constant(), fgp.likelihoods.Gaussian(NOISE))
    parameters = list(gp.parameters())  # kernel.variance, kernel.lengthscale, mean, noise

    def step(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        value = gp.log_marginal_likelihood(x, y, dtype=dtype)
        variance, lengthscale, mean, noise = torch.autograd.grad(value, parameters)
        return [value.detach(), lengthscale, torch.stack([variance, noise, mean])]

    return step


def gpytorch_step(gpytorch: Any, x: torch.Tensor, y: torch.Tensor) -> Step:
    """GPyTorch's exact model by Cholesky."""
    d = x.shape[-1]
    positive = gpytorch.constraints.Positive(transform=torch.exp, inv_transform=torch.log)

    base = gpytorch.kernels.RBFKernel(ard_num_dims=d, lengthscale_constraint=positive)
    kernel = gpytorch.kernels.ScaleKernel(base, outputscale_constraint=positive)
    likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=positive)
    objective = peer_models.exact(x, y, kernel, likelihood=likelihood)
    model = objective.model
    base.lengthscale, kernel.outputscale, likelihood.noise = LENGTHSCALE, VARIANCE, NOISE
    objective.train()
    parameters = [base.raw_lengthscale, kernel.raw_outputscale, likelihood.raw_noise, model.mean.raw_constant]

    def step(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        if model.train_inputs[0] is not x:
            model.set_train_data(x, y, strict=False)
        with gpytorch.settings.fast_computations(covar_root_decomposition=False, log_prob=False, solves=False):
            value = objective(model(x), y) * x.shape[0]
            lengthscale, variance, noise, mean = torch.autograd.grad(value, parameters)
        return [value.detach(), lengthscale.reshape(-1), torch.stack([variance.reshape(()), noise.reshape(()), mean])]

    return step


def reference(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    """The textbook formula in float64 with a closed-form gradient written out in dense torch."""
    x, y = x.double().cpu(), y.double().cpu()
    n = x.shape[0]
    z = x / LENGTHSCALE
    q = (z.square().sum(1)[:, None] + z.square().sum(1) - 2 * z @ z.T).clamp_min_(0.0).fill_diagonal_(0.0)
    k = VARIANCE * torch.exp(-0.5 * q)
    full = k + NOISE * torch.eye(n, dtype=torch.float64)
    lower = torch.linalg.cholesky(full)
    a = torch.cholesky_solve(y[:, None], lower)[:, 0]
    value = -0.5 * (y @ a + 2 * lower.diagonal().log().sum() + n * math.log(2 * math.pi))
    slope = 0.5 * (torch.outer(a, a) - torch.cholesky_inverse(lower))
    weighted = slope * k
    # sum_ij w_ij (z_i - z_j)^2 = 2 (sum_i z_i^2 sum_j w_ij - z^T W z), column by column
    by_log_lengthscale = 2.0 * ((weighted.sum(1)[:, None] * z.square()).sum(0) - (z * (weighted @ z)).sum(0))
    rest = [weighted.sum(), NOISE * slope.diagonal().sum(), a.sum()]
    return [value, by_log_lengthscale, torch.stack(rest)]


def inside_fit(x: torch.Tensor, y: torch.Tensor) -> Callable[[], Any]:
    """The same step as `fit` calls it: flat vector in, value and flat gradient out."""
    from flashgp.inference.exact.likelihood import DirectSettings
    from flashgp.inference.training.objective import LogJoint, Problem
    from flashgp.pairwise.torch.tiles import TorchTiles

    d = x.shape[-1]
    gp = fgp.GP(VARIANCE * fgp.kernels.SquaredExponential(torch.full((d,), LENGTHSCALE, dtype=torch.float64)),
                likelihood=fgp.likelihoods.Gaussian(NOISE))  # fmt: skip
    objective = LogJoint(Problem(gp, x, y, DirectSettings(TorchTiles(), x.dtype)))
    theta = objective.parameters.values()
    return lambda: objective(theta)


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv, __doc__ or "")
    gpytorch = None if options.toy else peer("gpytorch")
    sizes = [(12, 3, torch.float64, 1.0)] if options.toy else SIZES
    rows: list[dict[str, Any]] = []
    for n, d, dtype, target in sizes:
        work = f"objective + gradient, n={n}, d={d}, {str(dtype).removeprefix('torch.')}"
        if options.only not in work:
            continue
        x, y = smooth_data(n, d, dtype)
        candidates: dict[str, Any] = {"flashgp": flashgp_step(d, dtype)}
        if gpytorch is not None:
            candidates["gpytorch"] = gpytorch_step(gpytorch, x, y)
        result = compare(
            candidates, (x, y), reference=reference, tolerance=1e-6 if dtype == torch.float64 else 1e-3,
            repeats=3 if options.toy else (41 if n <= 200 else 15 if n <= 800 else 5), warmup=3,
        )  # fmt: skip
        print(result)
        if gpytorch is None:
            continue
        rows.append(
            claim_row(result, work=work, against="GPyTorch, Cholesky", ours="flashgp", peer="gpytorch", target=target)
        )
        if n <= 200:
            timed = interleaved(
                {"fit": inside_fit(x, y), "peer": functools.partial(candidates["gpytorch"], x, y)},
                15, 2, least_seconds=0.05,  # a fit calls nothing else in between
            )  # fmt: skip
            row, target = dict(rows[-1]), INSIDE_FIT.get(n, target)
            ours, theirs = timed["fit"].seconds, timed["peer"].seconds
            row |= {"work": work + ", as fit calls it", "ours_seconds": ours, "peer_seconds": theirs}
            row |= {"ratio": theirs / ours, "target": target, "met": theirs / ours >= target}
            rows.append(row)
    if rows and not options.toy and not options.only:
        title = "One training step against GPyTorch"
        write_record(RECORDS / "objective.json", {"title": title, "columns": [*CLAIM_COLUMNS], "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
