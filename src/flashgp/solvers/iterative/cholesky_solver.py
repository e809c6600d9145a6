"""The Cholesky factor as a solver: float64, or float32 in half the memory with the float64 answer.

The factor is the preconditioner of conjugate gradients with float64 products. The first step of these is iterative
refinement (M-32) with the best step length; from there on they also converge where cond(A) eps32 > 1, as long as the
factor resembles A, and refinement would not. Where rounding makes the factorisation fail, the factor, and nothing but
the factor, is of A plus a shift (M-31); the system that is solved is the given one.
"""

from dataclasses import dataclass, replace

import torch

from flashgp.foundations.events import Event, EventKind
from flashgp.solvers.contract import Solver, System
from flashgp.solvers.direct.cholesky import factorise
from flashgp.solvers.iterative.conjugate_gradients import PreparedConjugateGradients
from flashgp.solvers.preconditioners.cholesky import CholeskyPreconditioner
from flashgp.solvers.settings import REFINEMENT, SolveSettings

F64 = torch.float64


@dataclass(frozen=True)
class CholeskySolver(Solver):
    """Factor once, in place, in `dtype`; solve with float64 residuals.

    Args:
        dtype: of the factor.
        jitter: as `factorise`, None for what a factorisation that fails needs; 0 lets it fail.
        settings: of the solves, whose products are float64 in any case.
    Cost: prepare n^3 / 3 flops and one n x n buffer of that dtype, nothing else of that size; an iteration one float64
    pass and 2 n^2 t flops. Usually one iteration with a float64 factor and one to five with a float32 one.
    """

    dtype: torch.dtype = F64
    jitter: float | None = None
    settings: SolveSettings = REFINEMENT
    name: str = "Cholesky"

    def prepare(self, system: System, *, seed: int = 0) -> PreparedConjugateGradients:
        factor = factorise(lambda: system.dense(self.dtype), self.jitter)
        shift = float(factor.jitter)
        events = [Event(EventKind.FACTOR_SHIFTED, solver=self.name, shift=shift)] if shift else []
        preconditioner = CholeskyPreconditioner(factor, system)
        settings = replace(self.settings, single=False)
        return PreparedConjugateGradients(system, preconditioner, settings, name=self.name, events=events)
