"""Peers that may be missing, and the data that suites share."""

import importlib
import importlib.util
import warnings
from typing import Any

import torch

__all__ = ["peer", "smooth_data", "takes_no_part"]


def peer(name: str) -> Any | None:
    """A peer library, or None when it is not installed."""
    if importlib.util.find_spec(name) is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(name)


def takes_no_part(title: str) -> str:
    """The note of a suite whose peer is not there."""
    return f"{title} is not installed, so it takes no part; pip install 'flashgp[peers]'"


def smooth_data(n: int, d: int, dtype: torch.dtype, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """x ~ N(0, 1)^d and a smooth function of three columns plus noise of standard deviation 0.1: (n, d), (n,)."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=generator, dtype=torch.float64)
    y = torch.sin(x[:, 0] + 0.5 * x[:, 1 % d]) + 0.3 * x[:, 2 % d] + 0.1 * torch.randn(n, generator=generator).double()
    return x.to(dtype), y.to(dtype)
