"""`operator_of(k, x1, x2, skip_below=...)`: products within their certified bound, and exact everywhere else."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.errors import DomainError
from flashgp.foundations.events import Event, EventKind
from flashgp.kernels import Kernel
from flashgp.operators import CovarianceOperator, SkippingOperator
from flashgp.operators.tiled import block_sum
from flashgp.pairwise.backend import Backend
from flashgp.pairwise.cpu.backend import CpuTiles, cpu_tiles_missing
from flashgp.pairwise.torch.tiles import TorchTiles
from operators.operator_cases import operator_with, skipping_with
from pairwise.pair_cases import CASES, Case

F32, F64 = torch.float32, torch.float64
k = fgp.kernels
TITLES = {"torch": "portable backend", "cpu": "compiled backend"}  # in reports
ROUTES: dict[str, Callable[[], Backend]] = {"torch": TorchTiles, "cpu": lambda: CpuTiles(min_pairs=0)}


CHOSEN: list[Backend] = []  # the backend of operators, where a test asks for one


@pytest.fixture(params=ROUTES)
def route(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "cpu" and cpu_tiles_missing():
        pytest.skip("numba is not installed")
    CHOSEN.append(ROUTES[request.param]())
    yield request.param
    CHOSEN.clear()


def operator_of(
    kernel: Kernel, x: Tensor, z: Tensor | None = None, *, skip_below: float | None = None, plan: Any = None
) -> Any:
    """`kernel.operator(...)` with the chosen backend and small panels."""
    options = {"backend": CHOSEN[0]} if CHOSEN else {"plan": plan}
    if skip_below is None:
        return operator_with(kernel, x, z, **options)
    return skipping_with(kernel, x, z, skip_below, 16, **options)


def portable_block(operator: CovarianceOperator) -> Tensor:
    """The dense block in plain torch: any order of derivative."""
    return block_sum(operator.problem, F64)(*operator.problem.tensors)[0]


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def clusters(n: int, d: int, apart: float = 30.0, seed: int = 0) -> Tensor:
    """Rows around six far centres, shuffled."""
    x = numbers(n, d, seed=seed) + apart * numbers(6, d, seed=7).repeat_interleave(-(-n // 6), 0)[:n]
    return x[torch.randperm(n, generator=torch.Generator().manual_seed(seed))]


def points(case: Case, n: int, seed: int) -> Tensor:
    x = case.points(n, seed)
    return x if fgp.kernels.REGISTRY[case.name].inputs == "codes" else x * 8.0


def check(kernel: Kernel, x: Tensor, z: Tensor | None, t: int, skip_below: float, dtype: torch.dtype = F64) -> float:
    """Observed error within the bound, (M-73), plus rounding of the dtype; the share of pairs kept."""
    operator = operator_of(kernel, x.to(dtype), None if z is None else z.to(dtype), skip_below=skip_below)
    x, z = x.to(dtype).double(), None if z is None else z.to(dtype).double()
    right = numbers(operator.shape[-1], t, seed=5).to(dtype)
    made = operator.product(right)
    dense = operator_of(kernel, x, z).to_dense().detach()
    error = (made.value.detach().double() - dense @ right.double()).abs()
    # Of the sums; and of each covariance e^-r: an error of eps r in r moves it by eps r e^-r < 1e-3 eps where r > 10.
    rounding = (1e-13 if dtype == F64 else 2e-6) * (dense.abs() @ right.double().abs())
    rounding = rounding + 1e-3 * torch.finfo(dtype).eps * right.double().abs().sum(0)
    assert bool((error <= made.error_bound + rounding).all())
    assert made.report.error_bound == (float(made.error_bound.max()) if made.error_bound.numel() else 0.0)
    assert made.value.dtype == dtype
    if operator.kept == 1.0:
        plain = operator_of(kernel, x.to(dtype), None if z is None else z.to(dtype))
        assert torch.equal(made.value, plain @ right), "kept everything: the same bits"
        assert not made.error_bound.any()
    return operator.kept


@pytest.mark.parametrize("case", CASES)
def test_every_registered_function_keeps_its_bound(case: Case) -> None:
    registered(case)


@pytest.mark.parametrize("name", ["Matern", "Coregionalization", "SpectralMixture"])
def test_compiled_loops_keep_the_bound(name: str) -> None:
    if cpu_tiles_missing():
        pytest.skip("numba is not installed")
    CHOSEN.append(ROUTES["cpu"]())
    try:
        registered(Case(name, 0, 3))
    finally:
        CHOSEN.clear()


def registered(case: Case) -> None:
    for n, m in ((150, None), (90, 70)):
        for skip_below in (1e-9, 1e-2):
            check(case.kernel, points(case, n, 1), None if m is None else points(case, m, 2), 2, skip_below)


LAYOUTS: dict[str, Callable[[int], Tensor]] = {
    "isolated clusters": lambda d: clusters(200, d),
    "one dense cluster": lambda d: numbers(200, d) * 0.1,
    "duplicated rows": lambda d: clusters(20, d, 60.0).repeat(10, 1),
    "one place": lambda d: torch.ones(200, d, dtype=F64),
}
SKIPS = {"isolated clusters", "duplicated rows"}


@pytest.mark.parametrize(("d", "dtype"), [(1, F32), (2, F64), (8, F64)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str, d: int, dtype: torch.dtype, route: str) -> None:
    x, z = LAYOUTS[layout](d), clusters(70, d, seed=9)
    for t in (1, 16):
        kept = check(k.RBF(1.0), x, None, t, 1e-6, dtype)
        assert kept < 0.6 if layout in SKIPS else kept == 1.0
        check(2.0 * k.Matern(0.5, 1.0), x, z, t, 1e-3, dtype)


@pytest.mark.parametrize("n", [0, 1, 2])
def test_few_rows(n: int, route: str) -> None:
    x = 100.0 * torch.arange(n, dtype=F64)[:, None]
    for t in (0, 1, 3):
        check(k.RBF(1.0), x, None, t, 1e-6)
    for m in (0, 3):
        check(k.RBF(1.0), x, torch.zeros(m, 1, dtype=F64), 2, 1e-6)
        check(k.RBF(1.0), torch.zeros(m, 1, dtype=F64), x, 2, 1e-6)


def test_everything_far_is_zero(route: str) -> None:
    x, z = numbers(50, 2), numbers(40, 2) + 1e4
    operator = operator_of(k.RBF(1.0), x, z, skip_below=1e-9)
    assert operator.kept == 0.0
    made = operator.product(torch.ones(40, dtype=F64))
    assert not made.value.any()
    assert made.error_bound.shape == (50,)
    assert 0.0 <= float(made.error_bound.max()) < 40 * 1e-9


def test_zero_and_none_leave_nothing_out(route: str) -> None:
    x, right = clusters(200, 2), numbers(200, 3)
    plain = operator_of(k.Matern(1.5, 0.5), x)
    assert isinstance(operator_of(k.Matern(1.5, 0.5), x, skip_below=None), CovarianceOperator)
    assert torch.equal(operator_of(k.Matern(1.5, 0.5), x, skip_below=0.0) @ right, plain @ right)
    assert check(k.Matern(1.5, 0.5), x, None, 2, 0) == 1.0


def test_what_is_asked_for_by_entry_is_exact() -> None:
    x, z, kernel = clusters(120, 2), clusters(50, 2, seed=3), k.RBF(1.0)
    for operator, plain in (
        (operator_of(kernel, x, skip_below=1e-3), operator_of(kernel, x)),
        (operator_of(kernel, x, z, skip_below=1e-3), operator_of(kernel, x, z)),
    ):
        assert isinstance(operator, SkippingOperator)
        assert operator.kept < 0.7
        assert torch.equal(operator.to_dense(), plain.to_dense())
        assert torch.equal(operator[:7, 3:].to_dense(), plain[:7, 3:].to_dense())  # type: ignore[union-attr]
        assert torch.equal(operator[4], plain[4])  # type: ignore[arg-type]
        assert operator.symmetric == plain.symmetric
        assert operator.shape == plain.shape
    assert torch.equal(operator_of(kernel, x, skip_below=1e-3).diagonal(), operator_of(kernel, x).diagonal())


def test_transpose_noise_and_scipy(route: str) -> None:
    x, z, kernel = clusters(120, 2), clusters(50, 2, seed=3), k.Matern(2.5, 0.7) * k.Linear(1.0)
    operator = operator_of(kernel, x, z, skip_below=1e-8)
    assert operator.kept < 0.8
    u, v = numbers(120, 2), numbers(50, 2, seed=1)
    assert torch.allclose((u * (operator @ v)).sum(), ((operator.T @ u) * v).sum(), rtol=1e-10)
    dense = kernel(x, z).to_dense().detach()
    made = operator.T.product(u)
    assert bool(((made.value.detach() - dense.mT @ u).abs() <= made.error_bound + 1e-10).all())
    assert operator.T.kept == operator.kept
    square = operator_of(kernel, x, skip_below=1e-8)
    assert square.T is square
    noisy = square.with_noise(0.3).product(u)
    assert torch.allclose(noisy.value, square @ u + 0.3 * u)
    assert torch.equal(noisy.error_bound, square.product(u).error_bound)
    assert noisy.report.events == square.product(u).report.events
    assert torch.allclose(torch.from_numpy(square.to_scipy() @ u.numpy()), square @ u)
    exact = operator_of(kernel, x).with_noise(0.3).product(u)
    assert not exact.error_bound.any()
    assert exact.report.error_bound == 0.0


def test_the_report_says_what_was_done(route: str) -> None:
    x = clusters(200, 2)
    operator = operator_of(k.RBF(1.0), x, skip_below=1e-6)
    report = operator.product(numbers(200, 2)).report
    assert (report.route, report.backend, report.device, report.dtype) == (
        "near tiles",
        TITLES[route],
        "cpu",
        "float64",
    )
    assert report.events == [Event(EventKind.PAIRS_SKIPPED, share=100 * operator.kept, below=1e-6)]
    assert report.seconds is not None
    assert report.seconds > 0.0
    dense = operator_of(k.RBF(1.0), numbers(200, 2), skip_below=1e-6).product(numbers(200, 2)).report
    assert (dense.route, dense.error_bound) == ("recomputed", 0.0)
    assert dense.events == [Event(EventKind.PAIRS_NOT_SKIPPED, below=1e-6)]
    lost = k.Custom(lambda a, b: torch.minimum(a, b).sum()).operator(x.abs(), skip_below=1e-6).product(numbers(200, 2))
    assert lost.report.events == [Event(EventKind.PAIRS_NOT_SKIPPED, below=None)]


def test_the_threshold_is_a_share_of_the_largest_variance() -> None:
    """A variance of any size changes nothing; both sides' variances count."""
    x, z = clusters(150, 2, 4.0), clusters(60, 2, 4.0, seed=3)
    shares = [operator_of(v * k.RBF(1.0), x, z, skip_below=1e-6).kept for v in (1e-6, 1.0, 1e6)]
    assert shares[0] == shares[1] == shares[2] < 1.0
    norm = operator_of(3.0 * k.RBF(1.0), x, z, skip_below=1e-6).norm_bound
    assert 0.0 < float(norm) <= 3.0 * 1e-6 * math.sqrt(150 * 60)
    assert float(operator_of(k.RBF(1.0), x).with_noise(1.0).product(x).report.error_bound or 0.0) == 0.0
    assert operator_of(k.RBF(100.0), x, skip_below=1e-6).norm_bound.shape == ()


def masked(operator: SkippingOperator) -> Tensor:
    """1 where a product evaluates, rows and columns in their own order."""
    assert operator.far is not None
    places = operator.far.row_positions, torch.argsort(operator.far.column_order)
    return operator.far.near.mask()[places[0]][:, places[1]]


@pytest.mark.parametrize("rectangular", [False, True], ids=["symmetric", "rectangular"])
def test_gradients_are_those_of_the_value(rectangular: bool, route: str) -> None:
    """Of all parameters, inputs and the right-hand side, first and second order: those of (K times the mask) V."""
    x, z = clusters(60, 2, 5.0), clusters(40, 2, 5.0, seed=3)  # near enough for what is skipped to count
    kernel = 1.3 * k.Matern(2.5, 0.9) + k.RBF(2.0) * k.Linear(0.3)
    right, left = numbers(40 if rectangular else 60, 2), numbers(60, 2, seed=4)
    leaves = [x.requires_grad_(), right.requires_grad_(), *kernel.parameters()]
    leaves += [z.requires_grad_()] if rectangular else []
    operator = operator_of(kernel, x, z if rectangular else None, skip_below=1e-2)
    assert operator.kept < 0.8
    assert operator.product(right).report.error_bound > 1e-3
    plain = portable_block(operator_of(kernel, x, z if rectangular else None)) * masked(operator)
    one, two = (left * (operator @ right)).sum(), (left * (plain @ right)).sum()
    assert torch.allclose(one, two, rtol=1e-11)
    got = torch.autograd.grad(one, leaves, create_graph=True)
    wanted = torch.autograd.grad(two, leaves, create_graph=True)
    for a, b in zip(got, wanted, strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-10)
    again = [torch.autograd.grad(sum((g**2).sum() for g in side), leaves) for side in (got, wanted)]
    for a, b in zip(*again, strict=True):
        assert torch.allclose(a, b, rtol=1e-8, atol=1e-8)


def test_transforms_of_torch_func(route: str) -> None:
    x, right, kernel = clusters(60, 2), numbers(60, 3), k.Matern(2.5, 0.9)
    operator = operator_of(kernel, x, skip_below=1e-5)

    def value(at: Tensor) -> Tensor:
        return (operator_of(kernel, at, skip_below=1e-5) @ right).square().sum()

    def plain(at: Tensor) -> Tensor:
        return ((portable_block(operator_of(kernel, at)) * masked(operator)) @ right).square().sum()

    wanted = torch.func.grad(plain)(x)
    assert torch.allclose(torch.func.grad(value)(x), wanted, rtol=1e-8, atol=1e-10)
    step = numbers(60, 2, seed=8)
    assert torch.allclose(torch.func.jvp(value, (x,), (step,))[1], (wanted * step).sum(), rtol=1e-8)
    many = numbers(5, 60, 3)
    assert torch.allclose(torch.func.vmap(lambda v: operator @ v)(many), operator @ many, rtol=1e-12, atol=1e-12)
    with pytest.raises(DomainError, match="which vmap hides"):
        torch.func.vmap(value)(x.expand(2, 60, 2))


def test_batches(route: str) -> None:
    kernel = fgp.Parameter(torch.tensor([0.5, 2.0])) * k.RBF(fgp.Parameter(torch.tensor([[1.0], [0.4]])))
    x, right = torch.stack([clusters(90, 2), clusters(90, 2) + 0.1]), numbers(90, 2)
    operator = operator_of(kernel, x, skip_below=1e-6)
    assert operator.kept < 0.7
    assert operator.norm_bound.shape == (2,)
    made = operator.product(right)
    error = (made.value - kernel(x).to_dense() @ right).abs().detach()
    assert made.error_bound.shape == (2, 90, 2)
    assert bool((error <= made.error_bound + 1e-12).all())


@pytest.mark.parametrize("share", [-1e-9, math.inf, True, [1e-9]])
def test_a_share_that_is_none(share: Any) -> None:
    with pytest.raises(DomainError, match=r"`skip_below` must be a number in \[0, 1\)"):
        operator_of(k.RBF(1.0), numbers(5, 2), skip_below=share)


def test_a_plan_is_run_over_the_near_tiles() -> None:
    """A plan that is handed in is followed, not replaced by another one; one that keeps K contradicts the share."""
    x, v = clusters(100, 2), numbers(100, 1)
    kernel = k.Matern(1.5, 0.5)
    plan = operator_of(kernel, x, skip_below=1e-9).plan(1, route="recomputed", backend="torch")
    operator = operator_of(kernel, x, skip_below=1e-9, plan=plan)
    assert operator.kept < 1.0
    assert torch.allclose(operator @ v, operator_of(kernel, x, skip_below=1e-9) @ v, rtol=1e-12, atol=1e-12)
    assert operator.report.plan == plan
    with pytest.raises(DomainError, match="`plan` is for n, m"):
        operator @ numbers(100, 2)
    with pytest.raises(DomainError, match=r"`plan` must recompute tiles .* got the route 'stored'"):
        operator_of(kernel, x, skip_below=1e-9, plan=operator_of(kernel, x).plan(1, route="stored"))
