"""One method after the other until the goal is met: each starts where the last one got to."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from flashgp.foundations.errors import MemoryBudgetError, NotPositiveDefiniteError
from flashgp.solvers.iterative.contract import NO_LIMITS, Goal, Limits, Prepared, Solution, Solver, StopReason, System

__all__ = ["solve_in_turn"]

NEXT = ("stagnated", "diverged", "iterations")  # ends that another method may do better than


def solve_in_turn(
    system: System,
    rhs: Tensor,
    goal: Goal,
    solvers: Sequence[Solver],
    *,
    start: Tensor | None = None,
    limits: Limits = NO_LIMITS,
    prepared: Mapping[Solver, Prepared] | None = None,
    seed: int = 0,
) -> Solution:
    """A^-1 rhs by the first of several methods that meets the goal.

    A method that stagnates, diverges or runs out of iterations hands its best value on as a start; one that cannot be
    prepared (MemoryBudgetError, NotPositiveDefiniteError) is passed over. Both are events. Deadline and callback are
    shared, `limits.iterations` is of each method. A preparation is not interrupted: none begins after the deadline,
    unless nothing has been solved yet.

    Args:
        prepared: methods that are prepared already, by solver; the others are prepared when it is their turn.
    Returns: the solution of the last method that ran; iterations, passes, seconds and events are those of all.
    Raises: what the preparation of the last method raised, if no method could be prepared; ConvergenceError as in
        `Prepared.solve`; ValueError without any method.
    """
    if not solvers:
        raise ValueError("`solvers` must name at least one method, got none; pass [CholeskySolver()]")
    ready = prepared or {}
    events: list[str] = []
    found: list[Solution] = []
    last = ""
    stopped: StopReason | None = None
    for solver, following in zip(solvers, [*solvers[1:], None], strict=True):
        if found and limits.out_of_time():
            events.append(f"{solver.name}: not tried, the time was up")
            stopped = "time"
            break
        try:
            method = ready[solver] if solver in ready else solver.prepare(system, seed=seed)
        except (MemoryBudgetError, NotPositiveDefiniteError) as error:
            if not found and following is None:
                raise
            events.append(f"{solver.name}: not prepared, {error}")
            continue
        solution = method.solve(rhs, goal, start=found[-1].value if found else start, limits=limits)
        events += solution.events
        found.append(solution)
        last = solver.name
        stopped = solution.stopped
        if stopped not in NEXT:
            break
        if following is not None:
            events.append(f"{solver.name}: {stopped} at {_largest(solution)}, {following.name} goes on")
    assert stopped is not None
    return replace(
        found[-1],
        stopped=stopped,
        iterations=sum(one.iterations for one in found),
        passes=sum(one.passes for one in found),
        seconds=sum(one.seconds for one in found),
        events=events,
        solver=last,
    )


def _largest(solution: Solution) -> str:
    relative = solution.relative_residual
    return f"a relative residual of {float(relative.max()) if relative.numel() else 0.0:.1e}"
