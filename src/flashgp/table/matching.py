"""Checks and conversions of single columns on their way into a model: usable, varying, of the learned kind, complete.

Everything here names rows and columns of the table as read; which columns a model wants is `encoding`'s matter.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from ..foundations.errors import DomainError
from .columns import Column, Kind, Table, listed, quoted
from .conversion import MISSING
from .dates import ORDERS, Order, shown_date
from .doubts import open_dates, open_reading, slip
from .numbers import is_name, number_of
from .roles import FEW_LEVELS, MISSING_LEVEL, as_categories, has_few_levels, with_categories

_ORDER_WORDS: dict[Order, str] = {"dmy": "the day before the month", "mdy": "the month before the day"}
CLASSES = "which are classes: leave out likelihood=, or pass likelihood='auto' (--likelihood auto)"
_LABELLED_ROWS = 5  # below which nobody knows what two numbers are


def unusable_reason(table: Table, column: Column, role: Literal["input", "target"] = "input") -> str | None:
    """Reason that a column cannot be an input (or, being text, a target); None if it can."""
    if column.kind == "other":
        return f"stored as {quoted(column.stored_as)}"
    if column.inexact is not None:
        return f"{inexact_words(table, column)}: subtract one number from the whole column"
    if role == "target" and column.kind in ("date", "time"):
        return "dates" if column.kind == "date" else "clock times"
    if (open_for_now := open_reading(table, column, role)) is not None:
        return open_for_now
    if column.kind == "boolean" and role == "target":
        return f"true or false, {CLASSES}"
    if column.kind != "category":
        return None
    if role == "input" and (differs := slip(table, column, role)) is not None:
        return differs
    given = column.given
    if role == "input":
        if has_few_levels(column):
            return None
        if column.declared:
            numbers = all(number_of(level) is not None for level in column.levels)
            return (
                f"{len(column.levels)} categories in {given} rows, each in one alone, which says nothing of another row"
                f"{': have it as numbers, not as categories' if numbers else ''}"
            )
    few = role == "target" and 2 <= len(column.levels) <= FEW_LEVELS and slip(table, column, role) is None
    labels = f", {CLASSES}" if few else ""
    categories = as_categories(table, column) if role == "input" else None
    way_out = "" if categories is None else f"; {categories}"
    return (
        f"text with {len(column.levels)} distinct values in {given} rows{_number_hint(table, column)}{labels}{way_out}"
    )


def with_target(table: Table, index: int, classes: bool | None) -> Table:
    """The table whose column `index` is one of categories where it is one of classes.

    Args: classes, whether it is; None where it is for booleans, few texts that are no slips, and two numbers in five
        rows or more.
    """
    column = table.columns[index]
    if classes is None:
        classes = column.kind == "boolean" or (column.given >= _LABELLED_ROWS and column.two_valued)
        if column.kind == "category":
            classes = len(column.levels) <= FEW_LEVELS and slip(table, column, "target") is None
    usable = column.kind in ("category", "boolean", "number") and column.inexact is None and column.doubt is None
    return with_categories(table, [index]) if classes and usable else table


def inexact_words(table: Table, column: Column) -> str:
    """Problem of whole numbers that float64 does not hold, in words."""
    assert column.inexact is not None
    row, value = column.inexact
    return f"{value} at {table.where(row)}, a whole number that 64-bit floats merge with its neighbours"


def kind_note(column: Column) -> str | None:
    """Note for a user on how an input is read."""
    if column.kind == "category":
        return f"column {quoted(column.name)} is text: {len(column.levels)} categories ({listed(column.levels)})."
    if column.kind == "date":
        order = "" if column.order is None else f", {_ORDER_WORDS[column.order]}"
        return f"column {quoted(column.name)} holds dates{order}: counted in days since 1970-01-01 (UTC)."
    if column.kind == "percentage":
        return f"column {quoted(column.name)} holds percentages: 45% is 45."
    if column.kind == "time":
        return f"column {quoted(column.name)} holds clock times: counted in hours since midnight."
    if column.kind == "boolean":
        return f"column {quoted(column.name)} is true or false: 1 or 0."
    return None


def shown(kind: Kind, value: float, digits: int = 6) -> str:
    """A number of a column for people: dates as dates, percentages with their sign, times as a clock shows."""
    if kind == "date" and np.isfinite(value):
        return shown_date(value)
    if kind == "time" and np.isfinite(value):
        return f"{round(value * 60) // 60:02d}:{round(value * 60) % 60:02d}"
    return f"{value:.{digits}g}{'%' * (kind == 'percentage')}"


def in_order(table: Table, columns: Sequence[int], dates: Order | None) -> Table:
    """The table with the dates of these columns read in an order of day and month; None leaves each as it decides.

    Raises: DomainError for an order that is none, or that a column's dates do not have, naming its first such row.
    """
    if dates not in (None, *ORDERS):
        raise DomainError(f"`dates` must be None, 'dmy' or 'mdy', got {dates!r}; choose one of these")
    if dates is None:
        return table
    found = list(table.columns)
    for index in columns:
        if found[index].readings:
            found[index] = found[index].in_order(_allowed(table, found[index], dates, "of `dates`"))
    return replace(table, columns=tuple(found))


def _allowed(table: Table, column: Column, order: Order, whose: str) -> Order:
    """The order, where the dates of a column have it. Raises: DomainError."""
    if order in column.readings:
        return order
    other, values = next(iter(column.readings.items()))
    days = values.astype("datetime64[D]")  # of no order but one: some day is above 12
    late = (days - days.astype("datetime64[M]").astype(days.dtype)).astype(np.float64) >= 12
    row = int(np.argmax(late))
    day = shown_date(float(values[row]), time=False)
    raise DomainError(
        f"dates in column {quoted(column.name)} of {quoted(table.path)} must have the order {order} {whose}, got "
        f"{quoted(column.text(row) or day)} at {table.where(row)}, which is {day} by {other} and no date by {order}; "
        "write them as YYYY-MM-DD"
    )


def is_constant(column: Column, notes: list[str], rows: npt.NDArray[np.int64] | None = None) -> bool:
    """True if a column has no two different values (in the given rows); says so in the notes."""
    values = column.values if rows is None else column.values[rows]
    given = values[~np.isnan(values)]
    if len(given) == 0:
        notes.append(f"column {quoted(column.name)} has no values: left out.")
        return True
    if np.any(given != given[0]):
        return False
    value = quoted(column.levels[int(given[0])]) if column.kind == "category" else shown(column.kind, given[0])
    notes.append(f"column {quoted(column.name)} is constant ({value}): left out.")
    return True


def kept_rows(
    table: Table, columns: Sequence[Column], missing: Literal["error", "drop"]
) -> tuple[npt.NDArray[np.int64], list[str]]:
    """Rows complete in all these columns, and notes.

    Raises: DomainError for an infinite value (the first row and its column are named), for missing values unless they
        are dropped, and when no row is left.
    """
    incomplete = ~complete(columns)
    infinite = np.zeros(table.rows, bool)
    for column in columns:
        infinite |= np.isinf(column.values)
    if infinite.any():
        row = int(np.argmax(infinite))
        culprit = next(column for column in columns if np.isinf(column.values[row]))
        raise DomainError(
            f"values of {quoted(table.path)} must be finite, got {culprit.values[row]} at {table.where(row)}, column "
            f"{quoted(culprit.name)} ({int(infinite.sum())} rows in all); correct them, or leave the cells empty."
        )
    if not incomplete.any():
        return np.arange(table.rows, dtype=np.int64), []
    row, count = int(np.argmax(incomplete)), int(incomplete.sum())
    culprit = next(column for column in columns if np.isnan(column.values[row]))
    first = f"the first at {table.where(row)}, column {quoted(culprit.name)}"
    if missing == "error":
        raise DomainError(
            f"{quoted(table.path)} must have no missing values, got {count} of {table.rows} rows with one, {first}; "
            "fill them, drop the column, or pass missing='drop' (--missing drop)."
        )
    if count == table.rows and not table.part:
        raise DomainError(
            f"{quoted(table.path)} must have a row without missing values, got {count} of {table.rows} rows with one, "
            f"{first}; fill them, or drop the columns that are mostly empty."
        )
    kept = np.flatnonzero(~incomplete).astype(np.int64)
    return kept, [f"{count} of {table.rows} rows have missing values and are left out, {first}."]


def complete(columns: Sequence[Column]) -> npt.NDArray[np.bool_]:
    """Mask of rows with a value in all these columns, (rows,)."""
    found = np.ones(len(columns[0].values), bool)
    for column in columns:
        found &= ~np.isnan(column.values)
    return found


def converted(
    table: Table,
    column: Column,
    kind: Kind,
    levels: Sequence[str],
    unseen: Literal["error", "new"],
    notes: list[str],
    order: Order | None = None,
) -> Column:
    """A column as the kind that was learned; a category's codes refer to the learned levels.

    Numbers pass for a boolean if all are 0 or 1, for dates if all are written as 20000105, and for a category if the
    text learned were such numbers (a file with only some of the levels may look numeric). A column without values
    passes for every kind.
    Args: order: of day and month in the dates learned; None where it was no question.
    Raises: DomainError for another kind, dates of another order or an open one, or an unseen level under "error".
    """
    if kind == "category" and column.written is not None:
        return _recoded(table, column, levels, unseen, notes)
    if column.kind != "other" and np.isnan(column.values).all() and MISSING_LEVEL not in levels:
        return column
    if column.inexact is not None:
        raise DomainError(
            f"column {quoted(column.name)} of {quoted(table.path)} must hold numbers that float64 holds, got "
            f"{inexact_words(table, column)}; correct it, or subtract one number from the whole column and fit again."
        )
    if kind == "category" and column.kind in ("category", "number", "boolean"):
        return _recoded(table, column, levels, unseen, notes)
    if column.blanks:
        notes.append(f"column {quoted(column.name)}: cells with {listed(column.blanks)} are missing values.")
    if kind == "date" and column.kind in ("date", "number"):
        column = _dates(table, column, order)
    if kind == column.kind:
        return column
    if kind == "boolean" and column.kind == "number":
        given = column.values[~np.isnan(column.values)]
        if np.isin(given, (0.0, 1.0)).all():
            return column
    stored = f"{column.kind}, stored as {quoted(column.stored_as)}{_number_hint(table, column)}"
    raise DomainError(
        f"column {quoted(column.name)} of {quoted(table.path)} must hold values of kind {kind} as in training, "
        f"got {stored}; correct its values, or fit the model again."
    )


def _dates(table: Table, column: Column, order: Order | None) -> Column:
    """A column as dates in the order that was learned, numbers that are none as they are. Raises: DomainError."""
    if column.kind == "number":
        return column.as_calendar() or column
    if column.readings and order is not None:
        return column.in_order(_allowed(table, column, order, "as in training"))
    if (open_order := open_dates(table, column)) is not None:
        raise DomainError(
            f"column {quoted(column.name)} of {quoted(table.path)} must hold dates that are read in one way, got "
            f"{open_order}; the dates that the model was fitted to do not tell: write them as YYYY-MM-DD"
        )
    return column


def _recoded(
    table: Table, column: Column, levels: Sequence[str], unseen: Literal["error", "new"], notes: list[str]
) -> Column:
    known = {level: index for index, level in enumerate(levels)}
    texts, index_of = _in_learned_spelling(column, known)
    codes = [*(known.get(text, len(levels)) for text in texts), known.get(MISSING_LEVEL, np.nan)]
    values = np.array(codes, np.float64)[index_of]
    new = values == len(levels)
    if new.any():
        row = int(np.argmax(new))
        level = texts[index_of[row]]
        if unseen == "error":
            raise DomainError(
                f"column {quoted(column.name)} of {quoted(table.path)} must hold categories seen in training "
                f"({listed(levels)}), got {quoted(level)} at {table.where(row)}; correct it, or pass unseen='new' "
                "(--unseen new) to treat it as unlike all of them."
            )
        notes.append(
            f"column {quoted(column.name)}: {int(new.sum())} rows have a category that training did not see, the first "
            f"{quoted(level)} at {table.where(row)}; it is treated as unlike all known ones."
        )
    return Column(column.name, "category", values, tuple(levels), column.stored_as)


def _in_learned_spelling(column: Column, known: Mapping[str, int]) -> tuple[list[str], npt.NDArray[np.int64]]:
    """The column's distinct values as text, and each row's index among them, -1 where it has none.

    Text is what is written where that is known, a mark of missing values too. Otherwise a number or boolean is the
    learned category of the same value, but digits after a zero are a name: 01 is not 1.
    """
    as_written = column.written is not None
    source = column.written or column
    given = np.flatnonzero(~np.isnan(source.values))
    distinct, first, inverse = np.unique(source.values[given], return_index=True, return_inverse=True)
    texts, index_of = [], np.full(len(source.values), -1)
    equal = _by_value(column, known)
    for place, (value, row) in enumerate(zip(distinct.tolist(), given[first].tolist(), strict=True)):
        text = source.levels[int(value)] if source.kind == "category" else _shown_value(column, value)
        exact = as_written and (text in known or is_name(text))
        alike = [] if exact else equal.get(float(column.values[row]), [])
        if len(alike) > 1:
            raise DomainError(
                f"column {quoted(column.name)} must hold text as in training, got {text}, which may be any of "
                f"{listed(alike)}; write it as text, spelled as one of them."
            )
        if as_written and not alike and text not in known and text.lower() in MISSING:
            inverse = np.where(inverse == place, -1, inverse)
        texts.append(alike[0] if alike else text)
    index_of[given] = inverse
    return texts, index_of


def _by_value(column: Column, known: Mapping[str, int]) -> dict[float, list[str]]:
    """Learned categories by what they are as a number or boolean, where the column holds such."""
    found: dict[float, list[str]] = {}
    for level in known:
        if column.kind == "boolean" and level.casefold() in ("true", "false"):
            found.setdefault(float(level.casefold() == "true"), []).append(level)
        elif column.kind == "number" and not (column.cells is not None and is_name(level)):
            number = number_of(level)
            if number is not None:
                found.setdefault(number, []).append(level)
    return found


def _shown_value(column: Column, value: float) -> str:
    return f"{value:g}" if column.kind == "number" else str(bool(value)).lower()


def _number_hint(table: Table, column: Column) -> str:
    """Point at what makes an almost numeric column text."""
    if column.kind != "category":
        return ""
    if (differs := slip(table, column, "target")) is not None:
        return f": {differs}"
    numeric = np.array([number_of(level) is not None for level in column.levels])
    if numeric.all():
        return ", numbers that are kept as text: convert the column to numbers"
    given = ~np.isnan(column.values)
    is_text = np.zeros(table.rows, bool)
    is_text[given] = ~numeric[column.values[given].astype(np.int64)]
    row = int(np.argmax(is_text))
    text = quoted(column.levels[int(column.values[row])])
    if numeric.any():
        return (
            f": {int(given.sum() - is_text.sum())} are numbers, the first that is not is {text} at {table.where(row)}"
        )
    return f", the first is {text} at {table.where(row)}"
