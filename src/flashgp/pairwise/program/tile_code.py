"""Tile code: the lines that evaluate expressions over tiles, and the run-time operations that they call.

A generator emits one line for every distinct monomial; a temporary that is used for the last time is overwritten in
place. Which expressions a program evaluates is `program.py`'s business.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from flashgp.foundations.expression import Atom, Expression, Factors, Function, Surd, Symbol, number

Scalar = float | Tensor
_LETTERS = {
    "distance": "q", "product": "s", "match": "m", "opaque": "o", "left": "a", "right": "b", "parameter": "p"
}  # fmt: skip


def input_name(symbol: Symbol) -> str:
    """Name of a symbol in the generated code."""
    return f"{_LETTERS[symbol.kind]}{symbol.index}"


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


def _elementary(name: str) -> Callable[..., Any]:
    """A function of one number, of tiles or of floats."""
    of_float, of_tile, in_place = getattr(math, name), getattr(torch, name), getattr(torch, f"{name}_")

    def evaluate(x: Any, own: bool = False) -> Any:
        if not isinstance(x, float):
            return in_place(x) if own else of_tile(x)
        try:
            return of_float(x)
        except (ArithmeticError, ValueError):  # infinity or NaN, as of a tile
            return of_tile(torch.tensor(x, dtype=torch.float64)).item()

    return evaluate


def _raised(x: Any, power: int) -> Any:
    """A power of a number, infinity where Python would raise, or of tiles."""
    try:
        return x**power
    except ArithmeticError:
        return (torch.tensor(x, dtype=torch.float64) ** power).item()


def _sqrt(x: Tensor, own: bool) -> Tensor:
    return x.sqrt_() if own else x.sqrt()


def _power(x: Tensor, power: int, own: bool) -> Tensor:
    if power == 2:
        return x.square_() if own else x.square()
    return x.pow_(power) if own else x.pow(power)


def _inverse_at(x: Tensor, power: int, own: bool) -> Tensor:
    """x ** -power with the value 0 where x is 0: the convention for 1/r at zero distance, eq. (M-4)."""
    return torch.where(x == 0, torch.zeros((), dtype=x.dtype, device=x.device), x.pow(-power))


ELEMENTARY = ("exp", "log1p", "cos", "sin")
RUNTIME: dict[str, Callable[..., Any]] = {
    **{f.__name__: f for f in (_scale, _axpy, _shift, _times, _sqrt, _power, _inverse_at, _raised)},
    **{f"_{name}": _elementary(name) for name in ELEMENTARY},
}


# -- generation ---------------------------------------------------------------------------------------------------
@dataclass
class Line:
    target: str
    call: str
    operands: list[str]
    extra: list[str]
    in_place: bool = True


@dataclass
class Generator:
    """Emits lines of tile code; every distinct monomial is computed once."""

    lines: list[Line] = field(default_factory=list)
    known: dict[Any, str] = field(default_factory=dict)
    full: dict[str, bool] = field(default_factory=dict)  # False: a column or row vector, never a target of in-place

    def emit(self, key: Any, call: str, operands: list[str], extra: list[str], in_place: bool = True) -> str:
        if key in self.known:
            return self.known[key]
        target = f"t{len(self.lines)}"
        self.lines.append(Line(target, call, operands, extra, in_place))
        self.known[key] = target
        self.full[target] = any(self.full[o] for o in operands)
        return target

    def symbol(self, symbol: Symbol) -> str:
        name = input_name(symbol)
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
                    parts.append(_power_text(f"p{index}", power))
                case Function(name, argument):
                    parts.append(_power_text(f"_{name}({self.scalar(argument)})", power))
                case _:
                    parts.append(_power_text(self.scalar(atom), power))
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


def _power_text(base: str, power: int) -> str:
    return base if power == 1 else f"_raised({base}, {power})"


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


def function_text(name: str, generator: Generator, inputs: list[str], results: list[str], kept: set[str]) -> str:
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
