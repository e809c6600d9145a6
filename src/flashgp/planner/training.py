"""How to train beside a way to condition, eq. (M-100), the seconds of a whole fit, eq. (M-146), and the largest one."""

from collections.abc import Callable
from dataclasses import replace

import torch

from flashgp.foundations.errors import MemoryBudgetError
from flashgp.pairwise.numpy_pairs import MAX_NUMPY_ROWS
from flashgp.planner.fit_stages import FitStage, Search, Usual, fit_stages
from flashgp.planner.plan import FACTORED, LargestFit, Plan, Shared
from flashgp.planner.prices import PASSES, ROWS_PER_RANK, VECTORS, Priced, factored_plan, preconditioned, products_of
from flashgp.planner.wire import evaluation_wire, solve_wire, step_wire, table_wire

# An exact step is preferred while so many of them, a short fit, take less than this.
TRAINING_EVALUATIONS, TRAINING_SECONDS = 40, 30.0
TRAINING_PASSES, GRADIENT_PASSES = 30, 3  # of one iterative step: warm starts need few
TRAINING_COLUMNS = 9  # right-hand sides of a step: the targets and eight samples
FACTOR_COLUMNS = 33  # with a factor: more samples cost little beside it


def trained_plan(plan: Plan, priced: Priced, available: int, factor: str) -> Plan:
    """How `fit` trains beside this way to condition, eq. (M-100).

    A closed-form gradient while TRAINING_EVALUATIONS of them take less than TRAINING_SECONDS, or are the quickest;
    else estimated gradients, on stored tiles where they fit. factor: the route whose factor gives exact gradients,
    "direct" unless float32 was asked for, which rounds the likelihood; available, beside what joined rows take.
    """
    device = torch.device(plan.device)
    exact = factored_plan(priced, device, factor)
    exact = replace(plan, training_bytes=exact.training_bytes, fit_step_seconds=exact.fit_step_seconds)
    if priced.problem.batch != 1:
        return exact
    estimated = _estimated(plan, priced, device, available)
    affordable = TRAINING_EVALUATIONS * exact.fit_step_seconds < TRAINING_SECONDS
    quickest = all(exact.fit_step_seconds <= other.fit_step_seconds for other in estimated)
    if exact.training_bytes <= available and (affordable or quickest):
        return exact
    fitting = [other for other in estimated if other.training_bytes <= available]
    stored = [other for other in fitting if other.training == "stored"]
    if stored or fitting:
        return min(stored or fitting, key=lambda other: other.fit_step_seconds)
    return min([exact, *estimated], key=lambda other: other.training_bytes)


def _estimated(plan: Plan, priced: Priced, device: torch.device, available: int) -> list[Plan]:
    """Steps with estimated gradients: TRAINING_PASSES products and the passes of a gradient, (M-100).

    A float32 factor may take over where it fits, and a float64 one after it where that fits. Outputs with noise of
    their own take such a step each, and their last solutions stay.
    """
    problem, plans = priced.problem, []
    t = TRAINING_COLUMNS * problem.columns
    single, double = (factored_plan(priced, device, route) for route in ("refined", "direct"))
    vectors = 8 * priced.n * FACTOR_COLUMNS * problem.columns * (VECTORS + problem.factors - 1)
    fitting = [one.training_bytes + vectors for one in (double, single) if one.training_bytes + vectors <= available]
    for price in products_of(priced, device, t, TRAINING_PASSES + GRADIENT_PASSES):
        kept = 8 * priced.n * t * (problem.factors - 1)
        rank, peak = preconditioned(priced, price.peak_bytes + kept, t, available)
        seconds = problem.factors * price.seconds
        one = replace(plan, training=price.route, training_bytes=peak, training_rank=rank, fit_step_seconds=seconds)
        if fitting:
            one_pass = price.seconds / (TRAINING_PASSES + GRADIENT_PASSES)
            passes = max(1, round(single.seconds / problem.factors / one_pass)) if one_pass else 1
            one = replace(one, training_bytes=max(peak, fitting[0]), training_factor_passes=passes)
        plans.append(one)
    return plans


# -- a whole fit -----------------------------------------------------------------------------------------------------
def with_fit_seconds(plan: Plan, priced: Priced) -> Plan:
    """The plan with the seconds of a whole fit, eq. (M-146): every stage, what lies between, and the posterior; of
    ranks with what they send."""
    problem, device = priced.problem, torch.device(plan.device)
    solves = 0 if plan.route in FACTORED else problem.factors
    sent = table_wire(problem) + solves * solve_wire(problem, problem.columns, plan.rank, PASSES)
    sent_by_fit, total = sent, Usual(plan.seconds, plan.seconds, plan.seconds)
    if problem.u and problem.batch:
        settings = problem.stages.for_model(own_modules=problem.own_modules)
        for stage in _stages(plan, priced):
            if stage.search is Search.ESTIMATED:
                steps = stage.evaluations.by(settings.work.solves).plus(settings.work.first_solves)
                seconds, one = _estimated_step(plan, priced, device, stage.rows)
            else:
                steps, one = stage.evaluations, evaluation_wire(problem)
                seconds = exact_seconds(priced, device, stage.rows)
            total, sent_by_fit = total.plus(steps.times(seconds)), sent_by_fit + steps.middle * one
        total = total.plus(_information_seconds(plan, priced, device))
        plan = replace(plan, fit_seconds=total.middle, fit_seconds_low=total.low, fit_seconds_high=total.high)
    shared = None if problem.ranks == 1 else Shared(problem.ranks, round(sent), round(sent_by_fit))
    return replace(plan, shared=shared)


def _stages(plan: Plan, priced: Priced) -> tuple[FitStage, ...]:
    problem = priced.problem
    estimated, scored = plan.training != "exact", problem.batch == 1 and not problem.own_modules
    settings = problem.stages.for_model(own_modules=problem.own_modules)
    return fit_stages(problem.u, settings, parameters=problem.parameters, scored=scored, estimated=estimated)


def _information_seconds(plan: Plan, priced: Priced, device: torch.device) -> Usual:
    """The Fisher information of the first rows, and that of the last ones of exact gradients, where these are drawn."""
    stages, total = _stages(plan, priced), Usual(0.0, 0.0, 0.0)
    if any(stage.search is Search.SCORING for stage in stages):
        informations = priced.problem.stages.work.informations
        total = informations.times(information_seconds(priced, device, stages[0].rows))
    if plan.training != "exact":
        last = [stage.rows for stage in stages if stage.search is not Search.ESTIMATED][-1]
        seconds = information_seconds(priced, device, last)
        total = total.plus(Usual(seconds, seconds, seconds))
    return total


def exact_seconds(priced: Priced, device: torch.device, rows: int) -> float:
    """One value with its gradient in float64, eq. (M-146)."""
    problem, rates, work = priced.problem, priced.profile.rates(device), priced.problem.stages.work
    factor = rows**3 / rates.cholesky(torch.float64, rows)
    if device.type == "cpu" and rows <= work.alone_rows:
        factor *= work.alone
    pairs = work.pairs * rows**2 / rates.block_pairs
    calls = work.few_calls if device.type == "cpu" and rows <= MAX_NUMPY_ROWS else work.calls
    return problem.factors * (problem.batch * (factor + pairs) + calls * rates.call_seconds)


def information_seconds(priced: Priced, device: torch.device, rows: int) -> float:
    """The Fisher information of so many rows, eq. (M-104): a factor, and a pass over the pairs for every draw."""
    problem, rates, work = priced.problem, priced.profile.rates(device), priced.problem.stages.work
    draw = work.draw_pairs * rows**2 / rates.block_pairs + work.draw_calls * rates.call_seconds
    return exact_seconds(priced, device, rows) + problem.stages.draws(problem.parameters) * draw


def _estimated_step(plan: Plan, priced: Priced, device: torch.device, rows: int) -> tuple[float, float]:
    """Seconds of a step with estimated gradients of so many rows, trained as the plan says, eq. (M-100), and bytes that
    rank 0 sends, (M-229)."""
    problem = replace(priced.problem, n=rows, distinct=None)
    t, passes = TRAINING_COLUMNS * problem.columns, TRAINING_PASSES + GRADIENT_PASSES
    prices = products_of(replace(priced, problem=problem), device, t, passes)
    seconds = min(price.seconds for price in prices if price.route == plan.training)
    sent = step_wire(problem, t, min(plan.training_rank, problem.u // ROWS_PER_RANK), passes)
    return problem.factors * seconds, problem.factors * sent


# Seconds may fall where gradients are estimated from there on, but never to less than one in so many.
MAX_FALL = 4.0
MAX_ROWS = 2**40


def largest_fit(plan_of: Callable[[int], Plan], time_limit: float | None, memory_bytes: int) -> LargestFit:
    """The most rows whose fit fits, found by bisection.

    Args:
        plan_of: the plan of so many rows; raises MemoryBudgetError where none fits.
        time_limit: seconds of the whole fit; None for any.
        memory_bytes: the budget, which `plan_of` keeps to.
    Cost: some 40 plans.
    """
    fits: dict[int, float] = {0: 0.0}  # rows and seconds of fits that keep to the limits

    def keeps(rows: int, slack: float = 1.0) -> bool:
        try:
            plan = plan_of(rows)
        except MemoryBudgetError:
            return False
        if plan.training_bytes > plan.available_bytes:
            return False
        if time_limit is None or plan.fit_seconds <= time_limit:
            fits[rows] = plan.fit_seconds
        return time_limit is None or plan.fit_seconds <= slack * time_limit

    high = 1
    while keeps(high, MAX_FALL) and high < MAX_ROWS:
        high *= 2
    low = max(fits)
    high = min(high, 2 * low or 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return LargestFit(low, fits[low], time_limit, memory_bytes)
