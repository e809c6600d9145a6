"""A Cholesky factor of A, in float32 or float64, as preconditioner, with the slack of its rounding."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from flashgp.solvers.contract import System
from flashgp.solvers.direct.cholesky import TriangularFactor
from flashgp.solvers.preconditioners.preconditioner import Preconditioner

F64 = torch.float64
ENTRY_ROUNDING = 64.0  # units in the last place by which an entry of K may be off, relative to the variance; eq. (M-83)


class CholeskyPreconditioner(Preconditioner):
    """L of a factorisation of A in float32 or float64, with the slack of its rounding, eq. (M-83).

    Args:
        reflected: whether rows have been taken out of the factor, (M-112), whose rounding (M-83) does not bound: no
            slack is known then.
    """

    def __init__(self, factor: TriangularFactor, system: System, *, reflected: bool = False) -> None:
        self.factor, self.jitter = factor, float(factor.jitter)
        self.exact = factor.dtype == F64
        self.slack = math.inf if reflected else _slack(system, factor.dtype, self.jitter)

    @property
    def log_determinant(self) -> float:
        """log |L L^T|, the jitter included."""
        return float(self.factor.log_determinant)

    def half_solve(self, v: Tensor) -> Tensor:
        return self._scaled(self.factor.half_solve, v)

    def half_solve_transposed(self, v: Tensor) -> Tensor:
        return self._scaled(self.factor.back_solve, v)

    @property
    def lower(self) -> Tensor:
        """L itself; it may be put together for this call."""
        return self.factor.lower

    def times(self, v: Tensor) -> Tensor:
        """L v for v (n, t), float64: draws of the model from normal ones."""
        return (self.lower @ v.to(self.factor.dtype)).double()

    def _scaled(self, solve: Callable[[Tensor], Tensor], v: Tensor) -> Tensor:
        """A triangular solve in the factor's dtype; columns are brought to size 1, since float32 has little range."""
        if not len(v):
            return v
        size = v.abs().amax(0).clamp_min(torch.finfo(F64).tiny)
        return solve((v / size).to(self.factor.dtype)).double() * size


def _slack(system: System, dtype: torch.dtype, jitter: float) -> float:
    """Slack of a factor of A plus the jitter, computed in dtype, eq. (M-83)."""
    smallest = float(system.noise.min()) if system.count else 1.0
    trace = float((system.diagonal() + system.noise).sum())
    rounding = (3.0 * (system.count + 1) + ENTRY_ROUNDING) * 0.5 * torch.finfo(dtype).eps * trace
    return 1.0 + (jitter + rounding) / smallest if smallest > 0.0 else math.inf
