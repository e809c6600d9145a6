"""Exact conditioning under a likelihood whose sites are found by iteration, eqs. (M-267) and (M-268)."""

import time as time_of
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import torch

from flashgp.foundations.deadline import NO_DEADLINE
from flashgp.foundations.errors import DomainError, warn
from flashgp.foundations.events import Event, EventKind
from flashgp.inference.base_state import BaseState
from flashgp.inference.choice import Choice
from flashgp.inference.data import Data
from flashgp.inference.exact.condition import condition, planned
from flashgp.inference.gathered import agreed_plan
from flashgp.inference.plan import rows_on_time
from flashgp.inference.posterior import Posterior
from flashgp.inference.prior import Prior
from flashgp.inference.row_marginals import RowMarginals
from flashgp.inference.run import Run, with_run
from flashgp.inference.settings import ConditionSettings, TimeSettings
from flashgp.inference.site_methods import METHODS, method_of
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
)
from flashgp.inference.threads import one_thread
from flashgp.likelihoods import Sites
from flashgp.likelihoods.held_sites import HeldSites
from flashgp.planner.plan import FACTORED, Plan
from flashgp.processes.agreement import smallest
from flashgp.sources.source import RowSource

S = TypeVar("S", bound=BaseState)
DEFAULTS = SiteSettings()


def condition_exactly(prior: Prior, data: Data, settings: ConditionSettings) -> BaseState:
    """The exact state, with sites that iteration finds where the likelihood has none: by a factor, or by solves where
    their steps are planned to be quicker. Steps ask the deadline between them."""
    if prior.likelihood.has_sites:
        return condition(prior, data, settings)
    plan = agreed_plan(planned(prior, data, settings), settings.run.group)
    untimed, data = with_run(settings, deadline=NO_DEADLINE), Data(prior, data.x, data.y, data.promoted)
    solved = settings.plan is None and plan.route not in FACTORED
    of_all = replace(untimed, solver="cg") if solved else untimed  # a plan of known sites would rather have a factor

    def conditioned(one: Data) -> BaseState:
        return condition(one.prior, one, of_all if one.count == data.count else replace(untimed, plan=None))

    return condition_by_sites(data, settings.run, settings.time, conditioned)


def condition_by_sites(
    data: Data, run: Run, time: TimeSettings, condition: Callable[[Data], S], settings: SiteSettings = DEFAULTS
) -> S:
    """The state after steps from the prior; its log marginal likelihood is the bound (M-267).

    Where there is no time for those of all rows by the plan, it is of as many random rows as there is time for.

    Args: condition, the state of data whose likelihood has sites; settings, of steps.
    Without a factor its report has the solves of all steps, and the standard error of the bound.

    Raises: ConvergenceError where no step raises the bound; DomainError, as `RowMarginals.samples`.
    Cost: some 5 to 20 conditionings.
    """
    deadline, whole, began = run.deadline, data, time_of.perf_counter()
    if deadline.limit is not None and data.count > time.min_rows:
        wanted = run.planning(device=data.x.device, dtype=run.dtype)
        plan = Choice(data.prior, data.counts, wanted, training=False).exact()
        times = settings.conditionings_of(plan)
        if deadline.passed(times * plan.seconds):
            own = deadline.own
            part = rows_on_time(
                data.prior, plan, own, time, deterministic=run.deterministic, slowdown=settings.conditionings
            )  # by a factor
            data = data.random(int(smallest(run.group, part)), run.seed)
    prior, x, y = data.prior, data.x, data.y.to(torch.float64)
    likelihood = prior.likelihood
    method = method_of(likelihood)

    def under(held: HeldSites) -> Data:
        return Data(prior.with_likelihood(held), x, data.y, data.promoted)

    floor, mean = LEAST_NOISE * prior_variance(prior, x), prior_mean(prior, x)
    marginals = RowMarginals(settings, run.group)

    def evaluate(sites: Sites) -> Found[S]:
        sites = replace(sites, variance=torch.maximum(sites.variance, floor))
        state = condition(under(HeldSites(likelihood, sites)))
        posterior = Posterior(state)
        at = of_first(marginals(posterior, sites), run.group)
        known = state.evidence_known or method.bound  # estimated by the same probes in every step
        density = float(posterior.log_marginal_likelihood()) if known else None
        return Found(sites, at, method.aim(likelihood, y, at, sites, mean, density), state)

    with torch.no_grad(), one_thread(data.count):
        start: Found[Any] = evaluate(first_sites(prior, x, y, settings))
        slack = settings.errors * (start.answer.report.standard_error or 0.0)
        if start.value is not None:
            start = better_start(start, from_prior(prior, x, y))
        nats = settings.posterior_of(y.numel()) if marginals.solves else settings.posterior
        found, steps, moved = settle_rows(likelihood, y, start, evaluate, nats, settings, slack, deadline)
        state = condition(under(found.held_next(likelihood, y)))
    tolerance, told = settings.of_rows(nats, y.numel()), state.report.events
    told.append(steps_event(likelihood, steps + 1, moved, tolerance, deadline, marginals.solves))
    told += doubts(likelihood, y, found.at)
    if not state.evidence_known:
        Posterior(state).log_marginal_likelihood()  # with its standard error, for the report
    report = state.report
    report.seconds, once = time_of.perf_counter() - began, report.predicted_seconds
    if isinstance(report.plan, Plan) and report.plan.conditionings == 1 and once is not None:
        report.predicted_seconds = settings.conditionings_of(report.plan) * once
    if data.count < whole.count:
        told.append(Event(EventKind.POSTERIOR_OF_PART, rows=data.count, of=whole.count, **deadline.told))
        warn(str(told[-1]))
    return state


def refuse_beside_sites(
    prior: Prior, rows: Data | RowSource, *, approximate: bool, differentiable: bool = False
) -> None:
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
    ):
        if refused:
            raise DomainError(
                f"`{name}` must be {wanted} where sites are found by iteration, as those of {prior.likelihood.name}, "
                f"got {got}; {way}"
            )
