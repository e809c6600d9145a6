"""Where the optimum goes as rows are added, eq. (M-122), and searches that begin there."""

import math
from types import SimpleNamespace

import numpy
import pytest

from flashgp.foundations.errors import NotPositiveDefiniteError
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.workspace import Workspace
from flashgp.inference.training.checkpoint import EvaluationLog
from flashgp.inference.training.fisher_scoring import Curvature
from flashgp.inference.training.gradient_search import GradientSearch, Trend
from flashgp.inference.training.history import Recorder, SearchRun, Solving, Stage
from flashgp.inference.training.objective import Estimate, Evaluation
from flashgp.inference.training.settings import StochasticSettings

FAR = numpy.full(3, 10.0)
P, PROBES = 3, 32


def led(slope: numpy.ndarray, rows: tuple[int, ...]) -> Trend:
    """Optima that move by `slope` for each factor of e in the number of rows."""
    trend = Trend(numpy.zeros(3), rows[0], StochasticSettings())
    for count in rows[1:]:
        trend.add(slope * math.log(count / rows[0]), count)
    return trend


def test_one_optimum_leads_nowhere() -> None:
    trend = Trend(numpy.ones(3), 100, StochasticSettings())
    assert numpy.array_equal(trend.extrapolate(200, numpy.eye(3), PROBES, FAR), numpy.ones(3))


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


def test_nearly_as_many_rows_say_little_of_a_trend() -> None:
    """What the search over the first ones left undone would be carried ten times as far; they count as one of two."""
    curvature, slope = 1e6 * numpy.eye(3), numpy.array([-0.3, 0.1, 0.0])
    trend = led(slope, (2000, 2250))
    assert numpy.array_equal(trend.extrapolate(9000, curvature, PROBES, FAR), trend.theta)
    trend.add(slope * math.log(4.5), 9000)
    found = trend.extrapolate(18_000, curvature, PROBES, FAR)
    assert numpy.allclose(found, slope * math.log(9.0), rtol=1e-3)


def test_what_chance_may_have_done_does_not() -> None:
    """Of optima that differ by chance alone most are left where they are, and on average little is moved."""
    generator, a, b, n = numpy.random.default_rng(0), 1000, 2000, 4000
    curvature = numpy.diag([4.0, 1.0, 0.25])
    deviation = numpy.diag(curvature) ** -0.5 * math.sqrt(b / a - 1.0 + (1.0 + b / a) / PROBES)
    moved = []
    for _ in range(400):
        drift = deviation * generator.standard_normal(3)
        trend = Trend(numpy.zeros(3), a, StochasticSettings())
        trend.add(drift, b)
        step = trend.extrapolate(n, curvature, PROBES, FAR) - drift
        moved.append(float(step @ curvature @ step) / 3.0)
    assert numpy.mean(numpy.array(moved) == 0.0) > 0.5
    assert numpy.mean(moved) < 0.3


def test_no_further_than_it_may() -> None:
    trend = led(numpy.array([5.0, -5.0, 0.01]), (100, 200))
    last = trend.theta
    found = trend.extrapolate(400, 1e6 * numpy.eye(3), PROBES, numpy.array([0.6, 0.6, 0.6]))
    assert numpy.allclose(found[:2] - last[:2], [0.6, -0.6])
    assert 0.0 < found[2] - last[2] < 0.01


class Quadratic:
    """A made-up objective of which only gradients are known: a parabola around a minimum."""

    rows, probes, solving, cost_rows, cost_power = 400, PROBES, Solving.ITERATIONS, 400, 2
    problem = SimpleNamespace(direct=SimpleNamespace(workspace=Workspace()))
    parameters = SimpleNamespace(
        bounds=lambda: (-FAR, FAR),
        units=lambda start: numpy.ones(P),
        information_growth=lambda ratio: numpy.full(P, ratio),
    )

    def __init__(self, minimum=0.0, fails=0, enough=1e-6):
        self.minimum, self.fails, self.estimate = minimum, fails, Estimate(0.0, enough)
        self.anchors, self.asked = [], []

    def refresh(self, anchor):
        self.anchors.append(anchor)

    def __call__(self, theta):
        self.asked.append(theta)
        if len(self.asked) <= self.fails:
            raise NotPositiveDefiniteError("nothing here")
        return Evaluation(None, 2e6 * (theta - self.minimum), self.estimate)


CERTAIN = Curvature(1e6 * numpy.eye(P), scale=1.5, scaled=True)
SETTINGS = StochasticSettings(min_gain=0.0)


def follow(objective, trend, window=(-FAR, FAR), progress=None):
    recorder = Recorder(EvaluationLog(None, ""), progress)
    return GradientSearch(objective, SearchRun(Stage.ALL_ROWS), recorder, SETTINGS, window).follow(
        trend, CERTAIN
    ), recorder


def test_a_search_begins_where_fewer_rows_lead():
    trend = led(numpy.array([-0.3, 0.1, 0.0]), (100, 200))
    objective = Quadratic(minimum=trend.theta)
    found, recorder = follow(objective, trend)
    wanted = trend.extrapolate(400, CERTAIN.matrix / 1.5, PROBES, numpy.full(P, SETTINGS.scoring.max_reach))
    assert numpy.allclose(objective.asked[0], wanted, rtol=1e-12), "the scale of the curvature is no evidence"
    assert numpy.array_equal(objective.asked[0], objective.anchors[0]), "probes are drawn where it begins"
    assert numpy.allclose(found.theta, trend.theta, atol=1e-5)
    assert numpy.array_equal(recorder.reached, found.theta)
    assert recorder.history[-1].value > recorder.history[0].value == 0.0
    narrow = Quadratic(minimum=trend.theta)
    window = trend.theta - 0.01, trend.theta + 0.02
    follow(narrow, trend, window)
    assert numpy.allclose(narrow.asked[0], wanted.clip(*window), rtol=1e-12)
    assert numpy.array_equal(narrow.asked[0], narrow.anchors[0])


def test_without_a_gradient_there_the_search_begins_at_the_last_optimum():
    trend = led(numpy.array([-0.3, 0.1, 0.0]), (100, 200))
    objective = Quadratic(fails=1)
    _, recorder = follow(objective, trend)
    assert not numpy.array_equal(objective.asked[0], trend.theta)
    assert numpy.array_equal(objective.asked[1], trend.theta)
    assert all(numpy.array_equal(a, b) for a, b in zip(objective.anchors, objective.asked, strict=False))
    assert Event(EventKind.NOT_EXTRAPOLATED, rows=400) in recorder.events
    with pytest.raises(NotPositiveDefiniteError):
        follow(Quadratic(fails=2), trend)


def test_an_interruption_returns_no_guess():
    """Where a search begins by extrapolation is nobody's optimum until a step from it was taken, or none is needed."""
    trend = led(numpy.array([-0.3, 0.1, 0.0]), (100, 200))
    at_start, recorder = follow(Quadratic(enough=1e9), trend)
    assert at_start.evaluations == 1
    assert not numpy.array_equal(at_start.theta, trend.theta)
    assert recorder.reached is None
