"""Workspace: the one place large buffers come from. It counts them, enforces the plan, and can be told to fail.

Conditioning and fitting ask here for every buffer of more than 1 MiB; prediction works in strips of bounded
size. The count is of live bytes; its
high-water mark is the `peak_bytes` of a report. Buffers below the threshold are allocated and not counted.
What was done to get along with less memory is noted in `events`, which reports pick up.
"""

import contextlib
import math
import os
import threading
import weakref
from collections.abc import Iterator, Sequence

import numpy
import torch
from torch import Tensor

from flashgp.foundations.deadline import NO_DEADLINE, Deadline
from flashgp.foundations.errors import MemoryBudgetError
from flashgp.foundations.events import Event

COUNTED_BYTES = 2**20  # buffers above one MiB are counted (docs/design.md, memory)
# From here NumPy asks the system for huge pages. Smaller buffers the C library may keep, and cut small ones out of them
# later, each of which would then take a whole huge page or two; from 32 MiB on it gives every buffer back as it was.
HUGE_BYTES = 2**25
ALIGNMENT = 64  # of torch's own buffers
# How torch's host allocator says it, by platform; accelerators raise torch.OutOfMemoryError.
_EXHAUSTED = ("can't allocate memory", "not enough memory")


def ran_out_of_memory(error: BaseException) -> bool:
    """True if an error says that memory ran out: ours, Python's, or torch's."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _EXHAUSTED)


def _fresh(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, size: int) -> Tensor:
    """An uninitialised tensor; a large one on the CPU in huge pages where the system has them.

    The first touch of a small page costs as much as writing it several times; torch does not ask for large ones.
    """
    if device.type != "cpu" or size < HUGE_BYTES or dtype not in (torch.float32, torch.float64):
        return torch.empty(shape, dtype=dtype, device=device)
    data = numpy.empty(size + ALIGNMENT, numpy.uint8)
    start = -data.ctypes.data % ALIGNMENT
    real = numpy.float32 if dtype == torch.float32 else numpy.float64
    return torch.from_numpy(data[start : start + size].view(real).reshape(shape))


class Workspace:
    """Allocates and counts buffers.

    Args:
        budget_bytes: the most that may be alive at once; None for no limit.
        fail_at: the counted request (1, 2, ...) that raises as if memory had run out; for tests.
        parent: a workspace that counts and limits these buffers too, and gets the events.
        counted_bytes: buffers above this are counted; those of the parent by default.
        deadline: of what works here, that of the parent by default: what compiles asks it, in this process alone.
    Fields: live_bytes, peak_bytes, requests; events, one for each change that lack of memory made necessary;
    backends, the titles of those that worked here, in order; compile_seconds, what compiling took of their time.
    Raises (on request): MemoryBudgetError when a buffer would pass the budget or cannot be had.
    """

    def __init__(
        self,
        budget_bytes: int | None = None,
        *,
        fail_at: int | None = None,
        parent: "Workspace | None" = None,
        counted_bytes: int | None = None,
        deadline: Deadline = NO_DEADLINE,
    ) -> None:
        self.deadline: Deadline = deadline.own if parent is None else parent.deadline
        inherited = COUNTED_BYTES if parent is None else parent.counted_bytes
        self.counted_bytes: int = inherited if counted_bytes is None else counted_bytes
        self.budget_bytes = budget_bytes
        self.parent = parent
        self.fail_at = fail_at
        self.live_bytes = 0
        self.peak_bytes = 0
        self.requests = 0
        self.events: list[Event] = []
        self.backends: list[str] = []
        self.compile_seconds = 0.0

    def empty(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
        """An uninitialised contiguous tensor; its bytes are counted until its storage is freed."""
        size = math.prod(shape) * dtype.itemsize
        if size <= self.counted_bytes:
            return torch.empty(tuple(shape), dtype=dtype, device=device)
        self._admit(size)
        try:
            tensor = _fresh(tuple(shape), dtype, device, size)
        except (RuntimeError, MemoryError) as error:  # torch reports exhaustion as a RuntimeError
            self._release(size)
            raise MemoryBudgetError(
                f"the device {device} could not provide {size:,} bytes for a buffer of shape {tuple(shape)} ({error}); "
                "free memory, pass a smaller memory= or use float32",
                needed_bytes=size,
                available_bytes=0,
            ) from error
        weakref.finalize(tensor.untyped_storage(), self._release, size)
        return tensor

    def adopt(self, tensor: Tensor) -> Tensor:
        """Count a tensor that an operation made, until its storage is freed; each storage once."""
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor):  # of torch.func: it has no storage of its own
            return tensor
        storage = tensor.untyped_storage()
        size = storage.nbytes()
        if size > self.counted_bytes:
            self._admit(size)
            weakref.finalize(storage, self._release, size)
        return tensor

    @contextlib.contextmanager
    def hold(self, size: int) -> Iterator[None]:
        """Count bytes that are allocated elsewhere (the temporaries of a tile loop) while the block runs."""
        if size <= self.counted_bytes:
            yield
            return
        self._admit(size)
        try:
            yield
        finally:
            self._release(size)

    @property
    def room(self) -> float:
        """Bytes that may still be asked for; inf without a budget."""
        own = math.inf if self.budget_bytes is None else self.budget_bytes - self.live_bytes
        return own if self.parent is None else min(own, self.parent.room)

    def note(self, event: Event) -> None:
        """Record an event, once however often it happens."""
        if event not in self.events:
            self.events.append(event)
        if self.parent is not None:
            self.parent.note(event)

    def ran(self, backend: str, compile_seconds: float = 0.0) -> None:
        """Record that a backend worked here, and what of its time went into compiling."""
        if backend not in self.backends:
            self.backends.append(backend)
        self.compile_seconds += compile_seconds
        if self.parent is not None:
            self.parent.ran(backend, compile_seconds)

    @property
    def backend(self) -> str:
        """Name in a report of the backend that worked here."""
        return " and ".join(self.backends)

    def _admit(self, size: int) -> None:
        with _counting:
            self.requests += 1
            available = math.inf if self.budget_bytes is None else self.budget_bytes - self.live_bytes
            if self.requests == self.fail_at:
                available = 0
            if size > available:
                raise MemoryBudgetError(
                    f"a buffer of {size:,} bytes was needed with {int(available):,} bytes of the memory budget left; "
                    "pass a larger memory= or use float32",
                    needed_bytes=size,
                    available_bytes=int(available),
                )
            if self.parent is not None:
                self.parent._admit(size)
            self.live_bytes += size
            self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def _release(self, size: int) -> None:
        with _counting:
            self.live_bytes -= size
            if self.parent is not None:
                self.parent._release(size)


_counting = threading.RLock()  # threads take buffers of one workspace; a buffer may be freed while another is counted


def _forget_lock() -> None:
    """A child of a fork has only the thread that forked: no other will let go of the lock."""
    global _counting
    _counting = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_lock)
