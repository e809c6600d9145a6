"""Write columns of results to CSV, CSV.gz or Parquet, whole or not at all.

The file appears under its name only when it is complete and on disk: it is written beside it under another name,
synced, then renamed.
"""

import csv
import gzip
import io
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from flashgp.foundations.atomic import replacing

from ..foundations.errors import DomainError, ShapeError
from .columns import quoted
from .conversion import require_pyarrow
from .reading import require_format

__all__ = ["write_predictions"]

_CHUNK_ROWS = 65_536


def write_predictions(path: str | os.PathLike[str], columns: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write named columns to a .csv, .csv.gz or .parquet file, atomically.

    Args:
        path: the file; an existing one is replaced. The suffix decides the format.
        columns: arrays of one length, shape (rows,), of numbers, booleans or text, in the order they are written.
            Floating-point numbers are written so that reading gives the same bits; NaN as "nan".
    Raises: DomainError for an unknown suffix, a name that is empty, another dtype, or a file that cannot be written
        (nothing is left behind); ShapeError for other shapes or no column; BackendUnavailableError for Parquet
        without pyarrow.
    Cost: O(rows x columns); 65 536 rows of text in memory at a time for CSV.
    """
    name = os.fspath(path)
    suffix = require_format(name)
    arrays = {key: _checked(key, values) for key, values in columns.items()}
    lengths = {len(values) for values in arrays.values()}
    if len(lengths) != 1:
        shapes = ", ".join(f"{quoted(key)} {values.shape}" for key, values in arrays.items()) or "no columns"
        raise ShapeError(
            f"`columns` must be one or more arrays of one length, got {shapes}; pass arrays that belong together."
        )
    try:
        with replacing(name) as file:
            if suffix == ".parquet":
                pyarrow = require_pyarrow(name)
                table = pyarrow.table(
                    {
                        key: pyarrow.array(values, pyarrow.string() if values.dtype.kind == "O" else None)
                        for key, values in arrays.items()
                    }
                )
                pyarrow.parquet.write_table(table, file)
            elif suffix == ".csv.gz":
                # No file name and no time inside: equal columns give equal bytes.
                with gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=6, mtime=0) as packed:
                    _write_csv(packed, arrays)
            else:
                _write_csv(file, arrays)
    except OSError as error:
        raise DomainError(
            f"`path` must be a file that can be written, got {quoted(name)} ({error.strerror or error}); "
            "choose an existing folder with room where you may write."
        ) from None


def _checked(key: object, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if not isinstance(key, str) or not key.strip():
        raise DomainError(f"names of `columns` must be text that is not empty, got {key!r}; name the column.")
    array = np.asarray(values)
    if array.ndim != 1:
        raise ShapeError(f"column {quoted(key)} must have shape (rows,), got {array.shape}; pass one column a name.")
    if array.dtype.kind == "O" and all(isinstance(value, str) for value in array):
        return _utf8(key, array)
    if array.dtype.kind in "UT":
        return _utf8(key, array.astype(object))
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        raise DomainError(
            f"column {quoted(key)} must hold numbers, booleans or text, got dtype {array.dtype}; convert it first."
        )
    return array


def _utf8(key: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Text as an object array (a fixed width would pay for the longest cell in every row), all of it valid Unicode."""
    try:
        "".join((key, *array)).encode()
    except UnicodeEncodeError:
        raise DomainError(f"column {quoted(key)} must hold valid Unicode, got a lone surrogate; remove it.") from None
    return array


def _write_csv(file: Any, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    # Quoting as in RFC 4180, lines end in a bare newline. The writer quotes a carriage return only where it is part of
    # the line's end, so a table that holds one gets both characters.
    texts = [*arrays, *(cell for values in arrays.values() if values.dtype.kind == "O" for cell in values)]
    end = "\r\n" if any("\r" in text for text in texts) else "\n"
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    try:
        writer = csv.writer(text, lineterminator=end)
        writer.writerow(arrays)
        rows = len(next(iter(arrays.values())))
        for start in range(0, rows, _CHUNK_ROWS):
            cells = [_cells(values[start : start + _CHUNK_ROWS]) for values in arrays.values()]
            writer.writerows(zip(*cells, strict=True))
    finally:
        text.detach()


def _cells(values: npt.NDArray[Any]) -> list[str]:
    if values.dtype.kind == "b":
        return ["true" if value else "false" for value in values.tolist()]
    if values.dtype == np.float64 or values.dtype.kind != "f":
        return [str(value) for value in values.tolist()]
    # float32 and float16 in their own shortest digits, not those of the float64 nearby.
    return [str(value) for value in values]
