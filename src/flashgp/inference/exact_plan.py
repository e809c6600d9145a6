"""The plan of exact conditioning and fitting of a prior; what cannot fit is refused with the approximations that do."""

from collections.abc import Sequence

from flashgp.foundations.determinism import deterministic_where
from flashgp.foundations.errors import DomainError, MemoryBudgetError
from flashgp.inference.approximate_plan import offered, with_offers
from flashgp.inference.plan_settings import PlanSettings, RowCounts, conditioning_problem, resources_of
from flashgp.inference.prior import Prior
from flashgp.planner.conditioning import plan_conditioning
from flashgp.planner.plan import FACTORED, ROUTES, SOLVER_ROUTES, Plan
from flashgp.planner.problem import ConditioningProblem


@deterministic_where(lambda prior, rows, settings, **_: settings.deterministic)
def conditioning_plan(prior: Prior, rows: RowCounts, settings: PlanSettings, *, training: bool = False) -> Plan:
    """What conditioning and fitting take; the batch may be empty.

    Args: training: whether a refusal offers approximations by what whole fits with them take.
    Raises: as `plan`.
    """
    try:
        return planned_as(conditioning_problem(prior, rows, settings), settings)
    except MemoryBudgetError as error:
        if settings.factored or settings.route is not None:
            raise
        raise with_offers(error, offered(prior, rows, settings, training=training), training=training) from None


def planned_as(problem: ConditioningProblem, settings: PlanSettings) -> Plan:
    """The plan of a problem, as the settings say. Raises: MemoryBudgetError, DomainError."""
    return plan_conditioning(
        problem, resources_of(settings), dtype=settings.dtype, route=settings.route,
        routes=_routes(settings.solver, settings.factored), solver=settings.solver,
    )  # fmt: skip


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
