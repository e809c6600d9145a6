"""Likelihoods whose sites are found by iteration, made up for tests, with a table and a model of theirs."""

import numpy
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.likelihoods import Gaussian, Likelihood, PredictiveDistribution

F64 = torch.float64


class Rates(PredictiveDistribution):
    """Counts of an uncertain rate e^f, by their moments."""

    def __init__(self, mean: Tensor, variance: Tensor) -> None:
        self.mean = (mean + 0.5 * variance).exp()
        self.variance = self.mean + variance.expm1() * (2.0 * mean + variance).exp()

    def quantile(self, q: float) -> Tensor:
        raise NotImplementedError

    def log_prob(self, y: Tensor) -> Tensor:
        raise NotImplementedError

    def sample(self, generator: torch.Generator) -> Tensor:
        raise NotImplementedError


class Counts(Likelihood):
    """y ~ Poisson(e^f): E log p = y m - e^(m + v / 2) - log y!."""

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        return y * f - f.exp() - (y + 1.0).lgamma()

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        return y * mean - (mean + 0.5 * variance).exp() - (y + 1.0).lgamma()

    def predictive(self, mean: Tensor, variance: Tensor) -> PredictiveDistribution:
        return Rates(mean, variance)


class Labels(Likelihood):
    """y of -1 or 1 with the log odds f, by 40 nodes of Gauss and Hermite."""

    nodes, weights = (torch.from_numpy(t) for t in numpy.polynomial.hermite_e.hermegauss(40))

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        return torch.nn.functional.logsigmoid(y * f)

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        f = mean.unsqueeze(-1) + variance.sqrt().unsqueeze(-1) * self.nodes
        return self.log_prob(y.unsqueeze(-1), f) @ (self.weights / self.weights.sum())

    def predictive(self, mean: Tensor, variance: Tensor) -> PredictiveDistribution:
        raise NotImplementedError


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
    return x, torch.where(chance < torch.sigmoid(8.0 * wave), 1.0, -1.0).to(F64)


def model(likelihood: Likelihood) -> fgp.GP:
    return fgp.GP(1.5 * fgp.kernels.Matern(nu=1.5, lengthscale=0.6), fgp.means.Constant(0.4), likelihood)
