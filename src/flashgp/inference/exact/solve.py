"""Solves with A = K + noise that stop on the answer: how conditioning gets its weights without a float64 factor.

A posterior's mean is certain to a tolerance in standard deviations of an observation, whichever method ran. By (M-76)
the mean is off by at most sqrt(k_**) |e|_A, so a solve ends once a bound of |e|_A is below

    tolerance * noise_sd / sqrt(max k(x, x)),

with noise_sd the smallest standard deviation of an observation's noise. Without noise no bound is known, and the
relative residual decides. Conjugate gradients answer, preconditioned by a factor of A where one is at hand.
"""

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy
import numpy.typing as npt
import torch
from torch import Tensor

from flashgp.foundations.errors import warn
from flashgp.foundations.events import Event, EventKind, StopReason
from flashgp.foundations.report import Report
from flashgp.inference.system import CovarianceSystem
from flashgp.solvers.contract import Goal, Solution

RELATIVE_FLOOR = 1e-13  # a residual that small is as good as float64 gives, whatever its bound says
# Events of one solve of the weights, which a later one makes untrue.
OF_THE_WEIGHTS = frozenset(
    {
        EventKind.SOLVED, EventKind.SOLVE_ENDED, EventKind.ROUNDING_REACHED, EventKind.PRECONDITIONER_COMPARED,
        EventKind.PRECONDITIONER_UNDECIDED, EventKind.PRECONDITIONER_REFUSED,
        EventKind.PRECONDITIONER_AT_ONCE, EventKind.PRECONDITIONER_REDUCED,
    }
)  # fmt: skip


@dataclass(frozen=True)
class Stopping:
    """Goal that ends the solve of the weights, and its meaning for the mean.

    Fields: goal; largest, the root of max k(x, x), which makes a bound of the mean of one of |e|_A; asked, the bound
    of the mean that was asked for, in units of y (0 without noise).
    """

    goal: Goal
    largest: float
    asked: float


def mean_goal(system: CovarianceSystem, tolerance: float) -> Stopping:
    """Goal of a mean within `tolerance` standard deviations of an observation, by (M-76)."""
    largest = math.sqrt(float(system.diagonal().max()))
    asked = tolerance * math.sqrt(float(system.noise.min()))
    return Stopping(Goal(RELATIVE_FLOOR, asked / largest if largest > 0.0 else 0.0), largest, asked)


# -- what a report says ----------------------------------------------------------------------------------------------
def unfinished(solution: Solution) -> bool:
    """True if another method may do better: not where time or the caller ended it."""
    return solution.stopped.another_method_may_help


def record(report: Report, solution: Solution, stopping: Stopping, time_limit: float | None) -> None:
    """Record the result of the solve of the weights; warn if it is less than was asked."""
    report.iterations = solution.iterations
    report.relative_residual = float(solution.relative_residual.max())
    bound = stopping.largest * float(solution.energy_bound.max())
    report.error_bound = bound if math.isfinite(bound) else None
    report.events += solution.events
    report.events.append(Event(EventKind.SOLVED, iterations=solution.iterations, passes=solution.passes))
    reached = {"bound": report.error_bound, "asked": stopping.asked}
    if solution.stopped is StopReason.GOAL:
        if report.error_bound is not None and report.error_bound > 1.001 * stopping.asked:
            report.events.append(Event(EventKind.ROUNDING_REACHED, **reached))
        return
    event = Event(
        EventKind.SOLVE_ENDED,
        reason=solution.stopped, residual=report.relative_residual, time_limit=time_limit, **reached,
    )  # fmt: skip
    report.events.append(event)
    warn(f"{event} {solution.stopped.advice}")


LIKELIHOOD_SHARE = 1e-3  # of a log likelihood, or nats below 1: what rounding may move it by unsaid


@dataclass(frozen=True)
class Rounding:
    """Effect of rounding of the covariance matrix on all computed from it, eqs. (M-147), (M-259) and (M-260).

    No residual shows it, since residuals are computed with the rounded matrix. Estimates, no bounds: they are for
    roundings that are independent of each other, and were 3 to 20 times too large where they were compared.

    Of one system, of a batch the worst of each.

    Fields: norm, of the change of the matrix, in its units; weights, the largest norm of a column of K^-1 (y - m);
    nats, how far the log likelihood moves, eq. (M-260).
    """

    norm: float
    weights: float
    nats: float

    @classmethod
    def of(cls, n: int, dtype: torch.dtype, largest: float, pivot: float, squares: Any) -> Self:
        """Args: largest diagonal entry; pivot, smallest squared pivot; squares, (*batch, p), tensor or array, sums over
        K^-1 (y - m) squared, of every column."""
        norm = math.sqrt(n) * torch.finfo(dtype).eps * largest  # (M-147)
        nats = 0.5 * norm * (float(squares.sum(-1).max()) + squares.shape[-1] / pivot)  # (M-260)
        return cls(norm, math.sqrt(float(squares.max())), nats)


def square_sums(weights: Tensor) -> Tensor:
    """Sums over K^-1 (y - m) squared, (*batch, p). Args: weights, (*batch, n, p)."""
    return weights.detach().double().square().sum(-2)


def smallest_pivot(lower: Tensor) -> float:
    """The smallest squared pivot of lower Cholesky factors (*batch, n, n), which stands for an eigenvalue below it."""
    return float(lower.detach().diagonal(dim1=-2, dim2=-1).double().square().min())


@dataclass
class LikelihoodRounding:
    """Effect of rounding on log likelihoods that are computed while it is passed down; `warn` says the worst.

    Fields: worst, an event; share, of the log likelihood.
    """

    worst: Event | None = None
    share: float = LIKELIHOOD_SHARE

    def note(self, lower: Tensor, weights: Tensor, value: Tensor) -> None:
        """Args: a factor of K^ (*batch, n, n), K^-1 (y - m), (*batch, n, p), and the log likelihoods, (*batch,)."""
        if not weights.numel():
            return
        largest = float(torch.linalg.vector_norm(lower.detach(), dim=-1).max()) ** 2  # without a second matrix
        rounding = Rounding.of(
            lower.shape[-1], lower.dtype, largest, smallest_pivot(lower), square_sums(weights)
        )  # fmt: skip
        self.compare(rounding, lower.dtype, float(value.detach().abs().min()), float(value.min()))

    def note_small(self, lower: npt.NDArray[numpy.float64], weights: npt.NDArray[numpy.float64], value: float) -> None:
        """`note` of one float64 matrix in NumPy, where torch's calls would weigh more than the arithmetic."""
        if not weights.size:
            return
        largest = float(numpy.einsum("ij,ij->i", lower, lower).max())
        pivot = float(lower.diagonal().min()) ** 2
        rounding = Rounding.of(len(lower), torch.float64, largest, pivot, numpy.einsum("ij,ij->j", weights, weights))
        self.compare(rounding, torch.float64, abs(value), value)

    def compare(self, rounding: Rounding, dtype: torch.dtype, size: float, value: float) -> None:
        """Keep the worst. Args: size, the smallest absolute value of the log likelihoods; value, the smallest one."""
        if rounding.nats > self.share * max(1.0, size):
            self.share = rounding.nats / max(1.0, size)
            name = str(dtype).removeprefix("torch.")
            self.worst = Event(EventKind.LIKELIHOOD_ROUNDED, dtype=name, value=value, nats=rounding.nats)

    def warn(self) -> None:
        """A warning where it is above the share."""
        if self.worst is not None:
            warn(str(self.worst))
