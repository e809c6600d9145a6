"""Likelihoods with one latent function, each with targets that it may see and some that it may not."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import flashgp as fgp
from flashgp.likelihoods.non_gaussian import NonGaussian

lik = fgp.likelihoods


def rounded(y: Tensor, f: Tensor, scale: Tensor) -> Tensor:
    """Like Laplace's, without its kink; not normalised to the last digit."""
    return -torch.sqrt(1.0 + ((y - f) / scale).square()) - torch.log(scale)


@dataclass(frozen=True)
class Case:
    """A likelihood with targets that it may see and some that it may not."""

    make: Callable[[], NonGaussian]
    targets: tuple[float, ...]
    wrong: float
    slack: float = 1e-9  # of expectations
    grows: float = 0.0  # rate of the exponential by which log p falls, whose expectation is far out


CASES = {
    "Bernoulli": Case(lambda: lik.Bernoulli(), (0.0, 1.0), 0.5, 1e-6),
    "Bernoulli, logit": Case(lambda: lik.Bernoulli("logit"), (0.0, 1.0), -1.0),
    "Beta": Case(lambda: lik.Beta(7.0), (1e-4, 0.3, 0.99), 1.0),
    "Binomial": Case(lambda: lik.Binomial(9), (0.0, 4.0, 9.0), 10.0),
    "Custom": Case(lambda: lik.Custom(rounded, scale=0.5), (-2.0, 7.0), math.inf, 2e-7),
    "Gamma": Case(lambda: lik.Gamma(2.5), (0.01, 3.0), 0.0, grows=-1.0),
    "NegativeBinomial": Case(lambda: lik.NegativeBinomial(0.4), (0.0, 3.0, 250.0), 2.5),
    "Ordinal": Case(lambda: lik.Ordinal(4, -1.0, [0.5, 2.0]), (0.0, 1.0, 2.0, 3.0), 4.0),
    "Poisson": Case(lambda: lik.Poisson(), (0.0, 3.0, 250.0), -1.0, grows=1.0),
    "StudentT": Case(lambda: lik.StudentT(4.0, 0.3), (-40.0, 0.2), math.nan),
}
