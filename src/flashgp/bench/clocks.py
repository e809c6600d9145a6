"""Clocks: how long one call takes until its result exists.

The wall clock waits for the accelerator before it starts and before it stops; it decides in a comparison. The others
confirm: events are recorded on the accelerator's current stream, so work on another stream is not between them; the
profiler counts the time in which PyTorch's operations and kernels ran, nested and simultaneous ones once, and neither
Python between them nor code outside PyTorch without a range around it.
"""

import gc
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

import torch

from flashgp.foundations.errors import BackendUnavailableError, DomainError
from flashgp.foundations.profile_ranges import recording

T = TypeVar("T")
_MILLISECOND, _MICROSECOND = 1e-3, 1e-6  # the units of Event.elapsed_time and of a profile's times
_SECONDS_PER_OPERATION = 5e-6  # what recording one operation may add to it
_KINETO_LEVEL = "KINETO_LOG_LEVEL"


class Clock(Protocol):
    """Times one call; it may also have `overhead_seconds`, the error that measuring may have added to the last one."""

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


class EventClock:
    """Time between two events on the current stream of the accelerator in use; BackendUnavailableError without one."""

    name = "events"
    overhead_seconds = 2e-5  # two events with an idle stream between them, and what the host takes to record them

    def __init__(self) -> None:
        if not torch.accelerator.is_available():
            raise BackendUnavailableError(
                "`clocks` names 'events', which are an accelerator's, and there is none here; leave it out, or write "
                "clocks='all' for those that this machine offers"
            )
        self.device = torch.accelerator.current_accelerator()

    def measure(self, function: Callable[[], T]) -> tuple[T, float]:
        """The result of `function()` and the seconds between an event before it and one after it."""
        with _collector_off():
            start, stop = (torch.Event(self.device, enable_timing=True) for _ in range(2))
            synchronise()
            start.record()
            result = function()
            stop.record()
            synchronise()
            return result, start.elapsed_time(stop) * _MILLISECOND


class ProfilerClock:
    """Seconds in which at least one operation or kernel ran, by `torch.profiler`."""

    name = "profiler"

    def __init__(self) -> None:
        self.overhead_seconds = 0.0

    def measure(self, function: Callable[[], T]) -> tuple[T, float]:
        """The result of `function()` and the seconds in which PyTorch and the accelerator worked for it."""
        with _collector_off():
            synchronise()
            with torch_profile() as taken, recording():
                result = function()
                synchronise()
        spans = [
            (event.time_range.start * _MICROSECOND, event.time_range.end * _MICROSECOND)
            for event in taken.events() or ()
            if "Synchronize" not in event.name  # the host waiting, not work
        ]
        self.overhead_seconds = _SECONDS_PER_OPERATION * len(spans)
        return result, union_seconds(spans)


def union_seconds(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of intervals (start, end)."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


@contextmanager
def torch_profile() -> Iterator[torch.profiler.profile]:
    """A profile of the block, of all activities that the machine offers.

    Kineto logs each start and stop on standard error. Its log level is read from the environment when the first profile
    of a process begins, so the variable is set for the block, unless the user has set it.
    Raises: RuntimeError, of torch, where a profile is being taken already.
    """
    ours = _KINETO_LEVEL not in os.environ
    if ours:
        os.environ[_KINETO_LEVEL] = "99"
    try:
        with torch.profiler.profile(acc_events=True) as taken:
            yield taken
    finally:
        if ours:
            os.environ.pop(_KINETO_LEVEL, None)


_CLOCKS: dict[str, Callable[[], Clock]] = {"wall": WallClock, "events": EventClock, "profiler": ProfilerClock}
Clocks = str | Sequence[str | Clock]


def available_clocks() -> tuple[str, ...]:
    """The names of the clocks that this machine offers."""
    return tuple(name for name in _CLOCKS if name != "events" or torch.accelerator.is_available())


def clocks_named(clocks: Clocks) -> list[Clock]:
    """The clocks given, or named; 'all' for every one that this machine offers.

    Raises: DomainError for an unknown name or the same name twice; BackendUnavailableError for one not offered here.
    """
    if isinstance(clocks, str):
        clocks = available_clocks() if clocks == "all" else [clocks]
    for name in clocks:
        if isinstance(name, str) and name not in _CLOCKS:
            raise DomainError(f"`clocks` must be among {', '.join(_CLOCKS)} or 'all', got {name!r}; correct the name")
    given = [_CLOCKS[clock]() if isinstance(clock, str) else clock for clock in clocks]
    names = [clock.name for clock in given]
    if len(set(names)) < len(names):
        raise DomainError(f"`clocks` must have different names, got {names}; name each once")
    return given
