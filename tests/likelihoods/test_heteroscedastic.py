"""A Gaussian likelihood whose noise is a function of x too, (M-320)."""

import math
from pathlib import Path

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
from flashgp.pairwise.torch.tiles import TorchTiles

F64 = torch.float64
lik = fgp.likelihoods


def table(n: int = 60) -> tuple[Tensor, Tensor]:
    """Noise that grows by the factor 36 over x."""
    generator = torch.Generator().manual_seed(n)
    x = 4.0 * torch.rand(n, 1, generator=generator, dtype=F64)
    noise = torch.exp(-3.0 + 0.9 * x[:, 0]) * torch.randn(n, generator=generator, dtype=F64)
    return x, 5.0 + torch.sin(2.0 * x[:, 0]) + noise


def model() -> fgp.GP:
    return fgp.GP(1.2 * fgp.kernels.Matern(nu=2.5), likelihood=lik.HeteroscedasticGaussian(5.0, -3.0, 1.1))


def test_expectations_are_those_of_fine_grids() -> None:
    likelihood, t = lik.HeteroscedasticGaussian(0.3, -1.0, 0.7), torch.linspace(-9.0, 9.0, 301, dtype=F64)
    weight = torch.softmax(-0.5 * t.square(), 0)
    for mean, variance, y in (((0.4, -2.0), (0.3, 4.0), 1.5), ((-300.0, 5.0), (9.0, 0.01), 0.0)):
        f = torch.stack(torch.broadcast_tensors(
            mean[0] + variance[0] ** 0.5 * t[:, None], mean[1] + variance[1] ** 0.5 * t[None]
        ), -1)  # fmt: skip
        each = likelihood.log_prob(torch.full_like(f, y), f)
        one = (torch.tensor([pair], dtype=F64) for pair in ((y, y), mean, variance))
        assert float(likelihood.expected_log_prob(*one)) == pytest.approx(float(weight @ each @ weight), rel=1e-9)


def test_no_row_has_less_than_a_hundredth_of_the_deviation() -> None:
    """However far g falls; and far above it says nothing."""
    likelihood = lik.HeteroscedasticGaussian(0.0, -1.0, 1.0)
    f = torch.tensor([[0.0, -50.0], [0.0, -1e3], [0.0, 9.0]], dtype=F64)
    deviation = torch.tensor([math.exp(-1.0) * 1e-4, math.exp(-1.0) * 1e-4, math.exp(8.0) + 1e-4 / math.e]).sqrt()
    right = torch.distributions.Normal(0.0, deviation.double()).log_prob(torch.full((3,), 0.01, dtype=F64))
    torch.testing.assert_close(likelihood.log_prob(torch.full((3, 2), 0.01, dtype=F64), f), right, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("wave", [True, False])
def test_targets_without_noise_end_in_normal_time(wave: bool) -> None:
    x, _ = table()
    y = torch.sin(2.0 * x[:, 0]) if wave else torch.ones(len(x), dtype=F64)
    fit = fgp.fit(model(), x, y, starts=1)
    (event,) = (event for event in fit.report.events if event.kind is EventKind.FIT_SITES)
    assert event.fields["steps"] <= 1500
    assert event.fields["evaluations"] <= 40
    least = math.log(1e-3 * (float(y.var(correction=0)) or 1.0))
    assert float(fit.gp.likelihood.offset) > least - 1.5  # of the central two thirds
    post = fit.posterior.predict(x)
    assert bool((post.observation_mean - y).abs().max() < 0.02)
    assert bool(post.observation_variance.isfinite().all())


@pytest.mark.parametrize(("centre", "of_log"), [(0.0, 1e-6), (-3.0, 0.7), (1.0, 9.0)])
def test_predictive_distributions_are_whole(centre: float, of_log: float) -> None:
    """Density, distribution function, moments and quantiles against fine grids of the log noise."""
    p = lik.HeteroscedasticGaussian(2.0, 0.0, 1.0).predictive(
        torch.tensor([[0.5], [centre]], dtype=F64), torch.tensor([[0.1], [of_log]], dtype=F64)
    )
    h = centre + math.sqrt(of_log) * torch.linspace(-20.0, 20.0, 80_001, dtype=F64)
    weight = torch.softmax(-0.5 * ((h - centre) / math.sqrt(of_log)).square(), 0)
    variance = 0.1 + h.exp() + 1e-4
    for y in (2.5, 2.6, 7.0, -30.0):
        density = torch.exp(-0.5 * (y - 2.5) ** 2 / variance) / (2.0 * math.pi * variance).sqrt()
        below = torch.special.ndtr((y - 2.5) / variance.sqrt())
        at = torch.tensor([y], dtype=F64)
        assert float(p.log_prob(at).detach()) == pytest.approx(float((weight @ density).log()), rel=1e-8, abs=1e-8)
        assert float(p.cdf(at)) == pytest.approx(float(weight @ below), abs=1e-8)
    assert float(p.mean.detach()) == pytest.approx(2.5)
    assert float(p.variance.detach()) == pytest.approx(0.1001 + math.exp(centre + 0.5 * of_log))
    assert float(p.cdf(p.quantile(0.9).detach())) == pytest.approx(0.9, abs=1e-8)


def test_quantiles_follow_the_moments() -> None:
    def at(mean: Tensor, variance: Tensor) -> Tensor:
        return lik.HeteroscedasticGaussian().predictive(mean, variance).quantile(0.8)

    moments = [torch.tensor([[0.3], [1.0]], dtype=F64), torch.tensor([[0.2], [0.5]], dtype=F64)]
    leaves = [t.clone().requires_grad_() for t in moments]
    slopes = torch.autograd.grad(at(*leaves).sum(), leaves)
    for i, slope in enumerate(slopes):
        for k in range(2):
            step = torch.zeros(2, 1, dtype=F64)
            step[k] = 1e-5
            up, down = ([t + sign * step * (j == i) for j, t in enumerate(moments)] for sign in (1.0, -1.0))
            change = float((at(*up) - at(*down)).detach()) / 2e-5
            assert float(slope[k]) == pytest.approx(change, rel=1e-5, abs=1e-7)


def test_the_gradient_of_the_bound_is_that_of_differences() -> None:
    (x, y), gp = table(30), model()
    targets = gp.likelihood.encoded(y, "y")
    sites = IteratedSites.of(gp, x, targets, SiteSettings(search=1e-12))
    of = LogJoint(Problem(gp, x, targets, DirectSettings(TorchTiles()), sites=sites))
    theta = of.parameters.values()
    gradient = of(theta).gradient
    for k, step in enumerate(1e-4 * numpy.eye(len(theta))):
        upper, lower = of(theta + step).value, of(theta - step).value
        assert upper is not None
        assert lower is not None
        assert (upper - lower) / 2e-4 == pytest.approx(gradient[k], rel=1e-4, abs=1e-5)


def test_fits_find_noise_that_grows() -> None:
    x, y = table(160)
    train, test = slice(100), slice(100, None)
    fits = [
        fgp.fit(fgp.GP(1.0 * fgp.kernels.Matern(nu=2.5), likelihood=one), x[train], y[train], starts=1).posterior
        for one in (lik.HeteroscedasticGaussian(), lik.Gaussian(0.1))
    ]
    own, plain = (float(post.predict(x[test]).log_prob(y[test]).mean()) for post in fits)
    assert own > plain + 0.4
    p = fits[0].predict(torch.tensor([[0.5], [3.5]], dtype=F64))
    assert p.observation_mean.shape == p.observation_variance.shape == (2,)
    assert float(p.observation_variance[1] / p.observation_variance[0]) > 30.0
    low, high = fits[0].predict(x[test]).interval(0.9)
    assert 0.75 < float(((y[test] > low) & (y[test] < high)).double().mean()) <= 1.0
    left = fits[0].leave_one_out()
    assert left.log_prob.shape == (100,)
    assert float(left.log_prob.mean()) == pytest.approx(own, abs=0.4)
    drawn = p.sample(4000, observed=True, seed=0)
    assert drawn.shape == (4000, 2)
    assert float((drawn.mean(0) - p.observation_mean).abs().div(p.observation_variance.sqrt()).max()) < 0.07
    assert torch.allclose(drawn.var(0), p.observation_variance.detach(), rtol=0.2)


def test_units_of_y_do_not_matter() -> None:
    x, y = table(40)
    gp = fgp.GP(1.0 * fgp.kernels.Matern(nu=2.5), likelihood=lik.HeteroscedasticGaussian())
    one, other = (fgp.fit(gp, x, unit * y, starts=1).posterior for unit in (1.0, 1e-6))
    small, large = (post.predict(x[:5]).observation_variance for post in (other, one))
    assert torch.allclose(1e12 * small, large, rtol=0.05)


def test_rows_join_and_files_say_the_same(tmp_path: Path) -> None:
    x, y = table(40)
    post = model().condition(x, y)
    assert post.append(x[:2] + 0.01, y[:2]).count == 42
    fgp.save(post, tmp_path / "model.safetensors")
    again = fgp.load(tmp_path / "model.safetensors")
    assert torch.equal(again.predict(x[:3]).log_prob(y[:3]), post.predict(x[:3]).log_prob(y[:3]))


def test_targets_of_two_columns_are_refused() -> None:
    with pytest.raises(DomainError, match=r"one number for each row, \(n,\), .* in row 1; fit a GP for each column"):
        model().condition(torch.zeros(2, 1, dtype=F64), torch.tensor([[1.0, 1.0], [0.0, 1.0]], dtype=F64))
