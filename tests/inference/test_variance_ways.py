"""Variances without a float64 factor: exact solves while quick, else samples (M-96), (M-97), (M-107)."""

import dataclasses
import time
import warnings

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.errors import DomainError, ShapeError
from flashgp.foundations.events import EventKind, of_kind
from flashgp.inference.predict.plan import price_of, prices_event
from flashgp.inference.predict.prediction import Prediction
from flashgp.inference.predict.prior_draws import pivots_of
from flashgp.inference.predict.progress import PredictionProgress
from flashgp.inference.predict.sampled_variance import (
    SampledVariance,
    variance_probes,
)
from flashgp.planner.variances import ProbeSizes, VarianceSettings
from flashgp.solvers.contract import Limits
from inference.plain_gp import F64, predicted

k = fgp.kernels


def data(n: int, n_test: int = 200, d: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, x_test = (torch.rand(size, d, generator=generator, dtype=F64) for size in (n, n_test))
    y = torch.sin(6.0 * x[:, 0]) + 0.1 * torch.randn(n, generator=generator, dtype=F64)
    return x, y, x_test


def model(noise: float = 1e-2, kernel: k.Kernel | None = None) -> fgp.GP:
    kernel = k.Matern(1.5, 0.4) if kernel is None else kernel
    return fgp.GP(1.3 * kernel, likelihood=fgp.likelihoods.Gaussian(noise))


def by(gp: fgp.GP, x: Tensor, y: Tensor, route: str, **options: object) -> fgp.Posterior:
    return gp.condition(x, y, plan=fgp.plan(gp, n=x.shape[0], d=x.shape[1], route=route), **options)


SMALL = (ProbeSizes(64, 64, 24),)  # of so few rows more would take longer than exact solves
FREE_FEATURES = VarianceSettings(features=0, sizes=SMALL)
IMPATIENT = VarianceSettings(sampled_seconds=0.0, features=0, sizes=SMALL)  # no exact solve is affordable


def test_samples_take_over_at_the_stated_price() -> None:
    """Eq. (M-107): exact up to the seconds that are stated, samples beyond, with an event and one warning."""
    x, y, x_test = data(300)
    posterior = by(model(), x, y, "recomputed")
    price = price_of(posterior.state, 200, "exact", True)

    def predict(x: Tensor, variance: str = "auto", seconds: float = price.seconds * (1.0 - 1e-9)) -> Prediction:
        settings = dataclasses.replace(FREE_FEATURES, sampled_seconds=seconds)
        return predicted(posterior, x, variance, deterministic=True, variances=settings)

    prediction = predict(x_test, seconds=price.seconds)
    exact = prediction.variance
    assert prediction.variance_standard_error is None
    assert of_kind(prediction.report.events, EventKind.VARIANCE_BY_SOLVES)
    prediction = predict(x_test)
    with pytest.warns(fgp.FlashGPWarning, match=r'Variance from 64 samples.*predict\(x, variance="exact"\)'):
        sampled = prediction.variance
    (event,) = of_kind(prediction.report.events, EventKind.VARIANCE_BY_SAMPLES)
    largest = float((prediction.variance_standard_error / sampled).max())
    assert event.fields == {"samples": 64, "share": pytest.approx(largest), "unfinished": None}
    assert not torch.equal(sampled, exact)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = predict(x_test)
        assert torch.equal(again.variance, sampled)
        assert torch.equal(again.variance_standard_error, prediction.variance_standard_error)
        few = predict(x_test[:64])
        assert few.variance_standard_error is None, "one block of solves is no more than the samples take"
        chosen = predict(x_test, "exact")
        assert torch.equal(chosen.variance, exact)
        points = x_test.clone().requires_grad_()
        slopes = torch.autograd.grad(predict(points).variance.sum(), points)[0]
    wanted = torch.autograd.grad(model().condition(x, y).predict(points).variance.sum(), points)[0]
    assert float((slopes - wanted).norm() / wanted.norm()) < 0.05


def test_what_is_never_sampled() -> None:
    x, y, x_test = data(120)
    custom = k.Custom(lambda a, b, scale: torch.exp(-scale * (a - b).square().sum()), scale=2.0)
    posterior = by(model(kernel=custom), x, y, "recomputed")
    assert predicted(posterior, x_test, variances=IMPATIENT).variance_standard_error is None
    with pytest.raises(fgp.DomainError, match="a kernel with random features"):
        posterior.predict(x_test, variance="sampled").variance  # noqa: B018
    direct = model().condition(x, y)
    assert predicted(direct, x_test, variances=IMPATIENT).variance_standard_error is None
    with pytest.raises(fgp.DomainError, match=r'where gradients are wanted, got "sampled"'):
        direct.predict(x_test.clone().requires_grad_(), variance="sampled").variance  # noqa: B018
    with pytest.raises(fgp.DomainError, match="`variance` must be one of auto, exact, sampled, got 'quick'"):
        direct.predict(x_test, variance="quick")
    prior = model().condition(x[:0], y[:0]).predict(x_test, variance="sampled")
    assert torch.allclose(prior.variance, torch.full((200,), 1.3, dtype=F64))
    assert (prior.variance_standard_error, prior.variance_interval) == (None, None)
    assert by(model(), x, y, "stored").predict(x_test[:0], variance="sampled").variance.shape == (0,)


def test_a_time_limit_of_variances() -> None:
    """(M-264): fewer samples where a limit binds, said with their error; exact where it does not; refused where it
    allows none, with what does; told step by step."""
    x, y, x_test = data(120)
    posterior = by(model(), x, y, "recomputed")
    exact = price_of(posterior.state, 200, "exact", True)
    told: list[PredictionProgress] = []
    settings = VarianceSettings(time_limit=2.0 * exact.seconds, features=0)
    assert predicted(posterior, x_test, variances=settings, deterministic=True).variance_standard_error is None
    assert posterior.predict(x_test, time_limit=3600.0, progress=told.append).variance_standard_error is None
    assert {one.of for one in told} == {200}
    assert {one.points for one in told} == {0, 64, 128, 192}
    assert all(0.0 <= one.fraction < 1.0 and "of 200 points, iteration" in str(one) for one in told)
    sizes = (ProbeSizes(), ProbeSizes(8, 0, 64))
    limited = VarianceSettings(sampled_seconds=0.0, limit_seconds=0.0, sizes=sizes, features=0)
    prediction = predicted(posterior, x_test, variances=limited)
    with pytest.warns(fgp.FlashGPWarning, match='Variance from 8 samples.*"sampled" more samples'):
        found = prediction.variance
    (event,) = of_kind(prediction.report.events, EventKind.VARIANCE_BY_SAMPLES)
    assert (event.fields["samples"], event.fields["unfinished"]) == (8, True), "whose solves had no time"
    wanted = model().condition(x, y).predict(x_test).variance
    lower, upper = prediction.variance_interval
    assert float(((lower <= wanted) & (wanted <= upper)).double().mean()) > 0.85
    assert bool((found >= 0.9 * wanted).all())
    assert posterior.predict(x_test, variance="sampled").report.events == []
    more = posterior.predict(x_test, variance="sampled")
    assert float((more.variance / wanted - 1.0).abs().max()) < 0.3
    (event,) = of_kind(more.report.events, EventKind.VARIANCE_BY_SAMPLES)
    assert event.fields["samples"] == 64, "asked for, and made anew"
    short = posterior.predict(x_test, variance="exact", time_limit=0.0)
    assert short.mean.shape == (200,)
    with pytest.raises(fgp.DomainError, match=r"`time_limit` must be at least about .* for variances at 200 points"):
        short.variance  # noqa: B018
    with pytest.raises(fgp.DomainError, match="`time_limit` must be 0 or more seconds, got -1"):
        posterior.predict(x_test, time_limit=-1)


def test_exact_solves_end_with_the_time() -> None:
    """Variances of points that the time does not reach are never too small, and a warning counts them. Seen red: all
    solves went on to their end."""
    x, y, x_test = data(120)
    posterior = by(model(), x, y, "recomputed")
    wanted = model().condition(x, y).predict(x_test).variance
    prior = model().condition(x[:0], y[:0]).predict(x_test).variance
    slow = posterior.predict(x_test, variance="exact", time_limit=0.5, progress=lambda _: time.sleep(0.6))
    with pytest.warns(fgp.FlashGPWarning, match="The time limit ended the solves of variances at 200 of 200 points"):
        found = slow.variance
    assert bool((found >= wanted * (1 - 1e-9)).all())
    assert torch.equal(found[64:], prior[64:])
    (event,) = of_kind(slow.report.events, EventKind.VARIANCE_TOO_LARGE)
    assert event.fields["points"] == 200
    assert torch.allclose(posterior.predict(x_test, variance="exact").variance, wanted, rtol=0.01)


def test_points_of_an_approximation_that_take_too_long_are_refused() -> None:
    x, y, x_test = data(120)
    for options in ({"approximation": "full_scale"}, {"approximation": "sparse", "inducing": 20}):
        posterior = model().condition(x, y, **options)
        assert posterior.predict(x_test, time_limit=1e6).variance.shape == (200,)
        with pytest.raises(fgp.DomainError, match=r"`time_limit` must be at least about .* for 200 points"):
            posterior.predict(x_test, time_limit=1e-9)
        with pytest.raises(fgp.DomainError, match="`time_limit` must be 0 or more seconds, got -1"):
            posterior.predict(x_test, time_limit=-1)


def test_prices_of_predictions_are_said_where_they_are_not_small() -> None:
    """(M-264): nothing of a small table; of a large one without a factor means, variances and samples."""
    x, y, _ = data(300)
    posterior = by(model(), x, y, "recomputed")
    assert prices_event(posterior.state) is None
    points = 10**7
    event = prices_event(posterior.state, points)
    assert event.kind is EventKind.PREDICTION_PRICES
    assert event.fields["variances"] == pytest.approx(price_of(posterior.state, points, "exact", False).seconds)
    assert event.fields["means"] < event.fields["variances"]
    assert f"{points:,} predictions take about" in str(event)
    two = fgp.GP(1.3 * k.Matern(1.5, 0.4), likelihood=fgp.likelihoods.Gaussian(1e-2), outputs=2)
    both = by(two, x, torch.stack([y, -y], -1), "recomputed")
    twice = prices_event(both.state, points)
    assert twice.fields["variances"] == pytest.approx(2 * event.fields["variances"], rel=0.5)


K = fgp.kernels


def posterior(
    n: int, d: int, noise: float, lengthscale: float = 0.3, kernel: K.Kernel | None = None
) -> tuple[fgp.Posterior, torch.Tensor]:
    generator = torch.Generator().manual_seed(d)
    x, x_test = (torch.rand(size, d, generator=generator, dtype=F64) for size in (n, 60))
    kernel = kernel or 1.7 * K.Matern(1.5, lengthscale * d**0.5)
    gp = fgp.GP(kernel, likelihood=fgp.likelihoods.Gaussian(noise_variance=noise))
    return gp.condition(x, x[:, 0]), x_test


@pytest.mark.parametrize("neighbours", [0, 64])
def test_deviations_have_the_variances_they_are_for(neighbours: int) -> None:
    """(M-96): E d^2 = v, E h^2 = v_C - v, E dh = 0 over many samples; v_C by the definition, and never below v."""
    post, x_test = posterior(40, 2, 0.02)
    probes = variance_probes(post.state, ProbeSizes(400, 6, neighbours), factor=_factor(post, 6), features=32, seed=0)
    d, h, bound, seen = probes._deviations(x_test[:7])
    assert not seen[1].any(), "a factor leaves nothing"
    v = post.predict(x_test[:7]).variance
    assert bool((bound >= v * (1 - 1e-9)).all())
    for values, wanted in ((d.square(), v), (h.square(), bound - v), (d * h, torch.zeros_like(v))):
        error = values.std(-1) / 400**0.5
        assert bool(((values.mean(-1) - wanted).abs() <= 4.5 * error + 1e-12).all())
    gp = post.gp
    A = gp.kernel(post.x).to_dense() + 0.02 * torch.eye(40, dtype=F64)
    cross = gp.kernel(x_test[:7], post.x).to_dense()
    for i in range(7):
        near = cross[i].topk(probes.neighbours).indices
        C = torch.cat([probes.actions, torch.eye(40, dtype=F64)[near]])
        b = C @ cross[i]
        wanted = 1.7 - b @ torch.linalg.lstsq(C @ A @ C.mT, b, driver="gelsd").solution
        assert float(bound[i]) == pytest.approx(float(wanted), rel=1e-6)


def _factor(post: fgp.Posterior, rank: int) -> torch.Tensor:
    return pivots_of(post.gp, post.x, rank, torch.Generator().manual_seed(0))[1]


@pytest.mark.parametrize("sizes", [ProbeSizes(8, 0, 128)])
def test_few_samples_and_solves_that_ended_early_say_so(sizes: ProbeSizes) -> None:
    """(M-263): few samples hold the truth as often as they say, solves cut short too, on the safe side; without any
    iteration the variance is the exact bound. Seen red: the error was that of all that C sees of the residuals."""
    generator = torch.Generator().manual_seed(1)
    x, x_test = (torch.rand(size, 3, generator=generator, dtype=F64) for size in (400, 60))
    gp = fgp.GP(K.Matern(1.5, 1.4), likelihood=fgp.likelihoods.Gaussian(4e-3))
    v = gp.condition(x, x[:, 0]).predict(x_test).variance
    post = gp.condition(x, x[:, 0], plan=fgp.plan(gp, n=400, d=3, route="recomputed"))

    def found(iterations: int) -> list[SampledVariance]:
        limits = Limits(iterations=iterations)
        return [variance_probes(post.state, sizes, features=128, limits=limits, seed=seed)(x_test) for seed in range(4)]

    whole, cut, none = found(10_000), found(3), found(0)
    within = [((one.lower <= v) & (v <= one.upper)).double().mean() for one in whole]
    assert 0.85 < float(torch.stack(within).mean()) < 0.995
    assert all(float((one.variance / v - 1).abs().max()) < 0.1 for one in whole)
    for one, finished in zip(cut, whole, strict=True):
        assert float(((one.lower <= v) & (v <= one.upper)).double().mean()) > 0.85
        assert bool((one.variance >= finished.variance.minimum(0.97 * v)).all())
        assert float((one.standard_error / one.bound).mean()) < (0.05 if sizes.samples == 16 else 0.3)
    assert all(torch.allclose(one.variance, one.bound) for one in none)


def test_what_is_refused() -> None:
    post, x_test = posterior(20, 2, 0.1)
    with pytest.raises(DomainError, match="`samples` must be a whole number, 2 or more"):
        variance_probes(post.state, ProbeSizes(1))
    with pytest.raises(ShapeError, match=r"`factor` must have shape \(20, k\)"):
        variance_probes(post.state, factor=torch.ones(3, 2))
    with pytest.raises(ShapeError, match="`x_test` must have shape"):
        variance_probes(post.state, ProbeSizes(2))(x_test[None])
    custom = K.Custom(lambda x, z: torch.exp(-(x - z).abs().sum()))
    other = fgp.GP(custom).condition(post.x, post.y)
    with pytest.raises(DomainError, match="a kernel with random features"):
        variance_probes(other.state)
    batch = fgp.GP(torch.ones(2) * K.RBF()).condition(post.x, post.y)
    with pytest.raises(ShapeError, match="`posterior` must be one model"):
        variance_probes(batch.state)
