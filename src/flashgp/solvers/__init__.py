"""Solvers of (K + diag(noise)) X = B behind one contract: prepare(system) -> Prepared, solve(rhs, goal) -> Solution."""

from flashgp.foundations.events import StopReason
from flashgp.solvers.direct.cholesky_solver import CholeskySolver
from flashgp.solvers.iterative.conjugate_gradients import ConjugateGradients
from flashgp.solvers.iterative.contract import (
    NO_LIMITS,
    Goal,
    Limits,
    Prepared,
    Solution,
    Solver,
    Step,
    System,
)
from flashgp.solvers.iterative.registry import SOLVERS

__all__ = [
    "NO_LIMITS",
    "SOLVERS",
    "CholeskySolver",
    "ConjugateGradients",
    "Goal",
    "Limits",
    "Prepared",
    "Solution",
    "Solver",
    "Step",
    "StopReason",
    "System",
]
