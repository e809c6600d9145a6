"""Log marginal likelihood with its closed-form gradient: one n x n buffer, no autograd graph over it.

With K^ = K + noise, a = K^-1 (y - m) and p outputs sharing one factor, eqs. (M-33) and (M-34); outputs with noise of
their own are p such sums, of p = 1:

    L     = -1/2 sum_o r_o^T K^-1 r_o - p/2 log|K^| - n p/2 log(2 pi)
    dL/dK^ = 1/2 (A A^T - p K^-1)          (A holds one column of a per output)
    dL/dr  = -A

The Cholesky factor overwrites K^, the inverse overwrites the factor, and dL/dK^ overwrites the inverse. One pass over
the pairs then pulls dL/dK^ back to every parameter and input; features, means and noise continue in autograd.
Source: Rasmussen & Williams (2006), eqs. 2.30 and 5.9.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from flashgp.foundations.form import Form, Rows, broadcast_batch
from flashgp.foundations.normal import LOG_2PI
from flashgp.foundations.workspace import Workspace
from flashgp.inference.exact.small import SmallLikelihood, SmallModel, small_likelihood
from flashgp.inference.prior import Prior
from flashgp.inference.threads import one_thread
from flashgp.pairwise.backend import Backend
from flashgp.pairwise.numpy_pairs import MAX_NUMPY_ROWS, NumpyPairs, RowArrays
from flashgp.pairwise.problem import PairProblem
from flashgp.solvers.direct.cholesky import Factor, factorise

__all__ = [
    "DirectSettings",
    "evaluate_likelihood",
    "factorise_covariance",
    "log_marginal_likelihood",
    "value_and_gradients",
]


@dataclass
class DirectSettings:
    """How a direct computation runs, and where it writes what happened.

    Fields: backend; dtype of the matrix; jitter, repair and max_jitter as in `factorise` (repair is asked only after a
    failure); workspace; jitters, filled with every relative jitter tried.
    """

    backend: Backend
    dtype: torch.dtype = torch.float64
    jitter: float | None = None
    repair: Callable[[], bool] = lambda: True
    workspace: Workspace = field(default_factory=Workspace)
    jitters: list[float] = field(default_factory=list)
    max_jitter: float = math.inf


def evaluate_likelihood(prior: Prior, settings: DirectSettings, x: Tensor, y: Tensor) -> Tensor:
    """The log marginal likelihood of checked data, (*batch,), nats, differentiable once in parameters, x and y."""
    if prior.separate:  # outputs of one kernel are independent: the likelihood of each
        outputs = enumerate(prior.each_output)
        return torch.stack([evaluate_likelihood(one, settings, x, y[..., j]) for j, one in outputs]).sum(0)
    with one_thread(x.shape[-2] * x.shape[:-2].numel()):
        value = None
        if settings.dtype == torch.float64 and not settings.jitter and torch.is_grad_enabled():
            small = SmallModel.of(prior, x, y)
            value = None if small is None else small_likelihood(small)
        if value is None:
            residual, noise, rows, theta = prior.likelihood_inputs(x, y)
            value = log_marginal_likelihood(settings, prior.kernel.form, theta, rows, residual, noise)
        scale = prior.log_scale(y)
        return value if scale is None else value + scale


def factorise_covariance(
    settings: DirectSettings,
    form: Form,
    theta: Sequence[Tensor],
    rows: Rows,
    noise: Tensor,
    first: Tensor | None = None,
) -> Factor:
    """The Cholesky factor of K + diag(noise), noise (*batch, n or 1); jitters go to the settings.

    `first` is K (its upper triangle) if it is at hand; it is overwritten.
    """
    ready, problem = [] if first is None else [first], PairProblem(form, theta, rows)

    def build() -> Tensor:
        matrix = (
            ready.pop()
            if ready
            else settings.backend.block(problem, dtype=settings.dtype, workspace=settings.workspace, upper=True)
        )
        shape = (*broadcast_batch(matrix.shape[:-2], noise.shape[:-1]), *matrix.shape[-2:])
        if matrix.shape != shape or not matrix.is_contiguous():
            matrix = matrix.expand(shape).contiguous()
        matrix.diagonal(dim1=-2, dim2=-1).add_(noise.to(matrix.dtype))
        return matrix

    factor = factorise(build, settings.jitter, repair=settings.repair, max_jitter=settings.max_jitter)
    settings.jitters += factor.attempts
    return factor


def log_marginal_likelihood(
    settings: DirectSettings, form: Form, theta: Sequence[Tensor], rows: Rows, residual: Tensor, noise: Tensor
) -> Tensor:
    """log p(y) of eq. (M-33), differentiable once in theta, rows, residual and noise.

    Args:
        residual: y minus the prior mean, (*batch, n, p), units of y.
        noise: variance of each row, (*batch, n) or (*batch, 1), units of y squared.
    Returns: (*batch,), nats, float64; not divided by n.
    Raises: NotPositiveDefiniteError with the failing batch indices.
    Cost: n^3 flops with the gradient (n^3 / 3 without), one n x n buffer and one tile.
    """
    tensors = (residual, noise, *rows.tensors, *theta)
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return _LogMarginalLikelihood.apply(settings, form, rows, *tensors)
    return value_and_gradients(settings, form, rows, tensors, [False] * len(tensors))[0]


def value_and_gradients(
    settings: DirectSettings, form: Form, rows: Rows, tensors: Sequence[Tensor], wanted: Sequence[bool]
) -> tuple[Tensor, list[Tensor | None]]:
    """The value and the gradient by every wanted tensor."""
    residual, noise, *rest = tensors
    split = len(rows.tensors)
    rows, theta = rows.rebuilt(rest[:split]), rest[split:]
    n, p = residual.shape[-2:]
    if any(wanted) and _is_plain(settings, tensors, residual, noise, theta, rows):
        small = _small(settings.workspace, form, theta, rows, residual, noise)
        if small is not None:
            return small
    block = pull = None
    if any(wanted[2:]):
        block, pull = settings.backend.taped_block(
            PairProblem(form, theta, rows), dtype=settings.dtype, workspace=settings.workspace
        )
    factor = factorise_covariance(settings, form, theta, rows, noise, block)
    del block
    batch = factor.lower.shape[:-2]
    right = residual.to(settings.dtype).expand(*batch, n, p)
    weights = factor.solve(right)
    fit = (residual * weights).sum((-2, -1))
    value = -0.5 * (fit.double() + p * factor.log_determinant + n * p * LOG_2PI)
    gradients: list[Tensor | None] = [None] * len(tensors)
    if not any(wanted):
        return value, gradients
    if wanted[0]:
        gradients[0] = -weights.to(residual.dtype)
    if any(wanted[1:]):
        slope = factor.inverse_()
        slope = _rank_update(slope, weights, p)
        if wanted[1]:
            gradients[1] = slope.diagonal(dim1=-2, dim2=-1).to(noise.dtype)
        if pull is not None:
            pulled = pull(slope)
            gradients[2:] = [*pulled.rows, *pulled.theta]
    # One sum back to each tensor's own shape: a parameter shared by the batch collects from all members.
    return value, gradients


def _is_plain(
    settings: DirectSettings,
    tensors: Sequence[Tensor],
    residual: Tensor,
    noise: Tensor,
    theta: Sequence[Tensor],
    rows: Rows,
) -> bool:
    """One model in float64 on the CPU, without jitter from the start, in plain tensors."""
    return (
        settings.dtype == torch.float64
        and not settings.jitter
        and residual.dim() == 2
        and residual.shape[0] > 0
        and noise.dim() == 1
        and all(t.dim() == 0 for t in theta)
        and all(f.dim() == (2 if f.is_floating_point() else 1) for f in rows.features)
        and all(a.dim() == 1 for a in rows.scalars)
        and all(t.device.type == "cpu" and t.dtype in (torch.float64, torch.int64) for t in tensors)
    )


def _small(
    workspace: Workspace, form: Form, theta: Sequence[Tensor], rows: Rows, residual: Tensor, noise: Tensor
) -> tuple[Tensor, list[Tensor | None]] | None:
    """The same as a small problem; None where it is none, or not positive definite (the ladder of jitters decides)."""
    pairs = NumpyPairs.of(form, theta) if rows.count <= MAX_NUMPY_ROWS else None
    if pairs is None:
        return None
    problem = SmallLikelihood(pairs, RowArrays.of(rows), workspace)
    solved = problem.solve(noise.detach().numpy(), residual.detach().numpy())
    if solved is None:
        return None
    value, weights, lower = solved
    slope = problem.slope(weights, lower)
    gradients: list[Tensor | None] = [torch.from_numpy(-weights), torch.from_numpy(slope.diagonal().copy())]
    for part in problem.pull(slope):
        if part is None:
            gradients.append(None)
        else:
            gradients.append(
                torch.tensor(part, dtype=torch.float64) if isinstance(part, float) else torch.from_numpy(part)
            )
    return torch.tensor(value, dtype=torch.float64), gradients


def _rank_update(inverse: Tensor, weights: Tensor, p: int) -> Tensor:
    """1/2 (A A^T - p K^-1) in the memory of the inverse, eq. (M-34)."""
    if inverse.dim() == 2:
        return inverse.addmm_(weights, weights.mT, beta=-0.5 * p, alpha=0.5)
    return (
        inverse.baddbmm_(weights, weights.mT, beta=-0.5 * p, alpha=0.5)
        if inverse.dim() == 3
        else (inverse.mul_(-0.5 * p).add_(weights @ weights.mT, alpha=0.5))
    )


class _LogMarginalLikelihood(torch.autograd.Function):
    """Computes the gradient together with the value, since the factor is at hand; backward only scales it."""

    @staticmethod
    def forward(ctx: Any, settings: DirectSettings, form: Form, rows: Rows, *tensors: Tensor) -> Tensor:
        value, gradients = value_and_gradients(settings, form, rows, tensors, ctx.needs_input_grad[3:])
        ctx.shapes = [(t.shape, t.dtype) for t in tensors]
        ctx.gradients = gradients
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        results: list[Tensor | None] = [None, None, None]
        for (shape, dtype), saved in zip(ctx.shapes, ctx.gradients, strict=True):
            if saved is None:
                results.append(None)
                continue
            scale = gradient.reshape(gradient.shape + (1,) * (saved.dim() - gradient.dim()))
            part = saved * scale
            results.append(part.sum_to_size(shape).to(dtype) if part.shape != shape else part.to(dtype))
        return tuple(results)
