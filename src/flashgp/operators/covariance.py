"""The covariance of two sets of rows as a lazy, differentiable linear operator: nothing of size n m until asked."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from flashgp.foundations.errors import ShapeError
from flashgp.foundations.form import Form, Rows
from flashgp.foundations.modes import exact_precision
from flashgp.foundations.workspace import Workspace
from flashgp.operators import autograd
from flashgp.operators.compiled import CompiledOperator
from flashgp.operators.indexing import Side
from flashgp.operators.linear import LinearOperator, check_floating
from flashgp.pairwise import differentiable
from flashgp.pairwise.backend import Backend
from flashgp.pairwise.cpu.backend import CpuTiles
from flashgp.pairwise.torch_tiles import tile_rows

if TYPE_CHECKING:
    from flashgp.kernels.kernel import Kernel

__all__ = ["CovarianceOperator", "default_backend"]


def default_backend() -> Backend:
    """Compiled loops for large problems on the CPU, torch tiles for everything else."""
    return CpuTiles()


class CovarianceOperator(LinearOperator):
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
        self.backend: Backend = backend or default_backend()

    @classmethod
    def of(
        cls, kernel: "Kernel", x1: Tensor, x2: Tensor | None, dtype: torch.dtype | None = None
    ) -> "CovarianceOperator":
        """The operator of a kernel between checked points."""
        theta = [t.to(x1.device) for t in kernel.theta()]
        return cls(kernel.form, theta, kernel.rows(x1), None if x2 is None else kernel.rows(x2), dtype or x1.dtype)

    @staticmethod
    def while_compiling(kernel: "Kernel", x1: Tensor, x2: Tensor | None) -> Any:
        """What torch.compile sees in its place."""
        return CompiledOperator(kernel, x1, x2)

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
        dtype = check_floating(dtype or self.dtype)
        tensors = self._tensors()
        if _dual(tensors):
            return self.portable_block(dtype)
        if _followed(tensors):
            return autograd.block(self, _compute(dtype)).to(dtype)
        if dtype != _compute(dtype):
            return self._stored_in_half(dtype)
        block = self.backend.block(self.form, self.theta, self.rows, self.cols, dtype=dtype, workspace=self.workspace)
        return block.expand((*self.shape,))

    @exact_precision
    def diagonal(self) -> Tensor:
        """k(x1_i, x2_i) of a symmetric operator, (*batch, n)."""
        if self.cols is not None:
            raise ShapeError("`diagonal` needs an operator of one set of points, got two; use k.operator(x1)")
        if _dual(self._tensors()) or _followed(self._tensors()):
            return differentiable.diagonal(self.form, self.theta, self.rows).to(self.dtype)
        return self.backend.diagonal(self.form, self.theta, self.rows, dtype=self.dtype)

    @exact_precision
    def _apply(self, matrix: Tensor) -> Tensor:
        """K @ matrix. Cost: n m (d + t) flops, half the covariances when symmetric; one tile."""
        tensors = self._tensors()
        if _dual((matrix, *tensors)):
            return self.differentiable_product(matrix)
        if _followed((matrix, *tensors)):
            return autograd.product(self, matrix)
        return self.backend.product(self.form, self.theta, self.rows, self.cols, matrix, workspace=self.workspace)

    def _part(self, rows: Side, cols: Side) -> "CovarianceOperator":
        """The covariance of some of the points; symmetric when both sides are one object."""
        right = self.rows if self.cols is None else self.cols
        same = self.cols is None and rows is cols
        return self._between(self.rows.take(rows), None if same else right.take(cols))

    def _between(self, rows: Rows, cols: Rows | None) -> "CovarianceOperator":
        return CovarianceOperator(self.form, self.theta, rows, cols, self.dtype, self.workspace, self.backend)

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

    def event_dims(self) -> list[int]:
        """Dimensions of each of `_tensors` that are not batch dimensions."""
        rows = [2 if f.is_floating_point() else 1 for f in self.rows.features] + [1] * len(self.rows.scalars)
        return [*rows, *(() if self.cols is None else rows), *(0 for _ in self.theta)]

    def _stored_in_half(self, dtype: torch.dtype) -> Tensor:
        """The dense block in a half precision, computed in float32 panel by panel."""
        out = self.workspace.empty(tuple(self.shape), dtype, self.device)
        cols = self.rows if self.cols is None else self.cols
        for i in self._panels():
            part = self.rows.part(i.start, i.stop)
            out[..., i, :] = self.backend.block(self.form, self.theta, part, cols, dtype=_compute(dtype))
        return out

    def _panels(self) -> list[slice]:
        n, m = self.shape[-2:]
        step = tile_rows(m, self.shape[:-2].numel(), self.device)
        return [slice(i, min(n, i + step)) for i in range(0, max(n, 1), step)]  # of no rows one panel, which is empty

    def portable_block(self, dtype: torch.dtype) -> Tensor:
        """The dense block in plain torch: any order of derivative, forward mode."""
        return differentiable.block(self.form, self.theta, self.rows, self.cols).to(dtype)

    def differentiable_product(self, right: Tensor) -> Tensor:
        """K @ right on portable tiles: any order of derivative, forward mode; the graph holds every tile."""
        parts = []
        cols = self.rows if self.cols is None else self.cols
        for i in self._panels():
            tile = differentiable.block(self.form, self.theta, self.rows.part(i.start, i.stop), cols)
            parts.append(tile.to(right.dtype) @ right)
        return torch.cat(parts, dim=-2)


def _followed(tensors: Sequence[Tensor]) -> bool:
    """Whether autograd, or a transform of torch.func, follows any of them."""
    functorch = torch._C._functorch
    return any(functorch.is_functorch_wrapped_tensor(t) for t in tensors) or (
        torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    )


def _dual(tensors: Sequence[Tensor]) -> bool:
    """Whether any of them carries a tangent of forward mode."""
    return any(t.is_floating_point() and forward_ad.unpack_dual(t).tangent is not None for t in tensors)


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
