"""L-BFGS-B from a starting vector, and once more with lengthscales reset."""

import dataclasses
import logging
import math

import numpy

from flashgp.foundations.errors import ConvergenceError, NotPositiveDefiniteError
from flashgp.foundations.events import Event, EventKind
from flashgp.inference.threads import quiet_openblas
from flashgp.inference.training.gradient_search import recalled_or_computed
from flashgp.inference.training.history import Recorder, Reset, SearchRun, Stage
from flashgp.inference.training.objective import Evaluation, Objective
from flashgp.inference.training.settings import SearchSettings

log = logging.getLogger("flashgp.fit")
Array = numpy.ndarray


def minimise(
    objective: Objective,
    start: Array,
    run: SearchRun,
    recorder: Recorder,
    settings: SearchSettings,
    max_iterations: int,
) -> None:
    """L-BFGS-B from a vector until a step gains less than `min_decrease` nats; results are in the recorder."""
    from scipy.optimize import minimize

    if objective.parameters.size == 0:  # nothing to train
        evaluated(objective, start, run, recorder)
        return
    low, high = objective.parameters.bounds()
    unit, joint = objective.parameters.units(start), objective.parameters.joint()
    begin, bounds = numpy.clip(start, low, high) / unit, (low / unit, high / unit)
    if joint is not None:  # entries that move together keep to their prior, without bounds
        root, inverse = joint
        given, begin, tied = begin, inverse @ begin, numpy.count_nonzero(root, axis=0) > 1
        bounds = numpy.where(tied, -math.inf, bounds[0]), numpy.where(tied, math.inf, bounds[1])
    first: float | None = None
    last = 0.0

    def function(scaled: Array) -> tuple[float, Array]:
        nonlocal first, last
        try:
            if joint is not None:  # the start itself, to its last bit
                scaled = numpy.where(tied, given + root @ (scaled - begin), scaled)
            theta = scaled * unit
            evaluation = evaluated(objective, theta, run, recorder)
        except (NotPositiveDefiniteError, ConvergenceError):
            if first is None:
                raise
            # Not positive definite: a value well above the last one makes the line search step back.
            return last + 10.0 * (1.0 + abs(last)), numpy.zeros_like(scaled)
        assert evaluation.value is not None
        # Counted from the first value: SciPy's stopping rule is relative, and units of y only add a constant.
        first = evaluation.value if first is None else first
        last = evaluation.value - first
        gradient = evaluation.gradient * unit
        return last, gradient if joint is None else root @ gradient

    options = {
        "maxiter": max_iterations,
        "maxfun": 2 * max_iterations + 20,
        "ftol": settings.min_decrease / max(1, objective.rows),
        "gtol": settings.max_gradient,
    }
    with quiet_openblas():
        try:
            minimize(
                function, begin, jac=True, method="L-BFGS-B", bounds=list(zip(*bounds, strict=True)), options=options,
            )  # fmt: skip
        except (NotPositiveDefiniteError, ConvergenceError):
            log.debug("%s could not be evaluated at its start", run)


def evaluated(objective: Objective, theta: Array, run: SearchRun, recorder: Recorder) -> Evaluation:
    """An evaluation, recorded. Raises: NotPositiveDefiniteError, ConvergenceError, recorded too."""
    evaluation = recalled_or_computed(objective, theta, run, recorder)
    assert evaluation.value is not None
    recorder.record(run, theta, evaluation.value, evaluation.gradient)
    return evaluation


def retry_with_reset_lengthscales(
    objective: Objective, stage: Stage, recorder: Recorder, settings: SearchSettings, max_iterations: int
) -> None:
    """One more run from the best vector of a stage, with every lengthscale beyond `reset_ratio` times its start put
    back to it.

    The likelihood is flat where a lengthscale is long: a run that once ignored a column never finds it again. On tables
    with redundant columns several such optima exist, many nats apart, and subsets of rows rank them wrongly.
    Cost: one more run.
    """
    best = recorder.best_of(stage)
    if best is None:
        return
    run, before, theta = best
    changed, count = objective.parameters.with_lengthscales_reset(theta, settings.reset_ratio)
    if count == 0:
        return
    again = dataclasses.replace(run, reset=Reset.LENGTHSCALES)
    minimise(objective, changed, again, recorder, settings, max_iterations)
    after = recorder.best_of(stage)
    assert after is not None
    gain = before - after[1]
    if gain > 10 * settings.min_decrease:
        recorder.note(Event(EventKind.LENGTHSCALES_RESET, lengthscales=count, gain=gain))
