"""Covariances of few rows in NumPy calls, with their gradient: where starting a call costs as much as its arithmetic.

A NumPy call starts in a fraction of the time of a torch call (docs/decisions/0004). The formulas are the generated
program that every backend runs; squared distances are sums of squared differences, exact for equal rows. One model in
float64 on the CPU.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor

from flashgp.foundations.determinism import is_deterministic
from flashgp.foundations.form import Form, Rows
from flashgp.foundations.profile_ranges import profiled
from flashgp.pairwise.program.numpy_program import numpy_partials, numpy_value
from flashgp.pairwise.program.program import program_of
from flashgp.pairwise.torch.statistics import FAR_SQUARED

MAX_NUMPY_ROWS = 256  # of a likelihood with its gradient: above, torch is as quick (docs/decisions/0016)
TITLE = "NumPy"  # in reports
MAX_NUMPY_PRODUCT = 64**2  # entries of a matrix product; larger ones go to torch, to keep to one pool of threads
Array = numpy.ndarray[Any, numpy.dtype[numpy.float64]]


class RowArrays(NamedTuple):
    """`Rows` of one table for NumPy. Fields: features, (n, d_i) each or codes (n,); scalars, (n,) each; length, n."""

    features: Sequence[Array]
    scalars: Sequence[Array]
    length: int

    @classmethod
    def of(cls, rows: Rows) -> "RowArrays":
        """The memory of rows as arrays, without a graph; the rows are of one table on the CPU."""
        return cls([f.detach().numpy() for f in rows.features], [a.detach().numpy() for a in rows.scalars], rows.count)


class NumpyPairs:
    """The covariance function of one model with its parameters, for blocks of few pairs. Make one with `of`."""

    def __init__(self, form: Form, theta: Sequence[float]) -> None:
        self._form, self._theta = form, tuple(theta)
        self._constant_diagonal: float | None = None  # k(x, x) where it is the same at every point, after the first one
        self._varies = bool(form.scalar_count or "product" in form.statistics)
        self._statistics = [_STATISTICS[kind] for kind in form.statistics]
        self._diagonals = [_DIAGONALS[kind] for kind in form.statistics]
        self._value = numpy_value(form)
        if "distance" in form.statistics:
            _cdist()  # now, not with the first block: SciPy's package of it takes a quarter of a second to load

    @classmethod
    def of(cls, form: Form, theta: Sequence[Tensor]) -> "NumpyPairs | None":
        """Pairs in NumPy; None for what torch computes: a batch, another device, Python functions of pairs,
        deterministic results.

        How NumPy's loops round depends on where an array begins in memory, so that results are not deterministic.
        """
        if not form.fusable or is_deterministic() or any(t.dim() or t.device.type != "cpu" for t in theta):
            return None
        return cls(form, [float(t.detach()) for t in theta])

    def __reduce__(self) -> tuple[Any, ...]:
        return NumpyPairs, (self._form, self._theta)  # generated functions cannot be pickled

    @profiled("pairwise products")
    def block(self, rows: RowArrays, others: RowArrays) -> Array:
        """k(x_i, x'_j), (k, n). Cost: k n d flops and a dozen calls."""
        with numpy.errstate(all="ignore"):  # as torch: who uses it sees what is not finite
            statistics, sides = self._inputs(rows, others)
            return self._filled(statistics, sides, (rows.length, others.length))

    @profiled("pairwise products")
    def diagonal(self, rows: RowArrays) -> Array:
        """k(x_i, x_i), (k,)."""
        if self._constant_diagonal is not None:
            return numpy.full(rows.length, self._constant_diagonal)
        features = zip(self._diagonals, rows.features, strict=True)
        with numpy.errstate(all="ignore"):
            values = self._filled([make(a) for make, a in features], [*rows.scalars, *rows.scalars], (rows.length,))
        if rows.length and not self._varies:
            self._constant_diagonal = float(values[0])
        return values

    def corner(self, rows: RowArrays) -> float:
        """k(x, x) of the one point of `rows`."""
        return float(self.diagonal(rows)[0]) if self._constant_diagonal is None else self._constant_diagonal

    @profiled("pairwise products")
    def taped_block(self, rows: RowArrays) -> tuple[Array, Callable[[Array], list[Any]]]:
        """K of the rows with themselves, (n, n), and the pullback of a symmetric slope dL/dK, (n, n).

        The pullback gives gradients in the order of `Rows.tensors`, then by theta, eqs. (M-24) to (M-26); None for no
        dependence.
        """
        with numpy.errstate(all="ignore"):
            statistics, sides = self._inputs(rows, rows)
            scalar, tile, *partials = numpy_partials(self._form)(*statistics, *sides, *self._theta, True)
        matrix = numpy.full((rows.length, rows.length), scalar) if tile is None else tile * scalar
        return matrix, lambda slope: self._pull(rows, partials, slope)

    @profiled("pairwise products")
    @numpy.errstate(all="ignore")
    def _pull(self, rows: RowArrays, partials: Sequence[Any], slope: Array) -> list[Any]:
        form, count = self._form, len(self._form.statistics)
        total: list[Any] = [None] * (count + form.scalar_count + form.parameter_count)
        weighted_by: dict[int, Array] = {}
        for position, symbol in enumerate(program_of(form).present):
            scalar, tile = partials[2 * position], partials[2 * position + 1]
            if tile is None:
                weighted = slope
            elif id(tile) in weighted_by:
                weighted = weighted_by[id(tile)]
            else:
                weighted = weighted_by[id(tile)] = slope * tile
            if symbol.kind == "parameter":
                at, part = count + form.scalar_count + symbol.index, scalar * float(weighted.sum())
            elif symbol.kind in ("left", "right"):
                at, part = count + symbol.index, scalar * weighted.sum(1 if symbol.kind == "left" else 0)
            else:
                at, feature = symbol.index, rows.features[symbol.index]
                if symbol.kind == "distance":
                    part, scalar = _pulled_distance(weighted, feature), 2.0 * scalar
                else:
                    part = _product(weighted, feature)
                part *= 2.0 * scalar
            total[at] = part if total[at] is None else total[at] + part
        return total

    def _inputs(self, rows: RowArrays, others: RowArrays) -> tuple[list[Array], list[Array]]:
        """(statistics, row scalars of both sides), as the generated functions take them."""
        features = zip(self._statistics, rows.features, others.features, strict=True)
        sides = [a[:, None] for a in rows.scalars] + [a[None, :] for a in others.scalars]
        return [make(a, b) for make, a, b in features], sides

    def _filled(self, statistics: list[Array], scalars: list[Array], shape: tuple[int, ...]) -> Array:
        (value,) = self._value(*statistics, *scalars, *self._theta, not scalars)
        if isinstance(value, numpy.ndarray) and value.shape == shape:
            return value
        return numpy.broadcast_to(numpy.asarray(value, dtype=numpy.float64), shape).copy()


def _pulled_distance(weighted: Array, feature: Array) -> Array:
    """sum_j c_ij (u_i - u_j), eq. (M-24), around the mean: an offset would take the digits of the difference."""
    feature = feature - feature.mean(0)
    largest = float(numpy.abs(feature).max(initial=0.0))
    if feature.shape[1] * largest * largest <= FAR_SQUARED[torch.float64]:
        part: Array = weighted.sum(1)[:, None] * feature - _product(weighted, feature)
        return part
    columns = [(weighted * (column[:, None] - column)).sum(1) for column in feature.T]
    return numpy.stack(columns, axis=1)


def _product(a: Array, b: Array) -> Array:
    """a @ b by one thread of NumPy, or by torch: two pools of threads that take turns get in each other's way."""
    if a.size <= MAX_NUMPY_PRODUCT:
        return a @ b
    return torch.mm(torch.from_numpy(a), torch.from_numpy(numpy.ascontiguousarray(b))).numpy()


@functools.lru_cache(maxsize=1)
def _cdist() -> Callable[..., Array]:
    from scipy.spatial.distance import cdist

    function: Callable[..., Array] = cdist
    return function


_STATISTICS: dict[str, Callable[[Array, Array], Array]] = {
    "distance": lambda a, b: _cdist()(a, b, "sqeuclidean"),
    "product": lambda a, b: _product(a, b.T),
    "match": lambda a, b: (a[:, None] == b[None, :]).astype(numpy.float64),
}
_DIAGONALS: dict[str, Callable[[Array], Array]] = {
    "distance": lambda a: numpy.zeros(len(a)),
    "product": lambda a: numpy.einsum("ij,ij->i", a, a),
    "match": lambda a: numpy.ones(len(a)),
}
