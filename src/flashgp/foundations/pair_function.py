"""A pair statistic that is a Python function of two points, for what no distance, product or match can say.

    o(x, x') = f(x, x'; parameters), any torch operations on two points, eq. (M-48)

It stands in a `Form` as the kind "opaque": its features are the points themselves, its parameters are entries of theta,
one per number. It is evaluated through `torch.func.vmap` over pairs, on the portable backend only.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from flashgp.foundations.errors import DomainError, ShapeError
from flashgp.foundations.transforms import is_transformed


@dataclass(frozen=True)
class PairFunction:
    """One opaque statistic of a form. Equal when function, parameters and place are.

    Fields: function, called as function(x, x', **parameters) with x and x' of shape (d,); names and shapes of its
    parameters; first, the index in theta of their first number; tiled, its name and why no generated code has it.
    """

    function: Callable[..., Tensor]
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    first: int = 0
    tiled: str = field(default="", compare=False)

    def moved(self, parameters: int) -> "PairFunction":
        """The function in a form whose theta has that many entries in front."""
        return replace(self, first=self.first + parameters)

    @property
    def theta_count(self) -> int:
        """Number of entries of theta that it takes."""
        return sum(torch.Size(shape).numel() for shape in self.shapes)

    def flat(self, values: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Parameters (*batch, *shape) as entries of theta, each (*batch,)."""
        entries: list[Tensor] = []
        for value, shape in zip(values, self.shapes, strict=True):
            entries += value.flatten(-len(shape)).unbind(-1) if shape else [value]
        return tuple(entries)

    def parameters(self, theta: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The parameters (*batch, *shape) from all of theta: the inverse of `flat`."""
        found, at = [], self.first
        for shape in self.shapes:
            count = torch.Size(shape).numel()
            entries = torch.broadcast_tensors(*theta[at : at + count])
            found.append(torch.stack(entries, -1).unflatten(-1, shape) if shape else entries[0])
            at += count
        return tuple(found)

    def __call__(self, x: Tensor, z: Tensor, *values: Tensor) -> Tensor:
        """f of two points, a scalar tensor."""
        result: Any = self.function(x, z, **dict(zip(self.names, values, strict=True)))
        if not isinstance(result, Tensor) or not result.is_floating_point():
            got = result.dtype if isinstance(result, Tensor) else type(result).__name__
            raise DomainError(f"`function` must return one number, a floating tensor, got {got}; use torch operations")
        if result.numel() != 1:
            raise ShapeError(
                f"`function` must return one number, got shape {tuple(result.shape)} from points of {x.shape[-1]} "
                "columns; sum over the columns, or pass columns=1 for a function of one column"
            )
        return result.reshape(())

    def pairs(self, x: Tensor, z: Tensor, values: Sequence[Tensor]) -> Tensor:
        """f of all pairs of x (*batch, n, d) and z (*batch, m, d): (*batch, n, m), all at once; differentiable."""
        batch = _batch((x, z, *values), self._events)
        if x.shape[-2] == 0 or z.shape[-2] == 0:
            return x.new_zeros((*batch, x.shape[-2], z.shape[-2]))
        none = (None,) * len(values)
        columns = torch.func.vmap(self, (None, 0, *none))
        return over_batch(torch.func.vmap(columns, (0, None, *none)), (x, z, *values), self._events)

    def diagonal(self, x: Tensor, values: Sequence[Tensor]) -> Tensor:
        """f(x_i, x_i), (*batch, n); with the derivative of both sides' mean where it has none itself, eq. (M-261)."""
        tensors = (x, *values)
        events = self._events[1:]
        if x.shape[-2] == 0:
            return x.new_zeros((*_batch(tensors, events), 0))
        of_parameters = (None,) * len(values)

        def at(function: Callable[..., Tensor]) -> Tensor:
            found: Tensor = over_batch(torch.func.vmap(function, (0, *of_parameters)), tensors, events)
            return found

        value = at(lambda row, *rest: self(row, row, *rest))
        if not torch.is_grad_enabled() or not x.requires_grad or is_transformed(x):
            return value
        if not value.requires_grad:  # of a function that is constant beside its jumps
            return value
        (slopes,) = torch.autograd.grad(value.sum(), x, retain_graph=True, allow_unused=True)
        if slopes is None or bool(slopes.isfinite().all()):
            return value
        step = both_sides(x, x)[..., 0, :].reshape(-1, x.shape[-1])[0]
        sides = [at(lambda row, *rest, by=by: self(row + by, row, *rest)) for by in (step, -step)]
        mean = 0.5 * (sides[0] + sides[1])
        return value.detach() + (mean - mean.detach())

    @property
    def _events(self) -> tuple[int, ...]:
        return (2, 2, *map(len, self.shapes))

    def numbers(self, columns: int) -> int:
        """Number of intermediate numbers of one evaluation: the memory of a pair."""
        return _numbers(self.function, self.names, self.shapes, columns)


def both_sides(x: Tensor, z: Tensor) -> Tensor:
    """A small step, (*batch, 1, d), by the range of each column and in no special direction, for eq. (M-261)."""
    both = torch.cat([x, z], -2).detach()
    spread = both.amax(-2, keepdim=True) - both.amin(-2, keepdim=True)
    spread = torch.where(spread > 0.0, spread, both.abs().amax(-2, keepdim=True).clamp_min(1.0))
    direction = 1.0 / torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device).sqrt()
    return torch.finfo(x.dtype).eps ** (1.0 / 3.0) * spread * direction


class _Counting(TorchDispatchMode):
    """Counts the numbers in all tensors that operations return."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True would import torch._dynamo at the first operation: seconds, for nothing here

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        self.count += sum(leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, Tensor))
        return out


@functools.lru_cache(maxsize=256)
def _numbers(
    function: Callable[..., Tensor], names: tuple[str, ...], shapes: tuple[tuple[int, ...], ...], columns: int
) -> int:
    x = torch.ones(columns, dtype=torch.float64)
    values = {name: torch.ones(shape, dtype=torch.float64) for name, shape in zip(names, shapes, strict=True)}
    with torch.no_grad(), _Counting() as counting:
        function(x, x.clone(), **values)
    return max(1, counting.count)


def _batch(tensors: Sequence[Tensor], events: Sequence[int]) -> torch.Size:
    return torch.broadcast_shapes(*(t.shape[: t.dim() - e] for t, e in zip(tensors, events, strict=True)))


def over_batch(function: Callable[..., Any], tensors: Sequence[Tensor], events: Sequence[int]) -> Any:
    """function(*tensors) for every member of their broadcast batch.

    Args:
        tensors: each of shape (*batch, *event); events: how many dimensions the event of each has.
    Returns: what the function returns (a tensor or a tuple of them), each with the batch in front.
    """
    batch = _batch(tensors, events)
    if not batch:
        return function(*tensors)
    flat, places = [], []
    for tensor, event in zip(tensors, events, strict=True):
        batched = tensor.dim() > event
        shape = tensor.shape[tensor.dim() - event :]
        flat.append(tensor.expand((*batch, *shape)).reshape((-1, *shape)) if batched else tensor)
        places.append(0 if batched else None)
    results = torch.func.vmap(function, tuple(places))(*flat)
    if isinstance(results, Tensor):
        return results.unflatten(0, batch)
    return tuple(one.unflatten(0, batch) for one in results)
