"""The whole search of a fit: starts, the stages by exact gradients, those by estimated ones where rows are many.

Which objectives it minimises is a setting.
"""

import dataclasses
from dataclasses import dataclass

import numpy
import torch

from flashgp.foundations.errors import NotPositiveDefiniteError
from flashgp.foundations.events import StopReason
from flashgp.foundations.quantities import counted
from flashgp.inference.threads import quiet_openblas
from flashgp.inference.training.history import Recorder, Stage, TimeUp, work
from flashgp.inference.training.objective import LogJoint, Objective, Problem
from flashgp.inference.training.options import FitOptions
from flashgp.inference.training.period_starts import with_periods
from flashgp.inference.training.stages import ExactStages
from flashgp.inference.training.stochastic import StochasticFit
from flashgp.inference.training.stochastic_objective import EstimateOptions
from flashgp.planner.fit_stages import Search, fit_stages


@dataclass(frozen=True)
class Trained:
    """What a search found: the best vector, its objective of all rows, why it ended (at its goal, by Ctrl-C, or by its
    time limit), whether gradients were estimated, and whether float32 factors were too rough for them."""

    theta: numpy.ndarray
    objective: Objective
    stop: StopReason
    estimated: bool
    rough_factors: bool


def train(
    problem: Problem, options: FitOptions, recorder: Recorder, estimate: EstimateOptions | None = None
) -> Trained:
    """Search for the optimum of all rows, by estimated gradients where `estimate` says how.

    The prior of the problem has the parameters found. Ctrl-C and the recorder's deadline end the search with the best
    so far.

    Raises: NotPositiveDefiniteError if no start can be evaluated.
    """
    settings, search, iterations, n = options.settings, options.settings.search, options.max_iterations, problem.rows
    objective = settings.objective(problem)
    estimated = None if estimate is None else settings.estimated_gradients(problem, estimate)
    shape = options.stages.for_model(own_modules=objective.has_user_modules)
    scored = isinstance(objective, LogJoint) and not objective.has_user_modules and problem.x.dim() == 2
    stages = fit_stages(n, shape, parameters=objective.parameters.size, scored=scored, estimated=estimated is not None)
    exact = [stage for stage in stages if stage.search is not Search.ESTIMATED]
    parts = [stage.rows for stage in stages if stage.search is Search.ESTIMATED][:-1]
    recorder.expected = {stage.rows: (stage.evaluations.middle, work(stage.rows)) for stage in stages}
    double = dataclasses.replace(problem, direct=dataclasses.replace(problem.direct, dtype=torch.float64))

    def of(rows: int) -> Objective:
        return objective if rows == n and estimated is None else settings.objective(double.subset(rows, options.seed))

    first = ExactStages(of, n, exact, recorder, search, settings.stochastic, iterations, options.seed, shape.resets)
    theta, stop, from_data = objective.parameters.values(), StopReason.GOAL, options.initial == "data"
    try:
        starts = objective.parameters.starts(
            shape.runs, from_data=from_data, spread=search.start_spread, seed=options.seed
        )
        theta = starts[0]  # where there is no time for an evaluation
        with quiet_openblas():
            if from_data:
                starts = with_periods(of(first.first), double, starts, recorder, search.periods)
            optimum = first.run(starts)
            if estimated is not None:
                StochasticFit(estimated, of(first.last), parts, recorder, iterations).run(optimum)
    except KeyboardInterrupt:
        if recorder.group.size > 1:
            raise  # on all ranks
        stop = StopReason.INTERRUPT
    except TimeUp:
        stop = StopReason.TIME
    best = best_found(recorder, estimated=estimated is not None)
    if best is None and (stop is StopReason.GOAL or (recorder.failures and stop is not StopReason.TIME)):
        raise NotPositiveDefiniteError(
            "no start of `fit` gave a positive definite covariance matrix in "
            f"{counted(recorder.failures, 'evaluation')}; scale the inputs, add noise, or pass jitter=",
            jitters=problem.direct.jitters,
        )
    theta = theta if best is None else best
    objective.parameters.assign(theta)
    return Trained(theta, objective, stop, estimated is not None, estimated is not None and estimated.rough_factors)


def best_found(recorder: Recorder, *, estimated: bool) -> numpy.ndarray | None:
    """The best vector of all rows by its value; else where the last finished stage ended; else the best of few rows."""
    best = None if estimated else recorder.best_of(Stage.ALL_ROWS)
    if best is None and recorder.reached is not None:
        return recorder.reached
    best = best or recorder.best_of(Stage.SUBSET) or recorder.best_of(Stage.PERIODS)
    return None if best is None else best[2]
