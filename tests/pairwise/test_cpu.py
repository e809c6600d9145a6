"""The compiled CPU backend against the portable one, which the float64 loops check: eqs. (M-20), (M-21), (M-69)."""

import dataclasses
import math
import os

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.determinism import deterministically
from flashgp.foundations.workspace import Workspace
from flashgp.kernels import Kernel
from flashgp.pairwise.backend import PairGradient
from flashgp.pairwise.cpu.backend import CpuTiles, cpu_tiles_missing
from flashgp.pairwise.problem import PairProblem
from flashgp.pairwise.torch.tiles import TorchTiles
from pairwise.pair_cases import ONE_CASE_EACH, Case

pytestmark = pytest.mark.skipif(bool(cpu_tiles_missing()), reason="numba is not installed")

CPU, TORCH = CpuTiles(min_pairs=0), TorchTiles()
F32, F64 = torch.float32, torch.float64
k = fgp.kernels
# None: symmetric. One row, fewer than a vector, one past four rows, and past a block of rows.
SHAPES = [(1, None), (7, 5), (5, 1), (301, None), (1100, 33), (33, 1100)]


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def flat(gradient: PairGradient) -> list[Tensor | None]:
    return [*gradient.rows, *gradient.cols, *gradient.theta]


def share(found: Tensor, wanted: Tensor, scale: Tensor) -> float:
    """Largest error as a share of what the terms of each sum amount to."""
    return float(((found.double() - wanted).abs() / scale.clamp_min(1e-300)).max()) if wanted.numel() else 0.0


def check(kernel: Kernel, x: Tensor, z: Tensor | None, dtype: torch.dtype, tolerance: float, t: int = 3) -> None:
    """Product, block and gradient; the errors are shares of the same sums over absolute values."""
    check_product(kernel, x, z, dtype, tolerance, t)
    rows, cols = kernel.rows(x), None if z is None else kernel.rows(z)
    theta, form = [p.detach() for p in kernel.theta()], kernel.form
    rows, cols = rows.detach(), None if cols is None else cols.detach()
    m = rows.count if cols is None else cols.count
    right, left = numbers(m, t, seed=1).to(dtype), numbers(rows.count, t, seed=2).to(dtype)
    dense = TORCH.block(PairProblem(form, theta, rows, cols), dtype=F64)
    assert share(
        CPU.block(PairProblem(form, theta, rows, cols), dtype=dtype), dense, torch.ones_like(dense)
    ) <= tolerance * max(1.0, float(dense.abs().max()))
    wanted = flat(TORCH.bilinear_gradient(PairProblem(form, theta, rows, cols), left.double(), right.double()))
    got = flat(CPU.bilinear_gradient(PairProblem(form, theta, rows, cols), left, right))
    assert len(got) == len(wanted)
    # A sum of n m terms of either sign: compared with the root of the sum of their squares, about the size of one row.
    for one, two in zip(got, wanted, strict=True):
        assert (one is None) == (two is None) or float(two.abs().max()) == 0  # type: ignore[union-attr]
        if one is not None and two is not None and two.numel():
            size = float(two.abs().max()) + 1e-3 * math.sqrt(m)
            assert share(one, two, torch.full_like(two, size)) <= 20 * tolerance


def check_product(
    kernel: Kernel, x: Tensor, z: Tensor | None, dtype: torch.dtype, tolerance: float, t: int = 3
) -> None:
    rows, cols = kernel.rows(x).detach(), None if z is None else kernel.rows(z).detach()
    theta, form = [p.detach() for p in kernel.theta()], kernel.form
    right = numbers(rows.count if cols is None else cols.count, t, seed=1).to(dtype)
    dense = TORCH.block(PairProblem(form, theta, rows, cols), dtype=F64)
    found = CPU.product(PairProblem(form, theta, rows, cols), right)
    assert found.dtype == dtype
    assert share(found, dense @ right.double(), dense.abs() @ right.double().abs()) <= tolerance


@pytest.mark.parametrize("case", ONE_CASE_EACH)
def test_agrees_with_the_portable_tiles(case: Case) -> None:
    for n, m in SHAPES:
        check(case.kernel, case.points(n, 1), None if m is None else case.points(m, 2), F64, 1e-13)


@pytest.mark.parametrize(
    "kernel",
    [
        k.RBF(1.3),
        k.Matern(0.5, 0.7),
        k.RBF(torch.full((3,), 0.9)) * k.Periodic(1.5, active_dims=[0]) + 0.5 * k.Cosine(torch.full((3,), 0.3)),
    ],
    ids=["RBF", "Matern-1/2", "product"],
)
def test_float32(kernel: Kernel) -> None:
    check(kernel, numbers(700, 3), None, F32, 1e-6)
    check(kernel, numbers(300, 3), numbers(501, 3, seed=5), F32, 1e-6)


@pytest.mark.parametrize(("d", "dtype"), [(1, F32), (8, F32), (9, F64), (90, F32)])
def test_any_number_of_columns(d: int, dtype: torch.dtype) -> None:
    """Unrolled, by differences and by products; both with a lengthscale that cancels and one that does not."""
    x = numbers(210, d)
    x[105:] = x[:105] + 0.05 * numbers(105, d, seed=9)  # close pairs: else a short lengthscale leaves the identity
    for lengthscale in (1.0, 0.05):
        kernel = k.RBF(lengthscale * math.sqrt(d))
        others = kernel(x).to_dense().detach().fill_diagonal_(0.0)
        assert others.amax(1).min() > 0.1
        check_product(kernel, x, None, dtype, 1e-6 if dtype == F32 else 1e-13)


@pytest.mark.parametrize("lengthscale", [1.0, 0.03])
@pytest.mark.parametrize("offset", [0.0, 1e3, 1e6])
def test_an_offset_costs_no_digits(offset: float, lengthscale: float) -> None:
    """(M-68): columns centred in float64, and split in two where float32 would not do."""
    x = numbers(1500, 3) + offset
    x[700:] = x[:800] + 1e-3 * numbers(800, 3, seed=9)  # close pairs: where a distance is all difference
    check_product(k.RBF(lengthscale * math.sqrt(3)), x, None, F32, 1e-6)
    check_product(k.Matern(1.5, lengthscale * math.sqrt(3)), x, None, F32, 1e-6)


def far_rows(kind: str) -> torch.Tensor:
    x = numbers(600, 12)
    if kind == "clusters":  # far from the centre, near each other
        x[:, 0] = (torch.arange(600) // 30) * 3000.0 + 3.0 * x[:, 0]
        x[:, 1:] /= 30.0
    else:
        x[7] = 1e6
    return x


@pytest.mark.parametrize("kind", ["clusters", "outlier"])
def test_far_rows_of_many_columns_cost_no_digits(kind: str) -> None:
    """(M-75): more columns than are split run in float64 where float32 would lose them; gradients always do."""
    x = far_rows(kind)
    check_product(k.RBF(1.0 if kind == "clusters" else math.sqrt(12.0)), x, None, F32, 1e-6)
    for d in (3, 12):
        check(k.RBF(torch.full((d,), math.sqrt(d))), x[:, :d], None, F32, 1e-6)


@pytest.mark.parametrize("scale", [1.0, 1e6, 1e12])
@pytest.mark.parametrize("d", [1, 12])
def test_a_steep_profile_costs_no_digits(scale: float, d: int) -> None:
    """(M-75): what rounding moves depends on the slope of the profile, which a parameter may make steep."""
    kernel = k.Custom(
        lambda a, b, s: torch.exp(-s * (a - b).square().sum()),
        s=fgp.Parameter(scale, torch.distributions.constraints.positive),
    )
    x = numbers(600, 1).expand(600, d) * 0.5
    x = torch.cat([x, x[:200] + numbers(200, d, seed=3) / math.sqrt(scale)])
    check_product(kernel, x, None, F32, 1e-6)


def test_a_profile_that_cancels_runs_in_float64() -> None:
    """(M-75): an inner product minus two row scalars, each a thousand times the difference."""
    kernel = k.Custom(lambda a, b: torch.exp(a @ b - a @ a / 2 - b @ b / 2))
    assert kernel.form.fusable
    x = 100.0 * numbers(400, 3).abs()
    x[200:] = x[:200] + 0.1 * numbers(200, 3, seed=4)
    operator = kernel.operator(x)
    right = numbers(400, 2)
    found = CPU.product(operator.problem.detached(), right.float())
    K = torch.exp(-0.5 * (x[:, None] - x).square().sum(-1))
    assert float(((found - K @ right).abs() / (K @ right.abs())).max()) <= 1e-6


def test_equal_rows_have_distance_zero() -> None:
    """By every way: the value at equal rows is that of the diagonal, also where a slope is unbounded."""
    for d in (3, 26):
        x = numbers(40, d) * 30
        x[20:] = x[:20]
        for kernel in (k.RBF(math.sqrt(d)), k.RBF(40.0 * math.sqrt(d)), k.Matern(0.5, math.sqrt(d))):
            for dtype in (F32, F64):
                block = CPU.block(PairProblem(kernel.form, [], kernel.rows(x).detach()), dtype=dtype)
                assert torch.equal(block[:20, 20:].diagonal(), torch.ones(20, dtype=dtype))
                assert torch.equal(block.diagonal(), torch.ones(40, dtype=dtype))


def test_the_same_bits_again_and_for_any_member() -> None:
    kernel, x, right = k.Matern(2.5, 1.0), numbers(5000, 3), numbers(5000, 2).float()
    rows = kernel.rows(x).detach()
    first = CPU.product(PairProblem(kernel.form, [], rows), right)
    assert torch.equal(first, CPU.product(PairProblem(kernel.form, [], rows), right))
    batch = k.Matern(2.5, torch.tensor([[0.5], [1.0], [2.0]]))  # one lengthscale per member of a batch
    many = CPU.product(PairProblem(batch.form, [], batch.rows(x).detach()), torch.stack([2 * right, right, right]))
    assert many.shape == (3, 5000, 2)
    assert torch.equal(many[1], first)
    assert not torch.equal(many[2], first)


def test_extreme_lengthscales() -> None:
    """1e-8 gives the identity, 1e8 a matrix of ones, in both dtypes; nothing overflows."""
    x, right = numbers(100, 3), numbers(100, 2)
    for dtype in (F32, F64):
        for kernel in (k.RBF, k.Matern, k.RationalQuadratic):
            near = kernel(lengthscale=1e-8).operator(x)
            found = CPU.product(near.problem.detached(), right.to(dtype))
            assert torch.isfinite(found).all()
            assert torch.allclose(found, right.to(dtype), atol=1e-6)
            far = kernel(lengthscale=1e8).operator(x)
            found = CPU.product(far.problem.detached(), right.to(dtype))
            assert torch.allclose(found, right.to(dtype).sum(0).expand(100, 2), rtol=1e-5, atol=1e-5)


def inner_products(x: Tensor, z: Tensor) -> Tensor:
    return torch.exp(x @ z - 0.5 * (x @ x) - 0.5 * (z @ z))


def apart(x: Tensor, z: Tensor) -> Tensor:
    return torch.exp(-0.5 * (x - z).square().sum())


@pytest.mark.parametrize("rectangular", [False, True])
def test_a_few_far_rows_keep_their_digits(rectangular: bool) -> None:
    """Inner products of far rows cancel in exp(x.z - |x|^2/2 - |z|^2/2); one far row in a thousand decides, (M-75)."""
    x = numbers(1000, 3)
    x[501] += 100.0
    x[502] = x[501] + 0.1
    z = x.flip(0)[:900].contiguous() if rectangular else None
    kernel = k.Custom(inner_products, columns=3)
    assert kernel.form.fusable
    assert "product" in kernel.form.statistics
    plain = k.Custom(apart, columns=3)
    right = numbers(900 if rectangular else 1000, 1)
    rows, cols = kernel.rows(x).detach(), None if z is None else kernel.rows(z).detach()
    found = CPU.product(PairProblem(kernel.form, [], rows, cols), right.float()).double()
    dense = plain.operator(x, z).to_dense()
    assert share(found, dense @ right, dense @ right.abs()) <= 1e-6


def _backend_of(computation: str, problem: PairProblem, right: Tensor) -> tuple[Tensor, str]:
    """A product, or a dense block, by the backend as operators take it, and what computed it."""
    workspace = Workspace()
    if computation == "block":
        return CpuTiles().block(problem, dtype=right.dtype, workspace=workspace), workspace.backend
    return CpuTiles().product(problem, right, workspace=workspace), workspace.backend


def test_small_problems_take_loops_that_exist_and_never_wait_for_others() -> None:
    kernel = fgp.kernels.Polynomial(degree=5) * fgp.kernels.RationalQuadratic()  # no other test compiles its loops
    generator = torch.Generator().manual_seed(3)
    x, v = torch.rand(1000, 2, dtype=F64, generator=generator), torch.rand(1000, 1, dtype=F64, generator=generator)
    problem = PairProblem(kernel.form, [t.detach() for t in kernel.theta()], kernel.rows(x).detach())
    portable = TORCH.product(problem, v)
    found, backend = _backend_of("product", problem, v)
    assert torch.equal(found, portable)
    assert backend == TorchTiles.title, "nothing is compiled for a problem of this size"
    CPU.product(problem, v)  # a larger problem would have compiled them
    found, backend = _backend_of("product", problem, v)
    assert backend == CpuTiles.title
    assert (found - portable).norm() <= 1e-13 * portable.norm()
    few = dataclasses.replace(problem, rows=problem.rows.part(0, 500))
    assert _backend_of("product", few, v[:500])[1] == TorchTiles.title, "too few pairs for loops to pay"
    assert _backend_of("block", problem, v)[1] == TorchTiles.title, "another computation is not compiled yet"
    assert _backend_of("product", problem, v.float())[1] == TorchTiles.title, "nor is another dtype"
    with deterministically(True):
        assert _backend_of("product", problem, v)[1] == TorchTiles.title, "bits depend on what was computed before"
    operator = kernel.operator(x, deterministic=True)
    (operator @ v).sum().backward()
    assert operator.report.backend == TorchTiles.title
    operator = kernel.operator(x)
    assert (operator @ v - portable).norm() <= 1e-13 * portable.norm()
    assert operator.report.backend == CpuTiles.title


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_loops_that_exist_serve_in_a_forked_child() -> None:
    kernel, x = k.RBF(1.0), numbers(1000, 2)
    problem, right = PairProblem(kernel.form, [], kernel.rows(x).detach()), numbers(1000, 1)
    wanted = CPU.product(problem, right)
    child = os.fork()
    if child == 0:
        same = False
        try:
            found, backend = _backend_of("product", problem, right)
            same = torch.equal(found, wanted) and backend == CpuTiles.title
        finally:
            os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0
