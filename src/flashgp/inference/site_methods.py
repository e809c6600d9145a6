"""How sites of a likelihood follow from q(f) of its rows: variational inference, or expectation propagation.

Both give a step and what log p(y), or the bound on it, has beside the log density of the targets of sites. At sites
that have settled that is flat in the sites, so that the gradient by all else is that of regression with them (M-271).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from flashgp.foundations.normal import LOG_2PI
from flashgp.likelihoods import Likelihood, Sites
from flashgp.likelihoods.base import LEAST, with_derivatives


@dataclass(frozen=True)
class Marginals:
    """q(f) of every training row. Fields: mean and variance, (n,), float64."""

    mean: Tensor
    variance: Tensor

    def divergence(self, other: "Marginals") -> float:
        """KL(self || other), nats, all rows together."""
        ratio = self.variance / other.variance
        squares = (self.mean - other.mean).square() / other.variance
        return 0.5 * float((ratio - 1.0 - ratio.log() + squares).sum())

    def divergence_of(self, before: Sites, after: Sites) -> float:
        """`divergence` from here of what each row's own site alone would make of it, to second order."""
        change = 1.0 / after.variance - 1.0 / before.variance
        linear = after.targets / after.variance - before.targets / before.variance
        shift, widening = (linear - change * self.mean).square() * self.variance, (change * self.variance).square()
        return float((0.5 * shift + 0.25 * widening).sum())


def sums_of_rows(values: Tensor) -> Tensor:
    """Sums over the latent functions of each row, (n,), of (n,) or (n, outputs)."""
    return values if values.dim() == 1 else values.sum(-1)


class SiteMethod(ABC):
    """Class attributes: bound, whether its value is one, which steps must not lower."""

    bound: ClassVar[bool]

    @abstractmethod
    def next_sites(self, likelihood: Likelihood, y: Tensor, at: Marginals, sites: Sites | None) -> Sites:
        """Sites of the next step, whole. Args: at, q(f) under the sites; None for none."""

    @abstractmethod
    def excess(self, likelihood: Likelihood, y: Tensor, at: Marginals, sites: Sites) -> Tensor:
        """Terms beside the log density of the targets of sites, of each row, (n,), nats; differentiable in the
        likelihood's parameters."""


class Variational(SiteMethod):
    """Natural gradients of the bound (M-267)."""

    bound = True

    def next_sites(self, likelihood: Likelihood, y: Tensor, at: Marginals, sites: Sites | None) -> Sites:
        return likelihood.sites_at(y, at.mean, at.variance, None)

    def excess(self, likelihood: Likelihood, y: Tensor, at: Marginals, sites: Sites) -> Tensor:
        of_site = -0.5 * (
            LOG_2PI + sites.variance.log() + ((sites.targets - at.mean).square() + at.variance) / sites.variance
        )
        return likelihood.expected_log_prob(y, at.mean, at.variance) - sums_of_rows(of_site)


class ExpectationPropagation(SiteMethod):
    """Moments of the likelihood times what all other rows say, (M-291), all rows at once.

    A row of weight w is w rows, of which one is left out. Source: Minka (2001), Expectation propagation for approximate
    Bayesian inference; Rasmussen & Williams (2006), section 3.6.
    """

    bound = False

    def next_sites(self, likelihood: Likelihood, y: Tensor, at: Marginals, sites: Sites | None) -> Sites:
        weight, before = self._weight(likelihood, y), self._cavity(likelihood, y, at, sites)

        def evidence(mean: Tensor, variance: Tensor) -> Tensor:
            return likelihood.log_evidence(y, mean, variance)

        _, by_mean, by_variance = with_derivatives(evidence, before.mean, before.variance)
        curvature = by_mean.square() - 2.0 * by_variance
        precision = (curvature / (1.0 - before.variance * curvature)).maximum(LEAST / at.variance)
        of_all = (weight * precision).maximum(LEAST / at.variance)
        return Sites(before.mean + by_mean * (1.0 / precision + before.variance), 1.0 / of_all)

    def excess(self, likelihood: Likelihood, y: Tensor, at: Marginals, sites: Sites) -> Tensor:
        weight, before = self._weight(likelihood, y), self._cavity(likelihood, y, at, sites)
        each = sites.variance * torch.where(weight > 0.0, weight, 1.0)  # of one of the rows that it is
        whole = before.variance + each
        of_site = -0.5 * ((whole / each).log() + (sites.targets - before.mean).square() / whole)  # but for log(2 pi s)
        return weight * (likelihood.log_evidence(y, before.mean, before.variance) - of_site) + 0.5 * (
            LOG_2PI + sites.variance.log()
        )

    def _weight(self, likelihood: Likelihood, y: Tensor) -> Tensor:
        weight = likelihood.weight_of(y)
        return torch.ones_like(y) if weight is None else weight

    def _cavity(self, likelihood: Likelihood, y: Tensor, at: Marginals, sites: Sites | None) -> Marginals:
        """What all rows but one of each say."""
        if sites is None:
            return at
        weight = self._weight(likelihood, y)
        precision = torch.where(weight > 0.0, 1.0 / (sites.variance * weight), 0.0).minimum((1.0 - LEAST) / at.variance)
        variance = 1.0 / (1.0 / at.variance - precision)
        return Marginals(variance * (at.mean / at.variance - sites.targets * precision), variance)


METHODS = {"variational": Variational(), "ep": ExpectationPropagation()}


def method_of(likelihood: Likelihood) -> SiteMethod:
    """How the sites of a likelihood are found."""
    return METHODS[likelihood.method]
