"""The expression language: one normal form, exact arithmetic, derivatives that equal numeric ones, 1/r that cancels."""

import copy
import math
import pickle
import subprocess
import sys
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashgp.foundations.errors import DomainError
from flashgp.foundations.expression import (
    Expression,
    Symbol,
    cos,
    distance,
    exp,
    log1p,
    match,
    number,
    parameter,
    product,
    row_scalar,
    sin,
    square_root,
    squared_distance,
)
from flashgp.foundations.expression_value import value_at
from flashgp.foundations.form import Form

r, q, s, p, m = distance(), squared_distance(), product(), parameter(), match()
R, S, P, M = Symbol("distance", 0), Symbol("product", 0), Symbol("parameter", 0), Symbol("match", 0)
half = Fraction(1, 2)

EQUAL = [
    (r * r, q),
    (q / r, r),
    (r * r**-1, number(1)),
    (s - s, number(0)),
    (s * p * r, r * s * p),
    (1 / (1 / s), s),
    (square_root(3) * square_root(3), number(3)),
    (square_root(5) ** 3, 5 * square_root(5)),
    (square_root(9), number(3)),
    (exp(s) * exp(p), exp(s + p)),
    (1 / exp(s), exp(-s)),
    (m**3, m),
    ((s + p) * (s + p), (s + p) ** 2),
    ((2 * s + 2 * p) * (s + p), 2 * (s + p) ** 2),
    ((2 * s + 2 * p) ** -2 * (s + p), (4 * s + 4 * p) ** -1),
    (number(2) ** -1, number(half)),
    (s.renamed({S: P}), p),
    (s.renamed({P: S}), s),
]


@pytest.mark.parametrize(("one", "two"), EQUAL, ids=[f"{one}" for one, _ in EQUAL])
def test_equal_expressions_have_one_key(one: Expression, two: Expression) -> None:
    assert one == two
    assert one.key == two.key == repr(one)
    assert hash(one) == hash(two)


def test_different_expressions_differ() -> None:
    different = [number(0), number(1), number(2), r, q, s, p, m, parameter(1), product(1), r**-1, s + p, s * p, exp(s),
                 log1p(s), cos(s), sin(s), exp(p), square_root(2), square_root(3), row_scalar("left"),
                 row_scalar("right"), (s + p) ** 2, (s + p) ** -1]  # fmt: skip
    assert len({e.key for e in different}) == len(different) == len(set(different))
    assert s != "product[0]"


def test_questions() -> None:
    assert (exp(-q) * p + s).symbols == {R, P, S}
    assert (p + 1).pairwise is False
    assert (p * s).pairwise is (p + row_scalar("left")).pairwise is True
    assert number(0).is_zero
    assert not number(1).is_zero
    assert number(0).as_number() == 0
    assert number(Fraction(2, 3)).as_number() == Fraction(2, 3)
    assert s.as_number() is None
    assert (s + 1).as_number() is None
    for singular in (r**-1, exp(r**-1), (r**-1 + s) ** 2 * p, 1 + r**-3):
        assert singular.singular_at_zero()
    for regular in (r, q, s**-1, exp(-r), number(1)):
        assert not regular.singular_at_zero()


REFUSED = [
    (lambda: number(0.5), "0.5 of type float"),  # type: ignore[arg-type]
    (lambda: s * 1.5, "1.5"),  # type: ignore[operator]
    (lambda: s**0.5, "`power` must be an integer, got 0.5"),  # type: ignore[operator]
    (lambda: square_root(0), "`radicand` must be a positive integer, got 0"),
    (lambda: row_scalar("up"), "`side` must be 'left' or 'right', got 'up'"),
]


@pytest.mark.parametrize(("call", "words"), REFUSED)
def test_refused(call: object, words: str) -> None:
    with pytest.raises(DomainError, match=words):
        call()  # type: ignore[operator]


# -- derivatives ------------------------------------------------------------------------------------------------
RECURSION = [
    # (M-4) by hand: the profile, its derivative by q, and the second.
    (exp(-q / 2), -exp(-q / 2) / 2, exp(-q / 2) / 4),
    (exp(-r), -exp(-r) / (2 * r), (r**-2 + r**-3) * exp(-r) / 4),
    (
        (1 + square_root(3) * r) * exp(-square_root(3) * r),
        Fraction(-3, 2) * exp(-square_root(3) * r),
        Fraction(3, 4) * square_root(3) / r * exp(-square_root(3) * r),
    ),
    (
        (1 + square_root(5) * r + Fraction(5, 3) * q) * exp(-square_root(5) * r),
        Fraction(-5, 6) * (exp(-square_root(5) * r) + square_root(5) * r * exp(-square_root(5) * r)),
        Fraction(25, 12) * exp(-square_root(5) * r),
    ),
]


@pytest.mark.parametrize(("profile", "first", "second"), RECURSION, ids=["SE", "Matern12", "Matern32", "Matern52"])
def test_the_inverse_distance_cancels(profile: Expression, first: Expression, second: Expression) -> None:
    """(M-4): the derivative of Matern nu is Matern nu - 1, with no 1/r left where there is none."""
    assert profile.derivative(R) == first
    for value in (0.3, 1.7):
        assert value_at(first.derivative(R), {R: value}) == pytest.approx(value_at(second, {R: value}), rel=1e-14)
    assert first.singular_at_zero() == (profile == exp(-r))
    assert first.derivative(R).singular_at_zero() == second.singular_at_zero()


def test_it_cancels_inside_compositions() -> None:
    """Sums inside products, products of sums, powers: a smooth part keeps its slope bounded at zero."""
    matern32, matern52 = RECURSION[2][0], RECURSION[3][0]
    for smooth in (
        p * matern52 * (s + matern32),
        (matern52 + p) * (matern32 + s) * (matern32 + m),
        (matern32 + 1) ** 3,
        matern32 * matern52,
        exp(s * matern32),
        log1p(matern52 * p),
    ):
        slope = smooth.derivative(R)
        assert not slope.singular_at_zero(), slope
        assert not slope.is_zero


def test_simple_derivatives() -> None:
    assert q.derivative(R) == number(1)
    assert r.derivative(R) == 1 / (2 * r)
    assert (r**4).derivative(R) == 2 * q
    assert (s**3).derivative(S) == 3 * s**2
    assert s.derivative(P) == number(0)
    assert ((s + p) ** 3).derivative(P) == 3 * (s + p) ** 2
    assert exp(s * p).derivative(S) == p * exp(s * p)
    assert log1p(s).derivative(S) == 1 / (1 + s)
    assert cos(2 * s).derivative(S) == -2 * sin(2 * s)
    assert sin(s).derivative(S) == cos(s)


SYMBOLS = {R: 0.8, S: -0.4, P: 1.3, M: 1.0, Symbol("left", 0): 0.6, Symbol("right", 0): 1.1}
SIDES = [row_scalar("left"), row_scalar("right")]
ATOMS = st.sampled_from([r, q, s, p, m, *SIDES, number(2), number(half), square_root(3)])
RANDOM = st.recursive(
    ATOMS,
    lambda e: st.one_of(
        st.builds(lambda a, b: a + b, e, e),
        st.builds(lambda a, b: a * b, e, e),
        st.builds(lambda a, b: a - b, e, e),
        st.builds(lambda a: exp(-a * a / 8), e),
        st.builds(cos, e),
        st.builds(sin, e),
        st.builds(lambda a: log1p(a * a), e),
        st.builds(lambda a: a**2, e),
        st.builds(lambda a: (1 + a * a) ** -1, e),
    ),
    max_leaves=8,
)


@settings(max_examples=150)
@given(RANDOM)
def test_symbolic_derivatives_are_numeric_ones(expression: Expression) -> None:
    """(M-4): every symbol of a random expression; by q for a distance."""
    for symbol, at in SYMBOLS.items():
        if symbol == M:
            continue
        h = 1e-4

        def shifted(step: float, symbol: Symbol = symbol, at: float = at) -> float:
            value = math.sqrt(at * at + step) if symbol == R else at + step
            return value_at(expression, {**SYMBOLS, symbol: value})

        # fourth order: (8 (f(h) - f(-h)) - (f(2h) - f(-2h))) / 12 h
        numeric = (8 * (shifted(h) - shifted(-h)) - (shifted(2 * h) - shifted(-2 * h))) / (12 * h)
        scale = max(1.0, abs(numeric), *(abs(shifted(step)) for step in (-2 * h, 0.0, 2 * h)))
        assert value_at(expression.derivative(symbol), SYMBOLS) == pytest.approx(numeric, abs=1e-7 * scale)


@settings(max_examples=100)
@given(RANDOM, RANDOM, RANDOM)
def test_arithmetic_means_what_it_says(a: Expression, b: Expression, c: Expression) -> None:
    """Values of the normal form are values of the arithmetic; commuting and regrouping give one key."""
    x, y, z = (value_at(e, SYMBOLS) for e in (a, b, c))
    for found, wanted in ((a + b, x + y), (a - b, x - y), (a * b, x * y), (a * (b + c), x * (y + z)), (-a, -x)):
        scale = max(1.0, abs(x), abs(y), abs(z)) ** 2
        assert value_at(found, SYMBOLS) == pytest.approx(wanted, abs=1e-11 * scale)
    assert a + b == b + a
    assert a * b == b * a
    assert (a + b) + c == a + (b + c)
    assert a - a == number(0)


@settings(max_examples=50)
@given(RANDOM)
def test_renaming_moves_the_symbols_only(expression: Expression) -> None:
    away = {symbol: Symbol(symbol.kind, symbol.index + 5) for symbol in SYMBOLS}
    moved = expression.renamed(away)
    assert moved.symbols == {away[symbol] for symbol in expression.symbols}
    assert value_at(moved, {away[k]: v for k, v in SYMBOLS.items()}) == pytest.approx(
        value_at(expression, SYMBOLS), rel=1e-12, abs=1e-12
    )
    assert moved.renamed({new: old for old, new in away.items()}) == expression


# -- copies -----------------------------------------------------------------------------------------------------
def test_hashes_stay_in_their_process() -> None:
    """Texts hash differently in each process: an atom that brought its hash along would never merge with a new one."""
    profile = RECURSION[3][0] * exp((s + p) ** 2 * s)
    form = Form(profile, ("distance",), 0, 1)
    assert hash(form) == hash(Form(profile, ("distance",), 0, 1))
    sent = pickle.dumps(form)
    program = (
        "import pickle, sys\n"
        "form = pickle.loads(bytes.fromhex(sys.argv[1]))\n"
        "from flashgp.foundations.expression import Symbol, product, parameter, exp\n"
        "s, p = product(), parameter()\n"
        "assert not form.profile.derivative(Symbol('distance', 0)).singular_at_zero()\n"
        "assert (form.profile * exp(-(s + p) ** 2 * s)).derivative(Symbol('product', 0)).is_zero\n"
        "assert hash(form) == hash(type(form)(form.profile, form.statistics, 0, 1))\n"
    )
    subprocess.run(
        [sys.executable, "-c", program, sent.hex()],
        check=True,
        env={"PYTHONHASHSEED": "12345", "PYTHONPATH": ":".join(sys.path)},
    )
    for other in (copy.deepcopy(form), pickle.loads(sent)):
        assert other == form
        assert hash(other) == hash(form)


def test_forms_combine() -> None:
    """(M-2): statistics, scalars and parameters of the second are numbered behind those of the first."""
    one = Form(parameter() * exp(-q), ("distance",), 0, 1)
    two = Form(match() * row_scalar("left") * row_scalar("right") + parameter(), ("match",), 1, 1)
    both = Form.combined([two, one, two], lambda parts: parts[0] + parts[1] * parts[2])
    assert (both.statistics, both.scalar_count, both.parameter_count) == (("match", "distance", "match"), 2, 3)
    first = match() * row_scalar("left") * row_scalar("right") + parameter()
    second = parameter(1) * exp(-squared_distance(1))
    third = match(2) * row_scalar("left", 1) * row_scalar("right", 1) + parameter(2)
    assert both.profile == first + second * third
