"""Covariance functions on the command line: `2.0 * Matern(nu=1.5) + Linear()`.

Names of kernels, numbers, + * and parentheses; keyword arguments that are numbers, lists of numbers or columns.
`ast.parse` reads the text and a whitelist walks the tree: nothing is evaluated. The walk runs twice: before the table
is read, to check all that needs no data, and with the columns of the table, to build the kernel.

What the numbers mean: lengthscale, period, frequency, means and scales are in the units of their column
(a lengthscale shared by several columns: in their standard deviations); all others belong to standardised columns and
target.
"""

import ast
import difflib
import inspect
import operator
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from flashgp import kernels
from flashgp.foundations.errors import DomainError, FlashGPError
from flashgp.foundations.parameters import Parameter
from flashgp.kernels.base import LENGTH_ROLES
from flashgp.kernels.squared_exponential import Stationary

if TYPE_CHECKING:
    from flashgp.table import InputColumn

_GRAMMAR = """
Kernels: {names}.

Combine them with +, * and numbers, as in 2.0 * Matern(nu=1.5) + Linear().

Arguments are written name=value, with a number, a list of numbers, or fixed(number), which is not fitted.

active_dims=[hour, "wind speed", 3] chooses columns by name or by position in the table, counted from 1; without it a
kernel sees all numeric columns, and Categorical and Coregionalization all columns of categories.

Lengthscales are fitted one per column; lengthscale=1.5 is one for all columns, a list gives each its starting value.

SpectralMixture takes one column and a list with an entry per component: weights, means (frequencies) and scales.

lengthscale, period, frequency, means and scales are in units of their column, other numbers in standardised units.
"""

_MAX_CHARACTERS = 10_000
_MAX_DEPTH = 100
# Written + and *; modules and functions cannot be written.
_EXCLUDED = ("Sum", "Product", "Scaled", "Warped", "Custom")
NAMES = {n: row.kernel for n, row in kernels.REGISTRY.items() if n not in _EXCLUDED} | {"RBF": kernels.RBF}
GRAMMAR = _GRAMMAR.format(names=", ".join(sorted(NAMES)))
_CODES = ("Categorical", "Coregionalization")
_ONE_COLUMN = ("Coregionalization", "SpectralMixture")
_SETTINGS = ("nu", "degree", "count", "rank")  # chosen, not fitted
_PER_COMPONENT = ("weights", "means", "scales")  # lists with an entry per component of a mixture, on one column
_PER_COLUMN = ("lengthscale", "period", "frequency", "variance")  # lists with an entry per column
_START_ROLES = ("input_scale", "output_variance", "slope_variance")  # `fit` would start these from the data


@dataclass(frozen=True)
class KernelExpression:
    """A checked expression. Fields: text, as the user wrote it; tree, of Python's parser; argument, what it is called
    where it was asked for."""

    text: str
    tree: ast.expr
    argument: str = "kernel"


@dataclass(frozen=True)
class KernelColumns:
    """Columns that an expression refers to.

    Fields: inputs, the d columns of the model; table_names, all columns of the table, for positions; scales, standard
    deviations of the inputs.
    """

    inputs: "Sequence[InputColumn]"
    table_names: Sequence[str]
    scales: Sequence[float]

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.inputs]

    def is_category(self, j: int) -> bool:
        return self.inputs[j].kind == "category"


@dataclass(frozen=True)
class BuiltKernel:
    """A kernel for standardised inputs, and whether it holds starting values that a fit from data would override."""

    kernel: kernels.Kernel
    has_starts: bool


def parse_kernel(text: str, argument: str = "kernel") -> KernelExpression:
    """Read an expression and check everything that needs no data.

    Args: argument, what it is called where it was asked for.

    Raises: DomainError whose message shows the text with a mark under the place.
    """
    if len(text) > _MAX_CHARACTERS:
        raise DomainError(
            f"`{argument}` must have at most {_MAX_CHARACTERS:,} characters, got {len(text):,}; shorten it"
        )
    text = text.strip()
    if not text:
        raise DomainError(f"`{argument}` must be an expression, got nothing; for example 'Matern(nu=2.5)'")
    if not text.isprintable():
        raise DomainError(
            f"`{argument}` must be one line of printable text, got other characters; write it on one line"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what Python thinks of the text is said below, or does not matter
            tree = ast.parse(text, mode="eval").body
        _Walk(text, None, argument).kernel(tree)
    except SyntaxError as error:
        reason = (error.msg or "it cannot be read").split(". Perhaps")[0]
        place = min(max((error.offset or 1) - 1, 0), len(text))
        raise _refused(text, place, f"must be an expression, got a mistake: {reason}", argument) from None
    except DomainError:
        raise
    except (RecursionError, MemoryError, ValueError):
        raise DomainError(f"`{argument}` must be nested less deeply; remove parentheses") from None
    return KernelExpression(text, tree, argument)


def build_kernel(expression: KernelExpression, columns: KernelColumns) -> BuiltKernel:
    """The kernel of an expression over the model's inputs.

    Raises: DomainError pointing at the place, for an unknown or unsuitable column, or a value out of its domain.
    """
    walk = _Walk(expression.text, columns, expression.argument)
    return BuiltKernel(walk.kernel(expression.tree), walk.has_starts)


def _refused(text: str, position: int, problem: str, argument: str) -> DomainError:
    """The expression with a mark under the place; long ones are cut around it."""
    start = max(0, position - 50)
    shown = text[start : start + 90]
    return DomainError(
        f"`{argument}` {problem}, at character {position + 1}\n    {shown}\n    {' ' * (position - start)}^"
    )


@dataclass(frozen=True)
class _Value:
    """A number or list of numbers as written, and whether it is fixed."""

    entries: tuple[float, ...]
    is_list: bool
    fixed: bool
    node: ast.AST

    def argument(self, name: str) -> Any:
        """The value as the constructor takes it."""
        if name in _SETTINGS:
            number = self.entries[0]
            return int(number) if name != "nu" and number.is_integer() else number
        scalar = not self.is_list and name not in _PER_COMPONENT
        tensor = torch.tensor(self.entries[0] if scalar else self.entries, dtype=torch.float64)
        if name in ("means", "scales"):
            tensor = tensor.unsqueeze(-1)  # of one column
        return Parameter(tensor, trainable=False) if self.fixed else tensor


class _Walk:
    """Walk from a syntax tree to a kernel, by a whitelist; without columns only to see that it can be built."""

    def __init__(self, text: str, columns: KernelColumns | None, argument: str) -> None:
        self.text, self.argument = text, argument
        self.columns = columns
        self.has_starts = False
        self._encoded = text.encode()

    def fail(self, node: ast.AST, problem: str) -> DomainError:
        # Where the node begins, in characters; Python counts bytes.
        place = len(self._encoded[: getattr(node, "col_offset", 0)].decode(errors="ignore"))
        return _refused(self.text, place, problem, self.argument)

    def kernel(self, node: ast.expr) -> kernels.Kernel:
        kernel = self.node(node, 0)
        if isinstance(kernel, _Value):
            raise self.fail(kernel.node, "must hold a covariance function, got only a number; add Constant()")
        return kernel

    def node(self, node: ast.expr, depth: int) -> kernels.Kernel | _Value:
        if depth > _MAX_DEPTH:
            raise self.fail(node, f"must be nested at most {_MAX_DEPTH} deep, got more; simplify it")
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mult):
            return self.joined(node, depth)
        if isinstance(node, ast.BinOp):
            raise self.fail(node, f"must combine kernels with + and *, got {ast.unparse(node)[:60]!r}")
        if isinstance(node, ast.Call) and not (isinstance(node.func, ast.Name) and node.func.id == "fixed"):
            return self.leaf(node)
        if isinstance(node, ast.Name):
            if node.id in NAMES:
                raise self.fail(node, f"must call a kernel with parentheses, got {node.id}; write {node.id}()")
            raise self.fail(node, self.unknown(node.id))
        if isinstance(node, ast.Call | ast.Constant | ast.UnaryOp):
            value = self.value(node)
            if value.is_list:
                raise self.fail(node, "must scale by one number, got a list")
            return self.positive(value)
        raise self.fail(node, f"may hold kernels, numbers, + and *, got {ast.unparse(node)[:60]!r}")

    def joined(self, node: ast.BinOp, depth: int) -> kernels.Kernel | _Value:
        """A chain a + b + c hangs to the left: followed in a loop, so that only real nesting counts as depth."""
        chain: list[ast.BinOp] = []
        first: ast.expr = node
        while isinstance(first, ast.BinOp) and isinstance(first.op, ast.Add | ast.Mult):
            chain.append(first)
            first = first.left
        if len(chain) > _MAX_DEPTH:
            raise self.fail(node, f"must join at most {_MAX_DEPTH} terms, got {len(chain) + 1}; simplify it")
        result = self.node(first, depth + 1)
        for link in reversed(chain):
            combine: Any = operator.add if isinstance(link.op, ast.Add) else operator.mul
            right = self.node(link.right, depth + 1)
            if isinstance(result, _Value) and isinstance(right, _Value):
                number = combine(result.entries[0], right.entries[0])
                result = self.positive(_Value((number,), False, result.fixed or right.fixed, result.node))
            else:
                result = combine(self.operand(result), self.operand(right))
        return result

    def operand(self, part: kernels.Kernel | _Value) -> Any:
        if isinstance(part, kernels.Kernel):
            return part
        self.has_starts = self.has_starts or not part.fixed
        return part.argument("") if part.fixed else part.entries[0]

    def positive(self, value: _Value) -> _Value:
        if not 0.0 < value.entries[0] < float("inf"):
            raise self.fail(value.node, f"must scale or add by positive numbers, got {value.entries[0]:g}")
        return value

    def unknown(self, name: str) -> str:
        near = difflib.get_close_matches(name, NAMES, 1, 0.6)
        advice = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(sorted(NAMES))}, or auto alone"
        return f"must name kernels, got {name!r}; {advice}"

    # -- one kernel -----------------------------------------------------------------------------------------------
    def leaf(self, node: ast.Call) -> kernels.Kernel:
        if not isinstance(node.func, ast.Name) or node.func.id not in NAMES:
            raise self.fail(node, self.unknown(ast.unparse(node.func)[:60]))
        name, cls = node.func.id, NAMES[node.func.id]
        values, chosen = self.keywords(node, name)
        if name == "SpectralMixture" and (missing := [part for part in _PER_COMPONENT if part not in values]):
            raise self.fail(
                node, f"must give SpectralMixture {', '.join(missing)}: one number per component, "
                "as in SpectralMixture(weights=[1, 0.5], means=[0.1, 0.5], scales=[0.02, 0.02])"
            )  # fmt: skip
        if self.columns is None:
            arguments = {key: value.argument(key) for key, value in values.items()}
            if name == "Coregionalization":
                arguments.setdefault("count", 1)
        else:
            arguments = self.arguments(node, name, values, chosen, self.columns)
        for key, value in values.items():
            role = getattr(cls, "roles", {}).get(key)
            self.has_starts = self.has_starts or (role in _START_ROLES and not value.fixed)
        try:
            return cls(**arguments)
        except FlashGPError as error:
            place = next((value.node for key, value in values.items() if f"`{key}`" in str(error)), node)
            raise self.fail(place, f"has a value that does not fit: {error}") from None

    def keywords(self, node: ast.Call, name: str) -> tuple[dict[str, _Value], list[tuple[str | int, ast.AST]] | None]:
        """Values by argument, and the columns chosen."""
        allowed = [p for p in inspect.signature(NAMES[name]).parameters if p != "factor"]
        if node.args:
            got = ast.unparse(node.args[0])[:60]
            raise self.fail(node.args[0], f"must give {name} its arguments by name, got {got!r}; write {allowed[0]}=")
        values: dict[str, _Value] = {}
        chosen = None
        for keyword in node.keywords:
            key = keyword.arg
            if key is None or key not in allowed:
                got = "**" if key is None else repr(key)
                raise self.fail(keyword, f"must give {name} only {', '.join(allowed)}, got {got}")
            if key in values or (key == "active_dims" and chosen is not None):
                raise self.fail(keyword, f"must give {key} once, got it again")
            if key == "active_dims":
                chosen = self.chosen(keyword.value)
                continue
            values[key] = self.value(keyword.value)
            if key in _SETTINGS and (values[key].is_list or values[key].fixed):
                raise self.fail(keyword.value, f"must give {key} a plain number")
        return values, chosen

    def arguments(
        self,
        node: ast.Call,
        name: str,
        values: dict[str, _Value],
        chosen: list[tuple[str | int, ast.AST]] | None,
        columns: KernelColumns,
    ) -> dict[str, Any]:
        """The constructor's arguments, in standardised units."""
        dims = self.dims(node, name, chosen, columns)
        if name in _ONE_COLUMN and len(dims) != 1:
            raise self.fail(node, f"must give {name} one column, got {len(dims)}; set active_dims")
        scales = [columns.scales[j] for j in dims]
        arguments = {key: self.in_units(name, key, value, scales) for key, value in values.items()}
        if "lengthscale" not in arguments and issubclass(NAMES[name], kernels.Categorical | Stationary):
            start = 1.0 if name == "Categorical" else len(dims) ** 0.5
            arguments["lengthscale"] = torch.full((len(dims),), start, dtype=torch.float64)
        if name == "Coregionalization":
            arguments.setdefault("count", len(columns.inputs[dims[0]].levels))
        if name != "Constant":
            every = len(dims) == len(columns.inputs) and chosen is None
            arguments["active_dims"] = None if every else dims
        return arguments

    def in_units(self, name: str, key: str, value: _Value, scales: list[float]) -> Any:
        if value.is_list and key in _PER_COLUMN and len(value.entries) != len(scales):
            raise self.fail(
                value.node, f"must give {key} one number per column ({len(scales)}), got {len(value.entries)}"
            )
        role = getattr(NAMES[name], "roles", {}).get(key)
        shared = key == "lengthscale" and not value.is_list and len(scales) != 1  # in standard deviations
        if shared or role not in (*LENGTH_ROLES, "frequency"):
            return value.argument(key)
        entries = value.entries
        if key in _PER_COMPONENT:
            scales = scales * len(entries)
        elif not value.is_list:
            entries = entries * len(scales)
        pairs = zip(entries, scales, strict=True)
        changed = tuple(entry / scale if role in LENGTH_ROLES else entry * scale for entry, scale in pairs)
        return _Value(changed, True, value.fixed, value.node).argument(key)

    def dims(
        self, node: ast.Call, name: str, chosen: list[tuple[str | int, ast.AST]] | None, columns: KernelColumns
    ) -> list[int]:
        """Positions of the inputs that a kernel sees."""
        wants_codes = name in _CODES
        kind, other = ("categories", "numbers") if wants_codes else ("numbers", "categories")
        if chosen is None:
            dims = [j for j in range(len(columns.inputs)) if columns.is_category(j) == wants_codes]
            if not dims and name != "Constant":
                raise self.fail(node, f"has {name} without a column of {kind}; the inputs have none")
            return dims
        dims = []
        for choice, place in chosen:
            j = self.column(choice, place, columns)
            if columns.is_category(j) != wants_codes and name != "Constant":
                advice = "use Matern()" if wants_codes else "use Categorical()"
                raise self.fail(place, f"must give {name} columns of {kind}, got {choice!r} of {other}; {advice}")
            if j in dims:
                raise self.fail(place, f"must name a column once, got {choice!r} again")
            dims.append(j)
        return dims

    def column(self, choice: str | int, place: ast.AST, columns: KernelColumns) -> int:
        name = choice
        if isinstance(choice, int):
            count = len(columns.table_names)
            if not 1 <= choice <= count:
                raise self.fail(place, f"must count columns from 1 to {count}, got {choice}")
            name = columns.table_names[choice - 1]
        if name not in columns.names:
            shown = ", ".join(columns.names[:20]) + (", ..." if len(columns.names) > 20 else "")
            raise self.fail(place, f"must name inputs of the model, got {name!r}; choose from {shown}")
        return columns.names.index(str(name))

    # -- values ---------------------------------------------------------------------------------------------------
    def number(self, node: ast.expr) -> float:
        try:
            literal = ast.literal_eval(node)
            if type(literal) in (int, float):
                return float(literal)
        except (ValueError, TypeError, OverflowError):
            pass
        raise self.fail(node, f"must have a number that a float can hold here, got {ast.unparse(node)[:60]!r}")

    def value(self, node: ast.expr) -> _Value:
        if isinstance(node, ast.Call):
            if not (isinstance(node.func, ast.Name) and node.func.id == "fixed" and len(node.args) == 1):
                raise self.fail(node, f"may only call fixed(number) here, got {ast.unparse(node)[:60]!r}")
            if node.keywords:
                raise self.fail(node, "must give fixed() one number or list and nothing else")
            inner = self.value(node.args[0])
            return _Value(inner.entries, inner.is_list, True, node)
        if isinstance(node, ast.List):
            if not node.elts:
                raise self.fail(node, "must have at least one number in a list")
            return _Value(tuple(self.number(entry) for entry in node.elts), True, False, node)
        return _Value((self.number(node),), False, False, node)

    def chosen(self, node: ast.expr) -> list[tuple[str | int, ast.AST]]:
        """Column names and positions of active_dims."""
        columns: list[tuple[str | int, ast.AST]] = []
        for entry in node.elts if isinstance(node, ast.List | ast.Tuple) else [node]:
            if isinstance(entry, ast.Name):
                columns.append((entry.id, entry))
            elif (
                isinstance(entry, ast.Constant)
                and isinstance(entry.value, str | int)
                and not isinstance(entry.value, bool)
            ):
                columns.append((entry.value, entry))
            else:
                raise self.fail(
                    entry, f"must have column names or positions here, got {ast.unparse(entry)[:60]!r}; "
                    'quote a name with spaces or signs, as in active_dims=["wind speed"]'
                )  # fmt: skip
        if not columns:
            raise self.fail(node, "must have at least one column in active_dims")
        return columns
