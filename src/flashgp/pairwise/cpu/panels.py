"""Panels of a compiled product or gradient: all pairs at once, and halves of them where memory has no room for that.

A panel is some rows, some columns and some right-hand sides. What it contributes is added once all of it is computed,
so that a panel that failed has left no trace, and its halves give the same result.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.workspace import Workspace, ran_out_of_memory


@dataclass(frozen=True)
class PanelSettings:
    """The smallest panels of compiled products and gradients: what is smaller is not halved when memory runs out.

    Fields: min_rows, rows or columns (a block of the loops: smaller panels would save nothing); min_right_sides;
    compile_seconds, of a compile, which does not begin where a deadline is nearer.
    """

    min_rows: int = 512
    min_right_sides: int = 8
    compile_seconds: float = 10.0


@dataclass(frozen=True)
class Panel:
    """Pairs of rows and columns, with right-hand sides; cols None: the rows themselves, each pair in both orders.

    Fields: whole, whether rows and columns stay together; settings, when not to halve.
    """

    rows: slice
    cols: slice | None
    right: slice
    whole: bool = False
    settings: PanelSettings = PanelSettings()

    @property
    def row_count(self) -> int:
        return self.rows.stop - self.rows.start

    @property
    def column_count(self) -> int:
        return self.row_count if self.cols is None else self.cols.stop - self.cols.start

    @property
    def right_count(self) -> int:
        return self.right.stop - self.right.start

    def halves(self) -> "Iterator[Panel]":
        """Smaller panels of the pairs and right-hand sides; none where that would not help.

        Two diagonal halves of a symmetric panel leave the pairs between them, which stand for both orders.
        """
        if self.right_count > self.settings.min_right_sides:
            yield from (replace(self, right=part) for part in _halved(self.right))
        elif self.whole or max(self.row_count, self.column_count) <= self.settings.min_rows:
            return
        elif self.cols is None:
            first, second = _halved(self.rows)
            yield from (replace(self, rows=first), replace(self, rows=second))
            yield replace(self, rows=first, cols=second)
        elif self.row_count >= self.column_count:
            yield from (replace(self, rows=part) for part in _halved(self.rows))
        else:
            yield from (replace(self, cols=part) for part in _halved(self.cols))


def _halved(part: slice) -> tuple[slice, slice]:
    middle = (part.start + part.stop) // 2
    return slice(part.start, middle), slice(middle, part.stop)


def visit_panels(
    panel: Panel, workspace: Workspace, needed: Callable[[Panel], int], visit: Callable[[Panel], None]
) -> None:
    """Visit a panel, or its halves where memory runs out, and say so.

    Args:
        needed: bytes that a panel takes while it is visited; visit: changes a result only once all of a panel is
            computed.
    Raises: MemoryBudgetError, or what ran out, for a panel that has no halves.
    """
    try:
        with workspace.hold(needed(panel)):
            visit(panel)
        return
    except (MemoryError, RuntimeError) as error:
        parts = list(panel.halves())
        if not parts or not ran_out_of_memory(error):
            raise
    # Out of the handler, whose error holds the arrays that filled the memory.
    least = parts[0]
    workspace.note(
        Event(EventKind.LOOPS_HALVED, rows=least.row_count, columns=least.column_count, right_sides=least.right_count)
    )
    for part in parts:
        visit_panels(part, workspace, needed, visit)
