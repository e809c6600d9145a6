"""Block preconditioned conjugate gradients: one Krylov space for all right-hand sides, residuals checked in float64.

The block form with QR (Dubrulle's BCGrQ) keeps an orthonormal basis of the block of residuals, so that columns that
depend on each other are harmless. Products run in float32 while that pays; the true float64 residual replaces the
recurrence every so often, the search directions stay conjugate to the last ones, and a replacement that shows no
progress sends the products to float64.

A solve that turns out slow tries another preconditioner for a few iterations and keeps the quicker one, for later
solves too: which of them is quick depends on the spectrum, which nobody knows beforehand.
Sources: O'Leary (1980), The block conjugate gradient algorithm; Dubrulle (2001), Retooling the method of block
conjugate gradients, algorithm BCGrQ; van der Vorst & Ye (2000), Residual replacement strategies.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flashgp import linalg
from flashgp.foundations.errors import MemoryBudgetError
from flashgp.solvers.contract import (
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
from flashgp.solvers.low_rank import LowRank, partial_cholesky
from flashgp.solvers.preconditioner import Preconditioner
from flashgp.solvers.progress import Progress, product
from flashgp.solvers.vecchia import Vecchia

__all__ = ["ConjugateGradients", "PreparedConjugateGradients", "near_rows"]

F64 = torch.float64
LARGEST_RANK = 512  # of the preconditioner, where the caller names none
REPLACE_EVERY = 50  # iterations after which the true residual replaces the recurrence
REPLACE_BELOW = 1e-3  # with float32 products also once the recurrence has fallen by this factor
FOLLOWED = 1.0 / 3.0  # the share of the digits claimed by the recurrence that must be true with float32 products
WINDOW = 200  # iterations within which the residual must halve
DIVERGED = 1e6  # times the first residual
NARROWER = 0.25  # the share of the columns that must have converged before the block is made smaller
# Every LOOK iterations the rest of them is estimated; where more than WORTHWHILE and twice the price of making another
# preconditioner seem left, that has a TRIAL. It stays if an iteration leaves at most QUICK of the residual, and no more
# than two of the first one do. Counts, not clocks: what is computed must not depend on what else runs.
LOOK, WORTHWHILE, TRIAL, QUICK = 20, 60, 8, 0.7
MAKING_PAIRS = 340_000  # of a pass over the pairs that take as long as near rows do for one row


@dataclass(frozen=True)
class ConjugateGradients(Solver):
    """Block conjugate gradients with a partial Cholesky preconditioner, or near rows where these are quicker.

    Args:
        rank: most columns of the preconditioner; by default a quarter of the rows, at most 512. share: as in
            `partial_cholesky`; first: dtype of the first products; window: iterations within which sqrt(r^T P^-1 r)
            must halve; near: whether a slow solve tries near rows as preconditioner, eq. (M-121).
    Cost: prepare n k evaluations and 4 n k^2 flops; an iteration one pass, 8 n k t + 10 n t^2 flops.
    """

    rank: int | None = None
    share: float = 0.1
    first: torch.dtype = torch.float32
    window: int = WINDOW
    near: bool = True
    name: str = "conjugate gradients"

    def prepare(self, system: System, *, seed: int = 0) -> "PreparedConjugateGradients":
        limit = min(LARGEST_RANK, max(1, system.count // 4)) if self.rank is None else self.rank
        partial = partial_cholesky(system, limit=limit, share=self.share, seed=seed)
        return PreparedConjugateGradients(
            system,
            LowRank(partial, system.noise),
            name=self.name,
            first=self.first,
            window=self.window,
            second=near_rows(system, seed) if self.near else None,
        )


def near_rows(system: System, seed: int) -> Callable[[], Preconditioner] | None:
    """What makes the preconditioner of near rows; None where no row is near another."""
    places = system.places()
    return None if places is None else lambda: Vecchia(system, places, seed=seed)


class PreparedConjugateGradients(Prepared):
    """Block conjugate gradients with any preconditioner.

    Args:
        first: dtype of the first products, float32 or float64; window: as in `ConjugateGradients`; events: of what was
            prepared; second: makes another preconditioner, which a slow solve tries.
    Fields: preconditioner, which also bounds errors; active, the one that iterations take.
    """

    def __init__(
        self,
        system: System,
        preconditioner: Preconditioner,
        *,
        name: str,
        first: torch.dtype,
        window: int = WINDOW,
        events: Sequence[str] = (),
        second: Callable[[], Preconditioner] | None = None,
    ) -> None:
        self.system, self.preconditioner, self.name = system, preconditioner, name
        self.first, self.window, self.events = first, window, tuple(events)
        self.active, self.second = preconditioner, second

    def take_second(self) -> str | None:
        """Iterate with the other preconditioner from now on, if there is memory for it; else why not."""
        make, self.second = self.second, None
        if make is not None:
            try:
                self.active = make()
            except MemoryBudgetError as error:
                return str(error)
        return None

    def solve(self, rhs: Tensor, goal: Goal, *, start: Tensor | None = None, limits: Limits = NO_LIMITS) -> Solution:
        """As `Prepared.solve`; an iteration is one product with a block of search directions."""
        progress = Progress(self.name, self.system, rhs, goal, limits, start, self._bound, self.events)
        with self.system.workspace.hold(8 * 8 * rhs.numel()):
            try:
                ended = _Run(self, progress).stopped()
            except KeyboardInterrupt:
                ended = progress.interrupted_by_hand()
            return progress.finished(ended)

    def _bound(self, residual: Tensor) -> Tensor:
        """sqrt(slack r^T P^-1 r), eq. (M-79)."""
        return half_bound(self.preconditioner, self.preconditioner.half_solve(residual).norm(dim=0))


def half_bound(preconditioner: Preconditioner, half: Tensor) -> Tensor:
    """sqrt(slack) |L^-1 r|, eq. (M-79); 0 for r = 0 also where the slack is infinite."""
    return torch.where(half > 0.0, preconditioner.slack**0.5 * half, 0.0)


class _Directions:
    """Search directions S (n, s) with Z = L^-1 A L^-T S and the pseudo-inverse of S^T Z."""

    def __init__(self, S: Tensor, Z: Tensor) -> None:
        self.S, self.Z = S, Z
        curvature = S.mT @ Z
        symmetric = 0.5 * (curvature + curvature.mT)
        values, vectors = linalg.eigh(symmetric, device=linalg.own_device(symmetric))
        least = len(values) * torch.finfo(F64).eps * float(values.abs().max())
        self.positive = float(values[0]) >= -least and float(values[-1]) > 0.0
        kept = values > least
        self.inverse = (vectors[:, kept] / values[kept]) @ vectors[:, kept].mT

    @property
    def fill_the_space(self) -> bool:
        """As many directions as rows: nothing is conjugate to all of them."""
        return self.S.shape[1] >= self.S.shape[0]

    def conjugate(self, Q: Tensor) -> Tensor:
        """Q made conjugate to these directions, (M-80)."""
        return Q - self.S @ (self.inverse @ (self.Z.mT @ Q))


@dataclass
class _Trial:
    """Another preconditioner on trial. Fields: rate, what an iteration of the first one left of the residual; begun,
    the place in the list of sizes, None before."""

    rate: float
    begun: int | None = None


class _Run:
    """One solve, eq. (M-80): columns are the open ones, x and r theirs in scaled units, r of the recurrence."""

    def __init__(self, method: PreparedConjugateGradients, progress: Progress) -> None:
        self.method, self.progress = method, progress
        self.dtype = method.first
        self.last: _Directions | None = None
        self.Q: Tensor
        self.coefficients: Tensor
        self._take_best()
        self._begin()
        self.trial: _Trial | None = None
        self.sizes = [self._size()]

    def stopped(self) -> StopReason:
        """Runs until something ends it."""
        while len(self.columns):
            before = self.half_norms
            try:
                ended, sound = self._until_replacement(before)
            except KeyboardInterrupt:  # what it has got to is worth the pass that measures it
                ended, sound = self.progress.interrupted_by_hand(), True
            claimed = self.half_norms
            if self.progress.iterations > self.synchronised:
                self._verify()
            if ended is not None:
                return ended
            ended = self._judge(before, claimed, sound)
            if ended is not None:
                return ended
            self._narrow()
            self._consider()
        return "goal"

    # -- one iteration -------------------------------------------------------------------------------------------
    def _until_replacement(self, before: Tensor) -> tuple[StopReason | None, bool]:
        """Iterations until the true residual is wanted: why the solve ends, if it does, and whether A looked
        positive definite."""
        progress = self.progress
        while True:
            ended = progress.interrupted()
            if ended is not None:
                return ended, True
            if not self._iterate():
                return None, False
            self.sizes.append(self._size())
            if progress.step(self.columns, self.r):
                return "callback", True
            if self._is_slow() or self._tried() or self._stands_still() or self._wants_truth(before):
                return None, True

    def _iterate(self) -> bool:
        """One step; False where S^T A S is not positive."""
        preconditioner, progress = self.method.active, self.progress
        S = self.Q if self.last is None or self.last.fill_the_space else self.last.conjugate(self.Q)
        V = preconditioner.half_solve_transposed(S)
        AV = product(self.method.system, V, self.dtype)
        progress.passes += 1.0
        check_residual(progress.name, progress.iterations + 1, AV, "a product with the covariance matrix")
        directions = _Directions(S, preconditioner.half_solve(AV))
        if not directions.positive:
            return False
        step = directions.inverse @ (S.mT @ self.Q)
        change = step @ self.coefficients
        self.x += V @ change
        self.r -= AV @ change
        self.last = directions
        if preconditioner.exact:
            shorter = self.Q - directions.Z @ step
            self.Q, tau = linalg.qr(shorter, device=linalg.own_device(shorter))
            self.coefficients = tau @ self.coefficients
        else:  # one step may gain more digits than L^-1 has: from the residual, which is float64
            self._orthonormalise()
        return True

    # -- truth ---------------------------------------------------------------------------------------------------
    @property
    def half_norms(self) -> Tensor:
        """|L^-1 r| of every open column, by the recurrence."""
        return self.coefficients.norm(dim=0)

    def _synchronise(self, residual: Tensor) -> None:
        """The residual replaces the recurrence: L^-1 r = Q C."""
        self.r = residual.clone()
        self._orthonormalise()
        self.synchronised = self.progress.iterations
        if self.last is not None and self.last.S.shape[1] + self.Q.shape[1] > self.Q.shape[0]:
            self.last = None  # what would be left of Q is rounding

    def _orthonormalise(self) -> None:
        half = self.method.active.half_solve(self.r)
        self.Q, self.coefficients = linalg.qr(half, device=linalg.own_device(half))

    def _take_best(self) -> None:
        self.columns = self.progress.open
        self.x = self.progress.value[:, self.columns].clone()
        self._synchronise(self.progress.residual[:, self.columns])

    def _verify(self) -> None:
        self._synchronise(self.progress.verify(self.columns, self.x))

    def _wants_truth(self, before: Tensor) -> bool:
        norms = self.half_norms
        met = self.progress.met(self.columns, self.r, half_bound(self.method.active, norms))
        count = int(met.sum())
        if count == len(met) or count > NARROWER * len(met):
            return True
        if self.progress.iterations - self.synchronised >= REPLACE_EVERY:
            return True
        return self.dtype != F64 and bool((norms <= REPLACE_BELOW * before).all())

    def _narrow(self) -> None:
        """Leave out the columns that are done; the directions they have contributed stay."""
        still = self.progress.open
        if len(still) == len(self.columns):
            return
        kept = torch.isin(self.columns, still)
        self.columns, self.x = self.columns[kept], self.x[:, kept]
        if len(still):
            self._synchronise(self.r[:, kept])

    # -- another preconditioner ----------------------------------------------------------------------------------
    def _size(self) -> float:
        """The largest |r| / |b| of the open columns, by the recurrence; it is of no preconditioner."""
        return float(self.r.norm(dim=0).max()) if len(self.columns) else 0.0

    def _rate(self, iterations: int) -> float:
        """The factor of the residual of each of the last iterations."""
        before, now = self.sizes[-1 - iterations], self.sizes[-1]
        return (now / before) ** (1.0 / iterations) if before > 0.0 else 1.0

    def _is_slow(self) -> bool:
        """Whether another preconditioner should be tried now: at this rate many iterations are left."""
        count = len(self.sizes) - 1
        if self.method.second is None or self.trial is not None or not count or count % LOOK:
            return False
        rate = self._rate(LOOK // 2)
        left = -math.log(max(1.0, self.progress.excess(self.columns, self.r))) / math.log(rate) if rate < 1.0 else None
        if left is not None and left <= WORTHWHILE + 2.0 * MAKING_PAIRS / self.method.system.count:
            return False
        self.trial = _Trial(rate)
        return True

    def _tried(self) -> bool:
        trial = self.trial
        return trial is not None and trial.begun is not None and len(self.sizes) - trial.begun > TRIAL

    def _consider(self) -> None:
        """After the truth is known: begin a trial that is due, or end one."""
        trial, method = self.trial, self.method
        if trial is None:
            return
        if trial.begun is None:
            if not len(self.columns):
                return
            refused = method.take_second()
            if refused is not None:
                self.progress.note(f"slow; near rows were not tried as preconditioner, {refused}")
                self.trial = None
                return
            self._restart()
            trial.begun = len(self.sizes)
            self.sizes.append(self._size())
        elif self._tried() or not len(self.columns):
            count = len(self.sizes) - 1 - trial.begun
            rate = (self.sizes[-1] / self.sizes[trial.begun]) ** (1.0 / count) if count else 1.0
            quicker = not len(self.columns) or (rate <= QUICK and rate <= trial.rate**2)
            self.progress.note(
                f"slow, an iteration left {trial.rate:.2f} of the residual; with near rows as preconditioner "
                f"{rate:.2f}, {'kept' if quicker else 'not kept'}"
            )
            self.trial = None
            if not quicker:
                method.active = method.preconditioner
                self._restart()

    def _restart(self) -> None:
        """Go on with another preconditioner from the values so far."""
        self.last = None
        self._orthonormalise()
        self._begin()

    def _begin(self) -> None:
        """Progress counts from here."""
        self.largest = float(self.half_norms.max()) if len(self.columns) else 0.0
        self.reference, self.reference_iteration = self.largest, self.progress.iterations

    # -- progress ------------------------------------------------------------------------------------------------
    def _stands_still(self) -> bool:
        """No halving of the largest |L^-1 r| within the window."""
        now = float(self.half_norms.max())
        if now <= 0.5 * self.reference:
            self.reference, self.reference_iteration = now, self.progress.iterations
        return self.progress.iterations - self.reference_iteration >= self.method.window

    def _judge(self, before: Tensor, claimed: Tensor, sound: bool) -> StopReason | None:
        """What the true residual says about the recurrence since the last one."""
        now = self.half_norms
        if float(now.max()) > DIVERGED * self.largest:
            return self._harder("the residual grows", "diverged")
        if not sound and self.last is not None:
            self.last = None  # the directions, not the matrix, may be to blame: once more from the residual alone
            return None
        if not sound:
            return self._harder("the matrix does not look positive definite", "diverged")
        if self._stands_still():
            return self._harder(f"the residual has not halved in {self.method.window} iterations", "stagnated")
        # In float64 a fall of the recurrence without a halving is the end of what rounding allows. Float32 is left
        # earlier: where a third of the digits that it claims are true, float64 products take fewer passes.
        wanted = 0.5 * before if self.dtype == F64 else before * (claimed / before).pow(FOLLOWED)
        if bool(((claimed <= 0.25 * before) & (now > wanted)).any()):
            return self._harder("the true residual does not follow the recurrence", "stagnated")
        return None

    def _harder(self, why: str, otherwise: StopReason) -> StopReason | None:
        """Go on with float64 products from the best values, or end."""
        if self.dtype == F64:
            self.progress.note(why)
            return otherwise
        self.dtype = F64
        self.progress.note(f"{why} with float32 products, float64 from iteration {self.progress.iterations} on")
        self.last = None
        self._take_best()
        self.reference = float(self.half_norms.max()) if len(self.columns) else 0.0
        self.reference_iteration = self.progress.iterations
        return None
