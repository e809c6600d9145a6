"""Products of an operator: which plan, which backend runs it, and what a plan keeps between products.

Below `OperatorOptions.planned_pairs` no plan is made, which would cost as much as the product: the compiled backend
answers where its loops exist already and there are enough pairs, else the portable one. From there on every product
follows a plan: the one that was given, else one made from the sizes, the machine's rates and what is free; a plan that
names the compiled backend waits for its compilation.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from flashgp.foundations.contexts import entered
from flashgp.foundations.determinism import contiguous_copy
from flashgp.foundations.errors import BackendUnavailableError, DomainError
from flashgp.foundations.events import Event
from flashgp.foundations.form import broadcast_batch
from flashgp.foundations.machine import parse_bytes
from flashgp.foundations.profile_ranges import profiled
from flashgp.foundations.report import Report
from flashgp.foundations.workspace import Workspace
from flashgp.operators.stored import StoredTiles
from flashgp.pairwise.backend import Backend, PairGradient
from flashgp.pairwise.cpu.backend import PORTABLE_PAIRS, CpuTiles
from flashgp.pairwise.problem import PairProblem
from flashgp.pairwise.torch import opaque
from flashgp.pairwise.torch.tiles import TorchTiles
from flashgp.planner.choice import DTYPES
from flashgp.planner.engines import ENGINES
from flashgp.planner.plan import allowed_bytes
from flashgp.planner.problem import Features, PlanSettings, ProductProblem
from flashgp.planner.products import ProductPlan, plan_product

MIN_PLANNED_PAIRS = PORTABLE_PAIRS  # of products that are planned: below, a plan takes as long as the product


@dataclass(frozen=True)
class OperatorOptions:
    """The caller's choices about an operator's products.

    Fields:
        plan: run exactly.
        memory: the budget of plans that are made here.
        deterministic: these plans leave measured rates out, and all runs on one thread (foundations/determinism.py).
        backend: computes everything, without plans.
        route: forced on plans that are made here.
        least_tiles: the portable backend keeps its smallest tiles, as in solves, whose plans count no larger ones.
        notes: events of every report.
        planned_pairs: pairs from which on products follow a plan.
        derivative_pairs: pairs of a tile in forward mode and beyond first derivatives; None for what suits the device.
    """

    plan: ProductPlan | None = None
    memory: str | int | None = None
    deterministic: bool = False
    backend: Backend | None = None
    route: str | None = None
    least_tiles: bool = False
    notes: tuple[Event, ...] = ()
    planned_pairs: int = MIN_PLANNED_PAIRS
    derivative_pairs: int | None = None

    @classmethod
    def checked(
        cls, plan: object | None, memory: str | int | None, deterministic: bool, notes: tuple[Event, ...] = ()
    ) -> "OperatorOptions":
        """The options, checked. Raises: DomainError."""
        plan = None if plan is None else checked_plan(plan)
        if plan is not None and memory is not None:
            raise DomainError("`plan` settles the memory, got memory= beside it; pass the plan alone")
        if memory is not None:
            parse_bytes(memory)
        return cls(plan, memory, deterministic, notes=notes)

    def transposed(self) -> "OperatorOptions":
        """Options of the transpose: its plan has rows and columns exchanged."""
        if self.plan is None:
            return self
        return replace(self, plan=replace(self.plan, n=self.plan.m, m=self.plan.n))

    @property
    def block_backend(self) -> Backend:
        """The backend of dense blocks and diagonals."""
        if self.backend is not None:
            return self.backend
        return CpuTiles() if self.plan is None else _engine(self.plan)


@dataclass(frozen=True)
class _Run:
    """One product that has run: its plan (None for a small one), where it worked, seconds without compiling."""

    plan: ProductPlan | None
    workspace: Workspace
    seconds: float


@dataclass
class _State:
    """The plans made for an operator's products, what they keep of K, and what ran last."""

    plans: dict[tuple[int, int, torch.dtype], ProductPlan] = field(default_factory=dict)
    stored: tuple[Any, Tensor | StoredTiles] | None = None
    last: _Run | None = None


class PairProducts:
    """The products of one covariance matrix, without derivatives.

    Args:
        problem: the covariance function and its rows.
        dtype: of the results; distances are computed in float64 where they could cancel.
        workspace: counts and limits large buffers; a fresh one without limit by default.
        options: what the caller has settled.
    """

    def __init__(
        self,
        problem: PairProblem,
        dtype: torch.dtype,
        workspace: Workspace | None = None,
        options: OperatorOptions | None = None,
    ) -> None:
        self.problem, self.dtype = problem, dtype
        self.workspace = workspace or Workspace()
        self.options = options or OperatorOptions()
        self.state = _State()

    def with_tensors(self, tensors: Sequence[Tensor]) -> "PairProducts":
        """The products of other tensors."""
        return PairProducts(self.problem.with_tensors(tensors), self.dtype, self.workspace, self.options)

    def detached(self, tensors: Sequence[Tensor]) -> "PairProducts":
        """The products of tensors without their graph: it shares its plans and what they keep."""
        same = self.with_tensors([t.detach() for t in tensors])
        same.state = self.state
        return same

    @property
    def T(self) -> "PairProducts":
        return PairProducts(self.problem.T, self.dtype, self.workspace, self.options.transposed())

    @property
    def backend(self) -> Backend:
        """The backend of dense blocks and diagonals."""
        return self.options.block_backend

    def block(self, dtype: torch.dtype) -> Tensor:
        """The dense block in float32 or float64; with a broadcast batch it may be a view that repeats numbers."""
        return self.backend.block(self.problem, dtype=dtype, workspace=self.workspace)

    @profiled("pairwise products")
    @entered(lambda self, *_: self.options.deterministic)
    def multiply(self, right: Tensor) -> Tensor:
        """K @ right for right (*batch, m, t). Cost: as the plan says."""
        right = contiguous_copy(right)
        plan, workspace = self._plan_for(right), self.workspace
        if plan is not None:
            workspace = Workspace(allowed_bytes(plan.peak_bytes), parent=workspace)
        began, compiled = time.perf_counter(), workspace.compile_seconds
        if plan is None:
            out = (self.options.backend or CpuTiles()).product(self.problem, right, workspace=workspace)
        else:
            out = self._as_planned(plan, right.to(plan.torch_dtype), workspace).to(right.dtype)
        seconds = time.perf_counter() - began - (workspace.compile_seconds - compiled)
        self.state.last = _Run(plan, workspace, seconds)
        return out

    @profiled("pairwise products")
    @entered(lambda self, *_: self.options.deterministic)
    def pulled_back(self, left: Tensor, right: Tensor) -> PairGradient:
        """The gradient of sum(left * K right) by everything that K depends on, (M-21), by the backend that multiplies.

        Compiled loops add up as many numbers as there are features, in every thread: they are held to the bytes of the
        product's plan, beside the features, and go through the pairs in panels where all at once would pass them.
        """
        plan, workspace, problem = self._plan_for(right), self.workspace, self.problem
        backend = (self.options.backend or CpuTiles()) if plan is None else _engine(plan)
        if plan is not None and isinstance(backend, CpuTiles):
            features = problem.rows.nbytes + (0 if problem.columns is None else problem.columns.nbytes)
            workspace = Workspace(plan.peak_bytes - features, parent=workspace)
        return backend.bilinear_gradient(problem, left, right, workspace=workspace)

    def stored_tiles(self, workspace: Workspace) -> StoredTiles:
        """K in tiles, by the compiled backend where all tiles together are worth a compile."""
        worth = self.problem.shape.numel() >= self.options.planned_pairs
        compiled = self.options.backend is None and self.problem.device.type == "cpu" and worth
        return StoredTiles(self.problem, CpuTiles.for_every_size() if compiled else self.backend, workspace)

    def report(self) -> Report:
        """Cost of the last product beside the predicted one; empty before the first one."""
        device, notes, run = str(self.problem.device), self.options.notes, self.state.last
        if run is None:
            return Report(device=device, events=list(notes))
        plan, workspace = run.plan, run.workspace
        return Report(
            route="recomputed" if plan is None else plan.route,
            backend=workspace.backend,
            device=device,
            dtype=str(self.dtype).removeprefix("torch.") if plan is None else plan.dtype,
            predicted_bytes=None if plan is None else plan.peak_bytes,
            peak_bytes=workspace.peak_bytes,
            predicted_seconds=None if plan is None else plan.seconds / plan.products,
            seconds=run.seconds,
            compile_seconds=workspace.compile_seconds or None,
            events=[*notes, *workspace.events],
            plan=plan,
        )

    # -- which plan -----------------------------------------------------------------------------------------------
    def plan(self, t: int, dtype: torch.dtype, batch: int, products: int = 1, **options: Any) -> ProductPlan:
        """The plan of so many products K V with t columns in V; options as in
        `PlanSettings`."""
        problem, (n, m) = self.problem, self.problem.shape[-2:]
        features = Features(
            max(1, problem.rows.width), sum(opaque.columns(problem.form, problem.rows)),
            opaque.temporary_bytes(problem.form, problem.rows, batch),
        )  # fmt: skip
        product = ProductProblem(
            problem.form, n, None if problem.symmetric else m, features, t, batch, products, problem.kept, dtype
        )
        room = 0.0 if self.options.least_tiles else self.workspace.room
        settings = PlanSettings(device=problem.device, **options)
        return plan_product(product, settings, room=room)

    def check_plan(self, right: Tensor) -> None:
        """A plan is for one problem, and its bytes are a promise. Raises: DomainError for another one."""
        plan, problem = self.options.plan, self.problem
        if plan is None:
            return
        made_for = (plan.n, plan.m, plan.symmetric, plan.t, plan.batch, torch.device(plan.device).type)
        size = (*problem.shape[-2:], problem.symmetric, right.shape[-1], self._members(right), right.device.type)
        if made_for != size:
            raise DomainError(
                f"`plan` is for n, m, symmetric, right-hand sides, models, device = {made_for}, got a product with "
                f"{size}; make a plan for these sizes with operator.plan(t={right.shape[-1]})"
            )
        if plan.d != (width := max(1, problem.rows.width)):
            raise DomainError(
                f"`plan` is for {plan.d} feature columns of its kernel, got a product with {width}; make a plan for "
                f"this kernel with operator.plan(t={right.shape[-1]})"
            )

    def _plan_for(self, right: Tensor) -> ProductPlan | None:
        """The plan of this product; None where the portable backend answers at once, or a backend was given."""
        options, plans = self.options, self.state.plans
        n, m = self.problem.rows.count, self.problem.right.count
        small = options.memory is None and self.problem.kept * n * m < options.planned_pairs
        if options.backend is not None or (options.plan is None and small):
            return None
        t, members = right.shape[-1], self._members(right)
        plan = options.plan
        if plan is not None and (plan.n, plan.m, plan.t, plan.batch) == (n, m, t, members):
            return plan
        if right.dtype not in DTYPES.values() or not members or not t:
            return None
        key = (t, members, right.dtype)
        if key not in plans:
            plans[key] = self.plan(
                t, right.dtype, members, memory=options.memory, deterministic=options.deterministic,
                route=options.route,
            )  # fmt: skip
        return plans[key]

    def _members(self, right: Tensor) -> int:
        """Number of models of a product."""
        return broadcast_batch(self.problem.batch_shape, right.shape[:-2]).numel()

    # -- running it -----------------------------------------------------------------------------------------------
    def _as_planned(self, plan: ProductPlan, right: Tensor, workspace: Workspace) -> Tensor:
        backend, state = _engine(plan), self.state
        if plan.route == "recomputed":
            return backend.product(self.problem, right, workspace=workspace)
        # Parameters and points may be changed in place: what was kept of K counts only for the values it was made from.
        versions = (0 if t.is_inference() else t._version for t in self.problem.tensors)
        key = (plan.route, plan.dtype, *versions)
        if state.stored is None or state.stored[0] != key:
            state.stored = None  # before the new one is allocated
            state.stored = (
                key,
                StoredTiles(self.problem, backend, workspace)
                if plan.route == "stored"
                else backend.block(self.problem, dtype=plan.torch_dtype, workspace=workspace),
            )
        return state.stored[1] @ right


def checked_plan(plan: object) -> ProductPlan:
    """The plan that was handed in. Raises: DomainError for anything else."""
    if not isinstance(plan, ProductPlan):
        raise DomainError(
            f"`plan` must be a plan of products, got {type(plan).__name__}; make one with k.operator(x1, x2).plan()"
        )
    return plan


def _engine(plan: ProductPlan) -> Backend:
    """The backend of a plan, for products of every size. Raises: BackendUnavailableError."""
    name = plan.backend
    if name == "torch":
        return TorchTiles(plan.tile_pairs)
    for engine in ENGINES:
        if engine.backend == name and engine.installed():
            return engine.create()
    raise BackendUnavailableError(
        f"`plan` names the backend {name!r}, which is not installed here; make the plan again on this machine"
    )
