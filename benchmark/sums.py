"""Series and tables whose covariance is a sum of kernels at different scales, each with the prior a user would write.

They are drawn from fixed seeds. `PROBLEMS` names them; each gives a prior with the user's starting values, rows and
targets.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy
import torch

import flashgp as fgp
from flashgp.kernels import Linear, Matern, Periodic, RationalQuadratic, SquaredExponential

Array = numpy.ndarray


class SumProblem(NamedTuple):
    """A prior at the user's starting values; x (n, d), y (n,), float64."""

    prior: fgp.GP
    x: torch.Tensor
    y: torch.Tensor


def _made(kernel: fgp.kernels.Kernel, noise_variance: float, x: Array, y: Array) -> SumProblem:
    prior = fgp.GP(kernel, fgp.means.Constant(), fgp.likelihoods.Gaussian(noise_variance))
    return SumProblem(prior, torch.from_numpy(x.reshape(len(y), -1)), torch.from_numpy(y))


def _autoregressive(steps: int, correlation: float, generator: numpy.random.Generator) -> Array:
    """A stationary series of unit variance whose neighbours are so much correlated."""
    normal = generator.standard_normal(steps)
    values = numpy.empty(steps)
    values[0] = normal[0]
    for i in range(1, steps):
        values[i] = correlation * values[i - 1] + math.sqrt(1.0 - correlation**2) * normal[i]
    return values


def carbon_dioxide() -> SumProblem:
    """37 years of months like those of Mauna Loa, in parts per million: a trend that bends, a season that grows, slow
    and quick irregularities. The prior is that of Rasmussen & Williams (2006), section 5.4.3."""
    generator = numpy.random.default_rng(0)
    year = numpy.arange(444) / 12.0
    trend = 315.0 + 0.75 * year + 0.013 * year**2
    angle = 2.0 * math.pi * year
    season = (2.7 + 0.015 * year) * (numpy.sin(angle) + 0.3 * numpy.sin(2.0 * angle + 0.5))
    slow = 0.6 * _autoregressive(444, math.exp(-1.0 / 14.0), generator)
    quick = 0.2 * _autoregressive(444, math.exp(-1.0 / 1.5), generator)
    y = trend + season + slow + quick + 0.1 * generator.standard_normal(444)
    kernel = (
        4000.0 * SquaredExponential(lengthscale=50.0)
        + 6.0 * (Periodic(period=1.0, lengthscale=1.3) * SquaredExponential(lengthscale=90.0))
        + 0.4 * RationalQuadratic(lengthscale=1.2, scale_mixture=0.8)
        + 0.03 * Matern(nu=1.5, lengthscale=0.13)
    )
    return _made(kernel, 0.03, 1958.0 + year, y - y.mean())


def two_seasons() -> SumProblem:
    """Two weeks of hours and a half: a day, a week, a slow drift; the user gives the periods alone."""
    generator = numpy.random.default_rng(1)
    hour = numpy.arange(400.0)
    day = numpy.sin(2.0 * math.pi * hour / 24.0) + 0.4 * numpy.cos(4.0 * math.pi * hour / 24.0)
    week = 0.3 * numpy.sin(2.0 * math.pi * hour / 168.0) + 0.2 * numpy.cos(6.0 * math.pi * hour / 168.0)
    drift = 0.5 * _autoregressive(400, math.exp(-1.0 / 60.0), generator)
    y = 20.0 + 5.0 * (day + week + drift) + 0.5 * generator.standard_normal(400)
    kernel = 1.0 * Periodic(period=24.0) + 1.0 * Periodic(period=168.0) + 1.0 * Matern(nu=1.5, lengthscale=1.0)
    return _made(kernel, 0.1, hour, y)


def two_scales() -> SumProblem:
    """A slow function and a quick one of a tenth of its size, at random places; both kernels start alike."""
    generator = numpy.random.default_rng(2)
    x = numpy.sort(generator.uniform(0.0, 10.0, 350))
    y = 3.0 * numpy.sin(0.6 * x) + 0.3 * numpy.sin(9.0 * x) * numpy.cos(1.3 * x)
    y += 0.05 * generator.standard_normal(350)
    kernel = 1.0 * SquaredExponential(lengthscale=1.0) + 1.0 * SquaredExponential(lengthscale=1.0)
    return _made(kernel, 0.1, x, y)


def additive() -> SumProblem:
    """Functions of one column each and one of two, 500 rows."""
    generator = numpy.random.default_rng(3)
    x = generator.uniform(-2.0, 2.0, (500, 4))
    y = 2.0 * numpy.sin(3.0 * x[:, 0]) + 0.5 * x[:, 1] ** 2 + 0.4 * numpy.cos(2.0 * x[:, 2] * x[:, 3])
    y += 0.1 * generator.standard_normal(500)
    kernel = (
        1.0 * SquaredExponential(lengthscale=1.0, active_dims=0)
        + 1.0 * SquaredExponential(lengthscale=1.0, active_dims=1)
        + 1.0 * Matern(nu=2.5, lengthscale=torch.ones(2, dtype=torch.float64), active_dims=(2, 3))
    )
    return _made(kernel, 0.1, x, y)


def line_and_rest() -> SumProblem:
    """A line in four columns and a rough function of one of them, as `Matern + Linear` has it; 300 rows."""
    generator = numpy.random.default_rng(4)
    x = generator.standard_normal((300, 4))
    y = x @ numpy.array([3.0, -2.0, 0.5, 0.0]) + 0.3 * numpy.abs(numpy.sin(4.0 * x[:, 0]))
    y += 0.1 * generator.standard_normal(300)
    kernel = 1.0 * Matern(nu=1.5, lengthscale=torch.ones(4, dtype=torch.float64)) + Linear(variance=1.0)
    return _made(kernel, 0.1, x, y)


PROBLEMS: dict[str, Callable[[], SumProblem]] = {
    "carbon dioxide": carbon_dioxide,
    "two seasons": two_seasons,
    "two scales": two_scales,
    "additive": additive,
    "line and rest": line_and_rest,
}
