"""Derivatives of K V and of dense blocks: first order in one pass, eq. (M-21), higher orders on portable tiles.

    product ----------> pulled gradient ----------> portable tiles, tile by tile
    (any backend)       (any backend, one pass)     (plain torch, any order)

Two functions in a row, so that a first derivative never pays for a second one, also under torch.func, which always
asks for a differentiable backward. What follows on portable tiles is a sum over them, eq. (M-110): forward mode, and
every order beyond the first, keep nothing of a tile.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from flashgp.foundations.contexts import entered
from flashgp.foundations.transforms import has_tangent, is_followed
from flashgp.operators.multiplication import PairProducts
from flashgp.operators.tiled import TiledSum, block_sum, product_sum
from flashgp.pairwise.backend import PairGradient
from flashgp.pairwise.torch import differentiable


def product(products: PairProducts, right: Tensor) -> Tensor:
    """K @ right for right (*batch, m, t); differentiable where autograd or a transform follows any tensor of it.

    Forward mode runs on portable tiles: any order of derivative, and nothing of a tile is kept.
    """
    tensors = products.problem.tensors
    if has_tangent((right, *tensors)):
        return _product_sum(products)(right, *tensors)[0]
    if is_followed((right, *tensors)):
        return _Product.apply(products, right, *tensors)
    return products.multiply(right)


def block(products: PairProducts, dtype: torch.dtype) -> Tensor:
    """The dense block, (*batch, n, m), in float32 or float64; differentiable likewise."""
    tensors = products.problem.tensors
    if has_tangent(tensors):
        return _block_sum(products, dtype)(*tensors)[0]
    if is_followed(tensors):
        return _Block.apply(products, dtype, *tensors)
    return products.block(dtype).expand(products.problem.shape)


def diagonal(products: PairProducts) -> Tensor:
    """k(x_i, x_i), (*batch, n), in the operator's dtype; differentiable likewise."""
    problem = products.problem
    if has_tangent(problem.tensors) or is_followed(problem.tensors):
        return differentiable.diagonal(problem).to(products.dtype)
    return products.backend.diagonal(problem, dtype=products.dtype)


def followed(products: PairProducts) -> bool:
    """True if derivatives of a block are asked for."""
    tensors = products.problem.tensors
    return has_tangent(tensors) or is_followed(tensors)


def _product_sum(products: PairProducts) -> TiledSum:
    return product_sum(products.problem, products.options.derivative_pairs)


def _block_sum(products: PairProducts, dtype: torch.dtype) -> TiledSum:
    return block_sum(products.problem, dtype, products.options.derivative_pairs)


def _asked(products: PairProducts, *_: object) -> bool:
    return products.options.deterministic


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
    """Gradients of the gradients of a sum, tile by tile."""
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
    def forward(products: PairProducts, right: Tensor, *tensors: Tensor) -> Tensor:
        return products.detached(tensors).multiply(right.detach())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.products, right, *tensors = inputs
        ctx.save_for_backward(right, *tensors)
        ctx.save_for_forward(right, *tensors)

    @staticmethod
    @entered()
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        right, *tensors = ctx.saved_tensors
        to_right = None
        if ctx.needs_input_grad[1]:
            back = ctx.products.with_tensors(tensors).T
            to_right = product(back, gradient.contiguous()).sum_to_size(right.shape)
        if not any(ctx.needs_input_grad[2:]):
            return (None, to_right, *(None for _ in tensors))
        pulled = _ProductGradient.apply(ctx.products, gradient, right, *tensors)
        needed = ctx.needs_input_grad[2:]
        return (None, to_right, *(g if wanted else None for g, wanted in zip(pulled, needed, strict=True)))

    @staticmethod
    def jvp(ctx: Any, _products: None, *tangents: Tensor | None) -> Tensor:
        return _product_sum(ctx.products).tangents(ctx.saved_tensors, tangents)[0]

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], products: PairProducts, right: Tensor, *tensors: Tensor
    ) -> tuple[Tensor, int]:
        def multiply(products: PairProducts, right: Tensor) -> Tensor:
            return _Product.apply(products, right, *products.problem.tensors)

        return _batched(info, in_dims, products, [right], tensors, multiply)


class _ProductGradient(torch.autograd.Function):
    """Gradients of sum(G * K V) by every tensor of the operator, for G and V as they are."""

    @staticmethod
    @entered(_asked)
    def forward(products: PairProducts, gradient: Tensor, right: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        pulled = products.detached(tensors).pulled_back(gradient.detach(), right.detach())
        return _filled(_flat(pulled, tensors), tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.products, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    @entered()
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *_gradient_gradients(_product_sum(ctx.products), 1, ctx, cotangents))

    @staticmethod
    def jvp(ctx: Any, _products: None, *tangents: Tensor | None) -> tuple[Tensor, ...]:
        return _gradient_tangents(_product_sum(ctx.products), 1, ctx.saved_tensors, tangents)

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        products: PairProducts,
        gradient: Tensor,
        right: Tensor,
        *tensors: Tensor,
    ) -> tuple[tuple[Tensor, ...], int]:
        def pull(op: PairProducts, g: Tensor, r: Tensor) -> tuple[Tensor, ...]:
            return _ProductGradient.apply(op, g, r, *op.problem.tensors)

        return _batched(info, in_dims, products, [gradient, right], tensors, pull, separate=True)


class _Block(torch.autograd.Function):
    """The dense block with its pullback; no autograd graph over its entries."""

    @staticmethod
    def forward(products: PairProducts, dtype: torch.dtype, *tensors: Tensor) -> Tensor:
        detached = products.detached(tensors)
        block, shape = detached.block(dtype), detached.problem.shape
        return block if block.shape == shape else block.expand(shape).clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.products, ctx.dtype, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    @entered()
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        pulled = _BlockGradient.apply(ctx.products, gradient, *ctx.saved_tensors)
        needed = ctx.needs_input_grad[2:]
        return (None, None, *(g if wanted else None for g, wanted in zip(pulled, needed, strict=True)))

    @staticmethod
    def jvp(ctx: Any, _products: None, _dtype: None, *tangents: Tensor | None) -> Tensor:
        return _block_sum(ctx.products, ctx.dtype).tangents(ctx.saved_tensors, tangents)[0]

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], products: PairProducts, dtype: torch.dtype, *tensors: Tensor
    ) -> tuple[Tensor, int]:
        kept = (in_dims[0], *in_dims[2:])

        def make(products: PairProducts) -> Tensor:
            return _Block.apply(products, dtype, *products.problem.tensors)

        return _batched(info, kept, products, [], tensors, make)


class _BlockGradient(torch.autograd.Function):
    """Gradients of sum(W * K) by every tensor of the operator."""

    @staticmethod
    @entered(_asked)
    def forward(products: PairProducts, weights: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        detached = products.detached(tensors)
        weights = weights.detach()
        if detached.problem.symmetric:
            weights = 0.5 * (weights + weights.mT)
        pulled = detached.backend.block_gradient(detached.problem, weights, workspace=detached.workspace)
        return _filled(_flat(pulled, tensors), tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.products, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    @entered()
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        total = _block_sum(ctx.products, ctx.saved_tensors[0].dtype)
        return (None, *_gradient_gradients(total, 0, ctx, cotangents))

    @staticmethod
    def jvp(ctx: Any, _products: None, *tangents: Tensor | None) -> tuple[Tensor, ...]:
        total = _block_sum(ctx.products, ctx.saved_tensors[0].dtype)
        return _gradient_tangents(total, 0, ctx.saved_tensors, tangents)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], products: PairProducts, weights: Tensor, *tensors: Tensor
    ) -> tuple[tuple[Tensor, ...], int]:
        def pull(op: PairProducts, w: Tensor) -> tuple[Tensor, ...]:
            return _BlockGradient.apply(op, w, *op.problem.tensors)

        return _batched(info, in_dims, products, [weights], tensors, pull, separate=True)


def _batched(
    info: Any,
    in_dims: tuple[int | None, ...],
    products: PairProducts,
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
        out = function(products.with_tensors(tensors), right.flatten(-2))
        return out.unflatten(-1, (right.shape[-2], size)), out.dim()
    rank = len(
        products.problem.with_tensors([_first(t, d) for t, d in zip(tensors, dims[count:], strict=True)]).batch_shape
    )

    def moved(tensor: Tensor, dim: int | None, own: int) -> Tensor:
        if dim is None and not separate:
            return tensor
        front = tensor.movedim(dim, 0) if dim is not None else tensor.expand(size, *tensor.shape)
        missing = rank - (front.dim() - 1 - own)
        return front.reshape(size, *(1,) * missing, *front.shape[1:])

    owns = products.problem.event_dims
    given = [moved(m, d, 2) for m, d in zip(matrices, dims[:count], strict=True)]
    placed = [moved(t, d, own) for t, d, own in zip(tensors, dims[count:], owns, strict=True)]
    out = function(products.with_tensors(placed), *given)
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
