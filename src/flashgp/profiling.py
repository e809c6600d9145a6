"""Profiles of the time of some work, in the words of a plan: pairwise products, factorisation, solves, transfers, rest.

The library's primitives say what they do while somebody records (`foundations/profile_ranges`); what is inside no
such range is `other` while the calling thread computes, and `idle` while it waits: for files, locks, other processes.
Beside that a profile of PyTorch's operations is taken, which gives the Chrome trace and the operations that took
longest.
"""

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from flashgp.bench.clocks import synchronise
from flashgp.bench.results import format_seconds, text_table
from flashgp.foundations.atomic import replacing
from flashgp.foundations.profile_ranges import KINDS, Kind, ProfileRange, recording

T = TypeVar("T")
OTHER, IDLE = "other", "idle"
_OPERATIONS = 10  # shown
_SECOND = 1_000_000_000  # nanoseconds
_MICROSECOND = 1e-6
_KINETO_LEVEL = "KINETO_LOG_LEVEL"


@dataclass(frozen=True)
class Bottleneck:
    """One line of the table. Fields: work; seconds; share of all; calls, None for what is in no range."""

    work: str
    seconds: float
    share: float
    calls: int | None


@dataclass(frozen=True)
class Operation:
    """One of PyTorch's operations, without what it calls. Fields: name; seconds, on the host; device_seconds; calls."""

    name: str
    seconds: float
    device_seconds: float
    calls: int


@dataclass(frozen=True)
class Profile:
    """Time of some work, by part.

    Fields: seconds, of everything; bottlenecks, the longest first, adding up to it; operations, those of PyTorch that
    took longest; device_seconds, for how long a kernel ran on an accelerator, None without one or without operations.
    """

    seconds: float
    bottlenecks: tuple[Bottleneck, ...]
    operations: tuple[Operation, ...] = ()
    device_seconds: float | None = None

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Head and rows as text."""
        rows: list[tuple[str, ...]] = [
            (one.work, format_seconds(one.seconds), f"{100.0 * one.share:.1f} %", "" if one.calls is None else
             f"{one.calls:,}") for one in self.bottlenecks
        ]  # fmt: skip
        return ("work", "time", "share", "calls"), [*rows, ("all", format_seconds(self.seconds), "100.0 %", "")]

    def operations_table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Table of operations."""
        rows: list[tuple[str, ...]] = [
            (one.name, format_seconds(one.seconds), format_seconds(one.device_seconds) if one.device_seconds else "",
             f"{one.calls:,}") for one in self.operations
        ]  # fmt: skip
        return ("operation", "host", "device", "calls"), rows

    def remarks(self) -> list[str]:
        """Remarks beside the tables."""
        if self.device_seconds is None:
            return []
        busy = self.device_seconds / self.seconds if self.seconds else 0.0
        return [f"the accelerator computed for {format_seconds(self.device_seconds)}, {100.0 * busy:.0f} % of the time"]

    def __str__(self) -> str:
        return "\n".join([text_table(*self.table()), *self.remarks()])

    def to_json(self) -> dict[str, Any]:
        """The profile as plain values."""
        return {
            "seconds": self.seconds,
            "bottlenecks": [vars(one) for one in self.bottlenecks],
            "operations": [vars(one) for one in self.operations],
            "device_seconds": self.device_seconds,
        }


def take_profile(
    work: Callable[[], T], *, trace: str | os.PathLike[str] | None = None, operations: bool = True
) -> tuple[T, Profile]:
    """The result of `work()`, and where its time went.

    Args:
        trace: a file for the Chrome trace, gzipped if it ends in .gz; written whole or not at all.
        operations: whether PyTorch's operations are recorded too; a trace needs them.
    Raises: whatever the work raises, and OSError for a trace that cannot be written; RuntimeError, of torch, where
        somebody else profiles.
    Cost: microseconds for each range; with operations microseconds and about a kilobyte for each of these. Work queued
        on an accelerator is waited for at the end of each range, so host and device do not overlap as they would.
    """
    with _torch_profile(operations or trace is not None) as taken, recording(synchronise) as record:
        began, spent = time.perf_counter_ns(), time.thread_time_ns()
        result = work()
        synchronise()
        seconds = (time.perf_counter_ns() - began) / _SECOND
        cpu = (time.thread_time_ns() - spent - record.cpu_nanoseconds) / _SECOND
    if trace is not None:
        _write_trace(taken, trace)
    by_kind, calls = attributed(record.ranges, threading.get_ident())
    left = max(0.0, seconds - sum(by_kind.values()))
    other = min(left, max(0.0, cpu))
    lines: list[tuple[str, float, int | None]] = [(kind, by_kind[kind], calls[kind]) for kind in KINDS if calls[kind]]
    lines += [(OTHER, other, None), (IDLE, left - other, None)]
    bottlenecks = tuple(
        Bottleneck(name, part, part / seconds if seconds else 0.0, count)
        for name, part, count in sorted(lines, key=lambda line: -line[1])
    )
    if taken is None:
        return result, Profile(seconds, bottlenecks)
    return result, Profile(seconds, bottlenecks, _longest(taken), _device_seconds(taken))


def attributed(ranges: Iterable[ProfileRange], thread: int) -> tuple[dict[Kind, float], dict[Kind, int]]:
    """Seconds and number of ranges of each kind: every moment belongs to the innermost open range of `thread`, or
    else, while that thread is in none, to the one of another thread that began last."""
    seconds, calls = dict.fromkeys(KINDS, 0.0), dict.fromkeys(KINDS, 0)
    points: list[tuple[int, int, int, int, ProfileRange]] = []
    for number, one in enumerate(ranges):
        calls[one.kind] += 1
        if one.end > one.start:
            # At one moment: ends first, then what begins, outside to inside: the longest first, or what was
            # recorded last.
            points += [(one.start, 1, -one.end, -number, one), (one.end, 0, 0, number, one)]
    points.sort(key=lambda point: point[:4])
    own: list[ProfileRange] = []
    others: list[ProfileRange] = []
    before = 0
    for now, begins, _, _, one in points:
        inside = own or others
        if inside:
            seconds[inside[-1].kind] += (now - before) / _SECOND
        before = now
        stack = own if one.thread == thread else others
        if begins:
            stack.append(one)
        else:
            stack.remove(one)
    return seconds, calls


@contextmanager
def _torch_profile(wanted: bool) -> Iterator[Any]:
    """A profile of the block, of all activities that the machine offers, where it is wanted.

    Kineto logs each start and stop on standard error. Its log level is read from the environment when the first profile
    of a process begins, so the variable is set for the block, unless the user has set it.
    Raises: RuntimeError, of torch, where a profile is being taken already.
    """
    if not wanted:
        yield None
        return
    ours = _KINETO_LEVEL not in os.environ
    if ours:
        os.environ[_KINETO_LEVEL] = "99"
    try:
        with torch.profiler.profile(acc_events=True) as taken:
            yield taken
    finally:
        if ours:
            os.environ.pop(_KINETO_LEVEL, None)


def _longest(taken: Any) -> tuple[Operation, ...]:
    operations = [
        Operation(
            entry.key,
            entry.self_cpu_time_total * _MICROSECOND,
            entry.self_device_time_total * _MICROSECOND,
            entry.count,
        )
        for entry in taken.key_averages()
        if not entry.key.startswith("flashgp: ")
    ]
    operations.sort(key=lambda one: -(one.seconds + one.device_seconds))
    return tuple(operations[:_OPERATIONS])


def _device_seconds(taken: Any) -> float | None:
    if not torch.accelerator.is_available():
        return None
    host = torch._C._autograd.DeviceType.CPU
    events: Sequence[Any] = taken.events() or ()
    return union_seconds(
        (event.time_range.start * _MICROSECOND, event.time_range.end * _MICROSECOND)
        for event in events
        if event.device_type != host and not event.is_user_annotation
    )


def _write_trace(taken: Any, path: str | os.PathLike[str]) -> None:
    ending = ".json.gz" if os.fspath(path).endswith(".gz") else ".json"
    with tempfile.TemporaryDirectory(prefix="flashgp-trace-") as folder:
        made = Path(folder) / f"trace{ending}"
        taken.export_chrome_trace(os.fspath(made))
        with made.open("rb") as source, replacing(path) as file:
            shutil.copyfileobj(source, file)


def union_seconds(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of intervals (start, end)."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
