"""A small language for covariance functions on the command line: `2.0 * Matern(nu=1.5) + Linear()`.

Names of kernels, numbers, + * and parentheses; keyword arguments that are numbers, lists of numbers or columns.
Python's parser reads the text and a whitelist walks the tree: nothing is evaluated. `parse_kernel` checks all that
can be checked without data and remembers where everything stands; `kernel_building` joins it with the columns.

What the numbers mean: lengthscale, period, frequency, means and scales are in the units of their column
(a lengthscale shared by several columns: in their standard deviations); all others belong to standardised columns and
target.
"""

import ast
import inspect
import warnings
from dataclasses import dataclass
from typing import Any

import torch

from flashgp import kernels
from flashgp.foundations.errors import DomainError, FlashGPError
from flashgp.foundations.parameters import Parameter

__all__ = [
    "CODES",
    "GRAMMAR",
    "NAMES",
    "PER_COMPONENT",
    "SETTINGS",
    "Join",
    "KernelExpression",
    "Leaf",
    "Node",
    "Number",
    "Value",
    "parse_kernel",
    "plain_value",
    "refused_at",
]

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

_MOST_CHARACTERS = 10_000
_MOST_DEPTH = 100
# Written + and *; modules and functions cannot be written.
_EXCLUDED = ("Sum", "Product", "Scaled", "Warped", "Custom")
NAMES = {n: row.kernel for n, row in kernels.REGISTRY.items() if n not in _EXCLUDED} | {"RBF": kernels.RBF}
CODES = ("Categorical", "Coregionalization")
SETTINGS = {"nu", "degree", "count", "rank"}  # chosen, not fitted
PER_COMPONENT = ("weights", "means", "scales")  # lists with an entry per component of a mixture, on one column
GRAMMAR = _GRAMMAR.format(names=", ".join(sorted(NAMES)))


@dataclass(frozen=True)
class Value:
    """A number or list of numbers as written, whether it is fixed, and where it stands (from 0)."""

    entries: tuple[float, ...]
    is_list: bool
    fixed: bool
    position: int


@dataclass(frozen=True)
class Leaf:
    """A kernel as written: its arguments, and its columns as (name or position from 1, where it stands)."""

    name: str
    position: int
    options: dict[str, Value]
    columns: tuple[tuple[str | int, int], ...] | None


@dataclass(frozen=True)
class Join:
    """Two parts joined by + or *."""

    operator: str
    left: "Node"
    right: "Node"
    position: int


@dataclass(frozen=True)
class Number:
    """A number that scales or is added."""

    value: float
    fixed: bool
    position: int


Node = Leaf | Join | Number


@dataclass(frozen=True)
class KernelExpression:
    """A parsed expression. Fields: text, as the user wrote it; tree."""

    text: str
    tree: Node


def parse_kernel(text: str) -> KernelExpression:
    """Read an expression and check everything that needs no data.

    Raises: DomainError whose message shows the text with a mark under the place.
    """
    if len(text) > _MOST_CHARACTERS:
        raise DomainError(
            f"`--kernel` must have at most {_MOST_CHARACTERS:,} characters, got {len(text):,}; shorten it"
        )
    if "\n" in text.strip() or not text.isprintable():
        raise DomainError("`--kernel` must be one line of printable text, got other characters; write it on one line")
    if not text.strip():
        raise DomainError("`--kernel` must be an expression, got nothing; for example 'Matern(nu=2.5)'")
    stripped = text.strip()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what Python thinks of the text is said below, or does not matter
            body = ast.parse(stripped, mode="eval").body
    except SyntaxError as error:
        reason = (error.msg or "it cannot be read").split(". Perhaps")[0]
        place = min(max((error.offset or 1) - 1, 0), len(stripped))
        raise refused_at(stripped, place, f"must be an expression, got a mistake: {reason}") from None
    except (RecursionError, MemoryError, ValueError):
        raise DomainError("`--kernel` must be nested less deeply; remove parentheses") from None
    try:
        tree = _Reader(stripped).node(body, 0)
    except RecursionError:
        raise DomainError("`--kernel` must be nested less deeply; simplify it") from None
    if isinstance(tree, Number):
        raise refused_at(stripped, tree.position, "must hold a covariance function, got only a number; add Constant()")
    return KernelExpression(stripped, tree)


def refused_at(text: str, position: int, problem: str) -> DomainError:
    """The expression with a mark under the place; long ones are cut around it."""
    start = max(0, position - 50)
    shown = text[start : start + 90]
    return DomainError(
        f"`--kernel` {problem}, at character {position + 1}\n    {shown}\n    {' ' * (position - start)}^"
    )


class _Reader:
    """Walks Python's syntax tree by a whitelist."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._encoded = text.encode()

    def at(self, node: ast.AST) -> int:
        """Where a node begins, in characters; Python counts bytes."""
        return len(self._encoded[: getattr(node, "col_offset", 0)].decode(errors="ignore"))

    def fail(self, node: ast.AST, problem: str) -> DomainError:
        return refused_at(self.text, self.at(node), problem)

    def node(self, node: ast.expr, depth: int) -> Node:
        if depth > _MOST_DEPTH:
            raise self.fail(node, f"must be nested at most {_MOST_DEPTH} deep, got more; simplify it")
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mult):
            return self.joined(node, depth)
        if isinstance(node, ast.BinOp):
            raise self.fail(node, f"must combine kernels with + and *, got {ast.unparse(node)[:60]!r}")
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id == "fixed":
                value = self.value(node)
                if value.is_list:
                    raise self.fail(node, "must scale by one number, got a list")
                return self.positive(Number(value.entries[0], True, value.position))
            return self.leaf(node)
        if isinstance(node, ast.Name):
            if node.id in NAMES:
                raise self.fail(node, f"must call a kernel with parentheses, got {node.id}; write {node.id}()")
            raise self.fail(node, self.unknown(node.id))
        if isinstance(node, ast.Constant | ast.UnaryOp):
            return self.positive(Number(self.number(node), False, self.at(node)))
        raise self.fail(node, f"may hold kernels, numbers, + and *, got {ast.unparse(node)[:60]!r}")

    def joined(self, node: ast.BinOp, depth: int) -> Node:
        """A chain a + b + c hangs to the left: followed in a loop, so that only real nesting counts as depth."""
        chain: list[ast.BinOp] = []
        first: ast.expr = node
        while isinstance(first, ast.BinOp) and isinstance(first.op, ast.Add | ast.Mult):
            chain.append(first)
            first = first.left
        if len(chain) > _MOST_DEPTH:
            raise self.fail(node, f"must join at most {_MOST_DEPTH} terms, got {len(chain) + 1}; simplify it")
        result = self.node(first, depth + 1)
        for link in reversed(chain):
            right = self.node(link.right, depth + 1)
            sign = "+" if isinstance(link.op, ast.Add) else "*"
            if isinstance(result, Number) and isinstance(right, Number):
                value = result.value + right.value if sign == "+" else result.value * right.value
                result = self.positive(Number(value, result.fixed or right.fixed, result.position))
            else:
                result = Join(sign, result, right, self.at(link))
        return result

    def positive(self, number: Number) -> Number:
        if not 0.0 < number.value < float("inf"):
            raise refused_at(self.text, number.position, f"must scale or add by positive numbers, got {number.value:g}")
        return number

    def unknown(self, name: str) -> str:
        import difflib

        near = difflib.get_close_matches(name, NAMES, 1, 0.6)
        advice = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(sorted(NAMES))}"
        return f"must name kernels, got {name!r}; {advice}"

    def leaf(self, node: ast.Call) -> Leaf:
        if not isinstance(node.func, ast.Name) or node.func.id not in NAMES:
            raise self.fail(node, self.unknown(ast.unparse(node.func)[:60]))
        name = node.func.id
        allowed = [p for p in inspect.signature(NAMES[name]).parameters if p != "factor"]
        if node.args:
            raise self.fail(
                node.args[0], f"must give {name} its arguments by name, got {ast.unparse(node.args[0])[:60]!r}; "
                f"write {allowed[0]}="
            )  # fmt: skip
        options: dict[str, Value] = {}
        columns = None
        for keyword in node.keywords:
            if keyword.arg is None or keyword.arg not in allowed:
                got = "**" if keyword.arg is None else repr(keyword.arg)
                raise self.fail(keyword, f"must give {name} only {', '.join(allowed)}, got {got}")
            if keyword.arg in options or (keyword.arg == "active_dims" and columns is not None):
                raise self.fail(keyword, f"must give {keyword.arg} once, got it again")
            if keyword.arg == "active_dims":
                columns = self.columns(keyword.value)
                continue
            value = self.value(keyword.value)
            if keyword.arg in SETTINGS and (value.is_list or value.fixed):
                raise self.fail(keyword.value, f"must give {keyword.arg} a plain number")
            options[keyword.arg] = value
        leaf = Leaf(name, self.at(node), options, columns)
        self.try_out(leaf)
        return leaf

    def try_out(self, leaf: Leaf) -> None:
        """Let the kernel itself check its numbers; with columns of no meaning yet."""
        trial: dict[str, Any] = {k: plain_value(k, v) for k, v in leaf.options.items()}
        if leaf.name == "SpectralMixture" and (missing := [name for name in PER_COMPONENT if name not in trial]):
            raise refused_at(
                self.text, leaf.position, f"must give SpectralMixture {', '.join(missing)}: one number per component, "
                "as in SpectralMixture(weights=[1, 0.5], means=[0.1, 0.5], scales=[0.02, 0.02])"
            )  # fmt: skip
        if leaf.name == "Coregionalization":
            trial.setdefault("count", 1)
        try:
            NAMES[leaf.name](**trial)
        except FlashGPError as error:
            place = next((v.position for k, v in leaf.options.items() if f"`{k}`" in str(error)), leaf.position)
            raise refused_at(self.text, place, f"has a value that does not fit: {error}") from None

    def number(self, node: ast.expr) -> float:
        sign = 1.0
        inner = node
        if isinstance(inner, ast.UnaryOp) and isinstance(inner.op, ast.USub | ast.UAdd):
            sign = -1.0 if isinstance(inner.op, ast.USub) else 1.0
            inner = inner.operand
        if not isinstance(inner, ast.Constant) or type(inner.value) not in (int, float):
            raise self.fail(node, f"must have a number here, got {ast.unparse(node)[:60]!r}")
        try:
            return sign * float(inner.value)  # type: ignore[arg-type]
        except OverflowError:
            raise self.fail(node, "must have a number that a float can hold here") from None

    def value(self, node: ast.expr) -> Value:
        if isinstance(node, ast.Call):
            if not (isinstance(node.func, ast.Name) and node.func.id == "fixed" and len(node.args) == 1):
                raise self.fail(node, f"may only call fixed(number) here, got {ast.unparse(node)[:60]!r}")
            if node.keywords:
                raise self.fail(node, "must give fixed() one number or list and nothing else")
            inner = self.value(node.args[0])
            return Value(inner.entries, inner.is_list, True, self.at(node))
        if isinstance(node, ast.List):
            if not node.elts:
                raise self.fail(node, "must have at least one number in a list")
            return Value(tuple(self.number(e) for e in node.elts), True, False, self.at(node))
        return Value((self.number(node),), False, False, self.at(node))

    def columns(self, node: ast.expr) -> tuple[tuple[str | int, int], ...]:
        entries = node.elts if isinstance(node, ast.List | ast.Tuple) else [node]
        found: list[tuple[str | int, int]] = []
        for entry in entries:
            if isinstance(entry, ast.Name):
                found.append((entry.id, self.at(entry)))
            elif isinstance(entry, ast.Constant) and type(entry.value) in (str, int):
                found.append((entry.value, self.at(entry)))  # type: ignore[arg-type]
            else:
                raise self.fail(
                    entry, f"must have column names or positions here, got {ast.unparse(entry)[:60]!r}; "
                    'quote a name with spaces or signs, as in active_dims=["wind speed"]'
                )  # fmt: skip
        if not found:
            raise self.fail(node, "must have at least one column in active_dims")
        return tuple(found)


def plain_value(name: str, value: Value) -> Any:
    """A written value as the constructor takes it."""
    if name in SETTINGS:
        number = value.entries[0]
        return int(number) if name != "nu" and number.is_integer() else number
    scalar = not value.is_list and name not in PER_COMPONENT
    tensor = torch.tensor(value.entries[0] if scalar else value.entries, dtype=torch.float64)
    if name in ("means", "scales"):
        tensor = tensor.unsqueeze(-1)  # of one column
    return Parameter(tensor, trainable=False) if value.fixed else tensor
