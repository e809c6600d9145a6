"""Expectations of the logistic function under normal distributions in closed form, eqs. (M-277) and (M-278).

A logistic variable is a normal one whose deviation is twice a Kolmogorov variable: sigmoid(x) is a mixture of normal
distribution functions, and 23 of them give it within 2e-13.
"""

import math

import torch
from jaxtyping import Float, Float64
from torch import Tensor

STEP, SMALLEST, LARGEST = 0.15, 0.14, 4.2  # of the logarithm of the Kolmogorov variable, and its range


def _mixture() -> tuple[Tensor, Tensor]:
    """Weights and deviations by the trapezoidal rule, with each series of Kolmogorov's density where it converges."""
    low, high = math.log(SMALLEST), math.log(LARGEST)
    kappa = torch.arange(low, high, STEP, dtype=torch.float64).exp()
    k = torch.arange(1.0, 40.0, dtype=torch.float64).unsqueeze(-1)
    large = 8.0 * kappa * ((-1.0) ** (k + 1.0) * k.square() * (-2.0 * (k * kappa).square()).exp()).sum(0)
    odd = (2.0 * k - 1.0).square() * (math.pi**2 / 8.0)
    small = (-odd / kappa.square()).exp() * (2.0 * odd / kappa**4 - 1.0 / kappa.square())
    weights = kappa * torch.where(kappa < 0.6, math.sqrt(2.0 * math.pi) * small.sum(0), large)
    return weights / weights.sum(), 2.0 * kappa


WEIGHTS, DEVIATIONS = _mixture()


def _standardised(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    deviation = (variance.double().unsqueeze(-1) + DEVIATIONS.to(mean.device).square()).sqrt()
    return mean.double().unsqueeze(-1) / deviation, deviation


def expected_log_sigmoid(mean: Float[Tensor, "..."], variance: Float[Tensor, "..."]) -> Float64[Tensor, "..."]:
    """E log sigmoid(f) under f ~ N(mean, variance), eq. (M-277), entry by entry; differentiable."""
    z, deviation = _standardised(-mean, variance)
    density = (-0.5 * z.square()).exp() / math.sqrt(2.0 * math.pi)
    return -(deviation * (z * torch.special.ndtr(z) + density)) @ WEIGHTS.to(mean.device)


def log_expected_sigmoid(mean: Float[Tensor, "..."], variance: Float[Tensor, "..."]) -> Float64[Tensor, "..."]:
    """log E sigmoid(f) under f ~ N(mean, variance), eq. (M-278), entry by entry, to a relative 1e-10 of E in the tail
    too; differentiable."""
    mean, variance = mean.double(), variance.double()
    tail = mean < -0.5 * variance
    z, _ = _standardised(torch.where(tail, -mean - variance, mean), variance)
    value = torch.logsumexp(torch.special.log_ndtr(z) + WEIGHTS.log().to(mean.device), -1)
    return value + torch.where(tail, mean + 0.5 * variance, 0.0)


def variances_of_sigmoid(
    mean: Float[Tensor, "..."], variance: Float[Tensor, "..."]
) -> tuple[Float64[Tensor, "..."], Float64[Tensor, "..."]]:
    """E sigmoid(f) sigmoid(-f) = E sigmoid'(f), and Var sigmoid(f), under f ~ N(mean, variance), eq. (M-277)."""
    z, deviation = _standardised(mean, variance)
    within = ((-0.5 * z.square()).exp() / (math.sqrt(2.0 * math.pi) * deviation)) @ WEIGHTS.to(mean.device)
    both = log_expected_sigmoid(mean, variance) + log_expected_sigmoid(-mean, variance)
    return within, (both.exp() - within).clamp_min(0.0)  # of f known well, rounding
