"""Whether there is an accelerator: asked of the system once per process, since asking takes longer than small work.

A device that stops answering is given up for the rest of the process. A forked child cannot use the one its parent
used (CUDA's rule), and asks again.
"""

import contextlib
import os
from collections.abc import Iterator

import torch

_UNKNOWN = object()
_found: object = _UNKNOWN


def accelerator() -> torch.device | None:
    """The accelerator that device="auto" may choose, None where there is none."""
    global _found
    if _found is _UNKNOWN:
        forked = getattr(torch.cuda, "_is_in_bad_fork", lambda: False)()
        _found = torch.device("cuda") if torch.cuda.is_available() and not forked else None
    return _found  # type: ignore[return-value]


def give_up_accelerator() -> None:
    """From now on this process has none."""
    global _found
    _found = None


def ask_again() -> None:
    """The next call asks the system."""
    global _found
    _found = _UNKNOWN


@contextlib.contextmanager
def using_accelerator(device: torch.device | None) -> Iterator[None]:
    """Inside, this process has that accelerator, or none; not for several threads."""
    global _found
    before, _found = _found, device
    try:
        yield
    finally:
        _found = before


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=ask_again)
