"""Rows of each rank: whole runs of the joined rows, in the order of the ranks."""

import itertools
from dataclasses import dataclass

from flashgp.foundations.errors import DomainError
from flashgp.foundations.quantities import counted


@dataclass(frozen=True)
class Shares:
    """Rows of each rank; row i of rank r is row `starts[r] + i` of the joined table.

    Args: counts, one for each rank, 0 allowed.

    Example:
        >>> shares = Shares((101, 97, 3, 0))
        >>> shares.total, shares.starts, shares.slice(1)
        (201, (0, 101, 198, 201), slice(101, 198, None))
    """

    counts: tuple[int, ...]

    @property
    def total(self) -> int:
        return sum(self.counts)

    @property
    def starts(self) -> tuple[int, ...]:
        return tuple(itertools.accumulate(self.counts[:-1], initial=0))

    def slice(self, rank: int) -> slice:
        """The rows of a rank among all."""
        start = self.starts[rank]
        return slice(start, start + self.counts[rank])

    @classmethod
    def even(cls, total: int, size: int) -> "Shares":
        """Shares as equal as whole rows allow."""
        return cls(tuple(total // size + (rank < total % size) for rank in range(size)))


def too_many_ranks(name: str, ranks: int, rows: int) -> DomainError | None:
    """The error about more ranks than rows, None of as many. Args: name, of the argument that has the ranks."""
    if ranks == 1 or rows >= ranks:
        return None
    return DomainError(
        f"`{name}` must leave a row for each rank, got {counted(ranks, 'rank')} and {counted(rows, 'row')}; start "
        "fewer processes"
    )
