"""The small exact problem: value and gradient of the log marginal likelihood in a few calls, eqs. (M-33) and (M-34).

Up to SMALL_ROWS rows the calls that start the arithmetic weigh as much as the arithmetic, and a NumPy call starts
sooner than a torch call (docs/decisions/0004). The formulas are the same generated program as everywhere, run
with NumPy operations: one model in float64 on the CPU. Where enough such problems are solved, the program is compiled
(`pairwise/cpu/small.py`), up to COMPILED_ROWS rows; `small_problem` says when.
"""

import functools
import math
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch
from torch import Tensor

from flashgp.foundations.determinism import is_deterministic
from flashgp.foundations.form import Form, Rows
from flashgp.foundations.lazy_import import load_late
from flashgp.foundations.profile_ranges import stretched
from flashgp.foundations.workspace import Workspace
from flashgp.pairwise.program.numpy_program import numpy_partials
from flashgp.pairwise.program.program import program_of
from flashgp.pairwise.torch.statistics import FAR_SQUARED

__all__ = [
    "COMPILED_ROWS",
    "SMALL_ROWS",
    "NumpyProblem",
    "Pulled",
    "SmallProblem",
    "arrays_of",
    "small_problem",
]

SMALL_ROWS = 256
COMPILED_ROWS = 1024  # above, the general path is as quick: the factorisation is nearly everything
TITLE = "NumPy"  # in reports
SCIPY_ROWS = 64  # above, linear algebra goes to torch: quicker there, and one pool of threads instead of two
Array = numpy.ndarray
Pulled = Array | float | None


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


class SmallProblem(ABC):
    """One model's covariance matrix with what its gradient needs.

    Fields: matrix, (n, n), at least its upper triangle; `solve` overwrites it.
    """

    matrix: Array

    @stretched("factorisation")
    def solve(self, noise: Array, residual: Array) -> tuple[float, Array, Array] | None:
        """(log likelihood, K^-1 r, lower factor) with `noise` on the diagonal; None if not positive definite."""
        dpotrf, dpotrs, _ = _routines()
        n, p = residual.shape
        matrix = self.matrix
        matrix.ravel()[:: n + 1] += noise
        # A symmetric row-major matrix read by columns is itself, its upper triangle the lower one.
        if n <= SCIPY_ROWS:
            lower, info = dpotrf(matrix.T, lower=1, overwrite_a=1, clean=1)
            weights = None if info else dpotrs(lower, residual, lower=1)[0]
        else:
            factor, status = torch.from_numpy(matrix).mT, torch.empty((), dtype=torch.int32)
            torch.linalg.cholesky_ex(factor, out=(factor, status))
            lower, info = factor.numpy(), int(status)
            weights = None if info else torch.cholesky_solve(torch.from_numpy(residual), factor).numpy()
        if weights is None:
            return None
        log_determinant = 2.0 * float(numpy.log(lower.diagonal()).sum())
        fit = float(numpy.vdot(residual, weights))
        return -0.5 * (fit + p * log_determinant + n * p * math.log(2.0 * math.pi)), weights, lower

    @stretched("factorisation")
    def slope(self, weights: Array, lower: Array) -> Array:
        """dL/dK = 1/2 (A A^T - p K^-1), eq. (M-34), in the memory of the factor."""
        inverse, right = torch.from_numpy(lower), torch.from_numpy(weights)
        torch.cholesky_inverse(inverse, out=inverse)
        inverse.addmm_(right, right.mT, beta=-0.5 * weights.shape[1], alpha=0.5)
        slope: Array = inverse.mT.numpy()  # symmetric: the same, row by row
        return slope

    @abstractmethod
    def pull(self, slope: Array) -> list[Pulled]:
        """Gradients in the order of `Rows.tensors`, then by theta, eqs. (M-24) to (M-26)."""


class NumpyProblem(SmallProblem):
    """The small problem in NumPy calls.

    Args:
        form, theta: as for a backend; features: one (n, d') array per statistic, codes (n,); count: n;
            scalars: one (n,) array per row scalar; workspace: hears what ran.
    """

    @stretched("pairwise products")
    def __init__(
        self,
        form: Form,
        theta: Sequence[float],
        features: Sequence[Array],
        count: int,
        scalars: Sequence[Array] = (),
        workspace: Workspace | None = None,
    ) -> None:
        if workspace is not None:
            workspace.ran(TITLE)
        self.form = form
        self.features = features
        statistics = [self._statistic(kind, f) for kind, f in zip(form.statistics, features, strict=True)]
        sides = [a[:, None] for a in scalars] + [a[None, :] for a in scalars]
        scalar, tile, *self._partials = numpy_partials(form)(*statistics, *sides, *theta, True)
        self.matrix = numpy.full((count, count), scalar) if tile is None else tile * scalar

    @staticmethod
    def _statistic(kind: str, feature: Array) -> Array:
        if kind == "distance":
            return _routines()[2](feature, feature, "sqeuclidean")
        if kind == "product":
            return _product(feature, feature.T)
        return (feature[:, None] == feature[None, :]).astype(numpy.float64)

    @stretched("pairwise products")
    def pull(self, slope: Array) -> list[Pulled]:
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


def arrays_of(form: Form, theta: Sequence[Tensor], rows: Rows) -> tuple[Any, ...]:
    """(form, theta, features, count, scalars) of what a backend takes: one model, float64, on the CPU."""
    assert form.fusable, "a form with Python functions runs on torch tiles"
    features = [f.detach().numpy() for f in rows.features]
    scalars = [a.detach().numpy() for a in rows.scalars]
    return form, [float(t.detach()) for t in theta], features, rows.count, scalars


# -- when to compile ---------------------------------------------------------------------------------------------------
COMPILE_SECONDS = 3.0  # of a form's two functions, numba's import included
LOAD_SECONDS = 0.7  # of the same from the cache
_spent: dict[Form, float] = {}
_lock = threading.Lock()


def _forget_lock() -> None:
    """In a forked child: whoever held the lock is gone."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_lock)


def small_problem(form: Form, n: int) -> Callable[..., SmallProblem] | None:
    """What makes the next small problem of n rows: NumPy, or compiled loops once they pay; None where neither does.

    Every call counts the seconds that compiled loops would have saved; when they add up to the price of compiling,
    the form is compiled: at most twice the cost of having known before. No clock is read; both routes agree to
    rounding, so that where the bits count, neither is taken: what was compiled before would decide them, and where
    NumPy's arrays begin.
    """
    if n > COMPILED_ROWS or not form.fusable or is_deterministic():
        return None
    with _lock:
        spent = _spent[form] = _spent.get(form, 0.0) + _saved_seconds(n)
    if spent > LOAD_SECONDS and _can_compile(form) and (spent > COMPILE_SECONDS or _is_compiled(form)):
        load_late("flashgp.pairwise.cpu.small")
        from flashgp.pairwise.cpu.small import CompiledProblem  # here: it imports numba

        return CompiledProblem
    return NumpyProblem if n <= SMALL_ROWS else None


def _saved_seconds(n: int) -> float:
    """What a compiled evaluation saves, by record small.json."""
    return 1e-4 + 1e-8 * n * n


@functools.lru_cache(maxsize=256)
def _can_compile(form: Form) -> bool:
    load_late("flashgp.pairwise.cpu.backend")
    from flashgp.pairwise.cpu.backend import cpu_tiles_missing

    return bool(form.statistics) and not cpu_tiles_missing()


@functools.lru_cache(maxsize=256)
def _is_compiled(form: Form) -> bool:
    """Whether the cache of an earlier process has the form's loops."""
    from flashgp.pairwise.cpu.engine import is_cached
    from flashgp.pairwise.cpu.generation import compiled
    from flashgp.pairwise.cpu.small import small_layout

    return is_cached(compiled(form, small_layout(form), torch.float64))
