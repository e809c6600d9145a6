"""A covariance operator whose products leave out far tiles, with a certified bound of what that changes."""

from typing import Any

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.autograd import forward_ad

from flashgp.foundations.errors import DomainError
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.report import Report
from flashgp.operators.covariance import CovarianceOperator
from flashgp.operators.indexing import Side
from flashgp.operators.linear import LinearOperator
from flashgp.pairwise.near.far import FarTiles, far_tiles
from flashgp.planner.products import ProductPlan


class SkippingOperator(LinearOperator):
    """K whose products skip far tiles: what `k.operator(x1, x2, skip_below=...)` gives.

    Rows are put into a spatial order; a tile in which interval arithmetic shows every |k| to be below
    skip_below * sqrt(max k(x1, x1) max k(x2, x2)) is far, eqs. (M-71), (M-72), and counts as 0 in products, in their
    gradients (those of the value that is computed) and in their higher derivatives. `product` bounds what that changes,
    entry by entry, eq. (M-73). `to_dense`, `diagonal` and parts K[i, j] are exact: leaving out saves nothing there.

    Attributes:
        exact: the operator without skipping.
        skip_below: as asked for.
        far: the tiles and their bounds, None where leaving out is not worth it (then products are those of `exact`,
            bit for bit).
        dtype: of products.
    Cost: besides the near tiles, sorting both sides once, when the operator is made, on the CPU.

    Example:
        >>> K = fgp.kernels.Matern(lengthscale=0.01).operator(torch.rand(50, 2), skip_below=1e-9)
        >>> product = K.product(torch.ones(50, 1))
        >>> product.value.shape, bool((product.error_bound >= 0).all())
        (torch.Size([50, 1]), True)
    """

    def __init__(self, exact: CovarianceOperator, skip_below: float, far: FarTiles | None) -> None:
        self.exact, self.skip_below, self.far, self.dtype = exact, skip_below, far, exact.dtype
        self._near = None if far is None else exact.in_panels(far)

    @classmethod
    def of(cls, exact: CovarianceOperator, skip_below: float, panel: int | None = None) -> "SkippingOperator":
        """The operator with its far tiles found, between panels of so many rows, by default what suits the device.

        Raises:
            DomainError: for a threshold that is not in [0, 1), a plan that keeps K, or points that vmap hides.
        """
        if isinstance(skip_below, bool) or not isinstance(skip_below, int | float) or not 0.0 <= skip_below < 1.0:
            raise DomainError(
                f"`skip_below` must be a number in [0, 1), the share of the prior variance below which covariances may "
                f"count as 0, got {skip_below!r}; for example 1e-9, or None to leave nothing out"
            )
        if exact.options.plan is not None and exact.options.plan.route != "recomputed":
            raise DomainError(
                f"`plan` must recompute tiles where far ones are left out, got the route {exact.options.plan.route!r}; "
                "make it with k.operator(x1, x2, skip_below=...).plan(), or leave `skip_below` out"
            )
        if skip_below == 0.0 or not exact.problem.form.fusable or 0 in exact.shape:
            return cls(exact, float(skip_below), None)
        tensors = [_values(t) for t in exact.problem.tensors]
        with temporarily_clear_interpreter_stack(), torch.no_grad():  # or torch.func would follow the search
            plain = [forward_ad.unpack_dual(t).primal.detach() for t in tensors]
            far = _far_tiles(exact.with_problem(exact.problem.with_tensors(plain)), skip_below, panel)
        return cls(exact, float(skip_below), far)

    @property
    def kept(self) -> float:
        """The share of the n m pairs that a product evaluates."""
        return 1.0 if self.far is None else self.far.kept

    @property
    def norm_bound(self) -> Tensor:
        """A bound of the 2-norm of what products leave out, (*batch,), eq. (M-74): to compare with a noise variance."""
        return torch.zeros(self.shape[:-2], dtype=torch.float64) if self.far is None else self.far.norm_bound

    @property
    def report(self) -> Report:
        """Cost of the last product beside its plan's."""
        return self._record()

    def plan(self, t: int = 1, **options: Any) -> ProductPlan:
        """The plan of K' @ V: as `CovarianceOperator.plan`, for the pairs that are kept."""
        return (self._near or self.exact).plan(t, **options)

    @property
    def symmetric(self) -> bool:
        return self.exact.symmetric

    @property
    def shape(self) -> torch.Size:
        return self.exact.shape

    @property
    def device(self) -> torch.device:
        return self.exact.device

    @property
    def T(self) -> "SkippingOperator":
        """The transpose; a symmetric operator is its own."""
        if self.symmetric:
            return self
        return SkippingOperator(self.exact.T, self.skip_below, None if self.far is None else self.far.T)

    mT = T  # noqa: N815 - as in torch

    def to_dense(self, dtype: torch.dtype | None = None) -> Tensor:
        """The whole matrix, exact."""
        return self.exact.to_dense(dtype)

    def diagonal(self) -> Tensor:
        """k(x1_i, x1_i), exact, (*batch, n)."""
        return self.exact.diagonal()

    def _part(self, rows: Side, cols: Side) -> CovarianceOperator:
        """A part of the exact matrix."""
        return self.exact._part(rows, cols)

    def _apply(self, matrix: Tensor) -> Tensor:
        """K' @ matrix. Cost: as CovarianceOperator's for the pairs that are kept."""
        if self.far is None or self._near is None:
            return self.exact._apply(matrix)
        ordered = self._near._apply(matrix.index_select(-2, self.far.column_order))
        return ordered.index_select(-2, self.far.row_positions)

    def _left_out(self, matrix: Tensor) -> Tensor | None:
        return None if self.far is None else self.far.left_out(matrix)

    def _record(self) -> Report:
        if self._near is not None:
            report = self._near._record()
            report.route = "near tiles"
            report.events.append(Event(EventKind.PAIRS_SKIPPED, share=100.0 * self.kept, below=self.skip_below))
            return report
        report = self.exact._record()
        below = self.skip_below if self.exact.problem.form.fusable else None
        report.events.append(Event(EventKind.PAIRS_NOT_SKIPPED, below=below))
        return report


def _far_tiles(plain: CovarianceOperator, skip_below: float, panel: int | None) -> FarTiles | None:
    """The tiles below that share of the larger variances of both sides, eq. (M-72)."""
    problem = plain.problem
    one, two = (
        plain.backend.diagonal(problem.between(side, None), dtype=torch.float64).amax(-1).clamp_min(0.0)
        for side in (problem.rows, problem.right)
    )
    return far_tiles(problem, skip_below * (one * two).sqrt(), panel)


def _values(tensor: Tensor) -> Tensor:
    """The tensor inside what torch.func wraps around it."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        if functorch.is_batchedtensor(tensor):
            raise DomainError(
                "`skip_below` must see the points and parameters, which vmap hides; give them a batch dimension "
                "instead, or leave `skip_below` out"
            )
        tensor = functorch.get_unwrapped(tensor)
    return tensor
