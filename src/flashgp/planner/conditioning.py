"""How to condition on n rows and how to train on them: the price of every route, and the choice among them.

A factor answers everything, so it is taken while it is quick or fits: in float64 while that takes less than
PATIENCE_SECONDS, in float32 with float64 refinement where it takes longer or float64 does not fit. Iterative solves are
for what no factor fits: their mean is as certain, but exact variances cost a solve for every point. Nothing here is a
size: the choice comes from the machine's rates and the budget.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from flashgp.foundations.errors import DomainError, MemoryBudgetError
from flashgp.foundations.profile import MachineProfile
from flashgp.foundations.quantities import readable_bytes
from flashgp.pairwise.cpu.backend import PORTABLE_PAIRS
from flashgp.pairwise.torch.tiles import tile_rows
from flashgp.planner.choice import DTYPES, Alternative, Candidate, check_route, choose
from flashgp.planner.plan import FACTORED, ROUTES, Plan
from flashgp.planner.problem import ConditioningProblem, Resources
from flashgp.planner.products import product_prices

__all__ = ["PASSES", "PATIENCE_SECONDS", "plan_conditioning"]

PATIENCE_SECONDS = 10.0  # a float64 factor that takes less is never traded for float32
PASSES = 100  # over the pairs: assumed of an iterative solve, since the spectrum is not known beforehand
VECTORS = 6  # n x t in float64: right-hand sides, values, residuals, directions and two products
# An exact step is preferred while so many of them, a short fit, take less than this.
TRAINING_EVALUATIONS, TRAINING_SECONDS = 40, 30.0
TRAINING_PASSES, GRADIENT_PASSES = 30, 3  # of one iterative step: warm starts need few
TRAINING_COLUMNS = 9  # right-hand sides of a step: the targets and eight samples
FACTOR_COLUMNS = 33  # with a factor: more samples cost little beside it
# Columns of the preconditioner: at most MAX_RANK and one for ROWS_PER_RANK rows; fewer where memory is short, down to
# MIN_RANK. So many n x rank buffers in float64 are alive at once while it is made.
MAX_RANK, ROWS_PER_RANK, MIN_RANK, RANK_BUFFERS = 512, 4, 32, 3

Key = tuple[str, str, str]  # device, route, backend


def plan_conditioning(
    problem: ConditioningProblem,
    resources: Resources,
    *,
    dtype: torch.dtype | None = None,
    route: str | None = None,
    routes: Sequence[str] = tuple(ROUTES),
    solver: str | None = None,
) -> Plan:
    """The plan for n rows: a factor, eqs. (M-35) and (M-36), or iterative solves, eq. (M-98).

    Args:
        problem, resources: what is conditioned, with what.
        dtype: torch.float64 asks for "direct", torch.float32 for "refined".
        route: force one of ROUTES; routes: those that may be chosen; solver: what solves on them.

    Raises:
        MemoryBudgetError: with needed and available bytes, when nothing that may be taken fits.
        DomainError: for arguments that exclude each other.
    """
    if dtype is not None and dtype not in DTYPES.values():
        raise DomainError(
            f"`dtype` must be torch.float64 or torch.float32, got {dtype}; half precision is never computed in"
        )
    check_route(route, tuple(ROUTES))
    if route is not None and dtype is not None and DTYPES[ROUTES[route]] != dtype:
        raise DomainError(
            f"`route` {route!r} computes in {ROUTES[route]}, got dtype={dtype} beside it; pass one of them"
        )
    if route is None and dtype is not None:
        route = "direct" if dtype == torch.float64 else "refined"
    # Iterative solvers take one system at a time.
    routes = [name for name in routes if problem.batch == 1 or name in FACTORED]
    if not routes:
        raise DomainError(f'`solver` must be "cholesky" for {problem.batch} models, got an iterative one; leave it out')
    if route is not None and route not in routes:
        raise DomainError(
            f"`route` {route!r} cannot be taken for {problem.batch} models or with the other arguments; choose from "
            f"{', '.join(routes)}, or leave it out"
        )
    profile, available, n = resources.rates, resources.available(), problem.n
    priced = _Priced(problem, profile)
    joining = 8 * n * (2 * problem.d + 2 * problem.outputs + 8) if problem.u < n else 0  # eq. (M-89)
    # What is left of the budget beside the number of the row that each row joined.
    left = {device: bytes_there - (8 * n if joining else 0) for device, bytes_there in available.items()}
    plans = {_key(plan): plan for where in resources.devices for plan in _plans(priced, where, left[str(where)])}
    plans = {key: _with_joining(plan, n, joining) for key, plan in plans.items()}
    objections = _objections(plans, available, [route] if route else routes)

    def completed(key: Key, alternatives: tuple[Alternative, ...] = ()) -> Plan:
        plan = _trained(plans[key], priced, left[key[0]], "refined" if route == "refined" else "direct")
        plan = replace(plan, training_bytes=_bytes_with_joining(plan.training_bytes, n, joining))
        notes = (*_notes(plan), *plan.notes, *resources.notes())
        plan = plan if solver is None else replace(plan, solver=solver)
        return replace(plan, available_bytes=available[key[0]], alternatives=alternatives, notes=notes)

    def too_large(smallest: Candidate, _: Candidate | None) -> MemoryBudgetError:
        fitting = [p for p in plans.values() if p.peak_bytes <= available[p.device]]
        offered = [p for p in fitting if p.route in _preferred(fitting)]
        cheapest = min(offered, key=lambda plan: plan.seconds, default=None)
        return _does_not_fit(completed(_key(smallest)), cheapest and completed(_key(cheapest)))

    candidates = [
        Candidate(p.route, p.backend, p.device, p.dtype, p.peak_bytes, p.seconds, objections[key])
        for key, p in plans.items()
    ]
    chosen, alternatives = choose(candidates, available, too_large=too_large)
    return completed(_key(chosen), alternatives)


def _key(plan: Plan | Candidate) -> Key:
    return plan.device, plan.route, plan.backend


# -- the choice ------------------------------------------------------------------------------------------------------
_AGAINST = {
    "direct": {
        "refined": f"a float64 factor takes less than {PATIENCE_SECONDS:g} s, or is as quick",
        "stored": "a factor fits, and gives variances at once",
        "recomputed": "a factor fits, and gives variances at once",
    },
    "refined": {
        "direct": f"takes more than {PATIENCE_SECONDS:g} s, and a float32 factor is refined to the same answer",
        "stored": "a factor fits, and gives variances at once",
        "recomputed": "a factor fits, and gives variances at once",
    },
}


def _objections(plans: Mapping[Key, Plan], available: Mapping[str, int], routes: Sequence[str]) -> dict[Key, str]:
    """What speaks against each plan; nothing against those among which the quickest that fits is taken."""
    fitting = [p for p in plans.values() if p.route in routes and p.peak_bytes <= available[p.device]]
    preferred = _preferred(fitting) if fitting else routes
    against = _AGAINST.get(preferred[0], {}) if fitting else {}
    asked = f"{' or '.join(routes)} was asked for"

    def objection(plan: Plan) -> str:
        if plan.route not in routes:
            return asked
        return "" if plan.route in preferred else against.get(plan.route, "another is preferred")

    return {key: objection(plan) for key, plan in plans.items()}


def _preferred(fitting: Sequence[Plan]) -> Sequence[str]:
    """The routes to choose among, of plans that fit: see the head of this file."""
    there = {plan.route for plan in fitting}
    quickest = min(fitting, key=lambda plan: plan.seconds)
    patient = any(plan.route == "direct" and plan.seconds <= PATIENCE_SECONDS for plan in fitting)
    if patient or quickest.route == "direct":
        return ("direct",)
    for factored in ("refined", "direct"):
        if factored in there:
            return (factored,)
    return ("stored", "recomputed")


# -- prices ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Priced:
    """A problem of its distinct rows at the rates of a machine."""

    problem: ConditioningProblem
    profile: MachineProfile

    @property
    def n(self) -> int:
        return self.problem.u


def _plans(priced: _Priced, device: torch.device, available: int) -> list[Plan]:
    """Every route on one device; what is available, how to train and the alternatives are filled in later."""
    plans = [_factored(priced, device, route) for route in FACTORED]
    return plans + (_iterative(priced, device, available) if priced.problem.batch == 1 else [])


def _with_joining(plan: Plan, n: int, joining: int) -> Plan:
    """A plan of the distinct rows as one of all n, eq. (M-89)."""
    return replace(plan, n=n, peak_bytes=_bytes_with_joining(plan.peak_bytes, n, joining))


def _bytes_with_joining(peak_bytes: int, n: int, joining: int) -> int:
    return max(peak_bytes, joining) + 8 * n if joining else peak_bytes


def _plan(priced: _Priced, device: torch.device, route: str, backend: str, peak_bytes: int, seconds: float) -> Plan:
    problem = priced.problem
    return Plan(
        route=route, solver="cholesky" if route in FACTORED else "cg", backend=backend, device=str(device),
        dtype=ROUTES[route], n=priced.n, distinct=priced.n, d=problem.d, outputs=problem.outputs, batch=problem.batch,
        rank=0, peak_bytes=peak_bytes, seconds=seconds, training="exact", training_bytes=peak_bytes,
        fit_step_seconds=0.0, training_factor_passes=0, training_rank=0, available_bytes=0,
        profile=priced.profile.name, kernel=problem.form.fusion,
    )  # fmt: skip


def _factored(priced: _Priced, device: torch.device, route: str) -> Plan:
    """A factor, eqs. (M-35) and (M-36): one n x n buffer, the features, one tile's temporaries."""
    dtype = DTYPES[ROUTES[route]]
    problem, n, rates = priced.problem, priced.n, priced.profile.rates(device)
    batch = problem.batch
    rows = min(n, tile_rows(n, batch, device))
    # A tile's temporaries: float64 statistics before the cast, and what the generated code keeps.
    tiles = problem.temporaries * rows * n * 8 * batch + problem.features.function_bytes
    vectors = 4 * n * problem.numbers * 8 * batch + 6 * n * problem.outputs * 8 * batch
    pairs = n * n * batch / rates.block_pairs
    flops = n**3 * batch / rates.cholesky(dtype, n)
    seconds = flops / 3 + pairs * 1.5 + 40 * rates.call_seconds
    plan = _plan(priced, device, route, "torch", n * n * dtype.itemsize * batch + tiles + vectors, seconds)
    return replace(plan, fit_step_seconds=flops + pairs * 2 + 40 * rates.call_seconds)


def _iterative(priced: _Priced, device: torch.device, available: int) -> list[Plan]:
    """Preconditioned conjugate gradients, eq. (M-98), stored or recomputed, on every backend there is."""
    n, rates, plans = priced.n, priced.profile.rates(device), []
    for price in _products(priced, device, priced.problem.outputs, PASSES):
        rank, peak = _preconditioned(priced, price.peak_bytes, priced.problem.outputs, available)
        preparing = n * rank / rates.block_pairs + 2 * n * rank**2 / rates.gemm_float64 + 40 * rates.call_seconds
        plan = _plan(priced, device, price.route, price.backend, peak, price.seconds + preparing)
        plans.append(replace(plan, rank=rank))
    return plans


def _preconditioned(priced: _Priced, products: int, t: int, available: int) -> tuple[int, int]:
    """(rank, peak bytes) beside the bytes of products with t right-hand sides, (M-98)."""
    n = priced.n
    beside = products + 8 * n * (VECTORS * t + 4 * priced.problem.numbers)
    column = 8 * n * RANK_BUFFERS
    full = min(MAX_RANK, n // ROWS_PER_RANK)
    rank = max(min(full, MIN_RANK), min(full, (available - beside) // max(1, column)))
    return rank, beside + column * rank


def _products(priced: _Priced, device: torch.device, t: int, passes: int) -> list[Candidate]:
    """Float32 products with t right-hand sides, (M-55) to (M-58), on what answers so many pairs."""
    n = priced.n
    prices = product_prices(priced.problem.products(t, passes), device, priced.profile)
    # Small problems do not wait for a compiler: portable tiles answer them.
    small = device.type == "cpu" and n * n < PORTABLE_PAIRS
    return [p for p in prices if p.route != "dense" and not (small and p.backend != "torch")]


# -- training --------------------------------------------------------------------------------------------------------
def _trained(plan: Plan, priced: _Priced, available: int, factor: str) -> Plan:
    """How `fit` trains beside this way to condition, eq. (M-100).

    A closed-form gradient while TRAINING_EVALUATIONS of them take less than TRAINING_SECONDS, or are the quickest;
    else estimated gradients, on stored tiles where they fit. factor: the route whose factor gives exact gradients,
    "direct" unless float32 was asked for, which rounds the likelihood; available, beside what joined rows take.
    """
    device = torch.device(plan.device)
    exact = _factored(priced, device, factor)
    exact = replace(plan, training_bytes=exact.peak_bytes, fit_step_seconds=exact.fit_step_seconds)
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


def _estimated(plan: Plan, priced: _Priced, device: torch.device, available: int) -> list[Plan]:
    """Steps with estimated gradients: TRAINING_PASSES products and the passes of a gradient, (M-100).

    A float32 factor may take over where it fits, and a float64 one after it where that fits.
    """
    t, plans = TRAINING_COLUMNS * priced.problem.outputs, []
    single, double = (_factored(priced, device, route) for route in ("refined", "direct"))
    vectors = 8 * priced.n * VECTORS * FACTOR_COLUMNS * priced.problem.outputs
    fitting = [one.peak_bytes + vectors for one in (double, single) if one.peak_bytes + vectors <= available]
    for price in _products(priced, device, t, TRAINING_PASSES + GRADIENT_PASSES):
        rank, peak = _preconditioned(priced, price.peak_bytes, t, available)
        one = replace(
            plan, training=price.route, training_bytes=peak, training_rank=rank, fit_step_seconds=price.seconds
        )
        if fitting:
            one_pass = price.seconds / (TRAINING_PASSES + GRADIENT_PASSES)
            passes = max(1, round(single.seconds / one_pass)) if one_pass else 1
            one = replace(one, training_bytes=max(peak, fitting[0]), training_factor_passes=passes)
        plans.append(one)
    return plans


# -- words -----------------------------------------------------------------------------------------------------------
def _notes(plan: Plan) -> tuple[str, ...]:
    if plan.route in FACTORED:
        return ()
    return (
        f"{PASSES} passes over the pairs are assumed; the spectrum decides how many a solve takes",
        "without a factor every exact variance costs a solve: more memory, or fewer rows, would allow one",
    )


def _does_not_fit(plan: Plan, cheapest: Plan | None) -> MemoryBudgetError:
    advice = "take fewer rows, or raise memory= on a machine that has it"
    if cheapest is not None:
        how = "" if cheapest.device == plan.device else f" on {cheapest.device}"
        needs = readable_bytes(cheapest.peak_bytes)
        advice = f"route={cheapest.route!r}{how} ({cheapest.dtype}) needs {needs} and fits"
    return MemoryBudgetError(
        f"`memory` allows {readable_bytes(plan.available_bytes)}, but the {plan.route} route for n = {plan.distinct:,} "
        f"needs {readable_bytes(plan.peak_bytes)}; {advice}",
        needed_bytes=plan.peak_bytes,
        available_bytes=plan.available_bytes,
        cheapest_plan=cheapest,
    )
