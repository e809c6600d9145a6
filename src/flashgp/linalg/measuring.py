"""Times dense operations on a device: for `flashgp tune`, and quickly where a choice is wanted that nobody measured.

The calls are torch's own, on random matrices of moderate condition; each result is complete when the clock is read.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from flashgp.foundations.operations import OperationTime, operation_flops
from flashgp.foundations.profile import BUILT_IN
from flashgp.foundations.timing import seconds_of

from .decision import ACCELERATOR, CPU, Speeds, crossover_order

__all__ = ["LIMIT_SECONDS", "link_rates", "measured_curve", "measured_quickly", "refined", "sizes_of"]

ORDERS = (16, 64, 256, 1024, 2048)
MAX_EIGH_ORDER = 1024  # eigenvectors of 2048 rows take seconds on two cores, and cost as the cube from here on
TALL, TALL_ORDERS = 16, (16, 64, 256)  # times as many rows as columns, of a QR
SIDES = (1, 16, 256)  # right-hand sides of a triangular solve
TOGETHER, TOGETHER_ORDERS = 64, (16, 64)  # matrices in one call
MEASURED_SECONDS = 0.02  # of timed calls per size
LONGEST_SECONDS = 1.5  # a size that would take longer is left out: its rate is that of the size before
LIMIT_SECONDS = 0.5  # for one operation and dtype, where a choice is wanted that nobody measured
QUICK_ORDERS, QUICK_SECONDS = (64, 256, 1024), 0.005

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
    operation: str,
    dtype: torch.dtype,
    device: torch.device,
    sizes: Sequence[Size],
    *,
    measured_seconds: float | None = None,
    deadline: float = math.inf,
) -> list[OperationTime]:
    """Seconds at each size, in turn; what would take longer than LONGEST_SECONDS is left out, and what comes after the
    deadline (time.monotonic), but for the first two."""
    least = MEASURED_SECONDS if measured_seconds is None else measured_seconds
    found: list[OperationTime] = []
    rate = math.inf
    for size in sizes:
        flops = operation_flops(operation, *size)
        if len(found) >= 2 and (flops / rate > LONGEST_SECONDS or time.monotonic() > deadline):
            continue
        seconds = seconds_of(_call(operation, dtype, device, size), device, least)
        rate = flops / max(seconds, 1e-9)
        found.append(OperationTime(operation, str(dtype).removeprefix("torch."), *size, seconds))
    return found


def refined(
    speeds: Speeds, operation: str, dtype: torch.dtype, devices: Sequence[torch.device], rounds: int = 2
) -> Speeds:
    """The same with both devices measured at the crossovers of square problems, where their seconds are compared.

    Args: devices: the CPU and the accelerator. A crossover that moves is measured again, `rounds` times in all.
    """
    for _ in range(rounds):
        orders = {
            crossover_order(speeds, operation, dtype, *_square(operation, 64), home=h) for h in (CPU, ACCELERATOR)
        }
        same = (operation, str(dtype).removeprefix("torch."), 1)
        known = {one.rows for one in speeds.accelerator.operations if (one.operation, one.dtype, one.batch) == same}
        wanted = sorted(
            n for n in orders if n and min(ORDERS) < n < max(ORDERS) and all(abs(math.log(n / k)) > 0.1 for k in known)
        )
        if not wanted:
            return speeds
        sizes = [(*_square(operation, n), 1) for n in wanted]
        cpu, other = (tuple(measured_curve(operation, dtype, device, sizes)) for device in devices)
        speeds = replace(
            speeds,
            cpu=replace(speeds.cpu, operations=speeds.cpu.operations + cpu),
            accelerator=replace(speeds.accelerator, operations=speeds.accelerator.operations + other),
        )
    return speeds


def measured_quickly(
    operation: str, dtype: torch.dtype, devices: Sequence[torch.device], limit_seconds: float = LIMIT_SECONDS
) -> Speeds:
    """Both devices at a few sizes, for one operation and dtype.

    Args: devices: the CPU and the accelerator; limit_seconds: for all of it, beside starting the device and two sizes.
    """
    sizes = [(n, n, 1) for n in QUICK_ORDERS]
    if operation == "triangular":
        sizes = [(n, t, 1) for n in QUICK_ORDERS for t in (SIDES[0], SIDES[-1])]
    sizes.sort(key=lambda size: operation_flops(operation, *size))
    with torch.inference_mode(False), torch.no_grad():
        link: dict[str, Any] = link_rates(devices[1])
        curves = []
        for device in devices:
            seconds_of(_call(operation, dtype, device, sizes[0]), device, 0.0)  # libraries start at their first call
            deadline = time.monotonic() + limit_seconds / len(devices)
            found = measured_curve(operation, dtype, device, sizes, measured_seconds=QUICK_SECONDS, deadline=deadline)
            curves.append(tuple(found))
    assert BUILT_IN.accelerator is not None
    return Speeds(
        replace(BUILT_IN.cpu, operations=curves[0]),
        replace(BUILT_IN.accelerator, **link, operations=curves[1]),
        "measured in this process",
    )


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


def _square(operation: str, n: int) -> tuple[int, int]:
    return (n, SIDES[1]) if operation == "triangular" else (n, n)


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
