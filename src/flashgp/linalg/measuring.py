"""Times dense operations on a device, for `flashgp tune`: curves of products and factors, and crossovers.

The calls are torch's own, on random matrices of moderate condition; each result is complete when the clock is read.
Other work only ever adds time, so that a lower quartile is taken.
"""

import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flashgp.foundations.profile import Crossover, OperationTime, operation_flops

from .dense import cholesky, eigh, qr, solve_triangular

SLOW = 10  # a call that takes so many times what is measured is not repeated four times: little of it is other work
SIDES = 16  # right-hand sides of a triangular solve
CALLS: dict[str, Callable[..., Any]] = {
    "qr": qr,
    "cholesky": cholesky,
    "eigh": eigh,
    "triangular": functools.partial(solve_triangular, upper=False),
}


@dataclass(frozen=True)
class DenseSettings:
    """Settings of the measurement of dense operations.

    Fields: orders of the curves; crossover_orders, at which devices are compared until the accelerator is quicker;
    measured_seconds of timed calls per order; max_seconds, an order that would take longer is left out.
    """

    orders: tuple[int, ...] = (16, 64, 256, 1024, 2048)
    crossover_orders: tuple[int, ...] = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
    measured_seconds: float = 0.02
    max_seconds: float = 1.5

    def seconds(self, call: Callable[[], object], device: torch.device) -> float:
        """Seconds of a call, after one that is not counted."""
        return seconds_of(call, device, self.measured_seconds)


def seconds_of(call: Callable[[], object], device: torch.device, measured_seconds: float) -> float:
    """Seconds of a call whose result is complete, after one that is not counted: the lower quartile.

    Args:
        call: what is timed.
        device: where it runs, waited for.
        measured_seconds: calls are added until so much is measured, 3 at least, or 2 slow ones.
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
    """Seconds at each order, in turn; what would take longer than `max_seconds` is left out, but for the first two."""
    function = {"gemm": torch.matmul, "cholesky": torch.linalg.cholesky_ex}[operation]
    curve: list[OperationTime] = []
    rate = math.inf
    for n in settings.orders:
        flops = operation_flops(operation, n)
        if len(curve) >= 2 and flops / rate > settings.max_seconds:
            continue
        operands = [one.to(device) for one in _operands(operation, dtype, n)]
        seconds = settings.seconds(functools.partial(function, *operands), device)
        rate = flops / max(seconds, 1e-9)
        curve.append(OperationTime(operation, str(dtype).removeprefix("torch."), n, seconds))
    return curve


def measured_crossover(
    operation: str, dtype: torch.dtype, home: str, there: torch.device, settings: DenseSettings
) -> Crossover | None:
    """The least order at which the accelerator is quicker, for data at home, moved and back where they lie elsewhere.

    Args:
        operation: one of CALLS.
        dtype: of the matrix.
        home: "cpu" or "cuda", where the data lie.
        there: the accelerator.
        settings: the orders.

    Returns:
        None for data on the CPU where it is quicker at every order; data on the accelerator then come to the CPU up
        to the largest order that was compared.
    """
    call, name, order = CALLS[operation], str(dtype).removeprefix("torch."), 0
    for order in settings.crossover_orders:
        operands = [one.to(there if home == "cuda" else "cpu") for one in _operands(operation, dtype, order)]
        on_cpu, on_accelerator = (
            settings.seconds(functools.partial(call, *operands, device=device), there) for device in ("cpu", "cuda")
        )
        if on_accelerator < on_cpu:
            return Crossover(operation, name, home, order)
        if 8 * on_cpu > settings.max_seconds:  # at twice the order
            break
    return None if home == "cpu" else Crossover(operation, name, home, order + 1)


def _operands(operation: str, dtype: torch.dtype, n: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(n, n, generator=generator, dtype=dtype)
    if operation == "eigh":
        return (a + a.mT,)
    if operation == "cholesky":
        return (torch.full((n, n), 0.5, dtype=dtype).fill_diagonal_(1.0),)
    if operation == "triangular":
        lower = (a.tril_() / n**0.5).fill_diagonal_(1.0)
        return lower, torch.randn(n, SIDES, generator=generator, dtype=dtype)
    return (a, a) if operation == "gemm" else (a,)
