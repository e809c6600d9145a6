"""The explained part of the prior variance, k_*^T A^-1 k_*, by solves: where no float64 factor is at hand.

An inexact solve z of A z = k_* is enough: k_*^T z + z^T (k_* - A z) falls short of the truth by |e|_A^2, eq. (M-101).
A variance is never too small, and the bound of |e|_A says by how much it may be too large; columns are solved again
until that is below SHARE of the variance. variance.py chooses between these and samples.
"""

import logging
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from flashgp.foundations.events import StopReason
from flashgp.inference.solves import Solves
from flashgp.planner.variances import SOLVED_POINTS
from flashgp.solvers.contract import NO_LIMITS, Goal, Limits

SHARE = 0.01  # of a variance, that its error may be
FIRST_SHARE = 1e-3  # of the prior variance, that the first solve may be off by, while the variance is not known
PRECISION_SHARE = 1e-3  # of an entry of the diagonal of A^-1, that its error may be
ROUNDS = 4
FLOOR = 1e-12  # of the prior variance: below that, a variance is rounding
log = logging.getLogger("flashgp.predict")


class Explained:
    """Some columns. Fields: value, differentiable in the covariances; error, bounds of what it falls short by;
    in_time, False where the time ended their solves."""

    def __init__(self, value: Tensor, error: Tensor, *, in_time: bool = True) -> None:
        self.value, self.error, self.in_time = value, error, in_time


def strips(count: int) -> Iterator[tuple[int, int]]:
    """Ranges of at most SOLVED_POINTS points; each is said to the log, since many solves take long."""
    for start in range(0, count, SOLVED_POINTS):
        stop = min(count, start + SOLVED_POINTS)
        if count > SOLVED_POINTS:
            log.info("variance by solves: points %d to %d of %d", start, stop, count)
        yield start, stop


def explained(solves: Solves, cross: Tensor, prior: Tensor, limits: Limits = NO_LIMITS) -> Explained:
    """diag(C^T A^-1 C), (m,), for C = K(x, x_*) of shape (n, m), float64, and the prior variances (m,), eq. (M-101)."""
    z, product, error, in_time = _solved_for_variance(solves, cross.detach(), prior.detach(), limits)
    return Explained(2.0 * (cross * z).sum(0) - (z * product).sum(0), error, in_time=in_time)


def explained_jointly(solves: Solves, cross: Tensor, prior: Tensor) -> Explained:
    """C^T A^-1 C, (m, m), eq. (M-101) for pairs of points: short of the truth by a positive semidefinite matrix.

    Returns: value (m, m); error (m,), bounds of that matrix's diagonal.
    Cost: a solve per point; 3 n m and 3 m^2 numbers alive, C among them.
    """
    z, product, error = torch.empty_like(cross), torch.empty_like(cross), torch.empty_like(prior)
    for a, b in strips(cross.shape[1]):
        z[:, a:b], product[:, a:b], error[a:b], _ = _solved_for_variance(
            solves, cross[:, a:b].detach(), prior[a:b].detach()
        )
    once = cross.mT @ z
    return Explained(torch.addmm(once + once.mT, z.mT, product, alpha=-1.0), error)


def precisions(solves: Solves, rows: Tensor, guess: Tensor) -> Explained:
    """The diagonal of A^-1 at some rows, (m,), eq. (M-101) for columns of the identity; guess, (m,), of the same.

    Where rounding of a float32 factor ends the solve of a block without certain values, its halves are solved, each
    column alone in the end.
    """
    columns = torch.zeros(solves.system.count, len(rows), dtype=torch.float64, device=rows.device)
    columns[rows, torch.arange(len(rows), device=rows.device)] = 1.0
    z, product, error, _ = _solved(
        solves, columns, PRECISION_SHARE * float(guess.min()), lambda value, _: PRECISION_SHARE * value
    )
    value = 2.0 * (columns * z).sum(0) - (z * product).sum(0)
    if len(rows) == 1 or bool((error <= SHARE * value).all()):
        return Explained(value, error)
    first, second = (precisions(solves, *half) for half in zip(rows.chunk(2), guess.chunk(2), strict=True))
    return Explained(torch.cat((first.value, second.value)), torch.cat((first.error, second.error)))


def _solved_for_variance(
    solves: Solves, cross: Tensor, prior: Tensor, limits: Limits = NO_LIMITS
) -> tuple[Tensor, Tensor, Tensor, bool]:
    """Solve until what the columns explain of the prior variances is certain to SHARE of what is left."""
    largest = float(prior.max())

    def allowed(value: Tensor, error: Tensor) -> Tensor:
        return SHARE * (prior - value - error).clamp_min(FLOOR * largest)

    return _solved(solves, cross, FIRST_SHARE * largest, allowed, limits)


def _solved(
    solves: Solves, cross: Tensor, first: float, allowed: Callable[[Tensor, Tensor], Tensor], limits: Limits = NO_LIMITS
) -> tuple[Tensor, Tensor, Tensor, bool]:
    """z ~ A^-1 C, A z, bounds of the shortfall of each column, and whether no time limit ended the solve: solved again
    while the bounds exceed what is allowed.

    Args: first, what the first solve may fall short by; allowed, of the values diag(C^T A^-1 C) and their errors.
    """
    share, start = first, None
    for last in range(ROUNDS - 1, -1, -1):
        solution = solves.solve(cross, Goal(FLOOR, math.sqrt(share)), start=start, limits=limits)
        z, error = solution.value, solution.energy_bound.square()
        product = solves.system.multiply(z)
        most = allowed(2.0 * (cross * z).sum(0) - (z * product).sum(0), error)
        if not last or solution.stopped is not StopReason.GOAL or bool((error <= most).all()):
            break
        # At most an eighth of the last: what is allowed may become smaller as the solve gets better.
        share, start = min(share / 8.0, float(most[error > most].min())), z
    return z, product, error, solution.stopped is not StopReason.TIME
