"""Input columns of a model: what each is learned to be, and tables turned into numbers by it.

`Encoding` adds a target to them. `FrameEncoding` is of inputs alone, for estimators that are given the target apart.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from flashgp.foundations.json_values import json_count, json_fields, json_list, json_text, refused

from ..foundations.errors import DomainError
from .columns import Column, Kind, Table, listed, quoted
from .dates import ORDERS, Order
from .matching import converted, in_order, unusable_reason
from .roles import with_missing_level

Unseen = Literal["error", "new"]

_INPUT_KINDS = tuple(kind for kind in get_args(Kind) if kind != "other")
_MAX_COLUMNS = 1_000_000
_UNITS = {"date": "days", "time": "hours", "percentage": "%"}


@dataclass(frozen=True)
class InputColumn:
    """One input of the model.

    Fields: name; kind; position in the table it was learned from, from 0; levels of a category, sorted; order, of day
    and month in its dates, None where that was no question.
    """

    name: str
    kind: Kind
    position: int
    levels: tuple[str, ...] = ()
    order: Order | None = None

    @property
    def unit(self) -> str:
        """Unit that differences of its values are counted in; "" if unknown."""
        return _UNITS.get(self.kind, "")

    def to_json(self) -> dict[str, Any]:
        """JSON values, which `inputs_from_json` reads."""
        order = {} if self.order is None else {"order": self.order}  # which files of older versions have not
        return {"name": self.name, "kind": self.kind, "position": self.position, "levels": list(self.levels), **order}


def time_position(inputs: Sequence[InputColumn]) -> int | None:
    """Position of the time among the inputs: the only one of dates, or the only input, unless it is a category; else
    None."""
    dates = [index for index, column in enumerate(inputs) if column.kind == "date"]
    if len(dates) == 1:
        return dates[0]
    return 0 if len(inputs) == 1 and inputs[0].kind != "category" else None


def learned_inputs(table: Table, used: Sequence[int]) -> tuple[InputColumn, ...]:
    """The columns at these positions as inputs. Raises: DomainError naming all that cannot be inputs."""
    columns = [table.columns[index] for index in used]
    unusable = [(column.name, reason) for column in columns if (reason := unusable_reason(table, column))]
    if unusable:
        names = [name for name, _ in unusable[:10]]
        leave_out = f"leave out {listed(names)}, or "
        if table.first_row == 1:  # of a file
            leave_out = f"drop with {' '.join(f'--drop {shlex.quote(name)}' for name in names)}, or "
        if len(unusable) == len(columns):  # which would leave none
            leave_out = ""
        raise DomainError(
            f"every input column must be numbers, dates, booleans or categories, got "
            f"{'; '.join(f'{quoted(name)} ({reason})' for name, reason in unusable[:10])}"
            f"{f'; and {len(unusable) - 10} more' if len(unusable) > 10 else ''}; {leave_out}correct the values."
        )
    return tuple(
        InputColumn(column.name, column.kind, index, column.levels, column.order)
        for index, column in zip(used, map(with_missing_level, columns), strict=True)
    )


def positions_of(table: Table, wanted: Sequence[str]) -> list[int]:
    """Positions of columns in a table, by name. Raises: DomainError naming those that it lacks."""
    names = table.names
    absent = [name for name in wanted if name not in names]
    if absent:
        hint = "" if table.header else " (no header row was found in it; read it with a header)"
        raise DomainError(
            f"{quoted(table.path)} must have the columns that the model was fitted with, missing {listed(absent)}; "
            f"it has {listed(names)}{hint}: rename or add them."
        )
    return [names.index(name) for name in wanted]


def as_learned(
    table: Table, positions: Sequence[int], inputs: Sequence[InputColumn], unseen: Unseen, notes: list[str]
) -> list[Column]:
    """Columns of a table as the inputs that they were learned to be. Raises: DomainError as `converted`."""
    return [
        converted(table, table.columns[index], wanted.kind, wanted.levels, unseen, notes, wanted.order)
        for index, wanted in zip(positions, inputs, strict=True)
    ]


def inputs_from_json(data: object, where: str, columns: int = _MAX_COLUMNS) -> tuple[InputColumn, ...]:
    """Input columns from a file that may be hostile, in column order.

    Args: columns: of the table that they were learned from.
    Raises: ModelFileError naming the first field that is absent, unknown, of a wrong type or inconsistent.
    """
    inputs = []
    for index, item in enumerate(json_list(data, where)):
        place = f"{where}[{index}]"
        with_order = isinstance(item, dict) and "order" in item
        keys = ("name", "kind", "position", "levels")
        entry = json_fields(item, place, (*keys, "order") if with_order else keys)
        if entry["kind"] not in _INPUT_KINDS:
            raise refused(f"{place}.kind", " | ".join(_INPUT_KINDS), entry["kind"])
        levels = tuple(json_text(t, f"{place}.levels") for t in json_list(entry["levels"], f"{place}.levels"))
        if any(a >= b for a, b in pairwise(levels)) or (entry["kind"] == "category") != bool(levels):
            raise refused(f"{place}.levels", "sorted distinct levels for a category alone", entry["levels"])
        order = entry.get("order")
        if order not in (None, *ORDERS) or (order is not None and entry["kind"] != "date"):
            raise refused(f"{place}.order", "'dmy' or 'mdy', of dates", order)
        name = json_text(entry["name"], f"{place}.name")
        position = json_count(entry["position"], f"{place}.position", columns - 1)
        inputs.append(InputColumn(name, entry["kind"], position, levels, order))
    places = [column.position for column in inputs]
    if not inputs or any(a >= b for a, b in pairwise(places)):
        raise refused(where, "one or more inputs in column order", places)
    return tuple(inputs)


@dataclass(frozen=True)
class FrameEncoding:
    """Encoding of all columns of a frame as the inputs of an estimator, in the frame's order.

    Fields: inputs, one for each column.

    Example:
        >>> from flashgp.table import table_of
        >>> frame = table_of({"city": ["Ulm", "Bonn"], "size": [80.0, 120.0]})
        >>> FrameEncoding.learn(frame).numbers(frame)
        array([[  1.,  80.],
               [  0., 120.]])
    """

    inputs: tuple[InputColumn, ...]

    @staticmethod
    def learn(table: Table, dates: Order | None = None) -> "FrameEncoding":
        """Decide what each column is; numbers stay numbers.

        Args: dates: the order of day and month where a column of dates does not tell it.
        Raises: DomainError for columns that cannot be used.
        """
        every = range(len(table.columns))
        return FrameEncoding(learned_inputs(in_order(table, every, dates), every))

    @property
    def categories(self) -> dict[int, str]:
        """Names of the columns of category codes, by position."""
        return {column.position: column.name for column in self.inputs if column.kind == "category"}

    def numbers(self, table: Table, unseen: Unseen = "error") -> npt.NDArray[np.float64]:
        """The table's numbers, (rows, d), NaN where missing; columns are matched by name.

        Args:
            table: other columns are ignored.
            unseen: a category that learning did not see is an "error", or "new": a code of its own.

        Raises: DomainError for an absent column, another kind of column or an unseen category.
        """
        positions = positions_of(table, [column.name for column in self.inputs])
        columns = as_learned(table, positions, self.inputs, unseen, [])
        return np.stack([column.values for column in columns], axis=1)

    def to_json(self) -> list[dict[str, Any]]:
        """JSON values; `from_json` gives an equal object back."""
        return [column.to_json() for column in self.inputs]

    @staticmethod
    def from_json(data: object, where: str) -> "FrameEncoding":
        """Read what `to_json` wrote, from a file that may be hostile. Raises: ModelFileError naming the field."""
        inputs = inputs_from_json(data, where)
        if [column.position for column in inputs] != [*range(len(inputs))]:
            raise refused(where, "every column of a frame", [column.position for column in inputs])
        return FrameEncoding(inputs)
