"""`flashgp plan`: what a fit would take, in bytes and seconds, before anything is allocated."""

from dataclasses import asdict
from typing import Any

from flashgp.inference.gp import GP
from flashgp.inference.planning import plan_for

from .console import Console
from .fitting import DTYPES, TableOptions, prepare
from .kernel_building import default_kernel

__all__ = ["run_plan"]


def run_plan(
    data: TableOptions | None,
    rows: int,
    columns: int,
    memory: str | None,
    device: str,
    dtype: str | None,
    console: Console,
) -> dict[str, Any]:
    """The direct route's plan for a table, or for so many rows and numeric columns.

    Returns: the plan as JSON values. Raises: MemoryBudgetError when it does not fit; FlashGPError for the table.
    """
    if data is not None:
        plan = prepare(data, console).plan
    else:
        gp = GP(default_kernel(columns, ()))
        chosen = DTYPES[dtype] if dtype else None
        plan = plan_for(gp, rows, columns, memory=memory, device=device, dtype=chosen)
    console.pairs("plan", plan.lines())
    return {"command": "plan", **asdict(plan)}
