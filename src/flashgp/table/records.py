"""Records of delimited text as the standard library cuts them, and the lines on which they begin."""

import contextlib
import csv
import io
from collections.abc import Iterator
from itertools import islice

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
