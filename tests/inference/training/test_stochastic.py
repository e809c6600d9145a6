"""Whole fits by estimated gradients, at sizes where the exact optimum is known."""

import dataclasses
import math

import numpy
import pytest
import torch

import flashgp as fgp
from flashgp.foundations.deadline import NO_DEADLINE
from flashgp.foundations.errors import ConvergenceError, NotPositiveDefiniteError
from flashgp.foundations.events import Event, EventKind
from flashgp.inference.training.checkpoint import EvaluationLog
from flashgp.inference.training.history import Recorder, SearchRun, Solving, Stage
from flashgp.inference.training.objective import LogJoint
from flashgp.inference.training.options import FitSettings
from flashgp.inference.training.stochastic import with_factored_part
from flashgp.inference.training.stochastic_objective import EstimatedLogJoint
from flashgp.planner.fit_stages import part_sizes
from inference.training.tables import SETTINGS, kinds, planned, prior, table


def with_gradients(change, calls=None) -> FitSettings:
    """Settings whose estimated evaluations go through `change(objective, evaluation)`."""

    class Changed(EstimatedLogJoint):
        def __call__(self, theta):
            if calls is not None:
                calls.append((self.rows, theta))
            return change(self, super().__call__(theta))

    return dataclasses.replace(SETTINGS, estimated=Changed)


def test_a_fit_whose_float32_factors_were_rough_makes_none_for_its_posterior():
    """What is known to fail is not repeated; float32 that worked is taken."""
    x, y = table(220)
    gp = prior()
    plan = dataclasses.replace(fgp.plan(gp, n=220, d=3, dtype=torch.float32), training="recomputed")
    assert fgp.fit(gp, x, y, plan=plan, settings=SETTINGS, starts=1).report.dtype == "float32"

    class Rough(EstimatedLogJoint):
        rough_factors = True

    with pytest.warns(fgp.FlashGPWarning, match="float64 Cholesky"):
        found = fgp.fit(gp, x, y, plan=plan, settings=dataclasses.replace(SETTINGS, estimated=Rough), starts=1)
    assert found.report.dtype == "float64"
    assert found.report.jitter is None


def test_a_failed_trial_is_in_the_checkpoint(tmp_path):
    """A resumed fit recalls it; without it the log would not match and be thrown away."""
    x, y = table(220)
    gp, calls = prior(), []

    def failing(objective, evaluation):
        if [rows for rows, _ in calls].count(220) == 2 and objective.rows == 220:
            raise ConvergenceError("made up", iterations=1, residual=1.0, tolerance=0.5)
        return evaluation

    options = {"plan": planned(gp, 220), "checkpoint": tmp_path / "log", "starts": 1}
    options["settings"] = with_gradients(failing, calls)
    whole = fgp.fit(gp, x, y, **options)
    assert Event(EventKind.POINTS_REJECTED, points=1, estimated=True) in whole.report.events
    assert Event(EventKind.POINT_FAILED, run="start 0", error="made up") in whole.report.events
    count = len(calls)
    resumed = fgp.fit(gp, x, y, **options)
    assert len(calls) == count, "every evaluation came from the checkpoint, the failure too"
    assert resumed.history[-1].theta == whole.history[-1].theta


def test_parts_grow_by_the_same_factor():
    assert part_sizes(2500, 2000, 4) == []
    assert part_sizes(15_000, 2000, 4) == [3750]
    assert part_sizes(1_000_000, 2000, 4) == [3906, 15_625, 62_500, 250_000]
    assert all(size > 2000 for n in (2001, 8000, 8001, 36_000) for size in part_sizes(n, 2000, 4))


def test_a_part_for_factors_comes_only_where_what_follows_is_larger():
    assert with_factored_part([], 3366, 13_464, 1.5) == [6732]
    assert with_factored_part([], 7286, 14_574, 1.5) == []  # two rows fewer than all
    assert with_factored_part([9000], 2250, 36_000, 1.5) == [4500, 9000]
    assert with_factored_part([9000], 4500, 36_000, 1.5) == [9000]


def test_a_search_that_diverges_is_given_up(tmp_path):
    """Rough gradients that lie are found out by the exact likelihood of the first rows; what was there before is kept.
    Where their solves ended at their goals the report says how much less likely it is."""
    x, y = table(220)
    gp, rough = prior(), True

    def lying(objective, evaluation):  # the noise had better vanish
        if rough:
            objective.solve_by(Solving.ROUGH_ITERATIONS)
        pull = [2500.0 * name.startswith("likelihood") for name in objective.parameters.names()]
        return dataclasses.replace(evaluation, gradient=evaluation.gradient + numpy.array(pull))

    options, path = {"starts": 1, "settings": with_gradients(lying)}, tmp_path / "log"
    for _ in ("whole", "resumed"):
        with pytest.warns(fgp.FlashGPWarning, match="each less likely"):
            found = fgp.fit(gp, x, y, plan=planned(gp, 220), checkpoint=path, **options)
        assert "STAGE_REJECTED" in kinds(found.report.events)
        assert 0.05 < float(found.gp.likelihood.noise_variance.value.detach()) < 0.2
    rough = False
    by_factors = fgp.fit(gp, x, y, plan=planned(gp, 220, training_factor_passes=1), **options)
    assert "STAGE_WORSE" in kinds(by_factors.report.events)
    assert "STAGE_WORSE" in kinds(fgp.fit(gp, x, y, plan=planned(gp, 220), **options).report.events)


def test_a_search_whose_end_cannot_be_checked_is_given_up():
    """No exact likelihood of the first rows can be had there: what was found before is kept, and the fit goes on."""
    x, y = table(220)
    gp, gradients = prior(), []

    class Unchecked(LogJoint):
        def __call__(self, theta):
            if gradients:
                raise NotPositiveDefiniteError("made up")
            return super().__call__(theta)

    def rough(objective, evaluation):
        objective.solve_by(Solving.ROUGH_ITERATIONS)
        return evaluation

    settings = dataclasses.replace(with_gradients(rough, gradients), objective=Unchecked)
    with pytest.warns(fgp.FlashGPWarning, match="each less likely"):
        found = fgp.fit(gp, x, y, plan=planned(gp, 220), settings=settings, starts=1)
    first = max((e for e in found.history if e.start.startswith("subset")), key=lambda e: e.value)
    values = torch.cat([p.detach().reshape(-1) for p in found.gp.parameters()])
    assert torch.equal(values, torch.tensor(first.theta, dtype=values.dtype))


def test_training_beyond_the_memory_is_refused_before_any_work():
    """Conditioning may fit where training does not; neither is begun."""
    x, y = table(60)
    gp = prior()
    plan = fgp.plan(gp, n=60, d=3)
    tight = dataclasses.replace(plan, training_bytes=plan.available_bytes + 1)
    seen = []
    with pytest.raises(fgp.MemoryBudgetError, match=r"fitting 60 rows needs .* pass a larger memory=") as caught:
        fgp.fit(gp, x, y, plan=tight, progress=seen.append)
    assert caught.value.needed_bytes == plan.available_bytes + 1
    assert not seen


@pytest.mark.parametrize("training", ["stored", "recomputed"])
def test_a_fit_by_estimated_gradients_is_as_good_as_the_exact_one(training):
    """Within 0.01 nats per row of the optimum, on a table so small that its likelihood has a flat ridge."""
    x, y = table(400)
    gp = prior()
    exact = fgp.fit(gp, x, y, starts=1)
    found = fgp.fit(gp, x, y, plan=planned(gp, 400, training), settings=SETTINGS)
    lost = float((exact.gp.log_marginal_likelihood(x, y) - found.gp.log_marginal_likelihood(x, y)).detach())
    assert lost < 0.01 * 400
    assert "GRADIENTS_ESTIMATED" in kinds(found.report.events)
    assert "GRADIENTS_ESTIMATED" not in kinds(exact.report.events)


def test_values_that_are_gains_are_called_so():
    """Of estimated gradients no value is known: history and progress have the gain of each run, by itself."""
    x, y = table(640)
    gp = prior()
    told = []
    found = fgp.fit(gp, x, y, plan=planned(gp, 640), progress=told.append, settings=SETTINGS, starts=1)
    assert {e.measure for e in found.history if e.start.startswith(("part", "start"))} == {"gain"}
    assert {e.measure for e in found.history if e.start.startswith(("subset", "middle"))} == {"log joint"}
    for run in ("part 160", "start 0"):
        own = [e for e in found.history if e.start == run]
        assert own[0].value == 0.0
        assert own[-1].value > 0.0 or len(own) == 1
        best = [p.best for p in told if p.start == run]
        assert best == [max(e.value for e in own[: k + 1]) for k in range(len(own))]
    assert [p.measure for p in told] == [e.measure for e in found.history]
    exact = fgp.fit(gp, x[:30], y[:30])
    assert {e.measure for e in exact.history} == {"log joint"}


def test_gains_of_different_runs_are_not_compared():
    told = []
    recorder = Recorder(EvaluationLog(None, ""), told.append, NO_DEADLINE, {220: (10, 1.0)})
    zero = numpy.zeros(2)
    for rows, value in ((500, -9.0), (900, 0.0), (900, -1.0)):
        recorder.record(SearchRun(Stage.PART, rows), zero, value, zero, "gain")
    for number, value in enumerate((7.0, 8.0)):
        recorder.record(SearchRun(Stage.ALL_ROWS, number), zero, value, zero)
    assert [p.best for p in told] == [9.0, 0.0, 1.0, -7.0, -7.0]


def test_a_fit_of_many_rows_resumes(tmp_path):
    x, y = table(220)
    gp = prior()
    options = {"plan": planned(gp, 220), "settings": SETTINGS, "starts": 1}
    whole = fgp.fit(gp, x, y, **options)

    def stop(progress):
        if progress.start.startswith("start") and progress.evaluation >= len(whole.history) - 1:
            raise KeyboardInterrupt

    path = tmp_path / "fit.checkpoint"
    cut = fgp.fit(gp, x, y, checkpoint=path, progress=stop, **options)
    assert cut.interrupted
    resumed = fgp.fit(gp, x, y, checkpoint=path, **options)
    assert Event(EventKind.RESUMED, evaluations=len(cut.history), estimated=True) in resumed.report.events
    assert numpy.allclose(resumed.history[-1].theta, whole.history[-1].theta, atol=0.05)


@pytest.mark.parametrize("nothing", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_is_no_evaluation(nothing):
    x, y = table(220)
    gp, calls = prior(), []

    def broken_once(objective, evaluation):
        return dataclasses.replace(evaluation, gradient=evaluation.gradient * (nothing if len(calls) == 2 else 1.0))

    settings = with_gradients(broken_once, calls)
    found = fgp.fit(gp, x, y, plan=planned(gp, 220), settings=settings, starts=1)
    assert len(calls) > 2
    assert all(math.isfinite(e.value) and e.theta != tuple(calls[1][1].tolist()) for e in found.history)
    (event,) = [event for event in found.report.events if event.kind is EventKind.POINT_FAILED]
    assert "not finite" in event.fields["error"]


def test_an_interrupt_returns_where_the_last_stage_ended():
    x, y = table(640)
    gp = prior()
    seen = []

    def stop(progress):
        seen.append(progress.phase)
        if progress.phase == "fitting 160 rows":
            raise KeyboardInterrupt

    found = fgp.fit(gp, x, y, plan=planned(gp, 640), progress=stop, starts=1, settings=SETTINGS)
    assert found.interrupted
    assert Event(EventKind.SUBSET_FIT, starts=1, subset=150, rows=640) in found.report.events
    assert "fitting 150 rows" in seen
    best = max((e for e in found.history if e.start.startswith("subset")), key=lambda e: e.value)
    raw = numpy.concatenate([p.detach().reshape(-1).numpy() for p in found.gp.parameters()])
    assert numpy.allclose(raw, best.theta)


def test_parts_that_come_to_factors(tmp_path):
    """One of twice the rows comes before all, each comes to factors by itself, and a resumed fit knows all that."""
    x, y = table(640, noise=1e-3)
    gp = prior(noise=1e-3)
    options = {"plan": planned(gp, 640, training_factor_passes=1), "settings": SETTINGS, "starts": 1}
    path = tmp_path / "fit.checkpoint"

    def stop(progress):
        if progress.start.startswith("start"):
            raise KeyboardInterrupt

    cut = fgp.fit(gp, x, y, checkpoint=path, progress=stop, **options)
    assert cut.interrupted
    runs = list(dict.fromkeys(e.start for e in cut.history if e.start.startswith(("part", "start"))))
    wanted = [SearchRun(Stage.PART, 160), SearchRun(Stage.PART, 320), SearchRun(Stage.ALL_ROWS)]
    assert runs == [str(dataclasses.replace(run, solving=Solving.FLOAT32_FACTOR)) for run in wanted]
    resumed = fgp.fit(gp, x, y, checkpoint=path, **options)
    assert Event(EventKind.RESUMED, evaluations=len(cut.history), estimated=True) in resumed.report.events
    assert list(dict.fromkeys(e.start for e in resumed.history))[-3:] == runs
    whole = fgp.fit(gp, x, y, **options)
    values = [float(one.gp.log_joint(x, y).detach()) for one in (resumed, whole)]
    assert abs(values[0] - values[1]) < 0.01 * 640  # as a fit by estimates against the exact one
