"""Clocks: how long one call takes until its result is really there.

A clock runs a callable and returns its result and the seconds it took. The wall clock here waits for the accelerator
before it starts and before it stops, and decides in a comparison. `event_clock` and `profiler_clock` look at the same
work from elsewhere; where they disagree with it, one of them has not seen the work (`agreement`).
"""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

import torch

__all__ = ["Clock", "WallClock", "collector_off", "synchronise"]

T = TypeVar("T")


class Clock(Protocol):
    """Runs a callable once and says how long it took.

    A clock may also have `overhead_seconds`: what looking may have added to, or hidden from, the last measurement.
    """

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


@contextmanager
def collector_off() -> Iterator[None]:
    """The garbage collector is held off inside the timed region, as `timeit` does."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


class WallClock:
    """Synchronised wall clock.

    Example:
        >>> value, seconds = fgp.bench.WallClock().measure(lambda: 1 + 1)
        >>> value, seconds < 1.0
        (2, True)
    """

    name = "wall"

    def measure(self, function: Callable[[], T]) -> tuple[T, float]:
        """The result of `function()` and the seconds until it and all device work it queued had finished."""
        with collector_off():
            synchronise()
            start = time.perf_counter()
            result = function()
            synchronise()
            return result, time.perf_counter() - start
