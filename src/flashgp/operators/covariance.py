"""The covariance of two sets of rows as a lazy, differentiable linear operator: nothing of size n m until asked."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import forward_ad

from flashgp.foundations.contexts import autocast_disabled
from flashgp.foundations.determinism import contiguous_copy, deterministic_where, deterministically
from flashgp.foundations.errors import DomainError, ShapeError
from flashgp.foundations.events import Event
from flashgp.foundations.form import Form, Rows, broadcast_batch
from flashgp.foundations.machine import parse_bytes
from flashgp.foundations.profile import MachineProfile
from flashgp.foundations.report import Report
from flashgp.foundations.workspace import Workspace
from flashgp.operators import autograd
from flashgp.operators.compiled import CompiledOperator
from flashgp.operators.indexing import Side
from flashgp.operators.linear import LinearOperator, check_floating
from flashgp.operators.multiplication import (
    Multiplication,
    Orders,
    check_product_plan,
    checked_plan,
    multiply,
    plan_of,
    product_report,
)
from flashgp.operators.tiled import block_sum, product_sum
from flashgp.pairwise.backend import Backend
from flashgp.pairwise.near.far import FarTiles
from flashgp.pairwise.near.tile_lists import NearTiles
from flashgp.pairwise.torch import differentiable
from flashgp.pairwise.torch.opaque import Pieces
from flashgp.pairwise.torch.tiles import tile_rows
from flashgp.planner.products import ProductPlan

if TYPE_CHECKING:
    from flashgp.kernels.base import Kernel

__all__ = ["CovarianceOperator"]

BY_PLAN = Orders()  # what is settled where nothing was said


class CovarianceOperator(LinearOperator):
    """K_ij = k(x1_i, x2_j), shape (*batch, n, m); differentiable in parameters, inputs and right-hand sides.

    First derivatives run tile by tile in one pass, eq. (M-21); higher ones and forward mode on portable tiles, each
    computed anew for every order, eq. (M-110).

    Args:
        form, theta: the covariance function; rows, cols: the points (cols None: the rows themselves).
        dtype: of the results; distances are computed in float64 where they could cancel.
        workspace: counts and limits large buffers; a fresh one without limit by default.
        orders: what is settled about its products: a plan, a budget, a backend; by default each follows a plan of its
            own from 1e7 pairs on.
        tiles: products and their gradients run over these only, of rows in panel order; everything by default.
    """

    def __init__(
        self,
        form: Form,
        theta: Sequence[Tensor],
        rows: Rows,
        cols: Rows | None,
        dtype: torch.dtype,
        workspace: Workspace | None = None,
        orders: Orders | None = None,
        tiles: NearTiles | None = None,
    ) -> None:
        self.form, self.theta, self.rows, self.cols, self.dtype = form, tuple(theta), rows, cols, dtype
        self.workspace = workspace or Workspace()
        self.orders = orders or BY_PLAN
        self.tiles = tiles
        self.products = Multiplication()

    @classmethod
    def of(
        cls,
        kernel: "Kernel",
        x1: Tensor,
        x2: Tensor | None,
        dtype: torch.dtype | None = None,
        orders: Orders | None = None,
    ) -> "CovarianceOperator":
        """The operator of a kernel between checked points."""
        theta = [t.to(x1.device) for t in kernel.theta()]
        cols = None if x2 is None else kernel.rows(x2)
        return cls(kernel.form, theta, kernel.rows(x1), cols, dtype or x1.dtype, orders=orders)

    @classmethod
    def ordered(
        cls,
        kernel: "Kernel",
        x1: Tensor,
        x2: Tensor | None,
        plan: Any,
        memory: str | int | None,
        deterministic: bool,
        notes: tuple[Event, ...],
    ) -> "CovarianceOperator":
        """The operator with a plan, or with what plans are made from. Raises: DomainError."""
        plan = None if plan is None else checked_plan(plan)
        if plan is not None and memory is not None:
            raise DomainError("`plan` settles the memory, got memory= beside it; pass the plan alone")
        if memory is not None:
            parse_bytes(memory)
        with deterministically(deterministic):
            x1, x2 = contiguous_copy(x1), None if x2 is None else contiguous_copy(x2)
            settled = Orders(plan, memory, deterministic, notes=notes)
            return cls.of(kernel, x1, x2, orders=None if settled == Orders() else settled)

    def plan(
        self,
        t: int = 1,
        *,
        products: int = 1,
        memory: str | int | None = None,
        dtype: torch.dtype | None = None,
        route: str | None = None,
        backend: str | None = None,
        profile: MachineProfile | None = None,
        deterministic: bool | None = None,
    ) -> ProductPlan:
        """How K @ V is computed for t columns of V, with its bytes and seconds; print it to see the alternatives.

        Products of an operator without a plan of its own follow what this gives, from 1e7 pairs on; smaller ones take
        the portable backend at once.

        Args:
            t: columns of V; products: how many will be made with this operator, which decides whether keeping K pays.
            memory: budget, bytes or text like "8GiB"; the operator's own by default, else what is free now.
            dtype: to compute in; the operator's by default. Results keep the operator's.
            route: force "recomputed", "stored" or "dense"; backend: force "torch", "cpu" or "triton".
            profile: the rates to use; deterministic: the built-in ones.
        Returns: a plan to hand back: `k.operator(x1, x2, plan=plan)`.
        Raises: MemoryBudgetError with the bytes needed, available, and the cheapest plan that fits;
            BackendUnavailableError, DomainError.
        """
        return plan_of(
            self, t, dtype or self.dtype, max(1, self.shape[:-2].numel()), products=products,
            memory=self.orders.memory if memory is None else memory, route=route, backend=backend, profile=profile,
            deterministic=self.orders.deterministic if deterministic is None else deterministic,
        )  # fmt: skip

    @property
    def report(self) -> Report:
        """What the last product took, beside what its plan predicted."""
        return product_report(self)

    @property
    def kept(self) -> float:
        """The share of the n m pairs that a product evaluates: 1 without far tiles."""
        return 1.0 if self.tiles is None else self.tiles.pair_count / max(1, self.tiles.n * self.tiles.m)

    @property
    def backend(self) -> Backend:
        """What computes dense blocks and diagonals."""
        return self.orders.block_backend

    @staticmethod
    def while_compiling(
        kernel: "Kernel", x1: Tensor, x2: Tensor | None, plan: object | None, deterministic: bool
    ) -> Any:
        """What torch.compile sees in its place."""
        return CompiledOperator.of(kernel, x1, x2, plan, deterministic)

    @property
    def symmetric(self) -> bool:
        return self.cols is None

    @property
    def shape(self) -> torch.Size:
        cols = self.rows if self.cols is None else self.cols
        batch = broadcast_batch(self.rows.batch_shape, cols.batch_shape, *(t.shape for t in self.theta))
        return torch.Size((*batch, self.rows.count, cols.count))

    @property
    def device(self) -> torch.device:
        return self.rows.device

    @property
    def T(self) -> "CovarianceOperator":
        """The transpose; a symmetric operator is its own."""
        if self.cols is None:
            return self
        return CovarianceOperator(
            _swapped(self.form),
            self.theta,
            self.cols,
            self.rows,
            self.dtype,
            self.workspace,
            self.orders.transposed(),
            None if self.tiles is None else self.tiles.T,
        )

    mT = T  # noqa: N815 - as in torch

    @autocast_disabled
    @deterministic_where(lambda self, *_, **__: self.orders.deterministic)
    def to_dense(self, dtype: torch.dtype | None = None) -> Float[Tensor, "*batch n m"]:
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

    @autocast_disabled
    @deterministic_where(lambda self: self.orders.deterministic)
    def diagonal(self) -> Float[Tensor, "*batch n"]:
        """k(x1_i, x2_i) of a symmetric operator, (*batch, n)."""
        if self.cols is not None:
            raise ShapeError("`diagonal` needs an operator of one set of points, got two; use k.operator(x1)")
        if _dual(self._tensors()) or _followed(self._tensors()):
            return differentiable.diagonal(self.form, self.theta, self.rows).to(self.dtype)
        return self.backend.diagonal(self.form, self.theta, self.rows, dtype=self.dtype)

    @autocast_disabled
    def _apply(self, matrix: Tensor) -> Tensor:
        """K @ matrix. Cost: n m (d + t) flops, half the covariances when symmetric; one tile."""
        if self.orders.plan is not None:
            check_product_plan(self.orders.plan, self, matrix)
        return self.times(matrix)

    def times(self, matrix: Tensor) -> Tensor:
        """K @ matrix, also of a size that a plan was not made for: derivatives and transforms ask for those."""
        tensors = self._tensors()
        if _dual((matrix, *tensors)):
            return self.differentiable_product(matrix)
        if _followed((matrix, *tensors)):
            return autograd.product(self, matrix)
        return multiply(self, matrix)

    def _record(self) -> Report:
        return self.report

    def in_panels(self, far: FarTiles) -> "CovarianceOperator":
        """The operator of the same rows and columns in panel order, whose products run over the near tiles.

        It keeps the plan that was given: its sizes are the same.
        """
        cols = None if self.cols is None else self.cols.take(far.column_order)
        rows = self.rows.take(far.row_order)
        return CovarianceOperator(self.form, self.theta, rows, cols, self.dtype, self.workspace, self.orders, far.near)

    def _part(self, rows: Side, cols: Side) -> "CovarianceOperator":
        """The covariance of some of the points; symmetric when both sides are one object."""
        right = self.rows if self.cols is None else self.cols
        same = self.cols is None and rows is cols
        return self._between(self.rows.take(rows), None if same else right.take(cols))

    def _between(self, rows: Rows, cols: Rows | None) -> "CovarianceOperator":
        orders = replace(self.orders, plan=None)
        return CovarianceOperator(self.form, self.theta, rows, cols, self.dtype, self.workspace, orders)

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
            self.orders,
            self.tiles,
        )

    def detached(self, tensors: Sequence[Tensor]) -> "CovarianceOperator":
        """This operator on its own tensors without their graph: it shares its plans and what they keep."""
        same = self._with([t.detach() for t in tensors])
        same.products = self.products
        return same

    def event_dims(self) -> list[int]:
        """Dimensions of each of `_tensors` that are not batch dimensions."""
        rows = [2 if f.is_floating_point() else 1 for f in self.rows.features] + [1] * len(self.rows.scalars)
        return [*rows, *(() if self.cols is None else rows), *(0 for _ in self.theta)]

    def _stored_in_half(self, dtype: torch.dtype) -> Tensor:
        """The dense block in a half precision, computed in float32 panel by panel; when symmetric, half of it."""
        out = self.workspace.empty(tuple(self.shape), dtype, self.device)
        cols = self.rows if self.cols is None else self.cols
        for i in self._panels():
            first = i.start if self.symmetric else 0
            rows, right = self.rows.part(i.start, i.stop), cols.part(first, cols.count)
            panel = self.backend.block(self.form, self.theta, rows, right, dtype=_compute(dtype))
            out[..., i, first:] = panel
            if self.symmetric and i.stop < cols.count:
                out[..., i.stop :, i] = panel[..., i.stop - first :].mT
        return out

    def _panels(self) -> list[slice]:
        n, m = self.shape[-2:]
        step = tile_rows(m, self.shape[:-2].numel(), self.device)
        return [slice(i, min(n, i + step)) for i in range(0, max(n, 1), step)]  # of no rows one panel, which is empty

    def portable_block(self, dtype: torch.dtype) -> Tensor:
        """The dense block in plain torch: any order of derivative, forward mode."""
        return block_sum(self, dtype)(*self._tensors())[0]

    def differentiable_product(self, right: Tensor) -> Tensor:
        """K @ right on portable tiles: any order of derivative, forward mode; nothing of a tile is kept."""
        return product_sum(self)(right, *self._tensors())[0]

    def _every_tile(self) -> "tuple[tuple[slice, slice], ...] | Pieces":
        """Row and column ranges that cover all pairs; small ones where a Python function makes much of every pair."""
        n, m = self.shape[-2:]
        if not self.form.fusable:
            batch = max(1, self.shape[:-2].numel())
            return Pieces.of(self.form, self.rows, batch, n, m, tile_rows(1, batch, self.device))
        return tuple((i, slice(0, m)) for i in self._panels())

    def _portable_tiles(self) -> "tuple[tuple[slice, slice], ...] | Pieces":
        """Row and column ranges that cover what products run over, by rows; every row is in one."""
        n = self.shape[-2]
        if self.tiles is None:
            return self._every_tile()
        size, columns = self.tiles.size, tile_rows(self.tiles.size, self.shape[:-2].numel(), self.device)
        found = self.tiles.everywhere.runs(columns)
        seen = {i.start for i, _ in found}
        alone = [(slice(i, min(n, i + size)), slice(0, 0)) for i in range(0, n, size) if i not in seen]
        return tuple(sorted(found + alone, key=lambda ranges: (ranges[0].start, ranges[1].start)))


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
