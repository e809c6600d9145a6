"""Tables that are read a part at a time: what their columns are, from one pass, so that one encoding serves all parts.

`summary` gives a small table that says of each column what `Encoding.learn` asks: its kind, its levels, how many cells
have a value, and whether two of them differ. Each part is then encoded like any table.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..foundations.errors import DomainError, ShapeError
from ..processes.group import ALONE, Group
from .columns import Column, Doubt, Table, listed, quoted
from .dates import ORDERS, Order
from .encoding import Encoding, Missing
from .matching import complete, is_constant
from .roles import MISSING_LEVEL, with_categories

MAX_LEVELS = 2**16  # of text, in memory at once
Keep = Callable[[Table], npt.NDArray[np.bool_]]


class TableParts(ABC):
    """A table whose rows are read again and again, a part at a time.

    Fields: path, what it is called in errors; names of its columns; count of rows, None where nobody knows;
    header, whether the file names its columns.
    """

    path: str
    names: tuple[str, ...]
    count: int | None = None
    header: bool = True

    def shard(self, group: Group) -> "TableParts":
        """The part of a rank; this table itself where ranks have parts of their own."""
        return self

    @abstractmethod
    def parts(self) -> Iterator[Table]:
        """One pass: tables with all columns, `first_row` counting the rows of their file."""

    def shuffled(self, seed: int) -> Iterator[Table]:
        """A pass in an order that the seed decides, as far as the table can jump."""
        return self.parts()


def learn_encoding(
    parts: TableParts,
    target: str,
    drop: tuple[str, ...],
    missing: Missing,
    dates: Order | None = None,
    categorical: tuple[str, ...] = (),
    group: Group = ALONE,
    classes: bool | None = False,
) -> tuple[Encoding, Table]:
    """Encoding as `Encoding.learn` of all rows together. Returns: it, and a summary of the rows that it keeps.

    Args: categorical, classes, as `Encoding.learn`, but that two numbers are classes only where they are said to be;
        group, whose ranks each have parts of their own; what is learned is of all.
    Raises: as it; DomainError for a column whose kind differs between parts, named with its file.
    Cost: a pass over the parts, and another one where rows with missing values are dropped.
    """
    empty = tuple(Column(name, "number", np.empty(0)) for name in parts.names)
    whole = Table(parts.path, empty, 0, parts.header, None, ())
    dropped = {whole.names[whole.position(name, "drop")] for name in drop}
    codes = {whole.names[whole.position(name, "categorical")] for name in categorical} - dropped
    goal = whole.names[whole.position(target, "target")]
    codes |= {goal} if classes else set()
    summaries = _summaries(parts, dropped, codes, None, group)
    table = _table(parts, summaries, goal)
    encoding = Encoding.learn(table, target, drop, missing, dates, categorical, classes)
    # Of text a missing cell is a category.
    used = [column.name for column in encoding.inputs if column.kind != "category"]
    if missing == "error" or not any(summaries[name].missing for name in (*used, encoding.target)):
        return encoding, table

    def keep(part: Table) -> npt.NDArray[np.bool_]:
        return complete([part.columns[part.names.index(name)] for name in (*used, encoding.target)])

    kept = _table(parts, _summaries(parts, dropped, codes, keep, group), goal)
    notes: list[str] = []
    inputs = {column.name for column in encoding.inputs}
    same = tuple(c.name for c in kept.columns if c.name in inputs and is_constant(c, notes))
    if same:
        encoding = Encoding.learn(table, target, (*drop, *same), missing, dates, categorical, classes)
        encoding = replace(encoding, constant=(*encoding.constant, *same), notes=(*encoding.notes, *notes))
    return encoding, kept


@dataclass
class _Summary:
    """Summary of one column.

    Fields:
        kind, stored_as: see `Column`.
        levels: of a category.
        given, missing: number of cells with a value, and without.
        low, high: range of the values.
        inexact: as of a `Column`, the number alone.
        first: the file whose cells said what the column is.
        capped: True if there are more levels than a category may have.
        orders: of day and month that all its dates allow; None if it has no such dates.
        short_years, doubt, declared: as of a `Column`.
        calendar: True if all its numbers are dates.
    """

    name: str
    kind: str = ""
    stored_as: str = ""
    levels: dict[str, None] = field(default_factory=dict)
    given: int = 0
    missing: int = 0
    low: float = np.inf
    high: float = -np.inf
    inexact: int | None = None
    first: str = ""
    capped: bool = False
    orders: list[Order] | None = None
    short_years: bool = False
    doubt: Doubt | None = None
    declared: bool = False
    calendar: bool = True

    @staticmethod
    def of(column: Column, path: str, rows: npt.NDArray[np.bool_] | None) -> "_Summary":
        """Summary of a column of a part.

        Args: rows, mask of its rows; None for all.
        """
        values = column.values if rows is None else column.values[rows]
        given = values[~np.isnan(values)]
        found = _Summary(column.name, column.kind, column.stored_as, first=path)
        found.given, found.missing = len(given), len(values) - len(given)
        if not len(given):
            return found
        found.doubt, found.declared, found.short_years = column.doubt, column.declared, column.short_years
        found.inexact = None if column.inexact is None else column.inexact[1]
        found.orders, found.calendar = [*column.readings] or None, column.as_calendar() is not None
        if column.kind == "category":
            present = column.levels if rows is None else [column.levels[i] for i in np.unique(given.astype(np.int64))]
            found.levels = dict.fromkeys(present)
        else:
            # An infinite value is refused where its row is known; until then its column is no constant.
            largest = np.finfo(np.float64).max
            found.low, found.high = (float(end.clip(-largest, largest)) for end in (given.min(), given.max()))
        return found

    def to_json(self) -> dict[str, Any]:
        """Fields of the summary but the name."""
        return {**{key: value for key, value in vars(self).items() if key != "name"}, "levels": list(self.levels)}

    def join(self, other: "_Summary") -> None:
        """Add later cells. Raises: DomainError for another kind of values."""
        if self.capped:
            return
        self.missing += other.missing
        if not self.given or not self.stored_as:
            self.kind, self.stored_as, self.first = other.kind, other.stored_as, other.first
        if other.given and other.kind != self.kind and "other" not in (self.kind, other.kind):
            self._refuse(other.kind, other.stored_as, other.first)
        if other.given:
            self.doubt = other.doubt if other.doubt == self.doubt or not self.given else None
        self.given += other.given
        self.declared |= other.declared
        self.inexact = other.inexact if self.inexact is None else self.inexact
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self.levels.update(other.levels)
        self._add_orders(other.orders, other.short_years, other.first)
        self.calendar = self.calendar and other.calendar
        if other.capped or len(self.levels) > MAX_LEVELS:
            self._cap()

    def _add_orders(self, orders: list[Order] | None, short_years: bool, path: str) -> None:
        """Add the orders of more dates. Raises: DomainError where no order is left."""
        self.short_years |= short_years
        if orders is None or self.orders is None:
            self.orders = orders or self.orders
            return
        both = [order for order in ORDERS if order in orders and order in self.orders]
        if not both:
            self._refuse(f"date, by {orders[0]}", self.stored_as, path, f" by {self.orders[0]}")
        self.orders = both

    def _cap(self) -> None:
        self.kind, self.stored_as = "other", f"text with more than {MAX_LEVELS:,} distinct values"
        self.capped = True
        self.levels.clear()

    def _refuse(self, kind: str, stored_as: str, path: str, by: str = "") -> None:
        raise DomainError(
            f"column {quoted(self.name)} of {quoted(path)} must hold values of kind {self.kind}{by} as in "
            f"{quoted(self.first)}, got {kind}, stored as {quoted(stored_as)}; write it alike, or drop it"
        )

    def column(self, size: int, *, goal: bool) -> "_SummaryColumn":
        """Column of so many cells: every level, or both ends of the range. Args: goal, whether it is the target, of
        which a missing cell is no level."""
        lacking = self.kind == "category" and self.missing and self.given and not goal
        missing = {MISSING_LEVEL} if lacking else set()
        levels = tuple(sorted({*self.levels, *missing}))
        ends = np.arange(len(levels), dtype=np.float64) if self.kind == "category" else np.array([self.low, self.high])
        values = np.full(size, np.nan)
        if self.given and self.kind != "other":
            values[:] = ends[-1]
            values[: len(ends)] = ends
        inexact = None if self.inexact is None else (0, self.inexact)
        return _SummaryColumn(
            self.name, self.kind, values, levels, self.stored_as, inexact,  # type: ignore[arg-type]
            readings=dict.fromkeys(self.orders or (), values), short_years=self.short_years, doubt=self.doubt,
            declared=self.declared, count=self.given, calendar=self.calendar,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _SummaryColumn(Column):
    """Cells that stand for all. Fields: count, of those with a value; calendar, whether all are dates as numbers."""

    count: int = 0
    calendar: bool = False

    def as_calendar(self) -> Column | None:
        return super().as_calendar() if self.calendar else None

    @property
    def given(self) -> int:
        return self.count

    two_valued = False  # what lies between the ends is not known


class _SummaryTable(Table):
    """Rows of which stand for rows of any part."""

    def where(self, row: int) -> str:
        return "one of its rows"


def _summaries(
    parts: TableParts, dropped: set[str], codes: set[str], keep: Keep | None, group: Group
) -> dict[str, _Summary]:
    found = {name: _Summary(name) for name in parts.names}
    rows = 0
    for part in parts.parts():
        kept = None if keep is None else keep(part)
        rows += part.rows if kept is None else int(kept.sum())
        for column in with_categories(part, [part.names.index(name) for name in codes]).columns:
            if column.name not in dropped:
                found[column.name].join(_Summary.of(column, part.path, kept))
            else:
                found[column.name].kind, found[column.name].stored_as = "number", column.stored_as
    if group.size > 1:
        found, rows = _of_all_ranks(group, parts.names, found, rows)
    if not rows:
        without = "" if keep is None else " without missing values"
        raise ShapeError(
            f"{quoted(parts.path)} must have at least one row{without}, got none among {listed(parts.names)}"
        )
    return found


def _of_all_ranks(
    group: Group, names: tuple[str, ...], own: dict[str, _Summary], rows: int
) -> tuple[dict[str, _Summary], int]:
    """The summaries of all ranks' rows. Raises: DomainError for a column whose kind differs; RankMismatchError."""
    group.compare(columns=names)
    told = json.dumps([rows, [one.to_json() for one in own.values()]]).encode(errors="surrogatepass")
    every = [json.loads(text.decode(errors="surrogatepass")) for text in group.gather_bytes(told)]
    found = {name: _Summary(name) for name in names}
    for _, columns in every:
        for name, column in zip(names, columns, strict=True):
            found[name].join(_Summary(name, **{**column, "levels": dict.fromkeys(column["levels"])}))
    return found, sum(count for count, _ in every)


def _table(parts: TableParts, summaries: dict[str, _Summary], goal: str) -> Table:
    size = max(2, *(len(one.levels) + 1 for one in summaries.values()))
    columns = tuple(one.column(size, goal=name == goal) for name, one in summaries.items())
    return _SummaryTable(parts.path, columns, size, parts.header, None, ())
