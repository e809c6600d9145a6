"""Terms of a sum by Fourier series, eq. (M-447), beside those of exact inference."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.events import EventKind, of_kind
from flashgp.inference.fourier.system import SolveSettings
from inference.fourier.additive import D, apart

F64 = torch.float64
k = fgp.kernels
NOISE = 0.05
SEASON, TREND = (
    0.7 * k.Periodic(period=0.2) * k.Matern(nu=2.5, lengthscale=1.0),
    2.0 * k.Matern(nu=2.5, lengthscale=0.5),
)
WAVES = 0.8 * k.Periodic(period=1.0, lengthscale=1.0) + 0.5 * k.Periodic(period=0.5, lengthscale=0.6)
MAP = 1.0 * k.RBF(0.8, active_dims=[0]) + 0.5 * k.RBF(0.4)
CASES = {"series": (SEASON + TREND, 1), "waves": (WAVES, 1), "map": (MAP, 2), "apart": (apart(), D)}
WAYS = [(name, factor) for name in CASES for factor in (True, False) if factor or name != "apart"]


def _rows(n: int, d: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, d, generator=generator, dtype=F64)
    y = torch.sin(6.0 * x[:, 0]) + 0.5 * torch.sin(31.4 * x[:, -1]) + 0.3
    return x, y + NOISE**0.5 * torch.randn(n, generator=generator, dtype=F64)


def _gp(kernel: fgp.kernels.Kernel) -> fgp.GP:
    return fgp.GP(kernel, fgp.means.Constant(0.3), fgp.likelihoods.Gaussian(NOISE))


def _without_factor(post: fgp.Posterior, solved_numbers: int) -> fgp.Posterior:
    """The posterior as if it had more frequencies than a factor takes. Args: numbers that solves have time for."""
    state = post.state
    few = replace(
        state.settings,
        solves=SolveSettings(dense=20, block=50, share=2),
        solved_numbers=solved_numbers,
        draws=128,
        most_rows=0,
    )
    solution = replace(state.weights.solution, iterations=20)
    system = replace(state.weights.system, settings=few.solves)
    return fgp.Posterior(replace(state, settings=few, weights=replace(state.weights, system=system, solution=solution)))


@pytest.mark.parametrize(("name", "factor"), WAYS)
def test_terms_are_those_of_exact_inference(name: str, factor: bool) -> None:
    """Up to the tail; their means add up to that of f beside the prior's."""
    kernel, d = CASES[name]
    x, y = _rows(300, d)
    x_test = _rows(25, d, 1)[0]
    post, exact = _gp(kernel).condition(x, y, approximation="fourier"), _gp(kernel).condition(x, y)
    post = post if factor else _without_factor(post, 2**40)
    total = torch.zeros(25, dtype=F64)
    for one, other in zip(post.components, exact.components, strict=True):
        found, known = one.predict(x_test), other.predict(x_test)
        total += found.mean
        assert float(((found.mean - known.mean) / known.std).abs().max()) < 0.02
        assert float((found.variance / known.variance - 1.0).abs().max()) < 0.02
        assert float((found.covariance() - known.covariance()).abs().max()) < 0.02 * float(known.variance.max())
        torch.testing.assert_close(found.covariance().diagonal(), found.variance, rtol=1e-3, atol=0.0)
        assert float(one.share) == pytest.approx(float(other.share), abs=0.01)
    torch.testing.assert_close(total + 0.3, post.predict(x_test).mean, rtol=0.0, atol=1e-9)
    assert float(sum(one.share + one.share_with_others for one in post.components)) == pytest.approx(1.0)


def test_a_term_that_rows_settle_has_the_small_variance_that_it_has() -> None:
    """Not one that rounding leaves of variances that cancel."""
    x, y = _rows(2000, 1)
    gp = fgp.GP(1.0 * k.RBF(0.3) + 0.1 * k.Cosine(frequency=20.0), likelihood=fgp.likelihoods.Gaussian(1e-3))
    x_test = _rows(40, 1, 1)[0]
    season = gp.condition(x, y, approximation="fourier").component(1).predict(x_test)
    exact = gp.condition(x, y).component(1).predict(x_test)
    assert float((season.variance / exact.variance - 1.0).abs().max()) < 0.02


def test_gradients_to_points_are_those_of_exact_inference() -> None:
    x, y = _rows(300, 1)
    x_test = _rows(6, 1, 1)[0].requires_grad_()
    found, exact = (_gp(SEASON + TREND).condition(x, y, approximation=how).components for how in ("fourier", None))
    for one, other in zip(found, exact, strict=True):
        for name in ("mean", "variance"):
            slope, known = (
                torch.autograd.grad(getattr(part.predict(x_test), name).sum(), x_test)[0] for part in (one, other)
            )
            assert float((slope - known).abs().max()) < 0.02 * float(known.abs().max())


def test_variances_of_terms_are_sampled_where_those_of_the_whole_are() -> None:
    x, y = _rows(300, 1)
    post, x_test = _gp(SEASON + TREND).condition(x, y, approximation="fourier"), _rows(100, 1, 1)[0]
    for one, other in zip(_without_factor(post, 0).components, post.components, strict=True):
        found, known = one.predict(x_test), other.predict(x_test)
        assert 0.9 < float((found.variance / known.variance).mean()) < 1.1
        (event,) = of_kind(found.report.events, EventKind.FOURIER_VARIANCE)
        assert event.fields["draws"] == 128


def test_rows_that_are_read_and_several_outputs_have_terms() -> None:
    x, y = _rows(400, 1)
    x[0], x[1] = 0.0, 1.0  # so that the first rows span the box
    batches = list(zip(x.split(150), y.split(150), strict=True))
    held, read = (_gp(SEASON + TREND).condition(*rows, approximation="fourier") for rows in ((x, y), (batches,)))
    x_test = _rows(20, 1, 1)[0]
    for one, other in zip(read.components, held.components, strict=True):
        torch.testing.assert_close(one.predict(x_test).mean, other.predict(x_test).mean, rtol=0.0, atol=1e-8)
        torch.testing.assert_close(one.predict(x_test).variance, other.predict(x_test).variance, rtol=1e-8, atol=0.0)
        assert float(one.share) == pytest.approx(float(other.share), abs=1e-8)
    gp = fgp.GP(SEASON + TREND, outputs=2, likelihood=fgp.likelihoods.Gaussian(NOISE, shared=True))
    both = gp.condition(x, torch.stack([y, -y], 1), approximation="fourier")
    season = both.component(0).predict(x_test)
    torch.testing.assert_close(season.mean[:, 0], -season.mean[:, 1])
    assert both.component(0).share.shape == (2,)
