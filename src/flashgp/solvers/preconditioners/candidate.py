"""A slow solve compares the low rank with a candidate, the full-scale preconditioner, and keeps the quicker one.

The full-scale preconditioner has the low rank's own inducing points and takes fewer iterations; whether these pay for
making it depends on the spectrum, which nobody knows beforehand. Both are compared by what an iteration leaves of the
residual, which is of neither of them. Iterations are counted, no clock is read: what is computed must not depend on
what else runs.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from flashgp.foundations.determinism import is_deterministic
from flashgp.foundations.errors import ConvergenceError, DomainError, MemoryBudgetError
from flashgp.foundations.events import EventKind, Obstacle, StopReason
from flashgp.foundations.lazy_import import SharedLock
from flashgp.foundations.machine import available_bytes
from flashgp.foundations.quantities import readable_bytes
from flashgp.foundations.workspace import ran_out_of_memory
from flashgp.solvers.contract import System
from flashgp.solvers.preconditioners.full_scale import FullScale, making_bytes, making_flops
from flashgp.solvers.preconditioners.low_rank import LowRank
from flashgp.solvers.preconditioners.pivoted_cholesky import partial_cholesky
from flashgp.solvers.preconditioners.preconditioner import Comparison, Preconditioner, SolveState
from flashgp.solvers.settings import DEFAULTS, ComparisonSettings, FullScaleSettings, SolveSettings
from flashgp.solvers.space import LOCAL_SPACE, Space

MAX_COORDINATE = 1e150  # squares of it are still numbers

Outcome = Literal["untried", "refused", "lost", "kept"]

_MAKING = SharedLock()  # two threads that make the same one would take the memory of both


class CandidatePreconditioner:
    """Another preconditioner of one system, in one of several sizes, made when it is first wanted.

    With `deterministic` a solve must not depend on what was asked before: every one that is slow makes a comparison of
    its own, at the full price.

    Args:
        make: it in the size of that index; raises MemoryBudgetError, DomainError or ConvergenceError where it cannot be
            made.
        prices: of each size, from the smallest, in passes over the pairs that take as long as making it does; inf for
            one that is never chosen.
        kept: take that size at once, a comparison elsewhere was won.
        space: of its rows. Where several places have these, rank 0's numbers decide, and one where it cannot be made
            refuses it for all.
    Fields: size, the index; outcome, of the last comparison; why, of a refusal; gain, iterations of the first one that
    one of this does the work of, by the comparison; 1 without one; at_once, whether a solve may begin with it: no
    longer once one has that gained nothing, unless `deterministic` makes every solve begin alike.
    """

    def __init__(
        self,
        make: Callable[[int], Preconditioner],
        prices: Sequence[float],
        *,
        kept: int | None = None,
        settings: ComparisonSettings = DEFAULTS.comparison,
        space: Space = LOCAL_SPACE,
    ) -> None:
        self._make, self._prices, self.settings, self.space = make, tuple(prices), settings, space
        self._preconditioner: Preconditioner | None = None
        self.size = 0 if kept is None else kept
        self.outcome: Outcome = "untried" if kept is None else "kept"
        self.why, self.gain, self._rounded = "", 1.0, False
        self.at_once = True

    @property
    def price(self) -> float:
        """Passes over the pairs that take as long as making it does; 0 once it is made."""
        is_there = self._preconditioner is not None and not is_deterministic()
        return 0.0 if is_there else self._prices[self.size]

    def choose_size(self, left: float) -> None:
        """The largest that is made in no more than a share of the iterations that are left; one that is made stays."""
        left = min(left, self.settings.unknown_left) if math.isinf(left) else left
        self._choose(self.settings.making_share * left)

    def _choose(self, allowed: float) -> None:
        """The largest that is made in so many passes, or the smallest."""
        if self._preconditioner is None or is_deterministic():
            chosen = max((i for i, price in enumerate(self._prices) if price <= allowed), default=0)
            if chosen != self.size:
                self.size, self._preconditioner = chosen, None

    def choose_initial_size(self) -> bool:
        """True if building the smallest size costs about one iteration; the largest of about that cost is chosen."""
        self._choose(self.settings.at_once)
        quick = (self.at_once or is_deterministic()) and self.price <= self.settings.at_once
        if quick:
            self._choose(self.settings.at_once_most)
        return quick

    def may_be_tried(self, dtype: torch.dtype) -> bool:
        """True if a solve may try it, with products of that precision: again only where float32 lost the last one."""
        if self.outcome in ("untried", "refused") or is_deterministic():
            return self.outcome != "refused"
        return self.outcome == "lost" and self._rounded and dtype == torch.float64

    def preconditioner(self) -> Preconditioner | None:
        """The preconditioner, made if it is not; None where it cannot be, and `why`."""
        with _MAKING.held:
            while self._preconditioner is None and self.outcome != "refused":
                try:
                    with self.space.together():
                        self._preconditioner = self._make(self.size)
                except (MemoryError, RuntimeError, DomainError, ConvergenceError) as error:
                    short = ran_out_of_memory(error)
                    if not (isinstance(error, DomainError | ConvergenceError) or short):
                        raise
                    if short and self.size:
                        self.size -= 1
                    else:
                        self.outcome, self.why = "refused", str(error)
            return self._preconditioner

    def settle(self, rate: float, first: float, *, rounded: bool = False, again: bool = False) -> bool:
        """True if it is kept, by what an iteration leaves of the residual with it and with the first one.

        For later solves too; one that lost leaves its memory to them.
        Args: rounded, whether float32 products may have lost it; again, whether sharper ones are about to try it.
        """
        kept = rate < 1.0 and rate <= first**self.settings.min_gain
        self.outcome, self._rounded = "kept" if kept else "lost", rounded
        if not kept and not again:
            self._preconditioner = None
        self.gain = math.inf if first >= 1.0 or rate <= 0.0 else math.log(max(rate, 1e-300)) / math.log(first)
        return kept


class Compared(Preconditioner):
    """A preconditioner that bounds errors, and a candidate that slow solves compare it with."""

    def __init__(self, first: Preconditioner, candidate: CandidatePreconditioner) -> None:
        self.first, self.candidate = first, candidate
        self.slack, self.exact, self.rank = first.slack, first.exact, first.rank

    @property
    def log_determinant(self) -> float:
        return self.first.log_determinant

    def half_solve(self, v: Tensor) -> Tensor:
        return self.first.half_solve(v)

    def half_solve_transposed(self, v: Tensor) -> Tensor:
        return self.first.half_solve_transposed(v)

    def comparison(self) -> "ComparisonRun":
        return ComparisonRun(self.candidate)

    def kept(self) -> Preconditioner:
        """The candidate where it won; with `deterministic` always the first one, which no solve before changes."""
        if is_deterministic() or self.candidate.outcome != "kept":
            return self.first
        return self.candidate.preconditioner() or self.first


class ComparisonRun(Comparison):
    """The comparison of one solve.

    A candidate that is made in little more than the time of a pass has its `length` iterations first: those of the low
    rank that would tell whether it is worth making take longer. Otherwise, every `interval` iterations what is left of
    them is estimated, which settles the size of the candidate; where more than `min_left` and twice its price seem
    left, it has `length` iterations.
    """

    def __init__(self, candidate: CandidatePreconditioner) -> None:
        self.candidate, self.settings = candidate, candidate.settings
        self.due = self.running = self.at_once = self.nowhere = False
        self.first_rate, self.first_rose = 1.0, False
        self.sizes: list[float] = []
        self.tried: set[torch.dtype] = set()  # with products of which a comparison is over

    def begin_with(self) -> Preconditioner | None:
        kept = self.candidate.outcome == "kept" and not is_deterministic()
        return self.candidate.preconditioner() if kept else None

    def reset(self, size: float) -> None:
        self.sizes = [size]

    def observe(self, size: float) -> None:
        self.sizes.append(size)

    def begins(self, solve: SolveState) -> bool:
        candidate, begun = self.candidate, self.candidate.outcome == "kept" and not is_deterministic()
        if begun or not candidate.may_be_tried(solve.dtype) or not candidate.choose_initial_size():
            return False
        room = solve.has_room_for(self.settings.length, candidate.price)
        self.due = self.at_once = bool(candidate.space.number(room))
        return self.due

    def wants_residual(self, solve: SolveState) -> bool:
        if self.due or self.running:
            return self.is_over(solve.iterations)
        candidate, settings, count = self.candidate, self.settings, len(self.sizes) - 1
        if solve.dtype in self.tried or not candidate.may_be_tried(solve.dtype):
            return False
        if not count or count % settings.interval:
            return False
        grown = self.sizes[-1] > settings.growth * self.sizes[0]
        if grown and self.recent_rate(settings.interval // 2) >= 1.0 and solve.dtype != torch.float64:
            return False  # rounding may be to blame, which would judge the other one too: float64 comes first
        rate = candidate.space.number(self.rate())
        left = candidate.space.number(iterations_left(rate, solve.excess()))
        candidate.choose_size(left)
        if left <= settings.min_left + 2.0 * candidate.price:
            return False
        if not candidate.space.number(solve.has_room_for(settings.length, candidate.price)):
            return False
        self.due, self.first_rate = True, rate
        return True

    def decide(self, solve: SolveState) -> None:
        if self.due:
            self.due, self.first_rose = False, solve.size() >= self.sizes[0]
            preconditioner = self.candidate.preconditioner() if len(solve.columns) else None
            if preconditioner is not None:
                if preconditioner.reduced:
                    solve.note(EventKind.PRECONDITIONER_REDUCED, blocks=preconditioner.reduced)
                if self.at_once:
                    solve.note(EventKind.PRECONDITIONER_AT_ONCE)
                self.begin(solve, solve.dtype)
                solve.use(preconditioner, solve.dtype)
            elif self.candidate.why:
                solve.note(EventKind.PRECONDITIONER_REFUSED, error=self.candidate.why)
        elif self.running and self._may_settle(solve) and not self._settled(solve):
            solve.use(None, self.dtype)
            if self.nowhere:
                solve.sharpen(Obstacle.NO_GAIN, StopReason.STAGNATED)

    def _may_settle(self, solve: SolveState) -> bool:
        """True if a true residual settles it: wanted, of nothing that is left open, or come early where there is no
        rate that it has to beat."""
        early = self.at_once and 2 * (solve.iterations - self._began) >= self.settings.length
        return early or self.is_over(solve.iterations) or not len(solve.columns)

    def sharpened(self, solve: SolveState) -> None:
        if self.running and len(solve.columns):
            rate = self.candidate_rate(solve)
            self.begin(solve, self.dtype)
            self._rate = rate  # what float32 made of it counts where it was more than float64 makes of the rest

    def averts(self, solve: SolveState, obstacle: Obstacle, otherwise: StopReason) -> bool:
        """Unless the candidate has won by then, down to rounding: from the best values with the first one."""
        if not self.running or self._settled(solve, obstacle, otherwise is StopReason.DIVERGED):
            return False
        solve.restart(self.dtype)
        return True

    def end(self, solve: SolveState) -> None:
        if self.running:
            solve.note(EventKind.PRECONDITIONER_UNDECIDED, rate=None if self.at_once else self.first_rate)
        self.due = self.running = False

    def begin(self, solve: SolveState, dtype: torch.dtype) -> None:
        """Begin, or begin again with float64 products. Args: dtype, to go back to."""
        self.running, self.columns, self.dtype, self._rate = True, solve.columns, dtype, 1.0
        self._before, self._began = solve.relative[solve.columns].clone(), solve.iterations

    def is_over(self, iterations: int) -> bool:
        return self.running and iterations - self._began >= self.settings.length

    def candidate_rate(self, solve: SolveState) -> float:
        """Factor of the residual in an iteration, by true ones of the same columns: the best so far, so that what came
        after rounding had the last word does not count. 1 where nothing was gained.

        Columns that are done stay where they met the goal: only those that are still open count. Where none is, the one
        that has come furthest has taken part in all iterations.
        """
        count = solve.iterations - self._began
        if not count:
            return 1.0
        left = solve.relative[self.columns] / self._before.clamp(min=torch.finfo(torch.float64).tiny)
        still = torch.isin(self.columns, solve.open)
        return float(left[still].max() if bool(still.any()) else left.min()) ** (1.0 / count)

    def _settled(self, solve: SolveState, obstacle: Obstacle | None = None, failed: bool = False) -> bool:
        """True if the candidate has won, by the true residuals, unless it failed; and what ended the comparison."""
        rate = 1.0 if failed else self.candidate.space.number(min(self._rate, self.candidate_rate(solve)))
        if self.at_once and rate > self.settings.standing:  # the low rank first, then a comparison with its rate
            self.candidate.at_once = self.running = self.at_once = False
            solve.note(EventKind.PRECONDITIONER_COMPARED, candidate_rate=rate, obstacle=obstacle, kept=False)
            return False
        # Float32 products, not the candidate, may have lost it where it stood still: float64 may try it again, and at
        # once where they may have lost both, the first one too standing still or being no lower than where it began.
        rounded = rate > self.settings.standing and torch.float32 == self.dtype == solve.dtype
        self.nowhere = rounded and (self.first_rose or self.first_rate > self.settings.standing)
        self.tried |= {torch.float32} if rounded else {torch.float32, torch.float64}
        kept = self.candidate.settle(rate, self.first_rate, rounded=rounded, again=self.nowhere)
        self.running = False
        again = not kept and solve.dtype != self.dtype
        first, self.at_once = None if self.at_once else self.first_rate, False
        solve.note(
            EventKind.PRECONDITIONER_COMPARED, rate=first, candidate_rate=rate, obstacle=obstacle, kept=kept,
            float32_again=again,
        )  # fmt: skip
        return kept

    def recent_rate(self, iterations: int) -> float:
        """Factor of the residual in each of the last iterations."""
        return contraction(self.sizes, iterations)

    def rate(self) -> float:
        """The recent rate, of twice as many iterations where the last gained hardly anything and those before more:
        conjugate gradients have plateaus, also just before they end."""
        rate = self.recent_rate(self.settings.interval // 2)
        return rate if rate <= self.settings.standing else min(rate, self.recent_rate(self.settings.interval))


def contraction(sizes: Sequence[float], iterations: int) -> float:
    """Mean factor of residuals in each of the last iterations, from sizes before and after each of them."""
    before, now = sizes[-1 - iterations], sizes[-1]
    return (now / before) ** (1.0 / iterations) if before > 0.0 else 1.0


def iterations_left(rate: float, excess: float) -> float:
    """Iterations left of a solve, inf where they are unknown.

    Args:
        rate: what an iteration leaves of the residual.
        excess: how many times too large that is.
    """
    if excess <= 1.0:
        return 0.0
    return -math.log(excess) / math.log(rate) if 0.0 < rate < 1.0 else math.inf if rate >= 1.0 else 0.0


# -- low rank and full scale -----------------------------------------------------------------------------------------
def low_rank(system: System, rank: int | None, seed: int, settings: SolveSettings) -> Preconditioner:
    """The low rank of a system, compared with the full-scale preconditioner where settings say so.

    Args: rank: columns at most; None for that of the settings.
    Cost: n k evaluations and 4 n k^2 flops.
    """
    limit = min(settings.low_rank.max_rank, max(1, system.space.count(system.noise) // 4)) if rank is None else rank
    partial = partial_cholesky(system, limit=limit, seed=seed, settings=settings.low_rank)
    first = LowRank(partial, system.noise, settings.low_rank)
    candidate = full_scale(system, first, seed, settings) if settings.compare else None
    return first if candidate is None else Compared(first, candidate)


def full_scale(
    system: System, first: LowRank, seed: int, settings: SolveSettings = DEFAULTS, *, kept: int | None = None
) -> CandidatePreconditioner | None:
    """The full-scale preconditioner with the inducing points of a low rank as a candidate; None where no distance tells
    which rows are near.

    Args: kept: as in `CandidatePreconditioner`.
    """
    if not system.has_scaled_inputs:
        return None
    make = functools.partial(_full_scale, system, first, seed, settings)  # which can be pickled
    count, variances = system.space.count(system.noise), float(system.space.sum(system.diagonal()))
    extremes = (-float(system.space.max(-system.noise)), float(system.space.max(system.noise)))
    noise = [one * count / variances if variances > 0.0 else math.inf for one in extremes]
    prices = [_price(count, first.rank, one, noise, settings.comparison) for one in settings.full_scale]
    while kept and math.isinf(prices[kept]):
        kept -= 1
    return CandidatePreconditioner(make, prices, kept=kept, settings=settings.comparison, space=system.space)


def _price(
    count: int, rank: int, sizes: FullScaleSettings, noise: Sequence[float], settings: ComparisonSettings
) -> float:
    """`making_passes`; inf where that is too long, or the smallest or the largest noise, over the mean variance, is
    beyond what the digits of W are for."""
    price = making_passes(count, rank, sizes, settings)
    allowed = all(sizes.min_noise <= one <= sizes.max_noise for one in noise)
    return price if allowed and price <= sizes.max_price else math.inf


def making_passes(count: int, rank: int, sizes: FullScaleSettings, settings: ComparisonSettings) -> float:
    """Passes over the pairs of so many rows that take as long as making a full-scale preconditioner for them."""
    return making_flops(rank, sizes) / (settings.pair_flops * max(1, count))


def _full_scale(system: System, first: LowRank, seed: int, settings: SolveSettings, size: int) -> Preconditioner:
    """Raises: MemoryBudgetError; DomainError for inputs that are too large to be compared."""
    sizes = settings.full_scale[size]
    rows = system.space.count(system.noise)
    needed, free = making_bytes(system.count, first.rank, sizes, rows=rows), available_bytes(system.device)
    if needed > free:
        raise MemoryBudgetError(
            f"the full-scale preconditioner needs {readable_bytes(needed)} while it is made, with "
            f"{readable_bytes(free)} free; free memory, or pass a larger memory=",
            needed_bytes=needed,
            available_bytes=free,
        )
    points = system.scaled_inputs()
    assert points is not None
    if points.numel() and not float(points.abs().max()) < MAX_COORDINATE:
        raise DomainError(
            f"`x` over lengthscales must stay below {MAX_COORDINATE:g} for the full-scale preconditioner, got larger "
            "or none; scale the data"
        )
    factor = system.workspace.adopt(first.factor())
    return FullScale(system, factor, sizes, seed=seed)
