"""Memory layout of rows for the generated loops: blocks of B rows, each column of a block contiguous.

A statistic is evaluated in one of these ways, which decide the generated text:

    inline       up to INLINE columns, unrolled in the pair loop: sum_k (u_k - v_k)^2, or sum_k u_k v_k
    split        the same with every column as a float32 and what it lost: (u - v) + (u' - v')          (M-68)
    differences  more columns: four at a time, for four rows at once, into a row buffer
    dot          |u|^2 + |v|^2 - 2 u.v: half the work of differences, where its rounding is admissible  (M-69)
    match        equal codes

Rows are padded to whole blocks with copies of the last one, right-hand sides with zeros: a padded pair is finite and
adds nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import torch

from flashgp.foundations.form import Form, Rows
from flashgp.pairwise.cpu.precision import sensitivity
from flashgp.pairwise.program.families import indexed
from flashgp.pairwise.program.program import program_of

Array = numpy.ndarray

CAREFUL_FIRST = ("split", "inline", "differences", "dot", "match")
INLINE = 8  # columns unrolled in the pair loop; a kernel of more compiles once for all numbers of columns
ROWS = 4  # rows evaluated together
UNIT = 2.0**-24  # the rounding of one float32 number
COORDINATE_BUDGET = 5e-7  # of a covariance, relative to its row's largest: what rounded columns may move it
SQUARE_BUDGET = 1e-6  # what the cancelling form of a squared distance may
SHARE_BUDGET = 1e-6  # what rounded inner products and row scalars may
PACKED_ROWS = 2**14  # rows moved and rounded at a time
WIDE = 64  # numbers that a reduction takes side by side
BLOCK, NARROW_BLOCK, MANY_COLUMNS = 512, 256, 12  # rows per block, for few columns and for more


@dataclass(frozen=True)
class Statistic:
    """One statistic as the generated code sees it: kind, way, and its columns when they are unrolled (else 0)."""

    kind: str
    way: str
    columns: int


def layout_of(
    form: Form, theta: Sequence[float], rows: Rows, cols: Rows, dtype: torch.dtype, *, pulled: bool = False
) -> tuple[tuple[Statistic, ...], list[Array], torch.dtype]:
    """Layout by which the statistics of one model are evaluated, for a product or (`pulled`) its gradient.

    float32 columns are used where their rounding stays in the budgets, eq. (M-75). Where it does not, up to INLINE
    columns are split; more columns, gradients, and profiles that cancel run in float64. A budget is one for all
    distances together; where they exceed it, those do that take more than their equal part.
    Returns: the statistics; the centre (d,) of each feature that is subtracted before packing; the dtype of the loops.
    In NumPy, on one thread: torch's threads would spin beside ours for a while after each of its operations.
    Cost: two passes over the features, one where nothing has to be looked at.
    """
    centres, reach, squared = [], [], _squared(form, rows)
    rounded = dtype == torch.float32 or bool(squared)  # else no rounding has to be looked at
    for kind, u, v in zip(form.statistics, rows.features, cols.features, strict=True):
        sides = [u.numpy()] if u is v else [u.numpy(), v.numpy()]
        if kind == "distance":
            least, most = _extremes(sides[0])
            centre = 0.5 * (least.astype(float) + most)
            centres.append(centre)
            reach.append(max(_reach(side, centre) for side in sides) if rounded else 0.0)
        else:
            centres.append(numpy.zeros(0 if kind == "match" else u.shape[-1]))
            reach.append(0.0)
    widths = [u.shape[-1] if u.is_floating_point() else 0 for u in rows.features]
    if not rounded:
        careful = [_statistic(*one, False) for one in zip(form.statistics, widths, strict=True)]
        return _alike(form, careful), centres, dtype
    found = sensitivity(form, theta, rows, cols, reach, squared)
    limit = SQUARE_BUDGET / (1 if UNIT * found.squares <= SQUARE_BUDGET else len(squared))
    close = {k for k in squared if 2.0 * UNIT * reach[k] * found.by_square[k] <= limit}
    statistics = [
        _statistic(kind, width, k in close) for k, (kind, width) in enumerate(zip(form.statistics, widths, strict=True))
    ]
    narrow = dtype == torch.float32 and UNIT * found.by_share <= SHARE_BUDGET
    together = UNIT * found.coordinates <= COORDINATE_BUDGET
    limit = COORDINATE_BUDGET / (1 if together else form.statistics.count("distance"))
    far = [UNIT * reach[k] ** 0.5 * moved > limit for k, moved in enumerate(found.by_coordinate)]
    if narrow and any(far):
        narrow = not pulled and all(s.way == "inline" for s, f in zip(statistics, far, strict=True) if f)
        if narrow:
            statistics = [
                Statistic(s.kind, "split", s.columns) if f else s for s, f in zip(statistics, far, strict=True)
            ]
    return _alike(form, statistics), centres, torch.float32 if narrow else torch.float64


def _alike(form: Form, statistics: Sequence[Statistic]) -> tuple[Statistic, ...]:
    """Statistics of one family in one way, the most careful that one of them asks for: one loop takes them all."""
    found = list(statistics)
    for numbers in indexed(form, [(s.kind, s.columns) for s in statistics]).statistics:
        careful = min((statistics[k] for k in numbers), key=lambda s: CAREFUL_FIRST.index(s.way))
        for k in numbers:
            found[k] = careful
    return tuple(found)


def _squared(form: Form, rows: Rows) -> list[int]:
    """The distances that may be taken as |u|^2 + |v|^2 - 2 u.v."""
    bounded = program_of(form).bounded_slope
    return [k for k, smooth in bounded.items() if smooth and rows.features[k].shape[-1] > INLINE]


def _statistic(kind: str, d: int, close: bool) -> Statistic:
    if kind == "match":
        return Statistic(kind, "match", 0)
    if d <= INLINE:
        return Statistic(kind, "inline", d)
    return Statistic(kind, "dot" if kind == "product" or close else "differences", 0)


def _extremes(feature: Array) -> tuple[Array, Array]:
    """Least and largest of every column. Several rows side by side: numpy reduces short ones ten times slower."""
    beside = max(1, WIDE // max(1, feature.shape[1]))
    whole = len(feature) - len(feature) % beside
    if not whole or not feature.flags.c_contiguous:
        return feature.min(0), feature.max(0)
    wide, rest = feature[:whole].reshape(-1, beside * feature.shape[1]), feature[whole:]
    least, most = (part.reshape(beside, -1) for part in (wide.min(0), wide.max(0)))
    return numpy.concatenate([least, rest]).min(0), numpy.concatenate([most, rest]).max(0)


def _reach(feature: Array, centre: Array) -> float:
    """The largest squared distance of a row from the centre, without copies of all rows."""
    most = 0.0
    for start in range(0, len(feature), PACKED_ROWS):
        moved = feature[start : start + PACKED_ROWS] - centre
        most = max(most, float(numpy.einsum("ij,ij->i", moved, moved).max()))
    return most


def block_size(layout: tuple[Statistic, ...], rows: Rows) -> int:
    """Rows per block: fewer where many columns of one would leave the first-level cache (decision 7)."""
    columns = 0
    for statistic, feature in zip(layout, rows.features, strict=True):
        if statistic.kind != "match":
            columns += feature.shape[-1] * (2 if statistic.way == "split" else 1)
    return NARROW_BLOCK if columns > MANY_COLUMNS else BLOCK


def packed(
    features: Sequence[Array], centres: Sequence[Array], statistic: Statistic, block: int, real: type
) -> list[Array]:
    """Arrays (members, blocks, columns, B) of features, and (members, blocks, B) of squared norms where needed.

    The members are taken by one loop. Where columns are not unrolled, those of fewer are padded with zeros.
    """
    n, d = len(features[0]), max(feature.shape[1] for feature in features)
    split, dot = statistic.way == "split", statistic.way == "dot" and statistic.kind == "distance"
    count = 2 * d if split else d + (-d % 4 if statistic.columns == 0 else 0)
    blocks = -(-n // block)
    out = numpy.zeros((len(features), blocks, count, block), real)
    norms = numpy.zeros((len(features), blocks, block), real) if dot else numpy.zeros(0)
    for member, (feature, centre) in enumerate(zip(features, centres, strict=True)):
        _pack(feature, centre, out[member], norms[member] if dot else None, split)
    return [out, norms] if dot else [out]


def _pack(feature: Array, centre: Array, out: Array, norms: Array | None, split: bool) -> None:
    """One feature into its place; `split`: what its columns lost by rounding beside them."""
    d = feature.shape[1]
    blocks, _, block = out.shape
    step = max(1, PACKED_ROWS // block)  # blocks at a time: no copy of all rows beside the packed one
    for first in range(0, blocks, step):
        part = slice(first, first + step)
        moved = feature[first * block : (first + step) * block] - centre
        values = moved.astype(out.dtype, copy=False)
        fill_columns(out[part, :d], values.T)
        if split:
            fill_columns(out[part, d:], (moved - values).T)
        if norms is not None:
            fill_columns(norms[part], numpy.square(values, dtype=numpy.float64).sum(-1))


def narrow_codes(*sides: Array) -> list[Array]:
    """Codes as the loops hold them, 32 bits: where some are larger, renumbered, equal ones alike on all sides."""
    limits = numpy.iinfo(numpy.int32)
    if all(not side.size or (limits.min <= side.min() and side.max() <= limits.max) for side in sides):
        return list(sides)
    _, numbers = numpy.unique(numpy.concatenate(sides), return_inverse=True)
    return numpy.split(numbers, numpy.cumsum([len(side) for side in sides[:-1]]))


def packed_columns(columns: Array, block: int, real: Any, pad: str = "last") -> Array:
    """(k, n) to (blocks, k, B), or (n,) to (blocks, B), in the dtype `real`; see `fill_columns`."""
    out = numpy.zeros((-(-columns.shape[-1] // block), *columns.shape[:-1], block), real)
    fill_columns(out, columns, pad)
    return out


def fill_columns(out: Array, columns: Array, pad: str = "last") -> None:
    """(k, n) into zeros (blocks, k, B), or (n,) into (blocks, B), rounded on the way: no copy in another dtype.

    The last block is filled with the last row, or left at zeros.
    """
    n, block = columns.shape[-1], out.shape[-1]
    whole = n // block
    view = columns[..., : whole * block].reshape(*columns.shape[:-1], whole, block)
    out[:whole] = numpy.moveaxis(view, -2, 0)
    if whole < len(out):
        out[whole, ..., : n - whole * block] = columns[..., whole * block :]
        if pad == "last":
            out[whole, ..., n - whole * block :] = columns[..., -1:]
