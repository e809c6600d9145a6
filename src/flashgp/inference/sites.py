"""Sites of likelihoods that are not Gaussian: the steps that find them, by any engine, eqs. (M-267) and (M-268).

Given sites, inference is regression with a noise variance for each row, which every engine does; given the marginals of
the training rows, a likelihood has its next sites. An engine never learns which likelihood it works for.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from flashgp.foundations.errors import ConvergenceError
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.normal import LOG_2PI
from flashgp.inference.posterior import Posterior
from flashgp.inference.prior import Prior
from flashgp.likelihoods import Likelihood, Sites
from flashgp.likelihoods.base import LEAST
from flashgp.likelihoods.held_sites import HeldSites

MAX_STEPS = 100
SMALLEST_STEP = 2.0**-30


@dataclass(frozen=True)
class Marginals:
    """q(f) of every training row. Fields: mean and variance, each (n,) or (n, outputs), float64."""

    mean: Tensor
    variance: Tensor

    def divergence(self, other: "Marginals") -> float:
        """KL(self || other), nats, all rows and outputs together."""
        ratio = self.variance / other.variance
        squares = (self.mean - other.mean).square() / other.variance
        return 0.5 * float((ratio - 1.0 - ratio.log() + squares).sum())


def marginals(posterior: Posterior, sites: Sites) -> Marginals:
    """q(f) of the training rows, from leaving each out, or without a factor by predicting them.

    Cost: as `Posterior.leave_one_out`, or exact variances of n points.
    """
    if posterior.can("leave_one_out") is not None:
        found = posterior.predict(posterior.x, variance="exact")
        return Marginals(found.mean.double(), found.variance.double())
    left = posterior.leave_one_out()
    mean, whole = left.mean.double(), left.variance.double()
    cavity = (whole - sites.variance).clamp_min(torch.finfo(torch.float64).tiny)
    return Marginals(
        (mean * sites.variance + sites.targets * cavity) / whole, cavity * sites.variance / whole
    )  # fmt: skip


def condition_by_sites(
    prior: Prior, x: Tensor, y: Tensor, condition: Callable[[Prior], Posterior], tolerance: float = 1e-4
) -> Posterior:
    """The posterior of a likelihood whose sites are found by iteration.

    Args: condition, the posterior under a prior whose likelihood has sites; tolerance, nats by which the last step may
        move the marginals.
    Raises: ConvergenceError where no step raises the bound.
    Cost: some 5 to 20 conditionings.
    """
    likelihood, step, moved = prior.likelihood, 1.0, math.inf
    with torch.no_grad():
        start = prior.mean_at(x)
        mean = (start if prior.outputs is not None else start.squeeze(-1)).expand(y.shape)
        own = prior.kernel(x).diagonal().double()
        at = Marginals(mean, own.reshape(-1, *[1] * (y.dim() - 1)).expand(y.shape))
        kept = Sites(at.mean, at.variance / LEAST)  # q(f) is the prior
        best = float(likelihood.expected_log_prob(y, at.mean, at.variance).sum())
        for steps in range(1, MAX_STEPS + 1):
            sites = _between(kept, likelihood.sites_at(y, at.mean, at.variance, prior.outputs), step)
            posterior = condition(prior.with_likelihood(HeldSites(likelihood, sites)))
            here = marginals(posterior, sites)
            value = bound(posterior, likelihood, y, here, sites)
            if value is not None and not value >= best - tolerance:  # NaN too
                step *= 0.5
                if step < SMALLEST_STEP:
                    break
                continue
            moved, at, kept, best = here.divergence(at), here, sites, best if value is None else value
            if moved < tolerance and step == 1.0:
                posterior.report.events.append(
                    Event(EventKind.SITES, likelihood=likelihood.name, steps=steps, moved=moved)
                )
                return posterior
            step = min(1.0, 2.0 * step)
    raise ConvergenceError(
        f"`likelihood` {likelihood.name}: its sites did not settle in {steps} steps, the last of which moved q(f) by "
        f"{moved:.2g} nats; scale the targets, or give the kernel a smaller variance",
        iterations=steps, residual=moved, tolerance=tolerance,
    )  # fmt: skip


def bound(posterior: Posterior, likelihood: Likelihood, y: Tensor, at: Marginals, sites: Sites) -> float | None:
    """The lower bound on log p(y), nats, (M-267); None where the log density of the sites is not known."""
    if not posterior.state.evidence_known:
        return None
    own = -0.5 * (
        LOG_2PI + sites.variance.log() + ((sites.targets - at.mean).square() + at.variance) / sites.variance
    )  # fmt: skip
    expected = likelihood.expected_log_prob(y, at.mean, at.variance)
    return float(posterior.log_marginal_likelihood().sum()) + float((expected - own).sum())


def _between(one: Sites, other: Sites, share: float) -> Sites:
    """Sites whose natural parameters are so far from one to the other."""
    if share == 1.0:
        return other
    precision = torch.lerp(1.0 / one.variance, 1.0 / other.variance, share)
    linear = torch.lerp(one.targets / one.variance, other.targets / other.variance, share)
    return Sites(linear / precision, 1.0 / precision)
