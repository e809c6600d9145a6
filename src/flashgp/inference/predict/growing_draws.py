"""Draws of a prior without random features, exact where they are asked for: each value given those before, (M-255).

    f0(x) = k(x, S) L^-T g,    L L^T = K(S, S) + rounding,    g ~ N(0, I)

with S the points asked for so far. A point whose value the points of S leave open joins them, with a row of L and a
number of g more; elsewhere f0 is already known, and is the smooth function above. Where slopes are wanted, points
beside x join as well, so that the slope is one that the function has, (M-256).
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy
import torch
from torch import Tensor

from flashgp import linalg
from flashgp.foundations.errors import DomainError, MemoryBudgetError
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.form import Rows, broadcast_batch
from flashgp.foundations.lazy_import import SharedLock
from flashgp.foundations.quantities import readable_bytes
from flashgp.inference.prior import Prior
from flashgp.operators.covariance import CovarianceOperator
from flashgp.pairwise.problem import PairProblem
from flashgp.solvers.direct.cholesky import factorise_keeping


class PriorDraws(ABC):
    """Functions f0 of the prior without its mean; called on x (*batch, n, d), their values (*batch, n, columns).

    Fields: error, eq. (M-95); 0 where they have the prior's distribution, None where it is not measured yet.
    """

    error: float | None = None

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor: ...

    @property
    @abstractmethod
    def event(self) -> Event:
        """Event of the draws, for the report."""


def prior_covariance(prior: Prior, rows: Rows, cols: Rows | None = None) -> CovarianceOperator:
    """The prior covariance between rows, float64."""
    theta = [t.to(rows.device) for t in prior.kernel.theta()]
    return CovarianceOperator(PairProblem(prior.kernel.form, theta, rows, cols), torch.float64)


F64 = torch.float64
EPS = torch.finfo(F64).eps
BLOCK = 256  # points that are drawn at a time at least; those after them may be known then
OPEN = 4.0  # times the rounding of the factor: a conditional variance below it is rounding
RISE = 1e-4  # of the prior variance: what a step beside a point changes f0 by, in the mean square
HALVINGS = 40
KNOT_BYTES = 24  # at the peak, for each number of the factor: it is copied when it grows

_DRAWING = SharedLock()  # two threads that extend the same functions would draw two of them


@dataclass(frozen=True, eq=False)
class _Knots:
    """Points S that values were drawn at, (*batch, s, d); lower, L; rounding, that L L^T has beside K(S, S), (*batch,
    s); normal, g, (*batch, s, columns); coefficients, L^-T g."""

    points: Tensor
    lower: Tensor
    rounding: Tensor
    normal: Tensor
    coefficients: Tensor


class GrowingDraws(PriorDraws):
    """f0 at any points, jointly normal with the covariance of the prior whatever is asked for and in which order.

    The same seed gives the same values where the same calls come in the same order; that of the points of a call does
    not matter. Other calls are of other functions, with the same law.

    Args: prior; x, points of its columns and place, of which none is drawn yet; batch, of the draws; columns, functions
        per model; generator, on the CPU; free, bytes, of which the factor takes what it needs.
    Raises: when called, MemoryBudgetError beyond the limit; DomainError inside a transform of torch.func at points that
        are not drawn yet.
    Cost: s (d + columns) flops of a point that s points make known, s^2 of one that they do not.
    """

    error = 0.0

    def __init__(
        self, prior: Prior, x: Tensor, batch: torch.Size, columns: int, generator: torch.Generator, free: int
    ) -> None:
        self._prior, self._batch, self._generator, self._free = prior, batch, generator, free
        self.limit = math.isqrt(free // (KNOT_BYTES * max(1, batch.numel())))
        empty = torch.zeros(*batch, 0, columns, dtype=F64, device=x.device)
        self._knots = _Knots(
            x.detach().new_zeros(*batch, 0, x.shape[-1]), empty.new_zeros(*batch, 0, 0), empty[..., 0], empty, empty
        )

    @property
    def event(self) -> Event:
        return Event(EventKind.DRAWN_AS_ASKED)

    @property
    def drawn(self) -> int:
        """The number of points that values were drawn at."""
        return self._knots.points.shape[-2]

    def __call__(self, x: Tensor) -> Tensor:
        with _DRAWING.held:
            self._draw_at(x)
            knots = self._knots
        rows, others = self._prior.kernel.rows(x), self._prior.kernel.rows(knots.points)
        coefficients = knots.coefficients
        if torch.is_grad_enabled() and any(p.requires_grad for p in self._prior.kernel.parameters()):
            inner = prior_covariance(self._prior, others).to_dense() + torch.diag_embed(knots.rounding)
            coefficients = _back_solve(factorise_keeping(inner).lower, knots.normal)
        return prior_covariance(self._prior, rows, others) @ coefficients

    # -- drawing ---------------------------------------------------------------------------------------------------
    def _draw_at(self, x: Tensor) -> None:
        """Let points that S leaves open join it; where slopes are wanted, so do points beside them."""
        inside = torch._C._functorch.peek_interpreter_stack() is not None  # slopes are then those of what is drawn
        slopes = torch.is_grad_enabled() and x.requires_grad and not inside
        with torch.no_grad():
            points = _in_own_order(_side_by_side(_plain(x), self._batch))
            self._join(points)
            if slopes and points.shape[-2]:
                self._join(_beside(self._prior, points, self._knots.points))

    def _join(self, points: Tensor) -> None:
        start = 0
        while start < points.shape[-2]:
            stop = start + max(BLOCK, self.drawn)
            self._extend(points[..., start:stop, :])
            start = stop

    def _extend(self, x: Tensor) -> None:
        """S with those of some points that it leaves open."""
        prior, knots = self._prior, self._knots
        rows, others = prior.kernel.rows(x), prior.kernel.rows(knots.points)
        variance = prior_covariance(prior, rows).diagonal().expand(x.shape[:-1])
        half = _half_solve(knots.lower, prior_covariance(prior, others, rows).to_dense())
        rounding = (self.drawn + x.shape[-2]) * EPS * variance
        left = variance - half.square().sum(-2)
        open_ = _over_batch(left > OPEN * rounding).any(0).nonzero()[:, 0]
        if not len(open_):
            return
        if torch._C._functorch.peek_interpreter_stack() is not None:
            raise DomainError(
                f"`x` has {len(open_)} points that these functions have no value at yet, which cannot be drawn inside "
                "a transform of torch.func; call the functions with these points before"
            )
        self._check_room(len(open_))
        half, rounding, rows = half[..., open_], rounding[..., open_], rows.take(open_)
        block = prior_covariance(prior, rows).to_dense() - half.mT @ half + torch.diag_embed(rounding)
        factor = factorise_keeping(block, rounding=rounding.mean(-1))
        normal = torch.randn(
            *self._batch, len(open_), knots.normal.shape[-1], generator=self._generator, dtype=F64
        ).to(x.device)  # fmt: skip
        corner = half.new_zeros(*self._batch, self.drawn, len(open_))
        lower = torch.cat([torch.cat([knots.lower, corner], -1), torch.cat([half.mT, factor.lower], -1)], -2)
        normal = torch.cat([knots.normal, normal], -2)
        self._knots = _Knots(
            torch.cat([knots.points, x[..., open_, :]], -2), lower,
            torch.cat([knots.rounding, rounding + factor.jitter.unsqueeze(-1)], -1), normal,
            _back_solve(lower, normal),
        )  # fmt: skip

    def _check_room(self, more: int) -> None:
        count = self.drawn + more
        if count > self.limit:
            needed = KNOT_BYTES * count**2 * max(1, self._batch.numel())
            raise MemoryBudgetError(
                f"`x` asks these functions for values at {count:,} points in all, training rows included, whose factor "
                f"needs {readable_bytes(needed)} of {readable_bytes(self._free)} that were free, since the kernel has "
                f"no random features; ask for {self.limit:,} at most, or use post.predict(x).sample()",
                needed_bytes=needed,
                available_bytes=self._free,
            )


def _beside(prior: Prior, x: Tensor, known: Tensor) -> Tensor:
    """Points beside each point of x, (*batch, n, d), one for each column that the covariance is smooth in, (M-256).

    Args: known, points in whose direction they stand, (*batch, s, d): a kernel may be none outside of where they are.
    """
    with torch.enable_grad():
        asked = x.detach().clone().requires_grad_()
        rows = prior.kernel.rows(asked)
        parts = [part.sum() for part in (*rows.features, *rows.scalars) if part.requires_grad]
        slopes = torch.autograd.grad(parts, asked, allow_unused=True)[0] if parts else None
    if slopes is None:
        return x[..., :0, :]
    columns = _over_batch(slopes != 0).any(0).nonzero()[:, 0]
    inside = torch.where(x > known.mean(-2, keepdim=True), -1.0, 1.0)
    size = _over_batch(x.abs()).amax(0)
    size = torch.where(size > 0.0, size, torch.ones_like(size))
    first, sides = x[..., :1, :], []
    for column in columns.tolist():
        unit = torch.nn.functional.one_hot(torch.tensor(column), x.shape[-1]).to(x)
        steps = size[column] * 0.5 ** torch.arange(HALVINGS, device=x.device, dtype=x.dtype)
        step = steps[_largest(prior, first, first + inside[..., :1, :] * unit * steps.unsqueeze(-1))]
        sides.append(x + inside * unit * step)
    return torch.cat(sides, dim=-2)


def _largest(prior: Prior, first: Tensor, others: Tensor) -> int:
    """Index of the first of others, ever nearer to the first point, that f0 differs little at; of the last if none."""
    here, there = prior.kernel.rows(first), prior.kernel.rows(others)
    own = prior_covariance(prior, here).diagonal()
    shared = prior_covariance(prior, there, here).to_dense()[..., 0]
    rise = own + prior_covariance(prior, there).diagonal() - 2.0 * shared
    found = _over_batch(rise <= RISE * own).all(0).nonzero()
    return int(found[0]) if len(found) else HALVINGS - 1


def _in_own_order(x: Tensor) -> Tensor:
    """The points that differ, (*batch, n, d), in an order that is not that of the rows: sorted, and then as a fixed
    permutation has them, since neighbours in one block would all be drawn."""
    if not x.numel():
        return x
    points = x.movedim(-2, 0).unique(dim=0)
    order = numpy.random.default_rng(0).permutation(len(points))  # torch's own may not be called inside a vmap
    return points[torch.from_numpy(order).to(x.device)].movedim(0, -2)


def _over_batch(x: Tensor) -> Tensor:
    """(*batch, n) as (members, n)."""
    return x.reshape(x.shape[:-1].numel(), x.shape[-1])


def _half_solve(lower: Tensor, rhs: Tensor) -> Tensor:
    return linalg.solve_triangular(lower, rhs, upper=False, device=linalg.own_device(lower))


def _back_solve(lower: Tensor, rhs: Tensor) -> Tensor:
    return linalg.solve_triangular(lower.mT, rhs, upper=True, device=linalg.own_device(lower))


def _plain(x: Tensor) -> Tensor:
    """The values behind points that transforms of torch.func have wrapped; what a vmap maps over comes first."""
    functorch = torch._C._functorch
    x = x.detach()
    while functorch.is_functorch_wrapped_tensor(x):
        mapped = functorch.maybe_get_bdim(x) if functorch.is_batchedtensor(x) else None
        x = functorch.get_unwrapped(x)
        x = x if mapped is None else x.movedim(mapped, 0)
    return x


def _side_by_side(x: Tensor, batch: torch.Size) -> Tensor:
    """Points (*any, n, d), any broadcasting with the batch, as (*batch, points of all other dimensions, d)."""
    whole = broadcast_batch(x.shape[:-2], batch)
    own = (1,) * (len(whole) - len(batch)) + tuple(batch)
    apart = [i for i, size in enumerate(own) if size != 1]
    others = [i for i, size in enumerate(own) if size == 1]
    count = math.prod(whole[i] for i in others) * x.shape[-2]
    x = x.expand(*whole, *x.shape[-2:])
    return x.permute(*apart, *others, -2, -1).reshape(*batch, count, x.shape[-1])
