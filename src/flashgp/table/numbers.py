"""Numbers and percentages as text."""

import re
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
    """Whether a cell is digits after a zero, as of post codes: 01 is another name than 1."""
    return _NAME.fullmatch(cell) is not None


def has_names(compute: Any, cells: Any) -> bool:
    """Whether some cells, Arrow text, are names of digits."""
    from_zero = cells.filter(compute.starts_with(cells, "0"))
    return bool(compute.any(compute.match_substring_regex(from_zero, f"^{_NAME.pattern}$"), min_count=0).as_py())


def before_percent(text: str) -> str | None:
    """What stands before the sign of a percentage such as 45%, 4.5 % or 1,234.5%; None for other text."""
    match = _PERCENTAGE.fullmatch(text)
    return None if match is None else match[1]
