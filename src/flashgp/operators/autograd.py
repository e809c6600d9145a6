"""Derivatives of K V and of dense blocks: first order in one pass, eq. (M-21), higher orders on portable tiles.

    product ----------> pulled gradient ----------> portable tiles, tile by tile
    (any backend)       (any backend, one pass)     (plain torch, any order)

Two functions in a row, so that a first derivative never pays for a second one, also under torch.func, which always
asks for a differentiable backward. What follows on portable tiles is a sum over them, eq. (M-110): forward mode, and
every order beyond the first, keep nothing of a tile.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from flashgp.foundations.contexts import autocast_disabled
from flashgp.foundations.determinism import deterministic_where
from flashgp.operators.multiplication import multiply, pulled_back
from flashgp.operators.tiled import TiledSum, block_sum, product_sum
from flashgp.pairwise.backend import PairGradient

if TYPE_CHECKING:
    from flashgp.operators.covariance import CovarianceOperator

__all__ = ["block", "product"]


def product(operator: "CovarianceOperator", right: Tensor) -> Tensor:
    """K @ right for right (*batch, m, t), differentiable."""
    return _Product.apply(operator, right, *operator._tensors())


def block(operator: "CovarianceOperator", dtype: torch.dtype) -> Tensor:
    """The dense block in float32 or float64, differentiable."""
    return _Block.apply(operator, dtype, *operator._tensors())


def _asked(operator: "CovarianceOperator", *_: object) -> bool:
    return operator.orders.deterministic


def _flat(gradient: PairGradient, tensors: Sequence[Tensor]) -> list[Tensor | None]:
    """Gradients in the order of the operator's tensors, in their shapes and dtypes."""
    found = [*gradient.rows, *gradient.cols, *gradient.theta]
    return [
        None if g is None or not t.is_floating_point() else g.sum_to_size(t.shape).to(t.dtype)
        for g, t in zip(found, tensors, strict=True)
    ]


def _filled(gradients: Sequence[Tensor | None], tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tuple(torch.zeros_like(t) if g is None else g for g, t in zip(gradients, tensors, strict=True))


def _gradient_sum(total: TiledSum, first: int, saved: Sequence[Tensor]) -> tuple[TiledSum, list[int]]:
    """The gradients of a sum by its floating tensors from `first` on, as a sum; and which of those tensors these are.

    Args: saved: what the gradient depends on, a cotangent and then every tensor of the sum.
    """
    moving = [k for k, tensor in enumerate(saved[1 + first :]) if tensor.is_floating_point()]
    return total.pulled([first + k for k in moving]), moving


def _gradient_gradients(total: TiledSum, first: int, ctx: Any, cotangents: Sequence[Tensor]) -> list[Tensor | None]:
    """What flows back through the gradients of a sum, tile by tile."""
    gradient, moving = _gradient_sum(total, first, ctx.saved_tensors)
    if not moving:
        return [None for _ in ctx.saved_tensors]
    return gradient.gradients([cotangents[k] for k in moving], ctx.saved_tensors, ctx.needs_input_grad[1:])


def _gradient_tangents(
    total: TiledSum, first: int, saved: Sequence[Tensor], tangents: Sequence[Tensor | None]
) -> tuple[Tensor, ...]:
    """The directional derivatives of the gradients of a sum, tile by tile; zeros for codes."""
    gradient, moving = _gradient_sum(total, first, saved)
    found = dict(zip(moving, gradient.tangents(saved, tangents), strict=True)) if moving else {}
    return tuple(found.get(k, torch.zeros_like(t)) for k, t in enumerate(saved[1 + first :]))


class _Product(torch.autograd.Function):
    """K V."""

    @staticmethod
    def forward(operator: "CovarianceOperator", right: Tensor, *tensors: Tensor) -> Tensor:
        return multiply(operator.detached(tensors), right.detach())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.operator, right, *tensors = inputs
        ctx.save_for_backward(right, *tensors)
        ctx.save_for_forward(right, *tensors)

    @staticmethod
    @autocast_disabled
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        right, *tensors = ctx.saved_tensors
        to_right = None
        if ctx.needs_input_grad[1]:
            back = ctx.operator._with(tensors).T
            to_right = back.times(gradient.contiguous()).sum_to_size(right.shape)
        if not any(ctx.needs_input_grad[2:]):
            return (None, to_right, *(None for _ in tensors))
        pulled = _ProductGradient.apply(ctx.operator, gradient, right, *tensors)
        needed = ctx.needs_input_grad[2:]
        return (None, to_right, *(g if wanted else None for g, wanted in zip(pulled, needed, strict=True)))

    @staticmethod
    def jvp(ctx: Any, _operator: None, *tangents: Tensor | None) -> Tensor:
        return product_sum(ctx.operator).tangents(ctx.saved_tensors, tangents)[0]

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], operator: "CovarianceOperator", right: Tensor, *tensors: Tensor
    ) -> tuple[Tensor, int]:
        return _batched(info, in_dims, operator, [right], tensors, lambda op, r: product(op, r))


class _ProductGradient(torch.autograd.Function):
    """Gradients of sum(G * K V) by every tensor of the operator, for G and V as they are."""

    @staticmethod
    @deterministic_where(_asked)
    def forward(
        operator: "CovarianceOperator", gradient: Tensor, right: Tensor, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        op = operator.detached(tensors)
        pulled = pulled_back(op, gradient.detach(), right.detach())
        return _filled(_flat(pulled, tensors), tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.operator, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    @autocast_disabled
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *_gradient_gradients(product_sum(ctx.operator), 1, ctx, cotangents))

    @staticmethod
    def jvp(ctx: Any, _operator: None, *tangents: Tensor | None) -> tuple[Tensor, ...]:
        return _gradient_tangents(product_sum(ctx.operator), 1, ctx.saved_tensors, tangents)

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        operator: "CovarianceOperator",
        gradient: Tensor,
        right: Tensor,
        *tensors: Tensor,
    ) -> tuple[tuple[Tensor, ...], int]:
        def pull(op: "CovarianceOperator", g: Tensor, r: Tensor) -> tuple[Tensor, ...]:
            return _ProductGradient.apply(op, g, r, *op._tensors())

        return _batched(info, in_dims, operator, [gradient, right], tensors, pull, separate=True)


class _Block(torch.autograd.Function):
    """The dense block with its pullback; no autograd graph over its entries."""

    @staticmethod
    def forward(operator: "CovarianceOperator", dtype: torch.dtype, *tensors: Tensor) -> Tensor:
        op = operator.detached(tensors)
        made = op.backend.block(op.form, op.theta, op.rows, op.cols, dtype=dtype, workspace=op.workspace)
        return made if made.shape == op.shape else made.expand(op.shape).clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.operator, ctx.dtype, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    @autocast_disabled
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        pulled = _BlockGradient.apply(ctx.operator, gradient, *ctx.saved_tensors)
        needed = ctx.needs_input_grad[2:]
        return (None, None, *(g if wanted else None for g, wanted in zip(pulled, needed, strict=True)))

    @staticmethod
    def jvp(ctx: Any, _operator: None, _dtype: None, *tangents: Tensor | None) -> Tensor:
        return block_sum(ctx.operator, ctx.dtype).tangents(ctx.saved_tensors, tangents)[0]

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        operator: "CovarianceOperator",
        dtype: torch.dtype,
        *tensors: Tensor,
    ) -> tuple[Tensor, int]:
        kept = (in_dims[0], *in_dims[2:])
        return _batched(info, kept, operator, [], tensors, lambda op: block(op, dtype))


class _BlockGradient(torch.autograd.Function):
    """Gradients of sum(W * K) by every tensor of the operator."""

    @staticmethod
    @deterministic_where(_asked)
    def forward(operator: "CovarianceOperator", weights: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        op = operator.detached(tensors)
        weights = weights.detach()
        if op.cols is None:
            weights = 0.5 * (weights + weights.mT)
        pulled = op.backend.block_gradient(op.form, op.theta, op.rows, op.cols, weights, workspace=op.workspace)
        return _filled(_flat(pulled, tensors), tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.operator, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    @autocast_disabled
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        total = block_sum(ctx.operator, ctx.saved_tensors[0].dtype)
        return (None, *_gradient_gradients(total, 0, ctx, cotangents))

    @staticmethod
    def jvp(ctx: Any, _operator: None, *tangents: Tensor | None) -> tuple[Tensor, ...]:
        total = block_sum(ctx.operator, ctx.saved_tensors[0].dtype)
        return _gradient_tangents(total, 0, ctx.saved_tensors, tangents)

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        operator: "CovarianceOperator",
        weights: Tensor,
        *tensors: Tensor,
    ) -> tuple[tuple[Tensor, ...], int]:
        def pull(op: "CovarianceOperator", w: Tensor) -> tuple[Tensor, ...]:
            return _BlockGradient.apply(op, w, *op._tensors())

        return _batched(info, in_dims, operator, [weights], tensors, pull, separate=True)


def _batched(
    info: Any,
    in_dims: tuple[int | None, ...],
    operator: "CovarianceOperator",
    matrices: Sequence[Tensor],
    tensors: Sequence[Tensor],
    function: Any,
    separate: bool = False,
) -> tuple[Any, Any]:
    """A mapped dimension becomes the first batch dimension of the operator; of right-hand sides alone, columns.

    `separate`: every tensor gets the batch dimension, so that gradients are not summed over it.
    """
    dims = in_dims[1:]
    count = len(matrices)
    size = info.batch_size
    alone = all(d is None for d in dims[count:])
    if alone and not separate and count == 1 and dims[0] is not None:
        right = matrices[0].movedim(dims[0], -1)  # (*batch, m, t, size)
        out = function(operator._with(tensors), right.flatten(-2))
        return out.unflatten(-1, (right.shape[-2], size)), out.dim()
    rank = len(operator._with([_first(t, d) for t, d in zip(tensors, dims[count:], strict=True)]).shape) - 2

    def moved(tensor: Tensor, dim: int | None, own: int) -> Tensor:
        if dim is None and not separate:
            return tensor
        front = tensor.movedim(dim, 0) if dim is not None else tensor.expand(size, *tensor.shape)
        missing = rank - (front.dim() - 1 - own)
        return front.reshape(size, *(1,) * missing, *front.shape[1:])

    owns = operator.event_dims()
    given = [moved(m, d, 2) for m, d in zip(matrices, dims[:count], strict=True)]
    placed = [moved(t, d, own) for t, d, own in zip(tensors, dims[count:], owns, strict=True)]
    out = function(operator._with(placed), *given)
    if isinstance(out, tuple):
        shaped = [
            o.reshape(size, *(t if d is None else _first(t, d)).shape)
            for o, t, d in zip(out, tensors, dims[count:], strict=True)
        ]
        return tuple(shaped), tuple(0 for _ in shaped)
    return out, 0


def _first(tensor: Tensor, dim: int | None) -> Tensor:
    """One member along a mapped dimension."""
    return tensor if dim is None else tensor.select(dim, 0)
