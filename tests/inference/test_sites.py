"""Likelihoods whose sites are found by iteration, through every engine: the same posterior as dense formulas give.

Steps (M-267), from marginals (M-268).
"""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.errors import ConvergenceError
from flashgp.foundations.events import EventKind
from flashgp.inference.approximation import approximation_of
from flashgp.inference.condition import condition
from flashgp.inference.data import Data
from flashgp.inference.exact.likelihood import DirectSettings
from flashgp.inference.full_scale.layout import layout_of
from flashgp.inference.full_scale.objective import FullScaleLogJoint
from flashgp.inference.run import Run
from flashgp.inference.settings import ConditionSettings
from flashgp.inference.sites import IteratedSites, SiteSettings, settle
from flashgp.inference.training.objective import LogJoint, Problem
from flashgp.likelihoods import Bernoulli, Gaussian, Poisson
from flashgp.pairwise.torch.tiles import TorchTiles
from flashgp.planner.plan import Sizes
from inference.iterated import Iterated, labels, model, table

pytestmark = pytest.mark.filterwarnings("ignore:Rounding in float64")  # of prior variances of 10,000
ENGINES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a factor": ({}, {}),
    "solves": ({"solver": "cg"}, {}),
    "full scale": ({}, {"kind": "full_scale", "inducing": 10, "neighbours": 40}),
    "inducing points": ({}, {"kind": "sparse"}),
}


def conditioned(gp: fgp.GP, x: Tensor, y: Tensor, engine: str) -> fgp.Posterior:
    settings, approximation = ENGINES[engine]
    if approximation:
        approximation = {"inducing": x, "neighbours": "auto"} | approximation
    asked = approximation_of(approximation.pop("kind"), **approximation) if approximation else None
    asked_for = ConditionSettings(Run(tolerance=1e-9), **settings)
    return fgp.Posterior(condition(gp, Data.of(gp, x, y), asked_for, asked))


def dense(gp: fgp.GP, x: Tensor, y: Tensor, at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance at points, and the bound, by natural gradients on dense matrices."""
    with torch.no_grad():
        k, cross, own = (gp.kernel(*each).to_dense() for each in ((x,), (at, x), (at,)))
        m, v = torch.full_like(y, 0.4), k.diagonal()
        for _ in range(200):
            rate = (m + 0.5 * v).exp()
            targets, noise = m + (y - rate) / rate, 1.0 / rate
            inverse = torch.linalg.inv(k + noise.diag())
            weights = inverse @ (targets - 0.4)
            m, v = 0.4 + k @ weights, (k - k @ inverse @ k).diagonal()
        value = (y * m - (m + 0.5 * v).exp() - (y + 1.0).lgamma()).sum()
        covariance = k - k @ inverse @ k
        divergence = 0.5 * (
            torch.linalg.solve(k, covariance).trace() + (m - 0.4) @ weights - len(y) + k.logdet() - covariance.logdet()
        )
        return 0.4 + cross @ weights, (own - cross @ inverse @ cross.mT).diagonal(), value - divergence


@pytest.mark.parametrize("engine", ENGINES)
def test_a_likelihood_by_iteration_goes_through_every_engine(engine: str) -> None:
    x, y, at = table()
    gp = model(Poisson())
    post = conditioned(gp, x, y, engine)
    mean, variance, lowest = dense(gp, x, y, at)
    by_solves = engine == "solves"  # of variances these leave a hundredth
    found = post.predict(at, variance="exact" if by_solves else "auto")
    torch.testing.assert_close(found.mean, mean, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(found.variance, variance, rtol=1e-2 if by_solves else 1e-3, atol=1e-4)
    assert by_solves or float(post.log_marginal_likelihood()) == pytest.approx(float(lowest), abs=1e-3)
    (event,) = (event for event in post.report.events if event.kind is EventKind.SITES)
    assert event.fields["steps"] <= 12
    assert event.fields["moved"] < 1e-4


@pytest.mark.parametrize("engine", ENGINES)
def test_sites_of_a_gaussian_likelihood_are_its_observations(engine: str) -> None:
    x, y, at = table()
    post = conditioned(model(Iterated(0.3)), x, y, engine)
    known = conditioned(model(Gaussian(0.3)), x, y, engine)
    torch.testing.assert_close(post.predict(at).mean, known.predict(at).mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(post.predict(at).variance, known.predict(at).variance, rtol=1e-8, atol=1e-9)


def test_what_iterated_sites_do_not_go_with_is_refused() -> None:
    x, y, _ = table()
    gp = model(Poisson())
    with pytest.raises(fgp.DomainError, match=r"`differentiable` must be .* those of Poisson, got True; leave it out"):
        gp.condition(x, y, differentiable=True)
    with pytest.raises(fgp.DomainError, match=r"`x` must be one table .* got a batch; call it for each"):
        gp.condition(x.expand(2, -1, -1), y)
    with pytest.raises(fgp.DomainError, match=r"`outputs` must be None for Poisson.* got 2; fit a GP for each"):
        fgp.GP(fgp.kernels.Matern(), likelihood=Poisson(), outputs=2)
    with pytest.raises(fgp.DomainError, match=r"must have sites that need no iteration.*gp.condition\(x, y\)"):
        gp.log_marginal_likelihood(x, y)


@pytest.mark.parametrize("scale", [30.0, 1e4])
def test_steps_that_lower_the_bound_are_halved(scale: float) -> None:
    """Counts far above what the prior expects: a whole first step sends e^f beyond all numbers."""
    x, y, _ = table()
    post = conditioned(model(Poisson()), x, (scale * y).round(), "a factor")
    large = y >= y.median()
    rate = post.predict(x).mean.exp()
    torch.testing.assert_close(rate[large], (scale * y)[large], rtol=0.3, atol=0.0)


def test_the_model_of_a_posterior_finds_sites_anew() -> None:
    """It is the model as it was: other rows have sites of their own, and its likelihood is the user's."""
    x, y, at = table()
    model_of = conditioned(model(Poisson()), x, y, "a factor").gp
    assert isinstance(model_of.likelihood, Poisson)
    again = conditioned(model_of, x[:20], y.flip(0)[:20], "a factor").predict(at).mean
    expected = conditioned(model(Poisson()), x[:20], y.flip(0)[:20], "a factor").predict(at).mean
    torch.testing.assert_close(again, expected)


def test_refining_moves_sites_and_parameters_of_the_likelihood() -> None:
    """A Gaussian likelihood that iterates is refined as one that does not: its noise is learned, its bound is log p."""
    x, y, _ = table()
    posteriors = (conditioned(model(kind(0.3)), x, y, "a factor") for kind in (Iterated, Gaussian))
    refined, known = (posterior.refine(30, priors="given") for posterior in posteriors)
    found = float(refined.gp.likelihood.noise_variance.value)
    assert found == pytest.approx(float(known.gp.likelihood.noise_variance.value), rel=0.03)
    assert float(refined.log_marginal_likelihood()) == pytest.approx(float(known.log_marginal_likelihood()), abs=2e-3)


def test_labels_settle_where_few_neighbours_know_little() -> None:
    """(M-272): rows that leaving one out, of a product of conditional densities, gives no positive variance."""
    x, y = labels(600)
    gp = fgp.GP(
        30.0 * fgp.kernels.Matern(nu=1.5, lengthscale=0.1), fgp.means.Zero(), Bernoulli("logit", method="variational")
    )
    post = gp.condition(x, y, approximation="full_scale", inducing=8, neighbours=12)
    (event,) = (event for event in post.report.events if event.kind is EventKind.SITES)
    assert event.fields["steps"] <= 50
    exact, found = gp.condition(x, y).predict(x), post.predict(x)
    torch.testing.assert_close(found.variance.log(), exact.variance.log(), rtol=0.0, atol=0.5)
    assert float(((found.mean - exact.mean) / exact.variance.sqrt()).square().mean().sqrt()) < 0.25


def test_all_rows_as_neighbours_have_the_marginals_of_dense_matrices() -> None:
    """(M-272), whatever the sites."""
    x, y, _ = table(60)
    prior = model(Poisson())
    sites = IteratedSites.of(prior, x, y, SiteSettings())
    assert sites is not None
    problem = Problem(prior, x, y, DirectSettings(TorchTiles()), sites=sites)
    layout = layout_of(prior, x, sites.held.variance, Sizes(7, 9, 60, 60), 0)
    value, found = FullScaleLogJoint(problem, layout).marginals()
    wanted_value, wanted = LogJoint(problem).marginals()
    assert value == pytest.approx(wanted_value, rel=1e-10)
    torch.testing.assert_close(found.mean, wanted.mean, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(found.variance, wanted.variance, rtol=1e-8, atol=1e-8)


def test_a_step_by_moments_does_not_go_far_beyond() -> None:
    """Rows that say the same are each taken as if they were alone: whole steps from the prior overshoot."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(600, 2, generator=generator, dtype=torch.float64)
    y = torch.rand(600, generator=generator, dtype=torch.float64) < torch.sigmoid(3.0 * torch.sin(4.0 * x[:, 0]))
    gp = fgp.GP(300.0 * fgp.kernels.Matern(nu=1.5), likelihood=fgp.likelihoods.Bernoulli("logit"))
    (event,) = (e for e in gp.condition(x, y.double()).report.events if e.kind is EventKind.SITES)
    assert event.fields["steps"] <= 20


@pytest.mark.parametrize("moved", [0.001, 10.0])
def test_steps_that_nearly_settle_are_an_answer_and_others_are_not(moved: float) -> None:
    @dataclass
    class Place:
        value: float | None = None

    def settled() -> float:
        step, settings = (lambda kept, size: Place()), SiteSettings(search_steps=5)
        return settle(Bernoulli(), Place(), step, lambda one, other: moved, 1e-4, settings)[2]

    if moved > 1.0:
        with pytest.raises(ConvergenceError, match="did not settle in 5 steps"):
            settled()
    else:
        assert settled() >= moved
