"""How sites of a likelihood follow from q(f) of its rows: variational inference, expectation propagation, Laplace's
method.

Each gives a step and what log p(y), or the bound on it, has beside the log density of the targets of sites. At sites
that have settled that is flat in the sites, so that the gradient by all else is that of regression with them (M-271);
of Laplace's method it is not, and (M-351) adds what the mode moves.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.normal import LOG_2PI
from flashgp.likelihoods import Likelihood, Sites
from flashgp.likelihoods.base import LEAST, bounded_sites, with_derivatives
from flashgp.likelihoods.quadrature import Unimodal, log_expectation

HALF = 0.5  # of a row: the least weight of which as many rows again are left out
NATS_BESIDE_PARABOLA = 0.01  # a row, from which on an event says that Laplace's method is far off


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
    """Class attributes: bound, whether log p(y) is at least its value; climbs, whether steps must not lower `aim`;
    exact, whether only exact inference has what it needs."""

    bound: ClassVar[bool] = False
    climbs: ClassVar[bool] = True
    exact: ClassVar[bool] = False

    @abstractmethod
    def next_sites(self, likelihood: Likelihood, y: Tensor, at: Marginals, sites: Sites | None) -> Sites:
        """Sites of the next step, whole. Args: at, q(f) under the sites; None for none."""

    @abstractmethod
    def excess(self, likelihood: Likelihood, y: Tensor, at: Marginals, sites: Sites) -> Tensor:
        """Terms beside the log density of the targets of sites, of each row, (n,), nats; differentiable in the
        likelihood's parameters."""

    def aim(
        self, likelihood: Likelihood, y: Tensor, at: Marginals, sites: Sites, mean: Tensor, density: float | None
    ) -> float | None:
        """What steps raise, nats. Args: mean, of the prior; density, the log density of the targets of sites, None
        where the engine does not know it."""
        return None if density is None else density + float(self.excess(likelihood, y, at, sites).sum())

    def aim_alone(self, likelihood: Likelihood, y: Tensor, at: Marginals, before: Marginals) -> Tensor:
        """The same of every row by itself under the prior `before`, (n,), nats."""
        ratio = at.variance / before.variance
        squares = (at.mean - before.mean).square() / before.variance
        return likelihood.expected_log_prob(y, at.mean, at.variance) - 0.5 * sums_of_rows(
            ratio - ratio.log() - 1.0 + squares
        )

    def by_mode(self, likelihood: Likelihood, y: Tensor, at: Marginals, sites: Sites) -> Tensor | None:
        """Targets t, (n,), of (M-351): the slope of the value by the mode, times variances of sites; None where the
        value is flat."""
        return None

    def of_mode(self, likelihood: Likelihood, y: Tensor, at: Marginals, moved: Tensor) -> Tensor:
        """Zero, with the gradient by the likelihood's parameters that (M-351) adds. Args: moved, K w."""
        raise NotImplementedError("the value is flat in sites")

    def doubts(self, likelihood: Likelihood, y: Tensor, at: Marginals) -> list[Event]:
        """Events that say where the method is known to fail, at q(f) of sites that have settled."""
        return []


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

    climbs = False

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


class Laplace(SiteMethod):
    """Slope and curvature of log p at the mode of f, (M-350): steps are Newton's.

    Rows where log p bends upwards at the mode have next to no site. Marginals of all rows are in the gradient through
    the mode, (M-351), so that few neighbours or inducing points would need one of their own.
    Source: Rasmussen & Williams (2006), sections 3.4 and 5.5.1; where it fails: Nickisch & Rasmussen (2008).
    """

    exact = True

    @torch.no_grad()
    def next_sites(self, likelihood: Likelihood, y: Tensor, at: Marginals, sites: Sites | None) -> Sites:
        _, slope, bend, _ = _derivatives(likelihood, y, at.mean)
        return bounded_sites(at.mean, at.variance, slope, -bend)

    def excess(self, likelihood: Likelihood, y: Tensor, at: Marginals, sites: Sites) -> Tensor:
        of_site = -0.5 * (LOG_2PI + sites.variance.log() + (sites.targets - at.mean).square() / sites.variance)
        return likelihood.log_prob_of_rows(y, at.mean) - of_site

    def aim(
        self, likelihood: Likelihood, y: Tensor, at: Marginals, sites: Sites, mean: Tensor, density: float | None
    ) -> float | None:
        """log p(y | f) p(f) but for constants, by f' K^-1 f = f' S^-1 (targets - f) at the mean f of q."""
        pull = (sites.targets - at.mean) / sites.variance
        return float((likelihood.log_prob_of_rows(y, at.mean) - 0.5 * (at.mean - mean) * pull).sum())

    def aim_alone(self, likelihood: Likelihood, y: Tensor, at: Marginals, before: Marginals) -> Tensor:
        squares = (at.mean - before.mean).square() / before.variance
        return likelihood.log_prob_of_rows(y, at.mean) - 0.5 * squares

    def by_mode(self, likelihood: Likelihood, y: Tensor, at: Marginals, sites: Sites) -> Tensor:
        _, _, bend, third = _derivatives(likelihood, y, at.mean)
        return torch.where(-bend * sites.variance < 0.5, 0.0, 0.5 * at.variance * third * sites.variance)

    def of_mode(self, likelihood: Likelihood, y: Tensor, at: Marginals, moved: Tensor) -> Tensor:
        _, slope, bend, _ = _derivatives(likelihood, y, at.mean)
        value = (0.5 * at.variance * bend.clamp(max=0.0) + moved * slope).sum()
        return value - value.detach()

    @torch.no_grad()
    def doubts(self, likelihood: Likelihood, y: Tensor, at: Marginals) -> list[Event]:
        """Of rows whose site has no precision, and of what log p has beside its parabola, (M-352)."""
        value, _, bend, _ = _derivatives(likelihood, y, at.mean)
        upwards = int((bend > 0.0).sum())
        beside = likelihood.expected_log_prob(y, at.mean, at.variance) - value - 0.5 * at.variance * bend
        name, found = likelihood.name, list[Event]()
        if upwards:
            found.append(Event(EventKind.LAPLACE_BENDS, likelihood=name, rows=upwards))
        nats = float(beside.abs().mean()) if len(y) else 0.0
        if not nats < NATS_BESIDE_PARABOLA:  # NaN too
            found.append(Event(EventKind.LAPLACE_FAR, likelihood=name, nats=nats))
        return found


def _derivatives(likelihood: Likelihood, y: Tensor, f: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """log p of each training row at f and its first three derivatives by f, which keep their graph to the likelihood's
    parameters where gradients are on."""
    keep = torch.is_grad_enabled()
    with torch.enable_grad():
        f = f.detach().requires_grad_()
        found = [likelihood.log_prob_of_rows(y, f)]
        for _ in range(3):
            last = found[-1].sum()
            slope = torch.zeros_like(f)
            if last.requires_grad:
                (slope,) = torch.autograd.grad(last, f, create_graph=True, materialize_grads=True)
            found.append(slope)
    value, slope, bend, third = found if keep else [t.detach() for t in found]
    return value, slope, bend, third


METHODS = {"variational": Variational(), "ep": ExpectationPropagation(), "laplace": Laplace()}


def method_of(likelihood: Likelihood) -> SiteMethod:
    """How the sites of a likelihood are found."""
    return METHODS[likelihood.method]
