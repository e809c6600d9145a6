"""A minimum found by gradients alone, (M-105), on functions whose minimum is known."""

import numpy
import pytest

from flashgp.foundations.errors import NotPositiveDefiniteError
from flashgp.foundations.events import StopReason
from flashgp.inference.training.fisher_scoring import Curvature, Descent, damped_bfgs, descend
from flashgp.inference.training.settings import ScoringSettings

MAX_SCALE = ScoringSettings().max_curvature_scale


def search(ask, start, matrix, limit=numpy.inf, enough=1e-6, most=60, scale=1.0, **options) -> Descent:
    """A descent within bounds, a number or a pair of vectors."""
    bounds = limit if isinstance(limit, tuple) else (numpy.full(len(start), -limit), numpy.full(len(start), limit))
    settings = ScoringSettings(max_gradients=most)
    return descend(ask, start, Curvature(matrix, scale), bounds, sufficient=enough, settings=settings, **options)


def quadratic(condition: float, p: int = 6) -> tuple[numpy.ndarray, numpy.ndarray]:
    rotation = numpy.linalg.qr(numpy.random.default_rng(0).standard_normal((p, p)))[0]
    return rotation @ numpy.diag(numpy.geomspace(1.0, condition, p)) @ rotation.T, numpy.linspace(-0.5, 0.5, p)


@pytest.mark.parametrize("factor", [0.1, 1.0, 10.0])
def test_a_descent_finds_the_minimum_with_a_curvature_that_is_off(factor):
    """(M-105)."""
    matrix, minimum = quadratic(100.0)
    found = search(lambda t: matrix @ (t - minimum), numpy.zeros(6), factor * matrix)
    assert found.stop is StopReason.GOAL
    off = found.theta - minimum
    assert 0.5 * off @ matrix @ off < 1e-4


def test_a_descent_learns_from_its_first_step_the_scale_of_the_curvature():
    """A curvature that is three times that of the model: one overshot step says so, and the promise of the next is not
    three times what is left to gain."""
    generator = numpy.random.default_rng(0)
    root = generator.standard_normal((6, 6))
    matrix = root @ root.T + 6.0 * numpy.eye(6)
    start = numpy.full(6, 0.02)
    asked = []

    def ask(theta):
        asked.append(theta)
        return matrix @ theta

    def found(model, ask=ask, start=start, **options):
        asked.clear()
        return search(ask, start, model, **options)

    overshot = found(matrix / 3.0)
    assert numpy.allclose(overshot.curvature.matrix, matrix, rtol=1e-9)
    assert numpy.allclose(overshot.theta, 0.0, atol=1e-3)
    assert overshot.curvature.scale == pytest.approx(3.0)
    last = found(matrix / 3.0, most=2)  # ends beyond: what one more step would gain is the truth
    assert last.stop is StopReason.ITERATIONS
    assert last.expected == pytest.approx(0.5 * last.theta @ matrix @ last.theta, rel=1e-6)
    assert numpy.allclose(found(matrix / 100.0).theta, 0.0, atol=1e-3), "of a model that is off by more, too"
    for model, scale, wanted in (
        (matrix / 5.0, 1.0, MAX_SCALE),
        (5.0 * matrix, 1.0, 1.0),  # longer steps than the model's are not taken
        (matrix, MAX_SCALE, MAX_SCALE),
        (matrix / 2.0, MAX_SCALE, MAX_SCALE),  # of all searches together
        (2.0 * matrix, MAX_SCALE, MAX_SCALE / 2.0),  # taken back
    ):
        assert found(model, scale=scale, most=3).curvature.scale == pytest.approx(wanted)

    def reluctant(theta):
        asked.append(theta)
        return NotPositiveDefiniteError("not there") if len(asked) == 2 else matrix @ theta

    after = found(matrix / 3.0, reluctant)
    assert numpy.allclose(after.curvature.matrix, matrix, rtol=1e-9), "of the first step that could be looked at"

    def wild(theta):
        asked.append(theta)
        return 1e3 * matrix @ theta if len(asked) == 2 else matrix @ theta

    assert found(matrix / 3.0, wild).curvature.scale == pytest.approx(1.0), "a wild step says nothing of others"
    still = found(matrix / 3.0, start=1e-9 * start)
    assert still.evaluations == 1
    assert numpy.allclose(still.curvature.matrix, matrix / 3.0), "without a step nothing was learned"


def test_what_one_direction_says_of_all_stays_bounded_over_parts():
    """First steps find the scale of one direction, which is put on all the others."""
    p, rows = 10, [2250 * 2**k for k in range(5)]
    model, theta = Curvature(100.0 * numpy.eye(p)), numpy.zeros(p)
    for k, n in enumerate(rows):
        true = 100.0 * n / rows[0] * numpy.diag([2.0**k] + [1.0] * (p - 1))
        minimum = (k + 1) * numpy.array([0.2] + [0.05] * (p - 1))
        found = search(
            lambda theta: true @ (theta - minimum),  # noqa: B023
            theta, model.matrix * n / rows[max(0, k - 1)], enough=1e-3 * n, scale=model.scale,
        )  # fmt: skip
        model, theta = found.curvature, found.theta
        assert found.stop is StopReason.GOAL
        left = 0.5 * (theta - minimum) @ true @ (theta - minimum)
        assert left <= 3.0 * 1e-3 * n
    assert model.scale == MAX_SCALE == 3.0, "12 without a bound"


@pytest.mark.parametrize("wild", [1e3, 1e6, 1e12, 1e160])
@pytest.mark.parametrize("seed", range(4))
def test_answers_that_make_no_sense_break_nothing(wild, seed):
    """A descent that is given up returns where it was, with a curvature that the next one can begin with."""
    generator = numpy.random.default_rng(seed)
    matrix, asked = 1e3 * numpy.eye(4), []

    def ask(theta):
        asked.append(theta)
        return matrix @ theta if len(asked) == 1 else wild * generator.standard_normal(4)

    found = search(ask, numpy.full(4, 0.02), matrix, limit=1e3)
    assert found.stop is StopReason.STAGNATED
    assert numpy.isfinite(found.expected)
    numpy.linalg.cholesky(found.curvature.matrix)


def test_updates_that_rounding_spoils_are_not_taken():
    """Nor would Cholesky's method take them for any of the parameters that are free."""
    generator = numpy.random.default_rng(0)
    model = numpy.eye(5)
    for _ in range(200):
        step = generator.standard_normal(5) * 10.0 ** generator.uniform(-8, 8, 5)
        model = damped_bfgs(model, step, generator.standard_normal(5) * 10.0 ** generator.uniform(-8, 8, 5), 0.2)
        for count in range(1, 6):
            free = generator.permutation(5)[:count]
            numpy.linalg.cholesky(model[numpy.ix_(free, free)])


def test_factors_that_take_over_during_the_first_step_are_no_curvature():
    """Another estimate of the gradient has another error."""
    matrix, asked = numpy.eye(4), []

    def ask(theta):
        asked.append(theta)
        return matrix @ (theta - 1.0 + (0.0 if len(asked) == 1 else 2.0) * theta)  # steeper by three

    found = search(ask, numpy.zeros(4), matrix, most=2, scales=lambda: len(asked) > 1)
    assert found.curvature.scale == 1.0
    asked.clear()
    always = search(ask, numpy.zeros(4), matrix, most=2)
    assert always.curvature.scale == pytest.approx(3.0), "which would be read as that"


def test_a_descent_stays_within_bounds_and_ends_on_them():
    matrix, minimum = quadratic(10.0)
    low, high = numpy.full(6, -0.2), numpy.full(6, 0.2)
    asked = []

    def ask(theta):
        asked.append(theta)
        return matrix @ (theta - minimum)

    found = search(ask, numpy.zeros(6), matrix, (low, high), enough=1e-8)
    assert found.stop is StopReason.GOAL
    assert all((low <= t).all() and (t <= high).all() for t in asked)
    gradient = matrix @ (found.theta - minimum)
    inside = (found.theta > low) & (found.theta < high)
    assert numpy.abs(gradient[inside]).max(initial=0.0) < 1e-3
    assert (gradient[found.theta <= low] >= 0).all()
    assert (gradient[found.theta >= high] <= 0).all()


@pytest.mark.parametrize("most", [1, 2, 3, 4])
def test_the_last_gradient_of_a_descent_does_not_make_it_worse(most):
    """A step that overshoots is not where it ends, however few gradients are left."""
    steep, start, taken = 40.0, numpy.array([0.1]), []

    def ask(theta):
        return steep * numpy.sinh(steep * theta)

    found = search(ask, start, numpy.eye(1), enough=1e-3, most=most, accepted=taken.append)
    assert found.evaluations == most
    assert abs(found.theta[0]) <= abs(start[0]) + 1e-12
    assert numpy.array_equal(found.theta, taken[-1])
    assert numpy.allclose(found.gradient, ask(found.theta))


def test_a_parameter_on_a_plateau_does_not_hold_back_the_others():
    """(M-105): the seventh would run far away, and another time there is none."""
    matrix, minimum = quadratic(10.0)

    def steps(p, slope):
        asked = []

        def ask(theta):
            asked.append(theta)
            return numpy.append(matrix @ (theta[:6] - minimum), -slope * numpy.exp(-2.0 * theta[6:]))

        curvature = 1e-6 * numpy.eye(p)
        curvature[:6, :6] = matrix
        search(ask, numpy.zeros(p), curvature, enough=1e-4)
        return next(k for k, theta in enumerate(asked) if numpy.abs(theta[:6] - minimum).max() < 0.05)

    assert steps(7, 0.01) == steps(6, 0.0)


def test_a_descent_steps_back_from_where_nothing_can_be_computed():
    matrix, minimum = quadratic(10.0)

    def ask(theta):
        if numpy.abs(theta).max() > 0.55:
            return NotPositiveDefiniteError("there")
        return matrix @ (theta - minimum)

    found = search(ask, numpy.zeros(6), 0.2 * matrix)
    assert found.stop is StopReason.GOAL
    with pytest.raises(NotPositiveDefiniteError):
        search(ask, numpy.ones(6), matrix)
