"""Covariance functions. Each is one file and one row of REGISTRY, which brings its tests, benchmark and file name."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from flashgp.kernels.base import Constant, Kernel, Product, Scaled, Sum
from flashgp.kernels.categorical import Categorical, Coregionalization
from flashgp.kernels.custom import Custom
from flashgp.kernels.linear import Linear, Polynomial
from flashgp.kernels.matern import Matern
from flashgp.kernels.periodic import Cosine, Periodic
from flashgp.kernels.rational_quadratic import RationalQuadratic
from flashgp.kernels.spectral_mixture import SpectralMixture
from flashgp.kernels.squared_exponential import SquaredExponential
from flashgp.kernels.warped import Warped

__all__ = [
    "RBF",
    "REGISTRY",
    "Categorical",
    "Constant",
    "Coregionalization",
    "Cosine",
    "Custom",
    "Kernel",
    "Linear",
    "Matern",
    "Periodic",
    "Polynomial",
    "Product",
    "RationalQuadratic",
    "Registered",
    "Scaled",
    "SpectralMixture",
    "SquaredExponential",
    "Sum",
    "Warped",
]

RBF = SquaredExponential


@dataclass(frozen=True)
class Registered:
    """A registry row: the class, examples for d columns (contract tests and benchmarks), and what x must hold."""

    kernel: type[Kernel]
    examples: Callable[[int], list[Kernel]]
    inputs: str = "real"  # or "codes"


def _scales(d: int) -> torch.Tensor:
    return torch.linspace(0.7, 1.9, d, dtype=torch.float64)


REGISTRY: dict[str, Registered] = {
    "SquaredExponential": Registered(
        SquaredExponential, lambda d: [SquaredExponential(0.8), SquaredExponential(_scales(d))]
    ),
    "Matern": Registered(
        Matern, lambda d: [Matern(0.5, 1.3), Matern(0.5, _scales(d)), Matern(1.5, _scales(d)), Matern(2.5, _scales(d))]
    ),
    "RationalQuadratic": Registered(
        RationalQuadratic, lambda d: [RationalQuadratic(0.7, _scales(d)), RationalQuadratic(40.0, 1.1)]
    ),
    "Periodic": Registered(Periodic, lambda d: [Periodic(2.3, 0.9), Periodic(_scales(d), _scales(d).flip(0))]),
    "Cosine": Registered(Cosine, lambda d: [Cosine(0.3), Cosine(0.2 * _scales(d))]),
    "SpectralMixture": Registered(
        SpectralMixture,
        lambda d: [
            SpectralMixture([0.7, 1.6], torch.stack([0.1 * _scales(d), 0.2 * _scales(d).flip(0)]), 0.2 + _ones(2, d)),
            SpectralMixture([1.3], 0.3 * _ones(1, d), 0.2 * _ones(1, d)),
        ],
    ),
    "Linear": Registered(Linear, lambda d: [Linear(0.6), Linear(_scales(d))]),
    "Polynomial": Registered(Polynomial, lambda d: [Polynomial(2, 0.5), Polynomial(3, 1.2, 0.3 * _scales(d))]),
    "Constant": Registered(Constant, lambda d: [Constant(1.7)]),
    "Categorical": Registered(
        Categorical, lambda d: [Categorical(_scales(d)), Categorical(0.9, active_dims=list(range(d)))], "codes"
    ),
    "Coregionalization": Registered(
        Coregionalization,
        lambda d: [
            Coregionalization(4, 2, active_dims=[0]),
            Coregionalization(4, 1, diagonal=0.3, active_dims=[d - 1]),
        ],
        "codes",
    ),
    "Warped": Registered(Warped, lambda d: [Warped(_example_module(d), SquaredExponential(1.1))]),
    "Custom": Registered(
        Custom,
        lambda d: [
            Custom(_example_function, lengthscale=_scales(d), offset=0.3),
            Custom(_example_minimum, offset=0.3, active_dims=list(range(d))),
        ],
    ),
    "Sum": Registered(
        Sum, lambda d: [Sum(Matern(2.5, _scales(d)), Linear(0.4)), SquaredExponential(0.9) + Periodic(1.7) + 0.5]
    ),
    "Product": Registered(
        Product,
        lambda d: [
            Matern(1.5, _scales(d)) * Periodic(2.0) * RationalQuadratic(1.5),
            (SquaredExponential(1.4) + Linear(0.3)) * (Matern(0.5, 2.0) + 0.7),
        ],
    ),
    "Scaled": Registered(
        Scaled, lambda d: [2.3 * Matern(2.5, _scales(d)), 0.4 * (1.5 * Cosine(0.2) + Linear(0.2)) * Matern(1.5)]
    ),
}


def _ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.float64)


def _example_function(
    x: torch.Tensor, z: torch.Tensor, lengthscale: torch.Tensor, offset: torch.Tensor
) -> torch.Tensor:
    """A function that fuses: distances, products, functions of one point."""
    squared = (((x - z) / lengthscale) ** 2).sum()
    return torch.exp(offset * (x[0].sin() + z[0].sin()) - squared / 2) + offset**2 * (x @ z)


def _example_minimum(x: torch.Tensor, z: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
    """A function that does not: Brownian motion of a warped time, in every column."""
    return torch.minimum(torch.exp(offset * x), torch.exp(offset * z)).sum()


def _example_module(d: int) -> torch.nn.Module:
    module = torch.nn.Linear(d, 2).double()
    with torch.no_grad():
        module.weight.copy_(torch.cos(torch.arange(2 * d).reshape(2, d).double()))
        module.bias.zero_()
    return torch.nn.Sequential(module, torch.nn.Tanh())
