"""The solvers by name: a row here brings the contract tests of tests/solvers."""

from flashgp.solvers.direct.cholesky_solver import CholeskySolver
from flashgp.solvers.iterative.conjugate_gradients import ConjugateGradients
from flashgp.solvers.iterative.contract import Solver

__all__ = ["SOLVERS"]

SOLVERS: dict[str, type[Solver]] = {
    "cholesky": CholeskySolver,
    "conjugate_gradients": ConjugateGradients,
}
