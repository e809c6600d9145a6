"""Seconds of dense products and Cholesky factors at any order, from a few measured orders.

Between measured orders the logarithm of the seconds is linear in the logarithm of the order, which is exact for any
power law and follows the bend from latency to arithmetic; above the largest the rate of arithmetic stays what it was
there; below the smallest the seconds do. What was measured is data (foundations/profile.py); nothing is timed here.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from flashgp.foundations.errors import DomainError

OPERATIONS = ("gemm", "cholesky")  # (n x n)(n x n), and the factor of n x n


@dataclass(frozen=True)
class OperationTime:
    """One measurement: seconds of an operation on a device that the profile names, the result complete.

    Fields: operation, one of OPERATIONS; dtype as text; order, n.
    """

    operation: str
    dtype: str
    order: int
    seconds: float

    def __post_init__(self) -> None:
        if self.operation not in OPERATIONS:
            raise DomainError(f"`operation` must be one of {', '.join(OPERATIONS)}, got {self.operation!r}")


def operation_flops(operation: str, order: float) -> float:
    """Floating-point operations, to leading order. Source: Golub & Van Loan (2013), sections 1.1 and 4.2."""
    return 2 * order**3 if operation == "gemm" else order**3 / 3


def seconds_at(known: Sequence[tuple[int, float]], order: float) -> float:
    """Seconds at an order from (order, seconds) in increasing order: see the head of this file."""
    (first, least), (last, most) = known[0], known[-1]
    if order <= first:
        return least
    if order >= last:
        return most * (order / last) ** 3
    place = bisect_right(known, order, key=lambda one: one[0])
    (x0, s0), (x1, s1) = known[place - 1], known[place]
    share = math.log(order / x0) / math.log(x1 / x0)
    return s0 * (s1 / s0) ** share
