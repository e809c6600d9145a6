"""Detection of decimal commas in delimited text, decided by all of its numbers together."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..foundations.errors import DomainError
from .columns import Column, Kind, quoted
from .conversion import MISSING, NO_VALUE_BESIDE, given_cells, numbers_of
from .numbers import decided_mark, groups_of_points

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
    """True if numbers have a decimal comma, those of all columns or none.

    Commas in quotes between commas are taken for decimal ones where the user says so alone.
    Raises: DomainError where nothing tells decimals from thousands, and for a mixture of marks.
    """
    compute = pyarrow.compute

    def has(mark: str, one: Any) -> bool:
        return bool(compute.any(compute.match_substring(one, mark), min_count=0).as_py())

    by_point = [column.kind in _NUMERIC for column in columns]
    quoted_alone = decimal is None and delimiter == ","
    if decimal == "." or (
        quoted_alone and not any(ok and has(",", one) for ok, one in zip(by_point, cells, strict=True))
    ):
        return False
    marks = (*MISSING, *NO_VALUE_BESIDE)
    given = [compute.replace_substring_regex(given_cells(pyarrow, one, marks)[0], _PERCENT_SIGN, "") for one in cells]
    if not quoted_alone:
        decimal = decimal or decided_mark(compute, given)
    if decimal == ".":
        return False
    places = [place for place, one in enumerate(given) if has(",", one) or has(".", one)]
    by_comma = {place for place in places if numbers_of(pyarrow, given[place], ",") is not None}
    with_comma = [place for place in places if place in by_comma and has(",", given[place])]
    points = [place for place in places if by_point[place] and place not in by_comma]
    if decimal is None and (quoted_alone or all(by_point[place] for place in with_comma)):
        either = [place for place in with_comma if by_point[place]]
        if points or not either:
            return not points and not quoted_alone and _points_are_thousands(compute, columns, given, path)
        text = given[either[0]].filter(compute.match_substring(given[either[0]], ","))[0].as_py()
        raise DomainError(
            f"numbers of {quoted(path)} must have one clear decimal mark, got {quoted(text)} in column "
            f"{quoted(columns[either[0]].name)}, decimals or thousands; pass decimal=',' (--decimal ,) for decimals, "
            "or decimal='.' (--decimal .) for thousands."
        )
    grouped = [place for place in places if by_point[place] and np.any(_finite(columns[place]) % 1)]
    mixed = points or (grouped if decimal is None else [])
    if mixed:
        other = f"decimal commas in column {quoted(columns[with_comma[0]].name)}" if with_comma else "decimal=','"
        what = "decimal points" if has(".", given[mixed[0]]) else "commas between thousands"
        also = "" if points else ", or pass decimal=',' (--decimal ,) if these are thousands"
        raise DomainError(
            f"numbers of {quoted(path)} must have one decimal mark, got {other} and {what} in column "
            f"{quoted(columns[mixed[0]].name)}; write all numbers with a point{also}."
        )
    if with_comma:
        notes.append(f"decimal comma in {quoted(columns[with_comma[-1]].name)}.")
    return True


def _finite(column: Column) -> npt.NDArray[np.float64]:
    return column.values[np.isfinite(column.values)]


def _points_are_thousands(compute: Any, columns: Sequence[Column], given: Sequence[Any], path: str) -> bool:
    """True if a column has groups between points, as 1.234.567, and no other one decimal points, without any commas.

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
