"""Expression to Triton: the profile and its derivatives as device functions of scalar arithmetic over tiles.

The lines come from the generator of `pairwise.tile_code`, so common subexpressions are computed once; only their
spelling differs. Tiles are float32. Scalars made of parameters are computed in float64, once per program, and rounded
when they meet a tile. exp(x) is written as 2^(x log2 e), the constant folded into the factor in front of x.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from flashgp.foundations.expression import Atom, Expression, Factors, Function, Surd, Symbol
from flashgp.foundations.form import Form
from flashgp.pairwise.program.program import program_of
from flashgp.pairwise.program.tile_code import Generator, Line, input_name

LOG2_E = math.log2(math.e)

# What generated code calls. log1p is written out because the device's logarithm loses the digits of a small argument:
# with 1 + x = 2^k (1 + f), log1p(x) = k log 2 + (log(1 + f) + c) where c = (x - ((1 + x) - 1)) / (1 + x) restores what
# the sum 1 + x rounded away, and log(1 + f) = 2 atanh(s), s = f / (2 + f), |s| < 0.172, by its series to s^9.
DEVICE_FUNCTIONS = '''
@triton.jit
def _log1p(x):
    u = 1.0 + x
    k = (u.to(tl.int32, bitcast=True) - 0x3F3504F3) >> 23
    f = (u.to(tl.int32, bitcast=True) - (k << 23)).to(tl.float32, bitcast=True) - 1.0
    s = f / (2.0 + f)
    z = s * s
    series = 0.6666666667 + z * (0.4 + z * (0.2857142857 + z * 0.2222222222))
    lost = (x - (u - 1.0)) / u
    return k.to(tl.float32) * 0.693147180559945 + ((2.0 * s + s * z * series) + lost)


@triton.jit
def _reciprocal_or_zero(x):
    """1 / x, and 0 where x is 0, eq. (M-4)."""
    return tl.where(x == 0.0, 0.0, 1.0 / tl.where(x == 0.0, 1.0, x))


@triton.jit
def _add_compensated(total, lost, part):
    """total + part, and what that sum has too much, eq. (M-62)."""
    wanted = part - lost
    new = total + wanted
    return new, (new - total) - wanted


@triton.jit
def _split(x):
    """x = high + low with high of 11 significant bits, the nearest TF32 number."""
    high = ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return high, x - high


@triton.jit
def _dot(x_high, x_low, y_high, y_low):
    """x y in 3xTF32, small terms first: off by about 2^-21 of |x| |y|, eq. (M-64)."""
    total = tl.dot(x_low, y_high, input_precision="tf32")
    total = tl.dot(x_high, y_low, total, input_precision="tf32")
    return tl.dot(x_high, y_high, total, input_precision="tf32")
'''


@dataclass(frozen=True)
class Derivative:
    """One derivative of the profile: by which symbol, as scalar text times tile number `tile` (None: all ones)."""

    symbol: Symbol
    scalar: str
    tile: int | None


class _DeviceGenerator(Generator):
    """The generator of `pairwise.tile_code` with scalars in Triton's spelling, which has no power operator."""

    def scalar_monomial(self, factors: Factors, coefficient: Fraction) -> str:
        value = coefficient.numerator / coefficient.denominator
        parts = []
        for atom, power in factors:
            match atom:
                case Surd(radicand):
                    value *= math.sqrt(radicand) ** power
                    continue
                case Symbol(_, index):
                    base = f"p{index}"
                case Function("log1p", argument):
                    base = f"tl.log(1.0 + {self.scalar(argument)})"
                case Function(name, argument):
                    base = f"tl.{name}({self.scalar(argument)})"
                case _:
                    base = self.scalar(atom)
            parts.append(_power_text(base, power))
        if not parts:
            return repr(value)
        return " * ".join(parts if value == 1.0 else [repr(value), *parts])

    def factor(self, atom: Atom, power: int) -> str:
        if isinstance(atom, Function) and atom.name == "exp":
            scalar, inner = self.scaled(atom.argument)
            number = _as_number(scalar)
            text = f"({scalar}) * {LOG2_E!r}" if number is None else repr(number * LOG2_E)
            name = self.emit(("exp", atom.argument), "_exp2", [inner], [text])
            return name if power == 1 else self.emit((name, power), "_power", [name], [str(power)])
        return super().factor(atom, power)


def _as_number(text: str) -> float | None:
    try:
        return float(text.strip("()"))
    except ValueError:
        return None


def float_text(scalar: str) -> str:
    """A scalar as something a float32 tile can be multiplied by: a literal, or a float64 value rounded once."""
    value = _as_number(scalar)
    return repr(value) if value is not None else f"({scalar}).to(tl.float32)"


def _power_text(base: str, power: int) -> str:
    product = " * ".join([base] * abs(power))
    return f"(1.0 / ({product}))" if power < 0 else product if power == 1 else f"({product})"


def _line_text(line: Line) -> str:
    """One line of tile arithmetic."""
    x = line.operands[0]
    scalar = float_text(line.extra[0]) if line.extra else ""
    match line.call:
        case "_scale":
            text = f"{x} * {scalar}"
        case "_axpy":
            other = line.operands[1]
            text = f"{x} + {other}" if scalar == "1.0" else f"{x} + {other} * {scalar}"
        case "_shift":
            text = f"{x} + {scalar}"
        case "_times":
            text = f"{x} * {line.operands[1]}"
        case "_exp2":
            text = f"tl.exp2({x})" if scalar == "1.0" else f"tl.exp2({x} * {scalar})"
        case "_log1p":
            text = f"_log1p({x})"
        case "_sqrt" | "_cos" | "_sin":
            text = f"tl.{line.call[1:]}({x})"
        case "_power":
            text = _power_text(x, int(line.extra[0]))
        case "_inverse_at":
            text = f"_reciprocal_or_zero({_power_text(x, int(line.extra[0]))})"
        case _:
            raise AssertionError(f"no Triton spelling for {line.call}")
    return f"    {line.target} = {text}\n"


class ProfileSource:
    """Device functions of one form.

    Fields: value, the text of `value(...)`; partials, the text of `partials(...)`, which returns the distinct tiles
    of all derivatives; derivatives, what each is made of; inputs, the arguments of both functions in order;
    value_scalar, set instead of `value` when the profile is the same for all pairs (a scalar text); value_full,
    whether `value` gives a whole tile even where a statistic is missing from the profile.
    """

    def __init__(self, form: Form) -> None:
        program = program_of(form)
        symbols = (*program.statistics, *program.scalars, *program.parameters)
        self.inputs = [input_name(s) for s in symbols]
        self.value_scalar: str | None = None
        self.value_full = False
        generator = self._generator(symbols)
        if form.profile.pairwise:
            result = generator.tile(form.profile)
            self.value = self._function("value", generator, result)
            self.value_full = generator.full[result]
        else:
            self.value, self.value_scalar = "", generator.scalar(form.profile)
        generator = self._generator(symbols)
        tiles: list[str] = []
        self.derivatives: list[Derivative] = []
        for symbol, slope in program.derivatives.items():
            self._add_derivative(symbol, slope, generator, tiles)
        self.tile_count = len(tiles)
        self.partials = self._function("partials", generator, ", ".join(tiles)) if tiles else ""

    def _add_derivative(self, symbol: Symbol, slope: Expression, generator: Generator, tiles: list[str]) -> None:
        if slope.is_zero:
            return
        if not slope.pairwise:
            self.derivatives.append(Derivative(symbol, generator.scalar(slope), None))
            return
        scalar, name = generator.scaled(slope)
        if name not in tiles:
            tiles.append(name)
        self.derivatives.append(Derivative(symbol, scalar, tiles.index(name)))

    @staticmethod
    def _generator(symbols: Sequence[Symbol]) -> _DeviceGenerator:
        generator = _DeviceGenerator()
        for symbol in symbols:
            if symbol.kind != "parameter":
                generator.symbol(symbol)
        return generator

    def _function(self, name: str, generator: Generator, result: str) -> str:
        body = "".join(_line_text(line) for line in generator.lines)
        return f"\n@triton.jit\ndef {name}({', '.join(self.inputs)}):\n{body}    return {result}\n"


@functools.lru_cache(maxsize=512)
def profile_source(form: Form) -> ProfileSource:
    """The device functions of a form, generated once per structure."""
    return ProfileSource(form)
