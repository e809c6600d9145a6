"""Peak memory of one call: of the accelerator's allocator, or of the process as the operating system counts it.

Host memory is the resident set's high water above its level at entry, by one of two methods, named in the result:
`high_water` (Linux: the kernel's own mark, reset at entry through `/proc/self/clear_refs`, where that is permitted and
proves to work) and `sampling` (a thread reads the resident set every millisecond; a shorter peak is missed). What falls
while the block runs would hide what grows: so garbage is collected at entry, and free heap pages are returned to the
system where the C library can; pages of files (libraries, mapped data) that the kernel took back are added.
Scratch memory that a library kept from an earlier call does not count again: `measure_peak_bytes`, in a fresh process,
sees that too. Either way small numbers are rough: the kernel batches its counters, by up to about a megabyte.
"""

import ctypes
import functools
import gc
import mmap
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, Literal

import torch

from flashgp.bench.clocks import synchronise
from flashgp.foundations.errors import DomainError, FlashGPError

Method = Literal["cuda_allocator", "high_water", "sampling"]
_SAMPLING_SECONDS = 1e-3
_PROBE_BYTES = 32 << 20


class PeakMeter:
    """Context manager that measures the peak memory of what runs inside it.

    After the block `peak_bytes` is the peak above the level at entry, results that are still alive included.

    Args:
        cuda: measure the CUDA allocator on all devices (`torch.cuda.max_memory_allocated`), not the host.
        method: None: the best that works here.
        collect: collect garbage at entry, needless where the collector is off inside the block.
    """

    def __init__(self, *, cuda: bool = False, method: Method | None = None, collect: bool = True) -> None:
        best: Method = "cuda_allocator" if cuda else "high_water" if _high_water_works() else "sampling"
        self.method, self.collect = method or best, collect
        self.peak_bytes = self._entry_bytes = self._entry_file_bytes = 0
        self._sampler: _Sampler | None = None

    def __enter__(self) -> "PeakMeter":
        if self.collect:
            gc.collect()
        if self.method == "cuda_allocator":
            self._entry_bytes = 0
            for index in range(torch.cuda.device_count()):
                torch.cuda.synchronize(index)
                torch.cuda.reset_peak_memory_stats(index)
                self._entry_bytes += torch.cuda.memory_allocated(index)
            return self
        if (trim := _malloc_trim()) is not None:
            trim(0)
        if self.method == "high_water":
            _reset_high_water()
            self._entry_bytes = _status_bytes("VmHWM")
        else:
            self._sampler = _Sampler()
            self._entry_bytes = self._sampler.largest
        self._entry_file_bytes = _file_bytes()
        return self

    def __exit__(self, *_: object) -> None:
        if self.method == "cuda_allocator":
            peak_bytes = sum(map(torch.cuda.max_memory_allocated, range(torch.cuda.device_count())))
        elif self.method == "high_water":
            peak_bytes = _status_bytes("VmHWM")
        else:
            assert self._sampler is not None
            peak_bytes = self._sampler.stop()
        fallen_bytes = max(0, self._entry_file_bytes - _file_bytes())
        self.peak_bytes = max(0, peak_bytes - self._entry_bytes + fallen_bytes)


def measure_peak_bytes(function: Callable[..., Any], *, setup: Callable[[], Any] | None = None) -> int:
    """Peak memory of `function()`, or of `function(setup())`, in a fresh process, above the level before that call.

    A new Python process (spawned, with this process's number of torch threads) has no memory of earlier calls to reuse.

    Args:
        function: a module-level function, or a `functools.partial` of one. Its result counts.
        setup: likewise; runs first, outside the measurement (imports, data, a fitted model); its result is the argument
            of `function`. What it keeps alive is part of the level at entry.

    Returns:
        Bytes.

    Raises:
        DomainError: if `function` cannot be sent to a fresh process.
        FlashGPError: if it fails there, with its traceback, or if the child was killed (out of memory).
    Cost: importing torch again, some seconds.

    Example:
        >>> from functools import partial
        >>> fgp.bench.measure_peak_bytes(partial(torch.ones, 2**24)) >= 2**24
        True
    """
    import pickle
    from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor
    from multiprocessing import get_context

    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        try:
            outcome = pool.submit(_measure_in_child, function, setup, torch.get_num_threads()).result()
        except BrokenProcessPool as error:
            raise FlashGPError(
                "`function` must return, but its process ended without a result, usually for want of memory; measure a "
                "smaller problem"
            ) from error
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise DomainError(
                f"`function` must be importable in a fresh process, got {function!r} ({error}); move it to module level"
            ) from error
    if isinstance(outcome, str):
        raise FlashGPError(f"`function` must return, but it failed in its own process; correct it:\n{outcome}")
    return outcome


def _measure_in_child(function: Callable[..., Any], setup: Callable[[], Any] | None, threads: int) -> int | str:
    try:
        torch.set_num_threads(threads)
        arguments = () if setup is None else (setup(),)
        with PeakMeter(cuda=torch.cuda.is_available() and torch.cuda.is_initialized()) as meter:
            result = function(*arguments)
            synchronise()
        del result
    except Exception:  # whatever the user's function raises: its traceback is the answer
        return traceback.format_exc()
    return meter.peak_bytes


class _Sampler:
    """The largest resident set that a thread sees, reading it again and again."""

    def __init__(self) -> None:
        import psutil

        process = psutil.Process()
        self._resident = lambda: int(process.memory_info().rss)
        self._stop = threading.Event()
        self.largest = self._resident()
        self._thread = threading.Thread(target=self._run, daemon=True, name="flashgp-bench-memory")
        self._thread.start()

    def stop(self) -> int:
        self._stop.set()
        self._thread.join()
        return max(self.largest, self._resident())

    def _run(self) -> None:
        while not self._stop.wait(_SAMPLING_SECONDS):
            self.largest = max(self.largest, self._resident())


@functools.cache
def _high_water_works() -> bool:
    # Some sandboxes accept the write and ignore it, so the mark is tried: it must see 32 MiB, then forget them.
    if sys.platform != "linux":
        return False
    try:
        _reset_high_water()
        entry_bytes = _status_bytes("VmHWM")
        with mmap.mmap(-1, _PROBE_BYTES) as pages:
            for offset in range(0, _PROBE_BYTES, mmap.PAGESIZE):
                pages[offset] = 1
        seen = _status_bytes("VmHWM") - entry_bytes
        _reset_high_water()
        left = _status_bytes("VmHWM") - entry_bytes
    except (OSError, ValueError):
        return False
    return seen > _PROBE_BYTES // 2 and left < _PROBE_BYTES // 2


def _reset_high_water() -> None:
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def _status_bytes(field: str) -> int:
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    raise ValueError(field)


def _file_bytes() -> int:
    # Resident pages that a file backs; 0 where the system does not say.
    try:
        return _status_bytes("RssFile")
    except (OSError, ValueError):
        return 0


@functools.cache
def _malloc_trim() -> Callable[[int], int] | None:
    """The function that returns free pages of the heap to the system; None where the C library has no such function."""
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):  # TypeError: Windows has no library of that name
        return None
    return trim
