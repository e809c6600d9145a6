"""Meaning of `deterministic=True`: the same seed gives the same bits on one machine, whatever its number of threads.

A sum depends on how it is split, and work is split by the number of threads; a route may depend on a clock. So within
`deterministically`, in the thread that entered it:

    torch's operations and our loops take one thread                 (foundations/threads.py)
    plans are made with built-in rates, never with measured ones     (foundations/profile_store.py)
    likelihoods of few rows take torch, not NumPy                    (pairwise/numpy_pairs.py)
    bases of low rank are by Householder, in sums of one order       (solvers/preconditioners/low_rank.py)
    data are read from torch's own memory                            (`contiguous_copy`)

What is left: the memory that is free decides which route fits, so that `memory=` or `plan=` belong to it where memory
is short; a time limit is a clock; a gradient that the caller takes through a result runs on the caller's threads.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from flashgp.foundations.checks import check_flag
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.threads import single_thread

EVENT = Event(EventKind.DETERMINISTIC)  # in reports


class _Here(threading.local):
    """State of each thread: True inside `deterministically`."""

    inside = False


_here = _Here()


def is_deterministic() -> bool:
    """True if the calling thread is within `deterministically`."""
    return _here.inside


@contextmanager
def deterministically(wanted: bool = True) -> Iterator[None]:
    """Within the block results depend neither on the number of threads nor on measurements; no change if not wanted."""
    if not check_flag(wanted, "deterministic") or _here.inside:
        yield
        return
    with single_thread():
        _here.inside = True
        try:
            yield
        finally:
            _here.inside = False


def contiguous_copy(tensor: Tensor) -> Tensor:
    """A contiguous copy where it must be deterministic: products of few columns round by where an array begins."""
    return tensor.clone(memory_format=torch.contiguous_format) if _here.inside else tensor
