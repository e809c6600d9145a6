"""A^-1 of the training rows by conjugate gradients, preconditioned by a factor of A where one is at hand."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from flashgp.foundations.errors import MemoryBudgetError, NotPositiveDefiniteError
from flashgp.foundations.workspace import Workspace
from flashgp.inference.group_system import GroupRows, GroupSystem
from flashgp.inference.run import Run
from flashgp.inference.system import CovarianceSystem
from flashgp.operators.covariance import CovarianceOperator
from flashgp.operators.stored import StoredTiles
from flashgp.planner.plan import Plan
from flashgp.solvers.contract import NO_LIMITS, Goal, Limits, Prepared, Solution, Solver, Step, System
from flashgp.solvers.direct.cholesky import TriangularFactor
from flashgp.solvers.iterative.conjugate_gradients import ConjugateGradients, PreparedConjugateGradients
from flashgp.solvers.iterative.lanczos import LogDeterminant, log_determinant
from flashgp.solvers.iterative.refinement import ApproximateProducts, RefinedGradients
from flashgp.solvers.preconditioners.cholesky import CholeskyPreconditioner
from flashgp.solvers.settings import REFINEMENT

F64 = torch.float64
PROBE_SEED = 2**32  # added to a seed for the draws of probes


class PreparedOnce(Solver):
    """A method whose preparation is kept for later solves, or is at hand."""

    def __init__(self, solver: Solver | None, name: str, ready: Prepared | None = None) -> None:
        self.solver, self.name, self.ready = solver, name, ready

    def prepare(self, system: System, *, seed: int = 0) -> Prepared:
        if self.ready is None:
            assert self.solver is not None
            self.ready = self.solver.prepare(system, seed=seed)
        return self.ready


class Solves:
    """A^-1 of the training rows.

    Fields: system; method, prepared once; seed of its draws.
    """

    def __init__(self, system: CovarianceSystem, method: PreparedOnce, seed: int) -> None:
        self.system, self.method, self.seed = system, method, seed

    @classmethod
    def of(
        cls,
        plan: Plan | None,
        operator: CovarianceOperator,
        noise: Tensor,
        settings: Run,
        *,
        factor: TriangularFactor | None = None,
        reflected: bool = False,
        tiles: StoredTiles | None = None,
        products: ApproximateProducts | None = None,
    ) -> "Solves":
        """Solves as a plan says: on the tiles it stores or computes again, or with the factor it made.

        Args: operator, K of the rows; noise (n,) or (1,); reflected: as CholeskyPreconditioner; tiles, of K, where they
            are stored already; products, of a matrix near K, for solves without a factor.
        """
        stored = plan is not None and plan.route == "stored"
        if factor is None:
            rank = None if plan is None else plan.rank
            solver = ConjugateGradients(rank) if products is None else RefinedGradients(products, rank)
            method = PreparedOnce(solver, solver.name)
            if settings.group.size > 1:
                with settings.group.together():  # room for tiles may lack on one rank
                    shared = GroupSystem(operator, noise, settings.group, stored=stored, tiles=tiles)
                return _SharedSolves(shared, method, settings.seed)
            return cls(CovarianceSystem(operator, noise, stored=stored, tiles=tiles), method, settings.seed)
        system = CovarianceSystem(operator, noise, stored=stored, tiles=tiles)
        preconditioner = CholeskyPreconditioner(factor, system, reflected=reflected)
        ready = PreparedConjugateGradients(system, preconditioner, REFINEMENT, name="refinement")
        return cls(system, PreparedOnce(None, "refinement", ready), settings.seed)

    def solve(self, rhs: Tensor, goal: Goal, *, start: Tensor | None = None, limits: Limits = NO_LIMITS) -> Solution:
        """A^-1 rhs for rhs (n, t), float64. Raises: as `Solver.prepare` and `Prepared.solve`."""
        return self.prepared().solve(rhs, goal, start=start, limits=limits)

    def prepared(self) -> Prepared:
        """The method, prepared if it is not. Raises: as `Solver.prepare`."""
        return self.method.prepare(self.system, seed=self.seed)

    @contextlib.contextmanager
    def charged_to(self, workspace: Workspace, limit: int | None) -> Iterator[None]:
        """While the block runs, buffers of solves are held to a limit, beside those of a workspace, and in its peak.

        What the method keeps is the posterior's, and made before.
        """
        counted = self.system.workspace
        with contextlib.suppress(MemoryBudgetError, NotPositiveDefiniteError):  # raised again when solving
            self.prepared()
        before, peak, budget = counted.live_bytes, counted.peak_bytes, counted.budget_bytes
        counted.peak_bytes = before
        counted.budget_bytes = budget if limit is None else before + max(0, limit - workspace.live_bytes)
        try:
            yield
        finally:
            workspace.peak_bytes = max(workspace.peak_bytes, workspace.live_bytes + counted.peak_bytes - before)
            counted.peak_bytes, counted.budget_bytes = max(peak, counted.peak_bytes), budget

    def log_determinant(self) -> LogDeterminant:
        """log|A|, eq. (M-99), with the factor, or the preconditioner that conjugate gradients have come to."""
        method = self.prepared()
        assert isinstance(method, PreparedConjugateGradients)
        kept = method.preconditioner.kept()
        # Probes have a stream of their own: the pivots were drawn from that of the seed itself.
        return log_determinant(method.system, kept, seed=self.seed + PROBE_SEED)


class _SharedSolves(Solves):
    """Solves with all rows on every rank, which the ranks of a group share, each by its part of the rows."""

    def __init__(self, system: GroupSystem, method: PreparedOnce, seed: int) -> None:
        super().__init__(system, method, seed)
        self.group, self.rows = system.group, GroupRows(system, system.group)

    def solve(self, rhs: Tensor, goal: Goal, *, start: Tensor | None = None, limits: Limits = NO_LIMITS) -> Solution:
        space = self.rows.space
        own = None if start is None else space.local(start)
        with self.group.together():
            solution = self.prepared().solve(space.local(rhs), goal, start=own, limits=self._shared(limits))
            value, residual = (space.everywhere(one) for one in (solution.value, solution.residual))
            return replace(solution, value=value, residual=residual)

    def prepared(self) -> Prepared:
        with self.group.together():
            return self.method.prepare(self.rows, seed=self.seed)

    def log_determinant(self) -> LogDeterminant:
        with self.group.together():
            return super().log_determinant()

    def _shared(self, limits: Limits) -> Limits:
        """Rank 0's callback decides for all; an interrupt of one rank is an error of all."""
        callback = limits.callback

        def decided(step: Step) -> bool:
            asked = callback is not None and self.group.rank == 0 and bool(callback(step))
            return bool(self.group.from_first(torch.tensor([int(asked)])))

        return replace(limits, callback=None if callback is None else decided, interrupted=None)
