"""The compiled CPU backend: pair loops generated from the profile, vectorised, on all cores, without storing K."""

import dataclasses
import importlib.util
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from flashgp.foundations.form import Form, Rows, broadcast_batch
from flashgp.foundations.workspace import Workspace
from flashgp.pairwise.backend import Backend, PairGradient, register_backend
from flashgp.pairwise.cpu.engine import CompiledPairs
from flashgp.pairwise.torch_tiles import TorchTiles

__all__ = ["PORTABLE_PAIRS", "CpuTiles", "cpu_tiles_missing"]

PORTABLE_PAIRS = 10_000_000  # below, a compile would take longer than the torch tiles do
TRANSPOSED = 256  # rows and columns mirrored at a time: a square of them fits the cache
MEMBER_BYTES = 2**27  # totals of one worker; more right-hand sides than fit are taken in turns


def cpu_tiles_missing() -> str:
    """The package without which this backend cannot run, or an empty text."""
    return "" if importlib.util.find_spec("numba") else "numba"


@register_backend("cpu")
class CpuTiles(Backend):
    """Compiled loops over pairs of rows on the CPU; see Backend for the contract.

    Serves float32 and float64 on the CPU from `least_pairs` pairs on, with numba installed; everything else goes to
    the torch tiles, which compute the same (`serves` says which); forms with Python functions always.
    Errors: a product is off by at most about 1e-6 |K| |V| in float32 (float64 totals over tiles, eqs. (M-65) to
    (M-69)). Cost: n m pairs, half of them when symmetric; memory: packed copies of the features and one float64 total
    per worker.
    """

    def __init__(self, least_pairs: int = PORTABLE_PAIRS) -> None:
        self.least_pairs = least_pairs
        self._portable = TorchTiles()

    def serves(self, form: Form, rows: Rows, cols: Rows | None, dtype: torch.dtype) -> bool:
        other = rows if cols is None else cols
        return (
            rows.device.type == "cpu"
            and other.device.type == "cpu"
            and dtype in (torch.float32, torch.float64)
            and rows.count * other.count >= max(1, self.least_pairs)
            and bool(form.statistics)
            and form.fusable
            and all(f.shape[-1] > 0 for f in rows.features if f.is_floating_point())
            and not cpu_tiles_missing()
        )

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
        if not self.serves(form, rows, cols, dtype):
            return self._portable.block(form, theta, rows, cols, dtype=dtype, workspace=workspace, upper=upper)
        other = rows if cols is None else cols
        batch = _batch(theta, rows, other)
        workspace = workspace or Workspace()
        out = workspace.empty((*batch, rows.count, other.count), dtype, rows.device)
        for member, (values, r, c) in zip(_flat(out, 2), _members(batch, theta, rows, cols), strict=True):
            _pairs(form, values, r, c, dtype).block(member)
            if cols is None and not upper:
                _mirror(member)
        return out

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
    ) -> Tensor:
        if not self.serves(form, rows, cols, right.dtype) or right.shape[-1] == 0:
            return self._portable.product(form, theta, rows, cols, right, workspace=workspace)
        other = rows if cols is None else cols
        batch = broadcast_batch(_batch(theta, rows, other), right.shape[:-2])
        workspace = workspace or Workspace()
        out = workspace.empty((*batch, rows.count, right.shape[-1]), right.dtype, rows.device)
        together = max(8, MEMBER_BYTES // (8 * rows.count))
        right = right.detach().expand(*batch, *right.shape[-2:])
        for member, v, (values, r, c) in zip(
            _flat(out, 2), _flat(right, 2), _members(batch, theta, rows, cols), strict=True
        ):
            pairs = _pairs(form, values, r, c, right.dtype)
            for start in range(0, v.shape[-1], together):
                part = slice(start, start + together)
                member[:, part] = pairs.product(v[:, part])
        return out

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
        return self._portable.block_gradient(form, theta, rows, cols, weights, workspace=workspace)

    def taped_block(
        self,
        form: Form,
        theta: Sequence[Tensor],
        rows: Rows,
        *,
        dtype: torch.dtype,
        workspace: Workspace | None = None,
    ) -> tuple[Tensor, Callable[[Tensor], PairGradient]]:
        if not self.serves(form, rows, None, dtype):
            return self._portable.taped_block(form, theta, rows, dtype=dtype, workspace=workspace)
        return super().taped_block(form, theta, rows, dtype=dtype, workspace=workspace)

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
    ) -> PairGradient:
        if not self.serves(form, rows, cols, right.dtype) or right.shape[-1] == 0:
            return self._portable.bilinear_gradient(form, theta, rows, cols, left, right, workspace=workspace)
        other = rows if cols is None else cols
        batch = broadcast_batch(_batch(theta, rows, other), right.shape[:-2])
        batch = broadcast_batch(batch, left.shape[:-2])
        left = left.detach().expand(*batch, *left.shape[-2:])
        right = right.detach().expand(*batch, *right.shape[-2:])
        if cols is None:
            # Twice the symmetric weights (U V^T + V U^T) / 2: every pair stands for both of its orders, eq. (M-21).
            left, right = torch.cat([left, right], -1), torch.cat([right, left], -1)
        found: list[tuple[list[Tensor | None], list[Tensor | None], Tensor]] = []
        for u, v, (values, r, c) in zip(
            _flat(left, 2), _flat(right, 2), _members(batch, theta, rows, cols), strict=True
        ):
            found.append(_pairs(form, values, r, c, right.dtype).gradient(u, v))
        by_rows = [_stacked(batch, [f[0][k] for f in found]) for k in range(len(found[0][0]))]
        by_cols = [_stacked(batch, [f[1][k] for f in found]) for k in range(len(found[0][1]))]
        totals = torch.stack([f[2] for f in found]).reshape(*batch, -1)
        return PairGradient(by_rows, [] if cols is None else by_cols, list(totals.unbind(-1)))

    def diagonal_gradient(self, form: Form, theta: Sequence[Tensor], rows: Rows, weights: Tensor) -> PairGradient:
        return self._portable.diagonal_gradient(form, theta, rows, weights)


def _pairs(form: Form, theta: list[float], rows: Rows, cols: Rows | None, dtype: torch.dtype) -> CompiledPairs:
    return CompiledPairs(form, theta, rows, cols, dtype)


def _batch(theta: Sequence[Tensor], rows: Rows, cols: Rows) -> torch.Size:
    return broadcast_batch(rows.batch_shape, cols.batch_shape, *(t.shape for t in theta))


def _flat(tensor: Tensor, kept: int) -> list[Tensor]:
    """The members of a batch, as views where possible."""
    shape = tensor.shape[tensor.dim() - kept :]
    return list(tensor.reshape(-1, *shape).unbind(0)) if tensor.dim() > kept else [tensor]


def _members(
    batch: torch.Size, theta: Sequence[Tensor], rows: Rows, cols: Rows | None
) -> list[tuple[list[float], Rows, Rows | None]]:
    """(theta, rows, cols) of every member of a batch."""
    if not batch:
        return [([float(t) for t in theta], rows, cols)]
    values = [t.detach().expand(batch).reshape(-1).tolist() for t in theta]
    left = _separate(batch, rows)
    right = [None] * len(left) if cols is None else _separate(batch, cols)
    return [([v[k] for v in values], left[k], right[k]) for k in range(len(left))]


def _separate(batch: torch.Size, rows: Rows) -> list[Rows]:
    def members(tensor: Tensor, kept: int) -> list[Tensor]:
        return _flat(tensor.expand(*batch, *tensor.shape[tensor.dim() - kept :]), kept)

    features = [members(f, 2 if f.is_floating_point() else 1) for f in rows.features]
    scalars = [members(a, 1) for a in rows.scalars]
    return [
        dataclasses.replace(
            rows, features=tuple(f[k] for f in features), scalars=tuple(a[k] for a in scalars), batch=torch.Size()
        )
        for k in range(batch.numel())
    ]


def _stacked(batch: torch.Size, parts: Sequence[Tensor | None]) -> Tensor | None:
    if parts[0] is None:
        return None
    whole = torch.stack([p for p in parts if p is not None])
    return whole.reshape(*batch, *whole.shape[1:])


def _mirror(matrix: Tensor) -> None:
    """The lower triangle from the upper one, in squares that fit the cache."""
    n = matrix.shape[0]
    for i in range(0, n, TRANSPOSED):
        rows = slice(i, min(n, i + TRANSPOSED))
        corner = matrix[rows, rows]
        corner.copy_(corner.triu() + corner.triu(1).mT)
        for j in range(rows.stop, n, TRANSPOSED):
            cols = slice(j, min(n, j + TRANSPOSED))
            matrix[cols, rows] = matrix[rows, cols].mT
