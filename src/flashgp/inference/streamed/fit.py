"""fit from rows that are read: exact searches of a random sample, then stages on the bound of all rows.

400 to 2,000 rows    exact, of a sample (training/stages.py)
the sample, all      Fisher scoring on the collapsed bound, (M-160); inducing points are chosen anew at its optimum
                     while that gains (training/linear_stages.py)
the sample alone      in place of both where the time limit allows too few passes: its rows count for all of them, and
                     q(u) at the optimum is learned from as many random rows as the time allows (learning.py)
"""

import dataclasses
import functools
from typing import Any

import numpy
import torch
from torch import Tensor

from flashgp.foundations.deadline import Deadline
from flashgp.foundations.errors import warn
from flashgp.foundations.events import Event, EventKind, SampleReason, StopReason
from flashgp.foundations.report import Report
from flashgp.inference.approximation import Approximation
from flashgp.inference.choice import Choice
from flashgp.inference.data import Data
from flashgp.inference.full_scale.layout import of_first, pivot_points
from flashgp.inference.full_scale.trial import Trial
from flashgp.inference.over_ranks import planned_over
from flashgp.inference.plan_settings import RowCounts
from flashgp.inference.prior import Prior
from flashgp.inference.run import with_run
from flashgp.inference.settings import ConditionSettings
from flashgp.inference.streamed.condition import at_most, condition_on
from flashgp.inference.streamed.learning import learned_values
from flashgp.inference.streamed.minibatch import condition_on_values
from flashgp.inference.streamed.objective import StreamedLogJoint
from flashgp.inference.streamed.rows import noise_of, prior_of_rows
from flashgp.inference.streamed.state import StreamedState
from flashgp.inference.streamed.survey_fit import SurveyFit
from flashgp.inference.training.checkpoint import EvaluationLog
from flashgp.inference.training.fit import beside_a_constant, report_answer
from flashgp.inference.training.history import Recorder, SearchRun, Stage
from flashgp.inference.training.linear_stages import LinearStages
from flashgp.inference.training.options import FitOptions
from flashgp.inference.training.parameter_vector import ParameterVector
from flashgp.inference.training.settings import SampleSettings
from flashgp.inference.training.train import Trained
from flashgp.planner.approximate import ApproximateWork, by_sample
from flashgp.planner.plan import Plan
from flashgp.planner.problem import chosen_device
from flashgp.processes.agreement import deadline_of
from flashgp.sources.source import RowSource
from flashgp.sources.survey import Survey

MIN_GROWTH = 1.5  # of rows, from the last exact stage to a stage on the sample, and from there to all


class StreamedFit(SurveyFit[Any]):
    """See `SurveyFit`. Field: weighted, that the sample takes the place of passes over all rows."""

    again = "gp.condition(rows, inducing=...)"

    def __init__(self, prior: Prior, rows: RowSource | Survey, options: FitOptions, asked: Approximation) -> None:
        prior = self.look(prior, rows, options, asked)
        survey = self.survey
        asked = at_most(asked, survey.count) if self.whole.cut else asked
        self.prior, target = prior.released(), chosen_device(options.run.device, survey.x)
        self.wanted = self.planning_on(target)
        alike = not (survey.sample.numbers and prior.likelihood.has_sites)
        self.counts = RowCounts(survey.count, survey.width, alike=alike)
        choice = Choice(prior, self.counts, self.wanted, options.run.deadline.limit)
        self.plan: Plan = planned_over(options.run.group, lambda one: choice.approximate(one, read=self.read), asked)
        self.asked = asked.resolved(self.plan.sizes)
        of_sample = prior_of_rows(self.prior, survey.sample)
        self.problem = self.problem_on(target, of_sample, Data(of_sample, survey.x, survey.y), joined=False)
        points = self.asked.points_like(survey.x)
        self.mark = asked.kind, self.plan.inducing, points, survey.count, survey.checksum
        self.weighted: Event | None = None

    def searching(self, log: EvaluationLog, deadline: Deadline) -> Deadline:
        # Over ranks all go through their rows in passes: a batch of few rows is not worth an all-reduce.
        one_noise = not self.prior.likelihood.has_sites or not (self.prior.separate or self.survey.sample.numbers)
        if not self.whole.cut and self.options.run.group.size == 1 and one_noise:
            self.weighted = sample_chosen(self.plan, self.survey, self.options, log)
        if self.weighted is None:
            return deadline
        return self.options.run.deadline.share(self.options.settings.sample.share)

    @property
    def chosen(self) -> list[Event]:
        return [] if self.weighted is None else [self.weighted]

    def search(self, recorder: Recorder) -> Trained:
        options, survey = self.options, self.survey
        choosing = options.run.deadline.limit is not None and self.asked.leaves_points and options.run.group.size == 1
        choosing = choosing and self.prior.likelihood.has_sites
        self.stages = LinearStages(
            self.problem, survey.count, self._parts, self._objective, options, recorder, comparable=True,
            weighted=self.weighted is not None,
            choose=functools.partial(self._choose, recorder) if choosing else None,
        )  # fmt: skip
        return self.stages.run()

    def _points(self, survey: Survey, theta: numpy.ndarray) -> Tensor:
        """The inducing points at a vector, which the problem's parameters then are at: as a state holds them."""
        problem, asked = self.problem, self.asked
        ParameterVector(problem.prior, problem.roles).assign(theta)
        points = asked.points_like(problem.x)
        if points is None:
            noise = noise_of(problem.prior, survey.sample).detach().to(problem.x.device)
            inducing = min(asked.sizes(survey.count).inducing, problem.rows)
            points = pivot_points(problem.prior, problem.x, noise, inducing, self.options.run.seed)
            points = of_first(points, survey.group)
        return points.to(survey.dtype).to(torch.float64)

    def _objective(self, size: int, theta: numpy.ndarray) -> StreamedLogJoint:
        """Objective of all rows, or of the sample, with inducing points chosen at a vector."""
        survey, deadline = self.survey, deadline_of(self.options.run.group, self.options.run.deadline)
        if size == survey.count:
            points = self._points(survey, theta)
            return StreamedLogJoint(self.problem, survey, points, deadline=deadline, prior=self.prior)
        sample, rows = survey.of_sample, None if self.weighted is None else survey.count
        return StreamedLogJoint(self.problem, sample, self._points(sample, theta), rows, deadline)

    def _parts(self, first: int) -> list[int]:
        size, count = len(self.survey.x), self.survey.count
        if self.weighted is not None:
            return [size]
        return [size] if size >= MIN_GROWTH * first and count >= MIN_GROWTH * size else []

    def _choose(self, recorder: Recorder, theta: numpy.ndarray) -> None:
        """Take fewer inducing points where these suffice."""
        points, learned = self._points(self.survey, theta), self.survey.count
        if self.weighted is not None:
            learned = min(learned, ApproximateWork().learned_rows * len(points))
        trial = Trial.of(self.problem, points, learned, None, self.options.run.seed)
        if trial is not None and (fewer := trial.suffice) is not None:
            self.asked = self.asked.with_points(fewer.fields["kept"])
            recorder.note(fewer)

    def answer(self, trained: Trained, recorder: Recorder, report: Report) -> StreamedState:
        deadline, settings, best = self.options.run.deadline, self.options.conditioning(), self.stages.best
        state: StreamedState
        whole_learned, unexplained, held = True, list[Event](), self.whole.held
        widened = self.with_variance(self.problem.rows, trained)
        if self.weighted is None or self.problem.sites is not None:  # learning takes sites without iteration
            points = sums = None
            if isinstance(best, StreamedLogJoint) and self.weighted is None:
                points, sums = best.points, best.sums_at(trained.theta)
            state = condition_on(self.prior, self.whole, self.asked, settings, points, sums)
            if held is not None:
                again = functools.partial(condition_on, self.prior, self.whole, self.asked, settings, None, None)
                state, unexplained = beside_a_constant(self, trained, state, _least_evidence, again, held.y)
        else:
            said: dict[int, Event] = {}

            def learned() -> StreamedState:
                points = self._points(self.survey, trained.objective.parameters.values())
                found, event = _learned(self.prior, self.survey, points, self.options.settings.sample, settings)
                said[id(found)] = event
                return found

            state = learned()
            if held is not None:
                state, unexplained = beside_a_constant(self, trained, state, _least_evidence, learned, held.y)
            report.events += [*self.chosen, said[id(state)]]
            whole_learned = said[id(state)].fields["whole"]
        report_answer(report, recorder, state, self)
        report.events += [*([] if widened is None else [widened]), *unexplained]
        limit = deadline.limit
        if self.weighted is None and state.prior.likelihood.has_sites:
            report.events.append(state.bound.event)
        elif limit is not None:
            report.predicted_seconds = min(self.plan.fit_seconds, limit)
        if trained.stop is StopReason.GOAL and whole_learned and limit is not None and not deadline.passed():
            by_sample = self.weighted is not None or None
            report.events.append(Event(EventKind.FIT_ENDED, left=deadline.left, limit=limit, sampled=by_sample))
        return state


def _least_evidence(state: Any) -> float:
    """The lower bound on log p(y), nats."""
    return state.sums.lower


def sample_chosen(plan: Plan, survey: Survey, options: FitOptions, log: EvaluationLog) -> Event | None:
    """Event if a sample takes the place of passes over all rows, with the reason; None for passes.

    Args: survey, with the seconds of the first pass; log, of the checkpoint, whose way is kept.
    """
    deadline, least, reading = options.run.deadline, options.settings.sample.min_evaluations, survey.seconds
    seconds, reason = max(plan.fit_step_seconds, 2.0 * reading), None
    if log.has(str(SearchRun(Stage.WEIGHTED, len(survey.x)))):
        reason = SampleReason.CHECKPOINT
    elif any(log.has(str(SearchRun(Stage.APPROXIMATE, number))) for number in (0, 1)):
        return None
    elif by_sample(plan, deadline.limit, least):
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
    found = learned_values(prior, survey, points, settings.run.seed, settings.run.deadline, batch)
    state = condition_on_values(prior, found.q, with_run(settings, device=None))
    state = dataclasses.replace(state, inducing=points.to(survey.dtype), sample=survey.sample, held=survey.held)
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
