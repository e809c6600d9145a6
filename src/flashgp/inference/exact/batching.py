"""Tensors of one function, their common batch, and where a mapped dimension (torch.func.vmap) goes in them.

`events` are the dimensions of each tensor that are not of the batch; `lead` ones of directions stand before the batch.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def halves(given: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Tensors, and what there is of each."""
    count = len(given) // 2
    return list(given[:count]), list(given[count:])


def whole_batch(tensors: Sequence[Tensor], events: Sequence[int]) -> torch.Size:
    """The batch of all tensors together."""
    return torch.broadcast_shapes(*(t.shape[: t.dim() - event] for t, event in zip(tensors, events, strict=True)))


def as_whole(gradient: Tensor | None, tensor: Tensor, event: int, batch: torch.Size) -> Tensor:
    """A gradient in the shape (*batch, ...) of the whole batch, float64; zeros for None and for codes."""
    shape = (*batch, *tensor.shape[tensor.dim() - event :])
    if gradient is None or not tensor.is_floating_point():
        return torch.zeros(shape, dtype=tensor.dtype, device=tensor.device)
    return gradient if gradient.shape == shape else gradient.expand(shape)


def event_sum(product: Tensor, event: int) -> Tensor:
    """Summed over all dimensions that are not of the batch."""
    return product.flatten(-event).sum(-1) if event else product


def _rank(dims: Sequence[int | None], events: Sequence[int], tensors: Sequence[Tensor]) -> int:
    """Batch dimensions of one mapped member."""
    return max(t.dim() - (d is not None) - event for t, d, event in zip(tensors, dims, events, strict=True))


def placed(size: int, dims: Sequence[int | None], events: Sequence[int], tensors: Sequence[Tensor]) -> list[Tensor]:
    """A mapped dimension becomes the first one of the batch; what is not mapped stays."""
    rank = _rank(dims, events, tensors)
    return [
        t if d is None else _to_batch(t, d, event, rank, size)
        for t, d, event in zip(tensors, dims, events, strict=True)
    ]


def mapped(
    size: int, dims: Sequence[int | None], events: Sequence[int], lead: int, given: Sequence[Tensor | None]
) -> tuple[int, list[Tensor | None], int]:
    """Directions alone mapped: one more dimension of them. Tensors mapped: one more of the batch.

    Returns: the dimensions of directions alone, tensors and directions, and where the mapped dimension of results is.
    """
    (tensors, directions), (of_tensors, of_directions) = halves(given), halves(dims)
    if all(d is None for d in of_tensors):
        front = [
            None if d is None else d.expand(size, *d.shape) if at is None else d.movedim(at, 0)
            for d, at in zip(directions, of_directions, strict=True)
        ]
        return lead + 1, [*tensors, *front], 0
    rank = _rank(of_tensors, events, tensors)
    beside = [
        None if d is None else _to_batch(d, at, event, rank, size, lead)
        for d, at, event in zip(directions, of_directions, events, strict=True)
    ]
    return lead, [*placed(size, of_tensors, events, tensors), *beside], lead


def padded(tensor: Tensor, event: int, rank: int, lead: int = 0) -> Tensor:
    """The tensor with as many batch dimensions as all together, behind `lead` others."""
    missing = rank - (tensor.dim() - lead - event)
    return tensor.reshape((*tensor.shape[:lead], *(1,) * missing, *tensor.shape[lead:]))


def _to_batch(tensor: Tensor, dim: int | None, event: int, rank: int, size: int, lead: int = 0) -> Tensor:
    """The tensor with the mapped dimension, or `size` equal members, in front of `rank` batch dimensions, behind `lead`
    others."""
    if dim is None:
        front = tensor.unsqueeze(lead)
        front = front.expand(*front.shape[:lead], size, *front.shape[lead + 1 :])
    else:
        front = tensor.movedim(dim, lead)
    missing = rank - (front.dim() - 1 - lead - event)
    return front.reshape(*front.shape[: lead + 1], *(1,) * missing, *front.shape[lead + 1 :])
