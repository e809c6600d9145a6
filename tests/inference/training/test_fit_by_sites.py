"""Fits of likelihoods whose sites are found by iteration: the optimum of the bound (M-267), by (M-270) and (M-271)."""

import dataclasses
import math
from typing import Any

import numpy
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.errors import DomainError
from flashgp.foundations.events import EventKind
from flashgp.inference.data import Data
from flashgp.inference.exact.likelihood import DirectSettings
from flashgp.inference.full_scale.layout import layout_of
from flashgp.inference.full_scale.objective import FullScaleLogJoint
from flashgp.inference.site_methods import Marginals, Variational
from flashgp.inference.sites import Found, IteratedSites, SiteSettings, from_prior, settle_rows
from flashgp.inference.training.fisher_scoring import fisher_information
from flashgp.inference.training.fit import problem_of
from flashgp.inference.training.history import Stage
from flashgp.inference.training.objective import LogJoint, Problem
from flashgp.inference.training.options import FitOptions, FitSettings
from flashgp.likelihoods import Bernoulli, Gaussian, Poisson, PredictiveDistribution
from flashgp.likelihoods.base import Sites
from flashgp.pairwise.torch.tiles import TorchTiles
from flashgp.planner.plan import Sizes
from inference.iterated import Iterated, labels, model, table

F64 = torch.float64
NAMES = ["kernel.kernel.lengthscale", "kernel.variance", "mean.value"]  # in the order of the dense reference
FULL_SCALE = {"approximation": "full_scale", "inducing": 10, "neighbours": 60}


class Scattered(Poisson):
    """Counts whose rate has a factor of its own, e^(f + b): b is a parameter of the likelihood."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = fgp.Parameter(torch.tensor(0.3, dtype=F64), constraint=torch.distributions.constraints.real)

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        return super().expected_log_prob(y, mean + self.shift.value, variance)


def dense_bound(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The bound at log lengthscale, log variance and mean, differentiable: q is at its optimum, found without it."""
    lengthscale, variance, centre = theta[0].exp(), theta[1].exp(), theta[2]
    distance = math.sqrt(3.0) * ((x[:, None] - x[None]).square().sum(-1) + 1e-300).sqrt() / lengthscale
    k = variance * (1.0 + distance) * (-distance).exp()
    with torch.no_grad():
        m, v = (y + 0.5).log(), torch.full_like(y, 0.1)
        for _ in range(40):
            rate = (m + 0.5 * v).exp()
            targets, inverse = m + (y - rate) / rate, torch.linalg.inv(k + (1.0 / rate).diag())
            m, covariance = centre + k @ inverse @ (targets - centre), k - k @ inverse @ k
            v = covariance.diagonal()
    expected = (y * m - (m + 0.5 * v).exp() - (y + 1.0).lgamma()).sum()
    solved = torch.linalg.solve(k, (m - centre).unsqueeze(-1)).squeeze(-1)
    trace = torch.linalg.solve(k, covariance).trace()
    return expected - 0.5 * (trace + (m - centre) @ solved - len(y) + k.logdet() - covariance.logdet())


def log_joint(gp: fgp.GP, x: Tensor, y: Tensor) -> LogJoint:
    sites = IteratedSites.of(gp, x, y, SiteSettings())
    return LogJoint(Problem(gp, x, y, DirectSettings(TorchTiles()), sites=sites))


def values_of(gp: fgp.GP) -> numpy.ndarray:
    raw = dict(gp.named_parameters())
    return numpy.array([float(raw[f"{name}.raw"].detach()) for name in NAMES])


def test_an_evaluation_is_the_bound_with_its_gradient() -> None:
    """(M-270), (M-271): against the dense bound, by autograd, wherever the evaluation before it was."""
    x, y, _ = table(60)
    objective = log_joint(model(Poisson()), x, y)
    names = [name.removesuffix(".raw") for name in objective.parameters.names()]
    order = [names.index(name) for name in NAMES]
    for point in ([math.log(0.6), math.log(1.5), 0.4], [0.2, 1.1, 1.0], [-1.2, -0.5, 0.0]):
        theta = torch.tensor(point, dtype=F64, requires_grad=True)
        wanted = dense_bound(theta, x, y)
        (slope,) = torch.autograd.grad(wanted, theta)
        at = numpy.empty(3)
        at[order] = point
        found = objective(at)
        assert found.value == pytest.approx(-float(wanted.detach()), abs=1e-3)
        numpy.testing.assert_allclose(-found.gradient[order], slope.numpy(), rtol=1e-3, atol=1e-2)


def test_the_bound_has_the_gradient_by_parameters_of_the_likelihood() -> None:
    x, y, _ = table(60)
    objective = log_joint(model(Scattered()), x, y)
    theta, step = objective.parameters.values(), 1e-3
    (index,) = objective.parameters.of_likelihood()
    moved = numpy.zeros_like(theta)
    moved[index] = step
    above, below = objective(theta + moved).value, objective(theta - moved).value
    assert above is not None
    assert below is not None
    assert objective(theta).gradient[index] == pytest.approx((above - below) / (2.0 * step), rel=1e-2, abs=0.05)


@pytest.mark.parametrize("engine", [{}, FULL_SCALE, {"inducing": table(60)[0]}], ids=["dense", "full scale", "sparse"])
def test_a_fit_finds_the_optimum_of_the_bound(engine: dict[str, Any]) -> None:
    x, y, at = table(60)

    def function(point: numpy.ndarray) -> tuple[float, numpy.ndarray]:
        theta = torch.tensor(point, requires_grad=True)
        value = dense_bound(theta, x, y)
        (slope,) = torch.autograd.grad(value, theta)
        return -float(value.detach()), -slope.numpy()

    best = minimize(function, [math.log(0.6), math.log(1.5), 0.4], jac=True, method="L-BFGS-B", options={"ftol": 1e-12})
    engine = {"approximation": "sparse", **engine} if engine else engine
    fit = fgp.fit(model(Poisson()), x, y, priors="given", **engine)
    numpy.testing.assert_allclose(values_of(fit.gp), best.x, atol=1e-2)
    assert float(fit.posterior.log_marginal_likelihood()) == pytest.approx(-best.fun, abs=1e-2)
    assert fit.history[-1].value == pytest.approx(-best.fun, abs=1e-2)
    again = fit.gp.condition(x, y, **engine)
    torch.testing.assert_close(fit.posterior.predict(at).mean, again.predict(at).mean, rtol=1e-3, atol=1e-3)
    distribution = fit.posterior.predict(at).distribution
    assert isinstance(distribution, PredictiveDistribution)
    assert bool((distribution.variance > distribution.mean).all())
    (event,) = (event for event in fit.report.events if event.kind is EventKind.FIT_SITES)
    assert event.fields["evaluations"] <= len(fit.history) + 5
    assert 2 * event.fields["evaluations"] <= event.fields["steps"] <= 6 * event.fields["evaluations"]
    assert ", at least" in dict(fit.summary())["log marginal likelihood"]


def test_a_gaussian_likelihood_that_iterates_is_regression() -> None:
    x, y, at = table(60)
    y = (y + 1.0).log()
    known = fgp.fit(model(Gaussian(0.1)), x, y, priors="given")
    found = fgp.fit(model(Iterated(0.1)), x, y, priors="given")
    for (name, one), (other_name, other) in zip(known.gp.named_parameters(), found.gp.named_parameters(), strict=True):
        assert name == other_name
        torch.testing.assert_close(one, other, rtol=0.0, atol=2e-2)
    evidence = [float(fit.posterior.log_marginal_likelihood()) for fit in (known, found)]
    assert evidence[0] == pytest.approx(evidence[1], abs=1e-3)
    torch.testing.assert_close(known.posterior.predict(at).mean, found.posterior.predict(at).mean, rtol=0, atol=5e-3)


def test_more_rows_than_starts_take_go_by_fisher_scoring() -> None:
    """Also by a parameter of the likelihood, which the scores of held sites do not know."""
    x, y, _ = table(500)
    gp = fgp.GP(fgp.kernels.Matern(nu=1.5) * 1.0, fgp.means.Zero(), Scattered())
    fit = fgp.fit(gp, x, y, starts=1, priors="given")
    assert {entry.run.stage for entry in fit.history} == {Stage.SUBSET, Stage.ALL_ROWS}
    again = log_joint(fit.gp, x, y)
    found = again(again.parameters.values())

    def function(theta: numpy.ndarray) -> tuple[float | None, numpy.ndarray]:
        one = again(theta)
        return one.value, one.gradient

    best = minimize(function, again.parameters.values(), jac=True, method="L-BFGS-B")
    assert found.value == pytest.approx(best.fun, abs=0.15)  # as near as the search of any likelihood
    assert float(fit.posterior.log_marginal_likelihood()) == pytest.approx(-found.value, abs=1e-2)


def test_the_bound_never_falls_from_step_to_step() -> None:
    """Of large counts whole steps from the prior lower it, beyond all numbers."""
    x, y, _ = table(60)
    y, prior = (30.0 * y).round(), model(Poisson())
    with torch.no_grad():
        k, start = prior.kernel(x).to_dense(), from_prior(prior, x, y)
    bounds = []

    def evaluate(sites: Sites) -> Found[None]:
        total = k + sites.variance.diag()
        inverse, centre = torch.linalg.inv(total), torch.full_like(y, 0.4)
        at = Marginals(centre + k @ inverse @ (sites.targets - centre), (k - k @ inverse @ k).diagonal())
        density = torch.distributions.MultivariateNormal(centre, total, validate_args=False).log_prob(sites.targets)
        bounds.append(float(density + Variational().excess(prior.likelihood, y, at, sites).sum()))
        return Found(sites, at, bounds[-1], None)

    found, steps, moved = settle_rows(prior.likelihood, y, start, evaluate, 1e-4, SiteSettings())
    assert start.value is not None
    assert found.value == bounds[-1]
    assert moved < 1e-4
    assert steps == len(bounds) > len([value for value in bounds if value > start.value])
    assert found.value > start.value + 1000.0
    assert found.value >= max(value for value in bounds if value == value) - 1e-4  # not NaN


def test_the_curvature_knows_parameters_of_the_likelihood() -> None:
    """Scores of held sites do not: half a nat a row and unit, as of a noise variance, and not nothing."""
    x, y, _ = table(60)
    objective = log_joint(model(Scattered()), x, y)
    information = fisher_information(objective, objective.parameters.values(), 20, 0)
    own = objective.parameters.of_likelihood()
    assert float(information[own, own].min()) == pytest.approx(30.0, rel=0.01)


def test_an_evaluation_forgets_where_the_one_before_it_was() -> None:
    x, y, _ = table(60)
    objective = log_joint(model(Poisson()), x, y)
    here = objective.parameters.values()
    first = objective(here)
    objective(here + 2.0)
    objective(here - 2.0)
    again = objective(here)
    assert again.value == pytest.approx(first.value, abs=1e-3)
    numpy.testing.assert_allclose(again.gradient, first.gradient, rtol=1e-3, atol=1e-2)


def test_a_full_scale_likelihood_is_the_bound_at_its_own_sites() -> None:
    """Which choices of points and neighbours are compared by, wherever the sites were left."""
    x, y, _ = table(60)
    exact = log_joint(model(Poisson()), x, y)
    problem = exact.problem
    layout = layout_of(problem.prior, x, torch.ones(1, dtype=F64), Sizes(10, 20, 60, 60), 0)
    objective = FullScaleLogJoint(problem, layout)
    far = objective.parameters.values() + 1.0
    value = objective(far - 1.0).value
    objective(far)
    objective.parameters.assign(far - 1.0)
    assert value is not None
    assert objective.log_likelihood() == pytest.approx(-value, abs=1e-3)
    assert value == pytest.approx(exact(far - 1.0).value, abs=1e-3)  # all rows are neighbours


def test_two_counts_are_no_labels() -> None:
    x, y, _ = table(60)
    fit = fgp.fit(model(Poisson()), x, y.clamp(max=1.0), starts=1, max_iterations=2)
    assert not [event for event in fit.report.events if event.kind is EventKind.TWO_VALUES]


def test_starts_are_of_latent_values() -> None:
    """Counts of hundreds have logarithms of a few: f begins there, not at the scale of the counts."""
    x, y, _ = table(60)
    y = (100.0 * y).round()
    data = Data.of(model(Poisson()), x, y)
    direct = DirectSettings(TorchTiles())
    problem = problem_of(model(Poisson()), data, x.device, direct, FitOptions())
    prior = problem.prior
    variance = float(problem.roles[prior.kernel.variance].start)
    centre = float(problem.roles[prior.mean.value].start)
    logs = (y + 0.5).log()
    assert centre == pytest.approx(float(logs.mean()), abs=0.3)
    assert variance == pytest.approx(float(logs.var()), rel=0.5)


def test_labels_of_small_regions_are_found() -> None:
    """A search that begins at a small variance, as of rows that the parameters given explain, ends at none."""
    x, y = labels(400)
    gp = fgp.GP(
        1.0 * fgp.kernels.Matern(nu=1.5, lengthscale=0.5), fgp.means.Zero(), Bernoulli("logit", method="variational")
    )
    fit = fgp.fit(gp, x, y, starts=1, max_iterations=30, priors="given")
    assert float(fit.gp.kernel.variance.value) > 2.0
    assert float(fit.posterior.log_marginal_likelihood()) > 400 * math.log(0.5) + 50.0


@pytest.mark.parametrize(
    "options", [{"approximation": "full_scale", "exact_posterior": True}, {}], ids=["asked", "many"]
)
def test_the_exact_posterior_of_parameters_by_full_scale(options: dict[str, Any]) -> None:
    """(M-451): asked for, or where a factor in each step of the search would take too long."""
    x, y, at = table(60)
    settings = FitSettings(sites=SiteSettings(searched_seconds=0.0))
    fit = fgp.fit(model(Poisson()), x, y, priors="given", settings=settings, **options)
    kinds = [event.kind for event in fit.report.events]
    assert EventKind.EXACT_POSTERIOR in kinds
    assert (EventKind.SEARCHED_BY_FULL_SCALE in kinds) == (not options)
    assert {EventKind.SITES, EventKind.FIT_SITES} <= set(kinds)  # of the posterior, and of the search
    wanted = fit.gp.condition(x, y)
    assert torch.equal(fit.posterior.predict(at).mean, wanted.predict(at).mean)
    assert fit.posterior.can("lost") is not None  # it is no approximation


def test_a_plan_whose_search_goes_by_full_scale_can_be_handed_in() -> None:
    """As a table does, which plans before it fits."""
    x, y, at = table(60)
    gp = model(Poisson())
    plan = dataclasses.replace(fgp.plan(gp, n=60, d=x.shape[1]), training="full_scale")
    given = fgp.fit(gp, x, y, plan=plan, max_iterations=1)
    settings = FitSettings(sites=SiteSettings(searched_seconds=0.0))
    found = fgp.fit(gp, x, y, settings=settings, max_iterations=1)
    assert {EventKind.EXACT_POSTERIOR, EventKind.SEARCHED_BY_FULL_SCALE} <= {e.kind for e in given.report.events}
    assert torch.equal(given.posterior.predict(at).mean, found.posterior.predict(at).mean)
    with pytest.raises(DomainError, match="`plan` is for n, d"):
        fgp.fit(gp, x[:50], y[:50], plan=plan)


def test_classes_have_the_variance_of_left_out_rows_in_an_exact_posterior() -> None:
    """(M-341), as those of the approximation itself."""
    x = table(24)[0]
    y = (3.0 * x[:, 0]).floor().clamp(0.0, 2.0)
    gp = fgp.GP(0.3 * fgp.kernels.Matern(nu=1.5), likelihood=fgp.likelihoods.Categorical(3))
    options = {"approximation": "full_scale", "exact_posterior": True, "initial": "given", "max_iterations": 1}
    fit = fgp.fit(gp, x, y, **options)  # type: ignore[arg-type]
    assert EventKind.VARIANCE_LEFT_OUT in {event.kind for event in fit.report.events}


def test_what_a_fit_by_sites_does_not_go_with_is_refused() -> None:
    x, y, _ = table()
    gp = model(Poisson())
    with pytest.raises(DomainError, match=r"`plan` must have training='exact' where sites .* got"):
        fgp.fit(gp, x, y, plan=dataclasses.replace(fgp.plan(gp, n=40, d=2), training="stored"))
