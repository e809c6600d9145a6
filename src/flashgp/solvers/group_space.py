"""Sums over rows that the ranks of a group share: what makes a solver of one process one of several.

Every rank calls the same methods in the same order and gets the same numbers. Positions of rows are those among all.
"""

import contextlib

import torch
from torch import Tensor

from flashgp import linalg
from flashgp.processes.group import Group
from flashgp.processes.shares import Shares
from flashgp.solvers.space import RowExchange, Space


class GroupSpace(Space):
    """Rows of a group: each rank has those of its share.

    Args: group; shares, rows of each rank.
    Cost: one collective for a sum, a maximum, `take`, `everywhere` or `agreed`, and to bring or to give rows; two for
        `qr`, `joined` and `exchange`; three for `pick`.
    """

    def __init__(self, group: Group, shares: Shares) -> None:
        self.group, self.shares = group, shares
        self.here = shares.slice(group.rank)
        self._triangles: dict[int, Shares] = {}

    def total(self, part: Tensor) -> Tensor:
        return self.group.sum(part)

    def largest(self, part: Tensor) -> Tensor:
        return self.group.max(part)

    def count(self, v: Tensor) -> int:
        return self.shares.total

    def qr(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """v = Q R by the triangles of all parts, eq. (M-200), with a diagonal of R that is not negative: Q and R do not
        depend on the number of ranks, beyond rounding. Rank 0's triangle is everyone's."""
        columns = v.shape[1]
        own, triangle = linalg.qr(v, device=linalg.own_device(v))
        parts = self._triangles.setdefault(columns, Shares(tuple(min(n, columns) for n in self.shares.counts)))
        whole, R = linalg.qr(self.group.gather_rows(triangle, parts), device=linalg.own_device(v))
        sign = torch.where(R.diagonal() < 0.0, -1.0, 1.0).to(v.dtype)
        joined = self.group.from_first(torch.cat([whole * sign, (R * sign.unsqueeze(-1)).mT]))
        whole, R = joined[: parts.total], joined[parts.total :].mT
        return own @ whole[parts.slice(self.group.rank)], R.contiguous()

    def pick(self, weights: Tensor, uniform: Tensor) -> Tensor:
        """Each rank looks for the numbers that fall into its part of the sum of all weights."""
        sums = weights.cumsum(0)
        own = sums[-1:] if len(sums) else weights.new_zeros(1)
        ends = self.group.gather_rows(own, Shares((1,) * self.group.size)).cumsum(0)
        total = float(ends[-1])
        if not total > 0.0:
            return torch.empty(0, dtype=torch.int64, device=weights.device)
        wanted = uniform * total
        place = torch.searchsorted(ends, wanted, right=True)
        place.clamp_(max=int((ends < total).sum()))  # the last rank with a weight
        mine, before = place == self.group.rank, float(ends[self.group.rank - 1]) if self.group.rank else 0.0
        found = torch.full(place.shape, -1, dtype=torch.int64, device=weights.device)
        if bool(mine.any()):
            last = int((sums < sums[-1]).sum())
            at = torch.searchsorted(sums, wanted[mine] - before, right=True).clamp_(max=last)
            found[mine] = at + self.here.start
        return self.group.max(found)

    def local(self, v: Tensor) -> Tensor:
        return v[self.here]

    def everywhere(self, v: Tensor) -> Tensor:
        return self.group.gather_rows(v, self.shares)

    def take(self, v: Tensor, index: Tensor) -> Tensor:
        mine = (index >= self.here.start) & (index < self.here.stop)
        out = v.new_zeros(*v.shape[:-1], len(index))
        out[..., mine] = v[..., index[mine] - self.here.start]
        return self.group.sum(out)

    def put(self, v: Tensor, index: Tensor, value: float) -> None:
        mine = (index >= self.here.start) & (index < self.here.stop)
        v[index[mine] - self.here.start] = value

    def exchange(self, wanted: Tensor) -> RowExchange:
        return _GroupExchange(self.group, self.shares, wanted)

    def share(self, count: int) -> slice:
        return Shares.even(count, self.group.size).slice(self.group.rank)

    def joined(self, v: Tensor) -> Tensor:
        counts = self.group.gather_rows(torch.tensor([len(v)]), Shares((1,) * self.group.size))
        return self.group.gather_rows(v, Shares(tuple(counts.tolist())))

    def agreed(self, v: Tensor) -> Tensor:
        return self.group.from_first(v)

    def together(self) -> contextlib.AbstractContextManager[object]:
        return self.group.together()


class _GroupExchange(RowExchange):
    """Each rank tells the owners of the rows that it wants once; afterwards these send what they have, and get sums."""

    def __init__(self, group: Group, shares: Shares, wanted: Tensor) -> None:
        self.group, self.here = group, shares.slice(group.rank)
        starts = torch.tensor(shares.starts[1:], dtype=torch.int64, device=wanted.device)
        owner = torch.bucketize(wanted, starts, right=True)
        self.order = owner.argsort(stable=True)
        counts = torch.bincount(owner, minlength=group.size).unsqueeze(0)
        asked: list[list[int]] = group.gather_rows(counts, Shares((1,) * group.size)).tolist()  # by whom, of whom
        self.received, self.sent = asked[group.rank], [row[group.rank] for row in asked]
        self.index = group.exchange(wanted[self.order], self.received, self.sent) - self.here.start

    def bring(self, v: Tensor) -> Tensor:
        found = self.group.exchange(v[self.index], self.sent, self.received)
        out = torch.empty_like(found)
        out[self.order] = found
        return out

    def give(self, v: Tensor) -> Tensor:
        parts = self.group.exchange(v[self.order], self.received, self.sent)
        out = v.new_zeros(self.here.stop - self.here.start, *v.shape[1:])
        return out.index_add_(0, self.index, parts)
