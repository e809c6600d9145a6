"""Fewer threads where more cost more than they bring: SciPy's while an optimiser runs, torch's on small matrices and
where others keep a core busy.

L-BFGS-B calls BLAS on matrices of a few entries. OpenBLAS wakes its pool for them, whose threads then spin and take
the cores from torch's threads, so that every evaluation waits for them (docs/decisions/0004). The limit is on OpenBLAS
alone, for the time of the optimisation, and is undone after it.

torch's OpenMP threads wait for each other at the end of every operation. On a factorisation that takes a millisecond
they gain nothing, and where another process has one of the cores every operation waits for the scheduler: a hundred
times slower, with nothing wrong (docs/decisions/0004). Where the count of threads belongs to the calling thread
(foundations/threads.py), setting it for the time of a call changes nothing for anybody else.

On larger matrices a fit takes as many threads as there are cores that others leave free (foundations/contention.py).
"""

import contextlib
import functools
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from flashgp.foundations.contention import OtherLoad
from flashgp.foundations.determinism import is_deterministic
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.threads import counts_are_own, fewer_threads, single_thread, usual_threads
from flashgp.pairwise.cpu.pool import run_together, workers

Result = TypeVar("Result")

ONE_THREAD_ROWS = 400  # up to here a second thread does not make a factorisation and its inverse faster


class _Library:
    """One OpenBLAS: what asks it for its number of threads, and what sets that, as directly as its names are known."""

    def __init__(self, controller: Any) -> None:
        self.get, self.set = controller.get_num_threads, controller.set_num_threads
        for prefix, suffix in itertools.product(("", "scipy_"), ("", "64_", "_64")):
            names = [f"{prefix}openblas_{verb}_num_threads{suffix}" for verb in ("get", "set")]
            if all(hasattr(controller.dynlib, name) for name in names):
                self.get, self.set = (getattr(controller.dynlib, name) for name in names)
                return


@functools.lru_cache(maxsize=1)
def _openblas() -> list[_Library]:
    """Every OpenBLAS that is loaded."""
    import scipy.linalg  # noqa: F401 - loads SciPy's library, so that it is found
    from threadpoolctl import ThreadpoolController

    return [_Library(one) for one in ThreadpoolController().select(internal_api="openblas").lib_controllers]


_lock = threading.Lock()
_inside = 0  # such blocks that run now
_before: list[int] = []  # the counts of each library before the first of them; empty while none runs


def _forget_other_threads() -> None:
    """A child of a fork has only the thread that forked: no other lets go of the lock, or leaves its block."""
    global _lock, _inside
    _lock, _inside = threading.Lock(), 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_other_threads)


@contextmanager
def quiet_openblas() -> Iterator[None]:
    """OpenBLAS uses one thread while any such block runs, and what it used before after the last of them.

    Cost: some microseconds.
    """
    global _inside
    with _lock:
        _inside += 1
        if not _before:
            _before[:] = [library.get() for library in _openblas()]
            for library in _openblas():
                library.set(1)
    try:
        yield
    finally:
        with _lock:
            _inside = max(0, _inside - 1)  # 0 already in a child that was forked within the block
            if not _inside:
                for library, count in zip(_openblas(), _before, strict=False):
                    library.set(count)
                _before.clear()


class _Tasks(threading.local):
    """State of each thread: true while it runs a task of `side_by_side` on a CPU."""

    inside = False


_tasks = _Tasks()


def in_task() -> bool:
    """True if the calling thread runs a task of `side_by_side`, alone with its numbers."""
    return _tasks.inside


def side_by_side(tasks: Sequence[Callable[[], Result]], device: torch.device) -> list[Result]:
    """The results of tasks, in their order: as many at a time as torch has threads, the operations of each on one.

    Nothing waits for other threads within a task, as it does at the end of every operation that is spread over them.
    On other devices than a CPU, and where a thread has no counts of its own, they run one after the other with all
    threads. SciPy's BLAS takes one thread in a task. Which thread runs a task depends on the clock: tasks must not
    share what they write.
    Cost: 0.1 ms.
    """
    if device.type != "cpu" or not counts_are_own():
        return [task() for task in tasks]
    results: list[Any] = [None] * len(tasks)
    waiting = iter(range(len(tasks)))  # whose next is of one thread at a time
    count = min(len(tasks), workers())

    def work(stop: threading.Event) -> None:
        before, _tasks.inside = _tasks.inside, True
        try:
            with single_thread() if count > 1 else contextlib.nullcontext(), torch.no_grad():
                for number in waiting:
                    if stop.is_set():
                        return
                    results[number] = tasks[number]()
        finally:
            _tasks.inside = before

    with quiet_openblas():
        run_together([work] * max(1, count))
    return results


class one_thread:  # noqa: N801 - used like contextlib's
    """Within the block this thread's torch operations run alone; what they used before comes back after it.

    Args: rows: of the matrices worked on; above ONE_THREAD_ROWS nothing changes.
    Cost: two calls of a microsecond.
    """

    def __init__(self, rows: int) -> None:
        self.inner = single_thread() if rows <= ONE_THREAD_ROWS and counts_are_own() else None

    def __enter__(self) -> None:
        if self.inner is not None:
            self.inner.__enter__()

    def __exit__(self, *_: object) -> None:
        if self.inner is not None:
            self.inner.__exit__()


class FreeCores:
    """Threads for the large evaluations of one fit: no more than there are cores that others leave free.

    Args:
        note: told the first time that a core is taken.
        load: what measures.
        wait_seconds: of work from which on the first reading, 0.2 s, is waited for.
    """

    def __init__(self, note: Callable[[Event], None], load: OtherLoad | None = None, wait_seconds: float = 4.0) -> None:
        self._note, self._load, self._noted = note, OtherLoad() if load is None else load, False
        self._wait_seconds = wait_seconds

    def slowdown(self, seconds: float) -> float:
        """Factor by which work that takes so many seconds on all cores takes longer on those that are free."""
        usual = usual_threads()
        if usual == 1 or is_deterministic():
            return 1.0
        return max(1.0, usual / self._load.free_cores(wait=seconds >= self._wait_seconds))

    def block(self, rows: int) -> contextlib.AbstractContextManager[None]:
        """Context of work on matrices of so many rows. With `deterministic=True` the count stays."""
        usual = usual_threads()
        if rows <= ONE_THREAD_ROWS or usual == 1 or is_deterministic() or not counts_are_own():
            return contextlib.nullcontext()
        free = self._load.free_cores()
        if free >= usual:
            return contextlib.nullcontext()
        if not self._noted:
            self._note(Event(EventKind.CORES_TAKEN, threads=free, usual=usual))
            self._noted = True
        return fewer_threads(free)
