"""The small exact problem: value and gradient of the log marginal likelihood in a few NumPy and LAPACK calls.

Up to SMALL_ROWS rows the calls that start the arithmetic weigh as much as the arithmetic, and a NumPy call starts
sooner than a torch call (docs/decisions/0004). The formulas are the same generated program as everywhere, run
with NumPy operations; eqs. (M-33) and (M-34) for one model in float64 on the CPU.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch
from torch import Tensor

from flashgp.foundations.form import Form, Rows
from flashgp.pairwise.program import program_of
from flashgp.pairwise.statistics import FAR_SQUARED

__all__ = ["SMALL_ROWS", "SMALL_TITLE", "SmallProblem"]

SMALL_ROWS = 256
SMALL_TITLE = "NumPy"  # in reports
SCIPY_ROWS = 64  # above, linear algebra goes to torch: quicker there, and one pool of threads instead of two
Array = numpy.ndarray


# -- the operations of the generated code, on arrays ---------------------------------------------------------------
def _scale(x: Array, s: float, own: bool) -> Array:
    return numpy.multiply(x, s, out=x if own else None)


def _axpy(total: Array, x: Array, s: float, own: bool) -> Array:
    return numpy.add(total, x if s == 1.0 else x * s, out=total if own else None)


def _shift(x: Array, s: float, own: bool) -> Array:
    return numpy.add(x, s, out=x if own else None)


def _times(x: Array, y: Array, own: bool) -> Array:
    return numpy.multiply(x, y, out=x if own else None)


def _exp(x: Any, own: bool = False) -> Any:
    return math.exp(x) if isinstance(x, float) else numpy.exp(x, out=x if own else None)


def _log1p(x: Any, own: bool = False) -> Any:
    return math.log1p(x) if isinstance(x, float) else numpy.log1p(x, out=x if own else None)


def _cos(x: Any, own: bool = False) -> Any:
    return math.cos(x) if isinstance(x, float) else numpy.cos(x, out=x if own else None)


def _sin(x: Any, own: bool = False) -> Any:
    return math.sin(x) if isinstance(x, float) else numpy.sin(x, out=x if own else None)


def _sqrt(x: Array, own: bool) -> Array:
    return numpy.sqrt(x, out=x if own else None)


def _power(x: Array, power: int, own: bool) -> Array:
    return numpy.power(x, float(power), out=x if own else None)


def _inverse_at(x: Array, power: int, own: bool) -> Array:
    result = numpy.zeros_like(x)
    return numpy.power(x, float(-power), out=result, where=x != 0.0)


_RUNTIME = {
    f.__name__: f for f in (_scale, _axpy, _shift, _times, _exp, _log1p, _cos, _sin, _sqrt, _power, _inverse_at)
}


@functools.lru_cache(maxsize=256)
def _partials_of(form: Form) -> Callable[..., Any]:
    return program_of(form).bound(_RUNTIME)["partials"]


@functools.lru_cache(maxsize=1)
def _routines() -> tuple[Any, Any, Any]:
    from scipy.linalg.lapack import dpotrf, dpotrs
    from scipy.spatial.distance import cdist

    return dpotrf, dpotrs, cdist


def _product(a: Array, b: Array) -> Array:
    """a @ b by one thread of NumPy, or by torch: two pools of threads that take turns get in each other's way."""
    if a.size <= SCIPY_ROWS**2:
        return a @ b
    return torch.mm(torch.from_numpy(a), torch.from_numpy(numpy.ascontiguousarray(b))).numpy()


def _by_differences(weighted: Array, feature: Array) -> Array:
    """sum_j c_ij (u_i - u_j), eq. (M-24), column by column of the differences themselves."""
    columns = [(weighted * (column[:, None] - column)).sum(1) for column in feature.T]
    return numpy.stack(columns, axis=1)


class SmallProblem:
    """One model's covariance matrix with the tiles its gradient needs.

    Args:
        form, theta: as for a backend; features: one (n, d') array per statistic, codes (n,); count: n, at most
            SMALL_ROWS; scalars: one (n,) array per row scalar.
    """

    def __init__(
        self, form: Form, theta: Sequence[float], features: Sequence[Array], count: int, scalars: Sequence[Array] = ()
    ) -> None:
        self.form = form
        self.features = features
        statistics = [self._statistic(kind, f) for kind, f in zip(form.statistics, features, strict=True)]
        sides = [a[:, None] for a in scalars] + [a[None, :] for a in scalars]
        scalar, tile, *self._partials = _partials_of(form)(*statistics, *sides, *theta, True)
        self.matrix: Array = numpy.full((count, count), scalar) if tile is None else tile * scalar

    @classmethod
    def of(cls, form: Form, theta: Sequence[Tensor], rows: Rows) -> "SmallProblem":
        """The problem of what a backend takes: one model, float64, on the CPU."""
        assert form.fusable, "a form with Python functions runs on torch tiles"
        features = [f.detach().numpy() for f in rows.features]
        return cls(
            form, [float(t.detach()) for t in theta], features, rows.count, [a.detach().numpy() for a in rows.scalars]
        )

    @staticmethod
    def _statistic(kind: str, feature: Array) -> Array:
        if kind == "distance":
            return _routines()[2](feature, feature, "sqeuclidean")
        if kind == "product":
            return _product(feature, feature.T)
        return (feature[:, None] == feature[None, :]).astype(numpy.float64)

    def solve(self, noise: Array, residual: Array) -> tuple[float, Array, Array] | None:
        """(log likelihood, K^-1 r, lower factor) with `noise` on the diagonal; None if not positive definite."""
        dpotrf, dpotrs, _ = _routines()
        n, p = residual.shape
        matrix = self.matrix
        matrix.ravel()[:: n + 1] += noise
        # A symmetric row-major matrix read by columns is itself: factorised where it stands.
        if n <= SCIPY_ROWS:
            lower, info = dpotrf(matrix.T, lower=1, overwrite_a=1, clean=1)
            weights = None if info else dpotrs(lower, residual, lower=1)[0]
        else:
            factor, status = torch.linalg.cholesky_ex(torch.from_numpy(matrix))
            lower, info = factor.numpy(), int(status)
            weights = None if info else torch.cholesky_solve(torch.from_numpy(residual), factor).numpy()
        if weights is None:
            return None
        log_determinant = 2.0 * float(numpy.log(lower.diagonal()).sum())
        fit = float(numpy.vdot(residual, weights))
        return -0.5 * (fit + p * log_determinant + n * p * math.log(2.0 * math.pi)), weights, lower

    def slope(self, weights: Array, lower: Array) -> Array:
        """dL/dK = 1/2 (A A^T - p K^-1), eq. (M-34)."""
        inverse = torch.cholesky_inverse(torch.from_numpy(lower)).numpy()
        inverse *= -0.5 * weights.shape[1]
        for column in weights.T:
            inverse += column[:, None] * (0.5 * column)
        return inverse

    def pull(self, slope: Array) -> list[Array | float | None]:
        """Gradients in the order of `Rows.tensors`, then by theta, eqs. (M-24) to (M-26)."""
        form = self.form
        count = len(form.statistics)
        total: list[Any] = [None] * (count + form.scalar_count + form.parameter_count)
        known: dict[int, Array] = {}
        for position, symbol in enumerate(program_of(form).present):
            scalar, tile = self._partials[2 * position], self._partials[2 * position + 1]
            if tile is None:
                weighted = slope
            elif (key := id(tile)) in known:
                weighted = known[key]
            else:
                weighted = known[key] = slope * tile
            if symbol.kind == "parameter":
                at, part = count + form.scalar_count + symbol.index, scalar * float(weighted.sum())
            elif symbol.kind in ("left", "right"):
                at, part = count + symbol.index, scalar * weighted.sum(1 if symbol.kind == "left" else 0)
            else:
                at, feature = symbol.index, self.features[symbol.index]
                if symbol.kind == "distance":  # around the mean: an offset would take the digits of the difference
                    feature = feature - feature.mean(0)
                    if feature.shape[1] * float(numpy.abs(feature).max(initial=0.0)) ** 2 > FAR_SQUARED[torch.float64]:
                        part = _by_differences(weighted, feature)
                    else:
                        part = weighted.sum(1)[:, None] * feature - _product(weighted, feature)
                    scalar = 2.0 * scalar
                else:
                    part = _product(weighted, feature)
                part *= 2.0 * scalar
            total[at] = part if total[at] is None else total[at] + part
        return total
