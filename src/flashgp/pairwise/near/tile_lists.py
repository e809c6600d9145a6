"""The tiles of a covariance matrix that are evaluated, where the others are far: what a backend is given.

Which tiles these are, and what the others amount to, is found in far.py.
"""

import functools
from dataclasses import dataclass, replace

import numpy
import torch
from torch import Tensor

Array = numpy.ndarray


@dataclass(frozen=True)
class NearTiles:
    """The tiles that are evaluated, of rows and columns that are in panel order.

    Fields: size, rows of a panel; n and m, rows and columns; symmetric, then only i <= j are listed; pairs, panel
    numbers (i, j), (tiles, 2) int64, sorted.
    """

    size: int
    n: int
    m: int
    symmetric: bool
    pairs: Array

    @functools.cached_property
    def T(self) -> "NearTiles":
        """The list of the transpose."""
        return NearTiles(self.size, self.m, self.n, self.symmetric, _sorted(self.pairs[:, ::-1]))

    @functools.cached_property
    def everywhere(self) -> "NearTiles":
        """The tiles of a symmetric matrix as one with two sides: both triangles are listed."""
        if not self.symmetric:
            return self
        mirrored = self.pairs[self.pairs[:, 0] != self.pairs[:, 1]][:, ::-1]
        return NearTiles(self.size, self.n, self.m, False, _sorted(numpy.concatenate([self.pairs, mirrored])))

    def sorted(self) -> "NearTiles":
        """The tiles by row panel, then by column panel."""
        return replace(self, pairs=_sorted(self.pairs))

    @property
    def pair_count(self) -> int:
        """Entries (i, j) of the matrix that are in tiles."""
        i, j = self.pairs.T
        sizes = _lengths(self.n, self.size, i) * _lengths(self.m, self.size, j)
        mirrored = sizes[i != j].sum() if self.symmetric else 0
        return int(sizes.sum() + mirrored)

    def mask(self) -> Tensor:
        """1 inside the tiles and 0 outside, (n, m)."""
        found = torch.zeros(self.n, self.m, dtype=torch.float64)
        for i, j in self.everywhere.runs(self.size):
            found[i, j] = 1.0
        return found

    def runs(self, columns: int) -> list[tuple[slice, slice]]:
        """Row and column ranges that cover the tiles: neighbours of one panel joined, up to so many columns."""
        most = max(1, columns // self.size)
        found: list[tuple[slice, slice]] = []
        i, j = self.pairs[:, 0], self.pairs[:, 1]
        ends = numpy.flatnonzero((numpy.diff(i) != 0) | (numpy.diff(j) != 1)) + 1
        for part in numpy.split(self.pairs, ends) if len(self.pairs) else []:
            row, first, last = int(part[0, 0]), int(part[0, 1]), int(part[-1, 1]) + 1
            rows = slice(row * self.size, min(self.n, (row + 1) * self.size))
            found += [
                (rows, slice(start * self.size, min(self.m, min(last, start + most) * self.size)))
                for start in range(first, last, most)
            ]
        return found


def _sorted(pairs: Array) -> Array:
    """Pairs sorted by first number, then by second."""
    return pairs[numpy.lexsort(pairs.T[::-1])]


def _lengths(count: int, size: int, panels: Array) -> Array:
    """Rows of panels of so many rows in all."""
    return numpy.minimum(size, count - size * panels)


# -- every tile --------------------------------------------------------------------------------------------------------
LISTED = 2**12  # tiles that are listed at once; the list is kept for the next computation of these sizes


class EveryTile:
    """Block numbers (i, j) of all tiles, row by row; of a symmetric matrix those with i <= j.

    Args: rows, cols: numbers of blocks. Slices are (tiles, 2) int64. Memory: one number per row of blocks.
    """

    def __init__(self, rows: int, cols: int, symmetric: bool) -> None:
        self.symmetric = symmetric
        widths = cols - numpy.arange(rows) if symmetric else numpy.full(rows, cols)
        self._starts = numpy.concatenate([numpy.zeros(1, numpy.int64), numpy.cumsum(widths)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, part: slice) -> Array:
        at = numpy.arange(*part.indices(len(self)))
        i = numpy.searchsorted(self._starts, at, side="right") - 1
        j = at - self._starts[i] + (i if self.symmetric else 0)
        return numpy.stack([i, j], axis=1).astype(numpy.int64, copy=False)


@functools.lru_cache(maxsize=32)
def every_tile(rows: int, cols: int, symmetric: bool) -> "EveryTile | Array":
    """All tiles, listed where they are few."""
    tiles = EveryTile(rows, cols, symmetric)
    return tiles[:] if len(tiles) <= LISTED else tiles
