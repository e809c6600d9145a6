"""What a search expects of the evaluations to come, eq. (M-243): prices of a plan, what was measured, times left."""

import numpy
import pytest

import flashgp as fgp
from clocks import Clock
from flashgp.foundations.deadline import Deadline, TimeUp
from flashgp.foundations.events import StopReason
from flashgp.inference.exact.likelihood import DirectSettings
from flashgp.inference.training.checkpoint import EvaluationLog
from flashgp.inference.training.history import Progress, Recorder, power_law
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


@pytest.mark.parametrize("kind", ["sparse", "full_scale"])
def test_a_fit_that_is_linear_in_the_rows_counts_its_stages_in_their_seconds(kind: str) -> None:
    """Seen red: all rows were priced by their square, so that a minute was left for years."""
    x, y = data(700)
    seen: list[Progress] = []
    settings = FitSettings(stochastic=StochasticSettings(first_rows=500))
    fgp.fit(
        model(), x, y, approximation=kind, inducing=8, starts=1, progress=seen.append, settings=settings,
        **({"neighbours": 4} if kind == "full_scale" else {}),
    )  # fmt: skip
    fractions = [one.fraction for one in seen]
    at_exact = next(one.fraction for one in seen if one.phase == "fitting 500 rows")
    assert at_exact > 1e-3
    assert fractions == sorted(fractions)


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
