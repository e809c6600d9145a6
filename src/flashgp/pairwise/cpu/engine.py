"""Running compiled loops over all tiles of one model: packing, tile lists, threads, float64 totals."""

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy
import torch
from torch import Tensor

from flashgp.foundations.forks import no_forks
from flashgp.foundations.form import Form, Rows
from flashgp.foundations.workspace import Workspace
from flashgp.pairwise.cpu.generation import compiled
from flashgp.pairwise.cpu.layout import Statistic, block_size, layout_of, packed, packed_columns
from flashgp.pairwise.cpu.pool import run_together, workers
from flashgp.pairwise.cpu.readiness import NotReadyError, made_ready
from flashgp.pairwise.near import NearTiles
from flashgp.pairwise.program import program_of
from flashgp.pairwise.source_cache import warn_not_kept

__all__ = ["CompiledPairs", "Gradients", "compile_seconds", "is_cached"]

CHUNK_PAIRS = 2**23  # pairs between two looks at whether to stop
TITLE = "compiled loops"  # in reports
LEAST_TILES = 8  # per worker: fewer and starting a thread costs more than it brings
_seconds: dict[str, float] = {}
Array = numpy.ndarray
Gradients = tuple[list[Array | None], list[Array | None], Array]  # by arrays of rows, of cols, by theta


def compile_seconds() -> float:
    """Seconds this process has spent compiling pair loops or loading them from the cache."""
    return sum(_seconds.values())


class CompiledPairs:
    """The pairs of one model, packed; call `product`, `block`, `gradient` or `block_gradient`.

    Args: make one with `of`, or with
        form, theta: the covariance function, theta one number each; layout: how its statistics are evaluated;
        arguments: the packed rows and columns in the order of the generated functions; n, m: rows and columns;
        widths: columns of each feature before padding; size: rows of a block; dtype: float32 or float64, of the
        loops; symmetric: the columns are the rows; workspace: hears what ran and what compiling took; near: the tiles
        to evaluate, None for all; wait: for a compile, else only for loops that are in the cache.
    Raises (by its computations): NotReadyError where it must not wait for the loops.
    """

    def __init__(
        self,
        form: Form,
        theta: Sequence[float],
        layout: tuple[Statistic, ...],
        arguments: Sequence[Any],
        n: int,
        m: int,
        widths: Sequence[int],
        size: int,
        dtype: torch.dtype,
        symmetric: bool,
        workspace: Workspace | None = None,
        near: NearTiles | None = None,
        wait: bool = True,
    ) -> None:
        self.workspace, self.near, self.wait = workspace or Workspace(), near, wait
        self.form, self.layout, self.arguments = form, layout, arguments
        self.n, self.m, self.widths, self.size, self.symmetric = n, m, widths, size, symmetric
        self.real = numpy.float32 if dtype == torch.float32 else numpy.float64
        self.theta: Array = numpy.array(theta, dtype=self.real)
        self.module: ModuleType = compiled(form, layout, dtype)

    @classmethod
    def of(
        cls,
        form: Form,
        theta: Sequence[float],
        rows: Rows,
        cols: Rows | None,
        dtype: torch.dtype,
        workspace: Workspace | None = None,
        tiles: NearTiles | None = None,
        *,
        pulled: bool = False,
        wait: bool = True,
    ) -> "CompiledPairs":
        """The pairs of rows with cols, or with themselves when cols is None.

        Args: tiles: what to evaluate, everything by default; pulled: for a gradient; wait: for a compile.
        Where float32 would cost digits, the loops run in float64: see `layout_of`.
        Cost: a few passes over the features.
        """
        rows = rows.detach()
        other = rows if cols is None else cols.detach()
        layout, centres, dtype = layout_of(form, theta, rows, other, dtype, pulled=pulled)
        size = block_size(layout, rows) if tiles is None else tiles.size
        real = numpy.float32 if dtype == torch.float32 else numpy.float64
        arguments: list[Any] = []
        for index, (statistic, centre) in enumerate(zip(layout, centres, strict=True)):
            left = _packed(rows.features[index].numpy(), centre, statistic, size, real)
            right = left if cols is None else _packed(other.features[index].numpy(), centre, statistic, size, real)
            arguments += [left[0], right[0]]
            if len(left) > 1:
                arguments += [left[1], right[1], _least(left[1], right[1], real)]
        for a, b in zip(rows.scalars, other.scalars, strict=True):
            arguments += [packed_columns(side.numpy().astype(real, copy=False), size) for side in (a, b)]
        widths = [f.shape[-1] if f.is_floating_point() else 0 for f in rows.features]
        counts = rows.count, other.count
        return cls(form, theta, layout, arguments, *counts, widths, size, dtype, cols is None, workspace, tiles, wait)

    def _columns(self, values: Tensor) -> Array:
        """Right-hand sides (t, n) in blocks, padded with zeros."""
        return packed_columns(values.detach().numpy().astype(self.real, copy=False), self.size, "zero")

    # -- the computations -------------------------------------------------------------------------------------
    def product(self, right: Tensor) -> Tensor:
        """K @ right, (n, t), float64; right (m, t). Cost: n m pairs, half of them when symmetric."""
        cols = self._columns(right.mT)
        rows = cols if self.symmetric else cols[:1]
        blocks = -(-self.n // self.size)
        outs = self._run("product", [rows, cols], lambda: [numpy.zeros((blocks, right.shape[1], self.size))])
        return torch.from_numpy(_unpacked(_sum(outs, 0), self.n))

    def block(self, out: Array, *, both: bool = False) -> None:
        """K into `out` (n, m); when symmetric its upper triangle, or both."""
        self._run("block", [], lambda: [out, both])

    def gradient(self, left: Tensor, right: Tensor) -> Gradients:
        """Gradients of sum(left right^T * K) by arrays of rows, of cols (the same list when symmetric), by theta.

        When symmetric, left right^T must be symmetric, and twice the weights: see `CpuTiles`.
        """
        return self._pulled("gradient", [self._columns(left.mT), self._columns(right.mT)])

    def block_gradient(self, weights: Array) -> Gradients:
        """The same of sum(weights * K), weights (n, m), contiguous; symmetric with K."""
        return self._pulled("block_gradient", [weights.astype(self.real, copy=False)])

    def _pulled(self, name: str, weights: Sequence[Array]) -> Gradients:
        rows, cols = -(-self.n // self.size), -(-self.m // self.size)
        present = program_of(self.form).present
        shapes: list[tuple[int, ...]] = []
        for symbol in present:
            if symbol.kind == "left":
                shapes.append((rows, 1, self.size))
            elif symbol.kind == "right":
                shapes.append((cols, 1, self.size))
            elif symbol.kind != "parameter":
                d = self.widths[symbol.index]
                shapes += [(rows, d, self.size), (cols, d, self.size)]
        shapes.append((max(1, self.form.parameter_count),))
        outs = self._run(name, weights, lambda: [numpy.zeros(shape) for shape in shapes])
        totals = (_sum(outs, at) for at in range(len(shapes)))
        count = len(self.form.statistics)
        by_rows: list[Array | None] = [None] * (count + self.form.scalar_count)
        by_cols: list[Array | None] = [None] * (count + self.form.scalar_count)
        for symbol in present:
            if symbol.kind == "left":
                by_rows[count + symbol.index] = _unpacked(next(totals), self.n)[:, 0]
            elif symbol.kind == "right":
                by_cols[count + symbol.index] = _unpacked(next(totals), self.m)[:, 0]
            elif symbol.kind != "parameter":
                by_rows[symbol.index] = _unpacked(next(totals), self.n)
                by_cols[symbol.index] = _unpacked(next(totals), self.m)
        if self.symmetric:
            by_rows = [_added(a, b) for a, b in zip(by_rows, by_cols, strict=True)]
        return by_rows, by_cols, next(totals)[: self.form.parameter_count]

    # -- tiles and threads --------------------------------------------------------------------------------------------
    def tiles(self) -> Array:
        """Block numbers (i, j), of the upper triangle when symmetric; those that are near where some are far."""
        if self.near is not None:
            return self.near.pairs
        return _tiles(-(-self.n // self.size), -(-self.m // self.size), self.symmetric)

    def _run(self, name: str, extra: Sequence[Array], make: Callable[[], list[Any]]) -> list[list[Any]]:
        """Every tile once; one set of outputs per worker, always the same tiles in the same order."""
        tiles = self.tiles()
        count = max(1, min(workers(), len(tiles) // LEAST_TILES))
        head = (self.n, self.m, self.size, self.symmetric, self.theta, *self.arguments, *extra)
        function = self._ready(name, head, make)
        outs = [make() for _ in range(count)]
        chunk = max(1, CHUNK_PAIRS // self.size**2)
        if count == 1 and len(tiles) <= chunk:
            function(numpy.ascontiguousarray(tiles), *head, *outs[0])
            return outs

        def task(worker: int) -> Callable[[threading.Event], None]:
            mine = numpy.ascontiguousarray(tiles[worker::count])

            def work(stop: threading.Event) -> None:
                for start in range(0, len(mine), chunk):
                    if stop.is_set():
                        return
                    function(mine[start : start + chunk], *head, *outs[worker])

            return work

        run_together([task(worker) for worker in range(count)])
        return outs

    def _ready(self, name: str, head: tuple[Any, ...], make: Callable[[], list[Any]]) -> Callable[..., None]:
        """The compiled function; compiling is timed apart, and a cache that cannot be read is made anew."""
        function = getattr(self.module, name)
        key = f"{self.module.__name__}.{name}"
        if key in _seconds:
            made_ready(self.form, name)
            self.workspace.ran(TITLE)
            return function
        if not self.wait and not is_cached(self.module, name):
            raise NotReadyError
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
        made_ready(self.form, name)
        self.workspace.ran(TITLE, _seconds[key])
        return function


@functools.lru_cache(maxsize=32)
def _tiles(rows: int, cols: int, symmetric: bool) -> Array:
    i, j = numpy.triu_indices(rows) if symmetric else (a.ravel() for a in numpy.mgrid[:rows, :cols])
    return numpy.stack([i, j], axis=1).astype(numpy.int64)


def is_cached(module: ModuleType, function: str = "*") -> bool:
    """Whether an earlier process left compiled code of a generated module, or of one of its functions."""
    return any(_cache_files(module, function))


def _cache_files(module: ModuleType, function: str = "*") -> Iterator[Path]:
    path = Path(str(module.__file__))
    return (path.parent / "__pycache__").glob(f"{path.stem}.{function}-*.nb?")


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


def _sum(outs: list[list[Array]], at: int) -> Array:
    """The workers' totals, added in a fixed order."""
    total = outs[0][at]
    for other in outs[1:]:
        total += other[at]
    return total


def _packed(feature: Array, centre: Array, statistic: Statistic, size: int, real: type) -> list[Array]:
    if statistic.kind == "match":
        return [packed_columns(feature.astype(numpy.int32), size)]
    return packed(feature, centre, statistic, size, real)


def _least(left: Array, right: Array, real: type) -> Any:
    """Squared distances up to this are rounding, and are 0: equal rows have distance exactly 0."""
    return real(2.0 * numpy.finfo(real).eps * (float(left.max()) + float(right.max())))


def _unpacked(blocks: Array, count: int) -> Array:
    """(blocks, k, B) to (count, k)."""
    return blocks.transpose(0, 2, 1).reshape(-1, blocks.shape[1])[:count]


def _added(a: Array | None, b: Array | None) -> Array | None:
    return a if b is None else b if a is None else a + b
