"""Interval arithmetic over profiles: what an expression can be when its symbols are only known to lie in ranges.

    g([q], [s], ...) contains g(q, s, ...) for all q in [q], s in [s], ...                              (M-70)

Each operation maps end points to end points and rounds outwards, so the result contains the exact real value, not only
the computed one. It may be wider than the true range where a symbol occurs twice: (1 + r) e^{-r} over a < r < b gives
at most (1 + b) e^{-a}. Arrays of ranges are evaluated together, in float64, in NumPy.
Source: Moore, Kearfott & Cloud (2009), Introduction to Interval Analysis, ch. 2 and 5.
"""

import functools
import math
from collections.abc import Mapping
from fractions import Fraction
from typing import NamedTuple

import numpy

from flashgp.foundations.expression import Atom, Expression, Factors, Function, Surd, Symbol

Array = numpy.ndarray
EPS, TINY = float(numpy.finfo(float).eps), float(numpy.finfo(float).tiny)
LIBRARY_ULPS = 8.0  # exp, log1p and cos of NumPy are within 4 units of the last place


class Interval(NamedTuple):
    """Ranges low <= value <= high, arrays of one shape; -inf and inf are allowed."""

    low: Array
    high: Array


def interval_of(expression: Expression, values: Mapping[Symbol, Interval]) -> Interval:
    """The range of an expression over ranges of its symbols, eq. (M-70).

    Args: values: a range for every symbol that occurs; a distance has the range of r, not of its square.
    Returns: arrays in the broadcast shape of the ranges; not a number never: what is not known is -inf or inf.
    Cost: about 20 floating operations for each of the expression's, per entry.
    """
    with numpy.errstate(all="ignore"):
        terms = (_term(factors, coefficient, values) for factors, coefficient in expression.terms)
        return functools.reduce(_sum, terms) if expression.terms else _point(0.0)


def largest_magnitude(expression: Expression, values: Mapping[Symbol, Interval]) -> Array:
    """An upper bound of |expression| over ranges of its symbols; inf where none is known."""
    low, high = interval_of(expression, values)
    return numpy.maximum(numpy.abs(low), numpy.abs(high))


def widened(low: Array, high: Array, ulps: float) -> Interval:
    """The range with that many units of relative rounding added on both sides."""
    with numpy.errstate(all="ignore"):
        below = low - (numpy.abs(low) * (ulps * EPS) + TINY)
        above = high + (numpy.abs(high) * (ulps * EPS) + TINY)
    return Interval(numpy.where(numpy.isnan(below), -math.inf, below), numpy.where(numpy.isnan(above), math.inf, above))


def _point(value: float, exact: bool = True) -> Interval:
    one = numpy.asarray(value)
    return Interval(one, one) if exact else _outward(one, one)


def _outward(low: Array, high: Array) -> Interval:
    """Around ends that were rounded once; an end that is not a number is unknown."""
    return Interval(
        numpy.where(numpy.isnan(low), -math.inf, numpy.nextafter(low, -math.inf)),
        numpy.where(numpy.isnan(high), math.inf, numpy.nextafter(high, math.inf)),
    )


def _sum(x: Interval, y: Interval) -> Interval:
    return _outward(x.low + y.low, x.high + y.high)


def _product(x: Interval, y: Interval) -> Interval:
    corners = [_times(a, b) for a in x for b in y]
    return _outward(functools.reduce(numpy.minimum, corners), functools.reduce(numpy.maximum, corners))


def _times(a: Array, b: Array) -> Array:
    """a b, where 0 times inf is 0: an end at infinity stands for finite numbers of any size."""
    return numpy.where((a == 0) | (b == 0), 0.0, a * b)


def _term(factors: Factors, coefficient: Fraction, values: Mapping[Symbol, Interval]) -> Interval:
    parts = [_power(_atom(atom, values), power, atom) for atom, power in factors]
    if coefficient != 1 or not parts:
        parts.append(_point(float(coefficient), exact=Fraction(float(coefficient)) == coefficient))
    return functools.reduce(_product, parts)


def _atom(atom: Atom, values: Mapping[Symbol, Interval]) -> Interval:
    match atom:
        case Symbol():
            return values[atom]
        case Surd(radicand):
            return _point(math.sqrt(radicand), exact=False)
        case Function(name, argument):
            return _FUNCTIONS[name](interval_of(argument, values))
        case _:
            return interval_of(atom, values)


def _power(x: Interval, power: int, atom: Atom) -> Interval:
    """x ** power for an integer; the inverse of a distance counts as 0 at distance 0, eq. (M-4)."""
    if power < 0:
        inverse = _inverse(_power(x, -power, atom))
        if isinstance(atom, Symbol) and atom.kind == "distance":
            return Interval(numpy.where(x.low <= 0, 0.0, inverse.low), inverse.high)
        return inverse
    result = x
    for _ in range(power - 1):
        result = _product(result, x)
    if power % 2:
        return result
    return Interval(numpy.maximum(result.low, 0.0), result.high)  # an even power of a range around 0


def _inverse(x: Interval) -> Interval:
    low, high = _outward(1.0 / x.high, 1.0 / x.low)
    within, from_zero, to_zero = (x.low < 0) & (x.high > 0), x.low == 0, x.high == 0
    return Interval(numpy.where(within | to_zero, -math.inf, low), numpy.where(within | from_zero, math.inf, high))


def _exp(x: Interval) -> Interval:
    low, high = widened(numpy.exp(x.low), numpy.exp(x.high), LIBRARY_ULPS)
    return Interval(numpy.maximum(low, 0.0), high)


def _log1p(x: Interval) -> Interval:
    low = numpy.where(x.low <= -1.0, -math.inf, numpy.log1p(numpy.maximum(x.low, -1.0)))
    return widened(low, numpy.log1p(x.high), LIBRARY_ULPS)


def _cos(x: Interval) -> Interval:
    """Between its ends, and 1 or -1 where the range reaches a multiple of pi, found with a margin for rounding."""
    margin = 4.0 * EPS * (1.0 + numpy.maximum(numpy.abs(x.low), numpy.abs(x.high)))
    first, last = numpy.ceil(x.low / math.pi - margin), numpy.floor(x.high / math.pi + margin)
    ends = numpy.cos(x.low), numpy.cos(x.high)
    low, high = widened(numpy.minimum(*ends), numpy.maximum(*ends), LIBRARY_ULPS)
    unknown = ~(last - first < 1) | ~numpy.isfinite(margin)
    even = first % 2 == 0
    low = numpy.where(unknown | ((last == first) & ~even), -1.0, low)
    high = numpy.where(unknown | ((last == first) & even), 1.0, high)
    return Interval(numpy.maximum(low, -1.0), numpy.minimum(high, 1.0))


def _sin(x: Interval) -> Interval:
    return _cos(_sum(x, _point(-math.pi / 2, exact=False)))


_FUNCTIONS = {"exp": _exp, "log1p": _log1p, "cos": _cos, "sin": _sin}
