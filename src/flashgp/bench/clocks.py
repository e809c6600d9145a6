"""Clocks: how long one call takes until its result exists, and whether two clocks contradict each other.

The wall clock waits for the accelerator before it starts and before it stops; it decides in a comparison. The others
confirm: events are recorded on the accelerator's current stream, so work on another stream is not between them; the
profiler counts the time in which PyTorch's operations and kernels ran, nested and simultaneous ones once, and neither
Python between them nor code outside PyTorch without a range around it. Two clocks agree if neither says more than
`AGREEMENT` times what the other says with `GRACE_SECONDS` and its own overhead on top. A disagreement is shown beside
the candidate's time: one of the clocks missed work.
"""

import gc
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import torch

from flashgp.bench.formats import format_seconds
from flashgp.foundations.errors import BackendUnavailableError, DomainError
from flashgp.foundations.profile_ranges import recording

__all__ = [
    "AGREEMENT",
    "GRACE_SECONDS",
    "Clock",
    "Clocks",
    "EventClock",
    "ProfilerClock",
    "WallClock",
    "available_clocks",
    "clocks_named",
    "disagreement",
    "synchronise",
    "torch_profile",
    "union_seconds",
]

T = TypeVar("T")
AGREEMENT = 3.0
GRACE_SECONDS = 1e-4
_MILLISECOND, _MICROSECOND = 1e-3, 1e-6  # the units of Event.elapsed_time and of a profile's times
_SECONDS_PER_OPERATION = 5e-6  # what recording one operation may add to it
_KINETO_LEVEL = "KINETO_LOG_LEVEL"
# Why a clock may say much less than the one that decides.
_LESS = {
    "profiler": "the time passes outside PyTorch's operations: in Python, in code compiled by others, or waiting",
    "events": "the work is the host's, or is queued on another stream than the current one",
}


class Clock(Protocol):
    """Runs a callable once and says how long it took.

    A clock may also have `overhead_seconds`: the error that measuring may have added to the last time.
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
    """Synchronised wall clock.

    Example:
        >>> value, seconds = fgp.bench.WallClock().measure(lambda: 1 + 1)
        >>> value, seconds < 1.0
        (2, True)
    """

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
    """Time between two events on the current stream of the accelerator in use.

    The device is asked once, here. Raises: BackendUnavailableError without an accelerator.
    Source: torch.Event, `elapsed_time` in milliseconds.

    Example:
        >>> fgp.bench.EventClock().measure(lambda: x @ x.T)  # doctest: +SKIP
    """

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
        with _collector_off():
            synchronise()
            with torch_profile() as taken, recording():
                result = function()
                synchronise()
        spans = [_span(event) for event in taken.events() or () if _works(event)]
        self.overhead_seconds = _SECONDS_PER_OPERATION * len(spans)
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
    given = [clock if not isinstance(clock, str) else _clock_of(clock) for clock in clocks]
    names = [clock.name for clock in given]
    if len(set(names)) < len(names):
        raise DomainError(f"`clocks` must have different names, got {names}; name each once")
    return given


def _clock_of(name: str) -> Clock:
    if name not in _CLOCKS:
        raise DomainError(f"`clocks` must be among {', '.join(_CLOCKS)} or 'all', got {name!r}; correct the name")
    return _CLOCKS[name]()


def disagreement(decides: str, seconds: float, other: str, other_seconds: float, overhead: float = 0.0) -> str | None:
    """Why two clocks contradict each other about the same work, or None if they agree.

    Args:
        decides: name of the clock whose time is reported.
        seconds: that time.
        other: name of the clock beside it.
        other_seconds: its time.
        overhead: the error that measuring by the other clock may have added, seconds.
    """
    grace = GRACE_SECONDS + overhead
    times = f"{other} clock {format_seconds(other_seconds)}, {decides} clock {format_seconds(seconds)}"
    if other_seconds > AGREEMENT * (seconds + grace):
        return f"{times}: work went on while the {decides} clock did not count it"
    if seconds > AGREEMENT * (other_seconds + grace):
        return f"{times}: {_LESS.get(other, f'the {other} clock did not see all of the work')}"
    return None
