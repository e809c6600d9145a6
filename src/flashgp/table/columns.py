"""Typed columns of a table, and how text cells become one.

A column is a number, a boolean (0 or 1), a date (days since 1970-01-01, UTC) or a category (integer codes
into sorted levels); all four are one float64 array in which NaN means missing. The kind is decided by all
cells of the column together, in that order. Nothing here reads files or knows about models.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

import numpy as np
import numpy.typing as npt

from ..foundations.errors import DomainError, ShapeError

__all__ = ["MISSING", "Column", "Kind", "Table", "column_from_cells", "numbers_from_cells", "quoted"]

Kind = Literal["number", "boolean", "date", "category", "other"]

# Cells that mean "no value", after stripping and case folding. "none" is absent on purpose: it is a common level.
MISSING = frozenset({"", "?", "na", "n/a", "#n/a", "<na>", "nan", "-nan", "null"})

COMMA_NUMBER = re.compile(r"[+-]?(?:\d+(?:,\d*)?|,\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?(?:Z|[+-]\d\d:?\d\d)?)?", re.ASCII)
_POSITION = re.compile(r"[+-]?\d{1,9}", re.ASCII)
_EPOCH = datetime(1970, 1, 1)
_DAY = timedelta(days=1)
_SHOWN_CHARACTERS = 40
_SHOWN_NAMES = 20


@dataclass(frozen=True, eq=False)
class Column:
    """One typed column.

    Fields: name; kind; values, shape (rows,), float64, NaN where missing (a code into `levels` for a category, all
    NaN for kind "other"); levels, sorted and distinct, of a category; stored_as, the type in the file.
    """

    name: str
    kind: Kind
    values: npt.NDArray[np.float64]
    levels: tuple[str, ...] = ()
    stored_as: str = "text"


@dataclass(frozen=True, eq=False)
class Table:
    """A table as read: typed columns of equal length, and what was decided while reading.

    Fields: path; columns; rows, the number of data rows; header, whether the file names its columns; lines, shape
    (rows,), the file's line (from 1) where each row begins, or None for Parquet; notes, sentences for the user.
    """

    path: str
    columns: tuple[Column, ...]
    rows: int
    header: bool
    lines: npt.NDArray[np.int64] | None
    notes: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Column names in file order; column_1, column_2, ... without a header."""
        return tuple(column.name for column in self.columns)

    def position(self, choice: str | int, argument: str = "column") -> int:
        """Zero-based position of the column a user chose.

        Args:
            choice: a name; or a position that counts from 1 as the names column_1, column_2, ... do, or from the end
                when negative (-1 is the last). Text that is both a name and a position is taken as the name.
            argument: what the choice is called in an error.
        Returns: position in `columns`, counting from 0.
        Raises: DomainError if there is no such column.
        """
        names = self.names
        if isinstance(choice, str):
            if choice in names:
                return names.index(choice)
            if choice.strip() in names:
                return names.index(choice.strip())
        if isinstance(choice, int) or _POSITION.fullmatch(choice.strip()):
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

    def where(self, row: int) -> str:
        """Name a row (zero-based here, from 1 in the text) and its line in the file."""
        return f"row {row + 1}" if self.lines is None else f"row {row + 1} (line {int(self.lines[row])})"


def quoted(text: str) -> str:
    """Text in quotes for a message, shortened."""
    return repr(text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "...")


def listed(names: Sequence[str]) -> str:
    """Names in quotes for a message, at most twenty of them."""
    shown = ", ".join(quoted(name) for name in names[:_SHOWN_NAMES])
    return shown if len(names) <= _SHOWN_NAMES else f"{shown} and {len(names) - _SHOWN_NAMES} more"


def numbers_from_cells(cells: Sequence[str]) -> npt.NDArray[np.float64] | None:
    """Cells as float64 with NaN for a missing one, shape (len(cells),); None if one is neither number nor missing."""
    try:
        values = np.fromiter(map(float, cells), np.float64, len(cells))
    except ValueError:
        try:
            values = np.fromiter((_float_or_missing(cell) for cell in cells), np.float64, len(cells))
        except ValueError:
            return None
    # Python reads 1_000 as a number; in a table it is text.
    return None if "_" in "".join(cells) else values


def column_from_cells(name: str, cells: Sequence[str], decimal: str = ".") -> Column:
    """Decide a column's kind from all its cells and convert them.

    Args:
        name: the column's name.
        cells: one text per row; surrounding spaces do not count.
        decimal: "." or ",", the decimal mark of its numbers.
    Returns: a number, boolean, date or category column; a column without any value is a number column of NaN.
    Cost: O(rows), and O(levels log levels) for a category.
    """
    stripped = [cell.strip() for cell in cells]
    given = [cell for cell in stripped if cell.casefold() not in MISSING]
    values = _given_numbers(given, decimal)
    if values is not None:
        return Column(name, "number", _spread(stripped, values))
    if {cell.casefold() for cell in given} <= {"true", "false"}:
        return Column(name, "boolean", _spread(stripped, [float(cell.casefold() == "true") for cell in given]))
    days = _given_days(given)
    if days is not None:
        return Column(name, "date", _spread(stripped, days))
    return category_column(name, [None if cell.casefold() in MISSING else cell for cell in stripped])


def category_column(name: str, cells: Sequence[str | None], stored_as: str = "text") -> Column:
    """Text as codes into its sorted levels; None is missing."""
    levels = tuple(sorted({cell for cell in cells if cell is not None}))
    code = {level: float(index) for index, level in enumerate(levels)}
    values = np.fromiter((np.nan if cell is None else code[cell] for cell in cells), np.float64, len(cells))
    return Column(name, "category", values, levels, stored_as)


def checked_names(names: Sequence[str], path: str) -> None:
    """Refuse two columns of one name."""
    first: dict[str, int] = {}
    for index, name in enumerate(names):
        if name in first:
            raise ShapeError(
                f"column names of {quoted(path)} must differ, got {quoted(name)} for columns {first[name] + 1} and "
                f"{index + 1}; rename one of them, or read the file with header=False if its first row is data."
            )
        first[name] = index


def _float_or_missing(cell: str) -> float:
    return np.nan if cell.strip().casefold() in MISSING else float(cell)


def _given_numbers(given: Sequence[str], decimal: str) -> Sequence[float] | None:
    """Numbers of the cells that are not missing, or None."""
    if decimal == ",":
        if not all(COMMA_NUMBER.fullmatch(cell) for cell in given):
            return None
        return [float(cell.replace(",", ".")) for cell in given]
    values = numbers_from_cells(given)
    return None if values is None else list(values)


def _given_days(given: Sequence[str]) -> Sequence[float] | None:
    """Days since 1970-01-01 of ISO 8601 dates, or None; a mixture of times with and without an offset is no date."""
    if not all(_DATE.fullmatch(cell) for cell in given):
        return None
    days, with_offset = [], set()
    for cell in given:
        try:
            moment = datetime.fromisoformat(cell)
        except ValueError:
            return None
        offset = moment.utcoffset()
        with_offset.add(offset is not None)
        days.append((moment.replace(tzinfo=None) - _EPOCH - (offset or timedelta())) / _DAY)
    return days if len(with_offset) <= 1 else None


def _spread(stripped: Sequence[str], values: Sequence[float]) -> npt.NDArray[np.float64]:
    """Values of the given cells at their rows, NaN elsewhere."""
    column = np.full(len(stripped), np.nan)
    column[[cell.casefold() not in MISSING for cell in stripped]] = values
    return column
