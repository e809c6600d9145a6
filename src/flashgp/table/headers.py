"""Whether the first row of delimited text names its columns, decided by what stands below it."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from .columns import Column, listed
from .conversion import MISSING, NO_VALUE_BESIDE, column_from_text, number_of

_FIRST_YEAR, _LAST_YEAR = 1500, 2200  # that a header may be of
_MIN_COUNTED = 3  # columns called 0, 1, 2: two of these are as likely a row


def has_header(pyarrow: Any, sample: Sequence[list[str]], notes: list[str]) -> bool:
    """Whether the first of some records is a header; the notes say so where it may be wrong."""
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
    """Whether the first of some records is of another kind than most columns below it."""
    votes = _votes(pyarrow, sample)
    return bool(votes) and 2 * sum(votes) >= len(votes)


def _votes(pyarrow: Any, sample: Sequence[list[str]]) -> list[bool]:
    """By column: above numbers (or dates, booleans, ...) text or another kind speaks for it, a number against."""
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
    data = pyarrow.chunked_array([pyarrow.array(cells, pyarrow.large_string())])
    found = [column_from_text(pyarrow, "", data, mark) for mark in ".,"]
    return next((column for column in found if column.kind != "category"), found[0])


def lacks_a_name(sample: Sequence[list[str]]) -> bool:
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
