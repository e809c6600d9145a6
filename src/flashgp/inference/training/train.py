"""The stages of a fit: starts, a subset that chooses one where rows are many, then all rows.

`train` composes an objective and an optimiser: L-BFGS-B on values and gradients, or Fisher scoring on estimated
gradients where the plan says so. Which objectives is a setting.
"""

from dataclasses import dataclass
from typing import Any

import numpy

from flashgp.foundations.errors import NotPositiveDefiniteError
from flashgp.foundations.events import Event, EventKind, StopReason
from flashgp.foundations.quantities import counted
from flashgp.inference.threads import quiet_openblas
from flashgp.inference.training.history import Recorder, Run, Stage, TimeUp
from flashgp.inference.training.lbfgs import best_on_subset, minimise, retry_with_reset_lengthscales
from flashgp.inference.training.objective import Objective, Problem
from flashgp.inference.training.options import FitOptions
from flashgp.inference.training.stochastic import StochasticFit
from flashgp.inference.training.stochastic_objective import EstimateOptions
from flashgp.kernels import Warped
from flashgp.means import REGISTRY

__all__ = ["Trained", "train"]


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
        count = search.default_starts if from_data and not _has_user_modules(objective) else 1
    pairs = (options.starts or search.default_starts) * problem.x.shape[:-2].numel() * n * n
    on_all_rows = pairs <= search.all_rows_pairs
    recorder.expected = iterations * ((count if on_all_rows else 1) + (count > 1))
    given, stop = objective.parameters.values(), StopReason.GOAL
    try:
        starts = objective.parameters.starts(count, from_data=from_data, spread=search.start_spread, seed=options.seed)
        if (len(starts) > 1 and not on_all_rows) or estimated is not None:
            recorder.phase = "choosing a start on a subset"
            subset = problem.subset(search.subset_rows, options.seed)
            starts = [best_on_subset(settings.objective(subset), starts, recorder, search)]
            recorder.note(Event(EventKind.SUBSET_FIT, starts=count, subset=subset.rows, rows=n))
        if estimated is not None:
            with quiet_openblas():
                stages = StochasticFit(estimated, settings.objective, recorder, search, iterations, reset=count > 1)
                stages.run(starts[0])
        else:
            recorder.phase = "fitting"
            for number, start in enumerate(starts):
                minimise(objective, start, Run(Stage.ALL_ROWS, number), recorder, search, iterations)
            if count > 1:
                recorder.phase = "resetting long lengthscales"
                retry_with_reset_lengthscales(objective, Stage.ALL_ROWS, recorder, search, iterations)
    except KeyboardInterrupt:
        stop = StopReason.INTERRUPT
    except TimeUp:
        stop = StopReason.TIME
    theta = _best(recorder, estimated=estimated is not None)
    if theta is None and (stop is StopReason.GOAL or recorder.failures):
        raise NotPositiveDefiniteError(
            "no start of `fit` gave a positive definite covariance matrix in "
            f"{counted(recorder.failures, 'evaluation')}; scale the inputs, add noise, or pass jitter=",
            jitters=problem.direct.jitters,
        )
    theta = given if theta is None else theta
    objective.parameters.assign(theta)
    return Trained(theta, objective, stop, estimated is not None, estimated is not None and estimated.rough_factors)


def _best(recorder: Recorder, *, estimated: bool) -> numpy.ndarray | None:
    """The best vector of the last stage that has one."""
    if estimated and recorder.reached is not None:
        return recorder.reached
    for stage in (Stage.FIRST_ROWS, Stage.SUBSET) if estimated else (Stage.ALL_ROWS, Stage.FIRST_ROWS, Stage.SUBSET):
        best = recorder.best_of(stage)
        if best is not None:
            return best[2]
    return None


def _has_user_modules(objective: Objective) -> bool:
    """Whether modules of the user's take part, whose initial values are their own."""
    prior: Any = objective.problem.prior
    known = isinstance(prior.mean, tuple(REGISTRY.values()))
    return objective.parameters.foreign or not known or any(isinstance(m, Warped) for m in prior.modules())
