"""A minimum by gradients alone, (M-105), the Fisher information, and where the optimum goes with rows, (M-122)."""

import math

import numpy
import pytest
import torch

import flashgp as fgp
from flashgp.foundations.errors import NotPositiveDefiniteError
from flashgp.foundations.events import StopReason
from flashgp.inference.replicates import equal_rows, join
from flashgp.inference.training.fisher_scoring import Curvature, Descent, descend, fisher_information
from flashgp.inference.training.gradient_search import Trend
from flashgp.inference.training.objective import LogJoint
from flashgp.inference.training.settings import ScoringSettings, StochasticSettings
from inference.training.tables import prior, problem, table


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


def test_fisher_information_from_scores():
    """(M-103), (M-104): 1/2 tr(K^-1 dK_i K^-1 dK_j) for covariance parameters, m'^T K^-1 m' for the mean."""
    x, y = table(40)
    gp = prior()
    exact = LogJoint(problem(gp, x, y))
    theta = exact.parameters.values()
    found = fisher_information(exact, theta, 300, 0)

    def matrix(raw: numpy.ndarray) -> torch.Tensor:
        exact.parameters.assign(raw)
        with torch.no_grad():
            return gp.kernel.operator(x).to_dense() + torch.diag(gp.likelihood.diagonal(40, x.device).expand(40))

    step = 1e-5 * numpy.eye(len(theta))
    slopes = torch.stack([(matrix(theta + one) - matrix(theta - one)) / 2e-5 for one in step])
    inverse = torch.linalg.inv(matrix(theta))
    scaled = inverse @ slopes
    wanted = 0.5 * torch.einsum("iab,jba->ij", scaled, scaled)
    for slot in exact.parameters.slots:
        if slot.name.startswith("mean"):
            wanted[slot.entries, slot.entries] += inverse.sum()
    wanted = wanted.numpy()
    diagonal = numpy.diag(numpy.diag(wanted))
    wanted = 0.9 * wanted + 0.1 * diagonal
    scale = numpy.sqrt(numpy.outer(numpy.diag(wanted), numpy.diag(wanted)))
    assert (numpy.abs(found - wanted) < 0.25 * scale).all()


@pytest.mark.parametrize(("outputs", "shared"), [(None, False), (2, True), (2, False)])
def test_fisher_information_counts_what_repeats_say_about_the_noise(outputs, shared):
    """(M-109): the information of the joined rows with their factors is that of all rows, which is known."""
    x, y = table(30, outputs=outputs)
    times = torch.arange(30) % 6 + 1
    x, y = x.repeat_interleave(times, 0), y.repeat_interleave(times, 0)
    y = y + 0.3 * torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    gp = prior(outputs=outputs)
    if shared:
        gp.likelihood = fgp.likelihoods.Gaussian(0.1, shared=True)
    whole = LogJoint(problem(gp, x, y))
    wanted = fisher_information(whole, whole.parameters.values(), 200, 0)
    joined = join(gp, x, y, equal_rows(gp, x, y))
    gp.likelihood = joined.likelihood
    few = LogJoint(problem(gp, joined.x, joined.y))
    assert few.parameters.names() == whole.parameters.names()
    found = fisher_information(few, few.parameters.values(), 200, 1)
    scale = numpy.sqrt(numpy.outer(numpy.diag(wanted), numpy.diag(wanted)))
    # Of 200 draws a variance is known to sqrt(2 / 200), the difference of two to 0.14: four of these.
    assert (numpy.abs(found - wanted) < 0.57 * scale).all()
    own, excess = outputs is not None and not shared, gp.likelihood.excess
    noises = [i for i, name in enumerate(few.parameters.names()) if name.startswith("likelihood")]
    assert len(noises) == (2 if own else 1)
    variances = gp.likelihood.diagonal(len(joined.x), x.device).detach()
    repeats = gp.likelihood.scale_information(x.device, outputs or 1)
    sharing = 1 if own else outputs or 1
    assert torch.allclose(repeats * variances.square(), 0.5 * sharing * (excess.unsqueeze(-1) if own else excess))
    half = 0.5 * sharing * (len(x) - 30)
    for noise in noises:
        assert found[noise, noise] > 0.8 * half, "in the logarithm of the noise variance: half of the excess"


FAR = numpy.full(3, 10.0)
P, PROBES = 3, 32


def led(slope: numpy.ndarray, rows: tuple[int, ...]) -> Trend:
    """Optima that move by `slope` for each factor of e in the number of rows."""
    trend = Trend(numpy.zeros(3), rows[0], StochasticSettings())
    for count in rows[1:]:
        trend.add(slope * math.log(count / rows[0]), count)
    return trend


@pytest.mark.parametrize("rows", [(100, 200, 400), (2000, 3000, 9000), (100, 400, 1000)])
def test_what_is_known_sharply_goes_on(rows: tuple[int, int, int]) -> None:
    """By about as much for each doubling, whatever the steps were: the share of chance is what (M-122) says."""
    slope = numpy.array([-0.3, 0.1, 0.0])
    a, b, n = rows
    curvature = numpy.diag([1e6, 1e6, 1e6])
    chance = P * (b / a - 1.0 + (1.0 + b / a) / PROBES)
    drift = slope * math.log(b / a)
    share = 1.0 - chance / float(drift @ curvature @ drift)
    assert share > 0.99
    found = led(slope, (a, b)).extrapolate(n, curvature, PROBES, FAR)
    further = min(2.0 * math.log(b / a), math.log(n / b))
    assert numpy.allclose(found, slope * (math.log(b / a) + share * further), rtol=1e-12)
