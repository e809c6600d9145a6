"""fit: one way for every engine: plan, search, posterior, report; resumable, interruptible, repeatable.

What an engine does in its own way is an `EngineFit`: exact inference (exact_fit.py), full scale (full_scale/fit.py) and
inducing points (streamed/fit.py). The log of evaluations is the checkpoint (docs/design.md, fit).
"""

import contextlib
import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from flashgp.foundations.contexts import entered
from flashgp.foundations.deadline import NO_DEADLINE, Deadline
from flashgp.foundations.determinism import contiguous_copy
from flashgp.foundations.errors import DomainError, FitInterrupted, NotPositiveDefiniteError, warn
from flashgp.foundations.events import Event, EventKind, StopReason
from flashgp.foundations.fingerprint import NoFingerprintError, fingerprint
from flashgp.foundations.normal import LOG_2PI
from flashgp.foundations.profile_ranges import profile_range
from flashgp.foundations.report import Report, joined_titles
from flashgp.inference.approximation import refuse_exact
from flashgp.inference.data import Data
from flashgp.inference.exact.likelihood import DirectSettings
from flashgp.inference.extent import check_extent, check_residual, check_rows
from flashgp.inference.gathered import (
    agreed_report,
    compare_models,
    local_rows_on_interrupt,
    of_this_rank,
    shared_event,
)
from flashgp.inference.over_ranks import asked_alike, gathered_for
from flashgp.inference.prior import Prior
from flashgp.inference.replicates import join
from flashgp.inference.run import with_run
from flashgp.inference.settings import ConditionSettings
from flashgp.inference.sites import IteratedSites, each_alone
from flashgp.inference.threads import one_thread
from flashgp.inference.training.checkpoint import EvaluationLog, log_over
from flashgp.inference.training.history import HistoryEntry, Recorder
from flashgp.inference.training.initial import DataFacts, role_starts
from flashgp.inference.training.left_out_variance import variance_by_leaving_out
from flashgp.inference.training.objective import LogJoint, Problem, priors_in_force
from flashgp.inference.training.options import FitOptions
from flashgp.inference.training.period_starts import PERIODIC_ROLES
from flashgp.inference.training.train import Trained
from flashgp.planner.plan import Plan
from flashgp.processes.group import Group
from flashgp.sources.source import RowSource
from flashgp.sources.survey import Survey

S = TypeVar("S", bound="FittedState")  # a state of any kind


@dataclass(frozen=True)
class Fitted(Generic[S]):
    """Result of a fit: a new prior, its state on all rows, the history, the report; interrupted if cut short.

    Fields: priors, those in force, by path and entry, in words; log_prior, theirs, nats, None where another objective
    was minimised.
    """

    prior: Prior
    state: S
    history: list[HistoryEntry]
    report: Report
    interrupted: bool
    priors: dict[str, list[str]]
    log_prior: float | None


class FittedState(Protocol):
    """A state that has a report of its own."""

    @property
    def report(self) -> Report: ...


def refuse_exact_fit(options: FitOptions) -> None:
    """DomainError for options of exact inference beside an approximation."""
    dtype = None if options.run.dtype == torch.float64 else options.run.dtype
    refuse_exact(solver=options.solver, plan=options.plan, jitter=options.jitter, dtype=dtype)


@dataclass(frozen=True)
class ExactPosterior:
    """Request for the exact posterior, whatever the search goes by.

    Fields: data; plan, of conditioning on it; condition, which does it.
    """

    data: Data
    plan: Plan
    condition: Callable[[Prior, Data, ConditionSettings], Any]


class EngineLeft(Exception):  # noqa: N818 - not an error
    """Another engine is expected to be better from the parameters of the first rows on.

    Fields: prior, with these; event, which says so; history, and seconds, of the search.
    """

    def __init__(self, prior: Prior, event: Event, recorder: Recorder) -> None:
        super().__init__(str(event))
        self.prior, self.event, self.history = prior, event, recorder.history
        self.seconds = time.perf_counter() - recorder.began


class EngineFit(ABC, Generic[S]):
    """A fit by one engine, planned.

    Args: prior; rows, of this rank with those of the others; options; asked, the approximation. Raises: as `fit`.

    Fields: prior, released; problem, rows that are held; plan; mark, what of the engine's own a checkpoint is of;
    searchers, ranks that search together; interrupts, of the posterior, which then is the best so far.
    """

    gathers: ClassVar[bool] = True  # whether every rank has all rows
    again: ClassVar[str]  # how a user goes on from a trained GP

    prior: Prior
    options: FitOptions
    problem: Problem
    plan: Plan
    mark: tuple[Any, ...]
    searchers: Group
    interrupts: list[Event]

    @abstractmethod
    def __init__(self, prior: Prior, rows: Any, options: FitOptions, *asked: Any) -> None: ...

    @property
    def result(self) -> Prior:
        """The prior with the parameters found, of the caller's rows."""
        return self.prior

    def searching(self, log: EvaluationLog, deadline: Deadline) -> Deadline:
        """Deadline of the search. Args: log, of the checkpoint, whose choice is kept; deadline, which leaves the
        posterior its time."""
        return deadline

    @property
    def chosen(self) -> list[Event]:
        """Events of choices of the search that differ from the plan."""
        return []

    def of_rows(self, rows: int, trained: Trained) -> LogJoint:
        """The objective of so many rows at the optimum."""
        return LogJoint(self.problem if rows == self.problem.rows else self.problem.subset(rows, self.options.run.seed))

    def with_sites(self, data: Data, trained: Trained) -> tuple[Prior, Data, list[Event]]:
        """The prior to condition under, the rows, and events: where sites take iteration, with those found at the
        optimum, of as many random rows as there is time for.

        Args: trained, whose variance is that of left out rows where the likelihood asks for it.
        """
        prior, deadline, n = self.result, self.options.run.deadline, self.problem.rows
        if self.problem.sites is None:
            return prior, data, []
        few = self.options.settings.time.min_rows
        rows = n if deadline.limit is None or n <= few else self.rows_on_time()
        widened = self.with_variance(rows, trained)
        last = self.of_rows(rows, trained)
        with one_thread(rows):
            found, told = last.with_sites(deadline if rows > few else self.options.settings.time.with_grace(deadline))
        prior = prior.with_likelihood(found.likelihood)
        events = [one for one in (widened, *told) if one is not None and one.kind is not EventKind.SITES]
        if rows == n:
            return prior, Data(prior, data.x, data.y, data.promoted), events
        events.append(Event(EventKind.POSTERIOR_OF_PART, rows=rows, of=n, **deadline.told))
        warn(str(events[-1]))
        return prior, Data(prior, last.problem.x, last.problem.y, data.promoted), events

    def with_variance(self, rows: int, trained: Trained) -> Event | None:
        """Give the parameters found the variance of left out rows where the likelihood asks for it, (M-341): the event
        of that. Args: rows, that there are at most."""
        if not self.problem.prior.likelihood.spread_by_leaving_out:
            return None
        part = self.of_rows(min(rows, self.options.settings.sites.left_out_rows), trained)
        expected = self.conditionings * self.plan.seconds * part.rows / self.problem.rows
        with one_thread(part.rows):
            trained.theta, event = variance_by_leaving_out(part, trained.theta, self.options.run, expected)
        return event

    def conditioning(self, **more: Any) -> ConditionSettings:
        """`FitOptions.conditioning`; without a deadline of its own where sites have had the time."""
        settings = self.options.conditioning(**more)
        return settings if self.problem.sites is None else with_run(settings, deadline=NO_DEADLINE)

    @property
    def likelihoods(self) -> float:
        """Likelihoods that an evaluation takes."""
        sites = self.options.settings.sites
        if self.problem.sites is None:
            return 1.0
        return sites.likelihoods_of(self.problem.prior.likelihood, self.plan.approximation)

    @property
    def conditionings(self) -> int:
        """Conditionings that a posterior with its sites takes."""
        return 1 if self.problem.sites is None else self.options.settings.sites.linear_conditionings

    def rows_on_time(self) -> int:
        """Rows whose sites and posterior there is time for by the plan, of work that is linear in them."""
        seconds = self.conditionings * self.plan.seconds / self.problem.rows
        rows = self.options.run.deadline.left / seconds if seconds > 0.0 else self.problem.rows
        return int(min(self.problem.rows, max(self.options.settings.time.min_rows, rows)))

    def interrupt(self) -> None:
        """Ctrl-C came in a solve of the posterior, which ends it with what it has."""
        self.interrupts.append(Event(EventKind.FIT_SOLVE_INTERRUPTED))

    @abstractmethod
    def expect(self, recorder: Recorder) -> None:
        """Give the recorder the plan's costs of evaluations, and its statements for the report."""

    @abstractmethod
    def search(self, recorder: Recorder) -> Trained:
        """Raises: NotPositiveDefiniteError if no start can be evaluated."""

    @abstractmethod
    def answer(self, trained: Trained, recorder: Recorder, report: Report) -> S:
        """The state on all rows, and the posterior's part of the report."""


@entered(lambda engine, prior, rows, options, *_, **__: options.run.deterministic)
def fitted_by(
    engine: type[EngineFit[S]],
    prior: Prior,
    rows: Data | RowSource | Survey,
    options: FitOptions,
    *asked: Any,
    exact: ExactPosterior | None = None,
    **more: Any,
) -> Fitted[Any]:
    """`flashgp.fit` by an engine, of one process or of all ranks of a group.

    Args: asked, more, what the engine takes beside, such as an `Approximation`; exact, for the exact posterior.
        Raises: as `flashgp.fit`, the same error on every rank.
    """
    began = time.perf_counter()
    with options.run.group.together() as group:
        if group.size == 1:
            return _fitted(engine(prior, rows, options, *asked, **more), began, exact)
        before, shares = group.bytes_sent, None
        alike = asked_alike(asked[0] if asked else None) | options.alike
        if engine.gathers:
            assert isinstance(rows, Data)
            prior, rows, shares, options = gathered_for(prior, rows, group, options, alike)
        else:
            compare_models(prior, group, **alike)
        with local_rows_on_interrupt(shares, group):
            fitted = _fitted(engine(prior, rows, options, *asked, **more), began, exact)
        agreed_report(fitted.state.report, group)
        for report in (fitted.report, fitted.state.report):
            report.events.append(shared_event(group, before, shares, report.plan.shared, fitting=True))
        return replace(fitted, prior=of_this_rank(fitted.prior, shares, group))


def _fitted(engine: EngineFit[S], began: float, exact: ExactPosterior | None = None) -> Fitted[Any]:
    options, problem, prior = engine.options, engine.problem, engine.prior
    path = None if options.checkpoint is None else Path(options.checkpoint)
    mark = "" if path is None else mark_of(problem, options, engine.mark)
    log = log_over(engine.searchers, path, mark, options.settings.seconds_between_writes)
    plan, deadline = engine.plan if exact is None else exact.plan, options.run.deadline
    times = engine.conditionings if plan.conditionings == 1 else 1  # which it has in it
    reserved = options.settings.time.reserved(plan, deadline.left, times)
    searching = engine.searching(log, deadline.before(reserved))
    recorder = Recorder(log, options.progress, searching, began=began, group=engine.searchers)
    engine.expect(recorder)
    try:
        trained = engine.search(recorder)
    except NotPositiveDefiniteError:
        with contextlib.suppress(OSError):  # what failed need not be evaluated again
            recorder.evaluations.write()
        rows = prior.kernel.rows(problem.x.cpu())
        check_rows(rows, "x")
        check_extent(prior.kernel.form, rows, "x")
        check_residual(prior.residual(problem.x.cpu(), problem.y.cpu().nan_to_num(nan=0.0)))  # where cells are missing
        raise
    report, objective = Report(), trained.objective
    report_search(report, recorder, trained, options)
    if trained.stop is StopReason.INTERRUPT:  # of one process: of several it is raised on all
        soon = options.run.deadline.interrupted(options.settings.time.interrupt_seconds)
        engine.options = options = with_run(options, deadline=soon)
    again = engine.again if exact is None else "gp.condition(x, y)"
    with last_pass(options.run.group, interrupted_message(path, again), engine.result, recorder):
        if exact is None:
            state: Any = engine.answer(trained, recorder, report)
        else:
            widened = engine.with_variance(problem.rows, trained)
            interrupt = engine.interrupt if problem.sites is None else None  # the end of one solve ends no steps
            state = exact.condition(engine.result, exact.data, options.conditioning(interrupted=interrupt))
            told = [*([] if widened is None else [widened]), Event(EventKind.EXACT_POSTERIOR)]
            report.events += [*engine.chosen, *told, *engine.interrupts[:1]]
            report_answer(report, recorder, state, engine, exact.plan)
    report_bounds(report, trained)
    in_force = priors_in_force(objective.parameters, weak=problem.weak)
    log_prior = objective.log_prior(trained.theta) if type(objective) is LogJoint else None
    interrupted = bool(engine.interrupts) or trained.stop is not StopReason.GOAL
    return Fitted(engine.result, state, recorder.history, report, interrupted, in_force, log_prior)


def problem_of(
    prior: Prior,
    data: Data,
    target: torch.device,
    direct: DirectSettings,
    options: FitOptions,
    *,
    joined: bool = True,
) -> Problem:
    """The distinct rows on their device, with the priors, bounds and starts that they suggest.

    Args: direct: how exact computations run, whose repair is set here; joined, whether rows of equal x become one.
    """
    with profile_range("transfers"):
        own = (t.clone() if t.is_inference() else contiguous_copy(t) for t in (data.x, data.y))  # which autograd saves
        x, y = (t.detach().to(target) for t in own)
    group = data.group if joined else None
    facts = DataFacts.of(x, y, prior.outputs, prior.likelihood.counts)
    deadline = options.run.deadline if options.run.group.size == 1 else NO_DEADLINE  # of ranks, the search's alone
    sites = IteratedSites.of(prior, x, y, options.settings.sites, deadline)
    if sites is not None:
        likelihood = prior.likelihood
        if likelihood.latent_is_y:
            facts = facts.of_most(y)
        else:
            facts = facts.of_latent(each_alone(prior, x, y, sites.settings), likelihood.latent_variance)
    few = not facts.latent and options.settings.search.columns.few_matter(facts.rows, x.shape[-1])
    facts = replace(facts, sparse=options.priors == "sparse" or (options.priors == "weak" and few))
    if group is not None:
        replicates = join(prior, x, y, group.to(target))
        x, y, prior = replicates.x, replicates.y, prior.with_likelihood(replicates.likelihood)
    direct = replace(direct, repair=lambda: prior.repairable(x, y))
    roles = role_starts(prior, facts)
    if options.initial == "given":  # a search that begins elsewhere may end below the values it was given
        roles = {parameter: role.containing(parameter.value.detach()) for parameter, role in roles.items()}
    return Problem(prior, x, y, direct, roles, options.priors != "given", sites)


def interrupted_message(checkpoint: Path | None, again: str) -> str:
    """Message of a Ctrl-C in the last solve."""
    resumed = "" if checkpoint is None else f", and so does the same fit with checkpoint={os.fspath(checkpoint)!r}"
    return (
        "Ctrl-C came in the last solve of `fit`, which has no partial answer; the trained GP is the field `gp` of this "
        f"exception (sys.last_value.gp in an interactive session): {again} goes on from there{resumed}"
    )


@contextlib.contextmanager
def last_pass(group: Group, message: str, prior: Prior, recorder: Recorder) -> Iterator[None]:
    """Context of the work after a fit's search: Ctrl-C within is a FitInterrupted with the trained GP, on every rank.

    Args: message, of the exception; prior, as trained.
    """
    try:
        with group.together():
            yield
    except KeyboardInterrupt as stop:
        if group.size > 1 and group.source_of(stop) is None:
            raise  # it came to this rank as all had ended the pass: the others are told of it in what follows
        raise group.share_error(FitInterrupted(message, gp=prior, history=recorder.history)) from stop


def mark_of(problem: Problem, options: FitOptions, beside: tuple[Any, ...]) -> str:
    """The fingerprint of data, model, options and what is beside them. Raises: DomainError for a model without one."""
    settings = (
        options.starts, options.initial, options.priors, options.max_iterations, options.run.seed, options.jitter,
        options.run.deterministic, *beside,
    )  # fmt: skip
    try:
        return fingerprint(
            x=problem.x, y=problem.y, gp=problem.prior, profile=problem.prior.kernel.form.profile.key, settings=settings
        )
    except NoFingerprintError as error:
        raise DomainError(
            f"`checkpoint` needs a model that can be told from others, but {error}; give that object, or the function "
            "or module that holds it, a text attribute `fingerprint` that you change with it, or leave out `checkpoint`"
        ) from None


def report_search(report: Report, recorder: Recorder, trained: Trained, options: FitOptions) -> None:
    """Write the checkpoint, and the events of the search into the report."""
    report.events += recorder.events
    if trained.stop is StopReason.INTERRUPT:
        report.events.append(Event(EventKind.FIT_INTERRUPTED))
    if trained.stop is StopReason.TIME:
        rows = trained.objective.rows
        how_far: dict[str, float] = {}
        if not recorder.history:
            how_far = {"unfitted": True}
        elif recorder.rows < rows:
            how_far = {"fitted": recorder.rows, "rows": rows}
        if recorder.next_seconds is not None:
            how_far["next_seconds"], how_far["left_seconds"] = recorder.next_seconds
        report.events.append(Event(EventKind.FIT_TIME_UP, limit=options.run.deadline.limit, **how_far))
    try:
        recorder.evaluations.write()
    except OSError as error:  # a full disk must not cost the fit
        report.events.append(Event(EventKind.CHECKPOINT_FAILED, error=str(error)))
        warn(f"`checkpoint` could not be written ({error}); the fit itself is complete")
    if recorder.failures:
        report.events.append(Event(EventKind.POINTS_REJECTED, points=recorder.failures, estimated=trained.estimated))
    if recorder.evaluations.replayed:
        report.events.append(
            Event(EventKind.RESUMED, evaluations=recorder.evaluations.replayed, estimated=trained.estimated)
        )
    sites = trained.objective.problem.sites
    if sites is not None:
        name, steps = trained.objective.problem.prior.likelihood.name, sites.steps
        report.events.append(Event(EventKind.FIT_SITES, likelihood=name, steps=sum(steps), evaluations=len(steps)))
    jitters = trained.objective.problem.direct.jitters
    if jitters:
        report.events.append(Event(EventKind.FIT_JITTER, attempts=len(jitters)))
    values, known = trained.objective.problem.y.numel(), trained.objective.parameters.own_count
    if values < known:
        report.events.append(Event(EventKind.FEW_VALUES, values=values, parameters=known))


def report_bounds(report: Report, trained: Trained) -> None:
    """Events of parameters that ended on a bound."""
    low, high = trained.objective.parameters.bounds()
    for name, at_bound in zip(
        trained.objective.parameters.names(), (trained.theta <= low) | (trained.theta >= high), strict=True
    ):
        if at_bound:
            report.events.append(Event(EventKind.ON_BOUND, parameter=name))
    for name, bound in trained.objective.parameters.on_edges(trained.theta):
        report.events.append(Event(EventKind.ON_BOUND, parameter=name, bound=bound))


def report_answer(
    report: Report, recorder: Recorder, state: FittedState, engine: EngineFit[Any], plan: Plan | None = None
) -> None:
    """Fill the report of a fit from the state, the plan and the counts of the search.

    Args: plan, that of a posterior by another engine than the search's.
    """
    conditioning, workspace = state.report, engine.problem.direct.workspace
    for name in (
        "route", "device", "dtype", "relative_residual", "error_bound", "standard_error", "jitter", "predicted_bytes",
    ):  # fmt: skip
        setattr(report, name, getattr(conditioning, name))
    if plan is None:
        planned = engine.plan
        report.plan, report.predicted_seconds = planned, planned.fit_seconds or None
        if planned.approximation:
            conditioning.plan, report.predicted_bytes = planned, planned.training_bytes  # of the search too
    else:
        report.plan, report.predicted_seconds = plan, engine.plan.fit_seconds + plan.seconds
    report.backend = joined_titles(*workspace.backends, conditioning.backend)
    report.events += [event for event in workspace.events if event not in conditioning.events]
    report.events += conditioning.events
    report.peak_bytes = max(workspace.peak_bytes, conditioning.peak_bytes or 0)
    report.iterations = len(recorder.history)
    report.compile_seconds = workspace.compile_seconds or None
    report.seconds = time.perf_counter() - recorder.began - workspace.compile_seconds


def beside_a_constant(
    engine: EngineFit[S], trained: Trained, state: S, evidence: Callable[[S], float], again: Callable[[], S], y: Tensor
) -> tuple[S, list[Event]]:
    """The state, and events where it explains the targets no better than a constant.

    Where a time limit left parameters of few rows that do, the state is a better one, if there is: at where the search
    began, or with the noise reset, which few rows with copies among them seem to lack.

    Args:
        evidence: log p(y) of a state, nats.
        again: conditions at the parameters that the prior then has.
        y: targets of all rows, (n,) or (n, outputs).
    """
    known = value = evidence(state)
    unexplained = nothing_explained(value, engine.prior, y)
    options, parameters, found = engine.options, trained.objective.parameters, trained.theta
    cut = trained.stop is StopReason.TIME and options.initial == "data" and engine.problem.sites is None
    room = 2 * engine.plan.peak_bytes <= engine.plan.available_bytes  # for two states at once
    if unexplained is None or not (cut and room) or engine.searchers.size > 1:
        return state, [] if unexplained is None else [unexplained]
    (start,) = parameters.starts(1, from_data=True, spread=0.0, seed=0)
    for theta in (start, parameters.with_noise_reset(found, options.settings.search.reset_noise)[0]):
        if options.settings.time.late(options.run.deadline, engine.plan.seconds):
            break
        parameters.assign(theta)
        with contextlib.suppress(NotPositiveDefiniteError):
            other = again()
            if (gained := evidence(other)) > value:
                state, value, trained.theta = other, gained, theta
    parameters.assign(trained.theta)
    if value == known:
        return state, [unexplained]
    unexplained = nothing_explained(value, engine.prior, y)
    return state, [Event(EventKind.SEARCH_LEFT, gain=value - known), *([] if unexplained is None else [unexplained])]


CHANCE = 1.0  # nats that a model without periods gains of a target that is noise
PER_PERIOD = 1.5  # log n each: of noise, some frequency explains so much


def nothing_explained(evidence: float, prior: Prior, y: Tensor) -> Event | None:
    """An event where the log marginal likelihood is no higher than that of a constant with noise, or than chance.

    Args:
        evidence: log p(y), nats, of the fitted model.
        prior: as fitted; y: its targets, (n,) or (n, outputs), NaN where a cell is missing.
    Returns: None where it explains more, where y is constant or of a batch, and where the user says what the noise is.
    Source: Djurić (1996), A model selection rule for sinusoids in white Gaussian noise, for 1.5 log n.
    """
    y = y.detach().double()
    n, noise = len(y), prior.likelihood.linear_noise()
    if y.dim() != 1 + (prior.outputs is not None) or noise is None or noise.parameter is None or n < 3:
        return None
    if not (prior.likelihood.rows_alike and noise.parameter.trainable):
        return None
    columns = [column[~column.isnan()] for column in y.reshape(n, -1).unbind(-1)]
    variances = torch.stack([column.var(correction=0) for column in columns])
    variances = variances if prior.separate else variances.mean().expand_as(variances)
    if not float(variances.min()) > 0.0:
        return None
    counts = variances.new_tensor([len(column) for column in columns])
    constant = -0.5 * float((counts * (variances.log() + LOG_2PI + 1.0)).sum())
    periods = sum(
        parameter.raw.numel()
        for leaf in prior.kernel.leaves()
        for name, role in getattr(leaf, "roles", {}).items()
        if role in PERIODIC_ROLES and (parameter := getattr(leaf, name)).trainable
    )
    gain, chance = evidence - constant, CHANCE + PER_PERIOD * periods * math.log(n)
    if gain > chance:
        return None
    return Event(EventKind.NOTHING_EXPLAINED, gain=gain, chance=chance, periods=periods or None)
