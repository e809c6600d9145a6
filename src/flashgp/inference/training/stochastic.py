"""The stages of a fit of many rows after its first ones (stages.py): to the optimum of all rows by estimated gradients.

    parts        of a quarter of the rows, a sixteenth and so on: as all rows, but fewer steps; where a large part
                 needs factors, one of twice its rows is inserted; from the second on a search begins at the
                 extrapolated optimum
    all rows     Fisher scoring with secant updates (fisher_scoring.py); its first curvature is that of the first rows,
                 scaled by the number of rows; its gradients are estimates (stochastic_objective.py)

A search ends when one more step promises less than half of what the estimate costs on average, or less nats per row
than any prediction shows. Where the estimate itself may cost more than that, new probes are then drawn once, and the
search continues until it ends again: an optimum that is an artefact of one draw does not survive the second.
"""

import math
from collections.abc import Sequence

import numpy

from flashgp.foundations.errors import NotPositiveDefiniteError, warn
from flashgp.foundations.events import Event, EventKind, StopReason
from flashgp.inference.training.fisher_scoring import Curvature, Descent, log_joint_curvature
from flashgp.inference.training.gradient_search import GradientSearch, Trend
from flashgp.inference.training.history import Recorder, SearchRun, Solving, Stage
from flashgp.inference.training.objective import LogJoint, Objective
from flashgp.inference.training.stochastic_objective import EstimatedLogJoint

Array = numpy.ndarray


class StochasticFit:
    """The stages after the first rows; evaluations and events are in the recorder.

    Args:
        objective: of all rows.
        first_rows: the exact objective of the first ones.
        parts: rows of the stages between them and all.
        recorder: of all evaluations.
        max_iterations: of one search at most.
    Cost: a draw of the Fisher information of the first rows, then 1 to 20 gradients of all rows.
    """

    def __init__(
        self,
        objective: EstimatedLogJoint,
        first_rows: Objective,
        parts: Sequence[int],
        recorder: Recorder,
        max_iterations: int,
    ) -> None:
        self.objective, self.first_rows, self.parts, self.recorder = objective, first_rows, parts, recorder
        self.settings, self.seed, self.max_iterations = objective.settings, objective.options.run.seed, max_iterations

    def run(self, theta: Array) -> None:
        """Search from the optimum of the first rows to that of all rows, which `recorder.reached` then is."""
        recorder, n, count = self.recorder, self.objective.rows, self.first_rows.rows
        recorder.reached = theta
        likely = self.first_rows if isinstance(self.first_rows, LogJoint) else LogJoint(self.first_rows.problem)
        curvature = log_joint_curvature(likely, theta, n, self.settings, self.seed)
        reach = self.objective.parameters.reach(self.settings.reach, noise=False)  # few rows may say little of noise
        # Estimates may carry a positive parameter so far: where the likelihood is flat no curvature holds them.
        window = theta - reach, theta + reach
        trend = Trend(theta, count, self.settings)
        sizes, before = list(self.parts), None
        while sizes:
            size = sizes.pop(0)
            recorder.begin(size)
            part = self.objective.on_part(size)
            if before is not None:
                part.begin_as(before)
            settings = self.settings.limited(self.settings.part_gradients)
            search = GradientSearch(part, SearchRun(Stage.PART, size), recorder, settings, window)
            try:
                descent = self._descended(search, trend, curvature, theta)
            except NotPositiveDefiniteError as error:
                recorder.note(Event(EventKind.ROWS_PASSED_OVER, rows=size, error=str(error)))
                continue
            if part.solving.by_factor and size >= self.settings.doubled_rows:
                sizes = with_factored_part(sizes, size, n, self.settings.min_part_ratio)
            before = part
            if descent is not None:
                trend.add(descent.theta, size)
                curvature, recorder.reached = descent.curvature, descent.theta
            else:
                recorder.reached = trend.theta
        if before is not None:
            self.objective.begin_as(before)
        recorder.begin(n)
        settings = self.settings.limited(min(self.settings.scoring.max_gradients, self.max_iterations))
        search = GradientSearch(self.objective, SearchRun(Stage.ALL_ROWS), recorder, settings, window)
        try:
            last = self._descended(search, trend, curvature, theta, redraw=True)
        except NotPositiveDefiniteError as error:
            self._warn(Event(EventKind.NO_GRADIENT, rows=n, fitted=trend.rows, error=str(error)))
            return
        recorder.reached = trend.theta if last is None else last.theta
        if last is not None:
            self._describe(search, last)

    def _descended(
        self, search: GradientSearch, trend: Trend, curvature: Curvature, before: Array, *, redraw: bool = False
    ) -> Descent | None:
        """A search, and what the exact likelihood of the first rows says of its end: None where its gradients were
        rough and these rows are much less likely than at `before`.

        Args: redraw: whether an end that depends on the probes is searched once more with others.
        Raises: NotPositiveDefiniteError.
        """
        objective = search.objective
        descent = search.follow(trend, curvature)
        estimate = objective.estimate
        assert estimate is not None
        if redraw and descent.stop is StopReason.GOAL and estimate.loss > estimate.negligible_gain:
            objective.refresh(descent.theta)
            descent = search.run(descent.theta, descent.curvature)
        worse = self._drop(descent, before)
        if worse <= self.settings.max_drop:
            return descent
        fields = {"rows": objective.rows, "first": self.first_rows.rows, "worse": worse}
        if objective.solving is not Solving.ROUGH_ITERATIONS:
            self.recorder.note(Event(EventKind.STAGE_WORSE, **fields))
            return descent
        self._warn(Event(EventKind.STAGE_REJECTED, **fields))
        return None

    def _drop(self, descent: Descent, before: Array) -> float:
        """Loss in nats of each of the first rows where a search ended; infinity where nothing tells."""
        objective = self.first_rows
        try:
            self.recorder.require(objective.rows, evaluations=2.0)
            after, earlier = objective(descent.theta).value, objective(before).value
        except NotPositiveDefiniteError:
            drop = math.inf
        else:
            assert after is not None
            assert earlier is not None
            drop = (after - earlier) / objective.rows
        return self.recorder.group.number_of_first(drop)

    def _warn(self, event: Event) -> None:
        self.recorder.note(event)
        warn(str(event))

    def _describe(self, search: GradientSearch, last: Descent) -> None:
        estimate, objective = self.objective.estimate, self.objective
        self.recorder.note(
            Event(
                EventKind.GRADIENTS_ESTIMATED,
                rows=objective.rows,
                probes=objective.probes,
                evaluations=search.evaluations,
                passes=objective.passes,
                noise=estimate.loss,
                enough=estimate.negligible_gain,
            )
        )
        if last.stop is not StopReason.GOAL:
            self.recorder.note(
                Event(EventKind.SEARCH_UNFINISHED, evaluations=search.evaluations, expected=last.expected)
            )


def with_factored_part(sizes: list[int], size: int, n: int, min_ratio: float) -> list[int]:
    """The remaining parts after one of `size` rows needed factors: one of twice its rows is inserted, at an eighth of
    the cost of the next, unless the next is hardly larger."""
    return [2 * size, *sizes] if min_ratio * 2 * size <= min([*sizes, n]) else sizes
