"""Contract of every solver of A X = B, for a symmetric positive definite A = K + diag(noise) that need not be stored.

    prepare(system) -> Prepared          what is worth keeping for several right-hand sides
    Prepared.solve(B, goal) -> Solution  the solution with its true float64 residual

A solver sees a `System`: products, columns, blocks. It never sees a covariance function. With r = b - A x and
e = A^-1 b - x, the error that matters is

    |e|_A = sqrt(e^T A e) = sqrt(r^T A^-1 r),        |k_*^T e| <= sqrt(k_**) |e|_A                     (M-76)

so a bound of |e|_A bounds the error of every predicted mean. Rigorous bounds: |r| / sqrt(min noise), and
sqrt(r^T P^-1 r) for any P with P <= A in the positive definite order, such as a partial Cholesky factor plus noise.
They hold for the residual as float64 computes it: its own rounding, about eps |A| |x|, is not in them.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from flashgp.foundations.deadline import NO_DEADLINE, Deadline
from flashgp.foundations.errors import ConvergenceError
from flashgp.foundations.events import Event, StopReason
from flashgp.foundations.workspace import Workspace
from flashgp.solvers.space import LOCAL_SPACE, Space

Index = slice | Tensor  # rows as a slice or as positions, int64


class System(ABC):
    """A = K + diag(noise), n x n, given by what it does.

    Fields: count n, of the rows that are here; device; noise (n,), float64, not negative; workspace, where buffers over
    1 MiB come from; space, which sums over rows. Positions of rows are those among all.
    """

    space: Space = LOCAL_SPACE
    count: int
    device: torch.device
    noise: Tensor
    workspace: Workspace

    @abstractmethod
    def diagonal(self) -> Tensor:
        """The diagonal of K without noise, (n,), float64."""

    @abstractmethod
    def multiply(self, v: Tensor) -> Tensor:
        """A v for v (n, t), computed in v's dtype: float64 is the reference that residuals are taken with, float32
        the quick route. Cost: one pass over the pairs."""

    @abstractmethod
    def columns(self, index: Tensor, dtype: torch.dtype) -> Tensor:
        """K[:, index] without noise, (n, b). Cost: n b evaluations."""

    @abstractmethod
    def block(self, index: Index, dtype: torch.dtype) -> Tensor:
        """K[index, index] without noise, (b, b)."""

    def blocks(self, index: Tensor) -> Tensor:
        """K of each of s sets of rows without noise: positions (s, q) give (s, q, q), float64."""
        return torch.stack([self.block(one, torch.float64) for one in index])

    @property
    def has_scaled_inputs(self) -> bool:
        """True if there are `scaled_inputs`."""
        return False

    def scaled_inputs(self) -> Tensor | None:
        """Points (all rows, d), float64, whose near rows tend to covary much; None where no distance tells."""
        return None

    @abstractmethod
    def dense(self, dtype: torch.dtype) -> Tensor:
        """A itself, its upper triangle, in one n x n buffer that the caller may overwrite."""


@dataclass(frozen=True)
class Goal:
    """Stopping rule of a column: one of two bounds holds. A column of zeros is done at once.

    Args:
        relative: of the residual, |r| / |b|.
        energy: of the error, |e|_A, absolute, in the units of sqrt(b^T A^-1 b); 0 to leave it out.
    """

    relative: float
    energy: float = 0.0

    def met(self, relative: Tensor, energy: Tensor) -> Tensor:
        """(t,) booleans."""
        return (relative <= self.relative) | (energy <= self.energy)


@dataclass(frozen=True)
class Step:
    """State of a solve after an iteration, for a callback.

    Fields: solver, its name; iteration; passes over the pairs and seconds so far; relative residual and bound of |e|_A
    of each column, (t,), by the recurrence.
    """

    solver: str
    iteration: int
    passes: float
    seconds: float
    relative: Tensor
    energy: Tensor


@dataclass(frozen=True)
class Limits:
    """Limits that end a solve besides its goal, with the best values so far.

    Args:
        deadline: of the call.
        iterations: at most.
        callback: called after every iteration; True ends the solve.
        interrupted: called when Ctrl-C ends the solve; one more pass measures the values, which a second Ctrl-C saves.
            None raises KeyboardInterrupt, as in every other place.
    """

    deadline: Deadline = NO_DEADLINE
    iterations: int = 10_000
    callback: Callable[[Step], bool | None] | None = None
    interrupted: Callable[[], None] | None = None


NO_LIMITS = Limits()


@dataclass(frozen=True)
class Solution:
    """The solution of a solve and what is known about it.

    Fields: value (n, t), float64; relative_residual (t,), |b - A x| / |b|, measured in float64 at the end, not from a
    recurrence; energy_bound (t,), a rigorous bound of |e|_A; iterations; passes over the pairs; seconds; stopped, why
    it ended; events, one for every change of preconditioner or precision; residual b - A x (n, t), likewise.
    """

    value: Tensor
    relative_residual: Tensor
    energy_bound: Tensor
    iterations: int
    passes: float
    seconds: float
    stopped: StopReason
    residual: Tensor
    events: list[Event] = field(default_factory=list)


class Prepared(ABC):
    """A solver ready for right-hand sides of one system."""

    @abstractmethod
    def solve(self, rhs: Tensor, goal: Goal, *, start: Tensor | None = None, limits: Limits = NO_LIMITS) -> Solution:
        """A^-1 rhs for rhs (n, t), float64, to the goal.

        Args:
            start: first guess (n, t), float64; zeros by default. It never makes the answer worse: where it has a
                larger residual than zero has, zero is taken.
        Returns: the best values; `stopped` says whether the goal was met. Running out of time or of iterations,
            stagnation and divergence are no errors.
        Raises: ConvergenceError as soon as a number that is not finite appears, with where.
        """


class Solver(ABC):
    """A method. Fields: name."""

    name: str

    @abstractmethod
    def prepare(self, system: System, *, seed: int = 0) -> Prepared:
        """Preparation of the method for several solves. Raises: MemoryBudgetError, NotPositiveDefiniteError."""


def check_residual(name: str, iteration: int, residual: Tensor, what: str = "the residual") -> None:
    """Raises: ConvergenceError if numbers of shape (*batch, n, t) are not all finite, naming row, column, iteration."""
    if bool(residual.isfinite().all()):
        return
    *member, row, column = (int(i) for i in (~residual.isfinite()).nonzero()[0])
    what = f"{what} of batch member {tuple(member)}" if member else what
    raise ConvergenceError(
        f"{name} met a number that is not finite in iteration {iteration}: {what} at row {row}, column {column}; check "
        "the covariance function at that row, or scale the data",
        iterations=iteration,
        residual=math.nan,
        tolerance=0.0,
    )
