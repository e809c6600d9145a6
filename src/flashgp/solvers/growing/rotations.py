"""Loops over a triangle, compiled: a rank-one update by Givens rotations, and a solve for two sides in one pass.

    [L V] G = [L' 0],   G a product of rotations of column j with V, j = 1, 2, ...                   (M-112)

Row after row; eight rows at a time, whose chains of rotations run side by side. It reads a factor once and writes the
new one once. BLAS takes three times as long for two right-hand sides as for one (it packs the triangle for them), so
that the solve for a row that leaves and one that comes, (M-118) and (M-119), is a loop of its own. The text is
generated, kept and compiled like the pair loops (source_cache.py), in a thread beside the work: a stream of
updates goes on meanwhile with LAPACK, which makes the same factor up to rounding at two to five times the cost, and
never waits for it (the compiler's import may delay some: `wait` makes all ready before). The thread starts when LAPACK
has cost so much more that a stream is likely.
"""

import logging
import threading
from collections.abc import Callable
from typing import Any

from flashgp.foundations.lazy_import import no_forks

__all__ = ["Rotations", "forward_source", "rotation_source", "rotations"]

ROWS = 8  # chains that run side by side: a rotation waits for the last one in its own row
LOST_SECONDS = 0.05  # after which the compiled loops are made ready
ENTRY_SECONDS = 1e-9  # that LAPACK takes longer, for every entry of the triangle's square
SIGNATURE = "void(f8[:,:], f8[:,:], f8[::1], f8[::1], f8[::1])"
FORWARD_ROWS = 4  # of one block of the solve: as many dot products for each side, which fill the vector registers
FORWARD_SIGNATURE = "void(f8[::1], i8, i8, f8[::1], i8, i8, i8, f8[::1], f8[::1], i8, i8)"
Update = Callable[[Any, Any, Any, Any, Any], None]
Forward = Callable[..., None]
log = logging.getLogger("flashgp.online")


def rotation_source() -> str:
    """The text of `update(source, out, v, c, s)`: L in source (n, n), L' in out, which may be source; v, c, s (n,)."""
    step = [
        f"            x = source[r + {i}, j]; out[r + {i}, j] = cj * x + sj * w{i}; w{i} = cj * w{i} - sj * x"
        for i in range(ROWS)
    ]
    block = [
        *(f"        w{i} = v[r + {i}]" for i in range(ROWS)),
        "        for j in range(r):",
        "            cj = c[j]; sj = s[j]",
        *step,
        *(f"        v[r + {i}] = w{i}" for i in range(ROWS)),
    ]
    return "\n".join([
        "from math import hypot",
        "from numba import njit",
        "OPTIONS = dict(nogil=True, fastmath={'contract'}, error_model='numpy', cache=True)",
        _CORNER,
        "@njit(**OPTIONS)",
        "def update(source, out, v, c, s):",
        "    n = len(v)",
        f"    for r in range(0, n - n % {ROWS}, {ROWS}):",
        *block,
        f"        corner(source, out, v, c, s, r, r + {ROWS}, r)",
        f"    corner(source, out, v, c, s, n - n % {ROWS}, n, 0)",
        "",
    ])  # fmt: skip


_CORNER = """@njit(**OPTIONS)
def corner(source, out, v, c, s, first, stop, start):
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
"""


def forward_source() -> str:
    """The text of `forward(left, l0, ll, right, r0, rl, c, x, y, first, last)`: x and y become L^-1 x and L^-1 y.

    In the rows from first to last; before them they already are. Row i of L begins at left[l0 + i ll] for its columns
    before c, and would at right[r0 + i rl] for the others.
    """
    rows = range(FORWARD_ROWS)
    sums = [f"a{i}" for i in rows] + [f"b{i}" for i in rows]
    own = ", ".join(sums)

    def subtract(memory: str, begin: str, end: str) -> list[str]:
        return [
            f"            {own} = products({memory}, {begin}, {end})",
            *(f"            x[r + {i}] -= a{i}; y[r + {i}] -= b{i}" for i in rows),
        ]

    return "\n".join([
        "from numba import njit",
        "OPTIONS = dict(nogil=True, fastmath={'contract', 'reassoc', 'nsz'}, error_model='numpy', cache=True)",
        "@njit(**OPTIONS)",
        "def products(m, p, step, u, v):",
        "    n = len(u)",
        f"    {' = '.join(sums)} = 0.0",
        *(f"    m{i} = m[p + {i} * step : p + {i} * step + n]" for i in rows),
        "    for j in range(n):",
        *(f"        a{i} += m{i}[j] * u[j]; b{i} += m{i}[j] * v[j]" for i in rows),
        f"    return {own}",
        _FORWARD_CORNER,
        "@njit(**OPTIONS)",
        "def forward(left, l0, ll, right, r0, rl, c, x, y, first, last):",
        f"    whole = last - (last - first) % {FORWARD_ROWS}",
        f"    for r in range(first, whole, {FORWARD_ROWS}):",
        "        stop = min(r, c)",
        "        if stop > 0:",
        *subtract("left", "l0 + r * ll, ll", "x[:stop], y[:stop]"),
        "        if r > c:",
        *subtract("right", "r0 + r * rl + c, rl", "x[c:r], y[c:r]"),
        f"        below(left, l0, ll, right, r0, rl, c, x, y, r, r + {FORWARD_ROWS}, r)",
        "    below(left, l0, ll, right, r0, rl, c, x, y, whole, last, 0)",
        "",
    ])  # fmt: skip


_FORWARD_CORNER = """@njit(**OPTIONS)
def below(left, l0, ll, right, r0, rl, c, x, y, first, stop, start):
    for r in range(first, stop):
        s = x[r]
        t = y[r]
        for j in range(start, r):
            m = left[l0 + r * ll + j] if j < c else right[r0 + r * rl + j]
            s -= m * x[j]
            t -= m * y[j]
        m = left[l0 + r * ll + r] if r < c else right[r0 + r * rl + r]
        x[r] = s / m
        y[r] = t / m
"""


class Rotations:
    """The compiled update, once it is ready; what it would have saved until then decides when it is made."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lost = 0.0
        self._thread: threading.Thread | None = None
        self._update: Update | None = None
        self._forward: Forward | None = None
        self._failed = False

    def update(self, n: int) -> Update | None:
        """The compiled loops for a triangle of n rows; None where they are not ready or there is no compiler."""
        if self._update is not None:
            return self._update
        with self._lock:
            self._lost += ENTRY_SECONDS * n * n
            idle = self._thread is None or not self._thread.is_alive()  # also after a fork, which leaves it behind
            if idle and not self._failed and self._lost > LOST_SECONDS and _compiler():
                self._thread = threading.Thread(target=self._make, name="flashgp-rotations", daemon=True)
                self._thread.start()
        return self._update

    def forward(self, n: int) -> Forward | None:
        """The compiled solve, as `update`."""
        if self._forward is None:
            self.update(n)
        return self._forward

    def wait(self) -> bool:
        """Make the loops ready now; whether there are any."""
        if self._forward is None and _compiler():
            self._make()
        return self._forward is not None

    def _make(self) -> None:
        try:
            with no_forks():
                from flashgp.pairwise.cpu import identity
                from flashgp.pairwise.program.source_cache import import_generated

                version = identity.of_this_library()
                update = import_generated(rotation_source(), version).update
                if not update.signatures:
                    update.compile(SIGNATURE)
                    update.disable_compile()  # an array without gaps takes the same loops
                self._update = update
                forward = import_generated(forward_source(), version).forward
                if not forward.signatures:
                    forward.compile(FORWARD_SIGNATURE)
                    forward.disable_compile()
                self._forward = forward
        except Exception as error:  # the work goes on without
            self._failed = True
            log.warning("the rotations could not be compiled (%s); LAPACK goes on in their place", error)


def _compiler() -> bool:
    from flashgp.pairwise.cpu.backend import cpu_tiles_missing

    return not cpu_tiles_missing()


rotations = Rotations()
