"""Fisher scoring with secant updates: a minimum found by gradients alone.

The value of the likelihood of many rows costs more than its gradient, and both are estimates. So steps are judged by
gradients: the curvature B starts as the Fisher information of a subset of the rows, scaled to all of them, eq.
(M-104), and learns from every step (BFGS, with Powell's damping). A step p is taken back along itself where the slope
has turned uphill by more than TURN of what it was downhill, or where the gradient has become WILD times as large.

    expected decrease of one more step:   1/2 g^T B^-1 g     (nats)                                    (M-105)

Source: Nocedal & Wright (2006), Numerical Optimization, section 18.3 (damped BFGS).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy

from flashgp.foundations.errors import ConvergenceError, NotPositiveDefiniteError

__all__ = ["Descent", "descend"]

LARGEST_STEP = 1.5  # in any entry, in its unit: a factor of 4.5 of a positive parameter
TURN = 0.7
TRIALS = 6  # of one step
WILD = 5.0  # times the largest entry of the last gradient: a step that has left the region it knows
DAMPING = 0.2

Ask = Callable[[numpy.ndarray], "numpy.ndarray | NotPositiveDefiniteError | ConvergenceError"]


@dataclass(frozen=True)
class Descent:
    """Where a descent ended: theta, gradient and curvature there, evaluations made, the decrease in nats that one more
    step would bring by its model, and whether that is little enough."""

    theta: numpy.ndarray
    gradient: numpy.ndarray
    curvature: numpy.ndarray
    evaluations: int
    expected: float
    converged: bool


def descend(
    ask: Ask,
    start: numpy.ndarray,
    curvature: numpy.ndarray,
    low: numpy.ndarray,
    high: numpy.ndarray,
    *,
    enough: float,
    max_evaluations: int,
    accepted: Callable[[numpy.ndarray], None] = lambda theta: None,
) -> Descent:
    """Minimise a function of p numbers from its gradient.

    Args:
        ask: the gradient at a vector, or the error why there is none; start (p,); curvature (p, p), positive definite.
        low, high: bounds, infinite for none; enough: nats; the descent ends when one more step promises less.
        max_evaluations: gradients asked for at most; accepted: told every vector that the descent goes on from.
    Raises: the error of `ask` if it fails at the start. Cost: one gradient per step, seldom two; p^3 flops.
    """
    theta = numpy.clip(start, low, high)
    answer = ask(theta)
    if not isinstance(answer, numpy.ndarray):
        raise answer
    gradient, model, evaluations = answer, curvature.copy(), 1
    accepted(theta)
    scale = numpy.sqrt(numpy.diag(curvature))  # of the gradient, entry by entry
    while True:
        move, expected = _newton_step(theta, gradient, model, low, high)
        if expected <= enough or evaluations >= max_evaluations:
            return Descent(theta, gradient, model, evaluations, expected, expected <= enough)
        for _ in range(TRIALS):
            trial = numpy.clip(theta + move, low, high)
            answer = ask(trial)
            evaluations += 1
            step = trial - theta
            if isinstance(answer, numpy.ndarray):
                model = _updated(model, step, answer - gradient)
                before, after = -float(gradient @ step), float(answer @ step)
                wild = numpy.abs(answer / scale).max() > WILD * numpy.abs(gradient / scale).max()
                if (after <= TURN * before and not wild) or evaluations >= max_evaluations:
                    break
                move = step * (0.5 if after <= TURN * before else before / (before + after))
            else:
                move = 0.5 * move  # gone where nothing can be computed
        else:
            return Descent(theta, gradient, model, evaluations, expected, False)
        theta, gradient = trial, answer
        accepted(theta)


def _newton_step(
    theta: numpy.ndarray, gradient: numpy.ndarray, model: numpy.ndarray, low: numpy.ndarray, high: numpy.ndarray
) -> tuple[numpy.ndarray, float]:
    """The step to the minimum of the quadratic model over the entries that are free to move, and what it promises."""
    free = ~(((theta <= low) & (gradient > 0)) | ((theta >= high) & (gradient < 0)))
    move = numpy.zeros_like(theta)
    if not free.any():
        return move, 0.0
    move[free] = -numpy.linalg.solve(model[numpy.ix_(free, free)], gradient[free])
    expected = -0.5 * float(gradient @ move)
    largest = float(numpy.abs(move).max())
    if largest > LARGEST_STEP:
        move *= LARGEST_STEP / largest
    return move, expected


def _updated(model: numpy.ndarray, step: numpy.ndarray, change: numpy.ndarray) -> numpy.ndarray:
    """The curvature after a step along which the gradient changed so much: BFGS, damped so that it stays positive."""
    pushed = model @ step
    size, seen = float(step @ pushed), float(step @ change)
    if not size > 0.0 or not math.isfinite(seen):
        return model
    share = 1.0 if seen >= DAMPING * size else (1.0 - DAMPING) * size / (size - seen)
    change = share * change + (1.0 - share) * pushed
    return model - numpy.outer(pushed, pushed) / size + numpy.outer(change, change) / float(step @ change)
