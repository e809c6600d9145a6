"""Block preconditioned conjugate gradients: one Krylov space for all right-hand sides, residuals checked in float64.

The block form with QR (Dubrulle's BCGrQ) keeps an orthonormal basis of the block of residuals, so that columns that
depend on each other are harmless. Products run in float32 while that pays; the true float64 residual replaces the
recurrence every so often, the search directions stay conjugate to the last ones, and a replacement that shows no
progress sends the products to float64.
Sources: O'Leary (1980), The block conjugate gradient algorithm; Dubrulle (2001), Retooling the method of block
conjugate gradients, algorithm BCGrQ; van der Vorst & Ye (2000), Residual replacement strategies.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flashgp import linalg
from flashgp.foundations.events import Event, EventKind, Obstacle, StopReason
from flashgp.solvers.contract import (
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
from flashgp.solvers.preconditioners.candidate import low_rank
from flashgp.solvers.preconditioners.preconditioner import Preconditioner
from flashgp.solvers.settings import DEFAULTS, SolveSettings
from flashgp.solvers.space import Space

F64 = torch.float64


@dataclass(frozen=True)
class ConjugateGradients(Solver):
    """Block conjugate gradients with a low rank as preconditioner, or full scale where that is quicker.

    Args:
        rank: most columns of the low rank; None for that of the settings.
        settings: of the solves and the preconditioners.
    Cost: prepare n k evaluations and 4 n k^2 flops; an iteration one pass, 8 n k t + 10 n t^2 flops.
    """

    rank: int | None = None
    settings: SolveSettings = DEFAULTS
    name: str = "conjugate gradients"

    def prepare(self, system: System, *, seed: int = 0) -> "PreparedConjugateGradients":
        preconditioner = low_rank(system, self.rank, seed, self.settings)
        return PreparedConjugateGradients(system, preconditioner, self.settings, name=self.name)


class PreparedConjugateGradients(Prepared):
    """Block conjugate gradients with any preconditioner.

    Args: events: of what was prepared.
    """

    def __init__(
        self,
        system: System,
        preconditioner: Preconditioner,
        settings: SolveSettings = DEFAULTS,
        *,
        name: str = ConjugateGradients.name,
        events: Sequence[Event] = (),
    ) -> None:
        self.system, self.preconditioner, self.settings = system, preconditioner, settings
        self.name, self.events = name, tuple(events)

    def solve(self, rhs: Tensor, goal: Goal, *, start: Tensor | None = None, limits: Limits = NO_LIMITS) -> Solution:
        """As `Prepared.solve`; an iteration is one product with a block of search directions."""
        progress = Progress(self.name, self.system, goal, limits, self._bound, self.events)
        progress.begin(rhs, start)
        with self.system.workspace.hold(8 * 8 * rhs.numel()):
            try:
                ended = _Run(self, progress, single=self.settings.single).stopped()
                if ended is StopReason.STAGNATED:
                    ended = self._stagnated(progress)
            except KeyboardInterrupt:
                ended = progress.interrupted_by_hand()
            return progress.finished(ended)

    def _stagnated(self, progress: Progress) -> StopReason:
        """Reason of a stagnation: the rounding of float64, or what ended the solve for the error."""
        ended = self._certify_by_correction(progress)
        if ended in (StopReason.CALLBACK, StopReason.INTERRUPT):
            return ended
        if progress.at_rounding(self.settings.norm_rows, self.settings.roundings):
            return StopReason.ROUNDING
        return StopReason.TIME if ended is StopReason.TIME else StopReason.STAGNATED

    def _certify_by_correction(self, progress: Progress) -> StopReason:
        """Sharper bounds where rounding keeps residuals from becoming smaller: a solve for the error, (M-123).

        Returns: why it ended; that of the solve before where there is none.
        """
        columns, goal = progress.open, progress.goal
        if not len(columns):
            return StopReason.STAGNATED
        scale = progress.scale[columns]
        excess = progress.energy[columns] / goal.energy if goal.energy > 0.0 else scale * math.inf
        if not bool((excess <= self.settings.corrected_excess).all()):
            return StopReason.STAGNATED
        residual = progress.residual[:, columns] * scale
        correction = Progress(self.name, self.system, Goal(0.0, 0.5 * goal.energy), progress.limits, self._bound)
        correction.iterations, correction.passes = progress.iterations, progress.passes
        correction.begin(residual, None)
        ended = _Run(self, correction, single=False).stopped()  # float32 products have led no further
        progress.certify(columns, correction.value * correction.scale, residual, correction)
        return ended

    def _bound(self, residual: Tensor) -> Tensor:
        """sqrt(slack r^T P^-1 r), (t,), eq. (M-79)."""
        return self.bound_of(self.system.space.norm(self.preconditioner.half_solve(residual)))

    def bound_of(self, half: Tensor) -> Tensor:
        """sqrt(slack) |L^-1 r| of |L^-1 r|, eq. (M-79); 0 for r = 0 also where the slack is infinite."""
        return torch.where(half > 0.0, self.preconditioner.slack**0.5 * half, 0.0)


class _Directions:
    """Search directions S (n, s) with Z = L^-1 A L^-T S and the pseudo-inverse of S^T Z."""

    def __init__(self, S: Tensor, Z: Tensor, space: Space) -> None:
        self.S, self.Z, self.space = S, Z, space
        curvature = space.inner(S, Z)
        symmetric = 0.5 * (curvature + curvature.mT)
        values, vectors = linalg.eigh(symmetric, device=linalg.own_device(symmetric))
        rounding = len(values) * torch.finfo(F64).eps * float(values.abs().max())
        self.positive = float(values[0]) >= -rounding and float(values[-1]) > 0.0
        kept = values > rounding
        self.inverse = (vectors[:, kept] / values[kept]) @ vectors[:, kept].mT

    @property
    def fill_the_space(self) -> bool:
        """True if there are as many directions as rows: nothing is conjugate to all of them."""
        return self.S.shape[1] >= self.space.count(self.S)

    def conjugate(self, Q: Tensor) -> Tensor:
        """Q made conjugate to these directions, (M-80)."""
        return Q - self.S @ (self.inverse @ self.space.inner(self.Z, Q))


class _Run:
    """One solve, eq. (M-80): columns are the open ones, x and r theirs in scaled units, r of the recurrence.

    It is the `SolveState` of a comparison of preconditioners.

    Args: single, whether products begin in float32.
    """

    def __init__(self, method: PreparedConjugateGradients, progress: Progress, *, single: bool) -> None:
        self.method, self.progress = method, progress
        self.settings, self.space = method.settings, method.system.space
        self.comparison = method.preconditioner.comparison()
        self.active = self.comparison.begin_with() or method.preconditioner
        self.dtype = torch.float32 if single else F64
        self.last: _Directions | None = None
        self.Q: Tensor
        self.coefficients: Tensor
        self.replace_after: int
        self._take_best()
        self._begin()

    def stopped(self) -> StopReason:
        """Runs until something ends it."""
        if self.comparison.begins(self):
            self.comparison.decide(self)
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
                self.comparison.end(self)
                return ended
            self._narrow()
            self.comparison.decide(self)
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
            self.comparison.observe(self.size())
            if progress.step(self.columns, self.r):
                return StopReason.CALLBACK, True
            if self.comparison.wants_residual(self) or self._stands_still() or self._wants_residual(before):
                return None, True

    def _iterate(self) -> bool:
        """One step; False where S^T A S is not positive."""
        preconditioner, progress = self.active, self.progress
        S = self.Q if self.last is None or self.last.fill_the_space else self.last.conjugate(self.Q)
        V = preconditioner.half_solve_transposed(S)
        AV = product(self.method.system, V, self.dtype)
        progress.passes += 1.0
        if self.dtype != F64 and not bool(AV.isfinite().all()):  # rows too far apart for float32
            self.dtype = F64
            progress.note(EventKind.FLOAT64_PRODUCTS, obstacle=Obstacle.OVERFLOWED, iteration=progress.iterations + 1)
            AV = product(self.method.system, V, self.dtype)
            progress.passes += 1.0
        check_residual(progress.name, progress.iterations + 1, AV, "a product with the covariance matrix")
        directions = _Directions(S, preconditioner.half_solve(AV), self.space)
        if not directions.positive:
            return False
        step = directions.inverse @ self.space.inner(S, self.Q)
        change = step @ self.coefficients
        self.x += V @ change
        self.r -= AV @ change
        self.last = directions
        if preconditioner.exact:
            self.Q, tau = self.space.qr(self.Q - directions.Z @ step)
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
        if self.last is not None and self.last.S.shape[1] + self.Q.shape[1] > self.space.count(self.Q):
            self.last = None  # what would be left of Q is rounding

    def _orthonormalise(self) -> None:
        self.Q, self.coefficients = self.space.qr(self.active.half_solve(self.r))

    def _take_best(self) -> None:
        self.columns = self.progress.open
        self.x = self.progress.value[:, self.columns].clone()
        self._synchronise(self.progress.residual[:, self.columns])

    def _verify(self) -> None:
        self._synchronise(self.progress.verify(self.columns, self.x))
        self.replace_after = min(2 * self.replace_after, self.settings.replace_every)

    def _wants_residual(self, before: Tensor) -> bool:
        norms, method = self.half_norms, self.method
        bound = method.bound_of(norms) if self.active is method.preconditioner else self.progress.bound(self.r)
        met = self.progress.met(self.columns, self.r, bound)
        count = int(met.sum())
        if count == len(met) or count > self.settings.narrow_share * len(met):
            return True
        if self.progress.iterations - self.synchronised >= self.replace_after:
            return True
        return self.dtype != F64 and bool((norms <= self.settings.replace_below * before).all())

    def _narrow(self) -> None:
        """Leave out the columns that are done; the directions they have contributed stay."""
        still = self.progress.open
        if len(still) == len(self.columns):
            return
        kept = torch.isin(self.columns, still)
        self.columns, self.x = self.columns[kept], self.x[:, kept]
        if len(still):
            self._synchronise(self.r[:, kept])
            self.comparison.reset(self.size())

    # -- comparing preconditioners -------------------------------------------------------------------------------
    @property
    def iterations(self) -> int:
        return self.progress.iterations

    @property
    def relative(self) -> Tensor:
        return self.progress.relative

    @property
    def open(self) -> Tensor:
        return self.progress.open

    def size(self) -> float:
        return float(self.space.norm(self.r).max()) if len(self.columns) else 0.0

    def excess(self) -> float:
        return self.progress.excess(self.columns, self.r)

    def has_room_for(self, iterations: int, passes: float) -> bool:
        return self.progress.has_room_for(iterations, passes)

    def note(self, kind: EventKind, **fields: Any) -> None:
        self.progress.note(kind, **fields)

    def use(self, preconditioner: Preconditioner | None, dtype: torch.dtype) -> None:
        self.active, self.dtype, self.last = preconditioner or self.method.preconditioner, dtype, None
        if len(self.columns):
            self._orthonormalise()
        self._begin()

    def restart(self, dtype: torch.dtype) -> None:
        self.active, self.dtype, self.last = self.method.preconditioner, dtype, None
        self._take_best()
        self._begin()

    def _begin(self) -> None:
        """Progress counts from here."""
        quick = self.dtype != F64 and self.active is not self.method.preconditioner
        self.replace_after = self.settings.replace_first if quick else self.settings.replace_every
        self.largest = float(self.half_norms.max()) if len(self.columns) else 0.0
        self.reference, self.reference_iteration = self.largest, self.progress.iterations
        self.comparison.reset(self.size())

    # -- progress ------------------------------------------------------------------------------------------------
    def _stands_still(self) -> bool:
        """No halving of the largest |L^-1 r| within the window."""
        now = float(self.half_norms.max())
        if now <= 0.5 * self.reference:
            self.reference, self.reference_iteration = now, self.progress.iterations
        return self.progress.iterations - self.reference_iteration >= self.settings.stagnation_window

    def _judge(self, before: Tensor, claimed: Tensor, sound: bool) -> StopReason | None:
        """Judge the recurrence since the last true residual by this one."""
        now = self.half_norms
        if float(now.max()) > self.settings.divergence * self.largest:
            return self.sharpen(Obstacle.GROWING, StopReason.DIVERGED)
        if not sound and self.last is not None:
            self.last = None  # the directions, not the matrix, may be to blame: once more from the residual alone
            return None
        if not sound:
            return self.sharpen(Obstacle.INDEFINITE, StopReason.DIVERGED)
        if self._stands_still():
            return self.sharpen(Obstacle.NOT_HALVED, StopReason.STAGNATED)
        # In float64 a fall of the recurrence without a halving is the end of what rounding allows. Float32 is left
        # earlier: where a third of the digits that it claims are true, float64 products take fewer passes.
        wanted = 0.5 * before if self.dtype == F64 else before * (claimed / before).pow(self.settings.followed_share)
        if bool(((claimed <= 0.25 * before) & (now > wanted)).any()):
            return self.sharpen(Obstacle.DRIFTED, StopReason.STAGNATED)
        return None

    def sharpen(self, obstacle: Obstacle, otherwise: StopReason) -> StopReason | None:
        """Go on with float64 products from the best values, or end."""
        if self.dtype == F64:
            if self.comparison.averts(self, obstacle, otherwise):
                return None
            self.progress.note(EventKind.OBSTACLE, obstacle=obstacle)
            return otherwise
        self.dtype, self.replace_after = F64, self.settings.replace_every
        self.progress.note(EventKind.FLOAT64_PRODUCTS, obstacle=obstacle, iteration=self.progress.iterations)
        self.last = None
        self._take_best()
        self.reference = float(self.half_norms.max()) if len(self.columns) else 0.0
        self.reference_iteration = self.progress.iterations
        self.comparison.reset(self.size())  # the last ones were less than the truth
        self.comparison.sharpened(self)
        return None
