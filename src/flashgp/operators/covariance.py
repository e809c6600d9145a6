"""The covariance of two sets of rows as a lazy, differentiable linear operator: nothing of size n m until asked."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from flashgp.foundations.errors import DomainError, ShapeError
from flashgp.foundations.form import Form, Rows
from flashgp.foundations.modes import exact_precision
from flashgp.foundations.workspace import Workspace
from flashgp.pairwise import differentiable
from flashgp.pairwise.backend import BACKENDS, Backend, PairGradient
from flashgp.pairwise.torch_tiles import TorchTiles, tile_rows

if TYPE_CHECKING:
    from flashgp.kernels.kernel import Kernel

__all__ = ["CovarianceOperator"]

assert TorchTiles.name in BACKENDS  # importing the portable backend registers it


class CovarianceOperator:
    """K_ij = k(x1_i, x2_j), shape (*batch, n, m); differentiable in parameters, inputs and right-hand sides.

    First derivatives run tile by tile in one pass, eq. (M-21). Higher ones go through differentiable tiles.

    Args:
        form, theta: the covariance function; rows, cols: the points (cols None: the rows themselves).
        dtype: of the results; distances are computed in float64 where they could cancel.
        workspace: counts and limits large buffers; a fresh one without limit by default.
    """

    def __init__(
        self,
        form: Form,
        theta: Sequence[Tensor],
        rows: Rows,
        cols: Rows | None,
        dtype: torch.dtype,
        workspace: Workspace | None = None,
        backend: Backend | None = None,
    ) -> None:
        self.form, self.theta, self.rows, self.cols, self.dtype = form, tuple(theta), rows, cols, dtype
        self.workspace = workspace or Workspace()
        self.backend: Backend = backend or TorchTiles()

    @classmethod
    def of(
        cls, kernel: "Kernel", x1: Tensor, x2: Tensor | None, dtype: torch.dtype | None = None
    ) -> "CovarianceOperator":
        """The operator of a kernel between checked points."""
        theta = [t.to(x1.device) for t in kernel.theta()]
        return cls(kernel.form, theta, kernel.rows(x1), None if x2 is None else kernel.rows(x2), dtype or x1.dtype)

    @property
    def symmetric(self) -> bool:
        return self.cols is None

    @property
    def shape(self) -> torch.Size:
        cols = self.rows if self.cols is None else self.cols
        batch = torch.broadcast_shapes(self.rows.batch_shape, cols.batch_shape, *(t.shape for t in self.theta))
        return torch.Size((*batch, self.rows.count, cols.count))

    @property
    def device(self) -> torch.device:
        return self.rows.device

    @property
    def T(self) -> "CovarianceOperator":
        """The transpose; a symmetric operator is its own."""
        if self.cols is None:
            return self
        swapped = _swapped(self.form)
        return CovarianceOperator(swapped, self.theta, self.cols, self.rows, self.dtype, self.workspace, self.backend)

    mT = T  # noqa: N815 - as in torch

    @exact_precision
    def to_dense(self, dtype: torch.dtype | None = None) -> Tensor:
        """The matrix itself, (*batch, n, m). Cost: n m evaluations (half when symmetric) and n m numbers."""
        dtype = dtype or self.dtype
        tensors = self._tensors()
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            return _Block.apply(self, dtype, *tensors)
        block = self.backend.block(
            self.form, self.theta, self.rows, self.cols, dtype=_compute(dtype), workspace=self.workspace
        )
        return block.to(dtype).expand((*self.shape,))

    @exact_precision
    def diagonal(self) -> Tensor:
        """k(x1_i, x2_i) of a symmetric operator, (*batch, n)."""
        if self.cols is not None:
            raise ShapeError("`diagonal` needs an operator of one set of points, got two; use k.operator(x1)")
        if torch.is_grad_enabled() and any(t.requires_grad for t in self._tensors()):
            return differentiable.diagonal(self.form, self.theta, self.rows).to(self.dtype)
        return self.backend.diagonal(self.form, self.theta, self.rows, dtype=self.dtype)

    @exact_precision
    def __matmul__(self, right: Tensor) -> Tensor:
        """K @ right for right (m,), or (*batch, m, t): (n,) or (*batch, n, t). Cost: n m (d + t) flops, one tile."""
        if not isinstance(right, Tensor):
            return NotImplemented
        vector = right.dim() == 1
        matrix = right.unsqueeze(-1) if vector else right
        m = self.shape[-1]
        if matrix.shape[-2] != m:
            raise ShapeError(
                f"`right` must have {m} rows like the operator {tuple(self.shape)} has columns, got "
                f"{tuple(right.shape)}; transpose one of them"
            )
        if right.device != self.device or right.dtype != self.dtype:
            raise DomainError(
                f"`right` must be {self.dtype} on {self.device} like the operator, got {right.dtype} on "
                f"{right.device}; move it with .to(...)"
            )
        tensors = self._tensors()
        if torch.is_grad_enabled() and (right.requires_grad or any(t.requires_grad for t in tensors)):
            out = _Product.apply(self, matrix, *tensors)
        else:
            out = self.backend.product(self.form, self.theta, self.rows, self.cols, matrix, workspace=self.workspace)
        return out.squeeze(-1) if vector else out

    def __repr__(self) -> str:
        return f"CovarianceOperator(shape={tuple(self.shape)}, dtype={self.dtype}, device={self.device})"

    # -- plumbing: the tensors that can carry gradients, flat ----------------------------------------------------
    def _tensors(self) -> tuple[Tensor, ...]:
        cols = () if self.cols is None else self.cols.tensors
        return (*self.rows.tensors, *cols, *self.theta)

    def _with(self, tensors: Sequence[Tensor]) -> "CovarianceOperator":
        a = len(self.rows.tensors)
        b = a + (0 if self.cols is None else len(self.cols.tensors))
        return CovarianceOperator(
            self.form,
            tensors[b:],
            self.rows.rebuilt(tensors[:a]),
            None if self.cols is None else self.cols.rebuilt(tensors[a:b]),
            self.dtype,
            self.workspace,
            self.backend,
        )

    def _panels(self) -> list[slice]:
        n, m = self.shape[-2:]
        step = tile_rows(m, self.shape[:-2].numel(), self.device)
        return [slice(i, min(n, i + step)) for i in range(0, n, step)]

    def _differentiable_product(self, right: Tensor) -> Tensor:
        """K @ right with an autograd graph to any order."""
        parts = []
        cols = self.rows if self.cols is None else self.cols
        for i in self._panels():
            tile = differentiable.block(self.form, self.theta, self.rows.part(i.start, i.stop), cols)
            parts.append(tile.to(right.dtype) @ right)
        return torch.cat(parts, dim=-2)


def _compute(dtype: torch.dtype) -> torch.dtype:
    """Half precision is storage only: the covariance itself is never computed in it."""
    return dtype if dtype in (torch.float32, torch.float64) else torch.float32


def _swapped(form: Form) -> Form:
    from flashgp.foundations.expression import Symbol

    rename = {
        s: Symbol("right" if s.kind == "left" else "left", s.index)
        for s in form.profile.symbols
        if s.kind in ("left", "right")
    }
    return replace(form, profile=form.profile.renamed(rename))


def _flat(gradient: PairGradient, tensors: Sequence[Tensor]) -> list[Tensor | None]:
    """Gradients in the order of the operator's tensors, in their shapes and dtypes."""
    found = [*gradient.rows, *gradient.cols, *gradient.theta]
    return [
        None if g is None or not t.is_floating_point() else g.sum_to_size(t.shape).to(t.dtype)
        for g, t in zip(found, tensors, strict=True)
    ]


class _Product(torch.autograd.Function):
    """K V with the one-pass gradient of eq. (M-21); under create_graph the backward is differentiable again."""

    @staticmethod
    def forward(ctx: Any, operator: CovarianceOperator, right: Tensor, *tensors: Tensor) -> Tensor:
        ctx.operator = operator
        ctx.save_for_backward(right, *tensors)
        op = operator._with([t.detach() for t in tensors])
        return op.backend.product(op.form, op.theta, op.rows, op.cols, right.detach(), workspace=op.workspace)

    @staticmethod
    @exact_precision
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        right, *tensors = ctx.saved_tensors
        op = ctx.operator._with(tensors)
        if torch.is_grad_enabled():
            inputs = [t for t in (right, *tensors) if t.requires_grad]
            out = op._differentiable_product(right)
            found = iter(torch.autograd.grad(out, inputs, gradient, create_graph=True, allow_unused=True))
            return (None, *(next(found) if t.requires_grad else None for t in (right, *tensors)))
        to_right = None
        if ctx.needs_input_grad[1]:
            back = op.T
            to_right = back.backend.product(back.form, back.theta, back.rows, back.cols, gradient.contiguous())
            to_right = to_right.sum_to_size(right.shape)
        if not any(ctx.needs_input_grad[2:]):
            return (None, to_right, *(None for _ in tensors))
        pulled = op.backend.bilinear_gradient(op.form, op.theta, op.rows, op.cols, gradient, right)
        return (None, to_right, *_flat(pulled, tensors))


class _Block(torch.autograd.Function):
    """The dense block with its pullback; no autograd graph over its entries."""

    @staticmethod
    def forward(ctx: Any, operator: CovarianceOperator, dtype: torch.dtype, *tensors: Tensor) -> Tensor:
        ctx.operator, ctx.dtype = operator, dtype
        ctx.save_for_backward(*tensors)
        op = operator._with([t.detach() for t in tensors])
        block = op.backend.block(op.form, op.theta, op.rows, op.cols, dtype=_compute(dtype), workspace=op.workspace)
        return block.to(dtype).expand(op.shape).clone() if block.shape != op.shape else block.to(dtype)

    @staticmethod
    @exact_precision
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        op = ctx.operator._with(tensors)
        if torch.is_grad_enabled():
            inputs = [t for t in tensors if t.requires_grad]
            out = differentiable.block(op.form, op.theta, op.rows, op.cols).to(gradient.dtype)
            found = iter(torch.autograd.grad(out, inputs, gradient, create_graph=True, allow_unused=True))
            return (None, None, *(next(found) if t.requires_grad else None for t in tensors))
        weights = gradient.to(_compute(gradient.dtype))
        if op.cols is None:
            weights = 0.5 * (weights + weights.mT)
        return (None, None, *_flat(op.backend.block_gradient(op.form, op.theta, op.rows, op.cols, weights), tensors))
