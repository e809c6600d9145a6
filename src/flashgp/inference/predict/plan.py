"""The plan of a prediction, and what variances take without a float64 factor, eq. (M-107)."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flashgp.foundations.errors import DomainError
from flashgp.foundations.events import Event, EventKind, of_kind
from flashgp.foundations.form import broadcast_batch
from flashgp.inference.base_state import BaseState
from flashgp.inference.output_states import AnyState
from flashgp.inference.plan import prediction_plan
from flashgp.inference.plan_settings import RowCounts, conditioning_problem
from flashgp.inference.predict.progress import ToldProgress
from flashgp.inference.state import State
from flashgp.operators.multiplication import MIN_PLANNED_PAIRS
from flashgp.planner.exact import usual_passes
from flashgp.planner.problem import PlanSettings, ProductProblem
from flashgp.planner.products import ProductPlan, product_prices
from flashgp.planner.variances import (
    DEFAULT_VARIANCES,
    VariancePrice,
    VarianceProblem,
    VarianceSettings,
    exact_or_sampled,
    variance_price,
)

Planner = Callable[[bool | str], ProductPlan]
PRICED_POINTS = 1000  # whose price the report of a fit says
QUICK_SECONDS = 1.0  # which nobody has to be told of


class Wanted(NamedTuple):
    """What is wanted of a prediction. Fields: as the arguments of `Posterior.predict`."""

    variance: str | None = "auto"
    plan: ProductPlan | None = None
    memory: str | int | None = None
    deterministic: bool = False
    time_limit: float | None = None
    progress: ToldProgress = False


def _route_of_variances(state: State) -> str:
    """The route that gives variances, by what there is: a hand-over may have changed the plan's."""
    if not state.count or state.batch_shape or state.float64_factor is not None:
        return "direct"
    if state.factor is not None:
        return "refined"
    return "recomputed" if state.plan is None else state.plan.route


def _passes_of_solves(state: State) -> int:
    """Passes over the pairs of one more block of solves: as many as the weights took, where that is known.

    Those of an update began at the old weights, so that it took fewer: what counts is the solve before it. One that
    ended before its tolerance says no more than how many are too few.
    """
    if state.plan is None or state.plan.solver != "cg":
        return usual_passes(state.distinct)
    usual = state.online.usual_iterations
    known = state.report.iterations if usual is None else usual
    if known is not None and of_kind(state.report.events, EventKind.SOLVE_ENDED):
        return max(usual_passes(state.distinct), known)
    return usual_passes(state.distinct) if known is None else max(1, known)


def price_of(
    state: State, n_test: int, asked: str, deterministic: bool, settings: VarianceSettings = DEFAULT_VARIANCES
) -> VariancePrice:
    """Price of variances at so many points, by exact solves or by samples in their place, (M-107).

    Of a group, whose ranks may have other rates, by those of rank 0 where they share solves; all of its ranks ask then.
    """
    problem = _variances(state, n_test, deterministic, settings)
    price = exact_or_sampled(problem, _route_of_variances(state), _passes_of_solves(state), asked)
    group = state.run.group
    return (
        price
        if group.size == 1 or state.solves is None
        else VariancePrice.from_json(group.text_of_first(price.to_json()))
    )


def _variances(
    state: State, n_test: int, deterministic: bool, settings: VarianceSettings = DEFAULT_VARIANCES
) -> VarianceProblem:
    problem = conditioning_problem(state.prior, RowCounts(state.distinct, state.x.shape[-1]))
    rates = PlanSettings(deterministic=deterministic).rates
    return VarianceProblem(problem, rates, state.x.device, n_test, settings=settings)


def prices_event(state: BaseState, points: int = PRICED_POINTS) -> Event | None:
    """Event with the seconds of means and variances of so many points by the plan, eq. (M-264); None for a second at
    most."""
    if not state.exact:
        return None
    event, times = _prices_of_one(state.parts[0], points), len(state.parts)  # one after the other, alike
    if event is None or times == 1:
        return event
    seconds = {key: times * event.fields[key] for key in ("means", "variances", "sampled") if event.fields.get(key)}
    return Event(EventKind.PREDICTION_PRICES, **{**event.fields, **seconds})


def _prices_of_one(state: State, points: int) -> Event | None:
    if not state.count or state.batch_shape:
        return None
    problem, t = _variances(state, points, state.run.deterministic), state.residual.shape[-1]
    sizes = problem.problem
    product = ProductProblem(sizes.form, points, sizes.u, sizes.product_features, t=t, dtype=torch.float64)
    means = min(price.seconds for price in product_prices(product, problem.device, problem.profile))
    route, passes = _route_of_variances(state), _passes_of_solves(state)
    exact, price = (variance_price(problem, route, passes, asked) for asked in ("exact", "auto"))
    if max(means, exact.seconds) <= QUICK_SECONDS:
        return None
    samples = (price.seconds, price.sizes.samples) if price.way == "samples" else (None, None)
    return Event(
        EventKind.PREDICTION_PRICES,
        points=points, means=means, variances=exact.seconds, sampled=samples[0], samples=samples[1],
    )  # fmt: skip


def planner_of(state: State, x_test: Tensor, wanted: Wanted) -> Planner | None:
    """Planner of a prediction, with its variance or without; None where no plan is worth its time."""
    (n_test, d), plan, memory = x_test.shape[-2:], wanted.plan, wanted.memory
    if plan is None and memory is None and (not state.count or n_test * state.distinct < MIN_PLANNED_PAIRS):
        return None
    prior = state.prior
    members = broadcast_batch(x_test.shape[:-2], state.batch_shape).numel()
    if plan is not None:
        _check_plan(plan, (n_test, state.distinct, prior.outputs or 1, members), memory, x_test.device)
        return lambda variance: plan
    rows = RowCounts(state.distinct, d, batch=max(1, members // prior.kernel.batch_shape.numel()))
    settings = PlanSettings(memory, x_test.device, deterministic=wanted.deterministic)

    def planned(variance: bool | str) -> ProductPlan:
        return prediction_plan(
            prior, rows, n_test, settings, variance=variance, conditioned=_route_of_variances(state),
            passes=_passes_of_solves(state), time_limit=wanted.time_limit,
        )  # fmt: skip

    return planned


def planners_of(state: AnyState, x_test: Tensor, wanted: Wanted) -> list[Planner | None]:
    """Planners of a state, or of that of each output, one after the other; a plan handed in is one of all of them."""
    if (plan := wanted.plan) is None or not state.prior.separate:
        return [planner_of(part, x_test, wanted) for part in state.parts]
    outputs, members = len(state.parts), broadcast_batch(x_test.shape[:-2], state.batch_shape).numel()
    _check_plan(plan, (x_test.shape[-2], state.distinct, outputs, members), wanted.memory, x_test.device)
    share = replace(plan, t=1, seconds=plan.seconds / outputs)
    return [lambda variance: share] * outputs


def _check_plan(plan: ProductPlan, given: tuple[int, ...], memory: Any, device: torch.device) -> None:
    """A plan handed in must be for so many (test rows, training rows, outputs, models). Raises: DomainError."""
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
