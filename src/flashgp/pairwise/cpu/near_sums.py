"""Sums over near pairs of a polynomial of their distance, by cell lists, eq. (M-459).

    (N v)_i = sum over |u_i - u_j| < radius of p(|u_i - u_j|) v_j

Points are sorted by cells of a part of the radius; neighbouring cells along the last column are one run of points, and
a pair of a cell and a run is a loop over contiguous memory, for both of its orders.
"""

import functools
import itertools
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy

from flashgp.foundations.lazy_import import no_forks
from flashgp.pairwise.cpu.pool import run_together, workers
from flashgp.pairwise.program.source_cache import compiled_identity, import_generated

Array = numpy.ndarray
PARTS, FEW_PARTS = 3, 2  # cells per radius, and where these would hold few points
FEW = 12.0
CELLS_PER_POINT = 2.0
AT_ONCE = 64  # looks at whether to stop, of each worker


@dataclass(frozen=True, eq=False)
class NearSums:
    """N of sorted points. Fields: order, numbers of the points as they are sorted; points, three arrays (n,); starts,
    the first point of every cell, and n; shape, cells of each column; runs, (k, 4): steps of two columns, and the first
    and last of the third; radius; polynomial, in t = 2 r / radius - 1.

    Cost of a product: some 2 ns for each pair of a cell and its neighbours.
    """

    order: Array
    points: tuple[Array, Array, Array]
    starts: Array
    shape: tuple[int, int, int]
    runs: Array
    radius: float
    polynomial: Array

    @classmethod
    def of(cls, points: Array, radius: float, polynomial: Array) -> "NearSums":
        """Args: points (n, d), d up to three."""
        n, d = points.shape
        middle = numpy.zeros((n, 3))
        middle[:, 3 - d :] = points - 0.5 * (points.min(0) + points.max(0))
        low = middle.min(0)
        ranges = middle.max(0) - low
        dense = n * numpy.prod(numpy.minimum(1.0, radius / PARTS / numpy.maximum(ranges, 1e-300))) >= FEW
        side = radius / (PARTS if dense else FEW_PARTS)
        while numpy.prod(numpy.floor(ranges / side) + 1.0) > CELLS_PER_POINT * n + 8.0:
            side *= 1.25
        shape = tuple(int(one) + 1 for one in ranges / side)
        cells = numpy.minimum(((middle - low) / side).astype(numpy.int64), numpy.array(shape) - 1)
        keys = (cells[:, 0] * shape[1] + cells[:, 1]) * shape[2] + cells[:, 2]
        order = numpy.argsort(keys, kind="stable")
        starts = numpy.searchsorted(keys[order], numpy.arange(math.prod(shape) + 1))
        columns = tuple(numpy.ascontiguousarray(middle[order, c]) for c in range(3))
        return cls(order, columns, starts, shape, _runs(radius / side), radius, polynomial)  # type: ignore[arg-type]

    def __matmul__(self, v: Array) -> Array:
        """N v of (n,), float64, points in sorted order."""
        module, cells = _module(len(self.polynomial) - 1), math.prod(self.shape)
        count = min(workers(), max(1, cells // AT_ONCE))
        fixed = (self.starts, self.shape, self.runs, *self.points, v)
        sums = [numpy.zeros_like(v) for _ in range(count)]
        last = self.radius**2, self.polynomial, 2.0 / self.radius
        pieces = -(-cells // AT_ONCE)

        def task(worker: int) -> Callable[[threading.Event], None]:
            def work(stop: threading.Event) -> None:
                for first in range(0, cells, pieces):
                    if stop.is_set():
                        return
                    ends = first + worker, min(cells, first + pieces), count
                    module.sweep(*ends, *fixed, sums[worker], *last)

            return work

        run_together([task(worker) for worker in range(count)])
        return functools.reduce(numpy.add, sums)


def _runs(parts: float) -> Array:
    """Half of the neighbours of a cell, by columns of cells, of a radius of so many cells."""
    most = math.ceil(parts)
    found = [(0, 0, 1, most)]
    for i, j in itertools.product(range(most + 1), range(-most, most + 1)):
        gap = max(0, i - 1) ** 2 + max(0, abs(j) - 1) ** 2
        if (i, j) > (0, 0) and gap < parts**2:
            k = 1 + math.floor(math.sqrt(parts**2 - gap))
            found.append((i, j, -k, k))
    return numpy.array(found)


@functools.cache
def _module(degree: int) -> Any:
    with no_forks():  # the identity imports numba
        return import_generated(_text(degree), compiled_identity())


def _text(degree: int) -> str:
    """Loops for a polynomial of that degree, its even and odd powers by Horner's rule side by side."""
    even, odd = (_horner(range(first, degree + 1, 2)) for first in (0, 1))
    loaded = "; ".join(f"c{k} = c[{k}]" for k in range(degree + 1))
    both, own = "s += p * v[j]; out[j] += p * pv", "s += p * v[j]"
    return "\n".join(
        [
            "import numpy",
            "from numba import njit",
            "from flashgp.pairwise.cpu.arithmetic import FAST, on_its_own, wide_vectors",
            "OPTIONS = dict(nogil=True, fastmath=FAST, error_model='numpy', cache=True)",
            *(_LOOP.format(name=name, body=body, loaded=loaded, even=even, odd=odd)
              for name, body in (("both", both), ("own", own))),
            _SWEEP,
        ]
    )  # fmt: skip


def _horner(powers: range) -> str:
    *less, last = powers
    return functools.reduce(lambda text, k: f"({text} * tt + c{k})", reversed(less), f"c{last}")


_LOOP = """
@njit(**OPTIONS)
def {name}(xi, yi, zi, vi, oi, x, y, z, v, out, square, c, scale):
    wide_vectors()
    on_its_own()
    {loaded}
    for r in range(len(xi)):
        px = xi[r]; py = yi[r]; pz = zi[r]; pv = vi[r]; s = 0.0
        for j in range(len(x)):
            dx = px - x[j]; dy = py - y[j]; dz = pz - z[j]
            q = dx * dx + dy * dy + dz * dz
            t = numpy.sqrt(min(q, square)) * scale - 1.0
            tt = t * t
            p = {even} + t * {odd}
            p = p if q < square else 0.0
            {body}
        oi[r] += s
"""
_SWEEP = """
@njit(**OPTIONS)
def sweep(first, stop, step, starts, shape, runs, x, y, z, v, out, square, c, scale):
    n0, n1, n2 = shape
    for cell in range(first, stop, step):
        a, b = starts[cell], starts[cell + 1]
        if a == b:
            continue
        xi, yi, zi, vi, oi = x[a:b], y[a:b], z[a:b], v[a:b], out[a:b]
        own(xi, yi, zi, vi, oi, xi, yi, zi, vi, oi, square, c, scale)
        i, j, k = cell // (n1 * n2), cell // n2 % n1, cell % n2
        for at in range(len(runs)):
            ii, jj = i + runs[at, 0], j + runs[at, 1]
            if ii < 0 or ii >= n0 or jj < 0 or jj >= n1:
                continue
            k0, k1 = max(0, k + runs[at, 2]), min(n2 - 1, k + runs[at, 3])
            if k1 < k0:
                continue
            base = (ii * n1 + jj) * n2
            l, m = starts[base + k0], starts[base + k1 + 1]
            if m > l:
                both(xi, yi, zi, vi, oi, x[l:m], y[l:m], z[l:m], v[l:m], out[l:m], square, c, scale)
"""
