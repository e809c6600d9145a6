"""Conditioning on rows that are read: a pass that counts and samples them, and one that adds up what they say."""

import math
import time
from dataclasses import replace

import torch
from torch import Tensor

from flashgp.foundations.deadline import NO_DEADLINE
from flashgp.foundations.determinism import EVENT
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.report import Report
from flashgp.foundations.workspace import Workspace
from flashgp.inference.approximation import Approximation
from flashgp.inference.choice import Choice
from flashgp.inference.extent import check_residual
from flashgp.inference.full_scale.layout import of_first, pivot_points
from flashgp.inference.gathered import agreed_memory
from flashgp.inference.over_ranks import planned_over
from flashgp.inference.plan_settings import RowCounts
from flashgp.inference.prior import Prior
from flashgp.inference.run import with_run
from flashgp.inference.settings import ConditionSettings
from flashgp.inference.sites import SiteSettings, steps_event
from flashgp.inference.streamed.bound import BoundSums, StreamedBound
from flashgp.inference.streamed.objective import blocks_of, first_values
from flashgp.inference.streamed.part import on_time
from flashgp.inference.streamed.rows import (
    first_pass,
    inputs_of,
    noise_of,
    numbers_to_likelihood,
)
from flashgp.inference.streamed.state import StreamedState
from flashgp.inference.streamed.steps import InducingValues, settled_pass
from flashgp.kernels.warped import collapsed_features
from flashgp.pairwise.cpu.backend import CpuTiles
from flashgp.planner.problem import chosen_device
from flashgp.processes.agreement import largest, smallest
from flashgp.processes.group import ALONE
from flashgp.sources.source import Held, RowSource
from flashgp.sources.survey import Survey

ROUTE = "streamed"


def condition(
    asked: Approximation, prior: Prior, rows: RowSource | Survey, settings: ConditionSettings
) -> StreamedState:
    """The state of a prior given rows, this rank's or all. Raises: as `GP.condition`."""
    settings.of_approximation()
    prior, survey = first_pass(prior, rows, asked, settings.run)
    return condition_on(prior, survey, asked, settings)


def condition_on(
    prior: Prior,
    survey: Survey,
    asked: Approximation,
    settings: ConditionSettings,
    points: Tensor | None = None,
    sums: BoundSums | None = None,
) -> StreamedState:
    """Condition after the first pass; on the sample alone where there is no time for another one.

    Args: points: inducing points that a fit has chosen; sums, of its pass over all rows with these parameters.
    """

    def part(survey: Survey) -> StreamedState:
        sample, untimed = survey.of_sample, with_run(settings, deadline=NO_DEADLINE)
        few = at_most(asked, sample.count)
        state = _state(prior, sample, few, untimed, points, None)
        state = replace(state, inducing=state.inducing.to(survey.dtype), ranks=survey.group.size)
        return state if isinstance(survey.source, Held) else replace(state, prior=state.prior_of_rows, held=None)

    return on_time(
        survey, settings, lambda: _state(prior, survey, asked, settings, points, sums), part,
        lambda rows: (rows < survey.count or sums is None) and _late(prior, survey, asked, settings, rows),
    )  # fmt: skip


def _late(prior: Prior, survey: Survey, asked: Approximation, settings: ConditionSettings, rows: int) -> bool:
    """True if conditioning on so many of the rows would end too late by the plan."""
    run = settings.run
    if run.deadline.limit is None:
        return False
    wanted = run.planning(device=chosen_device(run.device, survey.x))
    counts, most = RowCounts(rows, survey.width), at_most(asked, rows)
    plan = Choice(prior, counts, wanted, run.deadline.limit, training=False).approximate(most)
    times = 1 if prior.likelihood.has_sites else SiteSettings().linear_conditionings
    left = smallest(survey.group, settings.time.with_grace(run.deadline).left)
    return largest(survey.group, times * plan.seconds) > left


def at_most(asked: Approximation, rows: int) -> Approximation:
    """Approximation with as many inducing points as were asked for, or as there are rows."""
    if not asked.chosen or asked.inducing == "auto":
        return asked
    return replace(asked, inducing=min(asked.inducing, rows))


@torch.no_grad()
def _state(
    prior: Prior,
    survey: Survey,
    asked: Approximation,
    settings: ConditionSettings,
    points: Tensor | None,
    sums: BoundSums | None,
) -> StreamedState:
    """The state of all rows. Raises: TimeUp."""
    began = time.perf_counter()
    device, prior = chosen_device(settings.run.device, survey.x), prior.held()
    memory = agreed_memory(settings.run.memory, device, survey.group)
    group = survey.group
    wanted = settings.run.planning(memory=memory, device=device)
    read, rows = not isinstance(survey.source, Held), RowCounts(survey.count, survey.width)
    choice = Choice(prior, rows, wanted, settings.run.deadline.limit, training=False)
    plan = planned_over(group, lambda one: choice.approximate(one, read=read), asked)
    inducing = plan.inducing
    x = survey.x.to(device)
    points = asked.points_like(x) if points is None else points
    if points is None:
        noise = noise_of(prior, survey.sample).to(device)
        points = pivot_points(prior, x, noise, inducing, settings.run.seed)
        points = of_first(points, group)
    points = points.to(survey.dtype)  # which is what a state holds
    check_residual(prior.residual(x, survey.y.to(device)))
    workspace = Workspace(deadline=settings.run.deadline)
    bound = StreamedBound(prior, prior.kernel.rows(points.to(torch.float64)), survey.count, workspace, group)
    events = [EVENT] if settings.run.deterministic else []

    def sums_at(values: InducingValues | None) -> BoundSums:
        blocks = blocks_of(survey, prior, len(points), settings.run.deadline)
        return bound.sums(inputs_of(prior, blocks, device, values=values))

    likelihood, site_settings = prior.likelihood, SiteSettings().of_posterior()
    if sums is None and not likelihood.has_sites:
        start = first_values(bound, survey, points, site_settings, settings.run.deadline)
        enough = site_settings.posterior_of(survey.count)
        found = settled_pass(likelihood, start, sums_at, -math.inf, enough, site_settings, group)
        tolerance = site_settings.of_rows(enough, survey.count)
        events.append(steps_event(likelihood, found.steps, found.moved, tolerance, settings.run.deadline))
        sums = found.sums
    sums = sums_at(None) if sums is None else sums
    assert sums.inner is not None  # which may fail
    events.append(Event(EventKind.STREAMED, rows=survey.count, inducing=len(points), read=read))
    if asked.chosen and len(points) < inducing:
        events.append(Event(EventKind.FEWER_POINTS, found=len(points), asked=inducing))
    events += collapsed_features(prior.kernel, x)
    report = Report(
        route=ROUTE, backend=workspace.backend, device=str(device), dtype="float64", predicted_bytes=plan.peak_bytes,
        peak_bytes=workspace.peak_bytes, predicted_seconds=plan.seconds, seconds=time.perf_counter() - began,
        events=events, plan=plan,
    )  # fmt: skip
    held = survey.held
    prior = prior if held is None else numbers_to_likelihood(prior, held)
    # Answers come later, of few points: they have no deadline, and wait for no compile.
    function = replace(bound.basis, workspace=Workspace(), pairs=CpuTiles())
    return StreamedState(
        prior, points, function, sums, survey.sample, report, replace(settings.run.kept, group=ALONE), held, group.size
    )
