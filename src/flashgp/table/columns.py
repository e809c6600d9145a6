"""Typed columns of a table.

A column is a number, a percentage (45 for 45%), a boolean (0 or 1), a date (days since 1970-01-01, UTC), a time of day
(hours since midnight) or a category (integer codes into sorted levels); each is one float64 array in which NaN means
missing.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..foundations.errors import DomainError, ShapeError
from .dates import DateDoubt, Order, calendar_days

Kind = Literal["number", "percentage", "boolean", "date", "time", "category", "other"]
Doubt = Literal["codes"] | DateDoubt

_POSITION = re.compile(r"[+-]?\d{1,9}", re.ASCII)
_SHOWN_CHARACTERS = 40
_SHOWN_NAMES = 20


@dataclass(frozen=True, eq=False)
class Column:
    """One typed column.

    Fields:
        name, kind: what it is called, what it holds.
        values: shape (rows,), float64, NaN where missing; a code into `levels` for a category, all NaN for "other".
        levels: sorted and distinct, of a category.
        stored_as: the type in the file.
        inexact: the first row with a whole number that float64 does not hold, and that number; None where all are held.
        declared: whether the file or frame says that it is a category, whatever its text may look like.
        readings: values by the order of day and month, each that dates may have; empty where there is no question.
        short_years: whether the years of dates have two digits, which do not tell the century.
        cells: of text, as they are written, Arrow; None of what is stored as numbers.
        unnamed: whether the file gives it no name.
        doubt: what else than its kind all its cells may be, which only a user knows: "codes" in groups of digits,
            "seasons", two years each, or "days" without a year.
        padded: whether some of its numbers are digits after a zero, as post codes and other names are.
        blanks: cells such as "-" that were taken for missing values, since all others are numbers, booleans or dates.
    """

    name: str
    kind: Kind
    values: npt.NDArray[np.float64]
    levels: tuple[str, ...] = ()
    stored_as: str = "text"
    inexact: tuple[int, int] | None = None
    declared: bool = False
    readings: Mapping[Order, npt.NDArray[np.float64]] = field(default_factory=dict)
    short_years: bool = False
    cells: Any = None
    blanks: tuple[str, ...] = ()
    unnamed: bool = False
    doubt: Doubt | None = None
    padded: bool = False

    @property
    def given(self) -> int:
        """Cells with a value."""
        return int(np.count_nonzero(~np.isnan(self.values)))

    @property
    def two_valued(self) -> bool:
        """True if it holds two numbers and no others."""
        given = self.values[~np.isnan(self.values)]
        return self.kind == "number" and len(np.unique(given)) == 2

    @property
    def undecided(self) -> bool:
        """True if a user has to say how its dates are read."""
        return len(self.readings) > 1 or self.short_years

    @property
    def order(self) -> Order | None:
        """The order of day and month that its dates have; None where it is no question, or an open one."""
        return None if self.undecided else next(iter(self.readings), None)

    @cached_property
    def written(self) -> "Column | None":
        """The cells as categories, each spelling one, marks of missing values too; None if the column is no text."""
        if self.cells is None:
            return None
        coded = self.cells.combine_chunks().dictionary_encode()
        spelled = [text.strip() for text in coded.dictionary.to_pylist()]
        levels = tuple(sorted({*spelled} - {""}))
        place = {level: float(code) for code, level in enumerate(levels)}
        values = np.array([place.get(text, np.nan) for text in spelled])[array_values(coded.indices)]
        return replace(
            self,
            kind="category",
            values=values,
            levels=levels,
            inexact=None,
            readings={},
            short_years=False,
            blanks=(),
            doubt=None,
        )

    def text(self, row: int) -> str | None:
        """A cell as it was written, where it has a value and that is known."""
        if np.isnan(self.values[row]):
            return None
        if self.kind == "category":
            return self.levels[int(self.values[row])]
        return None if self.cells is None else str(self.cells[row].as_py()).strip()

    def in_order(self, order: Order) -> "Column":
        """The column with its dates in one of the orders that they may have."""
        values = self.readings[order]
        return replace(self, values=values, readings={order: values}, short_years=False)

    def as_calendar(self) -> "Column | None":
        """Numbers that are all dates written as 20000105, as dates; None for others."""
        given = ~np.isnan(self.values)
        days = calendar_days(self.values[given]) if self.kind == "number" else None
        if days is None:
            return None
        values = np.full(len(self.values), np.nan)
        values[given] = days
        return replace(self, kind="date", values=values)


@dataclass(frozen=True, eq=False)
class Table:
    """A table as read: typed columns of equal length, and what was decided while reading.

    Fields:
        path: the file.
        columns: in file order.
        rows: the number of data rows.
        header: whether the file names its columns.
        lines: of the file, from 1, on which each row begins; None where that is not known.
        notes: sentences for the user.
        first_row: what the first row is called: 1 in a file, 0 in a frame, more in a part of a file.
        part: whether it is some of the rows of a table.
        kept: cells as they are written, Arrow, of the columns that were asked for.
    """

    path: str
    columns: tuple[Column, ...]
    rows: int
    header: bool
    lines: Sequence[int] | npt.NDArray[np.int64] | None
    notes: tuple[str, ...]
    first_row: int = 1
    part: bool = False
    kept: Mapping[str, Any] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Column names in file order; column_1, column_2, ... without a header."""
        return tuple(column.name for column in self.columns)

    def position(self, choice: str, argument: str = "column") -> int:
        """Zero-based position of the column a user chose.

        Args:
            choice: a name; or a position that counts from 1 as the names column_1, column_2, ... do, or from the end
                when negative (-1 is the last). Text that is both a name and a position is taken as the name.
            argument: what the choice is called in an error.
        Returns: position in `columns`, counting from 0.
        Raises: DomainError if there is no such column.
        """
        names = self.names
        for name in (choice, choice.strip()):
            if name in names:
                return names.index(name)
        if _POSITION.fullmatch(choice.strip()):
            number = int(choice)
            if 1 <= number <= len(names):
                return number - 1
            if -len(names) <= number <= -1:
                return len(names) + number
            raise DomainError(
                f"`{argument}` must be a column name or a position 1 to {len(names)} (-1 is the last), got {number} "
                f"for {quoted(self.path)}; choose one of {listed(names)}."
            )
        raise DomainError(
            f"`{argument}` must name a column of {quoted(self.path)}, got {quoted(choice)}; "
            f"choose one of {listed(names)}, or a position counted from 1 (-1 is the last)."
        )

    def keeping(self, cells: Sequence[Any], keep: Sequence[str]) -> "Table":
        """The table with the cells of some columns as they are.

        Args: cells, those of every column, Arrow; keep, columns by name or position from 1, several with commas too.
        Raises: DomainError if there is no such column.
        """
        each = [name for choice in keep for name in ([choice] if choice in self.names else choice.split(","))]
        places = dict.fromkeys(self.position(name, "keep") for name in each)
        return replace(self, kept={self.names[place]: cells[place] for place in places})

    def where(self, row: int) -> str:
        """Name a row (from 0 here, as the table counts in the text) and its line in the file."""
        name = f"row {row + self.first_row}"
        return name if self.lines is None else f"{name} (line {self.lines[row]})"


def array_values(cells: Any) -> npt.NDArray[Any]:
    """Numbers or truth values of Arrow without nulls, as numpy has them; `to_numpy` would import pandas first."""
    cells = cells.combine_chunks() if hasattr(cells, "chunks") else cells
    if str(cells.type) == "bool":
        return np.from_dlpack(cells.cast("uint8")).view(np.bool_)
    return np.asarray(np.from_dlpack(cells))


def quoted(text: str) -> str:
    """Text in quotes for a message, shortened."""
    return repr(text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "...")


def listed(names: Sequence[str]) -> str:
    """Names in quotes for a message, at most twenty of them."""
    shown = ", ".join(quoted(name) for name in names[:_SHOWN_NAMES])
    return shown if len(names) <= _SHOWN_NAMES else f"{shown} and {len(names) - _SHOWN_NAMES} more"


def checked_names(names: Sequence[str], path: str) -> None:
    """Refuse two columns of one name."""
    first: dict[str, int] = {}
    for index, name in enumerate(names):
        if name in first:
            raise ShapeError(
                f"column names of {quoted(path)} must differ, got {quoted(name)} for columns {first[name] + 1} and "
                f"{index + 1}; rename one of them, or read a file whose first row is data with header=False."
            )
        first[name] = index
