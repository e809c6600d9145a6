"""Pair loops that do not depend on the covariance function: statistics of many columns, and sums with weights.

Simple loops over one contiguous axis, for four rows at once; a loop that does two things at once does not vectorise.
Imported only with numba.
"""

from typing import Any

import numpy
from numba import njit

from flashgp.pairwise.cpu.arithmetic import FAST, on_its_own, wide_vectors

_OPTIONS: Any = {"nogil": True, "fastmath": FAST, "error_model": "numpy"}


@njit(**_OPTIONS)
def dot_sweep(left: Any, i: int, right: Any, count: int, out: Any) -> None:
    """out[r, j] = sum_k left[k, i + r] right[k, j], r < 4; columns a multiple of four."""
    wide_vectors()
    on_its_own()
    for k in range(0, left.shape[0], 4):
        a0, a1, a2, a3 = left[k, i], left[k + 1, i], left[k + 2, i], left[k + 3, i]
        b0, b1, b2, b3 = left[k, i + 1], left[k + 1, i + 1], left[k + 2, i + 1], left[k + 3, i + 1]
        c0, c1, c2, c3 = left[k, i + 2], left[k + 1, i + 2], left[k + 2, i + 2], left[k + 3, i + 2]
        d0, d1, d2, d3 = left[k, i + 3], left[k + 1, i + 3], left[k + 2, i + 3], left[k + 3, i + 3]
        if k == 0:
            for j in range(count):
                x, y, z, w = right[0, j], right[1, j], right[2, j], right[3, j]
                out[0, j] = a0 * x + a1 * y + a2 * z + a3 * w
                out[1, j] = b0 * x + b1 * y + b2 * z + b3 * w
                out[2, j] = c0 * x + c1 * y + c2 * z + c3 * w
                out[3, j] = d0 * x + d1 * y + d2 * z + d3 * w
        else:
            for j in range(count):
                x, y, z, w = right[k, j], right[k + 1, j], right[k + 2, j], right[k + 3, j]
                out[0, j] += a0 * x + a1 * y + a2 * z + a3 * w
                out[1, j] += b0 * x + b1 * y + b2 * z + b3 * w
                out[2, j] += c0 * x + c1 * y + c2 * z + c3 * w
                out[3, j] += d0 * x + d1 * y + d2 * z + d3 * w


@njit(**_OPTIONS)
def difference_sweep(left: Any, i: int, right: Any, count: int, out: Any) -> None:
    """out[r, j] = sum_k (left[k, i + r] - right[k, j])^2, r < 4; columns a multiple of four."""
    wide_vectors()
    on_its_own()
    for k in range(0, left.shape[0], 4):
        a0, a1, a2, a3 = left[k, i], left[k + 1, i], left[k + 2, i], left[k + 3, i]
        b0, b1, b2, b3 = left[k, i + 1], left[k + 1, i + 1], left[k + 2, i + 1], left[k + 3, i + 1]
        c0, c1, c2, c3 = left[k, i + 2], left[k + 1, i + 2], left[k + 2, i + 2], left[k + 3, i + 2]
        d0, d1, d2, d3 = left[k, i + 3], left[k + 1, i + 3], left[k + 2, i + 3], left[k + 3, i + 3]
        if k == 0:
            for j in range(count):
                x, y, z, w = right[0, j], right[1, j], right[2, j], right[3, j]
                p, q, u, v = a0 - x, a1 - y, a2 - z, a3 - w
                out[0, j] = p * p + q * q + u * u + v * v
                p, q, u, v = b0 - x, b1 - y, b2 - z, b3 - w
                out[1, j] = p * p + q * q + u * u + v * v
                p, q, u, v = c0 - x, c1 - y, c2 - z, c3 - w
                out[2, j] = p * p + q * q + u * u + v * v
                p, q, u, v = d0 - x, d1 - y, d2 - z, d3 - w
                out[3, j] = p * p + q * q + u * u + v * v
        else:
            for j in range(count):
                x, y, z, w = right[k, j], right[k + 1, j], right[k + 2, j], right[k + 3, j]
                p, q, u, v = a0 - x, a1 - y, a2 - z, a3 - w
                out[0, j] += p * p + q * q + u * u + v * v
                p, q, u, v = b0 - x, b1 - y, b2 - z, b3 - w
                out[1, j] += p * p + q * q + u * u + v * v
                p, q, u, v = c0 - x, c1 - y, c2 - z, c3 - w
                out[2, j] += p * p + q * q + u * u + v * v
                p, q, u, v = d0 - x, d1 - y, d2 - z, d3 - w
                out[3, j] += p * p + q * q + u * u + v * v


@njit(**_OPTIONS)
def weights_sweep(left: Any, i: int, right: Any, count: int, out: Any) -> None:
    """out[r, j] = sum_s left[s, i + r] right[s, j], r < 4, any number of s."""
    wide_vectors()
    on_its_own()
    whole = left.shape[0] // 4 * 4
    if whole:
        dot_sweep(left[:whole], i, right[:whole], count, out)
    for s in range(whole, left.shape[0]):
        a, b, c, d = left[s, i], left[s, i + 1], left[s, i + 2], left[s, i + 3]
        if s == 0:
            for j in range(count):
                x = right[s, j]
                out[0, j] = a * x
                out[1, j] = b * x
                out[2, j] = c * x
                out[3, j] = d * x
        else:
            for j in range(count):
                x = right[s, j]
                out[0, j] += a * x
                out[1, j] += b * x
                out[2, j] += c * x
                out[3, j] += d * x


@njit(**_OPTIONS)
def weights_tile(weights: Any, i: int, start: int, scale: Any, out: Any) -> None:
    """out[r, j] = scale weights[i + r, start + j], r < 4, and 0 beyond the edges of `weights`."""
    wide_vectors()
    on_its_own()
    width = min(out.shape[1], weights.shape[1] - start)
    for r in range(4):
        row = out[r]
        filled = 0
        if i + r < weights.shape[0]:
            filled = width
            given = weights[i + r]
            for j in range(width):
                row[j] = scale * given[start + j]
        for j in range(filled, out.shape[1]):
            row[j] = scale - scale


@njit(**_OPTIONS)
def store_rows(tile: Any, out: Any, first: int, rows: int, start: int, width: int) -> None:
    """out[first + r, start + j] = tile[r, j], r < rows, j < width."""
    wide_vectors()
    on_its_own()
    for r in range(rows):
        source, target = tile[r], out[first + r, start:]
        for j in range(width):
            target[j] = source[j]


@njit(**_OPTIONS)
def mirror_rows(out: Any, first: int, start: int, width: int) -> None:
    """out[start + j, first + r] = out[first + r, start + j], r < 16, j < width.

    Sixteen entries of a column are read before any is written: a whole cache line of float32 at a time.
    """
    wide_vectors()
    on_its_own()
    given = out[first : first + 16, start:]
    r0, r1, r2, r3 = given[0], given[1], given[2], given[3]
    r4, r5, r6, r7 = given[4], given[5], given[6], given[7]
    r8, r9, r10, r11 = given[8], given[9], given[10], given[11]
    r12, r13, r14, r15 = given[12], given[13], given[14], given[15]
    for j in range(width):
        x0, x1, x2, x3 = r0[j], r1[j], r2[j], r3[j]
        x4, x5, x6, x7 = r4[j], r5[j], r6[j], r7[j]
        x8, x9, x10, x11 = r8[j], r9[j], r10[j], r11[j]
        x12, x13, x14, x15 = r12[j], r13[j], r14[j], r15[j]
        target = out[start + j, first:]
        target[0], target[1], target[2], target[3] = x0, x1, x2, x3
        target[4], target[5], target[6], target[7] = x4, x5, x6, x7
        target[8], target[9], target[10], target[11] = x8, x9, x10, x11
        target[12], target[13], target[14], target[15] = x12, x13, x14, x15


@njit(**_OPTIONS)
def row_sums(tile: Any, right: Any, count: int, total: Any, i: int) -> None:
    """total[s, i + r] += sum_j tile[r, j] right[s, j], r < 4; sums of one tile in its dtype, total in float64."""
    wide_vectors()
    on_its_own()
    zero = tile[0, 0] - tile[0, 0]
    whole = right.shape[0] // 4 * 4
    for s in range(0, whole, 4):
        a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = c0 = c1 = c2 = c3 = d0 = d1 = d2 = d3 = zero
        for j in range(count):
            x, y, z, w = right[s, j], right[s + 1, j], right[s + 2, j], right[s + 3, j]
            v = tile[0, j]
            a0 += v * x
            a1 += v * y
            a2 += v * z
            a3 += v * w
            v = tile[1, j]
            b0 += v * x
            b1 += v * y
            b2 += v * z
            b3 += v * w
            v = tile[2, j]
            c0 += v * x
            c1 += v * y
            c2 += v * z
            c3 += v * w
            v = tile[3, j]
            d0 += v * x
            d1 += v * y
            d2 += v * z
            d3 += v * w
        total[s, i] += numpy.float64(a0)
        total[s, i + 1] += numpy.float64(b0)
        total[s, i + 2] += numpy.float64(c0)
        total[s, i + 3] += numpy.float64(d0)
        total[s + 1, i] += numpy.float64(a1)
        total[s + 1, i + 1] += numpy.float64(b1)
        total[s + 1, i + 2] += numpy.float64(c1)
        total[s + 1, i + 3] += numpy.float64(d1)
        total[s + 2, i] += numpy.float64(a2)
        total[s + 2, i + 1] += numpy.float64(b2)
        total[s + 2, i + 2] += numpy.float64(c2)
        total[s + 2, i + 3] += numpy.float64(d2)
        total[s + 3, i] += numpy.float64(a3)
        total[s + 3, i + 1] += numpy.float64(b3)
        total[s + 3, i + 2] += numpy.float64(c3)
        total[s + 3, i + 3] += numpy.float64(d3)
    for s in range(whole, right.shape[0]):
        a0 = b0 = c0 = d0 = zero
        for j in range(count):
            x = right[s, j]
            a0 += tile[0, j] * x
            b0 += tile[1, j] * x
            c0 += tile[2, j] * x
            d0 += tile[3, j] * x
        total[s, i] += numpy.float64(a0)
        total[s, i + 1] += numpy.float64(b0)
        total[s, i + 2] += numpy.float64(c0)
        total[s, i + 3] += numpy.float64(d0)


@njit(**_OPTIONS)
def column_sums(tile: Any, left: Any, i: int, count: int, out: Any) -> None:
    """out[s, j] += sum_r tile[r, j] left[s, i + r], r < 4; two s at once.

    The outer loop runs over the array's own length: with a bound computed from it LLVM no longer vectorises.
    """
    wide_vectors()
    on_its_own()
    for s in range(0, left.shape[0], 2):
        a, b, c, d = left[s, i], left[s, i + 1], left[s, i + 2], left[s, i + 3]
        if s + 1 < left.shape[0]:
            e, f, g, h = left[s + 1, i], left[s + 1, i + 1], left[s + 1, i + 2], left[s + 1, i + 3]
            for j in range(count):
                x, y, z, w = tile[0, j], tile[1, j], tile[2, j], tile[3, j]
                out[s, j] += x * a + y * b + z * c + w * d
                out[s + 1, j] += x * e + y * f + z * g + w * h
        else:
            for j in range(count):
                out[s, j] += tile[0, j] * a + tile[1, j] * b + tile[2, j] * c + tile[3, j] * d


@njit(**_OPTIONS)
def add_columns(part: Any, count: int, total: Any) -> None:
    """total += part in float64, and part = 0."""
    wide_vectors()
    on_its_own()
    for s in range(part.shape[0]):
        for j in range(count):
            total[s, j] += numpy.float64(part[s, j])
        for j in range(count):
            part[s, j] = 0
