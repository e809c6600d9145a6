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
from flashgp.foundations.errors import FitInterrupted, ShapeError
from flashgp.foundations.events import StopReason
from flashgp.foundations.report import Report
from flashgp.foundations.workspace import Workspace
from flashgp.inference.exact.likelihood import DirectSettings
from flashgp.inference.full_scale.condition import condition, refuse_unfit
from flashgp.inference.full_scale.layout import layout_of
from flashgp.inference.full_scale.objective import FullScaleLogJoint
from flashgp.inference.full_scale.sizes import Approximation, refuse_exact
from flashgp.inference.full_scale.state import FullScaleState
from flashgp.inference.plan import chosen_device
from flashgp.inference.prior import Prior
from flashgp.inference.replicates import equal_rows
from flashgp.inference.settings import ConditionSettings, SolveSettings
from flashgp.inference.training.checkpoint import EvaluationLog
from flashgp.inference.training.fit import Fitted, mark_of, problem_of, report_search
from flashgp.inference.training.history import Recorder
from flashgp.inference.training.linear_stages import LinearStages
from flashgp.inference.training.objective import LogJoint, Problem, priors_in_force
from flashgp.inference.training.options import FitOptions
from flashgp.inference.training.parameter_vector import ParameterVector
from flashgp.pairwise.torch.tiles import TorchTiles
from flashgp.planner.fit_stages import part_sizes

__all__ = ["fit_full_scale"]


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
    ratio = options.settings.stochastic.part_ratio
    trained = LinearStages(
        problem, problem.rows, lambda first: part_sizes(problem.rows, first, ratio),
        lambda size, theta: _objective(problem, size, theta, asked, options), options, recorder,
    ).run()  # fmt: skip
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


def _objective(
    problem: Problem, size: int, theta: numpy.ndarray, asked: Approximation, options: FitOptions
) -> FullScaleLogJoint:
    """Of so many rows, with points and neighbours chosen at a vector."""
    sizes, own = asked.sizes(problem.rows), asked.points_like(problem.x)
    problem = problem if size == problem.rows else problem.subset(size, options.seed)
    ParameterVector(problem.prior, problem.roles).assign(theta)
    sizes = dataclasses.replace(sizes, inducing=min(sizes.inducing, size), neighbours=min(sizes.neighbours, size))
    noise = problem.prior.sites(problem.y).variance.detach()
    return FullScaleLogJoint(problem, layout_of(problem.prior, problem.x, noise, sizes, options.seed, own))


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
