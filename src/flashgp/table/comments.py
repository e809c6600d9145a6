"""Comment lines of delimited text: what is no row of the table, though it stands among them."""

import csv
import io

__all__ = ["DETECTED", "without_comments"]

DETECTED = "#"  # where nothing is said and the text begins with it


def without_comments(text: str, comment: str | None, delimiter: str | None) -> tuple[str, int]:
    """Text whose comment lines are empty, so that all keep their numbers, and how many these are.

    Lines inside a quoted cell stay. Where no mark is given, a text that begins with # has comments; the last line of
    its beginning is the header where it has as many cells as the row below, as NumPy writes it. Where they would leave
    no table, of a header and a row, only those at the beginning are comments, and a text of nothing else has none.

    Args: comment, what begins a comment line; delimiter, None where it is not known yet.
    """
    mark = comment or DETECTED
    if comment is None and not text.lstrip("\r\n").startswith(mark):
        return text, 0
    lines = list(io.StringIO(text, newline=""))
    header, end = None, len(lines)
    if comment is None:
        rows = [row for row, line in enumerate(lines) if line.strip() and not line.startswith(mark)]
        if not rows:
            return text, 0
        header = _header(lines, rows[0], mark, delimiter)
        if len(rows) + (header is not None) == 1:
            end = rows[0]
    inside, left_out = False, 0
    for row, line in enumerate(lines[:end]):
        if not inside and line.startswith(mark) and row != header:
            lines[row] = line[len(line.rstrip("\r\n")) :]
            left_out += 1
        else:
            inside ^= line.count('"') % 2 == 1
    if header is not None:
        lines[header] = lines[header].removeprefix(f"{mark} ")
    return "".join(lines), left_out


def _header(lines: list[str], first: int, mark: str, delimiter: str | None) -> int | None:
    """The line before the first row, a comment or empty, where it names the columns of that row."""
    if not lines[first - 1].startswith(mark):
        return None
    for candidate in (delimiter,) if delimiter else (",", "\t", ";", "|"):
        names, cells = (len(next(csv.reader([lines[row].strip()], delimiter=candidate))) for row in (first - 1, first))
        if names == cells > 1:
            return first - 1
    return None
