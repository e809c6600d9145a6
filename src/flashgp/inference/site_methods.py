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
from flashgp.likelihoods.quadrature import Unimodal, log_expectation

HALF = 0.5  # of a row: the least weight of which as many rows again are left out


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

    A row of weight w is w rows, of which one is left out; one of less than HALF a row is left out whole, and has the
    moments of p^w by quadrature: what is left beyond it may have less information than none.
    Source: Minka (2001), Expectation propagation for approximate Bayesian inference; Minka (2004), Power EP; Rasmussen
    & Williams (2006), section 3.6.
    """

    bound = False

    def next_sites(self, likelihood: Likelihood, y: Tensor, at: Marginals, sites: Sites | None) -> Sites:
        rows, power = self._rows(likelihood, y)
        before = at if sites is None else self._cavity(rows, at, sites)

        def evidence(mean: Tensor, variance: Tensor) -> Tensor:
            return self._evidence(likelihood, y, Marginals(mean, variance), power)

        _, by_mean, by_variance = with_derivatives(evidence, before.mean, before.variance)
        curvature = by_mean.square() - 2.0 * by_variance
        precision = (curvature / (1.0 - before.variance * curvature)).maximum(LEAST / at.variance)
        of_all = (rows * precision).maximum(LEAST / at.variance)
        return Sites(before.mean + by_mean * (1.0 / precision + before.variance), 1.0 / of_all)

    def excess(self, likelihood: Likelihood, y: Tensor, at: Marginals, sites: Sites) -> Tensor:
        rows, power = self._rows(likelihood, y)
        before, each = self._cavity(rows, at, sites), sites.variance * rows  # of one of the rows that it is
        whole = before.variance + each
        of_site = -0.5 * ((whole / each).log() + (sites.targets - before.mean).square() / whole)  # but for log(2 pi s)
        return rows * (self._evidence(likelihood, y, before, power) - of_site) + 0.5 * (LOG_2PI + sites.variance.log())

    def _rows(self, likelihood: Likelihood, y: Tensor) -> tuple[Tensor, Tensor]:
        """How many rows each is, of which one is left out, and the power of p that one has."""
        weight = likelihood.weight_of(y)
        if weight is None:
            return torch.ones_like(y), torch.ones_like(y)
        whole = weight >= HALF
        return torch.where(whole, weight, 1.0), torch.where(whole, 1.0, weight)

    def _evidence(self, likelihood: Likelihood, y: Tensor, before: Marginals, power: Tensor) -> Tensor:
        """log E p^power of each row."""
        value = likelihood.log_evidence(y, before.mean, before.variance)
        (part,) = (power < 1.0).nonzero(as_tuple=True)
        if not len(part):
            return value

        def log_prob(f: Tensor, y: Tensor, power: Tensor) -> Tensor:
            return power * likelihood.log_prob(y, f)

        mean, variance = before.mean[part], before.variance[part]
        return value.index_put((part,), log_expectation(log_prob, mean, variance, Unimodal(None), y[part], power[part]))

    def _cavity(self, rows: Tensor, at: Marginals, sites: Sites) -> Marginals:
        """What all rows but one of each say."""
        precision = (1.0 / (sites.variance * rows)).minimum((1.0 - LEAST) / at.variance)
        variance = 1.0 / (1.0 / at.variance - precision)
        return Marginals(variance * (at.mean / at.variance - sites.targets * precision), variance)


METHODS = {"variational": Variational(), "ep": ExpectationPropagation()}


def method_of(likelihood: Likelihood) -> SiteMethod:
    """How the sites of a likelihood are found."""
    return METHODS[likelihood.method]
