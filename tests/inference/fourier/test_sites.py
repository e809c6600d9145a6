"""Likelihoods whose sites are found by iteration, by Fourier series, (M-449): beside exact inference, and laws."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy
import pytest
import torch
from torch import Tensor

import flashgp as fgp
from clocks import Clock
from flashgp.foundations.deadline import NO_DEADLINE, Deadline
from flashgp.foundations.errors import DomainError
from flashgp.foundations.events import EventKind, of_kind
from flashgp.inference.approximation import Approximation
from flashgp.inference.exact.likelihood import DirectSettings
from flashgp.inference.fourier.condition import condition, grid_for
from flashgp.inference.fourier.pass_objective import FourierPassLogJoint
from flashgp.inference.fourier.passes import sums_at
from flashgp.inference.fourier.row_objective import FourierRowLogJoint
from flashgp.inference.fourier.spectrum import GridSettings
from flashgp.inference.fourier.state import FourierSettings
from flashgp.inference.fourier.system import SolveSettings
from flashgp.inference.run import Run
from flashgp.inference.settings import ConditionSettings
from flashgp.inference.sites import IteratedSites, SiteSettings
from flashgp.inference.streamed.rows import survey_of
from flashgp.inference.training.objective import Problem
from flashgp.inference.training.options import FitSettings
from flashgp.inference.training.settings import StochasticSettings
from flashgp.likelihoods import Likelihood
from flashgp.pairwise.torch.tiles import TorchTiles
from flashgp.sources.source import Batches, Held
from inference.iterated import Iterated

F64 = torch.float64
k, l = fgp.kernels, fgp.likelihoods  # noqa: E741
N = 150
COUNTS = torch.arange(N) % 5 + 1.0


def _table(n: int = N, d: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """x, a function at it, and points."""
    generator = torch.Generator().manual_seed(d)
    x = torch.rand(n, d, generator=generator, dtype=F64)
    return x, 1.5 * torch.sin(7.0 * x[:, 0]) + x.sum(1) - 0.5, torch.rand(20, d, generator=generator, dtype=F64)


def _gp(likelihood: Likelihood, d: int = 1, lengthscale: float = 0.4) -> fgp.GP:
    kernel = 2.0 * k.Matern(nu=2.5, lengthscale=torch.full((d,), lengthscale, dtype=F64))
    return fgp.GP(kernel, fgp.means.Constant(0.2), likelihood)


LIKELIHOODS = [
    l.Bernoulli(), l.Poisson(), l.NegativeBinomial(), l.Binomial(trials=COUNTS), l.Gamma(), l.Beta(),
    l.StudentT(4.0, 0.1), l.Ordinal(4),
]  # fmt: skip


def _targets(likelihood: Likelihood, f: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    own = likelihood if isinstance(likelihood, l.StudentT) else likelihood.with_rows()
    if isinstance(likelihood, l.Binomial):
        return torch.binomial(COUNTS.double(), torch.sigmoid(f), generator=generator)
    return own.predictive(f, torch.full_like(f, 1e-4)).sample(generator).detach()


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=lambda one: one.name)
def test_posteriors_are_those_of_exact_inference(likelihood: Likelihood) -> None:
    x, f, at = _table()
    gp, y = _gp(likelihood), _targets(likelihood, f)
    post, exact = gp.condition(x, y, approximation="fourier"), gp.condition(x, y)
    found, known = post.predict(at), exact.predict(at)
    assert float(((found.mean - known.mean) / known.variance.sqrt()).abs().max()) < 0.02
    torch.testing.assert_close(found.variance, known.variance, rtol=0.01, atol=0.0)
    assert float(post.log_marginal_likelihood()) == pytest.approx(float(exact.log_marginal_likelihood()), abs=0.05)
    one, other = post.leave_one_out().log_prob, exact.leave_one_out().log_prob
    torch.testing.assert_close(one, other, rtol=0.0, atol=0.02)
    (event,) = of_kind(post.report.events, EventKind.SITES)
    assert event.fields["moved"] < 1e-4


def test_gaussian_noise_by_sites_is_regression() -> None:
    x, f, at = _table(300, 2)
    y = f + 0.3 * torch.randn(300, generator=torch.Generator().manual_seed(1), dtype=F64)
    posts = [_gp(one(0.09), 2, 0.6).condition(x, y, approximation="fourier") for one in (Iterated, l.Gaussian)]
    one, other = (post.predict(at) for post in posts)
    torch.testing.assert_close(one.mean, other.mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(one.variance, other.variance, rtol=1e-5, atol=0.0)
    values = [float(post.log_marginal_likelihood()) for post in posts]
    assert values[0] == pytest.approx(values[1], abs=1e-3)
    left = [post.leave_one_out().log_prob for post in posts]
    torch.testing.assert_close(left[0], left[1], rtol=1e-4, atol=1e-4)


def test_weights_are_repeated_rows() -> None:
    x, f, at = _table(80)
    y, times = (f > 0.0).double(), torch.arange(80) % 3 + 1
    weighted = _gp(l.Bernoulli(row_weight=times.double())).condition(x, y, approximation="fourier").predict(at)
    many = [t.repeat_interleave(times, 0) for t in (x, y)]
    repeated = _gp(l.Bernoulli()).condition(*many, approximation="fourier").predict(at)
    torch.testing.assert_close(weighted.mean, repeated.mean, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(weighted.variance, repeated.variance, rtol=2e-3, atol=0.0)


def _objective(gp: fgp.GP, x: Tensor, y: Tensor) -> FourierRowLogJoint:
    how = FourierSettings()
    sites = IteratedSites.of(gp, x, y, SiteSettings(search=1e-9))
    problem = Problem(gp, x, y, DirectSettings(TorchTiles()), sites=sites)
    survey = survey_of(gp, Held(x, y), Approximation("fourier"), 0)
    return FourierRowLogJoint(problem, grid_for(problem.with_sites, survey, how, search=True), how, 0)


@pytest.mark.parametrize("name", ["labels", "rows"])
def test_gradients_are_slopes_of_the_bound(name: str) -> None:
    """(M-449), by sites that settle anew at every vector, and by known variances and a mean that is not constant."""
    x, f, _ = _table(120, 2)
    likelihood = l.Bernoulli() if name == "labels" else l.Gaussian(0.1, row_variance=0.2 * x[:, 0])
    gp = _gp(likelihood, 2, 0.6)
    gp = gp if name == "labels" else fgp.GP(gp.kernel, fgp.means.Linear(torch.ones(2, dtype=F64)), likelihood)
    objective = _objective(gp, x, (f > 0.0).double() if name == "labels" else f)
    theta = objective.parameters.values()
    found, slopes = objective(theta).gradient, []
    for step in 1e-4 * numpy.eye(len(theta)):
        above, below = objective(theta + step).value, objective(theta - step).value
        assert above is not None
        assert below is not None
        slopes.append((above - below) / 2e-4)
    numpy.testing.assert_allclose(found, slopes, rtol=1e-4, atol=1e-4 * float(numpy.abs(slopes).max()))


def test_marginals_without_a_factor_are_near_those_by_one() -> None:
    """By draws; steps have no value then."""
    x, f, _ = _table(200, 2)
    one = _objective(_gp(l.Bernoulli(), 2, 0.6), x, (f > 0.0).double())
    few = replace(one.settings, solves=SolveSettings(dense=20, block=50, share=2))
    other = FourierRowLogJoint(one.problem, one.grid, few, 0)
    (value, known), (unknown, found) = one.marginals(), other.marginals()
    assert value is not None
    assert unknown is None
    assert float(((found.mean - known.mean) / known.variance.sqrt()).abs().max()) < 0.05
    assert float((found.variance / known.variance).log().abs().mean()) < 0.25
    assert other.settled(tolerance=10.0) is not None


def test_a_fit_of_labels_comes_to_where_an_exact_one_does(tmp_path: Path) -> None:
    x, f, at = _table(900)
    y = (torch.rand(900, generator=torch.Generator().manual_seed(2), dtype=F64) < torch.sigmoid(2.0 * f)).double()
    gp = fgp.GP(1.0 * k.Matern(nu=2.5), likelihood=l.Bernoulli())
    fit = fgp.fit(gp, x, y, approximation="fourier", progress=False)
    exact = fgp.fit(gp, x, y, progress=False)
    values = [float(one.posterior.log_marginal_likelihood()) for one in (fit, exact)]
    assert values[0] == pytest.approx(values[1], abs=0.5)
    one, other = fit.posterior.predict(at), exact.posterior.predict(at)
    torch.testing.assert_close(one.observation_mean, other.observation_mean, rtol=0.0, atol=0.02)
    assert fit.verdict.findings is not None
    fgp.save(fit.posterior, tmp_path / "model.fgp")
    again = fgp.load(tmp_path / "model.fgp")
    torch.testing.assert_close(again.predict(at).observation_mean, one.observation_mean)
    assert float(again.log_marginal_likelihood()) == pytest.approx(values[0], rel=1e-9)
    torch.testing.assert_close(again.leave_one_out().log_prob, fit.posterior.leave_one_out().log_prob)


READ = [l.Bernoulli(), l.NegativeBinomial(), l.Poisson(exposure=COUNTS), l.StudentT(4.0, 0.1)]


def _batches(x: Tensor, y: Tensor, numbers: dict[str, Tensor]) -> list[tuple[object, ...]]:
    rows = list(zip(x.split(40), y.split(40), strict=True))
    parts = [{name: each.split(40)[i] for name, each in numbers.items()} for i in range(len(rows))]
    return [(*row, part) if part else row for row, part in zip(rows, parts, strict=True)]


@pytest.mark.parametrize("likelihood", READ, ids=lambda one: one.name)
def test_rows_that_are_read_give_what_rows_that_are_held_do(likelihood: Likelihood) -> None:
    """(M-453): of a row nothing is kept, and its site is where one that is kept settles, by the variational bound."""
    x, f, at = _table()
    y = _targets(likelihood, f)
    held = likelihood.by_method("variational") if "variational" in likelihood.methods else likelihood
    one = _gp(held).condition(x, y, approximation="fourier")
    rows = _batches(x, y, dict(likelihood.row_tensors))
    other = _gp(likelihood.with_rows()).condition(rows, approximation="fourier")
    known, found = one.predict(at), other.predict(at)
    assert float(((found.mean - known.mean) / known.variance.sqrt()).abs().max()) < 2e-3
    torch.testing.assert_close(found.variance, known.variance, rtol=5e-3, atol=0.0)
    value = float(one.log_marginal_likelihood())
    assert float(other.log_marginal_likelihood()) == pytest.approx(value, abs=2e-3)
    (event,) = of_kind(other.report.events, EventKind.SITES)
    assert event.fields["moved"] < 1e-4
    assert other.can("leave_one_out") is not None
    left = other.leave_out(x[:9], y[:9], **{name: each[:9] for name, each in likelihood.row_tensors.items()})
    torch.testing.assert_close(left.log_prob, one.leave_one_out().log_prob[:9], rtol=0.0, atol=2e-3)
    assert other.can("importance") is not None


def _pass_objective(likelihood: Likelihood, mean: torch.nn.Module) -> FourierPassLogJoint:
    x, f, _ = _table(40)
    gp = fgp.GP(_gp(likelihood, 1, 0.6).kernel, mean, likelihood)
    coarse = GridSettings(tail=(1.0, 1.0, 1.0), finer=())  # so that much is left to the tail
    how, tight = replace(FourierSettings.of(likelihood), grid=coarse), SiteSettings(search=1e-8)
    survey = survey_of(gp, Batches([(x, _targets(likelihood, f))]), Approximation("fourier"), 0)
    sites = IteratedSites.of(gp, survey.x, survey.y, tight)
    problem = Problem(gp, survey.x, survey.y, DirectSettings(TorchTiles()), sites=sites)
    grid = grid_for(gp, survey, how)
    return FourierPassLogJoint(problem, gp, survey, grid, how, 0)


@pytest.mark.parametrize(
    ("likelihood", "mean"),
    [(l.NegativeBinomial(), fgp.means.Constant(0.2)), (l.Poisson(), fgp.means.Linear(torch.ones(1, dtype=F64)))],
)
def test_gradients_of_passes_are_slopes_of_the_bound(likelihood: Likelihood, mean: torch.nn.Module) -> None:
    """(M-454) and (M-455), with a parameter of the likelihood, by sites that settle anew at every vector."""
    objective = _pass_objective(likelihood, mean)
    theta = objective.parameters.values()
    found = objective(theta)
    assert found.value is not None
    assert objective.values is not None
    assert objective.values.tail > 1e-3
    values, of = objective.values, (objective.problem.prior, objective._survey, objective.grid)
    bound = values.bound(values.having(sums_at(*of, values.tail, values, NO_DEADLINE)))
    prior = objective.priors.value_and_gradient(theta)[0]
    assert -found.value - prior == pytest.approx(bound, abs=1e-6)
    towards = numpy.random.default_rng(0).standard_normal(len(theta))
    above, below = (objective(theta + step * towards).value for step in (1e-4, -1e-4))
    assert above is not None
    assert below is not None
    assert float(found.gradient @ towards) == pytest.approx((above - below) / 2e-4, rel=1e-4, abs=1e-3)


def test_a_fit_of_rows_that_are_read_is_that_of_held_ones(tmp_path: Path) -> None:
    x, f, at = _table(900)
    y = _targets(l.Poisson(), f)
    gp = fgp.GP(1.0 * k.Matern(nu=2.5), likelihood=l.Poisson())
    few = FitSettings(stochastic=StochasticSettings(first_rows=100))
    how = {"approximation": "fourier", "progress": False, "settings": few}
    fit, held = fgp.fit(gp, _batches(x, y, {}), **how), fgp.fit(gp, x, y, **how)
    values = [float(one.posterior.log_marginal_likelihood()) for one in (fit, held)]
    assert values[0] == pytest.approx(values[1], abs=0.1)
    one, other = fit.posterior.predict(at), held.posterior.predict(at)
    assert float(((one.mean - other.mean) / other.std).abs().max()) < 0.05
    assert fit.verdict.findings is not None
    fgp.save(fit.posterior, tmp_path / "model.fgp")
    again = fgp.load(tmp_path / "model.fgp")
    torch.testing.assert_close(again.predict(at).observation_mean, one.observation_mean)
    assert float(again.log_marginal_likelihood()) == pytest.approx(values[0], rel=1e-9)


@pytest.mark.parametrize("kind", ["held", "read"])
@pytest.mark.parametrize(
    "likelihood", [l.Bernoulli(), l.Poisson(exposure=COUNTS), l.Poisson(row_weight=COUNTS)], ids=lambda one: one.name
)
def test_rows_that_join_are_as_if_they_had_been_there(likelihood: Likelihood, kind: str, tmp_path: Path) -> None:
    """(M-444): to second order in how far q(f) moves; nothing where they say next to nothing."""
    x, f, at = _table()
    y, few = _targets(likelihood, f), torch.arange(N) < N - 10
    numbers = dict(likelihood.row_tensors)

    def conditioned(rows: Tensor) -> fgp.Posterior:
        if kind == "held":
            return _gp(likelihood.rows(rows.nonzero()[:, 0])).condition(x[rows], y[rows], approximation="fourier")
        batches = _batches(x[rows], y[rows], {name: each[rows] for name, each in numbers.items()})
        return _gp(likelihood.with_rows()).condition(batches, approximation="fourier")

    whole, before = conditioned(torch.ones(N, dtype=torch.bool)), conditioned(few)
    more = {name: each[~few] for name, each in numbers.items()}
    after = before.append(x[~few], y[~few], **more)
    assert after.count == N
    one, other, first = (post.predict(at) for post in (after, whole, before))
    moved = float(((first.mean - other.mean) / other.std).abs().max())
    assert float(((one.mean - other.mean) / other.std).abs().max()) < min(0.05, 0.2 * moved)
    torch.testing.assert_close(one.variance, other.variance, rtol=0.06, atol=0.0)
    assert after.can("log_marginal_likelihood") is not None  # sites have not settled together
    assert "moved" in of_kind(after.report.events, EventKind.UPDATED)[0].fields
    fgp.save(after, tmp_path / "model.fgp")
    torch.testing.assert_close(fgp.load(tmp_path / "model.fgp").predict(at).mean, one.mean)
    if kind == "held":
        again = after.append(x[:1], y[:1], **{name: each[:1] for name, each in numbers.items()})
        assert len(again.x) == len(again.state.held.numbers["site_variance"]) == N + 1
    read = before.append(_batches(x[~few], y[~few], more))
    torch.testing.assert_close(read.predict(at).mean, one.mean)
    if "exposure" in numbers:
        with pytest.raises(DomainError, match="`exposure`"):
            before.append(x[~few], y[~few])


def test_what_has_no_sites_is_refused() -> None:
    x, f, _ = _table(60, 3)
    y = (f > 0.0).double()
    rough = fgp.GP(k.Matern(nu=1.5, lengthscale=0.1), likelihood=l.Bernoulli())
    with pytest.raises(DomainError, match="where the weights have a factor"):
        rough.condition([(x, y)], approximation="fourier")
    with pytest.raises(DomainError, match="one noise for all outputs"):
        fgp.GP(k.Matern(), likelihood=l.Categorical(3)).condition(x, y, approximation="fourier")


def test_labels_whose_weights_have_no_factor_are_left_to_another_way() -> None:
    x, f, _ = _table(700, 2)
    short = fgp.Parameter(torch.full((2,), 0.03, dtype=F64), trainable=False)
    gp = fgp.GP(1.0 * k.Matern(nu=1.5, lengthscale=short), likelihood=l.Bernoulli())
    fit = fgp.fit(gp, x, (f > 0.0).double(), approximation="fourier", progress=False, starts=1, max_iterations=5)
    (event,) = of_kind(fit.report.events, EventKind.SERIES_LEFT)
    assert event.fields["frequencies"] > 5000
    assert not of_kind(fit.posterior.report.events, EventKind.FOURIER)


def test_a_time_limit_leaves_a_posterior_of_a_part() -> None:
    x, f, at = _table(3000)
    gp = fgp.GP(1.0 * k.Matern(nu=2.5), likelihood=l.Bernoulli())
    with pytest.warns(fgp.FlashGPWarning):
        fit = fgp.fit(gp, x, (f > 0.0).double(), approximation="fourier", progress=False, time_limit=0.05)
    assert bool(fit.posterior.predict(at).variance.isfinite().all())


class _Timed(list[object]):
    """Batches that use all time up as their `last` pass begins."""

    def __init__(self, batches: list[tuple[object, ...]]) -> None:
        super().__init__(batches)
        self.clock, self.passes, self.last = Clock(), 0, 0

    def __iter__(self) -> Iterator[object]:
        self.passes += 1
        if self.passes == self.last:
            self.clock.now = 10.0
        return super().__iter__()


def test_time_that_ends_before_the_error_is_measured_loses_no_posterior() -> None:
    """The pass of the coarser grid, (M-465), is the last one."""
    x, f, at = _table(400)
    rows = _Timed(_batches(x, (f > 0.0).double(), {}))
    gp, settings = _gp(l.Bernoulli()), ConditionSettings(run=Run(deadline=Deadline(5.0, 5.0, rows.clock)))
    whole = condition(Approximation("fourier"), gp, Batches(rows), settings)
    rows.last, rows.passes = rows.passes, 0
    state = condition(Approximation("fourier"), gp, Batches(rows), settings)
    assert state.count == 400
    assert (whole.report.error_bound is None, state.report.error_bound) == (False, None)
    one, other = (fgp.Posterior(each).predict(at).mean for each in (whole, state))
    torch.testing.assert_close(one, other, rtol=0.0, atol=1e-9)
