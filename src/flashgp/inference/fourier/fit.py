"""fit by Fourier series: exact searches of a sample, then all rows, whose evaluations take no pass over them.

400 to 2,000 rows    exact, of the sample (training/stages.py)
all rows             Fisher scoring on the likelihood of the series, on a grid that is chosen anew while that gains
"""

import functools
import math
from contextlib import suppress
from typing import Any

import numpy
from torch import Tensor

from flashgp.foundations.deadline import Deadline
from flashgp.foundations.errors import DomainError, MemoryBudgetError
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.report import Report
from flashgp.inference.approximation import Approximation
from flashgp.inference.choice import WORDS, Choice
from flashgp.inference.data import Data
from flashgp.inference.fourier.condition import (
    check_memory,
    condition_on,
    grid_bytes,
    grid_for,
    refuse_unfit,
    refuse_without_factor,
    with_sites,
)
from flashgp.inference.fourier.grid import CPU
from flashgp.inference.fourier.grids import Series
from flashgp.inference.fourier.objective import FourierLogJoint
from flashgp.inference.fourier.pass_objective import FourierPassLogJoint
from flashgp.inference.fourier.planned import passes_of, sizes_of
from flashgp.inference.fourier.row_objective import FourierRowLogJoint
from flashgp.inference.fourier.state import FourierSettings, FourierState
from flashgp.inference.plan_settings import conditioning_problem
from flashgp.inference.prior import Prior
from flashgp.inference.streamed.rows import counts_of, prior_of_rows
from flashgp.inference.streamed.survey_fit import SurveyFit
from flashgp.inference.training.checkpoint import EvaluationLog
from flashgp.inference.training.fit import EngineLeft, beside_a_constant, report_answer
from flashgp.inference.training.history import Recorder
from flashgp.inference.training.linear_stages import LinearStages
from flashgp.inference.training.objective import LogJoint, Problem
from flashgp.inference.training.options import FitOptions
from flashgp.inference.training.parameter_vector import ParameterVector
from flashgp.inference.training.train import Trained
from flashgp.planner.approximate import ApproximateWork
from flashgp.planner.fourier_price import FourierPrice
from flashgp.planner.plan import Plan, Sizes
from flashgp.processes.agreement import deadline_of, largest
from flashgp.sources.source import RowSource
from flashgp.sources.survey import Survey

KEPT_SECONDS = 5.0  # with a factor, of which the price is known, a fit that takes less is not left
SEARCHED = 0.6  # of a time limit, which leaves the solve of the posterior its time


class FourierFit(SurveyFit[FourierState]):
    """See `SurveyFit`; where the search keeps a site of each row, it holds all of them.

    Args: rival, the plan of what is taken instead, with `EngineLeft`, where the lengthscales of the sample ask for more
        frequencies than are quicker; None for nothing.
    """

    again = 'gp.condition(rows, approximation="fourier")'

    def __init__(
        self,
        prior: Prior,
        rows: RowSource | Survey,
        options: FitOptions,
        asked: Approximation,
        rival: Plan | None = None,
    ) -> None:
        self.rival, self._settled, self._taken, self._slower = rival, False, 0, 1.0
        prior = self.look(prior, rows, options, asked)
        self.asked, self.by_sites = asked, not prior.likelihood.has_sites
        refuse_unfit(prior, self.survey, options.run.device)
        self.prior, self.how = prior.released(), FourierSettings.of(prior.likelihood)
        self.counts, self.wanted = counts_of(self.survey), self.planning_on(CPU)
        choice = Choice(prior, self.counts, self.wanted, options.run.deadline.limit)
        self.plan: Plan = choice.approximate(asked, read=self.read)
        searched, x, y = prior_of_rows(self.prior, self.survey.sample), self.survey.x, self.survey.y
        held = self.whole.held if self.by_sites else None
        self.kept = held is not None
        if held is not None:
            searched, x, y = self.result, held.x.double(), held.y.double()
        self.problem = self.problem_on(x.device, searched, Data(searched, x, y), joined=False)
        self.mark = (asked.kind, self.survey.count, self.survey.checksum)
        self.searched = options.run.deadline.share(SEARCHED)

    def searching(self, log: EvaluationLog, deadline: Deadline) -> Deadline:
        return min(deadline, self.searched, key=lambda one: one.end)

    def search(self, recorder: Recorder) -> Trained:
        objective = functools.partial(self._objective, recorder)
        return LinearStages(self.problem, self.survey.count, lambda _: [], objective, self.options, recorder).run()

    def _kept(self, recorder: Recorder, theta: numpy.ndarray) -> Series:
        """The grid of a search at a vector. Raises: as `_check_price`; DomainError, MemoryBudgetError without rival."""
        self._settled, grid = True, None
        if self.rival is None:
            return self._grid(theta)
        with suppress(DomainError, MemoryBudgetError):
            grid = self._grid(theta)
        return self._check_price(self.rival, grid, recorder)

    def _check_price(self, rival: Plan, grid: Series | None, recorder: Recorder) -> Series:
        """The grid. Raises: EngineLeft, on every rank, where one has none, or expects the rest of the fit to take
        longer than all of the rival's."""
        group, seconds, enough = self.options.run.group, math.inf, rival.fit_seconds
        if grid is not None:
            price = self._price(grid)
            factored = bool(price.grid.coordinates)
            enough = max(enough, KEPT_SECONDS if factored else 0.0)
            if factored or not self.by_sites:
                seconds = price.rest().middle * (1.0 if factored else self._slower)
        seconds = largest(group, seconds)
        if grid is not None and seconds <= enough:
            return grid
        known = {"seconds": seconds, "other_seconds": rival.fit_seconds} if math.isfinite(seconds) else {}
        taken = WORDS.get(rival.approximation, "exact inference")
        frequencies = None if grid is None else grid.size
        event = Event(EventKind.SERIES_LEFT, taken=taken, frequencies=frequencies, **known)
        raise group.share_error(EngineLeft(self.result, event, recorder))

    def _check_pace(self, rival: Plan, grid: Series, recorder: Recorder, seconds: float) -> None:
        """Price solves by what the first takes: their iterations depend on the rows. Args: seconds, of an evaluation.
        Raises: as `_check_price`."""
        priced = self._price(grid).step(self.survey.count).middle
        self._slower = self.options.run.group.number_of_first(seconds / priced)
        self._check_price(rival, grid, recorder)

    def _price(self, grid: Series) -> FourierPrice:
        problem, no_sizes = conditioning_problem(self.prior, self.counts, self.wanted), Sizes(0, 0, 0, 0)
        device = self.wanted.devices[0]
        passes = passes_of(self.prior, alike=self.counts.alike)
        sizes = sizes_of(grid, self.counts.n, passes, self.how.solves)
        return FourierPrice(problem, self.wanted.rates, device, no_sizes, ApproximateWork(), sizes)

    def _grid(self, theta: numpy.ndarray) -> Series:
        """The grid of a search at a vector. Raises: DomainError, MemoryBudgetError."""
        ParameterVector(self.problem.prior, self.problem.roles).assign(theta)
        grid = grid_for(self.prior, self.survey, self.how, self._noise(self.problem), search=True)
        check_memory(grid, self.options.run.memory, self.how)
        self._taken = max(self._taken, grid_bytes(grid, self.how))
        return grid

    def _objective(self, recorder: Recorder, size: int, theta: numpy.ndarray) -> LogJoint:
        """Objective of all rows, on a grid chosen at a vector."""
        grid, run = self._kept(recorder, theta), self.options.run
        if self.kept:
            return FourierRowLogJoint(self.problem, grid, self.how, run.seed, self.searched)
        deadline = deadline_of(run.group, self.searched)
        if self.by_sites:
            refuse_without_factor(self.prior, grid, self.how)
        of_rows = FourierPassLogJoint if self.by_sites else FourierLogJoint
        made = of_rows(self.problem, self.prior, self.survey, grid, self.how, run.seed, deadline)
        if self.rival is not None:
            made.paced = functools.partial(self._check_pace, self.rival, grid, recorder)
        return made

    def _noise(self, problem: Problem) -> Tensor | None:
        """Variances of sites where these are held; None for those of the likelihood."""
        return None if problem.sites is None else problem.sites.held.variance

    def of_rows(self, rows: int, trained: Trained) -> LogJoint:
        if not self.kept:
            return super().of_rows(rows, trained)
        ParameterVector(self.problem.prior, self.problem.roles).assign(trained.theta)
        problem, seed = self.problem, self.options.run.seed
        problem = problem if rows == problem.rows else problem.subset(rows, seed)
        grid = grid_for(self.prior, self.survey, self.how, self._noise(problem))
        return FourierRowLogJoint(problem, grid, self.how, seed)

    def answer(self, trained: Trained, recorder: Recorder, report: Report) -> FourierState:
        settings, deadline = (
            self.conditioning() if self.kept else self.options.conditioning(),
            self.options.run.deadline,
        )
        if self.rival is not None and not self._settled and not deadline.by_hand:  # the time was up before
            self._kept(recorder, trained.theta)
        prior, survey, cut = self.prior, self.whole, list[Event]()
        if self.by_sites and not self.kept:
            widened = self.with_variance(self.problem.rows, trained)
            cut += [] if widened is None else [widened]
        if self.kept:
            prior, data, cut = self.with_sites(Data(self.result, self.problem.x, self.problem.y), trained)
            x, y = (t.to(self.survey.dtype) for t in (data.x, data.y))
            prior, survey = with_sites(prior, x, y, self.asked, self.options.run)

        def conditioned() -> FourierState:
            start = last.values if isinstance(last := trained.objective, FourierPassLogJoint) else None
            return condition_on(prior, survey, settings, self.plan, self.how, start)

        state, unexplained = conditioned(), list[Any]()
        if (held := self.whole.held) is not None and not deadline.passed(
            self._price(state.grid).step(self.survey.count).middle
        ):
            state, unexplained = beside_a_constant(self, trained, state, lambda one: one.evidence, conditioned, held.y)
        state.report.events += cut
        state.report.peak_bytes = max(state.report.peak_bytes or 0, self._taken)
        report_answer(report, recorder, state, self)
        report.events += unexplained
        return state
