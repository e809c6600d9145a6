"""The stages of a fit by exact gradients: as good as one search over all rows, in a dozen evaluations of them."""

import dataclasses
import itertools
import time

import numpy
import pytest

import flashgp as fgp
from flashgp.foundations.deadline import Deadline, TimeUp
from flashgp.foundations.errors import NotPositiveDefiniteError
from flashgp.inference.exact.likelihood import DirectSettings
from flashgp.inference.training.checkpoint import EvaluationLog
from flashgp.inference.training.fisher_scoring import log_joint_curvature
from flashgp.inference.training.gradient_search import GradientSearch
from flashgp.inference.training.history import Recorder, Reset, SearchRun, Stage
from flashgp.inference.training.initial import DataFacts, role_starts
from flashgp.inference.training.lbfgs import minimise
from flashgp.inference.training.objective import LogJoint, Problem
from flashgp.inference.training.options import FitSettings
from flashgp.inference.training.settings import SearchSettings, StochasticSettings
from flashgp.inference.training.stages import ExactStages
from flashgp.pairwise.torch.tiles import TorchTiles
from flashgp.planner.fit_stages import stage_sizes
from inference.training.tables import kinds, prior, table

FEW = FitSettings(search=SearchSettings(start_rows=60))
ALL = FitSettings(search=SearchSettings(start_rows=10_000))


@pytest.mark.parametrize(("first", "last"), [*itertools.product((400, 60), (401, 500, 1200, 1201, 2000, 16_000))])
def test_stages_grow_evenly_and_end_with_all(first: int, last: int) -> None:
    sizes = [first, *stage_sizes(first, last, 3.0)]
    ratios = numpy.array(sizes[1:]) / numpy.array(sizes[:-1])
    assert sizes[-1] == last
    assert ratios.max() <= 3.0 * 1.01
    assert ratios.max() <= ratios.min() * 1.02
    assert len(sizes) - 2 < numpy.log(last / first) / numpy.log(3.0)


@pytest.mark.parametrize(("n", "d", "outputs"), [(61, 2, None), (200, 2, 2)])
def test_stages_find_what_one_search_finds(n: int, d: int, outputs: int | None) -> None:
    """Within 1e-4 nats per row of L-BFGS-B on all rows from four starts, in at most 15 evaluations of all rows."""
    x, y = table(n, d, outputs)
    staged = fgp.fit(prior(d, outputs), x, y, settings=FEW)
    whole = fgp.fit(prior(d, outputs), x, y, settings=ALL)
    values = [[e.value for e in fit.history if e.run.stage is Stage.ALL_ROWS] for fit in (staged, whole)]
    assert max(values[0]) > max(values[1]) - 2e-4 * n
    assert len(values[0]) <= 15 < len(values[1])
    assert {e.measure for e in staged.history} == {"log joint"}


def begins_at_its_start(recorder: Recorder, objective: LogJoint, reset: Reset, entry: int) -> bool:
    """Whether the search after a reset begins where the data would have this entry."""
    first = next(one for one in recorder.history if one.run.reset is reset)
    slot = next(slot for slot in objective.parameters.slots if slot.entries.start <= entry < slot.entries.stop)
    start = slot.start()
    assert start is not None
    return bool(first.theta[entry] == pytest.approx(start[entry - slot.entries.start]))


@pytest.mark.parametrize("ignored", [True, False])
@pytest.mark.parametrize("reset", [Reset.LENGTHSCALES, Reset.NOISE])
def test_a_stage_finds_what_few_rows_ignored(reset: Reset, ignored: bool) -> None:
    """A column from where its lengthscale is reset, and the noise where short lengthscales explain every row; meanwhile
    an interruption returns what was there before."""
    x, y = table(300)
    gp = prior()
    roles = role_starts(gp, DataFacts.of(x, y, None))
    whole = LogJoint(Problem(gp, x, y, DirectSettings(TorchTiles()), roles, weak=True))
    recorder = Recorder(EvaluationLog(None, ""))
    minimise(whole, whole.parameters.values(), SearchRun(Stage.PART, 1), recorder, SearchSettings(), 200)
    best, theta = recorder.best[SearchRun(Stage.PART, 1)]
    part = "lengthscale.raw" if reset is Reset.LENGTHSCALES else "noise_variance.raw"
    entry = next(slot.entries for slot in whole.parameters.slots if slot.name.endswith(part)).start
    start = theta.copy()
    start[entry] = theta[entry] if not ignored else 10.0 if reset is Reset.LENGTHSCALES else -25.0
    curvature = log_joint_curvature(whole, start, 300, StochasticSettings(), 0)
    free = numpy.full_like(theta, numpy.inf)
    search = GradientSearch(whole, SearchRun(Stage.ALL_ROWS), recorder, StochasticSettings().limited(2), (-free, free))
    descent, search.settings = search.run(start, curvature), StochasticSettings()
    lost = recorder.best[search.name][0] - best
    assert (lost > 20.0) == ignored, "the likelihood is flat there"
    assert numpy.array_equal(recorder.reached, descent.theta)
    stages = ExactStages(lambda rows: whole, 300, (), recorder, SearchSettings(), StochasticSettings(), 200, 0, True)
    found = stages._restarted(search, whole, descent, reset)
    assert numpy.array_equal(recorder.reached, descent.theta)
    assert whole(found.theta).value - best < 0.5
    assert (f"{reset.name}_RESET" in kinds(recorder.events)) == ignored
    assert not ignored or begins_at_its_start(recorder, whole, reset, entry)


def test_a_stage_without_a_gradient_is_passed_over() -> None:
    """The next one begins where the last one that has any ended; where none has, L-BFGS-B takes all rows."""
    x, y = table(400)
    middle = stage_sizes(60, 400, 3.0)[0]

    class Failing(LogJoint):
        def __call__(self, theta):
            if self.rows == middle:
                raise NotPositiveDefiniteError("made up")
            return super().__call__(theta)

    found = fgp.fit(prior(), x, y, settings=dataclasses.replace(FEW, objective=Failing))
    assert kinds(found.report.events).count("ROWS_PASSED_OVER") == 1
    best = max(e.value for e in found.history if e.run.stage is Stage.ALL_ROWS)
    whole = fgp.fit(prior(), x, y, settings=FEW)
    assert best == pytest.approx(max(e.value for e in whole.history if e.run.stage is Stage.ALL_ROWS), abs=0.1)


def test_a_stage_that_would_end_after_the_time_limit_does_not_begin() -> None:
    """By the time of an evaluation of fewer rows; the answer is where these ended."""
    x, y = table(400)
    evaluated = set()

    class Slow(LogJoint):
        def __call__(self, theta):
            evaluated.add(self.rows)
            time.sleep({60: 0.001, 155: 0.2, 400: 3.0}[self.rows])
            return super().__call__(theta)

    found = fgp.fit(prior(), x, y, settings=dataclasses.replace(FEW, objective=Slow), starts=1, time_limit=3.0)
    assert 60 in evaluated
    assert 400 not in evaluated
    assert found.interrupted
    assert found.posterior.predict(x).mean.isfinite().all()


def test_an_evaluation_is_expected_to_take_as_long_as_the_last_one_times_the_power_of_its_rows() -> None:
    recorder = Recorder(EvaluationLog(None, ""), deadline=Deadline.after(60.0))
    theta = numpy.zeros(1)
    assert recorder.evaluate(lambda _: time.sleep(0.1), theta, 100) is None
    assert recorder.evaluate(lambda _: "as long", theta, 100) == "as long"
    recorder.evaluate(lambda _: time.sleep(0.1), theta, 100)
    with pytest.raises(TimeUp):
        recorder.evaluate(lambda _: pytest.fail("it would take a hundred seconds"), theta, 1000)
    assert recorder.evaluate(lambda _: "ten seconds", theta, 1000, power=2) == "ten seconds"


def test_where_all_rows_have_no_gradient_to_begin_with_values_lead_and_the_report_says_so() -> None:
    x, y = table(400)
    failures = []

    class Failing(LogJoint):
        def __call__(self, theta):
            if self.rows == 400 and len(failures) < 2:  # where the optima lead, and at the last of them
                failures.append(theta)
                raise NotPositiveDefiniteError("made up")
            return super().__call__(theta)

    found = fgp.fit(prior(), x, y, settings=dataclasses.replace(FEW, objective=Failing))
    assert "SEARCHED_BY_VALUES" in kinds(found.report.events)
    assert "ROWS_PASSED_OVER" not in kinds(found.report.events)
    assert found.history[-1].run.stage is Stage.ALL_ROWS
