"""Targets and inputs that are refused before scikit-learn makes float64 of them: labels, and numbers that it merges."""

from collections.abc import Mapping
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np

from flashgp.foundations.errors import DomainError
from flashgp.foundations.exact_integers import first_inexact
from flashgp.table.columns import checked_names

# Columns of a frame that are no numbers even if one could force them into one.
NOT_NUMBERS = (nw.String, nw.Categorical, nw.Enum, nw.Datetime, nw.Date, nw.Duration, nw.Time)
_LARGE = (nw.Int64, nw.UInt64, nw.Int128, nw.UInt128)
_LABELS = (str, bytes, bool, np.bool_)


def refuse_repeated_columns(frame: Any, name: str) -> None:
    """ShapeError naming two columns of one name."""
    if not isinstance(frame, Mapping) and hasattr(frame, "columns"):
        checked_names([str(column) for column in frame.columns], name)


def refuse_labels(y: Any) -> None:
    """DomainError for targets of text, categories or booleans; a column without any value is none of them."""
    native = nw.from_native(y, eager_only=True, pass_through=True, allow_series=True)
    if isinstance(native, nw.DataFrame | nw.Series):
        series = [native] if isinstance(native, nw.Series) else list(native.iter_columns())
        kinds = [column.dtype for column in series if column.null_count() < len(column)]
        label = next((kind for kind in kinds if isinstance(kind, (*NOT_NUMBERS, nw.Boolean))), None)
        found = None if label is None else "text" if label == nw.String else str(label)
        array = native.to_numpy() if found is None and nw.Object in kinds else np.empty(0)
    else:
        array, found = np.asarray(y) if not hasattr(y, "toarray") else np.empty(0), None
    if array.dtype.kind in "USb":
        found = "text" if array.dtype.kind in "US" else "booleans"
    elif array.dtype.kind == "O" and found is None:
        found = next(("text" if isinstance(v, str) else "booleans" for v in array.flat if isinstance(v, _LABELS)), None)
    if found is not None:
        raise DomainError(
            f"`y` must hold numbers, got {found}: this looks like classification, which is not here yet; encode an "
            "order as numbers, or use a classifier"
        )


def refuse_inexact(values: Any, name: str) -> None:
    """DomainError naming the first whole number that float64 does not hold, and its column."""
    frame = nw.from_native(values, eager_only=True, pass_through=True, allow_series=True)
    columns: list[tuple[str, Any]] = []
    if isinstance(frame, nw.DataFrame):
        columns = [(f" and column {c.name!r}", c) for c in frame.iter_columns() if isinstance(c.dtype, _LARGE)]
    elif isinstance(frame, nw.Series):
        columns = [("", frame)] if isinstance(frame.dtype, _LARGE) else []
    elif not hasattr(values, "toarray"):
        columns = [("", np.asarray(values))]
    for where, column in columns:
        found = first_inexact(column.drop_nulls().to_numpy() if isinstance(column, nw.Series) else column)
        if found is not None:
            index, number = found
            where = where or (f" and column {index[1]}" if len(index) > 1 else "")
            raise DomainError(
                f"`{name}` must hold whole numbers that float64 holds, got {number} at row {index[0] if index else 0}"
                f"{where}, which it merges with its neighbours; subtract one number from the column, or leave it out"
            )
