"""Roles of columns beyond the kind of their cells: codes that are categories, cells that are missing, names of rows."""

import shlex
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..foundations.errors import DomainError
from .columns import Column, Table, quoted
from .conversion import MISSING
from .numbers import is_name

FEW_LEVELS = 20
# Text with more levels, distinct in more than this share of its rows, is an identifier or prose, unless somebody says
# that it is a category.
_DISTINCT_SHARE = 0.5
MISSING_LEVEL = "missing"  # of cells of text without a value
_NAMES_OF_ROWS = ("unnamed: 0", "rownames", "row.names")  # as pandas reads them, and R's data sets have them


def names_rows(column: Column) -> bool:
    """True if a column without a name of its own tells the rows apart, by whole numbers or text, each once."""
    if not (column.unnamed or column.name.casefold() in _NAMES_OF_ROWS) or np.isnan(column.values).any():
        return False
    if column.kind == "number" and np.any(column.values % 1):
        return False
    return column.kind in ("number", "category") and len(np.unique(column.values)) == len(column.values)


def with_codes(table: Table, columns: Sequence[int], notes: list[str]) -> Table:
    """The table of which columns with few numbers, some of them digits after a zero, are categories as they are
    written. The notes say which, and which of the others stay numbers although they may be codes."""
    found = list(table.columns)
    for index in columns:
        column = found[index]
        if column.kind != "number" or not column.padded:
            continue
        codes = _category(column)
        count = len(codes.levels)
        example = next(level for level in codes.levels if is_name(level))
        holds = f"column {quoted(column.name)} holds digits after a zero, such as {quoted(example)}"
        values = column.values[~np.isnan(column.values)]
        if 1 < count <= min(FEW_LEVELS, codes.given - 1) and not np.any((values < 0) | (values % 1 != 0)):
            found[index] = codes
            notes.append(f"{holds}, so each is a category: write them without these zeros where they are numbers.")
        elif count > 1:
            drop = f"leave it out by drop={[column.name]!r} (--drop {shlex.quote(column.name)})"
            notes.append(f"{holds}, taken as numbers: {as_categories(table, column) or drop} where they are codes.")
    return replace(table, columns=tuple(found))


def with_missing_level(column: Column) -> Column:
    """A column of categories whose cells without a value are a category of their own; others as they are."""
    empty = np.isnan(column.values)
    if column.kind != "category" or not empty.any() or empty.all():
        return column
    levels = tuple(sorted({*column.levels, MISSING_LEVEL}))
    place = {level: float(code) for code, level in enumerate(levels)}
    places = np.array([place[level] for level in column.levels])
    values = np.full(len(empty), place[MISSING_LEVEL])
    values[~empty] = places[column.values[~empty].astype(np.int64)]
    return replace(column, values=values, levels=levels, declared=True)  # which was looked at before


def has_few_levels(column: Column) -> bool:
    """True if categories are few enough for their rows: one that is in one row alone says nothing of another."""
    given = column.given
    return len(column.levels) <= max(FEW_LEVELS, given - 1 if column.declared else _DISTINCT_SHARE * given)


def as_categories(table: Table, column: Column) -> str | None:
    """Option by which a user says that each value of a column is a category, to go on with; None if these would be too
    many."""
    known = column.kind == "category" or column.written is not None  # else somebody knows who has all the cells
    if known and not has_few_levels(_category(column)):
        return None
    name = column.name
    return (
        f"take them as categories by categorical={[name]!r} (--categorical {shlex.quote(name)})" if table.first_row
        else "give them a type of categories"
    )  # fmt: skip


def with_categories(table: Table, columns: Sequence[int]) -> Table:
    """The table with these columns as categories, each value one. Raises: DomainError for what has none."""
    found = list(table.columns)
    for index in columns:
        found[index] = _category(found[index])
    return replace(table, columns=tuple(found))


def _category(column: Column) -> Column:
    """Raises: DomainError."""
    if column.kind == "category":
        return replace(column, declared=True)
    if column.written is not None:
        return _without_marks(replace(column.written, declared=True))
    if column.kind not in ("number", "boolean"):
        raise DomainError(
            f"`categorical` must name columns of numbers, booleans or text, got {quoted(column.name)}, stored as "
            f"{quoted(column.stored_as)}; write it as text"
        )
    given = ~np.isnan(column.values)
    distinct, codes = np.unique(column.values[given], return_inverse=True)
    names = [_text(value, boolean=column.kind == "boolean") for value in distinct.tolist()]
    levels = tuple(sorted(names))
    place = {level: float(code) for code, level in enumerate(levels)}
    values = np.full(len(given), np.nan)
    values[given] = np.array([place[name] for name in names])[codes]
    return replace(column, kind="category", values=values, levels=levels, declared=True)


def _without_marks(column: Column) -> Column:
    """Categories of which those that mark a missing value are none."""
    levels = tuple(level for level in column.levels if level.lower() not in MISSING)
    places = {level: float(place) for place, level in enumerate(levels)}
    codes = np.array([*(places.get(level, np.nan) for level in column.levels), np.nan])
    values = codes[np.where(np.isnan(column.values), len(column.levels), column.values).astype(np.int64)]
    return replace(column, values=values, levels=levels)


def _text(value: float, *, boolean: bool) -> str:
    if boolean:
        return str(bool(value)).lower()
    return f"{value:.0f}" if value % 1 == 0 else repr(value)
