"""A rank's share of a full-scale factor: which rows its blocks need, and what ranks add up, eq. (M-204)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flashgp.processes.gradient_shares import sum_together
from flashgp.processes.group import Group


@dataclass(frozen=True, eq=False)
class Share:
    """Fields: group; positions, of the rows that this rank's blocks need, among all; count, of all rows."""

    group: Group
    positions: Tensor
    count: int

    def summed(self, own: Sequence[Tensor]) -> list[Tensor]:
        """The sums over ranks of float64 tensors."""
        return sum_together(self.group, own)

    def gradients(
        self, by_rows: Sequence[Tensor | None], others: Sequence[Tensor | None], like: Sequence[Tensor]
    ) -> list[Tensor | None]:
        """The sums over ranks, of all rows. A gradient that no rank has is None.

        Args: by_rows, of the rows of this share; others; like, what they are gradients by, one after another.
        """
        own = [self._of_all(part, known) for part, known in zip(by_rows, like, strict=False)]
        own += [torch.zeros_like(k) if p is None else p for p, k in zip(others, like[len(by_rows) :], strict=True)]
        found = [*by_rows, *others]
        there = self.group.max(torch.tensor([part is not None for part in found], dtype=torch.int64)).tolist()
        return [total if any_ else None for total, any_ in zip(self.summed(own), there, strict=True)]

    def _of_all(self, part: Tensor | None, like: Tensor) -> Tensor:
        """With zeros for the rows that are of other ranks alone."""
        out = torch.zeros(self.count, *like.shape[1:], dtype=torch.float64, device=like.device)
        return out if part is None else out.index_copy_(0, self.positions, part)
