"""Named ranges of the library's own work in a profile: what a plan calls pairwise products and the like.

Compiled loops leave no trace in a profile of PyTorch's operations, and of a matrix product such a profile does not know
what it was for. So the few primitives that all work passes through say what they do. Unless somebody records, saying so
costs one comparison and changes nothing; while somebody does, every range is a range of `torch.profiler`, of NVTX
where there is CUDA, and an entry of the record. Innermost wins: products inside a factorisation are products.
"""

import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Literal, ParamSpec, TypeVar

import torch

Kind = Literal["pairwise products", "factorisation", "triangular solves", "transfers"]
KINDS: tuple[Kind, ...] = ("pairwise products", "factorisation", "triangular solves", "transfers")
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class ProfileRange:
    """One range: of what kind, in which thread, from when to when in nanoseconds of `time.perf_counter_ns`."""

    kind: Kind
    thread: int
    start: int
    end: int


@dataclass
class Record:
    """A recording. Fields: ranges, by when they ended; cpu_nanoseconds, processor time that the recording
    thread spent in its outermost ones; thread, that one."""

    ranges: list[ProfileRange] = field(default_factory=list)
    cpu_nanoseconds: int = 0
    thread: int = field(default_factory=threading.get_ident)


class _Open(threading.local):
    """Open kinds of each thread, outermost first."""

    def __init__(self) -> None:
        self.kinds: list[Kind] = []


class _Recorder:
    def __init__(self, synchronise: Callable[[], None]) -> None:
        self.record = Record()
        self._open = _Open()
        self._synchronise = synchronise
        self._nvtx = torch.cuda.is_available()

    def open(self, kind: Kind) -> AbstractContextManager[None]:
        # A range inside one of its own kind is part of it.
        return nullcontext() if self._open.kinds[-1:] == [kind] else self._range(kind)

    @contextmanager
    def _range(self, kind: Kind) -> Iterator[None]:
        kinds, thread = self._open.kinds, threading.get_ident()
        outermost = not kinds and thread == self.record.thread
        kinds.append(kind)
        name = f"flashgp: {kind}"
        if self._nvtx:
            torch.cuda.nvtx.range_push(name)
        start, spent = time.perf_counter_ns(), time.thread_time_ns()
        try:
            with torch.profiler.record_function(name):
                yield
                self._synchronise()
        finally:
            end = time.perf_counter_ns()
            if outermost:
                self.record.cpu_nanoseconds += time.thread_time_ns() - spent
            if self._nvtx:
                torch.cuda.nvtx.range_pop()
            kinds.pop()
            self.record.ranges.append(ProfileRange(kind, thread, start, end))


_recorder: _Recorder | None = None
_NOTHING: AbstractContextManager[None] = nullcontext()


def profile_range(kind: Kind) -> AbstractContextManager[None]:
    """A context for work of this kind. Cost: 0.2 microseconds unless somebody records, as measured."""
    return _NOTHING if _recorder is None else _recorder.open(kind)


def profiled(kind: Kind) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Decorator: the whole function is work of this kind."""

    def decorate(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        @functools.wraps(function)
        def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            if _recorder is None:
                return function(*args, **kwargs)
            with _recorder.open(kind):
                return function(*args, **kwargs)

        return run

    return decorate


@contextmanager
def recording(synchronise: Callable[[], None] = lambda: None) -> Iterator[Record]:
    """Record every range of this process within the block; inside another recording, only the outer one has them.

    Args: synchronise: called at the end of each range, so that work which it queued on a device is inside.
    """
    global _recorder
    if _recorder is not None:
        yield Record()
        return
    recorder = _Recorder(synchronise)
    _recorder = recorder
    try:
        yield recorder.record
    finally:
        _recorder = None
