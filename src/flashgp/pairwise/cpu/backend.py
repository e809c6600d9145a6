"""The compiled CPU backend: pair loops generated from the profile, vectorised, on all cores, without storing K."""

import dataclasses
import importlib.util
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy
import torch
from torch import Tensor

from flashgp.foundations.determinism import contiguous_copy, is_deterministic
from flashgp.foundations.form import Rows, broadcast_batch
from flashgp.foundations.workspace import Workspace
from flashgp.pairwise.backend import Backend, PairGradient, register_backend
from flashgp.pairwise.cpu.engine import (
    TITLE,
    Array,
    CompiledPairs,
    Gradients,
    NotCompiledError,
    add_blocks,
    is_compiled,
)
from flashgp.pairwise.cpu.panels import Panel, PanelSettings, visit_panels
from flashgp.pairwise.cpu.pool import workers
from flashgp.pairwise.problem import PairProblem
from flashgp.pairwise.torch.tiles import TorchTiles

PORTABLE_PAIRS = 10_000_000  # below, a compile would take longer than the portable backend does
COMPILED_PAIRS = 1_000_000  # from here on compiled loops are 1.3 to 7 times as quick, where they exist (decision 16)
COMPILER_BYTES = 160 * 2**20  # numba and LLVM in this process, from the first compile on
LOOPS_BYTES = 16 * 2**20  # compiling one more form
MODERATE = 2.0**500  # features beyond it overflow when they are squared and added
MEMBER_BYTES = 2**27  # totals of one worker; more right-hand sides than fit are taken in turns


def columns_together(n: int) -> int:
    """Right-hand sides that are taken at a time, for n rows."""
    return max(8, MEMBER_BYTES // (8 * max(1, n)))


def cpu_tiles_missing() -> str:
    """The package without which this backend cannot run, or an empty text."""
    return "" if importlib.util.find_spec("numba") else "numba"


@register_backend("cpu")
class CpuTiles(Backend):
    """Compiled loops over pairs of rows on the CPU; see Backend for the contract.

    Serves float32 and float64 on the CPU from `min_pairs` pairs on, with numba installed, and from `compiled_pairs` on
    where this process has compiled the loops already, so that nothing waits for a compile; everything else goes to the
    portable backend, which computes the same (`serves` says which); forms with Python functions always.
    Errors: a product is off by at most about 1e-6 |K| |V| in float32 (float64 totals over tiles, eqs. (M-65) to
    (M-69)). Cost: n m pairs, half of them when symmetric; memory: packed copies of the features and one float64 total
    per worker.
    """

    title = TITLE

    def __init__(
        self,
        min_pairs: int = PORTABLE_PAIRS,
        settings: PanelSettings | None = None,
        compiled_pairs: int = COMPILED_PAIRS,
    ) -> None:
        self.min_pairs, self.compiled_pairs = min_pairs, compiled_pairs
        self.settings = settings or PanelSettings()
        self._portable = TorchTiles()

    @classmethod
    def for_every_size(cls) -> "CpuTiles":
        return cls(min_pairs=0)

    @classmethod
    def compiles_first(cls) -> bool:
        engine = sys.modules.get("flashgp.pairwise.cpu.engine")
        return engine is None or not engine.compile_seconds()

    @classmethod
    def compiler_bytes(cls) -> int:
        return COMPILER_BYTES if is_deterministic() or cls.compiles_first() else LOOPS_BYTES

    def serves(self, problem: PairProblem, dtype: torch.dtype, computation: str = "product") -> bool:
        """True if the compiled loops compute this; the portable backend takes the rest, such as infinite numbers."""
        form, rows, other = problem.form, problem.rows, problem.right
        return (
            rows.device.type == "cpu"
            and other.device.type == "cpu"
            and dtype in (torch.float32, torch.float64)
            and (self.waits(problem) or self._is_compiled(problem, computation))
            and bool(form.statistics)
            and form.fusable
            and all(f.shape[-1] > 0 for f in rows.features if f.is_floating_point())
            and not cpu_tiles_missing()
            and all(bool(t.isfinite().all()) for t in problem.theta)
            and all(_moderate(side) for side in {id(rows): rows, id(other): other}.values())
        )

    def waits(self, problem: PairProblem) -> bool:
        """True if a problem is so large that it waits for a compile."""
        return problem.pair_count >= max(1, self.min_pairs)

    def _is_compiled(self, problem: PairProblem, computation: str) -> bool:
        """Never so in deterministic computations, whose bits must not depend on what was computed before."""
        large = problem.pair_count >= max(1, self.compiled_pairs)
        return large and not is_deterministic() and is_compiled(problem.form, computation)

    def _jobs(
        self, problem: PairProblem, batch: torch.Size, dtype: torch.dtype, workspace: Workspace
    ) -> "list[_Member]":
        return [_Member(one, dtype, workspace, self) for one in _members(problem, batch)]

    def block(
        self, problem: PairProblem, *, dtype: torch.dtype, workspace: Workspace | None = None, upper: bool = False
    ) -> Tensor:
        problem = problem.whole
        with suppress(NotCompiledError):
            if self.serves(problem, dtype, "block"):
                return self._block(problem, dtype, workspace or Workspace(), upper)
        return self._portable.block(problem, dtype=dtype, workspace=workspace, upper=upper)

    def _block(self, problem: PairProblem, dtype: torch.dtype, workspace: Workspace, upper: bool) -> Tensor:
        out = workspace.empty(tuple(problem.shape), dtype, problem.device)
        members = self._jobs(problem, problem.batch_shape, dtype, workspace)
        for block, member in zip(_flat(out, 2), members, strict=True):
            member.all_pairs("block").block(block.numpy(), both=not upper)
        return out

    def diagonal(self, problem: PairProblem, *, dtype: torch.dtype) -> Tensor:
        return self._portable.diagonal(problem, dtype=dtype)

    def product(self, problem: PairProblem, right: Tensor, *, workspace: Workspace | None = None) -> Tensor:
        with suppress(NotCompiledError):
            if self.serves(problem, right.dtype, "product") and right.shape[-1]:
                return self._product(problem, right, workspace or Workspace())
        return self._portable.product(problem, right, workspace=workspace)

    def _product(self, problem: PairProblem, right: Tensor, workspace: Workspace) -> Tensor:
        batch = broadcast_batch(problem.batch_shape, right.shape[:-2])
        out = workspace.empty((*batch, problem.rows.count, right.shape[-1]), right.dtype, problem.device)
        together = columns_together(problem.rows.count)
        out.zero_()
        right = right.detach().expand(*batch, *right.shape[-2:])
        members = self._jobs(problem, batch, right.dtype, workspace)
        for total, v, member in zip(_flat(out, 2), _flat(right, 2), members, strict=True):
            for start in range(0, v.shape[-1], together):
                member.product(v, slice(start, min(v.shape[-1], start + together)), total)
        return out

    def block_gradient(
        self, problem: PairProblem, weights: Tensor, *, workspace: Workspace | None = None
    ) -> PairGradient:
        problem = problem.whole
        with suppress(NotCompiledError):
            if self.serves(problem, weights.dtype, "block_gradient"):
                return self._block_gradient(problem, weights, workspace or Workspace())
        return self._portable.block_gradient(problem, weights, workspace=workspace)

    def _block_gradient(self, problem: PairProblem, weights: Tensor, workspace: Workspace) -> PairGradient:
        batch = broadcast_batch(problem.batch_shape, weights.shape[:-2])
        weights = weights.detach().expand(*batch, *weights.shape[-2:])
        members = zip(_flat(weights, 2), self._jobs(problem, batch, weights.dtype, workspace), strict=True)
        gradients = [one.all_pairs("block_gradient").block_gradient(w.contiguous().numpy()) for w, one in members]
        return _joined(batch, problem.symmetric, gradients)

    def taped_block(
        self, problem: PairProblem, *, dtype: torch.dtype, workspace: Workspace | None = None
    ) -> tuple[Tensor, Callable[[Tensor], PairGradient]]:
        if not self.serves(problem.whole, dtype, "block"):
            return self._portable.taped_block(problem, dtype=dtype, workspace=workspace)
        return super().taped_block(problem, dtype=dtype, workspace=workspace)

    def bilinear_gradient(
        self, problem: PairProblem, left: Tensor, right: Tensor, *, workspace: Workspace | None = None
    ) -> PairGradient:
        with suppress(NotCompiledError):
            if self.serves(problem, right.dtype, "gradient") and right.shape[-1]:
                return self._bilinear_gradient(problem, left, right, workspace or Workspace())
        return self._portable.bilinear_gradient(problem, left, right, workspace=workspace)

    def _bilinear_gradient(
        self, problem: PairProblem, left: Tensor, right: Tensor, workspace: Workspace
    ) -> PairGradient:
        batch = broadcast_batch(problem.batch_shape, right.shape[:-2], left.shape[:-2])
        left = left.detach().expand(*batch, *left.shape[-2:])
        right = right.detach().expand(*batch, *right.shape[-2:])
        members = self._jobs(problem, batch, right.dtype, workspace)
        gradients = [one.gradient(u, v) for u, v, one in zip(_flat(left, 2), _flat(right, 2), members, strict=True)]
        return _joined(batch, problem.symmetric, gradients)

    def diagonal_gradient(self, problem: PairProblem, weights: Tensor) -> PairGradient:
        return self._portable.diagonal_gradient(problem, weights)


def _moderate(rows: Rows) -> bool:
    """True if all features and row scalars are finite, and so are their squares in float64."""
    found = [*(f for f in rows.features if f.is_floating_point()), *rows.scalars]
    arrays = (tensor.detach().numpy() for tensor in found if tensor.numel())
    return all(float(a.min()) > -MODERATE and float(a.max()) < MODERATE for a in arrays)


@dataclasses.dataclass(frozen=True)
class _Member:
    """One model of a batch: its products and gradients, panel by panel where memory asks for it.

    Of a problem with near tiles, which number all rows, only right-hand sides are taken in parts.
    """

    problem: PairProblem
    dtype: torch.dtype
    workspace: Workspace
    backend: CpuTiles

    def pairs(self, computation: str, i: slice, j: slice | None) -> CompiledPairs:
        rows = self.problem.rows.part(i.start, i.stop)
        columns = None if j is None else self.problem.right.part(j.start, j.stop)
        problem = dataclasses.replace(self.problem, rows=rows, columns=columns)
        wait = self.backend.settings.compile_seconds if self.backend.waits(self.problem) else 0.0
        return CompiledPairs(problem, computation, self.dtype, self.workspace, wait)

    def all_pairs(self, computation: str) -> CompiledPairs:
        whole = self.whole(slice(0, 1))
        return self.pairs(computation, whole.rows, whole.cols)

    def whole(self, right: slice) -> Panel:
        problem = self.problem
        columns = None if problem.symmetric else slice(0, problem.right.count)
        return Panel(slice(0, problem.rows.count), columns, right, problem.near is not None, self.backend.settings)

    def product(self, v: Tensor, right: slice, out: Tensor) -> None:
        """Add K v[:, right] to out[:, right]."""

        def visit(panel: Panel) -> None:
            i, j, t = panel.rows, panel.cols, panel.right
            ahead = self.pairs("product", i, j).product(v[i if j is None else j, t])
            back = self.pairs("product", j, i).product(v[i, t]) if self.problem.symmetric and j is not None else None
            add_blocks(out[i, t].numpy(), ahead)
            if j is not None and back is not None:
                add_blocks(out[j, t].numpy(), back)

        visit_panels(self.whole(right), self.workspace, lambda panel: self.bytes(panel, panel.right_count), visit)

    def gradient(self, u: Tensor, v: Tensor) -> Gradients:
        """As `CompiledPairs.gradient`, of all rows and columns; right-hand sides are not split."""
        form, symmetric = self.problem.form, self.problem.symmetric
        by_rows: list[Array | None] = [None] * (len(form.statistics) + form.scalar_count)
        by_cols = by_rows if symmetric else list(by_rows)
        totals = numpy.zeros(form.parameter_count)
        # Twice the symmetric weights (U V^T + V U^T) / 2: every pair stands for both of its orders, eq. (M-21).
        left, right = ([u, v], [v, u]) if symmetric else ([u], [v])

        def visit(panel: Panel) -> None:
            i, j = panel.rows, panel.cols
            pairs = self.pairs("gradient", i, j)
            rows, cols, theta = pairs.gradient([w[i] for w in left], [w[i if j is None else j] for w in right])
            added = [(by_rows, rows, i, self.problem.rows.count)]
            if j is not None:
                added.append((by_cols, cols, j, self.problem.right.count))
            for one in added:
                _make_room(*one)
            for one in added:
                _add(*one)
            totals[:] += theta

        t = sum(w.shape[-1] for w in left)
        whole = self.whole(slice(0, 1))
        visit_panels(whole, self.workspace, lambda panel: self.bytes(panel, t, pulled=True), visit)
        return by_rows, by_cols, totals

    def bytes(self, panel: Panel, t: int, *, pulled: bool = False) -> int:
        """Packed features and right-hand sides, and sums in float64 of every worker, eq. (M-55).

        Columns are padded to fours, norms stand beside them, and float32 ones may be split or kept in float64.
        """
        problem, n, m = self.problem, panel.row_count, panel.column_count
        width = problem.rows.width
        sides = n if panel.cols is None else n + m
        packed = 8 * sides * (width + 4 * len(problem.form.statistics))
        if not pulled:
            return packed + 8 * m * t + workers() * 8 * n * t
        every = problem.rows.count + (0 if problem.symmetric else problem.right.count)
        totals = 0 if panel == self.whole(panel.right) else 8 * every * width
        return packed + 8 * (n + m) * t + workers() * 8 * sides * width + totals


def _make_room(totals: list[Array | None], parts: Sequence[Array | None], where: slice, count: int) -> None:
    """Zeros that `_add` adds to: where they fail, nothing of a panel has been added yet."""
    for k, part in enumerate(parts):
        if part is not None and totals[k] is None and where != slice(0, count):
            totals[k] = numpy.zeros((count, *part.shape[1:]))


def _add(totals: list[Array | None], parts: Sequence[Array | None], where: slice, count: int) -> None:
    """Add what a panel says about some of `count` rows; what it says about all of them, first, is taken as it is."""
    for k, part in enumerate(parts):
        total = totals[k]
        if part is None:
            continue
        if total is None:
            assert where == slice(0, count)
            totals[k] = part
        else:
            total[where] += part


def _flat(tensor: Tensor, kept: int) -> list[Tensor]:
    """The members of a batch, as views where possible."""
    shape = tensor.shape[tensor.dim() - kept :]
    return list(tensor.reshape(-1, *shape).unbind(0)) if tensor.dim() > kept else [tensor]


def _members(problem: PairProblem, batch: torch.Size) -> list[PairProblem]:
    """Every member of a batch."""
    if not batch:
        return [problem]
    theta = [t.detach().expand(batch).reshape(-1) for t in problem.theta]
    rows = _separate(batch, problem.rows)
    columns = [None] * len(rows) if problem.columns is None else _separate(batch, problem.columns)
    return [
        dataclasses.replace(problem, theta=[t[k] for t in theta], rows=rows[k], columns=columns[k])
        for k in range(len(rows))
    ]


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


def _joined(batch: torch.Size, symmetric: bool, found: Sequence[Gradients]) -> PairGradient:
    """One gradient of a whole batch from those of its members."""
    by_rows = [_stacked(batch, [f[0][k] for f in found]) for k in range(len(found[0][0]))]
    by_cols = [_stacked(batch, [f[1][k] for f in found]) for k in range(len(found[0][1]))]
    totals = torch.from_numpy(numpy.stack([f[2] for f in found])).reshape(*batch, -1)
    return PairGradient(by_rows, [] if symmetric else by_cols, list(totals.unbind(-1)))


def _stacked(batch: torch.Size, parts: Sequence[Array | None]) -> Tensor | None:
    found = [part for part in parts if part is not None]
    if not found:
        return None
    whole = found[0][None] if len(found) == 1 else numpy.stack(found)  # of one model, no copy
    return contiguous_copy(torch.from_numpy(whole)).reshape(*batch, *whole.shape[1:])
