"""The stages of a fit by exact gradients: few rows first, each from the optimum of the one before.

    400 rows      every start, L-BFGS-B, then once more with long lengthscales reset                        (lbfgs.py)
    more rows     up to three times as many each time: Fisher scoring with secant updates (fisher_scoring.py), from
                  the extrapolated optimum (gradient_search.py); the first curvature is the Fisher information of
                  400 rows (fisher_scoring.py), scaled by the number of rows; after the first of these stages once
                  more with long lengthscales reset, since 400 rows prefer optima that ignore a column,
                  and each stage whose noise vanished with the noise reset
    all rows      the same; or the first 2,000, from where searches by estimated gradients go on (stochastic.py)

A search ends when one more step promises less nats per row than any prediction shows. Objectives without a Fisher
information, batches and models of very many parameters are minimised on all rows by L-BFGS-B instead.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy

from flashgp.foundations.errors import NotPositiveDefiniteError
from flashgp.foundations.events import Event, EventKind
from flashgp.inference.training.column_screen import search_ignored_columns
from flashgp.inference.training.fisher_scoring import Descent, log_joint_curvature
from flashgp.inference.training.gradient_search import GradientSearch, Trend
from flashgp.inference.training.history import Recorder, Reset, SearchRun, Stage
from flashgp.inference.training.lbfgs import minimise, retry_with_reset_lengthscales
from flashgp.inference.training.objective import LogJoint, Objective
from flashgp.inference.training.settings import SearchSettings, StochasticSettings
from flashgp.planner.fit_stages import FitStage, Search

Array = numpy.ndarray


@dataclasses.dataclass
class ExactStages:
    """Searches by exact gradients; evaluations and events are in the recorder.

    Args:
        of: makes the objective of so many random rows.
        rows: of the table.
        stages: those of exact gradients, from few rows to the last ones here.
        recorder: of all evaluations.
        search, settings: of L-BFGS-B, and of what follows.
        max_iterations: of one search at most.
        seed: of the Fisher information.
        reset: whether few rows, and those of the next stage, are fitted once more with long lengthscales reset.
    Cost: some 100 to 300 evaluations of 400 rows, then 3 to 20 of each stage, and one run more of the first of these.
    """

    of: Callable[[int], Objective]
    rows: int
    stages: Sequence[FitStage]
    recorder: Recorder
    search: SearchSettings
    settings: StochasticSettings
    max_iterations: int
    seed: int
    reset: bool

    def run(self, starts: list[Array]) -> Array:
        """Search from starts to the optimum of the last stage, which `recorder.reached` then is."""
        few, *later = self.stages
        objective = self.of(few.rows)
        theta = self._from_starts(objective, starts)
        if not later:
            return theta
        if later[0].search is not Search.SCORING:
            return self._by_values(theta)
        assert isinstance(objective, LogJoint)
        try:
            return self._by_gradients(objective, theta)
        except NotPositiveDefiniteError as error:
            self.recorder.note(Event(EventKind.SEARCHED_BY_VALUES, rows=self.last, error=str(error)))
            return self._by_values(theta)

    def _from_starts(self, objective: Objective, starts: list[Array]) -> Array:
        """The best of L-BFGS-B from every start, and from there with long lengthscales reset."""
        recorder, search, rows = self.recorder, self.search, objective.rows
        stage = Stage.SUBSET
        if rows == self.rows:
            stage = Stage.ALL_ROWS
        else:
            search = dataclasses.replace(search, min_decrease=self.settings.first_decrease)
        recorder.begin(rows)
        for number, start in enumerate(starts):
            minimise(objective, start, SearchRun(stage, number), recorder, search, self.max_iterations)
        if self.reset:
            recorder.phase = "trying a start beside the best"
            retry_with_reset_lengthscales(objective, stage, recorder, search, self.max_iterations)
            recorder.phase = "trying ignored columns"
            search_ignored_columns(objective, stage, recorder, search, self.max_iterations)
        if stage is Stage.SUBSET:
            recorder.note(Event(EventKind.SUBSET_FIT, starts=len(starts), subset=rows, rows=self.rows))
        ends = [(run, *recorder.best[run]) for run in recorder.best if run.stage is stage]
        if not ends:
            return starts[0]
        run, _, theta = min(ends, key=lambda end: self._on_all_rows(objective, *end[1:]))
        # Few rows may send a parameter to where all rows have no gradient.
        if rows < self.last and run.reset is Reset.NONE:
            reach = objective.parameters.reach(search.start_reach)
            theta = numpy.clip(theta, starts[run.number] - reach, starts[run.number] + reach)
        return theta

    def _on_all_rows(self, objective: Objective, value: float, theta: Array) -> float:
        """The value that few rows lead to expect of all: the likelihood grows with the rows, the priors do not."""
        if not isinstance(objective, LogJoint):
            return value
        prior, share = objective.priors.value_and_gradient(theta)[0], objective.rows / self.rows
        return (value + prior) / share - prior

    def _by_gradients(self, few: LogJoint, theta: Array) -> Array:
        """Fisher scoring over more and more rows. Raises: NotPositiveDefiniteError for a last stage without any."""
        recorder = self.recorder
        recorder.require_information(few.rows)
        curvature = log_joint_curvature(few, theta, self.rows, self.settings, self.seed)
        trend, free = Trend(theta, few.rows, self.settings), numpy.full_like(theta, math.inf)
        settings = self.settings.limited(min(self.settings.scoring.max_gradients, self.max_iterations))
        for size in (stage.rows for stage in self.stages[1:]):
            recorder.begin(size)
            search = GradientSearch(self.of(size), self._run(size), recorder, settings, (-free, free))
            try:
                descent = search.follow(trend, curvature)
            except NotPositiveDefiniteError as error:
                if size == self.last:
                    raise
                recorder.note(Event(EventKind.ROWS_PASSED_OVER, rows=size, error=str(error)))
                continue
            if self.reset and trend.rows == few.rows:
                descent = self._restarted(search, few, descent, Reset.LENGTHSCALES)
            if self.reset:
                descent = self._restarted(search, few, descent, Reset.NOISE)
            trend.add(descent.theta, size)
            curvature, recorder.reached = descent.curvature, descent.theta
        return trend.theta

    def _restarted(self, search: GradientSearch, few: LogJoint, descent: Descent, reset: Reset) -> Descent:
        """A descent from where long lengthscales, or a noise of nothing, are reset, if it ends better: first with the
        curvature of this one, which knows little of columns that were ignored, then with that of where it ended.

        Where few rows seem to have no noise, more rows show none: the gradient by its logarithm vanishes.
        """
        objective, recorder, parameters = search.objective, self.recorder, search.objective.parameters
        if reset is Reset.NOISE:
            theta, count = parameters.with_noise_reset(descent.theta, self.search.reset_noise)
        else:
            theta, count = parameters.with_lengthscales_reset(descent.theta, self.search.reset_ratio)
        if count == 0:
            return descent
        recorder.phase = "trying a start beside the best"
        run, free = dataclasses.replace(search.name, reset=reset), numpy.full_like(theta, math.inf)
        again = GradientSearch(objective, run, recorder, search.settings, (-free, free))
        before = min(recorder.best[one][0] for one in recorder.best if dataclasses.replace(one, reset=run.reset) == run)
        try:
            found = again.run(theta, descent.curvature)
            gain = before - recorder.best[run][0]
            if gain > 10 * self.settings.first_decrease:
                curvature = log_joint_curvature(few, found.theta, self.rows, self.settings, self.seed)
                growth = objective.parameters.information_growth(objective.rows / few.rows)
                found = again.run(found.theta, curvature.grown(growth))
                gain = before - recorder.best[run][0]
                if reset is Reset.NOISE:
                    recorder.note(Event(EventKind.NOISE_RESET, gain=gain))
                else:
                    recorder.note(Event(EventKind.LENGTHSCALES_RESET, lengthscales=count, gain=gain))
        except NotPositiveDefiniteError:
            return descent
        return dataclasses.replace(found, theta=recorder.best[run][1]) if gain > 0.0 else descent

    @property
    def first(self) -> int:
        """Rows of the first stage."""
        return self.stages[0].rows

    @property
    def last(self) -> int:
        """Rows of the last stage here."""
        return self.stages[-1].rows

    def _by_values(self, theta: Array) -> Array:
        """L-BFGS-B on the rows of the last stage."""
        self.recorder.begin(self.last)
        run = self._run(self.last)
        minimise(self.of(self.last), theta, run, self.recorder, self.search, self.max_iterations)
        return self.recorder.best[run][1] if run in self.recorder.best else theta

    def _run(self, size: int) -> SearchRun:
        if size == self.rows:
            return SearchRun(Stage.ALL_ROWS)
        return SearchRun(Stage.FIRST_ROWS) if size == self.last else SearchRun(Stage.PART, size)
