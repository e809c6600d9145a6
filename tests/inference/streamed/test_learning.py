"""Fits by a weighted sample, (M-240), (M-241); sizes by a limit (M-244), a trial before them (M-245)."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.deadline import Deadline
from flashgp.foundations.events import EventKind, SampleReason, of_kind
from flashgp.foundations.profile import BUILT_IN
from flashgp.foundations.workspace import Workspace
from flashgp.inference.approximation import Approximation
from flashgp.inference.choice import Choice
from flashgp.inference.fit import Fit, fit_as
from flashgp.inference.plan_settings import RowCounts
from flashgp.inference.run import Run
from flashgp.inference.streamed.bound import StreamedBound
from flashgp.inference.streamed.learning import LearnedValues, learned_values
from flashgp.inference.streamed.objective import StreamedLogJoint
from flashgp.inference.streamed.rows import inputs_of
from flashgp.inference.training.history import Stage
from flashgp.inference.training.options import FitOptions, FitSettings
from flashgp.inference.training.parameter_vector import ParameterVector
from flashgp.inference.training.settings import SampleSettings, StochasticSettings
from flashgp.planner.approximate import by_sample
from flashgp.planner.plan import Plan
from flashgp.planner.problem import PlanSettings
from flashgp.sources.source import Batches, Held
from flashgp.sources.survey import Survey, surveyed
from inference.plain_gp import F64, data, model
from inference.streamed.test_bound import objective
from inference.streamed.test_fit import Counting, batches

SMALL = SampleSettings(min_evaluations=1e12, min_rows=64)
STEPS = FitSettings(stochastic=StochasticSettings(first_rows=100), sample=SMALL, seconds_between_writes=-1.0)


def fitted(x: Tensor, y: Tensor, source: Any = None, **options: Any) -> Fit:
    rows = batches(x, y, 100) if source is None else source
    return fgp.fit(model(), rows, **{"settings": STEPS, "inducing": 20, "time_limit": 1e5, "starts": 1, **options})


def event(fit: Fit, kind: EventKind) -> dict[str, Any]:
    (found,) = of_kind(fit.report.events, kind)
    assert str(found)
    return found.fields


def survey(x: Tensor, y: Tensor) -> Survey:
    return surveyed(Held(x, y), None, 200, 0)


@pytest.mark.parametrize("times", [1.0, 3.0])
def test_rows_that_count_several_times_are_as_many_rows(times: float) -> None:
    """(M-240): value and gradient of each row three times are those of three times the rows."""
    x, y = data(40)
    several = objective(model(), x.repeat(int(times), 1), y.repeat(int(times)), x[:7])
    once = objective(model(), x, y, x[:7])
    weighted = StreamedLogJoint(once.problem, once.survey, once.points, int(times) * 40)
    theta = ParameterVector(once.problem.prior, once.problem.roles).values() + 0.1
    wanted, found = several(theta), weighted(theta)
    assert found.value == pytest.approx(wanted.value, rel=1e-10)
    assert found.gradient == pytest.approx(wanted.gradient, rel=1e-8)
    assert (weighted.rows, weighted.cost_rows) == (int(times) * 40, 40)


def test_the_bound_is_near_that_of_passes() -> None:
    x, y = data(1000)
    passes, found = fgp.fit(model(), batches(x, y, 250), inducing=20, starts=1), fitted(x, y)
    assert found.history[-1].run.stage is Stage.WEIGHTED
    again = found.gp.condition(batches(x, y, 250), inducing=found.posterior.inducing)
    assert again.bound.lower / 1000 > passes.posterior.bound.lower / 1000 - 0.03
    chosen, said = event(found, EventKind.SAMPLE_CHOSEN), event(found, EventKind.ROWS_LEARNED)
    assert (chosen["reason"], chosen["rows"], chosen["limit"]) == (SampleReason.PLANNED, 1000, 1e5)
    assert (said["whole"], said["seen"], said["gap"]) == (True, 1000, 0.0)
    # One epoch at the parameters found is the optimum of q(u), (M-241).
    assert found.posterior.bound.lower == pytest.approx(again.bound.lower, rel=1e-9)
    assert torch.allclose(found.posterior.predict(x[:9]).mean, again.predict(x[:9]).mean, rtol=1e-7)
    assert said["bound"] == pytest.approx(again.bound.lower / 1000, rel=1e-9)
    assert not of_kind(found.report.events, EventKind.BRACKET)
    assert found.report.predicted_seconds <= 1e5
    assert not found.interrupted


class Limited(Counting):
    """A pass of 60 batches, a tick each; time goes on by a tick with each batch that is learned too."""


def on_time(source: Any, deadline: Deadline, settings: SampleSettings = SMALL) -> Fit:
    asked = FitOptions(run=Run(deadline=deadline), starts=1, settings=dataclasses.replace(STEPS, sample=settings))
    return fit_as(model(), Batches(source), asked, Approximation("sparse", 10))


def test_reading_that_takes_too_long_takes_the_sample_and_keeps_the_time() -> None:
    x, y = data(6000)
    settings = dataclasses.replace(SMALL, min_evaluations=3.0)
    for end, taken in ((130.0, True), (200.0, True), (400.0, True), (1e6, False)):
        source = Limited(x, y, 100)
        found = on_time(source, source.deadline(end), settings)
        assert bool(of_kind(found.report.events, EventKind.SAMPLE_CHOSEN)) == taken
        assert source.now <= max(end + 2.0, 0.0) or not taken
        if taken:
            assert event(found, EventKind.SAMPLE_CHOSEN)["reason"] == SampleReason.READING
            said = event(found, EventKind.ROWS_LEARNED)
            assert said["rows"] == 6000
            assert said["seen"] >= 64
            if not said["whole"]:
                assert said["seen"] < 6000


def test_a_part_that_is_learned_says_how_far_it_is() -> None:
    """(M-241): of some random rows of 6,000 the estimate is near the bound of all at this q(u)."""
    x, y = data(6000)
    found = learned(x, y, 8)
    assert 1500 < found.q.seen < 3000
    assert not found.whole
    z = x[:20]
    gp = model()
    with torch.no_grad():
        bound = StreamedBound(gp, gp.kernel.rows(z), 6000, Workspace())
        best = bound.sums(inputs_of(gp, survey(x, y).blocks(500), z.device)).lower / 6000
        there = gp.minibatch_bound(x, y, count=6000, inducing=z, q=found.q).value.item() / 6000
    assert found.bound is not None
    assert abs(found.bound - there) < 4.0 * found.error + 0.05 * abs(best - there) + 0.02
    assert there < best
    assert best - there < found.gap + 4.0 * found.error
    assert found.shift[0] < 6.0


def learned(x: Tensor, y: Tensor, ticks: float) -> LearnedValues:
    """Until the clock of the reader has gone on so often."""
    now = iter(range(10**6))
    return learned_values(model(), survey(x, y), x[:20], 0, Deadline(ticks, ticks, lambda: next(now)), 64)


@pytest.mark.parametrize("ordered", [True, False])
def test_rows_in_order_are_told_from_random_ones(ordered: bool) -> None:
    """A list in the order of x is random within its buffer only."""
    x = torch.rand(300_000, 1, generator=torch.Generator().manual_seed(0), dtype=F64)
    x = x.sort(0).values if ordered else x
    rows = surveyed(Batches(batches(x, x[:, 0].cos(), 10_000)), None, 200, 0)
    now = iter(range(10**6))
    found = learned_values(model(1), rows, x[:: len(x) // 5], 0, Deadline(18.0, 18.0, lambda: next(now)), 64)
    assert 0 < found.q.seen < 150_000
    assert (found.shift[0] > 100.0) if ordered else (found.shift[0] < 6.0)


def test_rows_that_are_not_random_are_a_warning() -> None:
    x, y = data(1500)
    with pytest.warns(fgp.FlashGPWarning, match="not a random part"):
        found = on_time(Limited(x, y), Deadline(9.0, 9.0, lambda: 0.0), dataclasses.replace(SMALL, max_shift=-1.0))
    said = event(found, EventKind.ROWS_NOT_RANDOM)
    assert said["column"] in ("column 0 of x", "column 1 of x", "the target")


class Failing:
    """Batches whose later passes fail."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.parts, self.passes = batches(x, y, 100), 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.passes += 1
        yield from self.parts if self.passes < 2 else self.parts[:-1]


def test_rows_that_change_are_refused() -> None:
    x, y = data(1500)
    with pytest.raises(fgp.DomainError, match="same rows in every pass"):
        fitted(x, y, Failing(x, y))


def decision(n: int, limit: float | None, gp: Any = None) -> tuple[str, Plan]:
    gp = fgp.GP(1.0 * fgp.kernels.Matern(nu=1.5, lengthscale=[1.0, 1.0, 1.0])) if gp is None else gp
    settings = PlanSettings(memory="16GiB", profile=BUILT_IN, whole=True)
    taken, plan, event = Choice(gp, RowCounts(n, 3), settings, limit).decided(Approximation("auto"))
    assert bool(plan.approximation) == (taken is not None)
    return event.fields["chosen"], plan  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("n", "limit", "least"), [(300_000, 5.0, 128), (300_000, 30.0, 512), (2_000_000, 120.0, 512), (10**6, 180.0, 512)]
)
def test_short_limits_take_points_that_a_sample_has_time_for(n: int, limit: float, least: int) -> None:
    """Seen red: 64 points, since sizes followed from passes alone."""
    chosen, plan = decision(n, limit)
    assert chosen == "sparse"
    assert plan.inducing >= least
    assert by_sample(plan, limit)
    assert 0.0 < plan.sample_seconds[0] <= plan.fit_seconds <= plan.fit_seconds_high <= limit
    assert any("sample" in note for note in plan.notes)
