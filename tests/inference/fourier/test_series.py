"""Spectra on grids, Toeplitz products and the matrix of weight space (M-432), beside dense algebra."""

import math

import pytest
import torch

import flashgp as fgp
from flashgp.inference.fourier.domain_basis import LEAST, DomainBasis, prolate
from flashgp.inference.fourier.grid import C128, Grid, Toeplitz, fast_length
from flashgp.inference.fourier.real_basis import RealBasis
from flashgp.inference.fourier.spectrum import (
    GridSettings,
    NoGridError,
    coefficients,
    grid_of,
    obstacle,
    prior_variance,
)
from flashgp.inference.fourier.sums import FourierSums, WeightPosterior
from flashgp.inference.fourier.system import SolveSettings

F64 = torch.float64
k = fgp.kernels
KERNELS = {
    "matern": (1.3 * k.Matern(nu=1.5, lengthscale=0.2), 1),
    "ard": (2.0 * k.Matern(nu=2.5, lengthscale=torch.tensor([0.2, 0.4], dtype=F64)), 2),
    "rational quadratic": (k.RationalQuadratic(lengthscale=0.2, scale_mixture=2.0), 1),
    "locally periodic": (k.Periodic(period=0.3) * k.SquaredExponential(lengthscale=1.0) + 2.0, 1),
    "period and rest": (k.Periodic(period=0.3) + 0.5 * k.Matern(nu=1.5, lengthscale=0.1), 1),
    "columns apart": (
        k.Matern(lengthscale=0.3, active_dims=[0]) * k.Periodic(period=0.5, active_dims=[1])
        + k.SquaredExponential(lengthscale=0.2, active_dims=[1]),
        2,
    ),
    "cosine": (k.Cosine(frequency=2.0) * k.SquaredExponential(lengthscale=0.4), 1),
    "mixture": (
        k.SpectralMixture(weights=[1.0, 0.5], means=[[2.0, 3.0], [0.0, 1.0]], scales=[[0.5, 0.5], [0.2, 0.3]]), 2,
    ),
    "three": (k.Matern(nu=2.5, lengthscale=0.5), 3),
}  # fmt: skip

MOST = SolveSettings().dense


def _corners(d: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(d, dtype=F64), torch.ones(d, dtype=F64)


@pytest.mark.parametrize("name", KERNELS)
@torch.no_grad()
def test_a_series_is_the_covariance_up_to_what_it_leaves_out(name: str) -> None:
    """(M-431), at rows in the box: within the variances that are left out and that repeat, and never more variance."""
    kernel, d = KERNELS[name]
    settings, noise = GridSettings(), 0.05
    grid = grid_of(kernel, *_corners(d), noise, settings, MOST)
    found = coefficients(kernel, grid, d)
    x = torch.rand(40, d, generator=torch.Generator().manual_seed(1), dtype=F64)
    waves = grid.waves(x)
    series = torch.stack([grid.dot(waves * found, one.expand_as(waves)) for one in waves])
    variance = prior_variance(kernel, d)
    allowed = (d * settings.tail[d - 1] * noise + 2**d * settings.repeated[1] * variance) * 1.5
    assert float((series - kernel(x).to_dense()).abs().max()) <= allowed
    assert float(grid.total(found)) <= variance + 2**d * settings.repeated[1] * variance


@pytest.mark.parametrize(
    ("kernel", "d", "reason"),
    [
        (k.Linear(), 1, "Linear"),
        (k.Matern(lengthscale=torch.ones(4, dtype=F64)), 4, "4"),
        (k.Matern() + k.Polynomial(degree=2), 2, "Polynomial"),
        (k.Custom(lambda a, b: -(a - b).abs().sum(-1)), 1, "Custom"),
    ],
)
def test_what_has_no_series_is_told(kernel: fgp.kernels.Kernel, d: int, reason: str) -> None:
    refusal = obstacle(kernel, d)
    assert refusal is not None
    assert reason in refusal.text
    assert "full_scale" in refusal.text


def test_grids_that_would_be_endless_are_refused() -> None:
    with pytest.raises(NoGridError, match="frequencies up to"):
        grid_of(k.Matern(nu=0.5, lengthscale=1e-4), *_corners(1), 1e-6, GridSettings(), MOST)
    with pytest.raises(NoGridError, match="common multiple"):
        periods = k.Periodic(period=0.3) + k.Periodic(period=0.3 * math.sqrt(2.0))
        grid_of(periods, *_corners(1), 0.01, GridSettings(most_periods=8), MOST)


@pytest.mark.parametrize("orders", [(5,), (3, 4), (2, 3, 2)])
def test_products_and_real_matrices_are_those_of_dense_toeplitz(orders: tuple[int, ...]) -> None:
    d = len(orders)
    generator = torch.Generator().manual_seed(0)
    grid = Grid(tuple(range(d)), (0.5,) * d, (1.5, 1.7, 1.6)[:d], orders, (1.5, 1.7, 1.6)[:d])
    x, precision = torch.rand(30, d, generator=generator, dtype=F64), torch.rand(30, generator=generator, dtype=F64)
    toeplitz = Toeplitz(grid, grid.adjoint(x, precision.unsqueeze(0), times=2)[0])
    waves = grid.waves(x)
    v = grid.normal(3, generator)
    values = grid.forward(x, v)  # E v
    torch.testing.assert_close(values, torch.stack([grid.dot(waves, one.expand_as(waves)) for one in v]))
    torch.testing.assert_close(toeplitz(v), grid.adjoint(x, values * precision), rtol=1e-8, atol=1e-8)
    root = torch.rand(grid.shape, generator=generator, dtype=F64)
    mirrored = grid.half(grid.whole(root.to(C128)).real)  # even where j_d = 0
    root = 0.5 * (mirrored + grid.half(grid.whole(mirrored.to(C128)).real.flip([*range(d)])))
    for basis in (RealBasis(grid, orders), RealBasis(grid, tuple(1 for _ in orders))):
        part = basis.put(torch.zeros_like(v), basis.coordinates(v))
        torch.testing.assert_close(basis.coordinates(part), basis.coordinates(v))
        torch.testing.assert_close(grid.dot(part, part), basis.coordinates(v).square().sum(1))
        image = part + root * toeplitz(root * part)
        expected = basis.coordinates(v) @ basis.matrix(toeplitz, root)
        torch.testing.assert_close(basis.coordinates(image), expected, rtol=1e-8, atol=1e-8)


MIXED = k.SpectralMixture(weights=[0.7, 0.3], means=[[0.5, -0.8], [1.0, 0.6]], scales=[[0.2, 0.3], [0.3, 0.2]])


@pytest.mark.parametrize(
    ("kernel", "d"),
    [(k.Matern(nu=2.5, lengthscale=0.6), 1), (k.Matern(nu=2.5, lengthscale=0.8), 2), (MIXED, 2)],
    ids=["one", "two", "mixture"],
)
def test_few_coordinates_of_a_domain_tell_all(kernel: fgp.kernels.Kernel, d: int) -> None:
    """(M-446): the determinant, its derivatives, means and variances are those of a factor of all frequencies."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(300, d, generator=generator, dtype=F64)
    grid = grid_of(kernel, *_corners(d), 0.2, GridSettings(), MOST, search=True)
    with torch.no_grad():
        spectrum = coefficients(kernel, grid, d)
    sums = FourierSums.of(grid, [(x, x[:, :1].sin(), torch.full((1,), 0.2, dtype=F64))], 1)
    few, all_of = (sums.system(spectrum, SolveSettings()) for _ in range(2))
    all_of.__dict__["basis"] = RealBasis(grid, grid.orders)
    assert isinstance(few.basis, DomainBasis)
    assert few.basis.size < 0.7 * grid.size
    (logs, shares, _), (expected, expected_shares, _) = few.log_determinant(0), all_of.log_determinant(0)
    assert abs(logs - expected) < 1e-4
    torch.testing.assert_close(shares, expected_shares, rtol=0.0, atol=1e-5)
    one, other = (grid.forward(x, w.root * WeightPosterior.of(sums, w, 1e-9).solution.value) for w in (few, all_of))
    torch.testing.assert_close(one, other, rtol=0.0, atol=1e-6)
    inside = torch.rand(20, d, generator=generator, dtype=F64)
    phi = all_of.root * grid.waves(inside)
    solved = grid.dot(phi, all_of.solve(phi, 0.0).value)
    for system in (few, all_of):  # as a function, (M-448)
        torch.testing.assert_close(system.inverse_variance_at(inside), solved, rtol=1e-4, atol=1e-8)


def test_iterations_agree_with_a_factor() -> None:
    """Solves, the log determinant and its derivatives (M-433), by many probes; few frequencies are in the block."""
    x = torch.rand(300, 2, generator=torch.Generator().manual_seed(0), dtype=F64)
    kernel = k.Matern(nu=2.5, lengthscale=0.5)
    grid = grid_of(kernel, *_corners(2), 0.2, GridSettings(), MOST)
    with torch.no_grad():
        spectrum = coefficients(kernel, grid, 2)
    rows = [(x, x[:, :1].sin(), torch.full((1,), 0.2, dtype=F64))]
    sums = FourierSums.of(grid, rows, 1)
    dense = sums.system(spectrum, SolveSettings())
    quick = sums.system(spectrum, SolveSettings(dense=10, block=60, share=2, probes=256, most_probes=256))
    assert dense.dense
    assert not quick.dense
    one, other = (WeightPosterior.of(sums, system, 1e-9) for system in (dense, quick))
    functions = (grid.forward(x, system.root * w.solution.value) for w, system in ((one, dense), (other, quick)))
    torch.testing.assert_close(*functions, rtol=0.0, atol=LEAST**0.5)  # energies that the factor's basis lacks
    (logs, shares, _), (estimate, estimated, _) = dense.log_determinant(0), quick.log_determinant(0)
    assert abs(estimate - logs) < 0.08 * logs  # 4 standard errors
    assert float((grid.total(shares) - grid.total(estimated)).abs()) < 0.1 * float(grid.total(shares))


@pytest.mark.parametrize("least", [1, 2, 7, 97, 1563, 4001])
def test_lengths_have_small_factors(least: int) -> None:
    found = fast_length(least)
    assert found >= least
    assert found % 2 == 0
    for prime in (2, 3, 5):
        while found % prime == 0:
            found //= prime
    assert found == 1


@pytest.mark.parametrize(("m", "share"), [(2, 0.3), (5, 0.9), (40, 0.5), (200, 0.37), (300, 0.02)])
def test_prolate_sequences_are_those_of_scipy(m: int, share: float) -> None:
    """With their signs, which sums in files are in."""
    from scipy.signal.windows import dpss

    found, odd = prolate(m, share)
    known = torch.from_numpy(dpss(2 * m + 1, 0.5 * (2 * m + 1) * share, found.shape[1]).copy()).mT
    torch.testing.assert_close(found, known, rtol=0.0, atol=1e-12)
    assert odd.tolist() == [number % 2 for number in range(len(odd))]
