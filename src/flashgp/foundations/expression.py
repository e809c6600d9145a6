"""Exact symbolic scalar expressions: the language in which a covariance function states its profile.

An expression is kept in one normal form: a sum of monomials with rational coefficients over atoms (symbols,
square roots of integers, exp, log1p, cos, sin, and powers of sums). Like terms are collected and powers of one
atom merge, so the 1/r that differentiating by a squared distance brings cancels exactly wherever the
mathematics says it does (docs/math.md, eq. (M-4)). Products of sums are not multiplied out unless a derivative
needs it: a product of many kernels stays a product.

This is not a general algebra system: it knows what covariance functions need and refuses the rest.
"""

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Union

from flashgp.foundations.errors import DomainError

Number = Union[int, Fraction]  # noqa: UP007 - used at run time in isinstance-like coercion below


@dataclass(frozen=True)
class Symbol:
    """A variable of a profile: distance (r), product, match, opaque, parameter, left or right; index counts within.

    In generated code also "sum": what stands for a sum over an index (pairwise/program/families.py).
    """

    kind: str
    index: int

    @property
    def pairwise(self) -> bool:
        """True if its value differs between pairs of rows (everything but a parameter)."""
        return self.kind != "parameter"


@dataclass(frozen=True)
class Surd:
    """The positive square root of a positive integer, kept exact."""

    radicand: int


@dataclass(frozen=True)
class Function:
    """exp, log1p, cos or sin of an expression."""

    name: str
    argument: "Expression"

    @functools.cached_property
    def _hash(self) -> int:
        return hash((self.name, self.argument))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the cached hash: it is of this process, and atoms whose hashes differ never merge.
        return Function, (self.name, self.argument)


Atom = Union[Symbol, Surd, Function, "Expression"]
Factors = tuple[tuple[Atom, int], ...]


class Expression:
    """A sum of monomials: a mapping from factors (atom, integer power) to a rational coefficient; immutable."""

    __slots__ = ("_hash", "_key", "_symbols", "terms")

    def __init__(self, terms: Mapping[Factors, Fraction]) -> None:
        kept = [(factors, coefficient) for factors, coefficient in terms.items() if coefficient != 0]
        kept.sort(key=lambda term: _factors_key(term[0]))
        self.terms: tuple[tuple[Factors, Fraction], ...] = tuple(kept)
        self._hash: int | None = None
        self._key: str | None = None
        self._symbols: frozenset[Symbol] | None = None

    # -- identity -----------------------------------------------------------------------------------------------
    @property
    def key(self) -> str:
        """A text that is equal exactly for equal expressions."""
        if self._key is None:
            self._key = (
                " + ".join(
                    f"{coefficient}" + "".join(f"*{_atom_key(a)}^{p}" for a, p in factors)
                    for factors, coefficient in self.terms
                )
                or "0"
            )
        return self._key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expression) and (self is other or self.key == other.key)

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(self.key)
        return self._hash

    def __repr__(self) -> str:
        return self.key

    def __reduce__(self) -> tuple[Any, ...]:
        return Expression, (dict(self.terms),)  # without the cached hash, as above

    # -- questions ----------------------------------------------------------------------------------------------
    @property
    def symbols(self) -> frozenset[Symbol]:
        """Every symbol that occurs."""
        if self._symbols is None:
            symbols: set[Symbol] = set()
            for factors, _ in self.terms:
                for atom, _power in factors:
                    symbols |= _atom_symbols(atom)
            self._symbols = frozenset(symbols)
        return self._symbols

    @property
    def pairwise(self) -> bool:
        """True if the value differs between pairs of rows."""
        return any(symbol.pairwise for symbol in self.symbols)

    @property
    def is_zero(self) -> bool:
        return not self.terms

    def as_number(self) -> Fraction | None:
        """The rational value if the expression is one, else None."""
        if not self.terms:
            return Fraction(0)
        if len(self.terms) == 1 and not self.terms[0][0]:
            return self.terms[0][1]
        return None

    def singular_at_zero(self) -> bool:
        """True if a negative power of a distance is left: the value at zero distance is then defined as 0."""
        for factors, _ in self.terms:
            for atom, power in factors:
                if isinstance(atom, Symbol) and atom.kind == "distance" and power < 0:
                    return True
                if isinstance(atom, Function) and atom.argument.singular_at_zero():
                    return True
                if isinstance(atom, Expression) and atom.singular_at_zero():
                    return True
        return False

    # -- arithmetic ---------------------------------------------------------------------------------------------
    def __add__(self, other: "Expression | Number") -> "Expression":
        terms = dict(self.terms)
        for factors, coefficient in number(other).terms:
            terms[factors] = terms.get(factors, Fraction(0)) + coefficient
        return Expression(terms)

    __radd__ = __add__

    def __neg__(self) -> "Expression":
        return Expression({factors: -coefficient for factors, coefficient in self.terms})

    def __sub__(self, other: "Expression | Number") -> "Expression":
        return self + (-number(other))

    def __rsub__(self, other: "Expression | Number") -> "Expression":
        return number(other) - self

    def __mul__(self, other: "Expression | Number") -> "Expression":
        other = number(other)
        value = other.as_number()
        if value is not None:
            return Expression({factors: coefficient * value for factors, coefficient in self.terms})
        if self.as_number() is not None:
            return other * self
        return _monomial_product(self._as_monomial(), other._as_monomial())

    __rmul__ = __mul__

    def __truediv__(self, other: "Expression | Number") -> "Expression":
        return self * number(other) ** -1

    def __rtruediv__(self, other: "Expression | Number") -> "Expression":
        return number(other) * self**-1

    def __pow__(self, power: int) -> "Expression":
        if not isinstance(power, int):
            raise DomainError(f"`power` must be an integer, got {power!r}; write exp(power * log) instead")
        if power == 0:
            return number(1)
        value = self.as_number()
        if value is not None:
            return number(value**power)
        factors, coefficient = self._as_monomial()
        return _monomial_product(
            (tuple((atom, exponent * power) for atom, exponent in factors), coefficient**power),
            ((), Fraction(1)),
        )

    def _as_monomial(self) -> tuple[Factors, Fraction]:
        """The expression as one product: a sum of several terms becomes one opaque factor.

        Its first coefficient is 1 or -1 and its last positive, so that s - p and 2 p - 2 s have one factor, whose
        powers merge; profiles as they are written down (1 + ..., match - 1) have this form already.
        """
        if len(self.terms) == 1:
            return self.terms[0]
        scale = abs(self.terms[0][1]) * (1 if self.terms[-1][1] > 0 else -1)
        return ((self if scale == 1 else self * (1 / scale), 1),), scale

    # -- calculus -----------------------------------------------------------------------------------------------
    def derivative(self, symbol: Symbol) -> "Expression":
        """The derivative by a symbol; for a distance r it is the derivative by its square q, eq. (M-4)."""
        return _derivative(self, symbol)

    def renamed(self, rename: Mapping[Symbol, Symbol]) -> "Expression":
        """The expression over other symbols."""
        if not self.symbols & rename.keys():
            return self
        total = number(0)
        for factors, coefficient in self.terms:
            term = number(coefficient)
            for atom, power in factors:
                term = term * _rename_atom(atom, rename) ** power
            total = total + term
        return total


# -- constructors -----------------------------------------------------------------------------------------------
def number(value: "Expression | Number") -> Expression:
    """An exact rational number as an expression; an expression passes through."""
    if isinstance(value, Expression):
        return value
    if isinstance(value, int | Fraction):
        return Expression({(): Fraction(value)})
    raise DomainError(
        f"a profile takes exact numbers (int or Fraction), got {value!r} of type {type(value).__name__}; "
        "make it a parameter or a Fraction"
    )


def _atom(atom: Atom) -> Expression:
    return Expression({((atom, 1),): Fraction(1)})


def distance(index: int = 0) -> Expression:
    """r, the Euclidean distance of statistic `index`."""
    return _atom(Symbol("distance", index))


def squared_distance(index: int = 0) -> Expression:
    """q = r^2 of statistic `index`."""
    return distance(index) ** 2


def product(index: int = 0) -> Expression:
    """The inner product of statistic `index`."""
    return _atom(Symbol("product", index))


def match(index: int = 0) -> Expression:
    """1 where the integer codes of statistic `index` agree, else 0."""
    return _atom(Symbol("match", index))


def opaque(index: int = 0) -> Expression:
    """The value of statistic `index` when that is a Python function of two points, eq. (M-48)."""
    return _atom(Symbol("opaque", index))


def parameter(index: int = 0) -> Expression:
    """Parameter number `index` of the profile."""
    return _atom(Symbol("parameter", index))


def row_scalar(side: str, index: int = 0) -> Expression:
    """Row scalar number `index` of the left or right row of a pair."""
    if side not in ("left", "right"):
        raise DomainError(f"`side` must be 'left' or 'right', got {side!r}")
    return _atom(Symbol(side, index))


def square_root(radicand: int) -> Expression:
    """The exact positive square root of a positive integer."""
    if radicand < 1:
        raise DomainError(f"`radicand` must be a positive integer, got {radicand!r}")
    root = math.isqrt(radicand)
    return number(root) if root * root == radicand else _atom(Surd(radicand))


def exp(argument: "Expression | Number") -> Expression:
    """e to the argument; exp(0) is 1."""
    argument = number(argument)
    return number(1) if argument.is_zero else _atom(Function("exp", argument))


def log1p(argument: "Expression | Number") -> Expression:
    """The logarithm of 1 + argument, accurate for a small argument."""
    return _atom(Function("log1p", number(argument)))


def cos(argument: "Expression | Number") -> Expression:
    """The cosine."""
    return _atom(Function("cos", number(argument)))


def sin(argument: "Expression | Number") -> Expression:
    """The sine."""
    return _atom(Function("sin", number(argument)))


# -- internals --------------------------------------------------------------------------------------------------
def _atom_key(atom: Atom) -> str:
    match atom:
        case Symbol(kind, index):
            return f"{kind}[{index}]"
        case Surd(radicand):
            return f"sqrt({radicand})"
        case Function(name, argument):
            return f"{name}({argument.key})"
        case _:
            return f"({atom.key})"


def _factors_key(factors: Factors) -> str:
    return "*".join(f"{_atom_key(atom)}^{power}" for atom, power in factors)


def _atom_symbols(atom: Atom) -> frozenset[Symbol]:
    match atom:
        case Symbol():
            return frozenset((atom,))
        case Surd():
            return frozenset()
        case Function(_, argument):
            return argument.symbols
        case _:
            return atom.symbols


def _monomial_product(one: tuple[Factors, Fraction], two: tuple[Factors, Fraction]) -> Expression:
    """Multiply two monomials: powers of one atom merge, exponentials join, surds square away."""
    coefficient = one[1] * two[1]
    powers: dict[Atom, int] = {}
    exponent = number(0)
    for atom, power in (*one[0], *two[0]):
        if isinstance(atom, Function) and atom.name == "exp":
            exponent = exponent + atom.argument * power
        else:
            powers[atom] = powers.get(atom, 0) + power
    if not exponent.is_zero:
        powers[Function("exp", exponent)] = 1
    factors: list[tuple[Atom, int]] = []
    for atom, power in powers.items():
        if isinstance(atom, Surd):
            coefficient *= Fraction(atom.radicand) ** (power // 2)
            power %= 2
        elif isinstance(atom, Symbol) and atom.kind == "match" and power > 0:
            power = 1  # a match is 0 or 1: its powers are itself
        if power:
            factors.append((atom, power))
    factors.sort(key=lambda factor: _atom_key(factor[0]))
    if len(factors) == 1 and isinstance(factors[0][0], Expression) and factors[0][1] == 1:
        return factors[0][0] * coefficient
    return Expression({tuple(factors): coefficient})


def _expand(factors: Iterable[Expression]) -> Expression:
    """Multiply expressions out, term by term, down to opaque powers."""
    total = number(1)
    for factor in factors:
        parts = [_monomial_product(left, right) for left in total.terms for right in _opened(factor).terms]
        total = functools.reduce(lambda a, b: a + b, parts, number(0))
    return total


def _opened(expression: Expression) -> Expression:
    """A sum that stands as a factor with a positive power, multiplied out; other factors as they are."""
    if len(expression.terms) != 1:
        return expression
    factors, coefficient = expression.terms[0]
    sums = [(atom, power) for atom, power in factors if isinstance(atom, Expression) and power > 0]
    if not sums:
        return expression
    rest = tuple(factor for factor in factors if factor not in sums)
    return _expand([Expression({rest: coefficient}), *(atom for atom, power in sums for _ in range(power))])


@functools.lru_cache(maxsize=4096)
def _derivative(expression: Expression, symbol: Symbol) -> Expression:
    if symbol not in expression.symbols:
        return number(0)
    total = number(0)
    for factors, coefficient in expression.terms:
        dependent = [factor for factor in factors if symbol in _atom_symbols(factor[0])]
        if not dependent:
            continue
        constant = Expression({tuple(f for f in factors if f not in dependent): coefficient})
        if len(dependent) == 1:
            total = total + _times(constant, _factor_derivative(*dependent[0], symbol))
            continue
        # Several factors depend on the symbol: multiply out, so that the powers of r that cancel do cancel.
        inner = number(0)
        for position, (atom, power) in enumerate(dependent):
            others = [_factor(a, p) for k, (a, p) in enumerate(dependent) if k != position]
            inner = inner + _expand([_factor_derivative(atom, power, symbol), *others])
        total = total + _times(constant, inner)
    return total


def _factor(atom: Atom, power: int) -> Expression:
    if isinstance(atom, Expression):
        return atom**power
    return Expression({((atom, power),): Fraction(1)})


def _factor_derivative(atom: Atom, power: int, symbol: Symbol) -> Expression:
    """Derivative of atom**power, the distance rule d r^p / dq = (p / 2) r^(p - 2) included."""
    if isinstance(atom, Symbol):
        if atom.kind == "distance":
            return _factor(atom, power - 2) * Fraction(power, 2) if power != 2 else number(1)
        return _factor(atom, power - 1) * power if power != 1 else number(1)
    outer = number(power) * _factor(atom, power - 1) if power != 1 else number(1)
    if isinstance(atom, Expression):
        return _times(outer, _derivative(atom, symbol))
    assert isinstance(atom, Function)
    inner = _derivative(atom.argument, symbol)
    match atom.name:
        case "exp":
            slope = _atom(atom)
        case "log1p":
            slope = (1 + atom.argument) ** -1
        case "cos":
            slope = -sin(atom.argument)
        case _:
            slope = cos(atom.argument)
    return _times(outer * slope, inner)


def _times(factor: Expression, inner: Expression) -> Expression:
    """factor * inner, one monomial over the terms of inner, so that powers of r meet their partners."""
    monomial = factor._as_monomial()
    return functools.reduce(lambda total, term: total + _monomial_product(monomial, term), inner.terms, number(0))


def _rename_atom(atom: Atom, rename: Mapping[Symbol, Symbol]) -> Expression:
    match atom:
        case Symbol():
            return _atom(rename.get(atom, atom))
        case Surd():
            return _atom(atom)
        case Function(name, argument):
            return _atom(Function(name, argument.renamed(rename)))
        case _:
            return atom.renamed(rename)
