"""The covariance of the observations, K + diag(noise), as the linear system that solvers see."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from flashgp.foundations.contexts import autocast_disabled
from flashgp.foundations.determinism import is_deterministic
from flashgp.foundations.errors import MemoryBudgetError, ShapeError
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.machine import available_bytes
from flashgp.foundations.profile_store import current_profile
from flashgp.foundations.workspace import Workspace
from flashgp.operators.covariance import CovarianceOperator
from flashgp.operators.stored import StoredTiles
from flashgp.planner.products import stored_bytes
from flashgp.solvers.contract import Index, System

F64 = torch.float64
KEPT_GAIN = 1.5  # of products on float64 tiles, from which these are kept: docs/decisions/0010-solvers.md


class CovarianceSystem(System):
    """A = K + diag(noise) of one model; nothing of size n x n unless `stored` or `dense` asks for it.

    Args:
        operator: K, symmetric, without batch; it is taken as it is now, without its graph.
        noise: variance of each row, (n,) or (1,), float64, units of y squared.
        workspace: counts and limits large buffers, the operator's own by default.
        stored: keep K in float32 tiles for the float32 products, (M-56).
        tiles: of K, that another system has stored; None to make them.
    Raises: ShapeError for what is not one symmetric matrix; MemoryBudgetError if the tiles do not fit.
    Cost: 2 n^2 bytes if stored, 4 n^2 while float64 tiles are kept, else O(n); a product one pass over the pairs.
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
        self._float64_tiles: StoredTiles | None = None
        self._patience = self._in_a_row = 0  # of float64 products
        self._gain = KEPT_GAIN
        self._seconds = 0.0  # of the last product
        if stored and tiles is None:
            self.tiles = self._operator.stored_tiles(self.workspace)

    @property
    def stored(self) -> bool:
        """Whether float32 products run on tiles that are kept."""
        return self.tiles is not None

    def diagonal(self) -> Tensor:
        return self._operator.diagonal()

    @autocast_disabled
    def multiply(self, v: Tensor) -> Tensor:
        """A v, eq. (M-20) plus noise."""
        return self.product(v).addcmul_(self.noise.to(v.dtype).unsqueeze(-1), v)

    @autocast_disabled
    def product(self, v: Tensor) -> Tensor:
        """K v: float32 through the tiles where they are kept, else recomputed."""
        if v.dtype == torch.float32:
            self._in_a_row, tiles = 0, self.tiles
        else:
            self._in_a_row += 1
            tiles = self._tiles_of_float64()
        began = time.perf_counter()
        out = self._operator.times(v) if tiles is None else tiles @ v
        self._seconds = time.perf_counter() - began
        return out

    @contextlib.contextmanager
    def keeping_float64(self, patience: int, gain: float = KEPT_GAIN) -> Iterator[None]:
        """While the block runs, float64 products after so many in a row run on float64 tiles, (M-98), where there is
        room and time to make these, and reading them is so many times as quick as computing them again."""
        self._patience, self._gain, self._in_a_row = patience, gain, 0
        try:
            yield
        finally:
            self._patience, self._float64_tiles = 0, None

    def _tiles_of_float64(self) -> StoredTiles | None:
        """Those that are kept, made if they are due."""
        if 0 < self._patience < self._in_a_row and not is_deterministic():  # whose bits no budget decides
            needed, workspace = stored_bytes(self.count, F64), self.workspace
            free, later = min(workspace.room, available_bytes(self.device)), 2 * self._patience * self._seconds
            self._patience = 0  # they are made once, or never
            reading = 2.0 * needed / current_profile().rates(self.device).copy_bytes  # a copy reads and writes
            if needed <= free and self._seconds >= self._gain * reading and not workspace.deadline.passed(later):
                with contextlib.suppress(MemoryBudgetError):  # what is free may be in pieces
                    self._float64_tiles = self._operator.stored_tiles(workspace, F64)
                    workspace.note(Event(EventKind.FLOAT64_TILES, bytes=needed))
        return self._float64_tiles

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

    @autocast_disabled
    def dense(self, dtype: torch.dtype) -> Tensor:
        operator = self._operator
        matrix = operator.backend.block(operator.problem, dtype=dtype, workspace=self.workspace, upper=True)
        matrix.diagonal().add_(self.noise.to(dtype))
        return matrix
