"""How an operator multiplies: which plan, which backend runs it, and what a plan keeps between products.

Below LEAST_PAIRS pairs the torch tiles answer without a plan, which would cost as much as they do. From there on every
product follows a plan: the one that was given, else one made from the sizes, the machine's rates and what is free.
"""

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from flashgp.foundations.errors import BackendUnavailableError, DomainError
from flashgp.foundations.form import Form, Rows
from flashgp.foundations.report import Report
from flashgp.foundations.workspace import Workspace
from flashgp.pairwise import opaque
from flashgp.pairwise.backend import Backend
from flashgp.pairwise.cpu.backend import PORTABLE_PAIRS, CpuTiles
from flashgp.pairwise.torch_tiles import TorchTiles, tile_rows
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
    "gradient_backend",
    "multiply",
    "plan_of",
    "product_report",
]

LEAST_PAIRS = PORTABLE_PAIRS  # of products that are planned: below, a plan takes as long as the product
_PORTABLE = TorchTiles()
_BLOCKS = CpuTiles()  # of dense blocks: compiled loops where they are worth compiling, torch tiles elsewhere


@dataclass(frozen=True)
class Orders:
    """What the caller has settled about an operator's products.

    Fields: plan, run exactly; memory, the budget of plans that are made here; deterministic, whether they leave the
    measured rates out; backend, one that computes everything, without plans.
    """

    plan: ProductPlan | None = None
    memory: str | int | None = None
    deterministic: bool = False
    backend: Backend | None = None

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
        return _BLOCKS if self.plan is None else _engine(self.plan.backend)


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
        self.kept: tuple[Any, Tensor | _StoredTiles] | None = None
        self.last: _Run | None = None


def plan_of(operator: "CovarianceOperator", t: int, dtype: torch.dtype, batch: int, **options: Any) -> ProductPlan:
    """The plan of K V with t columns in V; options as in `plan_product`."""
    n, m = operator.shape[-2:]
    return plan_product(
        operator.form, n, None if operator.symmetric else m, d=max(1, operator.rows.width), kept=operator.kept,
        function_d=sum(opaque.columns(operator.form, operator.rows)),
        function_bytes=opaque.temporary_bytes(operator.form, operator.rows, batch), t=t, batch=batch, dtype=dtype,
        device=operator.device, **options,
    )  # fmt: skip


def check_product_plan(plan: Any, operator: "CovarianceOperator", right: Tensor) -> None:
    """A plan that was handed in is run exactly: it must fit the product. Raises: DomainError."""
    made_for = (plan.n, plan.m, plan.symmetric, plan.t, plan.batch, torch.device(plan.device).type)
    given = (*operator.shape[-2:], operator.symmetric, right.shape[-1], _members(operator, right), right.device.type)
    if made_for != given:
        raise DomainError(
            f"`plan` is for n, m, symmetric, right-hand sides, models, device = {made_for}, got a product with "
            f"{given}; make a plan for these sizes with operator.plan(t={right.shape[-1]})"
        )


def multiply(operator: "CovarianceOperator", right: Tensor) -> Tensor:
    """K @ right for right (*batch, m, t), no derivatives. Cost: as the plan says."""
    orders, products = operator.orders, operator.products
    plan = _plan_for(operator, right)
    workspace = operator.workspace
    if plan is not None:
        workspace = Workspace(allowed_bytes(plan.peak_bytes), parent=workspace)
    began, compiled = time.perf_counter(), workspace.compile_seconds
    if plan is None:
        backend = orders.backend or _PORTABLE
        out = backend.product(*_given(operator), right, workspace=workspace, tiles=operator.tiles)
    else:
        out = _as_planned(operator, plan, right.to(plan.torch_dtype), workspace).to(right.dtype)
    products.last = _Run(plan, workspace, time.perf_counter() - began - (workspace.compile_seconds - compiled))
    return out


def gradient_backend(operator: "CovarianceOperator", right: Tensor) -> Backend:
    """What takes the gradient of a product: the backend that multiplies."""
    plan = _plan_for(operator, right)
    return operator.orders.backend or (_PORTABLE if plan is None else _engine(plan.backend))


def product_report(operator: "CovarianceOperator") -> Report:
    """What the last product of an operator took, beside what was predicted; empty before the first one."""
    run = operator.products.last
    if run is None:
        return Report(device=str(operator.device))
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
        events=list(workspace.events),
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
        found = plan_of(operator, t, right.dtype, members, memory=orders.memory, deterministic=orders.deterministic)
        operator.products.plans[t, members, right.dtype] = found
    return found


def _members(operator: "CovarianceOperator", right: Tensor) -> int:
    """How many models a product computes."""
    return torch.broadcast_shapes(operator.shape[:-2], right.shape[:-2]).numel()


def _given(operator: "CovarianceOperator") -> tuple[Form, tuple[Tensor, ...], Rows, Rows | None]:
    return operator.form, operator.theta, operator.rows, operator.cols


# -- running it ------------------------------------------------------------------------------------------------------
def _engine(name: str) -> Backend:
    """The backend of that name, for products of every size. Raises: BackendUnavailableError."""
    for engine in ENGINES:
        if engine.backend == name and engine.installed():
            return engine.made()
    raise BackendUnavailableError(
        f"`plan` names the backend {name!r}, which is not installed here; make the plan again on this machine"
    )


def _as_planned(operator: "CovarianceOperator", plan: ProductPlan, right: Tensor, workspace: Workspace) -> Tensor:
    backend = _engine(plan.backend)
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
) -> "Tensor | _StoredTiles":
    if plan.route == "stored":
        return _StoredTiles(operator, backend, workspace)
    return backend.block(
        operator.form, operator.theta, operator.rows, operator.cols, dtype=plan.torch_dtype, workspace=workspace
    )


class _StoredTiles:
    """K as float32 panels of rows, of a symmetric K from the diagonal on, (M-56)."""

    def __init__(self, operator: "CovarianceOperator", backend: Backend, workspace: Workspace) -> None:
        self.shape, self.symmetric = operator.shape, operator.symmetric
        n, m = self.shape[-2:]
        cols = operator.rows if operator.cols is None else operator.cols
        step = tile_rows(m, self.shape[:-2].numel(), operator.device)
        self.panels: list[tuple[slice, slice, Tensor]] = []
        for start in range(0, n, step):
            i = slice(start, min(n, start + step))
            j = slice(start if self.symmetric else 0, m)
            rows, part = operator.rows.part(i.start, i.stop), cols.part(j.start, j.stop)
            tile = backend.block(operator.form, operator.theta, rows, part, dtype=torch.float32, workspace=workspace)
            self.panels.append((i, j, workspace.adopt(tile)))

    def __matmul__(self, right: Tensor) -> Tensor:
        """K @ right, (*batch, n, t), eq. (M-20), in right's dtype."""
        batch = torch.broadcast_shapes(self.shape[:-2], right.shape[:-2])
        out = right.new_zeros((*batch, self.shape[-2], right.shape[-1]))
        for i, j, tile in self.panels:
            values = tile.to(right.dtype)
            out[..., i, :] += values @ right[..., j, :]
            if self.symmetric and j.stop > i.stop:
                out[..., i.stop :, :] += values[..., i.stop - i.start :].mT @ right[..., i, :]
        return out
