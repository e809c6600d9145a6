"""Conditioning: from a prior and data to a state, by the route of a plan.

A factor in float64 at once; a float32 factor or iterations up to the tolerance, and where these end without it a
float64 factor that fits. What ran, what it reached and every change of route go into the report.
"""

import math
import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from flashgp.foundations.contexts import entered
from flashgp.foundations.deadline import NO_DEADLINE
from flashgp.foundations.determinism import EVENT, contiguous_copy
from flashgp.foundations.errors import DomainError, MemoryBudgetError, NotPositiveDefiniteError, warn
from flashgp.foundations.events import Event, EventKind, StopReason
from flashgp.foundations.form import Rows, broadcast_batch
from flashgp.foundations.placement import placement_events
from flashgp.foundations.profile_ranges import profile_range
from flashgp.foundations.report import Report
from flashgp.foundations.workspace import Workspace
from flashgp.inference.approximate_products import approximate_products
from flashgp.inference.choice import Choice
from flashgp.inference.data import Data
from flashgp.inference.exact.likelihood import DirectSettings, factorise_covariance
from flashgp.inference.exact.solve import Rounding, Stopping, mean_goal, record, smallest_pivot, square_sums, unfinished
from flashgp.inference.extent import check_extent, check_residual, check_rows
from flashgp.inference.gathered import agreed_plan
from flashgp.inference.missing_cells import check_observed, of_observed
from flashgp.inference.output_states import AnyState, OutputStates, joined_report
from flashgp.inference.plan import check_plan, planned_device, rows_on_time
from flashgp.inference.prior import Prior
from flashgp.inference.replicates import Replicates, join, joined_event
from flashgp.inference.run import Run, with_run
from flashgp.inference.settings import ConditionSettings
from flashgp.inference.solves import Solves
from flashgp.inference.state import State, versions_of
from flashgp.inference.threads import FreeCores
from flashgp.kernels.warped import autocast_events, collapsed_features
from flashgp.operators.covariance import CovarianceOperator
from flashgp.operators.multiplication import OperatorOptions
from flashgp.operators.stored import StoredTiles
from flashgp.pairwise.problem import PairProblem
from flashgp.pairwise.torch.tiles import TorchTiles
from flashgp.planner.choice import Alternative
from flashgp.planner.plan import FACTORED, Plan, allowed_bytes
from flashgp.processes.agreement import largest, smallest
from flashgp.solvers.contract import Limits, Solution
from flashgp.solvers.direct.cholesky import Factor, factorise_keeping, refine


@entered(lambda prior, data, settings: settings.run.deterministic)
def condition(prior: Prior, data: Data, settings: ConditionSettings) -> AnyState:
    """See `GP.condition`. Outputs with noise of their own are conditioned one after the other, by one plan."""
    started = time.perf_counter()
    tolerance, deterministic = settings.run.tolerance, settings.run.deterministic
    differentiable, plan = settings.differentiable, settings.plan
    if not isinstance(tolerance, int | float) or not tolerance > 0:
        raise DomainError(
            f"`tolerance` must be positive, in standard deviations of an observation, got {tolerance!r}; "
            "for example 1e-3"
        )
    run = replace(settings.run.kept, tolerance=float(tolerance))
    limits = Limits(settings.run.deadline, callback=settings.progress, interrupted=settings.interrupted)
    events = [*data.promoted, *autocast_events(prior.kernel)]
    if data.cells is not None:
        check_observed(prior, data.cells)
        return _with_missing_cells(prior, data, settings, events)
    x, y = contiguous_copy(data.x), contiguous_copy(data.y)
    if deterministic:
        events.append(EVENT)
    events += [*placement_events(), *collapsed_features(prior.kernel, x)]
    n, group = data.count, None if differentiable else data.group
    distinct = n if group is None else data.distinct
    given, plan = plan, planned(prior, data, settings)
    target = planned_device(plan, settings.run.device, x)
    if given is not None:
        check_plan(plan, prior, x, target, distinct, settings)
    plan = agreed_plan(plan, settings.run.group)
    cores = settings.cores
    if settings.run.deadline.limit is not None and not differentiable:
        cores = cores or FreeCores(events.append)
        settings = replace(settings, plan=plan, cores=cores)
        needed = plan.seconds if plan.route in FACTORED else settings.time.min_solve * plan.seconds
        slow = largest(settings.run.group, cores.slowdown(plan.seconds))
        if n > settings.time.min_rows and settings.time.late(settings.run.deadline, slow * needed):
            return _of_part(prior, Data(prior, x, y), settings, slow, events)
    if group is not None and distinct < n:
        events.append(joined_event(group))
    if target != x.device:
        events.append(
            Event(EventKind.MOVED, bytes=x.numel() * x.element_size(), source=str(x.device), target=str(target))
        )
        with profile_range("transfers"):
            x, y = x.to(target), y.to(target)
    if not differentiable:
        x, y = x.detach(), y.detach()
        prior = prior.held()
    x, y = x.clone(), y.clone()  # what the caller does with theirs must not matter
    replicates = None if group is None else join(prior, x, y, group.to(target))
    if differentiable and plan.torch_dtype != torch.float64:
        raise DomainError("`dtype` must be torch.float64 with differentiable=True, got torch.float32; leave dtype out")
    workspace = Workspace(allowed_bytes(plan.peak_bytes), deadline=settings.run.deadline)
    direct = DirectSettings(
        TorchTiles(), plan.torch_dtype, settings.jitter, repair=lambda: prior.repairable(x, y), workspace=workspace
    )
    report = Report(
        route=plan.route, device=str(target), dtype=plan.dtype,
        predicted_bytes=plan.peak_bytes, predicted_seconds=plan.seconds, events=events, plan=plan,
    )  # fmt: skip
    with torch.set_grad_enabled(differentiable), cores.block(distinct) if cores else nullcontext():
        if replicates is None:
            points, sites = x, prior.sites(y)
        else:
            points, sites = replicates.x, replicates.likelihood.sites(replicates.y, prior.outputs)
        rows = prior.kernel.rows(points)
        check_rows(rows, "x")
        check_extent(prior.kernel.form, rows, "x")
        theta = tuple(t.to(target) for t in prior.kernel.theta())
        residual = prior.residual(points, sites.targets)
        check_residual(residual)
        whole = _Job(direct, prior, plan, points, rows, theta, y, replicates, residual, sites.variance, run, report)
        jobs = (
            [whole] if not prior.separate else [_of_output(whole, x, j, differentiable) for j in range(prior.factors)]
        )
    states: list[State] = []
    ready: StoredTiles | None = None  # of K, which outputs have in common
    for index, job in enumerate(jobs):
        share = settings.run.deadline.share(1.0 / (len(jobs) - index))  # as much time for each output
        late, began, compiled = False, time.perf_counter(), workspace.compile_seconds
        with torch.set_grad_enabled(differentiable), cores.block(distinct) if cores else nullcontext():
            batch = broadcast_batch(
                rows.batch_shape, *(t.shape for t in theta), job.residual.shape[:-2], job.noise.shape[:-1]
            )
            job = replace(job, residual=job.residual.expand(*batch, *job.residual.shape[-2:]), tiles=ready)
            if batch and plan.route not in FACTORED:
                raise DomainError(
                    f"`plan` takes the route {plan.route!r}, which solves one system, got a batch of shape "
                    f'{tuple(batch)}; make a plan with solver="cholesky"'
                )
            solves: Solves | None = None
            if n == 0:
                job.report.events.append(Event(EventKind.NO_DATA))
                factor, weights = None, job.residual
            elif differentiable:
                factor, weights = _solve_with_graph(job)
            elif plan.route == "direct" or batch:
                factor, weights = _solve(job)
            else:
                try:
                    own = with_run(settings, deadline=share)
                    factor, weights, solves = _solve_to_goal(job, replace(limits, deadline=share), own)
                except _NoTimeError:
                    late = True
        if late:  # out of the handler, whose traceback holds what was made
            tried = job.report.events
            del job, jobs
            states.clear()
            factor = solves = None
            return _of_part(prior, Data(prior, x, y), settings, slow, tried)
        _report_jitter(job.report, job.direct, factor, certain=solves is not None)
        if n and not job.direct.jitters:
            _report_rounding(job, None if solves is not None else factor, weights)
        ready = ready if solves is None else solves.system.tiles
        job.report.backend, job.report.peak_bytes = workspace.backend, workspace.peak_bytes
        job.report.seconds = time.perf_counter() - began - (workspace.compile_seconds - compiled)
        state = State(
            job.prior, x, job.y, rows, theta, job.residual, factor, job.report, weights, replicates=job.replicates,
            solver=solves, run=run, differentiable=differentiable,
            versions=versions_of(job.prior) if differentiable else (),
        )  # fmt: skip
        states.append(state)
    if prior.separate:
        report = joined_report([state.report for state in states])
        report.events = list(dict.fromkeys([*events, *report.events]))
    report.events += workspace.events
    report.backend = workspace.backend
    report.peak_bytes = workspace.peak_bytes
    report.compile_seconds = workspace.compile_seconds or None
    report.seconds = time.perf_counter() - started - workspace.compile_seconds
    workspace.budget_bytes, workspace.deadline = None, NO_DEADLINE  # they were those of conditioning
    return OutputStates(prior, tuple(states), report) if prior.separate else states[0]


def planned(prior: Prior, data: Data, settings: ConditionSettings) -> Plan:
    """The plan given, or one that is made."""
    if settings.plan is not None:
        return settings.plan
    differentiable, run = settings.differentiable, settings.run
    asked = run.planning(
        device=data.x.device if run.device is None else run.device,
        dtype=torch.float64 if differentiable and run.dtype is None else run.dtype, solver=settings.solver,
        factored=settings.jitter is not None or differentiable or prior.is_batch(data.x, data.y),
    )  # fmt: skip
    rows = replace(data.counts, distinct=None) if differentiable else data.counts
    return Choice(prior, rows, asked, training=False).exact()


def _with_missing_cells(prior: Prior, data: Data, settings: ConditionSettings, events: list[Event]) -> OutputStates:
    """Each output by itself, of the rows that it was observed in, eq. (M-252)."""
    if settings.plan is not None:
        raise DomainError("`plan` is of outputs that are observed in all rows, got missing cells of y; leave it out")
    x, y = contiguous_copy(data.x).clone(), contiguous_copy(data.y).clone()
    if not settings.differentiable:
        x, y, prior = x.detach(), y.detach(), prior.held()
    parts = []
    for j in range(prior.factors):
        own = with_run(settings, deadline=settings.run.deadline.share(1.0 / (prior.factors - j)))
        observed = Data(*of_observed(prior, x, y, j, live=settings.differentiable))
        part = condition(observed.prior, observed, own)
        assert isinstance(part, State)
        parts.append(part)
    report = joined_report([part.report for part in parts])
    report.events = list(dict.fromkeys([*events, *report.events]))
    return OutputStates(prior, tuple(parts), report, (x, y))


@dataclass(frozen=True)
class _Job:
    """Problem and its options; points, distinct ones; y and replicates as the state has them; tiles of K, if stored."""

    direct: DirectSettings
    prior: Prior
    plan: Plan
    points: Tensor
    rows: Rows
    theta: tuple[Tensor, ...]
    y: Tensor
    replicates: Replicates | None
    residual: Tensor
    noise: Tensor
    run: Run
    report: Report
    tiles: StoredTiles | None = None


def _of_output(job: _Job, x: Tensor, index: int, live: bool) -> _Job:
    """The part of a job of all outputs that is of one of them, with a report of its own."""
    prior, y, joined = job.prior.output(index, live=live), job.y[..., index].contiguous(), job.replicates
    joined = None if joined is None else joined.of_output(index, live=live)
    direct = replace(job.direct, jitters=[], repair=partial(prior.repairable, x, y))
    residual, report = job.residual[..., index : index + 1], replace(job.report, events=list(job.report.events))
    return replace(
        job, direct=direct, prior=prior, y=y, replicates=joined, residual=residual.contiguous(),
        noise=job.noise[..., index], report=report,
    )  # fmt: skip


class _NoTimeError(Exception):
    """A requirement of a route has failed, and there is no time for another one."""


def _of_part(prior: Prior, data: Data, settings: ConditionSettings, slowdown: float, events: list[Event]) -> AnyState:
    """The posterior of as many random rows as a float64 factor can have, instead of what there is no time for.

    Args: events: of x and y as they came, and of what was tried.
    """
    plan, deadline, n = settings.plan, settings.run.deadline, data.count
    assert plan is not None
    rows = rows_on_time(
        prior, plan, deadline.own, settings.time, deterministic=settings.run.deterministic, slowdown=slowdown
    )
    rows = int(smallest(settings.run.group, rows))
    if rows < n:
        event = Event(EventKind.POSTERIOR_OF_PART, rows=rows, of=n, **deadline.told)
        warn(str(event))
    else:
        event = Event(EventKind.FACTOR_ON_TIME, **deadline.told)
    alone = with_run(settings, deadline=NO_DEADLINE, dtype=torch.float64, memory=plan.available_bytes)
    settings = replace(alone, plan=None, solver=None)
    part = data.random(rows, settings.run.seed)
    state = condition(part.prior, part, settings)
    known = state.report.events
    known[:0] = [*(e for e in events if e.kind is not EventKind.ROWS_JOINED and e not in known), event]
    return state


def _solve_to_goal(job: _Job, limits: Limits, asked: ConditionSettings) -> tuple[Factor | None, Tensor, Solves | None]:
    """The weights to the tolerance: with a float32 factor, or by iterations alone; else a float64 factor if it fits."""
    problem, plan, report = PairProblem(job.prior.kernel.form, job.theta, job.rows), job.plan, job.report
    failure, factor = {}, None
    try:
        if plan.route == "refined":
            settings = job.direct
            if _float64_factor(plan) is not None and settings.jitter is None:
                if not asked.float32_factor:
                    raise NotPositiveDefiniteError("float32 factors were too rough near these parameters")
                # A factor with more would be of another matrix: a solve with it would take hundreds of iterations.
                settings = replace(settings, max_jitter=float(job.noise.min()))
            factor = factorise_covariance(settings, problem, job.noise)
        options = OperatorOptions(deterministic=job.run.deterministic)
        operator = CovarianceOperator(problem, torch.float64, job.direct.workspace, options)
        products = None
        if factor is None:
            products, said = approximate_products(job.prior.kernel, job.points, job.noise, plan, job.run)
            report.events += said
        solves = Solves.of(plan, operator, job.noise, job.run, factor=factor, tiles=job.tiles, products=products)
        stopping = mean_goal(solves.system, job.run.tolerance)
        if factor is not None and job.run.group.size > 1:  # some corrections, which every rank makes by itself
            untimed = replace(limits, deadline=NO_DEADLINE)
            solution = solves.solve(job.residual, stopping.goal, limits=untimed)
        else:
            solution = _solve_in_time(job, solves, stopping, limits, asked)
    except (MemoryBudgetError, NotPositiveDefiniteError) as error:
        price = _float64_factor(plan)
        if price is None:
            raise
        if plan.n > asked.time.min_rows and asked.time.late(asked.run.deadline, price.seconds):
            raise _NoTimeError from error
        failure = {"error": str(error)}
    if failure:  # out of the handler, whose traceback holds the factor that failed
        factor = solves = None  # type: ignore[assignment]
        return _hand_over(job, **failure)
    price = _float64_factor(plan)
    if unfinished(solution) and price is not None and not asked.time.late(asked.run.deadline, price.seconds):
        report.events += solution.events
        factor = solves = None  # type: ignore[assignment]
        return _hand_over(job, reason=solution.stopped, iterations=solution.iterations)
    if factor is not None:
        report.events.append(Event(EventKind.REFINED, corrections=solution.iterations))
    record(report, solution, stopping, asked.run.deadline.limit)
    return factor, solution.value, solves


def _solve_in_time(job: _Job, solves: Solves, stopping: Stopping, limits: Limits, asked: ConditionSettings) -> Solution:
    """The weights, with the best values where time ends it, unless those are worse than the weights of fewer rows.

    Raises: _NoTimeError, while there is time for these.
    """
    time, deadline = asked.time, asked.run.deadline
    if deadline.limit is None or job.plan.n <= time.min_rows:
        return solves.solve(job.residual, stopping.goal, limits=limits)
    early = replace(limits, deadline=deadline.share(time.solve_share))
    first = solves.solve(job.residual, stopping.goal, limits=early)
    if first.stopped is not StopReason.TIME:
        return first
    if not float(first.relative_residual.max()) <= time.max_residual:
        raise _NoTimeError
    last = solves.solve(job.residual, stopping.goal, start=first.value, limits=limits)
    events = list(dict.fromkeys((*first.events, *last.events)))
    return replace(
        last, iterations=first.iterations + last.iterations, passes=first.passes + last.passes, events=events
    )


def _float64_factor(plan: Plan) -> Alternative | None:
    """The direct route among the alternatives of a plan, where it fits."""
    for other in plan.alternatives:
        if (other.route, other.device) == ("direct", plan.device) and other.peak_bytes <= plan.available_bytes:
            return other
    return None


def _hand_over(job: _Job, **why: Any) -> tuple[Factor, Tensor, None]:
    """A float64 factor after another route has failed: slower and larger than planned, so it is a warning too."""
    price = _float64_factor(job.plan)
    assert price is not None
    event = Event(EventKind.ROUTE_FAILED, route=job.plan.route, bytes=price.peak_bytes, **why)
    job.report.events.append(event)
    warn(str(event))
    job.report.route, job.report.dtype = price.route, price.dtype
    job.report.predicted_bytes, job.report.predicted_seconds = price.peak_bytes, price.seconds
    job.direct.dtype = torch.float64
    job.direct.jitters.clear()
    job.direct.workspace.budget_bytes = allowed_bytes(price.peak_bytes)
    return *_solve(job), None


def _solve(job: _Job) -> tuple[Factor, Tensor]:
    """Factor, representer weights, and the certificate: a float64 residual and the bound on the mean's error."""
    settings, report, residual, noise = job.direct, job.report, job.residual, job.noise
    problem = PairProblem(job.prior.kernel.form, job.theta, job.rows)
    factor = factorise_covariance(settings, problem, noise)
    if residual.numel() == 0:  # a batch of no models
        return factor, residual
    diagonal = (noise + factor.jitter.double().unsqueeze(-1)).unsqueeze(-1)

    def multiply(v: Tensor) -> Tensor:
        product = settings.backend.product(problem, v, workspace=settings.workspace)
        return product + diagonal * v

    def solve(v: Tensor) -> Tensor:
        return factor.solve(v.to(settings.dtype)).double()

    # Float64 needs no correction; it is measured all the same. Float32 corrects until the answer is good enough.
    smallest = float(diagonal.min())
    largest = float(settings.backend.diagonal(problem, dtype=torch.float64).max())
    norm = float(residual.norm(dim=-2).amax())
    single = settings.dtype == torch.float32
    per_residual = math.sqrt(largest / smallest) * norm if smallest > 0 else math.inf
    target = 0.0
    if single:
        target = (
            min(1e-6, job.run.tolerance * math.sqrt(smallest) / per_residual) if 0 < per_residual < math.inf else 1e-6
        )
    weights, relative, steps = refine(solve, multiply, residual, target, limit=12 if single else 0)
    report.relative_residual = relative
    report.error_bound = relative * per_residual if per_residual < math.inf else None
    if single:
        report.iterations = steps
        report.events.append(Event(EventKind.REFINED, corrections=steps))
        if relative > target:
            warn(
                f"float32 refinement stopped at a relative residual of {relative:.1e} (target {target:.1e}): the mean "
                f"is off by at most {relative * per_residual:.2e} in units of y; use dtype=torch.float64"
            )
    return factor, weights


def _solve_with_graph(job: _Job) -> tuple[Factor, Tensor]:
    """Solve in autograd: the matrix has a closed-form pullback, the factorisation is torch's."""
    direct = job.direct
    matrix = CovarianceOperator(
        PairProblem(job.prior.kernel.form, job.theta, job.rows), direct.dtype, direct.workspace
    ).to_dense()
    matrix = matrix + torch.diag_embed(job.noise.to(matrix.dtype).expand(*matrix.shape[:-1]))
    factor = factorise_keeping(matrix, direct.jitter, repair=direct.repair)
    direct.jitters += factor.attempts
    weights = torch.cholesky_solve(job.residual.to(matrix.dtype), factor.lower).double()
    return factor, weights


def _report_rounding(job: _Job, factor: Factor | None, weights: Tensor) -> None:
    """Report the effect of the rounding of the matrix on all that comes from it, eqs. (M-147), (M-259), above the
    tolerance.

    Args: factor, whose smallest pivot stands for the smallest eigenvalue; without one the noise does.
    """
    noise = float(job.noise.detach().min()) if job.noise.numel() else 0.0
    if not weights.numel() or not noise > 0.0:
        return
    problem = PairProblem(job.prior.kernel.form, job.theta, job.rows).detached()
    largest = float(job.direct.backend.diagonal(problem, dtype=torch.float64).detach().max())
    dtype = torch.float64 if factor is None else factor.dtype
    pivot = noise if factor is None else smallest_pivot(factor.lower)
    rounding = Rounding.of(job.rows.count, dtype, largest, pivot, square_sums(weights))
    share, of_variances = rounding.norm * rounding.weights / math.sqrt(noise), rounding.norm / pivot
    if share > job.run.tolerance or (factor is not None and of_variances > job.run.tolerance):
        event = Event(
            EventKind.ROUNDED,
            dtype=str(dtype).removeprefix("torch."), share=share, of_variances=None if factor is None else of_variances,
            nats=rounding.nats, largest=largest, weights=rounding.weights, pivot=None if factor is None else pivot,
        )  # fmt: skip
        job.report.events.append(event)
        warn(str(event))


def _report_jitter(report: Report, settings: DirectSettings, factor: Factor | None, certain: bool) -> None:
    """certain: whether weights and variances are of the matrix without the jitter, which then is the factor's only."""
    if factor is None or not settings.jitters:
        return
    added = factor.jitter
    report.jitter = float(added) if added.dim() == 0 else added.tolist()
    tried = ", ".join(f"{r:.1e}" for r in settings.jitters)
    steps = [f"{step:.1e}" for step in settings.jitters]
    report.events.append(Event(EventKind.JITTER, jitter=report.jitter, tried=steps, factor_only=certain))
    if settings.jitter is None:
        members = "" if added.dim() == 0 else f" in batch members {added.nonzero().squeeze(-1).tolist()}"
        what = "its factor, which likelihood and leave-one-out come from" if certain else "its diagonal"
        warn(
            f"the covariance matrix was not positive definite in {report.dtype}{members}; a jitter of "
            f"{float(added.max()):.2e} was added to {what} (relative steps tried: {tried}). More noise, or fewer "
            "repeated rows, avoids this"
        )
