"""Kernels for the columns of a table: the default one, and what a parsed expression becomes.

Starting values are converted from the units of their column to the standardised inputs of the model.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from flashgp import kernels
from flashgp.foundations.errors import DomainError, FlashGPError
from flashgp.foundations.parameters import Parameter
from flashgp.kernels.squared_exponential import Stationary
from flashgp.standardise import Scaling

from .kernel_expression import (
    CODES,
    NAMES,
    PER_COMPONENT,
    SETTINGS,
    KernelExpression,
    Leaf,
    Node,
    Number,
    Value,
    plain_value,
    refused_at,
)

__all__ = ["BuiltKernel", "build_kernel", "default_kernel"]

_START_ROLES = ("input_scale", "output_variance", "slope_variance")  # `fit` would start these from the data
_ONE_COLUMN = ("Coregionalization", "SpectralMixture")

# From units of a column to standardised units, given the column's scale; "*" is every stationary kernel.
_UNIT: dict[tuple[str, str], Callable[[float, float], float]] = {
    ("*", "lengthscale"): lambda value, scale: value / scale,
    ("Periodic", "period"): lambda value, scale: value / scale,
    ("Cosine", "frequency"): lambda value, scale: value * scale,
    ("SpectralMixture", "means"): lambda value, scale: value * scale,
    ("SpectralMixture", "scales"): lambda value, scale: value * scale,
}


@dataclass(frozen=True)
class BuiltKernel:
    """A kernel for standardised inputs, and whether it holds starting values that a fit from data would override."""

    kernel: kernels.Kernel
    has_starts: bool


def default_kernel(count: int, codes: Sequence[int]) -> kernels.Kernel:
    """variance * Matern-5/2 with a lengthscale per numeric column, times Categorical over the columns of codes."""
    real = [j for j in range(count) if j not in codes]
    every = len(real) == count
    parts: list[kernels.Kernel] = []
    if real:
        parts.append(kernels.Matern(2.5, torch.full((len(real),), len(real) ** 0.5), None if every else real))
    if codes:
        parts.append(kernels.Categorical(torch.ones(len(codes)), list(codes)))
    return 1.0 * (parts[0] if len(parts) == 1 else parts[0] * parts[1])


def build_kernel(
    expression: KernelExpression,
    names: Sequence[str],
    table_names: Sequence[str],
    codes: Sequence[int],
    levels: Sequence[int],
    scaling: Scaling,
) -> BuiltKernel:
    """The kernel of an expression over the model's inputs.

    Args:
        names: the d inputs; table_names: all columns of the table, for positions.
        codes: which inputs are category codes; levels: for each input, its number of categories (0 for none).
        scaling: what the inputs are standardised with.
    Raises: DomainError pointing at the place, for an unknown or unsuitable column, or a value out of its domain.
    """
    return _Builder(expression, names, table_names, frozenset(codes), levels, scaling).built()


class _Builder:
    """Joins a parsed expression with the columns of a table."""

    def __init__(
        self,
        expression: KernelExpression,
        names: Sequence[str],
        table_names: Sequence[str],
        codes: frozenset[int],
        levels: Sequence[int],
        scaling: Scaling,
    ) -> None:
        self.expression = expression
        self.names = list(names)
        self.table_names = table_names
        self.codes = codes
        self.levels = levels
        self.scaling = scaling
        self.has_starts = False

    def fail(self, position: int, problem: str) -> DomainError:
        return refused_at(self.expression.text, position, problem)

    def built(self) -> BuiltKernel:
        kernel = self.node(self.expression.tree)
        assert isinstance(kernel, kernels.Kernel)
        return BuiltKernel(kernel, self.has_starts)

    def node(self, node: Node) -> Any:
        if isinstance(node, Number):
            self.has_starts = self.has_starts or not node.fixed
            tensor = torch.tensor(node.value, dtype=torch.float64)
            return Parameter(tensor, trainable=False) if node.fixed else tensor
        if isinstance(node, Leaf):
            return self.leaf(node)
        left, right = self.node(node.left), self.node(node.right)
        if not isinstance(left, kernels.Kernel):  # a number first: the kernel decides what it means
            return right.__radd__(left) if node.operator == "+" else right.__rmul__(left)
        return left + right if node.operator == "+" else left * right

    def leaf(self, leaf: Leaf) -> kernels.Kernel:
        dims = self.dims(leaf)
        if leaf.name in _ONE_COLUMN and len(dims) != 1:
            raise self.fail(leaf.position, f"must give {leaf.name} one column, got {len(dims)}; set active_dims")
        arguments: dict[str, Any] = {}
        cls = NAMES[leaf.name]
        for name, value in leaf.options.items():
            arguments[name] = self.argument(leaf, name, value, dims)
            role = getattr(cls, "roles", {}).get(name)
            self.has_starts = self.has_starts or (role in _START_ROLES and not value.fixed)
        if "lengthscale" not in arguments and issubclass(cls, kernels.Categorical | Stationary):
            start = 1.0 if leaf.name == "Categorical" else len(dims) ** 0.5
            arguments["lengthscale"] = torch.full((len(dims),), start, dtype=torch.float64)
        if leaf.name == "Coregionalization":
            arguments.setdefault("count", self.levels[dims[0]])
        every = len(dims) == len(self.names)
        if leaf.name != "Constant":
            arguments["active_dims"] = None if every and leaf.columns is None else dims
        try:
            return cls(**arguments)
        except FlashGPError as error:
            raise self.fail(leaf.position, f"has a value that does not fit: {error}") from None

    def dims(self, leaf: Leaf) -> list[int]:
        wants_codes = leaf.name in CODES
        kind = "categories" if wants_codes else "numbers"
        if leaf.columns is None:
            dims = [j for j in range(len(self.names)) if (j in self.codes) == wants_codes]
            if not dims and leaf.name != "Constant":
                raise self.fail(leaf.position, f"has {leaf.name} without a column of {kind}; the inputs have none")
            return dims
        dims = []
        for choice, position in leaf.columns:
            j = self.column(choice, position)
            if (j in self.codes) != wants_codes and leaf.name != "Constant":
                held = "numbers" if wants_codes else "categories"
                advice = "use Categorical()" if not wants_codes else "use Matern()"
                raise self.fail(
                    position, f"must give {leaf.name} columns of {kind}, got {choice!r} of {held}; {advice}"
                )
            if j in dims:
                raise self.fail(position, f"must name a column once, got {choice!r} again")
            dims.append(j)
        return dims

    def column(self, choice: str | int, position: int) -> int:
        name = choice
        if isinstance(choice, int):
            if not 1 <= choice <= len(self.table_names):
                raise self.fail(position, f"must count columns from 1 to {len(self.table_names)}, got {choice}")
            name = self.table_names[choice - 1]
        if name not in self.names:
            shown = ", ".join(self.names[:20]) + (", ..." if len(self.names) > 20 else "")
            raise self.fail(position, f"must name inputs of the model, got {name!r}; choose from {shown}")
        return self.names.index(str(name))

    def argument(self, leaf: Leaf, name: str, value: Value, dims: list[int]) -> Any:
        if name in SETTINGS:
            return plain_value(name, value)
        if (
            value.is_list
            and name in ("lengthscale", "period", "frequency", "variance")
            and len(value.entries) != len(dims)
        ):
            raise self.fail(
                value.position, f"must give {name} one number per column ({len(dims)}), got {len(value.entries)}"
            )
        per_unit = _UNIT.get((leaf.name, name)) or (_UNIT.get(("*", name)) if self.is_stationary(leaf) else None)
        if per_unit is None:
            return plain_value(name, value)
        scales = [self.scaling.x_scale[j] for j in dims]
        if name in PER_COMPONENT:
            scales = scales * len(value.entries)
        if value.is_list or len(dims) == 1 or name != "lengthscale":
            entries = value.entries if value.is_list or name in PER_COMPONENT else value.entries * len(dims)
            changed = tuple(per_unit(v, s) for v, s in zip(entries, scales, strict=True))
            return plain_value(name, Value(changed, True, value.fixed, value.position))
        return plain_value(name, value)  # one lengthscale for several columns: in standard deviations

    def is_stationary(self, leaf: Leaf) -> bool:
        return issubclass(NAMES[leaf.name], Stationary)
