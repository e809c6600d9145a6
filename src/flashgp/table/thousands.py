"""Marks between thousands: 1,234.5 and 1.234,5, 1'234.5 and 1 234,5."""

import re
from itertools import product
from typing import Any

__all__ = ["THOUSANDS", "decided_mark", "without_thousands"]

_SPACES = ("'", "\u2019", " ", "\u00a0", "\u202f")
_BETWEEN = {".": (",", *_SPACES), ",": (".", *_SPACES)}  # by the decimal mark
_GROUPED = {
    (decimal, mark): (
        rf"^[+-]?(?:[0-9]+|[1-9][0-9]{{0,2}}(?:{re.escape(mark)}[0-9]{{3}})+)(?:{re.escape(decimal)}[0-9]*)?$"
    )
    for decimal, marks in _BETWEEN.items()
    for mark in marks
}
THOUSANDS = {decimal: rf"[0-9][{''.join(marks)}][0-9]{{3}}" for decimal, marks in _BETWEEN.items()}  # of numbers
_BY_OTHER_MARK = {".": ",", ",": "."}
_DECIDED = {
    decimal: rf"^[+-]?[1-9][0-9]{{0,2}}(?:(?:{mark}[0-9]{{3}})+{point}[0-9]+|(?:{mark}[0-9]{{3}}){{2,}})$"
    for decimal, mark, point in ((".", ",", r"\."), (",", r"\.", ","))
}


def without_thousands(compute: Any, cells: Any, decimal: str) -> Any | None:
    """Cells of numbers without what stands between their thousands, the same mark in all of them; None for others.

    Args: cells, Arrow text without missing values; decimal, "." or ",", the decimal mark, which stays.
    """
    for mark in _BETWEEN[decimal]:
        pattern = _GROUPED[decimal, mark]
        if len(cells) and re.match(pattern, cells[0].as_py()) is None:  # which spares a look at every cell
            continue
        if compute.all(compute.match_substring_regex(cells, pattern), min_count=0).as_py():
            return compute.replace_substring(cells, mark, "")
    return None


def decided_mark(compute: Any, columns: Any) -> str | None:
    """The decimal mark of numbers with thousands that can be read in one way alone, such as 1,234.5 and 1,234,567; None
    where there are none, or some for each. A column tells it whose given cells, Arrow text, are all such numbers."""
    found = {
        decimal
        for (decimal, mark), column in product(_BY_OTHER_MARK.items(), columns)
        if compute.any(compute.match_substring_regex(column, _DECIDED[decimal]), min_count=0).as_py()
        and compute.all(compute.match_substring_regex(column, _GROUPED[decimal, mark]), min_count=0).as_py()
    }
    return found.pop() if len(found) == 1 else None
