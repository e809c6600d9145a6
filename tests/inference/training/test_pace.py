"""What a search expects of the evaluations to come, eq. (M-243): prices of a plan, what was measured, times left."""

import numpy
import pytest
import torch

import flashgp as fgp
from clocks import Clock
from flashgp.foundations.deadline import Deadline, TimeUp
from flashgp.foundations.events import EventKind, StopReason, of_kind
from flashgp.inference.exact.likelihood import DirectSettings
from flashgp.inference.training.checkpoint import EvaluationLog
from flashgp.inference.training.history import Progress, Recorder, SearchRun, Stage, power_law
from flashgp.inference.training.initial import DataFacts, role_starts
from flashgp.inference.training.linear_stages import LinearStages
from flashgp.inference.training.objective import LogJoint, Problem
from flashgp.inference.training.options import FitOptions, FitSettings
from flashgp.inference.training.settings import StochasticSettings
from flashgp.pairwise.torch.tiles import TorchTiles
from inference.plain_gp import data, model

THETA = numpy.zeros(1)


def recorder(limit: float, clock: Clock) -> Recorder:
    return Recorder(EvaluationLog(None, ""), deadline=Deadline.after(limit, clock))


def taking(clock: Clock, seconds: float) -> None:
    clock.now += seconds


def test_work_that_was_not_measured_is_priced_by_the_plan() -> None:
    """Seen red: 400 rows exactly, .03 s, priced a pass over 2,000,000 rows at 150 s, which the plan has at 6 s."""
    clock = Clock()
    found = recorder(120.0, clock)
    found.expect(power_law(6.0, 2_000_000, 1), 1)
    found.evaluate(lambda _: taking(clock, 0.03), THETA, 400)
    found.require(2_000_000, 1)
    found.evaluate(lambda _: taking(clock, 30.0), THETA, 2_000_000, 1)
    assert found.seconds_of(4_000_000, 1) == pytest.approx(60.0)
    found.evaluate(lambda _: taking(clock, 30.0), THETA, 2_000_000, 1)
    with pytest.raises(TimeUp):
        found.require(4_000_000, 1)
    seconds, left = found.next_seconds or (0.0, 0.0)
    assert (seconds, left) == pytest.approx((60.0, 59.97))


def test_a_plan_says_how_the_measured_seconds_grow() -> None:
    """Seen red: by the cube of the rows, though small ones take as long as their calls."""
    clock = Clock()
    found = recorder(10.0, clock)
    found.expect(lambda rows: 0.01 + 1e-10 * rows**3, 3)
    found.evaluate(lambda _: taking(clock, 0.02), THETA, 100)
    assert found.seconds_of(1000, 3) == pytest.approx(0.02 * 0.11 / 0.0101)
    assert found.seconds_of(50, 3) == pytest.approx(0.02)


def test_without_a_plan_the_last_pace_is_all_there_is() -> None:
    clock = Clock()
    found = recorder(10.0, clock)
    assert found.seconds_of(10**9, 3) == 0.0
    found.evaluate(lambda _: taking(clock, 0.1), THETA, 100)
    assert found.seconds_of(1000, 2) == pytest.approx(10.0)


def test_times_left_keep_to_the_limit() -> None:
    """Seen red: "about 1041.9 days left" of 120 s."""
    seen: list[Progress] = []
    clock = Clock()
    found = recorder(120.0, clock)
    found.progress = seen.append
    found.expected = {400: (100.0, 1e-3), 2_000_000: (22.0, 1e9)}
    found.begin(400)
    for _ in range(5):
        clock.now += 1.0
        found.record(SearchRun(Stage.SUBSET), THETA, 0.0, THETA)
    left = [one.eta_seconds for one in seen if one.eta_seconds is not None]
    assert len(left) == 3
    assert max(left) <= 117.0


@pytest.mark.parametrize("kind", ["sparse", "full_scale"])
def test_a_fit_that_is_linear_in_the_rows_counts_its_stages_in_their_seconds(kind: str) -> None:
    """Seen red: all rows were priced by their square, so that a minute was left for years."""
    x, y = data(2500)
    seen: list[Progress] = []
    fgp.fit(
        model(), x, y, approximation=kind, inducing=8, starts=1, progress=seen.append,
        **({"neighbours": 4} if kind == "full_scale" else {}),
    )  # fmt: skip
    fractions = [one.fraction for one in seen]
    at_exact = next(one.fraction for one in seen if one.phase == "fitting 2,000 rows")
    assert at_exact > 1e-3
    assert fractions == sorted(fractions)


def test_an_event_says_what_the_next_evaluation_would_have_taken() -> None:
    x, y = data(400)
    limited = fgp.fit(model(), x, y, time_limit=1e-9)
    (event,) = of_kind(limited.report.events, EventKind.FIT_TIME_UP)
    assert "next_seconds" not in event.fields, "the limit itself was up"
    said = str(fgp.foundations.events.Event(
        EventKind.FIT_TIME_UP, limit=30.0, next_seconds=6.0, left_seconds=2.0
    ))  # fmt: skip
    assert said.endswith("The next evaluation would have taken about 6.0 s of the 2.0 s that the search still had.")
    assert torch.is_tensor(limited.posterior.predict(x).mean)


def test_no_objective_is_made_that_would_end_after_the_deadline() -> None:
    """Seen red: choosing points and neighbours of all rows passed a limit of 30 s by 13."""
    x, y = data(1200)
    clock, made = Clock(), []
    options = FitOptions(starts=1, settings=FitSettings(stochastic=StochasticSettings(first_rows=100)))
    problem = Problem(model(), x, y, DirectSettings(TorchTiles()), role_starts(model(), DataFacts.of(x, y, None)))

    def objective(size: int, theta: numpy.ndarray) -> LogJoint:
        made.append(size)
        clock.now += 4.0
        return LogJoint(problem.subset(size, 0))

    stages = LinearStages(problem, 1200, lambda first: [600], objective, options, recorder(10.0, clock))
    assert stages.run().stop is StopReason.TIME
    assert made == [600], "all rows would take 8 s of 6"
