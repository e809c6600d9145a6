"""The profiler as a clock: for how long PyTorch's operations, and kernels on the accelerator, ran during a call.

The union of their intervals counts: nested and simultaneous ones once. What Python does between operations does not
count, nor what waits for the device, nor what runs outside PyTorch without a range around it (SciPy, loops compiled by
others); FlashGP's own compiled loops have ranges (`foundations/ranges`). A profile costs microseconds for every
operation: this clock confirms what another one measured, it does not decide.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from flashgp.bench.clock import collector_off, synchronise
from flashgp.bench.torch_profile import torch_profile
from flashgp.foundations.profile_ranges import recording

__all__ = ["ProfilerClock", "union_seconds"]

T = TypeVar("T")
_MICROSECOND = 1e-6  # the unit of a profile's times
_SECONDS_PER_EVENT = 5e-6  # what recording one operation may add to it


class ProfilerClock:
    """Seconds in which at least one operation or kernel ran, by `torch.profiler`.

    Fields: overhead_seconds, of the last call: what recording its operations may have added.
    Raises: RuntimeError, of torch, where a profile is being taken already.

    Example:
        >>> value, seconds = fgp.bench.ProfilerClock().measure(lambda: torch.ones(10).sum())
        >>> float(value)
        10.0
    """

    name = "profiler"

    def __init__(self) -> None:
        self.overhead_seconds = 0.0

    def measure(self, function: Callable[[], T]) -> tuple[T, float]:
        """The result of `function()` and the seconds in which PyTorch and the accelerator worked for it."""
        with collector_off():
            synchronise()
            with torch_profile() as taken, recording():
                result = function()
                synchronise()
        spans = [_span(event) for event in taken.events() or () if _works(event)]
        self.overhead_seconds = _SECONDS_PER_EVENT * len(spans)
        return result, union_seconds(spans)


def _works(event: Any) -> bool:
    # cudaDeviceSynchronize and its like are the host waiting, not work.
    return "Synchronize" not in event.name


def _span(event: Any) -> tuple[float, float]:
    return event.time_range.start * _MICROSECOND, event.time_range.end * _MICROSECOND


def union_seconds(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of intervals (start, end)."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
