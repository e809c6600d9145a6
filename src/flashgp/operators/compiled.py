"""Products inside torch.compile: one opaque operation with a derivative, no graph break, no recompile per value.

The compiler sees `flashgp::product(kernel, x1, x2, V, raw values, plan, deterministic, transposed)`; the operation
finds the kernel by its name, puts the raw values in and multiplies as in eager mode, by the plan (as text) or whatever
backend serves.
Its backward is a second operation.
Second derivatives through a compiled product are refused: leave that product out of the compiled region.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from flashgp.foundations.errors import DomainError, FlashGPError, ShapeError
from flashgp.foundations.tokens import object_of
from flashgp.operators.multiplication import checked_plan
from flashgp.planner.products import ProductPlan


class CompiledOperator:
    """`k.operator(x1, x2)` as torch.compile sees it: it multiplies, also transposed; everything else belongs outside.

    Fields: kernel, a module with `token`, `batch_shape` and `operator`; plan, as text, "" for none; swapped, whether
    this is the transpose of the covariance of x1 with x2.
    """

    def __init__(
        self, kernel: Any, x1: Tensor, x2: Tensor | None, plan: str, deterministic: bool, swapped: bool = False
    ) -> None:
        self.kernel, self.x1, self.x2 = kernel, x1, x2
        self.plan, self.deterministic, self.swapped = plan, deterministic, swapped

    @classmethod
    def of(cls, kernel: Any, x1: Tensor, x2: Tensor | None, plan: object | None, deterministic: bool) -> Any:
        """Raises: DomainError for a plan that is none."""
        text = "" if plan is None else checked_plan(plan).text
        return cls(kernel, _promoted(x1), None if x2 is None else _promoted(x2), text, deterministic)

    @property
    def T(self) -> "CompiledOperator":
        return CompiledOperator(self.kernel, self.x1, self.x2, self.plan, self.deterministic, not self.swapped)

    mT = T  # noqa: N815 - as in torch

    @property
    def sides(self) -> tuple[int, int]:
        """The numbers of rows and columns."""
        n, m = self.x1.shape[-2], (self.x1 if self.x2 is None else self.x2).shape[-2]
        return (m, n) if self.swapped else (n, m)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Tensor:
        """`K @ V`, torch.matmul(K, V) and torch.matmul(V, K): the compiler asks here before it looks for __matmul__.

        For `@` it puts the tensor first on whichever side it stood: the shapes say which product was meant. Raises:
        TypeError for what is no product, and for `@` where both fit and differ.
        """
        if getattr(func, "__name__", "") != "matmul":
            raise TypeError("inside torch.compile an operator multiplies, K @ V; everything else belongs outside")
        one, two = args
        if isinstance(one, CompiledOperator):
            return one.times(two)
        if func is not torch.matmul:
            n, m = two.sides
            ahead, behind = one.shape[-1 if one.dim() == 1 else -2] == m, one.shape[-1] == n
            if ahead and behind and not (two.x2 is None and one.dim() == 1):
                raise TypeError(
                    "inside torch.compile K @ V and V @ K look alike where V fits on both sides; write "
                    "torch.matmul(K, V) or torch.matmul(V, K)"
                )
            if ahead:
                return two.times(one)
        return two.times(one, transposed=True) if one.dim() == 1 else two.times(one.mT, transposed=True).mT

    def times(self, right: Tensor, transposed: bool = False) -> Tensor:
        """The product of K, or of its transpose, with (m,) or (*batch, m, t)."""
        matrix = right.unsqueeze(-1) if right.dim() == 1 else right
        if self.x1.dtype == torch.float32 and matrix.dtype in (torch.float16, torch.bfloat16):
            matrix = matrix.float()  # as in eager mode
        raws = list(self.kernel.parameters())
        out = torch.ops.flashgp.product(
            self.kernel.token, self.x1, self.x2, matrix, raws, self.plan, self.deterministic, transposed != self.swapped
        )
        return out.squeeze(-1) if right.dim() == 1 else out


def _promoted(x: Tensor) -> Tensor:
    """Points in the dtype that eager mode gives them: the compiler must know it before they are checked."""
    if x.dtype in (torch.float16, torch.bfloat16):
        return x.float()
    return x if x.is_floating_point() or x.is_complex() else x.double()


class _Times(torch.nn.Module):
    """kernel(x1, x2) @ right, or its transpose @ right, as a module, so that raw values can be put in."""

    def __init__(self, kernel: Any, plan: str, deterministic: bool, transposed: bool) -> None:
        super().__init__()
        self.kernel, self.deterministic, self.transposed = kernel, deterministic, transposed
        self.plan = ProductPlan.from_json(plan) if plan else None

    def forward(self, x1: Tensor, x2: Tensor | None, right: Tensor) -> Tensor:
        operator = self.kernel.operator(x1, x2, plan=self.plan, deterministic=self.deterministic)
        return (operator.T if self.transposed else operator) @ right


# The compiler runs an operation with these excluded: without them vmap, which functions of two points are traced and
# evaluated with, hands its wrapped tensors to kernels that expect plain ones.
_TRANSFORMS = (
    "FuncTorchDynamicLayerFrontMode", "FuncTorchDynamicLayerBackMode", "FuncTorchBatched", "FuncTorchVmapMode",
    "FuncTorchGradWrapper",
)  # fmt: skip


@contextlib.contextmanager
def _dispatched(*keys: str) -> Iterator[None]:
    """Let the dispatcher use these keys, whatever the operation runs inside of."""
    with contextlib.ExitStack() as stack:
        for key in keys:
            stack.enter_context(torch._C._SetExcludeDispatchKeyGuard(getattr(torch._C.DispatchKey, key), False))
        yield


def _value(token: str, x1: Tensor, x2: Tensor | None, right: Tensor, raws: list[Tensor], *options: Any) -> Tensor:
    """The product in eager mode; options: plan (as text), deterministic, transposed."""
    kernel = object_of(token)
    named = {f"kernel.{name}": raw for (name, _), raw in zip(kernel.named_parameters(), raws, strict=True)}
    return torch.func.functional_call(_Times(kernel, *options), named, (x1, x2, right))


@torch.library.custom_op("flashgp::product", mutates_args=())
def _product(
    token: str,
    x1: Tensor,
    x2: Tensor | None,
    right: Tensor,
    raws: list[Tensor],
    plan: str,
    deterministic: bool,
    transposed: bool,
) -> Tensor:
    with torch.no_grad(), _dispatched(*_TRANSFORMS):
        return _value(token, x1, x2, right, raws, plan, deterministic, transposed).contiguous()


@torch.library.custom_op("flashgp::product_backward", mutates_args=())
def _product_backward(
    gradient: Tensor,
    token: str,
    tensors: list[Tensor],
    symmetric: bool,
    plan: str,
    deterministic: bool,
    transposed: bool,
) -> list[Tensor]:
    """Gradients by `tensors`: x1, x2 unless symmetric, right, raw values."""
    leaves = [t.detach().requires_grad_() for t in tensors]
    x1, *others = leaves
    x2 = None if symmetric else others.pop(0)
    # Inside an operation the dispatcher leaves autograd out, and every gradient would be zero: let it in again.
    with _dispatched(*_TRANSFORMS, "AutogradFunctionality"), torch.enable_grad():
        out = _value(token, x1, x2, others[0], others[1:], plan, deterministic, transposed)
        if not out.requires_grad:
            raise FlashGPError("gradients of a compiled product were lost; multiply outside torch.compile")
        gradients = torch.autograd.grad(out, leaves, gradient, allow_unused=True)
    return [torch.zeros_like(t) if g is None else g.contiguous() for g, t in zip(gradients, leaves, strict=True)]


@_product.register_fake
def _(token: str, x1: Tensor, x2: Tensor | None, right: Tensor, raws: list[Tensor], *options: Any) -> Tensor:
    _, _, transposed = options
    other = x1 if x2 is None else x2
    if right.dtype != x1.dtype:
        raise DomainError(f"`right` must be {x1.dtype} like the points, got {right.dtype}; move it with .to(...)")
    if other.shape[-1] != x1.shape[-1]:
        raise ShapeError(f"`x2` must have {x1.shape[-1]} columns like x1, got {other.shape[-1]}")
    batch = torch.broadcast_shapes(x1.shape[:-2], other.shape[:-2], right.shape[:-2], object_of(token).batch_shape)
    return right.new_empty((*batch, (other if transposed else x1).shape[-2], right.shape[-1]))


@_product_backward.register_fake
def _(gradient: Tensor, token: str, tensors: list[Tensor], *options: Any) -> list[Tensor]:
    return [torch.empty_like(t, memory_format=torch.contiguous_format) for t in tensors]


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    token, x1, x2, right, raws, *options = inputs
    ctx.token, ctx.symmetric, ctx.options = token, x2 is None, options
    ctx.save_for_backward(x1, *(() if x2 is None else (x2,)), right, *raws)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    by_x1, *others = torch.ops.flashgp.product_backward(
        gradient.contiguous(), ctx.token, list(ctx.saved_tensors), ctx.symmetric, *ctx.options
    )
    by_x2 = None if ctx.symmetric else others.pop(0)
    return None, by_x1, by_x2, others[0], others[1:], None, None, None


_product.register_autograd(_backward, setup_context=_setup)
