"""Seconds of a call, for what is measured of a machine: other work only ever adds time."""

import time
from collections.abc import Callable

import torch

__all__ = ["seconds_of"]

SLOW = 10  # a call that takes so many times what is measured is not repeated four times: little of it is other work


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
