"""The number an expression has: plain Python floats, one pair at a time. Slow and obvious, a reference."""

import math

from flashgp.foundations.expression import Atom, Expression, Function, Surd, Symbol


def value_at(expression: Expression, values: dict[Symbol, float]) -> float:
    """The number an expression has at given symbol values; a negative power of a zero distance counts as 0."""
    total = 0.0
    for factors, coefficient in expression.terms:
        term = coefficient.numerator / coefficient.denominator
        for atom, power in factors:
            base = _atom_at(atom, values)
            if power < 0 and base == 0.0 and isinstance(atom, Symbol) and atom.kind == "distance":
                term = 0.0
                break
            term *= base**power
        total += term
    return total


def _atom_at(atom: Atom, values: dict[Symbol, float]) -> float:
    match atom:
        case Symbol():
            return values[atom]
        case Surd(radicand):
            return math.sqrt(radicand)
        case Function(name, argument):
            return float(getattr(math, name)(value_at(argument, values)))
        case _:
            return value_at(atom, values)
