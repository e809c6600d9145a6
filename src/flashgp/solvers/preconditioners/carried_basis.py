"""An orthonormal basis whose rows come and go: what changed is kept beside it, in small matrices.

    Q = B[own] W  in the rows that it had,    Z  in rows that came,    plus X Y                       (M-116)

so that a change writes nothing of the size of B, which older bases share. Which matrices make Q orthonormal is decided
in low_rank_update.py.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["CarriedBasis"]


@dataclass(frozen=True, eq=False)
class CarriedBasis:
    """Q, (count, r), as a value.

    Fields: base B (n0, r0); own, rows of B in use, and place, where each of them stands in Q; turn W (r0, r); more,
    where the new rows stand; rows Z (len(more), r); extra X (count, x), extra_turn Y (x, r).
    """

    count: int
    base: Tensor
    own: Tensor
    place: Tensor
    turn: Tensor
    more: Tensor
    rows: Tensor
    extra: Tensor
    extra_turn: Tensor

    @classmethod
    def of(cls, base: Tensor, turn: Tensor | None = None) -> "CarriedBasis":
        """B W in one part, without a copy of B (n, r0); W is the identity if it is not given."""
        n = len(base)
        every = torch.arange(n, device=base.device)
        turn = torch.eye(base.shape[1], dtype=base.dtype, device=base.device) if turn is None else turn
        r = turn.shape[1]
        return cls(
            n, base, every, every, turn, every[:0], base.new_zeros(0, r), base.new_zeros(n, 0), base.new_zeros(0, r)
        )

    @property
    def foreign(self) -> int:
        """How many of its rows are none of the base."""
        return len(self.more)

    def __matmul__(self, v: Tensor) -> Tensor:
        """Q v for v (r, t). Cost: 2 n0 r0 t flops, like Q in one part."""
        out = self.extra @ (self.extra_turn @ v)
        out.index_add_(0, self.place, (self.base @ (self.turn @ v))[self.own])
        return out.index_add_(0, self.more, self.rows @ v)

    @property
    def mT(self) -> "_Transposed":
        return _Transposed(self)

    def taken(self, index: Tensor) -> Tensor:
        """Rows of Q at positions, (len(index), r)."""
        of_base = self.own.new_full((self.count,), -1).index_copy_(0, self.place, self.own)[index]
        of_more = self.own.new_full((self.count,), -1)
        of_more[self.more] = torch.arange(len(self.more), device=self.more.device)
        of_more = of_more[index]
        out = self.extra[index] @ self.extra_turn
        known, came = (of_base >= 0).nonzero()[:, 0], (of_more >= 0).nonzero()[:, 0]
        out[known] += self.base[of_base[known]] @ self.turn
        out[came] += self.rows[of_more[came]]
        return out

    def changed(
        self, stay: Tensor, place: Tensor, count: int, turn: Tensor, fresh: Tensor, rows: Tensor
    ) -> "CarriedBasis":
        """Rows at `stay` go to `place` of `count` rows and are turned, Q[stay] turn; others come at `fresh`.

        Args: turn (r, r'); rows (len(fresh), r').
        """
        to = self.own.new_full((self.count,), -1).index_copy_(0, stay, place)
        of_base, of_more = to[self.place], to[self.more]
        known, came = of_base >= 0, of_more >= 0
        extra = self.extra.new_zeros(count, self.extra.shape[1])
        extra[place] = self.extra[stay]
        return CarriedBasis(
            count, self.base, self.own[known], of_base[known], self.turn @ turn,
            torch.cat([of_more[came], fresh]), torch.cat([self.rows[came] @ turn, rows]), extra,
            self.extra_turn @ turn,
        )  # fmt: skip

    def beside(self, columns: Tensor) -> "CarriedBasis":
        """(Q, columns), for columns (count, q)."""
        q, x = columns.shape[1], self.extra.shape[1]

        def widened(part: Tensor) -> Tensor:
            return torch.cat([part, part.new_zeros(len(part), q)], dim=1)

        unit = torch.eye(q, dtype=columns.dtype, device=columns.device)
        below = torch.cat([unit.new_zeros(q, self.turn.shape[1]), unit], dim=1)
        return CarriedBasis(
            self.count, self.base, self.own, self.place, widened(self.turn), self.more, widened(self.rows),
            torch.cat([self.extra, columns], dim=1) if x else columns,
            torch.cat([widened(self.extra_turn), below]),
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Transposed:
    basis: CarriedBasis

    def __matmul__(self, v: Tensor) -> Tensor:
        """Q^T v for v (count, t)."""
        basis = self.basis
        full = v.new_zeros(len(basis.base), v.shape[1]).index_copy_(0, basis.own, v[basis.place])
        out = basis.turn.mT @ (basis.base.mT @ full) + basis.rows.mT @ v[basis.more]
        return out + basis.extra_turn.mT @ (basis.extra.mT @ v)
