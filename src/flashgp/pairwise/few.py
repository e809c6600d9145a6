"""Covariances of few points in NumPy calls: where starting the calls costs more than the arithmetic.

A NumPy call starts in a fraction of the time of a torch call (docs/decisions/0004), and what one point contributes to a
model is a handful of them. The formulas are the generated program that every route runs, and squared distances are sums
of squared differences, exact for equal rows. One model in float64 on the CPU, without gradients.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy
from torch import Tensor

from flashgp.foundations.determinism import is_deterministic
from flashgp.foundations.form import Form, Rows
from flashgp.foundations.profile_ranges import stretched
from flashgp.pairwise.program.numpy_program import numpy_value

__all__ = ["Array", "FewRows", "RowArrays"]

Array = numpy.ndarray[Any, numpy.dtype[numpy.float64]]


class RowArrays(NamedTuple):
    """`Rows` of one table for NumPy. Fields: features, (n, d_i) each or codes (n,); scalars, (n,) each; length, n."""

    features: Sequence[Array]
    scalars: Sequence[Array]
    length: int

    @classmethod
    def of(cls, rows: Rows) -> "RowArrays":
        """The same memory; the rows are of one table on the CPU and carry no graph."""
        return cls([f.numpy() for f in rows.features], [a.numpy() for a in rows.scalars], rows.count)


class FewRows:
    """The covariance function of one model with its parameters, for blocks of few pairs. Made by `of`."""

    def __init__(self, form: Form, theta: Sequence[float]) -> None:
        self._form, self._theta = form, tuple(theta)
        self._everywhere: float | None = None  # k(x, x) where it is the same at every point, once it was asked for
        self._moves = bool(form.scalar_count or "product" in form.statistics)
        self._statistics = [_STATISTICS[kind] for kind in form.statistics]
        self._diagonals = [_DIAGONALS[kind] for kind in form.statistics]
        self._value = numpy_value(form)
        if "distance" in form.statistics:
            _cdist()  # now, not with the first block: SciPy's package of it takes a quarter of a second to load

    @classmethod
    def of(cls, form: Form, theta: Sequence[Tensor]) -> "FewRows | None":
        """None for what torch has to do: a batch, another device, Python functions of pairs, bits that count.

        Where an array begins decides how NumPy's loops round, so that nothing deterministic comes through here.
        """
        if not form.fusable or is_deterministic() or any(t.dim() or t.device.type != "cpu" for t in theta):
            return None
        return cls(form, [float(t.detach()) for t in theta])

    def __reduce__(self) -> tuple[Any, ...]:
        return FewRows, (self._form, self._theta)  # generated functions cannot be pickled

    @stretched("pairwise products")
    def block(self, rows: RowArrays, others: RowArrays) -> Array:
        """k(x_i, x'_j), (k, n). Cost: k n d flops and a dozen calls."""
        features = zip(self._statistics, rows.features, others.features, strict=True)
        sides = [a[:, None] for a in rows.scalars] + [a[None, :] for a in others.scalars]
        with numpy.errstate(all="ignore"):  # as torch: who uses it sees what is not finite
            return self._filled([make(a, b) for make, a, b in features], sides, (rows.length, others.length))

    @stretched("pairwise products")
    def diagonal(self, rows: RowArrays) -> Array:
        """k(x_i, x_i), (k,)."""
        if self._everywhere is not None:
            return numpy.full(rows.length, self._everywhere)
        features = zip(self._diagonals, rows.features, strict=True)
        with numpy.errstate(all="ignore"):
            found = self._filled([make(a) for make, a in features], [*rows.scalars, *rows.scalars], (rows.length,))
        if rows.length and not self._moves:
            self._everywhere = float(found[0])
        return found

    def corner(self, rows: RowArrays) -> float:
        """k(x, x) of the one point of `rows`."""
        return float(self.diagonal(rows)[0]) if self._everywhere is None else self._everywhere

    def _filled(self, statistics: list[Array], scalars: list[Array], shape: tuple[int, ...]) -> Array:
        (value,) = self._value(*statistics, *scalars, *self._theta, not scalars)
        if isinstance(value, numpy.ndarray) and value.shape == shape:
            return value
        return numpy.broadcast_to(numpy.asarray(value, dtype=numpy.float64), shape).copy()


@functools.lru_cache(maxsize=1)
def _cdist() -> Callable[..., Array]:
    from scipy.spatial.distance import cdist

    found: Callable[..., Array] = cdist
    return found


_STATISTICS: dict[str, Callable[[Array, Array], Array]] = {
    "distance": lambda a, b: _cdist()(a, b, "sqeuclidean"),
    "product": lambda a, b: a @ b.T,
    "match": lambda a, b: (a[:, None] == b[None, :]).astype(numpy.float64),
}
_DIAGONALS: dict[str, Callable[[Array], Array]] = {
    "distance": lambda a: numpy.zeros(len(a)),
    "product": lambda a: numpy.einsum("ij,ij->i", a, a),
    "match": lambda a: numpy.ones(len(a)),
}
