"""What suites compare with: plain torch, libraries that may be missing, and the data that they share."""

import importlib
import importlib.util
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "BROADCASTING",
    "PLAIN",
    "VMAP",
    "broadcasting",
    "exact",
    "from_products",
    "missing_peer",
    "peer",
    "row_function",
    "smooth_data",
    "vmapped",
]

BROADCASTING, VMAP = "broadcasting", "nested vmap"


def broadcasting(x1: Tensor, x2: Tensor, lengthscale: float) -> Tensor:
    """exp(-|x1_i - x2_j|^2 / (2 lengthscale^2)), (n, m), through an (n, m, d) tensor of differences."""
    z1, z2 = x1 / lengthscale, x2 / lengthscale
    return torch.exp(-0.5 * (z1[:, None] - z2[None]).square().sum(-1))


def vmapped(x1: Tensor, x2: Tensor, lengthscale: float) -> Tensor:
    """The same as a function of two points, mapped over both."""
    return torch.func.vmap(row_function(x2, lengthscale))(x1)


def row_function(x2: Tensor, lengthscale: float) -> Callable[[Tensor], Tensor]:
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


PLAIN: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {BROADCASTING: broadcasting, VMAP: vmapped}


def peer(name: str) -> Any | None:
    """Another library, or None when it is not installed."""
    if importlib.util.find_spec(name) is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(name)


def missing_peer(title: str) -> str:
    """The note of a suite that compares with a library which is not installed."""
    return f"{title} is not installed, so it takes no part; pip install 'flashgp[peers]'"


def smooth_data(n: int, d: int, dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, Tensor]:
    """x ~ N(0, 1)^d and a smooth function of three columns plus noise of standard deviation 0.1: (n, d), (n,)."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=generator, dtype=torch.float64)
    y = torch.sin(x[:, 0] + 0.5 * x[:, 1 % d]) + 0.3 * x[:, 2 % d] + 0.1 * torch.randn(n, generator=generator).double()
    return x.to(dtype), y.to(dtype)
