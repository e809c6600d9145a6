"""Tracing of a Python function of two points to the form of eq. (M-1), or to the reason why it has none.

The function is run once on a pair of points, and its ATen operations are followed with the values of
`values`: a function of one point stays a row feature whatever it does; differences of equal features, their
squares, products and norms become pair statistics, eq. (M-50); what is left must be scalar arithmetic that a
profile can say. What was found is compared with the function itself at random pairs before it is believed.
"""

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from flashgp.foundations.errors import DomainError, ShapeError
from flashgp.foundations.expression import Expression, Symbol
from flashgp.foundations.expression_value import value_at
from flashgp.foundations.pair_function import PairFunction
from flashgp.kernels.tracing.checks import Values, random_pairs, values_at
from flashgp.kernels.tracing.graph import Graph, Node, evaluate, schema_name
from flashgp.kernels.tracing.operations import PairOperations
from flashgp.kernels.tracing.profile_algebra import is_even, substituted
from flashgp.kernels.tracing.values import Fixed, NotFused, Row, Value

MAX_STATISTICS = 16  # each is one more tile, and one more term of every generated program
MAX_SCALARS = 16
MAX_PARAMETERS = 64
RESHAPED_IN_PLACE = {"squeeze_", "unsqueeze_", "t_", "transpose_"}  # what torch does to its own fresh tensors
AGREEMENT = 1e-9  # of the largest value: far above the rounding of a reordered formula, far below a wrong one


class Untraceable(Exception):  # noqa: N818 - caught where another number of columns is tried
    """The function itself failed on points of that many columns."""


Place = tuple[Node, tuple[int, ...] | None]  # a node, and which of its entries (None: all)


@dataclass(frozen=True)
class Fusion:
    """A function in the form of eq. (M-1): its profile, and the nodes that give features, row scalars and theta."""

    profile: Expression
    kinds: tuple[str, ...]
    features: tuple[Place, ...]
    scalars: tuple[Place, ...]
    theta: tuple[Place, ...]

    def row(self, x: Tensor, parameters: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        """Features, each (d',), then row scalars, each (), of one point x (d,)."""
        values = _entries([*self.features, *self.scalars], x, parameters)
        split = len(self.features)
        return (*(f.to(torch.float64) for f in values[:split]), *(a.reshape(()).double() for a in values[split:]))

    def values(self, parameters: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        """The parameters of the profile, each ()."""
        return tuple(t.reshape(()).to(torch.float64) for t in _entries(self.theta, None, parameters))


def _entries(places: Sequence[Place], x: Tensor | None, parameters: Mapping[str, Tensor]) -> list[Tensor]:
    values = evaluate([node for node, _ in places], x, parameters)
    flat = [value.reshape(node.example.numel()) for value, (node, _) in zip(values, places, strict=True)]
    return [f if at is None else f[list(at)] for f, (_, at) in zip(flat, places, strict=True)]


def trace(function: PairFunction, tried: Sequence[Values], positive: frozenset[str], columns: int) -> Fusion | str:
    """The form of a function of two points of that many columns, or why it has none.

    Args:
        tried: its parameters by name, then other values they may take, to compare at; positive: the names of those
            that cannot be negative.
    Raises: DomainError for a function that takes a tensor from outside, draws random numbers, or whose code depends on
        values; ShapeError for one that returns several numbers; Untraceable when the function itself fails.
    Cost: one run of the function in Python, and one per pair to compare with; nothing is remembered here.
    """
    values = tried[0]
    x, z = random_pairs(columns)[0]
    graph = Graph(x, values)
    algebra = PairOperations(graph, positive)
    try:
        result = algebra.elements(_read(function, algebra, x, z, values)).array
        fusion = _settled(result.reshape(-1)[0], algebra)
    except NotFused as reason:
        return str(reason)
    except ArithmeticError as error:
        return f"its scalar arithmetic has no value ({error})"
    return _mismatch(function, fusion, tried, columns) or fusion


class _Reading(TorchDispatchMode):
    """Runs a function on one pair of points, and follows what every operation makes of the values it depends on."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True would import torch._dynamo at the first operation: seconds, for nothing here

    def __init__(self, algebra: PairOperations) -> None:
        super().__init__()
        self.algebra = algebra
        self.values: dict[int, tuple[Tensor, Value | None]] = {}  # by identity of the tensor, which is kept alive
        self.reason: str | None = None  # why some value (None then) has no form

    def follow(self, tensor: Tensor, value: Value | None) -> None:
        self.values[id(tensor)] = tensor, value

    def value(self, argument: Any) -> Any:
        if not isinstance(argument, Tensor):
            return argument
        if id(argument) not in self.values:
            raise DomainError(
                f"`function` must take every tensor as a keyword, got a tensor of shape {tuple(argument.shape)} from "
                "outside (a closure or a global); pass it: Custom(function, name=value)"
            )
        return self.values[id(argument)][1]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = schema_name(func)
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise DomainError(
                f"`function` must have one value at every call, got one that draws random numbers (aten.{name}); "
                "leave it out, or put its module into evaluation mode before the kernel is made, module.eval()"
            )
        out = func(*args, **kwargs)
        if name in ("lift_fresh", "lift_fresh_copy"):  # a tensor written in the function
            self.follow(out, Fixed(self.algebra.graph.literal(out.clone())))
            return out
        if not all(isinstance(leaf, Tensor) for leaf in tree_leaves(out)):
            raise DomainError(
                "`function` must be the same operations for all values, got one that asks for the value of a tensor "
                "(if, float(), .item()); write torch.where(condition, a, b) instead of if"
            )
        operands = tree_map(self.value, (args, kwargs))
        given = [a for a in tree_leaves((args, kwargs)) if isinstance(a, Tensor)]
        value = self._applied(func, *operands) if all(self.value(a) is not None for a in given) else None
        if isinstance(out, Tensor):
            self.follow(out, value)
        else:
            for k, part in enumerate(out):
                self.follow(part, None if value is None else self._applied(operator.getitem, (value, k), {}))
        return out

    def _applied(self, func: Any, args: Any, kwargs: Any) -> Any:
        try:
            if func is not operator.getitem and func._schema.is_mutable and schema_name(func) not in RESHAPED_IN_PLACE:
                raise NotFused(f"aten.{schema_name(func)}, which writes into a tensor")
            return self.algebra.apply(func, args, kwargs)
        except NotFused as error:
            self.reason = self.reason or str(error)
            return None
        except ArithmeticError as error:
            self.reason = self.reason or f"scalar arithmetic without a value ({error})"
            return None


def _read(function: PairFunction, algebra: PairOperations, x: Tensor, z: Tensor, values: Mapping[str, Tensor]) -> Value:
    """The value of the function's result."""
    graph = algebra.graph
    inputs = [x.clone(), z.clone(), *(v.clone() for v in values.values())]
    reading = _Reading(algebra)
    reading.follow(inputs[0], Row("left", graph.point))
    reading.follow(inputs[1], Row("right", graph.point))
    for tensor, node in zip(inputs[2:], graph.parameters.values(), strict=True):
        reading.follow(tensor, Fixed(node))
    try:
        with torch.no_grad(), reading:
            result = function(*inputs)
    except (DomainError, ShapeError):
        raise
    except Exception as error:  # whatever a function of the user's raises
        raise Untraceable(str(error)) from error
    value: Value | None = reading.value(result)
    if value is None:
        raise NotFused(reading.reason)
    return value


def _settled(profile: Expression, algebra: PairOperations) -> Fusion:
    """Resolve signed differences, drop what does not occur, and number the rest."""
    replaced: dict[Symbol, Expression] = {}
    for symbol in _ordered(profile):
        if symbol.kind == "signed":  # u(x) - u(x'): its size is a distance, its sign needs both values
            node, at = algebra.signed[symbol.index]
            both = algebra.row_symbol("left", node, at) - algebra.row_symbol("right", node, at)
            replaced[symbol] = algebra.statistic("distance", node, (at,)) if is_even(profile, symbol) else both
        elif symbol.kind == "sine":
            replaced[symbol] = algebra.sine(symbol.index, even=is_even(profile, symbol))
    profile = substituted(profile, replaced)
    order = _ordered(profile)
    statistics = [s for s in order if s.kind in ("distance", "product")]
    scalars = sorted({s.index for s in order if s.kind in ("left", "right")})
    theta = [s for s in order if s.kind == "parameter"]
    for symbols, most, what in (
        (statistics, MAX_STATISTICS, "pair statistics"),
        (scalars, MAX_SCALARS, "row scalars"),
        (theta, MAX_PARAMETERS, "parameters in the profile"),
    ):
        if len(symbols) > most:
            raise NotFused(f"{len(symbols)} {what}, more than {most}")
    rename = {s: Symbol(s.kind, i) for i, s in enumerate(statistics)} | {
        s: Symbol(s.kind, i) for i, s in enumerate(theta)
    }
    for i, index in enumerate(scalars):
        rename |= {Symbol(side, index): Symbol(side, i) for side in ("left", "right")}
    return Fusion(
        profile.renamed(rename),
        tuple(s.kind for s in statistics),
        tuple(algebra.statistics[s.index] for s in statistics),
        tuple(algebra.scalars[i] for i in scalars),
        tuple(algebra.theta[s.index] for s in theta),
    )


def _ordered(profile: Expression) -> list[Symbol]:
    return sorted(profile.symbols, key=lambda s: (s.index, s.kind))


def _mismatch(function: PairFunction, fusion: Fusion, tried: Sequence[Values], columns: int) -> str | None:
    """Difference of form and function, in words; None when the form has the function's values, for all parameters
    tried, or none where the function has none."""
    pairs = random_pairs(columns)
    equal = pairs[0][0], pairs[0][0].clone()
    for number, values in enumerate(tried):
        some = [*pairs[:: 3 if number else 1], equal]
        wanted = values_at(function, values, some)
        with torch.no_grad():
            formed = [_value(fusion, x, z, values) for x, z in some]
        size = max((abs(w) for w in wanted if math.isfinite(w)), default=1.0)
        for pair, w, f in zip(some, wanted, formed, strict=True):
            if math.isfinite(w):
                same = abs(w - f) <= AGREEMENT * size
            else:  # at equal points a form has the limit where plain torch has 0/0
                same = pair is equal or not math.isfinite(f)
            if not same:
                at = {"x": pair[0], "x'": pair[1]} | (dict(values) if number else {})
                where = ", ".join(f"{name} = {value.tolist()}" for name, value in at.items())
                return f"its form gives {f:.9g} instead of {w:.9g} at {where}"
    return None


def _value(fusion: Fusion, x: Tensor, z: Tensor, values: Mapping[str, Tensor]) -> float:
    left, right = fusion.row(x, values), fusion.row(z, values)
    at: dict[Symbol, float] = {Symbol("parameter", i): float(t) for i, t in enumerate(fusion.values(values))}
    count = len(fusion.kinds)
    for i, kind in enumerate(fusion.kinds):
        u, v = left[i], right[i]
        at[Symbol(kind, i)] = float((u - v).square().sum().sqrt() if kind == "distance" else (u * v).sum())
    for i in range(len(fusion.scalars)):
        at |= {Symbol("left", i): float(left[count + i]), Symbol("right", i): float(right[count + i])}
    try:
        return value_at(fusion.profile, at)
    except (ArithmeticError, ValueError):
        return math.nan
