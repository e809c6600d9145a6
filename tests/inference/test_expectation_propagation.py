"""Sites by expectation propagation, (M-291): against plain loops, its gradient, and weights as rows."""

import math
from typing import Literal

import numpy
import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.errors import DomainError
from flashgp.foundations.events import EventKind
from flashgp.inference.exact.likelihood import DirectSettings
from flashgp.inference.sites import IteratedSites, SiteSettings
from flashgp.inference.training.objective import LogJoint, Problem
from flashgp.likelihoods import Bernoulli
from flashgp.pairwise.torch.tiles import TorchTiles

F64 = torch.float64
Link = Literal["probit", "logit"]


def table(n: int = 40) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(n, 2, generator=generator, dtype=F64)
    y = (torch.rand(n, generator=generator, dtype=F64) < torch.sigmoid(4.0 * x[:, 0].sin() + 1.0)).to(F64)
    return x, y, torch.randn(7, 2, generator=generator, dtype=F64)


def model(likelihood: Bernoulli, variance: float = 4.0) -> fgp.GP:
    return fgp.GP(variance * fgp.kernels.Matern(nu=2.5, lengthscale=1.2), fgp.means.Constant(0.3), likelihood)


def by_loops(gp: fgp.GP, link: Link, x: Tensor, y: Tensor, at: Tensor) -> tuple[Tensor, Tensor, float]:
    """Mean and variance at points, and log Z: one row after the other, moments by 2,001 nodes.

    Source: Rasmussen & Williams (2006), algorithms 3.5 and 3.6, in the notation of sites.
    """
    with torch.no_grad():
        k, cross, own = (gp.kernel(*each).to_dense() for each in ((x,), (at, x), (at,)))
    n, t = len(y), torch.linspace(-9.0, 9.0, 2001, dtype=F64)
    normal = (-0.5 * t.square()).exp()
    normal /= normal.sum()
    linear, precision, logs = torch.zeros(n, dtype=F64), torch.full((n,), 1e-10, dtype=F64), torch.zeros(n, dtype=F64)

    def posterior() -> tuple[Tensor, Tensor, Tensor]:
        covariance = k - k @ torch.linalg.inv(k + (1.0 / precision).diag()) @ k
        return covariance, covariance @ (linear + torch.linalg.solve(k, torch.full_like(y, 0.3))), 1.0 / precision

    for _ in range(25):
        for i in range(n):
            covariance, mean, _ = posterior()
            v = 1.0 / (1.0 / covariance[i, i] - precision[i])
            m = v * (mean[i] / covariance[i, i] - linear[i])
            f = m + v.sqrt() * t
            signed = (2.0 * y[i] - 1.0) * f
            p = torch.special.ndtr(signed) if link == "probit" else torch.sigmoid(signed)
            z = (normal * p).sum()
            first = (normal * p * f).sum() / z
            second = (normal * p * (f - first).square()).sum() / z
            precision[i], linear[i] = 1.0 / second - 1.0 / v, first / second - m / v
            target, spread = linear[i] / precision[i], v + 1.0 / precision[i]
            logs[i] = z.log() + 0.5 * ((2.0 * math.pi * spread).log() + (target - m).square() / spread)
    _, _, noise = posterior()
    joint = torch.distributions.MultivariateNormal(torch.full_like(y, 0.3), k + noise.diag())
    value = joint.log_prob(linear / precision) + logs.sum()
    inverse = torch.linalg.inv(k + noise.diag())
    mean = 0.3 + cross @ inverse @ (linear / precision - 0.3)
    return mean, (own - cross @ inverse @ cross.mT).diagonal(), float(value)


@pytest.mark.parametrize("link", ["probit", "logit"])
def test_moments_of_every_row_are_matched(link: Link) -> None:
    x, y, at = table()
    gp = model(Bernoulli(link))
    post = gp.condition(x, y)
    mean, variance, value = by_loops(gp, link, x, y, at)
    found = post.predict(at)
    torch.testing.assert_close(found.mean, mean, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(found.variance, variance, rtol=1e-3, atol=1e-3)
    assert float(post.log_marginal_likelihood()) == pytest.approx(value, abs=1e-3)
    (event,) = (event for event in post.report.events if event.kind is EventKind.SITES)
    assert event.fields["steps"] <= 9


def test_it_is_above_the_bound_and_is_not_called_one() -> None:
    x, y, _ = table()
    ep, variational = (fgp.fit(model(Bernoulli(method=m)), x, y, max_iterations=1) for m in ("ep", "variational"))
    values = [
        float(model(Bernoulli(method=m)).condition(x, y).log_marginal_likelihood()) for m in ("ep", "variational")
    ]
    assert 0.02 < values[0] - values[1] < 1.0
    assert "at least" not in dict(ep.summary())["log marginal likelihood"]
    assert "at least" in dict(variational.summary())["log marginal likelihood"]


@pytest.mark.parametrize("link", ["probit", "logit"])
def test_the_gradient_is_that_with_sites_held(link: Link) -> None:
    """(M-291), (M-271): against differences, of sites that have settled."""
    x, y, _ = table()
    gp = model(Bernoulli(link))
    settings = SiteSettings(search=1e-12)
    problem = Problem(gp, x, y, DirectSettings(TorchTiles()), sites=IteratedSites.of(gp, x, y, settings))
    objective = LogJoint(problem)
    theta, step = objective.parameters.values() + 0.2, 1e-4
    gradient = objective(theta).gradient
    for k, one in enumerate(step * numpy.eye(len(theta))):
        above, below = objective(theta + one).value, objective(theta - one).value
        assert above is not None
        assert below is not None
        assert gradient[k] == pytest.approx((above - below) / (2.0 * step), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("method", ["ep", "variational"])
def test_a_row_of_weight_two_is_two_rows(method: Literal["ep", "variational"]) -> None:
    x, y, at = table()
    weight = torch.ones(len(y), dtype=F64)
    weight[:12], weight[12:15] = 2.0, 0.0
    kept = torch.cat([torch.arange(12), torch.arange(12), torch.arange(15, len(y))])
    weighted = model(Bernoulli(row_weight=weight, method=method)).condition(x, y)
    repeated = model(Bernoulli(method=method)).condition(x[kept], y[kept])
    torch.testing.assert_close(weighted.predict(at).mean, repeated.predict(at).mean, rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(weighted.predict(at).variance, repeated.predict(at).variance, rtol=2e-3, atol=2e-3)
    values = [float(post.log_marginal_likelihood()) for post in (weighted, repeated)]
    assert values[0] == pytest.approx(values[1], abs=2e-3)


def test_full_scale_with_all_rows_as_neighbours_is_the_same() -> None:
    x, y, at = table(60)
    gp = model(Bernoulli())
    exact, found = gp.condition(x, y), gp.condition(x, y, approximation="full_scale", inducing=10, neighbours=60)
    torch.testing.assert_close(found.predict(at).mean, exact.predict(at).mean, rtol=1e-3, atol=1e-3)
    one, other = (float(post.log_marginal_likelihood()) for post in (found, exact))
    assert one == pytest.approx(other, abs=1e-3)


def test_sites_of_a_search_are_found_in_few_steps() -> None:
    """Steps that would move q(f) by less than a hundredth of a nat are not taken."""
    x, y, _ = table(100)
    fit = fgp.fit(model(Bernoulli()), x, y)
    (event,) = (event for event in fit.report.events if event.kind is EventKind.FIT_SITES)
    assert event.fields["steps"] <= 3.5 * event.fields["evaluations"]


def test_a_method_that_is_none_is_refused() -> None:
    with pytest.raises(
        DomainError, match=r"`method` must be 'ep' or 'variational' or 'laplace', got 'moments'; choose one of these"
    ):
        Bernoulli(method="moments")  # type: ignore[arg-type]


@pytest.mark.parametrize(("lengthscale", "one_class"), [(0.5, False), (1e3, True)])
def test_sites_settle_where_steps_go_far_or_to_and_fro(lengthscale: float, one_class: bool) -> None:
    """Rows that contradict each other under a wide prior, whose variances fall by orders of magnitude in whole steps
    alike; and rows that all pull at one number, at which whole steps turn."""
    x, _, _ = table(60)
    x, y = x.repeat_interleave(2, 0), torch.arange(120).remainder(2).double()
    gp = fgp.GP(1e4 * fgp.kernels.Matern(nu=2.5, lengthscale=lengthscale), fgp.means.Zero(), Bernoulli())
    post = gp.condition(x, torch.ones_like(y) if one_class else y)
    (event,) = (event for event in post.report.events if event.kind is EventKind.SITES)
    assert event.fields["moved"] < 1e-4
