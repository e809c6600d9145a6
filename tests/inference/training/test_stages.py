"""The stages of a fit by exact gradients: as good as one search over all rows, in a dozen evaluations of them."""

import dataclasses
import itertools
import subprocess
import sys
import time

import numpy
import pytest
import torch

import flashgp as fgp
from clocks import Clock
from flashgp.foundations.deadline import Deadline, TimeUp
from flashgp.foundations.errors import NotPositiveDefiniteError
from flashgp.foundations.events import EventKind
from flashgp.foundations.workspace import Workspace
from flashgp.inference.exact.likelihood import DirectSettings
from flashgp.inference.training.checkpoint import EvaluationLog
from flashgp.inference.training.fisher_scoring import log_joint_curvature
from flashgp.inference.training.gradient_search import GradientSearch
from flashgp.inference.training.history import Recorder, Reset, SearchRun, Stage
from flashgp.inference.training.initial import DataFacts, role_starts
from flashgp.inference.training.lbfgs import minimise
from flashgp.inference.training.objective import Evaluation, LogJoint, Objective, Problem
from flashgp.inference.training.options import FitSettings
from flashgp.inference.training.settings import SearchSettings, StochasticSettings
from flashgp.inference.training.stages import ExactStages
from flashgp.pairwise.torch.tiles import TorchTiles
from flashgp.planner.fit_stages import stage_sizes
from inference.training.tables import kinds, prior, table

FEW = FitSettings(search=SearchSettings(start_rows=60))
ALL = FitSettings(search=SearchSettings(start_rows=10_000))


class Halved(Objective):
    """Another objective than the log joint: half of it."""

    def __call__(self, theta: numpy.ndarray) -> Evaluation:
        whole = LogJoint(self.problem)(theta)
        assert whole.value is not None
        return Evaluation(whole.value / 2.0, whole.gradient / 2.0)


@pytest.mark.parametrize(("first", "last"), itertools.product((400, 60), (401, 500, 1200, 1201, 2000, 16_000)))
def test_stages_grow_evenly_and_end_with_all(first: int, last: int) -> None:
    sizes = [first, *stage_sizes(first, last, 3.0)]
    ratios = numpy.array(sizes[1:]) / numpy.array(sizes[:-1])
    assert sizes[-1] == last
    assert ratios.max() <= 3.0 * 1.01
    assert ratios.max() <= ratios.min() * 1.02
    assert len(sizes) - 2 < numpy.log(last / first) / numpy.log(3.0)


@pytest.mark.parametrize(("n", "d", "outputs"), [(61, 2, None), (400, 3, None), (200, 2, 2)])
def test_stages_find_what_one_search_finds(n: int, d: int, outputs: int | None) -> None:
    """Within 1e-4 nats per row of L-BFGS-B on all rows from four starts, in at most 15 evaluations of all rows."""
    x, y = table(n, d, outputs)
    staged = fgp.fit(prior(d, outputs), x, y, settings=FEW)
    whole = fgp.fit(prior(d, outputs), x, y, settings=ALL)
    values = [[e.value for e in fit.history if e.run.stage is Stage.ALL_ROWS] for fit in (staged, whole)]
    assert max(values[0]) > max(values[1]) - 2e-4 * n
    assert len(values[0]) <= 15 < len(values[1])
    assert {e.measure for e in staged.history} == {"log joint"}


def test_stages_come_in_order() -> None:
    x, y = table(400)
    found = fgp.fit(prior(), x, y, settings=FEW)
    runs = list(dict.fromkeys(e.start for e in found.history))
    assert runs[:4] == [f"subset {i}" for i in range(4)]
    later = [run for run in runs if not run.startswith("subset")]
    assert later[0] == "part 155"
    assert later[-1] == "start 0"
    assert set(later[1:-1]) <= {"part 155, lengthscales reset"}


def begins_at_its_start(recorder: Recorder, objective: LogJoint, reset: Reset, entry: int) -> bool:
    """Whether the search after a reset begins where the data would have this entry."""
    first = next(one for one in recorder.history if one.run.reset is reset)
    slot = next(slot for slot in objective.parameters.slots if slot.entries.start <= entry < slot.entries.stop)
    start = slot.start()
    assert start is not None
    return bool(first.theta[entry] == pytest.approx(start[entry - slot.entries.start]))


@pytest.mark.parametrize("ignored", [True, False])
def test_a_stage_finds_a_column_that_few_rows_ignored(ignored: bool) -> None:
    """From where its lengthscale is reset; meanwhile an interruption returns what was there before."""
    x, y = table(300)
    gp = prior()
    roles = role_starts(gp, DataFacts.of(x, y, None))
    whole = LogJoint(Problem(gp, x, y, DirectSettings(TorchTiles()), roles, weak=True))
    recorder = Recorder(EvaluationLog(None, ""))
    minimise(whole, whole.parameters.values(), SearchRun(Stage.PART, 1), recorder, SearchSettings(), 200)
    best, theta = recorder.best[SearchRun(Stage.PART, 1)]
    column = next(slot.entries for slot in whole.parameters.slots if slot.name.endswith("lengthscale.raw"))
    start = theta.copy()
    start[column] = [10.0, *theta[column][1:]] if ignored else theta[column]
    curvature = log_joint_curvature(whole, start, 300, StochasticSettings(), 0)
    free = numpy.full_like(theta, numpy.inf)
    search = GradientSearch(whole, SearchRun(Stage.ALL_ROWS), recorder, StochasticSettings().limited(2), (-free, free))
    descent, search.settings = search.run(start, curvature), StochasticSettings()
    lost = recorder.best[search.name][0] - best
    assert (lost > 20.0) == ignored, "the likelihood is flat where the lengthscale is long"
    assert numpy.array_equal(recorder.reached, descent.theta)
    stages = ExactStages(lambda rows: whole, 300, (), recorder, SearchSettings(), StochasticSettings(), 200, 0, True)
    found = stages._restarted(search, whole, descent, Reset.LENGTHSCALES)
    assert numpy.array_equal(recorder.reached, descent.theta)
    assert whole(found.theta).value - best < 0.5
    assert ("LENGTHSCALES_RESET" in kinds(recorder.events)) == ignored
    assert not ignored or begins_at_its_start(recorder, whole, Reset.LENGTHSCALES, column.start)


@pytest.mark.parametrize("vanished", [True, False])
def test_a_stage_finds_the_noise_that_few_rows_lost(vanished: bool) -> None:
    """Short lengthscales explain every row, and the gradient by the logarithm of the noise is that of its prior."""
    x, y = table(300)
    gp = prior()
    roles = role_starts(gp, DataFacts.of(x, y, None))
    whole = LogJoint(Problem(gp, x, y, DirectSettings(TorchTiles()), roles, weak=True))
    recorder = Recorder(EvaluationLog(None, ""))
    minimise(whole, whole.parameters.values(), SearchRun(Stage.PART, 1), recorder, SearchSettings(), 200)
    best, theta = recorder.best[SearchRun(Stage.PART, 1)]
    noise = next(slot.entries for slot in whole.parameters.slots if slot.name.startswith("likelihood"))
    start = theta.copy()
    start[noise] = -25.0 if vanished else theta[noise]
    curvature = log_joint_curvature(whole, start, 300, StochasticSettings(), 0)
    free = numpy.full_like(theta, numpy.inf)
    search = GradientSearch(whole, SearchRun(Stage.ALL_ROWS), recorder, StochasticSettings().limited(2), (-free, free))
    descent, search.settings = search.run(start, curvature), StochasticSettings()
    assert (recorder.best[search.name][0] - best > 20.0) == vanished
    stages = ExactStages(lambda rows: whole, 300, (), recorder, SearchSettings(), StochasticSettings(), 200, 0, True)
    found = stages._restarted(search, whole, descent, Reset.NOISE)
    assert whole(found.theta).value - best < 0.5
    assert ("NOISE_RESET" in kinds(recorder.events)) == vanished
    assert not vanished or begins_at_its_start(recorder, whole, Reset.NOISE, noise.start)


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


@pytest.mark.parametrize("case", ["batch", "own module", "another objective"])
def test_what_has_no_curvature_beforehand_takes_all_rows_by_values(case: str) -> None:
    x, y = table(150, 2)
    gp, settings = prior(2), FEW
    if case == "batch":
        x, y = torch.stack([x, x + 0.1]), torch.stack([y, y])
    elif case == "own module":
        network = torch.nn.Sequential(torch.nn.Linear(2, 2, dtype=torch.float64), torch.nn.Tanh())
        gp = fgp.GP(fgp.kernels.Warped(network, gp.kernel))
    else:
        settings = dataclasses.replace(FEW, objective=Halved)
    found = fgp.fit(gp, x, y, settings=settings, max_iterations=20)
    assert [e for e in found.history if e.run.stage is Stage.ALL_ROWS]
    assert found.history[-1].run.stage is Stage.ALL_ROWS


def test_an_optimum_of_few_rows_is_chosen_for_what_all_rows_will_say() -> None:
    """Priors weigh as much on few rows as on all: two clusters far apart, whose scale hides the waves inside them."""
    x, y = table(220)
    apart = x + 1e6 * (torch.arange(220) % 2).double().unsqueeze(-1)
    settings = FitSettings(search=SearchSettings(start_rows=150))
    found = fgp.fit(prior(), apart, y, settings=settings, starts=2)
    assert 0.05 < float(found.gp.likelihood.noise_variance.value.detach()) < 0.2


def test_a_staged_fit_resumes_to_the_same_bits(tmp_path) -> None:
    x, y = table(400)
    evaluated = []

    class Counted(LogJoint):
        def __call__(self, theta):
            evaluated.append(self.rows)
            return super().__call__(theta)

    options = {"settings": dataclasses.replace(FEW, objective=Counted), "checkpoint": tmp_path / "log"}

    def stop(progress):
        if progress.start == "start 0":
            raise KeyboardInterrupt

    cut = fgp.fit(prior(), x, y, progress=stop, **options)
    assert cut.interrupted
    before = len(evaluated)
    resumed = fgp.fit(prior(), x, y, **options)
    assert set(evaluated[before:]) == {400}, "few rows and parts came from the checkpoint"
    whole = fgp.fit(prior(), x, y, settings=FEW)
    assert [e.theta for e in resumed.history] == [e.theta for e in whole.history]
    assert any(event.kind is EventKind.RESUMED for event in resumed.report.events)


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


def test_compiling_says_nothing_of_the_next_evaluation() -> None:
    """Seen red: after a compile of eight seconds there was no time for an evaluation of one."""
    clock, workspace, theta = Clock(), Workspace(), numpy.zeros(1)
    recorder = Recorder(EvaluationLog(None, ""), deadline=Deadline.after(14.0, clock))

    def compiling(_: numpy.ndarray) -> None:
        clock.now += 9.0
        workspace.ran("compiled", 8.0)

    recorder.evaluate(compiling, theta, 100, workspace=workspace)
    with pytest.raises(TimeUp):
        recorder.require(600, power=1)
    assert recorder.evaluate(lambda _: "one second", theta, 100, workspace=workspace) == "one second"


def test_an_evaluation_imports_nothing() -> None:
    """What is loaded in the first one of a process, half a second where rows take ten milliseconds, would count as its
    pace: a time limit ended the search after it. Seen red with SymPy.
    """
    program = """
import sys, numpy, torch, flashgp as fgp
from flashgp.inference.training.objective import LogJoint
from flashgp.inference.training.options import FitSettings
loaded = []
class Watched(LogJoint):
    def __call__(self, theta):
        before = set(sys.modules)
        found = super().__call__(theta)
        loaded.append(sorted(set(sys.modules) - before))
        return found
x = torch.rand(300, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
gp, settings = fgp.GP(1.0 * fgp.kernels.Matern(nu=1.5) + fgp.kernels.Linear()), FitSettings(objective=Watched)
fgp.fit(gp, x, x[:, 0], starts=1, max_iterations=1, settings=settings)
print(len(loaded) > 0, [names for names in loaded if names])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "True []\n"
