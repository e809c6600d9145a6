"""The fitted parameters as a table that names columns, in units of the table where they have one."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from flashgp.foundations.parameters import named_parameter_objects
from flashgp.inference.gp import GP
from flashgp.kernel_expression import LENGTH_ROLES
from flashgp.kernels import Kernel, Sum
from flashgp.standardise import Scaling

__all__ = ["ParameterRow", "parameter_rows", "parameter_table"]

_HEAD = ("parameter", "of", "in units of the table", "standardised", "")
_MAX_ENTRIES = 1_000


@dataclass(frozen=True)
class ParameterRow:
    """One number of the model.

    Fields: path, its name in the model; name, for people; of, the column or category it belongs to; value,
    standardised; in_units, in units of the table, or None where it has none; fitted.
    """

    path: str
    name: str
    of: str
    value: float
    in_units: float | None
    fitted: bool

    def to_json(self) -> dict[str, Any]:
        return {"path": self.path, "name": self.name, "of": self.of, "value": self.in_units, "standardised": self.value,
                "fitted": self.fitted}  # fmt: skip


def parameter_table(rows: Sequence[ParameterRow]) -> tuple[Sequence[str], list[Sequence[str]], Sequence[int]]:
    """Head, cells, and which columns are numbers."""
    cells: list[Sequence[str]] = []
    for row in rows:
        in_units = "" if row.in_units is None else f"{row.in_units:.4g}"
        cells.append((row.name, row.of, in_units, f"{row.value:.4g}", "" if row.fitted else "fixed"))
    return _HEAD, cells, (2, 3)


def parameter_rows(gp: GP, names: Sequence[str], scaling: Scaling, target: str) -> list[ParameterRow]:
    """Every parameter of a GP over standardised columns, in definition order.

    Variances appear as standard deviations in units of the target, where they are variances of the target: terms of a
    sum, not factors of a product.

    Args: names: of the d inputs; scaling: theirs and the target's; target: the target's name.
    """
    additive = {id(part) for part in _additive(gp.kernel)}
    rows: list[ParameterRow] = []
    for path, parameter in named_parameter_objects(gp):
        owner_path, _, attribute = path.rpartition(".")
        owner = gp.get_submodule(owner_path)
        role = getattr(type(owner), "roles", {}).get(attribute, "")
        values = parameter.value.detach().cpu().reshape(-1).tolist()[:_MAX_ENTRIES]
        name = attribute.replace("_", " ")
        if isinstance(owner, Kernel):
            name = f"{type(owner).__name__} {name}" if type(owner).__name__ != "Scaled" else f"signal {name}"
        elif owner is gp.mean:
            name = f"prior mean {name}"
        dims = getattr(owner, "active_dims", None)
        columns = list(range(len(names))) if dims is None else [j % len(names) for j in dims]
        per_column = role in (*LENGTH_ROLES, "frequency", "slope_variance") or attribute == "lengthscale"
        if role == "frequency" and len(columns) == 1:
            columns = columns * len(values)  # the components of a mixture, all along one column
        for index, value in enumerate(values):
            column = columns[index] if per_column and len(columns) == len(values) else None
            of = "" if column is None else names[column]
            if per_column and column is None:
                of = "all inputs" if dims is None else ", ".join(names[j] for j in columns)
            elif not per_column and len(values) > 1:
                of = f"entry {index + 1}"
            in_units: float | None = None
            label = name
            if column is not None and role in LENGTH_ROLES:
                in_units = value * scaling.x_scale[column]
            elif column is not None and role == "frequency":
                in_units = value / scaling.x_scale[column]
            elif role == "noise_variance" or (role == "output_variance" and id(owner) in additive):
                in_units, of = _of_target(scaling.std(math.sqrt(value)), scaling), target
                label = name.replace("variance", "standard deviation")
                value = math.sqrt(value)
            elif role == "output_mean":
                in_units, of = _of_target(scaling.mean(value), scaling), target
            rows.append(ParameterRow(path, label, of, value, in_units, parameter.trainable))
    return rows


def _of_target(value: float, scaling: Scaling) -> float | None:
    """None where the number belongs to a transformed target, which has no unit."""
    return value if scaling.transform.identity else None


def _additive(kernel: Kernel) -> Iterator[Kernel]:
    """The terms whose variances add up to the variance of f."""
    if isinstance(kernel, Sum):
        for part in kernel.parts:
            yield from _additive(part)
    else:
        yield kernel
