"""fit by the full-scale approximation: exact searches of few rows, then stages whose likelihood is linear in the rows.

400 to 2,000 rows    exact, as every fit (training/stages.py)
parts, all rows      Fisher scoring on the likelihood of the full-scale model with coarse sizes, eq. (M-208), from the
                     extrapolated optimum of fewer rows
all rows             the same with the sizes asked for, or twice the neighbours where these add much, eq. (M-209);
                     points and neighbours are chosen anew while that gains
"""

import dataclasses
import functools
import time
from contextlib import suppress
from pathlib import Path

import numpy
import torch

from flashgp.foundations.contexts import autocast_disabled, outside_inference_mode
from flashgp.foundations.determinism import contiguous_copy, deterministic_where
from flashgp.foundations.errors import NotPositiveDefiniteError, ShapeError
from flashgp.foundations.events import Event, EventKind, StopReason
from flashgp.foundations.report import Report
from flashgp.foundations.workspace import Workspace
from flashgp.inference.approximate_plan import approximate_plan, exact_price, refuse_unfit
from flashgp.inference.approximation import Approximation, refuse_exact
from flashgp.inference.data import Data
from flashgp.inference.exact.likelihood import DirectSettings
from flashgp.inference.full_scale.condition import condition_on
from flashgp.inference.full_scale.layout import Layout, layout_of, with_points_that_suffice
from flashgp.inference.full_scale.left_out import lost
from flashgp.inference.full_scale.objective import FullScaleLogJoint
from flashgp.inference.full_scale.state import FullScaleState
from flashgp.inference.gathered import (
    agreed_memory,
    gathered,
    of_this_rank,
    own_rows_of_interrupted,
    shared_event,
)
from flashgp.inference.over_ranks import check_alike, planned_over
from flashgp.inference.plan_settings import chosen_device
from flashgp.inference.prior import Prior
from flashgp.inference.settings import ConditionSettings, SolveSettings
from flashgp.inference.training.checkpoint import log_over
from flashgp.inference.training.explained import nothing_explained
from flashgp.inference.training.fit import Fitted, last_pass, mark_of, problem_of, report_search
from flashgp.inference.training.history import Recorder, power_law
from flashgp.inference.training.linear_stages import LinearStages, plan_settings, report_answer, reserved_seconds
from flashgp.inference.training.objective import LogJoint, Problem, priors_in_force
from flashgp.inference.training.options import FitOptions
from flashgp.inference.training.parameter_vector import ParameterVector
from flashgp.pairwise.torch.tiles import TorchTiles
from flashgp.planner.approximate import ApproximatePlan
from flashgp.planner.approximate_prices import Sizes
from flashgp.planner.fit_stages import part_sizes
from flashgp.processes.agreement import deadline_of

MUCH = 0.05  # nats a row that more neighbours add, from which they are taken


@outside_inference_mode
@autocast_disabled
@deterministic_where(lambda prior, data, asked, options: options.deterministic)
def fit_full_scale(prior: Prior, data: Data, asked: Approximation, options: FitOptions) -> Fitted[FullScaleState]:
    """See `flashgp.fit`; with a group given the rows of all ranks, whose blocks are shared."""
    group = options.group
    if group.size == 1:
        return _fit(prior, data, asked, options)
    with group.together():
        before = group.bytes_sent
        check_alike(
            group, prior, asked, options.seed, options.deadline, starts=options.starts, initial=options.initial,
            priors=options.priors, max_iterations=options.max_iterations, checkpoint=options.checkpoint is not None,
            neighbours=asked.neighbours, memory=options.memory, deterministic=options.deterministic,
        )  # fmt: skip
        table = gathered(prior, data, group)
        data = Data(table.prior, table.x.detach(), table.y.detach())
        memory = agreed_memory(options.memory, chosen_device(options.device, data.x), group)
        options = dataclasses.replace(options, memory=memory, deadline=deadline_of(group, options.deadline))
        with own_rows_of_interrupted(table.shares, group):
            fitted = _fit(data.prior, data, asked, options)
        for report in (fitted.report, fitted.state.report):
            report.events.append(shared_event(group, before, table.shares, report.plan.shared, fitting=True))
        return dataclasses.replace(fitted, prior=of_this_rank(fitted.prior, table.shares, group))


def _fit(prior: Prior, data: Data, asked: Approximation, options: FitOptions) -> Fitted[FullScaleState]:
    """The same, given all rows on every rank."""
    began, ranks = time.perf_counter(), options.group
    single = None if options.dtype == torch.float64 else options.dtype
    refuse_exact(solver=options.solver, plan=options.plan, jitter=options.jitter, dtype=single)
    if not data.complete().count:
        raise ShapeError(
            f"`x` must have at least one row to fit, got shape {tuple(data.x.shape)}; condition on no rows instead"
        )
    x, y = contiguous_copy(data.x), contiguous_copy(data.y)
    refuse_unfit(prior, "full_scale", batch=data.is_batch)
    target, counts, limit = chosen_device(options.device, x), data.counts, options.deadline.limit
    wanted = plan_settings(options, target)

    def planned(sizes: Approximation, *, taken: bool = False) -> ApproximatePlan:
        plan = functools.partial(approximate_plan, prior, counts, settings=wanted, time_limit=limit, taken=taken)
        return planned_over(ranks, plan, sizes)

    plan = planned(asked)
    prior, asked = prior.released(), asked.resolved(plan.sizes)
    direct = DirectSettings(TorchTiles(), torch.float64, options.jitter, workspace=Workspace(deadline=options.deadline))
    problem = problem_of(prior, data, target, direct, options)
    path = None if options.checkpoint is None else Path(options.checkpoint)
    more = float(ranks.max(torch.tensor(-float(plan.most_neighbours)))) < 0.0  # on every rank
    beside = (asked.kind, more, *map(dataclasses.astuple, (plan.sizes, plan.sizes.coarse())), asked.points_like(x))
    mark = "" if path is None else mark_of(problem, options, beside)
    log = log_over(ranks, path, mark, options.settings.seconds_between_writes)
    searching = options.deadline.before(reserved_seconds(plan, options))
    recorder = Recorder(log, options.progress, searching, began=began, group=ranks)
    recorder.expect(exact_price(prior, counts, wanted), 3)
    recorder.expect(power_law(plan.fit_step_seconds, problem.rows, 1), 1)
    ratio = options.settings.stochastic.part_ratio
    choices = _Choices(problem, asked, options, more=more)
    trained = LinearStages(
        problem, problem.rows, lambda first: part_sizes(problem.rows, first, ratio), choices.objective, options,
        recorder, coarse=choices.coarse,
    ).run()  # fmt: skip
    report = Report()
    report_search(report, recorder, trained, options)
    settings = ConditionSettings(
        SolveSettings(options.seed, options.deterministic, options.tolerance, group=ranks), memory=options.memory,
        device=target, deadline=options.deadline, time=options.settings.time,
    )  # fmt: skip
    message = (
        "Ctrl-C came in the last pass of `fit`; the trained GP is the field `gp` of this exception: "
        "gp.condition(x, y, approximation=...) goes on from there"
    )
    with last_pass(ranks, message, prior, recorder):
        state = condition_on(prior, data, choices.asked, settings)
        state.report.events += choices.events
        answer = planned(choices.asked, taken=True) if choices.taken else plan
        state.report.plan = answer  # of the fit, which says what a fit with more neighbours takes
        # about what it takes
        events = [] if options.deadline.passed(plan.seconds) else [lost(state).event]
    report_answer(report, recorder, state, plan, direct.workspace)
    report.plan = state.report.plan = answer
    unexplained = nothing_explained(float(state.log_marginal_likelihood()), prior, y)
    report.events += events if unexplained is None else [*events, unexplained]
    objective = trained.objective
    assert isinstance(objective, LogJoint)
    in_force = priors_in_force(objective.parameters, weak=problem.weak)
    log_prior = objective.log_prior(trained.theta)
    interrupted = trained.stop is not StopReason.GOAL
    return Fitted(prior, state, recorder.history, report, interrupted, in_force, log_prior)


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
        """Of so many rows, with coarse sizes, eq. (M-208); inducing points of the caller's own are kept."""
        problem = self._at(size, theta)
        made = self._made(problem, self._layout(problem, self.asked.sizes(self.problem.rows).coarse()))
        self._coarse = made if problem is self.problem else None
        return made

    def objective(self, size: int, theta: numpy.ndarray) -> FullScaleLogJoint:
        """Of so many rows, with fewer points than planned where these suffice, eq. (M-207), and twice the neighbours
        where these add much, eq. (M-209)."""
        asked, group, problem = self.asked, self.options.group, self._at(size, theta)
        layout = self._layout(problem, asked.sizes(self.problem.rows))

        values: dict[FullScaleLogJoint, float] = {}

        def make(one: Layout) -> tuple[FullScaleLogJoint, float]:
            made = self._made(problem, one)
            values[made] = made.log_likelihood()
            return made, values[made]

        found = None
        if asked.leaves_points:
            with suppress(NotPositiveDefiniteError), group.together():  # which the search finds too, and passes over
                layout, found, event = with_points_that_suffice(layout, make, size, group)
                if problem is self.problem:
                    self.asked = asked.with_points(layout.sizes.inducing)
                    self.events += [] if event is None else [event]
        found = self._made(problem, layout) if found is None else found
        if problem is self.problem and self.more and self._coarse is not None:
            with suppress(NotPositiveDefiniteError), group.together():
                return self._with_neighbours_that_add_much(found, values.get(found), self._coarse)
        return found

    def _with_neighbours_that_add_much(
        self, found: FullScaleLogJoint, value: float | None, coarse: FullScaleLogJoint
    ) -> FullScaleLogJoint:
        """Twice the neighbours where these add more than MUCH nats a row; tried once, and only where those asked for
        have added as much to half of them.

        Args: value, the log likelihood of `found` where it is known, nats.
        """
        self._coarse, layout, rows = None, found.layout, self.problem.rows

        def gain(more: float, fewer: float) -> float:
            both = torch.tensor([(more - fewer) / rows], dtype=torch.float64)
            return float(self.options.group.from_first(both))

        value = found.log_likelihood() if value is None else value
        if gain(value, coarse.log_likelihood()) <= MUCH:
            return found
        sizes = layout.sizes.doubled().within(rows)
        other = self._made(self.problem, self._layout(self.problem, sizes, layout.inducing))
        added = gain(other.log_likelihood(), value)
        if added <= MUCH:
            return found
        self.asked, self.taken = self.asked.resolved(sizes), True
        kept, planned = sizes.neighbours, layout.sizes.neighbours
        self.events.append(Event(EventKind.MORE_NEIGHBOURS_TAKEN, kept=kept, planned=planned, gain=added))
        return other

    def _at(self, size: int, theta: numpy.ndarray) -> Problem:
        """So many of the rows, with rank 0's vector in their prior."""
        problem = self.problem if size == self.problem.rows else self.problem.subset(size, self.options.seed)
        theta = self.options.group.from_first(torch.from_numpy(theta)).numpy()
        ParameterVector(problem.prior, problem.roles).assign(theta)
        return problem

    def _layout(self, problem: Problem, sizes: Sizes, points: torch.Tensor | None = None) -> Layout:
        """Args: points, inducing points in place of those that would be chosen."""
        noise = problem.prior.sites(problem.y).variance.detach()
        own = self.asked.points_like(self.problem.x) if points is None else points
        sizes = sizes.within(problem.rows)
        return layout_of(problem.prior, problem.x, noise, sizes, self.options.seed, own, self.options.group)

    def _made(self, problem: Problem, layout: Layout) -> FullScaleLogJoint:
        return FullScaleLogJoint(problem, layout, self.options.group, self.options.seed)
