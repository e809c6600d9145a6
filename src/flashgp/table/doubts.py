"""Refusals of columns of text: cells that may be read in several ways, and slips in what is no category.

Text that most cells make dates, percentages, clock times or numbers is none of categories: one cell that is different
would take the order of all others away.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from .columns import Column, Doubt, Table, quoted
from .dates import clock_hours, days_without_year, is_season, likely_dates, shown_date
from .numbers import DECIMAL_COMMA, before_percent, is_name, number_of
from .roles import as_categories

_DOUBTS: dict[Doubt, tuple[str, str]] = {
    "codes": ("codes, or numbers with spaces between thousands", "write numbers without spaces"),
    "seasons": ("seasons of two years, or months", "write seasons as one year, months as YYYY-MM-01"),
    "days": ("days without a year, or months of years of two digits", "write them as YYYY-MM-DD, months as YYYY-MM"),
}
_WAYS_OUT = {
    "numbers with decimal commas": "write points",
    "percentages with decimal commas": "write points",
    "dates written alike": "write all in one form, such as YYYY-MM-DD",
    "seasons of two years": "write them as one year",
    "days without a year": "add the year, as YYYY-MM-DD",
}
_CENTURY = 2000
_MOST = 0.5  # of the cells
_RATIO = re.compile(r"\d+:\d+", re.ASCII)  # 1:100


def open_reading(table: Table, column: Column, role: Literal["input", "target"]) -> str | None:
    """Decision on all cells of a column that a user has to make before it can be learned; None if nothing is open."""
    if column.doubt is None or np.ptp(column.values[~np.isnan(column.values)]) == 0:
        what = open_dates(table, column)
        orders = " or ".join(f"dates={order!r} (--dates {order})" for order in column.readings)
        which = "the first" if what and column.cells is not None and _is_century_open(column) else "which"
        return what and f"{what}: say {which} by {orders}, or write them as YYYY-MM-DD"
    row = int(np.argmax(~np.isnan(column.values)))
    what, otherwise = _DOUBTS[column.doubt]
    text = column.text(row)
    example = "" if text is None else f", {quoted(text)} at {table.where(row)}"
    return f"{what}{example}{_ways_out(table, column, role, otherwise)}"


def _ways_out(table: Table, column: Column, role: Literal["input", "target"], *others: str | None) -> str:
    """Ways out for a user, of an input categories too, where they work."""
    categories = as_categories(table, column) if role == "input" else None
    ways = [way for way in (*others, categories) if way is not None]
    return f": {', or '.join(ways)}" if ways else ""


def open_dates(table: Table, column: Column) -> str | None:
    """Ambiguity of dates: the order of day and month, the century, or what two digits are; None without one."""
    if not column.undecided:
        return None
    differs = _differs(column)
    row = int(np.argmax(differs if differs.any() else ~np.isnan(column.values)))
    text = column.text(row)
    days = {order: shown_date(float(of[row]), time=False) for order, of in column.readings.items()}
    if differs.any():
        readings = " or ".join(f"{day} by {order}" for order, day in days.items())
    elif _is_century_open(column):
        readings = " or ".join(_with_other_year(column, next(iter(days.values()))))
    else:
        readings = f"{next(iter(days.values()))} by either"
    example = "" if text is None else f", {quoted(text)} at {table.where(row)} as {readings}"
    why = "dates with years of two digits" if column.short_years else "dates of which day and month are open"
    return f"{why}{example}"


def _differs(column: Column) -> npt.NDArray[np.bool_]:
    """Mask of rows in which the order of day and month makes another date, (rows,)."""
    days = [*column.readings.values()]
    return ~np.isnan(column.values) & (days[0] != days[-1])


def _is_century_open(column: Column) -> bool:
    """True if only the century of two-digit years is ambiguous, and no order of day and month."""
    return column.short_years and not _differs(column).any()


def _with_other_year(column: Column, day: str) -> tuple[str, str]:
    """A day of a year of two digits, and what else its text may be: of another century, or two digits that are a day
    where they are in all rows."""
    written = column.written
    if written is not None:
        used = np.unique(written.values[~np.isnan(column.values)]).astype(np.int64)
        if days_without_year([written.levels[code] for code in used]).all():
            return f"the month {day[:7]}", f"the day {day[5:7]}-{day[2:4]} without a year"
    year = int(day[:4])
    return day, f"{year + (100 if year < _CENTURY else -100)}{day[4:]}"


def slip(table: Table, column: Column, role: Literal["input", "target"]) -> str | None:
    """Kind of most cells of a column of text, the first cell that differs, and what to do where it takes more than to
    correct that one; None for a column of categories."""
    if column.kind != "category" or column.declared:
        return None
    codes = column.values[~np.isnan(column.values)].astype(np.int64)
    counts = np.bincount(codes, minlength=len(column.levels))
    found = _found(column, counts)
    known = np.any([*found.values()], axis=0)
    if counts[known].sum() <= _MOST * counts.sum():
        return None
    what = max(found, key=lambda name: int(counts[found[name]].sum()))
    these = found[what]
    if what == "dates" and these.all():
        what, these = "dates written alike", likely_dates(column.levels, counts)[1]
    share = f"{counts[these].sum()} of {counts.sum()} cells are "
    if counts.sum() != column.given:  # a column that stands for many parts holds each value once
        share = f"{these.sum()} of {len(these)} distinct values are "
    unlike = ~these
    if these.all():
        unlike, share = these, ""
        if what in ("numbers", "percentages"):
            unlike = np.array([not _is_number(before_percent(level) or level, ".") for level in column.levels], bool)
            what = f"{what} with decimal commas"
        if not unlike.any():
            return None  # numbers that a typed file keeps as text
    row = int(np.argmax(np.isin(column.values, np.flatnonzero(unlike))))
    text = f"{quoted(str(column.text(row)))} at {table.where(row)}"
    differing = [level for level, is_one in zip(column.levels, unlike, strict=True) if is_one]
    ways = [_WAYS_OUT.get(what), *_by_options(table, column, what, differing)]
    if what == "clock times" and all(map(_RATIO.fullmatch, column.levels)):
        ways.append("write ratios as one number")
    return f"{share}{what}, the first {'that is not is ' if share else ''}{text}{_ways_out(table, column, role, *ways)}"


def _by_options(table: Table, column: Column, what: str, differing: Sequence[str]) -> list[str]:
    """Options of reading a table of text that make a slip none."""
    if table.lines is None:
        return []
    if what.endswith("with decimal commas"):
        numeric = [one for one in table.columns if one.kind in ("number", "percentage")]
        return [] if any(map(_has_points, (column, *numeric))) else ["have them read by decimal=',' (--decimal ,)"]
    if column.name == table.names[0] and all(level.startswith("#") for level in differing):
        return ["leave such lines out by comment='#' (--comment '#')"]
    return []


def _has_points(column: Column) -> bool:
    return column.written is not None and any("." in level for level in column.written.levels)


def _found(column: Column, counts: npt.NDArray[np.int64]) -> Mapping[str, npt.NDArray[np.bool_]]:
    """Mask of the levels of each kind, (levels,) each."""
    levels = column.levels
    return {
        "seasons of two years": np.array([is_season(level) for level in levels], bool),
        "dates": likely_dates(levels, counts)[0],
        "days without a year": days_without_year(levels),
        "percentages": np.array([_is_number(before_percent(level)) for level in levels], bool),
        "clock times": clock_hours(levels)[1],
        "numbers": np.array([_is_number(level) and not is_name(level) for level in levels], bool),
    }


def _is_number(text: str | None, marks: str = ".,") -> bool:
    """True if text is a number with one of these decimal marks."""
    return text is not None and (number_of(text) is not None or ("," in marks and bool(re.match(DECIMAL_COMMA, text))))
