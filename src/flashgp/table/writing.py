"""Write columns of numbers to CSV, CSV.gz or Parquet, whole or not at all.

The file appears under its name only when it is complete and on disk: it is written beside it under another name,
synced, then renamed.
"""

import contextlib
import csv
import gzip
import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from flashgp.foundations.atomic import replacing

from ..foundations.errors import DomainError
from .columns import quoted
from .conversion import require_pyarrow
from .reading import STANDARD_OUTPUT, require_format

Columns = Mapping[str, Any]


def write_predictions(path: str | os.PathLike[str], columns: Columns) -> None:
    """Write named columns to a .csv, .csv.gz or .parquet file, atomically. As `prediction_file`, of one part."""
    with prediction_file(path) as write:
        write(columns)


@contextlib.contextmanager
def prediction_file(path: str | os.PathLike[str]) -> Iterator[Callable[[Columns], None]]:
    """A function that appends rows to a .csv, .csv.gz or .parquet file, which is there once the block succeeds.

    What is written takes named columns: arrays of one length, shape (rows,), float64 or of Arrow, in the order they are
    written, of the same names each time. Numbers are written so that reading gives the same bits; NaN as "nan".

    Args:
        path: the file; an existing one is replaced. The suffix decides the format. "-" is standard output, as CSV.

    Raises:
        DomainError: for an unknown suffix, or a file that cannot be written (nothing is left behind).
        BackendUnavailableError: for Parquet without pyarrow.
    Memory: of the rows of one call.
    """
    name = os.fspath(path)
    suffix = require_format(name)
    if name == STANDARD_OUTPUT:
        with contextlib.ExitStack() as stack:
            yield _csv_rows(sys.stdout.buffer, stack)
        return
    try:
        with replacing(name) as file, contextlib.ExitStack() as stack:
            if suffix == ".parquet":
                yield _parquet_rows(require_pyarrow(name), file, stack)
            elif suffix == ".csv.gz":
                # No file name and no time inside: equal columns give equal bytes.
                packed = gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=6, mtime=0)
                yield _csv_rows(stack.enter_context(packed), stack)
            else:
                yield _csv_rows(file, stack)
    except OSError as error:
        raise DomainError(
            f"`path` must be a file that can be written, got {quoted(name)} ({error.strerror or error}); "
            "choose an existing folder with room where you may write."
        ) from None


def _parquet_rows(pyarrow: Any, file: Any, stack: contextlib.ExitStack) -> Callable[[Columns], None]:
    writers: list[Any] = []

    def write(columns: Columns) -> None:
        rows = pyarrow.table(dict(columns))
        if not writers:
            writers.append(stack.enter_context(pyarrow.parquet.ParquetWriter(file, rows.schema)))
        writers[0].write_table(rows)

    return write


def _csv_rows(file: Any, stack: contextlib.ExitStack) -> Callable[[Columns], None]:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    stack.callback(text.detach)
    writer = csv.writer(text, lineterminator="\n")
    names: list[str] = []

    def write(columns: Columns) -> None:
        if not names:
            names.extend(columns)
            writer.writerow(names)
        assert names == [*columns]
        every = (each.tolist() if isinstance(each, np.ndarray) else each.to_pylist() for each in columns.values())
        writer.writerows(zip(*every, strict=True))

    return write
