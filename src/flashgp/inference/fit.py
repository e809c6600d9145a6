"""fit: maximise the log joint by L-BFGS-B, from starts the data suggest; resumable, interruptible, repeatable.

Small problems run several starts in lockstep, one joint evaluation at a time; large ones fit their starts to a subset
first and go on from the best. The log of evaluations is the checkpoint (docs/design.md, fit).
"""

import dataclasses
import logging
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy
import torch
from torch import Tensor

from flashgp.foundations.checks import check_points, check_targets
from flashgp.foundations.errors import DomainError, FlashGPWarning, NotPositiveDefiniteError, ShapeError
from flashgp.foundations.modes import exact_precision, ordinary_tensors
from flashgp.foundations.parameters import Parameter, named_parameter_objects
from flashgp.foundations.report import Report
from flashgp.foundations.workspace import Workspace
from flashgp.inference.checkpoint import EvaluationLog, fingerprint
from flashgp.inference.gp import GP
from flashgp.inference.initial import DataFacts, RoleStart, role_starts
from flashgp.inference.likelihood_gradient import DirectSettings
from flashgp.inference.lockstep import Outcome, run_lockstep
from flashgp.inference.objective import FlatObjective
from flashgp.inference.planning import check_plan, plan_for, planned_device
from flashgp.inference.posterior import Posterior
from flashgp.inference.threads import quiet_openblas
from flashgp.pairwise.torch_tiles import TorchTiles
from flashgp.planner.plan import Plan, allowed_bytes

__all__ = ["Evaluation", "Fit", "Progress", "fit"]

log = logging.getLogger("flashgp.fit")

BATCHED_PAIRS = 2**20  # starts run together while starts * n^2 stays below this (docs/decisions/0004)
SUBSET_ROWS = 400  # rows on which the start of a large problem is chosen
DEFAULT_STARTS = 4
START_SPREAD = 1.0  # standard deviation of random starts around the data-driven one, in log units
LEAST_DECREASE = 1e-4  # nats: L-BFGS-B stops when a step improves the objective by less
LARGEST_GRADIENT = 1e-2  # or when no projected gradient entry is larger (nats per unit of log parameter)
SUBSET_ITERATIONS = 60
WAKE_RATIO = 1.5  # a lengthscale that ends longer than this times its start is asleep: its column hardly counts
SUBSET_WINDOW = math.log(30.0)  # how far from its start the subset may move a positive value: beyond lie plateaus


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of the objective: run, counter within it, seconds since the beginning, log joint (nats), largest
    gradient entry, and the unconstrained vector."""

    start: str
    index: int
    seconds: float
    value: float
    gradient_norm: float
    theta: tuple[float, ...]


@dataclass(frozen=True)
class Progress:
    """What a progress callback sees: phase, evaluations so far, run, best log joint, largest gradient entry of the
    latest evaluation, seconds so far, an upper estimate of the seconds left (None at first), fraction done."""

    phase: str
    evaluation: int
    start: str
    best: float
    gradient_norm: float
    seconds: float
    eta_seconds: float | None
    fraction: float


@dataclass
class Fit:
    """The result of `fit`: a new gp, its posterior on all rows, the history, the report; interrupted if cut short."""

    gp: GP
    posterior: Posterior
    history: list[Evaluation]
    report: Report
    interrupted: bool = False

    def __repr__(self) -> str:
        return f"Fit after {len(self.history)} evaluations\n{self.gp!r}\n{self.report}"

    def _repr_html_(self) -> str:
        return f"{self.gp._repr_html_()}{self.report._repr_html_()}"


class _TimeUp(Exception):  # noqa: N818 - not an error
    pass


@dataclass
class _Recorder:
    """Counts, logs and reports evaluations of all phases."""

    evaluations: EvaluationLog
    progress: Callable[[Progress], None] | None
    deadline: float
    expected: int
    began: float = field(default_factory=time.perf_counter)
    history: list[Evaluation] = field(default_factory=list)
    best: dict[str, tuple[float, numpy.ndarray]] = field(default_factory=dict)
    failures: int = 0
    phase: str = ""

    def record_round(self, outcomes: list[tuple[str, numpy.ndarray, Outcome]]) -> None:
        """What was evaluated together: logged whole before anything can interrupt, then told one by one."""
        self.evaluations.add_round(
            [
                (run, theta, math.inf, numpy.zeros_like(theta))
                if isinstance(outcome, NotPositiveDefiniteError)
                else (run, theta, *outcome)
                for run, theta, outcome in outcomes
            ]
        )
        for run, theta, outcome in outcomes:
            self._record(run, theta, outcome)

    def _record(self, run: str, theta: numpy.ndarray, outcome: Outcome) -> None:
        if isinstance(outcome, NotPositiveDefiniteError):
            self.failures += 1
            return
        value, gradient = outcome
        norm = float(numpy.abs(gradient).max(initial=0.0))
        seconds = time.perf_counter() - self.began
        index = sum(1 for e in self.history if e.start == run) if len(self.history) < 10_000 else len(self.history)
        self.history.append(Evaluation(run, index, seconds, -value, norm, tuple(theta.tolist())))
        if run not in self.best or value < self.best[run][0]:
            self.best[run] = (value, theta.copy())
        if self.progress is not None or log.isEnabledFor(logging.DEBUG):
            self._tell(run, norm, seconds)
        if seconds > self.deadline:
            raise _TimeUp

    def _tell(self, run: str, norm: float, seconds: float) -> None:
        done = len(self.history)
        fraction = min(1.0, done / max(1, self.expected))
        best = -min(value for key, (value, _) in self.best.items() if key.split(" ")[0] == run.split(" ")[0])
        eta = seconds / done * max(0, self.expected - done) if done > 2 else None
        log.debug("%s: evaluation %d, best log joint %.4f, gradient %.2e", run, done, best, norm)
        if self.progress is not None:
            self.progress(Progress(self.phase, done, run, best, norm, seconds, eta, fraction))


@ordinary_tensors
@exact_precision
def fit(
    gp: GP,
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
    checkpoint: str | Path | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Fit:
    """Fit the trainable parameters to data by maximising the log joint, eq. (M-38); the argument is not changed.

    Args:
        x, y: rows (*batch, n, d) and targets (*batch, n) or (*batch, n, outputs); n at least 1.
        starts: runs from different initial values, on 400 rows first when n is large, where the best goes on to all
            rows; with more than one, a last run starts from the best with its long lengthscales reset, where forgotten
            columns show up. None for 4, or 1 for initial="given" and for models with modules of your own.
        initial: "data" starts from data-driven values (then the given ones, then random), "given" from the given ones.
        priors: "weak" adds weakly informative priors to parameters without one (inference/initial.py), "given" none.
        max_iterations: of L-BFGS-B, per start; time_limit: seconds, the best so far is returned after it.
        memory, device, dtype, plan, tolerance, jitter: as `GP.condition`.
        seed: of the random starts; the same seed gives the same result.
        checkpoint: a file that makes an interrupted fit resumable, to the same trajectory.
        progress: called after every evaluation.
    Returns: Fit. Ctrl-C and the time limit return the best so far, with `interrupted`.
    Raises: ShapeError, DomainError, MemoryBudgetError; NotPositiveDefiniteError if no start can be evaluated.
    Cost: n^3 flops per evaluation, typically 20 to 60 of them, one n x n buffer.
    """
    _check_options(starts, initial, priors, max_iterations, time_limit, tolerance, seed)
    x = check_points(x, "x")
    y = check_targets(y, "y", x, gp.outputs)
    if plan is not None:
        check_plan(plan, gp, x, memory, dtype, planned_device(plan, device, x))
    if x.shape[-2] == 0:
        raise ShapeError(
            f"`x` must have at least one row to fit, got shape {tuple(x.shape)}; condition on no rows instead"
        )
    gp = gp.released()
    if plan is None:
        where = x.device if device is None else device
        plan = plan_for(
            gp, x.shape[-2], x.shape[-1], batch=x.shape[:-2].numel(), memory=memory, device=where, dtype=dtype
        )
    target = planned_device(plan, device, x)
    work_x, work_y = x.detach().to(target), y.detach().to(target)
    facts = DataFacts.of(work_x, work_y, gp.outputs)
    roles = role_starts(gp, facts)
    given = {name: p.value.detach().clone() for name, p in named_parameter_objects(gp)}
    workspace = Workspace(allowed_bytes(plan.peak_bytes))
    settings = DirectSettings(
        TorchTiles(), plan.torch_dtype, jitter, repair=lambda: gp.repairable(work_x, work_y), workspace=workspace
    )
    objective = FlatObjective(gp, work_x, work_y, settings, roles, weak=priors == "weak")
    n = x.shape[-2]
    small = (starts or DEFAULT_STARTS) * plan.batch * n * n <= BATCHED_PAIRS
    count = starts if starts is not None else (DEFAULT_STARTS if objective.batchable and initial == "data" else 1)
    mark = fingerprint(
        work_x.cpu().numpy(), work_y.cpu().numpy(), *_marks(gp),
        starts, initial, priors, max_iterations, seed, plan.dtype, jitter, 2,
    )  # fmt: skip
    recorder = _Recorder(
        EvaluationLog(Path(checkpoint) if checkpoint is not None else None, mark),
        progress,
        deadline=time_limit if time_limit is not None else math.inf,
        expected=max_iterations * ((count if small else 1) + (count > 1)),
    )
    report = Report(predicted_seconds=None, events=[])
    interrupted = False
    try:
        thetas = _starts(objective, roles, given, count, initial, seed)
        if len(thetas) > 1 and not small:
            recorder.phase = "choosing a start on a subset"
            thetas = [_best_on_subset(gp, work_x, work_y, settings, roles, priors, thetas, seed, recorder)]
            report.events.append(f"{count} starts fitted to {min(SUBSET_ROWS, n)} of {n} rows, the best to all")
        recorder.phase = "fitting"
        _minimise(objective, roles, thetas, max_iterations, recorder, "start")
        if count > 1:
            recorder.phase = "waking columns"
            _wake(objective, roles, max_iterations, recorder, report)
    except (KeyboardInterrupt, _TimeUp) as stop:
        interrupted = True
        report.events.append(
            "interrupted: the best parameters so far are returned"
            if isinstance(stop, KeyboardInterrupt)
            else f"the time limit of {time_limit:g} s ended the fit: the best parameters so far are returned"
        )
    try:
        recorder.evaluations.write()
    except OSError as error:  # a full disk must not cost the fit
        report.events.append(f"the checkpoint could not be written: {error}")
        warnings.warn(
            f"`checkpoint` could not be written ({error}); the fit itself is complete", FlashGPWarning, stacklevel=2
        )
    best = _best(recorder, "start")
    best = _best(recorder, "subset") if best is None else best
    if best is None:
        if interrupted and not recorder.failures:
            best = _vector_of(objective, given)
        else:
            raise NotPositiveDefiniteError(
                f"no start of `fit` gave a positive definite covariance matrix in {recorder.failures} evaluations; "
                "scale the inputs, add noise, or pass jitter=",
                jitters=settings.jitters,
            )
    objective.assign(best)
    _describe(report, recorder, objective, roles, best)
    posterior = gp.condition(x, y, plan=plan, device=device, tolerance=tolerance, jitter=jitter)
    for name in (
        "route",
        "device",
        "dtype",
        "relative_residual",
        "error_bound",
        "jitter",
        "predicted_bytes",
    ):
        setattr(report, name, getattr(posterior.report, name))
    report.plan = plan
    report.backend = " and ".join(dict.fromkeys(filter(None, (*workspace.backends, posterior.report.backend))))
    report.events += [event for event in workspace.events if event not in posterior.report.events]
    report.events += posterior.report.events
    report.peak_bytes = max(workspace.peak_bytes, posterior.report.peak_bytes or 0)
    report.iterations = len(recorder.history)
    on_all_rows = sum(e.start.startswith("start") for e in recorder.history)
    report.predicted_seconds = on_all_rows * plan.fit_step_seconds + plan.seconds
    report.compile_seconds = workspace.compile_seconds or None
    report.seconds = time.perf_counter() - recorder.began - workspace.compile_seconds
    return Fit(gp, posterior, recorder.history, report, interrupted)


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


def _marks(gp: GP) -> list[object]:
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


def _vector_of(objective: FlatObjective, values: dict[str, Tensor]) -> numpy.ndarray:
    """The flat vector at given parameter values; tensors of foreign modules keep theirs."""
    theta = objective.vector()
    for name, parameter in named_parameter_objects(objective.gp):
        for slot in objective.slots:
            if slot.owner is parameter and name in values:
                theta[slot.start : slot.stop] = parameter.domain.raw(values[name]).reshape(-1).cpu().numpy()
    return theta


def _starts(
    objective: FlatObjective,
    roles: dict[Any, RoleStart],
    given: dict[str, Tensor],
    count: int,
    initial: str,
    seed: int,
) -> list[numpy.ndarray]:
    """Data-driven, given, then random around the data-driven (or given) values."""
    own = _vector_of(objective, given)
    data = own.copy()
    for slot in objective.slots:
        role = roles.get(slot.owner) if slot.owner is not None else None
        if role is not None and slot.owner is not None:
            value = role.start.clamp(role.lower, role.upper)
            if slot.owner.domain.contains(value):
                data[slot.start : slot.stop] = slot.owner.domain.raw(value).reshape(-1).numpy()
    first = [own] if initial == "given" else [data, own]
    found = [theta for k, theta in enumerate(first) if not any(numpy.array_equal(theta, t) for t in first[:k])][:count]
    generator = numpy.random.default_rng(seed)
    while len(found) < count:
        theta = found[0].copy()
        for slot in objective.slots:
            if slot.owner is not None and slot.owner.domain.kind == "positive":
                theta[slot.start : slot.stop] += START_SPREAD * generator.standard_normal(slot.stop - slot.start)
        found.append(theta)
    return found


def _bounds(objective: FlatObjective, roles: dict[Any, RoleStart]) -> list[tuple[float | None, float | None]]:
    bounds: list[tuple[float | None, float | None]] = []
    for slot in objective.slots:
        role = roles.get(slot.owner) if slot.owner is not None else None
        low: float | None = None
        high: float | None = None
        if role is not None and slot.owner is not None and slot.owner.domain.kind == "positive":
            floor = slot.owner.domain.lower
            # The domain may begin above the data's idea of a lower bound: then a hair above its beginning.
            low = math.log(role.lower - floor if role.lower > floor else 1e-12 * role.upper)
            high = math.log(max(role.upper - floor, 2e-12 * role.upper))
        bounds += [(low, high)] * (slot.stop - slot.start)
    return bounds


def _units(objective: FlatObjective, roles: dict[Any, RoleStart]) -> numpy.ndarray:
    """What one step of the optimiser is in each entry: 1 for logarithms, the scale of y (over that of x) for means.

    Without it a mean of targets of size 1e12 would never move, and one of targets of size 1e-8 nothing else would.
    Bounds belong to entries of unit 1.
    """
    unit = numpy.ones(objective.size)
    for slot in objective.slots:
        role = roles.get(slot.owner) if slot.owner is not None else None
        if role is not None and role.unit is not None and slot.owner is not None and slot.owner.domain.kind == "real":
            unit[slot.start : slot.stop] = role.unit.reshape(-1).numpy()
    return unit


def _minimise(
    objective: FlatObjective,
    roles: dict[Any, RoleStart],
    thetas: list[numpy.ndarray],
    max_iterations: int,
    recorder: _Recorder,
    label: str,
) -> None:
    """L-BFGS-B from every vector, in lockstep; results are in the recorder."""
    if objective.size == 0:  # nothing to train
        recorder.record_round([(f"{label} 0", thetas[0], objective.batch(thetas[:1])[0])])
        return
    from scipy.optimize import minimize

    bounds = _bounds(objective, roles)
    low = numpy.array([-numpy.inf if b[0] is None else b[0] for b in bounds])
    high = numpy.array([numpy.inf if b[1] is None else b[1] for b in bounds])
    unit = _units(objective, roles)

    def evaluate(asked: dict[int, numpy.ndarray]) -> dict[int, Outcome]:
        answers: dict[int, Outcome] = {}
        for run, theta in asked.items():
            known = recorder.evaluations.recall(f"{label} {run}", theta)
            if known is not None:
                answers[run] = known if known[0] < math.inf else NotPositiveDefiniteError("as the checkpoint says")
        waiting = [run for run in asked if run not in answers]
        if waiting:
            results = objective.batch([asked[run] for run in waiting])
            answers.update(zip(waiting, results, strict=True))
        recorder.record_round([(f"{label} {run}", theta, answers[run]) for run, theta in asked.items()])
        return answers

    def run_one(run: int, start: numpy.ndarray, ask: Callable[[numpy.ndarray], Outcome]) -> None:
        last: list[tuple[float, numpy.ndarray]] = []
        base: list[float] = []

        def function(scaled: numpy.ndarray) -> tuple[float, numpy.ndarray]:
            outcome = ask(scaled * unit)
            if not isinstance(outcome, NotPositiveDefiniteError):
                last[:] = [outcome]
                # Counted from the first value: SciPy's stopping rule is relative, and units of y only add a constant.
                base.append(outcome[0])
                return outcome[0] - base[0], outcome[1] * unit
            if not last:
                raise outcome
            # The line search has gone where the matrix cannot be factorised: a value well above sends it back.
            worst = last[0][0] - base[0]
            return worst + 10.0 * (1.0 + abs(worst)), numpy.zeros_like(scaled)

        try:
            minimize(
                function,
                numpy.clip(start, low, high) / unit,
                jac=True,
                method="L-BFGS-B",
                bounds=bounds,
                options={
                    "maxiter": max_iterations,
                    "maxfun": 2 * max_iterations + 20,
                    "ftol": LEAST_DECREASE / max(1, objective.rows),
                    "gtol": LARGEST_GRADIENT,
                },
            )
        except NotPositiveDefiniteError:
            log.debug("%s %d could not be evaluated at its start", label, run)

    with quiet_openblas():
        run_lockstep(thetas, run_one, evaluate)


def _best_on_subset(
    gp: GP,
    x: Tensor,
    y: Tensor,
    settings: DirectSettings,
    roles: dict[Any, RoleStart],
    priors: str,
    thetas: list[numpy.ndarray],
    seed: int,
    recorder: _Recorder,
) -> numpy.ndarray:
    """Fit every start on a random subset of rows; the best vector found there."""
    n = x.shape[-2]
    generator = torch.Generator().manual_seed(seed)
    index = torch.randperm(n, generator=generator)[: min(SUBSET_ROWS, n)].sort().values.to(x.device)
    likelihood = gp.likelihood
    gp.likelihood = likelihood.rows(index)
    try:
        rows_y = y[..., index] if gp.outputs is None else y[..., index, :]
        rows_x = x[..., index, :]
        part = dataclasses.replace(settings, repair=lambda: gp.repairable(rows_x, rows_y))
        objective = FlatObjective(gp, rows_x, rows_y, part, roles, weak=priors == "weak")
        _minimise(objective, roles, thetas, SUBSET_ITERATIONS, recorder, "subset")
    finally:
        gp.likelihood = likelihood
    best = _best(recorder, "subset")
    if best is None:
        return thetas[0]
    # Few rows may send a lengthscale off to where the gradient of all rows is zero: hold it within sight.
    window = numpy.full(len(best), numpy.inf)
    for slot in objective.slots:
        if slot.owner is not None and slot.owner.domain.kind == "positive":
            window[slot.start : slot.stop] = SUBSET_WINDOW
    return numpy.clip(best, thetas[0] - window, thetas[0] + window)


def _wake(
    objective: FlatObjective, roles: dict[Any, RoleStart], max_iterations: int, recorder: _Recorder, report: Report
) -> None:
    """One more run from the best vector, with every lengthscale beyond WAKE_RATIO times its start put back to it.

    The likelihood is flat where a lengthscale is long, so that a run that once let go of a column never meets it
    again: on tables with redundant columns several such optima exist, many nats apart, and subsets of rows rank them
    wrongly. Cost: one more run.
    """
    best = _best(recorder, "start")
    if best is None:
        return
    woken, columns = best.copy(), 0
    for slot in objective.slots:
        role = roles.get(slot.owner) if slot.owner is not None else None
        if role is None or slot.owner is None or not role.input_scale or slot.owner.domain.kind != "positive":
            continue
        start = slot.owner.domain.raw(role.start.clamp(role.lower, role.upper)).reshape(-1).numpy()
        asleep = best[slot.start : slot.stop] > start + math.log(WAKE_RATIO)
        woken[slot.start : slot.stop][asleep] = start[asleep]
        columns += int(asleep.sum())
    if columns == 0:
        return
    before = min(value for run, (value, _) in recorder.best.items() if run.startswith("start"))
    _minimise(objective, roles, [woken], max_iterations, recorder, "start woken")
    gain = before - min(value for run, (value, _) in recorder.best.items() if run.startswith("start"))
    if gain > 10 * LEAST_DECREASE:
        report.events.append(
            f"a last run with long lengthscales reset ({columns}) found a better optimum, by {gain:.3g} nats"
        )


def _best(recorder: _Recorder, label: str) -> numpy.ndarray | None:
    found = [pair for run, pair in sorted(recorder.best.items()) if run.startswith(label)]
    return min(found, key=lambda pair: pair[0])[1] if found else None


def _describe(
    report: Report, recorder: _Recorder, objective: FlatObjective, roles: dict[Any, RoleStart], best: numpy.ndarray
) -> None:
    """Everything about the optimisation that the user should know."""
    if recorder.failures:
        report.events.append(
            f"{recorder.failures} trial points were not positive definite; the line search stepped back from them"
        )
    if recorder.evaluations.replayed:
        report.events.append(f"resumed: {recorder.evaluations.replayed} evaluations came from the checkpoint")
    if objective.settings.jitters:
        report.events.append(f"a jitter was needed in {len(objective.settings.jitters)} factorisation attempts")
    for (low, high), slot_name, value in zip(
        _bounds(objective, roles), _entry_names(objective), best.tolist(), strict=True
    ):
        if (low is not None and value <= low) or (high is not None and value >= high):
            report.events.append(f"{slot_name} ended on its bound")


def _entry_names(objective: FlatObjective) -> list[str]:
    names = []
    for slot in objective.slots:
        name = slot.name.removesuffix(".raw")
        size = slot.stop - slot.start
        names += [name] if size == 1 else [f"{name}[{i}]" for i in range(size)]
    return names
