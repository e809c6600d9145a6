"""Tables and a model for likelihoods whose sites are found by iteration, and one that need not."""

import torch
from torch import Tensor

import flashgp as fgp
from flashgp.likelihoods import Gaussian, Likelihood

F64 = torch.float64


class Iterated(Gaussian):
    """A Gaussian likelihood that does not know that its sites are its observations."""

    has_sites = False


def table(n: int = 40) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n)
    x = torch.rand(n, 2, generator=generator, dtype=F64)
    y = torch.poisson((1.0 + torch.sin(5.0 * x[:, 0]) + x[:, 1]).exp(), generator)
    return x, y, torch.rand(7, 2, generator=generator, dtype=F64)


def labels(n: int) -> tuple[Tensor, Tensor]:
    """x and labels of regions a tenth wide, seldom wrong."""
    x, _, _ = table(n)
    wave = torch.sin(20.0 * x[:, 0]) * torch.sin(20.0 * x[:, 1] + 1.0)
    chance = torch.rand(n, generator=torch.Generator().manual_seed(1), dtype=F64)
    return x, torch.where(chance < torch.sigmoid(8.0 * wave), 1.0, 0.0).to(F64)


def model(likelihood: Likelihood) -> fgp.GP:
    return fgp.GP(1.5 * fgp.kernels.Matern(nu=1.5, lengthscale=0.6), fgp.means.Constant(0.4), likelihood)
