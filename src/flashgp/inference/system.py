"""The covariance of the observations, K + diag(noise), as the linear system that solvers see."""

from dataclasses import replace

import torch
from torch import Tensor

from flashgp.foundations.contexts import entered
from flashgp.foundations.errors import ShapeError
from flashgp.foundations.workspace import Workspace
from flashgp.operators.covariance import CovarianceOperator
from flashgp.operators.stored import StoredTiles
from flashgp.solvers.contract import Index, System

F64 = torch.float64


class CovarianceSystem(System):
    """A = K + diag(noise) of one model; nothing of size n x n unless `stored` or `dense` asks for it.

    Args:
        operator: K, symmetric, without batch; it is taken as it is now, without its graph.
        noise: variance of each row, (n,) or (1,), float64, units of y squared.
        workspace: counts and limits large buffers, the operator's own by default.
        stored: keep K in float32 tiles for the float32 products, (M-56).
        tiles: of K, that another system has stored; None to make them.
    Raises: ShapeError for what is not one symmetric matrix; MemoryBudgetError if the tiles do not fit.
    Cost: 2 n^2 bytes if stored, else O(n); a product one pass over the pairs.
    """

    def __init__(
        self,
        operator: CovarianceOperator,
        noise: Tensor,
        *,
        workspace: Workspace | None = None,
        stored: bool = False,
        tiles: StoredTiles | None = None,
    ) -> None:
        if not operator.symmetric or len(operator.shape) != 2:
            raise ShapeError(
                f"`operator` must be one symmetric covariance, got shape {tuple(operator.shape)} of "
                f"{'one set' if operator.symmetric else 'two sets'} of points; solve a batch member by member"
            )
        self.count, self.device = operator.shape[-1], operator.device
        self.noise = noise.detach().to(self.device, F64).expand(self.count)
        self.workspace = workspace or operator.workspace
        options = replace(operator.options, plan=None, route="recomputed", least_tiles=True)
        self._operator = CovarianceOperator(operator.problem.detached(), F64, self.workspace, options)
        self.tiles: StoredTiles | None = tiles if stored else None
        if stored and tiles is None:
            self.tiles = self._operator.stored_tiles(self.workspace)

    @property
    def stored(self) -> bool:
        """True if float32 products run on tiles that are kept."""
        return self.tiles is not None

    def diagonal(self) -> Tensor:
        return self._operator.diagonal()

    @entered()
    def multiply(self, v: Tensor) -> Tensor:
        """A v, eq. (M-20) plus noise."""
        return self.product(v).addcmul_(self.noise.to(v.dtype).unsqueeze(-1), v)

    @entered()
    def product(self, v: Tensor) -> Tensor:
        """K v: float32 through the tiles where they are kept, else recomputed."""
        tiles = self.tiles if v.dtype == torch.float32 else None
        return self._operator.times(v) if tiles is None else tiles @ v

    def columns(self, index: Tensor, dtype: torch.dtype) -> Tensor:
        return self.part(slice(0, self.count), index).to_dense(dtype)

    def block(self, index: Index, dtype: torch.dtype) -> Tensor:
        return self.part(index, index).to_dense(dtype)

    def part(self, rows: Index, columns: Index) -> CovarianceOperator:
        """K between some rows and some columns, symmetric where both are one object."""
        return self._operator._part(rows, columns)

    def blocks(self, index: Tensor) -> Tensor:
        operator = self._operator
        sets = operator.problem.between(operator.problem.rows.sets(index), None)
        return CovarianceOperator(sets, F64, self.workspace, operator.options).to_dense(F64)

    @property
    def has_scaled_inputs(self) -> bool:
        return bool(self._scaled_inputs)

    def scaled_inputs(self) -> Tensor | None:
        """The scaled inputs of all distances, side by side."""
        return torch.cat(self._scaled_inputs, dim=-1).to(F64) if self._scaled_inputs else None

    @property
    def _scaled_inputs(self) -> list[Tensor]:
        rows, kinds = self._operator.problem.rows, self._operator.problem.form.statistics
        return [f for f, kind in zip(rows.features, kinds, strict=True) if kind == "distance" and f.shape[-1]]

    @entered()
    def dense(self, dtype: torch.dtype) -> Tensor:
        operator = self._operator
        matrix = operator.backend.block(operator.problem, dtype=dtype, workspace=self.workspace, upper=True)
        matrix.diagonal().add_(self.noise.to(dtype))
        return matrix
