"""Problems of every size, as operators take them: compiled loops where nobody waits for them, else torch tiles."""

import functools
from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor

from flashgp.foundations.form import Form, Rows
from flashgp.foundations.workspace import Workspace
from flashgp.pairwise.backend import Backend, PairGradient
from flashgp.pairwise.cpu.backend import PORTABLE_PAIRS, CpuTiles, cpu_tiles_missing
from flashgp.pairwise.cpu.readiness import NotReadyError, Readiness
from flashgp.pairwise.near.tile_lists import NearTiles
from flashgp.pairwise.torch.tiles import TorchTiles

__all__ = ["ReadyTiles"]


class ReadyTiles(Backend):
    """Compiled loops from PORTABLE_PAIRS pairs on, and for smaller problems when they are ready; see Backend.

    Args: readiness: from how many pairs on loops that are ready are quicker, and by how much.
    Both routes agree to the rounding of the dtype; the workspace hears which ran.
    """

    name = "ready"
    title = CpuTiles.title

    def __init__(self, readiness: Readiness) -> None:
        self._readiness = readiness
        self._compiling, self._compiled, self._portable = CpuTiles(), CpuTiles(1, wait=False), TorchTiles()

    def _loops(self, computation: str, form: Form, rows: Rows, cols: Rows | None, tiles: NearTiles | None) -> Backend:
        pairs = rows.count * (cols or rows).count if tiles is None else tiles.pair_count
        if pairs >= PORTABLE_PAIRS:
            return self._compiling
        asks = rows.device.type == "cpu" and _has_loops(form) and self._readiness.admits(form, computation, pairs)
        return self._compiled if asks else self._portable

    def block(
        self,
        form: Form,
        theta: Sequence[Tensor],
        rows: Rows,
        cols: Rows | None,
        *,
        dtype: torch.dtype,
        workspace: Workspace | None = None,
        upper: bool = False,
    ) -> Tensor:
        given = form, theta, rows, cols
        with suppress(NotReadyError):
            loops = self._loops("block", form, rows, cols, None)
            return loops.block(*given, dtype=dtype, workspace=workspace, upper=upper)
        return self._portable.block(*given, dtype=dtype, workspace=workspace, upper=upper)

    def diagonal(self, form: Form, theta: Sequence[Tensor], rows: Rows, *, dtype: torch.dtype) -> Tensor:
        return self._portable.diagonal(form, theta, rows, dtype=dtype)

    def product(
        self,
        form: Form,
        theta: Sequence[Tensor],
        rows: Rows,
        cols: Rows | None,
        right: Tensor,
        *,
        workspace: Workspace | None = None,
        tiles: NearTiles | None = None,
    ) -> Tensor:
        given = form, theta, rows, cols, right
        with suppress(NotReadyError):
            return self._loops("product", form, rows, cols, tiles).product(*given, workspace=workspace, tiles=tiles)
        return self._portable.product(*given, workspace=workspace, tiles=tiles)

    def block_gradient(
        self,
        form: Form,
        theta: Sequence[Tensor],
        rows: Rows,
        cols: Rows | None,
        weights: Tensor,
        *,
        workspace: Workspace | None = None,
    ) -> PairGradient:
        given = form, theta, rows, cols, weights
        with suppress(NotReadyError):
            return self._loops("block_gradient", form, rows, cols, None).block_gradient(*given, workspace=workspace)
        return self._portable.block_gradient(*given, workspace=workspace)

    def bilinear_gradient(
        self,
        form: Form,
        theta: Sequence[Tensor],
        rows: Rows,
        cols: Rows | None,
        left: Tensor,
        right: Tensor,
        *,
        workspace: Workspace | None = None,
        tiles: NearTiles | None = None,
    ) -> PairGradient:
        given = form, theta, rows, cols, left, right
        with suppress(NotReadyError):
            loops = self._loops("gradient", form, rows, cols, tiles)
            return loops.bilinear_gradient(*given, workspace=workspace, tiles=tiles)
        return self._portable.bilinear_gradient(*given, workspace=workspace, tiles=tiles)

    def diagonal_gradient(self, form: Form, theta: Sequence[Tensor], rows: Rows, weights: Tensor) -> PairGradient:
        return self._portable.diagonal_gradient(form, theta, rows, weights)


@functools.lru_cache(maxsize=512)
def _has_loops(form: Form) -> bool:
    """Whether loops can be generated for a form here."""
    return form.fusable and bool(form.statistics) and not cpu_tiles_missing()
