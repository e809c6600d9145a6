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

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from flashgp.foundations.form import Form, Rows, broadcast_batch
from flashgp.foundations.lazy_import import lazy_import
from flashgp.foundations.normal import LOG_2PI
from flashgp.foundations.parameters import Parameter, ParameterEntry, named_parameter_objects
from flashgp.foundations.transforms import has_tangent, is_followed, is_transformed
from flashgp.foundations.workspace import Workspace
from flashgp.inference.exact.derivatives import Curvature, Evaluation, differentiable_likelihood
from flashgp.inference.exact.small import SmallLikelihood, SmallModel, small_likelihood
from flashgp.inference.exact.solve import LikelihoodRounding
from flashgp.inference.missing_cells import of_observed
from flashgp.inference.prior import Prior, conflicting
from flashgp.inference.threads import one_thread
from flashgp.pairwise.backend import Backend
from flashgp.pairwise.numpy_pairs import MAX_NUMPY_ROWS, NumpyPairs, RowArrays
from flashgp.pairwise.problem import PairProblem
from flashgp.solvers.direct.cholesky import Factor, factorise

SECOND_ORDER_ROWS = 4096  # a dozen n x n matrices: 1.5 GiB


PRODUCT_PANELS = 4  # of a symmetric product: more save less than smaller products lose


@dataclass
class DirectSettings:
    """Settings of a direct computation, and where it writes what happened.

    Fields: backend; dtype of the matrix; jitter, repair and max_jitter as in `factorise` (repair is asked only after a
    failure); workspace; jitters, filled with every relative jitter tried; second_order_rows, up to which second
    derivatives are computed, by dense matrices; rounding, None or told of every log likelihood.
    """

    backend: Backend
    dtype: torch.dtype = torch.float64
    jitter: float | None = None
    repair: Callable[[], bool] = lambda: True
    workspace: Workspace = field(default_factory=Workspace)
    jitters: list[float] = field(default_factory=list)
    max_jitter: float = math.inf
    second_order_rows: int = SECOND_ORDER_ROWS
    rounding: LikelihoodRounding | None = None


def evaluate_likelihood(prior: Prior, settings: DirectSettings, x: Tensor, y: Tensor) -> Tensor:
    """The log marginal likelihood of checked data, (*batch,), nats, differentiable twice in parameters, x and y."""
    if prior.separate:  # outputs of one kernel are independent: the likelihood of each
        each = (of_observed(prior, x, y, j, live=True) for j in range(prior.factors))
        return torch.stack([evaluate_likelihood(one, settings, *rows) for one, *rows in each]).sum(0)

    def general(prior: Prior) -> Tensor:
        residual, noise, rows, theta = prior.likelihood_inputs(x, y)
        return log_marginal_likelihood(settings, prior.kernel.form, theta, rows, residual, noise)

    def again(parameters: Sequence[Parameter], raws: Sequence[Tensor]) -> Tensor:
        names = {id(p): f"{name}.raw" for name, p in named_parameter_objects(prior)}
        given = list(zip(parameters, raws, strict=True))
        theta = {names[id(p)]: raw for p, raw in given if not isinstance(p, ParameterEntry)}
        with contextlib.ExitStack() as stack:
            for p, raw in given:
                if isinstance(p, ParameterEntry):  # of this output's prior alone
                    stack.enter_context(p.at(raw))
            return prior.at(theta, x, y, general)

    with one_thread(x.shape[-2] * x.shape[:-2].numel()):
        value = None
        if settings.dtype == torch.float64 and not settings.jitter and torch.is_grad_enabled():
            small = SmallModel.of(prior, x, y)
            value = None if small is None else small_likelihood(small, again, settings.rounding)
        value = general(prior) if value is None else value
        scale = prior.log_scale(y)
        return value if scale is None else value + scale


def factorise_covariance(
    settings: DirectSettings, problem: PairProblem, noise: Tensor, first: Tensor | None = None
) -> Factor:
    """The Cholesky factor of K + diag(noise), noise (*batch, n or 1); jitters go to the settings.

    `first` is K (its upper triangle) if it is at hand; it is overwritten.
    """
    ready = [] if first is None else [first]

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
    """log p(y) of eq. (M-33), differentiable twice in theta, rows, residual and noise.

    Args:
        residual: y minus the prior mean, (*batch, n, p), units of y.
        noise: variance of each row, (*batch, n) or (*batch, 1), units of y squared.
    Returns: (*batch,), nats, float64; not divided by n.
    Raises: NotPositiveDefiniteError with the failing batch indices.
    Cost: n^3 flops with the gradient (n^3 / 3 without), one n x n buffer and one tile.
    """
    # A batch of targets or means beside one covariance matrix is a batch of systems.
    noise = noise.expand(*broadcast_batch(noise.shape[:-1], residual.shape[:-2]), noise.shape[-1])
    tensors = (residual, noise, *rows.tensors, *theta)
    if not is_followed(tensors) and not has_tangent(tensors):
        return value_and_gradients(settings, form, rows, tensors, [False] * len(tensors))[0]
    tensors = (residual, noise.expand(*noise.shape[:-1], rows.count), *tensors[2:])
    events = (2, 1, *PairProblem(form, theta, rows).event_dims)
    inside = any(is_transformed(t) for t in tensors) or has_tangent(tensors)
    wanted = [t.is_floating_point() and (inside or t.requires_grad) for t in tensors]

    def settled(tensors: Sequence[Tensor]) -> DirectSettings:
        return replace(settings, repair=lambda: _repairable(rows, tensors)) if inside else settings

    def gradient(tensors: Sequence[Tensor], wanted: Sequence[bool]) -> tuple[Tensor, list[Tensor | None]]:
        return value_and_gradients(settled(tensors), form, rows, _one_batch(tensors, events), wanted)

    def curvature(tensors: Sequence[Tensor]) -> Curvature:
        return _Curvature(settled(tensors), form, rows, _one_batch(tensors, events))

    evaluation = Evaluation(gradient, curvature, wanted, events, settings.second_order_rows)
    return differentiable_likelihood(evaluation, tensors)


def _one_batch(tensors: Sequence[Tensor], events: Sequence[int]) -> Sequence[Tensor]:
    """The tensors with the whole batch in the noise, so that every member has a matrix of its own."""
    batch = broadcast_batch(*(t.shape[: t.dim() - event] for t, event in zip(tensors, events, strict=True)))
    residual, noise, *rest = tensors
    return tensors if not batch else [residual, noise.expand(*batch, noise.shape[-1]), *rest]


def _repairable(rows: Rows, tensors: Sequence[Tensor]) -> bool:
    """True as `Prior.repairable`, by what a transform of torch.func shows: rows are equal where their features are."""
    residual, noise, rows, _ = parts_of(rows, tensors)
    if bool((noise > 0).all()) or not rows.tensors:
        return True
    columns = [t.double() if t.is_floating_point() else t.double().unsqueeze(-1) for t in rows.features]
    columns += [a.unsqueeze(-1) for a in rows.scalars]
    batch = broadcast_batch(*(c.shape[:-2] for c in columns))
    points = torch.cat([c.expand(*batch, *c.shape[-2:]) for c in columns], -1)
    return not conflicting(points, residual, noise, residual.shape[-1])


def parts_of(rows: Rows, tensors: Sequence[Tensor]) -> tuple[Tensor, Tensor, Rows, list[Tensor]]:
    """(residual, noise, rows, theta)."""
    residual, noise, *rest = tensors
    split = len(rows.tensors)
    return residual, noise, rows.rebuilt(rest[:split]), rest[split:]


def value_and_gradients(
    settings: DirectSettings, form: Form, rows: Rows, tensors: Sequence[Tensor], wanted: Sequence[bool]
) -> tuple[Tensor, list[Tensor | None]]:
    """The value and the gradient by every wanted tensor."""
    residual, noise, rows, theta = parts_of(rows, tensors)
    (n, p), problem = residual.shape[-2:], PairProblem(form, theta, rows)
    if any(wanted) and _is_plain(settings, problem, residual, noise):
        small = _small(settings, problem, residual, noise)
        if small is not None:
            return small
    block = pull = None
    if any(wanted[2:]):
        block, pull = settings.backend.taped_block(problem, dtype=settings.dtype, workspace=settings.workspace)
    factor = factorise_covariance(settings, problem, noise, block)
    del block
    batch = factor.lower.shape[:-2]
    right = residual.to(settings.dtype).expand(*batch, n, p)
    weights = factor.solve(right)
    fit = (residual * weights).sum((-2, -1))
    value = -0.5 * (fit.double() + p * factor.log_determinant + n * p * LOG_2PI)
    if settings.rounding is not None:
        settings.rounding.note(factor.lower, weights, value)
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


def _is_plain(settings: DirectSettings, problem: PairProblem, residual: Tensor, noise: Tensor) -> bool:
    """One model in float64 on the CPU, without jitter from the start, in plain tensors."""
    rows, tensors = problem.rows, (residual, noise, *problem.tensors)
    return (
        settings.dtype == torch.float64
        and not settings.jitter
        and residual.dim() == 2
        and residual.shape[0] > 0
        and noise.dim() == 1
        and all(t.dim() == 0 for t in problem.theta)
        and all(f.dim() == (2 if f.is_floating_point() else 1) for f in rows.features)
        and all(a.dim() == 1 for a in rows.scalars)
        and all(t.device.type == "cpu" and t.dtype in (torch.float64, torch.int64) for t in tensors)
    )


def _small(
    settings: DirectSettings, covariance: PairProblem, residual: Tensor, noise: Tensor
) -> tuple[Tensor, list[Tensor | None]] | None:
    """Value and gradient as a small problem; None if it is none, or not positive definite (the ladder of jitters
    decides)."""
    rows = covariance.rows
    pairs = NumpyPairs.of(covariance.form, covariance.theta) if rows.count <= MAX_NUMPY_ROWS else None
    if pairs is None:
        return None
    problem = SmallLikelihood(pairs, RowArrays.of(rows), settings.workspace)
    solved = problem.solve(noise.detach().numpy(), residual.detach().numpy(), settings.rounding)
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


class _Curvature:
    """Factor, inverse and the derivatives of the pairs at some tensors, kept for many directions, eq. (M-130).

    Always in float64. A jitter counts as a constant, as in the gradient.
    """

    def __init__(self, settings: DirectSettings, form: Form, rows: Rows, tensors: Sequence[Tensor]) -> None:
        settings = replace(settings, dtype=torch.float64, jitters=[])
        residual, noise, rows, theta = parts_of(rows, tensors)
        lazy_import("flashgp.operators.second_order")
        from flashgp.operators.second_order import second_order  # by few, and operators take time to load

        problem = PairProblem(form, theta, rows)
        factor = factorise_covariance(settings, problem, noise)
        self._weights = factor.solve(residual.double().expand(*factor.lower.shape[:-2], *residual.shape[-2:]))
        self._outputs = residual.shape[-1]
        self._inverse = settings.workspace.adopt(factor.inverse_())
        slope = 0.5 * (self._weights @ self._weights.mT - self._outputs * self._inverse)
        self._block = second_order(problem, settings.workspace.adopt(slope), settings.workspace)

    def along(self, directions: Sequence[Tensor | None]) -> list[Tensor | None]:
        by_residual, by_noise, *rest = directions
        inverse, weights, p = self._inverse, self._weights, self._outputs
        block, pull = self._block.along(rest)
        moved = any(d is not None for d in rest)
        right = torch.zeros_like(weights) if by_residual is None else by_residual.double()
        change = None  # of K^, times K^-1 from the left
        if moved:
            if by_noise is not None:
                block.diagonal(dim1=-2, dim2=-1).add_(by_noise)
            right = right - block @ weights
            change = inverse @ block
        elif by_noise is not None:
            right = right - by_noise.unsqueeze(-1) * weights
            change = inverse * by_noise.unsqueeze(-2)
        by_weights = inverse @ right
        left, across = torch.cat([by_weights, weights], -1), torch.cat([weights, by_weights], -1)
        slope = 0.5 * (left @ across.mT)
        if change is not None:
            slope = _add_symmetric_product(slope, change, inverse, 0.5 * p)
        return [-by_weights, slope.diagonal(dim1=-2, dim2=-1), *pull(slope)]


def _add_symmetric_product(total: Tensor, one: Tensor, two: Tensor, scale: float) -> Tensor:
    """total + scale * one @ two where the product is symmetric, in the memory of the total. Cost: 5/8 of a product."""
    n, step = total.shape[-1], max(1, -(-total.shape[-1] // PRODUCT_PANELS))
    for start in range(0, n, step):
        stop = min(n, start + step)
        part = scale * (one[..., :stop, :] @ two[..., start:stop])
        total[..., :stop, start:stop] += part
        total[..., start:stop, :start] += part[..., :start, :].mT
    return total
