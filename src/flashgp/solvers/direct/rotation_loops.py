"""A rank-one update of a triangle by Givens rotations, as compiled loops. `rotations.py` imports a copy of this text.

    [L V] G = [L' 0],   G a product of rotations of column j with V, j = 1, 2, ...                   (M-112)

Row after row; four rows at a time, since a rotation waits for the last one of its own row. It reads a factor once and
writes the new one once.
"""

from math import hypot
from typing import Any

from numba import njit

SIGNATURE = "void(f8[:,:], f8[:,:], f8[::1], f8[:,:], f8[::1], f8[::1], f8[::1])"
OPTIONS: Any = {"nogil": True, "fastmath": {"contract"}, "error_model": "numpy"}


@njit(**OPTIONS)
def _finish(source: Any, out: Any, v: Any, c: Any, s: Any, first: int, stop: int, start: int) -> None:
    """Rows from first to stop, in which the columns before `start` are rotated; makes the rotation of each row."""
    for r in range(first, stop):
        w = v[r]
        for j in range(start, r):
            x = source[r, j]
            out[r, j] = c[j] * x + s[j] * w
            w = c[j] * w - s[j] * x
        x = source[r, r]
        h = hypot(x, w)
        out[r, r] = h
        c[r] = x / h
        s[r] = w / h


def _update(source: Any, out: Any, v: Any, below: Any, w: Any, c: Any, s: Any) -> None:
    """L in source (n, n), L' in out, which may be source; v (n,) and w (p,), the column of V in the rows of L and in
    the rows `below` (p, n), which are rotated in place; c, s (n,) are scratch."""
    n = len(v)
    whole = n - n % 4
    for r in range(0, whole, 4):
        w0, w1, w2, w3 = v[r], v[r + 1], v[r + 2], v[r + 3]
        for j in range(r):
            cj, sj = c[j], s[j]
            x0, x1, x2, x3 = source[r, j], source[r + 1, j], source[r + 2, j], source[r + 3, j]
            out[r, j] = cj * x0 + sj * w0
            out[r + 1, j] = cj * x1 + sj * w1
            out[r + 2, j] = cj * x2 + sj * w2
            out[r + 3, j] = cj * x3 + sj * w3
            w0, w1, w2, w3 = cj * w0 - sj * x0, cj * w1 - sj * x1, cj * w2 - sj * x2, cj * w3 - sj * x3
        v[r], v[r + 1], v[r + 2], v[r + 3] = w0, w1, w2, w3
        _finish(source, out, v, c, s, r, r + 4, r)
    _finish(source, out, v, c, s, whole, n, 0)
    for i in range(len(w)):
        wi = w[i]
        for j in range(n):
            x = below[i, j]
            below[i, j] = c[j] * x + s[j] * wi
            wi = c[j] * wi - s[j] * x


def compiled_update() -> Any:
    """`_update` as machine code, which numba keeps beside this text's copy in the cache of generated code."""
    return njit(SIGNATURE, cache=True, **OPTIONS)(_update)
