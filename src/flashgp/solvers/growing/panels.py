"""A Cholesky factor that grows and shrinks: rows in panels, so that growth copies nothing that is there.

    append   S = L^-1 K_on,  C C^T = K_nn - S^T S,  L' = [[L, 0], [S^T, C]]                          (M-111)
    remove   L' L'^T = L_2 L_2^T + V V^T with V the columns of the rows that go, in the rows that stay  (M-112)

A panel holds the rows from `start` on with everything left of them; its memory has spare rows. A factor is a value: who
appends to it first claims a spare row under a lock and writes there, where the older factor does not look; any other
gets a copy of the last panel. The factor that conditioning made is the first panel, as it is.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor

from flashgp.foundations.errors import NotPositiveDefiniteError
from flashgp.foundations.profile_ranges import profiled
from flashgp.foundations.workspace import Workspace
from flashgp.solvers.direct.cholesky import TriangularFactor
from flashgp.solvers.direct.solved_rows import solved
from flashgp.solvers.direct.strided import STRIP, Array, Triangle, solve_triangle_, update_triangle
from flashgp.solvers.growing.buffers import BufferPool, Memory

MIN_ROWS, MAX_ROWS = 64, 1024  # of a panel that is made for more rows than are known yet; n / 2 between
SPARE_AFTER_REMOVAL = 16  # rows: a window that slides claims them one by one
MAX_RUNS = 16  # runs of columns that are copied run by run; more are gathered entry by entry
PIVOT = 10.0  # times the rounding of a pivot: what is below may be all rounding


@dataclass(frozen=True)
class _Panel:
    """Fields: numbers, of which the first rows are the panel's; their count; start; memory, which the numbers are, None
    where there are no spare rows."""

    numbers: Tensor
    count: int
    start: int
    memory: Memory | None = None

    @classmethod
    def of(cls, memory: Memory, count: int, start: int) -> "_Panel":
        """The first rows of a memory."""
        return cls(memory.numbers, count, start, memory)

    @property
    def stop(self) -> int:
        return self.start + self.count

    @functools.cached_property
    def rows(self) -> Tensor:
        """(count, start + count), of which entries above the diagonal are undefined."""
        return self.numbers[: self.count, : self.stop]

    @property
    def left(self) -> Tensor:
        return self.rows[:, : self.start]

    @property
    def triangle(self) -> Tensor:
        return self.rows[:, self.start :]

    @functools.cached_property
    def for_vectors(self) -> tuple[Array, Triangle] | None:
        """(the numbers, the triangle) for NumPy and BLAS; None where these do not reach them."""
        triangle = Triangle.of(self.triangle)
        return None if triangle is None else (self.numbers.numpy(), triangle)

    def with_rows(self, count: int) -> "_Panel":
        """More of them, which its memory has, or its first ones; what follows in memory stays taken."""
        panel, known = _Panel(self.numbers, count, self.start, self.memory), self.__dict__.get("for_vectors")
        if known is not None:  # the same place
            panel.__dict__["for_vectors"] = known
        return panel


class PanelFactor:
    """A lower Cholesky factor in panels of rows; see TriangularFactor, without a batch.

    Args: panels, in order; jitter (), absolute; attempts, the relative jitters tried.
    """

    def __init__(
        self, panels: Sequence[_Panel], jitter: Tensor, attempts: list[float], pool: BufferPool | None = None
    ) -> None:
        self._panels = tuple(panels)
        self.jitter, self.attempts = jitter, attempts
        self.pool = BufferPool() if pool is None else pool

    def _with(self, panels: Sequence[_Panel]) -> "PanelFactor":
        return PanelFactor(panels, self.jitter, self.attempts, self.pool)

    @classmethod
    def of(cls, factor: TriangularFactor) -> "PanelFactor":
        """A factor as one panel, without a copy."""
        if isinstance(factor, PanelFactor):
            return factor
        lower = factor.lower.detach()
        return cls([_Panel(lower, len(lower), 0)], factor.jitter.detach(), factor.attempts)

    # -- what a factor is ------------------------------------------------------------------------------------
    @property
    def count(self) -> int:
        """The number n of rows."""
        return self._panels[-1].stop

    @property
    def panels(self) -> int:
        """Number of panels: about log n / log 1.5 up to 2,000 rows, one more for each 1,000 beyond."""
        return len(self._panels)

    @property
    def dtype(self) -> torch.dtype:
        return self._panels[0].numbers.dtype

    @property
    def device(self) -> torch.device:
        return self._panels[0].numbers.device

    @property
    def lower(self) -> Tensor:
        """L, (n, n), put together, column by column. Cost: n^2 numbers."""
        n = self.count
        whole = torch.zeros(n, n, dtype=self.dtype, device=self.device).mT
        for panel in self._panels:
            whole[panel.start : panel.stop, : panel.start] = panel.left
            whole[panel.start : panel.stop, panel.start : panel.stop] = panel.triangle.tril()
        return whole

    def some_rows(self, start: int, stop: int) -> Tensor:
        """Rows start to stop of L, (stop - start, stop), zero right of the diagonal. Cost: so many numbers."""
        block = torch.zeros(stop - start, stop, dtype=self.dtype, device=self.device)
        for panel in self._panels:
            first, last = max(start, panel.start), min(stop, panel.stop)
            if first < last:
                block[first - start : last - start, :last] = panel.rows[first - panel.start : last - panel.start, :last]
        return block.tril_(start)

    def row(self, i: int) -> Array:
        """L_i to its diagonal, (i + 1,), where it lies; on the CPU."""
        panel = next(panel for panel in self._panels if i < panel.stop)
        numbers: Array = panel.numbers.numpy() if panel.for_vectors is None else panel.for_vectors[0]
        return numbers[i - panel.start, : i + 1]

    @property
    def log_determinant(self) -> Tensor:
        """log |K|, (), float64. Cost: O(n)."""
        diagonal = torch.cat([panel.triangle.diagonal() for panel in self._panels])
        return 2.0 * diagonal.double().log().sum()

    def half_solve(self, rhs: Tensor) -> Tensor:
        """L^-1 rhs for rhs (*batch, n, t), differentiable in rhs. Cost: n^2 t flops, no copy of the factor."""
        return solved(self, rhs, transposed=False)

    def back_solve(self, rhs: Tensor) -> Tensor:
        """L^-T rhs, as `half_solve`."""
        return solved(self, rhs, transposed=True)

    def solve(self, rhs: Tensor) -> Tensor:
        """K^-1 rhs, as `half_solve`. Cost: 2 n^2 t flops."""
        return self.back_solve(self.half_solve(rhs))

    @profiled("triangular solves")
    def solve_rows_(self, rows: Tensor, *, transposed: bool) -> Tensor:
        """L^-1 (or L^-T) of every row of a contiguous (t, n), in its place."""
        if rows.shape[0] == 1 and self.takes_vectors:
            self._solve_vector_(rows[0].numpy(), transposed)
            return rows
        for panel in reversed(self._panels) if transposed else self._panels:
            part, before = rows[:, panel.start : panel.stop], rows[:, : panel.start]
            if not transposed and panel.start:
                part.addmm_(before, panel.left.mT, alpha=-1.0)
            solve_triangle_(panel.triangle, part, transposed=transposed)
            if transposed and panel.start:
                before.addmm_(part, panel.left, alpha=-1.0)
        return rows

    @property
    def takes_vectors(self) -> bool:
        """True if NumPy and BLAS reach all of it, so that one vector or row takes no torch call."""
        return all(panel.for_vectors is not None for panel in self._panels)

    def _solve_vector_(self, vector: Array, transposed: bool) -> None:
        """Solve in place for one (n,) without gaps, with calls that start sooner than torch's."""
        for panel in reversed(self._panels) if transposed else self._panels:
            assert panel.for_vectors is not None
            numbers, triangle = panel.for_vectors
            part, before = vector[panel.start : panel.stop], vector[: panel.start]
            left = numbers[: panel.count, : panel.start] if panel.start else None
            if not transposed and left is not None:
                part -= left @ before
            triangle.solve_(part, transposed=transposed)
            if transposed and left is not None:
                before -= part @ left

    @profiled("triangular solves")
    def half_solve_vector(self, vector: Array) -> Array:
        """L^-1 b in the place of b, (n,) without gaps, in the factor's dtype; where `takes_vectors`."""
        self._solve_vector_(vector, False)
        return vector

    def __reduce__(self) -> tuple[Any, ...]:
        return _whole, (self.lower, self.jitter, self.attempts)

    # -- growing ----------------------------------------------------------------------------------------------------
    @profiled("factorisation")
    def bordered(
        self, cross: Tensor, corner: Tensor, workspace: Workspace | None = None, *, smallest: Tensor | None = None
    ) -> tuple["PanelFactor", Tensor, Tensor]:
        """The factor of [[K, K_on], [K_no, K_nn]], eq. (M-111).

        Args:
            cross: K_no, (k, n); corner: K_nn with noise and jitter, (k, k).
            smallest: pivots of the new rows, (k,), that do not count as positive; None for rounding.
        Returns: the factor, S^T (k, n) and C (k, k).
        Raises: NotPositiveDefiniteError for rows that those before them determine up to rounding, with their number in
            `indices`; this factor stays as it is in any case.
        Cost: n^2 k + n k^2 + k^3 / 3 flops; k rows of memory, or a new panel with spare ones.
        Source: Golub & Van Loan (2013), section 4.2.9.
        """
        n, k = self.count, corner.shape[-1]
        half = self.solve_rows_(cross.to(self.dtype).clone(memory_format=torch.contiguous_format), transposed=False)
        lower = corner_factor(half, corner, smallest)
        panels = self._with_room(k, workspace or Workspace())
        rows = panels[-1].rows[-k:]
        rows[:, :n] = half
        rows[:, n:] = lower
        return self._with(panels), half, lower

    @profiled("factorisation")
    def bordered_by(self, cross: Array, corner: float, workspace: Workspace) -> tuple["PanelFactor", float]:
        """`bordered` by one row, where `takes_vectors`: K_no, (n,), becomes s = L^-1 K_on in its place.

        Returns: the factor and the pivot's root. Raises, cost: as `bordered`.
        """
        self._solve_vector_(cross, False)
        root = _corner_root(corner, float(cross @ cross), len(cross), numpy.finfo(cross.dtype).eps)
        panels = self._with_room(1, workspace)
        last = panels[-1]
        assert last.memory is not None
        assert last.memory.array is not None
        row = last.memory.array[last.count - 1]
        row[: len(cross)] = cross
        row[len(cross)] = root
        return self._with(panels), root

    def _with_room(self, k: int, workspace: Workspace) -> list[_Panel]:
        """The panels with k more rows, which are to be written."""
        n, last = self.count, self._panels[-1]
        count, memory = last.count, last.memory
        if memory is not None and memory.claim(count, k):
            return [*self._panels[:-1], last.with_rows(count + k)]
        # Another one took the row after ours: a copy of a short panel, so that their number stays small.
        short = count <= max(MIN_ROWS, last.start // 2)
        copied = memory is not None and short and count + k <= memory.numbers.shape[0]
        start = last.start if copied else n
        room = max(k + n - start, MIN_ROWS, min(start // 2, MAX_ROWS))
        numbers = workspace.empty((room, start + room), self.dtype, self.device)
        if copied:
            numbers[:count, :n] = last.rows
        kept = self._panels[:-1] if start < n else self._panels
        filled = n - start + k
        return [*kept, _Panel.of(Memory(numbers, filled, self.pool), filled, start)]

    # -- shrinking --------------------------------------------------------------------------------------------------
    @profiled("factorisation")
    def part(
        self,
        kept: Tensor,
        added: Tensor | None = None,
        *,
        whitened: Tensor | None = None,
        spare: int = 0,
        compiled: bool = True,
        workspace: Workspace | None = None,
    ) -> tuple["PanelFactor", Tensor | None]:
        """The factor of some rows and columns of K, and of a diagonal that grew, eq. (M-112).

        Args:
            kept: the rows that stay, (m,) increasing, at least one.
            added: what the diagonal of each of them gains, (m,), zero or more; None for nothing.
            whitened: L^-1 r, (n, p), for residuals r that the rows which stay keep.
            spare: rows that will be appended soon.
            compiled: as `update_triangle`.
        Returns: the factor L', and L'^-1 r of the rows that stay, (m, p), where rotations made it, else None.
        Cost: 2 n^2 flops for each row that goes or whose diagonal grows, from the first such row on; one panel.
        """
        n, m = self.count, len(kept)
        gone = torch.ones(n, dtype=torch.bool, device=kept.device)
        gone[kept] = False
        dropped = gone.nonzero().squeeze(-1)
        grown = kept.new_zeros(0) if added is None else (added > 0).nonzero().squeeze(-1)
        if not len(dropped) and not len(grown):
            return self, whitened
        first = min(int(dropped[0]) if len(dropped) else n, int(grown[0]) if len(grown) else n)
        if first >= m:  # only the last rows go
            staying = (panel for panel in self._panels if panel.start < m)
            cut = [panel if panel.stop <= m else panel.with_rows(m - panel.start) for panel in staying]
            return self._with(cut), None if whitened is None else whitened[:m]
        before = [panel for panel in self._panels if panel.stop <= first]
        after = self._panels[len(before) :]
        start = after[0].start
        room = m - start + max(spare, SPARE_AFTER_REMOVAL)
        numbers = self.pool.take(room, start + room, self.dtype, self.device, workspace or Workspace())
        rows, at = numbers[: m - start, :m], kept[start:]
        runs = _runs(kept[first:], first)
        # One run of one panel is rotated from where it is to where it goes.
        direct = len(after) == 1 and len(runs) == 1 and not len(grown)
        columns = torch.zeros(m - first, len(dropped) + len(grown), dtype=self.dtype, device=self.device)
        for panel in after:
            low, high = (int(i) for i in torch.searchsorted(at, at.new_tensor([panel.start, panel.stop])))
            for a in range(low, high if first or not direct else low, STRIP):
                b = min(a + STRIP, high)
                block = _taken(panel.rows, at[a:b] - panel.start)
                target = rows[a:b, : start + b]
                target[:, :first] = block[:, : min(first, start + b)]
                if not direct:
                    _move(block, kept[: start + b], first, runs, target)
            low = max(low, first - start)  # rows before the first that changes
            if len(dropped) and low < high:
                entries = _taken(panel.rows, at[low:high] - panel.start)[:, dropped.clamp_max(panel.stop - 1)]
                above = dropped > at[low:high, None]
                columns[start + low - first : start + high - first, : len(dropped)] = entries.masked_fill(above, 0.0)
        if len(grown):
            assert added is not None
            places = torch.arange(len(dropped), columns.shape[1], device=self.device)
            columns[grown - first, places] = added[grown].sqrt().to(self.dtype)
        changed = rows[first - start :, first:]
        source = changed
        if direct:
            _, begin, end = runs[0]
            source = after[0].rows[begin - start : end - start, begin:end]
        below = None
        if whitened is not None and not len(grown):
            whitened, entries = whitened[kept], whitened[dropped].mT
            below = whitened[first:].mT.contiguous(), entries
        if update_triangle(source, changed, columns, below=below, compiled=compiled) and below is not None:
            assert whitened is not None
            whitened = torch.cat([whitened[:first], below[0].mT])
        else:
            whitened = None
        panel = _Panel.of(Memory(numbers, m - start, self.pool), m - start, start)
        return self._with([*before, panel]), whitened


def corner_factor(half: Tensor, corner: Tensor, smallest: Tensor | None = None) -> Tensor:
    """C with C C^T = K_nn - S^T S, for S^T (k, n). Raises: NotPositiveDefiniteError for a pivot not above `smallest`.

    smallest: (k,); None for rounding of n + k rows.
    """
    k, n = half.shape
    eps = torch.finfo(half.dtype).eps
    if k == 1:  # numbers: a dozen small operations less in every step of a stream
        variance, taken = float(corner), float(half[0].dot(half[0]))
        return corner.new_full(
            (1, 1), _corner_root(variance, taken, n, eps, None if smallest is None else float(smallest))
        )
    smallest = PIVOT * (n + k) * eps * corner.diagonal() if smallest is None else smallest
    schur = corner - half @ half.mT
    lower, info = torch.linalg.cholesky_ex(schur)
    pivots = lower.diagonal().square()
    if not int(info) and bool((pivots > smallest).all()):
        return lower
    row = int(info) - 1 if int(info) else int((~(pivots > smallest)).nonzero()[0])
    raise _refused(row, float(schur[row, row] if int(info) else pivots[row]))


def _corner_root(variance: float, taken: float, n: int, eps: float, smallest: float | None = None) -> float:
    """C of one row: the root of k_nn = variance less |s|^2 = taken, n rows before it."""
    pivot = variance - taken
    if pivot > (PIVOT * (n + 1) * eps * variance if smallest is None else smallest):
        return math.sqrt(pivot)
    raise _refused(0, pivot)


def _refused(row: int, pivot: float) -> NotPositiveDefiniteError:
    """The error about a new row that leaves such a pivot."""
    if not math.isfinite(pivot):  # -inf or NaN, of entries that overflowed
        return NotPositiveDefiniteError(
            f"the covariance matrix with the new rows must be finite, but what the rows before leave of new row {row} "
            f"is {pivot:.3g}: numbers of its x are too large to square. Correct them, or leave it out",
            smallest_pivot=pivot,
            indices=[(row,)],
        )
    return NotPositiveDefiniteError(
        f"the covariance matrix with the new rows must be positive definite, but what the rows before leave of "
        f"new row {row} is {pivot:.3g}, which is rounding: it repeats one of them, with next to no noise. Give it "
        "more (noise_variance, row_variance=), or leave it out",
        smallest_pivot=pivot,
        indices=[(row,)],
    )


def _runs(numbers: Tensor, place: int) -> list[tuple[int, int, int]]:
    """(place, first, one past the last) of each run of consecutive numbers, the first of them at `place`."""
    starts = torch.cat([numbers.new_zeros(1), (numbers.diff() != 1).nonzero().squeeze(-1) + 1])[: len(numbers)]
    firsts, places = numbers[starts].tolist(), [*starts.tolist(), len(numbers)]
    return [(place + places[i], begin, begin + places[i + 1] - places[i]) for i, begin in enumerate(firsts)]


def _taken(rows: Tensor, index: Tensor) -> Tensor:
    """Some rows in order: a view where they are neighbours."""
    begin, end = int(index[0]), int(index[-1]) + 1
    return rows[begin:end] if end - begin == len(index) else rows[index]


def _move(block: Tensor, columns: Tensor, first: int, runs: list[tuple[int, int, int]], target: Tensor) -> None:
    """The columns of a block of rows that stay, from `first` on, into target."""
    width = target.shape[1]
    if len(runs) > MAX_RUNS:
        target[:, first:] = block[:, columns[first:]]
        return
    for place, begin, end in runs:
        stop = min(place + end - begin, width)
        if place < stop:
            target[:, place:stop] = block[:, begin : begin + stop - place]


def _whole(lower: Tensor, jitter: Tensor, attempts: list[float]) -> PanelFactor:
    return PanelFactor([_Panel(lower, len(lower), 0)], jitter, attempts)
