"""A lock of all threads of a process, which a child of a fork finds open."""

import os
import threading


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
