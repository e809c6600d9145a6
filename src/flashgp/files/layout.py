"""The order of a tensor's dimensions in memory, kept in a file.

A tensor comes back with the strides it had: the same numbers in another order may give a product another last bit.
"""

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from flashgp.files.container import Container, Entry, whole
from flashgp.table.json_fields import refused

__all__ = ["Reader", "laid_out"]


def laid_out(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Entry], dict[str, list[int]]]:
    """Every tensor in the order of its memory, and that order of dimensions by name where it is not the usual one."""
    entries, layouts = {}, {}
    for name, tensor in tensors.items():
        order = list(range(tensor.dim()))
        if not tensor.is_contiguous():
            # Expanded and single dimensions have no say; they stay in front.
            strides = [s if s and size > 1 else math.inf for s, size in zip(tensor.stride(), tensor.shape, strict=True)]
            order.sort(key=lambda i, strides=strides: -strides[i])  # type: ignore[misc]
        if order != sorted(order):
            layouts[name] = order
        entries[name] = whole(tensor.permute(order))
    return entries, layouts


class Reader:
    """Tensors by name, each in the layout it had; remembers which were asked for."""

    def __init__(self, container: Container, layouts: Any) -> None:
        self.container = container
        self.layouts = layouts
        self.read: set[str] = set()
        if not isinstance(layouts, dict):
            raise refused("layouts", "an object", layouts)
        for name, order in layouts.items():
            dims = len(container.slots[name].shape) if name in container.slots and name != "factor" else 0
            numbers = isinstance(order, list) and all(type(i) is int for i in order)
            if not numbers or sorted(order) != list(range(dims)):
                raise refused(f"layouts.{name[:60]}", "the dimensions of a tensor in another order", order)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape a tensor will have. Raises: ModelFileError when it is missing."""
        if name not in self.container.slots:
            raise refused(name[:60], "a tensor of the file", None)
        stored = self.container.slots[name].shape
        order = self.layouts.get(name)
        return stored if order is None else tuple(stored[order.index(i)] for i in range(len(order)))

    def __call__(self, name: str) -> Tensor:
        self.shape(name)
        self.read.add(name)
        tensor = self.container.tensor(name)
        order = self.layouts.get(name)
        return tensor if order is None else tensor.permute([order.index(i) for i in range(len(order))])

    def require_all_read(self) -> None:
        extra = self.container.slots.keys() - self.read
        if extra:
            raise refused("the tensors", "those of the model", sorted(extra)[0])
