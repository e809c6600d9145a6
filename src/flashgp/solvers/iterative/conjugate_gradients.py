"""Block preconditioned conjugate gradients: one Krylov space for all right-hand sides, residuals checked in float64.

The block form with QR (Dubrulle's BCGrQ) keeps an orthonormal basis of the block of residuals, so that columns that
depend on each other are harmless. Products run in float32 while that pays; the true float64 residual replaces the
recurrence every so often, the search directions stay conjugate to the last ones, and a replacement that shows no
progress sends the products to float64.

A solve that turns out slow tries another preconditioner for a few iterations and keeps the quicker one (second.py).
Sources: O'Leary (1980), The block conjugate gradient algorithm; Dubrulle (2001), Retooling the method of block
conjugate gradients, algorithm BCGrQ; van der Vorst & Ye (2000), Residual replacement strategies.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flashgp import linalg
from flashgp.foundations.events import Event, EventKind, Obstacle, StopReason
from flashgp.solvers.iterative.contract import (
    NO_LIMITS,
    Goal,
    Limits,
    Prepared,
    Solution,
    Solver,
    System,
    check_residual,
)
from flashgp.solvers.iterative.progress import Progress, product
from flashgp.solvers.preconditioners.candidate import (
    LOOK,
    TRIAL,
    Second,
    Trial,
    is_slow,
    lately,
    near_rows,
    usually,
)
from flashgp.solvers.preconditioners.low_rank import LowRank
from flashgp.solvers.preconditioners.pivoted_cholesky import partial_cholesky
from flashgp.solvers.preconditioners.preconditioner import Preconditioner

__all__ = ["ConjugateGradients", "PreparedConjugateGradients"]

F64 = torch.float64
LARGEST_RANK = 512  # of the preconditioner, where the caller names none
REPLACE_EVERY = 50  # iterations after which the true residual replaces the recurrence
REPLACE_BELOW = 1e-3  # with float32 products also once the recurrence has fallen by this factor
FOLLOWED = 1.0 / 3.0  # the share of the digits claimed by the recurrence that must be true with float32 products
WINDOW = 200  # iterations within which the residual must halve
DIVERGED = 1e6  # times the first residual
NARROWER = 0.25  # the share of the columns that must have converged before the block is made smaller


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


class PreparedConjugateGradients(Prepared):
    """Block conjugate gradients with any preconditioner.

    Args:
        first: dtype of the first products, float32 or float64; window: as in `ConjugateGradients`; events: of what was
            prepared; second: another preconditioner, which a slow solve tries; errors are bounded by the first.
    """

    def __init__(
        self,
        system: System,
        preconditioner: Preconditioner,
        *,
        name: str,
        first: torch.dtype,
        window: int = WINDOW,
        events: Sequence[Event] = (),
        second: Second | None = None,
    ) -> None:
        self.system, self.preconditioner, self.name = system, preconditioner, name
        self.first, self.window, self.events = first, window, tuple(events)
        self.second = second

    def solve(self, rhs: Tensor, goal: Goal, *, start: Tensor | None = None, limits: Limits = NO_LIMITS) -> Solution:
        """As `Prepared.solve`; an iteration is one product with a block of search directions."""
        halves = _Halves(self.preconditioner)
        progress = Progress(self.name, self.system, rhs, goal, limits, start, halves.bound, self.events)
        with self.system.workspace.hold(8 * 8 * rhs.numel()):
            try:
                ended = _Run(self, progress, halves).stopped()
            except KeyboardInterrupt:
                ended = progress.interrupted_by_hand()
            return progress.finished(ended)

    def _bound(self, residual: Tensor) -> Tensor:
        """sqrt(slack r^T P^-1 r), (t,), eq. (M-79)."""
        return half_bound(self.preconditioner, self.preconditioner.half_solve(residual).norm(dim=0))


class _Halves:
    """L^-1 r with the first preconditioner, of one solve: what bounds the error of a residual often begins the next
    directions as well."""

    def __init__(self, preconditioner: Preconditioner) -> None:
        self.preconditioner, self._awaited = preconditioner, True
        self._last: tuple[Tensor, Tensor] | None = None

    def awaited(self) -> None:
        """Directions will begin with the next residual that is asked for."""
        self._awaited = True

    def bound(self, residual: Tensor) -> Tensor:
        """sqrt(slack r^T P^-1 r), (t,), eq. (M-79)."""
        half = self.preconditioner.half_solve(residual)
        if self._awaited:
            self._last = residual.clone(), half  # whatever becomes of the caller's
        return half_bound(self.preconditioner, half.norm(dim=0))

    def forget(self) -> None:
        self._last, self._awaited = None, False

    def take(self, residual: Tensor) -> Tensor:
        """L^-1 r, of which nothing is kept any longer."""
        last = self._last
        self.forget()
        if last is not None and torch.equal(last[0], residual):
            return last[1]
        return self.preconditioner.half_solve(residual)


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


class _Run:
    """One solve, eq. (M-80): columns are the open ones, x and r theirs in scaled units, r of the recurrence."""

    def __init__(self, method: PreparedConjugateGradients, progress: Progress, halves: _Halves) -> None:
        self.method, self.progress, self.halves = method, progress, halves
        self.active = (method.second and method.second.begun_with()) or method.preconditioner
        self.dtype = method.first
        self.last: _Directions | None = None
        self.Q: Tensor
        self.coefficients: Tensor
        self.trial: Trial | None = None
        self.tried: set[torch.dtype] = set()  # with products of which a trial is over
        self._take_best()
        self._begin()

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
            if ended is None:
                ended = self._judge(before, claimed, sound)
            if ended is not None:
                self._record_undecided()
                return ended
            self._narrow()
            self._consider()
        return StopReason.GOAL

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
                return StopReason.CALLBACK, True
            if self._is_slow() or self._is_tried() or self._stands_still() or self._wants_truth(before):
                return None, True

    def _iterate(self) -> bool:
        """One step; False where S^T A S is not positive."""
        preconditioner, progress = self.active, self.progress
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
        if self.active is self.method.preconditioner:
            half = self.halves.take(self.r)
        else:
            self.halves.forget()
            half = self.active.half_solve(self.r)
        self.Q, self.coefficients = linalg.qr(half, device=linalg.own_device(half))

    def _take_best(self) -> None:
        self.columns = self.progress.open
        self.x = self.progress.value[:, self.columns].clone()
        self._synchronise(self.progress.residual[:, self.columns])

    def _verify(self) -> None:
        self.halves.awaited()
        self._synchronise(self.progress.verify(self.columns, self.x))

    def _wants_truth(self, before: Tensor) -> bool:
        norms, first = self.half_norms, self.method.preconditioner
        bound = half_bound(first, norms) if self.active is first else self.method._bound(self.r)
        met = self.progress.met(self.columns, self.r, bound)
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
            self.sizes = [self._size()]

    # -- another preconditioner ----------------------------------------------------------------------------------
    def _size(self) -> float:
        """The largest |r| / |b| of the open columns, by the recurrence."""
        return float(self.r.norm(dim=0).max()) if len(self.columns) else 0.0

    def _is_slow(self) -> bool:
        """Whether another preconditioner should be tried now."""
        second, progress, count = self.method.second, self.progress, len(self.sizes) - 1
        if second is None or self.trial is not None or self.dtype in self.tried:
            return False
        if not second.may_be_tried(self.dtype):
            return False
        if not count or count % LOOK:
            return False
        if lately(self.sizes) >= 1.0 and self.dtype != F64:
            return False  # rounding may be to blame, which would judge the other one too: float64 comes first
        rate, excess = usually(self.sizes), progress.excess(self.columns, self.r, self.method._bound(self.r))
        if not is_slow(rate, excess, second.price) or not progress.has_room_for(TRIAL, second.price):
            return False
        self.trial = Trial(rate)
        return True

    def _is_tried(self) -> bool:
        return self.trial is not None and self.trial.iterations(self.progress.iterations) >= TRIAL

    def _consider(self) -> None:
        """After the truth is known: begin a trial that is due, or compare."""
        trial, second = self.trial, self.method.second
        if trial is None or second is None:
            return
        if not trial.running:
            self._begin_trial(trial, second)
        elif (self._is_tried() or not len(self.columns)) and not self._settled(second, trial):
            self.dtype = trial.dtype
            self._go_on_with(self.method.preconditioner)
            if F64 not in self.tried:
                self._harder(Obstacle.NO_GAIN, StopReason.STAGNATED)

    def _settled(self, second: Second, trial: Trial, obstacle: Obstacle | None = None, failed: bool = False) -> bool:
        """Whether the trial is won, by the true residuals, unless it failed; says so, and what ended it."""
        progress = self.progress
        rate = 1.0 if failed else trial.outcome(progress.relative, progress.open, progress.iterations)
        rough = self.dtype != F64 and trial.blames_rounding(rate, self._size())
        self.tried |= {torch.float32} if rough else {torch.float32, F64}
        kept = second.settle(rate, trial.rate, rough=rough)
        self.trial = None
        if trial.running:
            progress.note(
                EventKind.PRECONDITIONER_COMPARED,
                rate=trial.rate, candidate_rate=rate, obstacle=obstacle, kept=kept,
                float32_again=not kept and self.dtype != trial.dtype,
            )  # fmt: skip
        return kept

    def _begin_trial(self, trial: Trial, second: Second) -> None:
        made = second.made() if len(self.columns) else None
        if made is None:
            self.trial = None
            if second.why:
                self.progress.note(EventKind.PRECONDITIONER_REFUSED, error=second.why)
            return
        trial.begin(self.columns, self.progress.relative, self._size(), self.progress.iterations, self.dtype)
        self._go_on_with(made)

    def _ends_alone(self, trial: Trial, second: Second, obstacle: Obstacle, otherwise: StopReason) -> bool:
        """Whether what would end the solve ends a lost trial alone: then from the best values with the first one."""
        if not trial.running or self._settled(second, trial, obstacle, otherwise is StopReason.DIVERGED):
            return False
        self.active, self.dtype, self.last = self.method.preconditioner, trial.dtype, None
        self._take_best()
        self._begin()
        return True

    def _record_undecided(self) -> None:
        """If a trial is running: that the solve ended before it did."""
        trial, self.trial = self.trial, None
        if trial is not None and trial.running:
            self.progress.note(EventKind.PRECONDITIONER_UNDECIDED, rate=trial.rate)

    def _go_on_with(self, preconditioner: Preconditioner) -> None:
        """From the values so far."""
        self.active, self.last = preconditioner, None
        if len(self.columns):
            self._orthonormalise()
        self._begin()

    def _begin(self) -> None:
        """Progress counts from here."""
        self.largest = float(self.half_norms.max()) if len(self.columns) else 0.0
        self.reference, self.reference_iteration = self.largest, self.progress.iterations
        self.sizes = [self._size()]

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
            return self._harder(Obstacle.GROWING, StopReason.DIVERGED)
        if not sound and self.last is not None:
            self.last = None  # the directions, not the matrix, may be to blame: once more from the residual alone
            return None
        if not sound:
            return self._harder(Obstacle.INDEFINITE, StopReason.DIVERGED)
        if self._stands_still():
            return self._harder(Obstacle.NOT_HALVED, StopReason.STAGNATED)
        # In float64 a fall of the recurrence without a halving is the end of what rounding allows. Float32 is left
        # earlier: where a third of the digits that it claims are true, float64 products take fewer passes.
        wanted = 0.5 * before if self.dtype == F64 else before * (claimed / before).pow(FOLLOWED)
        if bool(((claimed <= 0.25 * before) & (now > wanted)).any()):
            return self._harder(Obstacle.DRIFTED, StopReason.STAGNATED)
        return None

    def _harder(self, obstacle: Obstacle, otherwise: StopReason) -> StopReason | None:
        """Go on with float64 products from the best values, or end."""
        if self.dtype == F64:
            trial, second = self.trial, self.method.second
            # What would end a solve ends a trial alone, unless it has won by then, down to rounding.
            if trial is not None and second is not None and self._ends_alone(trial, second, obstacle, otherwise):
                return None
            self.progress.note(EventKind.OBSTACLE, obstacle=obstacle)
            return otherwise
        self.dtype = F64
        self.progress.note(EventKind.FLOAT64_PRODUCTS, obstacle=obstacle, iteration=self.progress.iterations)
        self.last = None
        self._take_best()
        self.reference = float(self.half_norms.max()) if len(self.columns) else 0.0
        self.reference_iteration = self.progress.iterations
        self.sizes = [self._size()]  # the last ones were less than the truth
        trial = self.trial
        if trial is not None and trial.running and len(self.columns):  # what float32 made of it does not count
            trial.begin(self.columns, self.progress.relative, self._size(), self.progress.iterations, trial.dtype)
        return None
