"""Times dense operations on a device, for `flashgp tune`.

The calls are torch's own, on random matrices of moderate condition; each result is complete when the clock is read.
Other work only ever adds time, so that a lower quartile is taken.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from flashgp.foundations.operations import OperationTime, operation_flops

__all__ = ["DenseSettings", "link_rates", "measured_curve", "seconds_of"]

Size = tuple[int, int, int]  # rows, columns, batch
SLOW = 10  # a call that takes so many times what is measured is not repeated four times: little of it is other work


@dataclass(frozen=True)
class DenseSettings:
    """What is measured of dense operations.

    Fields: orders; max_eigh_order, since eigenvectors of 2048 rows take seconds on two cores; tall, how many times as
    many rows as columns a QR has, at tall_orders; sides, right-hand sides of a triangular solve; together, matrices in
    one call, at together_orders; measured_seconds of timed calls per size; max_seconds, a size that would take longer
    is left out: its rate is that of the size before.
    """

    orders: tuple[int, ...] = (16, 64, 256, 1024, 2048)
    max_eigh_order: int = 1024
    tall: int = 16
    tall_orders: tuple[int, ...] = (16, 64, 256)
    sides: tuple[int, ...] = (1, 16, 256)
    together: int = 64
    together_orders: tuple[int, ...] = (16, 64)
    measured_seconds: float = 0.02
    max_seconds: float = 1.5

    def seconds(self, call: Callable[[], object], device: torch.device) -> float:
        """Seconds of a call, after one that is not counted."""
        return seconds_of(call, device, self.measured_seconds)

    def sizes(self, operation: str) -> list[Size]:
        """What is measured of an operation, the least work first."""
        orders = [n for n in self.orders if operation != "eigh" or n <= self.max_eigh_order]
        sizes: list[Size] = []
        if operation == "triangular":
            sizes += [(n, t, 1) for n in orders for t in self.sides]
            sizes += [(n, self.sides[1], self.together) for n in self.together_orders]
        else:
            sizes += [(n, n, 1) for n in orders]
            if operation != "gemm":
                sizes += [(n, n, self.together) for n in self.together_orders]
        if operation == "qr":
            sizes += [(self.tall * n, n, 1) for n in self.tall_orders]
        return sorted(sizes, key=lambda size: operation_flops(operation, *size))


def seconds_of(call: Callable[[], object], device: torch.device, measured_seconds: float) -> float:
    """Seconds of a call whose result is complete, after one that is not counted: the lower quartile.

    Args: device: where it runs, waited for; measured_seconds: calls are added until so much is measured, 3 at least,
        or 2 slow ones.
    """

    def once() -> float:
        started = time.perf_counter()
        call()
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        return time.perf_counter() - started

    first = once()
    if first >= SLOW * measured_seconds > 0.0:
        return min(first, once(), once())
    taken = [once() for _ in range(3)]
    while sum(taken) < measured_seconds:
        taken.append(once())
    return sorted(taken)[len(taken) // 4]


def measured_curve(
    operation: str, dtype: torch.dtype, device: torch.device, settings: DenseSettings
) -> list[OperationTime]:
    """Seconds at each size, in turn; what would take longer than `max_seconds` is left out, but for the first two."""
    curve: list[OperationTime] = []
    rate = math.inf
    for size in settings.sizes(operation):
        flops = operation_flops(operation, *size)
        if len(curve) >= 2 and flops / rate > settings.max_seconds:
            continue
        seconds = settings.seconds(_call(operation, dtype, device, size), device)
        rate = flops / max(seconds, 1e-9)
        curve.append(OperationTime(operation, str(dtype).removeprefix("torch."), *size, seconds))
    return curve


def link_rates(device: torch.device, settings: DenseSettings) -> dict[str, float]:
    """`launch_seconds`, `transfer_bytes`, `return_bytes` and `transfer_seconds` of DeviceRates."""
    here, there = torch.zeros(2**22), torch.zeros(2**22, device=device)
    number, far = torch.zeros(1), torch.zeros(1, device=device)
    return {
        "launch_seconds": settings.seconds(lambda: far.add_(1.0), device),
        "transfer_bytes": here.nbytes / settings.seconds(lambda: there.copy_(here), device),
        "return_bytes": here.nbytes / settings.seconds(lambda: here.copy_(there), device),
        "transfer_seconds": settings.seconds(lambda: number.to(device, copy=True).to("cpu", copy=True), device),
    }


def _call(operation: str, dtype: torch.dtype, device: torch.device, size: Size) -> Callable[[], object]:
    rows, columns, batch = size
    shape = (batch,) if batch > 1 else ()
    generator = torch.Generator().manual_seed(0)

    def random(*sides: int) -> Tensor:
        return torch.randn(*shape, *sides, generator=generator, dtype=dtype).to(device)

    if operation == "gemm":
        a, b = random(rows, rows), random(rows, columns)
        out = torch.empty_like(b)
        return lambda: torch.matmul(a, b, out=out)
    if operation == "qr":
        a = random(rows, columns)
        return lambda: torch.linalg.qr(a)
    if operation == "eigh":
        a = random(rows, rows)
        symmetric = a + a.mT
        return lambda: torch.linalg.eigh(symmetric)
    if operation == "cholesky":
        matrix = torch.full((*shape, rows, rows), 0.5, dtype=dtype, device=device)
        matrix.diagonal(dim1=-2, dim2=-1).fill_(1.0)
        return lambda: torch.linalg.cholesky_ex(matrix)
    lower = random(rows, rows).tril_() / rows**0.5
    lower.diagonal(dim1=-2, dim2=-1).fill_(1.0)
    right = random(rows, columns)
    return lambda: torch.linalg.solve_triangular(lower, right, upper=False)
