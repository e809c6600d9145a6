"""`torch.profiler` as this library uses it: all activities that the machine offers, and no lines on standard error."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["torch_profile"]

_LEVEL = "KINETO_LOG_LEVEL"
_SILENT = "99"


@contextmanager
def torch_profile() -> Iterator[torch.profiler.profile]:
    """A profile of the block.

    Its library announces each start and stop on standard error. How much it says is read from the environment when the
    first profile of a process begins, so the variable is there for the block, unless somebody has set it.
    Raises: RuntimeError, of torch, where a profile is being taken already.
    """
    ours = _LEVEL not in os.environ
    if ours:
        os.environ[_LEVEL] = _SILENT
    try:
        with torch.profiler.profile(acc_events=True) as taken:
            yield taken
    finally:
        if ours:
            os.environ.pop(_LEVEL, None)
