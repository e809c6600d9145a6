"""The solvers by name: a row here brings the contract tests of tests/solvers."""

from flashgp.solvers.direct.cholesky_solver import CholeskySolver
from flashgp.solvers.direct.headed_cholesky import HeadedCholesky
from flashgp.solvers.iterative.conjugate_gradients import ConjugateGradients
from flashgp.solvers.iterative.contract import Solver

__all__ = ["SOLVERS"]

SOLVERS: dict[str, type[Solver]] = {
    "cholesky": CholeskySolver,
    "headed_cholesky": HeadedCholesky,
    "conjugate_gradients": ConjugateGradients,
}
