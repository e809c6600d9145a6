"""A second preconditioner of conjugate gradients: when a solve is slow enough to try it, and which of the two is kept.

Which one is quick depends on the spectrum, which nobody knows beforehand. Both are compared by what an iteration leaves
of the residual, which is of neither of them. Iterations are counted, no clock is read: what is computed must not depend
on what else runs.
"""

import functools
import math
import threading
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from flashgp.foundations.determinism import is_deterministic
from flashgp.foundations.errors import DomainError, MemoryBudgetError
from flashgp.foundations.machine import available_bytes
from flashgp.foundations.report import readable_bytes
from flashgp.foundations.workspace import ran_out_of_memory
from flashgp.solvers.iterative.contract import System
from flashgp.solvers.preconditioners.preconditioner import Preconditioner
from flashgp.solvers.preconditioners.vecchia import Vecchia, making_bytes
from flashgp.solvers.settings import DEFAULTS

__all__ = [
    "LOOK", "TRIAL", "Outcome", "Second", "Trial", "is_slow", "lately", "making_passes",
    "near_rows", "usually",
]  # fmt: skip

# Every LOOK iterations what is left of them is estimated; where more than WORTHWHILE and twice the price of making the
# second one seem left, that has a TRIAL. It is kept if an iteration leaves at most QUICK of the residual, and no more
# than two of the first one do.
LOOK, WORTHWHILE, TRIAL, QUICK = 20, 60, 8, 0.7
STANDING = 0.97  # of the residual left by an iteration that gains nothing: a digit in 76 of them
GROWN = 4.0  # times the residual before: no plateau
MAKING_PAIRS = 340_000  # of a pass over the pairs that take as long as making near rows does for one row
LARGEST_PLACE = 1e150  # squares of it are still numbers

Outcome = Literal["untried", "refused", "lost", "kept"]

_MAKING = threading.RLock()  # two threads that make the same one would take the memory of both


class Second:
    """The second preconditioner of one system, made when it is first wanted.

    With `deterministic` a solve must not depend on what was asked before: every one that is slow has a trial of its
    own, at the full price.

    Args: make: raises MemoryBudgetError or DomainError where it cannot be made; count, of rows; kept: take it at once,
        a trial elsewhere was won.
    Fields: outcome, of the last trial; why, of a refusal; gain, iterations of the first one that one of this does the
        work of, by the trial; 1 without one.
    """

    def __init__(self, make: Callable[[], Preconditioner], count: int, *, kept: bool = False) -> None:
        self._make, self.count = make, count
        self._made: Preconditioner | None = None
        self.outcome: Outcome = "kept" if kept else "untried"
        self.why, self.gain, self._rough = "", 1.0, False

    @property
    def price(self) -> float:
        """Passes over the pairs that take as long as making it does; 0 once it is made."""
        return 0.0 if self._made is not None and not is_deterministic() else making_passes(self.count)

    def may_be_tried(self, dtype: torch.dtype) -> bool:
        """By a solve that has not, with products of that precision: again only where float32 lost the last trial."""
        if self.outcome in ("untried", "refused") or is_deterministic():
            return self.outcome != "refused"
        return self.outcome == "lost" and self._rough and dtype == torch.float64

    def made(self) -> Preconditioner | None:
        """It, made if it is not; None where it cannot be, and `why`."""
        with _MAKING:
            if self._made is None and self.outcome != "refused":
                try:
                    self._made = self._make()
                except (MemoryError, RuntimeError, DomainError) as error:
                    if not (isinstance(error, DomainError) or ran_out_of_memory(error)):
                        raise
                    self.outcome, self.why = "refused", str(error)
            return self._made

    def begun_with(self) -> Preconditioner | None:
        """What a solve begins with instead of the first one, if it does."""
        return self.made() if self.outcome == "kept" and not is_deterministic() else None

    def settle(self, rate: float, first: float, *, rough: bool = False) -> bool:
        """Whether it is kept, by what an iteration leaves of the residual with it and with the first one.

        For later solves too; one that lost leaves its memory to them. rough: whether products in float32 lost it.
        """
        kept = rate <= QUICK and rate <= first**2
        self.outcome, self._rough = "kept" if kept else "lost", rough
        if not kept and not rough:
            self._made = None
        self.gain = math.inf if first >= 1.0 or rate <= 0.0 else math.log(max(rate, 1e-300)) / math.log(first)
        return kept


class Trial:
    """The trial of one solve. Args and fields: rate, what an iteration of the first one left of the residual.

    Once it is `begun`, running; dtype, of the products before.
    """

    def __init__(self, rate: float) -> None:
        self.rate, self.running = rate, False

    def begin(self, columns: Tensor, relative: Tensor, size: float, iterations: int, dtype: torch.dtype) -> None:
        """It begins, or begins anew with sharper products.

        Args: columns of the solve that are open; relative: true residuals of all columns, best so far; size, of the
            residual it goes on from; iterations, before the trial.
        """
        self.running, self.columns, self.dtype = True, columns, dtype
        self._before, self._size, self._began = relative[columns].clone(), size, iterations

    def iterations(self, now: int) -> int:
        """How many of its own, after so many of the solve."""
        return now - self._began if self.running else 0

    def outcome(self, relative: Tensor, still: Tensor, now: int) -> float:
        """What an iteration left of the residual, by true ones of the same columns: the best so far, so that what came
        after rounding had the last word does not count. 1 where nothing was gained.

        Columns that are done stay where they met the goal: only those that are `still` open count. Where none is, the
        one that has come furthest has taken part in all iterations.
        """
        count = self.iterations(now)
        if not count:
            return 1.0
        left = relative[self.columns] / self._before.clamp(min=torch.finfo(torch.float64).tiny)
        open_yet = torch.isin(self.columns, still)
        return float(left[open_yet].max() if bool(open_yet.any()) else left.min()) ** (1.0 / count)

    def blames_rounding(self, rate: float, size: float) -> bool:
        """Whether float32 products, not the preconditioner, may have lost it: both stood still, and the residual of
        its last value is much above those it began with. Args: rate, its own; size, of that residual."""
        standing = min(rate, self.rate) > STANDING and self.dtype == torch.float32
        return standing and size > GROWN * self._size


def lately(sizes: Sequence[float], iterations: int = LOOK // 2) -> float:
    """What each of the last iterations has left of the residual, of sizes before and after each of them."""
    before, now = sizes[-1 - iterations], sizes[-1]
    return (now / before) ** (1.0 / iterations) if before > 0.0 else 1.0


def usually(sizes: Sequence[float]) -> float:
    """The same of twice as many where the last ones gained hardly anything and those before them more: conjugate
    gradients have plateaus, also just before they end."""
    rate = lately(sizes)
    return rate if rate <= STANDING else min(rate, lately(sizes, LOOK))


def is_slow(rate: float, excess: float, price: float) -> bool:
    """Whether so many iterations are left that another preconditioner is worth a trial.

    Args: rate: what an iteration leaves of the residual; excess: how many times too large that is; price: of making
        the other one, in passes over the pairs.
    """
    if excess <= 1.0:
        return False
    left = -math.log(excess) / math.log(rate) if 0.0 < rate < 1.0 else math.inf if rate >= 1.0 else 0.0
    return left > WORTHWHILE + 2.0 * price


def making_passes(count: int) -> float:
    """Passes over the pairs of so many rows that take as long as making near rows for them."""
    return MAKING_PAIRS / max(1, count)


# -- near rows -------------------------------------------------------------------------------------------------------
def near_rows(system: System, seed: int, *, kept: bool = False) -> Second | None:
    """Near rows as the second one; None where it cannot be told which rows are near. kept: as in `Second`."""
    if not system.has_scaled_inputs:
        return None
    return Second(functools.partial(_near_rows, system, seed), system.count, kept=kept)  # which can be pickled


def _near_rows(system: System, seed: int) -> Preconditioner:
    """Raises: MemoryBudgetError; DomainError for inputs that are too large to be compared."""
    needed = making_bytes(system.count, DEFAULTS.vecchia)
    free = available_bytes(system.device)
    if needed > free:
        raise MemoryBudgetError(
            f"near rows need {readable_bytes(needed)} while they are made, with {readable_bytes(free)} free; free "
            "memory, or pass a larger memory=",
            needed_bytes=needed,
            available_bytes=free,
        )
    places = system.scaled_inputs()
    assert places is not None
    if places.numel() and not float(places.abs().max()) < LARGEST_PLACE:
        raise DomainError(
            f"`x` over lengthscales must stay below {LARGEST_PLACE:g} for near rows, got larger or none; scale the data"
        )
    return Vecchia(system, places, seed=seed)
