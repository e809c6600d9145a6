"""Text with delimiters (CSV and its relatives) as typed columns, by the standard library and numpy.

Decides, and says in the notes: the delimiter (comma, semicolon, tab or bar), whether the first row is a header,
and whether numbers have a decimal comma. Two passes over the text keep memory near the size of the text plus 8
bytes a number: the first turns numeric columns into arrays 65 536 rows at a time, the second collects the cells
of the other columns only. Blank lines are skipped; a ragged line is an error.
"""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt

from ..foundations.errors import DomainError, ShapeError
from .columns import (
    COMMA_NUMBER,
    MISSING,
    Column,
    Table,
    checked_names,
    column_from_cells,
    listed,
    numbers_from_cells,
    quoted,
)

__all__ = ["parse_delimited"]

_DELIMITERS = (",", "\t", ";", "|")  # earlier wins a tie
_SHOWN = {",": "comma", "\t": "tab", ";": "semicolon", "|": "bar", " ": "space"}
_SAMPLE_RECORDS = 1000
_CHUNK_RECORDS = 65_536
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}", re.ASCII)  # 12,345 may also be twelve thousand

_Record = tuple[int, list[str]]


def parse_delimited(
    text: str, path: str, *, header: bool | None = None, delimiter: str | None = None, decimal: str | None = None
) -> Table:
    """Parse delimited text.

    Args:
        text: the whole file, decoded, without byte order mark.
        path: the file's name for messages.
        header: whether the first row names the columns; None decides from the first 1000 records.
        delimiter: one character; None decides among comma, semicolon, tab and bar.
        decimal: "." or ","; None decides, and refuses what can be read both ways.
    Returns: the table, rows in file order.
    Raises: ShapeError without data rows, for a ragged line (named) or duplicate names; DomainError for broken quoting,
        a cell over 131 072 characters, or a decimal mark that cannot be decided.
    Cost: about 1 microsecond a cell; the text, 8 bytes a number, and the text cells once more.
    """
    notes: list[str] = []
    if delimiter is None:
        delimiter = _sniffed_delimiter(text, path, notes)
    sample = [record for record in _sample(text, path, delimiter) if record]
    if not sample:
        raise ShapeError(
            f"{quoted(path)} must have at least one row, got only blank lines; check that it is the file you meant."
        )
    if header is None:
        header = _has_header(sample, notes)
    width = len(sample[0])
    if header:
        names = _header_names(sample[0], path, notes)
    else:
        names = [f"column_{index + 1}" for index in range(width)]
        notes.append(f"no header row: the columns are named column_1 to column_{width}.")
    values, lines = _numeric_columns(text, path, delimiter, width, header)
    if len(lines) == 0:
        raise ShapeError(
            f"{quoted(path)} must have at least one row of data, got a header row alone ({listed(names)}); "
            "add rows, or read it with header=False if that row is data."
        )
    cells = _text_cells(text, path, delimiter, [j for j in range(width) if values[j] is None], header)
    decimal = _decided_decimal(names, values, cells, delimiter, decimal, lines, path, notes)
    columns = []
    for j, name in enumerate(names):
        numbers = values[j]
        columns.append(
            Column(name, "number", numbers) if numbers is not None else column_from_cells(name, cells.pop(j), decimal)
        )
    _note_row_index(columns, sample[0] if header else [], notes)
    return Table(path, tuple(columns), len(lines), header, lines, tuple(notes))


def _records(text: str, path: str, delimiter: str) -> Iterator[_Record]:
    """Records that are not blank, each with the line where it begins."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True, strict=True)
    line, width = 1, 0
    try:
        for record in reader:
            if record and not (width > 1 and len(record) == 1 and not record[0].strip()):
                width = width or len(record)
                yield line, record
            line = reader.line_num + 1
    except csv.Error as error:
        reason = str(error)
        advice = "close the quote" if "end of data" in reason else "double a quote inside a quoted cell"
        if "limit" in reason:
            advice = f"close a quote left open before it, or shorten the cell to {csv.field_size_limit()} characters"
        raise DomainError(
            f"{quoted(path)} must be delimited text with matching quotes, got {reason!r} in the record that begins at "
            f"line {line}; {advice}."
        ) from None


def _body(text: str, path: str, delimiter: str, header: bool) -> Iterator[_Record]:
    """Records of data, each as wide as the first record of the file."""
    width = None
    for index, (line, record) in enumerate(_records(text, path, delimiter)):
        if width is None:
            width = len(record)
        if len(record) != width:
            shown = _SHOWN.get(delimiter, repr(delimiter))
            raise ShapeError(
                f"every line of {quoted(path)} must have {width} cells like the first, got {len(record)} at line "
                f"{line} (delimiter: {shown}); quote cells that contain the delimiter, or pass the right delimiter."
            )
        if index or not header:
            yield line, record


def _sample(text: str, path: str, delimiter: str) -> list[list[str]]:
    return [record for _, record in islice(_records(text, path, delimiter), _SAMPLE_RECORDS)]


def _sniffed_delimiter(text: str, path: str, notes: list[str]) -> str:
    """The delimiter that cuts every record into the same number of cells, and most of them into numbers."""
    scores: dict[str, tuple[bool, float, int]] = {}
    for candidate in _DELIMITERS:
        try:
            sample = _sample(text, path, candidate)
        except DomainError:
            continue
        widths = Counter(len(record) for record in sample if record)
        if not widths:
            continue
        width, count = max(widths.items(), key=lambda item: (item[1], item[0]))
        # A few ragged lines still show the delimiter; the line is then named by the ragged error.
        if width > 1 and 2 * count > sum(widths.values()):
            cells = [cell for record in sample for cell in record]
            numeric = sum(_is_numeric(cell, comma=candidate != ",") for cell in cells) / len(cells)
            scores[candidate] = (len(widths) == 1, numeric, width)
    if not scores:
        return ","
    best = max(scores, key=lambda candidate: scores[candidate])
    others = [_SHOWN[candidate] for candidate in scores if candidate != best and scores[candidate][0]]
    if others:
        notes.append(
            f"delimiter: {_SHOWN[best]}; {' and '.join(others)} also cut every line evenly, but into fewer numbers."
        )
    elif best != ",":
        notes.append(f"delimiter: {_SHOWN[best]}.")
    return best


def _is_numeric(cell: str, *, comma: bool) -> bool:
    return numbers_from_cells([cell]) is not None or (comma and COMMA_NUMBER.fullmatch(cell.strip()) is not None)


def _has_header(sample: Sequence[list[str]], notes: list[str]) -> bool:
    """Vote by column: text above numbers (or dates, booleans) speaks for a header, a number above numbers against."""
    first, below = sample[0], [record for record in sample[1:] if len(record) == len(sample[0])]
    if not below:
        header = any(_cells_kind([cell]) == "category" for cell in first)
        if not header:
            notes.append("one row of numbers: taken as data without a header; pass header=True if it is a header.")
        return header
    votes_for = votes_against = 0
    for j, cell in enumerate(first):
        if cell.strip().casefold() in MISSING:
            continue
        kind = _cells_kind([record[j] for record in below])
        if kind != "category" and _cells_kind([cell]) == "category":
            votes_for += 1
        elif kind != "category":
            votes_against += 1
    if votes_for == votes_against == 0:
        # Text everywhere: names of columns do not come back as values.
        header = len(set(first)) == len(first) and not any(
            cell in {record[j] for record in below} for j, cell in enumerate(first)
        )
        notes.append(
            f"header row: {'yes' if header else 'no'}, but every column is text, so this may be wrong; pass header=."
        )
        return header
    header = votes_for >= votes_against
    if votes_for and votes_against:
        notes.append(
            f"header row: {'yes' if header else 'no'}, but the first row has text above numbers in {votes_for} columns "
            f"and numbers above numbers in {votes_against}; pass header= if this is wrong."
        )
    return header


def _cells_kind(cells: Sequence[str]) -> str:
    """Kind of some cells of a column, with a decimal comma allowed."""
    given = [cell.strip() for cell in cells if cell.strip().casefold() not in MISSING]
    return "number" if all(COMMA_NUMBER.fullmatch(cell) for cell in given) else column_from_cells("", given).kind


def _header_names(record: Sequence[str], path: str, notes: list[str]) -> list[str]:
    names = [cell.strip() or f"column_{index + 1}" for index, cell in enumerate(record)]
    unnamed = [name for name, cell in zip(names, record, strict=True) if not cell.strip()]
    if unnamed:
        notes.append(f"columns without a name in the header are called {listed(unnamed)}.")
    checked_names(names, path)
    return names


def _numeric_columns(
    text: str, path: str, delimiter: str, width: int, header: bool
) -> tuple[list[npt.NDArray[np.float64] | None], npt.NDArray[np.int64]]:
    """First pass: each column as numbers, or None where a cell is not one; and the line of each row."""
    chunks: list[list[npt.NDArray[np.float64]] | None] = [[] for _ in range(width)]
    lines: list[npt.NDArray[np.int64]] = []
    body = _body(text, path, delimiter, header)
    while chunk := list(islice(body, _CHUNK_RECORDS)):
        lines.append(np.array([line for line, _ in chunk], np.int64))
        for j, cells in enumerate(zip(*(record for _, record in chunk), strict=True)):
            earlier = chunks[j]
            if earlier is not None:
                numbers = numbers_from_cells(cells)
                chunks[j] = None if numbers is None else [*earlier, numbers]
    if not lines:
        return [None] * width, np.empty(0, np.int64)
    return [None if parts is None else np.concatenate(parts) for parts in chunks], np.concatenate(lines)


def _text_cells(text: str, path: str, delimiter: str, positions: Sequence[int], header: bool) -> dict[int, list[str]]:
    """Second pass: the cells of the columns that are not numbers; equal cells share one string."""
    cells: dict[int, list[str]] = {j: [] for j in positions}
    if positions:
        shared: dict[str, str] = {}
        for _, record in _body(text, path, delimiter, header):
            for j in positions:
                cells[j].append(shared.setdefault(record[j], record[j]))
    return cells


def _decided_decimal(
    names: Sequence[str],
    values: Sequence[npt.NDArray[np.float64] | None],
    cells: dict[int, list[str]],
    delimiter: str,
    decimal: str | None,
    lines: npt.NDArray[np.int64],
    path: str,
    notes: list[str],
) -> str:
    """The decimal mark; refuses numbers that could be thousands, and a mixture of marks."""
    if decimal == "." or (decimal is None and delimiter == ","):
        return "."
    candidates = []  # (column, row of its first comma, whether some cell can only be a decimal)
    for j, column in cells.items():
        given = [(row, cell.strip()) for row, cell in enumerate(column) if cell.strip().casefold() not in MISSING]
        with_comma = [(row, cell) for row, cell in given if "," in cell]
        if with_comma and all(COMMA_NUMBER.fullmatch(cell) for _, cell in given):
            decisive = not all(_THOUSANDS.fullmatch(cell) for _, cell in with_comma)
            candidates.append((j, with_comma[0][0], decisive))
    if decimal is None and not candidates:
        return "."
    if decimal is None and not any(decisive for _, _, decisive in candidates):
        j, row, _ = candidates[0]
        raise DomainError(
            f"numbers of {quoted(path)} must have one clear decimal mark, got {quoted(cells[j][row])} in column "
            f"{quoted(names[j])} at line {int(lines[row])}, decimals or thousands; pass decimal=',' or remove them."
        )
    for j, numbers in enumerate(values):
        if numbers is not None and np.any(numbers[np.isfinite(numbers)] % 1):
            other = f"decimal commas in column {quoted(names[candidates[0][0]])}" if candidates else "decimal=','"
            raise DomainError(
                f"numbers of {quoted(path)} must have one decimal mark, got {other} and decimal points in column "
                f"{quoted(names[j])}; write all numbers with a point."
            )
    if candidates:
        notes.append(f"decimal comma in {listed([names[j] for j, _, _ in candidates])}.")
    return ","


def _note_row_index(columns: Sequence[Column], header_cells: Sequence[str], notes: list[str]) -> None:
    """Say when a nameless first column merely counts the rows."""
    if header_cells and not header_cells[0].strip() and columns[0].kind == "number":
        values = columns[0].values
        if np.array_equal(values - values[0], np.arange(len(values))):
            notes.append(
                f"column {quoted(columns[0].name)} has no name and counts the rows; drop it if it is a row index."
            )
