"""Running compiled loops over all tiles of one model: packing, tile lists, threads, float64 totals."""

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy
import torch
from torch import Tensor

from flashgp.foundations.form import Form, Rows
from flashgp.pairwise.compiling import compiling
from flashgp.pairwise.cpu.generation import compiled
from flashgp.pairwise.cpu.layout import Statistic, block_size, layout_of, packed, packed_columns
from flashgp.pairwise.cpu.pool import run_together, workers
from flashgp.pairwise.program import program_of
from flashgp.pairwise.source_cache import warn_not_kept

__all__ = ["CompiledPairs", "compile_seconds"]

CHUNK = 32  # tiles between two looks at whether to stop
LEAST_TILES = 8  # per worker: fewer and starting a thread costs more than it brings
_seconds: dict[str, float] = {}
Array = numpy.ndarray


def compile_seconds() -> float:
    """Seconds this process has spent compiling pair loops or loading them from the cache."""
    return sum(_seconds.values())


class CompiledPairs:
    """The pairs of one model, packed; call `product`, `block` or `gradient`.

    Args:
        form, theta: the covariance function, theta one number each; rows, cols: one model's, cols None for the rows
            themselves; dtype: float32 or float64, of the loops.
    """

    def __init__(
        self,
        form: Form,
        theta: Sequence[float],
        rows: Rows,
        cols: Rows | None,
        dtype: torch.dtype,
    ) -> None:
        self.form, self.dtype, self.symmetric = form, dtype, cols is None
        rows, cols = rows.detach(), None if cols is None else cols.detach()
        other = rows if cols is None else cols
        self.n, self.m = rows.count, other.count
        self.widths = [f.shape[-1] if f.is_floating_point() else 0 for f in rows.features]  # columns, unpadded
        self.layout, centres = layout_of(form, rows, other, dtype)
        self.size = block_size(self.layout, rows)
        self.theta: Array = numpy.array([float(t) for t in theta], dtype=self.real)
        self.arguments: list[Any] = []
        for index, (statistic, centre) in enumerate(zip(self.layout, centres, strict=True)):
            left = self._pack(statistic, rows.features[index], centre)
            right = left if cols is None else self._pack(statistic, cols.features[index], centre)
            self.arguments += [left[0], right[0]]
            if len(left) > 1:
                self.arguments += [left[1], right[1], self._least(left[1], right[1])]
        for a, b in zip(rows.scalars, other.scalars, strict=True):
            self.arguments += [self._columns(a, "last"), self._columns(b, "last")]
        self.module: ModuleType = compiled(form, self.layout, dtype)

    @property
    def real(self) -> type:
        return numpy.float32 if self.dtype == torch.float32 else numpy.float64

    def _pack(self, statistic: Statistic, feature: Tensor, centre: Array) -> list[Array]:
        if statistic.kind == "match":
            return [packed_columns(feature.numpy().astype(numpy.int32), self.size)]
        return packed(feature.numpy(), centre, statistic, self.size, self.real)

    def _least(self, left: Array, right: Array) -> Any:
        """Squared distances up to this are rounding, and are 0: equal rows have distance exactly 0."""
        return self.real(2.0 * torch.finfo(self.dtype).eps * (float(left.max()) + float(right.max())))

    def _columns(self, values: Tensor, pad: str) -> Array:
        return packed_columns(values.detach().numpy().astype(self.real, copy=False), self.size, pad)

    # -- the three computations -------------------------------------------------------------------------------------
    def product(self, right: Tensor) -> Tensor:
        """K @ right, (n, t), float64; right (m, t). Cost: n m pairs, half of them when symmetric."""
        cols = self._columns(right.mT, "zero")
        rows = cols if self.symmetric else cols[:1]
        blocks = -(-self.n // self.size)
        outs = self._run("product", [rows, cols], lambda: [numpy.zeros((blocks, right.shape[1], self.size))])
        return self._unpacked(_sum(outs, 0))

    def block(self, out: Tensor) -> None:
        """K into `out` (n, m), its upper triangle only when symmetric."""
        self._run("block", [], lambda: [out.numpy()])

    def gradient(self, left: Tensor, right: Tensor) -> tuple[list[Tensor | None], list[Tensor | None], Tensor]:
        """Gradients of sum(left right^T * K) by tensors of rows, of cols (the same list when symmetric), by theta.

        When symmetric, left right^T must be symmetric, and twice the weights: see `CpuTiles`.
        """
        program = program_of(self.form)
        rows, cols = -(-self.n // self.size), -(-self.m // self.size)
        shapes: list[tuple[int, ...]] = []
        for symbol in program.present:
            if symbol.kind == "left":
                shapes.append((rows, self.size))
            elif symbol.kind == "right":
                shapes.append((cols, 1, self.size))
            elif symbol.kind != "parameter":
                d = self.widths[symbol.index]
                shapes += [(rows, d, self.size), (cols, d, self.size)]
        shapes.append((max(1, self.form.parameter_count),))
        outs = self._run(
            "gradient",
            [self._columns(left.mT, "zero"), self._columns(right.mT, "zero")],
            lambda: [numpy.zeros(shape) for shape in shapes],
        )
        count = len(self.form.statistics)
        by_rows: list[Tensor | None] = [None] * (count + self.form.scalar_count)
        by_cols: list[Tensor | None] = [None] * (count + self.form.scalar_count)
        at = 0
        for symbol in program.present:
            if symbol.kind == "left":
                by_rows[count + symbol.index] = torch.from_numpy(_sum(outs, at)).reshape(-1)[: self.n]
                at += 1
            elif symbol.kind == "right":
                by_cols[count + symbol.index] = torch.from_numpy(_sum(outs, at)).reshape(-1)[: self.m]
                at += 1
            elif symbol.kind != "parameter":
                by_rows[symbol.index] = self._unpacked(_sum(outs, at))[: self.n]
                by_cols[symbol.index] = self._unpacked(_sum(outs, at + 1), self.m)
                at += 2
        if self.symmetric:
            by_rows = [_added(a, b) for a, b in zip(by_rows, by_cols, strict=True)]
        return by_rows, by_cols, torch.from_numpy(_sum(outs, at))[: self.form.parameter_count]

    def _unpacked(self, blocks: Array, count: int | None = None) -> Tensor:
        """(blocks, k, B) to (n, k)."""
        whole = torch.from_numpy(blocks).movedim(1, 2).reshape(-1, blocks.shape[1])
        return whole[: self.n if count is None else count]

    # -- tiles and threads --------------------------------------------------------------------------------------------
    def tiles(self) -> Array:
        """Block numbers (i, j), of the upper triangle when symmetric."""
        rows, cols = -(-self.n // self.size), -(-self.m // self.size)
        if self.symmetric:
            i, j = numpy.triu_indices(rows)
        else:
            i, j = (a.ravel() for a in numpy.mgrid[:rows, :cols])
        return numpy.stack([i, j], axis=1).astype(numpy.int64)

    def _run(self, name: str, extra: Sequence[Array], make: Callable[[], list[Array]]) -> list[list[Array]]:
        """Every tile once; one set of outputs per worker, always the same tiles in the same order."""
        tiles = self.tiles()
        count = max(1, min(workers(), len(tiles) // LEAST_TILES))
        head = (self.n, self.m, self.size, self.symmetric, self.theta, *self.arguments, *extra)
        function = self._ready(name, head, make)
        outs = [make() for _ in range(count)]

        def task(worker: int) -> Callable[[threading.Event], None]:
            mine = numpy.ascontiguousarray(tiles[worker::count])

            def work(stop: threading.Event) -> None:
                for start in range(0, len(mine), CHUNK):
                    if stop.is_set():
                        return
                    function(mine[start : start + CHUNK], *head, *outs[worker])

            return work

        run_together([task(worker) for worker in range(count)])
        return outs

    def _ready(self, name: str, head: tuple[Any, ...], make: Callable[[], list[Array]]) -> Callable[..., None]:
        """The compiled function; compiling is timed apart, and a cache that cannot be read is made anew."""
        function = getattr(self.module, name)
        key = f"{self.module.__name__}.{name}"
        if key in _seconds:
            return function
        with compiling():
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
        return function


def _keep_nothing(function: Any) -> None:
    """Compile from now on without numba's files; numba has no public name for that after the decorator."""
    from numba.core.caching import NullCache

    function._cache = NullCache()


def _forget_cache(module: ModuleType) -> bool:
    """Remove numba's files of a generated module; whether there were any."""
    path = Path(str(module.__file__))
    found = False
    for file in (path.parent / "__pycache__").glob(f"{path.stem}.*.nb?"):
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


def _added(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return a if b is None else b if a is None else a + b
