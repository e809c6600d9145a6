"""Interval arithmetic over profiles contains every value, eq. (M-70): random profiles, ranges and points in them."""

import math
from fractions import Fraction

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as some

from flashgp.foundations import expression as e
from flashgp.foundations.expression import Expression, Symbol
from flashgp.foundations.expression_value import value_at
from flashgp.foundations.intervals import Interval, interval_of, largest_magnitude
from flashgp.kernels import REGISTRY

R, S, P = Symbol("distance", 0), Symbol("product", 1), Symbol("parameter", 0)
r, s, p = e.distance(0), e.product(1), e.parameter(0)

PROFILES: dict[str, Expression] = {
    "Matern-5/2": (1 + e.square_root(5) * r + r**2 * Fraction(5, 3)) * e.exp(-e.square_root(5) * r),
    "rational quadratic": e.exp(-p * e.log1p(r**2 / (2 * p))),
    "polynomial": (s + p) ** 3 + (s - p) ** 2,
    "waves": e.cos(3 * s) * e.sin(2 * r) - e.cos(r) ** 2,
    "inverses": 1 / (1 + s**2) + s / (3 + e.cos(s)),
    "inverse distance": e.exp(-r) * r**-1 + Fraction(1, 3),
    "difference": e.exp(-r) - e.exp(-2 * r),
}


DISTANCES = some.floats(0, 40, allow_subnormal=False)  # the inverse of a subnormal number is infinite
ROUNDING = 4 * numpy.finfo(float).eps


def between(low: float, high: float, share: float) -> float:
    return min(high, max(low, low + share * (high - low)))


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
@given(
    start=DISTANCES, width=DISTANCES, low=some.floats(-30, 30), span=some.floats(0, 20),
    parameter=some.floats(0.01, 20), shares=some.tuples(some.floats(0, 1), some.floats(0, 1)),
)  # fmt: skip
def test_every_value_is_inside(
    profile: Expression,
    start: float,
    width: float,
    low: float,
    span: float,
    parameter: float,
    shares: tuple[float, float],
) -> None:
    ranges = {R: (start, start + width), S: (low, low + span), P: (parameter, parameter)}
    found = interval_of(profile, {symbol: Interval(*map(numpy.asarray, ends)) for symbol, ends in ranges.items()})
    for one in (0.0, shares[0], 1.0):
        for two in (0.0, shares[1], 1.0):
            value = value_at(profile, {R: between(*ranges[R], one), S: between(*ranges[S], two), P: parameter})
            assert found.low <= value <= found.high


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_a_point_has_a_narrow_range(profile: Expression) -> None:
    """Where nothing is wide, the range is rounding alone."""
    at = {R: 0.7, S: 0.9, P: 1.3}
    found = interval_of(profile, {k: Interval(numpy.asarray(v), numpy.asarray(v)) for k, v in at.items()})
    value = value_at(profile, at)
    assert found.low <= value <= found.high
    assert found.high - found.low <= 1000 * numpy.finfo(float).eps * max(1.0, abs(value))


@given(one=some.floats(0.01, 30), two=some.floats(-30, -0.01))
def test_the_real_number_is_inside_not_only_the_rounded_one(one: float, two: float) -> None:
    """Against exact fractions: sums, products, powers, quotients and rational coefficients."""
    a, b = Fraction(one), Fraction(two)
    at = {S: Interval(numpy.asarray(one), numpy.asarray(one)), P: Interval(numpy.asarray(two), numpy.asarray(two))}
    for profile, exact in (
        (s * p, a * b),
        (s + p, a + b),
        (s**5, a**5),
        (s * p**-2, a / b**2),
        (s * Fraction(1, 3), a / 3),
        ((s + p) ** 2 * (s - p), (a + b) ** 2 * (a - b)),
    ):
        low, high = interval_of(profile, at)
        assert Fraction(float(low)) <= exact <= Fraction(float(high))
        assert high - low <= 100 * numpy.finfo(float).eps * max(float(abs(exact)), float((abs(a) + abs(b)) ** 3))


def test_decay_is_seen() -> None:
    """A far squared exponential is bounded by its value at the smallest distance, whatever the largest."""
    profile = e.exp(-(r**2) / 2)
    bound = largest_magnitude(profile, {R: Interval(numpy.array([0.0, 5.0, 40.0]), numpy.array([9.0, 1e3, math.inf]))})
    wanted = numpy.exp(-(numpy.array([0.0, 5.0, 40.0]) ** 2) / 2)
    assert (bound >= wanted).all()
    assert numpy.allclose(bound, wanted, rtol=1e-12, atol=1e-300)


def test_what_is_not_known_is_infinite() -> None:
    """No result is ever a number that nothing proves, nor not a number."""
    everything = Interval(numpy.asarray(-math.inf), numpy.asarray(math.inf))
    for profile in (s, s**2, s - s**2, s**-1, e.exp(s) * s, e.log1p(s), s * 0 + s**3):
        low, high = interval_of(profile, {S: everything})
        assert not numpy.isnan([low, high]).any()
        assert high == math.inf
    assert numpy.allclose(interval_of(e.cos(s), {S: everything}), (-1.0, 1.0), rtol=1e-15, atol=0)
    nothing = Interval(numpy.asarray(0.0), numpy.asarray(0.0))
    assert interval_of(e.product(0) * s, {Symbol("product", 0): nothing, S: everything}).high <= 1e-300


@given(low=some.floats(-1e6, 1e6), width=some.floats(0, 9), share=some.floats(0, 1))
def test_cosine(low: float, width: float, share: float) -> None:
    found = interval_of(e.cos(s), {S: Interval(numpy.asarray(low), numpy.asarray(low + width))})
    assert found.low <= math.cos(between(low, low + width, share)) <= found.high
    assert found.low >= -1.0 - ROUNDING
    assert found.high <= 1.0 + ROUNDING


def test_a_cosine_that_turns_within_the_range() -> None:
    for low, high, wanted in [
        (-1.0, 1.0, (math.cos(1.0), 1.0)),
        (3.0, 3.3, (-1.0, math.cos(3.3))),
        (0.2, 0.4, (math.cos(0.4), math.cos(0.2))),
        (3.0, 6.4, (-1.0, 1.0)),
    ]:
        found = interval_of(e.cos(s), {S: Interval(numpy.asarray(low), numpy.asarray(high))})
        assert numpy.allclose(found, wanted, rtol=1e-14, atol=1e-14)


def test_every_registered_profile_has_a_range() -> None:
    """No function of the language is missing."""
    for row in REGISTRY.values():
        for kernel in row.examples(3):
            profile = kernel.form.profile
            ranges = {symbol: Interval(numpy.asarray(0.5), numpy.asarray(0.75)) for symbol in profile.symbols}
            low, high = interval_of(profile, ranges)
            middle = value_at(profile, dict.fromkeys(profile.symbols, 0.6))
            assert low <= middle <= high
