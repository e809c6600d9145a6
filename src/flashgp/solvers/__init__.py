"""Solvers of (K + diag(noise)) X = B behind one contract: prepare(system) -> Prepared, solve(rhs, goal) -> Solution.

A file imports only from those before it: contract, settings and space; then direct (Cholesky factors), growing (their
updates), preconditioners, iterative (conjugate gradients, the solver with a factor, Lanczos). A row in `SOLVERS` brings
a solver the contract tests.

Example:
    >>> import torch
    >>> import flashgp as fgp
    >>> from flashgp.inference.system import CovarianceSystem
    >>> x = torch.linspace(0.0, 1.0, 20, dtype=torch.float64)[:, None]
    >>> system = CovarianceSystem(fgp.kernels.RBF(0.2)(x), torch.tensor([0.1], dtype=torch.float64))
    >>> solution = ConjugateGradients().prepare(system).solve(torch.sin(6.0 * x), Goal(relative=1e-8))
    >>> print(solution.stopped)
    goal
"""

from flashgp.foundations.events import StopReason
from flashgp.solvers.contract import NO_LIMITS, Goal, Limits, Prepared, Solution, Solver, Step, System
from flashgp.solvers.iterative.cholesky_solver import CholeskySolver
from flashgp.solvers.iterative.conjugate_gradients import ConjugateGradients
from flashgp.solvers.settings import SolveSettings
from flashgp.solvers.space import LocalSpace, Space

__all__ = [
    "NO_LIMITS", "SOLVERS", "CholeskySolver", "ConjugateGradients", "Goal", "Limits", "LocalSpace", "Prepared",
    "Solution", "SolveSettings", "Solver", "Space", "Step", "StopReason", "System",
]  # fmt: skip

SOLVERS: dict[str, type[Solver]] = {"cholesky": CholeskySolver, "conjugate_gradients": ConjugateGradients}
