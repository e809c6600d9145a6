"""Boxes around panels of rows, and what a covariance can be between two of them.

    low_k <= u_k <= high_k for the features of every row of a panel, |u| <= norm, codes and row scalars in a range

Two boxes give a range for every pair statistic, and the profile's interval arithmetic a bound of |k|, eq. (M-71).
Panels are runs of rows in the order they are in; two neighbours joined are a panel of the next level.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy

from flashgp.foundations.expression import Symbol
from flashgp.foundations.form import Form, Rows
from flashgp.foundations.intervals import EPS, TINY, Interval, largest_magnitude, widened

Array = numpy.ndarray
CHUNK = 2**15  # pairs of boxes evaluated at once: the arrays of their columns stay in the cache


@dataclass(frozen=True)
class Boxes:
    """Ranges of what the rows of each panel contribute, panels along the last axis but columns.

    Fields: features, one per statistic, (*batch, panels, d) low and high, or (*batch, panels) of codes; norms, by the
    number of an inner product, the largest |u| of each panel, (*batch, panels); scalars, one (*batch, panels) per row
    scalar; count, the number of panels.
    """

    features: tuple[Interval, ...]
    norms: dict[int, Array]
    scalars: tuple[Interval, ...]
    count: int

    def joined(self) -> "Boxes":
        """Panels 2k and 2k + 1 as one."""
        return Boxes(
            tuple(_reduced(f, _panel_axis(f.low), 2) for f in self.features),
            {k: _largest(norm, 2) for k, norm in self.norms.items()},
            tuple(_reduced(s, -1, 2) for s in self.scalars),
            -(-self.count // 2),
        )


def boxes_of(form: Form, rows: Rows, size: int) -> Boxes:
    """The boxes of panels of `size` rows (the last one of what is left). Cost: one pass over the features."""
    arrays = [f.numpy() for f in rows.features]
    return Boxes(
        tuple(_reduced(Interval(a, a), _panel_axis(a), size) for a in arrays),
        {k: _largest(_norm(a), size) for k, a in enumerate(arrays) if form.statistics[k] == "product"},
        tuple(_reduced(Interval(s.numpy(), s.numpy()), -1, size) for s in rows.scalars),
        -(-rows.count // size),
    )


def covariance_bound(form: Form, theta: Sequence[Array], left: Boxes, right: Boxes, i: Array, j: Array) -> Array:
    """An upper bound of |k| between panels i of `left` and j of `right`, eq. (M-71).

    Args: theta: values, each () or (*batch, 1); i, j: (pairs,) numbers of panels.
    Returns: (*batch, pairs), never below the true largest |k|; inf where a statistic is a Python function.
    Cost: about 20 (operations of the profile + columns) floating operations per pair of panels.
    """
    parts = [
        _bound(form, theta, left, right, i[start : start + CHUNK], j[start : start + CHUNK])
        for start in range(0, max(1, len(i)), CHUNK)
    ]
    return numpy.concatenate(parts, axis=-1) if len(parts) > 1 else parts[0]


def _bound(form: Form, theta: Sequence[Array], left: Boxes, right: Boxes, i: Array, j: Array) -> Array:
    values: dict[Symbol, Interval] = {}
    for k, kind in enumerate(form.statistics):
        match kind:
            case "distance":
                values[Symbol(kind, k)] = _distance(left.features[k], right.features[k], i, j)
            case "product":
                values[Symbol(kind, k)] = _inner_product(left, right, k, i, j)
            case "match":
                values[Symbol(kind, k)] = _match(left.features[k], right.features[k], i, j)
            case _:
                values[Symbol(kind, k)] = Interval(numpy.asarray(-numpy.inf), numpy.asarray(numpy.inf))
    for k in range(form.scalar_count):
        values[Symbol("left", k)] = Interval(*(end[..., i] for end in left.scalars[k]))
        values[Symbol("right", k)] = Interval(*(end[..., j] for end in right.scalars[k]))
    values |= {Symbol("parameter", k): Interval(value, value) for k, value in enumerate(theta)}
    bound = largest_magnitude(form.profile, values)
    return numpy.broadcast_to(bound, numpy.broadcast_shapes(bound.shape, i.shape))


# -- a statistic between two boxes -----------------------------------------------------------------------------------
def _distance(u: Interval, v: Interval, i: Array, j: Array) -> Interval:
    """Smallest and largest distance of two boxes: columns apart by a gap of at least 0 and at most a reach."""
    u_low, u_high, v_low, v_high = u.low[..., i, :], u.high[..., i, :], v.low[..., j, :], v.high[..., j, :]
    gap = numpy.maximum(numpy.maximum(u_low - v_high, v_low - u_high), 0.0)
    reach = numpy.maximum(u_high - v_low, v_high - u_low)
    columns = gap.shape[-1]
    q = widened(numpy.square(gap).sum(-1), numpy.square(reach).sum(-1), columns + 4.0)
    r = widened(numpy.sqrt(numpy.maximum(q.low, 0.0)), numpy.sqrt(q.high), 2.0)
    return Interval(numpy.maximum(r.low, 0.0), r.high)


def _inner_product(left: Boxes, right: Boxes, statistic: int, i: Array, j: Array) -> Interval:
    """Column by column between the corners, and within |u| |v| (Cauchy and Schwarz)."""
    u, v = left.features[statistic], right.features[statistic]
    corners = [a[..., i, :] * b[..., j, :] for a in u for b in v]
    low, high = functools.reduce(numpy.minimum, corners), functools.reduce(numpy.maximum, corners)
    columns = low.shape[-1]
    size = numpy.maximum(numpy.abs(low), numpy.abs(high)).sum(-1)
    rounding = (columns + 4.0) * (EPS * size + TINY)
    most = left.norms[statistic][..., i] * right.norms[statistic][..., j] * (1.0 + 4.0 * EPS) + TINY
    return Interval(numpy.maximum(low.sum(-1) - rounding, -most), numpy.minimum(high.sum(-1) + rounding, most))


def _match(u: Interval, v: Interval, i: Array, j: Array) -> Interval:
    """1 where both panels have one code and the same, 0 where their ranges are apart, else either."""
    u_low, u_high, v_low, v_high = u.low[..., i], u.high[..., i], v.low[..., j], v.high[..., j]
    apart = (u_high < v_low) | (v_high < u_low)
    same = (u_low == u_high) & (v_low == v_high) & (u_low == v_low)
    return Interval(same.astype(float), (~apart).astype(float))


def _norm(feature: Array) -> Array:
    """|u| of every row, rounded up."""
    squares = numpy.square(feature).sum(-1)
    return numpy.sqrt(squares) * (1.0 + (feature.shape[-1] + 4.0) * EPS) + TINY


def _panel_axis(feature: Array) -> int:
    """The axis of rows or panels: codes have no columns."""
    return -2 if numpy.issubdtype(feature.dtype, numpy.floating) else -1


def _largest(values: Array, size: int) -> Array:
    return numpy.maximum.reduceat(values, range(0, values.shape[-1], size), axis=-1)


def _reduced(ranges: Interval, axis: int, size: int) -> Interval:
    """The ranges of runs of `size` entries along an axis."""
    starts = range(0, ranges.low.shape[axis], size)
    return Interval(
        numpy.minimum.reduceat(ranges.low, starts, axis=axis), numpy.maximum.reduceat(ranges.high, starts, axis=axis)
    )
