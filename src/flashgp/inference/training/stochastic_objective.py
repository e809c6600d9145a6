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
Where float32 rounding spoils it, it is in float64 from then on, as far as memory allows.

A solve ends when its error is small in the norm that weighs it in the gradient: with e = K^-1 b - x,

    |a^T dK^ a - x^T dK^ x| <= about 2 sqrt(2 F) |e|_A,       so |e|_A <= 0.03 sqrt(n)                    (M-106)

A relative residual would not do: at small noise it leaves the smallest eigenvalues out, and with them the noise.

The random numbers stay while parameters move (the pivots of P too), so that the estimate is a smooth function of
them; `refresh` draws new ones.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy
import torch
from torch import Tensor

from flashgp.foundations.deadline import NO_DEADLINE, TimeUp
from flashgp.foundations.determinism import is_deterministic
from flashgp.foundations.errors import ConvergenceError, MemoryBudgetError, NotPositiveDefiniteError
from flashgp.foundations.events import Event, EventKind, StopReason
from flashgp.foundations.form import Rows
from flashgp.inference.group_system import GroupRows
from flashgp.inference.run import DEFAULT_RUN, Run
from flashgp.inference.system import CovarianceSystem
from flashgp.inference.threads import one_thread
from flashgp.inference.training.history import Solving
from flashgp.inference.training.objective import Estimate, Evaluation, LogJoint, Problem
from flashgp.inference.training.settings import StochasticSettings
from flashgp.operators.covariance import CovarianceOperator
from flashgp.operators.sharing import shared_operator, summed_gradient
from flashgp.pairwise.problem import PairProblem
from flashgp.processes.group import ALONE, Group
from flashgp.solvers.contract import Goal, Limits, System
from flashgp.solvers.iterative.cholesky_solver import CholeskySolver
from flashgp.solvers.iterative.conjugate_gradients import PreparedConjugateGradients
from flashgp.solvers.preconditioners.candidate import (
    CandidatePreconditioner,
    Compared,
    Outcome,
    full_scale,
)
from flashgp.solvers.preconditioners.cholesky import CholeskyPreconditioner
from flashgp.solvers.preconditioners.low_rank import LowRank
from flashgp.solvers.preconditioners.pivoted_cholesky import PartialCholesky, partial_cholesky

OUTPUT_SEED = 2**34  # added to a seed for the draws of each further output


@dataclass(frozen=True)
class EstimateOptions:
    """Options of estimated gradients, by the plan and the caller.

    Args:
        stored: whether solves keep K as float32 tiles or recompute them in every product.
        run: whose seed is that of the probes, its deadline of all work; its ranks share solves and the pairs of a
            gradient, factors are each rank's own.
        factor_passes: passes over the pairs that take as long as a float32 factor, by the plan's rates (a clock would
            make the result depend on what else runs); None where no factor fits.
        rank: of the preconditioner at most; None for that of the settings.
        probes: None for as many as the number of rows suggests.
    """

    stored: bool
    run: Run = DEFAULT_RUN
    factor_passes: int | None = None
    rank: int | None = None
    probes: int | None = None


@dataclass
class _WarmStart:
    """Solution, pivots and preconditioner of one covariance matrix, kept from one gradient to the next.

    Fields:
        pivots: of the low-rank preconditioner.
        ready: the factor that they were drawn with, for the next gradient.
        solution: of the last solve; the next one begins there.
        full_scale: outcome of full scale as preconditioner in the gradients so far.
        size: of the full-scale preconditioner where it is kept.
        gain: iterations with the low rank that one with full scale does the work of.
    """

    pivots: Tensor | None = None
    ready: PartialCholesky | None = None
    solution: Tensor | None = None
    full_scale: Outcome = "untried"
    size: int = 0
    gain: float = 1.0


class EstimatedLogJoint(LogJoint):
    """The gradient of minus the log joint of many rows, estimated; its value is not computed.

    Args:
        problem: of one table.
        settings: numbers that tune it.
        options: what the plan says.
    Fields: probes, of one gradient; iterations and passes over the pairs of all solves so far; residual, the largest
        relative one of the last solve; solving, by what; corrections, iterations of the last solve with a
        float32 factor.
    """

    probes: int

    def __init__(self, problem: Problem, settings: StochasticSettings, options: EstimateOptions) -> None:
        super().__init__(problem)
        self._small = None
        self.settings, self.options, self._limits = settings, options, settings.estimate
        few = max(self._limits.min_probes, self._limits.probed_rows // max(1, self.rows))
        self.probes = min(self._limits.max_probes, few) if options.probes is None else options.probes
        self.iterations, self.passes, self.residual = 0, 0.0, 0.0
        self.solving, self.corrections = Solving.ITERATIONS, 0
        self._draws = 0
        self._anchor: numpy.ndarray | None = None
        self._warm_starts = [_WarmStart() for _ in range(problem.prior.factors)]  # one, or of every output
        self._index = 0  # of the one that is worked on

    @property
    def _warm(self) -> _WarmStart:
        return self._warm_starts[self._index]

    @property
    def estimate(self) -> Estimate:
        """The uncertainty of the next gradient."""
        gain = self.settings.negligible_gain_in_float64
        if self.solving is Solving.ITERATIONS:
            gain = self.settings.negligible_gain
        elif self.solving.by_factor:
            gain = self.settings.negligible_gain_by_factors
        return Estimate(self.parameters.size / (2.0 * self.probes), gain * self.rows)

    @property
    def cost_power(self) -> int:
        return 3 if self.solving.by_factor else 2

    @property
    def rough_factors(self) -> bool:
        """True if a float32 factor near these parameters is known to fail, or to need many corrections."""
        if self.solving in (Solving.ITERATIONS, Solving.FLOAT32_FACTOR):
            return self.corrections > self._limits.rough_corrections
        return True

    def solve_by(self, solving: Solving = Solving.FLOAT32_FACTOR) -> None:
        """Gradients by that from now on, unless they are by what serves later already. With a factor there are more
        probes: each costs n^2 beside the factor's n^3 / 3."""
        order = list(Solving)
        if order.index(solving) <= order.index(self.solving):
            return
        self.solving = solving
        if solving.by_factor and self.probes < self._limits.factor_probes:
            self.probes = self._limits.factor_probes
            for matrix in self._warm_starts:
                matrix.solution = None

    def on_part(self, rows: int) -> "EstimatedLogJoint":
        """The objective of a random subset of the rows, solved the same way.

        A factor is worth fewer passes there, n^3 against n^2; none where none fits for all rows.
        """
        passes = self.options.factor_passes
        if passes is not None:
            passes = max(self.settings.min_factor_passes, int(passes * (rows / self.rows)))
        options = dataclasses.replace(self.options, factor_passes=passes, probes=None)
        part = type(self)(self.problem.subset(rows, self.options.run.seed), self.settings, options)
        part.solve_by(self.solving)
        return part

    def begin_as(self, part: "EstimatedLogJoint") -> None:
        """Iterate as the gradients of a part came to: with float64 products, with the full-scale preconditioner."""
        if part.solving.by_factor:
            return
        if part.solving is not Solving.ITERATIONS:
            self.solve_by(Solving.FLOAT64_ITERATIONS)
        if not is_deterministic():  # then every slow gradient tries it for itself
            for own, of_part in zip(self._warm_starts, part._warm_starts, strict=True):
                if of_part.full_scale == "kept":
                    own.full_scale, own.size, own.gain = of_part.full_scale, of_part.size, of_part.gain

    def refresh(self, anchor: numpy.ndarray) -> None:
        """New probes from the next gradient on; the pivots of the preconditioner are drawn at the vector `anchor`, so
        that they do not depend on which gradient is computed first (those of a resumed fit are read, not computed)."""
        self._draws += 1
        self._anchor = anchor.copy()
        for matrix in self._warm_starts:
            if matrix.full_scale == "lost":  # here, and perhaps won elsewhere
                matrix.full_scale = "untried"
            matrix.pivots = None
            if matrix.solution is not None:
                matrix.solution[:, -self.probes :] = 0.0

    def __call__(self, theta: numpy.ndarray) -> Evaluation:
        with one_thread(self.rows):
            for index, matrix in enumerate(self._warm_starts):
                if matrix.pivots is None:
                    self._index = index
                    anchor = theta if self._anchor is None else self._anchor
                    partial = self._drawn(anchor)
                    matrix.pivots = partial.pivots
                    # One factor is enough memory.
                    kept = len(self._warm_starts) == 1 and numpy.array_equal(anchor, theta)
                    matrix.ready = partial if kept else None
            return dataclasses.replace(super().__call__(theta), estimate=self.estimate)

    def _drawn(self, theta: numpy.ndarray) -> PartialCholesky:
        """The partial factor whose pivots all gradients share until they are refreshed."""
        self.parameters.assign(theta)
        with torch.no_grad():
            _, noise, rows, values = self.problem.prior.likelihood_inputs(self.problem.x, self.problem.y)
            noise = noise[..., self._index] if self.problem.prior.separate else noise
            return self._low_rank(self._rows_here(self._system(rows, values, noise, stored=False)), None)

    def _note(self, kind: EventKind, **fields: Any) -> None:
        self.problem.direct.workspace.note(Event(kind, **fields))

    def _operator(self, rows: Rows, theta: Sequence[Tensor], group: Group = ALONE) -> CovarianceOperator:
        """K, of which the ranks of a group evaluate a share each."""
        form, workspace = self.problem.prior.kernel.form, self.problem.direct.workspace
        return shared_operator(CovarianceOperator(PairProblem(form, theta, rows), torch.float32, workspace), group)

    def _system(self, rows: Rows, theta: Sequence[Tensor], noise: Tensor, *, stored: bool) -> CovarianceSystem:
        workspace, operator = self.problem.direct.workspace, self._operator(rows, theta, self.options.run.group)
        return CovarianceSystem(operator, noise.expand(rows.count), workspace=workspace, stored=stored)

    def _rows_here(self, system: CovarianceSystem) -> System:
        """The part of a system that this rank solves."""
        group = self.options.run.group
        return system if group.size == 1 else GroupRows(system, group)

    @staticmethod
    def _count(system: System) -> int:
        """Rows of all ranks."""
        return system.space.count(system.noise)

    def _low_rank(self, system: System, pivots: Tensor | None) -> PartialCholesky:
        settings = self._limits.solving.low_rank
        limit = min(
            settings.max_rank if self.options.rank is None else self.options.rank, max(1, self._count(system) // 4)
        )
        seed = self._seed
        return partial_cholesky(system, limit=limit, seed=seed, pivots=pivots, settings=settings)

    def one_likelihood(
        self, rows: Rows, tensors: Sequence[Tensor], wanted: Sequence[bool], index: int
    ) -> tuple[None, list[Tensor | None]]:
        """(None, the estimated gradient by residual, noise, tensors of the rows and theta), of one covariance matrix.

        Raises: ConvergenceError if the solves got nowhere; TimeUp.
        """
        self._index = index
        residual, noise, *rest = tensors
        split = len(rows.tensors)
        rows, theta = rows.rebuilt(rest[:split]), rest[split:]
        solved = None
        if not self.solving.by_factor:
            solved = self._by_iteration(rows, theta, noise, residual)
            if solved is None:  # a factor takes no longer than the iterations so far, whatever the spectrum
                self.solve_by()
                self._note(EventKind.GRADIENTS_BY_FACTORS)
        if solved is None:
            solved = self._by_factor(rows, theta, noise, residual)
        return None, self._slopes(rows, theta, residual.shape[-1], *solved)

    @property
    def _seed(self) -> int:
        """Seed of the numbers drawn for a matrix; those of different outputs are independent."""
        return self.options.run.seed + self._draws + OUTPUT_SEED * self._index

    def _generator(self) -> torch.Generator:
        """Generator of the same numbers whatever the parameters: only then is the estimate a smooth function of
        them."""
        return torch.Generator().manual_seed(self._seed)

    def _by_iteration(
        self, rows: Rows, theta: Sequence[Tensor], noise: Tensor, residual: Tensor
    ) -> tuple[Tensor, Tensor] | None:
        """K^-1 of residual and probes and P^-1 of the probes, or None where a factor would have been quicker."""
        products = self._system(rows, theta, noise, stored=self.options.stored)
        system = self._rows_here(products)
        matrix, space = self._warm, system.space
        partial, matrix.ready = matrix.ready or self._low_rank(system, matrix.pivots), None
        # What P leaves out is spread over its diagonal: (M-102).
        level = system.noise + partial.trace / self._count(system)
        low = LowRank(partial, system.noise, self._limits.solving.low_rank)
        spread = low.with_noise(partial, level)
        probes = spread.sample(self._generator(), self.probes)
        probes_solved = spread.solve(probes)
        del spread
        rhs = torch.cat([space.local(residual), probes], dim=-1)
        before = self.iterations
        began_with = matrix.full_scale == "kept"
        solving, candidate = self._limits.solving, None
        if solving.compare and matrix.full_scale in ("untried", "kept"):
            kept = matrix.size if began_with else None
            candidate = full_scale(system, low, self.options.run.seed, solving, kept=kept)
        making = candidate.price if candidate is not None and began_with else 0.0
        preconditioner = low if candidate is None else Compared(low, candidate)
        budget = self.options.factor_passes
        solving = replace(solving, single=self.solving is Solving.ITERATIONS)
        method = PreparedConjugateGradients(system, preconditioner, solving)
        stopped = self._solve(
            method, rhs, max(1, (self._limits.max_iterations if budget is None else budget) - round(making))
        )
        if candidate is not None:
            self._remember(candidate, began_with, self.iterations - before, making)
        if stopped is not StopReason.GOAL:
            if budget is not None and stopped is not StopReason.TIME:
                return None
            self._check(stopped)
            self.solve_by(Solving.ROUGH_ITERATIONS)
        assert matrix.solution is not None
        return space.everywhere(matrix.solution), space.everywhere(probes_solved)

    def _remember(self, candidate: CandidatePreconditioner, began_with: bool, iterations: int, making: float) -> None:
        """Keep what the solves of a gradient, in so many iterations, say about full scale for the next ones.

        With `deterministic` every slow gradient tries it for itself.

        Args:
            candidate: of them, after these.
            began_with: whether they had it from the start.
            iterations: of the solves.
            making: its price in passes, if they began with it.
        """
        outcome = candidate.outcome
        if outcome == "refused":
            self._note(EventKind.GRADIENTS_FULL_SCALE_REFUSED, error=candidate.why)
        elif outcome in ("kept", "lost") and not began_with:
            self._note(EventKind.GRADIENTS_FULL_SCALE, kept=outcome == "kept")
            self._warm.gain = candidate.gain
        if is_deterministic():
            return
        self._warm.full_scale, self._warm.size = outcome, candidate.size
        # Making it again for every gradient has to pay: few iterations may be left of solves that start warm.
        saved = iterations * (self._warm.gain - 1.0) if iterations else 0.0
        if began_with and outcome == "kept" and saved < making:
            self._warm.full_scale = "untried"
            self._note(EventKind.GRADIENTS_NO_FULL_SCALE)

    def _by_factor(self, rows: Rows, theta: Sequence[Tensor], noise: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Solve with P = L L^T, a factor: probes are draws of the model itself, up to its rounding."""
        self._warm.ready = None
        operator, workspace = self._operator(rows, theta), self.problem.direct.workspace
        system = CovarianceSystem(operator, noise.expand(rows.count), workspace=workspace)
        method = self._prepared(system)
        factor = method.preconditioner
        assert isinstance(factor, CholeskyPreconditioner)
        for event in method.events:
            self.problem.direct.workspace.note(event)
        factor.slack = min(factor.slack, self._limits.factor_slack)
        normal = torch.randn(rows.count, self.probes, generator=self._generator(), dtype=torch.float32)
        normal = normal.to(system.device).double()
        probes, probes_solved = factor.times(normal), factor.half_solve_transposed(normal)
        before = self.iterations
        self._check(self._solve(method, torch.cat([residual, probes], dim=-1), self._limits.max_iterations))
        if self.solving is Solving.FLOAT32_FACTOR:
            self.corrections = self.iterations - before
            if self.corrections > self._limits.double_after:
                self._use_double(self.corrections)
        assert self._warm.solution is not None
        return self._warm.solution, probes_solved

    def _prepared(self, system: CovarianceSystem) -> PreparedConjugateGradients:
        """Solves with a factor: in float32 while that is of the matrix itself, then in float64, or, where that does not
        fit, in float32 of the matrix plus a jitter."""
        solving = self._limits.solving
        if self.solving is Solving.FLOAT32_FACTOR:
            try:
                return CholeskySolver(torch.float32, 0.0, solving).prepare(system)
            except NotPositiveDefiniteError:
                self._use_double()
        try:
            return CholeskySolver(settings=solving).prepare(system)
        except MemoryBudgetError:
            return CholeskySolver(torch.float32, settings=solving).prepare(system)

    def _use_double(self, corrections: int | None = None) -> None:
        self.solve_by(Solving.FLOAT64_FACTOR)
        self._note(EventKind.GRADIENTS_FLOAT64_FACTORS, corrections=corrections)

    def _solve(self, method: PreparedConjugateGradients, rhs: Tensor, iterations: int) -> StopReason:
        """A^-1 rhs to the error of (M-106), from the last solution."""
        error = self._limits.solve_error * math.sqrt(self._count(method.system))
        goal = Goal(relative=self._limits.residual_goal, energy=error)
        # With a factor these are some corrections, which every rank of a group makes by itself: no clock may end one.
        alone = self.options.run.group.size > 1 and self.solving.by_factor
        deadline = NO_DEADLINE if alone else self.options.run.deadline
        limits, start = Limits(deadline=deadline, iterations=iterations), self._warm.solution
        if start is not None and len(start) != len(rhs):  # of this rank's rows, before factors of all took over
            start = None
        solution = method.solve(rhs, goal, start=start, limits=limits)
        self._warm.solution = solution.value
        self.iterations += solution.iterations
        self.passes += solution.passes
        self.residual = float(solution.relative_residual.max())
        if any(event.kind is EventKind.FLOAT64_PRODUCTS for event in solution.events):
            self._note(EventKind.GRADIENTS_IN_FLOAT64)
            self.solve_by(Solving.FLOAT64_ITERATIONS)
        return solution.stopped

    def _check(self, stopped: StopReason) -> None:
        """Raises: TimeUp; ConvergenceError for a solution that is none."""
        if stopped is StopReason.TIME:  # half a solve must not be taken for a gradient, now or when a fit is resumed
            raise TimeUp
        if not self.residual <= self._limits.useless_residual:
            raise ConvergenceError(
                f"the solves of one gradient ended ({stopped}) with a relative residual of {self.residual:.2g}",
                iterations=self.iterations,
                residual=self.residual,
                tolerance=self._limits.useless_residual,
            )
        if self.residual > self._limits.rough_residual:
            self._note(EventKind.GRADIENTS_ROUGH, reason=stopped, residual=self._limits.rough_residual)

    def _slopes(
        self, rows: Rows, theta: Sequence[Tensor], p: int, solution: Tensor, probes_solved: Tensor
    ) -> list[Tensor | None]:
        """The gradient from a = K^-1 r and u = K^-1 z in one block, and w = P^-1 z, eq. (M-102); p columns of r."""
        a, u, group = solution[:, :p], solution[:, p:], self.options.run.group
        operator = self._operator(rows, theta, group)
        left, right = torch.cat([0.5 * a, (-0.5 * p / u.shape[1]) * u], dim=-1), torch.cat([a, probes_solved], dim=-1)
        slope = (left * right).sum(-1)
        pulled = summed_gradient(operator.pulled_back(left.to(operator.dtype), right.to(operator.dtype)), group)
        return [-a, slope, *pulled.rows, *pulled.theta]
