"""Expression to scalar code: assignments that a loop over pairs evaluates, common parts once."""

import math
from fractions import Fraction

from flashgp.foundations.expression import Atom, Expression, Factors, Function, Surd, Symbol

LOG2_E = math.log2(math.e)


class ScalarCode:
    """Collects assignments for expressions over q (squared distances), s, m, a, b and p, in one floating type.

    Names: q0 s1 m2 for statistics, a0 and b0 for row scalars, p0 for parameters, z0 for sums of families. What does not
    depend on the pair is collected in `prelude`, numbers in `constants` (name to value): a literal would be a double.
    `mark` ends the names of what is assigned: those of two collections in one function differ by it.
    """

    def __init__(self, constants: dict[str, float], mark: str = "") -> None:
        self._mark = mark
        self.prelude: list[str] = []
        self.body: list[str] = []
        self.constants = constants
        self._names: dict[object, str] = {("constant", value): name for name, value in constants.items()}

    def constant(self, value: float) -> str:
        name = self._names.get(("constant", value))
        if name is None:
            name = f"K{len(self.constants)}_"
            self.constants[name] = value
            self._names[("constant", value)] = name
        return name

    def value(self, expression: Expression, scale: float = 1.0) -> str:
        """The name of scale * expression."""
        key = (expression, scale)
        if key not in self._names:
            terms = [self._term(factors, coefficient, scale) for factors, coefficient in expression.terms]
            self._names[key] = self._assign(" + ".join(terms) or self.constant(0.0), expression.pairwise)
        return self._names[key]

    def _assign(self, text: str, pairwise: bool) -> str:
        lines = self.body if pairwise else self.prelude
        name = f"{'v' if pairwise else 'w'}{len(lines)}{self._mark}"
        lines.append(f"{name} = {text}")
        return name

    def _term(self, factors: Factors, coefficient: Fraction, scale: float) -> str:
        number = float(coefficient) * scale
        parts = [self._power(atom, power) for atom, power in factors if not isinstance(atom, Surd)]
        for atom, power in factors:
            if isinstance(atom, Surd):
                number *= math.sqrt(atom.radicand) ** power
        if number != 1.0 or not parts:
            parts.insert(0, self.constant(number))
        return " * ".join(parts)

    def _power(self, atom: Atom, power: int) -> str:
        if isinstance(atom, Symbol) and atom.kind == "distance":
            q = f"q{atom.index}"
            if power % 2 == 0 and power > 0:
                return self._repeat(q, power // 2, True)
            root = self._once(("root", q), f"sqrt({q})", True)
            if power > 0:
                return self._repeat(root, power, True)
            one, zero = self.constant(1.0), self.constant(0.0)
            inverse = self._once(("inverse", q), f"{one} / {root} if {q} > {zero} else {zero}", True)
            return self._repeat(inverse, -power, True)
        name, pairwise = self._atom(atom)
        if power < 0:
            name = self._once(("inverse", name), f"{self.constant(1.0)} / {name}", pairwise)
        return self._repeat(name, abs(power), pairwise)

    def _atom(self, atom: Atom) -> tuple[str, bool]:
        match atom:
            case Symbol(kind, index):
                letter = {"product": "s", "match": "m", "left": "a", "right": "b", "parameter": "p", "sum": "z"}[kind]
                return f"{letter}{index}", atom.pairwise
            case Function("exp", argument):
                inner = self.value(argument, LOG2_E)
                return self._once(("exp", argument), f"exp2({inner})", argument.pairwise), argument.pairwise
            case Function(function, argument):
                inner = self.value(argument)
                return self._once((function, argument), f"{function}({inner})", argument.pairwise), argument.pairwise
            case Expression():
                return self.value(atom), atom.pairwise
        raise AssertionError(atom)

    def _once(self, key: object, text: str, pairwise: bool) -> str:
        if key not in self._names:
            self._names[key] = self._assign(text, pairwise)
        return self._names[key]

    def _repeat(self, name: str, power: int, pairwise: bool) -> str:
        """name ** power by repeated squaring."""
        if power == 1:
            return name
        half = self._repeat(name, power // 2, pairwise)
        text = f"{half} * {half}" + (f" * {name}" if power % 2 else "")
        return self._once(("power", name, power), text, pairwise)
