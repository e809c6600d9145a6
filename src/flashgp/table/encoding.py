"""Encoding of a table's columns as the numbers of a model, learned once and kept in the model file.

Numbers stay as they are, booleans are 0 and 1, dates are days, clock times hours, categories are codes into the levels
seen when learning. An input of numbers that are all dates written as 20000105 is one of dates.
Scaling is not done here. The JSON form comes back from untrusted model files, so reading it checks every field.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from flashgp.foundations.json_values import json_count, json_fields, json_flag, json_list, json_text, refused

from ..foundations.errors import DomainError, ShapeError
from ..foundations.quantities import counted
from .columns import Column, Kind, Table, listed, quoted
from .dates import Order
from .inputs import InputColumn, Unseen, as_learned, inputs_from_json, learned_inputs, positions_of, time_position
from .matching import converted, in_order, is_constant, kept_rows, kind_note, unusable_reason, with_target
from .roles import MISSING_LEVEL, names_rows, with_categories, with_codes, with_missing_level

Missing = Literal["error", "drop"]

_VERSION = 1
_MAX_COLUMNS = 1_000_000
MAX_CLASSES = 1000  # beyond which a target is none of classes
_TARGET_KINDS: tuple[Kind, ...] = ("number", "percentage")


@dataclass(frozen=True, eq=False)
class EncodedTable:
    """Numbers for a model.

    Fields: x, shape (n, d), float64, finite; y, shape (n,), float64, finite, or None where no target was asked for;
    rows, shape (n,), the zero-based rows of the table that were kept, increasing; total, the rows of the table; notes,
    sentences for the user.
    """

    x: npt.NDArray[np.float64]
    y: npt.NDArray[np.float64] | None
    rows: npt.NDArray[np.int64]
    total: int
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Encoding:
    """Encoding of the columns of a table as inputs and target of a model.

    Fields: inputs, in column order; target and target_position; header, whether columns are matched by name (else
    by position); table_columns, how many columns the table had; left_out, columns known and not used; missing, what
    happens to rows with missing values; target_kind, "number" or "percentage", or "category" of target_levels, whose
    codes are the target's values then; notes, what was decided while learning,
    and constant, the columns left out that do not vary (neither is part of the JSON form).
    """

    inputs: tuple[InputColumn, ...]
    target: str
    target_position: int
    header: bool
    table_columns: int
    left_out: tuple[str, ...] = ()
    missing: Missing = "error"
    target_kind: Kind = "number"
    target_levels: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=(), compare=False)
    constant: tuple[str, ...] = field(default=(), compare=False)

    @property
    def category_positions(self) -> tuple[int, ...]:
        """Positions of the d inputs that are category codes."""
        return tuple(index for index, column in enumerate(self.inputs) if column.kind == "category")

    @property
    def units(self) -> tuple[str, ...]:
        """Units that differences of the d inputs are counted in; "" if unknown."""
        return tuple(column.unit for column in self.inputs)

    @property
    def time_position(self) -> int | None:
        """Position of the input that is time: see `time_position`."""
        return time_position(self.inputs)

    @staticmethod
    def learn(
        table: Table,
        target: str,
        drop: Sequence[str] = (),
        missing: Missing = "error",
        dates: Order | None = None,
        categorical: Sequence[str] = (),
        classes: bool | None = False,
    ) -> "Encoding":
        """Decide from a table what each input is.

        Args:
            table: the training table.
            target: the column to predict, a name or a position (from 1; -1 is the last).
            drop: columns not to use, likewise.
            missing: "error" refuses rows with a missing value, "drop" leaves them out.
            dates: "dmy" or "mdy", the order of day and month in dates such as 05/01/2000; None where columns tell it.
            categorical: columns of which each value is a category, likewise.
            classes: whether the target is one of classes; None where its column decides, see `with_target`.
        Returns: the encoding; its notes name categories, codes and dates, and the constant or empty columns that it
            leaves out.
        Raises: DomainError for a column that cannot be used (all are named), a target that is not numeric, missing
            values under "error", infinite values, or when no input remains.
        Cost: O(rows x columns).
        """
        target_index = table.position(target, "target")
        dropped = {table.position(choice, "drop") for choice in drop}
        if target_index in dropped:
            raise DomainError(
                f"`drop` must not contain the target, got {quoted(table.names[target_index])}; choose another target."
            )
        table = with_target(table, target_index, classes)
        goal = table.columns[target_index]
        if goal.kind == "category" and goal.declared:
            if not 2 <= len(goal.levels) <= MAX_CLASSES:
                more = "join rare ones" if len(goal.levels) > 2 else "add rows of another class"
                raise DomainError(
                    f"`target` must have two to {MAX_CLASSES:,} classes, got {len(goal.levels):,} in "
                    f"{quoted(goal.name)}: {listed(goal.levels)}; {more}, or choose another column"
                )
        elif goal.kind not in _TARGET_KINDS or goal.inexact is not None or goal.doubt is not None:
            raise DomainError(
                f"`target` must be a numeric column, got {quoted(goal.name)} "
                f"({unusable_reason(table, goal, 'target') or goal.kind}); choose another column or correct its values."
            )
        used = [index for index in range(len(table.columns)) if index != target_index and index not in dropped]
        notes: list[str] = []
        if used[:1] == [0] and names_rows(table.columns[0]):
            used = used[1:]
            notes.append(
                f"column {quoted(table.names[0])} names the rows: left out. Give it another name in the header to use "
                "it."
            )
        codes = [place for choice in categorical if (place := table.position(choice, "categorical")) in used]
        table = with_codes(with_categories(table, codes), used, notes)
        table = _with_dates(in_order(table, used, dates), used, notes)
        _ = learned_inputs(table, used)  # refuses what cannot be used
        table = _with_missing_levels(table, used, notes)
        given = used
        used = [index for index in used if not is_constant(table.columns[index], notes)]
        rows, row_notes = kept_rows(table, [table.columns[index] for index in (*used, target_index)], missing)
        notes.extend(row_notes)
        if len(rows) < table.rows:
            used = [index for index in used if not is_constant(table.columns[index], notes, rows)]
        if not used:
            raise DomainError(
                f"{quoted(table.path)} must have an input that varies, besides the target {quoted(goal.name)}, got "
                f"columns {listed(table.names)}; {' '.join(notes) or 'add columns.'}"
            )
        notes.extend(note for index in used if (note := kind_note(table.columns[index])))
        return Encoding(
            inputs=learned_inputs(table, used),
            target=goal.name,
            target_position=target_index,
            header=table.header,
            table_columns=len(table.columns),
            left_out=tuple(n for i, n in enumerate(table.names) if i not in used and i != target_index),
            missing=missing,
            target_kind=goal.kind,
            target_levels=goal.levels,
            notes=tuple(notes),
            constant=tuple(n for i, n in enumerate(table.names) if i in given and i not in used),
        )

    def apply(
        self, table: Table, *, need_target: bool, unseen: Unseen = "error", missing: Missing | None = None
    ) -> EncodedTable:
        """Turn a table into numbers as the training table was.

        Args:
            table: columns are matched by name, or by position (with or without the target column) if the training
                table had no header; read it with `header=encoding.header`.
            need_target: whether y is wanted; otherwise a target column is not looked at.
            unseen: a category level that learning did not see is an "error", or "new": code len(levels), different
                from every known one.
            missing: "error" or "drop"; None keeps what was chosen when learning.
        Returns: the numbers, the rows they come from, and notes.
        Raises: DomainError for an absent column, another kind of column, an unseen level, a missing value under
            "error", an infinite value, or no row left; ShapeError for another number of columns without a header.
        Cost: O(rows x inputs); x is one array of 8 bytes a cell.
        """
        for name, value, allowed in (
            ("unseen", unseen, get_args(Unseen)),
            ("missing", missing, (None, *get_args(Missing))),
        ):
            if value not in allowed:
                raise DomainError(f"`{name}` must be one of {allowed}, got {value!r}; choose one of these")
        positions, target_index, notes = self._matched(table, need_target)
        columns = as_learned(table, positions, self.inputs, unseen, notes)
        if target_index is not None:
            goal = table.columns[target_index]
            columns.append(converted(table, goal, self.target_kind, self.target_levels, "error", notes))
        rows, row_notes = kept_rows(table, columns, missing or self.missing)
        y = None if target_index is None else columns.pop().values[rows]
        x = np.empty((len(rows), len(columns)))
        for index, column in enumerate(columns):
            x[:, index] = column.values[rows]
        return EncodedTable(x, y, rows, table.rows, (*notes, *row_notes))

    def observed(self, table: Table) -> tuple[npt.NDArray[np.float64] | None, tuple[str, ...]]:
        """The target's values in a table, (rows,), NaN where missing; None where there are none; and notes."""
        position: int | None = self.target_position if len(table.columns) == self.table_columns else None
        if self.header:
            position = table.names.index(self.target) if self.target in table.names else None
        if position is None:
            return None, ()
        goal = table.columns[position]
        if self.target_kind == "category":
            return self._observed_classes(table, goal)
        if goal.kind not in (self.target_kind, *(("boolean",) if self.target_kind == "number" else ())) and goal.given:
            what = "numeric" if self.target_kind == "number" else "percentages"
            return None, (f"the target {goal.name!r} is not {what} in this table, so the predictions are not scored.",)
        return goal.values, ()

    def _observed_classes(self, table: Table, goal: Column) -> tuple[npt.NDArray[np.float64] | None, tuple[str, ...]]:
        """Codes of the target's labels, NaN for those that the model does not know; and notes."""
        try:
            codes = converted(table, goal, "category", self.target_levels, "new", []).values
        except DomainError:
            return None, (f"the target {goal.name!r} has no labels in this table, so the predictions are not scored.",)
        new = codes == len(self.target_levels)
        if not new.any():
            return codes, ()
        note = f"{counted(int(new.sum()), 'row')} with other labels than {listed(self.target_levels)} are not scored."
        return np.where(new, np.nan, codes), (note,)

    def _matched(self, table: Table, need_target: bool) -> tuple[list[int], int | None, list[str]]:
        """Positions in the table of the inputs and of the target (None if not needed), and notes."""
        if not self.header:
            return self._matched_by_position(table, need_target)
        wanted = [column.name for column in self.inputs] + ([self.target] if need_target else [])
        positions = positions_of(table, wanted)
        known = {*wanted, self.target, *self.left_out}
        extra = [name for name in table.names if name not in known]
        notes = [f"columns unknown to the model are ignored: {listed(extra)}."] if extra else []
        target_position = positions.pop() if need_target else None
        return positions, target_position, notes

    def _matched_by_position(self, table: Table, need_target: bool) -> tuple[list[int], int | None, list[str]]:
        count, total = len(table.columns), self.table_columns
        if count == total:
            positions = [column.position for column in self.inputs]
        elif count == total - 1 and not need_target:
            positions = [column.position - (column.position > self.target_position) for column in self.inputs]
        else:
            allowed = f"{total} columns" if need_target else f"{total} columns, or {total - 1} without the target,"
            raise ShapeError(
                f"{quoted(table.path)} must have {allowed} in the order of the training table, which had no header, "
                f"got {count}; add or remove columns."
            )
        notes = ["columns are matched by position: the training table had no header."] if table.header else []
        return positions, self.target_position if need_target else None, notes

    def to_json(self) -> dict[str, Any]:
        """The encoding as JSON values; `from_json` reads it back. Notes are not kept."""
        return {
            "version": _VERSION,
            "inputs": [column.to_json() for column in self.inputs],
            "target": self.target,
            "target_position": self.target_position,
            "header": self.header,
            "table_columns": self.table_columns,
            "left_out": list(self.left_out),
            "missing": self.missing,
            # Which files of older versions have not.
            **({} if self.target_kind == "number" else {"target_kind": self.target_kind}),
            **({"target_levels": list(self.target_levels)} if self.target_levels else {}),
        }

    @staticmethod
    def from_json(data: object) -> "Encoding":
        """Read what `to_json` wrote, from a file that may be hostile.

        Args: data: decoded JSON.
        Returns: an equal encoding, without notes.
        Raises: ModelFileError naming the first field that is absent, unknown, of a wrong type or inconsistent.
        """
        keys = ("version", "inputs", "target", "target_position", "header", "table_columns", "left_out", "missing")
        later = [key for key in ("target_kind", "target_levels") if isinstance(data, dict) and key in data]
        fields = json_fields(data, "encoding", (*keys, *later))
        if type(fields["version"]) is not int or fields["version"] != _VERSION:
            raise refused("encoding.version", str(_VERSION), fields["version"])
        header = json_flag(fields["header"], "encoding.header")
        if fields["missing"] not in get_args(Missing):
            raise refused("encoding.missing", "'error' or 'drop'", fields["missing"])
        kind = fields.get("target_kind", "number")
        if kind not in (*_TARGET_KINDS, "category"):
            raise refused("encoding.target_kind", " | ".join((*_TARGET_KINDS, "category")), kind)
        place = "encoding.target_levels"
        levels = tuple(json_text(text, place) for text in json_list(fields.get("target_levels", []), place))
        if (len(levels) < 2) == (kind == "category") or len({*levels}) != len(levels):
            raise refused(place, "two or more that differ, of classes alone", levels)
        total = json_count(fields["table_columns"], "encoding.table_columns", _MAX_COLUMNS)
        target = json_text(fields["target"], "encoding.target")
        target_position = json_count(fields["target_position"], "encoding.target_position", total - 1)
        inputs = inputs_from_json(fields["inputs"], "encoding.inputs", total)
        places = [column.position for column in inputs]
        if target_position in places:
            raise refused("encoding.inputs", "inputs, none of them the target", places)
        left_out = tuple(json_text(t, "encoding.left_out") for t in json_list(fields["left_out"], "encoding.left_out"))
        names = [column.name for column in inputs] + [target, *left_out]
        if len(set(names)) != len(names):
            raise refused("encoding", "distinct column names", names)
        if len(names) != total:
            raise refused("encoding.table_columns", f"{len(names)}, the columns it names", total)
        return Encoding(inputs, target, target_position, header, total, left_out, fields["missing"], kind, levels)


def _with_missing_levels(table: Table, columns: Sequence[int], notes: list[str]) -> Table:
    """The table whose missing cells of text are a category; the notes say in which columns."""
    found = list(table.columns)
    for index in columns:
        found[index] = with_missing_level(found[index])
        empty = int(np.count_nonzero(np.isnan(table.columns[index].values)))
        if found[index] is not table.columns[index]:
            notes.append(
                f"column {quoted(found[index].name)}: {counted(empty, 'cell')} without a value are a category, "
                f"{quoted(MISSING_LEVEL)}."
            )
    return replace(table, columns=tuple(found))


def _with_dates(table: Table, columns: Sequence[int], notes: list[str]) -> Table:
    """The table with columns of numbers that are all dates, such as 20000105, as dates; the notes say which."""
    found = list(table.columns)
    for index in columns:
        dates = found[index].as_calendar()
        if dates is not None:
            found[index] = dates
            notes.append(f"column {quoted(dates.name)} holds numbers that are all dates written as YYYYMMDD.")
    return replace(table, columns=tuple(found))
