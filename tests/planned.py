"""Plans from sizes in a row, as tests give them."""

from typing import Any

from flashgp.foundations.form import Form
from flashgp.planner.conditioning import plan_conditioning
from flashgp.planner.plan import Plan
from flashgp.planner.problem import ConditioningProblem, Features, PlanSettings, ProductProblem
from flashgp.planner.products import ProductPlan, plan_product

SETTINGS = ("memory", "device", "profile", "deterministic", "engines", "route", "backend")


def _taken(options: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: options.pop(name) for name in names if name in options}


def conditioning_plan(form: Form, n: int, **options: Any) -> Plan:
    """Of n rows of four columns, with two features."""
    sizes = _taken(options, ("distinct", "outputs", "batch", "factors"))
    return plan_conditioning(ConditioningProblem(form, n, 4, Features(2), **sizes), PlanSettings(**options))


def product_plan(form: Form, n: int, m: int | None = None, *, d: int, **options: Any) -> ProductPlan:
    """Of K V on so many points with d features."""
    settings = PlanSettings(**_taken(options, SETTINGS))
    beside = _taken(options, ("kept_bytes", "other_bytes", "other_seconds", "room"))
    sizes = _taken(options, ("t", "batch", "products", "kept", "dtype"))
    return plan_product(ProductProblem(form, n, m, Features(d), **sizes), settings, **beside)
