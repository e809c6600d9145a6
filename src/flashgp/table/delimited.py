"""Text with delimiters (CSV and its relatives) as typed columns.

pyarrow reads the cells. The first thousand records, cut by the standard library, decide the delimiter (comma,
semicolon, tab or bar) and whether the first row is a header; all cells decide whether numbers have a decimal comma.
What was decided is said in the notes. Blank lines are skipped, as are rows of empty cells above a header; a ragged line
is an error.
"""

import contextlib
import csv
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..foundations.errors import DomainError, ShapeError
from .columns import Kind, Table, checked_names, listed, quoted
from .conversion import column_from_text
from .decimals import has_decimal_comma
from .numbers import THOUSANDS, number_of
from .records import first_records, has_header, lacks_a_name, numbered_records, stated_delimiter, without_comments

_DELIMITERS = (",", "\t", ";", "|")  # earlier wins a tie
_SHOWN = {",": "comma", "\t": "tab", ";": "semicolon", "|": "bar", " ": "space"}
_BLOCK_BYTES = 2**26  # the longest row
_NUMERIC: tuple[Kind, ...] = ("number", "percentage")


def parse_delimited(
    pyarrow: Any,
    text: str,
    path: str,
    *,
    header: bool | None,
    delimiter: str | None,
    decimal: str | None,
    comment: str | None = None,
    keep: Sequence[str] = (),
) -> Table:
    """Parse delimited text.

    Args:
        text: the whole file, decoded, without byte order mark.
        path: the file's name for messages.
        header: whether the first row names the columns; None decides from the first 1000 records.
        delimiter: one character; None decides among comma, semicolon, tab and bar.
        decimal: "." or ","; None decides, and refuses what can be read both ways.
        comment: what begins a comment line; None finds those of a text that begins with #.
        keep: columns, by name or position, whose cells the table keeps as they are written.

    Raises:
        ShapeError: without data rows, for a ragged row (named) or duplicate names.
        DomainError: for broken quoting, or a decimal mark that cannot be decided or is the delimiter.
    Cost: the text three times, 8 bytes a number.
    """
    if decimal == delimiter == "," and '"' not in text:
        raise DomainError(
            "`decimal` must differ from the delimiter where no cells are in quotes, got ',' for both of "
            f"{quoted(path)}; leave one of them out to have it decided."
        )
    notes: list[str] = []
    text = text if text.endswith(("\n", "\r")) else text + "\n"
    text, stated = stated_delimiter(text)
    if delimiter is None and stated is not None:
        delimiter = stated
        notes.append(f"delimiter: {_SHOWN.get(stated, repr(stated))}, as the first line says.")
    text, comments = without_comments(pyarrow, text, comment, delimiter, header)
    notes.extend(comments.notes)
    if delimiter is None:
        delimiter = _sniffed_delimiter(text, notes)
    _check_quotes(text, path, delimiter)
    sample = first_records(text, delimiter)
    if not sample:
        raise ShapeError(
            f"{quoted(path)} must have at least one row, got only empty cells{comments}, or a first cell "
            f"of more than {csv.field_size_limit()} characters; check that it is the file you meant."
        )
    if header is not False and lacks_a_name(sample):  # as R writes the names of rows
        start = len(text) - len(text.lstrip())
        text, sample[0] = f"{text[:start]}{delimiter}{text[start:]}", ["", *sample[0]]
    if header is None:
        header = has_header(pyarrow, sample, notes)
    width = len(sample[0])
    names = [f"column_{index + 1}" for index in range(width)]
    if header:
        unnamed = [name for name, cell in zip(names, sample[0], strict=True) if not cell.strip()]
        names = [cell.strip() or name for name, cell in zip(names, sample[0], strict=True)]
        if unnamed:
            notes.append(f"columns without a name in the header are called {listed(unnamed)}.")
        checked_names(names, path)
    else:
        notes.append(f"no header row: the columns are named column_1 to column_{width}.")
    cells = _cells(pyarrow, text, path, delimiter, width)
    above = _rows_above_data(cells) if header else 0
    rows = len(cells[0]) - above
    if rows == 0:
        raise ShapeError(
            f"{quoted(path)} must have at least one row of data, got a header row alone ({listed(names)})"
            f"{comments}; add rows, or read it with header=False if that row is data."
        )
    cells = [column.slice(above) for column in cells]
    columns = [column_from_text(pyarrow, name, data) for name, data in zip(names, cells, strict=True)]
    comma = has_decimal_comma(pyarrow, columns, cells, delimiter, decimal, path, notes)
    if comma:
        columns = [column_from_text(pyarrow, name, data, ",") for name, data in zip(names, cells, strict=True)]
    columns[0] = replace(columns[0], unnamed=header and not sample[0][0].strip())
    marked = THOUSANDS["," if comma else "."]
    thousands = [
        column.name for column, data in zip(columns, cells, strict=True)
        if column.kind in _NUMERIC and column.doubt is None
        and pyarrow.compute.any(pyarrow.compute.match_substring_regex(data, marked)).as_py()
    ]  # fmt: skip
    if thousands:
        notes.append(f"marks between thousands in {listed(thousands)}: left out.")
    lines = _lines(text, delimiter, width, rows + above)
    table = Table(path, tuple(columns), rows, header, None if lines is None else lines[above:], tuple(notes))
    return table.keeping(cells, keep)


def _lines(text: str, delimiter: str, width: int, rows: int) -> Sequence[int] | npt.NDArray[np.int64] | None:
    """The line of each row, from 1; None where a cell is too long to tell."""
    if (text.count("\n") or text.count("\r")) == rows:  # a line each
        return range(1, rows + 1)
    with contextlib.suppress(csv.Error):
        lines = np.fromiter((line for line, _ in numbered_records(text, delimiter, width)), np.int64)
        return lines if len(lines) == rows else None
    return None


def _cells(pyarrow: Any, text: str, path: str, delimiter: str, width: int) -> list[Any]:
    """All records, column by column, as Arrow text."""
    ragged: list[Any] = []

    def handle(row: Any) -> str:
        if not row.text.strip():
            return "skip"
        ragged.append(row)
        return "error"

    names = [str(index) for index in range(width)]
    data = text.encode()
    try:
        table = pyarrow.csv.read_csv(
            pyarrow.BufferReader(data),
            pyarrow.csv.ReadOptions(
                use_threads=False, column_names=names, block_size=min(max(len(data), 2**16), _BLOCK_BYTES)
            ),
            pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True, invalid_row_handler=handle),
            pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(names, pyarrow.large_string()), strings_can_be_null=False
            ),
        )
    except pyarrow.ArrowInvalid as error:
        if not ragged:
            raise DomainError(
                f"{quoted(path)} must be delimited text with matching quotes, got {quoted(str(error))}; close every "
                "quote and double those inside a quoted cell."
            ) from None
        row, line = ragged[0], None
        with contextlib.suppress(csv.Error):
            records = numbered_records(text, delimiter, width)
            line = next((line for line, record in records if len(record) != width), None)
        raise ShapeError(
            f"every row of {quoted(path)} must have {row.expected_columns} cells like the first, got "
            f"{row.actual_columns}{'' if line is None else f' at line {line}'}, {quoted(row.text)} (delimiter: "
            f"{_SHOWN.get(delimiter, repr(delimiter))}); quote cells that contain the delimiter, or pass the right "
            "delimiter."
        ) from None
    if '"' in text:
        _check_spaces(pyarrow, table.columns, path)
    return list(table.columns)


def _rows_above_data(cells: Sequence[Any]) -> int:
    """The header and the rows of empty cells before it."""
    rows = len(cells[0])
    first = next((row for row in range(rows) if any(column[row].as_py().strip() for column in cells)), 0)
    return first + 1


def _check_quotes(text: str, path: str, delimiter: str) -> None:
    """Raises: DomainError for a quote that is left open, or followed by more than the delimiter.

    pyarrow would join the records between two such quotes into one cell and say nothing.
    """
    last = text.rfind('"')
    if last < 0:
        return
    end = text.find("\n", last) + 1 or len(text)  # below, there is nothing to check
    reader = csv.reader(io.StringIO(text[:end], newline=""), delimiter=delimiter, strict=True)
    line = 1
    try:
        for _ in reader:
            line = reader.line_num + 1
    except csv.Error as error:
        raise DomainError(
            f"{quoted(path)} must be delimited text with quotes around whole cells, got {str(error)!r} in the record "
            f"that begins at line {line}; close every quote and double those inside a quoted cell."
        ) from None


def _check_spaces(pyarrow: Any, columns: Sequence[Any], path: str) -> None:
    """Raises: DomainError for a quote after a space at the beginning of a cell, which quotes nothing."""
    compute = pyarrow.compute
    spaced = [compute.any(compute.match_substring_regex(c, r'^\s+"'), min_count=0).as_py() for c in columns]
    if any(spaced):
        raise DomainError(
            f"{quoted(path)} must be delimited text with quotes around whole cells, got a space before a quote in "
            f"column {spaced.index(True) + 1}; remove it."
        )


def _sniffed_delimiter(text: str, notes: list[str]) -> str:
    """The delimiter that cuts every record into the same number of cells, and most of them into numbers.

    `csv.Sniffer` would cut 1,5;2,5 at the commas.
    """
    scores: dict[str, tuple[bool, float, int]] = {}
    for candidate in _DELIMITERS:
        sample = first_records(text, candidate)
        widths = Counter(len(record) for record in sample)
        width, count = max(widths.items(), key=lambda item: (item[1], item[0]), default=(0, 0))
        # A few ragged lines still show the delimiter; the line is then named by the ragged error.
        if width > 1 and 2 * count > len(sample):
            cells = [cell.strip() for record in sample for cell in record]
            if candidate != ",":
                cells = [cell.replace(",", ".", 1) for cell in cells]
            numeric = sum(number_of(cell) is not None for cell in cells) / len(cells)
            scores[candidate] = (len(widths) == 1, numeric, width)
    best = max(scores, key=lambda candidate: scores[candidate], default=",")
    if best != ",":
        notes.append(f"delimiter: {_SHOWN[best]}.")
    return best
