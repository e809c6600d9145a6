"""fit from rows that are read: exact searches of a random sample, then stages on the bound of all rows.

400 to 2,000 rows    exact, of a sample (training/stages.py)
the sample, all      Fisher scoring on the collapsed bound, (M-160); inducing points are chosen anew at its optimum
                     while that gains (training/linear_stages.py)
the sample alone      in place of both where the time limit allows too few passes: its rows count for all of them, and
                     q(u) at the optimum is learned from as many random rows as the time allows (learning.py)
"""

import dataclasses
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from flashgp.foundations.contexts import autocast_disabled, outside_inference_mode
from flashgp.foundations.determinism import deterministic_where
from flashgp.foundations.errors import warn
from flashgp.foundations.events import Event, EventKind, SampleReason, StopReason
from flashgp.foundations.report import Report
from flashgp.foundations.workspace import Workspace
from flashgp.inference.approximate_plan import approximate_plan, exact_price
from flashgp.inference.approximation import Approximation, refuse_exact
from flashgp.inference.data import Data
from flashgp.inference.exact.condition import condition
from flashgp.inference.exact.likelihood import DirectSettings
from flashgp.inference.full_scale.layout import of_first, pivot_points
from flashgp.inference.gathered import agreed_memory, shared_event
from flashgp.inference.output_states import AnyState
from flashgp.inference.over_ranks import check_alike, dealt, planned_over
from flashgp.inference.plan_settings import RowCounts, chosen_device
from flashgp.inference.prior import Prior
from flashgp.inference.settings import ConditionSettings, SolveSettings
from flashgp.inference.streamed.condition import at_most, condition_on
from flashgp.inference.streamed.learning import learned_values
from flashgp.inference.streamed.minibatch import condition_on_values
from flashgp.inference.streamed.objective import StreamedLogJoint
from flashgp.inference.streamed.rows import (
    noise_of,
    prior_of_rows,
    row_variances_apart,
    row_variances_back,
    survey_of,
)
from flashgp.inference.streamed.state import StreamedState
from flashgp.inference.streamed.trial import TEST_SHARE, Trial, largest_part
from flashgp.inference.training.checkpoint import EvaluationLog, log_over
from flashgp.inference.training.fit import Fitted, last_pass, mark_of, problem_of, report_exact, report_search
from flashgp.inference.training.history import Recorder, Run, Stage, power_law
from flashgp.inference.training.linear_stages import LinearStages, plan_settings, report_answer, reserved_seconds
from flashgp.inference.training.objective import LogJoint, Problem, priors_in_force
from flashgp.inference.training.options import FitOptions
from flashgp.inference.training.parameter_vector import ParameterVector
from flashgp.inference.training.settings import SampleSettings
from flashgp.pairwise.torch.tiles import TorchTiles
from flashgp.planner.approximate import ApproximatePlan
from flashgp.planner.approximate_prices import ApproximateWork
from flashgp.processes.agreement import deadline_of
from flashgp.sources.source import Held, RowSource
from flashgp.sources.survey import Survey

FACTORS = 4  # matrices of a part that an exact gradient holds, at most
MIN_GROWTH = 1.5  # of rows, from the last exact stage to a stage on the sample, and from there to all


@outside_inference_mode
@autocast_disabled
@deterministic_where(lambda prior, rows, asked, options, **_: options.deterministic)
def fit_streamed(
    prior: Prior, rows: RowSource, asked: Approximation, options: FitOptions, *, by_part: bool = False
) -> Fitted[StreamedState] | Fitted[AnyState]:
    """See `flashgp.fit`.

    Args: by_part, whether exact inference on a random part of the rows may take the place of that, where
        it is expected to leave less, eq. (M-245).
    """
    with options.group.together() as group:
        before = group.bytes_sent
        fitted = _fit(prior, rows, asked, options, by_part)
        if group.size > 1:
            for report in (fitted.report, fitted.state.report):
                report.events.append(shared_event(group, before))
        return fitted


def _fit(
    prior: Prior, rows: RowSource, asked: Approximation, options: FitOptions, by_part: bool
) -> Fitted[StreamedState] | Fitted[AnyState]:
    began, group = time.perf_counter(), options.group
    single = None if options.dtype == torch.float64 else options.dtype
    refuse_exact(solver=options.solver, plan=options.plan, jitter=options.jitter, dtype=single)
    check_alike(
        group, prior, asked, options.seed, options.deadline, starts=options.starts, initial=options.initial,
        priors=options.priors, max_iterations=options.max_iterations, checkpoint=options.checkpoint is not None,
    )  # fmt: skip
    prior, rows = row_variances_apart(prior, dealt(rows, group), fitting=True)
    clock = options.deadline.clock
    reading = clock()
    whole = survey_of(prior, rows, asked, options.seed, options.stages.first_rows, options.deadline, group)
    reading = clock() - reading
    survey = whole.of_sample if whole.cut else whole
    asked = at_most(asked, survey.count) if whole.cut else asked
    prior, target = prior.released(), chosen_device(options.device, survey.x)
    counts = RowCounts(survey.count, survey.width, alike=survey.sample.row_variance is None)
    read = not isinstance(rows, Held)
    memory, limit = agreed_memory(options.memory, target, group), options.deadline.limit
    wanted = dataclasses.replace(plan_settings(options, target), memory=memory)
    plan = planned_over(group, lambda one: approximate_plan(prior, counts, one, wanted, limit, read=read), asked)
    asked = asked.resolved(plan.sizes)
    direct = DirectSettings(TorchTiles(), torch.float64, options.jitter, workspace=Workspace(deadline=options.deadline))
    of_sample = prior_of_rows(prior, survey.sample)
    sampled = Data(of_sample, survey.x, survey.y)
    problem = problem_of(of_sample, sampled, target, direct, options, joined=False)
    path = None if options.checkpoint is None else Path(options.checkpoint)
    beside = (asked.kind, plan.inducing, asked.points_like(survey.x), survey.count, survey.checksum)
    mark = "" if path is None else mark_of(problem, options, beside)
    log = log_over(group, path, mark, options.settings.seconds_between_writes)
    # Over ranks all go through their rows in passes: a batch of few rows is not worth an all-reduce.
    chosen = None if whole.cut or group.size > 1 else sample_chosen(plan, survey, options, reading, log)
    searching = options.deadline.before(reserved_seconds(plan, options))
    if chosen is not None:
        searching = options.deadline.share(options.settings.sample.share)
    recorder = Recorder(log, options.progress, searching, began=began)
    price = exact_price(prior, counts, wanted)
    recorder.expect(price, 3)
    recorder.expect(power_law(plan.fit_step_seconds, survey.count, 1), 1)

    sample, deadline = survey.of_sample, deadline_of(group, options.deadline)

    def objective(size: int, theta: numpy.ndarray) -> StreamedLogJoint:
        """Of all rows, or of the sample, with inducing points chosen at a vector."""
        points = _points(problem, survey if size == survey.count else sample, theta, asked, options)
        if size == survey.count:
            return StreamedLogJoint(problem, survey, points, deadline=deadline)
        return StreamedLogJoint(problem, sample, points, None if chosen is None else survey.count, deadline)

    def parts(first: int) -> list[int]:
        size = len(survey.x)
        if chosen is not None:
            return [size]
        return [size] if size >= MIN_GROWTH * first and survey.count >= MIN_GROWTH * size else []

    part = 0

    def choose(theta: numpy.ndarray) -> int:
        """Fewer inducing points where these suffice; the rows of an exact part that is expected to leave less."""
        nonlocal asked, part
        points = _points(problem, survey, theta, asked, options)
        learned, exact = survey.count, 0
        if chosen is not None:
            learned = min(learned, ApproximateWork().learned_rows * len(points))
            exact = _rows_of_part(problem, plan, options, price) if by_part else 0
            if searching.passed(recorder.seconds_of(exact, 3)):  # as measured, which may be more than planned
                exact = 0
        trial = Trial.of(problem, points, learned, exact, options.seed)
        if trial is None:
            return 0
        if exact:
            recorder.note(trial.event)
        fewer = trial.suffice
        if trial.part_is_better:
            part = exact
        elif fewer is not None:
            asked = asked.with_points(fewer.fields["kept"])
            recorder.note(fewer)
        return part

    choosing = limit is not None and asked.leaves_points and group.size == 1
    stages = LinearStages(
        problem, survey.count, parts, objective, options, recorder, comparable=True,
        weighted=chosen is not None, choose=choose if choosing else None,
    )  # fmt: skip
    trained = stages.run()
    points = sums = None
    if isinstance(stages.best, StreamedLogJoint):
        points, sums = stages.best.points, stages.best.sums_at(trained.theta)
    report = Report()
    report_search(report, recorder, trained, options)
    settings = ConditionSettings(
        SolveSettings(options.seed, options.deterministic, options.tolerance, group=group), memory=options.memory,
        device=options.device, deadline=options.deadline,
    )  # fmt: skip
    message = (
        "Ctrl-C came in the last pass of `fit`; the trained GP is the field `gp` of this exception: "
        "gp.condition(rows, inducing=...) goes on from there"
    )
    with last_pass(group, message, row_variances_back(prior, rows), recorder):
        whole_learned = True
        state: AnyState | StreamedState
        if part:
            state = _of_part(prior, survey, part, settings)
        elif chosen is None:
            state = condition_on(prior, whole, asked, settings, points, sums)
        else:
            points = _points(problem, survey, trained.theta, asked, options)
            state, said = _learned(prior, survey, points, options.settings.sample, settings)
            report.events += [chosen, said]
            whole_learned = said.fields["whole"]
    if isinstance(state, StreamedState):
        report_answer(report, recorder, state, plan, direct.workspace)
    elif state.plan is not None:
        report_exact(report, recorder, state, state.plan, direct.workspace)
    if isinstance(state, StreamedState) and chosen is None:
        report.events.append(state.bound.event)
    elif limit is not None:
        report.predicted_seconds = min(plan.fit_seconds, limit)
    if trained.stop is StopReason.GOAL and whole_learned and limit is not None and not options.deadline.passed():
        by_sample = (chosen is not None and not part) or None
        report.events.append(Event(EventKind.FIT_ENDED, left=options.deadline.left, limit=limit, sampled=by_sample))
    objective_found = trained.objective
    assert isinstance(objective_found, LogJoint)
    in_force = priors_in_force(objective_found.parameters, weak=problem.weak)
    log_prior = objective_found.log_prior(trained.theta)
    interrupted = trained.stop is not StopReason.GOAL
    prior = row_variances_back(prior, rows)
    return Fitted[Any](prior, state, recorder.history, report, interrupted, in_force, log_prior)


def _rows_of_part(problem: Problem, plan: ApproximatePlan, options: FitOptions, price: Callable[[int], float]) -> int:
    """Rows that an exact search finishes in its share of the time limit, of those of the sample; 0 for too few."""
    assert options.deadline.limit is not None
    search = options.stages.work.of_scoring(ParameterVector(problem.prior, problem.roles).size).middle
    memory = math.isqrt(plan.available_bytes // (8 * FACTORS))
    seconds, most = options.settings.sample.share * options.deadline.limit, int((1.0 - TEST_SHARE) * problem.rows)
    return largest_part(price, search, seconds, options.stages.first_rows, min(memory, most))


def _of_part(prior: Prior, survey: Survey, rows: int, settings: ConditionSettings) -> AnyState:
    """The exact posterior of random rows of the sample, with an event and a warning."""
    order = torch.randperm(len(survey.x), generator=torch.Generator().manual_seed(settings.solve.seed))
    index = order[:rows].sort().values
    part = Data(prior, survey.x[index].to(survey.dtype), survey.y[index].to(survey.dtype))
    state = condition(prior, part, settings)
    event = Event(EventKind.POSTERIOR_OF_PART, rows=rows, of=survey.count, limit=settings.deadline.limit)
    warn(str(event))
    state.report.events.append(event)
    return state


def sample_chosen(
    plan: ApproximatePlan, survey: Survey, options: FitOptions, reading: float, log: EvaluationLog
) -> Event | None:
    """That a sample takes the place of passes over all rows, and why; None for passes.

    Args: reading, seconds of the first pass; log, of the checkpoint, whose way is kept.
    """
    deadline, least = options.deadline, options.settings.sample.min_evaluations
    seconds, reason = max(plan.fit_step_seconds, 2.0 * reading), None
    if survey.sample.row_variance is not None:  # a minibatch has one noise variance
        return None
    if log.has(str(Run(Stage.WEIGHTED, len(survey.x)))):
        reason = SampleReason.CHECKPOINT
    elif any(log.has(str(Run(Stage.APPROXIMATE, number))) for number in (0, 1)):
        return None
    elif plan.by_sample(deadline.limit, least):
        reason = SampleReason.PLANNED
    elif deadline.passed(2.0 * least * reading) and least:
        reason = SampleReason.READING
    if reason is None:
        return None
    return Event(EventKind.SAMPLE_CHOSEN, rows=survey.count, seconds=seconds, reason=reason, limit=deadline.limit)


def _learned(
    prior: Prior, survey: Survey, points: Tensor, tuning: SampleSettings, settings: ConditionSettings
) -> tuple[StreamedState, Event]:
    """The posterior of as many random rows as the time allows, and how far from the optimum it all stopped."""
    batch = tuning.batch_rows(len(points))
    found = learned_values(prior, survey, points, settings.solve.seed, settings.deadline, batch)
    state = condition_on_values(prior, found.q, dataclasses.replace(settings, device=None))
    held = survey.source if isinstance(survey.source, Held) else None
    state = dataclasses.replace(state, inducing=points.to(survey.dtype), sample=survey.sample, held=held)
    event = Event(
        EventKind.ROWS_LEARNED, seen=found.q.seen, rows=found.q.count, whole=found.whole, bound=found.bound,
        bound_error=found.error, gap=found.gap,
    )  # fmt: skip
    errors, column = found.shift
    if errors > tuning.max_shift:
        names = survey.source.columns or [f"column {j} of x" for j in range(survey.width)]
        shifted = Event(
            EventKind.ROWS_NOT_RANDOM, column=names[column] if column < survey.width else "the target", errors=errors
        )
        warn(str(shifted))
        state.report.events.append(shifted)
    return state, event


def _points(
    problem: Problem, survey: Survey, theta: numpy.ndarray, asked: Approximation, options: FitOptions
) -> Tensor:
    """The inducing points at a vector, which the problem's parameters then are at: as a state holds them."""
    ParameterVector(problem.prior, problem.roles).assign(theta)
    points = asked.points_like(problem.x)
    if points is None:
        noise = noise_of(problem.prior, survey.sample).detach().to(problem.x.device)
        inducing = min(asked.sizes(survey.count).inducing, problem.rows)
        points = pivot_points(problem.prior, problem.x, noise, inducing, options.seed)
        points = of_first(points, survey.group)
    return points.to(survey.dtype).to(torch.float64)
