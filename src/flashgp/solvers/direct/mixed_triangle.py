"""A lower triangle of which the first columns lie in one memory and the others in another, while a sweep goes on.

    L = [N[:, :c] | O[:, c:]]

A sweep writes columns of L' into N from the left; what it has not reached stays in O, eq. (M-120).
"""

from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor

from flashgp.solvers.direct.strided import STRIP, Array, solve_triangle_
from flashgp.solvers.growing.buffers import Memory
from flashgp.solvers.growing.rotations import rotations

__all__ = ["MixedTriangle"]

FEW_SIDES = 8  # up to which a pass for each two is quicker than BLAS, which packs the triangle


@dataclass(frozen=True, eq=False)
class MixedTriangle:
    """Fields: count, n; left, the memory N, which begins with the triangle; finished, c; right, O, and at_right, its
    row and column where the triangle begins, None where all columns are in N. Undefined above the diagonal."""

    count: int
    left: Memory
    finished: int
    right: Memory | None = None
    at_right: int = 0

    @property
    def first(self) -> Array:
        """(n, n), of which the finished columns count."""
        return _of(self.left)[: self.count, : self.count]

    @property
    def last(self) -> Array:
        """(n, n), of which the others count."""
        if self.right is None:
            return self.first
        own = slice(self.at_right, self.at_right + self.count)
        return _of(self.right)[own, own]

    @property
    def room(self) -> int:
        """Rows that can still be written behind these."""
        spare = self.left.numbers.shape[0] - self.count
        return spare if self.right is None else min(spare, self.right.numbers.shape[0] - self.at_right - self.count)

    def with_finished(self, finished: int) -> "MixedTriangle":
        """The same with more columns taken from N; with all of them, O is no longer needed."""
        if finished == self.count:
            return MixedTriangle(self.count, self.left, finished)
        return MixedTriangle(self.count, self.left, finished, self.right, self.at_right)

    # -- growing ------------------------------------------------------------------------------------------------------
    def claim(self, rows: int, columns: int) -> bool:
        """Take so many rows and columns behind those that are taken; False where another did."""
        if not rows and not columns:
            return True
        if self.right is not None and not self.right.claim(self.at_right + self.count, rows):
            return False
        if self.left.claim(self.count, rows, None if self.right is None else self.finished, columns):
            return True
        if self.right is not None:
            self.right.give_back(rows, 0)
        return False

    def give_back(self, rows: int, columns: int) -> None:
        """Undo `claim`."""
        self.left.give_back(rows, columns)
        if self.right is not None:
            self.right.give_back(rows, 0)

    def with_rows(self, rows: Array, corner: Array) -> "MixedTriangle":
        """With k more rows that were claimed: rows (k, n), left of the corner (k, k)."""
        n, k, c = self.count, len(corner), self.finished
        own = _of(self.left)[n : n + k]
        if self.right is None:
            own[:, :n] = rows
            own[:, n : n + k] = corner
            return MixedTriangle(n + k, self.left, n + k)
        own[:, :c] = rows[:, :c]
        at = self.at_right
        own = _of(self.right)[at + n : at + n + k, at : at + n + k]
        own[:, c:n] = rows[:, c:]
        own[:, n:] = corner
        return MixedTriangle(n + k, self.left, c, self.right, at)

    # -- as numbers ---------------------------------------------------------------------------------------------------
    def rows(self, start: int, stop: int) -> Array:
        """Rows start to stop, (stop - start, stop), zero right of the diagonal."""
        c = min(self.finished, stop)
        found = numpy.empty((stop - start, stop))
        found[:, :c] = self.first[start:stop, :c]
        found[:, c:] = self.last[start:stop, c:stop]
        found[:, start:] = numpy.tril(found[:, start:])
        return found

    def copy_to(self, out: Array, begin: int = 0) -> None:
        """Rows and columns from `begin` on into out, (n - begin, n - begin), at and below the diagonal."""
        c, first, last = self.finished, self.first, self.last
        for start in range(begin, self.count, STRIP):
            stop = min(start + STRIP, self.count)
            rows, middle = out[start - begin : stop - begin], min(max(c, begin), stop)
            rows[:, : middle - begin] = first[start:stop, begin:middle]
            rows[:, middle - begin : stop - begin] = last[start:stop, middle:stop]

    @property
    def diagonal(self) -> Array:
        """(n,)."""
        return numpy.concatenate([self.first.diagonal()[: self.finished], self.last.diagonal()[self.finished :]])

    # -- solves -------------------------------------------------------------------------------------------------------
    def solve_finished_(self, rows: Array, *, compiled: bool = False) -> None:
        """The first c entries of every row of (t, n) become those of L^-1 of it."""
        c, done = self.finished, self._passed(rows, 0, self.finished, compiled)
        if done < len(rows):
            solve_triangle_(_tensor(self.first[:c, :c]), _tensor(rows[done:, :c]), transposed=False)

    def solve_others_(self, rows: Array, *, compiled: bool = False) -> None:
        """The other entries likewise, after the first."""
        c, done = self.finished, self._passed(rows, self.finished, self.count, compiled)
        if done < len(rows):
            left = rows[done:]
            left[:, c:] -= left[:, :c] @ self.first[c:, :c].T
            solve_triangle_(_tensor(self.last[c:, c:]), _tensor(left[:, c:]), transposed=False)

    def solve_(self, rows: Tensor, *, transposed: bool, begin: int = 0) -> None:
        """L^-1 (or L^-T) of every row of (t, n - begin), for the rows and columns of L from `begin` on, in its place.

        Cost: n^2 t flops.
        """
        c, first, last = max(self.finished - begin, 0), self.first[begin:, begin:], self.last[begin:, begin:]
        left, right, between = _tensor(first[:c, :c]), _tensor(last[c:, c:]), _tensor(first[c:, :c])
        before, after = rows[:, :c], rows[:, c:]
        if transposed:
            solve_triangle_(right, after, transposed=True)
            _subtract_product(before, after, between.mT)
            solve_triangle_(left, before, transposed=True)
        else:
            solve_triangle_(left, before, transposed=False)
            _subtract_product(after, before, between)
            solve_triangle_(right, after, transposed=False)

    def _passed(self, rows: Array, start: int, stop: int, compiled: bool) -> int:
        """How many rows compiled loops did, two in one pass: other bits than those of BLAS."""
        pairs = len(rows) // 2 if compiled and len(rows) <= FEW_SIDES and start < stop else 0
        forward = rotations.forward(self.count) if pairs else None
        if forward is None:
            return 0
        other, at = (self.left, 0) if self.right is None else (self.right, self.at_right)
        places: list[Any] = []
        for memory, begin in ((self.left, 0), (other, at)):
            step = memory.numbers.shape[1]
            places += [_of(memory).reshape(-1), begin * (step + 1), step]
        for i in range(0, 2 * pairs, 2):
            forward(*places, self.finished, rows[i], rows[i + 1], start, stop)
        return 2 * pairs


def _of(memory: Memory) -> Array:
    assert memory.array is not None
    return memory.array


_tensor = torch.from_numpy


def _subtract_product(rows: Tensor, others: Tensor, matrix: Tensor) -> None:
    """rows -= others matrix^T; one row is a product by a vector, for which torch has its own."""
    if not matrix.numel():
        return
    if len(rows) == 1:
        rows[0].addmv_(matrix, others[0], alpha=-1.0)
    else:
        rows.addmm_(others, matrix.mT, alpha=-1.0)
