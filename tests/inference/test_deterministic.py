"""`deterministic=True`: the same seed gives the same bits, with one thread or several, on every route."""

import dataclasses
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.determinism import EVENT
from flashgp.inference.training.options import FitSettings
from flashgp.inference.training.settings import StochasticSettings
from inference.plain_gp import F64

N = 400
ROUTES = ("refined", "recomputed")
Answers = dict[str, Tensor]


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def data(n: int = N, n_test: int = 40) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, x_test = (torch.rand(size, 4, generator=generator, dtype=F64) for size in (n, n_test))
    y = torch.sin(5.0 * x[:, 0]) + x[:, 1] + 0.1 * torch.randn(n, generator=generator, dtype=F64)
    return x, y, x_test


def model() -> fgp.GP:
    kernel = 1.5 * fgp.kernels.Matern(nu=1.5, lengthscale=torch.full((4,), 0.5, dtype=F64))
    return fgp.GP(kernel, likelihood=fgp.likelihoods.Gaussian(1e-2))


def conditioned(route: str, **options: object) -> fgp.Posterior:
    gp, (x, y, _) = model(), data()
    return gp.condition(x, y, plan=fgp.plan(gp, n=N, d=4, route=route, deterministic=True), **options)


def answers(route: str) -> Answers:
    """All that a posterior answers, by numbers that take sums."""
    *_, x_test = data()
    posterior = conditioned(route, deterministic=True)
    exact, sampled = (posterior.predict(x_test, variance=way) for way in ("exact", "sampled"))
    paths = posterior.paths(2, seed=0, features=64)
    found = {
        "weights": posterior.representer_weights,
        "mean": exact.mean,
        "variance": exact.variance,
        "sampled variance": sampled.variance,
        "standard error": sampled.variance_standard_error,
        "covariance": exact.covariance(),
        "samples": exact.sample(2, seed=0),
        "joint density": exact.joint_log_prob(exact.mean + 0.1),
        "paths": paths(x_test),
        "likelihood": posterior.log_marginal_likelihood(),
    }
    if posterior.factor is not None:
        found["left out"] = posterior.leave_one_out().mean
    for report in (posterior.report, exact.report, sampled.report, paths.report):
        assert report.events[0] == EVENT
    return found


def with_threads(count: int, compute: Callable[[], Answers]) -> Answers:
    torch.set_num_threads(count)
    found = compute()
    assert torch.get_num_threads() == count
    return found


def differing(a: Answers, b: Answers) -> list[str]:
    assert a.keys() == b.keys()
    return [name for name in a if not torch.equal(a[name], b[name])]


@pytest.mark.parametrize("route", ROUTES)
def test_every_route_gives_the_same_bits(route: str) -> None:
    one = with_threads(1, lambda: answers(route))
    assert differing(one, with_threads(2, lambda: answers(route))) == []


def fitted(training: str, n: int) -> Answers:
    gp, (x, y, x_test) = model(), data(n)
    plan = dataclasses.replace(fgp.plan(gp, n=n, d=4, deterministic=True), training=training)
    settings = FitSettings(stochastic=StochasticSettings(first_rows=100, min_draws=20))
    fit = fgp.fit(gp, x, y, plan=plan, deterministic=True, starts=2, max_iterations=3, seed=3, settings=settings)
    assert EVENT in fit.report.events
    prediction = fit.posterior.predict(x_test)
    found = {"mean": prediction.mean, "variance": prediction.variance}
    found["path"] = torch.tensor([e.theta for e in fit.history], dtype=F64)
    return found


@pytest.mark.parametrize(("training", "n"), [("exact", 60), ("exact", 450), ("recomputed", 220)])
def test_fits_give_the_same_bits(training: str, n: int) -> None:
    """With exact gradients, of few rows too, and with estimated ones."""
    one = with_threads(1, lambda: fitted(training, n))
    assert differing(one, with_threads(2, lambda: fitted(training, n))) == []
