"""A search whose last stages have a likelihood that is linear in the rows: exact ones of few rows, then these.

400 to 2,000 rows    exact, as every fit (stages.py)
parts, all rows      Fisher scoring on the other likelihood, from the extrapolated optimum of fewer rows; where it has a
                     coarse form, with that
all rows             the same as it was asked for; what it is made of beside the parameters (points, neighbours) is
                     chosen anew while that gains
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy
import torch

from flashgp.foundations.deadline import TimeUp
from flashgp.foundations.errors import NotPositiveDefiniteError
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.workspace import Workspace
from flashgp.inference.data import Data
from flashgp.inference.exact.likelihood import DirectSettings
from flashgp.inference.plan_settings import RowCounts, conditioning_problem
from flashgp.inference.prior import Prior
from flashgp.inference.training.fisher_scoring import Descent, log_joint_curvature
from flashgp.inference.training.fit import EngineFit, S, problem_of
from flashgp.inference.training.gradient_search import GradientSearch, Trend
from flashgp.inference.training.history import Recorder, Reset, SearchRun, Stage, power_law
from flashgp.inference.training.objective import LogJoint, Problem
from flashgp.inference.training.options import FitOptions
from flashgp.inference.training.stages import ExactStages
from flashgp.inference.training.train import Trained, searched, settled, stages_of
from flashgp.pairwise.torch.tiles import TorchTiles
from flashgp.planner.approximate import ApproximateWork
from flashgp.planner.fit_stages import FitStage, Search
from flashgp.planner.pricing import Price
from flashgp.planner.problem import PlanSettings
from flashgp.processes.agreement import deadline_of

AFTER_COARSE = 3.0  # times as long as a coarse objective takes the first other one to make, which tries fewer points
ROUNDS = 3  # choices of points and neighbours for all rows, at most


class LinearFit(EngineFit[S]):
    """A fit by `LinearStages`. Fields: counts, of all rows; wanted, what plans keep to."""

    counts: RowCounts
    wanted: PlanSettings

    def problem_on(self, device: torch.device, prior: Prior, data: Data, *, joined: bool) -> Problem:
        """See `problem_of`."""
        workspace = Workspace(deadline=self.options.run.deadline)
        direct = DirectSettings(TorchTiles(), torch.float64, self.options.jitter, workspace=workspace)
        return problem_of(prior, data, device, direct, self.options, joined=joined)

    def expect(self, recorder: Recorder) -> None:
        problem, times = conditioning_problem(self.prior, self.counts, self.wanted), self.likelihoods
        price = Price(problem, self.wanted.rates, self.wanted.devices[0])
        recorder.expect(lambda rows: times * price.exact_seconds(rows), 3)
        recorder.information = price.information_seconds
        recorder.expect(power_law(times * self.plan.fit_step_seconds, price.n, 1), 1)


@dataclasses.dataclass
class LinearStages:
    """The whole search.

    Args:
        problem: rows that are held, all of them or a sample.
        rows: of all.
        parts: numbers of rows of the stages between, given those of the last exact one.
        objective: of so many rows, chosen at a vector.
        options, recorder: as of every fit.
        coarse: the same in a form that takes less time, of parts of the rows and of a first descent of all of them.
        comparable: whether values of different choices compare, as those of bounds do, so that the best of all counts.
        weighted: whether rows of the parts count for all of them, so that no stage goes through all.
        choose: given the optimum of the first rows, settles what follows.
    Fields: best, the objective of all rows that had the best value, where that counts.
    """

    problem: Problem
    rows: int
    parts: Callable[[int], Sequence[int]]
    objective: Callable[[int, numpy.ndarray], LogJoint]
    options: FitOptions
    recorder: Recorder
    coarse: Callable[[int, numpy.ndarray], LogJoint] | None = None
    comparable: bool = False
    weighted: bool = False
    choose: Callable[[numpy.ndarray], None] | None = None

    best: LogJoint | None = dataclasses.field(init=False, default=None)
    _making: tuple[float, int, bool] = dataclasses.field(init=False, default=(0.0, 1, True))  # seconds, rows, coarse
    _tried: dict[SearchRun, LogJoint] = dataclasses.field(init=False, default_factory=dict)

    def run(self) -> Trained:
        """The prior of the problem then has the parameters found. Raises: NotPositiveDefiniteError."""
        options, recorder, problem = self.options, self.recorder, self.problem
        exact = LogJoint(problem)
        stages = stages_of(exact, self.rows, options, estimated=self.rows > options.stages.first_rows)
        recorder.expected = self._expected([stage for stage in stages if stage.search is not Search.ESTIMATED])

        def of(rows: int) -> LogJoint:
            return LogJoint(problem.subset(rows, options.run.seed))

        def later(first: ExactStages, search: Callable[[], numpy.ndarray]) -> None:
            recorder.reached = optimum = self._agreed(search)
            if self.choose is not None:
                self.choose(optimum)
            self._run_linear(optimum, of(first.last))

        theta, stop = searched(problem, exact, of, stages, later, options, recorder)
        tried = [run for run in recorder.best if run in self._tried and run.stage is Stage.APPROXIMATE]
        if self.comparable and tried:
            found = min(tried, key=lambda run: recorder.best[run][0])
            self.best, recorder.reached = self._tried[found], recorder.best[found][1]
        theta = self._first(settled(theta, stop, problem, recorder, estimated=True))
        exact.parameters.assign(theta)
        exact.rows = self.rows  # of the search that it stands for
        return Trained(theta, exact, stop, estimated=False, rough_factors=False)

    def _expected(self, first: Sequence[FitStage]) -> dict[int, tuple[float, float]]:
        """Evaluations of every stage, with their seconds."""
        recorder, work, n = self.recorder, ApproximateWork(), self.rows
        stages = {stage.rows: (stage.evaluations.middle, recorder.seconds_of(stage.rows, 3)) for stage in first}
        stages |= {size: (work.part.middle, recorder.seconds_of(size, 1)) for size in self.parts(first[-1].rows)}
        return stages if self.weighted else stages | {n: (work.all_rows_read.middle, recorder.seconds_of(n, 1))}

    def _agreed(self, search: Callable[[], numpy.ndarray]) -> numpy.ndarray:
        """Result of a search of the sample, which every rank does by itself: rank 0's. From here on ranks ask the
        deadline together. Raises: TimeUp on all ranks where it is up on one."""
        group, up, found = self.options.run.group, False, numpy.zeros(0)
        try:
            found = search()
        except TimeUp:
            up = True
        if float(group.max(torch.tensor(float(up)))):
            raise TimeUp
        self.recorder.deadline = deadline_of(group, self.recorder.deadline)
        return self._first(found)

    def _first(self, theta: numpy.ndarray) -> numpy.ndarray:
        """Rank 0's."""
        found: numpy.ndarray = self.options.run.group.from_first(torch.from_numpy(theta)).numpy()
        return found

    def _run_linear(self, theta: numpy.ndarray, first: LogJoint) -> None:
        """The stages of the other likelihood, from the optimum of the first rows."""
        recorder, n, options = self.recorder, self.rows, self.options
        settings = options.settings.stochastic
        recorder.require_information(first.rows)
        curvature = log_joint_curvature(first, theta, n, settings, options.run.seed)
        trend, free = Trend(theta, first.rows, settings), numpy.full_like(theta, numpy.inf)
        by_sites, tuning, parts = self.problem.sites is not None, options.settings.sites, list(self.parts(first.rows))
        most = tuning.rounds - (self.coarse is None) if by_sites else ROUNDS
        rounds = 0 if self.weighted else most if n > first.rows else 1
        sizes = [*parts, *[n] * rounds]
        begun = 0 if self.coarse is None else len(parts) + (rounds > 1)  # stages with the coarse form
        gained = numpy.inf
        for number, size in enumerate(sizes):
            if size == n and gained <= settings.negligible_gain * n:
                break
            recorder.begin(size)
            last = size == n and number and sizes[number - 1] == n
            part = Stage.WEIGHTED if self.weighted else Stage.PART
            run = SearchRun(Stage.APPROXIMATE, number) if size == n else SearchRun(part, size)
            coarse = self.coarse is not None and number < begun
            objective = self._tried[run] = self._made(size, trend.theta, coarse=coarse)
            limited = settings.limited(min(settings.scoring.max_gradients, options.max_iterations))
            if by_sites and parts and size == n:
                most = tuning.coarse_gradients if coarse else tuning.gradients
                limited = dataclasses.replace(
                    settings.limited(min(most, limited.scoring.max_gradients)),
                    negligible_gain_by_values=tuning.negligible_gain,
                )
            search = GradientSearch(objective, run, recorder, limited, (-free, free))
            try:
                descent = search.run(trend.theta, curvature) if last else search.follow(trend, curvature)
                if not last:
                    descent = self._with_noise_reset(search, trend.theta, descent)
            except NotPositiveDefiniteError as error:
                recorder.note(Event(EventKind.ROWS_PASSED_OVER, rows=size, error=str(error)))
                continue
            if size == n:
                values = [-entry.value for entry in recorder.history if entry.run == search.name]
                gained = values[0] - min(values) if last else numpy.inf
            trend.add(descent.theta, size)
            curvature, recorder.reached = descent.curvature, descent.theta

    def _made(self, size: int, theta: numpy.ndarray, *, coarse: bool) -> LogJoint:
        """The objective of so many rows, unless making it, which takes about as long as the last one for a row, and an
        evaluation would end after the deadline. Raises: TimeUp."""
        recorder, clock = self.recorder, self.recorder.deadline.clock
        seconds, rows, was_coarse = self._making
        more = AFTER_COARSE if was_coarse and not coarse else 1.0
        recorder.require(size, 1, beside=more * seconds * max(1.0, size / rows))
        began = clock()
        make = self.coarse if coarse and self.coarse is not None else self.objective
        made = make(size, theta)
        self._making = clock() - began, size, coarse
        return made

    def _with_noise_reset(self, search: GradientSearch, theta: numpy.ndarray, descent: Descent) -> Descent:
        """A descent from the same vector with a noise of nothing reset, if it ends better. Few rows may have no noise
        where an approximation has to call noise what it leaves, and steps from there are too many."""
        objective, recorder, share = search.objective, self.recorder, self.options.settings.search.reset_noise
        begun, count = objective.parameters.with_noise_reset(theta, share)
        if not count:
            return descent
        run, free = dataclasses.replace(search.name, reset=Reset.NOISE), numpy.full_like(theta, numpy.inf)
        again = GradientSearch(objective, run, recorder, search.settings, (-free, free))
        assert isinstance(objective, LogJoint)
        self._tried[run] = objective
        try:
            found = again.run(begun, descent.curvature)
        except NotPositiveDefiniteError:
            return descent
        gain = recorder.best[search.name][0] - recorder.best[run][0]
        if gain <= 0.0:
            return descent
        recorder.note(Event(EventKind.NOISE_RESET, gain=gain))
        return dataclasses.replace(found, theta=recorder.best[run][1])
