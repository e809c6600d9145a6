"""Alternating projections: solve one block of rows exactly after the other, the one with the largest residual next.

Every step is a Cholesky solve with K_BB + noise_B, kept from the preparation, and an update of the whole residual; the
A-norm of the error never grows. There are no parameters and no orthogonality to lose, which makes it robust at small
noise and short lengthscales. It is slow where all blocks hang together: a long lengthscale with tiny noise. Blocks are
contiguous, so that rows in spatial order (pairwise.ordering) take several times fewer passes than rows in no order.
Source: Wu, Wenger, Jones, Pleiss & Gardner (2024), Large-scale Gaussian processes via alternating projection,
algorithm 1 (with the greedy choice of its section 3).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from flashgp.solvers.direct.cholesky import Factor, factorise
from flashgp.solvers.iterative.contract import (
    NO_LIMITS,
    Goal,
    Limits,
    Prepared,
    Solution,
    Solver,
    StopReason,
    System,
    check_residual,
)
from flashgp.solvers.iterative.progress import Progress

__all__ = ["AlternatingProjections"]

F64 = torch.float64
BLOCK_SIZE = 2000  # rows: a block's factor fits in 32 MB, and its n x b covariances keep all cores busy
PASSES = 4  # over the pairs, after which the true residual replaces the recurrence
REPLACE_BELOW = 1e-3  # with float32 products also once the recurrence has fallen by this factor
WINDOW = 30  # passes within which the residual must halve
DIVERGED = 1e6  # times the first residual


@dataclass(frozen=True)
class AlternatingProjections(Solver):
    """Block Gauss-Southwell, eq. (M-82).

    Args:
        block_size: rows of a block; blocks are contiguous and of nearly equal size. first: dtype of the first
            products; window: passes within which the residual must halve.
    Cost: prepare n b^2 / 3 flops and 8 n b bytes; an iteration n b evaluations and 2 n b t + 2 b^2 t flops, n / b of
    them are one pass.
    """

    block_size: int = BLOCK_SIZE
    first: torch.dtype = torch.float32
    window: int = WINDOW
    name: str = "alternating projections"

    def prepare(self, system: System, *, seed: int = 0) -> "PreparedProjections":
        count = max(1, -(-system.count // self.block_size))
        ends = [system.count * k // count for k in range(count + 1)]
        blocks = [slice(ends[k], ends[k + 1]) for k in range(count)]
        factors = [_factor(system, rows) for rows in blocks]
        shifted = sum(bool(factor.jitter) for factor in factors)
        events = [f"{self.name}: {shifted} of {count} blocks are projected on with a shift"] if shifted else []
        return PreparedProjections(self, system, blocks, factors, events)


def _factor(system: System, rows: slice) -> Factor:
    """The factor of K_BB + noise_B; a shift, where rounding asks for one, damps the step and changes no answer."""

    def build() -> Tensor:
        block = system.block(rows, F64)
        block.diagonal().add_(system.noise[rows])
        return block

    return factorise(build)


class PreparedProjections(Prepared):
    """Blocks of rows with the factors of their covariances."""

    def __init__(
        self,
        method: AlternatingProjections,
        system: System,
        blocks: list[slice],
        factors: list[Factor],
        events: list[str],
    ) -> None:
        self.method, self.system = method, system
        self.blocks, self.factors, self.events = blocks, factors, events

    def followed(self, system: System, kept: Tensor | None, changed: Tensor) -> "PreparedProjections":
        """The same for a system of the rows `kept`, increasing, None for all, and of others behind them.

        Args: changed: of the rows kept, (k,) booleans, whose noise is another one.
        Cost: a factor of every block whose rows changed, and of the last one; the others are shared.
        """
        kept = torch.arange(self.system.count, device=system.device) if kept is None else kept
        starts = torch.tensor([rows.start for rows in self.blocks] + [self.system.count], device=kept.device)
        places = torch.searchsorted(kept, starts).tolist()
        blocks, factors = [], []
        for rows, factor, start, stop in zip(self.blocks, self.factors, places[:-1], places[1:], strict=True):
            if stop == start:
                continue
            same = stop - start == rows.stop - rows.start and not bool(changed[start:stop].any())
            blocks.append(slice(start, stop))
            factors.append(factor if same else None)
        begin = len(kept)
        if begin < system.count and blocks and system.count - blocks[-1].start <= self.method.block_size:
            begin = blocks.pop().start
            factors.pop()
        while begin < system.count:
            blocks.append(slice(begin, min(system.count, begin + self.method.block_size)))
            factors.append(None)
            begin = blocks[-1].stop
        made = [factor or _factor(system, rows) for rows, factor in zip(blocks, factors, strict=True)]
        return PreparedProjections(self.method, system, blocks, made, self.events)

    def solve(self, rhs: Tensor, goal: Goal, *, start: Tensor | None = None, limits: Limits = NO_LIMITS) -> Solution:
        """As `Prepared.solve`; an iteration is one block."""

        def bound(residual: Tensor) -> Tensor:
            return residual.new_full((residual.shape[1],), torch.inf)  # none but that of the noise

        progress = Progress(self.method.name, self.system, rhs, goal, limits, start, bound, self.events)
        with self.system.workspace.hold(4 * 8 * rhs.numel()):
            try:
                ended = _Run(self, progress).stopped()
            except KeyboardInterrupt:
                ended = progress.interrupted_by_hand()
            return progress.finished(ended)


class _Run:
    """One solve, eq. (M-82): columns are the open ones, x and r theirs in scaled units."""

    def __init__(self, prepared: PreparedProjections, progress: Progress) -> None:
        self.prepared, self.progress = prepared, progress
        self.dtype = prepared.method.first
        self._take_best()
        self.largest = self.size
        self.reference, self.reference_passes = self.size, progress.passes

    def stopped(self) -> StopReason:
        """Runs until something ends it."""
        while len(self.columns):
            before = self.r.norm(dim=0)
            try:
                ended = self._until_replacement(before)
            except KeyboardInterrupt:  # what it has got to is worth the pass that measures it
                ended = self.progress.interrupted_by_hand()
            claimed = self.r.norm(dim=0)
            if self.progress.iterations > self.synchronised:
                self._synchronise(self.progress.verify(self.columns, self.x))
            if ended is not None:
                return ended
            ended = self._judge(before, claimed)
            if ended is not None:
                return ended
            self._narrow()
        return "goal"

    def _until_replacement(self, before: Tensor) -> StopReason | None:
        """Projections until the true residual is wanted; why the solve ends, if it does."""
        progress = self.progress
        until = progress.passes + PASSES
        while True:
            ended = progress.interrupted()
            if ended is not None:
                return ended
            self._project()
            if progress.step(self.columns, self.r):
                return "callback"
            now = self.r.norm(dim=0)
            lower = self.dtype != F64 and bool((now <= REPLACE_BELOW * before).all())
            if lower or progress.passes >= until or bool(progress.met(self.columns, self.r).all()):
                return None

    def _project(self) -> None:
        """One block solved exactly: x_B += u, r -= K[:, B] u + noise_B u, eq. (M-82)."""
        prepared, progress = self.prepared, self.progress
        weights = self.r.square().sum(1)
        totals = torch.stack([weights[rows].sum() for rows in prepared.blocks])
        chosen = int(totals.argmax())
        rows = prepared.blocks[chosen]
        u = prepared.factors[chosen].solve(self.r[rows])
        size = u.abs().amax(0).clamp_min(torch.finfo(F64).tiny)
        change = prepared.system.cross(slice(0, len(self.r)), rows, (u / size).to(self.dtype)).double() * size
        progress.passes += (rows.stop - rows.start) / max(1, len(self.r))
        check_residual(progress.name, progress.iterations + 1, change, "a product with the covariance matrix")
        self.x[rows] += u
        self.r -= change
        self.r[rows] -= prepared.system.noise[rows].unsqueeze(-1) * u

    @property
    def size(self) -> float:
        """The largest relative residual by the recurrence."""
        return float(self.r.norm(dim=0).max()) if len(self.columns) else 0.0

    def _synchronise(self, residual: Tensor) -> None:
        self.r = residual.clone()
        self.synchronised = self.progress.iterations

    def _take_best(self) -> None:
        self.columns = self.progress.open
        self.x = self.progress.value[:, self.columns].clone()
        self._synchronise(self.progress.residual[:, self.columns])

    def _narrow(self) -> None:
        """Leave out the columns that are done."""
        kept = torch.isin(self.columns, self.progress.open)
        self.columns, self.x, self.r = self.columns[kept], self.x[:, kept], self.r[:, kept]

    def _judge(self, before: Tensor, claimed: Tensor) -> StopReason | None:
        """What the true residual says about the recurrence since the last one."""
        now = self.r.norm(dim=0)
        if self.size <= 0.5 * self.reference:
            self.reference, self.reference_passes = self.size, self.progress.passes
        if self.size > DIVERGED * self.largest:
            return self._harder("the residual grows", "diverged")
        if bool(((claimed <= 0.25 * before) & (now > 0.5 * before)).any()):
            return self._harder("the true residual does not follow the recurrence", "stagnated")
        if self.progress.passes - self.reference_passes >= self.prepared.method.window:
            return self._harder(f"the residual has not halved in {self.prepared.method.window} passes", "stagnated")
        return None

    def _harder(self, why: str, otherwise: StopReason) -> StopReason | None:
        """Go on with float64 products from the best values, or end."""
        if self.dtype == F64:
            self.progress.note(why)
            return otherwise
        self.dtype = F64
        self.progress.note(f"{why} with float32 products, float64 from iteration {self.progress.iterations} on")
        self._take_best()
        self.reference, self.reference_passes = self.size, self.progress.passes
        return None
