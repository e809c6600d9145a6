"""Rows that are read in passes instead of held: what a source offers, and which objects are one."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor

from flashgp.foundations.checks import check_points, check_targets
from flashgp.foundations.errors import DomainError

__all__ = ["Batches", "Held", "RowSource", "held", "source_of"]


class RowSource(ABC):
    """A table whose rows (x, y) can be read again and again, a batch at a time.

    Fields: columns, names of the columns of x, None where they have none.
    """

    columns: tuple[str, ...] | None = None

    @abstractmethod
    def batches(self) -> Iterator[tuple[str, Any, Any]]:
        """One pass: for each batch its place in words, for errors, x of shape (n, d) and y of (n,) or (n, outputs)."""

    def __repr__(self) -> str:
        return f"{type(self).__name__} of rows that are read"


class Batches(RowSource):
    """An object that can be iterated over again and again: a list of batches (x, y), a torch DataLoader.

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

    def batches(self) -> Iterator[tuple[str, Any, Any]]:
        for number, batch in enumerate(self._batches):
            place = f"batch {number:,}"
            if not isinstance(batch, tuple | list) or len(batch) != 2:
                size = f" of {len(batch)}" if isinstance(batch, tuple | list) else ""
                raise DomainError(
                    f"`rows` must have batches (x, y), got {type(batch).__name__}{size} as {place}; put the columns of "
                    "x into one tensor"
                )
            yield place, *batch


class Held(RowSource):
    """Rows that are held, (n, d) and (n,) or (n, outputs), as one batch."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self._x, self._y = x, y

    def batches(self) -> Iterator[tuple[str, Any, Any]]:
        yield "", self._x, self._y


def held(x: Any, y: Any, outputs: int | None) -> Held:
    """Rows that the caller holds. Raises: ShapeError, DomainError."""
    x = check_points(x, "x")
    return Held(x, check_targets(y, "y", x, outputs))


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
