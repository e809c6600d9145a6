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
from flashgp.inference.training.history import Recorder, Stage, TimeUp
from flashgp.inference.training.objective import Objective, Problem
from flashgp.inference.training.options import FitOptions
from flashgp.inference.training.stages import ExactStages, stage_sizes
from flashgp.inference.training.stochastic import StochasticFit, part_sizes
from flashgp.inference.training.stochastic_objective import EstimateOptions

__all__ = ["Trained", "train"]

START_EVALUATIONS, LATER_EVALUATIONS = 45, 12  # usually: what is left of a fit is estimated from them


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
    count, from_data = options.starts, options.initial == "data"
    if count is None:
        count = search.default_starts if from_data and not objective.has_user_modules else 1
    last = n if estimated is None else min(n, settings.stochastic.first_rows)
    double = dataclasses.replace(problem, direct=dataclasses.replace(problem.direct, dtype=torch.float64))

    def of(rows: int) -> Objective:
        return objective if rows == n and estimated is None else settings.objective(double.subset(rows, options.seed))

    if objective.has_user_modules and count == 1:  # it starts where its user has put it, which few rows would lose
        search = dataclasses.replace(search, start_rows=last)
    stages = ExactStages(of, n, last, recorder, search, settings.stochastic, iterations, options.seed, count > 1)
    few = min(search.start_rows, last)
    later = [] if few == last else stage_sizes(few, last, settings.stochastic.stage_ratio)
    if estimated is not None:
        later += [*part_sizes(n, last, settings.stochastic.part_ratio), n]
    recorder.expected = dict.fromkeys(later, LATER_EVALUATIONS) | {few: START_EVALUATIONS * (count + (count > 1))}
    given, stop = objective.parameters.values(), StopReason.GOAL
    try:
        starts = objective.parameters.starts(count, from_data=from_data, spread=search.start_spread, seed=options.seed)
        with quiet_openblas():
            theta = stages.run(starts)
            if estimated is not None:
                StochasticFit(estimated, of(last), recorder, iterations).run(theta)
    except KeyboardInterrupt:
        stop = StopReason.INTERRUPT
    except TimeUp:
        stop = StopReason.TIME
    best = _best(recorder, estimated=estimated is not None)
    if best is None and (stop is StopReason.GOAL or recorder.failures):
        raise NotPositiveDefiniteError(
            "no start of `fit` gave a positive definite covariance matrix in "
            f"{counted(recorder.failures, 'evaluation')}; scale the inputs, add noise, or pass jitter=",
            jitters=problem.direct.jitters,
        )
    theta = given if best is None else best
    objective.parameters.assign(theta)
    return Trained(theta, objective, stop, estimated is not None, estimated is not None and estimated.rough_factors)


def _best(recorder: Recorder, *, estimated: bool) -> numpy.ndarray | None:
    """The best vector of all rows by its value; else where the last finished stage ended; else the best of few rows."""
    best = None if estimated else recorder.best_of(Stage.ALL_ROWS)
    if best is None and recorder.reached is not None:
        return recorder.reached
    best = best or recorder.best_of(Stage.SUBSET)
    return None if best is None else best[2]
