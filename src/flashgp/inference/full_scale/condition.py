"""Conditioning by the full-scale approximation: layout at the given parameters, then one pass over the blocks."""

import bisect
import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from flashgp.foundations.deadline import NO_DEADLINE
from flashgp.foundations.determinism import EVENT, contiguous_copy
from flashgp.foundations.errors import warn
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.report import Report
from flashgp.foundations.workspace import Workspace
from flashgp.inference.approximation import Approximation
from flashgp.inference.choice import Choice, refuse_batch
from flashgp.inference.data import Data
from flashgp.inference.exact.likelihood import DirectSettings
from flashgp.inference.extent import check_extent, check_residual, check_rows
from flashgp.inference.full_scale.factor import Basis, FullScaleFactor, Sums
from flashgp.inference.full_scale.layout import Layout, drop_redundant_points, layout_of
from flashgp.inference.full_scale.objective import FullScaleLogJoint
from flashgp.inference.full_scale.output_states import AnyFullScale, of_outputs
from flashgp.inference.full_scale.state import FullScaleState
from flashgp.inference.over_ranks import planned_over
from flashgp.inference.plan_settings import RowCounts
from flashgp.inference.prior import Prior
from flashgp.inference.replicates import join, joined_event
from flashgp.inference.run import Run, with_run
from flashgp.inference.settings import ConditionSettings
from flashgp.inference.sites import IteratedSites, SiteSettings
from flashgp.inference.training.objective import Problem
from flashgp.pairwise.torch.tiles import TorchTiles
from flashgp.planner.plan import Plan, Sizes
from flashgp.planner.problem import chosen_device
from flashgp.processes.agreement import smallest
from flashgp.processes.group import ALONE

ROUTE = "full scale"
GROWTH = 4  # times as many rows as the last ones are conditioned on to see what all of them take
TELLING = 0.05  # of the time left: what so long takes says enough of more rows
ROOM = 30.0  # times the planned seconds: with more time than that nothing is looked at


def layout_events(layout: Layout, each: Sequence[Sums]) -> list[Event]:
    """Events of a report on a layout, and on blocks that lost neighbours."""
    sizes = layout.sizes
    chosen = {"inducing": len(layout.inducing), "block": sizes.block, "neighbours": sizes.neighbours}
    events, reduced = [Event(EventKind.FULL_SCALE, **chosen, predicting=sizes.predicting)], max(s.reduced for s in each)
    return events + ([Event(EventKind.FEWER_NEIGHBOURS, blocks=reduced)] if reduced else [])


@torch.no_grad()
def condition(asked: Approximation, prior: Prior, data: Data, settings: ConditionSettings) -> AnyFullScale:
    """The state of a prior given data, which every rank has all of, by an approximation.

    In the end every rank has A of all rows where it predicts; A of a pass and the blocks are shared.
    Raises: as `GP.condition`.
    """
    began, ranks = time.perf_counter(), settings.run.group
    settings.of_approximation()
    events, x, y = list(data.complete().promoted), data.x, data.y
    target = chosen_device(settings.run.device, x)
    if target != x.device:
        moved = x.numel() * x.element_size()
        events.append(Event(EventKind.MOVED, bytes=moved, source=str(x.device), target=str(target)))
    x, y = (contiguous_copy(t.detach().to(target)).clone() for t in (x, y))
    refuse_batch(batch=prior.is_batch(x, y))
    group = None if data.group is None else data.group.to(target)
    prior = prior.held()
    replicates, rows_prior, points, targets = None, prior, x, y
    if group is not None:
        replicates = join(prior, x, y, group)
        if replicates.x.shape[0] < x.shape[0]:
            events.append(joined_event(group))
        rows_prior, points, targets = prior.with_likelihood(replicates.likelihood), replicates.x, replicates.y
    plan = planned_over(ranks, lambda one: _plan(prior, x, len(points), one, settings), asked)
    asked, sizes = asked.resolved(plan.sizes), plan.sizes
    seed, inducing = settings.run.seed, asked.points_like(x)
    if (part := _of_part(Data(prior, x, y), asked, settings, plan)) is not None:
        part.report.events[:0] = [event for event in events if event not in part.report.events]
        return part
    times = 1 if prior.likelihood.has_sites else SiteSettings().linear_conditionings
    if not prior.likelihood.has_sites:
        rows_prior, inducing, said = found_sites(prior, x, y, sizes, inducing, settings.run)
        prior, events = rows_prior, [*events, *said]
    residual, noise, rows, values = rows_prior.likelihood_inputs(points, targets)
    check_rows(rows, "x")
    check_extent(prior.kernel.form, rows, "x")
    check_residual(residual)
    theta = tuple(t.detach() for t in values)
    layout = layout_of(prior, points, noise, sizes, seed, inducing, ranks)
    workspace = Workspace()

    def make(one: Layout) -> tuple[tuple[FullScaleFactor, list[Sums]], float]:
        function = Basis.of(prior.kernel.form, theta, prior.kernel.rows(one.inducing), workspace)
        factor = FullScaleFactor.of(function, rows, one.near, residual, noise, ranks, seed)
        each = factor.sums_of_each()
        return (factor, each), sum(sums.log_likelihood(rows.count) for sums in each)

    if asked.chosen and len(layout.inducing) < (most := min(sizes.inducing, len(points))):
        events.append(Event(EventKind.FEWER_POINTS, found=len(layout.inducing), asked=most))
    if asked.leaves_points:
        layout, (factor, each), event = drop_redundant_points(layout, make, rows.count, ranks)
        events += [] if event is None else [event]
    else:
        (factor, each), _ = make(layout)
    events += [EVENT] if settings.run.deterministic else []
    events += layout_events(layout, each)
    report = Report(
        route=ROUTE, backend=workspace.backend, device=str(x.device), dtype="float64", predicted_bytes=plan.peak_bytes,
        peak_bytes=workspace.peak_bytes, predicted_seconds=times * plan.seconds, seconds=time.perf_counter() - began,
        events=events, plan=plan,
    )  # fmt: skip
    state = FullScaleState(
        prior, x, y, layout, rows, residual, noise, theta, factor.function, each[0], report, replicates,
        replace(settings.run.kept, group=ALONE), ranks=ranks.size,
    )  # fmt: skip
    if prior.separate:
        return of_outputs(state, each, factor.basis if ranks.size == 1 else None)
    if ranks.size == 1:
        state.__dict__["basis"] = factor.basis  # which predictions ask for
    return state


def found_sites(
    prior: Prior, x: Tensor, y: Tensor, sizes: Sizes, inducing: Tensor | None, run: Run
) -> tuple[Prior, Tensor, list[Event]]:
    """The prior with the sites that iteration finds in the model of these rows, its inducing points, and events of a
    report. Raises: ConvergenceError."""
    sites = IteratedSites.of(prior, x, y, SiteSettings())
    assert sites is not None
    problem = Problem(prior, x, y, DirectSettings(TorchTiles()), sites=sites)
    layout = layout_of(prior, x, sites.held.variance, sizes.within(len(x)), run.seed, inducing, run.group)
    found, told = FullScaleLogJoint(problem, layout, run.group, run.seed).with_sites(run.deadline)
    return found, layout.inducing, told


def _of_part(data: Data, asked: Approximation, settings: ConditionSettings, plan: Plan) -> AnyFullScale | None:
    """The state of as many random rows as there is time for; None where there is time for all of them.

    Where the plan does not leave the time limit much room, some rows are conditioned on first, then four times as many
    until that takes a share of the time that tells. More rows take as many times as long as a plan says, and as there
    are more.
    """
    deadline, time_settings, n = settings.run.deadline, settings.time, data.count
    group, rows = settings.run.group, time_settings.min_rows
    if deadline.limit is None or n <= GROWTH * rows:
        return None
    if smallest(group, deadline.left) > ROOM * plan.seconds:
        return None

    def seconds(count: int) -> float:
        return _plan(data.prior, data.x, count, asked, settings, rows=count).seconds

    def affordable(rows: int, once: float) -> int:
        """Rows that take what is left, where so many took `once` seconds."""
        planned, left = seconds(rows), deadline.left

        def late(count: int) -> bool:
            return once * max(count / rows, seconds(count) / planned) > left

        return rows - 1 + bisect.bisect_left(range(rows, n + 1), True, key=late)

    def of_rows(rows: int) -> AnyFullScale:
        part = data.random(rows, settings.run.seed)
        return condition(asked, part.prior, part, with_run(settings, deadline=NO_DEADLINE))

    while True:
        began = deadline.clock()
        state = of_rows(rows)
        once = deadline.clock() - began
        most = int(smallest(group, affordable(rows, once)))
        if most >= n:
            return None
        if most <= GROWTH * rows or smallest(group, deadline.left - once / TELLING) < 0.0:
            break
        rows *= GROWTH
    if most > rows:
        rows, state = most, of_rows(most)
    event = Event(EventKind.POSTERIOR_OF_PART, rows=rows, of=n, **deadline.told)
    warn(str(event))
    state.report.events.insert(0, event)
    return state


def _plan(
    prior: Prior,
    x: Tensor,
    distinct: int,
    asked: Approximation,
    settings: ConditionSettings,
    *,
    rows: int | None = None,
) -> Plan:
    """The plan of conditioning, with the sizes that are left to it.

    Args: rows, in place of all. Raises: MemoryBudgetError, DomainError.
    """
    counts = RowCounts(len(x) if rows is None else rows, x.shape[-1], distinct)
    run = settings.run
    choice = Choice(prior, counts, run.planning(device=x.device), run.deadline.limit, training=False)
    return choice.approximate(asked)
