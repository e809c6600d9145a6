"""Numbers and percentages as text, with marks between thousands: 1,234.5 and 1.234,5, 1'234.5 and 1 234,5."""

import re
from itertools import product
from typing import Any

DECIMAL_COMMA = r"^[+-]?(?:[0-9]+(?:,[0-9]*)?|,[0-9]+)(?:[eE][+-]?[0-9]+)?$"
_NAME = re.compile(r"0\d+", re.ASCII)
_PERCENTAGE = re.compile(r"([+-]?[0-9.,].*?)\s*%")


def number_of(cell: str) -> float | None:
    """A cell as a number; None if it is none."""
    try:
        return None if "_" in cell else float(cell)
    except ValueError:
        return None


def is_name(cell: str) -> bool:
    """True if a cell is digits after a zero, as of post codes: 01 is another name than 1."""
    return _NAME.fullmatch(cell) is not None


def has_names(compute: Any, cells: Any) -> bool:
    """True if some cells, Arrow text, are names of digits."""
    from_zero = cells.filter(compute.starts_with(cells, "0"))
    return bool(compute.any(compute.match_substring_regex(from_zero, f"^{_NAME.pattern}$"), min_count=0).as_py())


def before_percent(text: str) -> str | None:
    """Text before the sign of a percentage such as 45%, 4.5 % or 1,234.5%; None for other text."""
    match = _PERCENTAGE.fullmatch(text)
    return None if match is None else match[1]


_SPACES = " \u00a0\u202f"
_OTHERS = ("'", "\u2019", *_SPACES)
_BETWEEN = {".": (",", *_OTHERS), ",": (".", *_OTHERS)}  # by the decimal mark
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
    decimal: rf"^[+-]?[1-9][0-9]{{0,2}}(?:{mark}[0-9]{{3}})+{point}[0-9]+$"
    for decimal, mark, point in ((".", ",", r"\."), (",", r"\.", ","))
}
_GROUPS_OF_POINTS = r"^[+-]?[1-9][0-9]{0,2}(?:\.[0-9]{3}){2,}$"
_SPACED = rf"[0-9][{_SPACES}][0-9]"


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
    """The decimal mark of numbers that have it after thousands, such as 1,234.5; None where there are none, or some for
    each. A column tells it whose given cells, Arrow text, are all numbers with such thousands."""
    found = {
        decimal
        for (decimal, mark), column in product(_BY_OTHER_MARK.items(), columns)
        if compute.any(compute.match_substring_regex(column, _DECIDED[decimal]), min_count=0).as_py()
        and compute.all(compute.match_substring_regex(column, _GROUPED[decimal, mark]), min_count=0).as_py()
    }
    return found.pop() if len(found) == 1 else None


def groups_of_points(compute: Any, cells: Any) -> bool:
    """True if cells have no decimal comma and all thousands between points, of which some have two: 1.234.567. That
    tells what points are in this column, but not in others, as it may hold the numbers of articles."""
    grouped = compute.match_substring_regex(cells, _GROUPED[",", "."])
    some = compute.any(compute.match_substring_regex(cells, _GROUPS_OF_POINTS), min_count=0).as_py()
    return bool(some and compute.all(grouped, min_count=0).as_py())


def may_be_codes(compute: Any, cells: Any) -> bool:
    """True if numbers with spaces between groups of digits may as well be codes, such as those of telephones: with a
    plus before one and no minus, or equally many groups in all, three or more, without decimals."""
    if not compute.any(compute.match_substring_regex(cells, _SPACED), min_count=0).as_py():
        return False
    plus, minus = (compute.any(compute.starts_with(cells, sign), min_count=0).as_py() for sign in "+-")
    if plus or minus:
        return bool(plus and not minus)
    spaces = compute.count_substring_regex(cells, f"[{_SPACES}]")
    decimals = compute.any(compute.match_substring_regex(cells, "[.,]"), min_count=0).as_py()
    return bool(not decimals and spaces[0].as_py() > 1 and compute.count_distinct(spaces).as_py() == 1)
