"""The pullback over torch tiles: what the weights of a block say about rows and parameters, eqs. (M-23) to (M-26)."""

from collections.abc import Callable

import torch
from torch import Tensor

from flashgp.foundations.workspace import Workspace
from flashgp.pairwise.backend import PairGradient
from flashgp.pairwise.program.program import Partial
from flashgp.pairwise.program.tile_code import Scalar
from flashgp.pairwise.torch import opaque
from flashgp.pairwise.torch.tile_job import TileJob, visit_panels


class Accumulator:
    """Adds up the pullback of sum(W * K) over tiles, eqs. (M-23) to (M-26).

    What a panel contributes is collected first and added by `commit`: a panel that failed is dropped as a whole.
    """

    def __init__(self, job: TileJob) -> None:
        self.job = job
        form = job.form
        self.rows: list[Tensor | None] = [None] * (len(form.statistics) + form.scalar_count)
        self.cols: list[Tensor | None] = self.rows if job.symmetric else [None] * len(self.rows)
        self.theta: list[Tensor | None] = [None] * form.parameter_count
        self._parts: list[tuple[list[Tensor | None], int, slice | None, Tensor]] = []

    def gradient(self) -> PairGradient:
        return PairGradient(self.rows, [] if self.job.symmetric else self.cols, self.theta)

    def add_panel(self, i: slice, j: slice, weight: Tensor, partials: list[Partial]) -> None:
        """Collect what one panel contributes; the partials' memory is used up."""
        self._parts = []
        count = len(self.job.form.statistics)
        products: dict[int, Tensor] = {}
        for partial in partials:
            if partial.tile is None:
                weighted = weight
            elif id(partial.tile) in products:
                weighted = products[id(partial.tile)]
            else:
                # The tile has served: its memory takes the product, since fresh pages would cost as much again. One row
                # or column may be a row scalar itself, which is not the tile's.
                own = partial.tile.shape == weight.shape and min(weight.shape[-2:]) > 1
                weighted = products[id(partial.tile)] = partial.tile.mul_(weight) if own else weight * partial.tile
            symbol, scalar = partial.symbol, partial.scalar
            if symbol.kind == "parameter":
                self.add_theta(symbol.index, weighted.sum((-2, -1)) * flat_scalar(scalar))
            elif symbol.kind in ("left", "right"):
                part = weighted.sum(-1 if symbol.kind == "left" else -2)
                part = part * (scalar if isinstance(scalar, float) else scalar.squeeze(-1))
                side, where = (self.rows, i) if symbol.kind == "left" else (self.cols, j)
                self.add_rows(side, count + symbol.index, where, part)
            else:
                _pull_statistic(self, symbol.kind, symbol.index, i, j, weighted, scalar)

    def add_rows(self, side: list[Tensor | None], slot: int, where: slice, part: Tensor) -> None:
        """Collect what a tile says about part of the rows; features are (*batch, n, d'), scalars (*batch, n)."""
        self._parts.append((side, slot, where, part))

    def add_theta(self, index: int, part: Tensor) -> None:
        """Collect what a tile says about one parameter, (*batch,)."""
        self._parts.append((self.theta, index, None, part))

    def commit(self) -> None:
        """Add what was collected: first every allocation, sums over parameters among them, then the sums over rows."""
        sums: dict[int, Tensor] = {}
        for side, slot, where, part in self._parts:
            if where is None:
                before = sums.get(slot, self.theta[slot])
                sums[slot] = part if before is None else before + part
            elif side[slot] is None:
                shape, dim = list(part.shape), self._dim(slot)
                shape[dim] = (self.job.rows if side is self.rows else self.job.cols).count
                if shape != list(part.shape):
                    side[slot] = torch.zeros(shape, dtype=part.dtype, device=part.device)
        for side, slot, where, part in self._parts:
            target = side[slot]
            if where is not None and target is not None:
                target.narrow(self._dim(slot), where.start, where.stop - where.start).add_(part)
            elif where is not None:
                side[slot] = part
        for slot, total in sums.items():
            self.theta[slot] = total
        self._parts = []

    def _dim(self, slot: int) -> int:
        return -2 if slot < len(self.job.form.statistics) else -1


def pull_panels(job: TileJob, weights: Callable[[slice, slice], Tensor], workspace: Workspace | None) -> PairGradient:
    """The pullback panel by panel, where `weights` gives those of a panel."""
    total = Accumulator(job)

    def add(i: slice, j: slice) -> None:
        tile = weights(i, j)
        beyond = job.beyond(i, j)
        if beyond is not None:
            tile = tile.clone()
            tile[..., beyond - j.start :] *= 2.0  # the mirrored pairs are not visited, eq. (M-23)
        total.add_panel(i, j, tile, job.partials(i, j)[1])
        total.commit()

    visit_panels(job, workspace or Workspace(), job.program.partial_temporaries, add)
    return total.gradient()


def flat_scalar(scalar: Scalar) -> Scalar:
    """Values of pairs without the dimensions of a tile that a scalar has one of."""
    return scalar if isinstance(scalar, float) else scalar[..., 0, 0]


def _pull_statistic(
    total: Accumulator, kind: str, index: int, i: slice, j: slice, weighted: Tensor, scalar: Scalar
) -> None:
    """Through q = |u - v|^2, eq. (M-24), or s = u . v, eq. (M-25), to the features of both sides."""
    job = total.job
    if kind == "opaque":
        _pull_opaque(total, index, i, j, weighted * scalar)
        return
    left, right = job.sides(kind, index)
    u, v = left[..., i, :], right[..., j, :]
    far = job.far(index) if kind == "distance" else None
    if far is not None:
        far_u, far_v = _by_differences(
            weighted, job.rows.features[index][..., i, :], job.cols.features[index][..., j, :]
        )
    if job.symmetric and i == j and not weighted.requires_grad:
        # Symmetric weights over one whole tile: both sides are the same sum, counted twice.
        part = weighted @ u
        if kind == "distance":
            part = (weighted.sum(-1).unsqueeze(-1) * u).sub_(part)
            part = (part if far is None else torch.where(far, far_u, part)).mul_(2.0)
        total.add_rows(total.rows, index, i, part * (scalar * 2.0))
        return
    to_u, to_v = weighted @ v, weighted.mT @ u
    if kind == "distance":
        to_u = weighted.sum(-1).unsqueeze(-1) * u - to_u
        to_v = weighted.sum(-2).unsqueeze(-1) * v - to_v
        if far is not None:
            to_u, to_v = torch.where(far, far_u, to_u), torch.where(far, far_v, to_v)
        to_u, to_v = to_u * 2.0, to_v * 2.0
    total.add_rows(total.rows, index, i, to_u * scalar)
    total.add_rows(total.cols, index, j, to_v * scalar)


def _pull_opaque(total: Accumulator, index: int, i: slice, j: slice, weighted: Tensor) -> None:
    """Through a Python function to the points and its parameters, eq. (M-49)."""
    job = total.job
    function, left, right = job.form.opaque(index), job.rows.features[index], job.cols.features[index]
    to_x, to_z, to_theta = opaque.pullback(function, job.exact_theta, left[..., i, :], right[..., j, :], weighted)
    total.add_rows(total.rows, index, i, to_x)
    total.add_rows(total.cols, index, j, to_z)
    for at, part in enumerate(to_theta):
        total.add_theta(function.first + at, part)


def _by_differences(weighted: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """sum_j c_ij (u_i - v_j) and sum_i c_ij (v_j - u_i), eq. (M-24), by columns: one tile more, no cancellation."""
    to_u, to_v = [], []
    for column in range(u.shape[-1]):
        difference = (u[..., column].unsqueeze(-1) - v[..., column].unsqueeze(-2)).to(weighted.dtype)
        part = weighted * difference
        to_u.append(part.sum(-1))
        to_v.append(-part.sum(-2))
    return torch.stack(to_u, dim=-1), torch.stack(to_v, dim=-1)
