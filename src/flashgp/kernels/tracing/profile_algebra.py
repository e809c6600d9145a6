"""Scalar algebra on profiles that a traced function needs: substitution, parity, signs, roots and logarithms."""

import math
from collections.abc import Callable, Mapping
from fractions import Fraction

from flashgp.foundations.expression import Atom, Expression, Function, Surd, Symbol, exp, log1p, number
from flashgp.kernels.tracing.values import NotFused

Part = Callable[[Expression, str], Expression]  # an expression of one row or of parameters, and a function of it
Sure = Callable[[Symbol], bool]  # whether a symbol is positive


def exact(value: int | float) -> Expression:
    """A number of the function as it is: a float is the rational number that its bits say."""
    if not math.isfinite(value):
        raise NotFused(f"the number {value}")
    return number(Fraction(value))


def _of_atom(atom: Atom) -> Expression:
    return Expression({((atom, 1),): Fraction(1)})


def substituted(expression: Expression, by: Mapping[Symbol, Expression]) -> Expression:
    """The expression with expressions in the place of symbols."""
    if not expression.symbols & by.keys():
        return expression
    total = number(0)
    for factors, coefficient in expression.terms:
        term = number(coefficient)
        for atom, exponent in factors:
            match atom:
                case Symbol():
                    base = by.get(atom, _of_atom(atom))
                case Surd():
                    base = _of_atom(atom)
                case Function(name, argument):
                    base = _of_atom(Function(name, substituted(argument, by)))
                    base = exp(substituted(argument, by)) if name == "exp" else base
                case _:
                    base = substituted(atom, by)
            term = term * base**exponent
        total = total + term
    return total


def is_even(expression: Expression, symbol: Symbol) -> bool:
    """True if the expression is visibly even in a symbol."""
    for factors, _ in expression.terms:
        for atom, exponent in factors:
            if isinstance(atom, Symbol):
                if atom == symbol and exponent % 2:
                    return False
            elif isinstance(atom, Function):
                if not is_even(atom.argument, symbol):
                    return False
            elif isinstance(atom, Expression) and not is_even(atom, symbol):
                return False
    return True


def is_nonnegative(expression: Expression) -> bool:
    """True if an expression is visibly nowhere below zero."""

    def factor(atom: Atom, exponent: int) -> bool:
        if exponent % 2 == 0 or isinstance(atom, Surd):
            return True
        if isinstance(atom, Symbol):
            return atom.kind in ("distance", "match")
        return atom.name == "exp" if isinstance(atom, Function) else is_nonnegative(atom)

    return all(c > 0 and all(factor(a, e) for a, e in factors) for factors, c in expression.terms)


def root(expression: Expression, part: Part, sure: Sure) -> Expression:
    """The square root where a profile can say it: of a product factor by factor, of a sum through its logarithm."""
    if len(expression.terms) != 1:
        return exp(logarithm(expression, part, sure) / 2)
    factors, coefficient = expression.terms[0]
    result = part(number(abs(coefficient)), "sqrt")
    for atom, exponent in factors:
        match atom:
            case Symbol("parameter" | "left" | "right", _):
                result = result * part(_of_atom(atom) ** exponent, "sqrt")
            case Symbol("distance", _) if exponent % 2 == 0:
                result = result * _of_atom(atom) ** (exponent // 2)
            case Function("exp", argument):
                result = result * exp(argument * exponent / 2)
            case Expression():
                result = result * exp(logarithm(atom, part, sure) * exponent / 2)
            case _:
                raise NotFused("a square root of what is not a square")
    return result


def logarithm(expression: Expression, part: Part, sure: Sure) -> Expression:
    """The logarithm of c exp(z) with c of one row or of parameters, or of a sum with such a positive term c."""
    if len(expression.terms) == 1:
        factors, coefficient = expression.terms[0]
        result = part(number(coefficient), "log")
        for atom, exponent in factors:
            match atom:
                case Symbol("parameter" | "left" | "right", _):
                    result = result + part(_of_atom(atom) ** exponent, "log")
                case Function("exp", argument):
                    result = result + argument * exponent
                case Expression():
                    result = result + logarithm(atom, part, sure) * exponent
                case _:
                    raise NotFused("a logarithm or a power of what may be zero")
        return result
    for factors, coefficient in expression.terms:
        own = Expression({factors: coefficient})
        sides = {a.kind for a, _ in factors if isinstance(a, Symbol)}
        positive = all(isinstance(a, Symbol) and (sure(a) or _is_squared_parameter(a, e)) for a, e in factors)
        if coefficient > 0 and len(sides) <= 1 and positive:
            return part(own, "log") + log1p((expression - own) / own)
    raise NotFused("a logarithm or a power of a sum without a positive term of one point or of parameters")


def _is_squared_parameter(symbol: Symbol, exponent: int) -> bool:
    return symbol.kind == "parameter" and exponent % 2 == 0


def power(expression: Expression, exponent: Expression | int | float, part: Part, sure: Sure) -> Expression:
    """expression ** exponent; a whole exponent as it is, halves through the square root, others by the logarithm."""
    if isinstance(exponent, int | float):
        if float(exponent).is_integer() and abs(exponent) <= 64:
            return expression ** int(exponent)
        if float(2 * exponent).is_integer() and abs(exponent) <= 32:
            return root(expression, part, sure) ** int(2 * exponent)
        exponent = exact(exponent)
    return exp(logarithm(expression, part, sure) * exponent)
