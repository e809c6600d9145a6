"""The Cholesky factor as a solver: float64, or float32 in half the memory with the float64 answer.

The factor is the preconditioner of conjugate gradients with float64 products. The first step of these is iterative
refinement (M-32) with the best step length; from there on they also converge where cond(A) eps32 > 1, as long as the
factor resembles A, and refinement would not. Where rounding makes the factorisation fail, the factor, and nothing but
the factor, is of A plus a shift (M-31); the system that is solved is the given one.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from flashgp.foundations.events import Event, EventKind
from flashgp.solvers.direct.cholesky import TriangularFactor, factorise
from flashgp.solvers.iterative.conjugate_gradients import PreparedConjugateGradients
from flashgp.solvers.iterative.contract import Solver, System
from flashgp.solvers.preconditioners.preconditioner import Preconditioner
from flashgp.solvers.settings import DEFAULTS

__all__ = ["REFINEMENT", "CholeskyPreconditioner", "CholeskySolver"]

F64 = torch.float64
ENTRIES = 64.0  # units in the last place by which an entry of K may be off, relative to the variance
# With float64 products; a factor that is worth its n^3 halves the residual within a few iterations.
REFINEMENT = replace(DEFAULTS, single=False, stagnation_window=50)


@dataclass(frozen=True)
class CholeskySolver(Solver):
    """Factor once, in place, in `dtype`; solve with float64 residuals.

    Args: jitter: as `factorise`, None for what a factorisation that fails needs; 0 lets it fail.
    Cost: prepare n^3 / 3 flops and one n x n buffer of that dtype, nothing else of that size; an iteration one float64
    pass and 2 n^2 t flops. Usually one iteration with a float64 factor and one to five with a float32 one.
    """

    dtype: torch.dtype = F64
    jitter: float | None = None
    name: str = "Cholesky"

    def prepare(self, system: System, *, seed: int = 0) -> PreparedConjugateGradients:
        factor = factorise(lambda: system.dense(self.dtype), self.jitter)
        shift = float(factor.jitter)
        events = [Event(EventKind.FACTOR_SHIFTED, solver=self.name, shift=shift)] if shift else []
        preconditioner = CholeskyPreconditioner(factor, system)
        return PreparedConjugateGradients(system, preconditioner, REFINEMENT, name=self.name, events=events)


def rounding_slack(system: System, trace: float, dtype: torch.dtype, jitter: float) -> float:
    """Slack of a factor computed in dtype of a matrix with this trace, plus the jitter, eq. (M-83)."""
    least = float(system.noise.min()) if system.count else 1.0
    rounding = (3.0 * (system.count + 1) + ENTRIES) * 0.5 * torch.finfo(dtype).eps * trace
    return 1.0 + (jitter + rounding) / least if least > 0.0 else math.inf


def _scaled(solve: Callable[[Tensor], Tensor], v: Tensor, dtype: torch.dtype) -> Tensor:
    if not len(v):
        return v
    size = v.abs().amax(0).clamp_min(torch.finfo(F64).tiny)
    return solve((v / size).to(dtype)).double() * size


class CholeskyPreconditioner(Preconditioner):
    """L of a factorisation of A in float32 or float64, with the slack of its rounding, eq. (M-83).

    Args: reflected: whether rows have been taken out of the factor, (M-112), whose rounding (M-83) does not bound: no
        slack is known then.
    """

    def __init__(self, factor: TriangularFactor, system: System, *, reflected: bool = False) -> None:
        self.factor, self.jitter = factor, float(factor.jitter)
        self.exact = factor.dtype == F64
        trace = float((system.diagonal() + system.noise).sum())
        self.slack = math.inf if reflected else rounding_slack(system, trace, factor.dtype, self.jitter)

    @property
    def log_determinant(self) -> float:
        """log |L L^T|, the jitter included."""
        return float(self.factor.log_determinant)

    def half_solve(self, v: Tensor) -> Tensor:
        return _scaled(self.factor.half_solve, v, self.factor.dtype)

    def half_solve_transposed(self, v: Tensor) -> Tensor:
        return _scaled(self.factor.back_solve, v, self.factor.dtype)

    @property
    def lower(self) -> Tensor:
        """L itself; it may be put together for this call."""
        return self.factor.lower

    def times(self, v: Tensor) -> Tensor:
        """L v for v (n, t), float64: draws of the model from normal ones."""
        return (self.lower @ v.to(self.factor.dtype)).double()
