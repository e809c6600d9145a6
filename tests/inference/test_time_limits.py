"""A time limit holds for the whole call, on every route: by a clock that only the work of these tests moves."""

import dataclasses
import warnings
from typing import Any

import numpy
import pytest
import torch

import flashgp as fgp
from clocks import Clock
from flashgp.foundations.deadline import Deadline
from flashgp.foundations.events import Event, EventKind, of_kind
from flashgp.inference.approximation import Approximation
from flashgp.inference.data import Data
from flashgp.inference.exact.condition import condition
from flashgp.inference.fit import fit_as
from flashgp.inference.run import Run
from flashgp.inference.settings import ConditionSettings, TimeSettings
from flashgp.inference.training.exact_fit import fit_exact
from flashgp.inference.training.fit import Fitted
from flashgp.inference.training.history import Progress
from flashgp.inference.training.objective import Evaluation, LogJoint
from flashgp.inference.training.options import FitOptions, FitSettings
from flashgp.inference.training.settings import SearchSettings
from flashgp.inference.training.stochastic_objective import EstimatedLogJoint
from inference.training.tables import FEW_ROWS, prior, table

F64 = torch.float64
ROWS = 700
TIME = TimeSettings(min_rows=100, negligible_seconds=0.0)
pytestmark = [
    pytest.mark.filterwarnings("ignore::flashgp.FlashGPWarning"),
    pytest.mark.usefixtures("one_thread"),  # others that keep a core busy then change nothing
]


def slow(clock: Clock, seconds: float) -> FitSettings:
    """Evaluations that take so long on all rows, exact or estimated."""

    class Slow(LogJoint):
        def __call__(self, theta: numpy.ndarray) -> Evaluation:
            clock.now += seconds * (self.rows / ROWS) ** 3
            return super().__call__(theta)

    class SlowEstimates(EstimatedLogJoint):
        def __call__(self, theta: numpy.ndarray) -> Evaluation:
            clock.now += seconds * (self.rows / ROWS) ** 2
            return super().__call__(theta)

    return FitSettings(
        search=SearchSettings(start_rows=60), stochastic=FEW_ROWS, objective=Slow, estimated=SlowEstimates, time=TIME
    )


ROUTES: dict[str, dict[str, Any]] = {
    "factor": {"route": "direct"},
    "float32 factor": {"route": "refined"},
    "iterations": {"route": "stored"},
}


def fitted(route: str, limit: float, evaluation: float, posterior: float, **options: Any) -> tuple[Fitted, Clock]:
    x, y = table(ROWS)
    clock, gp = Clock(), prior()
    plan = fgp.plan(gp, n=ROWS, d=3, **ROUTES[route])
    plan = dataclasses.replace(plan, seconds=posterior, fit_step_seconds=evaluation)
    asked = FitOptions(
        run=Run(deadline=Deadline.after(limit, clock)),
        starts=1,
        max_iterations=10,
        plan=plan,
        settings=slow(clock, evaluation),
        **options,
    )
    return fit_exact(gp, Data.of(gp, x, y), asked), clock


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    ("posterior", "evaluation", "limit"),
    [
        (0.01, 0.5, 0.2),
        (0.01, 100.0, 5.0),
        (1.0, 0.5, 2.0),
        (1.0, 100.0, 0.2),
        (1000.0, 0.5, 5.0),
        (1000.0, 100.0, 2.0),
    ],
)
def test_a_fit_ends_in_time(route: str, limit: float, evaluation: float, posterior: float) -> None:
    """The search, and a posterior of all rows where that is planned to fit, else of as many as a factor can have.

    Seen red without either question: whether an evaluation, and whether the posterior, would end too late.
    """
    found, clock = fitted(route, limit, evaluation, posterior)
    parts = of_kind(found.report.events, EventKind.POSTERIOR_OF_PART)
    quick = of_kind(found.report.events, EventKind.FACTOR_ON_TIME)  # of all rows after all
    whole = not parts and not quick
    planned = posterior if route != "iterations" else TIME.min_solve * posterior
    assert clock.now <= limit, "the search alone"
    assert clock.now + (planned if whole else 0.0) <= 1.1 * limit + 2.0
    if parts:
        assert parts[0].fields == {"rows": found.state.count, "of": ROWS, "limit": limit}
        assert 100 <= found.state.count < ROWS
    elif whole:
        assert planned <= 1.1 * limit + 2.0
    assert bool(parts) == (found.state.count < ROWS)
    # The clock stands still in a solve, whose own seconds are real: some milliseconds, more beside other work.
    if posterior <= 0.75 * limit and limit - clock.now > 0.1:
        assert whole, "a search leaves as much as the posterior takes"
    ended = of_kind(found.report.events, EventKind.FIT_TIME_UP)
    assert found.interrupted == bool(ended)
    starts = of_kind(found.report.events, EventKind.SUBSET_FIT)
    assert starts or all(entry.start.startswith("subset") for entry in found.history)
    if ended and found.history and not starts:
        assert {"fitted": 60, "rows": ROWS}.items() <= ended[0].fields.items()
        assert f"ended the fit, on 60 of {ROWS} rows: the best" in str(ended[0])
    if not found.history:
        assert not starts, "none was fitted"
    assert found.state.residual.isfinite().all()


def test_a_search_leaves_as_much_as_the_posterior_takes() -> None:
    """Up to three quarters. Seen red with a half, whatever it takes."""
    found, clock = fitted("factor", 20.0, 5.0, 14.0)
    assert clock.now <= 6.0
    assert found.interrupted
    assert found.state.count == ROWS
    assert not of_kind(found.report.events, EventKind.POSTERIOR_OF_PART)


def test_without_time_for_an_evaluation_the_data_say_what_the_parameters_are() -> None:
    """Not the values that the prior came with, which may be far from any data; and a finding says so."""
    x, y = table(ROWS)
    x, y, x_test, y_test = x[:500], y[:500], x[500:], y[500:]
    far = fgp.GP(1e6 * fgp.kernels.Matern(nu=1.5, lengthscale=torch.full((3,), 1e-3, dtype=torch.float64)))
    clock = Clock()
    options = FitOptions(run=Run(deadline=Deadline(1.0, 1.0, clock)), settings=FitSettings(time=TIME))
    clock.now = 2.0  # reading the table took longer
    found = fit_exact(far, Data.of(far, x, y), options)
    assert not found.history
    (event,) = of_kind(found.report.events, EventKind.FIT_TIME_UP)
    assert event.fields == {"limit": 1.0, "unfitted": True}
    assert "the parameters are those that it began with" in str(event)
    error = fgp.Posterior(found.state).predict(x_test).mean - y_test
    assert float(error.square().mean()) < 0.5 * float(y.var())


@pytest.mark.parametrize("outputs", [None, 2])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_a_posterior_of_some_rows_is_that_of_them(outputs: int | None, batch: tuple[int, ...]) -> None:
    x, y = table(300, 3, outputs)
    x, y = (t.expand(*batch, *t.shape).clone() for t in (x, y))
    gp = prior(outputs=outputs)
    plan = dataclasses.replace(fgp.plan(gp, n=300, d=3, batch=len(x) if batch else 1, route="direct"), seconds=1e6)
    settings = ConditionSettings(run=Run(deadline=Deadline(0.0, 0.0, Clock())), plan=plan, time=TIME)
    with pytest.warns(fgp.FlashGPWarning, match="this one is of 100 random ones"):
        state = condition(gp, Data.of(gp, x, y), settings)
    rows = torch.randperm(300, generator=torch.Generator().manual_seed(0))[:100].sort().values
    wanted = gp.condition(x[..., rows, :], y[..., rows] if outputs is None else y[..., rows, :])
    assert torch.equal(state.x, wanted.x)
    assert torch.equal(state.representer_weights, wanted.representer_weights)


def test_rows_with_variances_of_their_own_keep_them() -> None:
    x, y = table(300)
    variance = torch.linspace(0.01, 1.0, 300, dtype=torch.float64)
    gp = fgp.GP(prior().kernel, likelihood=fgp.likelihoods.Gaussian(row_variance=variance))
    plan = dataclasses.replace(fgp.plan(gp, n=300, d=3, route="direct"), seconds=1e6)
    state = condition(
        gp, Data.of(gp, x, y), ConditionSettings(run=Run(deadline=Deadline(0.0, 0.0, Clock())), plan=plan, time=TIME)
    )
    rows = torch.randperm(300, generator=torch.Generator().manual_seed(0))[:100].sort().values
    assert torch.equal(state.prior.likelihood.row_variance, variance[rows])


def test_a_posterior_of_some_rows_says_what_was_made_of_all() -> None:
    """Seen red: that the targets came in half precision was not said."""
    x, y = table(300)
    plan = dataclasses.replace(fgp.plan(prior(), n=300, d=3, route="direct"), seconds=1e6)
    settings = ConditionSettings(run=Run(deadline=Deadline(0.0, 0.0, Clock())), plan=plan, time=TIME)
    events = condition(prior(), Data.of(prior(), x, y.half()), settings).report.events
    assert [event.kind for event in events[:2]] == [EventKind.HALF_PRECISION, EventKind.POSTERIOR_OF_PART]
    assert len(events) == len(set(events))


def test_rows_whose_factor_takes_no_time_are_taken_however_late_it_is() -> None:
    x, y = table(ROWS)
    plan = dataclasses.replace(fgp.plan(prior(), n=ROWS, d=3, route="direct"), seconds=1e6)
    late = ConditionSettings(run=Run(deadline=Deadline(1.0, -1e9, Clock())), plan=plan, time=TimeSettings(min_rows=100))
    with warnings.catch_warnings():
        warnings.simplefilter("error", fgp.FlashGPWarning)  # nothing is lost
        state = condition(prior(), Data.of(prior(), x, y), late)
    assert state.count == ROWS
    assert state.report.events == [Event(EventKind.FACTOR_ON_TIME, limit=1.0)]
    none = dataclasses.replace(late, time=TIME)
    assert condition(prior(), Data.of(prior(), x, y), none).count == 100


def test_few_rows_are_taken_whole_however_short_the_time() -> None:
    x, y = table(90)
    post = prior().condition(x, y, time_limit=0)
    assert post.count == 90
    assert not of_kind(post.report.events, EventKind.POSTERIOR_OF_PART)


def test_a_float32_factor_that_fails_late_leaves_no_error() -> None:
    """There is no time for a float64 one of all rows then. Seen red as NotPositiveDefiniteError."""
    x, y = table(300)
    gp = fgp.GP(fgp.kernels.RBF(3.0), fgp.means.Zero(), fgp.likelihoods.Gaussian(1e-9))
    plan = fgp.plan(gp, n=300, d=3, route="refined")
    costly = tuple(dataclasses.replace(other, seconds=1e6) for other in plan.alternatives)
    plan = dataclasses.replace(plan, seconds=0.01, alternatives=costly)
    state = condition(
        gp, Data.of(gp, x, y), ConditionSettings(run=Run(deadline=Deadline(1.0, 0.0, Clock())), plan=plan, time=TIME)
    )
    assert state.count == 100
    assert state.report.route == "direct"


def test_iterations_that_are_worse_than_fewer_rows_give_way_to_them() -> None:
    """While there is time for a factor: the mean of a solve with a residual of 0.5 is worse than that of a quarter of
    the rows. Seen red: the posterior had all rows, and an error three times as large.
    """
    x, y = table(ROWS, noise=1e-4)
    gp = prior(noise=1e-4)
    plan = dataclasses.replace(fgp.plan(gp, n=ROWS, d=3, route="recomputed"), rank=0, seconds=0.0)
    clock = Clock()

    def slowly(step: Any) -> None:
        clock.now += 1.0

    def conditioned(limit: float) -> Any:
        clock.now = 0.0
        settings = ConditionSettings(
            run=Run(deadline=Deadline(limit, limit, clock)),
            plan=plan,
            progress=slowly,
            time=dataclasses.replace(TIME, growth=1e9),
        )
        return condition(gp, Data.of(gp, x, y), settings)

    assert conditioned(3.0).count == 100
    longer = conditioned(60.0)
    assert longer.count == ROWS


def test_a_refined_posterior_keeps_its_rows() -> None:
    """A stream's window must not shrink. Seen red with 400 of them."""
    x, y = table(2500)
    post = prior().condition(x, y)
    refined = post.refine(3, time_limit=0)
    assert refined.count == 2500


@pytest.mark.parametrize("approximation", [None, "full_scale", "sparse"])
def test_few_rows_without_noise_do_not_decide_for_all(approximation: str | None) -> None:
    """Copies among few rows say that there is no noise; one pair of all rows says that there is. Where the time ends
    between both, what the search began with is better than what it found: seen red, 1.7e9 nats behind."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(600, 11, generator=generator, dtype=F64)
    y = torch.round(1.2 * torch.sin(x[:, 0]) + 0.8 * torch.randn(600, generator=generator, dtype=F64))
    x, y = torch.cat([x, x[:200], x[-1:]]), torch.cat([y, y[:200], y[-1:] + 1.0])
    clock = Clock()

    def late_after_few_rows(step: Progress) -> None:
        clock.now = 1.05 if step.evaluation >= 28 else 0.0

    gp = fgp.GP(1.0 * fgp.kernels.Matern(nu=1.5, lengthscale=torch.ones(11, dtype=F64)))
    options = FitOptions(starts=1, run=Run(deadline=Deadline(1.0, 1.0, clock)), progress=late_after_few_rows)
    asked = (
        None
        if approximation is None
        else Approximation(approximation, 16, 8 if approximation == "full_scale" else "auto")
    )
    found = fit_as(gp, Data.of(gp, x, y), options, asked)
    (event,) = of_kind(found.report.events, EventKind.SEARCH_LEFT)
    assert event.fields["gain"] > 1e4
    assert found.gp.likelihood.noise_variance.value > 0.05
    assert not of_kind(found.report.events, EventKind.ON_BOUND)
    least = -4000.0 if approximation == "sparse" else -1100.0  # 16 points for rows of 11 columns
    assert float(found.posterior.log_marginal_likelihood()) > least
