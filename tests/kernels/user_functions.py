"""Functions of two points as users write them: some are forms of the library, some are not."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints

from flashgp import kernels
from flashgp.foundations.parameters import Parameter

f64 = torch.float64
SCALES = [0.7, 1.3, 1.9]


def ard(x: Tensor, z: Tensor, lengthscale: Tensor) -> Tensor:
    return torch.exp(-((x - z) ** 2 / (2 * lengthscale**2)).sum())


def matern32(x: Tensor, z: Tensor, lengthscale: Tensor, variance: Tensor) -> Tensor:
    r = math.sqrt(3) * torch.linalg.vector_norm((x - z) / lengthscale)
    return variance * (1 + r) * torch.exp(-r)


def polynomial(x: Tensor, z: Tensor, offset: Tensor, weights: Tensor) -> Tensor:
    return (x @ (weights * z) + offset) ** 3


def growing(x: Tensor, z: Tensor, slope: Tensor, lengthscale: Tensor) -> Tensor:
    a, b = torch.nn.functional.softplus(x @ slope), torch.nn.functional.softplus(z @ slope)
    return a * b * torch.exp(-((x - z) / lengthscale).square().sum())


def gibbs(x: Tensor, z: Tensor, slope: Tensor) -> Tensor:
    a, b = torch.exp(slope * x[0]), torch.exp(slope * z[0])
    return torch.sqrt(2 * a * b / (a**2 + b**2)) * torch.exp(-((x[0] - z[0]) ** 2) / (a**2 + b**2))


def warped(x: Tensor, z: Tensor, W: Tensor) -> Tensor:
    u, v = torch.tanh(x @ W), torch.tanh(z @ W)
    return torch.exp(-(torch.dist(u, v) ** 2))


def periodic(x: Tensor, z: Tensor, period: Tensor, lengthscale: Tensor) -> Tensor:
    return torch.exp(-2 * (torch.sin(torch.pi * (x - z).abs() / period) / lengthscale).square().sum())


def wave(x: Tensor, z: Tensor, frequency: Tensor, damping: Tensor) -> Tensor:
    return torch.cos(2 * torch.pi * ((x - z) @ frequency)) * torch.exp(-((x - z).square() @ damping**2))


def low_rank(x: Tensor, z: Tensor, B: Tensor) -> Tensor:
    d = x - z
    return torch.exp(-0.5 * d @ (B @ B.T) @ d)


def signed_weights(x: Tensor, z: Tensor, weights: Tensor) -> Tensor:
    return torch.exp(-0.01 * ((x - z).square() * weights).sum()) + (x * weights * z).mean()


def bilinear(x: Tensor, z: Tensor, A: Tensor) -> Tensor:
    return x @ (A + A.T) @ z + 1.0


def multiquadric(x: Tensor, z: Tensor, c: Tensor, power: Tensor) -> Tensor:
    q = (x - z).pow(2).sum()
    return (c**2 + q) ** -0.5 + (1 + q) ** -power


def laplace(x: Tensor, z: Tensor, scale: Tensor) -> Tensor:
    return torch.exp(-((x - z) / scale).abs().sum())


def sorted_features(x: Tensor, z: Tensor, lengthscale: Tensor) -> Tensor:
    return torch.exp(-(x.sort().values - z.sort().values).square().sum() / lengthscale)


def in_one_column(x: Tensor, z: Tensor, frequency: Tensor) -> Tensor:
    difference = torch.cat([x[1:2] - z[1:2], (x - z)[2:]])
    return torch.exp(-difference[0] * difference[0]) * (2 + torch.sin(frequency * difference[1]) ** 2) / 3


def brownian(x: Tensor, z: Tensor, warp: Tensor) -> Tensor:
    return torch.minimum(torch.exp(warp * x), torch.exp(warp * z)).sum()


def ranked(x: Tensor, z: Tensor, weights: Tensor) -> Tensor:
    return torch.exp(-((x - z).abs().sort().values * weights**2).sum())


def compact(x: Tensor, z: Tensor, lengthscale: Tensor) -> Tensor:
    r = ((x - z) / lengthscale).norm()
    return torch.where(r < 1, (1 - r) ** 4 * (4 * r + 1), 0.0)


def arcsine(x: Tensor, z: Tensor, bias: Tensor) -> Tensor:
    return torch.asin(2 * (x @ z + bias**2) / torch.sqrt((3 + 2 * x @ x + bias**2) * (3 + 2 * z @ z + bias**2)))


@dataclass(frozen=True)
class Written:
    """A function, parameters, columns of x it needs, and the statistics of its form, or the reason it has none."""

    function: Callable[..., Tensor]
    parameters: Callable[[], dict[str, Any]]
    found: tuple[str, ...] | str
    d: int = 3
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def kernel(self) -> kernels.Custom:
        return kernels.Custom(self.function, **self.options, **self.parameters())


def _matrix(rows: int, columns: int) -> Tensor:
    return torch.cos(torch.arange(rows * columns, dtype=f64)).reshape(rows, columns)


DISTANCE, PRODUCT = "distance", "product"
FUSED = [
    Written(ard, lambda: {"lengthscale": SCALES}, (DISTANCE,)),
    Written(matern32, lambda: {"lengthscale": Parameter(0.8, constraints.positive), "variance": 1.7}, (DISTANCE,)),
    Written(
        polynomial,
        lambda: {"offset": 0.6, "weights": Parameter(torch.tensor(SCALES), constraints.positive)},
        (PRODUCT,),
    ),
    Written(growing, lambda: {"slope": [0.4, -0.3, 0.2], "lengthscale": 1.2}, (DISTANCE,)),
    Written(gibbs, lambda: {"slope": 0.4}, (DISTANCE,)),
    Written(warped, lambda: {"W": _matrix(3, 2)}, (DISTANCE,)),
    Written(periodic, lambda: {"period": 1.7, "lengthscale": 0.9}, (DISTANCE,), d=1, options={"columns": 1}),
    Written(wave, lambda: {"frequency": [0.2, 0.1, 0.3], "damping": [0.3, 0.5, 0.2]}, (PRODUCT, DISTANCE)),
    Written(low_rank, lambda: {"B": _matrix(3, 2)}, (DISTANCE,)),
    Written(signed_weights, lambda: {"weights": [0.5, -0.2, 1.0]}, (DISTANCE, DISTANCE, PRODUCT, PRODUCT)),
    Written(bilinear, lambda: {"A": _matrix(3, 3)}, (PRODUCT, PRODUCT)),
    Written(multiquadric, lambda: {"c": 0.7, "power": 0.8}, (DISTANCE,)),
    Written(laplace, lambda: {"scale": 0.9}, (DISTANCE,) * 3, options={"active_dims": [0, 1, 2]}),
    Written(sorted_features, lambda: {"lengthscale": 2.0}, (DISTANCE,)),
    Written(in_one_column, lambda: {"frequency": 0.7}, (DISTANCE, DISTANCE), options={"columns": 3}),
]
TILED = [
    Written(brownian, lambda: {"warp": 0.3}, "tiled: aten.minimum of two points"),
    Written(ranked, lambda: {"weights": SCALES}, "tiled: aten.sort of two points"),
    Written(compact, lambda: {"lengthscale": 3.0}, "tiled: aten.lt of two points"),
    Written(arcsine, lambda: {"bias": 0.5}, "tiled: aten.asin of two points"),
]


def direct(kernel: kernels.Custom, x: Tensor, z: Tensor) -> Tensor:
    """k(x_i, z_j) one pair at a time, as the function says, differentiable."""
    values = {name: getattr(kernel, name).value for name in kernel.names}
    dims = slice(None) if kernel.active_dims is None else list(kernel.active_dims)
    return torch.stack(
        [torch.stack([kernel.function(a, b, **values).reshape(()) for b in z[:, dims]]) for a in x[:, dims]]
    )
