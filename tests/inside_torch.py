"""What happens to torch's operations while a block runs: one fails, is interrupted, or gives a wrong number."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["InsideTorch", "Operation", "factorises", "makes_a_tensor", "product_of", "raising"]


class Operation(NamedTuple):
    """One that has run: its overload, what it was given and what it made."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: Any


class InsideTorch(TorchDispatchMode):
    """Counts the operations that are picked; what happens at one gets its number, from 1 on, and its result.

    Args:
        picked: which operations are counted.
        happens: may raise, or write into the result. An error at an operation that makes a new tensor is, for who
            called it, the same as if the tensor could not be had.
    Fields: count, of the operations so far.
    """

    def __init__(self, picked: Callable[[Operation], bool], happens: Callable[[int, Any], None]) -> None:
        super().__init__()
        self.picked, self.happens, self.count = picked, happens, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if self.picked(Operation(func, args, kwargs or {}, out)):
            self.count += 1
            self.happens(self.count, out)
        return out


def raising(error: Callable[[], BaseException], *at: int) -> Callable[[int, object], None]:
    """Happens: an error, at the operations of these numbers."""

    def happens(number: int, _out: object) -> None:
        if number in at:
            raise error()

    return happens


def makes_a_tensor(operation: Operation) -> bool:
    """Whether it asks for memory: it writes into no tensor that it was given, and is no view of one."""
    schema = operation.function._schema
    fresh = not schema.is_mutable and not any(made.alias_info for made in schema.returns)
    return fresh and isinstance(operation.out, Tensor)


def factorises(operation: Operation) -> bool:
    """Whether it is a Cholesky factorisation."""
    return operation.function._schema.name == "aten::linalg_cholesky_ex"


def product_of(n: int) -> Callable[[Operation], bool]:
    """Whether it multiplies an n x n matrix with fewer columns or rows."""

    def picked(operation: Operation) -> bool:
        if operation.function not in (torch.ops.aten.mm.default, torch.ops.aten.bmm.default):
            return False
        return sorted(tuple(side.shape[-2:]) == (n, n) for side in operation.args) == [False, True]

    return picked
