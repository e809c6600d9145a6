"""Tables from files, CSV, CSV.gz and relatives or Parquet, told apart by their first bytes; and from frames and dicts.

Reading decides types and says what it decided; what a model makes of the columns is `encoding`'s matter.
"""

import codecs
import gzip
import os
import sys
import zlib
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np

from flashgp.foundations.errors import DomainError, FlashGPError, ShapeError
from flashgp.table.columns import Table, checked_names, quoted
from flashgp.table.conversion import require_pyarrow, table_from_arrow
from flashgp.table.delimited import parse_delimited

STANDARD_INPUT = STANDARD_OUTPUT = "-"

SUFFIXES = (".csv", ".csv.gz", ".parquet")
_PARQUET = b"PAR1"
_GZIP = b"\x1f\x8b"
_ZIP = b"PK\x03\x04"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


def read_table(
    path: str | os.PathLike[str],
    *,
    header: bool | None = None,
    delimiter: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
    comment: str | None = None,
    keep: Sequence[str] = (),
) -> Table:
    """Read a table from delimited text (plain or gzip) or Parquet.

    Args:
        path: the file; its first bytes, not its name, tell the format. "-" is standard input.
        header: True or False states whether the first row of text names the columns; None decides and says so.
        delimiter: one ASCII character; None decides among comma, semicolon, tab and bar.
        decimal: "." or ","; None decides, a decimal comma only where it cannot be anything else.
        encoding: of text, such as "cp1252"; None for UTF-8, or UTF-16 where its first bytes say so.
        comment: what begins a comment line, such as "#"; None finds those of a text that begins with "#".
        keep: columns, by name or position from 1, whose cells the table keeps as they are (`Table.kept`).

    Returns:
        The table, its rows in file order, with `notes` on what was decided.

    Raises:
        BackendUnavailableError: without pyarrow, before anything is read; install flashgp[table].
        DomainError: for a file that cannot be opened, decoded or understood.
        ShapeError: for one that is empty, ragged or has duplicate names.

    Example:
        >>> from pathlib import Path
        >>> _ = Path("houses.csv").write_text("city,price\\nUlm,10\\nBonn,20\\n")
        >>> table = read_table("houses.csv")
        >>> [(column.name, column.kind) for column in table.columns]
        [('city', 'category'), ('price', 'number')]
    """
    name = os.fspath(path)
    if delimiter is not None and (len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n\0'):
        raise DomainError(
            f"`delimiter` must be one ASCII character other than a quote or a line end, got {delimiter!r}; try ','."
        )
    if decimal not in (None, ".", ","):
        raise DomainError(f"`decimal` must be '.' or ',', got {decimal!r}; leave it out to have it decided.")
    if comment is not None and (not comment.strip() or comment != comment.strip() or '"' in comment):
        raise DomainError(f"`comment` must be what begins a comment line, such as '#', got {comment!r}; leave it out.")
    pyarrow = require_pyarrow(name)
    data = _file_bytes(name)
    if data.startswith(_PARQUET):
        return _parquet(pyarrow, data, name, keep)
    if name.lower().endswith(".parquet"):
        raise DomainError(
            f"{quoted(name)} must be a Parquet file, got {data[:8]!r} at its beginning; give text the suffix .csv."
        )
    text = _decoded(_unpacked(data, name), name, encoding)
    return parse_delimited(
        pyarrow, text, name, header=header, delimiter=delimiter, decimal=decimal, comment=comment, keep=keep
    )


def require_format(path: str | os.PathLike[str], argument: str = "path") -> str:
    """Check, before any work, that a file of this name can be written; returns its suffix.

    Args:
        path: a file name ending in .csv, .csv.gz or .parquet; or "-", standard output, which is CSV.
        argument: what it is called in an error.
    Returns: ".csv", ".csv.gz" or ".parquet".
    Raises: DomainError for another suffix, BackendUnavailableError for Parquet without pyarrow.
    """
    name = os.fspath(path)
    if name == STANDARD_OUTPUT:
        return ".csv"
    suffix = next((suffix for suffix in SUFFIXES if name.lower().endswith(suffix)), None)
    if suffix is None:
        raise DomainError(
            f"`{argument}` must end in {', '.join(SUFFIXES)}, got {quoted(name)}; add one of these suffixes."
        )
    if suffix == ".parquet":
        require_pyarrow(name)
    return suffix


def _parquet(pyarrow: Any, data: bytes, name: str, keep: Sequence[str]) -> Table:
    """A Parquet file; columns that pandas stored as an index are left out and said."""
    try:
        # The bytes, not the name: one file, not a directory of files, and no interpretation of folder names.
        stored = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(data)).read()
        return table_from_arrow(pyarrow, stored, name, keep=keep)
    except FlashGPError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        raise DomainError(
            f"{quoted(name)} must be a readable Parquet file, got {quoted(str(error))}; write it again, or export CSV."
        ) from None


def _file_bytes(name: str) -> bytes:
    try:
        if name == STANDARD_INPUT:
            data = sys.stdin.buffer.read()
        else:
            with open(name, "rb") as file:
                data = file.read()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DomainError(
            f"the table must be a readable file, got {quoted(name)} ({reason}); check the path."
        ) from None
    if not data:
        raise ShapeError(
            f"{quoted(name)} must have at least one row, got an empty file; check that it was written completely."
        )
    return data


def _unpacked(data: bytes, name: str) -> bytes:
    if not data.startswith(_GZIP):
        return data
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise DomainError(
            f"{quoted(name)} must be a complete gzip file, got {quoted(str(error))}; copy or compress it again."
        ) from None


def _decoded(data: bytes, name: str, encoding: str | None) -> str:
    if data.startswith(_ZIP):
        raise DomainError(
            f"{quoted(name)} must be text or Parquet, got a zip archive or spreadsheet; export it as CSV."
        )
    if encoding is None:
        encoding = "utf-16" if data.startswith(_UTF16) else "utf-8-sig"
    try:
        text = data.decode(encoding)
        mark = codecs.BOM_UTF8.decode(encoding, "ignore") if data.startswith(codecs.BOM_UTF8) else "\ufeff"
    except LookupError:
        raise DomainError(
            f"`encoding` must be one that Python knows, got {encoding!r}; for example 'cp1252' or 'utf-16'."
        ) from None
    except UnicodeDecodeError as error:
        # The error counts from after a byte order mark, if there is one.
        start = error.start + len(data) - len(error.object)
        line = data.count(b"\n", 0, start) + 1
        raise DomainError(
            f"{quoted(name)} must be {error.encoding.removesuffix('-sig').upper()} text, got byte 0x{data[start]:02x} "
            f"at line {line} (byte {start} of the file); for one of older Windows read it by "
            "flashgp.table.read_table(path, encoding='cp1252') (--encoding cp1252), or check that it is a table."
        ) from None
    text = text.removeprefix(mark)
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise DomainError(f"{quoted(name)} must be text, got a zero byte at line {line}; check that it is a table.")
    if not text.strip():
        raise ShapeError(
            f"{quoted(name)} must have at least one row, got only blanks; check that it is the file you meant."
        )
    return text


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
