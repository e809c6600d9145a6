"""A sum of terms in different columns, each of which has a grid of its own, eq. (M-425), for tests."""

import torch

import flashgp as fgp

F64 = torch.float64
NOISE = 0.05
D = 5


def apart(nu: float = 1.5) -> fgp.kernels.Kernel:
    """Of 1 + 1 + 2 + 1 columns; a smooth second term takes a third of the frequencies."""
    k = fgp.kernels
    return (
        1.0 * k.Matern(nu=2.5, lengthscale=0.5, active_dims=[0])
        + 0.5 * k.Matern(nu=nu, lengthscale=0.6, active_dims=[1])
        + 0.8 * k.RBF(torch.tensor([0.7, 0.9], dtype=F64), active_dims=[2, 3])
        + 0.6 * k.Periodic(period=0.4, active_dims=[4])
    )


def model(nu: float = 1.5) -> fgp.GP:
    return fgp.GP(apart(nu), fgp.means.Constant(0.3), fgp.likelihoods.Gaussian(NOISE))


def table(n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, D, generator=generator, dtype=F64)
    y = torch.sin(6.0 * x[:, 0]) + x[:, 1] + torch.cos(3.0 * x[:, 2] + 2.0 * x[:, 3]) + torch.sin(15.7 * x[:, 4])
    return x, y + NOISE**0.5 * torch.randn(n, generator=generator, dtype=F64)
