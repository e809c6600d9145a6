"""The tiles of a computation, part by part: the list that NumPy makes of all of them, never made."""

import tracemalloc

import numpy
import pytest

from flashgp.pairwise.near.tile_lists import LISTED, EveryTile, every_tile


def listed(rows: int, cols: int, symmetric: bool) -> numpy.ndarray:
    i, j = numpy.triu_indices(rows) if symmetric else (a.ravel() for a in numpy.mgrid[:rows, :cols])
    return numpy.stack([i, j], axis=1)


@pytest.mark.parametrize(
    ("rows", "cols", "symmetric"),
    [(1, 1, True), (7, 7, True), (100, 100, True), (1, 5, False), (5, 1, False), (70, 90, False), (0, 3, False)],
)
def test_every_tile_once_and_in_order(rows: int, cols: int, symmetric: bool) -> None:
    tiles, wanted = EveryTile(rows, cols, symmetric), listed(rows, cols, symmetric)
    assert len(tiles) == len(wanted)
    for part in (slice(None), slice(1, None, 3), slice(5, 17, 2), slice(len(wanted) - 1, None), slice(10**9, None)):
        found = tiles[part]
        assert found.dtype == numpy.int64
        assert numpy.array_equal(found, wanted[part])
    assert numpy.array_equal(every_tile(rows, cols, symmetric)[:], wanted)


def test_few_are_kept_as_a_list_and_many_are_not() -> None:
    assert isinstance(every_tile(64, 64, False), numpy.ndarray)
    assert LISTED == 64 * 64
    assert isinstance(every_tile(64, 65, False), EveryTile)


def test_the_tiles_of_ten_million_rows_take_little() -> None:
    """A list of all of them would take 3 GB."""
    tracemalloc.start()
    tiles = EveryTile(20_000, 20_000, True)
    last = tiles[len(tiles) - 64 :]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert last[-1].tolist() == [19_999, 19_999]
    assert len(tiles) * 2 * 8 > 3 * 10**9
    assert peak < 2**21
