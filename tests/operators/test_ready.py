"""Small problems take compiled loops where these are ready, never wait for a compile, and say what ran."""

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.operators.covariance import CovarianceOperator
from flashgp.pairwise.cpu import engine, readiness
from flashgp.pairwise.cpu.backend import CpuTiles, cpu_tiles_missing

pytestmark = pytest.mark.skipif(bool(cpu_tiles_missing()), reason="numba is not installed")

F32, F64 = torch.float32, torch.float64
TORCH, LOOPS = "torch tiles", "compiled loops"
BUDGET = {F32: 8.0 * torch.finfo(F32).eps, F64: 1e-11}  # of torch tiles, which cancel up to there in float64, (M-22)
N = 600  # 360,000 pairs: more than a call of compiled loops costs, fewer than a compile does


def points(dtype: torch.dtype, n: int = N) -> Tensor:
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(0), dtype=F64).to(dtype)


def operator(dtype: torch.dtype = F64, n: int = N, **options: bool) -> CovarianceOperator:
    return (1.3 * fgp.kernels.Matern(2.5, 0.9)).operator(points(dtype, n), **options)


def block(of: CovarianceOperator) -> tuple[Tensor, str]:
    """The dense block, and what made it."""
    return of.to_dense().detach(), of.workspace.backend


def product(of: CovarianceOperator) -> tuple[Tensor, str]:
    value = (of @ torch.ones(of.shape[-1], 2, dtype=of.dtype)).detach()
    return value, of.report.backend


def compile_loops(dtype: torch.dtype) -> None:
    """Products and blocks by compiled loops, as a larger problem would have done."""
    of, loops = operator(dtype), CpuTiles(least_pairs=0)
    loops.block(of.form, of.theta, of.rows, None, dtype=dtype)
    loops.product(of.form, of.theta, of.rows, None, torch.ones(N, 2, dtype=dtype))


@pytest.mark.parametrize("compute", [block, product])
@pytest.mark.parametrize("dtype", [F32, F64])
def test_loops_that_are_ready_are_taken(compute: object, dtype: torch.dtype) -> None:
    assert callable(compute)
    with torch.no_grad():
        _, ran = compute(operator(dtype))
        assert ran == TORCH
        compile_loops(dtype)
        after, ran = compute(operator(dtype))
        assert ran == LOOPS
        exact, _ = compute(operator(F64, deterministic=True))  # torch tiles add N terms of float32 in float32
        assert float((after - exact).abs().max()) <= BUDGET[dtype] * float(exact.abs().max())
        few, ran = compute(operator(dtype, n=100))
        assert ran == TORCH  # the call would cost more than it brings
        assert float((few - compute(operator(dtype, n=100))[0]).abs().max()) == 0.0


@pytest.mark.parametrize("compute", [block, product])
def test_deterministic_results_do_not_depend_on_what_is_compiled(compute: object) -> None:
    assert callable(compute)
    with torch.no_grad():
        before, ran = compute(operator(deterministic=True))
        compile_loops(F64)
        after, ran_after = compute(operator(deterministic=True))
    assert ran == ran_after == TORCH
    assert torch.equal(before, after)


def test_gradients_take_loops_that_are_ready() -> None:
    def slope() -> tuple[Tensor, str]:
        of = operator()
        x = points(F64).requires_grad_()
        of = (1.3 * fgp.kernels.Matern(2.5, 0.9)).operator(x)
        total = (of @ torch.ones(N, 1, dtype=F64)).square().sum()
        return torch.autograd.grad(total, x)[0], of.workspace.backend

    before, ran = slope()
    assert ran == TORCH
    of, ones = operator(), torch.ones(N, 1, dtype=F64)
    theta = [t.detach() for t in of.theta]
    CpuTiles(least_pairs=0).bilinear_gradient(of.form, theta, of.rows, None, ones, ones)
    after, ran = slope()
    assert ran == f"{TORCH} and {LOOPS}"
    assert float((after - before).abs().max()) <= 1e-10 * float(before.abs().max())


@pytest.mark.parametrize("cached", [True, False])
def test_loops_in_the_cache_are_read_once_that_pays(cached: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_loops(F64)
    monkeypatch.setattr(engine, "_seconds", {})  # as in a new process
    monkeypatch.setattr(readiness, "_compiled", set())
    monkeypatch.setattr(engine, "is_cached", lambda *_: cached)
    saved = 1.0 / 3e8 - 1.0 / 3e9  # seconds per pair, by the built-in rates
    monkeypatch.setattr(readiness, "LOAD_SECONDS", 2.5 * saved * N * N)
    with torch.no_grad():
        ran = [block(operator())[1] for _ in range(7)]
    assert ran == ([TORCH] * 2 + [LOOPS] * 5 if cached else [TORCH] * 7)


def test_loops_of_another_layout_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_seconds", {})  # whatever other tests have compiled
    compile_loops(F64)
    monkeypatch.setattr(engine, "is_cached", lambda *_: False)
    with torch.no_grad():
        wide = (1.3 * fgp.kernels.Matern(2.5, 0.9)).operator(torch.randn(N, 30, dtype=F64))
        before = engine.compile_seconds()
        assert block(wide)[1] == TORCH
    assert engine.compile_seconds() == before
