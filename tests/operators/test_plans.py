"""Products follow plans: the one that was given, else one of their own; every route gives the same numbers."""

import dataclasses
import time
from typing import Any

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.workspace import Workspace
from flashgp.operators.covariance import CovarianceOperator
from flashgp.operators.multiplication import OperatorOptions
from flashgp.pairwise.cpu.backend import cpu_tiles_missing
from flashgp.pairwise.torch import opaque
from flashgp.pairwise.torch import tiles as torch_tiles
from flashgp.planner.products import ProductPlan
from operators.operator_cases import operator_with

F64, F32 = torch.float64, torch.float32
KERNEL = 1.3 * fgp.kernels.Matern(2.5, torch.tensor([0.7, 1.1])) + fgp.kernels.Linear(0.2)
WAYS = [("recomputed", "torch"), ("recomputed", "cpu"), ("stored", "torch"), ("dense", "torch")]
N, M, T = 60, 41, 3


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = F64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64).to(dtype)


def tolerance(route: str, dtype: torch.dtype) -> float:
    """Stored tiles are float32: N terms of size at most about 3, each rounded."""
    return N * 8 * torch.finfo(F32 if route == "stored" else dtype).eps


@pytest.mark.parametrize("dtype", [F64, F32])
@pytest.mark.parametrize("rectangular", [False, True])
@pytest.mark.parametrize(("route", "backend"), WAYS)
def test_every_way_gives_the_same_numbers(route: str, backend: str, rectangular: bool, dtype: torch.dtype) -> None:
    """K V and its gradients, eqs. (M-20), (M-21) and (M-56), as the plan says, and the report names what ran."""
    if backend == "cpu" and cpu_tiles_missing():
        pytest.skip("numba is not installed")
    x = numbers(N, 2, dtype=dtype).requires_grad_()
    z = numbers(M, 2, seed=1, dtype=dtype) if rectangular else None
    v = numbers(M if rectangular else N, T, seed=2, dtype=dtype).requires_grad_()
    leaves = [x, v, *KERNEL.parameters()]
    dense = KERNEL.operator(x, z).to_dense() @ v
    wanted = torch.autograd.grad(dense.square().sum(), leaves)
    plan = KERNEL.operator(x, z).plan(T, route=route, backend=backend)
    plan = dataclasses.replace(plan, tile_pairs=7 * N)  # several tiles
    operator = KERNEL.operator(x, z, plan=plan)
    found = operator @ v
    limit = tolerance(route, dtype)
    assert (found - dense).abs().max() <= limit * dense.abs().max()
    title = "compiled backend" if backend == "cpu" else "portable backend"
    report = operator.report
    assert (report.route, report.backend, report.plan) == (route, title, plan)
    for one, other in zip(torch.autograd.grad(found.square().sum(), leaves), wanted, strict=True):
        assert (one - other).abs().max() <= 20 * limit * other.abs().max()
    with torch.no_grad():
        assert torch.equal(operator @ v, operator @ v)


def test_a_product_follows_the_plan_that_is_shown() -> None:
    x, v = numbers(N, 2), numbers(N, T)
    operator = operator_with(KERNEL, x, memory="1GiB", deterministic=True)
    plan = operator.plan(T)
    out = operator @ v.clone()
    report = operator.report
    assert report.plan == plan
    assert (plan.n, plan.m, plan.symmetric, plan.d, plan.t, plan.available_bytes) == (N, N, True, 4, T, 2**30)
    assert (report.predicted_bytes, report.predicted_seconds) == (plan.peak_bytes, plan.seconds)
    assert report.seconds > 0.0
    assert "predicted" in str(report)
    for part in ("K of 60 x 60 (symmetric)", "not chosen", "keeps K, for one product: only on request"):
        assert part in str(plan)
    assert torch.allclose(out, KERNEL.operator(x).to_dense() @ v, rtol=1e-12, atol=1e-12)
    assert operator.plan(T, products=1000, route="dense").route == "dense"
    again = ProductPlan.from_json(plan.to_json())
    assert torch.equal(KERNEL.operator(x, plan=again) @ v, out)


@pytest.mark.skipif(bool(cpu_tiles_missing()), reason="numba is not installed")
@pytest.mark.parametrize("rectangular", [False, True])
def test_a_gradient_keeps_to_the_plan_of_its_product(rectangular: bool) -> None:
    """(M-21) in compiled loops: what all pairs at once would take beyond the plan is done in panels, and noted."""
    n, m = 1200, 1100
    x, z = numbers(n, 2), numbers(m, 2, seed=1) if rectangular else None
    operator = operator_with(KERNEL, x, z)
    operator = operator.with_problem(operator.problem.detached())
    u, v = numbers(n, T, seed=2), numbers(m if rectangular else n, T, seed=3)
    full = operator.plan(T, route="recomputed", backend="cpu")
    features = operator.problem.rows.nbytes + (operator.problem.columns.nbytes if rectangular else 0)
    found = {}
    for share, room in (("all", full.peak_bytes), ("little", features + 230_000)):
        plan, workspace = dataclasses.replace(full, peak_bytes=room), Workspace(counted_bytes=0)
        planned = CovarianceOperator(operator.problem, operator.dtype, workspace, OperatorOptions(plan))
        with fgp.runtime(threads=2):
            pulled = planned.pulled_back(u, v)
        found[share] = [g for g in (*pulled.rows, *pulled.cols, *pulled.theta) if g is not None]
        assert workspace.peak_bytes <= room - features
        assert bool(workspace.events) == (share == "little")
    for one, two in zip(found["all"], found["little"], strict=True):
        assert (one - two).abs().max() <= n * 8 * torch.finfo(F64).eps * one.abs().max()


def test_what_does_not_fit_is_refused_with_the_numbers() -> None:
    x = numbers(5000, 2)
    operator = KERNEL.operator(x, memory=2**20)
    with pytest.raises(fgp.MemoryBudgetError, match=r"`memory` allows 1\.0 MiB") as caught:
        operator @ numbers(5000, 1)
    least = min(operator.plan(memory=2**40, backend=name).peak_bytes for name in ("torch", "cpu"))
    assert (caught.value.needed_bytes, caught.value.available_bytes) == (least, 2**20)
    assert caught.value.cheapest_plan is None
    dense = operator.plan(memory=2**40, route="dense")
    with pytest.raises(fgp.MemoryBudgetError, match=r"recomputed by \w+ needs") as caught:
        operator.plan(memory=dense.peak_bytes - 1, route="dense")
    assert caught.value.cheapest_plan.route == "recomputed"
    assert KERNEL.operator(x, plan=caught.value.cheapest_plan) @ numbers(5000, 1) is not None


def test_a_plan_that_does_not_fit_the_product_is_refused() -> None:
    x = numbers(N, 2)
    plan = KERNEL.operator(x).plan(T)
    for operator, right in (
        (KERNEL.operator(x, plan=plan), numbers(N, 1)),
        (KERNEL.operator(x[1:], plan=plan), numbers(N - 1, T)),
        (KERNEL.operator(x, x.clone(), plan=plan), numbers(N, T)),
        (KERNEL.operator(x, plan=plan), numbers(2, N, T)),
    ):
        with pytest.raises(fgp.DomainError, match=r"= \(60, 60, True, 3, 1, 'cpu'\), got a product with"):
            operator @ right
    with pytest.raises(fgp.DomainError, match="`plan` must be a plan of products, got Plan"):
        KERNEL.operator(x, plan=fgp.plan(fgp.GP(KERNEL), n=N, d=2))
    with pytest.raises(fgp.DomainError, match="`plan` settles the memory"):
        KERNEL.operator(x, plan=plan, memory="1GiB")
    with pytest.raises(fgp.DomainError, match="`memory` must be a positive number of bytes"):
        KERNEL.operator(x, memory="much")
    with pytest.raises(fgp.BackendUnavailableError, match="backend 'abacus', which is not installed here"):
        KERNEL.operator(x, plan=dataclasses.replace(plan, backend="abacus")) @ numbers(N, T)


def test_transforms_and_parts_of_planned_operators() -> None:
    x, v = numbers(N, 2), numbers(5, N, T)
    operator = operator_with(KERNEL, x, plan=KERNEL.operator(x).plan(T, backend="torch"), planned_pairs=0)
    wanted = KERNEL.operator(x).to_dense() @ v
    assert torch.allclose(torch.func.vmap(lambda r: operator @ r)(v), wanted, rtol=1e-11, atol=1e-11)
    part = operator[:7, 3:]
    assert torch.allclose(part @ v[0, 3:], wanted.new_tensor(0) + part.to_dense() @ v[0, 3:], rtol=1e-12)
    rectangular = KERNEL.operator(x, x[:7])
    given = operator_with(KERNEL, x, x[:7], plan=rectangular.plan(T), planned_pairs=0)
    assert torch.allclose(given.T @ v[0], rectangular.to_dense().mT @ v[0], rtol=1e-12, atol=1e-12)
    batch = numbers(2, N, 2)
    many = operator_with(KERNEL, batch, planned_pairs=0)
    assert many.plan(T).batch == 2
    assert torch.allclose(many @ v[0], many.to_dense() @ v[0], rtol=1e-11, atol=1e-11)
    assert (many @ v[0][:, :0]).shape == (2, N, 0)


def test_plans_say_which_kernels_run_through_python_and_why() -> None:
    """Every plan shows it: of a product, of a prediction, of conditioning; and counts what those pairs take."""

    def widest(x: Tensor, z: Tensor, B: Tensor) -> Tensor:
        return torch.exp(-((x - z) @ B).abs().amax())

    tiled = fgp.kernels.Custom(widest, B=torch.eye(2), active_dims=[0, 1]) + fgp.kernels.Matern(2.5)
    x = numbers(N, 3)
    why = f"{tiled.parts[0].fusion.removeprefix('tiled: ')}"
    assert why
    for kernel, said in ((tiled, f"tiled: widest ({why})"), (KERNEL, "fused")):
        gp = fgp.GP(kernel)
        d = 3 if kernel is tiled else 2
        for plan in (
            kernel.operator(x[:, :d]).plan(T), fgp.plan(gp, n=N, d=d, n_test=M), fgp.plan(gp, n=N, d=d)
        ):  # fmt: skip
            assert plan.kernel == said
            assert f"kernel         {said}" in str(plan)
            assert type(plan).from_json(plan.to_json()) == plan
    n = 4000
    one = tiled.operator(numbers(n, 3)).plan(T)
    assert (one.backend, [a.backend for a in one.alternatives]) == ("torch", ["torch", "torch"])
    pieces = opaque.temporary_bytes(tiled.form, tiled.rows(x[:1]), 1)
    assert pieces >= 16 * opaque.PIECE_NUMBERS
    gp, plain = fgp.GP(tiled), fgp.GP(fgp.kernels.Matern(2.5))
    assert fgp.plan(gp, n=n, d=3).peak_bytes > fgp.plan(plain, n=n, d=3).peak_bytes + pieces
    more = fgp.plan(gp, n=n, d=3, n_test=9).peak_bytes - fgp.plan(plain, n=n, d=3, n_test=9, backend="torch").peak_bytes
    assert more > pieces


def test_predictions_follow_plans() -> None:
    """Eq. (M-59): what a report predicted is that of the plan of what was computed, mean or both."""
    gp, x, x_test = fgp.GP(KERNEL), numbers(N, 2), numbers(M, 2, seed=3)
    posterior = gp.condition(x, x.sum(-1))
    wanted = posterior.predict(x_test)
    assert (wanted.mean.shape, wanted.report.plan, wanted.report.backend) == ((M,), None, "portable backend")
    plan = fgp.plan(gp, n=N, d=2, n_test=M, route="dense")
    found = posterior.predict(x_test, plan=plan)
    assert torch.allclose(found.mean, wanted.mean, rtol=1e-12, atol=1e-12)
    assert (found.report.plan, found.report.predicted_bytes) == (plan, plan.peak_bytes)
    for other in (fgp.plan(gp, n=N, d=2, n_test=M + 1), fgp.plan(gp, n=N, d=2)):
        with pytest.raises(fgp.DomainError, match="`plan`"):
            posterior.predict(x_test, plan=other)
    with pytest.raises(fgp.DomainError, match="`plan` settles memory"):
        posterior.predict(x_test, plan=plan, memory="1GiB")
    with pytest.raises(fgp.MemoryBudgetError, match=r"`memory` allows 1\.0 KiB"):
        posterior.predict(x_test, memory=2**10).mean  # noqa: B018
    found = posterior.predict(x_test, deterministic=True, memory="8GiB")
    found.mean  # noqa: B018
    mean = fgp.plan(gp, n=N, d=2, n_test=M, variance=False, deterministic=True, memory="8GiB")
    both = fgp.plan(gp, n=N, d=2, n_test=M, deterministic=True, memory="8GiB")
    assert (found.report.predicted_seconds, found.report.predicted_bytes) == (mean.seconds, mean.peak_bytes)
    found.variance  # noqa: B018
    assert (found.report.predicted_seconds, found.report.predicted_bytes) == (both.seconds, both.peak_bytes)
    assert both.seconds > mean.seconds
    assert found.report.seconds > 0.0


@pytest.mark.skipif(bool(cpu_tiles_missing()), reason="numba is not installed")
def test_compiling_is_timed_apart() -> None:
    x, v = numbers(N, 2), numbers(N, T)
    other = fgp.kernels.RBF() * fgp.kernels.Cosine() + fgp.kernels.Matern(0.5)  # of no other test
    operator = other.operator(x, plan=other.operator(x).plan(T, backend="cpu"))
    operator @ v
    first = operator.report
    assert first.compile_seconds > 0.0
    assert first.seconds >= 0.0
    assert "once, not in the time" in str(first)
    operator @ v
    assert operator.report.compile_seconds is None

    class Slow(torch_tiles.TorchTiles):
        def product(self, *arguments: Any, workspace: Any = None, **options: Any) -> Tensor:
            began = time.perf_counter()
            time.sleep(0.3)
            workspace.ran("slow", time.perf_counter() - began)
            return super().product(*arguments, workspace=workspace, **options)

    operator = operator_with(KERNEL, x, backend=Slow())
    operator @ v
    report = operator.report
    assert report.backend == "slow and portable backend"
    assert report.compile_seconds >= 0.3 > report.seconds


def test_a_plan_of_other_feature_columns_is_refused() -> None:
    """Its bytes and seconds, and the route they chose, are of another product."""
    x, v = torch.rand(40, 3, dtype=torch.float64), torch.ones(40, 1, dtype=torch.float64)
    one, other, wide = (fgp.kernels.RBF(1.0, active_dims=dims) for dims in ([0], [1], [0, 1, 2]))
    plan = one.operator(x).plan()
    assert torch.allclose(other.operator(x, plan=plan) @ v, other.operator(x).to_dense() @ v)
    with pytest.raises(fgp.DomainError, match=r"`plan` is for 1 feature columns .* got a product with 3"):
        wide.operator(x, plan=plan) @ v
