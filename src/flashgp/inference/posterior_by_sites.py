"""Exact conditioning under a likelihood whose sites are found by iteration, eqs. (M-267) and (M-268)."""

import time as time_of
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar, cast

import torch

from flashgp.foundations.errors import DomainError, warn
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.quantities import readable_seconds
from flashgp.inference.base_state import BaseState
from flashgp.inference.choice import conditioning_plan
from flashgp.inference.data import Data
from flashgp.inference.output_states import AnyState
from flashgp.inference.plan import rows_on_time
from flashgp.inference.posterior import Posterior
from flashgp.inference.predict.leave_one_out import leave_one_out
from flashgp.inference.predict.plan import price_of
from flashgp.inference.prior import Prior
from flashgp.inference.run import Run
from flashgp.inference.settings import TimeSettings
from flashgp.inference.site_methods import METHODS, Marginals, method_of
from flashgp.inference.sites import (
    LEAST_NOISE,
    Found,
    SiteSettings,
    better_start,
    doubts,
    first_sites,
    from_prior,
    of_first,
    prior_mean,
    prior_variance,
    settle_rows,
    steps_event,
    within,
)
from flashgp.inference.threads import one_thread
from flashgp.likelihoods import Sites
from flashgp.likelihoods.held_sites import HeldSites
from flashgp.planner.plan import Plan
from flashgp.processes.agreement import largest, smallest
from flashgp.processes.group import Group
from flashgp.sources.source import RowSource

S = TypeVar("S", bound=BaseState)


def condition_by_sites(data: Data, run: Run, time: TimeSettings, condition: Callable[[Data], S]) -> S:
    """The state after steps from the prior; its log marginal likelihood is the bound (M-267).

    Where there is no time for those of all rows by the plan, it is of as many random rows as there is time for.

    Args: condition, the state of data whose likelihood has sites.
    Raises: ConvergenceError where no step raises the bound.
    Cost: some 5 to 20 conditionings.
    """
    settings, deadline, whole, began = SiteSettings(), run.deadline, data, time_of.perf_counter()
    if deadline.limit is not None and data.count > time.min_rows:
        plan = conditioning_plan(data.prior, data.counts, run.planning(device=data.x.device, dtype=run.dtype))
        times = settings.conditionings
        if deadline.passed(times * plan.seconds):
            own = deadline.own
            part = rows_on_time(data.prior, plan, own, time, deterministic=run.deterministic, slowdown=times)
            data = data.random(int(smallest(run.group, part)), run.seed)
    prior, x, y = data.prior, data.x, data.y.to(torch.float64)
    likelihood = prior.likelihood
    method = method_of(likelihood)

    def under(held: HeldSites) -> Data:
        return Data(prior.with_likelihood(held), x, data.y, data.promoted)

    floor, mean = LEAST_NOISE * prior_variance(prior, x), prior_mean(prior, x)

    def evaluate(sites: Sites) -> Found[S]:
        sites = replace(sites, variance=torch.maximum(sites.variance, floor))
        state = condition(under(HeldSites(likelihood, sites)))
        posterior = Posterior(state)
        check_solves(state, settings, run.group)
        at = of_first(marginals(posterior, sites), run.group)
        density = float(posterior.log_marginal_likelihood()) if state.evidence_known else None
        return Found(sites, at, method.aim(likelihood, y, at, sites, mean, density), state)

    with torch.no_grad(), one_thread(data.count):
        start = better_start(evaluate(first_sites(prior, x, y, settings)), from_prior(prior, x, y))
        found, steps, moved = settle_rows(
            likelihood, y, start, evaluate, settings.posterior, settings, deadline=deadline
        )
        state = condition(under(found.held_next(likelihood, y)))
    tolerance, told = settings.of_rows(settings.posterior, len(y)), state.report.events
    told.append(steps_event(likelihood, steps + 1, moved, tolerance, deadline))
    told += doubts(likelihood, y, found.at)
    report = state.report
    report.seconds, once = time_of.perf_counter() - began, report.predicted_seconds
    if isinstance(report.plan, Plan) and report.plan.conditionings == 1 and once is not None:
        report.predicted_seconds = settings.conditionings * once
    if data.count < whole.count:
        told.append(Event(EventKind.POSTERIOR_OF_PART, rows=data.count, of=whole.count, limit=deadline.limit))
        warn(str(told[-1]))
    return state


def refuse_beside_sites(
    prior: Prior, rows: Data | RowSource, *, approximate: bool, differentiable: bool = False,
    exact_posterior: bool = False,
) -> None:  # fmt: skip
    """Raises: DomainError for what iteration of sites does not go with; nothing where they need none.

    Args: rows, those that an engine keeps as Data, or gives out in passes; approximate, whether it does.
    """
    if prior.likelihood.has_sites:
        return
    if approximate and method_of(prior.likelihood).exact:
        raise DomainError(
            f"`method` must be {' or '.join(repr(m) for m in prior.likelihood.methods if not METHODS[m].exact)} where "
            f"inference is approximate, got {prior.likelihood.method!r}; choose one of these, or leave out "
            "`approximation`"
        )
    batch = isinstance(rows, Data) and rows.is_batch
    left_out = "leave it out"
    for name, refused, wanted, got, way in (
        ("x", batch, "one table of one model", "a batch", "call it for each"),
        ("differentiable", differentiable, "False", "True", left_out),
        ("exact_posterior", exact_posterior, "False", "True", "call fit.gp.condition(x, y) after the fit"),
    ):
        if refused:
            raise DomainError(
                f"`{name}` must be {wanted} where sites are found by iteration, as those of {prior.likelihood.name}, "
                f"got {got}; {way}"
            )


def check_solves(state: BaseState, settings: SiteSettings, group: Group) -> None:
    """Raises: DomainError, on every rank, for a state without a factor, where the variances of all rows take too many
    solves."""
    if state.obstacle("leave_one_out") is None or not state.count:
        return
    steps = settings.conditionings // 2
    seconds = steps * sum(price_of(part, state.count, "exact", state.run.deterministic).seconds for part in state.parts)
    seconds = largest(group, seconds)
    if seconds > settings.solving_seconds:
        raise DomainError(
            f"`likelihood` {state.prior.likelihood.name} needs the variance of every row in each of some {steps} "
            f"steps, got no factor, without which they are {state.count:,} solves a step, about "
            f"{readable_seconds(seconds)}; "
            'pass approximation="full_scale", or more memory='
        )


def marginals(posterior: Posterior, sites: Sites) -> Marginals:
    """q(f) of the training rows, from leaving each out, or without a factor by predicting them.

    Cost: as `Posterior.leave_one_out`, or exact variances of n points.
    """
    state = posterior.state
    if state.obstacle("leave_one_out") is not None:
        found = posterior.predict(posterior.x, variance="exact")
        return Marginals(found.mean.double(), found.variance.double())
    left = leave_one_out(cast(AnyState, state))  # of the targets of sites
    mean, whole = left.mean.double(), left.variance.double()
    cavity = whole - sites.variance
    variance = within(cavity * sites.variance / whole, sites.variance, prior_variance(posterior.gp, posterior.x))
    return Marginals((mean * sites.variance + sites.targets * cavity) / whole, variance)
