"""Parts of the form of a traced function: statistics, row scalars and parameters, and entries in terms of them.

`operations.py` says what each torch operation does with these.
"""

import functools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy
import torch

from flashgp.foundations import expression as language
from flashgp.foundations.expression import Expression, Symbol, number, parameter, row_scalar
from flashgp.kernels.tracing.graph import Graph, Node, schema_name
from flashgp.kernels.tracing.profile_algebra import exact
from flashgp.kernels.tracing.values import Difference, Elements, Fixed, NotFused, Quadratic, Row, Value

aten = torch.ops.aten
STRUCTURAL = {
    "view", "_unsafe_view", "reshape", "_reshape_alias", "unsqueeze", "squeeze", "expand", "permute", "t", "transpose",
    "select", "slice", "clone", "alias", "flip", "unflatten", "lift_fresh_copy", "contiguous", "diagonal", "movedim",
}  # fmt: skip
MAX_ELEMENTS = 64  # entries that are looked at one by one
Indices = tuple[int, ...]


class PairTerms:
    """Remembers which statistics, row scalars and parameters a function asked for, and writes entries in them."""

    def __init__(self, graph: Graph, positive: frozenset[str]) -> None:
        self.graph, self.positive = graph, positive
        self.statistics: list[tuple[Node, Indices | None]] = []
        self.scalars: list[tuple[Node, Indices | None]] = []
        self.theta: list[tuple[Node, Indices | None]] = []
        self.signed: list[tuple[Node, int]] = []
        self._sines: list[tuple[Node, Expression | None]] = []  # an angle u, and what stood there if it was |D u|
        self._known: dict[Any, Any] = {}

    # -- what a form is made of ---------------------------------------------------------------------------------
    def _index(self, table: list[Any], *key: Any) -> int:
        full = (id(table), *(id(k) if isinstance(k, Node) else k for k in key))
        if full not in self._known:
            self._known[full] = len(table)
            table.append(key)
        index: int = self._known[full]
        return index

    def statistic(self, kind: str, node: Node, indices: Indices | None) -> Expression:
        """The distance or product of some entries of a feature, as a symbol."""
        if indices is not None and indices == tuple(range(node.example.numel())):
            indices = None
        if (kind, id(node), indices) not in self._known:
            self._known[kind, id(node), indices] = len(self.statistics)
            self.statistics.append((node, indices))
        return Expression({((Symbol(kind, self._known[kind, id(node), indices]), 1),): Fraction(1)})

    def row_symbol(self, side: str, node: Node, at: int) -> Expression:
        return row_scalar(side, self._index(self.scalars, node, (at,)))

    def sine(self, index: int, *, even: bool) -> Expression:
        """|sin(D u)| as half a distance on the circle where its sign does not matter, else sin(u(x) - u(x'))."""
        angle, size = self._sines[index]
        if even:
            return self.statistic("distance", self._circle(angle, 2.0), None) / 2
        if size is not None:
            return language.sin(size)
        return language.sin(self.row_symbol("left", angle, 0) - self.row_symbol("right", angle, 0))

    def _circle(self, angle: Node, times: float) -> Node:
        angle = self.graph.call(aten.mul.Tensor, angle, times)
        both = [self.graph.call(aten.cos.default, angle), self.graph.call(aten.sin.default, angle)]
        return self.graph.call(aten.stack.default, both)

    def _entry(self, node: Node, at: int) -> Node:
        flat = self.graph.call(aten.reshape.default, node, [node.example.numel()])
        return self.graph.call(aten.select.int, flat, 0, at)

    # -- entries as expressions ---------------------------------------------------------------------------------
    def elements(self, value: Any) -> Elements:
        """Any value entry by entry."""
        if isinstance(value, int | float):
            return Elements.of(exact(value))
        if isinstance(value, Elements):
            return value
        if math.prod(value.shape) > MAX_ELEMENTS:
            raise NotFused(f"arithmetic of two points on {math.prod(value.shape)} numbers one by one")
        array = numpy.empty(math.prod(value.shape), dtype=object)
        for k in range(array.size):
            array[k] = self._element(value, k)
        return Elements(array.reshape(value.shape))

    def _element(self, value: Value, k: int) -> Expression:
        match value:
            case Fixed(node):
                if not node.of_parameters:
                    return exact(float(node.example.reshape(-1)[k]))
                return parameter(self._index(self.theta, node, (k,)))
            case Row(side, node):
                return self.row_symbol(side, node, k)
            case Difference(node):
                return Expression({((Symbol("signed", self._index(self.signed, node, k)), 1),): Fraction(1)})
            case Quadratic():
                return self._contracted(value, (k,))
        raise AssertionError(value)

    def _contracted(self, value: Quadratic, indices: Indices) -> Expression:
        """The sum of some entries: one statistic per term."""
        total = number(0)
        for term in value.terms:
            symbol = self.statistic(term.kind, term.node, indices)
            total = total + term.scale * (symbol**2 if term.kind == "distance" else symbol)
        return total

    def _each(self, value: Any, function: Callable[[Expression], Expression]) -> Elements:
        array = self.elements(value).array
        out = numpy.empty(array.shape, dtype=object)
        for place in numpy.ndindex(array.shape):
            out[place] = function(array[place])
        return Elements(out)

    def _both(self, a: Any, b: Any, function: Callable[[Expression, Expression], Expression]) -> Elements:
        left, right = numpy.broadcast_arrays(self.elements(a).array, self.elements(b).array)
        out = numpy.empty(left.shape, dtype=object)
        for k, (one, two) in enumerate(zip(left.reshape(-1), right.reshape(-1), strict=True)):
            out[numpy.unravel_index(k, left.shape)] = function(one, two)
        return Elements(out)

    def _part(self, expression: Expression, function: str) -> Expression:
        """sqrt(|.|) or log of a number, of a row scalar or of parameters: it stays one."""
        value = expression.as_number()
        if value is not None:
            if function == "sqrt":
                roots = [math.isqrt(abs(p)) for p in (value.numerator, value.denominator)]
                if roots[0] ** 2 == abs(value.numerator) and roots[1] ** 2 == value.denominator:
                    return number(Fraction(*roots))
            if value <= 0:
                raise NotFused(f"the {function} of {value}")
            return exact(getattr(math, function)(value))
        side, node = self._one_side(expression)
        if function == "sqrt":
            if side == "parameter" and not self.is_positive(node):
                raise NotFused("the square root of a parameter that may be negative: give it constraints.positive")
            node = self.graph.call(aten.abs.default, node)
        node = self.graph.call(getattr(aten, function).default, node)
        return self._element(Fixed(node) if side == "parameter" else Row(side, node), 0)

    def _sure(self, symbol: Symbol) -> bool:
        """True if it has a logarithm: a row scalar that is visibly positive, a parameter that is not negative."""
        if symbol.kind == "parameter":
            return self.is_positive(self.theta[symbol.index][0])
        return symbol.kind in ("left", "right") and self.is_positive(self.scalars[symbol.index][0], strictly=True)

    def _one_side(self, expression: Expression) -> tuple[str, Node]:
        """A monomial of parameters, or a power of one row scalar, as a node."""
        if len(expression.terms) != 1:
            raise NotFused("a sum of parameters")
        factors, coefficient = expression.terms[0]
        side, node = "parameter", None
        for atom, exponent in factors:
            if not isinstance(atom, Symbol) or (atom.kind != "parameter" and len(factors) > 1):
                raise NotFused("a mixed product")
            side = atom.kind
            base, at = (self.theta if side == "parameter" else self.scalars)[atom.index]
            entry = self._entry(base, 0 if at is None else at[0])
            entry = entry if exponent == 1 else self.graph.call(aten.pow.Tensor_Scalar, entry, exponent)
            node = entry if node is None else self.graph.call(aten.mul.Tensor, node, entry)
        assert node is not None
        return side, node if coefficient == 1 else self.graph.call(aten.mul.Tensor, node, float(coefficient))

    def is_positive(self, node: Node, *, strictly: bool = False) -> bool:
        """True if a value is visibly not negative; strictly: not zero either."""
        if not node.of_point and not node.of_parameters:
            return bool((node.example > 0 if strictly else node.example >= 0).all())
        positive = functools.partial(self.is_positive, strictly=strictly)
        name = schema_name(node.target)
        inner = [a for a in node.args if isinstance(a, Node)]
        numbers = [a for a in node.args if isinstance(a, int | float)]
        match name:
            case "parameter":
                return node.args[0] in self.positive
            case "exp" | "softplus" | "sigmoid":
                return True
            case "abs" | "square":
                return not strictly or positive(inner[0])
            case "pow" if numbers and inner:
                return (numbers[0] % 2 == 0 and not strictly) or positive(inner[0])
            case "add":
                every = all(map(self.is_positive, inner)) and all(k >= 0 for k in numbers)
                return every and (not strictly or any(map(positive, inner)) or any(k > 0 for k in numbers))
            case "mul" if len(inner) == 2 and inner[0] is inner[1]:
                return not strictly or positive(inner[0])
            case "mul" | "div":
                return all(map(positive, inner)) and all(k > 0 for k in numbers)
            case "reciprocal" | "sqrt" | "rsqrt":
                return all(map(positive, inner))
        return name in STRUCTURAL and all(map(positive, inner))
