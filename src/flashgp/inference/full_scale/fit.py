"""fit by the full-scale approximation: exact searches of few rows, then stages whose likelihood is linear in the rows.

400 to 2,000 rows    exact, as every fit (training/stages.py)
parts, all rows      Fisher scoring on the likelihood of the full-scale model with coarse sizes, eq. (M-208), from the
                     extrapolated optimum of fewer rows
all rows             the same with the sizes asked for, or twice the neighbours where these add much, eq. (M-209);
                     points and neighbours are chosen anew while that gains
"""

import dataclasses
import functools
from contextlib import suppress

import numpy
import torch

from flashgp.foundations.deadline import Deadline
from flashgp.foundations.errors import ConvergenceError, NotPositiveDefiniteError, ShapeError
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.report import Report
from flashgp.inference.approximation import Approximation
from flashgp.inference.choice import Choice, refuse_batch
from flashgp.inference.data import Data
from flashgp.inference.full_scale.condition import condition
from flashgp.inference.full_scale.layout import Layout, drop_redundant_points, layout_of, pivot_points
from flashgp.inference.full_scale.objective import FullScaleLogJoint
from flashgp.inference.full_scale.output_states import AnyFullScale
from flashgp.inference.full_scale.outputs import lost
from flashgp.inference.full_scale.trial import Part, Trial
from flashgp.inference.over_ranks import planned_over
from flashgp.inference.prior import Prior
from flashgp.inference.training.checkpoint import EvaluationLog
from flashgp.inference.training.fit import EngineLeft, beside_a_constant, refuse_exact_fit, report_answer
from flashgp.inference.training.history import Recorder
from flashgp.inference.training.linear_stages import LinearFit, LinearStages
from flashgp.inference.training.objective import Problem
from flashgp.inference.training.options import FitOptions
from flashgp.inference.training.parameter_vector import ParameterVector
from flashgp.inference.training.train import Trained
from flashgp.planner.approximate import ApproximateWork, by_sample
from flashgp.planner.fit_stages import part_sizes
from flashgp.planner.plan import Plan, Sizes
from flashgp.planner.problem import chosen_device

MIN_GAIN = 0.05  # nats a row that twice the neighbours must add to be taken

NO_VALUE = (NotPositiveDefiniteError, ConvergenceError)  # where an objective has none


class FullScaleFit(LinearFit[AnyFullScale]):
    """See `EngineFit`.

    Args: rival, inducing points alone, which are taken where the time limit leaves full scale too few rows, (M-245).
        The search then ends with `EngineLeft`.
    """

    again = "gp.condition(x, y, approximation=...)"

    def __init__(
        self, prior: Prior, data: Data, options: FitOptions, asked: Approximation, rival: Approximation | None = None
    ) -> None:
        self.options, self.data, self.searchers, self.interrupts = options, data.complete(), options.run.group, []
        refuse_exact_fit(options)
        if not data.count:
            raise ShapeError(
                f"`x` must have at least one row to fit, got shape {tuple(data.x.shape)}; condition on no rows instead"
            )
        refuse_batch(batch=data.is_batch)
        target = chosen_device(options.run.device, data.x)
        self.counts, self.wanted = data.counts, options.planning(device=target)
        self.plan: Plan = self._planned(prior, asked)
        self.prior, sizes = prior.released(), self.plan.sizes
        asked, self.rival = asked.resolved(sizes), None if rival is None else self._planned(prior, rival)
        self.problem = self.problem_on(target, self.prior, data, joined=True)
        doubled = float(options.run.group.max(torch.tensor(-float(self.plan.most_neighbours)))) < 0.0  # on every rank
        points = asked.points_like(data.x)
        self.mark = (asked.kind, doubled, *map(dataclasses.astuple, (sizes, sizes.coarse())), points)
        self.choices = _Choices(self.problem, asked, options, more=doubled)

    def _planned(self, prior: Prior, sizes: Approximation, *, taken: bool = False) -> Plan:
        choice = Choice(prior, self.counts, self.wanted, self.options.run.deadline.limit)
        return planned_over(self.options.run.group, functools.partial(choice.approximate, taken=taken), sizes)

    @property
    def chosen(self) -> list[Event]:
        return self.choices.events

    def searching(self, log: EvaluationLog, deadline: Deadline) -> Deadline:
        self.latest, whole = deadline, self.options.run.deadline
        if whole.limit is None:
            return deadline
        shares = self.options.settings.time
        seconds = max(self._posterior_seconds(1.0), shares.least_share * whole.left)
        return min(deadline, whole.before(min(seconds, shares.posterior_share * whole.left)), key=lambda one: one.end)

    def search(self, recorder: Recorder) -> Trained:
        rows, ratio = self.problem.rows, self.options.settings.stochastic.part_ratio
        timed = self.options.run.deadline.limit is not None and self.options.run.group.size == 1
        return LinearStages(
            self.problem, rows, lambda first: part_sizes(rows, first, ratio), self.choices.objective, self.options,
            recorder, coarse=self.choices.coarse,
            choose=functools.partial(self._settle, recorder) if timed else None,
        ).run()  # fmt: skip

    def _settle(self, recorder: Recorder, theta: numpy.ndarray) -> None:
        """Leave the posterior its time at the pace of the first rows; where that is not enough for all rows, try full
        scale on as many as it is enough for beside inducing points. Raises: EngineLeft."""
        run, n, shares = self.options.run, self.problem.rows, self.options.settings.time
        posterior = self._posterior_seconds(recorder.slowdown(3))
        share = shares.posterior_share * max(0.0, run.deadline.left)
        recorder.deadline = min(self.latest, run.deadline.before(min(posterior, share)), key=lambda one: one.end)
        if self.rival is None or posterior <= share:
            return
        part = Part(max(shares.min_rows, int(n * share / posterior)), self.plan.sizes.predicting)
        inducing = self.rival.inducing
        # A trial that leaves the points no time for their own fit says nothing that can be done.
        points_need = recorder.slowdown(3) * max(self.rival.sample_seconds[0], self.rival.seconds)
        if run.deadline.passed(recorder.seconds_of(part.like_rows(inducing), 3) + points_need):
            return
        ParameterVector(self.problem.prior, self.problem.roles).assign(theta)
        noise = self.problem.prior.sites(self.problem.y).variance.detach()
        points = self.choices.asked.points_like(self.problem.x)
        if points is None:
            points = pivot_points(self.problem.prior, self.problem.x, noise, inducing, run.seed)
        learned = ApproximateWork().learned_rows * inducing if by_sample(self.rival, run.deadline.limit) else n
        trial = Trial.of(self.problem, points, min(n, learned), part, run.seed)
        if trial is not None and trial.points_are_better:
            raise EngineLeft(self.prior, trial.event, recorder)
        if trial is not None:
            recorder.note(trial.event)

    def _posterior_seconds(self, slowdown: float) -> float:
        """Seconds of the posterior of all rows, with parts that are tried first."""
        return self.options.settings.time.parts * slowdown * self.conditionings * self.plan.seconds

    def of_rows(self, rows: int, trained: Trained) -> FullScaleLogJoint:
        return self.choices.last(trained.theta, rows)

    def answer(self, trained: Trained, recorder: Recorder, report: Report) -> AnyFullScale:
        choices, settings = self.choices, self.conditioning()
        with recorder.free_cores.block(self.problem.rows):
            prior, data, cut = self.with_sites(self.data, trained)
            state, unexplained = beside_a_constant(
                self, trained, condition(choices.asked, prior, data, settings),
                lambda one: float(one.log_marginal_likelihood()),
                lambda: condition(choices.asked, prior, data, settings), self.data.y,
            )  # fmt: skip
        report.events += [event for event in recorder.events if event not in report.events]  # cores taken since
        state.report.events += [*cut, *self.chosen]
        # Of the fit, which says what a fit with more neighbours takes.
        answer = self._planned(self.prior, choices.asked, taken=True) if choices.taken else self.plan
        state.report.plan = answer  # `lost` has its seconds from here
        events = [] if self.options.run.deadline.passed(self.plan.seconds) else [lost(state).event]
        report_answer(report, recorder, state, self)
        report.plan = state.report.plan = answer
        report.events += [*events, *unexplained]
        return state


@dataclasses.dataclass
class _Choices:
    """Objectives of so many rows, with points and neighbours chosen at a vector.

    Args: more, whether a fit may take twice the neighbours.
    Fields: asked, what conditioning takes: its sizes are settled by the first choice for all rows; events, of that;
    taken, whether twice the neighbours were.
    """

    problem: Problem
    asked: Approximation
    options: FitOptions
    more: bool = False
    events: list[Event] = dataclasses.field(default_factory=list)
    taken: bool = False
    _coarse: FullScaleLogJoint | None = None

    def coarse(self, size: int, theta: numpy.ndarray) -> FullScaleLogJoint:
        """Objective of so many rows with coarse sizes, eq. (M-208); inducing points of the caller's own are kept."""
        problem = self._at(size, theta)
        made = self._made(problem, self._layout(problem, self.asked.sizes(self.problem.rows).coarse()))
        self._coarse = made if problem is self.problem else None
        return made

    def objective(self, size: int, theta: numpy.ndarray) -> FullScaleLogJoint:
        """Objective of so many rows, with fewer points than planned where these suffice, eq. (M-207), and twice the
        neighbours where these add much, eq. (M-209)."""
        asked, group, problem = self.asked, self.options.run.group, self._at(size, theta)
        layout = self._layout(problem, asked.sizes(self.problem.rows))

        values: dict[FullScaleLogJoint, float] = {}

        def make(one: Layout) -> tuple[FullScaleLogJoint, float]:
            made = self._made(problem, one)
            values[made] = made.log_likelihood()
            return made, values[made]

        found = None
        if asked.leaves_points:
            with suppress(*NO_VALUE), group.together():  # which the search finds too, and passes over
                layout, found, event = drop_redundant_points(layout, make, size, group)
                if problem is self.problem:
                    self.asked = asked.with_points(layout.sizes.inducing)
                    self.events += [] if event is None else [event]
        found = self._made(problem, layout) if found is None else found
        if problem is self.problem and self.more and self._coarse is not None:
            with suppress(*NO_VALUE), group.together():
                return self._double_neighbours_if_useful(found, values.get(found), self._coarse)
        return found

    def _double_neighbours_if_useful(
        self, found: FullScaleLogJoint, value: float | None, coarse: FullScaleLogJoint
    ) -> FullScaleLogJoint:
        """The model with twice the neighbours if these add more than MIN_GAIN nats a row, else `found`.

        Tried once, and only if the planned neighbours gained as much over half of them.

        Args:
            value: the log likelihood of `found` where it is known, nats.
        """
        self._coarse, layout, rows = None, found.layout, self.problem.rows

        def gain(more: float, fewer: float) -> float:
            both = torch.tensor([(more - fewer) / rows], dtype=torch.float64)
            return float(self.options.run.group.from_first(both))

        value = found.log_likelihood() if value is None else value
        if gain(value, coarse.log_likelihood()) <= MIN_GAIN:
            return found
        sizes = layout.sizes.doubled().within(rows)
        other = self._made(self.problem, self._layout(self.problem, sizes, layout.inducing))
        added = gain(other.log_likelihood(), value)
        if added <= MIN_GAIN:
            return found
        self.asked, self.taken = self.asked.resolved(sizes), True
        kept, planned = sizes.neighbours, layout.sizes.neighbours
        self.events.append(Event(EventKind.MORE_NEIGHBOURS_TAKEN, kept=kept, planned=planned, gain=added))
        return other

    def last(self, theta: numpy.ndarray, rows: int) -> FullScaleLogJoint:
        """Objective of so many rows at the optimum; points and neighbours are chosen there, as conditioning does."""
        problem = self._at(rows, theta)
        return self._made(problem, self._layout(problem, self.asked.sizes(problem.rows)))

    def _at(self, size: int, theta: numpy.ndarray) -> Problem:
        """The problem of so many of the rows, with rank 0's vector in their prior."""
        problem = self.problem if size == self.problem.rows else self.problem.subset(size, self.options.run.seed)
        theta = self.options.run.group.from_first(torch.from_numpy(theta)).numpy()
        ParameterVector(problem.prior, problem.roles).assign(theta)
        return problem

    def _layout(self, problem: Problem, sizes: Sizes, points: torch.Tensor | None = None) -> Layout:
        """Args: points, inducing points in place of those that would be chosen."""
        noise = problem.with_sites.sites(problem.y).variance.detach()
        own = self.asked.points_like(self.problem.x) if points is None else points
        sizes = sizes.within(problem.rows)
        return layout_of(problem.prior, problem.x, noise, sizes, self.options.run.seed, own, self.options.run.group)

    def _made(self, problem: Problem, layout: Layout) -> FullScaleLogJoint:
        return FullScaleLogJoint(problem, layout, self.options.run.group, self.options.run.seed)
