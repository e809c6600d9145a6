"""Parquet files through pyarrow, which is imported only here and only when such a file is met.

Types are taken as stored: text is never reread as a number or a date, and only null and empty text are missing.
A column of another type (lists, structures, bytes, durations) is kept as kind "other" so that it can be dropped.
"""

import os
from typing import Any

import numpy as np
import numpy.typing as npt

from ..foundations.errors import BackendUnavailableError, DomainError, ShapeError
from .columns import Column, Table, category_column, checked_names, quoted

__all__ = ["read_parquet", "require_pyarrow"]

_MICROSECONDS_PER_DAY = 86_400_000_000


def require_pyarrow(path: str) -> Any:
    """The pyarrow package, its Parquet part loaded; BackendUnavailableError names the extra when it is absent."""
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError:
        raise BackendUnavailableError(
            f"{quoted(path)} needs pyarrow to read or write Parquet, which is not installed; "
            "install flashgp[table], or use CSV."
        ) from None
    return pyarrow


def read_parquet(path: str | os.PathLike[str]) -> Table:
    """Read a Parquet file.

    Args: path: the file.
    Returns: the table; columns that pandas stored as an index are left out and said.
    Raises: BackendUnavailableError without pyarrow; DomainError for a broken file; ShapeError without rows or columns.
    Cost: the file decoded once, then 8 bytes a cell.
    """
    name = os.fspath(path)
    pyarrow = require_pyarrow(name)
    try:
        # One file, not a directory of files, and no interpretation of folder names.
        with pyarrow.OSFile(name, "rb") as file:
            stored = pyarrow.parquet.ParquetFile(file).read()
        columns: list[Column] = []
        notes: list[str] = []
        for field, data in zip(stored.schema, stored.columns, strict=True):
            if field.name.startswith("__index_level_"):
                notes.append(f"column {quoted(field.name)} is an index that pandas stored: left out.")
            else:
                columns.append(_column(pyarrow, field.name.strip() or f"column_{len(columns) + 1}", data))
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        raise DomainError(
            f"{quoted(name)} must be a readable Parquet file, got {quoted(str(error))}; write it again, or export CSV."
        ) from None
    checked_names([column.name for column in columns], name)
    if not columns or stored.num_rows == 0:
        raise ShapeError(
            f"{quoted(name)} must have at least one row and one column, got {stored.num_rows} rows and {len(columns)} "
            "columns; check that it is the file you meant."
        )
    return Table(name, tuple(columns), stored.num_rows, True, None, tuple(notes))


def _column(pyarrow: Any, name: str, data: Any) -> Column:
    types, compute = pyarrow.types, pyarrow.compute
    stored = data.type
    if types.is_dictionary(stored):
        data = data.cast(stored.value_type)
    kind, stored_as = data.type, str(stored)
    if types.is_boolean(kind):
        return Column(name, "boolean", _floats(pyarrow, data.cast("uint8")), stored_as=stored_as)
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_null(kind):
        return Column(name, "number", _floats(pyarrow, data), stored_as=stored_as)
    if types.is_timestamp(kind) or types.is_date(kind):
        # Microseconds as the datetime module has; finer digits are cut, as they are from text.
        moments = compute.cast(data, pyarrow.timestamp("us", getattr(kind, "tz", None)), safe=False)
        return Column(
            name, "date", _floats(pyarrow, moments.cast("int64")) / _MICROSECONDS_PER_DAY, stored_as=stored_as
        )
    if types.is_string(kind) or types.is_large_string(kind):
        cells = [None if cell is None or not cell.strip() else cell.strip() for cell in data.to_pylist()]
        return category_column(name, cells, stored_as)
    return Column(name, "other", np.full(len(data), np.nan), stored_as=stored_as)


def _floats(pyarrow: Any, data: Any) -> npt.NDArray[np.float64]:
    """float64 with NaN for null; integers beyond 2**53 are rounded, as they are from text."""
    values = pyarrow.compute.cast(data, pyarrow.float64(), safe=False)
    return np.array(values.to_numpy(), np.float64)
