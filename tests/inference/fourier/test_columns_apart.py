"""Sums of terms in different columns, each with a grid of its own, eq. (M-425), beside exact inference."""

from pathlib import Path

import numpy
import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.events import EventKind, NoSeries, of_kind
from flashgp.inference.approximation import Approximation
from flashgp.inference.exact.likelihood import DirectSettings
from flashgp.inference.fourier.condition import grid_for
from flashgp.inference.fourier.grids import Grids, coordinates_of
from flashgp.inference.fourier.objective import FourierLogJoint
from flashgp.inference.fourier.spectrum import GridSettings, coefficients, grid_of, prior_variance
from flashgp.inference.fourier.state import FourierSettings
from flashgp.inference.fourier.sums import FourierSums
from flashgp.inference.streamed.rows import numbers_to_rows, prior_of_rows, survey_of
from flashgp.inference.training.objective import Problem
from flashgp.kernels.base import terms
from flashgp.pairwise.torch.tiles import TorchTiles
from flashgp.processes.group import ALONE
from flashgp.sources.source import Held

F64 = torch.float64
k = fgp.kernels
NOISE = 0.05
D = 5


def _kernel() -> k.Kernel:
    """Of 1 + 1 + 2 + 1 columns."""
    return (
        1.0 * k.Matern(nu=2.5, lengthscale=0.5, active_dims=[0])
        + 0.5 * k.Matern(nu=1.5, lengthscale=0.6, active_dims=[1])
        + 0.8 * k.RBF(torch.tensor([0.7, 0.9], dtype=F64), active_dims=[2, 3])
        + 0.6 * k.Periodic(period=0.4, active_dims=[4])
    )


def _gp(noise: float = NOISE) -> fgp.GP:
    return fgp.GP(_kernel(), fgp.means.Constant(0.3), fgp.likelihoods.Gaussian(noise))


def _rows(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, D, generator=generator, dtype=F64)
    y = torch.sin(6.0 * x[:, 0]) + x[:, 1] + torch.cos(3.0 * x[:, 2] + 2.0 * x[:, 3]) + torch.sin(15.7 * x[:, 4])
    return x, y + NOISE**0.5 * torch.randn(n, generator=generator, dtype=F64)


def test_sums_over_rows_and_products_are_those_of_all_waves() -> None:
    """(M-426): functions at rows, T as a function of vectors, and a residual of ones; by transforms too, (M-427)."""
    x, _ = _rows(50)
    grid = grid_of(_kernel(), torch.zeros(D, dtype=F64), torch.ones(D, dtype=F64), 0.5, GridSettings(), 2500)
    assert isinstance(grid, Grids)
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
    root = coefficients(_kernel(), grid, D).sqrt()
    image, product = root * ((values / variance).to(waves.dtype) @ waves), root * grid.gram(sums.entries)(v)
    assert float((product - image).norm() / image.norm()) < 1e-5  # by the energy that prolate sequences leave out
    for (one, other), pair in grid.domains.pairs(10**9).items():
        assert pair is not None
        found = pair.analysis(pair.grid.adjoint(x, 1.0 / variance.unsqueeze(0)))
        block = sums.entries[grid.domains.places[one], grid.domains.places[other]]
        torch.testing.assert_close(found.view(block.shape), block, rtol=0.0, atol=1e-7 * float(block.abs().max()))
    assert set(grid.domains.pairs(10).values()) == {None}
    ones = root * (waves / variance.unsqueeze(1)).sum(0)
    assert float((root * sums.ones - ones).norm() / ones.norm()) < 1e-5
    torch.testing.assert_close(sums.projected[0], (waves * (residual / variance.unsqueeze(1))).sum(0))


def test_answers_are_those_of_exact_inference() -> None:
    """Up to the tail: predictions, the evidence, rows left out, terms, which add up to the whole."""
    x, y = _rows(400)
    x_test = _rows(40, 1)[0]
    post, exact = _gp().condition(x, y, approximation="fourier"), _gp().condition(x, y)
    (event,) = of_kind(post.report.events, EventKind.FOURIER_TAIL)
    tail = event.fields["tail"]
    assert tail <= 1e-3 * NOISE
    grid, spectrum = post.state.grid, post.state.weights.system.spectrum
    each = zip(terms(_kernel()), grid.parts, grid.split(spectrum), strict=True)
    tails = [prior_variance(term, D) - float(part.total(own)) for term, part, own in each]
    assert min(tails) < 0.0  # by what repeats, which makes up for no other's
    assert tail == pytest.approx(sum(max(0.0, one) for one in tails), rel=1e-6)
    found, known = post.predict(x_test), exact.predict(x_test)
    assert float((found.mean - known.mean).abs().max()) < tail**0.5
    assert float((found.variance - known.variance).abs().max()) < 2.0 * tail
    assert float((found.covariance() - known.covariance()).abs().max()) < 2.0 * tail
    off = tail + GridSettings().repeated[0] * prior_variance(_kernel(), D)
    assert abs(float(post.log_marginal_likelihood() - exact.log_marginal_likelihood())) < 400 * 0.5 * off / NOISE
    left, other = post.leave_one_out(), exact.leave_one_out()
    torch.testing.assert_close(left.log_prob, other.log_prob, rtol=0.0, atol=0.01)
    total = torch.zeros(40, dtype=F64)
    for one, whole in zip(post.components, exact.components, strict=True):
        mine, true = one.predict(x_test), whole.predict(x_test)
        total += mine.mean
        assert float(((mine.mean - true.mean) / true.std).abs().max()) < 0.01
        assert float((mine.variance / true.variance - 1.0).abs().max()) < 0.01
        assert float((mine.covariance() - true.covariance()).abs().max()) < 0.01 * float(true.variance.max())
        assert float(one.share) == pytest.approx(float(whole.share), abs=0.01)
    torch.testing.assert_close(total + 0.3, found.mean, rtol=0.0, atol=1e-9)


def test_gradients_to_points_and_paths_are_those_of_exact_inference() -> None:
    x, y = _rows(300)
    x_test = _rows(6, 1)[0].requires_grad_()
    post, exact = _gp().condition(x, y, approximation="fourier"), _gp().condition(x, y)
    for name in ("mean", "variance"):
        one, other = (torch.autograd.grad(getattr(p.predict(x_test), name).sum(), x_test)[0] for p in (post, exact))
        assert float((one - other).abs().max()) < 0.01 * float(other.abs().max())
    points = x_test.detach()
    values, known = post.paths(2000, seed=3)(points), exact.predict(points)
    assert bool(((values.mean(0) - known.mean).abs() < 5.0 * (known.variance / 2000).sqrt()).all())
    assert float((values.var(0) / known.variance - 1.0).abs().max()) < 0.2


def test_reading_joining_and_files_do_not_matter(tmp_path: Path) -> None:
    x, y = _rows(400)
    x[0], x[1] = 0.0, 1.0  # so that the first rows span the box
    gp, x_test = _gp(), _rows(30, 1)[0]
    known = gp.condition(x, y, approximation="fourier")
    read = gp.condition([*zip(x.split(150), y.split(150), strict=True)], approximation="fourier")
    joined = gp.condition(x[:300], y[:300], approximation="fourier").append(x[300:], y[300:])
    fgp.save(read, tmp_path / "model.fgp")
    for other in (read, joined, fgp.load(tmp_path / "model.fgp")):
        assert other.count == 400
        for one, whole in [(other, known), *zip(other.components, known.components, strict=True)]:
            found, wanted = one.predict(x_test), whole.predict(x_test)
            torch.testing.assert_close(found.mean, wanted.mean, rtol=0.0, atol=1e-4 * NOISE**0.5)
            torch.testing.assert_close(found.variance, wanted.variance, rtol=1e-3, atol=0.0)
        evidence = float(known.log_marginal_likelihood())
        assert float(other.log_marginal_likelihood()) == pytest.approx(evidence, abs=0.1)


@pytest.mark.parametrize(
    "rows", [{}, {"row_variance": 0.05 + torch.arange(200, dtype=F64) / 300}], ids=["alike", "each"]
)
def test_gradients_are_slopes_of_the_log_joint(rows: dict[str, Tensor]) -> None:
    """(M-436), (M-443), by the parameters of all terms."""
    x, y = _rows(200)
    given = fgp.GP(_kernel(), fgp.means.Constant(0.3), fgp.likelihoods.Gaussian(0.3, **rows))
    gp, source = numbers_to_rows(given, Held(x, y), ALONE)
    survey, how = (
        survey_of(gp, source, Approximation("fourier"), 0),
        FourierSettings(grid=GridSettings(tail=(0.01,) * 3)),
    )
    problem = Problem(prior_of_rows(gp, survey.sample), survey.x, survey.y, DirectSettings(TorchTiles()))
    objective = FourierLogJoint(problem, gp, survey, grid_for(gp, survey, how, search=True), how, 0)
    assert objective.estimate is None
    theta = objective.parameters.values()
    first, slopes = objective(theta), []
    assert first.value == pytest.approx(-float(given.log_marginal_likelihood(x, y).detach()), abs=0.5)
    for step in 1e-4 * numpy.eye(len(theta)):
        above, below = objective(theta + step).value, objective(theta - step).value
        assert above is not None
        assert below is not None
        slopes.append((above - below) / 2e-4)
    numpy.testing.assert_allclose(first.gradient, slopes, rtol=1e-5, atol=1e-5 * float(numpy.abs(slopes).max()))


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
    kernel = _kernel() + k.Matern(nu=1.5, lengthscale=0.002, active_dims=[0])
    gp, (x, y) = fgp.GP(kernel, likelihood=fgp.likelihoods.Gaussian(0.3)), _rows(200)
    with pytest.raises(fgp.DomainError, match=r"at most 2,500 coordinates of all .*for columns \(2, 3\)"):
        gp.condition(x, y, approximation="fourier")
    wide = fgp.GP(_kernel() + k.Matern(lengthscale=torch.ones(4, dtype=F64), active_dims=[0, 1, 2, 3]))
    with pytest.raises(fgp.DomainError, match="terms have one to 3 columns each, got one of 4; pass a sum"):
        wide.condition(x, y, approximation="fourier")
    assert fgp.plan(wide, n=200_000, d=D, approximation="auto").no_series == NoSeries.COLUMNS


def test_auto_takes_it_by_its_price() -> None:
    plan = fgp.plan(_gp(), n=200_000, d=D, approximation="auto", device="cpu")
    assert plan.approximation == "fourier"
    few, many = (fgp.plan(_gp(), n=n, d=D, approximation="fourier", device="cpu") for n in (10**5, 10**7))
    assert few.fit_step_seconds == many.fit_step_seconds
    assert many.seconds > 50.0 * few.seconds > 0.0


def test_a_fit_that_is_asked_for_is_planned_with_fewer_lengthscales_where_more_have_no_factor() -> None:
    kernel = k.Matern(nu=1.5, active_dims=[0, 1]) + k.Matern(nu=1.5, active_dims=[2, 3])
    gp = fgp.GP(kernel, likelihood=fgp.likelihoods.Gaussian(0.05))
    plan = fgp.plan(gp, n=10**5, d=4, approximation="auto", device="cpu")
    assert plan.no_series == NoSeries.FREQUENCIES
    assert fgp.plan(gp, n=10**5, d=4, approximation="fourier", device="cpu").fit_seconds > 0.0
