"""Fisher scoring, recorded and resumable, from where the optima of fewer rows extrapolate to."""

import contextlib
import dataclasses
import logging
import math
from collections.abc import Callable

import numpy
import torch

from flashgp.foundations.deadline import TimeUp
from flashgp.foundations.errors import ConvergenceError, NotPositiveDefiniteError
from flashgp.foundations.events import Event, EventKind
from flashgp.inference.training.fisher_scoring import Curvature, Descent, Gradient, descend
from flashgp.inference.training.history import Measure, Recorder, Reset, SearchRun, Solving
from flashgp.inference.training.objective import Evaluation, Objective
from flashgp.inference.training.settings import StochasticSettings
from flashgp.processes.group import Group


class Trend:
    """Extrapolation of the optimum as rows are added: the start of a search over more rows.

    More rows see finer structure, so that noise falls and lengthscales shorten, by about as much for each doubling.
    With optima of a and of b rows, delta = theta_b - theta_a, and B the curvature of b rows without what first
    steps have put on it, the search over n rows begins at

        theta_b + w delta min(2, log(n / b) / log(b / a)),   w = max(0, 1 - p c / (delta^T B delta)),          (M-122)
        c = b / a - 1 + (1 + b / a) / S

    p parameters, S probes of each gradient. p c is the expectation of delta^T B delta without a trend: the b rows
    contain the a, so that the optima differ by a covariance of B^-1 (b / a - 1), and estimated gradients add
    theirs. w shrinks the step as James and Stein's estimator does. b / a is 1.5 or more: closer sizes say too
    little of a trend.

    Source: James & Stein (1961), Estimation with quadratic loss, for the shrinkage.

    Args:
        theta: (p,), of `rows` rows.
        settings: of which `min_trend_ratio` and `max_trend` count.
    Fields: theta, rows: the last.
    """

    def __init__(self, theta: numpy.ndarray, rows: int, settings: StochasticSettings) -> None:
        self.theta, self.rows, self.settings = theta, rows, settings
        self._before: tuple[numpy.ndarray, int] | None = None

    def add(self, theta: numpy.ndarray, rows: int) -> None:
        """The optimum of more rows."""
        if rows >= self.settings.min_trend_ratio * self.rows:
            self._before = self.theta, self.rows
        self.theta, self.rows = theta, rows

    def extrapolate(self, rows: int, curvature: numpy.ndarray, probes: float, reach: numpy.ndarray) -> numpy.ndarray:
        """Estimated optimum of more rows, eq. (M-122), (p,); the last one itself where nothing tells.

        Args: curvature: at the last one, of its rows, (p, p), nats; probes: of each gradient; reach: of the step, (p,).
        """
        if self._before is None:
            return self.theta
        theta, count = self._before
        drift, ratio = self.theta - theta, self.rows / count
        seen = float(drift @ curvature @ drift)
        chance = len(drift) * (ratio - 1.0 + (1.0 + ratio) / probes)
        if not seen > chance:
            return self.theta
        step = (1.0 - chance / seen) * min(self.settings.max_trend, math.log(rows / self.rows) / math.log(ratio))
        return self.theta + (step * drift).clip(-reach, reach)


def evaluation_of_first(evaluation: Evaluation, group: Group) -> Evaluation:
    """Rank 0's evaluation, which every rank goes on from: a last bit could send a search another way."""
    if group.size == 1:
        return evaluation
    value = evaluation.value
    own = numpy.append(evaluation.gradient, 0.0 if value is None else value)
    numbers = group.from_first(torch.from_numpy(own)).numpy()
    value = None if value is None else float(numbers[-1])
    return dataclasses.replace(evaluation, value=value, gradient=numbers[:-1])


def evaluated_over(group: Group, evaluate: Callable[[], Evaluation]) -> Evaluation:
    """The evaluation that all ranks go on from. Raises: as it does, on all ranks; TimeUp, which comes on all."""
    evaluation = None
    with group.together(), contextlib.suppress(TimeUp):
        evaluation = evaluate()
    if evaluation is None:
        raise TimeUp
    return evaluation_of_first(evaluation, group)


def _computed(objective: Objective, theta: numpy.ndarray, recorder: Recorder) -> Evaluation:
    """The evaluation that all ranks go on from. Raises: as `recalled_or_computed`, on all ranks."""
    rows, power, workspace = objective.cost_rows, objective.cost_power, objective.problem.direct.workspace
    return evaluated_over(recorder.group, lambda: recorder.evaluate(objective, theta, rows, power, workspace))


def recalled_or_computed(objective: Objective, theta: numpy.ndarray, run: SearchRun, recorder: Recorder) -> Evaluation:
    """The evaluation at a vector, of a group at that of rank 0, which the caller records; that there is none is
    recorded here.

    Args: run: its name; what the objective is solved by is added, and that of a checkpoint taken over.
    Raises: NotPositiveDefiniteError, ConvergenceError; TimeUp.
    """
    if recorder.group.size > 1:  # other ranks may have come to it with other roundings
        theta = recorder.group.from_first(torch.from_numpy(theta)).numpy()
    known = None
    for solving in dict.fromkeys((objective.solving, *Solving)):
        known = recorder.evaluations.recall(str(dataclasses.replace(run, solving=solving)), theta)
        if known is not None:
            objective.solve_by(solving)
            break
    try:
        if known is None:
            evaluation = _computed(objective, theta, recorder)
        elif known[0] == math.inf:
            raise NotPositiveDefiniteError("no gradient there, as the checkpoint says")
        else:
            evaluation = Evaluation(*known)
        if not numpy.isfinite(evaluation.gradient).all():
            raise NotPositiveDefiniteError("the gradient has entries that are not finite there")
    except (NotPositiveDefiniteError, ConvergenceError):
        recorder.record_failure(dataclasses.replace(run, solving=objective.solving), theta)
        raise
    return evaluation


log = logging.getLogger("flashgp.fit")
Array = numpy.ndarray
Point = tuple[Array, float, Array]


class GradientSearch:
    """Descents of an objective, recorded.

    Where it estimates gradients it has no values: the history has their gain since the first gradient, integrated along
    the way by the trapezoid rule.

    Args:
        objective: of the rows searched.
        run: its name; what the objective is solved by is added.
        recorder: of all evaluations.
        settings: of which scoring.max_gradients limits one descent.
        window: lower and upper bounds beside those of the parameters.
    Fields: evaluations, all so far.
    """

    def __init__(
        self,
        objective: Objective,
        run: SearchRun,
        recorder: Recorder,
        settings: StochasticSettings,
        window: tuple[Array, Array],
    ) -> None:
        self.objective, self.name, self.recorder, self.settings = objective, run, recorder, settings
        low, high = objective.parameters.bounds()
        self._low, self._high = numpy.maximum(low, window[0]), numpy.minimum(high, window[1])
        self.evaluations = 0
        self._extrapolated = False  # whether the next accepted vector is an extrapolation
        self._seen: Point | None = None
        self._last: Point | None = None

    def follow(self, trend: Trend, curvature: Curvature) -> Descent:
        """A descent from the extrapolated optimum; from the optimum of fewer rows where no gradient exists there.

        Args: curvature: of their likelihood, nats.
        Raises: NotPositiveDefiniteError if there is no gradient at their optimum either.
        """
        rows, scoring = self.objective.rows, self.settings.scoring
        self._seen = self._last = None  # gains count from here
        unit = self.objective.parameters.units(trend.theta)
        scaled = curvature.grown(self.objective.parameters.information_growth(rows / trend.rows))
        start = trend.extrapolate(
            rows, curvature.matrix / curvature.scale, self.objective.probes, scoring.max_reach * unit
        )
        if start is not trend.theta and scoring.max_gradients > 1:
            start = numpy.clip(start, self._low, self._high)
            self.objective.refresh(start)
            self._extrapolated = True
            try:
                return self.run(start, scaled)
            except NotPositiveDefiniteError:
                self.recorder.note(Event(EventKind.NOT_EXTRAPOLATED, rows=rows))
            finally:
                self._extrapolated = False
        self.objective.refresh(trend.theta)
        return self.run(trend.theta, scaled)

    def run(self, theta: Array, curvature: Curvature) -> Descent:
        """One descent, all in the parameters' own units."""
        unit = self.objective.parameters.units(theta)
        square, settings = numpy.outer(unit, unit), self.settings
        estimate, rows = self.objective.estimate, self.objective.rows
        scoring = settings.scoring
        if estimate is None:
            scoring = dataclasses.replace(scoring, max_last_gain=1.0)  # one more evaluation is certain to tell
            sufficient = settings.negligible_gain_by_values * rows
        else:
            sufficient = max(settings.min_gain, settings.step_share * estimate.loss, estimate.negligible_gain)
        descent = descend(
            lambda scaled: self._gradient(scaled * unit, unit),
            theta / unit,
            dataclasses.replace(curvature, matrix=curvature.matrix * square),
            (self._low / unit, self._high / unit),
            sufficient=sufficient,
            settings=scoring,
            scales=lambda: self.objective.solving is not Solving.ITERATIONS,
            accepted=lambda scaled: self._accept(scaled * unit),
        )
        model = dataclasses.replace(descent.curvature, matrix=descent.curvature.matrix / square)
        return dataclasses.replace(
            descent, theta=descent.theta * unit, gradient=descent.gradient / unit, curvature=model
        )

    @property
    def _run(self) -> SearchRun:
        """The run of the next record; what gradients are solved by tells a resumed fit when that took over."""
        return dataclasses.replace(self.name, solving=self.objective.solving)

    def _gradient(self, theta: Array, unit: Array) -> Gradient:
        """The gradient in scaled units, recorded; a failure is recorded too."""
        try:
            evaluation = recalled_or_computed(self.objective, theta, self.name, self.recorder)
        except (NotPositiveDefiniteError, ConvergenceError) as error:
            log.debug("%s: no gradient (%s)", self.name, error)
            self.recorder.note(Event(EventKind.POINT_FAILED, run=str(self.name), error=str(error)))
            return NotPositiveDefiniteError(str(error))
        value, gradient = evaluation.value, evaluation.gradient
        measure: Measure = "log joint"
        if self.objective.estimate is not None:
            value, measure = self._integrated(theta, gradient), "gain"
        assert value is not None
        self._seen = (theta, value, gradient)
        self.evaluations += 1
        self.recorder.record(self._run, theta, value, gradient, measure)
        return gradient * unit

    def _accept(self, theta: Array) -> None:
        """Record an accepted vector: an interruption returns it, unless it is an extrapolation without a step since, or
        of a run that may end worse than the one before it."""
        if not (self._extrapolated or self.name.reset is not Reset.NONE):
            self.recorder.reached = theta
        self._extrapolated, self._last = False, self._seen

    def _integrated(self, theta: Array, gradient: Array) -> float:
        """Minus the gain at a vector, by the trapezoid rule from the last accepted one."""
        if self._last is None:
            return 0.0
        before, value, slope = self._last
        return value + 0.5 * float((gradient + slope) @ (theta - before))
