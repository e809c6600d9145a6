"""The fitted parameters as a table that names columns, in units of the table where they have one."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flashgp.inference.gp import GP
from flashgp.inference.parameter_rows import number_rows
from flashgp.kernels import Kernel, Sum
from flashgp.kernels.base import LENGTH_ROLES
from flashgp.units import Scaling

_HEAD = ("parameter", "of", "in units of the table", "standardised", "prior")


@dataclass(frozen=True)
class ParameterRow:
    """One number of the model.

    Fields: path, its name in the model; name, for people; of, the column or category it belongs to; value,
    standardised; in_units, in units of the table, or None where it has none; unit, its name where the table has one
    for it, such as days; fitted; prior, that of the standardised
    parameter in words: of a variance, not of its root.
    """

    path: str
    name: str
    of: str
    value: float
    in_units: float | None
    unit: str
    fitted: bool
    prior: str

    def to_json(self) -> dict[str, Any]:
        return {"path": self.path, "name": self.name, "of": self.of, "value": self.in_units, "unit": self.unit or None,
                "standardised": self.value, "fitted": self.fitted, "prior": self.prior}  # fmt: skip


def parameter_table(rows: Sequence[ParameterRow]) -> tuple[Sequence[str], list[Sequence[str]], Sequence[int]]:
    """Head, cells, and which columns are numbers."""
    cells: list[Sequence[str]] = []
    for row in rows:
        in_units = "" if row.in_units is None else f"{row.in_units:.4g} {row.unit}".rstrip()
        cells.append((row.name, row.of, in_units, f"{row.value:.4g}", row.prior))
    return _HEAD, cells, (2, 3)


def parameter_rows(
    gp: GP,
    names: Sequence[str],
    scaling: Scaling,
    target: str,
    in_force: Mapping[str, Sequence[str]] | None = None,
    units: Sequence[str] = (),
) -> list[ParameterRow]:
    """Every parameter of a GP over standardised columns, in definition order.

    Variances appear as standard deviations in units of the target, where they are variances of the target: terms of a
    sum, not factors of a product.

    Args: names: of the d inputs; scaling: theirs and the target's; target: the target's name; in_force: the priors of a
    fit, by path; units: of the inputs, such as days, "" for those that have no name.
    """
    shift, scale = scaling.target.sizes
    additive = {id(part) for part in _additive(gp.kernel)}
    rows: list[ParameterRow] = []
    for row in number_rows(gp, names, in_force):
        role, column, value, label, of = row.role, row.column, row.value, row.name, row.of
        in_units, unit = None, "" if column is None or not units else units[column]
        if column is not None and role in LENGTH_ROLES:
            in_units = value * scaling.x_scale[column]
        elif column is not None and role == "frequency":
            in_units, unit = value / scaling.x_scale[column], f"/{unit.removesuffix('s')}" if unit else ""
        elif role == "noise_variance" or (role == "output_variance" and id(row.owner) in additive):
            in_units, of = _of_target(math.sqrt(value) * scale, scaling), target
            label = label.replace("variance", "standard deviation")
            value = math.sqrt(value)
        elif role == "output_mean":
            in_units, of = _of_target(value * scale + shift, scaling), target
        rows.append(ParameterRow(row.path, label, of, value, in_units, unit, row.parameter.trainable, row.prior))
    return rows


def _of_target(value: float, scaling: Scaling) -> float | None:
    """None where the number is not in units of the target, as beside a transform."""
    return value if scaling.target.linear else None


def _additive(kernel: Kernel) -> Iterator[Kernel]:
    """The terms whose variances add up to the variance of f."""
    if isinstance(kernel, Sum):
        for part in kernel.parts:
            yield from _additive(part)
    else:
        yield kernel
