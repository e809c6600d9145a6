"""fit: maximise the log joint from starts the data suggest; resumable, interruptible, repeatable.

Starts are fitted to few rows, and the best goes on to more and more of them (stages.py, stochastic.py). The log of
evaluations is the checkpoint (docs/design.md, fit).
"""

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from flashgp.foundations.contexts import autocast_disabled, outside_inference_mode
from flashgp.foundations.determinism import contiguous_copy, deterministic_where
from flashgp.foundations.errors import (
    DomainError,
    FitInterrupted,
    MemoryBudgetError,
    NotPositiveDefiniteError,
    ShapeError,
    warn,
)
from flashgp.foundations.events import Event, EventKind, StopReason
from flashgp.foundations.fingerprint import NoFingerprintError, fingerprint
from flashgp.foundations.profile_ranges import profile_range
from flashgp.foundations.quantities import readable_bytes
from flashgp.foundations.report import Report, joined_titles
from flashgp.foundations.workspace import Workspace
from flashgp.inference.approximate_plan import offer_event, offered, with_offers
from flashgp.inference.data import Data
from flashgp.inference.exact.condition import condition
from flashgp.inference.exact.evidence import evidence_is_known, log_evidence
from flashgp.inference.exact.likelihood import DirectSettings
from flashgp.inference.exact_plan import conditioning_plan
from flashgp.inference.extent import check_extent, check_residual, check_rows
from flashgp.inference.gathered import agreed_plan
from flashgp.inference.missing_cells import check_observed
from flashgp.inference.output_states import AnyState
from flashgp.inference.plan import check_plan, planned_device
from flashgp.inference.plan_settings import PlanSettings, RowCounts
from flashgp.inference.prior import Prior
from flashgp.inference.replicates import join
from flashgp.inference.settings import ConditionSettings, SolveSettings
from flashgp.inference.training.checkpoint import log_over
from flashgp.inference.training.explained import nothing_explained
from flashgp.inference.training.history import HistoryEntry, Recorder, power_law
from flashgp.inference.training.initial import DataFacts, role_starts
from flashgp.inference.training.objective import LogJoint, Problem, priors_in_force
from flashgp.inference.training.options import FitOptions
from flashgp.inference.training.stochastic_objective import EstimateOptions
from flashgp.inference.training.train import Trained, train
from flashgp.pairwise.torch.tiles import TorchTiles
from flashgp.planner.approximate import ApproximatePlan
from flashgp.planner.plan import Plan, allowed_bytes
from flashgp.processes.group import Group

S = TypeVar("S")  # a state of any kind


@dataclass(frozen=True)
class Fitted(Generic[S]):
    """What a fit found: a new prior, its state on all rows, the history, the report; interrupted if cut short.

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


@outside_inference_mode
@autocast_disabled
@deterministic_where(lambda prior, data, options: options.deterministic)
def fit_prior(prior: Prior, data: Data, options: FitOptions) -> Fitted[AnyState]:
    """See `flashgp.fit`."""
    began = time.perf_counter()
    settings, seed, deadline = options.settings, options.seed, options.deadline
    ranks, cells = options.group, data.cells
    prior, plan = prior.released(), agreed_plan(_plan(prior, data, options), ranks)
    if cells is not None:
        check_observed(prior, cells)
        if plan.training != "exact":
            raise DomainError(
                f"`y` must have all cells where gradients of {data.count:,} rows are estimated, got missing ones; "
                "fit a model for each output, or fewer rows"
            )
    # Of the exact gradient's factor; estimated gradients round their products only.
    dtype = torch.float32 if plan.training == "exact" and plan.route == "refined" else torch.float64
    workspace = Workspace(allowed_bytes(max(plan.training_bytes, plan.peak_bytes)), deadline=deadline)
    target = planned_device(plan, options.device, data.x)
    problem = problem_of(
        prior, data, target, DirectSettings(TorchTiles(), dtype, options.jitter, workspace=workspace), options
    )
    path = None if options.checkpoint is None else Path(options.checkpoint)
    mark = "" if path is None else mark_of(problem, options, (plan.dtype, plan.training))
    searching = deadline.before(settings.time.reserved(plan, deadline.left))
    log = log_over(ranks, path, mark, settings.seconds_between_writes)
    recorder = Recorder(log, options.progress, searching, began=began, group=ranks)
    power = 3 if plan.training == "exact" else 2
    recorder.expect(power_law(plan.fit_step_seconds, problem.rows, power), power)
    estimate = None
    if plan.training != "exact" and options.jitter is None and not data.is_batch:  # of one system as it is
        estimate = EstimateOptions(
            stored=plan.training == "stored", seed=seed, factor_passes=plan.training_factor_passes or None,
            rank=plan.training_rank, deadline=searching, group=ranks,
        )  # fmt: skip
    try:
        trained = train(problem, options, recorder, estimate)
    except NotPositiveDefiniteError:
        with contextlib.suppress(OSError):  # what failed need not be evaluated again
            recorder.evaluations.write()
        rows = prior.kernel.rows(problem.x.cpu())
        check_rows(rows, "x")
        check_extent(prior.kernel.form, rows, "x")
        check_residual(prior.residual(problem.x.cpu(), problem.y.cpu().nan_to_num(nan=0.0)))  # where cells are missing
        raise
    report = Report()
    report.events += _offers(prior, plan, options)
    report_search(report, recorder, trained, options)
    interrupts: list[Event] = []
    conditioning = ConditionSettings(
        SolveSettings(seed, options.deterministic, options.tolerance, group=ranks), deadline=deadline,
        plan=plan if cells is None else None, device=options.device, jitter=options.jitter,
        float32_factor=not trained.rough_factors,
        interrupted=lambda: interrupts.append(Event(EventKind.FIT_SOLVE_INTERRUPTED)), time=settings.time,
        cores=recorder.free_cores,
    )  # fmt: skip
    with last_pass(ranks, interrupted_message(path), prior, recorder):
        state = condition(prior, data, conditioning)
    report.events += interrupts[:1]
    interrupted = bool(interrupts) or trained.stop is not StopReason.GOAL
    report_exact(report, recorder, state, plan, problem.direct.workspace)
    if not data.is_batch and evidence_is_known(state):
        report.events += [e for e in [nothing_explained(float(log_evidence(state)), prior, data.y)] if e is not None]
    objective = trained.objective
    in_force = priors_in_force(objective.parameters, weak=problem.weak)
    log_prior = objective.log_prior(trained.theta) if type(objective) is LogJoint else None
    return Fitted(prior, state, recorder.history, report, interrupted, in_force, log_prior)


def _plan(prior: Prior, data: Data, options: FitOptions) -> Plan:
    """The plan given, checked, or made. Raises: ShapeError without rows; MemoryBudgetError if training does not fit."""
    x, rows, plan = data.x, data.count, options.plan
    if plan is not None:
        device = planned_device(plan, options.device, x)
        beside = ConditionSettings(
            SolveSettings(group=options.group), memory=options.memory, dtype=options.dtype, jitter=options.jitter
        )
        check_plan(plan, prior, x, device, data.distinct, beside)
    if rows == 0:
        raise ShapeError(
            f"`x` must have at least one row to fit, got shape {tuple(x.shape)}; condition on no rows instead"
        )
    if plan is None:
        asked = PlanSettings(
            options.memory, x.device if options.device is None else options.device, options.dtype,
            solver=options.solver, factored=options.jitter is not None or data.is_batch,
            deterministic=options.deterministic, stages=options.stages, ranks=options.group.size,
        )  # fmt: skip
        plan = conditioning_plan(prior, data.counts, asked, training=True)
    if plan.training_bytes > plan.available_bytes:
        error = MemoryBudgetError(
            f"fitting {rows:,} rows needs {readable_bytes(plan.training_bytes)} with "
            f"{readable_bytes(plan.available_bytes)} available; pass a larger memory=, or condition with given "
            f"hyperparameters, which needs {readable_bytes(plan.peak_bytes)}",
            needed_bytes=plan.training_bytes,
            available_bytes=plan.available_bytes,
        )
        raise with_offers(error, _approximations(prior, plan, options), training=True)
    return plan


def _approximations(prior: Prior, plan: Plan, options: FitOptions) -> tuple[ApproximatePlan, ...]:
    """The approximations that would fit in place of an exact plan."""
    models = max(1, plan.batch // max(1, prior.kernel.batch_shape.numel()))
    asked = PlanSettings(
        plan.available_bytes, torch.device(plan.device), deterministic=options.deterministic, stages=options.stages,
        ranks=options.group.size,
    )  # fmt: skip
    rows = RowCounts(plan.n, plan.d, plan.distinct, models)
    return offered(prior, rows, asked, options.deadline.limit)


def _offers(prior: Prior, plan: Plan, options: FitOptions) -> list[Event]:
    """What approximations would take, where an exact fit takes longer than its limit."""
    limit = options.deadline.limit
    if limit is None or plan.fit_seconds <= limit:
        return []
    plans = _approximations(prior, plan, options)
    quicker = tuple(one for one in plans if one.fit_seconds < plan.fit_seconds)
    return [offer_event(plan, quicker, limit)] if quicker else []


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
        x, y = (contiguous_copy(t).detach().to(target) for t in (data.x, data.y))
    group = data.group if joined else None
    facts = DataFacts.of(x, y, prior.outputs, prior.likelihood.counts)
    if group is not None:
        replicates = join(prior, x, y, group.to(target))
        x, y, prior = replicates.x, replicates.y, prior.with_likelihood(replicates.likelihood)
    direct = replace(direct, repair=lambda: prior.repairable(x, y))
    roles = role_starts(prior, facts)
    if options.initial == "given":  # a search that begins elsewhere may end below the values it was given
        roles = {parameter: role.containing(parameter.value.detach()) for parameter, role in roles.items()}
    return Problem(prior, x, y, direct, roles, options.priors == "weak")


def interrupted_message(checkpoint: Path | None) -> str:
    """What a Ctrl-C in the last solve leaves."""
    again = "" if checkpoint is None else f", and so does the same fit with checkpoint={os.fspath(checkpoint)!r}"
    return (
        "Ctrl-C came in the last solve of `fit`, which has no partial answer; the trained GP is the field `gp` of this "
        f"exception (sys.last_value.gp in an interactive session): gp.condition(x, y) goes on from there{again}"
    )


@contextlib.contextmanager
def last_pass(group: Group, message: str, prior: Prior, recorder: Recorder) -> Iterator[None]:
    """What follows the search of a fit: Ctrl-C within is a FitInterrupted with the trained GP, on every rank.

    Args: message, of the exception; prior, as trained.
    """
    try:
        with group.together():
            yield
    except KeyboardInterrupt as stop:
        if group.size > 1 and group.source_of(stop) is None:
            raise  # it came to this rank as all had ended the pass: the others are told of it in what follows
        raise group.raised_by_all(FitInterrupted(message, gp=prior, history=recorder.history)) from stop


def mark_of(problem: Problem, options: FitOptions, beside: tuple[Any, ...]) -> str:
    """The fingerprint of data, model, options and what is beside them. Raises: DomainError for a model without one."""
    settings = (
        options.starts, options.initial, options.priors, options.max_iterations, options.seed, options.jitter,
        options.deterministic, *beside,
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
        report.events.append(Event(EventKind.FIT_TIME_UP, limit=options.deadline.limit, **how_far))
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
    jitters = trained.objective.problem.direct.jitters
    if jitters:
        report.events.append(Event(EventKind.FIT_JITTER, attempts=len(jitters)))
    values, known = trained.objective.problem.y.numel(), trained.objective.parameters.own_count
    if values < known:
        report.events.append(Event(EventKind.FEW_VALUES, values=values, parameters=known))
    low, high = trained.objective.parameters.bounds()
    for name, at_bound in zip(
        trained.objective.parameters.names(), (trained.theta <= low) | (trained.theta >= high), strict=True
    ):
        if at_bound:
            report.events.append(Event(EventKind.ON_BOUND, parameter=name))
    for name, bound in trained.objective.parameters.on_edges(trained.theta):
        report.events.append(Event(EventKind.ON_BOUND, parameter=name, bound=bound))


def report_exact(report: Report, recorder: Recorder, state: AnyState, plan: Plan, workspace: Workspace) -> None:
    """Fill the report from the state and the counts of the search."""
    conditioning = state.report
    for name in ("route", "device", "dtype", "relative_residual", "error_bound", "jitter", "predicted_bytes"):
        setattr(report, name, getattr(conditioning, name))
    report.plan = plan
    report.backend = joined_titles(*workspace.backends, conditioning.backend)
    report.events += [event for event in workspace.events if event not in conditioning.events]
    report.events += conditioning.events
    report.peak_bytes = max(workspace.peak_bytes, conditioning.peak_bytes or 0)
    report.iterations = len(recorder.history)
    report.predicted_seconds = plan.fit_seconds or None
    report.compile_seconds = workspace.compile_seconds or None
    report.seconds = time.perf_counter() - recorder.began - workspace.compile_seconds
