"""Fits of odd tables by every engine: an answer, finite, and no worse than a constant; sites that do not settle."""

import contextlib
import dataclasses
import warnings
from collections.abc import Callable

import numpy
import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.errors import ConvergenceError
from flashgp.inference.exact.likelihood import DirectSettings
from flashgp.inference.site_methods import Marginals
from flashgp.inference.sites import IteratedSites, SiteSettings, local_sites, settle
from flashgp.inference.training.fisher_scoring import fisher_information
from flashgp.inference.training.objective import LogJoint, Problem
from flashgp.pairwise.torch.tiles import TorchTiles

F64 = torch.float64
lik = fgp.likelihoods


def wave(n: int, amplitude: float) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n)
    x = torch.rand(n, 2, generator=generator, dtype=F64)
    return x, amplitude * torch.sin(5.0 * x[:, 0] + x[:, 1])


def observed(likelihood: fgp.likelihoods.Likelihood, f: Tensor) -> Tensor:
    return likelihood.predictive(f, torch.zeros_like(f)).sample(torch.Generator().manual_seed(1)).detach()


def counts(n: int) -> tuple[Tensor, Tensor]:
    """Nothing on one side, thousands on the other."""
    x, f = wave(n, 1.0)
    return x, torch.where(f > 0.0, 1000.0 + 500.0 * f.round(decimals=1), 0.0)


def labels(n: int) -> tuple[Tensor, Tensor]:
    x, f = wave(n, 1.0)
    return x, (f > 0.3).double()


def contradicting(n: int) -> tuple[Tensor, Tensor]:
    x, y = labels(n)
    return torch.cat([x, x]), torch.cat([y, 1.0 - y])


def of_other_units(n: int) -> tuple[Tensor, Tensor]:
    x, f = wave(n, 2.0)
    return x * torch.tensor([1e12, 1e-12], dtype=F64), 1e6 * observed(lik.Gamma(5.0), f)


def trials(n: int) -> tuple[Tensor, Tensor]:
    x, f = wave(n, 6.0)
    return x, observed(lik.Binomial(torch.full((n,), 1e5, dtype=F64)), f)


def steep(n: int) -> tuple[Tensor, Tensor]:
    """Counts of nothing and of thousands among rows that are copies but for their target."""
    generator = torch.Generator().manual_seed(n)
    x = (4.0 * torch.rand(n, 6, generator=generator, dtype=F64)).round()
    return x, torch.poisson(torch.exp(2.4 * (x.sum(1) - 12.0)).clamp(max=8000.0), generator)


WEIGHTS = torch.tensor([1.0, 0.01, 50.0, 2.0, 0.1, 0.0], dtype=F64).repeat(5)


def wide(n: int) -> Tensor:
    return observed(lik.Gamma(5.0), wave(n, 20.0)[1])


def far_off(n: int) -> tuple[Tensor, Tensor]:
    x, f = wave(n, 1.0)
    y = 1e-12 * f
    y[::7] *= -1e4
    return x.mul(torch.tensor([1.0, 0.0], dtype=F64)), y


TABLES: dict[str, tuple[Callable[[], lik.Likelihood], tuple[Tensor, Tensor], str | None]] = {
    "separable counts": (lambda: lik.Poisson(), counts(40), "sparse"),
    "separable counts, full scale": (lambda: lik.Poisson(), counts(40), "full_scale"),
    "counts that scatter": (lambda: lik.NegativeBinomial(), counts(30), None),
    "separable labels": (lambda: lik.Bernoulli("logit"), labels(40), "sparse"),
    "one class": (lambda: lik.Bernoulli(), (wave(20, 1.0)[0], torch.ones(20, dtype=F64)), "full_scale"),
    "contradicting labels": (lambda: lik.Bernoulli(), contradicting(20), None),
    "no counts": (lambda: lik.Poisson(), (wave(30, 1.0)[0], torch.zeros(30, dtype=F64)), None),
    "many trials": (lambda: lik.Binomial(100_000), trials(30), None),
    "weights far apart": (lambda: lik.Bernoulli(row_weight=WEIGHTS), contradicting(15), None),
    "copies of far counts": (lambda: lik.Poisson(), steep(60), "sparse"),
    "other units": (lambda: lik.Gamma(), of_other_units(40), "sparse"),
    "wide range": (lambda: lik.Gamma(), (wave(20, 20.0)[0], wide(20)), None),
    "wide range, full scale": (lambda: lik.Gamma(), (wave(30, 20.0)[0], wide(30)), "full_scale"),
    "far off": (lambda: lik.StudentT(4.0, 1e-12), far_off(40), "full_scale"),
    "one place": (lambda: lik.Beta(), (torch.zeros(30, 2, dtype=F64), torch.rand(30).double() * 0.5 + 0.1), None),
    "levels": (lambda: lik.Ordinal(4), (wave(30, 1.0)[0], torch.arange(30).remainder(3).double()), "full_scale"),
}


@pytest.mark.parametrize("name", TABLES)
def test_fits_of_odd_tables_are_finite_and_no_worse_than_a_constant(name: str) -> None:
    make, (x, y), engine = TABLES[name]
    gp = fgp.GP(1.0 * fgp.kernels.Matern(nu=2.5), fgp.means.Constant(), make())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = fgp.fit(gp, x, y, starts=1, approximation=engine)
        p = fit.posterior.predict(x)
    assert bool(p.mean.isfinite().all())
    assert bool((p.variance > 0.0).all())
    given = make().weight_of(y)
    weight = torch.ones_like(y) if given is None else given * len(y) / given.sum()
    found = float((weight * p.log_prob(y).detach()).mean())
    likelihood, centre = fit.gp.likelihood.with_rows(), numpy.linspace(-30.0, 30.0, 241)
    size = float(y.abs().median()) or 1.0
    units = size if isinstance(likelihood, lik.StudentT) else 1.0  # of f
    shift = float(y.log().mean()) if isinstance(likelihood, lik.Gamma) else 0.0
    with torch.no_grad():
        best = max(
            float((weight * likelihood.log_prob(y, torch.full_like(y, units * c + shift))).mean()) for c in centre
        )
    assert found > best - 0.02


@dataclasses.dataclass
class Place:
    value: float | None = None


@pytest.mark.parametrize("posterior", [False, True])
def test_steps_that_do_not_settle_end_a_point_of_a_search_and_not_a_posterior(posterior: bool) -> None:
    settings = SiteSettings(search_steps=5)
    settings = settings.of_posterior() if posterior else settings
    refused = contextlib.nullcontext() if posterior else pytest.raises(ConvergenceError, match="did not settle")
    with refused:
        moved = settle(lik.Poisson(), Place(), lambda kept, size: Place(), lambda one, other: 9.0, 1e-4, settings)[2]
        assert moved >= 9.0


def test_a_point_that_does_not_settle_leaves_sites_and_information_as_they_were() -> None:
    x, f = wave(30, 2.0)
    gp = fgp.GP(1.0 * fgp.kernels.Matern(), fgp.means.Constant(), lik.Poisson())
    y = observed(gp.likelihood, f)
    sites = IteratedSites.of(gp, x, y, SiteSettings())
    assert sites is not None
    objective = LogJoint(Problem(gp, x, y, DirectSettings(TorchTiles()), sites=sites))
    theta = objective.parameters.values()
    objective(theta)
    before = sites.held.targets.clone(), sites.held.variance.clone()
    sites.settings = SiteSettings(search_steps=1, search=1e-12, unsettled=1.0)
    far = theta + 0.5
    with pytest.raises(ConvergenceError):
        objective(far)
    assert torch.equal(sites.held.targets, before[0])
    assert torch.equal(sites.held.variance, before[1])
    assert numpy.isfinite(fisher_information(objective, far, 8, 0)).all()


def test_new_rows_have_sites_where_expectations_overflow() -> None:
    """E exp(-f) of a variance of 2,000 is more than float64 holds."""
    y = torch.tensor([1e-9, 1.0, 1e12], dtype=F64)
    before = Marginals(torch.full((3,), 15.0, dtype=F64), torch.full((3,), 2000.0, dtype=F64))
    sites, at = local_sites(lik.Gamma(2.0), y, before)
    assert bool(sites.targets.isfinite().all())
    assert torch.allclose(at.mean, y.log(), rtol=0.1, atol=1.0)


@pytest.mark.parametrize("variance", [1e3, 1e4])
def test_noise_whose_expectation_overflows(variance: float) -> None:
    """E exp of a log noise of that variance is 1e217, or infinite: sites begin elsewhere, and engines agree."""
    x, y = wave(40, 30.0)
    gp = fgp.GP(variance * fgp.kernels.RBF(lengthscale=30.0), likelihood=lik.HeteroscedasticGaussian())
    exact, near = (gp.condition(x, y, **how).predict(x) for how in ({}, {"approximation": "full_scale"}))
    assert torch.allclose(exact.observation_mean, near.observation_mean, rtol=1e-3, atol=1e-3)
    assert torch.allclose(exact.observation_variance, near.observation_variance, rtol=1e-3)


@pytest.mark.filterwarnings("ignore:HeteroscedasticGaussian. sites have not settled")
def test_sites_are_no_more_precise_than_engines_hold() -> None:
    """By either engine the noise of rows that are explained to rounding ends where sites are cut off."""
    x = torch.rand(30, 1, dtype=F64, generator=torch.Generator().manual_seed(3)) * 6.0
    gp = fgp.GP(1.5e3 * fgp.kernels.RBF(lengthscale=0.3), likelihood=lik.HeteroscedasticGaussian())
    exact, near = (
        gp.condition(x, 30.0 * torch.sin(2.0 * x[:, 0]), **how).predict(x).observation_variance
        for how in ({}, {"approximation": "full_scale"})
    )
    assert float((exact / near).min()) > 0.5
