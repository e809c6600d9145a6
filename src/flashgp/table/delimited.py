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
from itertools import islice, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ..foundations.errors import DomainError, ShapeError
from .columns import Column, Kind, Table, checked_names, listed, quoted
from .comments import DETECTED, without_comments
from .conversion import MISSING, NO_VALUE_BESIDE, column_from_text, given_cells, number_of
from .records import numbered_records
from .thousands import THOUSANDS, decided_mark, groups_of_points

__all__ = ["parse_delimited"]

_DELIMITERS = (",", "\t", ";", "|")  # earlier wins a tie
_SHOWN = {",": "comma", "\t": "tab", ";": "semicolon", "|": "bar", " ": "space"}
_SAMPLE_RECORDS = 1000
_SAMPLE_CHARACTERS = 2**22
_BLOCK_BYTES = 2**26  # the longest row
_THOUSANDS = r"^[+-]?[1-9][0-9]{0,2}[.,][0-9]{3}$"  # 12,345 may also be twelve thousand
_NUMERIC: tuple[Kind, ...] = ("number", "percentage")
_PERCENT_SIGN = r"[\s\x{a0}\x{202f}]*%$"
_FIRST_YEAR, _LAST_YEAR = 1500, 2200  # that a header may be of
_MIN_COUNTED = 3  # columns called 0, 1, 2: two of these are as likely a row


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
        DomainError: for broken quoting, or a decimal mark that cannot be decided.
    Cost: the text three times, 8 bytes a number.
    """
    notes: list[str] = []
    text = text if text.endswith(("\n", "\r")) else text + "\n"
    text, comments = without_comments(text, comment, delimiter)
    if comments:
        are = "line that begins with {} is a comment" if comments == 1 else "lines that begin with {} are comments"
        notes.append(f"{comments:,} {are.format(quoted(comment or DETECTED))}: left out.")
    if delimiter is None:
        delimiter = _sniffed_delimiter(text, notes)
    _check_quotes(text, path, delimiter)
    sample = _sample(text, delimiter)
    if not sample:
        raise ShapeError(
            f"{quoted(path)} must have at least one row, got only empty cells{_and(comments)}, or a first cell "
            f"of more than {csv.field_size_limit()} characters; check that it is the file you meant."
        )
    if header is not False and _lacks_a_name(sample):  # as R writes the names of rows
        start = len(text) - len(text.lstrip())
        text, sample[0] = f"{text[:start]}{delimiter}{text[start:]}", ["", *sample[0]]
    if header is None:
        header = _has_header(pyarrow, sample, notes)
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
            f"{_and(comments)}; add rows, or read it with header=False if that row is data."
        )
    cells = [column.slice(above) for column in cells]
    columns = [column_from_text(pyarrow, name, data) for name, data in zip(names, cells, strict=True)]
    comma = _decimal_comma(pyarrow, columns, cells, delimiter, decimal, path, notes)
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


def _and(comments: int) -> str:
    return f" and {comments:,} line{'s' * (comments > 1)} of comments" if comments else ""


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


def _sample(text: str, delimiter: str) -> list[list[str]]:
    """The first records that are not blank."""
    reader = csv.reader(io.StringIO(text[:_SAMPLE_CHARACTERS], newline=""), delimiter=delimiter)
    sample: list[list[str]] = []
    with contextlib.suppress(csv.Error):  # a cell of more than 131 072 characters ends the sample
        for record in islice((record for record in reader if any(cell.strip() for cell in record)), _SAMPLE_RECORDS):
            sample.append(record)  # noqa: PERF402
    return sample


def _sniffed_delimiter(text: str, notes: list[str]) -> str:
    """The delimiter that cuts every record into the same number of cells, and most of them into numbers.

    `csv.Sniffer` would cut 1,5;2,5 at the commas.
    """
    scores: dict[str, tuple[bool, float, int]] = {}
    for candidate in _DELIMITERS:
        sample = _sample(text, candidate)
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


def _has_header(pyarrow: Any, sample: Sequence[list[str]], notes: list[str]) -> bool:
    """Vote by column: above numbers (or dates, booleans, ...) text or another kind speaks for it, a number against."""

    def typed(cells: list[str]) -> Column:
        data = pyarrow.chunked_array([pyarrow.array(cells, pyarrow.large_string())])
        found = [column_from_text(pyarrow, "", data, mark) for mark in ".,"]
        return next((column for column in found if column.kind != "category"), found[0])

    first, below = sample[0], [record for record in sample[1:] if len(record) == len(sample[0])]
    if not below:
        header = any(typed([cell]).kind == "category" for cell in first)
        if not header:
            notes.append("one row of numbers: taken as data without a header; pass header=True if it is a header.")
        return header
    columns = [list(cells) for cells in zip(*below, strict=True)]
    pairs = [
        (typed([cell]), typed(cells))
        for cell, cells in zip(first, columns, strict=True)
        if cell.strip().lower() not in (*MISSING, *NO_VALUE_BESIDE)
    ]
    votes = [
        head.kind == "category" or (others.given > 0 and head.kind not in ("number", others.kind))
        for head, others in pairs
        if others.kind != "category"
    ]
    # Where every column is text: names of columns differ, and do not come back as values.
    named = len(set(first)) == len(first) and all(cell not in cells for cell, cells in zip(first, columns, strict=True))
    header = 2 * sum(votes) >= len(votes) if votes else named
    if not header and _counts_up(first, columns):
        notes.append(
            f"header row: yes, since {listed(first[-3:])} count up and the rows below do not; pass header=False if it "
            "is a row."
        )
        return True
    if len(set(votes)) != 1:
        why = "some of its columns are text above numbers, others numbers above numbers" if votes else "all is text"
        notes.append(f"header row: {'yes' if header else 'no'}, but {why}, so this may be wrong; pass header=.")
    return header


def _lacks_a_name(sample: Sequence[list[str]]) -> bool:
    """Whether the first row has one cell less than all others, whose first cells tell them apart."""
    below = sample[1:]
    labels = {record[0].strip() for record in below}
    return (
        len(below) > 1
        and all(len(record) == len(sample[0]) + 1 for record in below)
        and len(labels) == len(below)
        and "" not in labels
        and any(record[-1].strip() for record in below)
    )


def _counts_up(first: Sequence[str], columns: Sequence[list[str]]) -> bool:
    """Whether the numbers of a first row are names: years, or 0, 1, 2, ..., above columns that hold other numbers."""
    heads = [(number_of(cell), cells) for cell, cells in zip(first, columns, strict=True)]
    named = [(head, cells) for head, cells in heads if head is not None]
    steps = {after[0] - before[0] for before, after in pairwise(named)}
    if len(steps) != 1 or steps == {0.0} or any(head % 1 for head, _ in named):
        return False
    years = all(_FIRST_YEAR <= head <= _LAST_YEAR for head, _ in named)
    if not years and (len(named) < _MIN_COUNTED or named[0][0] not in (0.0, 1.0) or steps != {1.0}):
        return False

    def other(cell: str) -> bool:
        number = number_of(cell)
        return number is not None and bool(number % 1 or (years and not _FIRST_YEAR <= number <= _LAST_YEAR))

    return 2 * sum(any(map(other, cells)) for _, cells in named) > len(named)


def _decimal_comma(
    pyarrow: Any,
    columns: Sequence[Column],
    cells: Sequence[Any],
    delimiter: str,
    decimal: str | None,
    path: str,
    notes: list[str],
) -> bool:
    """Whether numbers have a decimal comma. Raises: DomainError for possible thousands, and for a mixture of marks."""
    compute = pyarrow.compute
    if decimal == "." or (decimal is None and delimiter == ","):
        return False
    marks = (*MISSING, *NO_VALUE_BESIDE)
    given = [compute.replace_substring_regex(given_cells(pyarrow, one, marks)[0], _PERCENT_SIGN, "") for one in cells]
    decimal = decimal or decided_mark(compute, given)
    if decimal == ".":
        return False
    comma_columns, ambiguous = [], ""
    for column, numbers in zip(columns, given, strict=True):
        comma = numbers.filter(compute.match_substring(numbers, ","))
        if len(comma) and column_from_text(pyarrow, "", numbers, ",").kind == "number":
            comma_columns.append(column.name)
            thousands = compute.all(compute.match_substring_regex(comma, _THOUSANDS)).as_py()
            ambiguous = (ambiguous or comma[0].as_py()) if thousands else "no"
            if not thousands:
                break
    if decimal is None and not comma_columns:
        return _points_are_thousands(compute, columns, given, path)
    if decimal is None and ambiguous != "no":
        raise DomainError(
            f"numbers of {quoted(path)} must have one clear decimal mark, got {quoted(ambiguous)} in column "
            f"{quoted(comma_columns[0])}, decimals or thousands; pass decimal=',' or remove them."
        )
    for column, numbers in zip(columns, given, strict=True):
        if column.kind in _NUMERIC and np.any(column.values[np.isfinite(column.values)] % 1):
            grouped = column_from_text(pyarrow, "", numbers, ",").kind == "number"
            if grouped and decimal is not None:
                continue
            other = f"decimal commas in column {quoted(comma_columns[0])}" if comma_columns else "decimal=','"
            also = ", or pass decimal=',' if these are thousands" if grouped else ""
            raise DomainError(
                f"numbers of {quoted(path)} must have one decimal mark, got {other} and decimal points in column "
                f"{quoted(column.name)}; write all numbers with a point{also}."
            )
    if comma_columns:
        notes.append(f"decimal comma in {quoted(comma_columns[-1])}.")
    return True


def _points_are_thousands(compute: Any, columns: Sequence[Column], given: Sequence[Any], path: str) -> bool:
    """Whether a column has groups between points, as 1.234.567, and no other one decimal points, without any commas.

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
