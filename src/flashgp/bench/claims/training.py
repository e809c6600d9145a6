"""One training step: the log marginal likelihood and its gradient by every parameter.

All candidates use exp for positivity, the same values and the same data; all return the value and the gradient by the
logarithms of the lengthscales, of the variance and of the noise, and by the mean. The reference is the textbook formula
in dense float64.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from flashgp.bench.claims.peers import peer, smooth_data, takes_no_part
from flashgp.bench.claims.suite import BROADCASTING, DTYPES, VMAP, Finding, Options, Outcome, Speaker, Suite, measure
from flashgp.inference.gp import GP
from flashgp.kernels import SquaredExponential
from flashgp.likelihoods import Gaussian
from flashgp.means import Constant

__all__ = ["LENGTHSCALE", "NOISE", "SUITE", "VARIANCE", "flashgp_step", "gpytorch_step", "plain_step", "reference"]

LENGTHSCALE, VARIANCE, NOISE = 1.7, 1.3, 0.05
D = 6
TOLERANCES = {"float64": 1e-6, "float32": 1e-3}
Step = Callable[..., list[Tensor]]


def flashgp_step(d: int, dtype: torch.dtype) -> Step:
    """FlashGP's public objective with autograd's gradient, whose backward is in closed form."""
    kernel = VARIANCE * SquaredExponential(torch.full((d,), LENGTHSCALE, dtype=torch.float64))
    gp = GP(kernel, Constant(), Gaussian(NOISE))
    parameters = list(gp.parameters())  # kernel.variance, kernel.lengthscale, mean, noise

    def step(x: Tensor, y: Tensor) -> list[Tensor]:
        value = gp.log_marginal_likelihood(x, y, dtype=dtype)
        variance, lengthscale, mean, noise = torch.autograd.grad(value, parameters)
        return [value.detach(), lengthscale, torch.stack([variance, noise, mean])]

    return step


def plain_step(d: int, dtype: torch.dtype, device: str, mapped: bool) -> Step:
    """Plain torch, everything by autograd, the matrix by broadcasting or by nested vmap."""
    start = [math.log(LENGTHSCALE)] * d, math.log(VARIANCE), math.log(NOISE), 0.0

    def step(x: Tensor, y: Tensor) -> list[Tensor]:
        leaves = [torch.tensor(value, dtype=dtype, device=device, requires_grad=True) for value in start]
        lengthscale, variance, noise, mean = leaves
        z = x / lengthscale.exp()
        if mapped:

            def row(a: Tensor) -> Tensor:
                return torch.func.vmap(lambda b: torch.exp(-0.5 * (a - b).square().sum()))(z)

            k = torch.func.vmap(row)(z)
        else:
            k = torch.exp(-0.5 * (z[:, None] - z[None]).square().sum(-1))
        full = variance.exp() * k + noise.exp() * torch.eye(len(x), dtype=dtype, device=device)
        lower = torch.linalg.cholesky(full)
        white = torch.linalg.solve_triangular(lower, (y - mean).unsqueeze(-1), upper=False)
        value = -0.5 * (white.square().sum() + 2.0 * lower.diagonal().log().sum() + len(x) * math.log(2.0 * math.pi))
        by_lengthscale, by_variance, by_noise, by_mean = torch.autograd.grad(value, leaves)
        return [value.detach(), by_lengthscale, torch.stack([by_variance, by_noise, by_mean])]

    return step


def gpytorch_step(gpytorch: Any, x: Tensor, y: Tensor) -> Step:
    """GPyTorch's exact model by Cholesky."""
    d, dtype = x.shape[-1], x.dtype
    positive = gpytorch.constraints.Positive(transform=torch.exp, inv_transform=torch.log)

    class Model(gpytorch.models.ExactGP):
        def __init__(self, likelihood: Any) -> None:
            super().__init__(x, y, likelihood)
            self.mean = gpytorch.means.ConstantMean()
            base = gpytorch.kernels.RBFKernel(ard_num_dims=d, lengthscale_constraint=positive)
            self.kernel = gpytorch.kernels.ScaleKernel(base, outputscale_constraint=positive)

        def forward(self, points: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(points), self.kernel(points))

    model = Model(gpytorch.likelihoods.GaussianLikelihood(noise_constraint=positive)).to(x.device, dtype)
    model.kernel.base_kernel.lengthscale = LENGTHSCALE
    model.kernel.outputscale = VARIANCE
    model.likelihood.noise = NOISE
    model.train()
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    parameters = [
        model.kernel.base_kernel.raw_lengthscale, model.kernel.raw_outputscale,
        model.likelihood.raw_noise, model.mean.raw_constant,
    ]  # fmt: skip

    def step(x: Tensor, y: Tensor) -> list[Tensor]:
        if model.train_inputs[0] is not x:
            model.set_train_data(x, y, strict=False)
        with gpytorch.settings.fast_computations(covar_root_decomposition=False, log_prob=False, solves=False):
            value = objective(model(x), y) * x.shape[0]
            lengthscale, variance, noise, mean = torch.autograd.grad(value, parameters)
        return [value.detach(), lengthscale.reshape(-1), torch.stack([variance.reshape(()), noise.reshape(()), mean])]

    return step


def reference(x: Tensor, y: Tensor) -> list[Tensor]:
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


def run(options: Options, say: Speaker) -> Outcome:
    """Every size, dtype and device; see Suite."""
    findings: list[Finding] = []
    notes: list[str] = []
    gpytorch = peer("gpytorch") if options.peers else None
    for device, name, n in options.problems:
        dtype = DTYPES[name]
        x, y = (tensor.to(device) for tensor in smooth_data(n, D, dtype))
        candidates: dict[str, Step] = {
            "FlashGP": flashgp_step(D, dtype),
            BROADCASTING: plain_step(D, dtype, device, mapped=False),
            VMAP: plain_step(D, dtype, device, mapped=True),
        }
        if gpytorch is not None:
            candidates["GPyTorch"] = gpytorch_step(gpytorch, x, y)
        finding, said = measure(
            f"d={D}, {name}, {device}", n, candidates, (x, y), reference, TOLERANCES[name], options,
            dict.fromkeys((BROADCASTING, VMAP), 5 * n * n * D * dtype.itemsize), say, gradients=True,
        )  # fmt: skip
        findings.append(finding)
        notes += said
    if options.peers and gpytorch is None:
        notes.append(takes_no_part("GPyTorch"))
    return SUITE.outcome(findings, notes)


SUITE = Suite(
    "training",
    "One training step",
    "How long do the log marginal likelihood and its gradient by every parameter take?",
    sizes=(50, 200, 800),
    dtypes=("float64",),
    run=run,
)
