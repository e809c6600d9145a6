"""Where variances without a float64 factor come from: exact solves while these are quick, else samples, (M-107)."""

import dataclasses
import time
import warnings

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from clocks import Clock
from flashgp.foundations.deadline import Deadline
from flashgp.foundations.events import EventKind, of_kind
from flashgp.foundations.profile_store import keep_profile
from flashgp.inference.predict.plan import price_of, prices_event
from flashgp.inference.predict.prediction import Prediction
from flashgp.inference.predict.progress import PredictionProgress
from flashgp.inference.predict.sampled_variance import SAMPLED_SEED, variance_probes
from flashgp.inference.predict.variance_solves import SHARE, explained
from flashgp.planner.variances import ProbeSizes, VarianceSettings
from flashgp.solvers.contract import Limits
from flashgp.solvers.direct.cholesky import Factor
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
LOOKED = {"correction_seconds": 0.0, "variances": IMPATIENT}  # no float32 factor is corrected without a look


@pytest.mark.parametrize(("noise", "d"), [(1e-3, 4), (1e-1, 2)])
def test_intervals_hold_the_exact_variance(noise: float, d: int) -> None:
    """Eq. (M-97) by inexact solves: in about 95 % of the points over several seeds, and errors as they are stated."""
    x, y, x_test = data(200, 80, d=d)
    gp = model(noise)
    truth = gp.condition(x, y).predict(x_test).variance
    within, scores, errors = [], [], []
    for seed in range(6):
        posterior = by(gp, x, y, "recomputed", seed=seed)
        posterior.state.cache.variance_probes = variance_probes(posterior.state, features=64, seed=seed + SAMPLED_SEED)
        found = posterior.predict(x_test, variance="sampled")
        lower, upper = found.variance_interval
        assert lower.shape == upper.shape == found.variance_standard_error.shape == found.variance.shape == (80,)
        within.append(((lower <= truth) & (truth <= upper)).double().mean())
        scores.append(((found.variance - truth) / found.variance_standard_error).square().mean())
        errors.append(((found.variance - truth) / truth).square().mean().sqrt())
    assert 0.91 < float(torch.stack(within).mean()) < 0.985
    assert 0.7 < float(torch.stack(scores).mean().sqrt()) < 1.3
    assert float(torch.stack(errors).max()) < 0.25 * (2 / 64) ** 0.5, "far below that of plain deviations"


@pytest.mark.parametrize("route", ["recomputed", "stored"])
def test_samples_take_over_at_the_stated_price(route: str) -> None:
    """Eq. (M-107): exact up to the seconds that are stated, samples beyond, with an event and one warning."""
    x, y, x_test = data(300)
    posterior = by(model(), x, y, route)
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


@pytest.mark.usefixtures("profiles")
def test_the_rates_decide() -> None:
    """Measured rates, and built-in ones where the posterior or the prediction is deterministic."""
    from flashgp.foundations.profile import BUILT_IN

    rates = tuple(dataclasses.replace(one, pairs_per_second=one.pairs_per_second / 1e9) for one in BUILT_IN.products)
    slow = dataclasses.replace(BUILT_IN, name="slow", products=rates)
    keep_profile(slow)
    x, y, x_test = data(100)
    posterior = by(model(), x, y, "recomputed")
    with pytest.warns(fgp.FlashGPWarning, match="samples"):
        assert predicted(posterior, x_test, variances=FREE_FEATURES).variance_standard_error is not None
    assert predicted(posterior, x_test, variances=FREE_FEATURES, deterministic=True).variance_standard_error is None


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


def test_samples_on_request() -> None:
    """Also with a float64 factor; in batches of test points, for several outputs, in x's dtype; made once."""
    x, y, x_test = data(60, 40)
    two = fgp.GP(1.3 * k.Matern(1.5, 0.4), likelihood=fgp.likelihoods.Gaussian(1e-2), outputs=2)
    both = torch.stack([y, y.square()], dim=-1)
    for posterior in (two.condition(x, both), by(two, x, both, "recomputed")):
        prediction = posterior.predict(x_test, variance="sampled")
        assert prediction.variance.shape == prediction.variance_standard_error.shape == (40, 2)
        batch = posterior.predict(x_test.reshape(4, 1, 10, 2), variance="sampled")
        assert batch.variance_standard_error.shape == (4, 1, 10, 2)
        assert torch.allclose(batch.variance.reshape(40, 2), prediction.variance, rtol=1e-12)
        assert torch.allclose(batch.variance_standard_error.reshape(40, 2), prediction.variance_standard_error)
    single = model().condition(x.float(), y.float()).predict(x_test.float(), variance="sampled")
    assert single.variance.dtype == single.variance_standard_error.dtype == torch.float32
    posterior = by(model(), x, y, "recomputed", seed=3)
    first = posterior.predict(x_test, variance="sampled").variance
    assert torch.equal(by(model(), x, y, "recomputed", seed=3).predict(x_test, variance="sampled").variance, first)
    assert not torch.equal(by(model(), x, y, "recomputed").predict(x_test, variance="sampled").variance, first)
    probes = posterior.state.cache.variance_probes
    assert torch.equal(posterior.predict(x_test, variance="sampled").variance, first)
    assert posterior.state.cache.variance_probes is probes is not None


def test_a_float32_factor_that_is_off_by_less_than_samples_stays() -> None:
    """By more than its share, so that it is said, once; exact solves are taken where they are asked for."""
    settings = {"max_error": 1e-3, "max_sampled_error": 0.2, **LOOKED}  # the factor is off by 1 to 2 %
    x, y, x_test = data(300)
    gp = model(3e-4, k.RBF(0.5))
    posterior = by(gp, x, y, "refined")
    prediction = predicted(posterior, x_test, **settings)
    with pytest.warns(fgp.FlashGPWarning, match="float32 factor, off by at most"):
        variance = prediction.variance
    assert prediction.variance_standard_error is None
    (event,) = of_kind(prediction.report.events, EventKind.VARIANCE_BY_FACTOR)
    assert event.fields["instead"] is None
    wanted = gp.condition(x, y).predict(x_test).variance
    assert 1e-3 < float((variance / wanted - 1.0).abs().max()) < 0.2
    with warnings.catch_warnings():
        warnings.simplefilter("error", fgp.FlashGPWarning)
        assert torch.allclose(predicted(posterior, x_test, **settings).variance, variance, rtol=1e-3)
    exact = predicted(posterior, x_test, "exact", **settings)
    assert float((exact.variance / wanted - 1.0).abs().max()) < SHARE
    assert any(event.fields.get("instead") == "corrected" for event in exact.report.events)


def test_a_float32_factor_whose_variances_are_no_numbers_gives_way() -> None:
    x, y, x_test = data(200)
    post = by(model(), x, y, "refined")
    broken = Factor(torch.full_like(post.factor.lower, torch.nan), post.factor.jitter)
    broken = fgp.Posterior(dataclasses.replace(post.state, factor=broken))
    found = predicted(broken, x_test, correction_seconds=0.0).variance
    assert torch.allclose(found, model().condition(x, y).predict(x_test).variance, rtol=SHARE)


def test_a_float32_factor_whose_rounding_matters_gives_way() -> None:
    x, y, x_test = data(300)
    for noise, sampled in ((1e-1, False), (1e-5, True)):
        gp = model(noise, k.RBF(0.5))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", fgp.FlashGPWarning)
            posterior = by(gp, x, y, "refined")
            prediction = predicted(posterior, x_test, **LOOKED)
            assert (prediction.variance_standard_error is not None) == sampled
        (event,) = of_kind(prediction.report.events, EventKind.VARIANCE_BY_FACTOR)
        assert event.fields["instead"] == ("sampled" if sampled else None)
        if sampled:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", fgp.FlashGPWarning)
                joint = predicted(posterior, x_test, **LOOKED)
                joint.covariance()
            assert any(event.fields.get("instead") == "corrected" for event in joint.report.events), "by exact solves"
        wanted = gp.condition(x, y).predict(x_test).variance
        assert float((prediction.variance / wanted - 1.0).square().mean().sqrt()) <= 0.1


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


def test_a_solve_that_does_not_begin_another_pass_has_not_ended_in_time() -> None:
    """Where the next pass would end too late the solve ends before the time is up. Seen red: it counted as in time."""
    x, y, x_test = data(120)
    state = by(model(), x, y, "recomputed").state
    cross = state.covariance_to(state.prior.kernel.rows(x_test[:5]), F64).to_dense().mT
    clock = Clock()
    ended = explained(state.solves, cross, torch.ones(5, dtype=F64), Limits(Deadline(1.0, 1e-9, clock)))
    assert not ended.in_time
    assert clock() < 1e-9
    assert explained(state.solves, cross, torch.ones(5, dtype=F64)).in_time


def test_unfinished_samples_go_on_where_there_is_more_time() -> None:
    x, y, x_test = data(120)
    posterior = by(model(), x, y, "recomputed")

    def unfinished(seconds: float) -> bool | None:
        limited = VarianceSettings(
            sampled_seconds=0.0, limit_seconds=seconds, sizes=(ProbeSizes(8, 0, 64),), features=0
        )
        prediction = predicted(posterior, x_test, variances=limited)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", fgp.FlashGPWarning)
            prediction.variance  # noqa: B018
        (event,) = of_kind(prediction.report.events, EventKind.VARIANCE_BY_SAMPLES)
        return event.fields["unfinished"]

    assert unfinished(0.0) is True
    assert unfinished(60.0) is None
    assert unfinished(0.0) is None, "kept"


def test_outputs_share_the_time() -> None:
    x, y, x_test = data(120)
    gp = fgp.GP(1.0 * fgp.kernels.RBF([1.0, 1.0]), outputs=2)
    posterior = by(gp, x, torch.stack([y, y], dim=-1), "recomputed")
    least = price_of(posterior.state.parts[0], 200, "exact", True).least_seconds
    for share, refused in ((1.5, True), (2.5, False)):
        prediction = posterior.predict(x_test, variance="exact", time_limit=share * least, deterministic=True)
        with pytest.raises(fgp.DomainError, match="`time_limit`") if refused else warnings.catch_warnings():
            warnings.simplefilter("ignore", fgp.FlashGPWarning)
            prediction.variance  # noqa: B018


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
