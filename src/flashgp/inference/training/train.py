"""The whole search of a fit: starts, the stages by exact gradients, those by estimated ones where rows are many.

Which objectives it minimises is a setting.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy
import torch

from flashgp.foundations.deadline import TimeUp
from flashgp.foundations.errors import NotPositiveDefiniteError
from flashgp.foundations.events import Event, EventKind, StopReason
from flashgp.foundations.quantities import counted
from flashgp.inference.site_methods import method_of
from flashgp.inference.threads import quiet_openblas
from flashgp.inference.training.history import Recorder, Stage, work
from flashgp.inference.training.objective import LogJoint, Objective, Problem
from flashgp.inference.training.options import FitOptions
from flashgp.inference.training.period_starts import with_periods
from flashgp.inference.training.stages import ExactStages
from flashgp.inference.training.stochastic import StochasticFit
from flashgp.inference.training.stochastic_objective import EstimateOptions
from flashgp.planner.fit_stages import FitStage, Search, fit_stages


@dataclass
class Trained:
    """Result of a search: the best vector, its objective of all rows, why it ended (at its goal, by Ctrl-C, or by its
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
    settings, n = options.settings, problem.rows
    objective = settings.objective(problem)
    estimated = None if estimate is None else settings.estimated_gradients(problem, estimate)
    likelihood, searched_rows = problem.prior.likelihood, n
    if likelihood.spread_by_leaving_out and n > settings.sites.searched_rows:
        searched_rows = settings.sites.searched_rows
        recorder.note(Event(EventKind.SEARCHED_PART, likelihood=likelihood.name, rows=searched_rows, of=n))
    stages = stages_of(objective, searched_rows, options, estimated=estimated is not None)
    parts = [stage.rows for stage in stages if stage.search is Search.ESTIMATED][:-1]
    recorder.expected = {stage.rows: (stage.evaluations.middle, work(stage.rows)) for stage in stages}
    double = dataclasses.replace(problem, direct=dataclasses.replace(problem.direct, dtype=torch.float64))

    def of(rows: int) -> Objective:
        if rows == n and estimated is None:
            return objective
        return settings.objective(double.subset(rows, options.run.seed))

    def later(first: ExactStages, search: Callable[[], numpy.ndarray]) -> None:
        optimum = search()
        if estimated is not None:
            StochasticFit(estimated, of(first.last), parts, recorder, options.max_iterations).run(optimum)

    theta, stop = searched(double, objective, of, stages, later, options, recorder)
    theta = settled(theta, stop, problem, recorder, estimated=estimated is not None)
    objective.parameters.assign(theta)
    return Trained(theta, objective, stop, estimated is not None, estimated is not None and estimated.rough_factors)


def stages_of(objective: Objective, rows: int, options: FitOptions, *, estimated: bool) -> list[FitStage]:
    """The stages of a search over so many rows. Args: objective, of rows that are held; estimated, whether gradients of
    many rows are."""
    own = objective.has_user_modules
    scored = isinstance(objective, LogJoint) and not own and objective.problem.x.dim() == 2
    shape = options.stages.for_model(own_modules=own)
    return list(fit_stages(rows, shape, parameters=objective.parameters.size, scored=scored, estimated=estimated))


def searched(
    problem: Problem,
    objective: Objective,
    of: Callable[[int], Objective],
    stages: Sequence[FitStage],
    later: Callable[[ExactStages, Callable[[], numpy.ndarray]], None],
    options: FitOptions,
    recorder: Recorder,
) -> tuple[numpy.ndarray, StopReason]:
    """Start vector of a search, and why the search ended; its end is in the recorder.

    Args:
        problem: rows that periods are looked for in.
        objective: of all rows, whose parameters are searched.
        of: the objective of so many rows.
        stages: the exact ones among them come first.
        later: given these and their search, which finds an optimum, runs it and all that follows.
    """
    settings, search, from_data = options.settings, options.settings.search, options.initial == "data"
    shape = options.stages.for_model(own_modules=objective.has_user_modules)
    if problem.sites is not None and not method_of(problem.prior.likelihood).climbs:  # values are known so well
        search = dataclasses.replace(search, min_decrease=max(search.min_decrease, problem.sites.settings.search))
    exact = [stage for stage in stages if stage.search is not Search.ESTIMATED]
    first = ExactStages(
        of, max(problem.rows, stages[-1].rows), exact, recorder, search, settings.stochastic, options.max_iterations,
        options.run.seed, shape.resets,
    )  # fmt: skip
    theta, stop = objective.parameters.values(), StopReason.GOAL
    try:
        starts = objective.parameters.starts(
            shape.runs, from_data=from_data, spread=search.start_spread, seed=options.run.seed
        )
        theta = starts[0]  # where there is no time for an evaluation

        def run() -> numpy.ndarray:
            begun = starts
            if from_data:
                begun = with_periods(of(first.first), problem, starts, recorder, search.periods)
            return first.run(begun)

        with quiet_openblas():
            later(first, run)
    except KeyboardInterrupt:
        if options.run.group.size > 1:
            raise  # on all ranks
        stop = StopReason.INTERRUPT
    except TimeUp:
        stop = StopReason.TIME
    return theta, stop


def settled(
    theta: numpy.ndarray, stop: StopReason, problem: Problem, recorder: Recorder, *, estimated: bool
) -> numpy.ndarray:
    """The best vector that a search found, else where it began. Raises: NotPositiveDefiniteError if nothing was."""
    best = best_found(recorder, estimated=estimated)
    if best is None and (stop is StopReason.GOAL or (recorder.failures and stop is not StopReason.TIME)):
        raise NotPositiveDefiniteError(
            "no start of `fit` gave a positive definite covariance matrix in "
            f"{counted(recorder.failures, 'evaluation')}; scale the inputs, add noise, or pass jitter=",
            jitters=problem.direct.jitters,
        )
    return theta if best is None else best


def best_found(recorder: Recorder, *, estimated: bool) -> numpy.ndarray | None:
    """The best vector of all rows by its value; else where the last finished stage ended; else the best of few rows."""
    best = None if estimated else recorder.best_of(Stage.ALL_ROWS)
    if best is None and recorder.reached is not None:
        return recorder.reached
    best = best or recorder.best_of(Stage.SUBSET) or recorder.best_of(Stage.PERIODS)
    return None if best is None else best[2]
