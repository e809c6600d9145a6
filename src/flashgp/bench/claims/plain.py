"""Covariances as everyone would write them in plain torch: by broadcasting, by nested vmap, from products."""

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["PLAIN", "broadcasting", "exact", "from_products", "not_called", "vmapped"]


def broadcasting(x1: Tensor, x2: Tensor, lengthscale: float) -> Tensor:
    """exp(-|x1_i - x2_j|^2 / (2 lengthscale^2)), (n, m), through an (n, m, d) tensor of differences."""
    z1, z2 = x1 / lengthscale, x2 / lengthscale
    return torch.exp(-0.5 * (z1[:, None] - z2[None]).square().sum(-1))


def vmapped(x1: Tensor, x2: Tensor, lengthscale: float) -> Tensor:
    """The same as a function of two points, mapped over both."""
    return torch.func.vmap(not_called(x2, lengthscale))(x1)


def not_called(x2: Tensor, lengthscale: float) -> Callable[[Tensor], Tensor]:
    """The function of one point that `vmapped` maps: a row of the matrix."""

    def k(a: Tensor, b: Tensor) -> Tensor:
        return torch.exp(-0.5 * ((a - b) / lengthscale).square().sum())

    return lambda a: torch.func.vmap(lambda b: k(a, b))(x2)


def from_products(x1: Tensor, x2: Tensor, lengthscale: float) -> Tensor:
    """The same from |a|^2 + |b|^2 - 2 a.b, which loses digits where points are close or far from zero."""
    z1, z2 = x1 / lengthscale, x2 / lengthscale
    squares = z1.square().sum(-1)[:, None] + z2.square().sum(-1) - 2.0 * z1 @ z2.mT
    return squares.clamp_min_(0.0).mul_(-0.5).exp_()


def exact(x1: Tensor, x2: Tensor, lengthscale: float) -> Tensor:
    """The reference: float64 on the CPU, by direct differences."""
    z1, z2 = x1.double().cpu() / lengthscale, x2.double().cpu() / lengthscale
    distance = torch.cdist(z1, z2, compute_mode="donot_use_mm_for_euclid_dist")
    return distance.square_().mul_(-0.5).exp_()


PLAIN: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {"broadcasting": broadcasting, "nested vmap": vmapped}
