"""How many digits survive: float32 tiles, distances by one matrix product, and points far from the origin."""

import pytest
import torch
from torch import Tensor

from flashgp import kernels
from flashgp.pairwise.problem import PairProblem
from flashgp.pairwise.program.program import program_of
from flashgp.pairwise.torch.statistics import TileStatistics
from flashgp.pairwise.torch.tiles import TileSettings, TorchTiles
from kernels.plain_formulas import plain
from pairwise.pair_cases import EPS, ONE_CASE_EACH, TORCH, Case, gradients, pulled, relative_error

f64, f32 = torch.float64, torch.float32


@pytest.mark.parametrize("case", ONE_CASE_EACH)
def test_float32_is_no_worse_than_plain_torch(case: Case) -> None:
    """Error against float64 at most twice what the plain formula makes in float32, plus one rounding of the result."""
    kernel = case.kernel
    x, z = case.points(31, 1), case.points(17, 2)
    wanted = plain(kernel, x, z).detach()
    if case.name == "Warped":
        kernel32 = kernels.Warped(case.kernel.module.float(), case.kernel.kernel)  # type: ignore[arg-type, union-attr]
    else:
        kernel32 = kernel
    theirs = plain(kernel32, x.float(), z.float()).detach()
    assert theirs.dtype == f32
    ours = TORCH.block(
        PairProblem(
            kernel.form, [t.detach() for t in kernel.theta()], kernel.rows(x).detach(), kernel.rows(z).detach()
        ),
        dtype=f32,
    )
    assert ours.dtype == f32
    rounding = torch.finfo(f32).eps
    assert relative_error(ours, wanted) <= 2 * relative_error(theirs, wanted) + rounding


@pytest.mark.parametrize("case", ONE_CASE_EACH)
def test_float32_gradients(case: Case) -> None:
    """Sums of 31 x 17 float32 numbers: their rounding adds up to at most a few hundred eps of the largest gradient."""
    kernel, x, z = case.kernel, case.points(31, 1), case.points(17, 2)
    weights = torch.randn(31, 17, generator=torch.Generator().manual_seed(3), dtype=f64)
    wanted = pulled(TORCH, kernel, x, z, weights)
    for name, found in pulled(TORCH, kernel, x, z, weights.float()).items():
        assert relative_error(found, wanted[name]) <= 100 * torch.finfo(f32).eps, name


@pytest.mark.parametrize("dtype", [f64, f32])
@pytest.mark.parametrize("d", [1, 3, 20])
def test_the_matrix_product_keeps_its_bound(d: int, dtype: torch.dtype) -> None:
    """(M-22): distances by one matrix product are off by at most the bound, among close and repeated rows too."""
    generator = torch.Generator().manual_seed(d)
    u = torch.randn(40, d, generator=generator, dtype=f64) + 5.0
    v = torch.cat([u[:20], u[:20] + 1e-7 * torch.randn(20, d, generator=generator, dtype=f64)])
    kernel = kernels.SquaredExponential()
    slope = program_of(kernel.form).bounded_slope
    rows, columns = kernel.rows(u).detach(), kernel.rows(v).detach()
    direct = TileStatistics(kernel.form, rows, columns, f64, slope)
    made = TileStatistics(kernel.form, rows, columns, dtype, slope, direct_pairs=0)
    everything = slice(0, 40)
    (wanted,), _ = direct.tile(everything, everything)
    (found,), _ = made.tile(everything, everything)
    centre = u.mean(0)
    radius = max(float((u - centre).square().sum(-1).max()), float((v - centre).square().sum(-1).max()))
    bound = (3 * d + 4) * EPS * radius
    # Below the bound a distance counts as 0; above it the result is rounded once, to the dtype.
    assert ((found.double() - wanted).abs() <= 2 * bound + torch.finfo(dtype).eps * wanted).all()
    assert not torch.equal(found.double(), wanted), "the matrix product was not used"
    assert torch.equal(found[:20, :20].diagonal(), torch.zeros(20, dtype=dtype))


@pytest.mark.parametrize(("rows", "columns", "product"), [(128, 16, False), (128, 17, True), (57, 79, False)])
def test_few_pairs_of_many_columns_are_taken_by_it(rows: int, columns: int, product: bool) -> None:
    """Blocks of full scale, such as 128 rows of 79 columns, where differences take four times as long."""
    x = 0.1 * torch.randn(3, rows, columns, generator=torch.Generator().manual_seed(0), dtype=f64)
    kernel = kernels.SquaredExponential()
    at, everything = kernel.rows(x).detach(), slice(0, rows)
    (found,), _ = TileStatistics(kernel.form, at, at, f64, program_of(kernel.form).bounded_slope).tile(
        everything, everything
    )
    direct = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist").square()
    assert torch.equal(found, direct) != product
    torch.testing.assert_close(found, direct, rtol=0.0, atol=1e-12)


def test_points_too_far_apart_for_it_are_taken_directly() -> None:
    """(M-22): where the bound exceeds what the dtype affords, or the slope is not bounded: differences, bit for bit."""
    x = torch.randn(30, 3, generator=torch.Generator().manual_seed(0), dtype=f64)
    far_apart, kinked = kernels.SquaredExponential(1e-4), kernels.Matern(0.5)
    x[1] = x[0] + 1e-9  # with a kink at zero distance, an error of 1e-15 in q is one of 3e-8 in the value
    for kernel in (far_apart, kinked):
        rows = kernel.rows(x).detach()
        found = TorchTiles(settings=TileSettings(direct_pairs=0)).block(PairProblem(kernel.form, [], rows), dtype=f64)
        assert torch.equal(found, TORCH.block(PairProblem(kernel.form, [], rows), dtype=f64))


@pytest.mark.parametrize("offset", [1e3, 1e6, 1e9])
@pytest.mark.parametrize("dtype", [f64, f32])
@pytest.mark.parametrize("symmetric", [True, False])
def test_an_offset_costs_no_digits(offset: float, dtype: torch.dtype, symmetric: bool) -> None:
    """Gradients by x far from the origin, eq. (M-24): timestamps are as good as their differences."""
    x = torch.randn(30, 2, generator=torch.Generator().manual_seed(0), dtype=f64)
    x = (x * 2**20).round() / 2**20  # so that adding the offset rounds nothing
    kernel = kernels.SquaredExponential([1.0, 0.5])

    def by_rows(x: Tensor) -> list[Tensor]:
        rows, weights = kernel.rows(x).detach(), torch.ones(30, 30, dtype=dtype)
        found = TORCH.block_gradient(PairProblem(kernel.form, [], rows, None if symmetric else rows), weights)
        return [g for g in gradients(found) if g is not None]

    for near, far in zip(by_rows(x), by_rows(x + offset), strict=True):
        assert relative_error(far, near.double()) <= 100 * torch.finfo(dtype).eps
