"""Clocks: how long one call takes until its result is really there.

A clock runs a callable and returns its result and the seconds it took. The wall clock here waits for the
accelerator before it starts and before it stops. Device events and profiler clocks implement the same
protocol; they are not in this file.
"""

import gc
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

import torch

__all__ = ["Clock", "WallClock", "synchronise"]

T = TypeVar("T")


class Clock(Protocol):
    """Runs a callable once and says how long it took."""

    name: str

    def measure(self, function: Callable[[], T]) -> tuple[T, float]:
        """The result of `function()` and its time in seconds."""
        ...


def synchronise() -> None:
    """Wait for all work queued on every accelerator in use; does nothing, and initialises nothing, without one."""
    if torch.cuda.is_available():
        if torch.cuda.is_initialized():
            for index in range(torch.cuda.device_count()):
                torch.cuda.synchronize(index)
    elif torch.accelerator.is_available():
        torch.accelerator.synchronize()


class WallClock:
    """Synchronised wall clock; the garbage collector is held off inside the timed region, as `timeit` does."""

    name = "wall"

    def measure(self, function: Callable[[], T]) -> tuple[T, float]:
        """The result of `function()` and the seconds until it and all device work it queued had finished."""
        collecting = gc.isenabled()
        gc.disable()
        try:
            synchronise()
            start = time.perf_counter()
            result = function()
            synchronise()
            return result, time.perf_counter() - start
        finally:
            if collecting:
                gc.enable()
