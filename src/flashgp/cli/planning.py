"""`flashgp plan`: what a fit would take, in bytes and seconds, before anything is allocated."""

from dataclasses import asdict
from typing import Any

from flashgp.inference.gp import GP
from flashgp.inference.plan import plan_for
from flashgp.planner.choice import table_of
from flashgp.planner.plan import Plan
from flashgp.planner.products import ProductPlan

from .console import Console
from .fitting import DTYPES, TableOptions, prepare
from .kernel_expression import default_kernel

__all__ = ["run_plan"]


def run_plan(
    data: TableOptions | None,
    rows: int,
    columns: int,
    memory: str | None,
    device: str,
    dtype: str | None,
    console: Console,
    test_rows: int | None = None,
    solver: str | None = None,
) -> dict[str, Any]:
    """The plan for a table, or for so many rows and numeric columns, with the routes that were not chosen.

    Returns: the plan as JSON values; with test_rows that of predicting so many rows under "prediction".
    Raises: MemoryBudgetError when it does not fit; FlashGPError for the table.
    """
    if data is not None:
        prepared = prepare(data, console)
        gp, plan = prepared.gp, prepared.plan
    else:
        gp = GP(default_kernel(columns, ()))
        chosen = DTYPES[dtype] if dtype else None
        plan = plan_for(gp, rows, columns, memory=memory, device=device, dtype=chosen, solver=solver)
    _show("plan", plan, console)
    said = {"command": "plan", **asdict(plan)}
    if test_rows is not None:
        prediction = plan_for(
            gp, plan.n, plan.d, n_test=test_rows, distinct=plan.distinct, memory=memory, device=device,
            conditioned=plan.route,
        )  # fmt: skip
        _show(f"prediction of {test_rows:,} rows", prediction, console)
        said["prediction"] = asdict(prediction)
    return said


def _show(title: str, plan: Plan | ProductPlan, console: Console) -> None:
    console.pairs(title, plan.lines())
    if plan.alternatives:
        head, *rows = table_of(plan.alternatives)
        console.table(head, rows, numeric=(4, 5))
