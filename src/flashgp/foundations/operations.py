"""Seconds of dense factorisations and products at any size, from a few measured sizes.

Between measured sizes the logarithm of the seconds is linear in the logarithm of the size, which is exact for any power
law and follows the bend from latency to arithmetic; above the largest the rate of arithmetic stays what it was there;
below the smallest the seconds do. What was measured is data (foundations/profile.py); nothing is timed here.
"""

import functools
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from flashgp.foundations.errors import DomainError

# gemm: (n x n)(n x t); triangular: a solve with n x n and t columns; qr: reduced, of n x k; cholesky, eigh: of n x n.
OPERATIONS = ("gemm", "cholesky", "qr", "eigh", "triangular")


@dataclass(frozen=True)
class OperationTime:
    """One measurement: seconds of an operation on a device that the profile names, the result complete.

    Fields: operation, one of OPERATIONS; dtype as text; rows and columns of the matrix, of the right-hand sides for
    "triangular" and "gemm"; batch, matrices in one call.
    """

    operation: str
    dtype: str
    rows: int
    columns: int
    batch: int
    seconds: float

    def __post_init__(self) -> None:
        if self.operation not in OPERATIONS:
            raise DomainError(f"`operation` must be one of {', '.join(OPERATIONS)}, got {self.operation!r}")


def operation_flops(operation: str, rows: float, columns: float, batch: float = 1) -> float:
    """Floating-point operations, to leading order. Source: Golub & Van Loan (2013), sections 1.1, 4.2, 5.2 and 8.3."""
    if operation == "gemm":
        return 2 * rows * rows * columns * batch
    if operation == "cholesky":
        return rows**3 / 3 * batch
    if operation == "qr":  # R, and then Q from its reflectors
        least, most = sorted((rows, columns))
        return 4 * least * least * (most - least / 3) * batch
    if operation == "eigh":
        return 9 * rows**3 * batch
    return rows * rows * columns * batch


def result_numbers(operation: str, rows: int, columns: int, batch: int) -> tuple[int, int, int, int]:
    """(operands, their numbers, results, their numbers): what is carried to another device and back."""
    least = min(rows, columns)
    square = rows * rows
    there, back = {
        "gemm": ((2, square + rows * columns), (1, rows * columns)),
        "cholesky": ((1, square), (1, square)),
        "qr": ((1, rows * columns), (2, least * (rows + columns))),
        "eigh": ((1, square), (2, square + rows)),
        "triangular": ((2, square + rows * columns), (1, rows * columns)),
    }[operation]
    return there[0], there[1] * batch, back[0], back[1] * batch


class OperationTimes:
    """What is known of one device's seconds, looked up by size.

    A size is the order of the operation (the shorter side), its shape (how many times longer the other side of a QR is;
    the columns of a triangular solve) and the batch; each is interpolated on its own.
    """

    def __init__(self, times: Iterable[OperationTime]) -> None:
        self._known: dict[tuple[str, str], dict[float, dict[float, list[tuple[float, float]]]]] = {}
        for one in times:
            order, shape = _place(one.operation, one.rows, one.columns)
            shapes = self._known.setdefault((one.operation, one.dtype), {}).setdefault(float(one.batch), {})
            shapes.setdefault(shape, []).append((order, one.seconds))
        for batches in self._known.values():
            for shapes in batches.values():
                for curve in shapes.values():
                    curve.sort()

    def seconds(self, operation: str, dtype: str, rows: int, columns: int, batch: int = 1) -> float | None:
        """Of one call; None where this operation was not measured in this dtype. A batch takes at most what its members
        take one by one."""
        batches = self._known.get((operation, dtype))
        if not batches or min(rows, columns, batch) < 1:
            return None if not batches else 0.0
        order, shape = _place(operation, rows, columns)

        def of_batch(members: float) -> float:
            along_order = []
            for known_shape, curve in sorted(batches[members].items()):
                work = functools.partial(_work, operation, shape=known_shape)
                along_order.append((known_shape, _along(curve, order, work)))
            return _along(along_order, shape, functools.partial(_work, operation, order))

        together = _along([(b, of_batch(b)) for b in sorted(batches)], batch, lambda b: b)
        return min(together, batch * of_batch(1.0)) if 1.0 in batches else together


def _place(operation: str, rows: float, columns: float) -> tuple[float, float]:
    """(order, shape) of a size."""
    if operation == "qr":
        least, most = sorted((rows, columns))
        return float(least), most / least
    return float(rows), float(columns) if operation == "triangular" else 1.0


def _work(operation: str, order: float, shape: float) -> float:
    columns = {"qr": order * shape, "triangular": shape}.get(operation, order)
    return operation_flops(operation, order, columns)


def _along(known: Sequence[tuple[float, float]], at: float, work: Callable[[float], float]) -> float:
    """Seconds at a size from (size, seconds) in increasing order: see the head of this file."""
    first, last = known[0], known[-1]
    if at <= first[0]:
        return first[1]
    if at >= last[0]:
        return last[1] * work(at) / work(last[0])
    place = bisect_right(known, at, key=lambda one: one[0])
    (x0, s0), (x1, s1) = known[place - 1], known[place]
    share = math.log(at / x0) / math.log(x1 / x0)
    return s0 * (s1 / s0) ** share
