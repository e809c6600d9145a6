"""The collapsed bound of rows that are held, as a scalar for autograd: for training loops of the user's own.

Features of rows and inducing points, means, noise and the parameters of the profile are what autograd sees, so that
networks inside kernels train with any optimiser; between them and the value stand two passes over blocks of rows, with
the gradient by hand, eqs. (M-162) and (M-163). Nothing of n x m numbers is kept.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from flashgp.foundations.checks import check_points, check_targets
from flashgp.foundations.contexts import entered
from flashgp.foundations.errors import DerivativeError, DomainError, ShapeError, warn
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.parameters import check_numbers
from flashgp.foundations.workspace import Workspace
from flashgp.inference.choice import refuse_batch
from flashgp.inference.extent import check_residual, check_rows
from flashgp.inference.full_scale.layout import pivot_points
from flashgp.inference.gathered import compare_models, tensor_mark
from flashgp.inference.prior import Prior
from flashgp.inference.streamed import bound as bounds
from flashgp.inference.streamed.bound import StreamedBound
from flashgp.inference.streamed.objective import block_rows
from flashgp.kernels.warped import collapsed_features
from flashgp.processes.gradient_shares import summed_parameters
from flashgp.processes.group import ALONE, Group

Value = TypeVar("Value")

Evaluation = tuple[float, Sequence[Tensor | None]]


class Inputs:
    """Inputs of a bound, each differentiable.

    Fields: x, y; count, of rows on all ranks; residual (n, p); noise (1,); rows and points, features; theta, of the
    profile; events, of networks whose features have collapsed, which are warnings too.
    Raises: ShapeError, DomainError for rows, points and models that have no such bound.
    """

    def __init__(self, prior: Prior, x: Tensor, y: Tensor, inducing: Tensor, count: int) -> None:
        check_numbers(prior)
        self.x, self.y, self.inducing, self.count = x, y, inducing, count
        self.noise = prior.sites(y).variance
        if self.noise.numel() != 1:
            raise DomainError(
                f"`likelihood` must have one noise variance for all rows of a batch, got one of shape "
                f"{tuple(self.noise.shape)} from {prior.likelihood.name}; fit them with approximation='sparse'"
            )
        self.residual, _, self.rows, self.theta = prior.likelihood_inputs(x, y)
        self.points = prior.kernel.rows(self.inducing)
        check_rows(self.rows, "x")
        check_rows(self.points, "inducing")
        check_residual(self.residual)
        self.events = collapsed_features(prior.kernel, x, self.rows)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.residual, self.noise, *self.rows.tensors, *self.points.tensors, *self.theta

    @property
    def wanted(self) -> bool:
        """True if autograd asks for a gradient."""
        return torch.is_grad_enabled() and any(t.requires_grad for t in self.tensors)


def evaluated(
    prior: Prior, x: Any, y: Any, inducing: Any, group: Group, function: Callable[[Prior, Inputs], Value]
) -> Value:
    """A function of the inputs; with a group of all ranks' rows, and each rank's gradients are its share, (M-220).

    Raises: as `Inputs`; RankMismatchError where ranks have other columns, points or parameters.
    """
    x = check_points(x, "x")
    y = check_targets(y, "y", x, prior.outputs)
    prior.likelihood.check_targets(y)
    refuse_batch(batch=prior.is_batch(x, y))
    if group.size == 1 and not len(x):
        raise ShapeError("`x` must have at least one row, got none; leave out empty batches")
    inducing = _checked_points(inducing, x)
    count = len(x)
    if group.size > 1:
        group.check_device(x.device)
        compare_models(prior, group, columns=x.shape[-1], inducing=tensor_mark(inducing))
        count = group.shares(len(x)).total
        if inducing.requires_grad and torch.is_grad_enabled():
            (inducing,) = summed_parameters(group, (inducing,), x.device)
    return prior.sharing(group, x.device, lambda own: function(own, Inputs(own, x, y, inducing, count)))


def _checked_points(inducing: Any, x: Tensor) -> Tensor:
    if isinstance(inducing, str | int | float):
        raise DomainError(
            f"`inducing` must be points (m, d), which stay between the steps of a loop, got {inducing!r}; "
            "gp.inducing_points(x, 512) chooses some"
        )
    points = check_points(inducing, "inducing", like=x)
    if points.dim() != 2 or not len(points):
        raise ShapeError(f"`inducing` must be points (m, d), at least one, got shape {tuple(points.shape)}")
    return points


def collapsed_bound(
    prior: Prior, x: Any, y: Any, inducing: Any, block: int | None = None, group: Group = ALONE
) -> Tensor:
    """See `GP.collapsed_bound`, eq. (M-160). Args: block, rows of a block."""
    with group.together():
        return evaluated(prior, x, y, inducing, group, lambda own, inputs: _collapsed(own, inputs, block, group))


def _collapsed(prior: Prior, inputs: Inputs, block: int | None, group: Group) -> Tensor:
    n, m = len(inputs.x), len(inputs.inducing)
    if m > inputs.count:
        raise DomainError(f"`inducing` must be at most the {inputs.count:,} rows, got {m:,} points; pass fewer")
    residual, rows, noise = inputs.residual.detach(), inputs.rows.detach(), inputs.noise.detach()
    wanted, size = inputs.wanted, block or block_rows(m)

    def blocks() -> list[bounds.BlockInputs]:
        starts = range(0, max(n, 1), size)  # a block without rows where a rank has none
        return [bounds.BlockInputs(residual[i : i + size], rows.part(i, i + size), noise) for i in starts]

    def evaluate() -> Evaluation:
        bound = StreamedBound(prior, inputs.points.detach(), inputs.count, Workspace(), group)
        sums = bound.sums(blocks())
        if not wanted:
            return sums.lower, ()
        slopes = list(bound.gradients(blocks(), sums))
        by_rows = [bounds.joined([slope.rows[k] for slope in slopes]) for k in range(len(rows.tensors))]
        by_noise = torch.stack([slope.noise for slope in slopes]).sum(0)
        by_residual = torch.cat([slope.residual for slope in slopes])
        return sums.lower, (by_residual, by_noise, *by_rows, *bound.by_points, *bound.by_theta)

    return differentiable(evaluate, inputs.tensors)


def chosen_points(prior: Prior, x: Any, count: int, seed: int, group: Group = ALONE) -> Tensor:
    """See `GP.inducing_points`."""
    with group.together():
        check_numbers(prior)
        x = check_points(x, "x").detach()
        group.compare(columns=x.shape[-1], count=count, seed=seed)
        if x.dim() != 2 or count > group.shares(len(x)).total:
            raise ShapeError(
                f"`x` must be of shape (n, d) with at least {count:,} rows, got {tuple(x.shape)}; pass more"
            )
        noise = prior.additive_noise(x.device).detach().reshape(-1)
        if noise.numel() != 1:
            raise DomainError(
                f"`likelihood` must have one noise variance, got {noise.numel()}; pass Gaussian(..., shared=True)"
            )
        points = pivot_points(prior, x, noise, count, seed, group)
        if len(points) < count:
            warn(str(Event(EventKind.FEWER_POINTS, found=len(points), asked=count)))
        return points


@entered()
def differentiable(evaluate: Callable[[], Evaluation], tensors: Sequence[Tensor]) -> Tensor:
    """The scalar that `evaluate` gives, whose gradient by the tensors is what it gives too."""
    value: Tensor = _Value.apply(evaluate, *tensors)
    return value


class _Value(torch.autograd.Function):
    """A value and its gradient, which are computed together; there is no second derivative."""

    @staticmethod
    def forward(ctx: Any, evaluate: Callable[[], Evaluation], *tensors: Tensor) -> Tensor:
        value, ctx.gradients = evaluate()
        return torch.tensor(value, dtype=torch.float64, device=tensors[0].device)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise DerivativeError(
                "the bound of inducing points has first derivatives alone, got create_graph=True; leave it out, or "
                "take differences of gradients",
                order=2,
            )
        return None, *(None if g is None else cotangent * g for g in ctx.gradients)
