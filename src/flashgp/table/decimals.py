"""Whether the numbers of delimited text have a decimal comma, decided by all of them together."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..foundations.errors import DomainError
from .columns import Column, Kind, quoted
from .conversion import MISSING, NO_VALUE_BESIDE, column_from_text, given_cells
from .thousands import decided_mark, groups_of_points

__all__ = ["has_decimal_comma"]

_THOUSANDS = r"^[+-]?[1-9][0-9]{0,2}[.,][0-9]{3}$"  # 12,345 may also be twelve thousand
_NUMERIC: tuple[Kind, ...] = ("number", "percentage")
_PERCENT_SIGN = r"[\s\x{a0}\x{202f}]*%$"


def has_decimal_comma(
    pyarrow: Any,
    columns: Sequence[Column],
    cells: Sequence[Any],
    delimiter: str,
    decimal: str | None,
    path: str,
    notes: list[str],
) -> bool:
    """Whether numbers have a decimal comma. Raises: DomainError for possible thousands, and for a mixture of marks."""
    compute = pyarrow.compute
    if decimal == "." or (decimal is None and delimiter == ","):
        return False
    marks = (*MISSING, *NO_VALUE_BESIDE)
    given = [compute.replace_substring_regex(given_cells(pyarrow, one, marks)[0], _PERCENT_SIGN, "") for one in cells]
    decimal = decimal or decided_mark(compute, given)
    if decimal == ".":
        return False
    comma_columns, ambiguous = [], ""
    for column, numbers in zip(columns, given, strict=True):
        comma = numbers.filter(compute.match_substring(numbers, ","))
        if len(comma) and column_from_text(pyarrow, "", numbers, ",").kind == "number":
            comma_columns.append(column.name)
            thousands = compute.all(compute.match_substring_regex(comma, _THOUSANDS)).as_py()
            ambiguous = (ambiguous or comma[0].as_py()) if thousands else "no"
            if not thousands:
                break
    if decimal is None and not comma_columns:
        return _points_are_thousands(compute, columns, given, path)
    if decimal is None and ambiguous != "no":
        raise DomainError(
            f"numbers of {quoted(path)} must have one clear decimal mark, got {quoted(ambiguous)} in column "
            f"{quoted(comma_columns[0])}, decimals or thousands; pass decimal=',' or remove them."
        )
    for column, numbers in zip(columns, given, strict=True):
        if column.kind in _NUMERIC and np.any(column.values[np.isfinite(column.values)] % 1):
            grouped = column_from_text(pyarrow, "", numbers, ",").kind == "number"
            if grouped and decimal is not None:
                continue
            other = f"decimal commas in column {quoted(comma_columns[0])}" if comma_columns else "decimal=','"
            also = ", or pass decimal=',' if these are thousands" if grouped else ""
            raise DomainError(
                f"numbers of {quoted(path)} must have one decimal mark, got {other} and decimal points in column "
                f"{quoted(column.name)}; write all numbers with a point{also}."
            )
    if comma_columns:
        notes.append(f"decimal comma in {quoted(comma_columns[-1])}.")
    return True


def _points_are_thousands(compute: Any, columns: Sequence[Column], given: Sequence[Any], path: str) -> bool:
    """Whether a column has groups between points, as 1.234.567, and no other one decimal points, without any commas.

    Raises: DomainError where another column may have either.
    """
    grouped = [index for index, one in enumerate(given) if groups_of_points(compute, one)]
    if not grouped:
        return False
    pointed = {
        column.name: one.filter(compute.match_substring(one, ".")) for column, one in zip(columns, given, strict=True)
        if column.kind in _NUMERIC
    }  # fmt: skip
    pointed = {name: one for name, one in pointed.items() if len(one)}
    if any(not compute.all(compute.match_substring_regex(one, _THOUSANDS)).as_py() for one in pointed.values()):
        return False
    if pointed:
        (name, one), codes = next(iter(pointed.items())), columns[grouped[0]].name
        code = given[grouped[0]].filter(compute.match_substring_regex(given[grouped[0]], r"\..*\."))[0].as_py()
        raise DomainError(
            f"numbers of {quoted(path)} must have one clear decimal mark, got {quoted(one[0].as_py())} in column "
            f"{quoted(name)}, decimals or thousands beside {quoted(code)} in column {quoted(codes)}; "
            "pass decimal=',' (--decimal ,) for thousands, or decimal='.' for decimals."
        )
    return True
