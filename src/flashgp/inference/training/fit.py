"""fit: maximise the log joint by L-BFGS-B, from starts the data suggest; resumable, interruptible, repeatable.

Small problems run several starts in lockstep, one joint evaluation at a time; large ones fit their starts to a subset
first and go on from the best. The log of evaluations is the checkpoint (docs/design.md, fit).
"""

import logging
import math
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy
import torch

from flashgp.foundations.checks import check_points, check_targets, promotions
from flashgp.foundations.contexts import exact_precision, ordinary_tensors
from flashgp.foundations.determinism import deterministic_where, in_own_memory
from flashgp.foundations.errors import (
    DomainError,
    FitInterrupted,
    FlashGPWarning,
    MemoryBudgetError,
    NotPositiveDefiniteError,
    ShapeError,
)
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.parameters import Parameter, named_parameter_objects
from flashgp.foundations.profile_ranges import stretch
from flashgp.foundations.report import Report, counted, readable_bytes
from flashgp.foundations.run_log import log_run
from flashgp.foundations.workspace import Workspace
from flashgp.inference.exact.condition import condition
from flashgp.inference.exact.likelihood import DirectSettings
from flashgp.inference.plan import check_plan, plan_for, planned_device
from flashgp.inference.prior import Prior
from flashgp.inference.replicates import equal_rows, join
from flashgp.inference.settings import ConditionSettings, SolveSettings
from flashgp.inference.state import State
from flashgp.inference.threads import quiet_openblas
from flashgp.inference.training.checkpoint import EvaluationLog, fingerprint
from flashgp.inference.training.history import Evaluation, Progress, Recorder, TimeUp
from flashgp.inference.training.initial import DataFacts, RoleStart, role_starts
from flashgp.inference.training.lbfgs import (
    SUBSET_ROWS,
    best_of,
    best_on_subset,
    bounds_of,
    minimise,
    start_vectors,
    vector_of,
    wake,
)
from flashgp.inference.training.objective import FlatObjective
from flashgp.inference.training.stochastic import fit_many_rows
from flashgp.inference.training.stochastic_objective import MOST_ITERATIONS, LargeObjective
from flashgp.likelihoods.replicated import ReplicatedGaussian
from flashgp.pairwise.torch.tiles import TorchTiles
from flashgp.planner.plan import Plan, allowed_bytes

__all__ = ["Fitted", "fit_prior"]

log = logging.getLogger("flashgp.fit")

BATCHED_PAIRS = 2**20  # starts run together while starts * n^2 stays below this (docs/decisions/0004)
DEFAULT_STARTS = 4
ANSWER_SHARE = 0.1  # of a time limit, that the posterior of the parameters found gets at least


@dataclass(frozen=True)
class Fitted:
    """What a fit found: a new prior, its state on all rows, the history, the report; interrupted if cut short."""

    prior: Prior
    state: State
    history: list[Evaluation]
    report: Report
    interrupted: bool


@ordinary_tensors
@exact_precision
@deterministic_where(lambda *_, deterministic=False, **__: deterministic)
def fit_prior(
    gp: Prior,
    x: Any,
    y: Any,
    *,
    starts: int | None = None,
    initial: Literal["data", "given"] = "data",
    priors: Literal["weak", "given"] = "weak",
    max_iterations: int = 200,
    time_limit: float | None = None,
    memory: str | int | None = None,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    plan: Plan | None = None,
    tolerance: float = 1e-3,
    jitter: float | None = None,
    seed: int = 0,
    deterministic: bool = False,
    checkpoint: str | Path | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Fitted:
    """See `flashgp.fit`."""
    began = time.perf_counter()
    _check_options(starts, initial, priors, max_iterations, time_limit, tolerance, seed)
    promoted = promotions(x=x, y=y)
    x = check_points(x, "x")
    y = check_targets(y, "y", x, gp.outputs)
    x, y = in_own_memory(x), in_own_memory(y)
    group = equal_rows(gp, x, y)
    n = x.shape[-2] if group is None else int(group.max()) + 1
    if plan is not None:
        check_plan(plan, gp, x, memory, dtype, planned_device(plan, device, x), distinct=n, jitter=jitter)
    if x.shape[-2] == 0:
        raise ShapeError(
            f"`x` must have at least one row to fit, got shape {tuple(x.shape)}; condition on no rows instead"
        )
    gp = gp.released()
    if plan is None:
        where = x.device if device is None else device
        plan = plan_for(
            gp, x.shape[-2], x.shape[-1], distinct=n, batch=x.shape[:-2].numel(), memory=memory, device=where,
            dtype=dtype, factored=jitter is not None or gp.is_batch(x, y), deterministic=deterministic,
        )  # fmt: skip
    if plan.training_bytes > plan.available_bytes:
        raise MemoryBudgetError(
            f"fitting {x.shape[-2]:,} rows needs {readable_bytes(plan.training_bytes)} with "
            f"{readable_bytes(plan.available_bytes)} available; pass a larger memory=, or condition with given "
            f"hyperparameters, which needs {readable_bytes(plan.peak_bytes)}",
            needed_bytes=plan.training_bytes,
            available_bytes=plan.available_bytes,
        )
    target = planned_device(plan, device, x)
    with stretch("transfers"):
        work_x, work_y = x.detach().to(target), y.detach().to(target)
    own = gp.likelihood
    counts = 1.0 + own.excess if isinstance(own, ReplicatedGaussian) else None
    facts = DataFacts.of(work_x, work_y, gp.outputs, counts)
    if group is not None:  # the rows that differ, until the posterior
        replicates = join(gp, work_x, work_y, group.to(target))
        work_x, work_y, gp.likelihood = replicates.x, replicates.y, replicates.likelihood
    roles = role_starts(gp, facts)
    given = {name: p.value.detach().clone() for name, p in named_parameter_objects(gp)}
    workspace = Workspace(allowed_bytes(max(plan.training_bytes, plan.peak_bytes)))
    # Of the exact gradient's factor; estimated gradients round their products only.
    dtype_of_training = torch.float32 if plan.training == "exact" and plan.route == "refined" else torch.float64
    settings = DirectSettings(
        TorchTiles(), dtype_of_training, jitter, repair=lambda: gp.repairable(work_x, work_y), workspace=workspace
    )
    objective = FlatObjective(gp, work_x, work_y, settings, roles, weak=priors == "weak")
    search_limit = math.inf if time_limit is None else time_limit - min(plan.seconds, ANSWER_SHARE * time_limit)
    large = None
    if plan.training != "exact" and jitter is None and not gp.is_batch(x, y):  # estimates are of one system as it is
        large = LargeObjective(
            gp, work_x, work_y, settings, roles, priors == "weak", stored=plan.training == "stored", seed=seed,
            factor_passes=plan.training_factor_passes or MOST_ITERATIONS, rank=plan.training_rank,
            deadline=began + search_limit,
        )  # fmt: skip
    small = (starts or DEFAULT_STARTS) * plan.batch * n * n <= BATCHED_PAIRS
    count = starts if starts is not None else (DEFAULT_STARTS if objective.batchable and initial == "data" else 1)
    mark = fingerprint(
        work_x.cpu().numpy(), work_y.cpu().numpy(), *_marks(gp),
        starts, initial, priors, max_iterations, seed, plan.dtype, plan.training, jitter, 3,
        *(["deterministic"] if deterministic else []),
    )  # fmt: skip
    recorder = Recorder(
        EvaluationLog(Path(checkpoint) if checkpoint is not None else None, mark),
        progress,
        deadline=search_limit,
        expected=max_iterations * ((count if small else 1) + (count > 1)),
        began=began,
    )
    report = Report(events=promoted)
    interrupted = False
    try:
        thetas = start_vectors(objective, roles, given, count, initial, seed)
        if (len(thetas) > 1 and not small) or large is not None:
            recorder.phase = "choosing a start on a subset"
            thetas = [best_on_subset(gp, work_x, work_y, settings, roles, priors == "weak", thetas, seed, recorder)]
            report.events.append(Event(EventKind.SUBSET_FIT, starts=count, subset=min(SUBSET_ROWS, n), rows=n))
        if large is not None:
            with quiet_openblas():
                fit_many_rows(
                    gp, work_x, work_y, settings, large, roles, priors == "weak", thetas[0],
                    max_iterations=max_iterations, waking=count > 1, seed=seed, recorder=recorder, report=report,
                )  # fmt: skip
        else:
            recorder.phase = "fitting"
            minimise(objective, roles, thetas, max_iterations, recorder, "start")
            if count > 1:
                recorder.phase = "waking columns"
                wake(objective, roles, max_iterations, recorder, report)
    except (KeyboardInterrupt, TimeUp) as stop:
        interrupted = True
        report.events.append(
            Event(EventKind.FIT_INTERRUPTED)
            if isinstance(stop, KeyboardInterrupt)
            else Event(EventKind.FIT_TIME_UP, limit=time_limit)
        )
    try:
        recorder.evaluations.write()
    except OSError as error:  # a full disk must not cost the fit
        report.events.append(Event(EventKind.CHECKPOINT_FAILED, error=str(error)))
        warnings.warn(
            f"`checkpoint` could not be written ({error}); the fit itself is complete", FlashGPWarning, stacklevel=2
        )
    best = best_of(recorder, "start") if large is None else recorder.reached
    for label in ("middle", "subset"):
        best = best_of(recorder, label) if best is None else best
    if best is None:
        if interrupted and not recorder.failures:
            best = vector_of(objective, given)
        else:
            raise NotPositiveDefiniteError(
                "no start of `fit` gave a positive definite covariance matrix in "
                f"{counted(recorder.failures, 'evaluation')}; scale the inputs, add noise, or pass jitter=",
                jitters=settings.jitters,
            )
    objective.assign(best)
    _describe(report, recorder, objective, roles, best, estimated=large is not None)
    gp.likelihood = own
    left = None if time_limit is None else max(time_limit - (time.perf_counter() - began), ANSWER_SHARE * time_limit)

    cut: list[Event] = []

    def answered(limit: float | None) -> State:
        settings = ConditionSettings(
            SolveSettings(seed, deterministic, tolerance), time_limit=limit, plan=plan, device=device, jitter=jitter,
            interrupted=lambda: cut.append(Event(EventKind.FIT_SOLVE_INTERRUPTED)),
            float32_factor=large is None or not large.rough_factors,
        )  # fmt: skip
        return condition(gp, x, y, settings)

    try:
        state = _with_an_answer(answered, left)
    except KeyboardInterrupt as stop:
        raise FitInterrupted(_without_answer(checkpoint), gp=gp, history=recorder.history) from stop
    report.events += cut[:1]
    interrupted = interrupted or bool(cut)
    for name in (
        "route",
        "device",
        "dtype",
        "relative_residual",
        "error_bound",
        "jitter",
        "predicted_bytes",
    ):
        setattr(report, name, getattr(state.report, name))
    report.plan = plan
    report.backend = " and ".join(dict.fromkeys(filter(None, (*workspace.backends, state.report.backend))))
    report.events += [event for event in workspace.events if event not in state.report.events]
    report.events += state.report.events
    report.peak_bytes = max(workspace.peak_bytes, state.report.peak_bytes or 0)
    report.iterations = len(recorder.history)
    on_all_rows = sum(e.start.startswith("start") for e in recorder.history)
    report.predicted_seconds = on_all_rows * plan.fit_step_seconds + plan.seconds
    report.compile_seconds = workspace.compile_seconds or None
    report.seconds = time.perf_counter() - began - workspace.compile_seconds
    if not interrupted and report.route == plan.route:
        log_run("fit", plan, report.predicted_seconds, report.seconds)
    return Fitted(gp, state, recorder.history, report, interrupted)


def _with_an_answer(answered: Callable[[float | None], State], limit: float | None) -> State:
    """The posterior: after its limit no other method takes over, but a fit has to have an answer."""
    try:
        return answered(limit)
    except (NotPositiveDefiniteError, MemoryBudgetError):
        if limit is None:
            raise
    return answered(None)


def _without_answer(checkpoint: str | Path | None) -> str:
    """What Ctrl-C has left, in words."""
    again = "" if checkpoint is None else f", and so does the same fit with checkpoint={os.fspath(checkpoint)!r}"
    return (
        "Ctrl-C came in the last solve of `fit`, which has no partial answer; the trained GP is the field `gp` of this "
        f"exception (sys.last_value.gp in an interactive session): gp.condition(x, y) goes on from there{again}"
    )


def _check_options(
    starts: Any, initial: Any, priors: Any, max_iterations: Any, time_limit: Any, tolerance: Any, seed: Any
) -> None:
    """Every option before any work."""

    def whole(value: Any, least: int) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and value >= least

    def positive(value: Any) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and value > 0

    advice = "leave it out for the default"
    if starts is not None and not whole(starts, 1):
        raise DomainError(f"`starts` must be None or a positive integer, got {starts!r}; {advice}")
    if initial not in ("data", "given"):
        raise DomainError(f"`initial` must be 'data' or 'given', got {initial!r}; {advice}")
    if priors not in ("weak", "given"):
        raise DomainError(f"`priors` must be 'weak' or 'given', got {priors!r}; {advice}")
    if not whole(max_iterations, 1):
        raise DomainError(f"`max_iterations` must be a positive integer, got {max_iterations!r}; {advice}")
    if time_limit is not None and not positive(time_limit):
        raise DomainError(f"`time_limit` must be positive seconds or None, got {time_limit!r}; {advice}")
    if not positive(tolerance):
        raise DomainError(
            f"`tolerance` must be positive, in standard deviations of an observation, got {tolerance!r}; {advice}"
        )
    if not whole(seed, 0):
        raise DomainError(f"`seed` must be 0 or a positive integer, got {seed!r}; {advice}")


def _marks(gp: Prior) -> list[object]:
    """All that tells one model from another, for the fingerprint: structure, values, domains, priors."""
    marks: list[object] = [
        gp.outputs,
        gp.kernel.form.profile.key,
        sorted(n for n, p in gp.named_parameters() if p.requires_grad),
    ]
    for name, module in gp.named_modules():
        describe = getattr(module, "structure", None)
        marks.append((name, describe() if callable(describe) else type(module).__qualname__))
        if isinstance(module, Parameter):
            marks.append(str(module.domain))
            if module.prior is not None:
                marks.append(type(module.prior).__qualname__)
                marks += [getattr(module.prior, k).numpy(force=True) for k in sorted(module.prior.arg_constraints)]
    for name, tensor in sorted(gp.state_dict().items()):
        marks += [name, tensor.numpy(force=True)]
    return marks


def _describe(
    report: Report,
    recorder: Recorder,
    objective: FlatObjective,
    roles: dict[Any, RoleStart],
    best: numpy.ndarray,
    estimated: bool,
) -> None:
    """Everything about the optimisation that the user should know."""
    if recorder.failures:
        report.events.append(Event(EventKind.POINTS_REJECTED, points=recorder.failures, estimated=estimated))
    if recorder.evaluations.replayed:
        replayed = recorder.evaluations.replayed
        report.events.append(Event(EventKind.RESUMED, evaluations=replayed, estimated=estimated))
    if objective.settings.jitters:
        report.events.append(Event(EventKind.FIT_JITTER, attempts=len(objective.settings.jitters)))
    for (low, high), slot_name, value in zip(
        bounds_of(objective, roles), _entry_names(objective), best.tolist(), strict=True
    ):
        if (low is not None and value <= low) or (high is not None and value >= high):
            report.events.append(Event(EventKind.ON_BOUND, parameter=slot_name))


def _entry_names(objective: FlatObjective) -> list[str]:
    names = []
    for slot in objective.slots:
        name = slot.name.removesuffix(".raw")
        size = slot.stop - slot.start
        names += [name] if size == 1 else [f"{name}[{i}]" for i in range(size)]
    return names
