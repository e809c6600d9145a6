"""Plans of what a GP will do: `fgp.plan`, where it may run, and whether a plan handed in fits the data."""

import math
from dataclasses import replace
from typing import Any, overload

import numpy
import torch
from torch import Tensor

from flashgp.foundations.checks import check_count
from flashgp.foundations.contexts import entered
from flashgp.foundations.deadline import Deadline
from flashgp.foundations.errors import DomainError, MemoryBudgetError
from flashgp.foundations.profile import MachineProfile
from flashgp.foundations.quantities import counted
from flashgp.inference.approximation import Approximation, approximation_of, refuse_exact
from flashgp.inference.choice import (
    Choice,
    cut_short,
    full_scale_is_late,
    offers_of,
    priced_with_sites,
    refuse_batch,
)
from flashgp.inference.plan_settings import RowCounts, conditioning_problem
from flashgp.inference.prior import Prior
from flashgp.inference.settings import ConditionSettings, TimeSettings
from flashgp.planner.choice import check_route
from flashgp.planner.conditioning import plan_conditioning
from flashgp.planner.exact import largest_fit
from flashgp.planner.fit_stages import StageSettings
from flashgp.planner.plan import FACTORED, ROUTES, Plan
from flashgp.planner.problem import PlanSettings, ProductProblem, chosen_device
from flashgp.planner.products import ProductPlan, plan_product
from flashgp.planner.variances import (
    VariancePrice,
    VarianceProblem,
    VarianceSettings,
    check_variance,
    variance_price,
)
from flashgp.processes.shares import too_many_ranks

# Float64 numbers per test point: mean, variance, what they are put together from (six), and as much again that the C
# library keeps: freed blocks below 32 MiB are not given back to the system one by one.
RESULTS = 12
# Of an exact fit, from which its plan also says what approximations would take.
OFFER_SECONDS = 180.0
TRIED = (
    "full scale of all rows would pass the time limit: the fit tries it on the rows that there is time for, beside "
    "inducing points, and takes what loses less"
)


def planned_device(plan: Plan, device: str | torch.device | None, x: Tensor) -> torch.device:
    """Device of a plan: "auto" leaves it to the plan, which took the quickest device."""
    return torch.device(plan.device) if device == "auto" else chosen_device(device, x)


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
    approximation: str | None = None,
    inducing: int | str | Tensor = "auto",
    neighbours: int | str = "auto",
    ranks: int = 1,
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
    passes: int | None = None,
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
    passes: int | None = None,
    profile: MachineProfile | None = None,
    deterministic: bool = False,
    time_limit: float | None = None,
    starts: int | None = None,
    approximation: str | None = None,
    inducing: int | str | Tensor = "auto",
    neighbours: int | str = "auto",
    ranks: int = 1,
) -> Plan | ProductPlan:
    """Plan of conditioning (and fitting) a GP on n rows of d columns, or of predicting from them: `fgp.plan`.

    Args:
        gp: the model.
        n: training rows.
        d: columns of x.
        n_test: None for conditioning and fitting; else the points whose mean and variance are predicted.
        distinct: of the n rows, those that differ in x; rows that repeat join them (inference/replicates.py). None for
            all. Conditioning and fitting count them themselves.
        batch: models, 1 or more.
        memory: budget in bytes or text like "8GiB"; None for what is free now.
        device: "auto" takes the quickest of the devices there are.
        dtype: float64 asks for the route "direct", float32 for "refined".
        route: force one: "direct" or "refined" (a Cholesky factor in float64 or float32), "stored" or "recomputed"
            (iterative solves); of a prediction "recomputed", "dense" or "stored".
        solver: "cholesky" or "cg": a route that this solver takes.
        factored: a route that leaves a factor.
        backend: of a prediction, what evaluates the pairs of its mean: "torch", "cpu" or "triton".
        variance: whether a prediction computes it, or how, as `Posterior.predict` takes it.
        conditioned: of a prediction, the route that its posterior came by; None for the one that would be taken now.
        passes: over the pairs, of a block of the prediction's solves; None for what its preconditioner usually takes.
        profile: the rates to use, such as `fgp.tune()` returned; the kept ones by default, built-in ones where none
            were kept or with `deterministic`.
        deterministic: as `GP.condition`.
        time_limit: seconds of a whole fit. With it, or with memory, the plan also says how many rows like these a fit
            would finish (`largest_fit`).
        starts: of a fit, as in `fgp.fit`.
        approximation: as in `fgp.fit`: the plan of that approximation, eqs. (M-183) to (M-186), with the sizes that
            "auto" takes under the limits, eq. (M-187); "auto" plans what would be taken.
        inducing: as in `fgp.fit`.
        neighbours: as in `fgp.fit`.
        ranks: of a group that shares conditioning and fitting, at most the rows: bytes and seconds are those of each,
            with this machine's rates and no time on the network, its memory is memory=, and `shared` says what it
            sends, eqs. (M-226) to (M-231).

    Returns:
        Plan, or ProductPlan with n_test. Printed, it also shows the routes not chosen, and where an exact fit takes
            long, or longer than its limit, what approximations take. `fit_seconds` of a Plan is a prediction of a whole
            fit by `fgp.fit` with its posterior, without what a process does once (loading and compiling loops); most
            fits end between `fit_seconds_low` and `fit_seconds_high`.

    Raises:
        MemoryBudgetError: with the bytes needed and the cheapest plan that fits.
        DomainError: for arguments that do not go together, or values that are none.
    Cost: a few milliseconds, a second where solves may run on Fourier series; some forty plans more with a limit.

    Example:
        >>> gp = fgp.GP(1.0 * fgp.kernels.Matern(nu=1.5))
        >>> plan = fgp.plan(gp, n=100_000, d=4, memory="4GiB")
        >>> plan.route in ("refined", "stored", "recomputed"), plan.peak_bytes < 4 * 2**30
        (True, True)
        >>> plan = fgp.plan(gp, n=1000, d=4, time_limit=60.0)
        >>> plan.fit_seconds_low < plan.fit_seconds < plan.fit_seconds_high, plan.largest_fit.rows > 1000
        (True, True)
        >>> plan = fgp.plan(gp, n=100_000, d=4, memory="4GiB", solver="cg", ranks=4)
        >>> plan.shared.ranks, plan.shared.sent_bytes < plan.shared.fit_sent_bytes
        (4, True)
        >>> plan = fgp.plan(gp, n=1_000_000, d=4, memory="16GiB", approximation="full_scale", inducing=256)
        >>> plan.peak_bytes < plan.training_bytes < 16 * 2**30, plan.inducing
        (True, 256)
    """
    columns: Any = d
    d = int(columns) if isinstance(columns, numpy.integer) else columns  # which text cannot hold
    rows = RowCounts(n, d, distinct, check_count(batch, "batch", 1))
    _check_time_limit(time_limit)
    if n_test is not None and (time_limit is not None or starts is not None):
        raise DomainError("`time_limit` and `starts` are of fits, got n_test= beside them; leave one of them out")
    stages = StageSettings(None if starts is None else check_count(starts, "starts", 1))
    settings = PlanSettings(
        memory, device, dtype, route, solver, factored, backend, profile, deterministic, stages,
        check_count(ranks, "ranks", 1),
    )  # fmt: skip
    asked = approximation_of(approximation, inducing, neighbours)
    if ranks > 1 and (n_test is not None or rows.batch > 1):
        raise DomainError(
            f"`ranks` is of conditioning and fits of one model, got {ranks} beside n_test= or batch=; leave it out for "
            "those"
        )
    if error := too_many_ranks("ranks", ranks, check_count(n, "n", 0)):
        raise error
    if asked is not None:
        single = None if dtype == torch.float64 else dtype
        refuse_exact(n_test=n_test, dtype=single, route=route, solver=solver, factored=factored)
        return priced_with_sites(gp, _approximately(Choice(gp, rows, settings, time_limit), asked))
    if n_test is None:
        choice = Choice(gp, rows, settings, time_limit, training=False)
        made = choice.searched(choice.exact())
        limited = time_limit is not None or memory is not None
        choice = replace(choice, training=True)
        return _with_offers(_with_largest_fit(made, choice) if limited and made.batch else made, choice)
    return prediction_plan(gp, rows, n_test, settings, variance=variance, conditioned=conditioned, passes=passes)


def _approximately(choice: Choice, asked: Approximation) -> Plan:
    """The plan of an approximation, or of what "auto" takes. Raises: as `plan`."""
    if asked.kind == "auto":
        _, plan, event = choice.decided(asked)
        late = cut_short(choice.prior, choice.settings) and full_scale_is_late(plan, event, choice.time_limit)
        return replace(plan, notes=(*plan.notes, TRIED)) if late else plan
    refuse_batch(batch=choice.rows.batch * choice.prior.kernel.batch_shape.numel() > 1)
    return choice.approximate(asked)


def _with_offers(made: Plan, choice: Choice) -> Plan:
    """A plan that also says what approximations take, where the fit takes long or longer than its limit."""
    late = choice.time_limit is not None and made.fit_seconds > choice.time_limit
    if not (late or made.fit_seconds > OFFER_SECONDS or made.training_bytes > made.available_bytes):
        return made
    return replace(made, offers=offers_of([priced_with_sites(choice.prior, plan) for plan in choice.offered()]))


@entered(lambda made, choice: choice.settings.deterministic)
def _with_largest_fit(made: Plan, choice: Choice) -> Plan:
    """A plan that also says how many rows like these a fit would finish: as large a share of them distinct."""
    problem, settings, time_limit = choice.problem, choice.settings, choice.time_limit
    share = problem.u / problem.n if problem.n else 1.0
    fixed = settings if settings.memory is not None else replace(settings, memory=made.available_bytes)

    def plan_of(n: int) -> Plan:
        plan = plan_conditioning(replace(problem, n=n, distinct=max(1, round(share * n))), fixed)
        if made.pairs_seconds and plan.route == made.route:  # as much quicker as of this many
            plan = plan.with_products(plan.seconds * made.seconds / made.pairs_seconds)
        return replace(choice, rows=replace(choice.rows, n=n, distinct=plan.distinct), settings=fixed).searched(plan)

    notes = made.notes
    if time_limit is not None and made.fit_seconds > time_limit:
        notes = (*notes, "a fit would end at the time limit, before it is finished, with the best model so far")
    return replace(made, largest_fit=largest_fit(plan_of, time_limit, made.available_bytes), notes=notes)


def rows_on_time(
    prior: Prior, plan: Plan, deadline: Deadline, settings: TimeSettings, *, deterministic: bool, slowdown: float
) -> int:
    """Number of a plan's rows that a float64 factor can have by a deadline.

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
            choice = Choice(prior, RowCounts(more, plan.d, batch=models), asked, training=False)
            seconds = slowdown * choice.exact().seconds
        except MemoryBudgetError:
            break
        if seconds > settings.negligible_seconds and deadline.passed(seconds):
            break
        count = more
    return count


@entered(lambda prior, rows, n_test, settings, **_: settings.deterministic)
def prediction_plan(
    prior: Prior,
    rows: RowCounts,
    n_test: int,
    settings: PlanSettings,
    *,
    variance: bool | str = True,
    conditioned: str | None = None,
    passes: int | None = None,
    time_limit: float | None = None,
) -> ProductPlan:
    """Plan of a prediction. Args: as `plan`, but for time_limit, of variances. Raises: as `plan`."""
    problem, n_test = conditioning_problem(prior, rows), check_count(n_test, "n_test", 0)
    if conditioned is None and variance:
        conditioned = _route_now(prior, rows, settings)
    price = VariancePrice("none", 0, 0.0)
    if variance and conditioned is not None:
        asked = "auto" if variance is True else check_variance(variance)
        check_route(conditioned, tuple(ROUTES), "conditioned")
        device = settings.devices[-1]
        room = 0 if settings.deterministic else settings.available()[str(device)]
        limited = VarianceSettings(time_limit=time_limit)
        variances = VarianceProblem(problem, settings.rates, device, n_test, room, limited)
        price = variance_price(variances, conditioned, passes, asked)
    # Outputs with noise of their own come one after the other.
    batch, t = problem.batch, problem.columns
    product = ProductProblem(problem.form, n_test, problem.u, problem.product_features, t=t, batch=batch)
    results = 8 * n_test * batch * (RESULTS * problem.outputs + rows.d)  # beside a copy of the points
    product_plan = plan_product(
        product, settings, kept_bytes=results, other_bytes=price.peak_bytes, other_seconds=price.seconds
    )
    if prior.factors > 1:
        others = [replace(one, seconds=prior.factors * one.seconds) for one in product_plan.alternatives]
        seconds = prior.factors * product_plan.seconds
        product_plan = replace(product_plan, t=problem.outputs, seconds=seconds, alternatives=tuple(others))
    return replace(product_plan, notes=(price.note, *product_plan.notes)) if price.note else product_plan


def _route_now(prior: Prior, rows: RowCounts, settings: PlanSettings) -> str:
    """The route that conditioning takes on this machine now; where nothing fits, that of the least memory."""
    free = PlanSettings(device=settings.device, profile=settings.profile, deterministic=settings.deterministic)
    try:
        return plan_conditioning(conditioning_problem(prior, rows, free), free).route
    except MemoryBudgetError:
        return "recomputed"


def _check_time_limit(time_limit: float | None) -> None:
    """Raises: DomainError."""
    number = isinstance(time_limit, int | float) and not isinstance(time_limit, bool)
    if time_limit is not None and not (number and time_limit > 0.0):
        raise DomainError(
            f"`time_limit` must be positive seconds or None, got {time_limit!r}; leave it out for no limit"
        )


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
    memory, dtype = settings.run.memory, settings.run.dtype
    solver, jitter = settings.solver, settings.jitter
    if not isinstance(plan, Plan) or plan.approximation:
        kind = f"one of approximation={plan.approximation!r}" if isinstance(plan, Plan) else type(plan).__name__
        raise DomainError(f"`plan` must be a plan of conditioning, got {kind}; make one with flashgp.plan(gp, n=, d=)")
    made_for = (plan.n, plan.d, plan.outputs, plan.batch)
    given = (*x.shape[-2:], prior.outputs or 1, x.shape[:-2].numel() * prior.kernel.batch_shape.numel())
    if made_for != given:
        raise DomainError(
            f"`plan` is for n, d, outputs, models = {made_for}, got data with {given}; make a plan for these sizes"
        )
    planned, ranks = 1 if plan.shared is None else plan.shared.ranks, settings.run.group.size
    if planned != ranks:
        raise DomainError(
            f"`plan` is for {counted(planned, 'rank')}, each of which has its share of the work, got "
            f"{counted(ranks, 'rank')}; make a plan with ranks={ranks}"
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
