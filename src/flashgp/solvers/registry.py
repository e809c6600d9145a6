"""The solvers by name: a row here brings the contract tests of tests/solvers."""

from flashgp.solvers.alternating_projections import AlternatingProjections
from flashgp.solvers.cholesky_solver import CholeskySolver
from flashgp.solvers.conjugate_gradients import ConjugateGradients
from flashgp.solvers.contract import Solver
from flashgp.solvers.headed_cholesky import HeadedCholesky

__all__ = ["SOLVERS"]

SOLVERS: dict[str, type[Solver]] = {
    "cholesky": CholeskySolver,
    "headed_cholesky": HeadedCholesky,
    "conjugate_gradients": ConjugateGradients,
    "alternating_projections": AlternatingProjections,
}
