"""The memory of factors that grow: rows that one child claims, and a pool for buffers that nobody needs any more.

A factor is a value, but its memory has room for more. Who goes on from a factor first claims the next rows under a lock
and writes there, where the older factor does not look; whoever comes second copies.
"""

import contextlib
import threading

import torch
from torch import Tensor

from flashgp.foundations.workspace import Workspace


class BufferPool:
    """At most one buffer that nobody needs any more, for the next removal: a window that slides takes two in turns.

    Shared by factors that come from each other, and gone with the last of them.
    """

    def __init__(self) -> None:
        self._spare: list[torch.UntypedStorage] = []

    def give(self, numbers: Tensor) -> None:
        # Not a view, which would keep the tensor that is going away, and at the interpreter's end bring it down.
        self._spare[:] = [numbers.untyped_storage()]

    def take(self, rows: int, columns: int, dtype: torch.dtype, device: torch.device, workspace: Workspace) -> Tensor:
        """An uninitialised (rows, columns): the spare buffer where it fits and is not twice too large."""
        size = rows * columns
        spare = None
        with contextlib.suppress(IndexError):  # one thread gets it
            spare = self._spare.pop()
        if spare is None or not size <= spare.nbytes() // dtype.itemsize <= 2 * size:
            return workspace.empty((rows, columns), dtype, device)
        with workspace.hold(size * dtype.itemsize):
            return torch.empty(0, dtype=dtype, device=device).set_(spare, 0, (rows, columns), (columns, 1))


class Memory:
    """Numbers (rows, columns), row by row, and how many of their rows are taken.

    Fields: numbers; array, the same for NumPy, of which a view costs a tenth, None on other devices.
    When nobody looks at it any more it goes to the pool.
    """

    def __init__(self, numbers: Tensor, rows: int, pool: BufferPool) -> None:
        self.numbers, self._rows, self._pool = numbers, rows, pool
        self.array = numbers.numpy() if numbers.device.type == "cpu" else None
        self._lock = threading.Lock()

    def __del__(self) -> None:
        self._pool.give(self.numbers)

    def claim(self, rows: int, more: int) -> bool:
        """Take rows after the first `rows`; False if another did, or without room."""
        with self._lock:
            if self._rows != rows or rows + more > self.numbers.shape[0]:
                return False
            self._rows += more
            return True
