"""Prices of exact inference: every route to condition on n rows, eqs. (M-35), (M-36) and (M-98), the training beside
it, eq. (M-100), and a whole fit, eq. (M-146). The choice among the routes is planner/conditioning.py."""

import math
from collections.abc import Callable
from dataclasses import replace

from flashgp.foundations.errors import MemoryBudgetError
from flashgp.pairwise.cpu.backend import PORTABLE_PAIRS
from flashgp.pairwise.torch.tiles import tile_rows
from flashgp.planner.choice import DTYPES, Candidate
from flashgp.planner.fit_stages import Cost, FitStage, Search, WorkSettings, fit_stages
from flashgp.planner.plan import FACTORED, ROUTES, LargestFit, Plan, Shared
from flashgp.planner.pricing import Price
from flashgp.planner.products import product_prices, stored_bytes
from flashgp.planner.wire import evaluation_wire, solve_wire, step_wire, table_wire

VECTORS = 6  # n x t in float64: right-hand sides, values, residuals, directions and two products
# Columns of the preconditioner: at most MAX_RANK and one for ROWS_PER_RANK rows; fewer where memory is short, down to
# MIN_RANK. So many n x rank buffers in float64 are alive at once while it is made. From WIDE_RANK columns on, more
# neighbours in the full-scale preconditioner, n WIDTH numbers in float32 at most beside two buffers, come first.
# A rank also has the rows of F that its blocks need, at most NEEDED times its own.
MAX_RANK, ROWS_PER_RANK, MIN_RANK, RANK_BUFFERS = 512, 4, 32, 3
WIDE_RANK, WIDTH, NEEDED = 128, 640, 8
# An exact step is preferred while so many of them, a short fit, take less than this.
TRAINING_EVALUATIONS, TRAINING_SECONDS = 40, 30.0
TRAINING_PASSES, GRADIENT_PASSES = 30, 3  # of one iterative step: warm starts need few
TRAINING_COLUMNS = 9  # right-hand sides of a step: the targets and eight samples
SAMPLES = 64  # of the variances of all rows, where those of sites are sampled
FACTOR_COLUMNS = 33  # with a factor: more samples cost little beside it


# -- conditioning ----------------------------------------------------------------------------------------------------
def routes_of(price: Price, available: int) -> list[Plan]:
    """Every route on a device; what is available, how to train and the alternatives are filled in later."""
    plans = [factored_plan(price, route) for route in FACTORED]
    return plans + (_iterative_plans(price, available) if price.problem.batch == 1 else [])


def factored_plan(price: Price, route: str) -> Plan:
    """A factor, eqs. (M-35) and (M-36): one n x n buffer, the features, one tile's temporaries.

    Outputs with noise of their own take such a buffer each, one after the other, and keep it; a step of training needs
    one at a time.
    """
    dtype = DTYPES[ROUTES[route]]
    problem, n, rates = price.problem, price.n, price.rates
    batch = problem.batch
    rows = min(n, tile_rows(n, batch, price.device))
    # A tile's temporaries: float64 statistics before the cast, and what the generated code keeps.
    tiles = problem.temporaries * rows * n * 8 * batch + problem.features.function_bytes
    vectors = 4 * n * problem.numbers * 8 * batch + 6 * n * problem.outputs * 8 * batch
    pairs = n * n * batch / rates.block_pairs
    flops = n**3 * batch / rates.cholesky(dtype, n)
    calls, matrix = 40 * rates.call_seconds, n * n * dtype.itemsize * batch
    plan = _plan(price, route, "torch", problem.factors * matrix + tiles + vectors)
    return replace(
        plan, seconds=problem.factors * (flops / 3 + pairs * 1.5 + calls), training_bytes=matrix + tiles + vectors,
        fit_step_seconds=problem.factors * (flops + pairs * 2 + calls),
    )  # fmt: skip


def _plan(price: Price, route: str, backend: str, peak_bytes: int) -> Plan:
    problem = price.problem
    return Plan(
        device=str(price.device), n=price.n, distinct=price.n, d=problem.d, outputs=problem.outputs,
        peak_bytes=peak_bytes, seconds=0.0, training_bytes=peak_bytes, fit_step_seconds=0.0, available_bytes=0,
        profile=price.profile.name, kernel=problem.form.fusion, route=route,
        solver="cholesky" if route in FACTORED else "cg", backend=backend, dtype=ROUTES[route], batch=problem.batch,
        factors=problem.factors, training="exact",
    )  # fmt: skip


def _iterative_plans(price: Price, available: int) -> list[Plan]:
    """Preconditioned conjugate gradients, eq. (M-98), stored or recomputed, on every backend there is.

    Outputs with noise of their own are solved for one after the other, on the same tiles; the preconditioners stay.
    """
    n, rates, plans, problem = price.n, price.rates, [], price.problem
    columns = problem.columns + (SAMPLES if problem.samples_rows else 0)
    for one in products_of(price, columns, 2):
        kept, buffers = 8 * n * (problem.outputs - problem.columns), RANK_BUFFERS + problem.factors - 1
        rank, peak = preconditioned(price, one.peak_bytes + kept, columns, available, buffers)
        passes, made = solve_passes(n, rank, price.stage_work)
        work = {columns: passes.middle + made}
        if columns > problem.columns:  # the preconditioner is in passes of few
            work = {columns: passes.middle, problem.columns: made}
        taken = sum(
            p.seconds
            for t, count in work.items()
            for p in products_of(price, t, round(count))
            if (p.route, p.backend) == (one.route, one.backend)
        )
        making = n * rank / rates.block_pairs + 2 * n * rank**2 / rates.gemm_float64
        seconds = problem.factors * (taken + making / problem.ranks + 40 * rates.call_seconds)
        notes = (
            f"{passes.middle:.0f} passes over the pairs are assumed; the spectrum decides how many a solve takes",
            "without a factor every exact variance costs a solve: more memory, or fewer rows, would allow one",
        )
        plan = _plan(price, one.route, one.backend, peak)
        plans.append(replace(plan, seconds=seconds, rank=rank, notes=notes))
    return plans


def _solving(price: Price, plan: Plan) -> Cost:
    """Seconds of conditioning by a plan, and without a factor the bytes that its solves send, (M-228)."""
    if plan.route in FACTORED:
        return Cost.of(plan.seconds)
    problem, (passes, made) = price.problem, solve_passes(price.n, plan.rank, price.stage_work)
    sent = problem.factors * solve_wire(problem, problem.columns, plan.rank, passes.middle)
    one = plan.seconds / (passes.middle + made)
    return Cost(one * (passes.low + made), plan.seconds, one * (passes.high + made), sent)


def solve_passes(n: int, rank: int, work: WorkSettings) -> tuple[Cost, float]:
    """Passes over the pairs of a solve with the preconditioner that will serve, eq. (M-121), and as many as making it
    takes as long as: full scale at once, or after a comparison, or the low rank alone."""
    prices = [making_passes(n, rank, *sizes) for sizes in work.preconditioners]
    if prices[0] > work.compared_most:
        return work.passes_low_rank, 0.0
    at_once = prices[0] <= work.at_once
    allowed, passes = (work.at_once_most, work.passes_at_once) if at_once else (work.made_most, work.passes_compared)
    return passes, work.making * max(price for price in prices if price <= max(allowed, prices[0]))


def usual_passes(n: int) -> int:
    """Passes over the pairs of one more block of solves on so many rows, with a preconditioner that is there."""
    return round(solve_passes(n, min(MAX_RANK, n // ROWS_PER_RANK), WorkSettings())[0].middle)


def making_passes(n: int, rank: int, block: int, neighbours: int, most: float = math.inf) -> float:
    """Passes over the pairs that take as long as making a full-scale preconditioner, eq. (M-121); inf above a most."""
    width = block + neighbours
    price = ((2.0 * rank + width / 3.0) * width**2 / block + 4.0 * rank**2) / (7.0 * max(1, n))
    return price if price <= most else math.inf


def preconditioned(price: Price, products: int, t: int, available: int, buffers: int = RANK_BUFFERS) -> tuple[int, int]:
    """(rank, peak bytes) beside the bytes of products with t right-hand sides, (M-98); buffers, of n x rank numbers."""
    n, ranks = price.n, price.problem.ranks
    beside = products + 8 * n * (VECTORS * t + 4 * price.problem.numbers)
    column = -(-8 * n // ranks)
    less, full, room = (buffers - 1) * column, min(MAX_RANK, n // ROWS_PER_RANK), available - beside
    wide = -(-4 * n * WIDTH * (buffers - 2) // ranks) if full == MAX_RANK else 0
    less += min(8 * n, NEEDED * column) * (buffers - 2) if wide and ranks > 1 else 0
    rank = min(full, room // max(1, buffers * column), max(WIDE_RANK, (room - wide) // max(1, less)))
    rank = max(min(full, MIN_RANK), rank)
    making = buffers * column * rank
    return rank, beside + max(making, min(room, less * rank + wide))


def products_of(price: Price, t: int, passes: int) -> list[Candidate]:
    """Float32 products with t right-hand sides, (M-55) to (M-58), on what answers so many pairs.

    A rank of a group evaluates its share of the pairs, (M-201), and keeps no more tiles.
    """
    n = price.n
    prices = product_prices(price.problem.products(t, passes), price.device, price.profile)
    # Small problems do not wait for a compiler: portable tiles answer them.
    small = price.device.type == "cpu" and n * n < PORTABLE_PAIRS
    found = [p for p in prices if p.route != "dense" and not (small and p.backend != "torch")]
    return found if price.problem.ranks == 1 else [_of_rank(p, n, price.problem.ranks) for p in found]


def _of_rank(product: Candidate, n: int, ranks: int) -> Candidate:
    tiles = stored_bytes(n) if product.route == "stored" else 0
    peak = product.peak_bytes - tiles + tiles // ranks
    return replace(product, peak_bytes=peak, seconds=product.seconds / ranks)


# -- training --------------------------------------------------------------------------------------------------------
def trained_plan(plan: Plan, price: Price, available: int, factor: str) -> Plan:
    """Choose how `fit` trains beside this route, eq. (M-100).

    A closed-form gradient while TRAINING_EVALUATIONS of them take less than TRAINING_SECONDS, or are the quickest;
    else estimated gradients, on stored tiles where they fit. factor: the route whose factor gives exact gradients,
    "direct" unless float32 was asked for, which rounds the likelihood; available, beside what joined rows take.
    """
    exact = factored_plan(price, factor)
    exact = replace(plan, training_bytes=exact.training_bytes, fit_step_seconds=exact.fit_step_seconds)
    if price.problem.batch != 1 or price.problem.iterates:
        return exact
    estimated = _estimated(plan, price, available)
    affordable = TRAINING_EVALUATIONS * exact.fit_step_seconds < TRAINING_SECONDS
    quickest = all(exact.fit_step_seconds <= other.fit_step_seconds for other in estimated)
    if exact.training_bytes <= available and (affordable or quickest):
        return exact
    fitting = [other for other in estimated if other.training_bytes <= available]
    stored = [other for other in fitting if other.training == "stored"]
    if stored or fitting:
        return min(stored or fitting, key=lambda other: other.fit_step_seconds)
    return min([exact, *estimated], key=lambda other: other.training_bytes)


def _estimated(plan: Plan, price: Price, available: int) -> list[Plan]:
    """Steps with estimated gradients: TRAINING_PASSES products and the passes of a gradient, (M-100).

    A float32 factor may take over where it fits, and a float64 one after it where that fits. Outputs with noise of
    their own take such a step each, and their last solutions stay.
    """
    problem, plans = price.problem, []
    t = TRAINING_COLUMNS * problem.columns
    single, double = (factored_plan(price, route) for route in ("refined", "direct"))
    vectors = 8 * price.n * FACTOR_COLUMNS * problem.columns * (VECTORS + problem.factors - 1)
    fitting = [one.training_bytes + vectors for one in (double, single) if one.training_bytes + vectors <= available]
    for product in products_of(price, t, TRAINING_PASSES + GRADIENT_PASSES):
        kept = 8 * price.n * t * (problem.factors - 1)
        rank, peak = preconditioned(price, product.peak_bytes + kept, t, available)
        seconds = problem.factors * product.seconds
        one = replace(plan, training=product.route, training_bytes=peak, training_rank=rank, fit_step_seconds=seconds)
        if fitting:
            one_pass = product.seconds / (TRAINING_PASSES + GRADIENT_PASSES)
            passes = max(1, round(single.seconds / problem.factors / one_pass)) if one_pass else 1
            one = replace(one, training_bytes=max(peak, fitting[0]), training_factor_passes=passes)
        plans.append(one)
    return plans


# -- a whole fit -----------------------------------------------------------------------------------------------------
def with_fit_seconds(plan: Plan, price: Price) -> Plan:
    """The plan with the seconds of a whole fit, eq. (M-146): every stage, what lies between, and the posterior; of
    ranks with what they send."""
    problem = price.problem
    last = _solving(price, plan) + Cost(sent=table_wire(problem))
    total = last
    if problem.u and problem.batch:
        stages = stages_of(price, estimated=plan.training != "exact")
        total += price.exact_stages(stages, evaluation_wire(problem))
        estimated = [stage for stage in stages if stage.search is Search.ESTIMATED]
        for stage in estimated:
            total += _estimated_stage(plan, price, stage)
        if estimated:
            total += Cost.of(price.information_seconds(stages[-1 - len(estimated)].rows))
        plan = replace(plan, fit_seconds=total.middle, fit_seconds_low=total.low, fit_seconds_high=total.high)
    shared = None if problem.ranks == 1 else Shared(problem.ranks, round(last.sent), round(total.sent))
    return replace(plan, shared=shared)


def stages_of(price: Price, *, estimated: bool) -> tuple[FitStage, ...]:
    """Stages of a fit of the problem; estimated: True if gradients of many rows are."""
    problem = price.problem
    settings = problem.stages.for_model(own_modules=problem.own_modules)
    scored = problem.batch == 1 and not problem.own_modules
    return fit_stages(problem.u, settings, parameters=problem.parameters, scored=scored, estimated=estimated)


def _estimated_stage(plan: Plan, price: Price, stage: FitStage) -> Cost:
    """Estimated gradients of so many rows, trained as the plan says, eq. (M-146), with the bytes that rank 0 sends,
    (M-229): solves by products as the plan takes them, gradients that compute the pairs again."""
    problem, work, rows = replace(price.problem, n=stage.rows, distinct=None), price.stage_work, stage.rows
    t, rank = TRAINING_COLUMNS * problem.columns, min(plan.training_rank, stage.rows // ROWS_PER_RANK)
    products = products_of(replace(price, problem=problem), t, TRAINING_PASSES)
    solve, again = (
        min(one.seconds for one in products if one.route == route) / TRAINING_PASSES
        for route in (plan.training, "recomputed")
    )
    making = (rows * rank / price.rates.block_pairs + price.gemm(2.0 * rows * rank**2)) / problem.ranks
    passes = stage.evaluations * work.step_passes + work.first_passes
    gradient = Cost.of(work.gradient_passes * again + making, step_wire(problem, t, rank, 0))
    each = step_wire(problem, t, rank, 1) - gradient.sent
    return (passes * Cost.of(solve, each) + stage.evaluations * gradient) * problem.factors


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
