"""A Cholesky factor of a window of rows: the oldest leave at once, and move behind the others some columns a step.

    F F^T = K of rows that left and rows that stayed;  E = F^-1 I_left;  A^-1 by I - E (E^T E)^-1 E^T       (M-118)
    new rows:  f = F^-1 K_n,  C C^T = K_nn - f^T f;  E gains -C^-1 f^T E, its Gram matrix the squares of it  (M-119)
    a sweep:   rows that left move from the first place of elimination to the last, where they are gone      (M-120)

A row that leaves changes nothing in F: it counts as one that is not known. That takes F^-1 of its unit vector, in the
pass over the factor that the row which comes needs anyway. Taking its column out at once, (M-112), reads and writes the
whole triangle; here a step reads it once and writes some columns. Nothing is subtracted from the factor, and nothing
that left is divided out of it: F is as good as a fresh one.

A factor is a value, as those of panels.py, which do what this one does not: rows that leave elsewhere, diagonals that
grow, other devices and dtypes.
"""

import functools
import math
from typing import Any

import numpy
import torch
from torch import Tensor

from flashgp.foundations.errors import NotPositiveDefiniteError
from flashgp.foundations.workspace import Workspace
from flashgp.solvers.direct.mixed_triangle import MixedTriangle
from flashgp.solvers.direct.solved_rows import solved
from flashgp.solvers.direct.strided import Array, reflects, solve_triangle_, update_triangle
from flashgp.solvers.growing.buffers import BufferPool, Memory
from flashgp.solvers.growing.downdate import BLOCK, Going, fold, group_of, quota
from flashgp.solvers.growing.panels import PIVOT, PanelFactor, corner_factor

__all__ = ["WindowFactor", "room_of", "window_capacity"]

F64, EPS = torch.float64, torch.finfo(torch.float64).eps
LEAST_ROWS = 256  # below which taking a row out at once costs no more than what surrounds it
MOST_AT_ONCE = 8  # rows that leave or come in one step; more are worked in at once
ROUNDED_ROWS = 64  # memory is made for a multiple of so many, so that the next window takes it again


def window_capacity(n: int) -> int:
    """Rows of the memory of a window of n: what comes during two sweeps, and half a sweep more."""
    return -(-(n + 3 * group_of(n) + 2 * MOST_AT_ONCE) // ROUNDED_ROWS) * ROUNDED_ROWS


def room_of(n: int) -> int:
    """Spare rows behind n ones that a window begins with; 0 where there are too few rows for it."""
    return window_capacity(n) - n if n >= LEAST_ROWS else 0


class WindowFactor:
    """A root F_r = (V L) of A = F_r F_r^T, (n, m + n), which its oldest rows leave in one pass; see TriangularFactor.

    A half solve is F_r^+ rhs, m + n numbers: what is multiplied by another half solve, or solved back, is as with a
    triangle. Vectors of F are in the order of time: g rows that are moving away, q that will, n that are there.

    Fields: count, n; pending, m = g + q; jitter (), absolute; attempts, the relative jitters tried.
    """

    def __init__(
        self,
        triangle: MixedTriangle,
        gathered: int,
        going: Going | None,
        image: Array,
        gram: Array,
        source: tuple[Tensor, list[float], BufferPool],
    ) -> None:
        """triangle: F without the g rows that go, (q + n, q + n); gathered: q; image: (E z), (m + n, m + p), with
        E = F^-1 of the unit vectors of rows that left, z = F^-1 r of all rows; gram: E^T (E z), (m, m + p); source:
        jitter, attempts and the pool of memory."""
        self._triangle, self._gathered, self._going = triangle, gathered, going
        self._image, self._gram = image, gram
        self.jitter, self.attempts, self._pool = source
        self._source = source
        m = len(gram)
        self._root = torch.from_numpy(_root(gram[:, :m])) if m else torch.empty(0, 0, dtype=F64)

    @classmethod
    def begun(cls, factor: PanelFactor, whitened: Tensor) -> "WindowFactor | None":
        """The same factor with its one panel as F, without a copy; None where that has no room, or for other kinds.

        Args: whitened: L^-1 r, (n, p).
        """
        memory, n = factor.only_memory, factor.count
        if memory is None or n < LEAST_ROWS or factor.dtype != F64 or factor.device.type != "cpu" or not reflects():
            return None
        triangle = MixedTriangle(n, memory, n)
        if memory.numbers.shape[0] != memory.numbers.shape[1] or triangle.room < 2 * group_of(n):
            return None
        image = whitened.numpy()
        return cls(triangle, 0, None, image, image[:0], (factor.jitter, factor.attempts, factor.pool))

    # -- what a factor answers ------------------------------------------------------------------------------------
    @property
    def count(self) -> int:
        return self._triangle.count - self._gathered

    @property
    def pending(self) -> int:
        """m, the rows that left and are still in F."""
        return self._gram.shape[0]

    @property
    def dtype(self) -> torch.dtype:
        return F64

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def lower(self) -> Tensor:
        """The triangular factor of A, (n, n), column by column. Cost: 2 n^2 m flops."""
        return self.flushed().lower

    @property
    def log_determinant(self) -> Tensor:
        """log |A| = log |F F^T| + log |E^T E|, (), eq. (M-118). Cost: O(n)."""
        logs = float(numpy.log(self._triangle.diagonal).sum() + self._root.diagonal().log().sum())
        if self._going is not None:
            g = len(self._going)
            logs -= float(numpy.linalg.slogdet(self._image[:g, :g])[1])  # the inverse of D_g
        return torch.tensor(2.0 * logs, dtype=F64)

    @property
    def _E(self) -> Tensor:
        return torch.from_numpy(self._image[:, : self.pending])

    @functools.cached_property
    def whitened(self) -> Tensor:
        """F_r^+ r, (m + n, p), of the residual r that is carried along. Cost: n m p flops, when it is asked for."""
        m, image = self.pending, self._image
        taken = self._reduced(torch.from_numpy(self._gram[:, m:].T.copy()))
        return torch.from_numpy(image[:, m:] - image[:, :m] @ taken.numpy().T)

    def half_solve(self, rhs: Tensor) -> Tensor:
        """F_r^+ rhs, (*batch, m + n, t), for rhs (*batch, n, t), differentiable in rhs. Cost: n^2 t flops."""
        return solved(self, rhs, transposed=False)

    def back_solve(self, rhs: Tensor) -> Tensor:
        """F_r^+T rhs, (*batch, n, t), for rhs (*batch, m + n, t), as `half_solve`."""
        return solved(self, rhs, transposed=True)

    def solve(self, rhs: Tensor) -> Tensor:
        """A^-1 rhs, as `half_solve`. Cost: 2 n^2 t flops."""
        return self.back_solve(self.half_solve(rhs))

    def solve_rows_(self, rows: Tensor, *, transposed: bool) -> Tensor:
        """F_r^+ of every row of a contiguous (t, n), or F_r^+T of (t, m + n), eq. (M-118)."""
        m, q, E = self.pending, self._gathered, self._E
        if not transposed:  # any y with F_r y = x, without its part in the null space of F_r
            found = torch.zeros(len(rows), m + rows.shape[1], dtype=F64)
            found[:, m:] = rows
            self._triangle.solve_(found[:, m:], transposed=False, begin=q)
            return found.addmm_(self._reduced(found @ E), E.mT, alpha=-1.0)
        found = torch.addmm(rows[:, m:], self._reduced(rows @ E), E[m:].mT, alpha=-1.0)
        self._triangle.solve_(found, transposed=True, begin=q)
        return found

    def _reduced(self, rows: Tensor) -> Tensor:
        """(E^T E)^-1 of every row of (t, m), in its place."""
        solve_triangle_(self._root, rows, transposed=False)
        solve_triangle_(self._root, rows, transposed=True)
        return rows

    def some_rows(self, start: int, stop: int) -> Tensor:
        """Rows start to stop of F_r = (V L), (stop - start, m + stop), zero right of them. Cost: so many numbers."""
        q = self._gathered
        rows = self._triangle.rows(q + start, q + stop)
        if self._going is not None:
            rows = numpy.hstack([self._moving_columns(q + start, q + stop), rows])
        return torch.from_numpy(rows)

    def _moving_columns(self, start: int, stop: int) -> Array:
        """V_g in some rows of the triangle: zero in those that are finished."""
        going, c = self._going, self._triangle.finished
        assert going is not None
        left = going.columns[max(start - c, 0) : max(stop - c, 0)]
        return numpy.pad(left, ((stop - start - len(left), 0), (0, 0)))

    # -- the window moves -------------------------------------------------------------------------------------------
    def takes(self, gone: int, more: int) -> bool:
        """Whether `moved` is for so many rows that leave and come."""
        left = self.count - gone
        return left >= LEAST_ROWS // 2 and max(gone, more) <= MOST_AT_ONCE and self._triangle.room >= more

    def moved(
        self,
        gone: int,
        cross: Tensor | None = None,
        corner: Tensor | None = None,
        residual: Tensor | None = None,
        *,
        compiled: bool = True,
        workspace: Workspace | None = None,
    ) -> "WindowFactor":
        """The factor without the first rows, eq. (M-118), and with k others behind the last, eq. (M-119).

        Args:
            gone: how many leave; with the next two it must be what `takes` allows.
            cross: (k, m + n), covariances of the new rows with those that left and those that are there; corner: K_nn
                with noise and jitter, (k, k); residual: of the new rows, (k, p). None where no row comes.
            compiled: as `MixedTriangle.solve_finished_`.
        Raises: NotPositiveDefiniteError for a row that those which are there, or those which left, determine up to
            rounding; this factor stays as it is in any case.
        Cost: one pass over the factor, n^2 (gone + k) flops; about 3 n^2 for each row, of a sweep that goes on;
            n (p + m) numbers.
        """
        workspace = workspace or Workspace()
        k = 0 if corner is None else len(corner)
        start = self._sweeping(workspace)
        triangle = start._triangle
        stop = triangle.count
        if triangle.right is not None:
            stop = quota(stop, triangle.finished, max(gone, k), gone)
        columns = stop - triangle.finished
        if not triangle.claim(k, columns):
            return self._copied(workspace).moved(gone, cross, corner, residual, compiled=compiled, workspace=workspace)
        try:
            with numpy.errstate(over="ignore", invalid="ignore"):  # a pivot that is none says it
                return start._moved(stop, gone, cross, corner, residual, compiled, workspace)
        except BaseException:
            triangle.give_back(k, columns)
            raise

    def _with(self, triangle: MixedTriangle, gathered: int, going: Going | None) -> "WindowFactor":
        return WindowFactor(triangle, gathered, going, self._image, self._gram, self._source)

    def _sweeping(self, workspace: Workspace) -> "WindowFactor":
        """This, with a sweep that begins where enough rows have gathered, or the room ends."""
        triangle, q, group = self._triangle, self._gathered, group_of(self.count)
        if triangle.right is not None or not q or (q < group and triangle.room > 3 * group // 2):
            return self
        n, F = self.count, triangle.first
        begun = MixedTriangle(n, self._memory(n, n, 0, workspace), 0, triangle.left, q)
        rows = numpy.empty((q, begun.left.numbers.shape[0]))
        return self._with(begun, 0, Going(F[q:, :q], rows, numpy.tril(F[:q, :q])))

    def _memory(self, n: int, rows: int, columns: int, workspace: Workspace) -> Memory:
        capacity = window_capacity(n)
        numbers = self._pool.take(capacity, capacity, F64, self.device, workspace)
        return Memory(numbers, rows, self._pool, columns)

    def _moved(
        self,
        stop: int,
        gone: int,
        cross: Tensor | None,
        corner: Tensor | None,
        residual: Tensor | None,
        compiled: bool,
        workspace: Workspace,
    ) -> "WindowFactor":
        k, m, length = 0 if corner is None else len(corner), self.pending, len(self._image)
        width = self._image.shape[1] + gone
        image = workspace.empty((length + k, width), F64, self.device).numpy()
        image[:length, :m], image[:length, m + gone :] = self._image[:, :m], self._image[:, m:]
        image[:length, m : m + gone] = 0.0
        triangle, going, g = self._triangle, self._going, 0
        if going is not None:
            g = len(going)
            triangle, going = self._folded(stop, image[:length])
            if going is None:  # the sweep is done
                image, length, width, m, g = image[g:, g:], length - g, width - g, m - g, 0
        # One pass for unit vectors of the rows that leave and covariances of those that come.
        rows = numpy.zeros((gone + k, length))
        for i in range(gone):
            rows[i, m + i] = 1.0
        if cross is not None:
            rows[gone:] = cross.numpy()[:, cross.shape[1] - length :]
        own = rows[:, g:]
        triangle.solve_finished_(own, compiled=compiled)
        if going is not None:  # the inverse of D_g stands in E
            c = triangle.finished
            moving = (rows[:, :g] - own[:, :c] @ going.rows[:, :c].T) @ image[:g, :g].T
            rows[:, :g] = moving
            own[:, c:] -= moving @ going.columns.T
            triangle.solve_others_(own, compiled=compiled)
        image[:length, m : m + gone] = rows[:gone].T
        products = rows @ image[:length]
        gram = numpy.empty((m + gone, width))
        if going is None and self._going is not None:
            numpy.matmul(image[:length, :m].T, image[:length], out=gram[:m])
        else:
            gram[:m, :m], gram[:m, m + gone :] = self._gram[:, :m], self._gram[:, m:]
            gram[:m, m : m + gone] = products[:gone, :m].T
        gram[m:] = products[:gone]
        if corner is not None:
            assert residual is not None
            lower = _corner(rows[gone:], corner)
            more = numpy.negative(products[gone:], out=products[gone:])
            more[:, m + gone :] += residual.numpy()
            more = more / lower if k == 1 else numpy.linalg.solve(lower, more)
            image[length:] = more
            gram += more[:, : m + gone].T @ more
            triangle = triangle.with_rows(own[gone:], lower)
            if going is not None:
                going = Going(numpy.concatenate([going.columns, rows[gone:, :g]]), going.rows, going.corner)
        return WindowFactor(triangle, self._gathered + gone, going, image, gram, self._source)

    def _folded(self, stop: int, image: Array) -> tuple[MixedTriangle, Going | None]:
        """The factor once the columns before `stop` are finished, eq. (M-120); image: of F^-1, which follows."""
        triangle, going = self._triangle, self._going
        assert going is not None
        source, target = triangle.last, triangle.first
        blocks = -(-(stop - triangle.finished) // BLOCK)
        width = -(-(stop - triangle.finished) // blocks)
        for start in range(triangle.finished, stop, width):
            going = fold(source, target, going, image, start, min(start + width, stop))
        return triangle.with_finished(stop), going if stop < triangle.count else None

    # -- as one matrix ------------------------------------------------------------------------------------------------
    def _copied(self, workspace: Workspace) -> "WindowFactor":
        """The same in memory of its own: for whoever comes second. Cost: n^2 numbers."""
        triangle, c, size = self._triangle, self._triangle.finished, self._triangle.count
        left = self._memory(size, size, c if triangle.right is not None else 0, workspace)
        first = MixedTriangle(size, left, c).first
        if triangle.right is None:
            triangle.copy_to(first)
            return self._with(MixedTriangle(size, left, c), self._gathered, None)
        first[:, :c] = triangle.first[:, :c]
        right = self._memory(size, size, 0, workspace)
        triangle.copy_to(MixedTriangle(size, right, size).first[c:, c:], c)
        assert self._going is not None
        rows = numpy.empty((len(self._going), left.numbers.shape[0]))
        rows[:, :c] = self._going.rows[:, :c]
        going = Going(self._going.columns, rows, self._going.corner)
        return self._with(MixedTriangle(size, left, c, right, 0), self._gathered, going)

    def flushed(self, *, compiled: bool = True, workspace: Workspace | None = None) -> PanelFactor:
        """The triangular factor of A with all rows that left taken out, eq. (M-112). Cost: 2 n^2 m flops."""
        n, q, memory = self.count, self._gathered, self._triangle.left
        if self.pending:
            memory = self._memory(n, n, 0, workspace or Workspace())
            self._triangle.copy_to(MixedTriangle(n, memory, n).first, q)
            columns = self._triangle.first[q:, :q]
            before = numpy.zeros((n, 0)) if self._going is None else self._moving_columns(q, q + n)
            numbers = memory.numbers[:n, :n]
            update_triangle(numbers, numbers, torch.from_numpy(numpy.hstack([before, columns])), compiled=compiled)
        return PanelFactor.of_rows(memory, n, *self._source)

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        del state["_pool"], state["_source"]
        triangle = self._triangle
        state["_triangle"] = triangle.rows(0, triangle.count), triangle.finished, triangle.right is not None
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._pool = BufferPool()
        self._source = self.jitter, self.attempts, self._pool
        numbers, finished, mixed = state["_triangle"]
        size = len(numbers)
        left = self._memory(size, size, finished if mixed else 0, Workspace())
        left.numbers[:size, :size] = torch.from_numpy(numbers)
        right = None
        if mixed:
            right = self._memory(size, size, 0, Workspace())
            right.numbers[:size, :size] = torch.from_numpy(numbers)
        self._triangle = MixedTriangle(size, left, finished, right)


def _root(gram: Array) -> Array:
    """C with C C^T = E^T E. Raises: NotPositiveDefiniteError where rows that left determine each other to rounding."""
    try:
        return numpy.asarray(numpy.linalg.cholesky(gram), dtype=numpy.float64)
    except numpy.linalg.LinAlgError:
        raise NotPositiveDefiniteError(
            "rows that left the window must not determine each other, but up to rounding they do; take them out of "
            "the factor at once (`flushed`)",
            smallest_pivot=0.0,
        ) from None


def _corner(half: Array, corner: Tensor) -> Array:
    """`corner_factor`; of one row, as a stream has them, without an operation of torch.

    Between two passes over the factor its code is out of the caches: 0.2 ms for what takes 0.03 ms otherwise.
    """
    if len(half) == 1:
        own = corner.item()
        pivot = own - float(half[0] @ half[0])
        if pivot > PIVOT * (half.shape[1] + 1) * EPS * own:
            return numpy.array([[math.sqrt(pivot)]])
    return corner_factor(torch.from_numpy(half), corner).numpy()
