"""Exact conditioning under a likelihood whose sites are found by iteration, eqs. (M-267) and (M-268)."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from flashgp.foundations.errors import DomainError
from flashgp.foundations.events import Event, EventKind
from flashgp.inference.answers import ANSWERS
from flashgp.inference.base_state import BaseState
from flashgp.inference.data import Data
from flashgp.inference.posterior import Posterior
from flashgp.inference.prior import Prior
from flashgp.inference.sites import (
    Found,
    Marginals,
    SiteSettings,
    excess,
    from_prior,
    prior_variance,
    settle_rows,
    within,
)
from flashgp.likelihoods import Sites
from flashgp.likelihoods.held_sites import HeldSites
from flashgp.processes.group import Group
from flashgp.sources.source import RowSource

S = TypeVar("S", bound=BaseState)


def condition_by_sites(prior: Prior, x: Tensor, y: Tensor, condition: Callable[[Prior], S]) -> S:
    """The state after steps from the prior; its log marginal likelihood is the bound (M-267).

    Args: condition, the state under a prior whose likelihood has sites.
    Raises: ConvergenceError where no step raises the bound.
    Cost: some 5 to 20 conditionings.
    """
    likelihood, settings, y = prior.likelihood, SiteSettings(), y.to(torch.float64)

    def evaluate(sites: Sites) -> Found[S]:
        state = condition(prior.with_likelihood(HeldSites(likelihood, sites)))
        posterior = Posterior(state)
        at = marginals(posterior, sites)
        value = None
        if state.evidence_known:
            value = float(posterior.log_marginal_likelihood()) + float(excess(likelihood, y, at, sites).sum())
        return Found(sites, at, value, state)

    with torch.no_grad():
        found, steps, moved = settle_rows(
            likelihood, y, from_prior(prior, x, y), evaluate, settings.posterior, settings
        )
        state = condition(prior.with_likelihood(found.held_next(likelihood, y)))
    state.report.events.append(Event(EventKind.SITES, likelihood=likelihood.name, steps=steps + 1, moved=moved))
    return state


def refuse_beside_sites(
    prior: Prior, rows: Data | RowSource, group: Group, limit: float | None, *, differentiable: bool = False,
    exact_posterior: bool = False,
) -> None:  # fmt: skip
    """Raises: DomainError for what iteration of sites does not go with; nothing where they need none."""
    if prior.likelihood.has_sites:
        return
    batch = isinstance(rows, Data) and rows.is_batch
    alone, left_out = "rows of one process", "leave it out"
    for name, refused, wanted, got, way in (
        ("x", batch, "one table of one model", "a batch", "call it for each"),
        ("group", group.size > 1, alone, f"{group.size} ranks", "pass all rows in one process, without group"),
        ("time_limit", limit is not None, "None", f"{limit} s", left_out),
        ("differentiable", differentiable, "False", "True", left_out),
        ("exact_posterior", exact_posterior, "False", "True", "call fit.gp.condition(x, y) after the fit"),
    ):
        if refused:
            raise DomainError(
                f"`{name}` must be {wanted} where sites are found by iteration, as those of {prior.likelihood.name}, "
                f"got {got}; {way}"
            )


def marginals(posterior: Posterior, sites: Sites) -> Marginals:
    """q(f) of the training rows, from leaving each out, or without a factor by predicting them.

    Cost: as `Posterior.leave_one_out`, or exact variances of n points.
    """
    state = posterior.state
    if state.obstacle("leave_one_out") is not None:
        found = posterior.predict(posterior.x, variance="exact")
        return Marginals(found.mean.double(), found.variance.double())
    left = ANSWERS[type(state)]["leave_one_out"](state)  # of the targets of sites
    mean, whole = left.mean.double(), left.variance.double()
    cavity = whole - sites.variance
    variance = within(cavity * sites.variance / whole, sites.variance, prior_variance(posterior.gp, posterior.x))
    return Marginals((mean * sites.variance + sites.targets * cavity) / whole, variance)
