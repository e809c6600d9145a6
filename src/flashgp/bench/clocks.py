"""The clock of a comparison: how long one call takes until its result exists, on the accelerator too."""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

import torch

T = TypeVar("T")


class Clock(Protocol):
    """Times one call."""

    name: str

    def measure(self, function: Callable[[], T]) -> tuple[T, float]:
        """The result of `function()`, and seconds."""


def synchronise() -> None:
    """Wait for all work queued on every accelerator in use; does nothing, and initialises nothing, without one."""
    if torch.cuda.is_available():
        if torch.cuda.is_initialized():
            for index in range(torch.cuda.device_count()):
                torch.cuda.synchronize(index)
    elif torch.accelerator.is_available():
        torch.accelerator.synchronize()


@contextmanager
def _collector_off() -> Iterator[None]:
    """The garbage collector is held off inside the timed region, as `timeit` does."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


class WallClock:
    """Synchronised wall clock."""

    name = "wall"

    def measure(self, function: Callable[[], T]) -> tuple[T, float]:
        """The result of `function()` and the seconds until it and all device work it queued had finished."""
        with _collector_off():
            synchronise()
            start = time.perf_counter()
            result = function()
            synchronise()
            return result, time.perf_counter() - start
