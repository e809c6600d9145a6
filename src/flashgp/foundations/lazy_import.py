"""One lock around compiling generated code and around late imports; a fork waits until nobody is inside.

A child has only the thread that forked. What another thread held then stays held there for ever: our lock, numba's,
the lock of a module that is being imported, those inside LLVM. None of these can be mended from outside, so `os.fork`
waits until the compile or the import is done, at most the seconds that one takes. Fork with a program that is not ours
(subprocess) does not come here.
"""

import importlib
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_lock = threading.RLock()  # re-entrant: compiling imports, and a fork may come from inside
_held = threading.local()  # what the thread that forks holds meanwhile


@contextmanager
def no_forks() -> Iterator[None]:
    """One thread at a time compiles or imports in here, and no process is forked meanwhile by another one."""
    with _lock:
        yield


def lazy_import(module: str) -> None:
    """Before an import inside a function: the first one holds locks of modules that a forked child could never take."""
    if module not in sys.modules:
        with no_forks():
            importlib.import_module(module)


def _numba_lock() -> Any:
    """The lock that numba holds while it compiles; None before it is imported."""
    module = sys.modules.get("numba.core.compiler_lock")
    return getattr(module, "global_compiler_lock", None)


def _before() -> None:
    _held.locks = []
    _lock.acquire()
    _held.locks.append(_lock)
    numba = _numba_lock()  # after ours: whoever imports numba here has finished
    if numba is not None:
        numba.acquire()
        _held.locks.append(numba)


def _after() -> None:
    """In the parent, and in the child, whose only thread is the one that holds them."""
    while _held.locks:
        _held.locks.pop().release()


def _after_in_child() -> None:
    global _lock
    if not _held.locks:  # Ctrl-C while waiting: Python forks all the same, and the lock's owner is gone
        _lock = threading.RLock()
    _after()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after_in_child)


# -- a lock that forks find open ---------------------------------------------------------------------------------------
class SharedLock:
    """`with lock.held:` is one thread's at a time, and that thread's again inside.

    A child of a fork has only the thread that forked: no other will let go of what it held.
    """

    def __init__(self) -> None:
        self._open()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._open)

    def _open(self) -> None:
        self.held = threading.RLock()
