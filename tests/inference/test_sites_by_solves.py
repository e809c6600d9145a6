"""Sites without a factor, by certified solves and sampled variances of the rows, against those of a factor, (M-370)."""

import dataclasses

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp import kernels as K
from flashgp import likelihoods as L
from flashgp.foundations.errors import DomainError
from flashgp.foundations.events import EventKind
from flashgp.inference.data import Data
from flashgp.inference.exact.condition import condition
from flashgp.inference.posterior import Posterior
from flashgp.inference.posterior_by_sites import condition_by_sites
from flashgp.inference.row_marginals import RowMarginals
from flashgp.inference.run import Run
from flashgp.inference.settings import ConditionSettings
from flashgp.inference.sites import SiteSettings
from flashgp.likelihoods.held_sites import HeldSites
from flashgp.processes.group import ALONE

F64 = torch.float64


def table(rows: int) -> tuple[Tensor, Tensor, torch.Generator]:
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(rows, 2, generator=generator, dtype=F64)
    return x, 2.0 * torch.sin(6.0 * x[:, 0]) * torch.cos(5.0 * x[:, 1]), generator


def model(likelihood: L.Likelihood, variance: float = 4.0) -> fgp.GP:
    lengthscale = torch.full((2,), 0.3, dtype=F64)
    return fgp.GP(variance * K.Matern(nu=2.5, lengthscale=lengthscale), likelihood=likelihood)


def by_solves(gp: fgp.GP, x: Tensor, y: Tensor, seed: int = 0) -> Posterior:
    """The posterior with sampled variances, however few rows there are."""
    settings = ConditionSettings(Run(seed=seed), solver="cg")
    always = SiteSettings(solved_seconds=0.0)
    state = condition_by_sites(
        Data.of(gp, x, y), settings.run, settings.time, lambda data: condition(data.prior, data, settings), always
    )
    return Posterior(state)


@pytest.mark.parametrize("kind", ["labels", "log odds", "counts", "outliers", "classes"])
def test_solves_and_sampled_variances_settle_where_a_factor_does(kind: str) -> None:
    x, f, generator = table({"labels": 800, "classes": 120}.get(kind, 250))
    y, likelihood = {
        "labels": ((f + torch.randn(len(f), generator=generator, dtype=F64) > 0).double(), L.Bernoulli()),
        "log odds": ((f > 0).double(), L.Bernoulli("logit")),
        "counts": (torch.poisson(f.exp(), generator), L.Poisson()),
        "outliers": (f + 5.0 * (torch.rand(len(f), generator=generator) < 0.05), L.StudentT(4.0, 0.3)),
        "classes": (torch.bucketize(f, torch.tensor([-0.7, 0.7], dtype=F64)).double(), L.Categorical(3)),
    }[kind]
    gp = model(likelihood)
    found, wanted = by_solves(gp, x, y), gp.condition(x, y)
    mean, expected = found.predict(x[::5]), wanted.predict(x[::5])
    assert float(((mean.mean - expected.mean) / expected.variance.sqrt()).abs().max()) < 0.01
    (event,) = (one for one in found.report.events if one.kind is EventKind.SITES)
    (other,) = (one for one in wanted.report.events if one.kind is EventKind.SITES)
    assert event.fields["steps"] <= other.fields["steps"] + 3
    assert event.fields["solves"] < 3 * 80 * (event.fields["steps"] + 3)  # not a solve for each row
    error = found.report.standard_error
    assert error is not None
    off = float(found.log_marginal_likelihood()) - float(wanted.log_marginal_likelihood())
    assert abs(off) < 3.5 * error + 0.02


def test_the_standard_error_of_the_bound_is_honest() -> None:
    """At the sites that were found the bound is that of dense matrices: all that is left is the log determinant."""
    x, f, generator = table(300)
    y, gp = (f + torch.randn(300, generator=generator, dtype=F64) > 0).double(), model(L.Bernoulli())
    state = by_solves(gp, x, y).state
    sites = state.prior.likelihood
    assert isinstance(sites, HeldSites)
    assert sites.excess is not None
    with torch.no_grad():
        covariance = gp.kernel(x).to_dense() + sites.variance.diag()
        density = torch.distributions.MultivariateNormal(torch.zeros_like(y), covariance).log_prob(sites.targets)
    known = float(density + sites.excess.sum())
    assert known == pytest.approx(float(gp.condition(x, y).log_marginal_likelihood()), abs=0.01)
    squares = []
    for seed in range(24):
        again = fgp.GP(gp.kernel, likelihood=sites).condition(x, y, solver="cg", seed=seed)
        value, error = float(again.log_marginal_likelihood()), again.report.standard_error
        assert error is not None
        squares.append(((value - known) / error) ** 2)
    assert 0.4 < sum(squares) / 24 < 2.2  # 1.15 expected, by sixteen probes each


def test_rows_that_repeat_have_a_variance_each() -> None:
    x, f, generator = table(120)
    x, y = torch.cat([x, x[:20]]), (torch.cat([f, f[:20]]) > 0.3 * torch.randn(140, generator=generator)).double()
    gp = model(L.Bernoulli())
    found, wanted = by_solves(gp, x, y).predict(x).mean, gp.condition(x, y).predict(x).mean
    torch.testing.assert_close(found, wanted, rtol=0.0, atol=5e-3)


def test_kernels_without_samples_are_solved_or_refused_by_their_price() -> None:
    x, f, _ = table(60)
    custom = fgp.GP(K.Custom(lambda a, b: torch.exp(-(a - b).square().sum())), likelihood=L.Gaussian(0.1))
    plain = fgp.GP(K.RBF(), likelihood=L.Gaussian(0.1))
    state, known = (gp.condition(x, f, solver="cg").state for gp in (custom, plain))
    never = SiteSettings(solved_seconds=0.0)
    assert RowMarginals(never, ALONE).samples(known)
    assert not RowMarginals(never, ALONE).samples(state)
    assert not RowMarginals(SiteSettings(solved_seconds=1e6), ALONE).samples(known)
    none = dataclasses.replace(never, solving_seconds=0.0)
    with pytest.raises(DomainError, match=r"without random features .* 60 solves a step, about .*full_scale., or"):
        RowMarginals(none, ALONE).samples(state)
