"""Fisher scoring with secant updates: a minimum found by gradients alone.

The value of the likelihood of many rows costs more than its gradient, and both are estimates. So steps are judged by
gradients: the curvature B starts as the Fisher information of a subset of the rows, scaled to all of them, eq.
(M-104), and is updated by every step (BFGS, with Powell's damping). Where gradients are expensive the first step scales
all of B: fewer rows see less curvature, by a factor between 1 and `max_curvature_scale` over all searches of a fit. A
step p is taken back along itself where the slope has turned uphill by more than `turn` of what it was downhill, or
where the gradient has become `wild` times as large.

    p = argmin g^T p + 1/2 p^T B p over |p_i| <= reach_i,  expected decrease  -g^T p - 1/2 p^T B p  (nats)    (M-105)

Every entry has a reach of its own, since the model holds only locally: a parameter on a plateau, which would run away,
does not shorten the steps of the others.

Sources: Nocedal & Wright (2006), Numerical Optimization, section 18.3 (damped BFGS); Oren & Luenberger (1974),
Self-scaling variable metric algorithms, for the first step.
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy
import torch

from flashgp import linalg
from flashgp.foundations.errors import ConvergenceError, NotPositiveDefiniteError
from flashgp.foundations.events import StopReason
from flashgp.inference.exact.likelihood import factorise_covariance
from flashgp.inference.threads import one_thread
from flashgp.inference.training.objective import LogJoint
from flashgp.inference.training.settings import ScoringSettings, StochasticSettings
from flashgp.pairwise.problem import PairProblem
from flashgp.pairwise.torch.quadratic_forms import has_shared_gradients, quadratic_form_gradients, sets_at_once

Array = numpy.ndarray
Gradient = Array | NotPositiveDefiniteError | ConvergenceError


@dataclass
class Curvature:
    """A quadratic model of the objective, as it is learned.

    Args:
        matrix: (p, p), positive definite, nats.
        scale: by which first steps, of all searches, have scaled it, 1 to `max_curvature_scale`.
        scaled: whether the first step of this search is done, or need not scale it.
    """

    matrix: Array
    scale: float = 1.0
    scaled: bool = False

    def grown(self, growth: Array) -> "Curvature":
        """Curvature of other rows, whose information is so many times as large in each entry, (p,)."""
        root = numpy.sqrt(growth)
        return dataclasses.replace(self, matrix=self.matrix * numpy.outer(root, root))

    def learn(self, step: Array, change: Array, settings: ScoringSettings, *, wild: bool) -> None:
        """Learn from a step along which the gradient changed so much; a wild one says nothing of other directions."""
        if not self.scaled and not wild:
            size, seen = float(step @ self.matrix @ step), float(step @ change)
            if size > 0.0 and 0.0 < seen < math.inf:
                scale = min(settings.max_curvature_scale, max(1.0, self.scale * seen / size))
                self.matrix, self.scale = self.matrix * (scale / self.scale), scale
        self.scaled = True
        self.matrix = damped_bfgs(self.matrix, step, change, settings.damping)


@dataclass(frozen=True)
class Descent:
    """End of a descent: theta, gradient and curvature there, evaluations made, the decrease in nats that one more step
    would bring by its model, and why it ended: at its goal, by its limit of gradients, or since no step helped."""

    theta: Array
    gradient: Array
    curvature: Curvature
    evaluations: int
    expected: float
    stop: StopReason


def descend(
    ask: Callable[[Array], Gradient],
    start: Array,
    curvature: Curvature,
    bounds: tuple[Array, Array],
    *,
    sufficient: float,
    settings: ScoringSettings = ScoringSettings(),  # noqa: B008 - frozen
    scales: Callable[[], bool] = lambda: True,
    accepted: Callable[[Array], None] = lambda theta: None,
) -> Descent:
    """Minimise a function of p numbers from its gradient.

    Args:
        ask: the gradient at a vector, finite, or the error why there is none.
        start: (p,).
        curvature: the model to begin with; it is not changed.
        bounds: lower and upper, (p,) each, infinite for none.
        sufficient: nats; the descent ends when one more step promises less.
        settings: of `max_gradients`, the last is where it ends if the slope says that it gained.
        scales: whether the first step may scale the curvature, asked once the first gradient is there.
        accepted: called with every vector that the descent goes on from.
    Raises: the error of `ask` if it fails at the start.
    Cost: one gradient per step, seldom two; p^3 flops.
    """
    low, high = bounds
    theta = numpy.clip(start, low, high)
    gradient, evaluations = ask(theta), 1
    if not isinstance(gradient, numpy.ndarray):
        raise gradient
    model = Curvature(curvature.matrix.copy(), curvature.scale, scaled=not scales())
    accepted(theta)
    size = numpy.sqrt(numpy.diag(curvature.matrix))  # of the gradient, entry by entry
    reach, stuck, gain = numpy.full(len(theta), settings.first_reach), False, 0.0
    while True:
        move, expected = _newton_step(
            gradient, model.matrix, numpy.maximum(low - theta, -reach), numpy.minimum(high - theta, reach)
        )
        enough = expected <= sufficient and gain <= settings.max_last_gain * sufficient
        if stuck or enough or evaluations >= settings.max_gradients:
            stop = StopReason.ITERATIONS if evaluations >= settings.max_gradients else StopReason.STAGNATED
            stop = StopReason.GOAL if not stuck and enough else stop
            return Descent(theta, gradient, model, evaluations, expected, stop)
        stuck = True
        for _ in range(settings.max_trials):
            trial = numpy.clip(theta + move, low, high)
            trial_gradient = ask(trial)
            evaluations += 1
            step = trial - theta
            if isinstance(trial_gradient, numpy.ndarray):
                wild = bool(numpy.abs(trial_gradient / size).max() > settings.wild * numpy.abs(gradient / size).max())
                model.learn(step, trial_gradient - gradient, settings, wild=wild)
                reach = _reach(reach, step, gradient, trial_gradient, settings)
                before, after = -float(gradient @ step), float(trial_gradient @ step)
                last = evaluations >= settings.max_gradients  # then a step that gains is good enough
                if after <= (before if last else settings.turn * before) and not wild:
                    theta, gradient, stuck, gain = trial, trial_gradient, False, 0.5 * (before - after)
                    accepted(theta)
                    break
                move = step * (0.5 if after <= settings.turn * before else before / (before + after))
            else:
                move = 0.5 * move  # gone where nothing can be computed
            if evaluations >= settings.max_gradients:
                break


def _newton_step(gradient: Array, model: Array, low: Array, high: Array) -> tuple[Array, float]:
    """The step in a box that minimises the quadratic model, and what it promises."""
    from scipy.optimize import lsq_linear

    free = ~(((low >= 0.0) & (gradient > 0)) | ((high <= 0.0) & (gradient < 0))) & (low < high)
    move = numpy.zeros_like(gradient)
    if not free.any():
        return move, 0.0
    root = numpy.linalg.cholesky(model[numpy.ix_(free, free)])
    aim = -numpy.linalg.solve(root, gradient[free])
    newton = numpy.linalg.solve(root.T, aim)
    inside = ((newton >= low[free]) & (newton <= high[free])).all()
    # |root^T p - aim|^2 is twice the model and a constant.
    move[free] = newton if inside else lsq_linear(root.T, aim, (low[free], high[free]), method="bvls").x
    return move, -float(gradient @ move + 0.5 * move @ model @ move)


def _reach(reach: Array, step: Array, before: Array, after: Array, settings: ScoringSettings) -> Array:
    """Largest next step, entry by entry: half as far where this one has gone beyond a minimum, and further where it
    went as far as it might and is still going down."""
    downhill, still = -before * step, -after * step
    beyond = (still < -settings.turn * downhill.clip(0.0)) & (numpy.abs(step) > 0.25 * reach)
    further = (still > 0.0) & (numpy.abs(step) >= 0.99 * reach)
    longer = numpy.where(beyond, 0.5 * numpy.abs(step), numpy.where(further, 2.0 * reach, reach))
    return longer.clip(max=settings.max_reach)


def damped_bfgs(model: Array, step: Array, change: Array, damping: float) -> Array:
    """The curvature after a step along which the gradient changed so much: BFGS, damped so that it stays positive; as
    it was where rounding makes it anything else."""
    pushed = model @ step
    size, seen = float(step @ pushed), float(step @ change)
    if not size > 0.0 or not math.isfinite(seen):
        return model
    share = 1.0 if seen >= damping * size else (1.0 - damping) * size / (size - seen)
    change = share * change + (1.0 - share) * pushed
    with numpy.errstate(over="ignore", invalid="ignore"):  # checked below
        learned = model - numpy.outer(pushed, pushed) / size + numpy.outer(change, change) / float(step @ change)
    return learned if _is_positive_definite(learned) else model


def _is_positive_definite(matrix: Array) -> bool:
    """True if positive definite by more than rounding: the Cholesky factorisation of it and of its principal
    submatrices, whose eigenvalues interlace, succeeds.

    Source: Higham (2002), Accuracy and Stability of Numerical Algorithms, theorem 10.7.
    """
    diagonal = numpy.diag(matrix)
    if not (numpy.isfinite(matrix).all() and (diagonal > 0.0).all()):
        return False
    root = numpy.sqrt(diagonal)
    smallest = numpy.linalg.eigvalsh(matrix / root / root[:, None])[0]
    return bool(smallest > len(root) * (len(root) + 1) * numpy.finfo(float).eps)


REPEATS_SEED = 2**33  # added to a seed for the draws of what repeated rows say
WEIGHT_BYTES = 2**23  # of the n x n weights of draws that share a pass over the pairs
SHRINKAGE = 0.1  # towards the diagonal: so few draws know small eigenvalues badly


def fisher_information(objective: LogJoint, theta: numpy.ndarray, draws: int, seed: int) -> numpy.ndarray:
    """The Fisher information of a GP's parameters from simulated scores: the curvature of its likelihood, without one
    matrix per parameter.

    If y came from the model, a = K^-1 (y - m) ~ N(0, K^-1), and the score of any parameter psi is

        s_psi(a) = 1/2 a^T (dK/dpsi) a + (dm/dpsi)^T a + const,      F = Cov s(a)                     (M-103, M-104)

    so F is the covariance of the scores of draws a = L^-T z: several share one pass over the pairs. For covariance
    parameters this is 1/2 tr(K^-1 dK_i K^-1 dK_j), Rasmussen & Williams (2006), section 5.4.1. Where rows stand for
    several observations, the scatter of these around their mean says something about the noise too, independently
    of a:

        F_noise += sum_g  p e_g / (2 s_g^2)  (ds_g/dpsi) (ds_g/dpsi)^T                                     (M-109)

    The Fisher information at a flat vector, (p, p), positive definite, without the curvature of priors.

    Args:
        objective: of the rows that count, exact; draws: simulated data sets, several times p.
    Raises: NotPositiveDefiniteError. Cost: n^3 / 3 flops for each covariance matrix, 2 n^2 (d + 1) for each draw.
    """
    with contextlib.suppress(ConvergenceError):  # else of sites held before: steps by it are judged by gradients
        objective.at(theta)
    problem, size = objective.problem, objective.parameters.size
    prior, direct, form = problem.with_sites, problem.direct, problem.prior.kernel.form
    with torch.enable_grad():
        residual, noise, rows, values = prior.likelihood_inputs(problem.x, problem.y)
    with torch.no_grad():
        repeats = prior.likelihood.scale_information(residual.device, residual.shape[-1])
    generator = torch.Generator().manual_seed(seed)
    shape = (*residual.shape, draws)
    weights = torch.randn(shape, generator=generator, dtype=torch.float64).to(residual.device)  # L^-T of them below
    matrices = [(noise[..., j], slice(j, j + 1)) for j in range(prior.factors)] if prior.separate else None
    for noise_of_rows, columns in matrices or [(noise, slice(None))]:
        with torch.no_grad():
            lower = factorise_covariance(direct, PairProblem(form, values, rows), noise_of_rows).lower.double()
        normal = weights[:, columns].flatten(1)
        solved = linalg.solve_triangular(lower.mT, normal, upper=True, device=linalg.own_device(lower))
        weights[:, columns] = solved.unflatten(1, (-1, draws))
        del lower
    spread = None
    if repeats is not None:  # their own generator: these draws are independent of those of a
        generator = torch.Generator().manual_seed(seed + REPEATS_SEED)
        draws_of_repeats = torch.randn((draws, *repeats.shape), generator=generator, dtype=torch.float64)
        spread = repeats.sqrt() * draws_of_repeats.to(repeats.device)
    with torch.no_grad():
        pairs = PairProblem(form, values, rows).detached()
    inputs, scores = (residual, noise, *rows.tensors, *values), numpy.empty((draws, size))
    weights = weights.movedim(-1, 0)
    shared = has_shared_gradients(pairs)
    together = sets_at_once(pairs, weights.shape[-1]) if shared else WEIGHT_BYTES // (8 * max(1, rows.count) ** 2)
    together = max(1, together)
    for start in range(0, draws, together):
        some = weights[start : start + together]
        if shared:
            pulled = quadratic_form_gradients(pairs, math.sqrt(0.5) * some, direct.workspace)
        else:
            pulled = direct.backend.bilinear_gradient(pairs, 0.5 * some, some, workspace=direct.workspace)
        for k, one in enumerate(some, start):
            by_noise = 0.5 * one.square()
            by_noise = by_noise if prior.separate else by_noise.sum(-1)
            by_noise = by_noise if spread is None else by_noise + spread[k]  # of that covariance, as (M-109) wants it
            by_covariance = [None if t is None else t[k - start] for t in (*pulled.rows, *pulled.theta)]
            with torch.enable_grad():
                _, scores[k] = objective.pull(inputs, [-one, by_noise, *by_covariance], retain_graph=True)
    centred = scores - scores.mean(axis=0)
    information = centred.T @ centred / max(1, draws - 1)
    if problem.sites is not None:  # held sites say nothing of the likelihood's own parameters: as of a noise variance
        own = objective.parameters.of_likelihood()
        information[own, own] += 0.5 * objective.rows
    information = (1.0 - SHRINKAGE) * information + SHRINKAGE * numpy.diag(numpy.diag(information))
    return information + 1e-6 * max(float(numpy.trace(information)) / max(1, size), 1e-6) * numpy.eye(size)


def log_joint_curvature(
    objective: LogJoint, theta: numpy.ndarray, rows: int, settings: StochasticSettings, seed: int
) -> Curvature:
    """The curvature of the log joint at an optimum of few rows: their Fisher information, and what priors add when it
    is scaled to `rows`.

    Raises: NotPositiveDefiniteError.
    """
    draws = max(settings.min_draws, settings.draws_per_parameter * objective.parameters.size)
    with one_thread(objective.rows):
        matrix = fisher_information(objective, theta, draws, seed)
    return Curvature(matrix + objective.priors.curvature(theta) * (objective.rows / rows))
