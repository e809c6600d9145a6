"""Rounding of a covariance in float32, from the profile and the data themselves, eq. (M-75).

A rounding of the features moves a distance or a product; how much that moves the covariance is decided by the slope of
the profile at the values of theta, and by where the data lie. Both are looked at: some rows, the largest
among them, are paired with themselves, every distance run from nothing to the largest there is, and with other rows.
"""

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy

from flashgp.foundations.form import Form, Rows
from flashgp.pairwise.program.families import distance_runs
from flashgp.pairwise.program.numpy_program import numpy_partials
from flashgp.pairwise.program.program import program_of

Array = numpy.ndarray
SAMPLED_ROWS, SAMPLED_PARTNERS = 16, 16
LARGER = 1.001  # times the largest row of a sample: one up to that adds nothing to it
DISTANCES = 128  # values of a distance, each twice the one before: a profile changes within one in a few of them


@dataclass(frozen=True)
class Sensitivity:
    """Errors of a covariance, relative to the largest of its row, per unit of what rounding does.

    Fields: by_coordinate, per statistic, for an error of a coordinate of a distance's features: max |dg/dq| 2 sqrt(q);
    by_square, per statistic, for an error of the squared distance itself: max |dg/dq|; by_share, for relative errors of
    inner products and row scalars, all together: max sum |dg/ds| |u| |v| + |dg/da| |a|. Of all distances together, with
    errors in proportion to their features: coordinates, max sum |dg/dq| 2 sqrt(q) R; squares, max sum |dg/dq| 2 R^2.
    """

    by_coordinate: tuple[float, ...]
    by_square: tuple[float, ...]
    by_share: float
    coordinates: float
    squares: float


def sensitivity(
    form: Form, theta: Sequence[float], rows: Rows, cols: Rows, reach: Sequence[float], squared: Collection[int] = ()
) -> Sensitivity:
    """The sensitivities of eq. (M-75), from a sample. Cost: one profile with its slopes at a few thousand pairs.

    Args: reach: per statistic, R^2, the largest squared distance of a feature from the centre (0 for others); squared:
        the distances that `squares` is about.
    """
    left, right = _sample(form, rows, SAMPLED_ROWS), _sample(form, cols, SAMPLED_PARTNERS)
    # Runs: every distance alone, then all together; the other distances are 0, everything else is a row with itself.
    runs = distance_runs(form)
    own, pairs = len(runs) * DISTANCES, len(right)
    shape = (len(left), own + pairs)
    statistics, sizes = [], {}
    for k, kind in enumerate(form.statistics):
        u = rows.features[k].numpy()[left].astype(numpy.float64)
        v = cols.features[k].numpy()[right].astype(numpy.float64)
        value = numpy.zeros(shape)
        if kind == "distance":
            octaves = numpy.exp2(numpy.arange(1.0 - DISTANCES, 1.0))
            for at, run in enumerate(runs):
                value[:, at * DISTANCES : (at + 1) * DISTANCES] = 4.0 * reach[k] * octaves if k in run else 0.0
            value[:, own:] = numpy.square(u[:, None] - v).sum(-1)
        elif kind == "product":
            value[:, :own] = numpy.square(u).sum(-1)[:, None]
            value[:, own:] = u @ v.T
            norms = numpy.sqrt(numpy.square(u).sum(-1)), numpy.sqrt(numpy.square(v).sum(-1))
            sizes[k] = numpy.concatenate([value[:, :own], norms[0][:, None] * norms[1]], axis=1)
        else:
            value[:, :own] = 1.0
            value[:, own:] = u[:, None] == v
        statistics.append(value)
    lefts, rights = [], []
    for a, b in zip(rows.scalars, cols.scalars, strict=True):
        here, there = a.numpy()[left].astype(numpy.float64)[:, None], b.numpy()[right].astype(numpy.float64)
        lefts.append(numpy.broadcast_to(here, shape))
        partners = numpy.broadcast_to(there, (len(left), pairs))
        rights.append(numpy.concatenate([numpy.broadcast_to(here, (len(left), own)), partners], axis=1))
    with numpy.errstate(all="ignore"):
        scalar, tile, *partials = numpy_partials(form)(*statistics, *lefts, *rights, *theta, False)
        covariance = numpy.abs(numpy.broadcast_to(scalar if tile is None else scalar * tile, shape))
        scale = covariance.max(1, keepdims=True, initial=0.0)
        scale = numpy.maximum(scale, 2.0**-20 * scale.max(initial=0.0))
        by_coordinate, by_square = [0.0] * len(statistics), [0.0] * len(statistics)
        share, coordinates, squares = (numpy.zeros(shape) for _ in range(3))
        for position, symbol in enumerate(program_of(form).present):
            scalar, tile = partials[2 * position], partials[2 * position + 1]
            slope = numpy.abs(numpy.broadcast_to(scalar if tile is None else scalar * tile, shape)) / scale
            if symbol.kind == "distance":
                moved = slope * 2.0 * numpy.sqrt(statistics[symbol.index])
                by_coordinate[symbol.index] = _largest(moved)
                by_square[symbol.index] = _largest(slope)
                coordinates += moved * reach[symbol.index] ** 0.5
                if symbol.index in squared:
                    squares += slope * 2.0 * reach[symbol.index]
            elif symbol.kind == "product":
                share += slope * sizes[symbol.index]
            elif symbol.kind in ("left", "right"):
                share += slope * numpy.abs((lefts if symbol.kind == "left" else rights)[symbol.index])
    return Sensitivity(
        tuple(by_coordinate), tuple(by_square), _largest(share), _largest(coordinates), _largest(squares)
    )


def _sample(form: Form, rows: Rows, count: int) -> Array:
    """Positions over the whole table, and of the largest row of every inner product and row scalar.

    The far rows of a table may be few: even spacing would miss them. Distances need none: they run up to the largest.
    Features on a circle need none either: all rows are as large.
    """
    positions = list(numpy.linspace(0, rows.count - 1, count).astype(numpy.int64))
    products = (f.numpy() for kind, f in zip(form.statistics, rows.features, strict=True) if kind == "product")
    sizes = itertools.chain(
        (numpy.einsum("ij,ij->i", f, f) for f in products), (numpy.abs(a.numpy()) for a in rows.scalars)
    )
    for size in sizes:
        largest = int(size.argmax())
        if not size[largest] <= LARGER * size[positions].max():
            positions.append(largest)
    return numpy.unique(positions)


def _largest(values: Array) -> float:
    """The largest; infinite where a value is not a number: what is not known is not admitted."""
    largest = float(values.max(initial=0.0))
    return largest if largest == largest else numpy.inf
