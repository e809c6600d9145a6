"""Tables that grow at their end, as values: who goes on first writes behind them, who comes second copies.

Appending costs what the new rows take, and now and then a copy with room for half as many more.
"""

import threading
from collections.abc import Sequence

from torch import Tensor

MIN_ROOM = 64  # rows


class _Memory:
    """Tensors of one number of rows, of which so many are taken."""

    def __init__(self, tensors: tuple[Tensor, ...], taken: int) -> None:
        self.tensors, self._taken, self._lock = tensors, taken, threading.Lock()

    def claim(self, rows: int, more: int) -> bool:
        """Take rows after the first `rows`; False if another did, or without room."""
        with self._lock:
            if self._taken != rows or rows + more > min(len(t) for t in self.tensors):
                return False
            self._taken += more
            return True


class SharedRows:
    """Tensors (n, ...) of one n, with room behind their rows that others may share. Fields: tensors; count, n.

    Example:
        >>> from flashgp.solvers.growing.shared_rows import SharedRows
        >>> one = SharedRows([torch.zeros(2, 3), torch.zeros(2)])
        >>> two = one.followed_by([torch.ones(1, 3), torch.ones(1)])
        >>> one.count, two.count, two.tensors[1]
        (2, 3, tensor([0., 0., 1.]))
    """

    def __init__(self, tensors: Sequence[Tensor], memory: _Memory | None = None) -> None:
        self.tensors, self.count, self._memory = tuple(tensors), len(tensors[0]), memory

    def followed_by(self, more: Sequence[Tensor]) -> "SharedRows":
        """The rows, then k others, (k, ...). Cost: their numbers; n and a half more where there is no room."""
        n, k, memory = self.count, len(more[0]), self._memory
        if memory is None or not memory.claim(n, k):
            room = n + k + max(MIN_ROOM, n // 2)
            memory = _Memory(tuple(t.new_empty(room, *t.shape[1:]) for t in self.tensors), n + k)
            for whole, part in zip(memory.tensors, self.tensors, strict=True):
                whole[:n] = part
        for whole, part in zip(memory.tensors, more, strict=True):
            whole[n : n + k] = part
        return SharedRows([whole[: n + k] for whole in memory.tensors], memory)

    def __getstate__(self) -> tuple[Tensor, ...]:
        return self.tensors

    def __setstate__(self, tensors: tuple[Tensor, ...]) -> None:
        self.__init__(tensors)  # type: ignore[misc]
