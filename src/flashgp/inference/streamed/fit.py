"""fit from rows that are read: exact searches of a random sample, then stages on the bound of all rows.

400 to 2,000 rows    exact, of a sample (training/stages.py)
the sample, all      Fisher scoring on the collapsed bound, (M-160); inducing points are chosen anew at its optimum
                     while that gains (training/linear_stages.py)
"""

import time
from pathlib import Path

import numpy
import torch

from flashgp.foundations.contexts import autocast_disabled, outside_inference_mode
from flashgp.foundations.determinism import deterministic_where
from flashgp.foundations.errors import FitInterrupted
from flashgp.foundations.events import StopReason
from flashgp.foundations.report import Report
from flashgp.foundations.workspace import Workspace
from flashgp.inference.approximate_plan import approximate_plan
from flashgp.inference.approximation import Approximation, refuse_exact
from flashgp.inference.exact.likelihood import DirectSettings
from flashgp.inference.full_scale.layout import pivot_points
from flashgp.inference.plan_settings import RowCounts, chosen_device
from flashgp.inference.prior import Prior
from flashgp.inference.settings import ConditionSettings, SolveSettings
from flashgp.inference.streamed.condition import at_most, condition_on
from flashgp.inference.streamed.objective import StreamedLogJoint
from flashgp.inference.streamed.rows import (
    noise_of,
    prior_of_rows,
    row_variances_apart,
    row_variances_back,
    survey_of,
)
from flashgp.inference.streamed.state import StreamedState
from flashgp.inference.training.checkpoint import EvaluationLog
from flashgp.inference.training.fit import Fitted, mark_of, problem_of, report_search
from flashgp.inference.training.history import Recorder
from flashgp.inference.training.linear_stages import LinearStages, plan_settings, report_answer, reserved_seconds
from flashgp.inference.training.objective import LogJoint, Problem, priors_in_force
from flashgp.inference.training.options import FitOptions
from flashgp.inference.training.parameter_vector import ParameterVector
from flashgp.pairwise.torch.tiles import TorchTiles
from flashgp.sources.source import Held, RowSource
from flashgp.sources.survey import Survey

__all__ = ["fit_streamed"]

MIN_GROWTH = 1.5  # of rows, from the last exact stage to a stage on the sample, and from there to all


@outside_inference_mode
@autocast_disabled
@deterministic_where(lambda prior, rows, asked, options: options.deterministic)
def fit_streamed(prior: Prior, rows: RowSource, asked: Approximation, options: FitOptions) -> Fitted[StreamedState]:
    """See `flashgp.fit`."""
    began = time.perf_counter()
    single = None if options.dtype == torch.float64 else options.dtype
    refuse_exact(solver=options.solver, plan=options.plan, jitter=options.jitter, dtype=single)
    prior, rows = row_variances_apart(prior, rows, fitting=True)
    whole = survey_of(prior, rows, asked, options.seed, options.stages.first_rows, options.deadline)
    survey = whole.of_sample if whole.cut else whole
    asked = at_most(asked, survey.count) if whole.cut else asked
    prior, target = prior.released(), chosen_device(options.device, survey.x)
    counts, read = RowCounts(survey.count, survey.width), not isinstance(rows, Held)
    plan = approximate_plan(prior, counts, asked, plan_settings(options, target), options.deadline.limit, read=read)
    asked = asked.resolved(plan.sizes)
    direct = DirectSettings(TorchTiles(), torch.float64, options.jitter, workspace=Workspace(deadline=options.deadline))
    of_sample = prior_of_rows(prior, survey.sample)
    problem = problem_of(of_sample, survey.x, survey.y, None, target, direct, options)
    path = None if options.checkpoint is None else Path(options.checkpoint)
    beside = (asked.kind, plan.inducing, asked.points_like(survey.x), survey.count, survey.checksum)
    mark = "" if path is None else mark_of(problem, options, beside)
    log = EvaluationLog(path, mark, options.settings.seconds_between_writes)
    searching = options.deadline.before(reserved_seconds(plan, options))
    recorder = Recorder(log, options.progress, searching, began=began)
    recorder.expect(plan.fit_step_seconds, survey.count)

    sample = survey.of_sample

    def objective(size: int, theta: numpy.ndarray) -> StreamedLogJoint:
        """Of all rows, or of the sample, with inducing points chosen at a vector."""
        return _objective(problem, survey if size == survey.count else sample, theta, asked, options)

    def parts(first: int) -> list[int]:
        size = len(survey.x)
        return [size] if size >= MIN_GROWTH * first and survey.count >= MIN_GROWTH * size else []

    stages = LinearStages(problem, survey.count, parts, objective, options, recorder, comparable=True)
    trained = stages.run()
    points = sums = None
    if isinstance(stages.best, StreamedLogJoint):
        points, sums = stages.best.points, stages.best.sums_at(trained.theta)
    report = Report()
    report_search(report, recorder, trained, options)
    settings = ConditionSettings(
        SolveSettings(options.seed, options.deterministic, options.tolerance), memory=options.memory,
        device=options.device, deadline=options.deadline,
    )  # fmt: skip
    try:
        state = condition_on(prior, whole, asked, settings, points, sums)
    except KeyboardInterrupt as stop:
        raise FitInterrupted(
            "Ctrl-C came in the last pass of `fit`; the trained GP is the field `gp` of this exception: "
            "gp.condition(rows, inducing=...) goes on from there",
            gp=prior,
            history=recorder.history,
        ) from stop
    report_answer(report, recorder, state, plan, direct.workspace)
    report.events.append(state.bound.event)
    objective_found = trained.objective
    assert isinstance(objective_found, LogJoint)
    in_force = priors_in_force(objective_found.parameters, weak=problem.weak)
    log_prior = objective_found.log_prior(trained.theta)
    interrupted = trained.stop is not StopReason.GOAL
    prior = row_variances_back(prior, rows)
    return Fitted(prior, state, recorder.history, report, interrupted, in_force, log_prior)


def _objective(
    problem: Problem, survey: Survey, theta: numpy.ndarray, asked: Approximation, options: FitOptions
) -> StreamedLogJoint:
    ParameterVector(problem.prior, problem.roles).assign(theta)
    points = asked.points_like(problem.x)
    if points is not None:
        points = points.to(survey.dtype).to(torch.float64)  # as a state holds them
    else:
        noise = noise_of(problem.prior, survey.sample).detach().to(problem.x.device)
        inducing = min(asked.sizes(survey.count).inducing, problem.rows)
        points = pivot_points(problem.prior, problem.x, noise, inducing, options.seed)
    return StreamedLogJoint(problem, survey, points)
