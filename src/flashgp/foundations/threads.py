"""Number of threads of torch's operations: fewer, for the thread that asks, while it asks, and for no other.

What torch calls its number of threads is several counts. OpenMP's belongs to the calling thread. So does MKL's, which
`torch.set_num_threads` has set beside it, and which then wins. A third one, torch's own, only says what a thread that
is new to torch begins with. The first two are set here, so that other threads keep theirs, and new ones begin as ever.
Where they cannot be reached (`counts_are_own` says so), `torch.set_num_threads` is all there is: other threads keep
their counts there too, but one that uses torch for the first time meanwhile goes on with one thread.
"""

import ctypes
import functools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

_outside = threading.local()  # count: of this thread before the outermost block that runs alone
_MKL_NAME = "MKL_Set_Num_Threads_Local"  # sets the calling thread's count and returns the one before


@functools.lru_cache(maxsize=1)
def _controllers() -> tuple[Any, Callable[[int], int] | None] | None:
    """(the OpenMP library that torch runs on, what sets MKL's count or None without MKL); None where one is missing."""
    from threadpoolctl import ThreadpoolController

    libraries = ThreadpoolController()
    mkl = _mkl([library.filepath for library in libraries.lib_controllers if library.internal_api == "mkl"])
    if mkl is None and torch.backends.mkl.is_available():
        return None
    for library in libraries.select(user_api="openmp").lib_controllers:
        before = library.get_num_threads()
        if before != torch.get_num_threads():
            continue
        library.set_num_threads(before + 1)  # of this thread alone, and for no operation
        seen = torch.get_num_threads()
        library.set_num_threads(before)
        if seen == before + 1:
            return library, mkl
    return None


def _mkl(others: list[str]) -> Callable[[int], int] | None:
    """MKL's setter: in torch's own library where it is part of it, else in MKL's."""
    if not torch.backends.mkl.is_available():
        return None
    libraries = (Path(torch.__file__).parent / "lib").glob("*torch_cpu.*")
    for path in (*map(str, libraries), *others):
        try:
            setter = getattr(ctypes.CDLL(path), _MKL_NAME)
        except (OSError, AttributeError):
            continue
        setter.argtypes, setter.restype = [ctypes.c_int], ctypes.c_int
        return setter
    return None


def counts_are_own() -> bool:
    """True if one thread's count can be set without a trace in any other."""
    return _controllers() is not None


def usual_threads() -> int:
    """torch's threads, in the calling thread, where it is not held to fewer by `fewer_threads`."""
    return getattr(_outside, "count", 0) or torch.get_num_threads()


class fewer_threads:  # noqa: N801 - used like contextlib's
    """Within the block this thread's torch operations take so many threads, and so do our loops; then all is as before.

    May be nested. Cost: a few calls of a microsecond.
    """

    def __init__(self, count: int) -> None:
        self.count, self.before, self.mkl_before, self.outermost = count, 1, 0, False

    def __enter__(self) -> None:
        self.before = torch.get_num_threads()  # the first one that a thread asks for also sets its counts
        self.outermost = not getattr(_outside, "count", 0)
        if self.outermost:
            _outside.count = self.before
        self.mkl_before = _set_threads(self.count)

    def __exit__(self, *_: object) -> None:
        if self.outermost:
            _outside.count = 0
        _set_threads(self.before, self.mkl_before)


class single_thread(fewer_threads):  # noqa: N801
    """`fewer_threads` with one thread."""

    def __init__(self) -> None:
        super().__init__(1)


def _set_threads(count: int, mkl_count: int | None = None) -> int:
    """Set this thread's counts, MKL's to one of its own if given; returns MKL's before."""
    controllers = _controllers()
    if controllers is None:
        torch.set_num_threads(count)
        return 0
    library, mkl = controllers
    library.set_num_threads(count)
    return 0 if mkl is None else mkl(count if mkl_count is None else mkl_count)
