"""Times dense operations on a device, for `flashgp tune`.

The calls are torch's own, on random matrices of moderate condition; each result is complete when the clock is read.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from flashgp.foundations.operations import OperationTime, operation_flops
from flashgp.foundations.timing import seconds_of

__all__ = ["DenseSettings", "link_rates", "measured_curve"]

Size = tuple[int, int, int]  # rows, columns, batch


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


def measured_curve(
    operation: str, dtype: torch.dtype, device: torch.device, settings: DenseSettings
) -> list[OperationTime]:
    """Seconds at each size, in turn; what would take longer than `max_seconds` is left out, but for the first two."""
    found: list[OperationTime] = []
    rate = math.inf
    for size in settings.sizes(operation):
        flops = operation_flops(operation, *size)
        if len(found) >= 2 and flops / rate > settings.max_seconds:
            continue
        seconds = seconds_of(_call(operation, dtype, device, size), device, settings.measured_seconds)
        rate = flops / max(seconds, 1e-9)
        found.append(OperationTime(operation, str(dtype).removeprefix("torch."), *size, seconds))
    return found


def link_rates(device: torch.device, least: float) -> dict[str, float]:
    """`launch_seconds`, `transfer_bytes`, `return_bytes` and `transfer_seconds` of DeviceRates, each from calls of at
    least so many seconds."""
    here, there = torch.zeros(2**22), torch.zeros(2**22, device=device)
    number, far = torch.zeros(1), torch.zeros(1, device=device)
    seconds = {
        "transfer_bytes": seconds_of(lambda: there.copy_(here), device, least),
        "return_bytes": seconds_of(lambda: here.copy_(there), device, least),
    }
    return {
        "launch_seconds": seconds_of(lambda: far.add_(1.0), device, least),
        **{name: here.nbytes / value for name, value in seconds.items()},
        "transfer_seconds": seconds_of(lambda: number.to(device, copy=True).to("cpu", copy=True), device,
                                       least),
    }  # fmt: skip


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
