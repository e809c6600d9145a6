"""Threads for compiled loops: as many as torch would use, alive between calls, recreated after a fork."""

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

_pool: ThreadPoolExecutor | None = None
_size = 0
_lock = threading.Lock()


def workers() -> int:
    """Threads a computation may use: what the caller allows torch."""
    return max(1, torch.get_num_threads())


def run_together(tasks: Sequence[Callable[[threading.Event], Any]]) -> list[Any]:
    """The results of all tasks, one thread each; the first error is raised after all have stopped.

    A task gets an event that is set when it should give up: another task failed, or Ctrl-C.
    """
    stop = threading.Event()
    if len(tasks) == 1:
        return [tasks[0](stop)]
    futures: list[Future[Any]] = []
    try:
        _submit(tasks[1:], stop, futures)
        return [_guarded(tasks[0], stop), *(future.result() for future in futures)]
    except BaseException:
        stop.set()
        for future in futures:
            future.exception()
        raise


def _guarded(task: Callable[[threading.Event], Any], stop: threading.Event) -> Any:
    try:
        return task(stop)
    except BaseException:
        stop.set()
        raise


def _submit(
    tasks: Sequence[Callable[[threading.Event], Any]], stop: threading.Event, futures: list[Future[Any]]
) -> None:
    """Hand the tasks to the pool, grown where they are more than it has threads; into `futures` as they start.

    All under one lock: a pool that another thread replaces by a larger one finishes what it has, but takes no more.
    """
    global _pool, _size  # one pool per process
    with _lock:
        if _pool is None or _size < len(tasks):
            if _pool is not None:
                _pool.shutdown(wait=False)
            _pool, _size = ThreadPoolExecutor(len(tasks), thread_name_prefix="flashgp"), len(tasks)
        futures.extend(_pool.submit(_guarded, task, stop) for task in tasks)


def _forget() -> None:
    """In a forked child the threads are gone: the next call makes new ones."""
    global _pool, _size, _lock
    _pool, _size, _lock = None, 0, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
