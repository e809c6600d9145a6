"""fit for many rows: exact on a subset, then to the optimum of all rows by estimated gradients.

    400 rows     every start, L-BFGS-B, exact gradients                  (inference/training/lbfgs.py)
    2,000 rows   from the best, L-BFGS-B, exact gradients; columns woken
    parts        of a quarter of the rows, a sixteenth and so on: as all rows, but fewer steps; where a part has taken
                 to factors, those that follow begin with them, and one of twice its rows is put in; from the second
                 on a search begins where the ones before lead                   (extrapolation.py)
    all rows     Fisher scoring with secant updates (fisher_scoring.py); its first curvature is that of the subset,
                 scaled by the number of rows; its gradients are estimates (stochastic_objective.py)

A search ends when one more step promises less than half of what the estimate costs on average, or less than ENOUGH
nats per row (more by factors), which no prediction shows. Where the estimate itself may cost more than that, new probes
are then drawn once, and the search goes on until it ends again: an optimum that one draw made up does not survive the
second.
"""

import dataclasses
import functools
import logging
import math
import warnings
from typing import Any

import numpy
import torch
from torch import Tensor

from flashgp.foundations.errors import ConvergenceError, FlashGPWarning, NotPositiveDefiniteError
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.report import Report
from flashgp.inference.exact.likelihood import DirectSettings
from flashgp.inference.prior import Prior
from flashgp.inference.training.extrapolation import Trend
from flashgp.inference.training.fisher_information import fisher_information
from flashgp.inference.training.fisher_scoring import LARGEST_REACH, Descent, descend
from flashgp.inference.training.history import Recorder
from flashgp.inference.training.initial import RoleStart
from flashgp.inference.training.lbfgs import best_of, bounds_of, minimise, on_rows, subset_rows, units_of, wake
from flashgp.inference.training.objective import FlatObjective
from flashgp.inference.training.stochastic_objective import MOST_ITERATIONS, LargeObjective

__all__ = ["fit_many_rows"]

log = logging.getLogger("flashgp.fit")

MIDDLE_ROWS = 2000
MIDDLE_DECREASE = 0.05  # nats: its optimum is only where the search over more rows begins
DRAWS_PER_PARAMETER = 5  # simulated scores for the Fisher information
LEAST_DRAWS = 60
WORTH = 0.5  # of the p / (2 S) nats that the estimate costs on average: a step that promises less is not taken
LEAST_GAIN = 0.02  # nats
ENOUGH = 3e-4  # nats per row: about what the log density of a new observation may miss
# The same where a gradient takes a factor: a tenth of what tables show. Not elsewhere: a search whose gradients cost
# little need not trust its model, which in hard problems promised a twentieth of what there was to gain.
ENOUGH_BY_FACTORS = 1e-3
EVALUATIONS = 40  # gradients of all rows at most, for one draw of probes
PART_FACTOR = 4  # of rows, from one part to the next: a step costs a sixteenth before
PART_EVALUATIONS = 15
WORTH_A_PART = 1.5  # times the rows of a part that what follows must have
SLIP = 0.1  # nats per row by which the exact likelihood of the first rows may fall on the way to all rows
REACH = math.log(30.0)  # of a positive parameter from its value on the first rows
BY_FACTORS, BY_HEADED = ", by factors", ", by factors with a float64 head"  # in the name of a run
LEAST_PASSES = 10  # of an iteration before a factor may take over


def fit_many_rows(
    gp: Prior,
    x: Tensor,
    y: Tensor,
    settings: DirectSettings,
    objective: LargeObjective,
    roles: dict[Any, RoleStart],
    weak: bool,
    start: numpy.ndarray,
    *,
    max_iterations: int,
    waking: bool,
    seed: int,
    recorder: Recorder,
    report: Report,
) -> None:
    """From a start to the optimum of all rows; evaluations are in the recorder, the last one of label "start" best.

    Cost: some 60 exact evaluations of 2,000 rows, then 1 to 20 gradients of all rows.
    """
    n = x.shape[-2]
    count = min(MIDDLE_ROWS, n)
    recorder.phase = f"fitting {count:,} rows"
    exact = dataclasses.replace(settings, dtype=torch.float64)
    first_rows = functools.partial(on_rows, gp, x, y, exact, roles, weak, subset_rows(n, count, seed), FlatObjective)
    with first_rows() as middle:
        minimise(middle, roles, [start], max_iterations, recorder, "middle", MIDDLE_DECREASE)
        if waking:
            wake(middle, roles, max_iterations, recorder, report, "middle", MIDDLE_DECREASE)
        theta = best_of(recorder, "middle")
        theta = start if theta is None else theta
        recorder.reached = theta
        curvature = fisher_information(middle, theta, max(LEAST_DRAWS, DRAWS_PER_PARAMETER * middle.size), seed)
    curvature = curvature + _prior_curvature(objective, theta) * (count / n)

    def strayed(found: numpy.ndarray, rows: int) -> bool:
        with first_rows() as middle:
            worse = _worse(middle, found, theta) / count
        if worse <= SLIP:
            return False
        _say_strayed(worse, rows, count, report, kept=objective.factored)
        if objective.factored:  # probes of the model itself are not rough
            return False
        recorder.reached = trend.theta
        return True

    window = _window(objective, theta)
    sizes, trend, stiffness = part_sizes(n, count), Trend(theta, count), 1.0
    while sizes:
        size = sizes.pop(0)
        recorder.phase = f"fitting {size:,} rows"
        make = functools.partial(
            LargeObjective, stored=objective.stored, seed=seed, rank=objective.rank, deadline=objective.deadline,
            factor_passes=_passes(objective, size / n),
        )  # fmt: skip
        with on_rows(gp, x, y, settings, roles, weak, subset_rows(n, size, seed), make) as part:
            if objective.factored:
                part.take_factors(headed=objective.headed)
            climb = _Climb(part, roles, recorder, f"part {size}", PART_EVALUATIONS, window)
            try:
                descent = climb.along(trend, curvature, stiffness)
            except NotPositiveDefiniteError as error:
                report.events.append(Event(EventKind.ROWS_PASSED_OVER, rows=size, error=str(error)))
                continue
        if part.factored:
            objective.take_factors(headed=part.headed)
            sizes = with_factored_part(sizes, size, n)
        if not strayed(descent.theta, size):
            trend.add(descent.theta, size)
            curvature, stiffness, recorder.reached = descent.curvature, descent.stiffness, descent.theta
    recorder.phase = "fitting all rows"
    climb = _Climb(objective, roles, recorder, "start 0", min(EVALUATIONS, max_iterations), window)
    try:
        first = climb.along(trend, curvature, stiffness)
    except NotPositiveDefiniteError as error:
        event = Event(EventKind.NO_GRADIENT, rows=n, fitted=trend.rows, error=str(error))
        report.events.append(event)
        warnings.warn(str(event), FlashGPWarning, stacklevel=4)
        return
    last = first
    if first.converged and climb.noise > climb.enough:
        objective.refresh(first.theta)
        last = climb.run(first.theta, first.curvature, first.stiffness)
    if strayed(last.theta, n):
        return
    recorder.reached = last.theta
    report.events.append(
        Event(
            EventKind.GRADIENTS_ESTIMATED,
            rows=n,
            probes=objective.probes,
            evaluations=climb.evaluations,
            passes=objective.passes,
            noise=climb.noise,
            enough=climb.enough,
        )
    )
    if not first.converged:
        report.events.append(Event(EventKind.SEARCH_UNFINISHED, evaluations=climb.evaluations, expected=first.expected))


def _worse(first_rows: FlatObjective, found: numpy.ndarray, before: numpy.ndarray) -> float:
    """Nats by which the first rows are less likely under what was found than before; inf where they cannot be had."""
    try:
        return first_rows(found)[0] - first_rows(before)[0]
    except NotPositiveDefiniteError:
        return math.inf


def _say_strayed(worse: float, rows: int, count: int, report: Report, *, kept: bool) -> None:
    """That what a search has found makes the first rows less likely by so many nats each, and what is done about it."""
    if kept:
        report.events.append(Event(EventKind.STAGE_WORSE, rows=rows, first=count, worse=worse))
        return
    event = Event(EventKind.STAGE_REJECTED, rows=rows, first=count, worse=worse)
    report.events.append(event)
    warnings.warn(str(event), FlashGPWarning, stacklevel=6)


def _window(objective: LargeObjective, theta: numpy.ndarray) -> tuple[numpy.ndarray, numpy.ndarray]:
    """How far estimates may carry each positive parameter: where the likelihood is flat they have no curvature to hold
    them. The noise is not held, about which few rows may say nothing."""
    reach = numpy.full(len(theta), numpy.inf)
    for slot in objective.slots:
        if slot.owner is not None and slot.owner.domain.kind == "positive" and not slot.name.startswith("likelihood"):
            reach[slot.start : slot.stop] = REACH
    return theta - reach, theta + reach


def _passes(objective: LargeObjective, share: float) -> int:
    """The passes that a factor is worth on a share of the rows: n^3 against n^2; where none fits for all, none."""
    whole = objective.factor_passes
    return whole if whole >= MOST_ITERATIONS else max(LEAST_PASSES, int(whole * share))


def part_sizes(n: int, least: int) -> list[int]:
    """Rows of the parts between the first one and all n: each PART_FACTOR times the one before, ending below n."""
    sizes: list[int] = []
    size = n // PART_FACTOR
    while size > least:
        sizes.insert(0, size)
        size //= PART_FACTOR
    return sizes


def with_factored_part(sizes: list[int], size: int, n: int) -> list[int]:
    """The parts that are left after one of `size` rows took to factors: one of twice its rows is put in, an eighth of
    the price of the next, unless that is little larger and costs about as much."""
    return [2 * size, *sizes] if WORTH_A_PART * 2 * size <= min([*sizes, n]) else sizes


class _Climb:
    """Descents of minus the log joint by estimated gradients, recorded.

    Their values are not computed: the history has their gain since the first gradient, integrated along the way by the
    trapezoid rule. Fields: evaluations, all so far; noise, nats that the estimate costs on average.
    """

    def __init__(
        self,
        objective: LargeObjective,
        roles: dict[Any, RoleStart],
        recorder: Recorder,
        run: str,
        most: int,
        window: tuple[numpy.ndarray, numpy.ndarray],
    ) -> None:
        self.objective, self.recorder, self.name, self.most = objective, recorder, run, most
        bounds = bounds_of(objective, roles)
        self.low = numpy.maximum([-numpy.inf if b[0] is None else b[0] for b in bounds], window[0])
        self.high = numpy.minimum([numpy.inf if b[1] is None else b[1] for b in bounds], window[1])
        self.unit = units_of(objective, roles)
        self.evaluations = 0
        self._led = False  # whether the next vector to go on from is where fewer rows lead: nobody's optimum
        self._seen: tuple[numpy.ndarray, float, numpy.ndarray] | None = None
        self._last: tuple[numpy.ndarray, float, numpy.ndarray] | None = None

    def along(self, trend: Trend, curvature: numpy.ndarray, stiffness: float) -> Descent:
        """A descent from where fewer rows lead; from their own optimum where no gradient can be had there, and says so.

        Args: curvature, of their likelihood, (p, p), nats; stiffness, how much stiffer it is made, as `descend` has it.
        Raises: NotPositiveDefiniteError if no gradient can be had at their optimum either.
        """
        rows = self.objective.rows
        scaled = curvature * (rows / trend.rows)
        ahead = trend.ahead(rows, curvature / stiffness, self.objective.probes, LARGEST_REACH * self.unit)
        if ahead is not trend.theta and self.most > 1:
            ahead = numpy.clip(ahead / self.unit, self.low, self.high) * self.unit
            self.objective.refresh(ahead)
            self._led = True
            try:
                return self.run(ahead, scaled, stiffness)
            except NotPositiveDefiniteError:
                pass
            finally:
                self._led = False
            self.objective.refresh(trend.theta)
            found = self.run(trend.theta, scaled, stiffness)
            self.objective.settings.workspace.note(Event(EventKind.NOT_EXTRAPOLATED, rows=rows))
            return found
        self.objective.refresh(trend.theta)
        return self.run(trend.theta, scaled, stiffness)

    def run(self, theta: numpy.ndarray, curvature: numpy.ndarray, stiffness: float) -> Descent:
        """One descent, all in the parameters' own units; bounds belong to entries of unit 1."""
        unit = self.unit
        found = descend(
            lambda scaled: self._gradient(scaled * unit), theta / unit, curvature * numpy.outer(unit, unit),
            self.low, self.high, enough=max(LEAST_GAIN, WORTH * self.noise, self.enough),
            max_evaluations=self.most, stiffness=stiffness,
            stiffens=lambda: self.objective.factored, accepted=lambda scaled: self._accept(scaled * unit),
        )  # fmt: skip
        return dataclasses.replace(
            found, theta=found.theta * unit, gradient=found.gradient / unit,
            curvature=found.curvature / numpy.outer(unit, unit),
        )  # fmt: skip

    def _gradient(self, theta: numpy.ndarray) -> "numpy.ndarray | NotPositiveDefiniteError | ConvergenceError":
        """The gradient in scaled units, recalled or computed, and recorded; a failure is recorded too."""
        known = self.recorder.evaluations.recall(self._run, theta)
        for name, headed in ((BY_FACTORS, False), (BY_HEADED, True)):
            if known is None:
                known = self.recorder.evaluations.recall(f"{self.name}{name}", theta)
                if known is not None:
                    self.objective.take_factors(headed=headed)
        if known is not None:
            value, gradient = known
            failure = NotPositiveDefiniteError("as the checkpoint says") if value == math.inf else None
        else:
            failure = None
            try:
                _, gradient = self.objective(theta)
                if not numpy.isfinite(gradient).all():
                    raise NotPositiveDefiniteError("the gradient has entries that are not finite there")
            except (NotPositiveDefiniteError, ConvergenceError) as error:
                log.debug("%s: no gradient (%s)", self.name, error)
                self.objective.settings.workspace.note(Event(EventKind.POINT_FAILED, run=self.name, error=str(error)))
                failure = NotPositiveDefiniteError(str(error))
        if failure is not None:
            self.recorder.record_round([(self._run, theta, failure)])
            return failure
        value = self._value(theta, gradient)
        self._seen = (theta, value, gradient)
        self.evaluations += 1
        self.recorder.record_round([(self._run, theta, (value, gradient))], "gain")
        return gradient * self.unit

    @property
    def noise(self) -> float:
        """Nats that the estimate costs on average, (M-102)."""
        return self.objective.size / (2.0 * self.objective.probes)

    @property
    def enough(self) -> float:
        """Nats that no prediction shows."""
        return (ENOUGH_BY_FACTORS if self.objective.factored else ENOUGH) * self.objective.rows

    @property
    def _run(self) -> str:
        """The run of the next record; what is resumed knows by it where factors took over."""
        if not self.objective.factored:
            return self.name
        return f"{self.name}{BY_HEADED if self.objective.headed else BY_FACTORS}"

    def _accept(self, theta: numpy.ndarray) -> None:
        """Where the descent goes on from: what an interruption returns, unless fewer rows have led there and no step
        has been taken since, and what values are integrated from."""
        if not self._led:
            self.recorder.reached = theta
        self._led, self._last = False, self._seen

    def _value(self, theta: numpy.ndarray, gradient: numpy.ndarray) -> float:
        if self._last is None:
            return 0.0
        before, value, slope = self._last
        return value + 0.5 * float((gradient + slope) @ (theta - before))


def _prior_curvature(objective: FlatObjective, theta: numpy.ndarray) -> numpy.ndarray:
    """What the priors add to the curvature, on the diagonal: by differences of their gradient."""
    step = 1e-3
    ahead = objective.priors.value_and_gradient(theta + step)[1]
    behind = objective.priors.value_and_gradient(theta - step)[1]
    return numpy.diag(numpy.maximum(0.0, (behind - ahead) / (2.0 * step)))
