"""Laws of inference by every likelihood, on 36 rows by exact inference."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.errors import DomainError
from flashgp.likelihoods.non_gaussian import NonGaussian
from likelihoods.cases import CASES

F64 = torch.float64
X = torch.linspace(0.0, 1.0, 36, dtype=F64)[:, None]
AT = X[::7] + 0.005
NAMES = [name for name in CASES if name != "Custom"]


def targets(likelihood: NonGaussian) -> Tensor:
    """Observations of a wave."""
    f = 1.5 * torch.sin(6.0 * X[:, 0])
    generator = torch.Generator().manual_seed(3)
    return likelihood.predictive(f, torch.zeros_like(f)).sample(generator).detach()


def model(likelihood: NonGaussian) -> fgp.GP:
    return fgp.GP(1.5 * fgp.kernels.Matern(nu=1.5, lengthscale=0.5), fgp.means.Constant(0.1), likelihood)


def agree(one: fgp.Posterior, other: fgp.Posterior) -> None:
    a, b = (post.predict(AT) for post in (one, other))
    assert float(((a.mean - b.mean) / a.std).abs().max()) < 5e-3
    assert torch.allclose(a.std, b.std, rtol=5e-3)
    assert float(one.log_marginal_likelihood()) == pytest.approx(float(other.log_marginal_likelihood()), abs=2e-3)


@pytest.mark.parametrize("name", NAMES)
def test_a_row_twice_is_a_row_of_weight_two_and_the_order_does_not_matter(name: str) -> None:
    likelihood = CASES[name].make()
    y, weight = targets(likelihood), 1.0 + torch.arange(36) % 2
    index = torch.arange(36).repeat_interleave(weight.long()).flip(0)
    weighted = CASES[name].make()
    weighted.row_weight = weight.double()
    agree(model(weighted).condition(X, y), model(likelihood).condition(X[index], y[index]))


@pytest.mark.parametrize("name", NAMES)
def test_fits_find_the_wave(name: str) -> None:
    """The mean of f follows the wave, own parameters move, and the density of the rows is above that of a constant."""
    likelihood = CASES[name].make()
    y = targets(likelihood)
    gp = fgp.GP(fgp.kernels.Matern(nu=2.5), fgp.means.Constant(), CASES[name].make())
    fit = fgp.fit(gp, X, y, starts=1)
    mean = fit.posterior.predict(X).mean
    wave = torch.sin(6.0 * X[:, 0])
    assert float(torch.corrcoef(torch.stack([mean, wave]))[0, 1]) > 0.8
    for role in getattr(likelihood, "roles", {}):
        start = getattr(gp.likelihood, role).value
        assert not torch.allclose(getattr(fit.gp.likelihood, role).value, start)
    constant = fgp.GP(1e-6 * fgp.kernels.Matern(lengthscale=10.0), fgp.means.Constant(float(mean.mean())), likelihood)
    assert fit.posterior.log_marginal_likelihood() > constant.condition(X, y).log_marginal_likelihood() + 1.0


def test_rows_far_off_leave_points_to_the_others() -> None:
    """Inducing points are chosen by the noise of most rows: sites of outliers have variances of 1e5 and more."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(200, 1, generator=generator, dtype=F64)
    y = torch.sin(6.0 * x[:, 0]) + 0.1 * torch.randn(200, generator=generator, dtype=F64)
    y[::15] += 20.0
    gp = fgp.GP(fgp.kernels.Matern(lengthscale=0.4), fgp.means.Constant(), CASES["StudentT"].make())
    few, whole = (gp.condition(x, y, **how).predict(AT) for how in ({"approximation": "sparse", "inducing": 30}, {}))
    assert float((few.mean - whole.mean).abs().max()) < 0.05


def test_predictions_are_given_the_numbers_of_their_points() -> None:
    """Exposures and trials of new observations, (M-280): means, densities, quantiles and samples."""
    lik = fgp.likelihoods
    y = targets(lik.Poisson())
    post = model(lik.Poisson(exposure=torch.linspace(0.5, 2.0, 36, dtype=F64))).condition(X, y)
    p, hours = post.predict(AT), torch.linspace(1.0, 24.0, len(AT), dtype=F64)
    day, told = p.given(exposure=hours), lik.Poisson().predictive(p.mean, p.variance, exposure=hours)
    assert torch.equal(p.given(exposure=24.0).observation_mean, p.given(exposure=[24.0] * len(hours)).observation_mean)
    assert torch.allclose(day.observation_mean, hours * p.observation_mean)
    assert torch.equal(day.quantile(0.8), told.quantile(0.8))
    count = torch.arange(float(len(AT)), dtype=F64)
    assert torch.equal(day.log_prob(count), told.log_prob(count))
    drawn = day.sample(4000, observed=True, seed=0)
    assert drawn.shape == (4000, len(AT))
    assert torch.allclose(drawn.mean(0), day.observation_mean, rtol=0.1)
    assert torch.equal(day.mean, p.mean)
    trials = model(lik.Binomial(torch.full((36,), 9.0))).condition(X, targets(lik.Binomial(9))).predict(AT)
    games = trials.given(trials=torch.full((len(AT),), 20.0))
    assert torch.allclose(games.observation_mean, 20.0 * trials.observation_mean)
    assert bool(games.log_prob(torch.full((len(AT),), 11.0, dtype=F64)).isfinite().all())
    with pytest.raises(fgp.DomainError, match="`exposure` is no number of rows of Binomial, which has trials"):
        trials.given(exposure=hours)
    with pytest.raises(fgp.DomainError, match="`exposure` is no number of rows of Gaussian, which has none"):
        model(lik.Gaussian(0.1)).condition(X, y).predict(AT).given(exposure=hours)  # type: ignore[arg-type]
    with pytest.raises(fgp.ShapeError, match="`exposure` must have one entry per point"):
        p.given(exposure=hours[:2])
    with pytest.raises(fgp.DomainError, match="`trials` must be whole numbers"):
        trials.given(trials=torch.full((len(AT),), 2.5))


@pytest.mark.parametrize("engine", [{}, {"approximation": "full_scale", "inducing": 9, "neighbours": 18}])
def test_leaving_out_refuses_moments_alone_that_a_likelihood_does_not_say(engine: dict[str, Any]) -> None:
    def log_prob(y: Tensor, f: Tensor) -> Tensor:
        return -0.5 * ((y - f) / 0.3).square() - 0.5 * math.log(2.0 * math.pi * 0.09)

    y = torch.sin(6.0 * X[:, 0])
    whole = fgp.likelihoods.Custom(log_prob, mean=lambda f: f, variance=lambda f: torch.full_like(f, 0.09))
    right, found = (
        model(one).condition(X, y, **engine).leave_one_out() for one in (whole, fgp.likelihoods.Custom(log_prob))
    )
    assert torch.equal(found.log_prob, right.log_prob)
    assert "mean log density" in repr(found)
    with pytest.raises(DomainError, match="`mean` of Custom must be given for this"):
        found.mean  # noqa: B018
    with pytest.raises(DomainError, match="`mean` of Custom must be given for this"):
        found.variance  # noqa: B018
    gaussian = model(fgp.likelihoods.Gaussian(0.09)).condition(X, y).leave_one_out()  # type: ignore[arg-type]
    if not engine:
        torch.testing.assert_close(right.mean, gaussian.mean, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(right.variance, gaussian.variance, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(found.log_prob, gaussian.log_prob, rtol=1e-6, atol=1e-6)
