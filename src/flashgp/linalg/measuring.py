"""Times dense operations on a device, for `flashgp tune`.

The calls are torch's own, on random matrices of moderate condition; each result is complete when the clock is read.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from flashgp.foundations.operations import OperationTime, operation_flops
from flashgp.foundations.timing import seconds_of

__all__ = ["link_rates", "measured_curve", "sizes_of"]

ORDERS = (16, 64, 256, 1024, 2048)
MAX_EIGH_ORDER = 1024  # eigenvectors of 2048 rows take seconds on two cores, and cost as the cube from here on
TALL, TALL_ORDERS = 16, (16, 64, 256)  # times as many rows as columns, of a QR
SIDES = (1, 16, 256)  # right-hand sides of a triangular solve
TOGETHER, TOGETHER_ORDERS = 64, (16, 64)  # matrices in one call
MEASURED_SECONDS = 0.02  # of timed calls per size
MAX_SECONDS = 1.5  # a size that would take longer is left out: its rate is that of the size before

Size = tuple[int, int, int]  # rows, columns, batch


def sizes_of(operation: str) -> list[Size]:
    """What is measured of an operation, the least work first."""
    orders = [n for n in ORDERS if operation != "eigh" or n <= MAX_EIGH_ORDER]
    sizes: list[Size] = []
    if operation == "triangular":
        sizes += [(n, t, 1) for n in orders for t in SIDES]
        sizes += [(n, SIDES[1], TOGETHER) for n in TOGETHER_ORDERS]
    else:
        sizes += [(n, n, 1) for n in orders]
        if operation != "gemm":
            sizes += [(n, n, TOGETHER) for n in TOGETHER_ORDERS]
    if operation == "qr":
        sizes += [(TALL * n, n, 1) for n in TALL_ORDERS]
    return sorted(sizes, key=lambda size: operation_flops(operation, *size))


def measured_curve(
    operation: str, dtype: torch.dtype, device: torch.device, sizes: Sequence[Size]
) -> list[OperationTime]:
    """Seconds at each size, in turn; what would take longer than MAX_SECONDS is left out, but for the first two."""
    found: list[OperationTime] = []
    rate = math.inf
    for size in sizes:
        flops = operation_flops(operation, *size)
        if len(found) >= 2 and flops / rate > MAX_SECONDS:
            continue
        seconds = seconds_of(_call(operation, dtype, device, size), device, MEASURED_SECONDS)
        rate = flops / max(seconds, 1e-9)
        found.append(OperationTime(operation, str(dtype).removeprefix("torch."), *size, seconds))
    return found


def link_rates(device: torch.device) -> dict[str, float]:
    """`launch_seconds`, `transfer_bytes`, `return_bytes` and `transfer_seconds` of DeviceRates."""
    here, there = torch.zeros(2**22), torch.zeros(2**22, device=device)
    number, far = torch.zeros(1), torch.zeros(1, device=device)
    seconds = {
        "transfer_bytes": seconds_of(lambda: there.copy_(here), device, MEASURED_SECONDS),
        "return_bytes": seconds_of(lambda: here.copy_(there), device, MEASURED_SECONDS),
    }
    return {
        "launch_seconds": seconds_of(lambda: far.add_(1.0), device, MEASURED_SECONDS),
        **{name: here.nbytes / value for name, value in seconds.items()},
        "transfer_seconds": seconds_of(lambda: number.to(device, copy=True).to("cpu", copy=True), device,
                                       MEASURED_SECONDS),
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
