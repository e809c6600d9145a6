"""The pairs of a symmetric covariance matrix dealt to the ranks of a group, eq. (M-201).

Every rank has the features of all rows. K is cut into tiles, of which those with i <= j are numbered row by row; a rank
evaluates a run of these, as many as every other rank to one tile, and each serves for both triangles. So every pair of
rows is evaluated once, on one rank, however many ranks there are and whatever rows they were given. What a rank adds up
is its part of all rows of K V; the sum over ranks is the product.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy
from torch import Tensor

from flashgp.operators.covariance import CovarianceOperator
from flashgp.pairwise.backend import PairGradient
from flashgp.pairwise.cpu.layout import BLOCK
from flashgp.pairwise.near.tile_lists import EveryTile, NearTiles
from flashgp.processes.group import Group

MULTIPLE = 16  # of rows of a tile: what compiled loops take at once
MIN_TILE_ROWS = 32  # of panels: then the halves of the tiles on the diagonal are a thirtieth of all pairs
MAX_TILE_ROWS = 4096  # the same for very many rows, so that the list of tiles stays below 2^23


def tile_rows(n: int, device: str) -> int:
    """Rows of a tile: as compiled loops take them, or as keep a GPU busy, but fewer where the table has few."""
    usual = BLOCK if device == "cpu" else 4 * BLOCK
    rows = min(usual, max(MULTIPLE, n // MIN_TILE_ROWS)) if n <= usual * MAX_TILE_ROWS else -(-n // MAX_TILE_ROWS)
    return rows // MULTIPLE * MULTIPLE if rows < usual else -(-rows // MULTIPLE) * MULTIPLE


def share_of_tiles(n: int, rank: int, size: int, device: str = "cpu") -> NearTiles:
    """The tiles of a symmetric n x n matrix that one of so many ranks evaluates, eq. (M-201).

    Example:
        >>> shares = [share_of_tiles(1000, rank, 3) for rank in range(3)]
        >>> sum(share.pair_count for share in shares)  # each pair of rows in one share, counted in both triangles
        1000000
    """
    rows = tile_rows(n, device)
    panels = -(-n // rows)
    tiles = EveryTile(panels, panels, True)
    part = slice(len(tiles) * rank // size, len(tiles) * (rank + 1) // size)
    return NearTiles(rows, n, n, True, numpy.ascontiguousarray(tiles[part]))


def shared_operator(operator: CovarianceOperator, group: Group) -> CovarianceOperator:
    """The operator whose products, and their gradients, are this rank's part; alone the operator itself."""
    if group.size == 1:
        return operator
    problem = operator.problem
    near = share_of_tiles(problem.rows.count, group.rank, group.size, problem.device.type)
    return operator.with_problem(replace(problem, near=near))


def summed_gradient(part: PairGradient, group: Group) -> PairGradient:
    """The gradient of all pairs from those of each rank's share. Cost: one collective for each tensor."""

    def summed(parts: Sequence[Tensor | None]) -> list[Tensor | None]:
        return [None if one is None else group.sum(one) for one in parts]

    return part if group.size == 1 else PairGradient(summed(part.rows), summed(part.cols), summed(part.theta))
