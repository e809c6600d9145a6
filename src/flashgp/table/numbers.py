"""Numbers and percentages as text."""

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["DECIMAL_COMMA", "is_name", "number_of", "percentages"]

DECIMAL_COMMA = r"^[+-]?(?:[0-9]+(?:,[0-9]*)?|,[0-9]+)(?:[eE][+-]?[0-9]+)?$"
_NAME = re.compile(r"0\d+", re.ASCII)
_PERCENTAGE = re.compile(r"([+-]?[0-9.,]+)\s?%", re.ASCII)


def number_of(cell: str) -> float | None:
    """A cell as a number; None if it is none."""
    try:
        return None if "_" in cell else float(cell)
    except ValueError:
        return None


def is_name(cell: str) -> bool:
    """Whether a cell is digits after a zero, as of post codes: 01 is another name than 1."""
    return _NAME.fullmatch(cell) is not None


def percentages(texts: Sequence[str], decimal: str = ".") -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Texts such as 45% or 4.5 % as the number before the sign, (texts,), and which texts are such.

    Args: decimal: "." or ",", the decimal mark.
    """
    values = np.full(len(texts), np.nan)
    for row, text in enumerate(texts):
        match = _PERCENTAGE.fullmatch(text)
        if match is None:
            continue
        number = match[1]
        if decimal == ",":
            number = number.replace(",", ".") if re.fullmatch(DECIMAL_COMMA, number) else ""
        values[row] = value if (value := number_of(number)) is not None else np.nan
    return values, ~np.isnan(values)
