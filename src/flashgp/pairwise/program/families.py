"""Terms of a profile that repeat over an index, found and written once: generated code loops over them.

A sum of Q terms that differ only in which statistics and parameters they name, as the components of a spectral mixture
(M-52) do, is one term and a list of what it names for every q:

    g = G(S, the rest),   S = sum_q h(statistics of q; parameters of q),   dg/dx_q = dG/dS dh/dx_q

This file looks at symbols alone: which profile is such a sum, and how its symbols are numbered then.
"""

import functools
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from flashgp.foundations.expression import Atom, Expression, Function, Symbol, number
from flashgp.foundations.form import Form

MIN_MEMBERS = 4  # fewer terms are written out: straight-line code of that length compiles as quickly
_REPEATED = ("distance", "product", "parameter")  # what a repeated term may name


@dataclass(frozen=True)
class Slope:
    """A derivative that is not zero: by which symbol, and of which family's term, or of the profile (None)."""

    symbol: Symbol
    expression: Expression
    family: int | None


@dataclass(frozen=True)
class Family:
    """sum_q h(q): `symbol` stands for the sum, `term` is h, `count` the number of q."""

    symbol: Symbol
    term: Expression
    count: int


@dataclass(frozen=True)
class Indexed:
    """A profile over its own statistics and parameters and over sums of families, all renumbered.

    Fields: profile, G; families; statistics and parameters: for every new number the numbers in the form, one, or one
    per member of a family: first those of the profile, then those of the families in turn.
    """

    profile: Expression
    families: tuple[Family, ...]
    statistics: tuple[tuple[int, ...], ...]
    parameters: tuple[tuple[int, ...], ...]
    kinds: tuple[str, ...]
    scalar_count: int

    def owned(self, kind: str, family: int | None) -> list[int]:
        """The new numbers of the statistics or "parameter"s of a family, or of the profile itself (None)."""
        count = len(self.parameters if kind == "parameter" else self.statistics)
        names = [{(s.kind == "parameter", s.index) for s in f.term.symbols} for f in self.families]
        of = [next((i for i, own in enumerate(names) if (kind == "parameter", k) in own), None) for k in range(count)]
        return [k for k in range(count) if of[k] == family]

    @functools.cached_property
    def slopes(self) -> list[Slope]:
        """Slopes by every symbol on which the covariance depends, in a fixed order; of a member by its family's
        term."""
        found = []
        for family in (None, *range(len(self.families))):
            expression = self.profile if family is None else self.families[family].term
            names = [Symbol(self.kinds[k], k) for k in self.owned("statistic", family) if self.kinds[k] != "match"]
            if family is None:
                names += [Symbol(side, k) for side in ("left", "right") for k in range(self.scalar_count)]
            names += [Symbol("parameter", k) for k in self.owned("parameter", family)]
            slopes = ((name, expression.derivative(name)) for name in names)
            found += [Slope(name, slope, family) for name, slope in slopes if not slope.is_zero]
        return found

    def slope_of_sum(self, family: int) -> Expression:
        """dG/dS of a family."""
        return self.profile.derivative(self.families[family].symbol)


def indexed(form: Form, labels: Sequence[Hashable]) -> Indexed:
    """The profile of a form with its repeated terms as families.

    Args: labels: per statistic, what two statistics must share to be taken by one loop (kind, columns).
    Cost: some operations per term, kept per form and labels.
    """
    return _indexed(form, tuple(labels))


@functools.lru_cache(maxsize=512)
def distance_runs(form: Form) -> tuple[tuple[int, ...], ...]:
    """Distances to move together, so that every one is once moved alone as far as its slope can tell.

    All of a family at once where G is linear in its sum: dG/dS dh/dx_q does not change with the other members. Last
    comes a run of all distances.
    """
    found = indexed(form, form.statistics)
    runs: list[tuple[int, ...]] = []
    for family in (None, *range(len(found.families))):
        together = family is not None and found.families[family].symbol not in found.slope_of_sum(family).symbols
        for new in found.owned("statistic", family):
            if found.kinds[new] == "distance":
                runs += [found.statistics[new]] if together else [(k,) for k in found.statistics[new]]
    every = tuple(k for k, kind in enumerate(form.statistics) if kind == "distance")
    return tuple(runs) if every in runs else (*runs, every)


@functools.lru_cache(maxsize=512)
def _indexed(form: Form, labels: tuple[Hashable, ...]) -> Indexed:
    search = _Search(form, labels)
    profile = search.folded(form.profile)
    if not search.terms:
        profile = form.profile
    inner = {symbol for members in search.members for member in members for symbol in member}
    statistics: list[tuple[int, ...]] = [(k,) for k, kind in enumerate(form.statistics) if Symbol(kind, k) not in inner]
    parameters: list[tuple[int, ...]] = [
        (k,) for k in range(form.parameter_count) if Symbol("parameter", k) not in inner
    ]
    rename = {Symbol(form.statistics[k], k): Symbol(form.statistics[k], new) for new, (k,) in enumerate(statistics)}
    rename |= {Symbol("parameter", k): Symbol("parameter", new) for new, (k,) in enumerate(parameters)}
    families = []
    for f, (term, members) in enumerate(zip(search.terms, search.members, strict=True)):
        names = {}
        for place, symbol in enumerate(members[0]):
            numbers = tuple(member[place].index for member in members)
            found = parameters if symbol.kind == "parameter" else statistics
            names[symbol] = Symbol(symbol.kind, len(found))
            found.append(numbers)
        families.append(Family(Symbol("sum", f), term.renamed(names), len(members)))
    kinds = tuple(form.statistics[numbers[0]] for numbers in statistics)
    rename = {old: new for old, new in rename.items() if old != new}
    return Indexed(
        profile.renamed(rename), tuple(families), tuple(statistics), tuple(parameters), kinds, form.scalar_count
    )


class _Search:
    """Families found in a profile: per family the term of its first member, and the symbols of all."""

    def __init__(self, form: Form, labels: Sequence[Hashable]) -> None:
        self._labels = labels
        self._uses = Counter(_occurrences(form.profile))
        self.terms: list[Expression] = []
        self.members: list[list[tuple[Symbol, ...]]] = []

    def folded(self, expression: Expression) -> Expression:
        """The expression with a symbol for every family, its own first, then those of its parts."""
        families: dict[Hashable, list[Expression]] = {}
        if len(expression.terms) >= MIN_MEMBERS:
            for term in (Expression({factors: coefficient}) for factors, coefficient in expression.terms):
                pattern = self._pattern(term)
                if pattern is not None:
                    families.setdefault(pattern, []).append(term)
        taken: set[Expression] = set()
        total = number(0)
        for terms in families.values():
            if len(terms) >= MIN_MEMBERS:
                total = total + _factor(Symbol("sum", len(self.terms)))
                terms.sort(key=lambda term: [s.index for s in _ordered(term)])
                self.terms.append(terms[0])
                self.members.append([_ordered(term) for term in terms])
                taken.update(terms)
        for factors, coefficient in expression.terms:
            if Expression({factors: coefficient}) in taken:
                continue
            product = number(coefficient)
            for atom, power in factors:
                product = product * self._folded_atom(atom) ** power
            total = total + product
        return total

    def _folded_atom(self, atom: Atom) -> Expression:
        match atom:
            case Function(name, argument):
                return _factor(Function(name, self.folded(argument)))
            case Expression():
                return self.folded(atom)
            case _:
                return _factor(atom)

    def _pattern(self, term: Expression) -> Hashable | None:
        """Pattern shared by the terms of one family; None for a term of no family: others name its symbols too."""
        symbols = _ordered(term)
        if any(s.kind not in _REPEATED for s in symbols) or not any(s.kind != "parameter" for s in symbols):
            return None
        if any(count != self._uses[s] for s, count in Counter(_occurrences(term)).items()):
            return None
        rename = {s: Symbol(s.kind, -1 - place) for place, s in enumerate(symbols)}
        labels = tuple(self._labels[s.index] for s in symbols if s.kind != "parameter")
        return term.renamed(rename).key, labels


def _ordered(term: Expression) -> tuple[Symbol, ...]:
    """The symbols of a term, by kind and number: the order in which terms of one family correspond."""
    return tuple(sorted(term.symbols, key=lambda s: (s.kind, s.index)))


def _occurrences(expression: Expression) -> Iterator[Symbol]:
    """Every symbol as often as it is written."""
    for factors, _ in expression.terms:
        for atom, _power in factors:
            match atom:
                case Symbol():
                    yield atom
                case Function(_, argument):
                    yield from _occurrences(argument)
                case Expression():
                    yield from _occurrences(atom)


def _factor(atom: Atom) -> Expression:
    return Expression({((atom, 1),): Fraction(1)})
