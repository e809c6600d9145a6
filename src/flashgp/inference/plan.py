"""Plans of what a GP will do: `fgp.plan`, where it may run, and whether a plan handed in fits the data."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import torch
from torch import Tensor

from flashgp.foundations.checks import check_count
from flashgp.foundations.determinism import deterministic_where
from flashgp.foundations.errors import BackendUnavailableError, DomainError, MemoryBudgetError
from flashgp.foundations.profile import BUILT_IN, MachineProfile
from flashgp.foundations.profile_store import current_profile
from flashgp.inference.prior import Prior
from flashgp.pairwise.program.program import program_of
from flashgp.pairwise.torch import opaque
from flashgp.planner.choice import budgets, check_route
from flashgp.planner.conditioning import PASSES, plan_conditioning
from flashgp.planner.engines import accelerator
from flashgp.planner.plan import FACTORED, ROUTES, SOLVER_ROUTES, Plan
from flashgp.planner.problem import ConditioningProblem, Features, OtherWork, ProductProblem, Resources
from flashgp.planner.products import ProductPlan, plan_product
from flashgp.planner.variances import VariancePrice, VarianceProblem, check_variance, exact_or_sampled, variance_price

__all__ = ["check_plan", "check_prediction_plan", "chosen_device", "plan_for", "planned_device", "price_of_variance"]

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
    except (RuntimeError, TypeError) as error:
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


@overload
def plan_for(
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
) -> Plan: ...
@overload
def plan_for(
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
@deterministic_where(lambda *_, deterministic=False, **__: deterministic)
def plan_for(
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
) -> Plan | ProductPlan:
    """What conditioning (and fitting) a GP on n rows of d columns takes, or predicting from them: `fgp.plan`.

    Args:
        n_test: None for conditioning and fitting; else the points whose mean and variance are predicted.
        distinct: of the n rows, those that differ in x; rows that repeat join them (inference/replicates.py). None for
            all. Conditioning and fitting count them themselves.
        batch: models; memory: budget in bytes or text like "8GiB"; None for what is free now.
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
    Returns: Plan, or ProductPlan with n_test; printed, it also shows the routes not chosen.
    Raises: MemoryBudgetError with the bytes needed and the cheapest plan that fits; DomainError.
    """
    n, d, batch = check_count(n, "n", 0), check_count(d, "d", 1), check_count(batch, "batch", 0)
    n_test = None if n_test is None else check_count(n_test, "n_test", 0)
    rows = n if distinct is None else check_count(distinct, "distinct", min(n, 1))
    if rows > n:
        raise DomainError(f"`distinct` must be at most n = {n:,}, got {rows:,}; count the rows that differ in x")
    size = _Size.of(gp, rows, d, batch)
    here = torch.device("cpu")
    other = accelerator() if device == "auto" else None
    devices = [here, other] if other is not None else [chosen_device(device, torch.zeros(0))]
    profile = profile or (BUILT_IN if deterministic else current_profile())
    resources = Resources(memory, devices, profile, deterministic)
    if n_test is not None:
        if conditioned is None and variance:
            conditioned = _route_now(gp, n, d, rows, batch, device, profile, deterministic)
        price = VariancePrice("none", 0, 0.0)
        if variance and conditioned is not None:
            asked = "auto" if variance is True else check_variance(variance)
            check_route(conditioned, tuple(ROUTES), "conditioned")
            room = 0 if deterministic else budgets(memory, devices)[str(devices[-1])]
            variances = replace(size.variances(gp, n_test, devices[-1], profile), room=room)
            price = variance_price(variances, conditioned, passes, asked)
        features = replace(size.features, width=max(1, size.features.width))
        product = ProductProblem(gp.kernel.form, n_test, rows, features, t=size.outputs, batch=size.batch)
        results = 8 * RESULTS * n_test * size.batch * size.outputs
        plan = plan_product(
            product, resources, route=route, backend=backend,
            beside=OtherWork(results, price.peak_bytes, price.seconds),
        )  # fmt: skip
        return replace(plan, notes=(price.note, *plan.notes)) if price.note else plan
    problem = ConditioningProblem(gp.kernel.form, n, d, size.features, rows, size.outputs, size.batch)
    return plan_conditioning(
        problem, resources, dtype=dtype, route=route, routes=_routes(solver, factored), solver=solver
    )


def _route_now(
    gp: Prior,
    n: int,
    d: int,
    distinct: int,
    batch: int,
    device: str | torch.device | None,
    profile: MachineProfile,
    deterministic: bool,
) -> str:
    """The route that conditioning takes on this machine now; where nothing fits, that of the least memory."""
    try:
        plan = plan_for(
            gp, n, d, distinct=distinct, batch=batch, device=device, profile=profile, deterministic=deterministic
        )
    except MemoryBudgetError:
        return "recomputed"
    return plan.route


def price_of_variance(
    gp: Prior, n: int, d: int, n_test: int, device: torch.device, *, route: str, passes: int, asked: str,
    deterministic: bool,
) -> VariancePrice:  # fmt: skip
    """Exact solves, or samples in their place, for a posterior of n distinct rows that came by a route, (M-107)."""
    profile = BUILT_IN if deterministic else current_profile()
    return exact_or_sampled(_Size.of(gp, n, d, 1).variances(gp, n_test, device, profile), route, passes, asked)


def _routes(solver: str | None, factored: bool) -> Sequence[str]:
    """The routes that may be chosen. Raises: DomainError."""
    if solver is not None and solver not in SOLVER_ROUTES:
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
class _Size:
    """Sizes of a GP's problem.

    Fields: features; temporaries, tiles alive at once; outputs, models, distinct training rows.
    """

    features: Features
    temporaries: int
    outputs: int
    batch: int
    n: int

    @classmethod
    def of(cls, gp: Prior, n: int, d: int, batch: int) -> "_Size":
        program = program_of(gp.kernel.form)
        probe = gp.kernel.rows(torch.zeros(1, d, dtype=torch.float64))
        models = batch * gp.kernel.batch_shape.numel()
        return cls(
            features=Features(
                probe.width,
                sum(opaque.columns(gp.kernel.form, probe)),
                opaque.temporary_bytes(gp.kernel.form, probe, models),
            ),
            temporaries=max(program.value_temporaries, program.partial_temporaries),
            outputs=gp.outputs or 1,
            batch=models,
            n=n,
        )

    def variances(self, gp: Prior, n_test: int, device: torch.device, profile: MachineProfile) -> VarianceProblem:
        """What variances at n_test points are priced by."""
        return VarianceProblem(
            form=gp.kernel.form, n=self.n, n_test=n_test, batch=self.batch, features=self.features,
            temporaries=self.temporaries, device=device, profile=profile, has_features=gp.kernel.has_features,
        )  # fmt: skip


def check_plan(
    plan: Plan,
    gp: Prior,
    x: Tensor,
    memory: Any,
    dtype: torch.dtype | None,
    device: torch.device,
    solver: str | None = None,
    distinct: int | None = None,
    *,
    jitter: float | None = None,
) -> None:
    """A handed-in plan is run exactly: it must fit the data, and nothing beside it may say otherwise.

    Args: distinct: the rows of x that are computed with; None for all. jitter: what shall be added to a factor.
    Raises: DomainError.
    """
    if not isinstance(plan, Plan):
        raise DomainError(
            f"`plan` must be a plan of conditioning, got {type(plan).__name__}; make one with flashgp.plan(gp, n=, d=)"
        )
    made_for = (plan.n, plan.d, plan.outputs, plan.batch)
    given = (*x.shape[-2:], gp.outputs or 1, x.shape[:-2].numel() * gp.kernel.batch_shape.numel())
    if made_for != given:
        raise DomainError(
            f"`plan` is for n, d, outputs, models = {made_for}, got data with {given}; make a plan for these sizes"
        )
    rows = x.shape[-2] if distinct is None else distinct
    if plan.distinct != rows:
        raise DomainError(
            f"`plan` is for {plan.distinct:,} distinct rows of {plan.n:,}, got data with {rows:,}; make a plan with "
            f"distinct={rows}"
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


def check_prediction_plan(plan: ProductPlan, given: tuple[int, ...], memory: Any, device: torch.device) -> None:
    """The same for a prediction of given (test rows, training rows, outputs, models). Raises: DomainError."""
    if not isinstance(plan, ProductPlan):
        raise DomainError(
            f"`plan` must be a plan of a prediction, got {type(plan).__name__}; make one with flashgp.plan(gp, n=, d=, "
            "n_test=)"
        )
    made_for = (plan.n, plan.m, plan.t, plan.batch)
    if made_for != given or plan.symmetric:
        raise DomainError(
            f"`plan` is for n_test, n, outputs, models = {made_for}, got a prediction with {given}; make a plan for "
            "these sizes"
        )
    if memory is not None or torch.device(plan.device).type != device.type:
        raise DomainError(
            f"`plan` settles memory and device ({plan.device}), got another one beside it; pass the plan alone"
        )
