"""The covariance of two sets of rows as a lazy, differentiable linear operator: nothing of size n m until asked."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from flashgp.foundations.contexts import entered
from flashgp.foundations.errors import ShapeError
from flashgp.foundations.form import Form, Rows
from flashgp.foundations.profile import MachineProfile
from flashgp.foundations.report import Report
from flashgp.foundations.workspace import Workspace
from flashgp.operators import autograd
from flashgp.operators.indexing import Side
from flashgp.operators.linear import LinearOperator, check_floating
from flashgp.operators.multiplication import OperatorOptions, PairProducts
from flashgp.operators.stored import StoredTiles
from flashgp.operators.tiled import row_panels
from flashgp.pairwise.backend import Backend, PairGradient
from flashgp.pairwise.near.far import FarTiles
from flashgp.pairwise.problem import PairProblem
from flashgp.planner.products import ProductPlan


class CovarianceOperator(LinearOperator):
    """K_ij = k(x1_i, x2_j), shape (*batch, n, m); differentiable in parameters, inputs and right-hand sides.

    First derivatives run tile by tile in one pass, eq. (M-21); higher ones and forward mode on portable tiles, each
    recomputed for every order, eq. (M-110).

    Args:
        problem: the covariance function and the rows on both sides; with `near` tiles, products and their gradients
            run over these only.
        dtype: of the results; distances are computed in float64 where they could cancel.
        workspace: counts and limits large buffers; a fresh one without limit by default.
        options: what is settled about its products: a plan, a budget, a backend; by default each follows a plan of its
            own from 1e7 pairs on.

    Example:
        >>> K = fgp.kernels.Matern(nu=1.5)(torch.rand(50, 3), torch.rand(20, 3))
        >>> K.shape, (K @ torch.ones(20, 2)).shape, K[:5].to_dense().shape
        (torch.Size([50, 20]), torch.Size([50, 2]), torch.Size([5, 20]))
    """

    def __init__(
        self,
        problem: PairProblem,
        dtype: torch.dtype,
        workspace: Workspace | None = None,
        options: OperatorOptions | None = None,
    ) -> None:
        self._products = PairProducts(problem, dtype, workspace, options)
        self.problem, self.dtype = problem, dtype
        self.workspace, self.options = self._products.workspace, self._products.options

    @classmethod
    def of(
        cls,
        form: Form,
        theta: Sequence[Tensor],
        rows: Rows,
        columns: Rows | None = None,
        *,
        dtype: torch.dtype = torch.float64,
        workspace: Workspace | None = None,
        options: OperatorOptions | None = None,
    ) -> "CovarianceOperator":
        """The operator of a covariance function between rows and columns, by default the rows themselves."""
        return cls(PairProblem(form, tuple(theta), rows, columns), dtype, workspace, options)

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
        """The plan of K @ V for t columns of V, with its bytes and seconds; print it to see the alternatives.

        Products of an operator without a plan of its own follow what this gives, from 1e7 pairs on; smaller ones never
        wait for a compile.

        Args:
            t: columns of V.
            products: how many will be made with this operator, which decides whether keeping K pays.
            memory: budget, bytes or text like "8GiB"; the operator's own by default, else what is free now.
            dtype: to compute in; the operator's by default. Results keep the operator's.
            route: force "recomputed", "stored" or "dense".
            backend: force "torch", "cpu" or "triton".
            profile: the rates to use.
            deterministic: plan with the built-in rates.

        Returns:
            A plan to hand back: `k.operator(x1, x2, plan=plan)`.

        Raises:
            MemoryBudgetError: with the bytes needed, available, and the cheapest plan that fits.
            BackendUnavailableError: for a backend that is not there.
            DomainError: for arguments that do not go together.
        """
        return self._products.plan(
            t, dtype or self.dtype, max(1, self.shape[:-2].numel()), products=products,
            memory=self.options.memory if memory is None else memory, route=route, backend=backend, profile=profile,
            deterministic=self.options.deterministic if deterministic is None else deterministic,
        )  # fmt: skip

    @property
    def report(self) -> Report:
        """Cost of the last product beside its plan's."""
        return self._products.report()

    @property
    def kept(self) -> float:
        """The share of the n m pairs that a product evaluates: 1 without far tiles."""
        return self.problem.kept

    @property
    def backend(self) -> Backend:
        """The backend of dense blocks and diagonals."""
        return self.options.block_backend

    @property
    def symmetric(self) -> bool:
        return self.problem.symmetric

    @property
    def shape(self) -> torch.Size:
        return self.problem.shape

    @property
    def device(self) -> torch.device:
        return self.problem.device

    @property
    def T(self) -> "CovarianceOperator":
        """The transpose; a symmetric operator is its own."""
        if self.symmetric:
            return self
        return CovarianceOperator(self.problem.T, self.dtype, self.workspace, self.options.transposed())

    mT = T  # noqa: N815 - as in torch

    @entered(lambda self, *_, **__: self.options.deterministic)
    def to_dense(self, dtype: torch.dtype | None = None) -> Float[Tensor, "*batch n m"]:
        """The matrix itself, (*batch, n, m). Cost: n m evaluations (half when symmetric) and n m numbers."""
        dtype = check_floating(self.dtype if dtype is None else dtype)
        compute = dtype if dtype in (torch.float32, torch.float64) else torch.float32
        if dtype == compute or autograd.followed(self._products):
            return autograd.block(self._products, compute).to(dtype)
        return self._stored_in_half(dtype)

    @entered(lambda self: self.options.deterministic)
    def diagonal(self) -> Float[Tensor, "*batch n"]:
        """k(x1_i, x2_i) of a symmetric operator, (*batch, n)."""
        if not self.symmetric:
            raise ShapeError("`diagonal` needs an operator of one set of points, got two; use k.operator(x1)")
        return autograd.diagonal(self._products)

    @entered()
    def _apply(self, matrix: Tensor) -> Tensor:
        """K @ matrix. Cost: n m (d + t) flops, half the covariances when symmetric; one tile."""
        self._products.check_plan(matrix)
        return self.times(matrix)

    def times(self, matrix: Tensor) -> Tensor:
        """K @ matrix, also of a size that a plan was not made for: derivatives and transforms ask for those."""
        return autograd.product(self._products, matrix)

    def pulled_back(self, left: Tensor, right: Tensor) -> PairGradient:
        """The gradient of sum(left * K right) by everything that K depends on, eq. (M-21), in one pass."""
        return self._products.pulled_back(left, right)

    def stored_tiles(self, workspace: Workspace) -> StoredTiles:
        """K in float32 tiles, (M-56). Raises: MemoryBudgetError."""
        return self._products.stored_tiles(workspace)

    def _record(self) -> Report:
        return self.report

    def with_problem(self, problem: PairProblem) -> "CovarianceOperator":
        """The operator of another problem of the same sizes, with the same dtype, workspace and options."""
        return CovarianceOperator(problem, self.dtype, self.workspace, self.options)

    def in_panels(self, far: FarTiles) -> "CovarianceOperator":
        """The operator of the same rows and columns in panel order, whose products run over the near tiles."""
        columns = None if self.problem.columns is None else self.problem.columns.take(far.column_order)
        rows = self.problem.rows.take(far.row_order)
        return self.with_problem(replace(self.problem, rows=rows, columns=columns, near=far.near))

    def _part(self, rows: Side, cols: Side) -> "CovarianceOperator":
        """The covariance of some of the points; symmetric when both sides are one object."""
        same = self.symmetric and rows is cols
        part = self.problem.between(self.problem.rows.take(rows), None if same else self.problem.right.take(cols))
        return CovarianceOperator(part, self.dtype, self.workspace, replace(self.options, plan=None))

    def _stored_in_half(self, dtype: torch.dtype) -> Tensor:
        """The dense block in a half precision, computed in float32 panel by panel; when symmetric, half of it."""
        out = self.workspace.empty(tuple(self.shape), dtype, self.device)
        problem, count = self.problem, self.shape[-1]
        for i in row_panels(problem):
            first = i.start if self.symmetric else 0
            panel = problem.between(problem.rows.part(i.start, i.stop), problem.right.part(first, count))
            block = self.backend.block(panel, dtype=torch.float32)
            out[..., i, first:] = block
            if self.symmetric and i.stop < count:
                out[..., i.stop :, i] = block[..., i.stop - first :].mT
        return out
