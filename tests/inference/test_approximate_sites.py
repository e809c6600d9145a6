"""Approximations are written on sites: a likelihood of our own with fixed ones goes through both of them, (M-177)."""

import math
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.errors import DomainError
from flashgp.inference.sites import SiteSettings
from flashgp.inference.training.history import Stage
from flashgp.inference.training.options import FitSettings
from flashgp.inference.training.settings import StochasticSettings
from flashgp.likelihoods import Gaussian, Sites
from flashgp.planner.plan import Sizes
from inference.full_scale import test_factor as full_scale
from inference.streamed import test_bound as streamed
from inference.test_seams import NOISE, Given, Multiplicative, close, prior, table

F64 = torch.float64
BOTH = ({"approximation": "full_scale", "inducing": 8, "neighbours": 9}, {"approximation": "sparse", "inducing": 8})


class Known(Given):
    """Sites that were found elsewhere, of the rows there are and of those to come."""

    def sites(self, y: Tensor, outputs: int | None) -> Sites:
        return Sites(self.site_targets[: len(y)], self.site_variance[: len(y)])

    def rows(self, index: Tensor) -> "Known":
        return Known(self.site_targets[index], self.site_variance[index])

    @property
    def row_tensors(self) -> dict[str, Tensor]:
        return {"targets": self.site_targets, "variance": self.site_variance}

    def with_rows(self, **numbers: Any) -> "Known":
        none = torch.zeros(0, dtype=F64)
        return Known(numbers.get("targets", none), numbers.get("variance", none))

    def extended(self, n: int, more: int, row_variance: Any = None, row_weight: Any = None) -> "Known":
        return self


class Counted(Multiplicative):
    """Sites of one variance each, which a parameter scales."""

    def sites(self, y: Tensor, outputs: int | None) -> Sites:
        noise = self.noise_variance.value
        return Sites(y.log(), noise * (1.0 + 0.1 * y), -y.log().sum() - noise * len(y))


def known(n: int = 40) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x, y, and targets and variances of sites that have nothing to do with y."""
    (x, y), generator = table(n), torch.Generator().manual_seed(1)
    return x, y, torch.randn(n, generator=generator, dtype=F64), 0.1 + torch.rand(n, generator=generator, dtype=F64)


@pytest.mark.parametrize("options", BOTH)
def test_sites_condition_as_observations_with_their_noise(options: dict[str, Any]) -> None:
    x, y, targets, variance = known()
    found = prior(Known(targets, variance)).condition(x, y, **options)
    wanted = prior(Gaussian(None, row_variance=variance)).condition(x, targets, **options)
    at = x[:5] + 0.03
    p, q = found.predict(at), wanted.predict(at)
    close(p.mean, q.mean)
    close(p.covariance(), q.covariance())
    close(p.observation_mean, (p.mean + 0.5 * (p.variance + NOISE)).exp())
    close(found.log_marginal_likelihood(), wanted.log_marginal_likelihood())
    close(found.paths(2, seed=0)(at), wanted.paths(2, seed=0)(at))
    if options["approximation"] == "full_scale":
        close(found.leave_one_out().mean, wanted.leave_one_out().mean)
        assert found.lost == wanted.lost
    else:
        close(found.noise, variance)
        bare = type("Bare", (Known,), {"row_tensors": {}})(targets, variance)
        with pytest.raises(DomainError, match="what it knows of single rows as row_tensors"):
            prior(bare).condition(x, y, **options)


def test_rows_join_with_their_sites() -> None:
    x, y, targets, variance = known()
    options = {**BOTH[0], "inducing": x[:8]}
    found = prior(Known(targets, variance)).condition(x[:30], y[:30], **options)
    as_noise = prior(Gaussian(None, row_variance=variance[:30])).condition(x[:30], targets[:30], **options)
    for part in (slice(30, 31), slice(31, 40)):
        found = found.append(x[part], y[part])
        as_noise = as_noise.append(x[part], targets[part], row_variance=variance[part])
    at = x[:5] + 0.03
    close(found.predict(at).mean, as_noise.predict(at).mean)
    close(found.predict(at).variance, as_noise.predict(at).variance)
    close(found.log_marginal_likelihood(), as_noise.log_marginal_likelihood())


@pytest.mark.parametrize("options", BOTH)
def test_what_a_likelihood_adds_to_its_sites_is_counted(options: dict[str, Any]) -> None:
    x, y = table(40)
    options = {**options, "inducing": x[:8]}
    found = prior(Multiplicative()).condition(x, y, **options)
    wanted = prior(Gaussian(NOISE)).condition(x, y.log(), **options)
    close(found.log_marginal_likelihood(), wanted.log_marginal_likelihood() - y.log().sum())
    close(found.predict(x).mean, wanted.predict(x).mean)
    more = found.append(x[:3] + 0.1, y[:3])
    if options["approximation"] == "sparse":
        assert found.bound.upper == pytest.approx(wanted.bound.upper - float(y.log().sum()), rel=1e-9)
        read = prior(Multiplicative()).condition([(x, y), (x[:3] + 0.1, y[:3])], inducing=x[:8])
        close(more.log_marginal_likelihood(), read.log_marginal_likelihood())
    else:
        at_once = wanted.append(x[:3] + 0.1, y[:3].log())
        close(more.log_marginal_likelihood(), at_once.log_marginal_likelihood() - y.log().sum() - y[:3].log().sum())


def test_both_bounds_of_sites_are_those_of_dense_matrices() -> None:
    """(M-177)"""
    x, y, targets, variance = known()
    gp = prior(Known(targets, variance))
    found = gp.condition(x, y, approximation="sparse", inducing=x[:8]).bound
    with torch.no_grad():
        at = gp.kernel.operator(x[:8]).to_dense()
        at = at + 1e-8 * at.diagonal().mean() * torch.eye(8, dtype=F64)
        cross, residual = gp.kernel.operator(x, x[:8]).to_dense(), targets - 0.3
        low = cross @ torch.linalg.solve(at, cross.mT)
        whole, left = gp.kernel.operator(x).to_dense(), gp.kernel.operator(x).diagonal() - low.diagonal()
        zero, noise = torch.zeros(40, dtype=F64), torch.diag(variance)
        normal = torch.distributions.MultivariateNormal
        lower = float(normal(zero, low + noise).log_prob(residual)) - 0.5 * float((1.0 + left / variance).log().sum())
        wide = low + (1.0 + float((left / variance).sum())) * noise
        logs = float(torch.linalg.slogdet(low + noise).logabsdet)
        upper = -0.5 * (40 * math.log(2 * math.pi) + logs + float(residual @ torch.linalg.solve(wide, residual)))
        exact = float(normal(zero, whole + noise).log_prob(residual))
    assert found.lower == pytest.approx(lower, rel=1e-8)
    assert found.upper == pytest.approx(upper, rel=1e-8)
    assert found.lower < exact < found.upper


def test_gradients_by_parameters_of_sites() -> None:
    """(M-162) row by row, and (M-149)."""
    x, y = table(30)
    for gp in (prior(Counted()), prior(Multiplicative())):
        of = streamed.objective(gp, x, y, x[:7], 11, 19)
        layout = full_scale.layout_of(gp, x, torch.ones(1, dtype=F64), Sizes(7, 5, 8, 0), seed=0)
        for one in (of, full_scale.objective(gp, x, y, layout)):
            theta = one.parameters.values()
            wanted = full_scale.differences(one, theta)
            assert numpy.abs(one(theta).gradient - wanted).max() <= 1e-6 * (1.0 + numpy.abs(wanted).max())


def test_numbers_of_single_rows_are_refused_where_rows_are_read() -> None:
    x, y, targets, variance = known()
    gp = prior(Known(targets, variance))
    with pytest.raises(DomainError, match="treats all rows alike"):
        gp.condition([(x, y)], inducing=5)


def test_sites_of_more_rows_settle_less_and_never_to_more_than_a_hundredth_of_a_deviation() -> None:
    settings = SiteSettings()
    found = [settings.of_rows(settings.posterior_of(rows), rows) for rows in (10, 1000, 10_000, 10**6)]
    assert found == pytest.approx([1e-4, 1e-4, 0.1, 10.0])
    rows = 10**6
    assert (2.0 * found[-1] / rows) ** 0.5 < 0.01


def test_labels_choose_points_and_neighbours_for_all_rows_twice() -> None:
    """A coarse search and one with the sizes asked for; regression may have one more."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(350, 2, generator=generator, dtype=torch.float64)
    y = (torch.sin(9.0 * x[:, 0]) + 0.3 * torch.randn(350, generator=generator, dtype=torch.float64) > 0.0).double()
    gp = fgp.GP(1.0 * fgp.kernels.Matern(nu=1.5), likelihood=fgp.likelihoods.Bernoulli())
    search = StochasticSettings(first_rows=150, negligible_gain=0.0)
    rounds = {}
    for most in (2, 3):
        settings = FitSettings(stochastic=search, sites=SiteSettings(rounds=most))
        fit = fgp.fit(gp, x, y, approximation="full_scale", inducing=8, neighbours=8, progress=False, settings=settings)
        rounds[most] = {entry.run for entry in fit.history if entry.run.stage is Stage.APPROXIMATE}
    assert [len({run.number for run in rounds[most]}) for most in (2, 3)] == [2, 3]


def test_evaluations_of_all_rows_are_limited_after_a_part_of_them() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(700, 2, generator=generator, dtype=torch.float64)
    y = (torch.sin(9.0 * x[:, 0]) + 0.3 * torch.randn(700, generator=generator, dtype=torch.float64) > 0.0).double()
    gp = fgp.GP(1.0 * fgp.kernels.Matern(nu=1.5), likelihood=fgp.likelihoods.Bernoulli())
    sites = SiteSettings(coarse_gradients=2, gradients=1, negligible_gain=0.0)
    settings = FitSettings(stochastic=StochasticSettings(first_rows=150), sites=sites)
    fit = fgp.fit(gp, x, y, approximation="full_scale", inducing=8, neighbours=8, progress=False, settings=settings)
    runs = [entry.run for entry in fit.history]
    assert any(run.stage is Stage.PART and run.number == 175 for run in runs)
    counts = [sum(run.stage is Stage.APPROXIMATE and run.number == k for run in runs) for k in (1, 2)]
    assert counts == [2, 1]
