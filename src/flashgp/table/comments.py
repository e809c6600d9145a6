"""Comment lines of delimited text: what is no row of the table, though it stands among them."""

import csv

from .columns import quoted

__all__ = ["without_comments"]

_DETECTED = "#"  # where nothing is said and the text begins with it


def without_comments(text: str, comment: str | None, delimiter: str | None, notes: list[str]) -> tuple[str, int]:
    """Text without its comment lines, and how many lines were left out before the first that stayed.

    Lines inside a quoted cell stay. Where no mark is given, a text that begins with # has comments; the last line of
    its beginning is the header where it has as many cells as the row below, as NumPy writes it.

    Args: comment, what begins a comment line; delimiter, None where it is not known yet.
    """
    detected = comment is None
    mark = _DETECTED if comment is None else comment
    if detected and not text.lstrip("\r\n").startswith(mark):
        return text, 0
    lines = text.splitlines(keepends=True)
    header = _header(lines, mark, delimiter) if detected else None
    kept: list[str] = []
    left_out, before, inside = 0, 0, False
    for row, line in enumerate(lines):
        if not inside and line.startswith(mark) and row != header:
            left_out += 1
            before += not kept
            continue
        inside ^= line.count('"') % 2 == 1
        kept.append(line.removeprefix(f"{mark} ") if row == header else line)
    if left_out:
        notes.append(f"{left_out:,} line{'s' * (left_out > 1)} that begin with {quoted(mark)} are comments: left out.")
    return "".join(kept), before


def _header(lines: list[str], mark: str, delimiter: str | None) -> int | None:
    """The last of the lines at the beginning that begin with the mark, where it names the columns of the next."""
    first = next((row for row, line in enumerate(lines) if line.strip() and not line.startswith(mark)), None)
    if not first:
        return None
    for candidate in (delimiter,) if delimiter else (",", "\t", ";", "|"):
        names, cells = (len(next(csv.reader([lines[row].strip()], delimiter=candidate))) for row in (first - 1, first))
        if names == cells > 1:
            return first - 1
    return None
