"""Conditioning: one way for every engine, of one process or of all ranks of a group."""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from flashgp.foundations.contexts import entered
from flashgp.foundations.errors import DomainError
from flashgp.inference.approximation import Approximation
from flashgp.inference.base_state import BaseState
from flashgp.inference.data import Data, held
from flashgp.inference.fourier.condition import condition as condition_fourier
from flashgp.inference.full_scale.condition import condition as condition_full_scale
from flashgp.inference.gathered import agreed_report, compare_models, shared_event
from flashgp.inference.over_ranks import asked_alike, check_alike, choose_inference, gathered_for
from flashgp.inference.posterior_by_sites import condition_exactly, refuse_beside_sites
from flashgp.inference.prior import Prior
from flashgp.inference.settings import ConditionSettings
from flashgp.inference.streamed.chosen import chosen_of_read
from flashgp.inference.streamed.condition import condition as condition_streamed
from flashgp.sources.source import RowSource
from flashgp.sources.survey import Survey

S = TypeVar("S", bound=BaseState)


def condition(
    prior: Prior, rows: Data | RowSource, settings: ConditionSettings, asked: Approximation | None = None
) -> BaseState:
    """`GP.condition` with its arguments as values. Raises: as it, the same error on every rank."""
    event, group = None, settings.run.group
    if isinstance(rows, Data) and asked is not None and asked.kind == "auto":
        replace(settings, progress=None).of_approximation()
        check_alike(group, prior, asked, settings.alike)
        wanted = settings.run.planning(dtype=settings.run.dtype, ranks=1)
        asked, _, event = choose_inference(prior, rows, asked, settings.run, wanted, training=False)
        if asked is not None:  # nothing iterates, so that there are no steps to tell of
            settings = replace(settings, progress=None)
    seen: RowSource | Survey | None = None
    if not isinstance(rows, Data) and asked is not None and asked.kind == "auto":
        replace(settings, progress=None).of_approximation()
        asked, seen, _, event = chosen_of_read(prior, rows, asked, settings, training=False)
    if isinstance(rows, Data) and asked is not None and asked.by_passes:
        if group.size == 1 and not rows.count:  # other ranks may have rows
            asked.points_of(rows.x.shape[-1])  # which may be refused
            asked = None  # of no rows there is nothing to approximate: the posterior is the prior
        else:
            rows = held(rows)
    engine: Callable[[Prior, Any, ConditionSettings], BaseState] = condition_exactly
    if asked is not None:
        by_passes = condition_fourier if asked.kind == "fourier" else condition_streamed
        engine = functools.partial(condition_full_scale if isinstance(rows, Data) else by_passes, asked)

    refuse_beside_sites(prior, rows, approximate=asked is not None, differentiable=settings.differentiable)
    state = _shared(prior, seen or rows, settings, asked, engine)
    if event is not None:
        state.report.events.insert(0, event)
    return state


@entered(lambda prior, rows, settings, *_: settings.run.deterministic)
def _shared(
    prior: Prior, rows: Data | RowSource | Survey, settings: ConditionSettings, asked: Approximation | None,
    engine: Callable[[Prior, Any, ConditionSettings], S],
) -> S:  # fmt: skip
    """The state by an engine: of rows that are held the engine gets all, of those that are read this rank's."""
    group, shares = settings.run.group, None
    if group.size == 1:
        return engine(prior, rows, settings)
    with group.together():
        if settings.differentiable:
            raise DomainError(
                "`differentiable` keeps a graph through all rows on one process, got it beside group=; "
                "gp.log_marginal_likelihood(x, y, group=) has gradients by parameters, x and y"
            )
        before, alike = group.bytes_sent, asked_alike(asked) | settings.alike
        if isinstance(rows, Data):
            prior, rows, shares, settings = gathered_for(prior, rows, group, settings, alike)
        else:
            compare_models(prior, group, **alike)
        state = engine(prior, rows, settings)
        agreed_report(state.report, group)
        plan = state.report.plan
        state.report.events.append(shared_event(group, before, shares, None if plan is None else plan.shared))
        return state
