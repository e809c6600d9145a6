"""The largest table that a fit would finish within a time limit and a memory budget, by the planner's own prices."""

from collections.abc import Callable

from flashgp.foundations.errors import MemoryBudgetError
from flashgp.planner.plan import LargestFit, Plan

__all__ = ["largest_fit"]

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
