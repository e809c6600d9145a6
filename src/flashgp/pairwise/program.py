"""Expression to program: straight-line tile code for the value and the first derivatives of a profile.

A program is generated once per structure and kept. Common subexpressions of value and derivatives are computed
once; a temporary that is used for the last time is overwritten in place. Parameters enter as Python floats (one
model on a CPU: cheapest calls) or as tensors of shape () or (*batch, 1, 1). The generated text is plain torch and
can be read: `print(program.source)`.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from flashgp.foundations.expression import Atom, Expression, Factors, Function, Surd, Symbol, number
from flashgp.foundations.form import Form

__all__ = ["Program", "evaluate", "program_of"]

Scalar = float | Tensor
_LETTERS = {
    "distance": "q", "product": "s", "match": "m", "opaque": "o", "left": "a", "right": "b", "parameter": "p"
}  # fmt: skip


# -- run-time operations of the generated code --------------------------------------------------------------------
def _scale(x: Tensor, s: Scalar, own: bool) -> Tensor:
    return x.mul_(s) if own else x * s


def _axpy(total: Tensor, x: Tensor, s: Scalar, own: bool) -> Tensor:
    if isinstance(s, float):
        return total.add_(x, alpha=s) if own else torch.add(total, x, alpha=s)
    return total.addcmul_(x, s) if own else torch.addcmul(total, x, s)


def _shift(x: Tensor, s: Scalar, own: bool) -> Tensor:
    return x.add_(s) if own else x + s


def _times(x: Tensor, y: Tensor, own: bool) -> Tensor:
    return x.mul_(y) if own else x * y


def _exp(x: Any, own: bool = False) -> Any:
    if isinstance(x, float):
        return math.exp(x)
    return x.exp_() if own else x.exp()


def _log1p(x: Any, own: bool = False) -> Any:
    if isinstance(x, float):
        return math.log1p(x)
    return x.log1p_() if own else x.log1p()


def _cos(x: Any, own: bool = False) -> Any:
    if isinstance(x, float):
        return math.cos(x)
    return x.cos_() if own else x.cos()


def _sin(x: Any, own: bool = False) -> Any:
    if isinstance(x, float):
        return math.sin(x)
    return x.sin_() if own else x.sin()


def _sqrt(x: Tensor, own: bool) -> Tensor:
    return x.sqrt_() if own else x.sqrt()


def _power(x: Tensor, power: int, own: bool) -> Tensor:
    if power == 2:
        return x.square_() if own else x.square()
    return x.pow_(power) if own else x.pow(power)


def _inverse_at(x: Tensor, power: int, own: bool) -> Tensor:
    """x ** -power with the value 0 where x is 0: the convention for 1/r at zero distance, eq. (M-4)."""
    return torch.where(x == 0, torch.zeros((), dtype=x.dtype, device=x.device), x.pow(-power))


_RUNTIME: dict[str, Callable[..., Any]] = {
    f.__name__: f for f in (_scale, _axpy, _shift, _times, _exp, _log1p, _cos, _sin, _sqrt, _power, _inverse_at)
}


# -- generation ---------------------------------------------------------------------------------------------------
@dataclass
class _Line:
    target: str
    call: str
    operands: list[str]
    extra: list[str]
    in_place: bool = True


@dataclass
class _Generator:
    """Emits lines of tile code; every distinct monomial is computed once."""

    lines: list[_Line] = field(default_factory=list)
    known: dict[Any, str] = field(default_factory=dict)
    full: dict[str, bool] = field(default_factory=dict)  # False: a column or row vector, never a target of in-place

    def emit(self, key: Any, call: str, operands: list[str], extra: list[str], in_place: bool = True) -> str:
        if key in self.known:
            return self.known[key]
        target = f"t{len(self.lines)}"
        self.lines.append(_Line(target, call, operands, extra, in_place))
        self.known[key] = target
        self.full[target] = any(self.full[o] for o in operands) or self._both_sides(operands)
        return target

    def _both_sides(self, operands: list[str]) -> bool:
        return False

    def symbol(self, symbol: Symbol) -> str:
        name = _LETTERS[symbol.kind]
        name = f"{name}{symbol.index}"
        self.full.setdefault(name, symbol.kind not in ("left", "right"))
        return name

    # scalars: text of Python arithmetic over parameters
    def scalar(self, expression: Expression) -> str:
        if not expression.terms:
            return "0.0"
        return "(" + " + ".join(self.scalar_monomial(f, c) for f, c in expression.terms) + ")"

    def scalar_monomial(self, factors: Factors, coefficient: Fraction) -> str:
        value = coefficient.numerator / coefficient.denominator
        parts = []
        for atom, power in factors:
            match atom:
                case Surd(radicand):
                    value *= math.sqrt(radicand) ** power
                case Symbol(_, index):
                    parts.append(f"p{index}" + (f"**{power}" if power != 1 else ""))
                case Function(name, argument):
                    text = f"_{name}({self.scalar(argument)})"
                    parts.append(text + (f"**{power}" if power != 1 else ""))
                case _:
                    parts.append(f"{self.scalar(atom)}**{power}")
        if not parts:
            return repr(value)
        return "*".join(parts if value == 1.0 else [repr(value), *parts])

    # tiles
    def tile(self, expression: Expression) -> str:
        """The name of a tile that holds the expression's value; the expression must be pairwise."""
        scalar, name = self.scaled(expression)
        if scalar == "1.0":
            return name
        return self.emit((scalar, name), "_scale", [name], [scalar])

    def scaled(self, expression: Expression) -> tuple[str, str]:
        """(scalar text, tile name) whose product is the expression: a common scalar factor stays outside."""
        if len(expression.terms) == 1:
            factors, coefficient = expression.terms[0]
            pair = tuple(f for f in factors if _pairwise(f[0]))
            rest = tuple(f for f in factors if not _pairwise(f[0]))
            return self.scalar_monomial(rest, coefficient), self.monomial(pair)
        common, reduced = _common_factors(expression)
        if common:
            inner = self.sum_tile(reduced)
            return "1.0", self._multiply(self.monomial(common), inner)
        return "1.0", self.sum_tile(expression)

    def sum_tile(self, expression: Expression) -> str:
        if expression in self.known:
            return self.known[expression]
        constant = number(0)
        groups: dict[Factors, Expression] = {}
        for factors, coefficient in expression.terms:
            pair = tuple(f for f in factors if _pairwise(f[0]))
            rest = Expression({tuple(f for f in factors if not _pairwise(f[0])): coefficient})
            if pair:
                groups[pair] = groups.get(pair, number(0)) + rest
            else:
                constant = constant + rest
        total = ""
        for pair, scalar in groups.items():
            name, text = self.monomial(pair), self.scalar(scalar)
            if not total:
                total = name if scalar == number(1) else self.emit((text, name), "_scale", [name], [text])
            elif self.full[total] or not self.full[name]:
                total = self.emit((total, name, text), "_axpy", [total, name], [text])
            else:  # a vector plus a tile: let the tile own the sum
                scaled = name if scalar == number(1) else self.emit((text, name), "_scale", [name], [text])
                total = self.emit((scaled, total, "1.0"), "_axpy", [scaled, total], ["1.0"])
        if not constant.is_zero:
            text = self.scalar(constant)
            total = self.emit((total, "shift", text), "_shift", [total], [text])
        self.known[expression] = total
        return total

    def monomial(self, factors: Factors) -> str:
        if factors in self.known:
            return self.known[factors]
        names = [self.factor(atom, power) for atom, power in factors]
        names.sort(key=lambda name: not self.full[name])
        name = functools.reduce(self._multiply, names)
        self.known[factors] = name
        return name

    def _multiply(self, x: str, y: str) -> str:
        if not self.full[x] and self.full[y]:
            x, y = y, x
        name = self.emit(("times", *sorted((x, y))), "_times", [x, y], [])
        if {x[0], y[0]} == {"a", "b"}:
            self.full[name] = True  # a column times a row is a tile
        return name

    def factor(self, atom: Atom, power: int) -> str:
        match atom:
            case Symbol("distance", index):
                return self.distance_power(atom, index, power)
            case Symbol():
                name = self.symbol(atom)
                return name if power == 1 else self.emit((name, power), "_power", [name], [str(power)])
            case Function(function, argument):
                inner = self.tile(argument)
                name = self.emit((function, argument), f"_{function}", [inner], [])
            case _:
                assert isinstance(atom, Expression)
                name = self.tile(atom)
        return name if power == 1 else self.emit((name, power), "_power", [name], [str(power)])

    def distance_power(self, symbol: Symbol, index: int, power: int) -> str:
        q = self.symbol(symbol)
        if power > 0 and power % 2 == 0:
            return q if power == 2 else self.emit((q, power), "_power", [q], [str(power // 2)])
        r = self.emit((q, "root"), "_sqrt", [q], [])
        if power < 0:
            return self.emit((r, power), "_inverse_at", [r], [str(-power)], in_place=False)
        return r if power == 1 else self._multiply(r, self.distance_power(symbol, index, power - 1))


def _pairwise(atom: Atom) -> bool:
    match atom:
        case Symbol():
            return atom.pairwise
        case Surd():
            return False
        case Function(_, argument):
            return argument.pairwise
        case _:
            return atom.pairwise


def _common_factors(expression: Expression) -> tuple[Factors, Expression]:
    """Pairwise factors that every term of a sum has, and the sum without them."""
    shared = {f for f in expression.terms[0][0] if _pairwise(f[0])}
    for factors, _ in expression.terms[1:]:
        shared &= set(factors)
    # exp() of a distance is worth pulling out; a symbol alone is not (it may be the only pairwise part of a term)
    shared = {f for f in shared if not isinstance(f[0], Symbol)}
    if not shared:
        return (), expression
    reduced = Expression({tuple(f for f in factors if f not in shared): c for factors, c in expression.terms})
    if not reduced.pairwise:
        return (), expression
    return tuple(sorted(shared, key=lambda f: (str(f[0]), f[1]))), reduced


def _text(name: str, generator: _Generator, inputs: list[str], results: list[str], kept: set[str]) -> str:
    """Assemble a function: `own` lets a line overwrite an operand that no later line and no result needs."""
    last: dict[str, int] = {}
    for position, line in enumerate(generator.lines):
        for operand in line.operands:
            last[operand] = position
    body = []
    for position, line in enumerate(generator.lines):
        first = line.operands[0]
        arguments = [*line.operands, *line.extra]
        owned = (
            line.in_place
            and last[first] == position
            and first not in kept
            and generator.full[first]
            and all(generator.full[first] or not generator.full[o] for o in line.operands)
        )
        arguments.append("own" if owned else "False")
        body.append(f"    {line.target} = {line.call}({', '.join(arguments)})")
    returned = f"({', '.join(results)},)"
    return f"def {name}({', '.join([*inputs, 'own'])}):\n" + "\n".join([*body, f"    return {returned}"]) + "\n"


@dataclass(frozen=True)
class Partial:
    """One derivative: by which symbol; its value is scalar * tile, a tile of None meaning all ones."""

    symbol: Symbol
    scalar: Scalar
    tile: Tensor | None


class Program:
    """Compiled tile code of one form. Call `value` or `partials` with tiles of the statistics."""

    def __init__(self, form: Form) -> None:
        self.form = form
        kinds = [(kind, index) for index, kind in enumerate(form.statistics)]
        self.statistics = [Symbol(kind, index) for kind, index in kinds]
        self.scalars = [Symbol(side, i) for side in ("left", "right") for i in range(form.scalar_count)]
        self.parameters = [Symbol("parameter", i) for i in range(form.parameter_count)]
        self.differentiable = [s for s in self.statistics if s.kind != "match"] + self.scalars + self.parameters
        self.derivatives = {s: form.profile.derivative(s) for s in self.differentiable}
        self._inputs = [_input_name(s) for s in (*self.statistics, *self.scalars, *self.parameters)]
        self._value, value_source, self.value_temporaries = self._compile_value()
        self._partials, partials_source, self.partial_temporaries = self._compile_partials()
        self.source = value_source + "\n" + partials_source

    @functools.cached_property
    def bounded_slope(self) -> dict[int, bool]:
        """For each distance: whether dg/dq stays bounded at zero distance, so that an error of q stays small."""
        return {s.index: not self.derivatives[s].singular_at_zero() for s in self.statistics if s.kind == "distance"}

    def bound(self, runtime: Mapping[str, Callable[..., Any]]) -> dict[str, Any]:
        """The generated functions `value` and `partials` over other operations than torch's (NumPy's)."""
        scope: dict[str, Any] = dict(runtime)
        exec(compile(self.source, f"<flashgp program of {self.form.profile.key[:80]}>", "exec"), scope)
        return scope

    def value(
        self, statistics: Sequence[Tensor], scalars: Sequence[Tensor], theta: Sequence[Scalar], own: bool
    ) -> Tensor:
        """g over a tile. `own`: the statistics may be overwritten and all have the tile's full shape."""
        (result,) = self._value(*statistics, *scalars, *theta, own)
        return result

    def partials(
        self, statistics: Sequence[Tensor], scalars: Sequence[Tensor], theta: Sequence[Scalar], own: bool
    ) -> tuple[tuple[Scalar, Tensor | None], list[Partial]]:
        """g as (scalar, tile or None for ones), and its derivatives by every statistic, row scalar and parameter."""
        scalar, tile, *flat = self._partials(*statistics, *scalars, *theta, own)
        parts = [Partial(symbol, flat[2 * k], flat[2 * k + 1]) for k, symbol in enumerate(self.present)]
        return (scalar, tile), parts

    def _compile_value(self) -> tuple[Callable[..., Any], str, int]:
        generator = _Generator()
        self._declare(generator)
        profile = self.form.profile
        result = generator.tile(profile) if profile.pairwise else generator.scalar(profile)
        return self._assemble("value", generator, [result], {result})

    def _compile_partials(self) -> tuple[Callable[..., Any], str, int]:
        generator = _Generator()
        self._declare(generator)
        results: list[str] = []
        kept: set[str] = set()
        self.present = [s for s in self.differentiable if not self.derivatives[s].is_zero]
        for expression in (self.form.profile, *(self.derivatives[s] for s in self.present)):
            if expression.pairwise:
                scalar, name = generator.scaled(expression)
                results += [scalar, name]
                kept.add(name)
            else:
                results += [generator.scalar(expression), "None"]
        return self._assemble("partials", generator, results, kept)

    def _declare(self, generator: _Generator) -> None:
        for symbol in (*self.statistics, *self.scalars):
            generator.symbol(symbol)

    def _assemble(
        self, name: str, generator: _Generator, results: list[str], kept: set[str]
    ) -> tuple[Callable[..., Any], str, int]:
        source = _text(name, generator, self._inputs, results, kept)
        scope: dict[str, Any] = dict(_RUNTIME)
        exec(compile(source, f"<flashgp {name} of {self.form.profile.key[:80]}>", "exec"), scope)
        return scope[name], source, len(generator.lines) + len(self.statistics)


def _input_name(symbol: Symbol) -> str:
    return f"{_LETTERS[symbol.kind]}{symbol.index}"


@functools.lru_cache(maxsize=512)
def program_of(form: Form) -> Program:
    """The program of a form, compiled once per structure."""
    return Program(form)


@functools.lru_cache(maxsize=4096)
def _single(expression: Expression, form: Form) -> Callable[..., Any]:
    return Program(Form(expression, form.statistics, form.scalar_count, form.parameter_count))._value


class _Evaluate(torch.autograd.Function):
    """An expression over tiles, differentiable to any order: its derivative is again an expression, eq. (M-4)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(expression: Expression, form: Form, *tensors: Tensor) -> Tensor:
        result = _single(expression, form)(*tensors, False)[0]
        if not isinstance(result, Tensor):
            result = torch.tensor(result, dtype=tensors[0].dtype, device=tensors[0].device)
        if any(result is t for t in tensors):
            result = result.clone()
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.expression, ctx.form, *tensors = inputs
        ctx.shape = output.shape
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        results: list[Tensor | None] = [None, None]
        for position, (symbol, tensor) in enumerate(zip(_symbols(ctx.form), tensors, strict=True)):
            slope = ctx.expression.derivative(symbol) if symbol.kind != "match" else number(0)
            if slope.is_zero or not ctx.needs_input_grad[2 + position]:
                results.append(None)
            else:
                results.append((gradient * _Evaluate.apply(slope, ctx.form, *tensors)).sum_to_size(tensor.shape))
        return tuple(results)

    @staticmethod
    def jvp(ctx: Any, _expression: None, _form: None, *tangents: Tensor | None) -> Tensor:
        tensors = ctx.saved_tensors
        total = None
        for symbol, tangent in zip(_symbols(ctx.form), tangents, strict=True):
            if tangent is None or symbol.kind == "match":
                continue
            slope = ctx.expression.derivative(symbol)
            if slope.is_zero:
                continue
            term = _Evaluate.apply(slope, ctx.form, *tensors) * tangent
            total = term if total is None else total + term
        if total is None:
            total = torch.zeros((), dtype=tensors[0].dtype, device=tensors[0].device)
        return total.expand(ctx.shape)  # a slope that is a number has no tile's shape


@functools.lru_cache(maxsize=512)
def _symbols(form: Form) -> tuple[Symbol, ...]:
    program = program_of(form)
    return (*program.statistics, *program.scalars, *program.parameters)


def evaluate(form: Form, statistics: Sequence[Tensor], scalars: Sequence[Tensor], theta: Sequence[Tensor]) -> Tensor:
    """The profile over a tile of statistics, differentiable to any order in all of them and in theta.

    Args:
        statistics: one (*batch, n, m) tensor each: q for a distance, s for a product, 0/1 for a match.
        scalars: left then right row scalars, (*batch, n, 1) and (*batch, 1, m).
        theta: one tensor each, () or (*batch, 1, 1).
    Returns: (*batch, n, m), or a shape that broadcasts to it when the profile is constant.
    """
    tensors = (*statistics, *scalars, *theta)
    return _Evaluate.apply(form.profile, form, *tensors)
