"""Rows that are read in passes instead of held: what a source offers, and which objects are one."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from flashgp.foundations.errors import DomainError
from flashgp.processes.group import Group

Numbers = Mapping[str, Any]  # of rows beside x and y, by name
Batch = tuple[str, Any, Any, Numbers]  # place, x, y, numbers of its rows
UNNAMED = ""  # a number whose name the likelihood knows
NONE: Mapping[str, Tensor] = MappingProxyType({})
SHUFFLED_ROWS = 2**16  # of rows that are held, copied at once


class RowSource(ABC):
    """A table whose rows (x, y) can be read again and again, a batch at a time.

    Fields: columns, names of the columns of x, None where they have none.
    """

    columns: tuple[str, ...] | None = None

    @property
    def length(self) -> int | None:
        """Number of rows, where it is known before they are read."""
        return None

    def shard(self, group: Group) -> "RowSource":
        """The part of this rank; the source itself if ranks have rows of their own. Raises: RankMismatchError."""
        return self

    @abstractmethod
    def batches(self) -> Iterator[Batch]:
        """One pass: for each batch its place in words, for errors, x of shape (n, d), y of (n,) or (n, outputs), and
        numbers of its rows by name, (n,) each."""

    def shuffled(self, seed: int) -> Iterator[Batch]:
        """A pass in an order that the seed decides, as far as the source can jump; one that cannot keeps its own."""
        return self.batches()

    def __repr__(self) -> str:
        return f"{type(self).__name__} of rows that are read"


class Batches(RowSource):
    """An object that can be iterated over again and again: a list of batches (x, y), a torch DataLoader; or of batches
    (x, y, row_variance), with known noise variances of the rows beside the one that is fitted; or of batches
    (x, y, row_weight) for likelihoods whose sites are found by iteration. Numbers of other names are a mapping,
    (x, y, {"exposure": hours}).

    Raises: DomainError for what is read only once, such as a generator, and for what is no iterable of batches.
    """

    def __init__(self, batches: Iterable[Any]) -> None:
        if not (hasattr(batches, "__iter__") or hasattr(batches, "__getitem__")):
            raise DomainError(
                f"`rows` must be rows that can be read, got {type(batches).__name__}; pass fgp.data.parquet(...), or "
                "an iterable of batches (x, y)"
            )
        if isinstance(batches, Iterator):  # not by iter(), which starts the workers of a loader
            raise DomainError(
                f"`rows` must be read several times, got {type(batches).__name__}, which is read only once; pass a "
                "list of batches, a DataLoader, or an object whose __iter__ begins again"
            )
        self._batches = batches

    def batches(self) -> Iterator[Batch]:
        for number, batch in enumerate(self._batches):
            place = f"batch {number:,}"
            if not isinstance(batch, tuple | list) or len(batch) not in (2, 3):
                size = f" of {len(batch)}" if isinstance(batch, tuple | list) else ""
                raise DomainError(
                    f"`rows` must have batches (x, y), or (x, y, row_variance or row_weight), got "
                    f"{type(batch).__name__}{size} as {place}; put the columns of x into one tensor"
                )
            numbers = batch[2] if len(batch) == 3 and batch[2] is not None else {}
            yield place, batch[0], batch[1], numbers if isinstance(numbers, Mapping) else {UNNAMED: numbers}


class Held(RowSource):
    """Rows that are held, x (n, d), y (n,) or (n, outputs) and numbers (n, ...) by name, as one batch."""

    def __init__(self, x: Tensor, y: Tensor, numbers: Mapping[str, Tensor] = NONE) -> None:
        self.x, self.y, self.numbers = x, y, numbers

    @property
    def length(self) -> int:
        return len(self.x)

    def batches(self) -> Iterator[Batch]:
        yield "", self.x, self.y, self.numbers

    def shuffled(self, seed: int) -> Iterator[Batch]:
        order = torch.randperm(len(self.x), generator=torch.Generator().manual_seed(seed)).to(self.x.device)
        for index in order.split(SHUFFLED_ROWS):
            yield "", self.x[index], self.y[index], {name: each[index] for name, each in self.numbers.items()}


class Encoded(RowSource):
    """Rows whose targets are encoded, and numbers named, as they are read.

    Args: encode, a function of targets and their name; named, one of numbers by name and their place, which may refuse
        them.
    """

    def __init__(
        self, rows: RowSource, encode: Callable[[Any, str], Any], named: Callable[[Numbers, str], Numbers]
    ) -> None:
        self._rows, self._encode, self._named, self.columns = rows, encode, named, rows.columns

    @property
    def length(self) -> int | None:
        return self._rows.length

    def batches(self) -> Iterator[Batch]:
        return self._encoded(self._rows.batches())

    def shuffled(self, seed: int) -> Iterator[Batch]:
        return self._encoded(self._rows.shuffled(seed))

    def _encoded(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        for place, x, y, numbers in batches:
            yield place, x, self._encode(y, f"y of {place}"), self._named(numbers, place)


def source_of(rows: Any) -> RowSource:
    """The source that an argument is. Raises: DomainError."""
    if isinstance(rows, RowSource):
        return rows
    if isinstance(rows, Tensor) or hasattr(rows, "__array__") or hasattr(rows, "columns"):
        raise DomainError(
            f"`y` must be given beside x, which is a {type(rows).__name__}; without it `x` must be rows that are read, "
            "such as fgp.data.parquet(...) or a list of batches (x, y)"
        )
    return Batches(rows)
