"""Running compiled loops over all tiles of one model: packing, tile lists, threads, float64 totals."""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy
import torch
from torch import Tensor

from flashgp.foundations.form import Form
from flashgp.foundations.lazy_import import no_forks
from flashgp.foundations.workspace import Workspace
from flashgp.pairwise.cpu.generation import compiled
from flashgp.pairwise.cpu.layout import (
    PACKED_ROWS,
    Statistic,
    block_size,
    fill_columns,
    layout_of,
    narrow_codes,
    packed,
    packed_columns,
)
from flashgp.pairwise.cpu.pool import run_together, workers
from flashgp.pairwise.near.tile_lists import EveryTile, every_tile
from flashgp.pairwise.problem import PairProblem
from flashgp.pairwise.program.families import indexed
from flashgp.pairwise.program.source_cache import warn_not_kept

CHUNK_PAIRS = 2**23  # pairs between two looks at whether to stop
TITLE = "compiled backend"  # in reports
MIN_TILES = 3  # per worker: fewer and starting a thread costs more than it brings
_seconds: dict[str, float] = {}  # of compiling, by generated function
# Layouts and dtypes with a compiled function, by form and computation.
_compiled: dict[tuple[Form, str], set[tuple[tuple[Statistic, ...], torch.dtype]]] = {}
Array = numpy.ndarray
Gradients = tuple[list[Array | None], list[Array | None], Array]  # by arrays of rows, of cols, by theta


def compile_seconds() -> float:
    """Seconds this process has spent compiling pair loops or loading them from the cache."""
    return sum(_seconds.values())


class NotCompiledError(Exception):
    """The caller does not wait for a compile, and this process has not compiled the loops for such a layout."""


def is_compiled(form: Form, computation: str) -> bool:
    """True if this process has compiled a computation of a form, for some layout of its rows."""
    return (form, computation) in _compiled


class CompiledPairs:
    """The pairs of one model, packed for one computation: call the method of that name.

    All but `block` use the packed rows up: they are given back before a result is laid out.

    Args:
        problem: one model, without a batch.
        computation: "product", "block", "gradient" or "block_gradient".
        dtype: of the loops; where float32 would cost digits, they run in float64: see `layout_of`.
        workspace: records the backend and the seconds of compiling.
        wait: seconds that a compile may take; 0 for loops that this process has compiled already.
    Raises: NotCompiledError, before any row is packed, for loops that are not compiled yet unless `wait`, or that would
        be compiled after the deadline of the workspace.
    Cost: a few passes over the features.
    """

    def __init__(
        self,
        problem: PairProblem,
        computation: str,
        dtype: torch.dtype,
        workspace: Workspace | None = None,
        wait: float = math.inf,
    ) -> None:
        form, theta, near = problem.form, [float(t) for t in problem.theta], problem.near
        rows, cols = problem.rows, problem.columns
        rows = rows.detach()
        other = rows if cols is None else cols.detach()
        pulled = computation in ("gradient", "block_gradient")
        layout, centres, dtype = layout_of(form, theta, rows, other, dtype, pulled=pulled)
        if (layout, dtype) not in _compiled.get((form, computation), ()):
            late = workspace is not None and workspace.deadline.passed(wait)
            if not wait or (late and not _is_kept(compiled(form, layout, dtype), computation)):
                raise NotCompiledError
        size = block_size(layout, rows) if near is None else near.size
        real = numpy.float32 if dtype == torch.float32 else numpy.float64
        arguments: list[Any] = []
        given = (rows,) if cols is None else (rows, other)
        for numbers in indexed(form, layout).statistics:
            statistic = layout[numbers[0]]
            sides = [[side.features[k].numpy() for k in numbers] for side in given]
            if statistic.kind == "match":
                left, *others = (
                    [packed_columns(c, size, numpy.int32)[None]] for c in narrow_codes(*(s for (s,) in sides))
                )
            else:
                left, *others = (packed(s, [centres[k] for k in numbers], statistic, size, real) for s in sides)
            arguments += paired(left, others[0] if others else left, len(numbers) > 1, real)
        for a, b in zip(rows.scalars, other.scalars, strict=True):
            arguments += [packed_columns(side.numpy(), size, real) for side in (a, b)]
        self.computation, self.workspace, self.near = computation, workspace or Workspace(), near
        self.form, self.layout, self.arguments = form, layout, arguments
        self.n, self.m, self.size, self.symmetric = rows.count, other.count, size, cols is None
        self.widths = [f.shape[-1] if f.is_floating_point() else 0 for f in rows.features]  # before padding
        self.real, self.dtype = real, dtype
        self.indexed = indexed(form, layout)
        # Parameters in the order of the loops; `_pulled` brings their derivatives back to that of the form.
        self._places = [k for numbers in self.indexed.parameters for k in numbers]
        self.theta: Array = numpy.array([theta[k] for k in self._places], dtype=self.real)
        self.module: ModuleType = compiled(form, layout, dtype)

    def _columns(self, *parts: Tensor) -> Array:
        """Right-hand sides (n, t), one after another, as blocks (blocks, t, B) padded with zeros."""
        count, width = parts[0].shape[0], sum(part.shape[1] for part in parts)
        out = numpy.zeros((-(-count // self.size), width, self.size), self.real)
        at = 0
        for part in parts:
            fill_columns(out[:, at : at + part.shape[1]], part.detach().numpy().T, "zero")
            at += part.shape[1]
        return out

    # -- the computations -------------------------------------------------------------------------------------
    def product(self, right: Tensor) -> Array:
        """K @ right in blocks (blocks, t, B), float64; right (m, t). Cost: n m pairs, half of them when symmetric."""
        cols = self._columns(right)
        rows = cols if self.symmetric else cols[:1]
        blocks = -(-self.n // self.size)
        outs = self._run([rows, cols], lambda: [numpy.zeros((blocks, right.shape[1], self.size))])
        self.arguments = []
        return _sum([out.pop() for out in outs])

    def block(self, out: Array, *, both: bool = False) -> None:
        """K into `out` (n, m); when symmetric its upper triangle, or both."""
        self._run([], lambda: [out, both])

    def gradient(self, left: Sequence[Tensor], right: Sequence[Tensor]) -> Gradients:
        """Gradients of sum(U V^T * K) by arrays of rows, of cols (the same list when symmetric), by theta.

        Args: left, right: parts of U (n, t) and V (m, t), one beside another.
        When symmetric, U V^T must be symmetric, and twice the weights: see `CpuTiles`.
        """
        return self._pulled([self._columns(*left), self._columns(*right)])

    def block_gradient(self, weights: Array) -> Gradients:
        """Gradients of sum(weights * K), weights (n, m), contiguous; symmetric with K."""
        return self._pulled([weights.astype(self.real, copy=False)])

    def _pulled(self, weights: list[Array]) -> Gradients:
        slots = self._slots()
        outs = self._run(weights, lambda: self._room(slots))
        self.arguments = []
        weights.clear()
        theta = numpy.zeros(self.form.parameter_count)
        theta[self._places] = _sum([out.pop() for out in outs])[: self.form.parameter_count]
        workers = [dict(zip(slots, out, strict=True)) for out in outs]
        outs.clear()
        own = self.indexed.statistics
        by_rows: list[Array | None] = [None] * (len(self.form.statistics) + self.form.scalar_count)
        by_cols = by_rows if self.symmetric else list(by_rows)
        for slot in list(workers[0]):  # one after another: what is laid out is given back
            of_cols, at = slot
            total = _sum([sums.pop(slot) for sums in workers])
            count, found = self.m if of_cols else self.n, by_cols if of_cols else by_rows
            if at >= len(own):
                found[len(self.form.statistics) + at - len(own)] = _unpacked(total, count)[:, 0]
                continue
            for member, k in enumerate(own[at]):
                found[k] = _unpacked(total[member] if len(own[at]) > 1 else total, count)[:, : self.widths[k]]
        return by_rows, by_cols, theta

    def _slots(self) -> list[tuple[bool, int]]:
        """(whether of the columns, number among the loops' statistics and scalars) of what a gradient adds to.

        In the order of the generated functions. When symmetric, both sides are the rows.
        """
        count, sided = len(self.indexed.statistics), not self.symmetric
        slots: list[tuple[bool, int]] = []
        for symbol in (slope.symbol for slope in self.indexed.slopes):
            if symbol.kind in ("left", "right"):
                slots.append((sided and symbol.kind == "right", count + symbol.index))
            elif symbol.kind != "parameter":
                slots += [(False, symbol.index), (sided, symbol.index)]
        return slots

    def _room(self, slots: Sequence[tuple[bool, int]]) -> list[Array]:
        """Zeros for the sums of one worker, one array per slot however often it is named, and those by theta."""
        found: dict[tuple[bool, int], Array] = {}
        for slot in slots:
            of_cols, at = slot
            blocks = -(-(self.m if of_cols else self.n) // self.size)
            if slot not in found:
                numbers = self.indexed.statistics[at] if at < len(self.indexed.statistics) else ()
                width = max((self.widths[k] for k in numbers), default=1)
                members = (len(numbers),) if len(numbers) > 1 else ()
                found[slot] = numpy.zeros((*members, blocks, width, self.size))
        return [*(found[slot] for slot in slots), numpy.zeros(max(1, self.form.parameter_count))]

    # -- tiles and threads --------------------------------------------------------------------------------------------
    def tiles(self) -> Array | EveryTile:
        """Block numbers (i, j), of the upper triangle when symmetric; those that are near where some are far."""
        if self.near is not None:
            return self.near.pairs
        return every_tile(-(-self.n // self.size), -(-self.m // self.size), self.symmetric)

    def _run(self, extra: Sequence[Array], make: Callable[[], list[Any]]) -> list[list[Any]]:
        """Every tile once; one set of outputs per worker, always the same tiles in the same order."""
        tiles = self.tiles()
        count = max(1, min(workers(), len(tiles) // MIN_TILES))
        head = (self.n, self.m, self.size, self.symmetric, self.theta, *self.arguments, *extra)
        function = self._ready(head, make)
        outs = [make() for _ in range(count)]
        chunk = max(1, CHUNK_PAIRS // self.size**2)
        if count == 1 and len(tiles) <= chunk:
            function(numpy.ascontiguousarray(tiles[:]), *head, *outs[0])
            return outs

        def task(worker: int) -> Callable[[threading.Event], None]:
            def work(stop: threading.Event) -> None:
                for start in range(worker, len(tiles), count * chunk):
                    if stop.is_set():
                        return
                    mine = tiles[start : start + count * chunk : count]
                    function(numpy.ascontiguousarray(mine), *head, *outs[worker])

            return work

        run_together([task(worker) for worker in range(count)])
        return outs

    def _ready(self, head: tuple[Any, ...], make: Callable[[], list[Any]]) -> Callable[..., None]:
        """The compiled function; compiling is timed apart, and a cache that cannot be read is rebuilt."""
        function = getattr(self.module, self.computation)
        key = f"{self.module.__name__}.{self.computation}"
        if key in _seconds:
            self._is_ready(0.0)
            return function
        with no_forks():
            began = time.perf_counter()
            nothing = numpy.zeros((0, 2), numpy.int64)
            try:
                function(nothing, *head, *make())
            except OSError as error:  # compiled, but not kept: the disk is full
                _keep_nothing(function)
                warn_not_kept(str(Path(str(self.module.__file__)).parent), error.strerror or str(error))
                function(nothing, *head, *make())
            except Exception:
                if not _forget_cache(self.module):
                    raise
                function.enable_caching()
                function(nothing, *head, *make())
            _seconds[key] = time.perf_counter() - began
        self._is_ready(_seconds[key])
        return function

    def _is_ready(self, seconds: float) -> None:
        """Forms may share a module: each is known by what it has asked for."""
        _compiled.setdefault((self.form, self.computation), set()).add((self.layout, self.dtype))
        self.workspace.ran(TITLE, seconds)


def _is_kept(module: ModuleType, computation: str) -> bool:
    """True if some process has compiled a function of a module, for this processor unless others share the folder, and
    numba has kept it."""
    path = Path(str(module.__file__))
    return any((path.parent / "__pycache__").glob(f"{path.stem}.{computation}-*.nbi"))


def _cache_files(module: ModuleType) -> Iterator[Path]:
    path = Path(str(module.__file__))
    return (path.parent / "__pycache__").glob(f"{path.stem}.*-*.nb?")


def _keep_nothing(function: Any) -> None:
    """Compile from now on without numba's files; numba has no public name for that after the decorator."""
    from numba.core.caching import NullCache

    function._cache = NullCache()


def _forget_cache(module: ModuleType) -> bool:
    """Remove numba's files of a generated module; whether there were any."""
    found = False
    for file in list(_cache_files(module)):
        with contextlib.suppress(OSError):
            file.unlink()
            found = True
    return found


def _sum(parts: list[Array]) -> Array:
    """The workers' totals, added in a fixed order; the list is used up."""
    total = parts.pop(0)
    while parts:
        total += parts.pop(0)
    return total


def paired(left: Sequence[Array], right: Sequence[Array], family: bool, real: type) -> list[Any]:
    """Packed arrays of one statistic for the loops: both sides, without the axis of members where it has none.

    With norms also the squared distances up to which they are rounding, and taken as 0: equal rows have distance
    exactly 0.
    """
    found: list[Any] = []
    for one, other in zip(left, right, strict=True):
        found += [one, other] if family else [one[0], other[0]]
    if len(left) > 1:
        reach = left[1].max((1, 2)).astype(float) + right[1].max((1, 2))
        least = (2.0 * numpy.finfo(real).eps * reach).astype(real)
        found.append(least if family else least[0])
    return found


def _unpacked(blocks: Array, count: int) -> Array:
    """(blocks, k, B) to (count, k)."""
    return blocks.transpose(0, 2, 1).reshape(-1, blocks.shape[1])[:count]


def add_blocks(out: Array, blocks: Array) -> None:
    """out (n, k) += blocks (blocks, k, B) without a copy of all of them."""
    size = blocks.shape[-1]
    step = max(1, PACKED_ROWS // size)
    for first in range(0, len(blocks), step):
        rows = out[first * size : (first + step) * size]
        rows += _unpacked(blocks[first : first + step], len(rows))
