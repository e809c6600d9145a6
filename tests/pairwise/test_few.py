"""Blocks and diagonals of few pairs in NumPy calls are those of the float64 loops."""

import pytest
import torch

from flashgp import kernels
from flashgp.foundations.determinism import deterministically
from flashgp.pairwise.few import FewRows, RowArrays
from pairwise.pair_cases import CASES, EPS, REFERENCE, Case, job, relative_error

F64 = torch.float64


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (1, 9), (5, 8)], ids=str)
def test_block_and_diagonal_are_those_of_the_loops(case: Case, shape: tuple[int, int]) -> None:
    """(M-1), among rows that repeat."""
    given = job(case, *shape)
    few = FewRows.of(given.form, given.theta)
    if not given.form.fusable:
        assert few is None
        return
    assert few is not None
    assert given.cols is not None
    rows, cols = RowArrays.of(given.rows.detach()), RowArrays.of(given.cols.detach())
    block = torch.from_numpy(few.block(rows, cols))
    wanted = REFERENCE.block(given.form, given.theta, given.rows, given.cols, dtype=F64)
    assert block.shape == wanted.shape
    assert relative_error(block, wanted.detach()) <= 50 * EPS
    diagonal = torch.from_numpy(few.diagonal(rows))
    assert diagonal.shape == (shape[0],)
    expected = REFERENCE.diagonal(given.form, given.theta, given.rows, dtype=F64).detach()
    assert relative_error(diagonal, expected) <= 50 * EPS


def test_an_offset_costs_no_digits_and_equal_rows_are_at_distance_zero() -> None:
    x = torch.rand(1, 3, generator=torch.Generator().manual_seed(0), dtype=F64)
    kernel = kernels.Matern(nu=0.5)
    few = FewRows.of(kernel.form, kernel.theta())
    assert few is not None
    near, far = (RowArrays.of(kernel.rows(x + s).detach()) for s in (0.0, 2.0**20))
    moved = RowArrays.of(kernel.rows(x + 0.5 + 2.0**20).detach())
    assert few.block(far, far)[0, 0] == 1.0
    here = RowArrays.of(kernel.rows(x + 0.5).detach())
    # The offset itself takes 20 of 53 bits of each coordinate; the distance of the rest is exact.
    assert few.block(far, moved)[0, 0] == pytest.approx(few.block(near, here)[0, 0], rel=2.0**20 * 4 * EPS)


def test_it_leaves_to_torch_what_it_cannot_do() -> None:
    kernel = kernels.RBF(torch.tensor([[0.5], [0.7]], dtype=F64)) * torch.tensor([1.0, 2.0], dtype=F64)
    assert FewRows.of(kernel.form, kernel.theta()) is None  # a batch
    plain = 2.0 * kernels.RBF(0.5)
    assert FewRows.of(plain.form, plain.theta()) is not None
    with deterministically():
        assert FewRows.of(plain.form, plain.theta()) is None
