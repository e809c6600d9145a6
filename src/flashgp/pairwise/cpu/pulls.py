"""Pullbacks of a tile of weighted slopes c_ij = w_ij dg/dq_ij to features, row scalars and parameters.

    distance   row i: 2 sum_j c_ij (u_i - v_j)        column j: 2 sum_i c_ij (v_j - u_i)
    product    row i:   sum_j c_ij v_j                column j:   sum_i c_ij u_i                  eqs. (M-24), (M-25)

Differences are formed before they are summed: the difference of two sums would lose the digits of far features.
Imported only with numba.
"""

from typing import Any

import numpy
from numba import njit
from numba.extending import intrinsic

from flashgp.pairwise.cpu.arithmetic import FAST, on_its_own, wide_vectors

_OPTIONS: Any = {"nogil": True, "fastmath": FAST, "error_model": "numpy"}


@intrinsic
def exact_difference(typing_context: Any, u: Any, v: Any, lost_u: Any, lost_v: Any) -> Any:
    """(u + lost_u) - (v + lost_v) without the rounding of u and v, eq. (M-68).

    Instructions that carry flags of their own are left alone by the loop's fast-math: these are not reassociated.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        a, b, c, d = arguments
        flags = ("contract",)
        return builder.fadd(builder.fsub(a, b, flags=flags), builder.fsub(c, d, flags=flags), flags=flags)

    return u(u, v, lost_u, lost_v), generate


@njit(**_OPTIONS)
def distance_row_pull(slopes: Any, left: Any, i: int, right: Any, count: int, total: Any) -> None:
    """total[k, i + r] += 2 sum_j slopes[r, j] (left[k, i + r] - right[k, j]) for the columns k of `total`."""
    wide_vectors()
    on_its_own()
    zero = slopes[0, 0] - slopes[0, 0]
    for k in range(total.shape[0]):
        a, b, c, d = left[k, i], left[k, i + 1], left[k, i + 2], left[k, i + 3]
        p = q = u = v = zero
        for j in range(count):
            x = right[k, j]
            p += slopes[0, j] * (a - x)
            q += slopes[1, j] * (b - x)
            u += slopes[2, j] * (c - x)
            v += slopes[3, j] * (d - x)
        total[k, i] += 2.0 * numpy.float64(p)
        total[k, i + 1] += 2.0 * numpy.float64(q)
        total[k, i + 2] += 2.0 * numpy.float64(u)
        total[k, i + 3] += 2.0 * numpy.float64(v)


@njit(**_OPTIONS)
def distance_column_pull(slopes: Any, left: Any, i: int, right: Any, count: int, out: Any) -> None:
    """out[k, j] += 2 sum_r slopes[r, j] (right[k, j] - left[k, i + r])."""
    wide_vectors()
    on_its_own()
    for k in range(out.shape[0]):
        a, b, c, d = left[k, i], left[k, i + 1], left[k, i + 2], left[k, i + 3]
        for j in range(count):
            x = right[k, j]
            one = slopes[0, j] * (x - a) + slopes[1, j] * (x - b) + slopes[2, j] * (x - c) + slopes[3, j] * (x - d)
            out[k, j] += one + one


@njit(**_OPTIONS)
def product_row_pull(slopes: Any, left: Any, i: int, right: Any, count: int, total: Any) -> None:
    """total[k, i + r] += sum_j slopes[r, j] right[k, j]."""
    wide_vectors()
    on_its_own()
    zero = slopes[0, 0] - slopes[0, 0]
    for k in range(total.shape[0]):
        p = q = u = v = zero
        for j in range(count):
            x = right[k, j]
            p += slopes[0, j] * x
            q += slopes[1, j] * x
            u += slopes[2, j] * x
            v += slopes[3, j] * x
        total[k, i] += numpy.float64(p)
        total[k, i + 1] += numpy.float64(q)
        total[k, i + 2] += numpy.float64(u)
        total[k, i + 3] += numpy.float64(v)


@njit(**_OPTIONS)
def product_column_pull(slopes: Any, left: Any, i: int, right: Any, count: int, out: Any) -> None:
    """out[k, j] += sum_r slopes[r, j] left[k, i + r]."""
    wide_vectors()
    on_its_own()
    for k in range(out.shape[0]):
        a, b, c, d = left[k, i], left[k, i + 1], left[k, i + 2], left[k, i + 3]
        for j in range(count):
            out[k, j] += slopes[0, j] * a + slopes[1, j] * b + slopes[2, j] * c + slopes[3, j] * d


@njit(**_OPTIONS)
def tile_sum(tile: Any, count: int, rows: int) -> Any:
    """The sum of the first `rows` (at most four) rows, in float64."""
    wide_vectors()
    on_its_own()
    total = 0.0
    for r in range(min(4, rows)):
        part = tile[0, 0] - tile[0, 0]
        for j in range(count):
            part += tile[r, j]
        total += numpy.float64(part)
    return total


@njit(**_OPTIONS)
def tile_row_sums(tile: Any, count: int, total: Any, i: int) -> None:
    """total[i + r] += sum_j tile[r, j]."""
    wide_vectors()
    on_its_own()
    for r in range(4):
        part = tile[0, 0] - tile[0, 0]
        for j in range(count):
            part += tile[r, j]
        total[i + r] += numpy.float64(part)


@njit(**_OPTIONS)
def tile_column_sums(tile: Any, count: int, out: Any) -> None:
    """out[0, j] += sum_r tile[r, j]."""
    wide_vectors()
    on_its_own()
    for j in range(count):
        out[0, j] += tile[0, j] + tile[1, j] + tile[2, j] + tile[3, j]
