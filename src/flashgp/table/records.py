"""Records of delimited text as the standard library cuts them, and the lines on which they begin."""

import csv
import io
from collections.abc import Iterator

__all__ = ["numbered_records"]


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
