"""Interface to block conjugate gradients of P = L L^T, a matrix near A that is cheap to solve with.

Two half solves instead of one solve: with L^-1 A L^-T all orthogonality is the Euclidean one, so that Householder QR
serves, and |L^-1 r| is sqrt(r^T P^-1 r), which bounds the error wherever A >= P / slack, eq. (M-79).
"""

from abc import ABC, abstractmethod
from typing import Any, Protocol

import torch
from torch import Tensor

from flashgp.foundations.events import EventKind, Obstacle, StopReason


class Preconditioner(ABC):
    """P = L L^T.

    Fields: slack, a number with A >= P / slack in the positive definite order, inf where none is known: then
    |e|_A <= sqrt(slack) |L^-1 r|, eq. (M-79); exact, whether half solves are as accurate as float64; rank, columns of
    a low rank in it; reduced, blocks of rows that were given fewer neighbours than the others, since they were not
    positive definite with all.
    """

    slack: float
    exact: bool
    rank: int = 0
    reduced: int = 0

    @property
    @abstractmethod
    def log_determinant(self) -> float:
        """log |P|."""

    @abstractmethod
    def half_solve(self, v: Tensor) -> Tensor:
        """L^-1 v for v (n, t), float64."""

    @abstractmethod
    def half_solve_transposed(self, v: Tensor) -> Tensor:
        """L^-T v for v (n, t), float64."""

    def solve(self, v: Tensor) -> Tensor:
        """P^-1 v for v (n, t), float64."""
        return self.half_solve_transposed(self.half_solve(v))

    def comparison(self) -> "Comparison":
        """The comparison of one solve with this one."""
        return Comparison()

    def kept(self) -> "Preconditioner":
        """Preconditioner of the solves so far: this one, or another that won a comparison with it."""
        return self


class SolveState(Protocol):
    """Interface of a solve to a comparison.

    Fields: dtype, of products; columns, that are open; iterations; relative, true residuals of all columns, best so
    far; open, columns that have not met the goal.
    """

    dtype: torch.dtype
    columns: Tensor

    @property
    def iterations(self) -> int: ...
    @property
    def relative(self) -> Tensor: ...
    @property
    def open(self) -> Tensor: ...
    def size(self) -> float:
        """The largest |r| / |b| of the open columns, by the recurrence."""

    def excess(self) -> float:
        """Factor by which the residuals are too large."""

    def has_room_for(self, iterations: int, passes: float) -> bool:
        """True if these seem to fit before the deadline and the limit."""

    def note(self, kind: EventKind, **fields: Any) -> None: ...
    def use(self, preconditioner: Preconditioner | None, dtype: torch.dtype) -> None:
        """Go on from the values so far; None for the first preconditioner."""

    def restart(self, dtype: torch.dtype) -> None:
        """Go on from the best values with the first preconditioner."""

    def sharpen(self, obstacle: Obstacle, otherwise: StopReason) -> StopReason | None:
        """Go on with float64 products from the best values; where they are, why the solve ends."""


class Comparison:
    """Comparison of preconditioners in one solve; here none takes over."""

    def begin_with(self) -> Preconditioner | None:
        """The preconditioner to begin with in place of the first one."""
        return None

    def reset(self, size: float) -> None:
        """Progress counts from this residual on."""

    def observe(self, size: float) -> None:
        """The residual after an iteration."""

    def begins(self, solve: SolveState) -> bool:
        """True if `decide` is wanted before the first iteration."""
        return False

    def wants_residual(self, solve: SolveState) -> bool:
        """True if the true residual is wanted now, to begin or to end a comparison."""
        return False

    def decide(self, solve: SolveState) -> None:
        """Decide after the true residual is known."""

    def sharpened(self, solve: SolveState) -> None:
        """Products have become float64."""

    def averts(self, solve: SolveState, obstacle: Obstacle, otherwise: StopReason) -> bool:
        """True if what would end the solve ends a comparison alone."""
        return False

    def end(self, solve: SolveState) -> None:
        """The solve ends."""
