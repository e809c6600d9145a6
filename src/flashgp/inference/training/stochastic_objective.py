"""The gradient of the log joint of many rows, estimated without factorising K^ = K + noise.

With a = K^-1 r and independent probes z_s ~ N(0, P), P = F F^T + noise + mean(left) from a partial Cholesky factor
that leaves `left` of the diagonal of K:

    dL/dpsi = 1/2 a^T dK^ a - 1/2 tr(K^-1 dK^),       tr(K^-1 dK^) = E (K^-1 z)^T dK^ (P^-1 z)         (M-102)

which is unbiased for every P, and whose variance is least, the Fisher information over the number of probes, for
P = K^. So a maximum of the estimate is about p / (2 S) nats below that of the likelihood on average, with p parameters
and S probes, however many rows there are: a few probes are enough. All solves of one gradient run as one block and
start from the answers of the gradient before; one pass over the pairs turns them into the gradient by everything.

A gradient's iterations get as many passes as a float32 factor would take. Where that is not enough (many rows, little
noise) the factor takes over, for this gradient and those that follow: as preconditioner of float64 solves, and as P.
Where float32 rounding spoils it, its first columns are float64 from then on (solvers/direct/headed_cholesky.py).

A solve ends when its error is small in the norm that weighs it in the gradient: with e = K^-1 b - x,

    |a^T dK^ a - x^T dK^ x| <= about 2 sqrt(2 F) |e|_A,       so |e|_A <= 0.03 sqrt(n)                    (M-106)

A relative residual would not do: at small noise it leaves the smallest eigenvalues out, and with them the noise.

The random numbers stay while parameters move (the pivots of P too), so that the estimate is a smooth function of
them; `refresh` draws new ones.
"""

import math
from collections.abc import Mapping, Sequence

import numpy
import torch
from torch import Tensor

from flashgp.foundations.determinism import is_deterministic
from flashgp.foundations.errors import ConvergenceError, NotPositiveDefiniteError
from flashgp.foundations.events import Event, EventKind, StopReason
from flashgp.foundations.form import Rows
from flashgp.foundations.parameters import Parameter
from flashgp.inference.exact.likelihood import DirectSettings
from flashgp.inference.prior import Prior
from flashgp.inference.system import CovarianceSystem
from flashgp.inference.training.history import TimeUp
from flashgp.inference.training.initial import RoleStart
from flashgp.inference.training.objective import FlatObjective
from flashgp.operators.covariance import CovarianceOperator
from flashgp.operators.multiplication import pulled_back
from flashgp.solvers.direct.cholesky_solver import CholeskyPreconditioner, CholeskySolver
from flashgp.solvers.direct.headed_cholesky import HeadedCholesky, HeadedFactor
from flashgp.solvers.iterative.conjugate_gradients import ConjugateGradients, PreparedConjugateGradients
from flashgp.solvers.iterative.contract import Goal, Limits, System
from flashgp.solvers.preconditioners.candidate import Outcome, Second, making_passes, near_rows
from flashgp.solvers.preconditioners.low_rank import LowRank
from flashgp.solvers.preconditioners.pivoted_cholesky import PartialCholesky, partial_cholesky

__all__ = ["MOST_ITERATIONS", "PROBES", "LargeObjective"]

PROBES, MOST_PROBES = 8, 64  # of one gradient; more on few rows, where they cost little and a likelihood may be flat
FACTOR_PROBES = 32  # at least, with a factor: they cost little beside it
PROBED_ROWS = 2**17  # probes times rows of all but the largest problems
RANK = 512  # of the preconditioner at most
TRAINING_ERROR = 0.03  # of a solve while training: |e|_A over sqrt(n)
WINDOW = 40  # iterations within which the error must halve
MOST_ITERATIONS = 10_000
PRECISE_PASSES = 8  # float32 passes that one in float64 takes as long as
TRAINING_SLACK = 4.0  # a gradient wants an estimate of its error: the bound (M-83) of a factor is a thousand times that
HEAD_AFTER = 8  # iterations of a solve with a float32 factor, about what a float64 head costs
# Iterations of a gradient's solve with a float32 factor. It is a loose one, of a digit or two; the weights' solve takes
# six digits and more, so that each of these becomes five or so there, or it stagnates, and every variance has to be
# corrected: beyond so many a float64 factor is quicker, where it fits.
ROUGH_CORRECTIONS = 2
EXACT_RESIDUAL = 1e-9  # relative: no less is asked for, also where there is no noise to bound the error by
ROUGH_RESIDUAL = 1e-2  # beyond which a gradient that has to do says so
USELESS_RESIDUAL = 0.5  # an answer with a larger one is no answer


class _RoughSystem(CovarianceSystem):
    """The same, whose float64 products are rounded to float32 too: enough while training, and as quick.

    Fields: rough, whether they are.
    """

    rough = True

    def multiply(self, v: Tensor) -> Tensor:
        if v.dtype != torch.float64 or not self.rough:
            return super().multiply(v)
        size = v.abs().amax(0).clamp_min(torch.finfo(torch.float64).tiny)
        return super().multiply((v / size).float()).double() * size


class LargeObjective(FlatObjective):
    """The gradient of minus the log joint of many rows; its value is not computed (NaN).

    Args: as FlatObjective; stored: whether solves keep K as float32 tiles or recompute them in every product;
        seed: of the probes; rank: most columns of the preconditioner; factor_passes: passes over the pairs that take as
        long as a float32 factor, by the plan's rates (a clock would make the result depend on what else runs),
        MOST_ITERATIONS where it does not fit; deadline: of all work, a time of `time.perf_counter`.
    Fields: iterations and passes over the pairs of all solves so far; residual, the largest relative one of the last;
    factored, whether a factor has taken over; headed, whether its first columns are float64, since float32 alone was
    too rough; corrections, the iterations of the last solve with a factor of float32 alone.
    """

    def __init__(
        self,
        gp: Prior,
        x: Tensor,
        y: Tensor,
        settings: DirectSettings,
        roles: Mapping[Parameter, RoleStart],
        weak: bool,
        *,
        stored: bool,
        seed: int,
        probes: int | None = None,
        rank: int = RANK,
        factor_passes: int = MOST_ITERATIONS,
        deadline: float = math.inf,
    ) -> None:
        super().__init__(gp, x, y, settings, roles, weak)
        self._small = None
        self.stored, self.seed, self.deadline = stored, seed, deadline
        self.probes = min(MOST_PROBES, max(PROBES, PROBED_ROWS // max(1, self.rows))) if probes is None else probes
        self.factor_passes, self.rank = factor_passes, rank
        self.iterations, self.passes, self.residual = 0, 0.0, 0.0
        self._draws = 0
        self._anchor: numpy.ndarray | None = None
        self._pivots: Tensor | None = None
        self._ready: PartialCholesky | None = None  # the factor that the pivots were drawn with, for the next gradient
        self._last: Tensor | None = None
        self._near: Outcome = "untried"  # of near rows as preconditioner, in the gradients so far
        self._gain = 1.0  # iterations of the low rank that one with near rows does the work of
        self.factored = self.headed = False
        self.corrections = 0

    @property
    def rough_factors(self) -> bool:
        """Whether a float32 factor near these parameters is known to fail, or to need many corrections."""
        return self.headed or self.corrections > ROUGH_CORRECTIONS

    def take_factors(self, *, headed: bool = False) -> None:
        """Gradients by factors from now on, and with more probes: each costs n^2 beside the factor's n^3 / 3."""
        self.headed = self.headed or headed
        if self.factored:
            return
        self.factored = True
        if self.probes < FACTOR_PROBES:
            self.probes, self._last = FACTOR_PROBES, None

    def refresh(self, anchor: numpy.ndarray) -> None:
        """New probes from the next gradient on; the pivots of the preconditioner are drawn at the vector `anchor`, so
        that they do not depend on which gradient is computed first (those of a resumed fit are read, not computed)."""
        self._draws += 1
        if self._near == "lost":  # here, and perhaps won elsewhere
            self._near = "untried"
        self._anchor, self._pivots = anchor.copy(), None
        if self._last is not None:
            self._last[:, -self.probes :] = 0.0

    def _evaluated(self, theta: numpy.ndarray) -> tuple[float, numpy.ndarray]:
        if self._pivots is None:
            anchor = theta if self._anchor is None else self._anchor
            partial = self._drawn(anchor)
            self._pivots = partial.pivots
            self._ready = partial if numpy.array_equal(anchor, theta) else None
        return super()._evaluated(theta)

    def _drawn(self, theta: numpy.ndarray) -> PartialCholesky:
        """The partial factor whose pivots all gradients share until they are refreshed."""
        self.assign(theta)
        with torch.no_grad():
            _, noise, rows, values = self.gp.likelihood_inputs(self.x, self.y)
            return self._low_rank(self._system(rows, values, noise, stored=False), None)

    def _system(self, rows: Rows, theta: Sequence[Tensor], noise: Tensor, *, stored: bool) -> "_RoughSystem":
        workspace = self.settings.workspace
        operator = CovarianceOperator(self.gp.kernel.form, theta, rows, None, torch.float32, workspace)
        return _RoughSystem(operator, noise.expand(rows.count), workspace=workspace, stored=stored)

    def _low_rank(self, system: System, pivots: Tensor | None) -> PartialCholesky:
        limit = min(self.rank, max(1, system.count // 4))
        return partial_cholesky(system, limit=limit, seed=self.seed + self._draws, pivots=pivots)

    def likelihood(
        self, rows: Rows, tensors: Sequence[Tensor], wanted: Sequence[bool]
    ) -> tuple[float, list[Tensor | None]]:
        """(NaN, the estimated gradient by residual, noise, tensors of the rows and theta).

        Raises: ConvergenceError if the solves got nowhere.
        """
        residual, noise, *rest = tensors
        split = len(rows.tensors)
        rows, theta = rows.rebuilt(rest[:split]), rest[split:]
        if not self.factored:
            found = self._by_iteration(rows, theta, noise, residual)
            if found is not None:
                return math.nan, self._slopes(rows, theta, *found)
            # A factor takes no longer than what has been spent, and does not mind the spectrum.
            self.take_factors()
            self.settings.workspace.note(Event(EventKind.GRADIENTS_BY_FACTORS))
        return math.nan, self._slopes(rows, theta, *self._by_factor(rows, theta, noise, residual))

    def _generator(self) -> torch.Generator:
        """The same numbers whatever the parameters: only then is the estimate a smooth function of them."""
        return torch.Generator().manual_seed(self.seed + self._draws)

    def _by_iteration(
        self, rows: Rows, theta: Sequence[Tensor], noise: Tensor, residual: Tensor
    ) -> tuple[Tensor, Tensor] | None:
        """K^-1 of residual and probes, and P^-1 of the probes; None where a factor would have been quicker."""
        system = self._system(rows, theta, noise, stored=self.stored)
        partial, self._ready = self._ready or self._low_rank(system, self._pivots), None
        level = system.noise + partial.left.mean()  # what P leaves out is spread over its diagonal: (M-102)
        preconditioner = LowRank(partial, system.noise)
        spread = preconditioner.with_noise(partial, level)
        probes = spread.sample(self._generator(), self.probes)
        other = spread.solve(probes)
        del spread
        rhs = torch.cat([residual, probes], dim=-1)
        before = self.iterations
        began_with = self._near == "kept"
        second = near_rows(system, self.seed, kept=began_with) if self._near in ("untried", "kept") else None
        making = making_passes(self.rows) if second is not None and began_with else 0.0
        for rough in (True, False):
            system.rough = rough
            method = PreparedConjugateGradients(
                system,
                preconditioner,
                name=ConjugateGradients.name,
                first=torch.float32 if rough else torch.float64,
                window=WINDOW,
                second=second,
            )
            left = self.factor_passes - (self.iterations - before) - round(making)
            stopped = self._solve(method, rhs, left if rough else max(1, left // PRECISE_PASSES))
            if stopped in (StopReason.GOAL, StopReason.TIME, StopReason.ITERATIONS):
                break
            self.settings.workspace.note(Event(EventKind.GRADIENTS_IN_FLOAT64))
        if second is not None:
            self._remember(second, began_with, self.iterations - before)
        if stopped is not StopReason.GOAL:
            if self.factor_passes < MOST_ITERATIONS and stopped is not StopReason.TIME:
                return None
            self._check(stopped)
        return self._answers, other

    def _remember(self, second: Second, began_with: bool, iterations: int) -> None:
        """What the solves of a gradient, in so many iterations, say about near rows for those that follow.

        Args: began_with: whether they had near rows from the start. With `deterministic` every
            slow gradient tries them for itself.
        """
        note, outcome = self.settings.workspace.note, second.outcome
        if outcome == "refused":
            note(Event(EventKind.GRADIENTS_VECCHIA_REFUSED, error=second.why))
        elif outcome in ("kept", "lost") and not began_with:
            note(Event(EventKind.GRADIENTS_VECCHIA, kept=outcome == "kept"))
            self._gain = second.gain
        if is_deterministic():
            return
        self._near = outcome
        # Making them anew for every gradient has to pay: few iterations may be left of solves that start warm.
        saved = iterations * (self._gain - 1.0) if iterations else 0.0
        if began_with and outcome == "kept" and saved < making_passes(self.rows):
            self._near = "untried"
            note(Event(EventKind.GRADIENTS_NO_VECCHIA))

    def _by_factor(self, rows: Rows, theta: Sequence[Tensor], noise: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """The same with P = L L^T, a float32 factor: probes are draws of the model itself, up to its rounding."""
        self._ready = None
        system = self._system(rows, theta, noise, stored=False)
        system.rough = False
        factor, method = self._factor(system)
        factor.slack = min(factor.slack, TRAINING_SLACK)
        normal = torch.randn(rows.count, self.probes, generator=self._generator(), dtype=torch.float32)
        normal = normal.to(system.device).double()
        probes, other = factor.times(normal), factor.half_solve_transposed(normal)
        before = self.iterations
        self._check(self._solve(method, torch.cat([residual, probes], dim=-1), MOST_ITERATIONS))
        if not self.headed:
            self.corrections = self.iterations - before
            if self.corrections > HEAD_AFTER:
                self._take_head(self.corrections)
        return self._answers, other

    def _factor(
        self, system: CovarianceSystem
    ) -> tuple[CholeskyPreconditioner | HeadedFactor, PreparedConjugateGradients]:
        """A factor that is of the matrix itself, if there is one, and solves with it."""
        if not self.headed:
            try:  # without a jitter: to factorise again with one costs as much as the head
                method = CholeskySolver(torch.float32, jitter=0.0).prepare(system)
            except NotPositiveDefiniteError:
                self._take_head(None)
            else:
                assert isinstance(method.preconditioner, CholeskyPreconditioner)
                return method.preconditioner, method
        method = HeadedCholesky(pivots=self._pivots).prepare(system)
        for event in method.events:
            self.settings.workspace.note(event)
        headed = method.preconditioner
        assert isinstance(headed, HeadedFactor)
        return headed, method

    def _take_head(self, corrections: int | None) -> None:
        self.headed = True
        self.settings.workspace.note(Event(EventKind.GRADIENTS_HEADED, corrections=corrections))

    def _solve(self, method: PreparedConjugateGradients, rhs: Tensor, iterations: int) -> StopReason:
        """A^-1 rhs to the error of (M-106), from the last answers."""
        goal = Goal(relative=EXACT_RESIDUAL, energy=TRAINING_ERROR * math.sqrt(len(rhs)))
        limits = Limits(deadline=self.deadline, iterations=iterations)
        found = method.solve(rhs, goal, start=self._last, limits=limits)
        self._last = found.value
        self.iterations += found.iterations
        self.passes += found.passes
        self.residual = float(found.relative_residual.max())
        return found.stopped

    @property
    def _answers(self) -> Tensor:
        assert self._last is not None
        return self._last

    def _check(self, stopped: StopReason) -> None:
        """Raises: TimeUp; ConvergenceError for an answer that is none."""
        if stopped is StopReason.TIME:  # half a solve must not be taken for a gradient, now or when a fit is resumed
            raise TimeUp
        if not self.residual <= USELESS_RESIDUAL:
            raise ConvergenceError(
                f"the solves of one gradient ended ({stopped}) with a relative residual of {self.residual:.2g}",
                iterations=self.iterations,
                residual=self.residual,
                tolerance=USELESS_RESIDUAL,
            )
        if self.residual > ROUGH_RESIDUAL:
            self.settings.workspace.note(Event(EventKind.GRADIENTS_ROUGH, reason=stopped, residual=ROUGH_RESIDUAL))

    def _slopes(self, rows: Rows, theta: Sequence[Tensor], answers: Tensor, other: Tensor) -> list[Tensor | None]:
        """The gradient from a = K^-1 r and u = K^-1 z in one block, and w = P^-1 z, eq. (M-102)."""
        p = self.gp.outputs or 1
        a, u = answers[:, :p], answers[:, p:]
        operator = CovarianceOperator(self.gp.kernel.form, theta, rows, None, torch.float32, self.settings.workspace)
        share = -0.5 * p / u.shape[1]
        left, right = torch.cat([0.5 * a, share * u], dim=-1), torch.cat([a, other], dim=-1)
        slope = (left * right).sum(-1)
        left, right = left.to(operator.dtype), right.to(operator.dtype)
        pulled = pulled_back(operator, left, right)
        return [-a, slope, *pulled.rows, *pulled.theta]
