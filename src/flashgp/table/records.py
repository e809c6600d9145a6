"""Records of delimited text: the lines they begin on, comments and sep=; among them, whether the first is a header."""

import contextlib
import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any

from flashgp.table.columns import Column, listed, quoted
from flashgp.table.conversion import MISSING, NO_VALUE_BESIDE, column_from_text, text_array
from flashgp.table.numbers import number_of

_DETECTED = "#"  # where nothing is said and the text begins with it
_STATED_DELIMITER = re.compile(r'"?sep=(?![\w"])([\t -~])"?[ \t]*(?=[\r\n])', re.ASCII | re.IGNORECASE)


@dataclass(frozen=True)
class Comments:
    """Comment lines that were left out.

    Fields: mark, what they begin with; count; below, the lines, from 1, of those after the first row.
    """

    mark: str
    count: int = 0
    below: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f" and {self.count:,} line{'s' * (self.count > 1)} of comments" if self.count else ""

    @property
    def notes(self) -> list[str]:
        """Notes for a user on comments in the file."""
        if not self.count:
            return []
        are = "line that begins with {} is a comment" if self.count == 1 else "lines that begin with {} are comments"
        notes = [f"{self.count:,} {are.format(quoted(self.mark))}: left out."]
        if self.below:
            stand = f"{len(self.below):,} of them stand{'s' * (len(self.below) == 1)} below the first row"
            notes.append(
                f"{stand}, the first at line {self.below[0]}: put the first cell in quotes where that is a row."
            )
        return notes


def stated_delimiter(text: str) -> tuple[str, str | None]:
    """Text whose first line is empty where that is sep=; as spreadsheets write it, and the delimiter that it names."""
    match = _STATED_DELIMITER.match(text)
    return (text, None) if match is None else (text[match.end() :], match[1])


def without_comments(
    pyarrow: Any, text: str, comment: str | None, delimiter: str | None, header: bool | None
) -> tuple[str, Comments]:
    """Text whose comment lines are empty, so that all keep their numbers, and what these are.

    Lines inside a quoted cell stay. Where no mark is given, a text that begins with # has comments; the last line of
    its beginning is the header where it has as many cells as the row below, as NumPy writes it, is a header above the
    rows, and these have none. Where they would leave no table, of a header and a row, only those at the beginning are
    comments, and a text of nothing else has none.

    Args: comment, what begins a comment line; delimiter, None where it is not known yet; header, as `read_table`.
    """
    mark = comment or _DETECTED
    if comment is None and not text.lstrip("\r\n").startswith(mark):
        return text, Comments(mark)
    lines = list(io.StringIO(text, newline=""))
    rows = [row for row, line in enumerate(lines) if line.strip() and not line.startswith(mark)]
    name_line, end = None, len(lines)
    if comment is None:
        if not rows:
            return text, Comments(mark)
        name_line = _header(pyarrow, lines, rows, delimiter, header)
        if len(rows) + (name_line is not None) == 1:
            end = rows[0]
    inside, left_out = False, []
    for row, line in enumerate(lines[:end]):
        if not inside and line.startswith(mark) and row != name_line:
            lines[row] = line[len(line.rstrip("\r\n")) :]
            left_out.append(row)
        else:
            inside ^= line.count('"') % 2 == 1
    if name_line is not None:
        lines[name_line] = _as_names(lines[name_line])
    below_first = tuple(row + 1 for row in left_out if rows and row > rows[0])
    return "".join(lines), Comments(mark, len(left_out), below_first)


def _header(pyarrow: Any, lines: list[str], rows: list[int], delimiter: str | None, header: bool | None) -> int | None:
    """The comment line before the first row, and before rows of numbers that are comments too, where it names the
    columns and the first row does not."""
    first = rows[0]
    if header is False or first == 0 or not lines[first - 1].startswith(_DETECTED):
        return None
    below = "".join(lines[row] for row in rows) if len(rows) > 1 else "".join(lines[first:])
    for candidate in (delimiter,) if delimiter else (",", "\t", ";", "|"):
        sample = first_records(below, candidate)
        width = len(sample[0]) if sample else 0
        if width > 1 and len(_names(lines[first - 1], candidate)) == width:
            place = _above_numbers(lines, first - 1, candidate, width)
            records = [_names(lines[place], candidate), *sample]
            named = not is_clear_header(pyarrow, sample) and (header or has_header(pyarrow, records, []))
            return place if named else None
    return None


def _above_numbers(lines: list[str], nearest: int, delimiter: str, width: int) -> int:
    """The comment line above those of numbers alone, where it has as many cells, else the nearest to the rows."""
    for place in range(nearest, -1, -1):
        names = _names(lines[place], delimiter)
        if not lines[place].startswith(_DETECTED) or len(names) != width:
            break
        if any(number_of(name) is None for name in names):
            return place
    return nearest


def _names(line: str, delimiter: str) -> list[str]:
    return next(csv.reader([_as_names(line).strip()], delimiter=delimiter), [])


def _as_names(line: str) -> str:
    """A comment line as a header."""
    return line.removeprefix(f"{_DETECTED} ")


_SAMPLE_RECORDS = 1000
_SAMPLE_CHARACTERS = 2**22


def first_records(text: str, delimiter: str) -> list[list[str]]:
    """The first records that are not blank, a thousand at most."""
    reader = csv.reader(io.StringIO(text[:_SAMPLE_CHARACTERS], newline=""), delimiter=delimiter)
    sample: list[list[str]] = []
    with contextlib.suppress(csv.Error):  # a cell of more than 131 072 characters ends the sample
        for record in islice((record for record in reader if any(cell.strip() for cell in record)), _SAMPLE_RECORDS):
            sample.append(record)  # noqa: PERF402
    return sample


def numbered_records(text: str, delimiter: str, width: int) -> Iterator[tuple[int, list[str]]]:
    """Each record and its line, from 1, but blank lines, and blanks that are no row of so many cells.

    Raises: csv.Error for a cell of more than 131 072 characters.
    """
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    line = 1
    for record in reader:
        if record and (len(record) == width or any(cell.strip() for cell in record)):
            yield line, record
        line = reader.line_num + 1


_FIRST_YEAR, _LAST_YEAR = 1500, 2200  # that a header may be of
_MIN_COUNTED = 3  # columns called 0, 1, 2: two of these are as likely a row


def has_header(pyarrow: Any, sample: Sequence[list[str]], notes: list[str]) -> bool:
    """True if the first of some records is a header; the notes say so where it may be wrong."""
    first, below = sample[0], _alike(sample)
    if not below:
        header = any(_typed(pyarrow, [cell]).kind == "category" for cell in first)
        if not header:
            notes.append("one row of numbers: taken as data without a header; pass header=True if it is a header.")
        return header
    columns = [list(cells) for cells in zip(*below, strict=True)]
    votes = _votes(pyarrow, sample)
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


def is_clear_header(pyarrow: Any, sample: Sequence[list[str]]) -> bool:
    """True if the first of some records is of another kind than most columns below it."""
    votes = _votes(pyarrow, sample)
    return bool(votes) and 2 * sum(votes) >= len(votes)


def _votes(pyarrow: Any, sample: Sequence[list[str]]) -> list[bool]:
    """Votes of the columns for a header: above numbers (or dates, booleans, ...) text or another kind speaks for it, a
    number against."""
    below = _alike(sample)
    pairs = [
        (_typed(pyarrow, [cell]), _typed(pyarrow, list(cells)))
        for cell, *cells in zip(sample[0], *below, strict=True)
        if cell.strip().lower() not in (*MISSING, *NO_VALUE_BESIDE)
    ]
    return [
        head.kind == "category" or (others.given > 0 and head.kind not in ("number", others.kind))
        for head, others in pairs
        if below and others.kind != "category"
    ]


def _alike(sample: Sequence[list[str]]) -> list[list[str]]:
    """The records below the first with as many cells."""
    return [record for record in sample[1:] if len(record) == len(sample[0])]


def _typed(pyarrow: Any, cells: list[str]) -> Column:
    data = pyarrow.chunked_array([text_array(pyarrow, cells)])
    found = [column_from_text(pyarrow, "", data, mark) for mark in ".,"]
    return next((column for column in found if column.kind != "category"), found[0])


def lacks_a_name(sample: Sequence[list[str]]) -> bool:
    """True if the first row has one cell less than all others, whose first cells tell them apart."""
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
    """True if the numbers of a first row are names: years, or 0, 1, 2, ..., above columns that hold other numbers."""
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
