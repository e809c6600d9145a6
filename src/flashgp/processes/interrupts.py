"""Ctrl-C that waits for the end of what must not be left half done, such as a collective with the flag before it."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_late: list[FrameType | None] = []  # of a Ctrl-C that waits for the end of the next block: where the program was


class _Held:
    """A handler of SIGINT that remembers it. Fields: came; frame, where the program was then."""

    def __init__(self) -> None:
        self.came = False
        self.frame: FrameType | None = None

    def __call__(self, _: int, frame: FrameType | None) -> None:
        self.came, self.frame = True, frame


@contextmanager
def interrupt_deferred(*, past_error: bool = False) -> Iterator[None]:
    """Ctrl-C within is handled at the end, by the handler that there was.

    Where an error ends the block, all ranks are about to raise it: the error goes on, and Ctrl-C waits for the end of
    the next block, in case a caller handles the error. It does nothing in other threads than the main one, which Python
    interrupts alone, or without a handler of Python's.

    Args: past_error: the block tells an error, and ends like one that an error ends.
    """
    handler = signal.getsignal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else None
    if not callable(handler) or isinstance(handler, _Held):
        yield
        return
    held = _Held()
    signal.signal(signal.SIGINT, held)
    try:
        yield
    except BaseException:
        past_error = True
        raise
    finally:
        signal.signal(signal.SIGINT, handler)
        if held.came and past_error:
            _late[:] = [held.frame]
    if not past_error and (held.came or _late):
        frame = held.frame if held.came else _late[0]
        _late.clear()
        handler(signal.SIGINT, frame)
