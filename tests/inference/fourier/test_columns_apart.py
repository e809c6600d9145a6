"""Sums of terms in different columns, each with a grid of its own, eq. (M-425), beside exact inference."""

import pytest
import torch

import flashgp as fgp
from flashgp.foundations.events import EventKind, NoSeries, of_kind
from flashgp.inference.fourier.domain_basis import Domain
from flashgp.inference.fourier.grids import BLOCK_NUMBERS, Grids, coordinates_of
from flashgp.inference.fourier.spectrum import GridSettings, coefficients, grid_of, left_out, prior_variance
from flashgp.inference.fourier.sums import FourierSums
from flashgp.kernels.base import terms
from inference.fourier.additive import NOISE, D, apart, model, table

F64 = torch.float64
k = fgp.kernels


def _grid() -> Grids:
    grid = grid_of(apart(), torch.zeros(D, dtype=F64), torch.ones(D, dtype=F64), 0.5, GridSettings(), 2500)
    assert isinstance(grid, Grids)
    return grid


def test_sums_over_rows_and_products_are_those_of_all_waves() -> None:
    """(M-426): functions at rows, T as a function of vectors, and a residual of ones."""
    x, grid = table(50)[0], _grid()
    assert [part.columns for part in grid.parts] == [(0,), (1,), (2, 3), (4,)]
    generator = torch.Generator().manual_seed(0)
    residual, variance = (
        torch.randn(50, 1, generator=generator, dtype=F64),
        torch.rand(50, generator=generator).double(),
    )
    sums = FourierSums.of(grid, [(x[:20], residual[:20], variance[:20]), (x[20:], residual[20:], variance[20:])], 1)
    waves = grid.waves(x)
    torch.testing.assert_close(grid.domains.at(x), grid.domains.analysis(waves))
    v = grid.normal(3, generator)
    values = torch.stack([grid.dot(waves, one.expand_as(waves)) for one in v])
    torch.testing.assert_close(grid.forward(x, v), values)
    root = coefficients(apart(), grid, D).detach().sqrt()
    image, product = root * ((values / variance).to(waves.dtype) @ waves), root * grid.gram(sums.entries)(v)
    assert float((product - image).norm() / image.norm()) < 1e-5  # by the energy that prolate sequences leave out
    ones = root * (waves / variance.unsqueeze(1)).sum(0)
    assert float((root * sums.ones - ones).norm() / ones.norm()) < 1e-5
    torch.testing.assert_close(sums.projected[0], (waves * (residual / variance.unsqueeze(1))).sum(0))


def test_many_rows_take_transforms_of_two_grids_where_few_take_products_of_functions() -> None:
    """(M-427): to the same sums, of more rows than products are made of at once."""
    grid, precision = _grid(), torch.rand(1, 12_000, generator=torch.Generator().manual_seed(0), dtype=F64)
    many, few = (set(map(type, grid.domains.pairs(n).values())) for n in (12_000, 2000))
    assert (many, few) == ({Domain, type(None)}, {type(None)})
    x = table(12_000)[0]
    assert len(x) * grid.domains.size > BLOCK_NUMBERS
    found = grid.sums(x, precision)[0]
    parts = torch.stack([grid.sums(*part)[0] for part in zip(x.split(2000), precision.split(2000, 1), strict=True)])
    assert float((found - parts.sum(0)).norm() / found.norm()) < 1e-10


def test_answers_are_those_of_exact_inference() -> None:
    """Up to the tail of each grid: predictions, the evidence, rows left out."""
    x, y = table(400)
    x_test = table(40, 1)[0]
    post, exact = model().condition(x, y, approximation="fourier"), model().condition(x, y)
    (event,) = of_kind(post.report.events, EventKind.FOURIER_TAIL)
    tail = event.fields["tail"]
    assert tail <= 1e-3 * NOISE
    grid, spectrum = post.state.grid, post.state.weights.system.spectrum
    each = zip(terms(apart()), grid.parts, grid.split(spectrum), strict=True)
    tails = [float(left_out(term, part, own, D).detach()) for term, part, own in each]
    assert tail == pytest.approx(sum(tails), rel=1e-6)
    assert min(tails) > 0.0
    found, known = post.predict(x_test), exact.predict(x_test)
    assert float((found.mean - known.mean).abs().max()) < tail**0.5
    assert float((found.variance - known.variance).abs().max()) < 2.0 * tail
    assert float((found.covariance() - known.covariance()).abs().max()) < 2.0 * tail
    off = tail + GridSettings().repeated[0] * prior_variance(apart(), D)
    assert abs(float(post.log_marginal_likelihood() - exact.log_marginal_likelihood())) < 400 * 0.5 * off / NOISE
    left, other = post.leave_one_out(), exact.leave_one_out()
    torch.testing.assert_close(left.log_prob, other.log_prob, rtol=0.0, atol=2e-4)


def test_one_grid_or_several_by_what_takes_fewer_coordinates() -> None:
    def parts(kernel: k.Kernel, d: int) -> list[tuple[int, ...]]:
        grid = grid_of(kernel, torch.zeros(d, dtype=F64), torch.ones(d, dtype=F64), 0.1, GridSettings(), 2500)
        assert coordinates_of(grid, 2500)
        spectrum, tail = coefficients(kernel, grid, d), d * 5e-3 * 0.1
        assert abs(float(grid.total(spectrum)) - prior_variance(kernel, d)) < tail + 1e-3 * prior_variance(kernel, d)
        return [part.columns for part in grid.parts]

    one, other = k.Matern(active_dims=[0], lengthscale=0.1), k.RBF(active_dims=[1])
    assert parts(one + other, 2) == [(0,), (1,)]
    assert parts(one * other, 2) == [(0, 1)]
    assert parts(k.RBF(active_dims=[0]) + k.RBF([1.0, 1.0], active_dims=[0, 1]), 2) == [(0, 1)]  # inside the other
    assert parts(one + k.RBF([1.0, 1.0], active_dims=[0, 1]), 2) == [(0,), (0, 1)]
    assert parts((one + other) * k.RBF(active_dims=[2]) + 0.5 * one + 2.0, 3) == [(0, 2), (1, 2), (0,)]


def test_more_coordinates_than_a_factor_takes_are_refused_in_the_plan_and_before_a_pass() -> None:
    rough = apart() + k.Matern(nu=1.5, lengthscale=0.002, active_dims=[0])
    gp, (x, y) = fgp.GP(rough, likelihood=fgp.likelihoods.Gaussian(0.3)), table(200)
    with pytest.raises(fgp.DomainError, match=r"at most 2,500 coordinates of all .*for columns \(2, 3\)"):
        gp.condition(x, y, approximation="fourier")
    wide = fgp.GP(apart() + k.Matern(lengthscale=torch.ones(4, dtype=F64), active_dims=[0, 1, 2, 3]))
    with pytest.raises(fgp.DomainError, match="terms have one to 3 columns each, got one of 4; pass a sum"):
        wide.condition(x, y, approximation="fourier")
    assert fgp.plan(wide, n=200_000, d=D, approximation="auto").no_series == NoSeries.COLUMNS


def test_auto_takes_it_by_its_price() -> None:
    plan = fgp.plan(model(), n=200_000, d=D, approximation="auto", device="cpu")
    assert plan.approximation == "fourier"
    few, many = (fgp.plan(model(), n=n, d=D, approximation="fourier", device="cpu") for n in (10**5, 10**7))
    assert few.fit_step_seconds == many.fit_step_seconds
    assert many.seconds > 50.0 * few.seconds > 0.0


def test_a_fit_that_is_asked_for_is_planned_with_fewer_lengthscales_where_more_have_no_factor() -> None:
    kernel = k.Matern(nu=1.5, active_dims=[0, 1]) + k.Matern(nu=1.5, active_dims=[2, 3])
    gp = fgp.GP(kernel, likelihood=fgp.likelihoods.Gaussian(0.05))
    plan = fgp.plan(gp, n=10**5, d=4, approximation="auto", device="cpu")
    assert plan.no_series == NoSeries.FREQUENCIES
    assert fgp.plan(gp, n=10**5, d=4, approximation="fourier", device="cpu").fit_seconds > 0.0
