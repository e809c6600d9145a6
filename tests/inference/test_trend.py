"""Where the optimum goes as rows are added, eq. (M-122)."""

import math
from types import SimpleNamespace

import numpy
import pytest

from flashgp.foundations.errors import NotPositiveDefiniteError
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.workspace import Workspace
from flashgp.inference.training.extrapolation import Trend
from flashgp.inference.training.fisher_scoring import LARGEST_REACH
from flashgp.inference.training.stochastic import _Climb

FAR = numpy.full(3, 10.0)
P, PROBES = 3, 32


def led(slope: numpy.ndarray, rows: tuple[int, ...]) -> Trend:
    """Optima that move by `slope` for each factor of e in the number of rows."""
    trend = Trend(numpy.zeros(3), rows[0])
    for count in rows[1:]:
        trend.add(slope * math.log(count / rows[0]), count)
    return trend


def test_one_optimum_leads_nowhere() -> None:
    trend = Trend(numpy.ones(3), 100)
    assert numpy.array_equal(trend.ahead(200, numpy.eye(3), PROBES, FAR), numpy.ones(3))


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
    found = led(slope, (a, b)).ahead(n, curvature, PROBES, FAR)
    further = min(2.0 * math.log(b / a), math.log(n / b))
    assert numpy.allclose(found, slope * (math.log(b / a) + share * further), rtol=1e-12)


def test_nearly_as_many_rows_say_little_of_a_trend() -> None:
    """What the search over the first ones left undone would be carried ten times as far; they count as one of two."""
    curvature, slope = 1e6 * numpy.eye(3), numpy.array([-0.3, 0.1, 0.0])
    trend = led(slope, (2000, 2250))
    assert numpy.array_equal(trend.ahead(9000, curvature, PROBES, FAR), trend.theta)
    trend.add(slope * math.log(4.5), 9000)
    found = trend.ahead(18_000, curvature, PROBES, FAR)
    assert numpy.allclose(found, slope * math.log(9.0), rtol=1e-3)


def test_what_chance_may_have_done_does_not() -> None:
    """Of optima that differ by chance alone most are left where they are, and on average little is moved."""
    generator, a, b, n = numpy.random.default_rng(0), 1000, 2000, 4000
    curvature = numpy.diag([4.0, 1.0, 0.25])
    deviation = numpy.diag(curvature) ** -0.5 * math.sqrt(b / a - 1.0 + (1.0 + b / a) / PROBES)
    moved = []
    for _ in range(400):
        drift = deviation * generator.standard_normal(3)
        trend = Trend(numpy.zeros(3), a)
        trend.add(drift, b)
        step = trend.ahead(n, curvature, PROBES, FAR) - drift
        moved.append(float(step @ curvature @ step) / 3.0)
    assert numpy.mean(numpy.array(moved) == 0.0) > 0.5
    assert numpy.mean(moved) < 0.3


def test_no_further_than_it_may() -> None:
    trend = led(numpy.array([5.0, -5.0, 0.01]), (100, 200))
    last = trend.theta
    found = trend.ahead(400, 1e6 * numpy.eye(3), PROBES, numpy.array([0.6, 0.6, 0.6]))
    assert numpy.allclose(found[:2] - last[:2], [0.6, -0.6])
    assert 0.0 < found[2] - last[2] < 0.01


def test_without_a_gradient_there_the_search_begins_at_the_last_optimum() -> None:
    class Objective:
        rows, probes = 400, PROBES

        def __init__(self) -> None:
            self.anchors: list[numpy.ndarray] = []
            self.settings = SimpleNamespace(workspace=Workspace())

        def refresh(self, anchor: numpy.ndarray) -> None:
            self.anchors.append(anchor)

    class Climb(_Climb):
        def __init__(self, fails: int) -> None:
            self.objective, self.unit, self.asked = Objective(), numpy.ones(3), []  # type: ignore[assignment]
            self.fails, self.most, self.low, self.high = fails, 40, -FAR, FAR

        def run(self, theta, curvature, stiffness):  # type: ignore[no-untyped-def]
            assert stiffness == 1.5
            self.asked.append((theta, curvature))
            if len(self.asked) <= self.fails:
                raise NotPositiveDefiniteError("nothing here")
            return "found"

    trend = led(numpy.array([-0.3, 0.1, 0.0]), (100, 200))
    climb = Climb(1)
    assert climb.along(trend, 1e6 * numpy.eye(3), 1.5) == "found"
    (ahead, curvature), (last, _) = climb.asked
    assert not numpy.array_equal(ahead, last)
    assert numpy.array_equal(last, trend.theta)
    assert numpy.array_equal(curvature, 2e6 * numpy.eye(3))
    assert [numpy.array_equal(a, b) for a, b in zip(climb.objective.anchors, (ahead, last), strict=True)] == [True] * 2
    (said,) = climb.objective.settings.workspace.events
    assert said == Event(EventKind.NOT_EXTRAPOLATED, rows=400)
    with pytest.raises(NotPositiveDefiniteError):
        Climb(2).along(trend, 1e6 * numpy.eye(3), 1.5)
    climb = Climb(0)
    assert climb.along(trend, 1e6 * numpy.eye(3), 1.5) == "found"
    wanted = trend.ahead(400, 1e6 / 1.5 * numpy.eye(3), PROBES, climb.unit * LARGEST_REACH)
    assert numpy.allclose(climb.asked[0][0], wanted, rtol=1e-12), "what is put on the curvature is no evidence"
    assert not numpy.allclose(climb.asked[0][0], trend.ahead(400, 1e6 * numpy.eye(3), PROBES, climb.unit), rtol=1e-9)
    climb = Climb(0)
    climb.low, climb.high = trend.theta - 0.01, trend.theta + 0.02
    assert climb.along(trend, 1e6 * numpy.eye(3), 1.5) == "found"
    assert numpy.allclose(climb.asked[0][0], wanted.clip(climb.low, climb.high), rtol=1e-12)
    assert numpy.array_equal(climb.asked[0][0], climb.objective.anchors[0]), "probes are drawn where it begins"


def test_an_interruption_returns_no_guess() -> None:
    """Where a search begins ahead is nobody's optimum until a step from it was taken."""

    class Climb(_Climb):
        def __init__(self) -> None:
            self.recorder, self._seen = SimpleNamespace(reached="before"), None  # type: ignore[assignment]
            self._led = True

    climb = Climb()
    climb._accept(numpy.ones(3))
    assert climb.recorder.reached == "before"
    climb._accept(numpy.full(3, 2.0))
    assert numpy.array_equal(climb.recorder.reached, numpy.full(3, 2.0))
