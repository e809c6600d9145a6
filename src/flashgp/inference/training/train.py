"""The stages of a fit: starts, a subset that chooses one where rows are many, then all rows.

`train` composes an objective and an optimiser: L-BFGS-B on values and gradients, or Fisher scoring on estimated
gradients where the plan says so. Which objectives is a setting.
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy

from flashgp.foundations.errors import NotPositiveDefiniteError
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.quantities import counted
from flashgp.inference.threads import quiet_openblas
from flashgp.inference.training.history import Recorder, Run, Stage, TimeUp
from flashgp.inference.training.lbfgs import best_on_subset, minimise, retry_with_reset_lengthscales
from flashgp.inference.training.objective import LogJoint, Objective, Problem
from flashgp.inference.training.settings import SearchSettings, StochasticSettings
from flashgp.inference.training.stochastic import StochasticFit
from flashgp.inference.training.stochastic_objective import EstimatedLogJoint, EstimateOptions
from flashgp.kernels import Warped
from flashgp.means import REGISTRY

__all__ = ["FitSettings", "Schedule", "Stop", "Trained", "train"]


@dataclass(frozen=True)
class FitSettings:
    """What tunes a fit beside its documented keywords.

    Args:
        search: of starts and L-BFGS-B.
        stochastic: of many rows.
        objective: made from a `Problem`; minimised by L-BFGS-B.
        estimated: made from a `Problem` and `EstimateOptions`; minimised by its gradients where rows are many.
        answer_share: of a time limit that the posterior of the parameters found gets at least.
        seconds_between_writes: of the checkpoint.
    """

    search: SearchSettings = field(default_factory=SearchSettings)
    stochastic: StochasticSettings = field(default_factory=StochasticSettings)
    objective: Callable[[Problem], Objective] = LogJoint
    estimated: Callable[[Problem, StochasticSettings, EstimateOptions], EstimatedLogJoint] = EstimatedLogJoint
    answer_share: float = 0.1
    seconds_between_writes: float = 1.0


class Stop(enum.Enum):
    """Why a search ended."""

    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    TIME_LIMIT = "time limit"


@dataclass(frozen=True)
class Schedule:
    """What the caller asks of a search.

    Args:
        starts: runs from different values; None for the default.
        from_data: whether the first start is data-driven.
        max_iterations: of one run.
        seed: of random starts and subsets.
        batch: models that are fitted together.
    """

    starts: int | None = None
    from_data: bool = True
    max_iterations: int = 200
    seed: int = 0
    batch: int = 1


@dataclass(frozen=True)
class Trained:
    """What a search found: the best vector, its objective of all rows, why it ended, and whether gradients were
    estimated, and float32 factors rough then."""

    theta: numpy.ndarray
    objective: Objective
    stop: Stop
    estimated: bool
    rough_factors: bool


def train(
    problem: Problem,
    schedule: Schedule,
    settings: FitSettings,
    recorder: Recorder,
    options: EstimateOptions | None = None,
) -> Trained:
    """Search for the optimum of all rows, by estimated gradients where `options` are given.

    The prior of the problem has the parameters found. Ctrl-C and the recorder's deadline end the search with the best
    so far.

    Raises: NotPositiveDefiniteError if no start can be evaluated.
    """
    objective = settings.objective(problem)
    estimated = None if options is None else settings.estimated(problem, settings.stochastic, options)
    search, iterations, n = settings.search, schedule.max_iterations, problem.rows
    count = schedule.starts
    if count is None:
        count = search.default_starts if schedule.from_data and not _has_user_modules(objective) else 1
    pairs = (schedule.starts or search.default_starts) * schedule.batch * n * n
    on_all_rows = pairs <= search.all_rows_pairs
    recorder.expected = iterations * ((count if on_all_rows else 1) + (count > 1))
    given, stop = objective.parameters.values(), Stop.FINISHED
    try:
        starts = objective.parameters.starts(
            count, from_data=schedule.from_data, spread=search.start_spread, seed=schedule.seed
        )
        if (len(starts) > 1 and not on_all_rows) or estimated is not None:
            recorder.phase = "choosing a start on a subset"
            subset = problem.subset(search.subset_rows, schedule.seed)
            starts = [best_on_subset(settings.objective(subset), starts, recorder, search)]
            recorder.note(Event(EventKind.SUBSET_FIT, starts=count, subset=subset.rows, rows=n))
        if estimated is not None:
            with quiet_openblas():
                StochasticFit(estimated, recorder, search, iterations, reset=count > 1).run(starts[0])
        else:
            recorder.phase = "fitting"
            for number, start in enumerate(starts):
                minimise(objective, start, Run(Stage.ALL_ROWS, number), recorder, search, iterations)
            if count > 1:
                recorder.phase = "resetting long lengthscales"
                retry_with_reset_lengthscales(objective, Stage.ALL_ROWS, recorder, search, iterations)
    except KeyboardInterrupt:
        stop = Stop.INTERRUPTED
    except TimeUp:
        stop = Stop.TIME_LIMIT
    theta = _best(recorder, estimated=estimated is not None)
    if theta is None and (stop is Stop.FINISHED or recorder.failures):
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
