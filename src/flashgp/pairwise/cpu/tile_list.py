"""Which tiles a computation visits: all of them, numbered as they are asked for.

A list of every tile would have n m / B^2 entries: small beside a matrix, but it grows like one.
"""

import functools

import numpy

Array = numpy.ndarray
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
