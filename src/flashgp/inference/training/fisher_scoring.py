"""Fisher scoring with secant updates: a minimum found by gradients alone.

The value of the likelihood of many rows costs more than its gradient, and both are estimates. So steps are judged by
gradients: the curvature B starts as the Fisher information of a subset of the rows, scaled to all of them, eq.
(M-104), and learns from every step (BFGS, with Powell's damping). Where gradients are dear it learns from the first one
in all directions: fewer rows see less, so that B is too soft, by a factor of 1 to STIFFEST over all searches, of which
each may take back what others have put on. A step p is taken back along itself where the slope has turned uphill by
more than TURN of what it was downhill, or where the gradient has become WILD times as large.

    p = argmin g^T p + 1/2 p^T B p over |p_i| <= reach_i,  expected decrease  -g^T p - 1/2 p^T B p  (nats)    (M-105)

Every entry has a reach of its own, since the model holds near by only: a parameter on a plateau, which would run away,
does not shorten the steps of those that know where they go.

Sources: Nocedal & Wright (2006), Numerical Optimization, section 18.3 (damped BFGS); Oren & Luenberger (1974),
Self-scaling variable metric algorithms, for the first step.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy

from flashgp.foundations.errors import ConvergenceError, NotPositiveDefiniteError

__all__ = ["LARGEST_REACH", "STIFFEST", "Descent", "descend"]

FIRST_REACH, LARGEST_REACH = 0.3, 0.6  # of a step in any entry, in its unit: factors of 1.35 and 1.8 if positive
TURN = 0.7
TRIALS = 6  # of one step
WILD = 5.0  # times the largest entry of the last gradient: a step that has left the region it knows
DAMPING = 0.2
STIFFEST = 3.0  # times as stiff first steps make a model: its promise may be too small by this factor

Ask = Callable[[numpy.ndarray], "numpy.ndarray | NotPositiveDefiniteError | ConvergenceError"]


@dataclass(frozen=True)
class Descent:
    """Where a descent ended: theta, gradient and curvature there, evaluations made, the decrease in nats that one more
    step would bring by its model, whether it ended since that is little enough, and the stiffness: how much stiffer the
    first steps of all searches have made the curvature, beside what BFGS has learned of it."""

    theta: numpy.ndarray
    gradient: numpy.ndarray
    curvature: numpy.ndarray
    evaluations: int
    expected: float
    converged: bool
    stiffness: float = 1.0


def descend(
    ask: Ask,
    start: numpy.ndarray,
    curvature: numpy.ndarray,
    low: numpy.ndarray,
    high: numpy.ndarray,
    *,
    enough: float,
    max_evaluations: int,
    stiffness: float = 1.0,
    stiffens: Callable[[], bool] = lambda: True,
    accepted: Callable[[numpy.ndarray], None] = lambda theta: None,
) -> Descent:
    """Minimise a function of p numbers from its gradient.

    Args:
        ask: the gradient at a vector, or the error why there is none; start (p,); curvature (p, p), positive definite.
        low, high: bounds, infinite for none; enough: nats; the descent ends when one more step promises less.
        max_evaluations: gradients asked for at most, of which the last is where it ends if the slope says that it
            gained; stiffness: how much stiffer `curvature` is made already, 1 to STIFFEST; stiffens: whether the first
            step may change that, asked once the gradient at the start is there: cheap gradients need not; accepted:
            told every vector that the descent goes on from.
    Raises: the error of `ask` if it fails at the start. Cost: one gradient per step, seldom two; p^3 flops.
    """
    theta = numpy.clip(start, low, high)
    answer = _asked(ask, theta)
    if not isinstance(answer, numpy.ndarray):
        raise answer
    gradient, evaluations = answer, 1
    model = _Curvature(curvature.copy(), stiffness, measured=not stiffens())
    accepted(theta)
    scale = numpy.sqrt(numpy.diag(curvature))  # of the gradient, entry by entry
    reach, given_up = numpy.full(len(theta), FIRST_REACH), False
    while True:
        least, most = numpy.maximum(low - theta, -reach), numpy.minimum(high - theta, reach)
        move, expected = _newton_step(gradient, model.matrix, least, most)
        if given_up or expected <= enough or evaluations >= max_evaluations:
            ended = not given_up and expected <= enough
            return Descent(theta, gradient, model.matrix, evaluations, expected, ended, model.stiffness)
        given_up = True
        for _ in range(TRIALS):
            trial = numpy.clip(theta + move, low, high)
            answer = _asked(ask, trial)
            evaluations += 1
            step = trial - theta
            if isinstance(answer, numpy.ndarray):
                wild = bool(numpy.abs(answer / scale).max() > WILD * numpy.abs(gradient / scale).max())
                model.learn(step, answer - gradient, wild=wild)
                reach = _reach(reach, step, gradient, answer)
                before, after = -float(gradient @ step), float(answer @ step)
                last = evaluations >= max_evaluations  # then a step that gains is good enough
                if after <= (before if last else TURN * before) and not wild:
                    theta, gradient, given_up = trial, answer, False
                    accepted(theta)
                    break
                move = step * (0.5 if after <= TURN * before else before / (before + after))
            else:
                move = 0.5 * move  # gone where nothing can be computed
            if evaluations >= max_evaluations:
                break


def _asked(ask: Ask, theta: numpy.ndarray) -> "numpy.ndarray | NotPositiveDefiniteError | ConvergenceError":
    answer = ask(theta)
    if isinstance(answer, numpy.ndarray) and not numpy.isfinite(answer).all():
        return NotPositiveDefiniteError("the gradient has entries that are not finite there")
    return answer


@dataclass
class _Curvature:
    """B as it is learned, (M-105). Fields: matrix (p, p); stiffness; measured, whether a step has said what that is."""

    matrix: numpy.ndarray
    stiffness: float
    measured: bool

    def learn(self, step: numpy.ndarray, change: numpy.ndarray, *, wild: bool) -> None:
        """From a step along which the gradient changed so much; a wild one says nothing of other directions."""
        if not self.measured and not wild:
            stiffness = _stiffer(self.matrix, step, change, self.stiffness)
            self.matrix, self.stiffness = self.matrix * (stiffness / self.stiffness), stiffness
        self.measured = True
        self.matrix = _updated(self.matrix, step, change)


def _newton_step(
    gradient: numpy.ndarray, model: numpy.ndarray, least: numpy.ndarray, most: numpy.ndarray
) -> tuple[numpy.ndarray, float]:
    """The step in a box that minimises the quadratic model, and what it promises."""
    from scipy.optimize import lsq_linear

    free = ~(((least >= 0.0) & (gradient > 0)) | ((most <= 0.0) & (gradient < 0))) & (least < most)
    move = numpy.zeros_like(gradient)
    if not free.any():
        return move, 0.0
    root = numpy.linalg.cholesky(model[numpy.ix_(free, free)])
    aim = -numpy.linalg.solve(root, gradient[free])
    newton = numpy.linalg.solve(root.T, aim)
    inside = ((newton >= least[free]) & (newton <= most[free])).all()
    # |root^T p - aim|^2 is twice the model and a constant.
    move[free] = newton if inside else lsq_linear(root.T, aim, (least[free], most[free]), method="bvls").x
    return move, -float(gradient @ move + 0.5 * move @ model @ move)


def _reach(reach: numpy.ndarray, step: numpy.ndarray, before: numpy.ndarray, after: numpy.ndarray) -> numpy.ndarray:
    """How far the next step may go, entry by entry: half as far where this one has gone beyond a minimum, and further
    where it went as far as it might and is still going down."""
    downhill, still = -before * step, -after * step
    beyond = (still < -TURN * downhill.clip(0.0)) & (numpy.abs(step) > 0.25 * reach)
    further = (still > 0.0) & (numpy.abs(step) >= 0.99 * reach)
    return numpy.where(beyond, 0.5 * numpy.abs(step), numpy.where(further, 2.0 * reach, reach)).clip(max=LARGEST_REACH)


def _stiffer(model: numpy.ndarray, step: numpy.ndarray, change: numpy.ndarray, stiffness: float) -> float:
    """The stiffness after a step: that of the model times the curvature along the step, of that of the model, within 1
    to STIFFEST. Where the gradient has not grown along the step nothing can be said."""
    size, seen = float(step @ model @ step), float(step @ change)
    if not (size > 0.0 and 0.0 < seen < math.inf):
        return stiffness
    return min(STIFFEST, max(1.0, stiffness * seen / size))


def _updated(model: numpy.ndarray, step: numpy.ndarray, change: numpy.ndarray) -> numpy.ndarray:
    """The curvature after a step along which the gradient changed so much: BFGS, damped so that it stays positive; as
    it was where rounding makes it anything else."""
    pushed = model @ step
    size, seen = float(step @ pushed), float(step @ change)
    if not size > 0.0 or not math.isfinite(seen):
        return model
    share = 1.0 if seen >= DAMPING * size else (1.0 - DAMPING) * size / (size - seen)
    change = share * change + (1.0 - share) * pushed
    with numpy.errstate(over="ignore", invalid="ignore"):  # which the look at it finds
        learned = model - numpy.outer(pushed, pushed) / size + numpy.outer(change, change) / float(step @ change)
    return learned if _is_positive_definite(learned) else model


def _is_positive_definite(matrix: numpy.ndarray) -> bool:
    """So that Cholesky's method works on it and on its principal submatrices, whose eigenvalues lie between its own.

    Source: Higham (2002), Accuracy and Stability of Numerical Algorithms, theorem 10.7.
    """
    diagonal = numpy.diag(matrix)
    if not (numpy.isfinite(matrix).all() and (diagonal > 0.0).all()):
        return False
    root = numpy.sqrt(diagonal)
    least = numpy.linalg.eigvalsh(matrix / root / root[:, None])[0]
    return bool(least > len(root) * (len(root) + 1) * numpy.finfo(float).eps)
