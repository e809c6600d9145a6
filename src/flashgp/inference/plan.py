"""Plans of what a GP will do: `fgp.plan`, where it may run, and whether a plan handed in fits the data."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, overload

import numpy
import torch
from torch import Tensor

from flashgp.foundations.accelerator import accelerator
from flashgp.foundations.checks import check_count
from flashgp.foundations.deadline import Deadline
from flashgp.foundations.determinism import deterministic_where
from flashgp.foundations.errors import BackendUnavailableError, DomainError, MemoryBudgetError
from flashgp.foundations.profile import MachineProfile
from flashgp.inference.prior import Prior
from flashgp.inference.settings import ConditionSettings, TimeSettings
from flashgp.pairwise.program.program import program_of
from flashgp.pairwise.torch import opaque
from flashgp.planner.choice import check_route
from flashgp.planner.conditioning import plan_conditioning
from flashgp.planner.fit_stages import StageSettings
from flashgp.planner.largest_fit import largest_fit
from flashgp.planner.plan import FACTORED, ROUTES, SOLVER_ROUTES, Plan
from flashgp.planner.prices import PASSES
from flashgp.planner.problem import ConditioningProblem, Features, OtherWork, ProductProblem, Resources
from flashgp.planner.products import ProductPlan, plan_product
from flashgp.planner.variances import (
    VariancePrice,
    VarianceProblem,
    check_variance,
    variance_price,
)

__all__ = [
    "PlanSettings",
    "PredictionQuestion",
    "ProblemSize",
    "RowCounts",
    "check_plan",
    "chosen_device",
    "conditioning_plan",
    "plan",
    "planned_device",
    "prediction_plan",
    "rows_on_time",
]

# Float64 numbers per test point: mean, variance, what they are put together from (six), and as much again that the C
# library keeps: freed blocks below 32 MiB are not given back to the system one by one.
RESULTS = 12


def chosen_device(device: str | torch.device | None, x: Tensor) -> torch.device:
    """x's own device by default; "auto" an accelerator when there is one. Raises: DomainError."""
    if device is None:
        return x.device
    if device == "auto":
        return accelerator() or torch.device("cpu")
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError, ValueError) as error:
        raise DomainError(
            f"`device` must be None, 'auto' or a torch device, got {device!r} ({error}); for example 'cpu'"
        ) from None
    if chosen.type not in ("cpu", "cuda"):
        raise DomainError(f"`device` must be a cpu or cuda device, got {device!r}; pass 'cpu'")
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise BackendUnavailableError(
            f"`device` must be one that torch can use, got {device!r} with {torch.cuda.device_count()} CUDA devices "
            "in sight; pass 'cpu', or install a CUDA build of torch"
        )
    return chosen


def planned_device(plan: Plan, device: str | torch.device | None, x: Tensor) -> torch.device:
    """Where a plan runs: "auto" leaves it to the plan, which took the quickest device."""
    return torch.device(plan.device) if device == "auto" else chosen_device(device, x)


@dataclass(frozen=True)
class RowCounts:
    """Training rows: n of d columns, of which so many differ in x (None for all), for each of `batch` models."""

    n: int
    d: int
    distinct: int | None = None
    batch: int = 1


@dataclass(frozen=True)
class PlanSettings:
    """What a plan is asked to keep to; the fields are arguments of `fgp.plan`, but for stages: of the fit."""

    memory: str | int | None = None
    device: str | torch.device | None = None
    dtype: torch.dtype | None = None
    route: str | None = None
    solver: str | None = None
    factored: bool = False
    backend: str | None = None
    profile: MachineProfile | None = None
    deterministic: bool = False
    stages: StageSettings = field(default_factory=StageSettings)


@dataclass(frozen=True)
class PredictionQuestion:
    """What is predicted, and how its posterior came about; the fields are arguments of `fgp.plan`."""

    n_test: int
    variance: bool | str = True
    conditioned: str | None = None
    passes: int = PASSES


@overload
def plan(
    gp: Prior,
    n: int,
    d: int,
    *,
    n_test: None = None,
    distinct: int | None = None,
    batch: int = 1,
    memory: str | int | None = None,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    route: str | None = None,
    solver: str | None = None,
    factored: bool = False,
    profile: MachineProfile | None = None,
    deterministic: bool = False,
    time_limit: float | None = None,
    starts: int | None = None,
) -> Plan: ...
@overload
def plan(
    gp: Prior,
    n: int,
    d: int,
    *,
    n_test: int,
    distinct: int | None = None,
    batch: int = 1,
    memory: str | int | None = None,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    route: str | None = None,
    backend: str | None = None,
    variance: bool | str = True,
    conditioned: str | None = None,
    passes: int = PASSES,
    profile: MachineProfile | None = None,
    deterministic: bool = False,
) -> ProductPlan: ...
def plan(
    gp: Prior,
    n: int,
    d: int,
    *,
    n_test: int | None = None,
    distinct: int | None = None,
    batch: int = 1,
    memory: str | int | None = None,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    route: str | None = None,
    solver: str | None = None,
    factored: bool = False,
    backend: str | None = None,
    variance: bool | str = True,
    conditioned: str | None = None,
    passes: int = PASSES,
    profile: MachineProfile | None = None,
    deterministic: bool = False,
    time_limit: float | None = None,
    starts: int | None = None,
) -> Plan | ProductPlan:
    """What conditioning (and fitting) a GP on n rows of d columns takes, or predicting from them: `fgp.plan`.

    Args:
        n_test: None for conditioning and fitting; else the points whose mean and variance are predicted.
        distinct: of the n rows, those that differ in x; rows that repeat join them (inference/replicates.py). None for
            all. Conditioning and fitting count them themselves.
        batch: models, 1 or more; memory: budget in bytes or text like "8GiB"; None for what is free now.
        device: "auto" takes the quickest of the devices there are; dtype: float64 asks for the route "direct", float32
            for "refined".
        route: force one: "direct" or "refined" (a Cholesky factor in float64 or float32), "stored" or "recomputed"
            (iterative solves); of a prediction "recomputed", "dense" or "stored".
        solver: of the routes that this solver takes, "cholesky" or "cg"; factored: of those that leave a factor.
        backend: of a prediction, what evaluates the pairs of its mean: "torch", "cpu" or "triton"; variance: whether a
            prediction computes it, or how, as `Posterior.predict` takes it.
        conditioned: of a prediction, the route that its posterior came by; None for the one that would be taken now.
            passes: over the pairs, of a block of its solves.
        profile: the rates to use, such as `fgp.tune()` returned; the kept ones by default, built-in ones where none
            were kept or with `deterministic`.
        time_limit: seconds of a whole fit. With it, or with memory, the plan also says how many rows like these a fit
            would finish (`largest_fit`).
        starts: of a fit, as in `fgp.fit`.
    Returns: Plan, or ProductPlan with n_test; printed, it also shows the routes not chosen. `fit_seconds` of a Plan is
        a prediction of a whole fit by `fgp.fit` with its posterior, without what a process does once (loading and
        compiling loops); most fits end between `fit_seconds_low` and `fit_seconds_high`.
    Raises: MemoryBudgetError with the bytes needed and the cheapest plan that fits; DomainError.
    Cost: a few milliseconds, and some forty plans more with a limit.

    Example:
        >>> gp = fgp.GP(1.0 * fgp.kernels.Matern(nu=1.5))
        >>> plan = fgp.plan(gp, n=100_000, d=4, memory="4GiB")
        >>> plan.route in ("refined", "stored", "recomputed"), plan.peak_bytes < 4 * 2**30
        (True, True)
        >>> plan = fgp.plan(gp, n=1000, d=4, time_limit=60.0)
        >>> plan.fit_seconds_low < plan.fit_seconds < plan.fit_seconds_high, plan.largest_fit.rows > 1000
        (True, True)
    """
    columns: Any = d
    d = int(columns) if isinstance(columns, numpy.integer) else columns  # which text cannot hold
    rows = RowCounts(n, d, distinct, check_count(batch, "batch", 1))
    _check_time_limit(time_limit)
    if n_test is not None and (time_limit is not None or starts is not None):
        raise DomainError("`time_limit` and `starts` are of fits, got n_test= beside them; leave one of them out")
    stages = StageSettings(None if starts is None else check_count(starts, "starts", 1))
    settings = PlanSettings(memory, device, dtype, route, solver, factored, backend, profile, deterministic, stages)
    if n_test is None:
        made = conditioning_plan(gp, rows, settings)
        limited = time_limit is not None or memory is not None
        return _with_largest_fit(made, gp, rows, settings, time_limit) if limited and made.batch else made
    return prediction_plan(gp, rows, PredictionQuestion(n_test, variance, conditioned, passes), settings)


@deterministic_where(lambda prior, rows, settings: settings.deterministic)
def conditioning_plan(prior: Prior, rows: RowCounts, settings: PlanSettings) -> Plan:
    """What conditioning and fitting take; the batch may be empty. Raises: as `plan`."""
    return _planned(_conditioning(prior, rows, settings), settings)


@deterministic_where(lambda made, prior, rows, settings, time_limit: settings.deterministic)
def _with_largest_fit(
    made: Plan, prior: Prior, rows: RowCounts, settings: PlanSettings, time_limit: float | None
) -> Plan:
    """A plan that also says how many rows like these a fit would finish: as large a share of them distinct."""
    problem = _conditioning(prior, rows, settings)
    share = problem.u / problem.n if problem.n else 1.0
    fixed = settings if settings.memory is not None else replace(settings, memory=made.available_bytes)

    def plan_of(n: int) -> Plan:
        return _planned(replace(problem, n=n, distinct=max(1, round(share * n))), fixed)

    notes = made.notes
    if time_limit is not None and made.fit_seconds > time_limit:
        notes = (*notes, "a fit would end at the time limit, before it is finished, with the best model so far")
    return replace(made, largest_fit=largest_fit(plan_of, time_limit, made.available_bytes), notes=notes)


def _conditioning(prior: Prior, rows: RowCounts, settings: PlanSettings) -> ConditioningProblem:
    """What is planned, in sizes. Raises: DomainError."""
    size = ProblemSize.of(prior, rows)
    return ConditioningProblem(
        prior.kernel.form, int(rows.n), int(rows.d), size.features, size.n, size.outputs, size.batch,
        prior.trainable_count, prior.has_user_modules, settings.stages, prior.factors,
    )  # fmt: skip


def _planned(problem: ConditioningProblem, settings: PlanSettings) -> Plan:
    return plan_conditioning(
        problem, _resources(settings), dtype=settings.dtype, route=settings.route,
        routes=_routes(settings.solver, settings.factored), solver=settings.solver,
    )  # fmt: skip


def rows_on_time(
    prior: Prior, plan: Plan, deadline: Deadline, settings: TimeSettings, *, deterministic: bool, slowdown: float
) -> int:
    """How many of a plan's rows a float64 factor can have by a deadline.

    Args: slowdown: by which work takes longer than planned.
    Cost: a plan for each of some 20 numbers of rows.
    """
    models = max(1, plan.batch // max(1, prior.kernel.batch_shape.numel()))
    asked = PlanSettings(
        plan.available_bytes, torch.device(plan.device), torch.float64, factored=True, deterministic=deterministic
    )
    count = settings.min_rows
    while count < plan.n:
        more = min(plan.n, math.ceil(settings.growth * count))
        try:
            seconds = slowdown * conditioning_plan(prior, RowCounts(more, plan.d, batch=models), asked).seconds
        except MemoryBudgetError:
            break
        if seconds > settings.negligible_seconds and deadline.passed(seconds):
            break
        count = more
    return count


@deterministic_where(lambda prior, rows, question, settings: settings.deterministic)
def prediction_plan(prior: Prior, rows: RowCounts, question: PredictionQuestion, settings: PlanSettings) -> ProductPlan:
    """What a prediction takes. Raises: as `plan`."""
    size, n_test = ProblemSize.of(prior, rows), check_count(question.n_test, "n_test", 0)
    resources, conditioned = _resources(settings), question.conditioned
    if conditioned is None and question.variance:
        conditioned = _route_now(prior, rows, settings)
    price = VariancePrice("none", 0, 0.0)
    if question.variance and conditioned is not None:
        asked = "auto" if question.variance is True else check_variance(question.variance)
        check_route(conditioned, tuple(ROUTES), "conditioned")
        device = resources.devices[-1]
        room = 0 if settings.deterministic else resources.available()[str(device)]
        variances = replace(size.variances(prior, n_test, device, resources.rates), room=room)
        price = variance_price(variances, conditioned, question.passes, asked)
    features = replace(size.features, width=max(1, size.features.width))
    # Outputs with noise of their own come one after the other.
    columns = size.outputs // prior.factors
    product = ProductProblem(prior.kernel.form, n_test, size.n, features, t=columns, batch=size.batch)
    results = 8 * n_test * size.batch * (RESULTS * size.outputs + rows.d)  # beside a copy of the points
    product_plan = plan_product(
        product, resources, route=settings.route, backend=settings.backend,
        beside=OtherWork(results, price.peak_bytes, price.seconds),
    )  # fmt: skip
    if prior.factors > 1:
        others = [replace(one, seconds=prior.factors * one.seconds) for one in product_plan.alternatives]
        seconds = prior.factors * product_plan.seconds
        product_plan = replace(product_plan, t=size.outputs, seconds=seconds, alternatives=tuple(others))
    return replace(product_plan, notes=(price.note, *product_plan.notes)) if price.note else product_plan


def _resources(settings: PlanSettings) -> Resources:
    """The devices that may be used. Raises: DomainError."""
    other = accelerator() if settings.device == "auto" else None
    devices = [torch.device("cpu"), other] if other is not None else [chosen_device(settings.device, torch.zeros(0))]
    return Resources(settings.memory, devices, settings.profile, settings.deterministic)


def _route_now(prior: Prior, rows: RowCounts, settings: PlanSettings) -> str:
    """The route that conditioning takes on this machine now; where nothing fits, that of the least memory."""
    free = PlanSettings(device=settings.device, profile=settings.profile, deterministic=settings.deterministic)
    try:
        return conditioning_plan(prior, rows, free).route
    except MemoryBudgetError:
        return "recomputed"


def _check_time_limit(time_limit: float | None) -> None:
    """Raises: DomainError."""
    number = isinstance(time_limit, int | float) and not isinstance(time_limit, bool)
    if time_limit is not None and not (number and time_limit > 0.0):
        raise DomainError(
            f"`time_limit` must be positive seconds or None, got {time_limit!r}; leave it out for no limit"
        )


def _routes(solver: str | None, factored: bool) -> Sequence[str]:
    """The routes that may be chosen. Raises: DomainError."""
    if solver is not None and not (isinstance(solver, str) and solver in SOLVER_ROUTES):
        raise DomainError(
            f"`solver` must be one of {', '.join(SOLVER_ROUTES)}, got {solver!r}; pass one of them, or leave it out"
        )
    routes = tuple(ROUTES) if solver is None else SOLVER_ROUTES[solver]
    if factored and not set(routes) & set(FACTORED):
        raise DomainError(
            f"`solver` {solver!r} leaves no factor, which jitter=, differentiable= and batches of models need; "
            "leave it out"
        )
    return [route for route in routes if not factored or route in FACTORED]


@dataclass(frozen=True)
class ProblemSize:
    """Sizes of a GP's problem.

    Fields: features; temporaries, tiles alive at once; outputs, models, distinct training rows.
    """

    features: Features
    temporaries: int
    outputs: int
    batch: int
    n: int

    @classmethod
    def of(cls, prior: Prior, rows: RowCounts) -> "ProblemSize":
        """Raises: DomainError for counts that are none."""
        n, d, batch = check_count(rows.n, "n", 0), check_count(rows.d, "d", 1), check_count(rows.batch, "batch", 0)
        distinct = n if rows.distinct is None else check_count(rows.distinct, "distinct", min(n, 1))
        if distinct > n:
            raise DomainError(
                f"`distinct` must be at most n = {n:,}, got {distinct:,}; count the rows that differ in x"
            )
        form = prior.kernel.form
        program, probe = program_of(form), prior.kernel.rows(torch.zeros(1, d, dtype=torch.float64))
        models = batch * prior.kernel.batch_shape.numel()
        return cls(
            Features(probe.width, sum(opaque.columns(form, probe)), opaque.temporary_bytes(form, probe, models)),
            max(program.value_temporaries, program.partial_temporaries), prior.outputs or 1, models, distinct,
        )  # fmt: skip

    def variances(self, prior: Prior, n_test: int, device: torch.device, profile: MachineProfile) -> VarianceProblem:
        """What variances at n_test points are priced by."""
        return VarianceProblem(
            form=prior.kernel.form, n=self.n, n_test=n_test, batch=self.batch, features=self.features,
            temporaries=self.temporaries, device=device, profile=profile, has_features=prior.kernel.has_features,
        )  # fmt: skip


def check_plan(
    plan: Plan, prior: Prior, x: Tensor, device: torch.device, distinct: int, settings: ConditionSettings
) -> None:
    """A handed-in plan is run exactly: it must fit the data, and nothing beside it may say otherwise.

    Args:
        device: where it runs.
        distinct: the rows of x that are computed with.
        settings: what was asked for beside the plan.
    Raises: DomainError.
    """
    memory, dtype, solver, jitter = settings.memory, settings.dtype, settings.solver, settings.jitter
    if not isinstance(plan, Plan):
        raise DomainError(
            f"`plan` must be a plan of conditioning, got {type(plan).__name__}; make one with flashgp.plan(gp, n=, d=)"
        )
    made_for = (plan.n, plan.d, plan.outputs, plan.batch)
    given = (*x.shape[-2:], prior.outputs or 1, x.shape[:-2].numel() * prior.kernel.batch_shape.numel())
    if made_for != given:
        raise DomainError(
            f"`plan` is for n, d, outputs, models = {made_for}, got data with {given}; make a plan for these sizes"
        )
    if plan.factors != prior.factors:
        what = {True: "with noise of their own", False: "that share their noise"}
        raise DomainError(
            f"`plan` is for outputs {what[plan.factors > 1]}, got a model of outputs {what[prior.factors > 1]}; make a "
            "plan with this model"
        )
    if plan.distinct != distinct:
        raise DomainError(
            f"`plan` is for {plan.distinct:,} distinct rows of {plan.n:,}, got data with {distinct:,}; make a plan "
            f"with distinct={distinct}"
        )
    other_dtype = dtype is not None and dtype != plan.torch_dtype
    if memory is not None or other_dtype or torch.device(plan.device).type != device.type:
        raise DomainError(
            f"`plan` settles memory, dtype ({plan.dtype}) and device ({plan.device}), got another one beside it; "
            "pass the plan alone"
        )
    if solver is not None and solver != plan.solver:
        raise DomainError(f"`plan` settles the solver ({plan.solver!r}), got {solver!r} beside it; pass the plan alone")
    if jitter is not None and plan.route not in FACTORED:
        raise DomainError(
            f"`jitter` is added before a factorisation, got {jitter!r} beside a plan of the route {plan.route!r}, "
            'which makes none; leave it out, or make a plan with solver="cholesky"'
        )
