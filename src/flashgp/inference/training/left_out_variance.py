"""The common variance of the latent functions by leaving rows out, where the bound wants too little of it, (M-341)."""

import math
import time

import numpy
import torch

from flashgp.foundations.errors import ConvergenceError, NotPositiveDefiniteError
from flashgp.foundations.events import Event, EventKind
from flashgp.inference.predict.leave_one_out import of_observations
from flashgp.inference.run import Run
from flashgp.inference.sites import cavity, prior_variance
from flashgp.inference.training.objective import LogJoint
from flashgp.processes.agreement import late

Array = numpy.ndarray

STEP = 1.5  # in logarithms
MOST_STEPS = 6
LEAST_SEARCHES = 4  # for sites that there must be time for: two, and that of the posterior
LEAST_GAIN = 4e-3  # nats a row, of a step


def variance_by_leaving_out(objective: LogJoint, theta: Array, run: Run, expected: float) -> tuple[Array, Event | None]:
    """Parameters with the variances of the covariance function times a common factor, under which left out rows are
    most likely, and what was gained, where it is worth a step.

    The objective has these parameters then. Ends in time for its posterior; rank 0's scores count.

    Args: theta, where the search ended; expected, seconds of a search for sites by the plan.
    Cost: two to seven searches for sites, each from the sites of the one before.
    """
    entries, rows = objective.parameters.of_variances(), objective.rows
    if not len(entries):
        return theta, None
    name, group = objective.problem.prior.likelihood.name, run.group
    if late(group, run.deadline, LEAST_SEARCHES * expected):
        return theta, Event(EventKind.VARIANCE_AS_SEARCHED, likelihood=name, limit=run.deadline.limit)
    low, high = objective.parameters.bounds()
    seconds = 0.0

    def moved(distance: float) -> Array:
        other = theta.copy()
        other[entries] = numpy.clip(theta[entries] + distance, low[entries], high[entries])
        return other

    def score(distance: float) -> float:
        nonlocal seconds
        if late(group, run.deadline, 2.0 * seconds):
            return -math.inf
        began, other = time.perf_counter(), moved(distance)
        objective.parameters.assign(other)
        try:
            value = _log_density(objective) + objective.log_prior(other)
        except (ConvergenceError, NotPositiveDefiniteError):
            return -math.inf
        seconds = time.perf_counter() - began
        value = float(group.from_first(torch.tensor(value, dtype=torch.float64))) if group.size > 1 else value
        return value if math.isfinite(value) else -math.inf

    scores, best = {0.0: score(0.0)}, 0.0
    if not math.isfinite(scores[best]):
        return theta, None
    for step in (STEP, -STEP):
        for _ in range(MOST_STEPS):
            if best + step not in scores:
                scores[best + step] = score(best + step)
            if not scores[best + step] > scores[best] + LEAST_GAIN * rows:
                break
            best += step
        if best:
            break
    gained = scores[best] - scores[0.0]
    if best:
        best = _vertex(scores, best)
    found = moved(best)
    objective.parameters.assign(found)
    if not best:
        return found, None
    kind = EventKind.VARIANCE_LEFT_OUT
    return found, Event(kind, likelihood=name, factor=math.exp(best), gain=gained / rows)


@torch.no_grad()
def _log_density(objective: LogJoint) -> float:
    """Of all rows, each given all others, nats."""
    found, problem = objective.settled(), objective.problem
    assert found is not None
    before = cavity(found.at, found.sites, prior_variance(problem.prior, problem.x))
    left_out = of_observations(problem.prior.likelihood, before.mean, before.variance, problem.y, torch.float64)
    return float(left_out.log_prob.sum())


def _vertex(scores: dict[float, float], best: float) -> float:
    """Where the parabola through the best score and its neighbours is highest."""
    before, middle, after = (scores.get(best + step, -math.inf) for step in (-STEP, 0.0, STEP))
    bend = before - 2.0 * middle + after
    return best + 0.5 * STEP * (before - after) / bend if math.isfinite(bend) and bend < 0.0 else best
