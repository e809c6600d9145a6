"""Tables of cells as text, and as HTML for notebooks."""

import html
from collections.abc import Sequence

Cells = Sequence[Sequence[str]]


class Tabled:
    """Shown as a table, as text and in notebooks, by `_table`: title, head and rows."""

    def _table(self) -> tuple[str, list[str], list[list[str]]]:
        raise NotImplementedError

    def __repr__(self) -> str:
        title, head, rows = self._table()
        return f"{title}\n{aligned(head, rows)}"

    def _repr_html_(self) -> str:
        title, head, rows = self._table()
        return html_table(rows, head, title)


def aligned(head: Sequence[str], rows: Cells) -> str:
    """A table whose first column starts, and whose others end, at one place."""
    table = [head, *rows]
    widths = [max(len(row[k]) for row in table) for k in range(len(head))]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in table]
    return "\n".join(line.rstrip() for line in lines)


def html_table(rows: Cells, head: Sequence[str] = (), title: str = "") -> str:
    """A table under its title; without a head the first cell of each row heads the row."""

    def line(cells: Sequence[str], heads: int) -> str:
        tags = ["th" if k < heads else "td" for k in range(len(cells))]
        return "<tr>" + "".join(f"<{t}>{html.escape(c)}</{t}>" for t, c in zip(tags, cells, strict=True)) + "</tr>"

    body = "".join(line(cells, 0 if head else 1) for cells in rows)
    above = "".join(f"<p>{html.escape(one)}</p>" for one in title.splitlines())
    return f"{above}<table>{line(head, len(head)) if head else ''}{body}</table>"
