"""A factor in panels against torch's own Cholesky factor of the same matrix, eqs. (M-111) and (M-112)."""

import pickle
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from flashgp.foundations.errors import NotPositiveDefiniteError
from flashgp.solvers.direct import strided
from flashgp.solvers.direct.cholesky import factorise
from flashgp.solvers.direct.rotations import Rotations, rotations
from flashgp.solvers.direct.strided import solve_triangle_, update_triangle
from flashgp.solvers.growing.panels import PanelFactor

F64 = torch.float64
WAYS = ["rotations", "reflections", "portable"]


def _none() -> Any:
    raise ImportError("numba")


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Compiled rotations, LAPACK's reflections, or torch alone."""
    if request.param == "rotations" and not rotations.wait():
        pytest.skip("needs numba")
    compiled = rotations if request.param == "rotations" else Rotations(_none)
    with strided.using_routines(compiled, lapack=request.param != "portable"):
        yield str(request.param)


def matrix(n: int, seed: int = 0) -> Tensor:
    """A covariance matrix with noise, condition number about 10 n."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 3, generator=generator, dtype=F64)
    return torch.exp(-torch.cdist(x, x)) + 0.1 * torch.eye(n, dtype=F64)


def factor_of(K: Tensor) -> PanelFactor:
    return PanelFactor.of(factorise(K.clone))


def distance(factor: PanelFactor, K: Tensor) -> float:
    """From torch's factor, in units of n eps times its largest entry."""
    lower = torch.linalg.cholesky(K)
    size = len(K) * torch.finfo(F64).eps * float(lower.abs().max())
    return float((factor.lower - lower).abs().max()) / size


@pytest.mark.parametrize("n", [1, 2, 63, 65, 200])
@pytest.mark.parametrize("k", [1, 2, 7, 70])
def test_bordered(n: int, k: int, way: str) -> None:
    # M-111: to eps times the condition number of a Schur complement, about 10 n here.
    K = matrix(n + k)
    factor, half, corner = factor_of(K[:n, :n]).bordered(K[n:, :n], K[n:, n:])
    assert distance(factor, K) < 100
    assert torch.equal(factor.lower[n:, :n], half)
    assert torch.equal(factor.lower[n:, n:], corner)


@pytest.mark.parametrize(
    "gone",
    [
        [0],
        [299],
        [150],
        [149, 150, 151],
        [0, 1, 2, 298, 299],
        list(range(0, 300, 7)),
        list(range(20)),
        list(range(299)),
    ],
    ids=lambda gone: f"{len(gone)}from{gone[0]}",
)
def test_part(gone: list[int], way: str) -> None:
    # M-112, of a factor of one panel and of one of several.
    K = matrix(300)
    kept = torch.tensor([i for i in range(300) if i not in gone])
    whole = factor_of(K)
    grown, _, _ = factor_of(K[:130, :130]).bordered(K[130:200, :130], K[130:200, 130:200])
    grown, _, _ = grown.bordered(K[200:, :200], K[200:, 200:])
    assert grown.panels == 3
    residual = torch.randn(300, 2, dtype=F64, generator=torch.Generator().manual_seed(0))
    for factor in (whole, grown):
        before = factor.lower
        part, whitened = factor.part(kept, whitened=factor.half_solve(residual))
        assert distance(part, K[kept][:, kept]) < 100
        last = max(gone) - min(gone) == len(gone) - 1 and max(gone) == 299
        assert (whitened is not None) == (last or (way == "rotations" and len(gone) <= 5))
        if whitened is not None:
            assert torch.allclose(whitened, part.half_solve(residual[kept]), rtol=1e-11, atol=1e-12)
        assert bool((part.lower.diagonal() > 0).all())
        assert torch.equal(factor.lower, before)


def test_diagonal_that_grows(way: str) -> None:
    K = matrix(120)
    added = torch.zeros(118, dtype=F64)
    added[[3, 60, 117]] = torch.tensor([0.5, 1e-9, 30.0], dtype=F64)
    kept = torch.tensor([i for i in range(120) if i not in (5, 61)])
    part, _ = factor_of(K).part(kept, added)
    assert distance(part, K[kept][:, kept] + added.diag()) < 100
    only, _ = factor_of(K).part(torch.arange(120), torch.nn.functional.pad(added, (0, 2)))
    assert distance(only, K + torch.nn.functional.pad(added, (0, 2)).diag()) < 100


def test_long_sequences_stay_accurate(way: str) -> None:
    K = matrix(500)
    factor, rows, following = factor_of(K[:60, :60]), torch.arange(60), 60
    generator = torch.Generator().manual_seed(3)
    for _ in range(200):
        if following < 490 and torch.rand((), generator=generator) < 0.6:
            k = int(torch.randint(1, 4, (), generator=generator))
            new = torch.arange(following, following + k)
            factor, _, _ = factor.bordered(K[new][:, rows], K[new][:, new])
            rows, following = torch.cat([rows, new]), following + k
        else:
            k = int(torch.randint(1, 5, (), generator=generator))
            kept = torch.randperm(len(rows), generator=generator)[k:].sort().values
            factor, rows = factor.part(kept)[0], rows[kept]
    assert distance(factor, K[rows][:, rows]) < 1000
    assert factor.panels <= 5


@pytest.mark.parametrize("t", [1, 2, 9])
def test_solves(t: int, way: str) -> None:
    K = matrix(230)
    factor, _, _ = factor_of(K[:100, :100]).bordered(K[100:, :100], K[100:, 100:])
    lower = torch.linalg.cholesky(K)
    rhs = torch.randn(2, 230, t, dtype=F64, generator=torch.Generator().manual_seed(0))
    for found, wanted in (
        (factor.half_solve(rhs), torch.linalg.solve_triangular(lower, rhs, upper=False)),
        (factor.back_solve(rhs), torch.linalg.solve_triangular(lower.mT, rhs, upper=True)),
        (factor.solve(rhs), torch.linalg.solve(K, rhs)),
    ):
        assert found.shape == wanted.shape
        assert float((found - wanted).abs().max()) < 1e-11 * float(wanted.abs().max())
    assert float(factor.log_determinant) == pytest.approx(float(torch.logdet(K)), rel=1e-12)


def test_solves_have_derivatives_of_every_kind() -> None:
    K = matrix(12)
    factor, _, _ = factor_of(K[:7, :7]).bordered(K[7:, :7], K[7:, 7:])
    rhs = torch.randn(12, 2, dtype=F64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    torch.autograd.gradcheck(factor.half_solve, rhs, check_forward_ad=True)
    torch.autograd.gradgradcheck(factor.back_solve, rhs)
    mapped = torch.func.vmap(factor.half_solve)(torch.stack([rhs, 2 * rhs], 2).movedim(2, 0))
    assert torch.allclose(mapped[1], 2 * factor.half_solve(rhs))


def test_nothing_of_the_size_of_the_factor_is_copied() -> None:
    n = 700
    K = matrix(n + 20)
    factor, _ = factor_of(K[:n, :n]).part(torch.arange(1, n))
    factor, _, _ = factor.bordered(K[n : n + 1, 1:n], K[n : n + 1, n : n + 1])
    right = torch.randn(n, 2, dtype=F64)
    for work in (
        lambda: factor.solve(right[:, :1]),
        lambda: factor.solve(right),
        lambda: factor.bordered(K[n + 1 : n + 2, 1 : n + 1], K[n + 1 : n + 2, n + 1 : n + 2]),
    ):
        with torch.profiler.profile(profile_memory=True) as profile:
            work()
        largest = max(abs(event.self_cpu_memory_usage) for event in profile.key_averages())
        assert largest < 200 * n  # bytes: some vectors; a copy would be 8 n^2


def test_growth_writes_in_place_and_forks_copy() -> None:
    K = matrix(80)
    base, _, _ = factor_of(K[:50, :50]).bordered(K[50:51, :50], K[50:51, 50:51])
    first, _, _ = base.bordered(K[51:52, :51], K[51:52, 51:52])
    other = torch.tensor([*range(51), 60])
    second, _, _ = base.bordered(K[60:61, :51], K[60:61, 60:61])
    assert first._panels[-1].memory is base._panels[-1].memory
    assert second._panels[-1].memory is not base._panels[-1].memory
    assert second.panels == first.panels == 2
    assert distance(first, K[:52, :52]) < 100
    assert distance(second, K[other][:, other]) < 100
    assert distance(base, K[:51, :51]) < 100


@pytest.mark.parametrize("left", [1, 10, 11, 74, 75, 139])
def test_last_rows_of_several_panels_go(left: int) -> None:
    # M-112: nothing is computed, whether a panel loses some rows or all.
    K = matrix(140)
    factor = factor_of(K[:10, :10])
    for start, stop in ((10, 74), (74, 138), (138, 140)):
        factor, _, _ = factor.bordered(K[start:stop, :start], K[start:stop, start:stop])
    assert factor.panels == 4
    found, _ = factor.part(torch.arange(left))
    assert found.count == left
    assert torch.equal(found.lower, factor.lower[:left, :left])
    rhs = torch.ones(left, 1, dtype=F64)
    assert torch.allclose(K[:left, :left] @ found.solve(rhs), rhs, rtol=0.0, atol=1e-10)


def test_a_window_takes_two_buffers_in_turns() -> None:
    K = matrix(140)
    factor, places = factor_of(K[:60, :60]), set()
    for i in range(60, 140):
        factor, _ = factor.part(torch.arange(1, 60), spare=1)
        factor, _, _ = factor.bordered(K[i : i + 1, i - 59 : i], K[i : i + 1, i : i + 1])
        places.add(factor._panels[0].rows.data_ptr())
        assert factor.panels == 1
    assert len(places) == 2
    several = [factor.part(torch.arange(i, 60))[0] for i in range(1, 5)]
    del several
    assert len(factor.pool._spare) == 1
    assert distance(factor, K[80:, 80:]) < 200


def test_rows_that_repeat_without_noise_are_refused() -> None:
    K = matrix(30) - 0.1 * torch.eye(30, dtype=F64)
    factor = factor_of(K)
    with pytest.raises(
        NotPositiveDefiniteError, match=r"new row 1 is .* repeats one of them, with next to no noise"
    ) as caught:
        other = matrix(31)[30:, :30]
        factor.bordered(
            torch.cat([other, K[4:5]]),
            torch.stack([torch.stack([torch.ones((), dtype=F64), other[0, 4]]), torch.stack([other[0, 4], K[4, 4]])]),
        )
    assert caught.value.indices == ((1,),)
    for row in range(30):  # what is left of some of them is positive, and rounding all the same
        with pytest.raises(NotPositiveDefiniteError):
            factor.bordered(K[row : row + 1], K[row : row + 1, row : row + 1])
    assert factor.count == 30


def test_copies_and_pickles() -> None:
    K = matrix(40)
    factor, _, _ = factor_of(K[:30, :30]).bordered(K[30:, :30], K[30:, 30:])
    again = pickle.loads(pickle.dumps(factor))
    assert torch.equal(again.lower, factor.lower)
    assert again.panels == 1


def test_update_in_place_and_out_of_place_agree(way: str) -> None:
    K = matrix(100)
    lower = torch.linalg.cholesky(K)
    columns = torch.randn(100, 3, dtype=F64, generator=torch.Generator().manual_seed(0))
    wanted = torch.linalg.cholesky(K + columns @ columns.mT)
    out = torch.full((100, 110), torch.nan, dtype=F64)[:, :100]
    update_triangle(lower, out, columns.clone())
    same = lower.clone()
    update_triangle(same, same, columns.clone())
    assert torch.allclose(out.tril(), wanted, rtol=1e-12, atol=1e-12)
    assert torch.allclose(same.tril(), wanted, rtol=1e-12, atol=1e-12)


def test_tiny_and_huge_numbers(way: str) -> None:
    # A square would underflow or overflow.
    for scale in (1e-170, 1e170):
        lower = scale * torch.linalg.cholesky(matrix(20))
        columns = scale * torch.ones(20, 1, dtype=F64)
        wanted = torch.linalg.cholesky(matrix(20) + torch.ones(20, 20, dtype=F64)) * scale
        out = torch.zeros_like(lower)
        update_triangle(lower, out, columns)
        assert torch.allclose(out.tril() / scale, wanted / scale, rtol=1e-12, atol=1e-12)


def test_a_view_by_columns_is_solved_as_it_is() -> None:
    lower = torch.linalg.cholesky(matrix(30))
    rhs = torch.randn(4, 30, dtype=F64, generator=torch.Generator().manual_seed(0))
    for triangle in (lower, lower.mT.contiguous().mT, torch.nn.functional.pad(lower, (0, 5))[:, :30]):
        for part in (rhs, rhs[:1]):
            found = part.clone()
            solve_triangle_(triangle, found, transposed=False)
            assert torch.allclose(found.mT, torch.linalg.solve_triangular(lower, part.mT, upper=False))


def test_rotations_are_made_beside_the_work_once_it_is_worth_it() -> None:
    ready = threading.Event()

    def load() -> Any:
        ready.set()
        return lambda *_: None

    made = Rotations(load)
    assert made.update(1000) is None
    assert not ready.is_set()
    for _ in range(60):
        made.update(1000)
    assert ready.wait(10.0)
    assert made.wait()
    assert made.update(1000) is not None


def test_without_a_compiler_reflections_go_on(caplog: pytest.LogCaptureFixture) -> None:
    made = Rotations(_none)
    assert not made.wait()
    assert all(made.update(10_000) is None for _ in range(10))
    assert not caplog.text


def test_a_compiler_that_fails_is_told_and_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    def load() -> Any:
        raise RuntimeError("no compiler today")

    made = Rotations(load)
    assert not made.wait()
    assert "could not be compiled (no compiler today)" in caplog.text


def test_some_rows_are_those_of_the_factor() -> None:
    """Also where they lie in several panels, and whatever stands right of the diagonal."""
    K = matrix(230)
    factor = factor_of(K[:70, :70])
    for start in range(70, 230, 40):
        stop = start + 40
        factor, _, _ = factor.bordered(K[start:stop, :start], K[start:stop, start:stop])
    assert factor.panels > 1
    for panel in factor._panels:
        panel.triangle.masked_fill_(torch.ones_like(panel.triangle).triu(1).bool(), float("nan"))
    lower = factor.lower
    for start, stop in ((0, 5), (60, 80), (0, 230), (225, 230), (100, 100)):
        assert torch.equal(factor.some_rows(start, stop), lower[start:stop, :stop])


@pytest.mark.parametrize("way", ["reflections", "portable"], indirect=True)
def test_float32(way: str) -> None:
    """Every step of eqs. (M-111) and (M-112), to the precision of float32."""
    K = matrix(160).float()
    factor = PanelFactor.of(factorise(lambda: K[:120, :120].clone()))
    kept = torch.tensor([i for i in range(120) if i not in (0, 17, 60, 61, 119)])
    factor, _ = factor.part(kept)
    smallest = torch.full((40,), 0.02)
    factor, _, _ = factor.bordered(K[120:, kept], K[120:, 120:], smallest=smallest)
    rows = torch.cat([kept, torch.arange(120, 160)])
    lower = torch.linalg.cholesky(K[rows][:, rows].double())
    size = len(rows) * torch.finfo(torch.float32).eps * float(lower.abs().max())
    assert factor.dtype == torch.float32
    assert float((factor.lower - lower).abs().max()) < 10 * size
    for t in (1, 3):
        rhs = torch.randn(len(rows), t, generator=torch.Generator().manual_seed(0))
        half = torch.linalg.solve_triangular(lower, rhs.double(), upper=False)
        back = torch.linalg.solve_triangular(lower.mT, rhs.double(), upper=True)
        assert float((factor.half_solve(rhs) - half).abs().max()) < 10 * size
        assert float((factor.back_solve(rhs) - back).abs().max()) < 10 * size
    with pytest.raises(NotPositiveDefiniteError, match="repeats one of them"):
        factor.bordered(K[120:121, rows], K[120:121, 120:121], smallest=smallest[:1] + 10.0)


def test_columns_of_zeros_change_nothing(way: str) -> None:
    # Reflections leave a column alone whose entries of V are zero: its sign must still be right.
    K = torch.block_diag(matrix(40), matrix(30, seed=1))
    kept = torch.arange(1, 70)
    part, _ = factor_of(K).part(kept)
    assert distance(part, K[kept][:, kept]) < 100
