"""`flashgp plan`: what a fit would take, in bytes and seconds, before anything is allocated."""

from dataclasses import asdict, fields
from typing import Any

from flashgp.data.files import is_pattern
from flashgp.foundations.errors import DomainError
from flashgp.inference import plan as plans
from flashgp.inference.gp import GP
from flashgp.kernels.default import DEFAULT
from flashgp.planner.approximate import ApproximatePlan
from flashgp.planner.choice import table_of
from flashgp.planner.plan import Plan
from flashgp.planner.products import ProductPlan

from .console import Console
from .options import FitOptions, PlanOptions, TableOptions
from .prepared import DTYPES, prepare_table


def run_plan(options: PlanOptions, console: Console) -> dict[str, Any]:
    """The plan for a table, or for so many rows and numeric columns, with the routes that were not chosen.

    Returns: the plan as JSON values; with test_rows that of predicting so many rows under "prediction".
    Raises: MemoryBudgetError when it does not fit; FlashGPError for the table.
    """
    plan: Plan | ApproximatePlan
    if options.table is not None and options.target is not None:
        if is_pattern(options.table) and options.test_rows is not None:
            raise DomainError(
                f"`--test-rows` is of exact inference, got it beside the pattern {options.table!r}, whose files are "
                "read; leave it out: the plan has 1,000 points"
            )
        shared = {field.name: getattr(options, field.name) for field in fields(TableOptions)}
        if shared["kernel"] == "auto":  # chosen by short fits, which a plan is not
            shared["kernel"] = None
            console.note("which kernel auto takes is decided in the fit; this is the plan of the default one.")
        asked: Any = options.approximation or "none"
        prepared = prepare_table(
            FitOptions(
                table=options.table, target=options.target, target_transform="none", time_limit=options.time_limit,
                approximation=asked, **shared,
            ),
            console,
        )  # fmt: skip
        gp, plan = prepared.gp, prepared.plan
    else:
        gp = GP(DEFAULT.build(options.columns or 1))
        plan = plans.plan(
            gp, options.rows or 0, options.columns or 1, memory=options.memory, device=options.device,
            dtype=DTYPES[options.dtype], solver=options.solver, time_limit=options.time_limit,
            approximation=options.approximation,
            inducing=options.sizes[0], neighbours=options.sizes[1],
        )  # fmt: skip
    _show("plan", plan, console)
    result = {"command": "plan", **asdict(plan)}
    if options.test_rows is not None and isinstance(plan, Plan):
        prediction = plans.plan(
            gp, plan.n, plan.d, n_test=options.test_rows, distinct=plan.distinct, memory=options.memory,
            device=options.device, conditioned=plan.route,
        )  # fmt: skip
        _show(f"prediction of {options.test_rows:,} rows", prediction, console)
        result["prediction"] = asdict(prediction)
    return result


def _show(title: str, plan: Plan | ProductPlan | ApproximatePlan, console: Console) -> None:
    console.pairs(title, plan.lines())
    if not isinstance(plan, ApproximatePlan) and plan.alternatives:
        head, *rows = table_of(plan.alternatives)
        console.table(head, rows, numeric=(4, 5))
