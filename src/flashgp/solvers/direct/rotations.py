"""A rank-one update of a triangle by Givens rotations, compiled.

    [L V] G = [L' 0],   G a product of rotations of column j with V, j = 1, 2, ...                   (M-112)

Row after row; eight rows at a time, whose chains of rotations run side by side. It reads a factor once and writes the
new one once. The source is generated, cached and compiled like the pair loops (source_cache.py), in a thread beside the
work: updates use LAPACK meanwhile, which gives the same factor up to rounding at two to five times the cost, and never
wait for the compiler. The thread starts once LAPACK has cost LOST_SECONDS more. Decision 18 says why it is generated.
"""

import logging
import threading
from collections.abc import Callable
from typing import Any

from flashgp.foundations.lazy_import import no_forks

__all__ = ["Rotations", "rotation_source", "rotations"]

ROWS = 8  # chains that run side by side: a rotation waits for the last one in its own row
LOST_SECONDS = 0.05  # after which the compiled backend is compiled ready
ENTRY_SECONDS = 1e-9  # that LAPACK takes longer, for every entry of the triangle's square
SIGNATURE = "void(f8[:,:], f8[:,:], f8[::1], f8[:,:], f8[::1], f8[::1], f8[::1])"
Update = Callable[[Any, Any, Any, Any, Any, Any, Any], None]
log = logging.getLogger("flashgp.online")


def rotation_source() -> str:
    """The source of `update(source, out, v, below, w, c, s)`: L in source (n, n), L' in out, which may be source.

    v (n,) and w (p,) are the columns V of L and of the rows `below` (p, n), which are rotated in place; c, s (n,) are
    scratch.
    """
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
        "def update(source, out, v, below, w, c, s):",
        "    n = len(v)",
        f"    for r in range(0, n - n % {ROWS}, {ROWS}):",
        *block,
        f"        corner(source, out, v, c, s, r, r + {ROWS}, r)",
        f"    corner(source, out, v, c, s, n - n % {ROWS}, n, 0)",
        "    for i in range(len(w)):",
        "        wi = w[i]",
        "        for j in range(n):",
        "            x = below[i, j]; below[i, j] = c[j] * x + s[j] * wi; wi = c[j] * wi - s[j] * x",
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


class Rotations:
    """The compiled update, once it is ready; what it would have saved until then decides when it is made."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lost = 0.0
        self._thread: threading.Thread | None = None
        self._update: Update | None = None
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

    def wait(self) -> bool:
        """Make the loops ready now; whether there are any."""
        if self._update is None and _compiler():
            self._make()
        return self._update is not None

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
        except Exception as error:  # the work goes on without
            self._failed = True
            log.warning("the rotations could not be compiled (%s); LAPACK goes on in their place", error)


def _compiler() -> bool:
    from flashgp.pairwise.cpu.backend import cpu_tiles_missing

    return not cpu_tiles_missing()


rotations = Rotations()
