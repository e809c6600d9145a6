"""fit by the full-scale approximation: exact searches of few rows, then stages whose likelihood is linear in the rows.

400 to 2,000 rows    exact, as every fit (training/stages.py)
parts, all rows      Fisher scoring on the likelihood of the full-scale model, from the extrapolated optimum of fewer
                     rows; points and neighbours are chosen anew at its optimum while that gains
"""

import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy
import torch

from flashgp.foundations.checks import check_points, check_targets, promotions
from flashgp.foundations.contexts import autocast_disabled, outside_inference_mode
from flashgp.foundations.determinism import contiguous_copy, deterministic_where
from flashgp.foundations.errors import FitInterrupted, NotPositiveDefiniteError, ShapeError
from flashgp.foundations.events import Event, EventKind, StopReason
from flashgp.foundations.quantities import counted
from flashgp.foundations.report import Report
from flashgp.foundations.workspace import Workspace
from flashgp.inference.exact.likelihood import DirectSettings
from flashgp.inference.full_scale.condition import condition, refuse_unfit
from flashgp.inference.full_scale.layout import layout_of
from flashgp.inference.full_scale.objective import FullScaleLogJoint
from flashgp.inference.full_scale.sizes import Approximation, Sizes, refuse_exact
from flashgp.inference.full_scale.state import FullScaleState
from flashgp.inference.plan import chosen_device
from flashgp.inference.prior import Prior
from flashgp.inference.replicates import equal_rows
from flashgp.inference.settings import ConditionSettings, SolveSettings
from flashgp.inference.threads import quiet_openblas
from flashgp.inference.training.checkpoint import EvaluationLog
from flashgp.inference.training.extrapolation import Trend
from flashgp.inference.training.fisher_information import log_joint_curvature
from flashgp.inference.training.fit import Fitted, mark_of, problem_of, report_search
from flashgp.inference.training.gradient_search import GradientSearch
from flashgp.inference.training.history import Recorder, Run, Stage, TimeUp
from flashgp.inference.training.objective import LogJoint, Problem, priors_in_force
from flashgp.inference.training.options import FitOptions
from flashgp.inference.training.parameter_vector import ParameterVector
from flashgp.inference.training.stages import ExactStages
from flashgp.inference.training.train import Trained, best_found
from flashgp.pairwise.torch.tiles import TorchTiles
from flashgp.planner.fit_stages import Search, fit_stages, part_sizes

__all__ = ["fit_full_scale"]

ROUNDS = 3  # choices of points and neighbours for all rows, at most


@outside_inference_mode
@autocast_disabled
@deterministic_where(lambda prior, x, y, asked, options: options.deterministic)
def fit_full_scale(prior: Prior, x: Any, y: Any, asked: Approximation, options: FitOptions) -> Fitted[FullScaleState]:
    """See `flashgp.fit`."""
    began = time.perf_counter()
    single = None if options.dtype == torch.float64 else options.dtype
    refuse_exact(solver=options.solver, plan=options.plan, jitter=options.jitter, dtype=single)
    promoted = promotions(x=x, y=y)
    x = check_points(x, "x")
    y = check_targets(y, "y", x, prior.outputs)
    if not x.shape[-2]:
        raise ShapeError(
            f"`x` must have at least one row to fit, got shape {tuple(x.shape)}; condition on no rows instead"
        )
    x, y = contiguous_copy(x), contiguous_copy(y)
    refuse_unfit(prior, x, y)
    sizes = asked.sizes(x.shape[-2])
    prior, target = prior.released(), chosen_device(options.device, x)
    direct = DirectSettings(TorchTiles(), torch.float64, options.jitter, workspace=Workspace(deadline=options.deadline))
    problem = problem_of(prior, x, y, equal_rows(prior, x, y), target, direct, options)
    path = None if options.checkpoint is None else Path(options.checkpoint)
    beside = (asked.kind, dataclasses.astuple(sizes), asked.points_like(x))
    mark = "" if path is None else mark_of(problem, options, beside)
    log = EvaluationLog(path, mark, options.settings.seconds_between_writes)
    recorder = Recorder(log, options.progress, options.deadline, began=began)
    trained = _train(problem, asked, options, recorder)
    report = Report(events=promoted)
    report_search(report, recorder, trained, options)
    settings = ConditionSettings(
        SolveSettings(options.seed, options.deterministic, options.tolerance), memory=options.memory
    )
    try:
        state = condition(prior, x.to(target), y.to(target), asked, settings)
    except KeyboardInterrupt as stop:
        raise FitInterrupted(
            "Ctrl-C came in the last pass of `fit`; the trained GP is the field `gp` of this exception: "
            "gp.condition(x, y, approximation=...) goes on from there",
            gp=prior,
            history=recorder.history,
        ) from stop
    _report_answer(report, recorder, state, direct.workspace)
    objective = trained.objective
    assert isinstance(objective, LogJoint)
    in_force = priors_in_force(objective.parameters, weak=problem.weak)
    log_prior = objective.log_prior(trained.theta)
    interrupted = trained.stop is not StopReason.GOAL
    return Fitted(prior, state, recorder.history, report, interrupted, in_force, log_prior)


def _train(problem: Problem, asked: Approximation, options: FitOptions, recorder: Recorder) -> Trained:
    """The search; the prior of the problem has the parameters found. Raises: NotPositiveDefiniteError."""
    settings, search, n = options.settings, options.settings.search, problem.rows
    exact = LogJoint(problem)
    shape = options.stages.for_model(own_modules=exact.has_user_modules)
    scored = not exact.has_user_modules
    stages = fit_stages(n, shape, parameters=exact.parameters.size, scored=scored, estimated=n > shape.first_rows)
    first = [stage for stage in stages if stage.search is not Search.ESTIMATED]
    recorder.expected = {stage.rows: round(stage.evaluations.middle) for stage in stages}

    def of(rows: int) -> LogJoint:
        return LogJoint(problem.subset(rows, options.seed))

    runs = ExactStages(
        of, n, first, recorder, search, settings.stochastic, options.max_iterations, options.seed, shape.resets
    )
    theta, stop = exact.parameters.values(), StopReason.GOAL
    try:
        starts = exact.parameters.starts(
            shape.runs, from_data=options.initial == "data", spread=search.start_spread, seed=options.seed
        )
        theta = starts[0]  # where there is no time for an evaluation
        with quiet_openblas():
            optimum = runs.run(starts)
            recorder.reached = optimum
            _FullScaleStages(problem, asked, asked.sizes(n), options, recorder).run(optimum, of(runs.last))
    except KeyboardInterrupt:
        stop = StopReason.INTERRUPT
    except TimeUp:
        stop = StopReason.TIME
    best = best_found(recorder, estimated=True)
    if best is None and stop is StopReason.GOAL:
        raise NotPositiveDefiniteError(
            "no start of `fit` gave a positive definite covariance matrix in "
            f"{counted(recorder.failures, 'evaluation')}; scale the inputs, add noise, or pass jitter=",
            jitters=problem.direct.jitters,
        )
    theta = theta if best is None else best
    exact.parameters.assign(theta)
    return Trained(theta, exact, stop, estimated=False, rough_factors=False)


@dataclasses.dataclass
class _FullScaleStages:
    """The stages of the full-scale likelihood, from the optimum of the first rows."""

    problem: Problem
    asked: Approximation
    sizes: Sizes
    options: FitOptions
    recorder: Recorder

    def run(self, theta: numpy.ndarray, first: LogJoint) -> None:
        recorder, n, options = self.recorder, self.problem.rows, self.options
        settings = options.settings.stochastic
        curvature = log_joint_curvature(first, theta, n, settings, options.seed)
        trend, free = Trend(theta, first.rows, settings), numpy.full_like(theta, numpy.inf)
        limits = settings.limited(min(settings.scoring.max_gradients, options.max_iterations))
        sizes = [*part_sizes(n, first.rows, settings.part_ratio), *[n] * (ROUNDS if n > first.rows else 1)]
        gained = numpy.inf
        for number, size in enumerate(sizes):
            if size == n and gained <= settings.negligible_gain * n:
                break
            recorder.begin(size)
            last = size == n and number and sizes[number - 1] == n
            run = Run(Stage.ALL_ROWS, number) if size == n else Run(Stage.PART, size)
            objective = self._objective(size, trend.theta)
            search = GradientSearch(objective, run, recorder, limits, (-free, free))
            try:
                descent = search.run(trend.theta, curvature) if last else search.follow(trend, curvature)
            except NotPositiveDefiniteError as error:
                recorder.note(Event(EventKind.ROWS_PASSED_OVER, rows=size, error=str(error)))
                continue
            if size == n:
                values = [-entry.value for entry in recorder.history if entry.run == search.name]
                gained = values[0] - min(values) if last else numpy.inf
            trend.add(descent.theta, size)
            curvature, recorder.reached = descent.curvature, descent.theta

    def _objective(self, size: int, theta: numpy.ndarray) -> FullScaleLogJoint:
        """Of so many rows, with points and neighbours chosen at a vector."""
        problem = self.problem if size == self.problem.rows else self.problem.subset(size, self.options.seed)
        ParameterVector(problem.prior, problem.roles).assign(theta)
        sizes, own = self.sizes, self.asked.points_like(problem.x)
        sizes = dataclasses.replace(sizes, inducing=min(sizes.inducing, size), neighbours=min(sizes.neighbours, size))
        noise = problem.prior.sites(problem.y).variance.detach()
        return FullScaleLogJoint(problem, layout_of(problem.prior, problem.x, noise, sizes, self.options.seed, own))


def _report_answer(report: Report, recorder: Recorder, state: FullScaleState, workspace: Workspace) -> None:
    """Fill the report from the state and the counts of the search."""
    conditioning = state.report
    for name in ("route", "device", "dtype", "predicted_bytes"):
        setattr(report, name, getattr(conditioning, name))
    report.backend = " and ".join(dict.fromkeys(filter(None, (*workspace.backends, conditioning.backend))))
    report.events += conditioning.events
    report.peak_bytes = max(workspace.peak_bytes, conditioning.peak_bytes or 0)
    report.iterations = len(recorder.history)
    report.compile_seconds = workspace.compile_seconds or None
    report.seconds = time.perf_counter() - recorder.began - workspace.compile_seconds
