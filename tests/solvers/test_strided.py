"""Products on parts of matrices, by SciPy's BLAS and by torch alone, against torch's own."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from flashgp.solvers.direct import strided
from flashgp.solvers.direct.rotations import rotations
from flashgp.solvers.direct.strided import add_gram_, add_product_, factorise_, solve_triangle_

F64 = torch.float64


@pytest.fixture(params=["blas", "portable"])
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    with strided.using_routines(rotations, lapack=request.param == "blas"):
        yield str(request.param)


def drawn(n: int, k: int, layout: str, dtype: torch.dtype = F64, seed: int = 0) -> Tensor:
    """By rows, by columns, or as part of a larger matrix."""
    whole = torch.randn(n + 3, k + 2, generator=torch.Generator().manual_seed(seed), dtype=F64).to(dtype)
    part = whole[1 : n + 1, 2:]
    return {"rows": part.contiguous(), "columns": part.mT.contiguous().mT, "part": part}[layout]


LAYOUTS = ("rows", "columns", "part")


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("layout", [(a, b, c) for a in LAYOUTS for b in LAYOUTS for c in LAYOUTS], ids="-".join)
@pytest.mark.parametrize("shape", [(5, 7, 4), (1, 3, 6), (4, 1, 1), (0, 3, 2), (3, 0, 2)])
def test_a_product_is_torchs(layout: tuple[str, str, str], shape: tuple[int, int, int]) -> None:
    n, k, p = shape
    total, one, two = (drawn(*size, where, seed=s) for s, (size, where) in enumerate(
        zip(((n, p), (n, k), (k, p)), layout, strict=True)))  # fmt: skip
    wanted = torch.addmm(total, one, two, alpha=-1.5, beta=0.5)
    add_product_(total, one, two, alpha=-1.5, beta=0.5)
    assert torch.allclose(total, wanted, rtol=1e-13, atol=1e-13)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_what_a_total_held_is_not_read(dtype: torch.dtype) -> None:
    one, two = drawn(6, 5, "rows", dtype), drawn(5, 4, "part", dtype)
    total = torch.full((6, 4), torch.nan, dtype=dtype)
    add_product_(total, one, two, beta=0.0)
    assert torch.allclose(total, one @ two, rtol=8 * torch.finfo(dtype).eps, atol=8 * torch.finfo(dtype).eps)


def test_where_entries_lie_side_by_side() -> None:
    """Fewer columns than rows, the transposed part of a matrix, is no reason to copy."""
    whole = torch.empty(1000, 512, dtype=F64)
    assert strided._place(whole[:, :256]) == (True, 512)
    assert strided._place(whole[:, :256].mT) == (False, 512)
    assert strided._place(whole[:100, :256].mT) == (False, 512)
    assert strided._place(whole[:, ::2]) is None
    leading = strided._place(torch.empty(2, 40, dtype=F64).as_strided((10, 1), (1, 2)))
    assert leading == (False, 10), "of one column"


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_gram_matrix_is_torchs_below_the_diagonal(layout: str) -> None:
    a, whole = drawn(40, 9, layout), drawn(12, 12, "rows", seed=1)
    total = whole[2:11, 1:10]
    wanted = total + a.mT @ a
    around = whole.clone()
    add_gram_(total, a)
    assert torch.allclose(total.tril(), wanted.tril(), rtol=1e-13, atol=1e-13)
    around[2:11, 1:10] = total
    assert torch.equal(around, whole)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("by_rows", [False, True])
@pytest.mark.parametrize("total_by_rows", [False, True])
def test_gram_matrices_of_a_batch(*, by_rows: bool, total_by_rows: bool) -> None:
    a = torch.stack([drawn(40, 9, "rows", seed=seed) for seed in range(3)])
    total = torch.stack([drawn(9, 9, "rows", seed=seed) for seed in range(3)])
    wanted = total - 0.5 * a.mT @ a
    a = a if by_rows else a.mT.contiguous().mT
    total = total if total_by_rows else total.mT.contiguous().mT
    add_gram_(total, a, alpha=-0.5)
    assert torch.allclose(total.tril(), wanted.tril(), rtol=1e-13, atol=1e-13)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("by_rows", [False, True])
def test_factors_of_a_batch_and_those_that_have_none(*, by_rows: bool) -> None:
    a = torch.stack([drawn(40, 9, "rows", seed=seed) for seed in range(4)])
    matrices = a.mT @ a
    matrices[2, 4, 4] = -1.0
    wanted, info = torch.linalg.cholesky_ex(matrices)
    matrices = matrices.tril() if by_rows else matrices.triu().mT
    failed = factorise_(matrices)
    assert failed.tolist() == (info > 0).tolist() == [False, False, True, False]
    assert torch.allclose(matrices.tril()[~failed], wanted[~failed], rtol=1e-13, atol=1e-13)
    assert not factorise_(matrices[:0]).numel()


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("layout", ["rows", "part"])
def test_rows_are_solved_in_place(layout: str, *, transposed: bool) -> None:
    lower = torch.linalg.cholesky(drawn(8, 8, "rows") @ drawn(8, 8, "rows").mT + torch.eye(8, dtype=F64))
    rhs = drawn(11, 8, layout, seed=2)
    wanted = rhs @ torch.linalg.inv(lower if transposed else lower.mT)
    solve_triangle_(lower, rhs, transposed=transposed)
    assert torch.allclose(rhs, wanted, rtol=1e-11, atol=1e-11)
