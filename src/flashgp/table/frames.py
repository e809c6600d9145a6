"""Tables in memory: frames of pandas, polars and pyarrow, whatever speaks Arrow, and dicts of columns."""

import os
from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np

from ..foundations.errors import DomainError, FlashGPError
from .columns import Table, checked_names, quoted
from .conversion import require_pyarrow, table_from_arrow
from .reading import read_table

_SHOWN_CHARACTERS = 200


def table_of(data: Any, name: str = "table", *, header: bool | None = None) -> Table:
    """A typed table from what a user has; rows of a frame are counted from 0, those of a file from 1.

    Args:
        data: a `Table`; a path, as `read_table`; a frame of pandas, polars or pyarrow, or another with
            `__arrow_c_stream__` or `to_arrow`; or a dict of columns. An index of pandas is no column.
        name: what it is called in an error.
        header: of a path, whether its first row names the columns.

    Raises:
        DomainError: for other data, or a column that holds values of several kinds (named).
        ShapeError: without rows or columns, for columns of different lengths or two of one name.
        BackendUnavailableError: without pyarrow; install flashgp[table].
    Cost: one array of 8 bytes a cell.

    Example:
        >>> table = table_of({"city": ["Ulm", "Bonn"], "price": [10, 20]})
        >>> [(column.name, column.kind) for column in table.columns]
        [('city', 'category'), ('price', 'number')]
    """
    if isinstance(data, Table):
        return data
    if isinstance(data, str | os.PathLike):
        return read_table(data, header=header)
    pyarrow = require_pyarrow(name)
    if _of_pandas(data):
        checked_names([str(column) for column in data.columns], name)
    try:
        return table_from_arrow(pyarrow, _arrow(pyarrow, data, name), name, first_row=0)
    except FlashGPError:
        raise
    except (pyarrow.ArrowException, TypeError, ValueError, OverflowError) as error:
        _refuse_mixed(data, name)
        got = " ".join(map(str, error.args))[:_SHOWN_CHARACTERS]
        raise DomainError(
            f"`{name}` must hold columns of one kind of values and one length each, got {got!r}; convert the column to "
            "numbers or to text"
        ) from None


def _of_pandas(data: Any) -> bool:
    return type(data).__module__.partition(".")[0] == "pandas" and hasattr(data, "columns")


def _refuse_mixed(data: Any, name: str) -> None:
    """DomainError naming the first column of Python's values that holds several kinds, and two rows that differ."""
    for label, column in data.items() if _of_pandas(data) or isinstance(data, Mapping) else ():
        listed = isinstance(column, list | tuple) or getattr(column, "dtype", None) == np.dtype(object)
        given = [(row, cell) for row, cell in enumerate(column if listed else ()) if cell is not None and cell == cell]
        for row, cell in given[1:]:
            if isinstance(cell, Real) is not isinstance(given[0][1], Real):
                raise DomainError(
                    f"column {quoted(str(label))} of {quoted(name)} must hold one kind of values, got "
                    f"{_shown(given[0][1])} at row {given[0][0]} and {_shown(cell)} at row {row}; convert the column "
                    "to numbers or to text"
                )


def _shown(cell: Any) -> str:
    return f"{float(cell):g}" if isinstance(cell, Real) else repr(cell)[:_SHOWN_CHARACTERS]


def _arrow(pyarrow: Any, data: Any, name: str) -> Any:
    """The data as an Arrow table. Raises: what Arrow raises; DomainError for what is no table."""
    if _of_pandas(data):
        return pyarrow.Table.from_pandas(data, preserve_index=False)
    if isinstance(data, Mapping):
        return pyarrow.table({str(key): _cells(pyarrow, key, column) for key, column in data.items()})
    if hasattr(data, "__arrow_c_stream__"):
        return pyarrow.table(data)
    if hasattr(data, "to_arrow"):
        return data.to_arrow()
    raise DomainError(
        f"`{name}` must be a frame of pandas, polars or pyarrow, a dict of columns or a path, got "
        f"{type(data).__name__}; for arrays use flashgp.GPRegressor"
    )


def _cells(pyarrow: Any, key: Any, column: Any) -> Any:
    """One column of a dict. Raises: ValueError naming it."""
    if hasattr(column, "__array__") and not hasattr(column, "__arrow_c_array__"):
        column = np.asarray(column)
    try:
        if hasattr(column, "__arrow_c_stream__"):
            return pyarrow.chunked_array(column)
        return pyarrow.array(column, from_pandas=True)
    except (pyarrow.ArrowException, TypeError) as error:
        raise ValueError(f"column {key!r}: {error}") from None
