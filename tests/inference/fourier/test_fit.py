"""Fits by Fourier series: gradients beside differences, optima beside exact ones, plans, and what has none."""

from dataclasses import replace
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

import flashgp as fgp
from clocks import Clock
from flashgp.foundations.deadline import NO_DEADLINE, Deadline
from flashgp.foundations.events import ApproximationReason, Event, EventKind, NoSeries, of_kind
from flashgp.foundations.profile import BUILT_IN
from flashgp.inference.approximation import Approximation
from flashgp.inference.choice import Choice
from flashgp.inference.data import Data
from flashgp.inference.exact.likelihood import DirectSettings
from flashgp.inference.fit import fit_as
from flashgp.inference.fourier.condition import grid_for
from flashgp.inference.fourier.fit import FourierFit
from flashgp.inference.fourier.objective import FourierLogJoint
from flashgp.inference.fourier.planned import sizes_of
from flashgp.inference.fourier.spectrum import GridSettings
from flashgp.inference.fourier.state import FourierSettings
from flashgp.inference.fourier.sums import WeightPosterior
from flashgp.inference.fourier.system import SolveSettings
from flashgp.inference.plan_settings import RowCounts
from flashgp.inference.run import Run
from flashgp.inference.streamed.rows import numbers_to_rows, prior_of_rows, survey_of
from flashgp.inference.training.checkpoint import EvaluationLog
from flashgp.inference.training.fit import EngineLeft
from flashgp.inference.training.history import Recorder
from flashgp.inference.training.objective import LogJoint, Problem
from flashgp.inference.training.options import FitOptions, FitSettings
from flashgp.inference.training.settings import SearchSettings, StochasticSettings
from flashgp.pairwise.torch.tiles import TorchTiles
from flashgp.planner.problem import PlanSettings
from flashgp.processes.group import ALONE
from flashgp.sources.source import Held
from inference.fourier.additive import D, apart, table

F64 = torch.float64
k = fgp.kernels
FEW = FitSettings(search=SearchSettings(start_rows=40), stochastic=StochasticSettings(first_rows=60))


def _rows(n: int, d: int, noise: float = 0.05, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, d, generator=generator, dtype=F64)
    y = torch.sin(6.0 * x[:, 0]) * torch.cos(4.0 * x.sum(1)) + 0.3
    return x, y + noise**0.5 * torch.randn(n, generator=generator, dtype=F64)


def _central(objective: Any, theta: numpy.ndarray, step: float = 1e-4) -> numpy.ndarray:
    """Slopes by central differences."""
    pairs = [(objective(theta + one).value, objective(theta - one).value) for one in step * numpy.eye(len(theta))]
    return numpy.array([(above - below) / (2.0 * step) for above, below in pairs])


EACH = 0.05 + torch.arange(300, dtype=F64) / 300
NOISES = {"alike": {}, "variance": {"row_variance": EACH}, "weight": {"row_weight": EACH}}
OBJECTIVES = [
    (1, True, "alike"), (2, True, "alike"), (1, False, "alike"), (1, True, "variance"), (2, True, "weight"),
    (1, False, "variance"), (D, True, "alike"), (D, True, "variance"),
]  # fmt: skip


@pytest.mark.parametrize(("d", "dense", "rows"), OBJECTIVES)
def test_gradients_are_slopes_of_the_log_joint(d: int, dense: bool, rows: str) -> None:
    """(M-436), (M-443): with a factor to rounding, of several grids too; by probes those of their own value, up to what
    few of them leave."""
    x, y = table(300) if d == D else _rows(300, d)
    lengthscale = torch.tensor([0.4, 0.6], dtype=F64)[:d]
    mean = fgp.means.Constant(0.2) if rows == "alike" else fgp.means.Linear(torch.full((d,), 0.3, dtype=F64), 0.1)
    kernel = apart(nu=2.5) if d == D else 1.3 * k.Matern(nu=2.5, lengthscale=lengthscale)
    given = fgp.GP(kernel, mean, fgp.likelihoods.Gaussian(0.1, **NOISES[rows]))
    gp, source = numbers_to_rows(given, Held(x, y), ALONE)
    survey = survey_of(gp, source, Approximation("fourier"), 0)
    few = SolveSettings(dense=10, block=20, share=2, probes=512, most_probes=512, probed_error=1e-6)
    how = FourierSettings(grid=GridSettings(tail=(0.01,) * 3), solves=SolveSettings() if dense else few)
    problem = Problem(prior_of_rows(gp, survey.sample), survey.x, survey.y, DirectSettings(TorchTiles()))
    objective = FourierLogJoint(problem, gp, survey, grid_for(gp, survey, how, search=True), how, 0)
    assert (objective.estimate is None) == dense
    theta = objective.parameters.values()
    first, slopes = objective(theta), _central(objective, theta)
    if dense:
        assert abs(first.value + float(given.log_marginal_likelihood(x, y).detach())) < 1.0
    tolerance = 1e-5 if dense else 0.05
    numpy.testing.assert_allclose(
        first.gradient, slopes, rtol=tolerance, atol=tolerance * float(numpy.abs(slopes).max())
    )


def test_a_fit_comes_to_where_an_exact_one_does() -> None:
    x, y = _rows(700, 1)
    gp = fgp.GP(1.0 * k.Matern(nu=2.5))
    fit = fgp.fit(gp, x, y, approximation="fourier", progress=False, settings=FEW)
    exact = fit.gp.condition(x, y)
    assert abs(float(exact.log_marginal_likelihood() - fit.posterior.log_marginal_likelihood())) < 1.0
    slope = torch.autograd.grad(fit.gp.log_marginal_likelihood(x, y), list(fit.gp.parameters()))
    assert max(float(one.abs().max()) for one in slope) < 8.0  # nats, of some 300 rows each
    assert fit.report.plan.approximation == "fourier"
    tail, *_ = of_kind(fit.events, EventKind.FOURIER_TAIL)
    assert "0.00%" not in str(Event(tail.kind, **{**tail.fields, "percent": 1.2e-4}))
    factor = sizes_of(fit.posterior.state.grid).factor_bytes
    assert fit.report.peak_bytes > factor > 0.3 * fit.report.plan.training_bytes
    assert fit.verdict.findings is not None
    assert fit.posterior.can("component") is None


def test_rows_that_are_read_are_fitted_in_passes() -> None:
    x, y = _rows(700, 1)
    batches = list(zip(x.split(200), y.split(200), strict=True))
    gp = fgp.GP(1.0 * k.Matern(nu=2.5))
    read = fgp.fit(gp, batches, approximation="fourier", progress=False, settings=FEW)
    held = fgp.fit(gp, x, y, approximation="fourier", progress=False, settings=FEW)
    x_test = _rows(20, 1, seed=1)[0]
    one, two = (fit.posterior.predict(x_test) for fit in (read, held))
    assert float((one.mean - two.mean).abs().max()) < 0.02
    assert read.posterior.state.held is None
    given = read.posterior.leave_out(x[5:50], y[5:50])
    whole = read.gp.condition(x, y, approximation="fourier").leave_one_out()
    torch.testing.assert_close(given.mean, whole.mean[5:50], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(given.variance, whole.variance[5:50], rtol=1e-6, atol=1e-6)


def test_the_time_limit_of_a_fit_is_not_that_of_later_questions() -> None:
    x, y = _rows(60, 1)
    gp = fgp.GP(1.0 * k.Matern(nu=2.5, lengthscale=0.4))
    fit = fgp.fit(gp, x, y, approximation="fourier", progress=False, time_limit=600.0)
    assert fit.posterior.state.weights.system.deadline is NO_DEADLINE


def test_auto_leaves_series_where_the_sample_says_that_they_are_slow() -> None:
    """Little noise takes many more frequencies than were planned: full scale goes on from where the first rows are."""
    x, gp = _rows(2500, 2)[0], fgp.GP(1.0 * k.Matern(nu=1.5))
    data = Data.of(gp, x, (8.0 * x[:, 0]).sin().abs() + x[:, 1])
    run = Run(deadline=Deadline(2.0, 2.0, Clock(0.03)))  # too little for an exact plan
    fit = fit_as(gp, data, FitOptions(1, max_iterations=3, run=run), Approximation("auto"))
    (event,) = of_kind(fit.report.events, EventKind.SERIES_LEFT)
    assert event.fields["seconds"] > event.fields["other_seconds"]


@pytest.mark.parametrize("columns", [[0, 1], [1, 1]])
def test_a_constant_column_takes_no_frequencies(columns: list[int]) -> None:
    """One lengthscale of both columns is expected to be a part of the range of what varies."""
    x, y = _rows(80, 1)
    x = torch.cat([x, torch.full_like(x, 2.0)], 1)[:, columns]
    fit = fgp.fit(fgp.GP(1.0 * k.Matern(nu=2.5)), x, y, approximation="fourier", progress=False, settings=FEW)
    exact = fit.gp.condition(x, y).predict(x[:5])
    torch.testing.assert_close(fit.posterior.predict(x[:5]).mean, exact.mean, rtol=0.0, atol=0.02)


def test_series_are_left_at_the_pace_of_their_first_solve() -> None:
    """(M-437): where solves take more iterations than were priced, before the search has spent them."""
    x, y = _rows(600, 2)
    gp = fgp.GP(k.Matern(nu=1.5, lengthscale=0.05), likelihood=fgp.likelihoods.Gaussian(0.01))
    rival = replace(fgp.plan(gp, n=600, d=2, approximation="full_scale"), fit_seconds=1e5)
    engine = FourierFit(gp, Held(x, y), FitOptions(), Approximation("fourier"), rival)
    recorder, theta = Recorder(EvaluationLog(None, "")), LogJoint(engine.problem).parameters.values()
    objective = engine._objective(recorder, 600, theta)
    assert objective.estimate is not None
    pace, seen = objective.paced, list[float]()
    objective.paced = seen.append
    objective(theta)
    objective(theta)
    (seconds,) = seen
    pace(seconds)
    with pytest.raises(EngineLeft) as left:
        pace(1e6)
    assert left.value.event.fields["seconds"] > 1e5


def test_a_plan_prices_a_pass_and_frequencies() -> None:
    """(M-437): time grows with the rows by the pass alone."""
    gp = fgp.GP(k.Matern())
    few, many = (fgp.plan(gp, n=n, d=2, approximation="fourier") for n in (10**5, 10**7))
    assert few.fit_step_seconds == many.fit_step_seconds
    assert few.seconds < many.seconds < 100.0
    assert "frequencies" in str(few)
    assert few.to_json() == type(few).from_json(few.to_json()).to_json()
    shared = fgp.plan(gp, n=10**7, d=2, approximation="fourier", ranks=4)
    assert few.seconds < shared.seconds < 0.5 * many.seconds
    assert shared.peak_bytes < many.peak_bytes
    assert 0 < shared.shared.sent_bytes < shared.shared.fit_sent_bytes
    assert fgp.plan(gp, n=10**6, d=1, approximation="auto", ranks=2).approximation == "fourier"


def test_errors_of_a_solve_bound_those_of_the_mean() -> None:
    """(M-434): in standard deviations of f, anywhere."""
    x, y = _rows(800, 2)
    gp = fgp.GP(1.0 * k.Matern(nu=1.5, lengthscale=0.3), likelihood=fgp.likelihoods.Gaussian(0.05))
    x_test = _rows(50, 2, seed=1)[0]
    rough = gp.condition(x, y, approximation="fourier", tolerance=0.1)
    fine = gp.condition(x, y, approximation="fourier", tolerance=1e-6)
    error = (rough.predict(x_test).mean - fine.predict(x_test).mean).abs() / fine.predict(x_test).std
    assert float(error.max()) <= 2.0 * rough.state.weights.error + 1e-6


@torch.no_grad()
def test_a_solve_from_anywhere_errs_by_less_than_it_says() -> None:
    """(M-434), in the norm of B: also from weights that are far off in the slowest directions."""
    x, y = _rows(2000, 2)
    gp = fgp.GP(9.0 * k.Matern(nu=2.5, lengthscale=0.5), likelihood=fgp.likelihoods.Gaussian(0.05))
    weights = gp.condition(x, y, approximation="fourier").state.weights
    system = replace(weights.system, settings=SolveSettings(dense=10, block=600))
    grid, exact = system.grid, WeightPosterior.of(weights.sums, system, 1e-6)
    start = grid.normal(1, torch.Generator().manual_seed(0)) / system.diagonal
    for scale in (0.0, 1.0, 1e3):
        found = WeightPosterior.of(weights.sums, system, 0.5, scale * start)
        apart = found.solution.value - exact.solution.value
        error = float(grid.dot(apart, system(apart)).sqrt())
        assert found.error <= 0.5
        assert error <= found.error + 1e-4
        assert abs(float(found.quadratic - exact.quadratic)) <= error**2 + 1e-4


@pytest.mark.parametrize("name", ["row_variance", "row_weight"])
def test_rows_of_their_own_noise_and_a_mean_that_moves_are_fitted(name: str) -> None:
    """By passes, to where exact inference of all rows has no slope."""
    x, y = _rows(700, 1)
    each = 0.02 + torch.rand(700, generator=torch.Generator().manual_seed(2), dtype=F64)
    likelihood = fgp.likelihoods.Gaussian(0.1, **{name: each})
    gp = fgp.GP(1.0 * k.Matern(nu=2.5), fgp.means.Linear(torch.zeros(1, dtype=F64)), likelihood)
    options: dict[str, Any] = {"starts": 1, "priors": "given", "settings": FEW, "progress": False}
    fit = fgp.fit(gp, x, y + 20.0 * x[:, 0], approximation="fourier", **options)
    exact = fit.gp.log_marginal_likelihood(x, y + 20.0 * x[:, 0])
    slope = torch.autograd.grad(exact, list(fit.gp.parameters()))
    assert max(float(one.abs().max()) for one in slope) < 1.5  # nats, of some 300 rows each
    assert abs(float(exact.detach() - fit.posterior.log_marginal_likelihood())) < 1.0


def test_rows_that_are_read_take_series_where_these_are_much_quicker() -> None:
    """By a plan that knows their range from the first pass, which is not made again; else inducing points."""
    gp, settings = fgp.GP(1.0 * k.Matern(nu=2.5)), PlanSettings(memory="64GiB", profile=BUILT_IN)

    def taken(rows: RowCounts, limit: float | None = None, asked: Any = None) -> tuple[str, Any]:
        one, plan, event, points = Choice(gp, rows, settings, limit).decided_of_read(asked or Approximation("auto"))
        assert points.approximation == "sparse"
        assert (event is None) == (one.kind == "sparse")
        return one.kind, plan.no_series

    assert taken(RowCounts(10**7, 1, extent=(3.0,))) == ("fourier", None)
    assert taken(RowCounts(10**7, 1, extent=(3.0,)), 60.0) == ("fourier", None)
    assert taken(RowCounts(10**7, 3, extent=(3.0,) * 3)) == ("sparse", NoSeries.SLOWER)  # no factor
    assert taken(RowCounts(500, 1, extent=(3.0,))) == ("sparse", NoSeries.SLOWER)
    assert taken(RowCounts(10**7, 4, extent=(3.0,) * 4)) == ("sparse", NoSeries.COLUMNS)

    x, y = _rows(40_000, 1)
    passes = list[int]()

    class Counted(list):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            passes.append(1)
            return super().__iter__()

    rows = Counted(zip(x.split(9000), y.split(9000), strict=True))
    fit = fgp.fit(gp, rows, progress=False, starts=1, settings=FEW)
    chosen = len(passes)
    named = fgp.fit(gp, rows, progress=False, starts=1, settings=FEW, approximation="fourier")
    (event,) = of_kind(fit.report.events, EventKind.APPROXIMATION_CHOSEN)
    assert event.fields["reason"] == ApproximationReason.READ
    assert event.fields["fourier_seconds"] * 3.0 < event.fields["sparse_seconds"]
    likelihood = named.posterior.log_marginal_likelihood()  # equal up to the order in which transforms add
    torch.testing.assert_close(fit.posterior.log_marginal_likelihood(), likelihood, rtol=1e-9, atol=0.0)
    assert chosen == len(passes) - chosen
    assert of_kind(gp.condition([*rows] * 25).report.events, EventKind.FOURIER)  # of a million rows
    assert fit.verdict.explained.value > 0.5
    assert gp.condition(rows[:1], inducing=5).can("bound") is None
