"""Solves with a factor that works on rows in place, for any batch, and differentiable in the right-hand side."""

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd import forward_ad


class RowSolver(Protocol):
    """A factor L of K = L L^T, (n, n), that solves for rows in place."""

    @property
    def dtype(self) -> torch.dtype: ...
    def solve_rows_(self, rows: Tensor, *, transposed: bool) -> Tensor:
        """L^-1, or L^-T, of every row of a contiguous (t, n); the result may take the place of the rows."""


def solved(factor: RowSolver, rhs: Tensor, *, transposed: bool) -> Tensor:
    """L^-1 rhs, or L^-T rhs, for rhs (*batch, n, t), differentiable in rhs."""
    followed = torch.is_grad_enabled() and rhs.requires_grad
    if (
        followed
        or torch._C._functorch.is_functorch_wrapped_tensor(rhs)
        or forward_ad.unpack_dual(rhs).tangent is not None
    ):
        solution: Tensor = _Solve.apply(rhs, factor, transposed)
        return solution
    return _solve(factor, rhs, transposed)


def _solve(factor: RowSolver, rhs: Tensor, transposed: bool) -> Tensor:
    """(*batch, n, t): every right-hand side of every batch member is a row."""
    rows = rhs.mT.reshape(-1, rhs.shape[-2])
    rows = rows.detach().to(factor.dtype).clone(memory_format=torch.contiguous_format)
    solution = factor.solve_rows_(rows, transposed=transposed)
    return solution.reshape(*rhs.mT.shape[:-1], solution.shape[-1]).mT


class _Solve(torch.autograd.Function):
    """Linear in the right-hand side: its pullback is the other solve, its pushforward itself."""

    @staticmethod
    def forward(rhs: Tensor, factor: RowSolver, transposed: bool) -> Tensor:
        return _solve(factor, rhs, transposed)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.factor, ctx.transposed = inputs

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return solved(ctx.factor, gradient, transposed=not ctx.transposed), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *rest: None) -> Tensor:
        return solved(ctx.factor, tangent, transposed=ctx.transposed)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int, None, None], rhs: Tensor, factor: RowSolver, transposed: bool
    ) -> tuple[Tensor, int]:
        return solved(factor, rhs.movedim(in_dims[0], 0), transposed=transposed), 0
