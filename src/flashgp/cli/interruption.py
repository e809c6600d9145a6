"""Ctrl-C: before work begins, and in a process that torchrun has started. Imports nothing that takes time."""

import os
import signal
import socket
import threading
import time
from typing import NoReturn

INTERRUPTED = 128 + signal.SIGINT  # the exit code, as shells have it
TOGETHER_SECONDS = 10.0  # from Ctrl-C on, in which ranks end together; torchrun kills its processes after 30
NOTHING_WRITTEN = "interrupted; nothing was written"


def launched() -> bool:
    """True if torchrun, or who sets its variables, has started several processes."""
    return "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") not in ("", "1")


def silent() -> bool:
    """True if another rank prints in place of this one."""
    return launched() and os.environ["RANK"] != "0"


def before_work(*_: object) -> NoReturn:
    """Ctrl-C while modules are imported and words are read: one sentence. An exception might be lost in an import, and
    typer would say another sentence and end with 1."""
    if not silent():
        os.write(2, f"error: {NOTHING_WRITTEN}\n".encode())
    os._exit(INTERRUPTED)


class OneInterrupt:
    """Handler of Ctrl-C on a rank, once. The terminal sends it to every process, and torchrun again to those that it
    has started: no other one may end what the first has begun, telling the others and saying one message.

    A rank that waits for another, inside torch, does not see it: a thread ends the process where the ranks have not
    ended together in time.

    Args: together_seconds, that they have from Ctrl-C on. Field: heard, whether it has come.
    """

    def __init__(self, together_seconds: float = TOGETHER_SECONDS) -> None:
        self.heard, self._together_seconds = False, together_seconds

    def __call__(self, *_: object) -> None:
        if not self.heard:
            self.heard = True
            raise KeyboardInterrupt

    def install(self) -> None:
        """Install the handler in this process, which ends with its command."""
        heard, told = socket.socketpair()
        told.setblocking(False)
        signal.signal(signal.SIGINT, self)
        signal.set_wakeup_fd(told.detach(), warn_on_full_buffer=False)
        threading.Thread(target=self._end, args=(heard,), daemon=True).start()

    def _end(self, heard: socket.socket) -> None:
        while heard.recv(1) != bytes([signal.SIGINT]):
            pass
        time.sleep(self._together_seconds)
        if not silent():
            text = f"error: interrupted; the processes did not end together within {self._together_seconds:g} s\n"
            os.write(2, text.encode())
        os._exit(INTERRUPTED)


def interrupted() -> bool:
    """True if Ctrl-C has come to this rank: errors between ranks then come from how the others ended."""
    handler = signal.getsignal(signal.SIGINT)
    return isinstance(handler, OneInterrupt) and handler.heard
