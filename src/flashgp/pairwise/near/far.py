"""Tiles of a covariance matrix that can be left out, and the error of a product without them.

Rows are put into a spatial order and cut into panels; a pair of panels is far when its bound of |k|, eq. (M-71), is
below a threshold. The search starts at the whole matrix and halves both sides of what is not far, so that large far
parts cost one bound each, eq. (M-72). What was left out stays known with its bound: eqs. (M-73), (M-74).
"""

import functools
from dataclasses import dataclass

import numpy
import torch
from torch import Tensor

from flashgp.foundations.form import Form, Rows, broadcast_batch
from flashgp.foundations.intervals import EPS
from flashgp.pairwise.near.boxes import Boxes, boxes_of, covariance_bound
from flashgp.pairwise.near.tile_lists import NearTiles
from flashgp.pairwise.problem import PairProblem

Array = numpy.ndarray
# Rows per panel. Compiled loops reach nine tenths of their rate on 128 rows and half on 32, while a box of 128 rows in
# two dimensions is half as wide as one of 512; a GPU needs larger ones to be busy (docs/decisions/0009).
PANEL, ACCELERATOR_PANEL = 128, 2048
MAX_KEPT = 0.85  # of the pairs: above, the panels cost more than what is left out brings, and everything is kept
# Above this share in a long list of panels of so few rows, smaller ones will not reach MAX_KEPT: the search ends.
MAX_COARSE_KEPT, COARSE_PANEL, LONG_LIST = 0.97, 1024, 2**12


@dataclass(frozen=True)
class _Skipped:
    """Tiles left out at one level: panels of `size` rows, their numbers (skipped, 2), bounds (*batch, skipped)."""

    size: int
    pairs: Array
    bounds: Array


@dataclass(frozen=True)
class FarTiles:
    """The far tiles of one matrix: what remains without them, in which order, and what they amount to.

    Fields: near; skipped, by level; row_order and column_order, the numbers of rows and columns in panel order; kept,
    the share of the n m pairs that is evaluated.
    """

    near: NearTiles
    skipped: tuple[_Skipped, ...]
    row_order: Tensor
    column_order: Tensor
    kept: float

    @functools.cached_property
    def row_positions(self) -> Tensor:
        """The position of each row in panel order: the inverse of `row_order`."""
        return torch.argsort(self.row_order)

    @property
    def T(self) -> "FarTiles":
        """The far tiles of the transpose."""
        swapped = tuple(_Skipped(s.size, s.pairs[:, ::-1], s.bounds) for s in self.skipped)
        return FarTiles(self.near.T, swapped, self.column_order, self.row_order, self.kept)

    def left_out(self, right: Tensor) -> Tensor:
        """An upper bound of |K right - K' right|, K' without the far tiles, entry by entry, eq. (M-73).

        Args: right (*batch, m, t), columns in their own order. Returns: (*batch, n, t), float64, rows in theirs.
        Cost: one pass over `right`, and t additions for each of the (few) skipped parts.
        """
        near, t = self.near, right.shape[-1]
        sizes = right.detach().to("cpu", torch.float64).abs().index_select(-2, self.column_order.cpu())
        batch = broadcast_batch(sizes.shape[:-2], *(torch.Size(s.bounds.shape[:-1]) for s in self.skipped))
        total = torch.zeros((*batch, near.n, t), dtype=torch.float64)
        for part in self.skipped:
            sums = _panel_sums(sizes, part.size)
            panels = torch.zeros((*batch, -(-near.n // part.size), t), dtype=torch.float64)
            i, j, bounds = *torch.from_numpy(part.pairs.T.copy()), torch.from_numpy(part.bounds).unsqueeze(-1)
            panels.index_add_(-2, i, (bounds * sums[..., j, :]).expand(*batch, len(j), t))
            if near.symmetric:
                off = i != j
                panels.index_add_(-2, j[off], (bounds[..., off, :] * sums[..., i[off], :]).expand(*batch, -1, t))
            total += panels.repeat_interleave(part.size, -2)[..., : near.n, :]
        # Sums of at most so many positive terms, each rounded, are below the exact ones by at most this share.
        total *= 1.0 + (near.m + sum(len(s.pairs) for s in self.skipped) + 8.0) * EPS
        return total.index_select(-2, self.row_positions.cpu()).to(right.device)

    @functools.cached_property
    def norm_bound(self) -> Tensor:
        """An upper bound of the 2-norm |K - K'|, (*batch,), eq. (M-74)."""
        rows = _largest_row_sum(self)
        if self.near.symmetric:
            return rows
        return (rows * _largest_row_sum(self.T)).sqrt() * (1.0 + 4.0 * EPS)


def far_tiles(problem: PairProblem, threshold: Tensor, panel: int | None = None) -> FarTiles | None:
    """The tiles of K in which no covariance reaches a threshold, eq. (M-72).

    Args:
        problem: the matrix, detached.
        threshold: () or (*batch,); with a batch, a tile is far when it is for every member.
        panel: rows per panel, a multiple of 16; by default what suits the device.
    Returns: None where what could be left out is not worth it: everything is kept.
    Cost: sorting both sides, and a bound for each pair of panels near the border between near and far.
    """
    form, place, symmetric = problem.form, problem.device, problem.symmetric
    count = problem.rows.count * problem.right.count
    if count == 0:
        return None
    size = panel or (PANEL if place.type == "cpu" else ACCELERATOR_PANEL)
    rows = problem.rows.to(torch.float64, torch.device("cpu"))
    cols = rows if problem.columns is None else problem.columns.to(torch.float64, torch.device("cpu"))
    row_order = spatial_order(form, rows, size)
    column_order = row_order if symmetric else spatial_order(form, cols, size)
    left = _levels(boxes_of(form, rows.take(row_order), size))
    right = left if symmetric else _levels(boxes_of(form, cols.take(column_order), size))
    values = [t.cpu().double().unsqueeze(-1).numpy() for t in problem.theta]
    limits = threshold.cpu().double().unsqueeze(-1).numpy()
    batch = problem.batch_shape
    pairs = numpy.zeros((1, 2), numpy.int64)
    skipped: list[_Skipped] = []
    for level in reversed(range(max(len(left), len(right)))):
        one, two = _at(left, level), _at(right, level)
        bounds = covariance_bound(form, values, one, two, *pairs.T)
        bounds = numpy.broadcast_to(bounds, (*batch, len(pairs)))
        far = (bounds < limits).all(axis=tuple(range(len(batch))))
        if far.any():
            skipped.append(_Skipped(size << level, pairs[far], bounds[..., far]))
        near = NearTiles(size << level, rows.count, cols.count, symmetric, pairs[~far])
        ends = near.size <= COARSE_PANEL and len(near.pairs) > LONG_LIST and near.pair_count > MAX_COARSE_KEPT * count
        if level == 0 or ends:
            break
        pairs = _halved(near.pairs, _at(left, level - 1).count, _at(right, level - 1).count, symmetric)
    if near.pair_count > MAX_KEPT * count:
        return None
    near = near.sorted()
    return FarTiles(near, tuple(skipped), row_order.to(place), column_order.to(place), near.pair_count / count)


def _levels(boxes: Boxes) -> list[Boxes]:
    """Boxes of panels, of pairs of them, and so on to one box of all rows."""
    levels = [boxes]
    while levels[-1].count > 1:
        levels.append(levels[-1].joined())
    return levels


def _at(levels: list[Boxes], level: int) -> Boxes:
    """The boxes of a level; a side with fewer levels is one box from its last one on."""
    return levels[min(level, len(levels) - 1)]


def _halved(pairs: Array, rows: int, cols: int, symmetric: bool) -> Array:
    """Pairs of panels half as large, of so many rows and columns; of a symmetric matrix those with i <= j."""
    children = (2 * pairs[:, None, :] + numpy.indices((2, 2)).reshape(2, 4).T).reshape(-1, 2)
    i, j = children.T
    there = (i < rows) & (j < cols)
    return children[there & (i <= j) if symmetric else there]


def _panel_sums(sizes: Tensor, size: int) -> Tensor:
    """(*batch, m, t) summed over panels: (*batch, panels, t)."""
    whole = sizes.shape[-2] // size
    sums = sizes[..., : whole * size, :].unflatten(-2, (whole, size)).sum(-2)
    rest = sizes[..., whole * size :, :]
    return torch.cat([sums, rest.sum(-2, keepdim=True)], -2) if rest.shape[-2] else sums


def _largest_row_sum(far: FarTiles) -> Tensor:
    """The largest of the sums over j of the bounds of |K - K'|_ij, (*batch,)."""
    return far.left_out(torch.ones(far.near.m, 1, dtype=torch.float64)).amax((-2, -1))


# -- an order in which near rows stand together ------------------------------------------------------------------------


def spatial_order(form: Form, rows: Rows, size: int) -> Tensor:
    """Numbers of all rows in their new order, (n,): every aligned run of size * 2^s of them is a box of the tree.

    Args: rows: detached, on the CPU; members of a batch share one order, made from the columns of all of them.
    Returns: the order as it is when there is no distance, or no more rows than one panel.
    Cost: about n log2(n / size) steps per column, in float32: the order is exact whatever it rounds.
    """
    order = numpy.arange(rows.count)
    distances = [
        f.numpy()
        for kind, f in zip(form.statistics, rows.features, strict=True)
        if kind == "distance" and f.shape[-1] > 0
    ]
    if not distances or rows.count <= size:
        return torch.from_numpy(order)
    points = numpy.concatenate([_columns(f) for f in distances])
    levels = (-(-rows.count // size) - 1).bit_length()
    open_nodes = [(0, rows.count, size << (levels - 1))]
    while open_nodes:
        start, stop, half = open_nodes.pop()
        if stop - start > half:
            _cut(points[:, start:stop], order[start:stop], half)
        if half > size:
            middle = min(stop, start + half)
            open_nodes += [(a, b, half // 2) for a, b in ((start, middle), (middle, stop)) if a < b]
    return torch.from_numpy(order)


def _columns(feature: Array) -> Array:
    """(*batch, n, d) around its middle as (all columns, n), float32: contiguous, four times quicker to go over."""
    middle = 0.5 * (feature.min(-2, keepdims=True) + feature.max(-2, keepdims=True))
    centred = (feature - middle).astype(numpy.float32)
    return numpy.ascontiguousarray(numpy.swapaxes(centred, -1, -2)).reshape(-1, feature.shape[-2])


def _cut(points: Array, order: Array, count: int) -> None:
    """The `count` rows that are lowest in the widest column come first, in place."""
    widths = points.max(1) - points.min(1)
    widest = int(widths.argmax())
    if widths[widest] > 0:
        parts = numpy.argpartition(points[widest], count)
        points[:], order[:] = points[:, parts], order[parts]
