"""A float32 Cholesky factor that keeps what float32 would lose: its first columns, on well chosen rows, in float64.

    A = [[A_pp, A_pq], [A_qp, A_qq]] = L L^T,   L = [[L_p, 0], [L_qp, L_q]],   L_q L_q^T = A_qq - L_qp L_qp^T   (M-108)

The pivots p are those of a randomly pivoted partial factor, so that what they leave of the diagonal, and with it the
rounding of L_q, is small where the spectrum decays: a smooth covariance of variance 20 with noise of 1e-5 cannot be
factorised in float32 at all, what a thousand pivots leave of it can. L_p and L_qp are float64, L_q is float32, half a
float64 factor's memory and time.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.profile_ranges import profiled
from flashgp.solvers.direct.cholesky import Factor, factorise
from flashgp.solvers.direct.cholesky_solver import REFINEMENT, rounding_slack, solve_scaled
from flashgp.solvers.iterative.conjugate_gradients import PreparedConjugateGradients
from flashgp.solvers.iterative.contract import Solver, System
from flashgp.solvers.preconditioners.pivoted_cholesky import partial_cholesky
from flashgp.solvers.preconditioners.preconditioner import Preconditioner

__all__ = ["HeadedCholesky", "HeadedFactor"]

F32, F64 = torch.float32, torch.float64
RANK = 512  # rows of the head at most
PANEL_BYTES = 2**25  # of a float64 panel of the remainder, while it is made


@dataclass(frozen=True)
class HeadedCholesky(Solver):
    """Factor once, most of it in float32; solve with float64 residuals.

    Args: rank: rows of the head at most; pivots: these rows, (k,), distinct, instead of drawn ones.
    Cost: prepare n^3 / 3 flops in float32, n^2 k in float64 and n^2 evaluations; 4 n^2 + 8 n k bytes; an iteration one
        float64 pass and 2 n^2 t flops.
    """

    rank: int = RANK
    pivots: Tensor | None = None
    name: str = "Cholesky with a float64 head"

    def prepare(self, system: System, *, seed: int = 0) -> PreparedConjugateGradients:
        pivots = self.pivots
        if pivots is None:
            pivots = partial_cholesky(system, limit=min(self.rank, system.count), share=0.0, seed=seed).pivots
        factor = HeadedFactor(system, pivots)
        events = [Event(EventKind.FACTOR_SHIFTED, solver=self.name, shift=float(factor.jitter))]
        return PreparedConjugateGradients(
            system, factor, REFINEMENT, name=self.name, events=events if factor.jitter else []
        )


class HeadedFactor(Preconditioner):
    """L of (M-108), with the slack of its rounding, eq. (M-83).

    Args: pivots (k,), distinct rows.
    Fields: pivots; jitter, absolute, of the float32 part only.
    Raises: NotPositiveDefiniteError if the pivots' block, or the rest up to a jitter, is not positive definite.
    """

    exact = False

    @profiled("factorisation")
    def __init__(self, system: System, pivots: Tensor) -> None:
        self.pivots = pivots
        rest = torch.ones(system.count, dtype=torch.bool, device=pivots.device)
        rest[pivots] = False
        self.rest = rest.nonzero().squeeze(-1)
        block = system.block(pivots, F64)
        block.diagonal().add_(system.noise[pivots])
        self.head = factorise(lambda: block.clone()).lower
        below = system.columns(pivots, F64)[self.rest]
        self.below = torch.linalg.solve_triangular(self.head, below.mT, upper=False).mT
        del below
        left = (system.diagonal() + system.noise)[self.rest] - self.below.square().sum(-1)
        self.tail: Factor = factorise(lambda: self._remainder(system))
        self.jitter = float(self.tail.jitter) if len(self.rest) else 0.0
        self.slack = rounding_slack(system, float(left.sum()), F32, self.jitter)

    def _remainder(self, system: System) -> Tensor:
        """A_qq - L_qp L_qp^T in float32, its upper triangle, from float64 panels."""
        m = len(self.rest)
        remainder = system.workspace.empty((m, m), F32, system.device)
        rows = max(1, PANEL_BYTES // (8 * max(1, system.count)))
        for start in range(0, m, rows):
            stop = min(start + rows, m)
            panel = system.columns(self.rest[start:stop], F64)[self.rest[start:]].mT
            panel = torch.addmm(panel, self.below[start:stop], self.below[start:].mT, alpha=-1.0)
            panel[:, : stop - start].diagonal().add_(system.noise[self.rest[start:stop]])
            remainder[start:stop, start:] = panel
        return remainder

    @property
    def log_determinant(self) -> float:
        """log |L L^T|, the jitter included."""
        return 2.0 * float(self.head.diagonal().log().sum()) + float(self.tail.log_determinant)

    @profiled("triangular solves")
    def half_solve(self, v: Tensor) -> Tensor:
        first = torch.linalg.solve_triangular(self.head, v[self.pivots], upper=False)
        out = torch.empty_like(v)
        out[self.pivots] = first
        out[self.rest] = solve_scaled(self.tail.lower, v[self.rest] - self.below @ first, upper=False)
        return out

    @profiled("triangular solves")
    def half_solve_transposed(self, v: Tensor) -> Tensor:
        last = solve_scaled(self.tail.lower.mT, v[self.rest], upper=True)
        out = torch.empty_like(v)
        out[self.rest] = last
        out[self.pivots] = torch.linalg.solve_triangular(
            self.head.mT, v[self.pivots] - self.below.mT @ last, upper=True
        )
        return out

    def times(self, v: Tensor) -> Tensor:
        """L v for v (n, t), float64: draws of the model from normal ones."""
        first, last = v[self.pivots], v[self.rest]
        out = torch.empty_like(v)
        out[self.pivots] = self.head @ first
        out[self.rest] = self.below @ first + (self.tail.lower @ last.float()).double()
        return out
