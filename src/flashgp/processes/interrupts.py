"""Ctrl-C that waits for the end of what must not be left half done, such as a collective with the flag before it."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

__all__ = ["interrupt_deferred"]


class _Held:
    """A handler of SIGINT that remembers it. Fields: came; frame, where the program was then."""

    def __init__(self) -> None:
        self.came = False
        self.frame: FrameType | None = None

    def __call__(self, _: int, frame: FrameType | None) -> None:
        self.came, self.frame = True, frame


@contextmanager
def interrupt_deferred() -> Iterator[None]:
    """Ctrl-C within is handled at the end, by the handler that there was; where an error ends it that error goes on.

    It does nothing in other threads than the main one, which Python interrupts alone, or without a handler of Python's.
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
        signal.signal(signal.SIGINT, handler)
        if held.came:
            with suppress(KeyboardInterrupt):
                handler(signal.SIGINT, held.frame)
        raise
    signal.signal(signal.SIGINT, handler)
    if held.came:
        handler(signal.SIGINT, held.frame)
