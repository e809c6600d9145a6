"""fit by Fourier series: exact searches of a sample, then all rows, whose evaluations take no pass over them.

400 to 2,000 rows    exact, of the sample (training/stages.py)
all rows             Fisher scoring on the likelihood of the series, on a grid that is chosen anew while that gains
"""

from typing import Any

import numpy
import torch

from flashgp.foundations.deadline import Deadline
from flashgp.foundations.report import Report
from flashgp.foundations.workspace import Workspace
from flashgp.inference.approximation import Approximation
from flashgp.inference.choice import approximate_plan, first_rows_price
from flashgp.inference.data import Data
from flashgp.inference.exact.likelihood import DirectSettings
from flashgp.inference.fourier.condition import check_memory, condition_on, grid_for, refuse_unfit
from flashgp.inference.fourier.grid import library
from flashgp.inference.fourier.objective import FourierLogJoint, refuse_search
from flashgp.inference.fourier.state import FourierSettings, FourierState
from flashgp.inference.plan_settings import RowCounts
from flashgp.inference.prior import Prior
from flashgp.inference.streamed.rows import (
    move_row_variances_to_data,
    move_row_variances_to_likelihood,
    prior_of_sample,
    survey_of,
)
from flashgp.inference.training.checkpoint import EvaluationLog
from flashgp.inference.training.fit import EngineFit, beside_a_constant, problem_of, refuse_exact_fit, report_answer
from flashgp.inference.training.history import Recorder, power_law
from flashgp.inference.training.linear_stages import LinearStages
from flashgp.inference.training.objective import LogJoint
from flashgp.inference.training.options import FitOptions
from flashgp.inference.training.parameter_vector import ParameterVector
from flashgp.inference.training.train import Trained
from flashgp.pairwise.torch.tiles import TorchTiles
from flashgp.planner.plan import Plan
from flashgp.planner.problem import chosen_device
from flashgp.processes.group import ALONE
from flashgp.sources.source import Held, RowSource

SEARCHED = 0.6  # of a time limit, which leaves the solve of the posterior its time


class FourierFit(EngineFit[FourierState]):
    """See `EngineFit`; the search holds a random sample of the rows."""

    gathers = False
    again = 'gp.condition(rows, approximation="fourier")'

    def __init__(self, prior: Prior, rows: RowSource, options: FitOptions, asked: Approximation) -> None:
        self.options, self.searchers, self.interrupts = options, ALONE, []
        refuse_exact_fit(options)
        prior, self.rows = move_row_variances_to_data(prior, rows, options.run.group)
        self.survey = survey_of(
            prior, self.rows, asked, options.run.seed, options.stages.first_rows, options.run.deadline
        )
        refuse_unfit(prior, self.survey.width, options.run.group.size)
        refuse_search(prior, self.survey)
        library()
        self.prior, self.how = prior.released(), FourierSettings()
        self.counts = RowCounts(self.survey.count, self.survey.width)
        target = chosen_device(options.run.device, self.survey.x)
        self.wanted = options.planning(device=target)
        self.plan: Plan = approximate_plan(
            prior, self.counts, asked, self.wanted, options.run.deadline.limit, read=not isinstance(self.rows, Held)
        )
        direct = DirectSettings(
            TorchTiles(), torch.float64, options.jitter, workspace=Workspace(deadline=options.run.deadline)
        )
        of_sample = prior_of_sample(self.prior, self.survey)
        sampled = Data(of_sample, self.survey.x, self.survey.y)
        self.problem = problem_of(of_sample, sampled, target, direct, options, joined=False)
        self.mark = (asked.kind, self.survey.count, self.survey.checksum)
        self.price = first_rows_price(self.prior, self.counts, self.wanted)
        self.searched = options.run.deadline.share(SEARCHED)

    def searching(self, log: EvaluationLog, deadline: Deadline) -> Deadline:
        return min(deadline, self.searched, key=lambda one: one.end)

    @property
    def result(self) -> Prior:
        return move_row_variances_to_likelihood(self.prior, self.rows)

    def expect(self, recorder: Recorder) -> None:
        recorder.expect(self.price.exact_seconds, 3)
        recorder.information = self.price.information_seconds
        recorder.expect(power_law(self.plan.fit_step_seconds, self.survey.count, 1), 1)

    def search(self, recorder: Recorder) -> Trained:
        return LinearStages(
            self.problem, self.survey.count, lambda _: [], self._objective, self.options, recorder
        ).run()

    def _objective(self, size: int, theta: numpy.ndarray) -> LogJoint:
        """Objective of all rows, on a grid chosen at a vector."""
        ParameterVector(self.problem.prior, self.problem.roles).assign(theta)
        grid = grid_for(self.problem.prior, self.survey, self.how, search=True)
        check_memory(grid, self.options.run.memory, self.how)
        run = self.options.run
        return FourierLogJoint(self.problem, self.survey, grid, self.how, run.seed, self.searched)

    def answer(self, trained: Trained, recorder: Recorder, report: Report) -> FourierState:
        settings = self.options.conditioning()

        def conditioned() -> FourierState:
            return condition_on(self.prior, self.survey, settings, self.plan, self.how)

        state, unexplained = conditioned(), list[Any]()
        if isinstance(self.rows, Held):
            state, unexplained = beside_a_constant(
                self, trained, state, lambda one: one.evidence, conditioned, self.rows.y
            )
        report_answer(report, recorder, state, self)
        report.events += unexplained
        return state
