"""Plans from sizes in a row, as tests give them."""

from typing import Any

from flashgp.foundations.form import Form
from flashgp.planner.conditioning import plan_conditioning
from flashgp.planner.plan import Plan
from flashgp.planner.problem import ConditioningProblem, Features, OtherWork, ProductProblem, Resources
from flashgp.planner.products import ProductPlan, plan_product

RESOURCES = ("memory", "device", "profile", "deterministic", "engines")


def _taken(options: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: options.pop(name) for name in names if name in options}


def conditioning_plan(form: Form, n: int, **options: Any) -> Plan:
    """Of n rows of four columns, with two features."""
    resources = Resources(**_taken(options, RESOURCES))
    sizes = _taken(options, ("distinct", "outputs", "batch", "factors"))
    return plan_conditioning(ConditioningProblem(form, n, 4, Features(2), **sizes), resources, **options)


def product_plan(form: Form, n: int, m: int | None = None, *, d: int, **options: Any) -> ProductPlan:
    """Of K V on so many points with d features."""
    resources = Resources(**_taken(options, RESOURCES))
    beside = OtherWork(**_taken(options, ("kept_bytes", "peak_bytes", "seconds", "room")))
    sizes = _taken(options, ("t", "batch", "products", "kept", "dtype"))
    return plan_product(ProductProblem(form, n, m, Features(d), **sizes), resources, beside=beside, **options)
