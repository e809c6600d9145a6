"""Randomly pivoted partial Cholesky K ~ F F^T, eq. (M-77).

Pivots are drawn with probability proportional to what of the diagonal is left, which follows a decaying spectrum and
is not misled by outliers as the greedy choice is. Columns and factor are float64: in exact arithmetic F F^T <= K;
float32 columns would break the order by their rounding, which is larger than small noise.
Sources: Chen, Epperly, Tropp & Webber (2023), Randomly pivoted Cholesky, algorithm 2.1; Epperly, Tropp & Webber (2024),
Embrace rejection, for the blocks.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from flashgp.foundations.errors import DomainError, NotPositiveDefiniteError
from flashgp.foundations.profile_ranges import profiled
from flashgp.solvers.contract import System
from flashgp.solvers.settings import DEFAULTS, LowRankSettings
from flashgp.solvers.space import LOCAL_SPACE, Space

F64 = torch.float64
EPS = torch.finfo(F64).eps
SHIFTS = (1.0, 10.0, 100.0, 1000.0)  # times b eps max diag(K), of a block of pivots; eq. (M-77)


@dataclass(frozen=True)
class PartialCholesky:
    """K ~ F F^T, with F F^T <= K up to rounding.

    Fields: factor F (n, k), float64; pivots (k,), int64; left (n,), the diagonal of K - F F^T; mean_diagonal, of K;
    space, of the rows.
    """

    factor: Tensor
    pivots: Tensor
    left: Tensor
    mean_diagonal: float
    space: Space = LOCAL_SPACE

    @property
    def rank(self) -> int:
        return self.factor.shape[1]

    @property
    def trace(self) -> float:
        """tr(K - F F^T)."""
        return float(self.space.sum(self.left))


@profiled("factorisation")
def partial_cholesky(
    system: System,
    *,
    limit: int,
    seed: int = 0,
    pivots: Tensor | None = None,
    settings: LowRankSettings = DEFAULTS.low_rank,
) -> PartialCholesky:
    """F with K ~ F F^T by random pivots, eq. (M-77).

    Args:
        limit: columns at most; as many are allocated, so the caller decides by memory.
        seed: of the draws.
        pivots: take these instead, (k,), distinct; F is then a smooth function of K.
        settings: columns are added until tr(K - F F^T) <= trace_share sum(noise), or until they no longer pay: less is
            gained per column than `min_decay` times what a column of an identity matrix would bring.
    Raises: DomainError for a limit or share below 0; NotPositiveDefiniteError if K is not at the pivots.
    Cost: n k evaluations in float64, n k^2 flops, 8 n limit bytes; another 8 n k at its end if k < 0.9 limit.
    """
    share = settings.trace_share
    if limit < 0 or not share >= 0.0:
        raise DomainError(
            f"`limit` and `trace_share` must be at least 0, got {limit} and {share}; pass a rank and a share"
        )
    if pivots is None:
        return _drawn(system, min(limit, system.space.count(system.noise)), seed, settings)
    factor = _GrowingFactor(system, len(pivots), settings)
    for part in pivots.split(settings.block):
        factor.append(part)
    return factor.finished()


def _drawn(system: System, limit: int, seed: int, settings: LowRankSettings) -> PartialCholesky:
    factor = _GrowingFactor(system, limit, settings)
    generator = torch.Generator().manual_seed(seed)
    enough = settings.trace_share * float(system.space.sum(system.noise))
    trace = factor.trace
    while trace > enough and factor.rank < limit:
        pivots = factor.accepted(min(settings.block, limit - factor.rank), generator)
        if not len(pivots):  # nothing above rounding is left
            break
        before = factor.rank
        factor.append(pivots)
        last, trace = trace, factor.trace
        gained = math.log(last / trace) if trace > 0.0 else math.inf
        if gained * (factor.count - before) < settings.min_decay * len(pivots):
            break
    return factor.finished()


class _GrowingFactor:
    """F^T, row by row, in one buffer of the largest size."""

    def __init__(self, system: System, limit: int, settings: LowRankSettings) -> None:
        self.system, self.space, self.settings = system, system.space, settings
        self.rows = system.workspace.empty((limit, system.count), F64, system.device)
        self.left = system.diagonal().clone()
        self.count = self.space.count(self.left)
        self.largest = float(self.space.max(self.left)) if self.count else 0.0
        self.mean = self.trace / self.count if self.count else 0.0
        self.floor = self.count * EPS * self.largest  # of a diagonal entry that is more than rounding
        self.pivots: list[Tensor] = []
        self.rank = 0

    @property
    def trace(self) -> float:
        return float(self.space.sum(self.left))

    def accepted(self, count: int, generator: torch.Generator) -> Tensor:
        """Pivots with the distribution of drawing them one after the other: proposals and rejection, (M-77)."""
        draws = torch.rand(2, count, generator=generator, dtype=F64).to(self.left.device)
        proposals = self.space.pick(torch.where(self.left > self.floor, self.left, 0.0), draws[0])
        if not len(proposals):
            return proposals
        part = self.space.take(self.rows[: self.rank], proposals)
        block = self.system.block(proposals, F64) - part.mT @ part
        threshold = (draws[1] * self.space.take(self.left, proposals)).clamp_min(self.floor)
        chosen = []
        for i in range(count):
            pivot = float(block[i, i])
            if pivot > float(threshold[i]):
                chosen.append(i)
                column = block[:, i] / math.sqrt(pivot)
                block = block.addr_(column, column, alpha=-1.0)
        return proposals[chosen]

    def append(self, index: Tensor) -> None:
        """The columns of these pivots. A shift of their block keeps F F^T <= K, since (H + c I)^-1 <= H^-1."""
        known, added = self.rows[: self.rank], self.rows[self.rank : self.rank + len(index)]
        coefficients = self.space.take(known, index)
        torch.mm(coefficients.mT, known, out=added)
        columns = torch.sub(self.system.columns(index, F64).mT, added, out=added)
        block = self.space.take(columns, index)
        block = 0.5 * (block + block.mT)
        unit = max(len(index) * EPS * self.largest, torch.finfo(F64).tiny)
        for shift in SHIFTS:
            lower, info = torch.linalg.cholesky_ex(block + shift * unit * torch.eye(len(index), dtype=F64).to(block))
            if not int(info):
                break
        else:
            raise NotPositiveDefiniteError(
                f"the covariance of {len(index)} pivots must be positive semidefinite, but its Cholesky factorisation "
                f"failed with shifts up to {SHIFTS[-1] * unit:.1e}; check that the covariance function is one",
                jitters=SHIFTS,
            )
        torch.linalg.solve_triangular(lower, columns, upper=False, out=added)
        self.left.sub_(torch.einsum("kn,kn->n", added, added)).clamp_min_(0.0)
        self.space.put(self.left, index, 0.0)
        self.pivots.append(index)
        self.rank += len(index)

    def finished(self) -> PartialCholesky:
        none = torch.empty(0, dtype=torch.int64, device=self.left.device)
        pivots = torch.cat([none, *self.pivots])
        rows = self.rows[: self.rank]
        if self.rank < self.settings.kept_buffer * len(self.rows):  # unused memory must not live as long as the factor
            rows = rows.clone()
        return PartialCholesky(rows.mT, pivots, self.left, self.mean, self.space)


def common_pivots(
    diagonal: Tensor, column: Callable[[int], Tensor], limit: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, float]:
    """Pivots of several K at once, one after the other, each with probability its share of what is left.

    Args:
        diagonal: of every K, (*batch, n), overwritten.
        column: K[:, pivot], (*batch, n).
        limit: pivots at most; fewer when nothing above rounding is left.
    Returns: pivots, common to all members of the batch; F, (*batch, n, pivots); the share of the trace that F F^T
        leaves, the largest of the batch, eq. (M-95).
    Cost: n m^2 flops for m pivots and n m numbers, for each member.
    """
    total = diagonal.sum(-1)
    rounding = EPS**0.75 * diagonal.amax(-1, keepdim=True)
    factor = torch.empty(*diagonal.shape, limit, dtype=F64, device=diagonal.device)
    pivots: list[int] = []
    while len(pivots) < limit:
        usable = diagonal > rounding
        share = torch.where(usable, diagonal, 0.0)
        if share.dim() > 1:
            share, usable = (share / total.unsqueeze(-1)).flatten(0, -2).sum(0), usable.flatten(0, -2).all(0)
        share = torch.where(usable, share, 0.0)
        if not float(share.sum()) > 0.0:
            break
        sums = share.cumsum(-1)
        uniform = float(torch.rand((), generator=generator, dtype=F64))
        pivot = min(int(torch.searchsorted(sums, uniform * sums[-1])), int(share.nonzero()[-1]))
        known = factor[..., : len(pivots)]
        left = column(pivot) - (known @ known[..., pivot, :].unsqueeze(-1)).squeeze(-1)
        left = left / diagonal[..., pivot].sqrt().unsqueeze(-1)
        factor[..., len(pivots)] = left
        diagonal = (diagonal - left.square()).clamp_min(0.0)
        diagonal[..., pivot] = 0.0
        pivots.append(pivot)
    residual = float((diagonal.sum(-1) / total).max()) if total.numel() else 0.0
    return torch.tensor(pivots, dtype=torch.int64, device=diagonal.device), factor[..., : len(pivots)], residual
