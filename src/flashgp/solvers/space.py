"""Sums over rows: all that couples the rows of a system in conjugate gradients, Lanczos and preconditioners.

Vectors are stored with one row for each row of the system. Where every process holds some of the rows, a space adds up
over the processes; everything else in a solver is computed row by row, or on small matrices that all processes have.
"""

import contextlib
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from flashgp import linalg


class RowExchange:
    """Rows that a place works on, wherever they are stored; here where all rows are, which are all that is wanted."""

    def bring(self, v: Tensor) -> Tensor:
        """The wanted rows, (wanted, ...), of v (rows that are here, ...)."""
        return v

    def give(self, v: Tensor) -> Tensor:
        """The sums over places for the rows that are here, (rows that are here, ...), of v (wanted, ...)."""
        return v


class Space(ABC):
    """Sums over all rows, wherever these are stored; every place gets the same result."""

    @abstractmethod
    def total(self, part: Tensor) -> Tensor:
        """The sum of what each place has computed from its rows."""

    @abstractmethod
    def largest(self, part: Tensor) -> Tensor:
        """The largest, entry by entry, of what each place has computed from its rows."""

    @abstractmethod
    def qr(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """v = Q R with Q^T Q = I for v (n, t), Q (n, r) and R (r, t), r = min(n, t)."""

    @abstractmethod
    def pick(self, weights: Tensor, uniform: Tensor) -> Tensor:
        """Positions drawn in proportion to weights, (n,), by numbers in [0, 1), (b,); none if no weight is positive."""

    @abstractmethod
    def local(self, v: Tensor) -> Tensor:
        """The rows that are here of v, (all rows, ...), which every place has."""

    @abstractmethod
    def everywhere(self, v: Tensor) -> Tensor:
        """All rows, in every place, of v, (rows that are here, ...)."""

    @abstractmethod
    def take(self, v: Tensor, index: Tensor) -> Tensor:
        """v[..., index] for v (..., n) and positions of rows."""

    @abstractmethod
    def put(self, v: Tensor, index: Tensor, value: float) -> None:
        """v[index] = value for v (n,) and positions of rows."""

    @abstractmethod
    def exchange(self, wanted: Tensor) -> RowExchange:
        """Exchange for the rows at these positions, (wanted,), distinct; in one place all rows in their order."""

    @abstractmethod
    def share(self, count: int) -> slice:
        """Pieces of work, of so many, that are done here: a run of them, as many as elsewhere to one."""

    @abstractmethod
    def joined(self, v: Tensor) -> Tensor:
        """v of all places, one after another, in every place; of any lengths."""

    @abstractmethod
    def agreed(self, v: Tensor) -> Tensor:
        """A value that every place has computed alike, in one place's bits, for branches and positions."""

    @abstractmethod
    def together(self) -> contextlib.AbstractContextManager[object]:
        """A block of work of all places: an error in one of them is raised in all, and can be handled alike."""

    def eigh(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        """Eigenvalues, ascending, and eigenvectors of a symmetric matrix that every place has, in one place's bits.

        Raises: ConvergenceError, in every place.
        """
        with self.together():
            values, vectors = linalg.eigh(matrix, device=linalg.own_device(matrix))
        return self.agreed(values), self.agreed(vectors)

    def number(self, value: float) -> float:
        """A number that every place has computed alike, in one place's bits."""
        return float(self.agreed(torch.tensor(value, dtype=torch.float64)))

    def count(self, v: Tensor) -> int:
        """Rows of v in all places."""
        return int(self.total(torch.tensor(len(v))))

    def inner(self, u: Tensor, v: Tensor) -> Tensor:
        """u^T v, (s, t), for u (n, s) and v (n, t)."""
        return self.total(u.mT @ v)

    def norm(self, v: Tensor) -> Tensor:
        """Euclidean norm of each column, (t,)."""
        return self.total(v.square().sum(0)).sqrt()

    def sum(self, v: Tensor) -> Tensor:
        """Sums over rows."""
        return self.total(v.sum(0))

    def max(self, v: Tensor) -> Tensor:
        """Largest entries over rows; -inf where there are none."""
        return self.largest(v.amax(0) if len(v) else v.new_full(v.shape[1:], -torch.inf))

    def all(self, holds: Tensor) -> bool:
        """True if booleans hold in every row."""
        return not bool(self.total((~holds).sum()))


class LocalSpace(Space):
    """All rows are here."""

    def total(self, part: Tensor) -> Tensor:
        return part

    def largest(self, part: Tensor) -> Tensor:
        return part

    def count(self, v: Tensor) -> int:
        return len(v)

    def norm(self, v: Tensor) -> Tensor:
        return v.norm(dim=0)

    def qr(self, v: Tensor) -> tuple[Tensor, Tensor]:
        return linalg.qr(v, device=linalg.own_device(v))

    def pick(self, weights: Tensor, uniform: Tensor) -> Tensor:
        sums = weights.cumsum(0)
        total = float(sums[-1]) if len(sums) else 0.0
        if not total > 0.0:
            return torch.empty(0, dtype=torch.int64, device=weights.device)
        return torch.searchsorted(sums, uniform * total, right=True).clamp_(max=len(sums) - 1)

    def local(self, v: Tensor) -> Tensor:
        return v

    def everywhere(self, v: Tensor) -> Tensor:
        return v

    def take(self, v: Tensor, index: Tensor) -> Tensor:
        return v[..., index]

    def put(self, v: Tensor, index: Tensor, value: float) -> None:
        v[index] = value

    def exchange(self, wanted: Tensor) -> RowExchange:
        return RowExchange()

    def share(self, count: int) -> slice:
        return slice(0, count)

    def joined(self, v: Tensor) -> Tensor:
        return v

    def agreed(self, v: Tensor) -> Tensor:
        return v

    def together(self) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext()


LOCAL_SPACE = LocalSpace()
