"""What tensors hold while something runs, to the byte: resident memory also has what the allocator keeps for itself."""

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Allocations"]


class Allocations(TorchDispatchMode):
    """Sees every tensor torch makes: the largest storage, and the most bytes alive at once in storages above a size."""

    def __init__(self, counted_bytes: int = 0) -> None:
        super().__init__()
        self.counted_bytes = counted_bytes
        self.largest = self.alive = self.peak = 0
        self.seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(value, torch.Tensor):
                self.look_at(value.untyped_storage())
        return out

    def look_at(self, storage: torch.UntypedStorage) -> None:
        size, key = storage.nbytes(), storage._cdata
        self.largest = max(self.largest, size)
        if size < self.counted_bytes or key in self.seen:
            return
        self.seen.add(key)
        self.alive += size
        self.peak = max(self.peak, self.alive)
        weakref.finalize(storage, self.forget, key, size)

    def forget(self, key: int, size: int) -> None:
        self.seen.discard(key)
        self.alive -= size
