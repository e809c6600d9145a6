"""Write columns of numbers to CSV, CSV.gz or Parquet, whole or not at all.

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

from ..foundations.errors import DomainError
from .columns import quoted
from .conversion import require_pyarrow
from .reading import require_format

__all__ = ["write_predictions"]


def write_predictions(path: str | os.PathLike[str], columns: Mapping[str, npt.NDArray[np.float64]]) -> None:
    """Write named columns to a .csv, .csv.gz or .parquet file, atomically.

    Args:
        path: the file; an existing one is replaced. The suffix decides the format.
        columns: arrays of one length, shape (rows,), float64, in the order they are written. Numbers are written so
            that reading gives the same bits; NaN as "nan".

    Raises:
        DomainError: for an unknown suffix, or a file that cannot be written (nothing is left behind).
        BackendUnavailableError: for Parquet without pyarrow.
    """
    name = os.fspath(path)
    suffix = require_format(name)
    try:
        with replacing(name) as file:
            if suffix == ".parquet":
                pyarrow = require_pyarrow(name)
                pyarrow.parquet.write_table(pyarrow.table(dict(columns)), file)
            elif suffix == ".csv.gz":
                # No file name and no time inside: equal columns give equal bytes.
                with gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=6, mtime=0) as packed:
                    _write_csv(packed, columns)
            else:
                _write_csv(file, columns)
    except OSError as error:
        raise DomainError(
            f"`path` must be a file that can be written, got {quoted(name)} ({error.strerror or error}); "
            "choose an existing folder with room where you may write."
        ) from None


def _write_csv(file: Any, columns: Mapping[str, npt.NDArray[np.float64]]) -> None:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    try:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*(values.tolist() for values in columns.values()), strict=True))
    finally:
        text.detach()
