"""Tests of who traces a tensor: autograd, forward mode, a transform of torch.func; of whether two tensors are one; and
vector-Jacobian products."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from flashgp.foundations.errors import DomainError


def is_transformed(tensor: Tensor) -> bool:
    """True if a transform of torch.func (vmap, grad, jvp) holds the tensor, so that its numbers cannot be looked at."""
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def refuse_transformed(call: str, way: str, *values: Any) -> None:
    """Raises: DomainError where a transform of torch.func holds any of the values of a call that looks at numbers.

    Args: call, by name; way, what to do instead.
    """
    if any(isinstance(value, Tensor) and is_transformed(value) for value in values):
        raise DomainError(
            f"`{call}` must be called outside of transforms of torch.func (vmap, grad, jacrev), since it looks at "
            f"numbers, got a tensor inside of one; {way}"
        )


def is_followed(tensors: Sequence[Tensor]) -> bool:
    """True if autograd, or a transform of torch.func, follows any of them."""
    return any(is_transformed(t) for t in tensors) or (
        torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    )


def has_tangent(tensors: Sequence[Tensor]) -> bool:
    """True if any of them carries a tangent of forward mode."""
    return any(t.is_floating_point() and forward_ad.unpack_dual(t).tangent is not None for t in tensors)


def in_forward_mode() -> bool:
    """True if tensors may carry tangents here."""
    return forward_ad._current_level >= 0


class _InnerProduct(torch.autograd.Function):
    """A scalar whose gradient by each output is its cotangent; its value is never looked at."""

    @staticmethod
    def forward(ctx: Any, cotangents: Sequence[Tensor], *outputs: Tensor) -> Tensor:
        ctx.cotangents = cotangents
        return outputs[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *ctx.cotangents)


def vector_jacobian(
    pairs: Sequence[tuple[Tensor, Tensor]], inputs: Sequence[Tensor], *, retain_graph: bool = False
) -> tuple[Tensor | None, ...]:
    """The vector-Jacobian product: gradients by `inputs` of the sum of <output, cotangent>, None where there are none.

    `torch.autograd.grad` gives the same, but where it is passed cotangents it imports SymPy to compare their shapes,
    half a second of a process's first gradient.
    Args: pairs of an output that autograd follows and its cotangent, of equal shapes; at least one.
    """
    outputs, cotangents = zip(*pairs, strict=True)
    with torch.enable_grad():
        total = _InnerProduct.apply(cotangents, *outputs)
    return torch.autograd.grad(total, inputs, retain_graph=retain_graph, allow_unused=True)


def same_numbers(one: Tensor, two: Tensor) -> bool:
    """True if two tensors are one, or two views of the same numbers that no derivative tells apart."""
    if one is two:
        return True
    if one.shape != two.shape or one.stride() != two.stride() or one.dtype != two.dtype or one.device != two.device:
        return False
    pair = (one, two)
    if any(type(t) is not Tensor or is_transformed(t) or t.is_meta or t.requires_grad for t in pair):
        return False
    if has_tangent(pair):
        return False
    return one.data_ptr() == two.data_ptr() and one.is_neg() == two.is_neg()
