"""Second derivatives of a small symmetric block: its derivatives kept as tiles, then a few passes per direction.

    G = gradient of sum(W * K) by everything in K, and along a direction that moves all of that and W, eq. (M-130):

    dK   = sum_s g_s ds
    dG_s = sum over pairs of  dW g_s + W sum_t g_st dt,   through q and s also  W g_q d(du)

with g_s and g_st the first and second derivatives of the profile by its statistics, row scalars and parameters.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from flashgp.foundations.expression import Symbol
from flashgp.foundations.workspace import Workspace
from flashgp.pairwise.problem import PairProblem
from flashgp.pairwise.program.program import Partial
from flashgp.pairwise.torch.tile_gradient import flat_scalar
from flashgp.pairwise.torch.tile_job import TileJob, TileSettings

Pull = Callable[[Tensor], list[Tensor | None]]


class BlockTape:
    """A symmetric block and weights W, with what directions through them need.

    Args:
        problem: symmetric, without Python functions of pairs.
        weights: W, symmetric, (*batch, n, n), float64, of the problem's batch.
        workspace: counts what is kept.
    Cost: two tiles (n, n) for every different derivative of the profile, first and second.
    """

    def __init__(self, problem: PairProblem, weights: Tensor, workspace: Workspace) -> None:
        n, everything = problem.rows.count, slice(0, problem.rows.count)
        pairs = n * n
        direct = pairs * max(1, problem.rows.width)  # all of them
        # Direct differences: beside n^3 flops they are cheap, and second derivatives magnify an error of a distance.
        self._job = TileJob(problem.whole, weights.dtype, TileSettings(pairs=max(1, pairs), direct_pairs=direct))
        self._weights = weights
        statistics, scalars = self._job.statistics.tile(everything, everything)
        self._first, second = self._job.program.second_partials(statistics, scalars, self._job.theta, self._job.own)
        self._second: dict[Symbol, list[Partial]] = {}
        for symbol, partial in second:
            self._second.setdefault(symbol, []).append(partial)
        self._weighted: dict[int, Tensor] = {}  # W times each tile
        for partial in (*self._first, *(partial for _, partial in second)):
            if partial.tile is not None and id(partial.tile) not in self._weighted:
                self._weighted[id(partial.tile)] = workspace.adopt(weights * workspace.adopt(partial.tile))

    def along(self, directions: Sequence[Tensor | None]) -> tuple[Tensor, Pull]:
        """dK, (*batch, n, n), and a function from dW, symmetric, to dG.

        Args: directions: of every tensor of the problem, in their order, (*batch, ...) as these; None for 0.
        Returns of the function: dG by every tensor, (*batch, ...) of the whole batch; None for 0.
        Cost: a dozen passes over n^2 numbers, and 4 n^2 d' flops.
        """
        changes = {p.symbol: self._change(p.symbol, directions) for p in self._first}
        block = torch.zeros_like(self._weights)
        for tile, factor in _by_tile(self._first, changes):
            block = block.add_(factor) if tile is None else block.addcmul_(tile, factor)
        return block, lambda slope: self._pulled(slope, changes, directions)

    # -- forward: what a direction does to each symbol ----------------------------------------------------------------
    def _change(self, symbol: Symbol, directions: Sequence[Tensor | None]) -> Tensor | None:
        """ds for all pairs, (*batch, n, n) or a shape that broadcasts to it."""
        count = len(self._job.form.statistics)
        if symbol.kind == "parameter":
            moved = directions[count + self._job.form.scalar_count + symbol.index]
            return None if moved is None else moved[..., None, None]
        if symbol.kind in ("left", "right"):
            moved = directions[count + symbol.index]
            return None if moved is None else moved.unsqueeze(-1 if symbol.kind == "left" else -2)
        moved = directions[symbol.index]
        if moved is None:
            return None
        if symbol.kind == "product":
            u = self._job.rows.features[symbol.index]
            return _inner(_joined(u, moved), _joined(moved, u))
        if self._job.far(symbol.index) is not None:
            return _differences(self._job.rows.features[symbol.index], moved)
        # dq = 2 (u_i - u_j).(du_i - du_j) as one product of n x 2 (d' + 1) matrices, both around their means.
        u, moved = self._job.sides("distance", symbol.index)[0], _centred(moved)
        own = (u * moved).sum(-1, keepdim=True)
        one = torch.ones_like(own)
        return _inner(_joined(u, moved, own, one), _joined(moved * -2.0, u * -2.0, one * 2.0, own * 2.0))

    # -- backward: to the tensors behind each symbol ------------------------------------------------------------------
    def _pulled(
        self, slope: Tensor, changes: dict[Symbol, Tensor | None], directions: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        form = self._job.form
        count = len(form.statistics)
        results: list[Tensor | None] = [None for _ in directions]
        for partial in self._first:
            symbol, curved = partial.symbol, _by_tile(self._second.get(partial.symbol, []), changes)
            if symbol.kind == "parameter":
                at, part = count + form.scalar_count + symbol.index, self._summed(partial, slope, curved)
            else:
                through = self._through(partial, slope, curved)
                if symbol.kind in ("left", "right"):
                    at, part = count + symbol.index, through.sum(-1 if symbol.kind == "left" else -2)
                else:
                    at, part = symbol.index, self._to_rows(partial, through, directions[symbol.index])
            before = results[at]
            results[at] = part if before is None else before + part
        return results

    def _through(self, partial: Partial, slope: Tensor, curved: Sequence[tuple[Tensor | None, Tensor]]) -> Tensor:
        """dW g_s + W sum_t g_st dt, (*batch, n, n)."""
        total = slope.clone() if partial.tile is None else slope * partial.tile
        total = total.mul_(partial.scalar)
        for tile, factor in curved:
            total = total.addcmul_(self._weighted_by(tile), factor)
        return total

    def _summed(self, partial: Partial, slope: Tensor, curved: Sequence[tuple[Tensor | None, Tensor]]) -> Tensor:
        """The sum of `_through` over all pairs, (*batch,)."""
        total = slope.sum((-2, -1)) if partial.tile is None else _dot(slope, partial.tile)
        total = total * flat_scalar(partial.scalar)
        for tile, factor in curved:
            weighted = self._weighted_by(tile)
            if factor.shape[-2:] == (1, 1):
                total = total + weighted.sum((-2, -1)) * factor[..., 0, 0]
            else:
                total = total + _dot(weighted, factor)
        return total

    def _weighted_by(self, tile: Tensor | None) -> Tensor:
        """W times a tile."""
        return self._weights if tile is None else self._weighted[id(tile)]

    def _to_rows(self, partial: Partial, through: Tensor, moved: Tensor | None) -> Tensor:
        """Both sides of a symmetric statistic: d(W g_q) with u, and W g_q with du, eqs. (M-24) and (M-25)."""
        index, kind = partial.symbol.index, partial.symbol.kind
        given = self._job.rows.features[index]
        weighted = self._weighted_by(partial.tile)
        if kind == "product":
            part = 2.0 * (through @ given)
            return part if moved is None else part + (2.0 * partial.scalar) * (weighted @ moved)
        if self._job.far(index) is not None:
            part = _by_differences(through, given)
            moved_part = None if moved is None else _by_differences(weighted, moved)
        else:
            u = self._job.sides("distance", index)[0]
            part = _around(through, u)
            moved_part = None if moved is None else _around(weighted, _centred(moved))
        return 4.0 * (part if moved_part is None else part + partial.scalar * moved_part)


def _by_tile(partials: Sequence[Partial], changes: dict[Symbol, Tensor | None]) -> list[tuple[Tensor | None, Tensor]]:
    """sum_t scalar_t dt for each different tile of the partials, in which something moves; None for a tile of ones."""
    factors: dict[int, tuple[Tensor | None, list[Tensor]]] = {}
    for partial in partials:
        change, scalar = changes.get(partial.symbol), partial.scalar
        if change is not None:
            one = change if isinstance(scalar, float) and scalar == 1.0 else change * scalar
            factors.setdefault(id(partial.tile), (partial.tile, []))[1].append(one)
    return [(tile, _added(terms)) for tile, terms in factors.values()]


def _added(terms: list[Tensor]) -> Tensor:
    """The sum, the largest term first: what broadcasts to it costs no tile of its own."""
    first, *others = sorted(terms, key=lambda t: -t.numel())
    return sum(others, first)


def _dot(one: Tensor, two: Tensor) -> Tensor:
    """sum over pairs of the product, (*batch,)."""
    if one.dim() == 2 and one.shape == two.shape and one.is_contiguous() and two.is_contiguous():
        return torch.dot(one.view(-1), two.view(-1))  # without the product
    return (one * two).sum((-2, -1))


def _joined(*columns: Tensor) -> Tensor:
    batch = torch.broadcast_shapes(*(c.shape[:-1] for c in columns))
    return torch.cat([c.expand(*batch, c.shape[-1]) for c in columns], -1)


def _inner(left: Tensor, right: Tensor) -> Tensor:
    return left @ right.mT


def _centred(moved: Tensor) -> Tensor:
    return moved - moved.mean(-2, keepdim=True)


def _around(weights: Tensor, u: Tensor) -> Tensor:
    """sum_j c_ij (u_i - u_j)."""
    return weights.sum(-1, keepdim=True) * u - weights @ u


def _by_differences(weights: Tensor, u: Tensor) -> Tensor:
    """Column by column, without the difference of two sums: for rows far apart."""
    return torch.stack([(weights * (c.unsqueeze(-1) - c.unsqueeze(-2))).sum(-1) for c in u.unbind(-1)], -1)


def _differences(u: Tensor, moved: Tensor) -> Tensor:
    """dq = 2 (u_i - u_j).(du_i - du_j), column by column."""
    total = torch.zeros((), dtype=u.dtype, device=u.device)
    for c, m in zip(u.unbind(-1), moved.unbind(-1), strict=True):
        total = total + (c.unsqueeze(-1) - c.unsqueeze(-2)) * (m.unsqueeze(-1) - m.unsqueeze(-2))
    return 2.0 * total
