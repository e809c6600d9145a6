"""Methods in turn: who hands over, what is handed over, who is passed over."""

import time
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from flashgp.foundations.errors import ConvergenceError, MemoryBudgetError, NotPositiveDefiniteError
from flashgp.solvers import (
    AlternatingProjections,
    CholeskySolver,
    ConjugateGradients,
    Goal,
    Limits,
    Solution,
    Solver,
    solve_in_turn,
)
from solvers.dense_system import F64, DenseSystem, matern, normal, points


@dataclass(frozen=True)
class Scripted(Solver):
    """Ends as it is told to, with a value that it is told, or cannot be prepared."""

    stopped: Any = "stagnated"
    value: float = 0.5
    error: type[Exception] | None = None
    name: str = "scripted"

    def prepare(self, system: DenseSystem, *, seed: int = 0) -> "Scripted":
        if self.error is MemoryBudgetError:
            raise MemoryBudgetError("too small", needed_bytes=2, available_bytes=1)
        if self.error is not None:
            raise self.error("no factor")
        return self

    def solve(self, rhs: torch.Tensor, goal: Goal, *, start: Any = None, limits: Any = None) -> Solution:
        seen = -1.0 if start is None else float(start[0, 0])
        one = torch.ones(rhs.shape[1], dtype=F64)
        value = torch.full_like(rhs, self.value)
        return Solution(value, 0.1 * one, one, 3, 2.0, 1.0, self.stopped, [f"{self.name} started from {seen}"])


SYSTEM = DenseSystem(matern(points(50, 2), 0.3), 1e-3)
RHS = normal(50, 2)


def test_a_method_that_stands_still_hands_over_its_value() -> None:
    last = Scripted("goal", 0.75, name="last")
    for stopped in ("stagnated", "diverged", "iterations"):
        solution = solve_in_turn(SYSTEM, RHS, Goal(1e-6), [Scripted(stopped), last], start=torch.full_like(RHS, 0.25))
        assert solution.stopped == "goal"
        assert bool((solution.value == 0.75).all())
        assert (solution.iterations, solution.passes, solution.seconds) == (6, 4.0, 2.0)
        assert solution.events == [
            "scripted started from 0.25",
            f"scripted: {stopped} at a relative residual of 1.0e-01, last goes on",
            "last started from 0.5",
        ]
    for stopped in ("goal", "time", "callback"):
        solution = solve_in_turn(SYSTEM, RHS, Goal(1e-6), [Scripted(stopped), last])
        assert (solution.stopped, solution.iterations) == (stopped, 3)
        assert solution.events == ["scripted started from -1.0"]


def test_a_method_that_cannot_be_prepared_is_passed_over() -> None:
    last = Scripted("goal", 0.75, name="last")
    for error in (MemoryBudgetError, NotPositiveDefiniteError):
        solution = solve_in_turn(SYSTEM, RHS, Goal(1e-6), [Scripted(error=error), last])
        assert solution.events[0].startswith("scripted: not prepared, ")
        assert solution.events[1] == "last started from -1.0"
        late = solve_in_turn(SYSTEM, RHS, Goal(1e-6), [Scripted(), Scripted(error=error, name="other")])
        assert late.stopped == "stagnated"
        assert late.events[-1].startswith("other: not prepared, ")
        with pytest.raises(error):
            solve_in_turn(SYSTEM, RHS, Goal(1e-6), [Scripted(error=error)])
    with pytest.raises(ValueError, match="at least one method"):
        solve_in_turn(SYSTEM, RHS, Goal(1e-6), [])


def test_what_is_prepared_is_used() -> None:
    broken, ready = Scripted(error=MemoryBudgetError), Scripted("goal", 0.5)
    solution = solve_in_turn(SYSTEM, RHS, Goal(1e-6), [broken], prepared={broken: ready})
    assert bool((solution.value == 0.5).all())


def test_the_deadline_is_shared() -> None:
    late = Limits(deadline=time.perf_counter())
    solution = solve_in_turn(
        SYSTEM, RHS, Goal(1e-6), [Scripted(), Scripted(error=ValueError, name="other")], limits=late
    )
    assert solution.stopped == "time"
    assert solution.events[-1] == "other: not tried, the time was up"


def test_the_iterations_are_of_each_method() -> None:
    solvers = [ConjugateGradients(rank=0), AlternatingProjections(block_size=10), CholeskySolver()]
    solution = solve_in_turn(SYSTEM, RHS, Goal(1e-10), solvers, limits=Limits(iterations=3))
    assert solution.stopped == "goal"
    assert 6 < solution.iterations <= 9
    assert [event.split(":")[1].split()[0] for event in solution.events] == ["iterations", "iterations"]
    residual = (RHS - SYSTEM.A @ solution.value).norm(dim=0) / RHS.norm(dim=0)
    assert float(residual.max()) <= 1e-10


def test_numbers_that_are_not_finite_are_no_reason_to_go_on() -> None:
    K = SYSTEM.K.clone()
    K[3, 3] = torch.nan
    solvers = [ConjugateGradients(rank=0), CholeskySolver()]
    with pytest.raises(ConvergenceError, match="row 3"):
        solve_in_turn(DenseSystem(K, 0.1), RHS, Goal(1e-6), solvers, start=normal(50, 2))
