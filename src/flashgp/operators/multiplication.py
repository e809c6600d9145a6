"""How an operator multiplies: which plan, which backend runs it, and what a plan keeps between products.

Below LEAST_PAIRS pairs the portable backend answers without a plan, which would cost as much as the product. From there
on every product follows a plan: the one that was given, else one made from the sizes, the machine's rates and what is
free; a plan that names the compiled backend waits for its compilation.
"""

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from flashgp.foundations.determinism import contiguous_copy, deterministic_where
from flashgp.foundations.errors import BackendUnavailableError, DomainError
from flashgp.foundations.events import Event
from flashgp.foundations.form import Form, Rows, broadcast_batch
from flashgp.foundations.profile_ranges import profiled
from flashgp.foundations.report import Report
from flashgp.foundations.workspace import Workspace
from flashgp.operators.stored import StoredTiles
from flashgp.pairwise.backend import Backend, PairGradient
from flashgp.pairwise.cpu.backend import PORTABLE_PAIRS, CpuTiles
from flashgp.pairwise.torch import opaque
from flashgp.pairwise.torch.tiles import TorchTiles
from flashgp.planner.choice import DTYPES
from flashgp.planner.engines import ENGINES
from flashgp.planner.plan import allowed_bytes
from flashgp.planner.products import ProductPlan, plan_product

if TYPE_CHECKING:
    from flashgp.operators.covariance import CovarianceOperator

__all__ = [
    "LEAST_PAIRS",
    "Multiplication",
    "Orders",
    "check_product_plan",
    "checked_plan",
    "multiply",
    "plan_of",
    "product_report",
    "pulled_back",
    "stored_backend",
]

LEAST_PAIRS = PORTABLE_PAIRS  # of products that are planned: below, a plan takes as long as the product
_PORTABLE = TorchTiles()
_BLOCKS = CpuTiles()  # portable below LEAST_PAIRS pairs


@dataclass(frozen=True)
class Orders:
    """What the caller has settled about an operator's products.

    Fields: plan, run exactly; memory, the budget of plans that are made here; deterministic, whether these leave the
    measured rates out and all runs on one thread (foundations/determinism.py); backend, one that computes everything,
    without plans; route, forced on plans that are made here; least_tiles, whether torch tiles keep their least size,
    as in solves, whose plans count no larger ones; notes, lines for every report.
    """

    plan: ProductPlan | None = None
    memory: str | int | None = None
    deterministic: bool = False
    backend: Backend | None = None
    route: str | None = None
    least_tiles: bool = False
    notes: tuple[Event, ...] = ()

    def transposed(self) -> "Orders":
        """The same for the transpose: its plan has rows and columns exchanged."""
        if self.plan is None:
            return self
        return replace(self, plan=replace(self.plan, n=self.plan.m, m=self.plan.n))

    @property
    def block_backend(self) -> Backend:
        """What computes dense blocks and diagonals."""
        if self.backend is not None:
            return self.backend
        if self.plan is not None:
            return _engine(self.plan)
        return _BLOCKS

    @property
    def small_backend(self) -> Backend:
        """What computes products that need no plan."""
        return self.backend or _PORTABLE


@dataclass(frozen=True)
class _Run:
    """One product that has run: its plan (None for a small one), where it worked, seconds without compiling."""

    plan: ProductPlan | None
    workspace: Workspace
    seconds: float


class Multiplication:
    """The products of one operator: the plans made for it, what they keep of K, and what ran last."""

    def __init__(self) -> None:
        self.plans: dict[tuple[int, int, torch.dtype], ProductPlan] = {}
        self.kept: tuple[Any, Tensor | StoredTiles] | None = None
        self.last: _Run | None = None


def plan_of(operator: "CovarianceOperator", t: int, dtype: torch.dtype, batch: int, **options: Any) -> ProductPlan:
    """The plan of K V with t columns in V; options as in `plan_product`."""
    n, m = operator.shape[-2:]
    return plan_product(
        operator.form, n, None if operator.symmetric else m, d=max(1, operator.rows.width), kept=operator.kept,
        function_d=sum(opaque.columns(operator.form, operator.rows)),
        function_bytes=opaque.temporary_bytes(operator.form, operator.rows, batch), t=t, batch=batch, dtype=dtype,
        device=operator.device, room=0.0 if operator.orders.least_tiles else operator.workspace.room, **options,
    )  # fmt: skip


def checked_plan(plan: object) -> ProductPlan:
    """The plan that was handed in. Raises: DomainError for anything else."""
    if not isinstance(plan, ProductPlan):
        raise DomainError(
            f"`plan` must be a plan of products, got {type(plan).__name__}; make one with k.operator(x1, x2).plan()"
        )
    return plan


def check_product_plan(plan: Any, operator: "CovarianceOperator", right: Tensor) -> None:
    """A plan that was handed in is run exactly: it must fit the product. Raises: DomainError."""
    made_for = (plan.n, plan.m, plan.symmetric, plan.t, plan.batch, torch.device(plan.device).type)
    given = (*operator.shape[-2:], operator.symmetric, right.shape[-1], _members(operator, right), right.device.type)
    if made_for != given:
        raise DomainError(
            f"`plan` is for n, m, symmetric, right-hand sides, models, device = {made_for}, got a product with "
            f"{given}; make a plan for these sizes with operator.plan(t={right.shape[-1]})"
        )
    if plan.d != (width := max(1, operator.rows.width)):
        raise DomainError(
            f"`plan` is for {plan.d} feature columns of its kernel, got a product with {width}; make a plan for this "
            f"kernel with operator.plan(t={right.shape[-1]})"
        )


@profiled("pairwise products")
@deterministic_where(lambda operator, _: operator.orders.deterministic)
def multiply(operator: "CovarianceOperator", right: Tensor) -> Tensor:
    """K @ right for right (*batch, m, t), no derivatives. Cost: as the plan says."""
    right = contiguous_copy(right)
    orders, products = operator.orders, operator.products
    plan = _plan_for(operator, right)
    workspace = operator.workspace
    if plan is not None:
        workspace = Workspace(allowed_bytes(plan.peak_bytes), parent=workspace)
    began, compiled = time.perf_counter(), workspace.compile_seconds
    if plan is None:
        out = orders.small_backend.product(*_given(operator), right, workspace=workspace, tiles=operator.tiles)
    else:
        out = _as_planned(operator, plan, right.to(plan.torch_dtype), workspace).to(right.dtype)
    products.last = _Run(plan, workspace, time.perf_counter() - began - (workspace.compile_seconds - compiled))
    return out


@profiled("pairwise products")
def pulled_back(operator: "CovarianceOperator", left: Tensor, right: Tensor) -> PairGradient:
    """The gradient of sum(left * K right) by everything that K depends on, (M-21), by the backend that multiplies.

    Compiled loops add up as many numbers as there are features, in every thread: they are held to the bytes of the
    product's plan, beside the features, and go through the pairs in panels where all at once would pass them.
    """
    plan, workspace = _plan_for(operator, right), operator.workspace
    backend = operator.orders.small_backend if plan is None else _engine(plan)
    if plan is not None and isinstance(backend, CpuTiles):
        features = operator.rows.nbytes + (0 if operator.cols is None else operator.cols.nbytes)
        workspace = Workspace(plan.peak_bytes - features, parent=workspace)
    return backend.bilinear_gradient(*_given(operator), left, right, workspace=workspace, tiles=operator.tiles)


def product_report(operator: "CovarianceOperator") -> Report:
    """What the last product of an operator took, beside what was predicted; empty before the first one."""
    run = operator.products.last
    if run is None:
        return Report(device=str(operator.device), events=list(operator.orders.notes))
    plan, workspace = run.plan, run.workspace
    return Report(
        route="recomputed" if plan is None else plan.route,
        backend=workspace.backend,
        device=str(operator.device),
        dtype=str(operator.dtype).removeprefix("torch.") if plan is None else plan.dtype,
        predicted_bytes=None if plan is None else plan.peak_bytes,
        peak_bytes=workspace.peak_bytes,
        predicted_seconds=None if plan is None else plan.seconds / plan.products,
        seconds=run.seconds,
        compile_seconds=workspace.compile_seconds or None,
        events=[*operator.orders.notes, *workspace.events],
        plan=plan,
    )


# -- which plan ------------------------------------------------------------------------------------------------------
def _plan_for(operator: "CovarianceOperator", right: Tensor) -> ProductPlan | None:
    """The plan of this product; None where the torch tiles answer at once, or a backend was given."""
    orders = operator.orders
    n, m = operator.rows.count, (operator.cols or operator.rows).count
    small = orders.memory is None and operator.kept * n * m < LEAST_PAIRS
    if orders.backend is not None or (orders.plan is None and small):
        return None
    t, members = right.shape[-1], _members(operator, right)
    plan = orders.plan
    if plan is not None and (plan.n, plan.m, plan.t, plan.batch) == (n, m, t, members):
        return plan
    if right.dtype not in DTYPES.values() or not members or not t:
        return None
    found = operator.products.plans.get((t, members, right.dtype))
    if found is None:
        found = plan_of(
            operator, t, right.dtype, members, memory=orders.memory, deterministic=orders.deterministic,
            route=orders.route,
        )  # fmt: skip
        operator.products.plans[t, members, right.dtype] = found
    return found


def _members(operator: "CovarianceOperator", right: Tensor) -> int:
    """How many models a product computes."""
    return broadcast_batch(operator.shape[:-2], right.shape[:-2]).numel()


def _given(operator: "CovarianceOperator") -> tuple[Form, tuple[Tensor, ...], Rows, Rows | None]:
    return operator.form, operator.theta, operator.rows, operator.cols


def stored_backend(operator: "CovarianceOperator") -> Backend:
    """What fills stored tiles: the compiled loops where all tiles together are worth a compile."""
    pairs = operator.shape.numel()
    if operator.orders.backend is None and operator.device.type == "cpu" and pairs >= LEAST_PAIRS:
        return CpuTiles.for_every_size()
    return operator.backend


# -- running it ------------------------------------------------------------------------------------------------------
def _engine(plan: ProductPlan) -> Backend:
    """The backend of a plan, for products of every size. Raises: BackendUnavailableError."""
    name = plan.backend
    if name == "torch":
        return TorchTiles(plan.tile_pairs)
    for engine in ENGINES:
        if engine.backend == name and engine.installed():
            return engine.made()
    raise BackendUnavailableError(
        f"`plan` names the backend {name!r}, which is not installed here; make the plan again on this machine"
    )


def _as_planned(operator: "CovarianceOperator", plan: ProductPlan, right: Tensor, workspace: Workspace) -> Tensor:
    backend = _engine(plan)
    if plan.route == "recomputed":
        return backend.product(*_given(operator), right, workspace=workspace, tiles=operator.tiles)
    # Parameters and points may be changed in place: what was kept of K counts only for the values it was made from.
    tensors = operator._tensors()
    key = (plan.route, plan.dtype, *(0 if t.is_inference() else t._version for t in tensors))
    products = operator.products
    if products.kept is None or products.kept[0] != key:
        products.kept = None  # before the new one is allocated
        products.kept = (key, _keep(operator, plan, backend, workspace))
    kept = products.kept[1]
    return kept @ right


def _keep(
    operator: "CovarianceOperator", plan: ProductPlan, backend: Backend, workspace: Workspace
) -> "Tensor | StoredTiles":
    if plan.route == "stored":
        return StoredTiles(operator, backend, workspace)
    return backend.block(
        operator.form, operator.theta, operator.rows, operator.cols, dtype=plan.torch_dtype, workspace=workspace
    )
