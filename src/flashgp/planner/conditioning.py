"""Choice of the route that conditions on n rows and of the training beside it, among those of planner/exact.py.

A factor answers everything, so it is taken while it is quick or fits: in float64 while that takes less than
PATIENCE_SECONDS, in float32 with float64 refinement where it takes longer or float64 does not fit. Iterative solves are
for what no factor fits: their mean is as certain, but exact variances cost a solve for every point. Nothing here is a
size: the choice comes from the machine's rates and the budget.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from flashgp.foundations.errors import DomainError, MemoryBudgetError
from flashgp.foundations.quantities import readable_bytes
from flashgp.planner.choice import DTYPES, Alternative, Candidate, check_route, choose
from flashgp.planner.exact import routes_of, trained_plan, with_fit_seconds
from flashgp.planner.plan import FACTORED, ROUTES, SOLVER_ROUTES, Plan
from flashgp.planner.pricing import Price
from flashgp.planner.problem import ConditioningProblem, PlanSettings

PATIENCE_SECONDS = 10.0  # a float64 factor that takes less is never traded for float32

Key = tuple[str, str, str]  # device, route, backend


def plan_conditioning(problem: ConditioningProblem, settings: PlanSettings) -> Plan:
    """The plan for n rows: a factor, eqs. (M-35) and (M-36), or iterative solves, eq. (M-98).

    Args: settings: dtype, torch.float64 for "direct", torch.float32 for "refined"; route, one of ROUTES; solver, of the
        routes that it works on; factored, of those that leave a factor; backend is of predictions.
    Raises:
        MemoryBudgetError: with needed and available bytes, when nothing that may be taken fits.
        DomainError: for arguments that exclude each other.
    """
    dtype, route, solver = settings.dtype, settings.route, settings.solver
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
    routes = [name for name in _routes(solver, settings.factored) if problem.batch == 1 or name in FACTORED]
    if not routes:
        raise DomainError(f'`solver` must be "cholesky" for {problem.batch} models, got an iterative one; leave it out')
    if route is not None and route not in routes:
        raise DomainError(
            f"`route` {route!r} cannot be taken for {problem.batch} models or with the other arguments; choose from "
            f"{', '.join(routes)}, or leave it out"
        )
    profile, available, n = settings.rates, settings.available(), problem.n
    joining = 8 * n * (2 * problem.d + 2 * problem.outputs + 8) if problem.u < n else 0  # eq. (M-89)
    # What is left of the budget beside the number of the row that each row joined.
    left = {device: bytes_there - (8 * n if joining else 0) for device, bytes_there in available.items()}
    prices = {str(device): Price(problem, profile, device) for device in settings.devices}
    plans = {
        _key(plan): replace(plan, n=n, peak_bytes=_bytes_with_joining(plan.peak_bytes, n, joining))
        for device, price in prices.items()
        for plan in routes_of(price, left[device])
    }
    objections = _objections(plans, available, [route] if route else routes, sampled=problem.samples_rows)

    def completed(key: Key, alternatives: tuple[Alternative, ...] = ()) -> Plan:
        price = prices[key[0]]
        plan = trained_plan(plans[key], price, left[key[0]], "refined" if route == "refined" else "direct")
        plan = with_fit_seconds(plan, price)
        plan = replace(plan, training_bytes=_bytes_with_joining(plan.training_bytes, n, joining))
        notes = (*plan.notes, *settings.notes())
        return replace(plan, available_bytes=available[key[0]], alternatives=alternatives, notes=notes)

    def too_large(smallest: Candidate, _: Candidate | None) -> MemoryBudgetError:
        fitting = [p for p in plans.values() if p.peak_bytes <= available[p.device]]
        offered = [p for p in fitting if p.route in _preferred(fitting, sampled=problem.samples_rows)]
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


# -- the choice ------------------------------------------------------------------------------------------------------
_SAMPLED = "takes longer than solves with sampled variances of the rows"
_AGAINST = {
    "stored": {"direct": _SAMPLED, "refined": _SAMPLED},
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


def _objections(
    plans: Mapping[Key, Plan], available: Mapping[str, int], routes: Sequence[str], *, sampled: bool
) -> dict[Key, str]:
    """Reason against each plan; the quickest one that fits is taken among those without one."""
    fitting = [p for p in plans.values() if p.route in routes and p.peak_bytes <= available[p.device]]
    preferred = _preferred(fitting, sampled=sampled) if fitting else routes
    against = _AGAINST.get(preferred[0], {}) if fitting else {}
    asked = f"{' or '.join(routes)} was asked for"

    def objection(plan: Plan) -> str:
        if plan.route not in routes:
            return asked
        return "" if plan.route in preferred else against.get(plan.route, "another is preferred")

    return {key: objection(plan) for key, plan in plans.items()}


def _preferred(fitting: Sequence[Plan], *, sampled: bool) -> Sequence[str]:
    """The routes to choose among, of plans that fit: see the head of this file.

    Args: sampled, whether solves are priced with variances of the rows, so that a factor's are worth no more."""
    there = {plan.route for plan in fitting}
    quickest = min(fitting, key=lambda plan: plan.seconds)
    patient = any(plan.route == "direct" and plan.seconds <= PATIENCE_SECONDS for plan in fitting)
    if patient or quickest.route == "direct":
        return ("direct",)
    for factored in ("refined", "direct"):
        if factored in there and not (sampled and quickest.route not in FACTORED):
            return (factored,)
    return ("stored", "recomputed")


def _bytes_with_joining(peak_bytes: int, n: int, joining: int) -> int:
    return max(peak_bytes, joining) + 8 * n if joining else peak_bytes


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
