"""Whether inference is exact or approximate where that is left to the library: approximation="auto"."""

from flashgp.foundations.errors import MemoryBudgetError
from flashgp.foundations.events import ApproximationReason, Event, EventKind
from flashgp.foundations.quantities import readable_bytes
from flashgp.inference.approximate_plan import approximate_plan, costs, obstacle
from flashgp.inference.approximation import Approximation
from flashgp.inference.exact_plan import conditioning_plan
from flashgp.inference.plan_settings import PlanSettings, RowCounts
from flashgp.inference.prior import Prior
from flashgp.planner.approximate import ApproximatePlan
from flashgp.planner.plan import Plan

# What is taken, None for exact inference, with its sizes; its plan; and why, with all costs.
Decision = tuple[Approximation | None, Plan | ApproximatePlan, Event]


def decided(
    prior: Prior,
    rows: RowCounts,
    asked: Approximation,
    settings: PlanSettings,
    time_limit: float | None = None,
    *,
    training: bool = True,
) -> Decision:
    """Exact inference where its plan keeps to the limits; else full scale, else inducing points alone.

    Args:
        asked: of kind "auto", with sizes where they were asked for.
        settings: what plans keep to; the exact one is made as they say.
        time_limit: seconds of a whole fit, or of conditioning without `training`; None for any.
    Returns: what is taken, None for exact inference, with its sizes; its plan; and the reason with all costs. Where
        nothing keeps to the time limit, the quickest of what fits the memory.
    Raises: MemoryBudgetError where nothing fits the memory; ShapeError, DomainError for points of other columns.
    """
    exact, refusal = None, None
    try:
        exact = conditioning_plan(prior, rows, settings, training=training)
    except MemoryBudgetError as error:
        refusal = error
    asked.points_of(rows.d)  # which may be refused, also where they are not taken
    needed = 0 if exact is None else exact.training_bytes if training else exact.peak_bytes
    if exact is not None and needed > exact.available_bytes:
        refusal = MemoryBudgetError(
            f"`memory` allows {readable_bytes(exact.available_bytes)}, but an exact fit of {rows.n:,} rows needs "
            f"{readable_bytes(needed)}, and no approximation fits; pass a larger memory=",
            needed_bytes=needed, available_bytes=exact.available_bytes,
        )  # fmt: skip
        exact = None
    seconds = None if exact is None else exact.fit_seconds if training else exact.seconds
    if exact is not None and seconds is not None and (time_limit is None or seconds <= time_limit):
        return None, exact, _event(None, ApproximationReason.FITS, exact, (), training)
    plans: list[ApproximatePlan] = []
    batch = rows.batch * prior.kernel.batch_shape.numel() > 1
    for one in asked.candidates:
        if rows.n and not obstacle(prior, one.kind, batch=batch):
            try:
                plans.append(approximate_plan(prior, rows, one, settings, time_limit, training=training))
            except MemoryBudgetError as error:
                refusal = error if refusal is None else refusal
    reason = ApproximationReason.MEMORY if exact is None else ApproximationReason.TIME

    def took(plan: ApproximatePlan) -> float:
        return plan.fit_seconds if training else plan.seconds

    on_time = [plan for plan in plans if time_limit is None or took(plan) <= time_limit]
    quickest = min(plans, key=took, default=None)
    chosen = on_time[0] if on_time else quickest
    if chosen is not None and not on_time and seconds is not None and seconds <= took(chosen):
        chosen = None
    if chosen is None:
        if exact is None:
            assert refusal is not None
            raise refusal
        return None, exact, _event(None, ApproximationReason.NO_OTHER, exact, tuple(plans), training)
    taken = next(one for one in asked.candidates if one.kind == chosen.approximation).resolved(chosen.sizes)
    return taken, chosen, _event(taken.kind, reason, exact, tuple(plans), training)


def _event(
    approximation: str | None, reason: ApproximationReason, exact: Plan | None, plans: tuple[ApproximatePlan, ...],
    training: bool,
) -> Event:  # fmt: skip
    words = {None: None, "full_scale": "Full scale", "sparse": "An approximation by inducing points"}
    return Event(
        EventKind.APPROXIMATION_CHOSEN, chosen=approximation or "exact", approximation=words[approximation],
        reason=reason, **costs(exact, plans, training=training),
    )  # fmt: skip
