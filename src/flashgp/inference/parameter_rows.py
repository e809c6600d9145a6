"""The parameters of a prior number by number, each named by the column of x that it belongs to.

What prints and reports show. Does not do: units of a table (`flashgp.cli.parameters`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from flashgp.foundations.parameters import Parameter, named_parameter_objects
from flashgp.inference.prior import Prior
from flashgp.kernels.base import LENGTH_ROLES, Kernel

HEAD = ("parameter", "of", "value", "prior in force")

MAX_ENTRIES = 1_000  # of one parameter


@dataclass(frozen=True)
class NumberRow:
    """One number of a prior.

    Fields: path of its parameter, such as kernel.lengthscale; index in it, None where it is one number; name, for
    people; of, the column or entry it belongs to; column, its position where it belongs to one; value; parameter;
    owner, whose attribute that is; prior, the density of it in force, in words.
    """

    path: str
    index: int | None
    name: str
    of: str
    column: int | None
    value: float
    parameter: Parameter
    owner: nn.Module
    prior: str

    @property
    def role(self) -> str:
        """Role of the parameter, by its owner."""
        return str(getattr(type(self.owner), "roles", {}).get(self.path.rpartition(".")[2], ""))

    @property
    def place(self) -> str:
        """The path with the index."""
        return self.path if self.index is None else f"{self.path}[{self.index}]"


def number_rows(
    prior: Prior, names: Sequence[str], in_force: Mapping[str, Sequence[str]] | None = None
) -> list[NumberRow]:
    """Every number of a prior in definition order, of each parameter 1,000 at most.

    Args: names, of the columns of x; in_force, by path the priors of each entry that a fit added to those given.
    """
    rows: list[NumberRow] = []
    for path, parameter in named_parameter_objects(prior):
        owner_path, _, attribute = path.rpartition(".")
        owner = prior.get_submodule(owner_path)
        role = getattr(type(owner), "roles", {}).get(attribute, "")
        values = parameter.value.detach().cpu().reshape(-1).tolist()[:MAX_ENTRIES]
        dims = getattr(owner, "active_dims", None)
        columns = list(range(len(names))) if dims is None else [j % len(names) for j in dims]
        per_column = (
            role in (*LENGTH_ROLES, "frequency", "slope_variance", "output_slope") or attribute == "lengthscale"
        )
        if role == "frequency" and len(columns) == 1:
            columns = columns * len(values)  # the components of a mixture, all along one column
        texts = (in_force or {}).get(path) or prior_texts(parameter)
        for index, value in enumerate(values):
            column = columns[index] if per_column and len(columns) == len(values) else None
            of = "" if column is None else names[column]
            if per_column and column is None:
                of = "all inputs" if dims is None else ", ".join(names[j] for j in columns)
            elif not per_column and len(values) > 1:
                of = f"entry {index + 1}"
            at = index if parameter.raw.dim() else None
            text = texts[index] if parameter.trainable else "fixed"
            rows.append(NumberRow(path, at, _name(prior, owner, attribute), of, column, value, parameter, owner, text))
    return rows


def prior_texts(parameter: Parameter) -> list[str]:
    """The prior of each entry of a parameter as its user gave it: LogNormal(0, 1), or none."""
    size, prior = parameter.raw.numel(), parameter.prior
    if prior is None:
        return ["none"] * size
    columns = []
    for name in prior.arg_constraints:
        value = getattr(prior, name, None)
        if value is None:
            continue
        fits = value.numel() == 1 or value.shape == parameter.raw.shape[parameter.raw.dim() - value.dim() :]
        columns.append(value.expand(parameter.raw.shape).reshape(-1).tolist() if fits else ["..."] * size)
    kind = type(prior).__name__
    if not columns:
        return [kind] * size
    entries = zip(*columns, strict=True)
    return [f"{kind}({', '.join(v if isinstance(v, str) else f'{v:.4g}' for v in entry)})" for entry in entries]


def _name(prior: Prior, owner: nn.Module, attribute: str) -> str:
    name = attribute.replace("_", " ")
    if isinstance(owner, Kernel):
        return f"signal {name}" if type(owner).__name__ == "Scaled" else f"{type(owner).__name__} {name}"
    return f"prior mean {name}" if owner is prior.mean else name


def table_text(rows: Sequence[NumberRow], *, priors: bool = True, most: int = 60) -> str:
    """A table of numbers with the columns that they belong to, and with the priors in force where these are known."""
    shown = [HEAD, *row_cells(rows[:most])] if priors else [HEAD[:3], *(cells[:3] for cells in row_cells(rows[:most]))]
    widths = [max(len(cells[j]) for cells in shown) for j in range(len(shown[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip() for cells in shown
    ]
    return "\n".join([*lines, *([f"and {len(rows) - most:,} more"] if len(rows) > most else [])])


def row_cells(rows: Sequence[NumberRow]) -> list[tuple[str, ...]]:
    """Cells of a table for each number, as `HEAD`."""
    return [(row.place, row.of, f"{row.value:.4g}", row.prior) for row in rows]
