"""Distributions of which one of several holds, M-380: moments, quantiles and draws agree with their densities."""

import pytest
import torch
from torch import Tensor

from flashgp.likelihoods import StudentT
from flashgp.likelihoods.base import PredictiveDistribution
from flashgp.likelihoods.finite_mixture import FiniteMixture
from flashgp.likelihoods.gaussian import Normal

F64 = torch.float64
WEIGHTS = torch.tensor([0.5, 0.2, 0.3], dtype=F64)
MEAN = torch.tensor([-3.0, 0.0, 2.0], dtype=F64)
VARIANCE = torch.tensor([0.5, 2.0, 0.1], dtype=F64)
KINDS = ("normal", "student")


def mixture(kind: str, points: int, weights: Tensor = WEIGHTS) -> FiniteMixture:
    """The same mixture at so many points."""
    mean, variance = (t.unsqueeze(1).expand(3, points) for t in (MEAN, VARIANCE))
    each: PredictiveDistribution = Normal(mean, variance)
    if kind == "student":
        each = StudentT(9.0, 0.3).predictive(mean, variance)
    return FiniteMixture(each, weights.log())


@pytest.mark.parametrize("kind", KINDS)
def test_moments_and_distribution_function_are_integrals_of_the_density(kind: str) -> None:
    grid = torch.linspace(-40.0, 40.0, 8_001, dtype=F64)
    found = mixture(kind, len(grid))
    density = found.log_prob(grid).exp().detach()
    mean = torch.trapezoid(density * grid, grid)
    assert abs(float(mean - found.mean[0])) < 1e-8
    assert abs(float(torch.trapezoid(density * (grid - mean).square(), grid) - found.variance[0].detach())) < 1e-4
    below = torch.cumulative_trapezoid(density, grid)
    assert float((below - found.cdf(grid)[1:].detach()).abs().max()) < 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_quantiles_hold_their_level(kind: str) -> None:
    found = mixture(kind, 2)
    for q in (1e-6, 0.025, 0.5, 0.700001, 0.975):
        assert float((found.cdf(found.quantile(q)) - q).abs().max()) < 1e-10


def test_a_quantile_moves_with_its_parts() -> None:
    def quantile(mean: Tensor) -> Tensor:
        return FiniteMixture(Normal(mean.unsqueeze(1), VARIANCE.unsqueeze(1)), WEIGHTS.log()).quantile(0.3).sum()

    (slope,) = torch.autograd.grad(quantile(mean := MEAN.clone().requires_grad_()), mean)
    steps = 1e-6 * torch.eye(3, dtype=F64)
    differences = torch.stack([(quantile(MEAN + step) - quantile(MEAN - step)) / 2e-6 for step in steps])
    assert torch.allclose(slope, differences, atol=1e-5)


def test_draws_have_the_distribution() -> None:
    found = mixture("normal", 40_000)
    drawn = found.sample(torch.Generator().manual_seed(0))
    for y in (-3.0, 0.0, 1.9):
        share, wanted = float((drawn <= y).double().mean()), float(found.cdf(torch.full((40_000,), y, dtype=F64))[0])
        assert abs(share - wanted) < 4.0 * (wanted * (1.0 - wanted) / 40_000) ** 0.5


def test_weights_may_differ_between_observations() -> None:
    of_each = torch.stack([WEIGHTS, WEIGHTS.flip(0)], dim=1)
    both = mixture("normal", 2, of_each)
    y = torch.tensor([0.4, 0.4], dtype=F64)
    assert torch.allclose(both.log_prob(y)[1], mixture("normal", 1, WEIGHTS.flip(0)).log_prob(y[:1])[0])
    assert torch.allclose(both.cdf(both.quantile(0.1)), torch.full((2,), 0.1, dtype=F64))
