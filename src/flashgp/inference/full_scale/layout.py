"""Layout of a full-scale model, beside its parameters: inducing points, blocks of near rows, their neighbours.

Inducing points are pivots of a partial Cholesky factor of a random part of the rows, eq. (M-77): the points that the
others say least about. Rows are cut into blocks of near rows, each with the nearest rows of earlier blocks, (M-121).
Source: Burt, Rasmussen & van der Wilk (2020), Convergence of sparse variational inference in Gaussian processes
regression, for pivots as inducing points.
"""

import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from flashgp.foundations.errors import NotPositiveDefiniteError
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.form import Rows
from flashgp.inference.extent import check_rows
from flashgp.inference.prior import Prior
from flashgp.inference.system import CovarianceSystem
from flashgp.operators.covariance import CovarianceOperator
from flashgp.pairwise.problem import PairProblem
from flashgp.planner.approximate import ApproximateWork
from flashgp.planner.plan import Sizes
from flashgp.processes.gradient_shares import sum_together
from flashgp.processes.group import ALONE, Group
from flashgp.processes.shares import Shares
from flashgp.solvers.group_space import GroupSpace
from flashgp.solvers.preconditioners.near_rows import Neighbourhoods, nearest_earlier_rows, neighbourhoods
from flashgp.solvers.preconditioners.pivoted_cholesky import partial_cholesky
from flashgp.solvers.settings import FullScaleSettings, LowRankSettings

F64 = torch.float64
T = TypeVar("T")
FEWER = ApproximateWork.fewer_points  # one in so many is tried
NEGLIGIBLE = 1e-3  # nats a row that may be lost with them
PIVOT_SHARE = 20  # rows that pivots are looked for among, for each of them
# Pivots are taken while they say anything: what limits them are their number and rounding.
PIVOTS = LowRankSettings(trace_share=1e-3, min_decay=0.5)


@dataclass(frozen=True, eq=False)
class Layout:
    """Fields: inducing, the points (m, d); near, blocks and their neighbours among the rows; sizes, as asked for;
    appended, how many of the blocks, the last ones, are of rows that joined after conditioning."""

    inducing: Tensor
    near: Neighbourhoods
    sizes: Sizes
    appended: int = 0

    @property
    def conditioned(self) -> Tensor:
        """The blocks of conditioning, alike in size."""
        return self.near.blocks[: len(self.near.blocks) - self.appended]

    def around(self, points: Tensor) -> Neighbourhoods:
        """The blocks with as many neighbours, of all other blocks. Args: points, where near ones are looked for."""
        blocks, settings = self.near.blocks, FullScaleSettings(self.sizes.block, self.sizes.neighbours)
        return Neighbourhoods(blocks, nearest_earlier_rows(points, blocks, settings, later=True))

    def with_fewer_points(self) -> "Layout | None":
        """The layout with an eighth of the inducing points, the first pivots; None if that is not fewer."""
        points = self.inducing[: -(-len(self.inducing) // FEWER)]
        if len(points) == len(self.inducing):
            return None
        return replace(self, inducing=points, sizes=replace(self.sizes, inducing=len(points)))


def drop_redundant_points(
    layout: Layout, make: Callable[[Layout], tuple[T, float]], rows: int, group: Group = ALONE
) -> tuple[Layout, T, Event | None]:
    """Keep an eighth of the inducing points if the others add at most NEGLIGIBLE nats a row, eq. (M-207).

    Args:
        make: makes the wanted value of a layout and its log likelihood of so many rows, nats.
        group: its rank 0 decides.
    Returns: the layout, the value made of it, and the event if points were dropped.
    Raises: the errors of `make` for the layout; fewer points without a factor are passed over.
    """
    made, many = make(layout)
    fewer = layout.with_fewer_points()
    if fewer is None:
        return layout, made, None
    with suppress(NotPositiveDefiniteError), group.together():
        found, few = make(fewer)
        gain = float(group.from_first(torch.tensor([(many - few) / max(1, rows)], dtype=F64)))
        if gain <= NEGLIGIBLE:
            kept, planned, more = len(fewer.inducing), len(layout.inducing), gain if gain > 0.0 else None
            return fewer, found, Event(EventKind.FEWER_POINTS_SUFFICE, kept=kept, planned=planned, gain=more)
    return layout, made, None


def scaled_points(prior: Prior, rows: Rows, x: Tensor) -> Tensor:
    """Points (n, k), float64, whose near ones tend to covary: the scaled inputs of all distances, or x itself where the
    kernel has none."""
    kinds = prior.kernel.form.statistics
    found = [f for f, kind in zip(rows.features, kinds, strict=True) if kind == "distance" and f.shape[-1]]
    return torch.cat(found, dim=-1).detach().to(F64) if found else x.detach().to(F64)


@torch.no_grad()
def layout_of(
    prior: Prior,
    x: Tensor,
    noise: Tensor,
    sizes: Sizes,
    seed: int,
    points: Tensor | None = None,
    group: Group = ALONE,
) -> Layout:
    """The layout of rows x, (n, d), at the parameters that the prior has now; of all rows, the same on every rank of a
    group.

    Args:
        noise: variance of each row, (n or 1,), or of each output too.
        points: inducing points (m, d) instead of chosen ones.
    Cost: 20 m rows by m pivots, and n distances to 4,096 rows.
    """
    rows, settings = prior.kernel.rows(x), FullScaleSettings(sizes.block, sizes.neighbours)
    space = GroupSpace(group, Shares.even(len(x), group.size))
    near = neighbourhoods(scaled_points(prior, rows, x), settings, seed, space)
    if points is None:
        points = of_first(pivot_points(prior, x, noise, sizes.inducing, seed), group)
    return Layout(points, near, sizes)


FAR_OFF = 10.0  # times the middle noise variance, beyond which that of a row counts no more in a choice of points


@torch.no_grad()
def pivot_points(prior: Prior, x: Tensor, noise: Tensor, inducing: int, seed: int, group: Group = ALONE) -> Tensor:
    """At most so many of the rows x, (n, d), as inducing points, (m, d): pivots among 20 times as many random rows.

    Args: noise, variance of each row, (n or 1,), or of each output too, of which the least counts.

    With a group x and noise are of this rank's rows, and the points those of all rows, the same on every rank and for
    any number of ranks.

    Cost: 20 m^2 evaluations, 20 m^3 flops.
    """
    shares = group.shares(len(x)) if group.size > 1 else Shares((len(x),))
    order = torch.randperm(shares.total, generator=torch.Generator().manual_seed(seed))[: PIVOT_SHARE * inducing]
    part = order.sort().values
    noise = noise if noise.dim() == 1 else noise.amin(-1)
    noise = rows_of_all(noise.expand(len(x)), part, shares, group)
    if len(noise) and float(middle := noise.median()) > 0.0:  # a few rows that say nothing are no noise of the others
        noise = noise.clamp_max(FAR_OFF * middle)
    x = rows_of_all(x, part, shares, group)
    rows, theta = prior.kernel.rows(x), [t.to(x.device) for t in prior.kernel.theta()]
    check_rows(rows, "x")
    system = CovarianceSystem(CovarianceOperator(PairProblem(prior.kernel.form, theta, rows), F64), noise)
    limit = min(inducing, len(part))
    return of_first(x[partial_cholesky(system, limit=limit, seed=seed, settings=PIVOTS).pivots], group)


def rows_of_all(own: Tensor, index: Tensor, shares: Shares, group: Group) -> Tensor:
    """Some of the rows of all ranks, (k, ...), on every rank. Args: index, of the joined rows, ascending."""
    starts = torch.tensor([*shares.starts, shares.total])
    cuts = torch.searchsorted(index, starts).tolist()
    start, end = cuts[group.rank], cuts[group.rank + 1]
    found = own[(index[start:end] - shares.starts[group.rank]).to(own.device)]
    return group.gather_rows(found, Shares(tuple(b - a for a, b in itertools.pairwise(cuts))))


def of_first(points: Tensor, group: Group) -> Tensor:
    """Rank 0's points, which another processor may round to others."""
    if group.size == 1:
        return points
    count = int(group.from_first(torch.tensor([len(points)], device=points.device)))
    return group.from_first(points if group.rank == 0 else points.new_empty(count, *points.shape[1:]))


@dataclass(frozen=True, eq=False)
class Share:
    """Fields: group; positions, of the rows that this rank's blocks need, among all; count, of all rows."""

    group: Group
    positions: Tensor
    count: int

    def summed(self, own: Sequence[Tensor]) -> list[Tensor]:
        """The sums over ranks of float64 tensors."""
        return sum_together(self.group, own)

    def gradients(
        self, by_rows: Sequence[Tensor | None], others: Sequence[Tensor | None], template: Sequence[Tensor]
    ) -> list[Tensor | None]:
        """The sums over ranks, of all rows. A gradient that no rank has is None.

        Args: by_rows, of the rows of this share; others; template, what they are gradients by, one after another.
        """
        own = [self.of_all(part, known) for part, known in zip(by_rows, template, strict=False)]
        own += [torch.zeros_like(k) if p is None else p for p, k in zip(others, template[len(by_rows) :], strict=True)]
        found = [*by_rows, *others]
        there = self.group.max(torch.tensor([part is not None for part in found], dtype=torch.int64)).tolist()
        return [total if any_ else None for total, any_ in zip(self.summed(own), there, strict=True)]

    def of_all(self, part: Tensor | None, template: Tensor) -> Tensor:
        """The part with zeros for the rows that are of other ranks alone."""
        out = torch.zeros(self.count, *template.shape[1:], dtype=torch.float64, device=template.device)
        return out if part is None else out.index_copy_(0, self.positions, part)
