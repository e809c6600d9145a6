"""Terms of a covariance function given data, eqs. (M-410) and (M-411)."""

import copy
from typing import Any

import pytest
import torch

import flashgp as fgp
from flashgp.foundations.errors import DomainError
from inference.plain_gp import relative

F64 = torch.float64
k = fgp.kernels
NOISE = fgp.likelihoods.Gaussian(0.01)
R = torch.Generator().manual_seed(0)
X = 6.0 * torch.rand(90, 2, generator=R, dtype=F64)
Y = 1.5 * X[:, 0] + torch.sin(6.0 * X[:, 1]) + 0.1 * torch.randn(90, generator=R, dtype=F64) + 5.0
NEW = 6.0 * torch.rand(20, 2, generator=R, dtype=F64)
TREND, SEASON = 2.0 * k.RBF(3.0, active_dims=[0]), 0.7 * k.Periodic(period=1.05, active_dims=[1])
WAYS: list[dict[str, Any]] = [
    {},
    {"solver": "cg"},
    {"dtype": torch.float32},
    {"approximation": "sparse", "inducing": 40},
    {"approximation": "full_scale", "inducing": 20, "neighbours": 30},
]


def made(kernel: fgp.kernels.Kernel, mean: float = 4.0) -> fgp.GP:
    return fgp.GP(kernel, mean=fgp.means.Constant(mean), likelihood=NOISE)


def by_hand(post: fgp.Posterior, part: fgp.kernels.Kernel, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and covariance of f_i at x by the formula, dense."""
    whole = post.gp.kernel(post.x).to_dense() + 0.01 * torch.eye(len(post.x), dtype=F64)
    cross = part(x, post.x).to_dense()
    mean = cross @ torch.linalg.solve(whole, post.y - 4.0)
    return mean, part(x).to_dense() - cross @ torch.linalg.solve(whole, cross.mT)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_means_add_up_to_the_whole_without_the_prior_mean(way: dict[str, Any]) -> None:
    post = made(TREND + SEASON + k.Linear()).condition(X, Y, **way)
    parts = post.components
    assert [one.number for one in parts] == [0, 1, 2]
    assert relative(sum(one.predict(NEW).mean for one in parts), post.predict(NEW).mean - 4.0) < 1e-9
    assert float(sum(one.share + one.share_with_others for one in parts)) == pytest.approx(1.0)


@pytest.mark.parametrize("points", [3, 20])
def test_moments_are_those_of_the_formula(points: int) -> None:
    post = made(TREND + SEASON).condition(X, Y)
    for part, kernel in zip(post.components, (TREND, SEASON), strict=True):
        mean, joint = by_hand(post, kernel, NEW[:points])
        found = part.predict(NEW[:points])
        assert relative(found.mean, mean) < 1e-9
        assert relative(found.variance, joint.diagonal()) < 1e-8
        assert relative(found.covariance(), joint) < 1e-8
        low, high = found.interval(0.95)
        assert relative(high - low, 2 * 1.959963984540054 * found.std) < 1e-9  # of the function, without noise
        assert found.sample(3, seed=0).shape == (3, points)


@pytest.mark.parametrize("way", [*WAYS, {"approximation": "fourier"}], ids=str)
def test_one_term_is_the_whole(way: dict[str, Any]) -> None:
    post = made(TREND, 0.0).condition(X, Y, **way)
    (only,) = post.components
    found, whole = only.predict(NEW), post.predict(NEW, variance="exact")
    assert relative(found.mean, whole.mean) < 1e-9
    assert relative(found.variance, whole.variance) < 1e-6
    assert float(only.share) == pytest.approx(1.0)
    assert float(only.share_with_others) == pytest.approx(0.0, abs=1e-9)


def test_sums_in_scales_and_products_are_multiplied_out() -> None:
    a, b, c, scale = k.RBF(1.0), k.Matern(lengthscale=2.0), k.Linear(), fgp.Parameter(3.0)
    nested = k.Scaled(a + 2.0 * (b + c), scale)
    post = made(nested * (k.Periodic() + 0.5)).condition(X, Y)
    parts = post.components
    assert len(parts) == 6
    total = sum(part.kernel(NEW).to_dense() for part in parts)
    assert relative(total, post.gp.kernel(NEW).to_dense()) < 1e-12
    assert len(made(a * b).condition(X, Y).components) == 1


def test_independent_columns_are_told_apart() -> None:
    """Data of two functions, each of its own column: each term finds its own."""
    post = made(TREND + SEASON).condition(X, Y)
    trend, season = (part.predict(NEW) for part in post.components)
    wave = torch.sin(6.0 * NEW[:, 1])
    error = season.mean - wave
    assert float((error - error.mean()).std()) < 0.1  # an offset may be either's
    moved = NEW.clone()
    moved[:, 1] += 1.0
    assert torch.equal(post.component(0).predict(moved).mean, trend.mean)


def test_after_rows_join_it_is_that_of_all() -> None:
    gp = made(TREND + SEASON)
    joined, batch = gp.condition(X[:80], Y[:80]).append(X[80:], Y[80:]), gp.condition(X, Y)
    for one, other in zip(joined.components, batch.components, strict=True):
        assert relative(one.predict(NEW).mean, other.predict(NEW).mean) < 1e-8
        assert relative(one.predict(NEW).variance, other.predict(NEW).variance) < 1e-7


def test_repeated_rows_and_labels() -> None:
    twice = made(TREND + SEASON).condition(torch.cat([X, X]), torch.cat([Y, Y]))
    assert twice.replicates is not None
    total = sum(part.predict(NEW).mean for part in twice.components)
    assert relative(total, twice.predict(NEW).mean - 4.0) < 1e-9
    labels = fgp.GP(TREND + SEASON, likelihood=fgp.likelihoods.Bernoulli()).condition(X, (Y.mean() < Y).double())
    parts = [part.predict(NEW).mean for part in labels.components]
    mean = labels.gp.mean_at(NEW).squeeze(-1).detach()
    assert relative(parts[0] + parts[1] + mean, labels.predict(NEW).mean) < 1e-9


def test_outputs_and_batches() -> None:
    shared = fgp.GP(TREND + SEASON, outputs=2, likelihood=fgp.likelihoods.Gaussian(0.01, shared=True))
    post = shared.condition(X, torch.stack([Y, -Y], 1))
    total = sum(part.predict(NEW).mean for part in post.components)
    assert relative(total, post.predict(NEW).mean - post.gp.mean_at(NEW).detach()) < 1e-9
    assert post.components[0].share.shape == (2,)
    own = fgp.GP(TREND + SEASON, outputs=2).condition(X, torch.stack([Y, Y], 1))
    assert "by_output[j].component" in str(own.can("component"))
    assert len(own.by_output[1].components) == 2
    batch = made(k.RBF(torch.tensor([[1.0], [2.0]])) + SEASON).condition(X, Y)
    assert batch.component(0).predict(NEW).mean.shape == (2, 20)
    assert batch.component(0).share.shape == (2,)


def test_a_term_is_found_by_the_kernel_that_it_was_made_of() -> None:
    trend, season = copy.deepcopy(TREND), copy.deepcopy(SEASON)
    post = made(trend + season).condition(X, Y)
    season.kernel.period.value = 2.0  # what a fit would do
    assert post.component(season).number == post.component(season.kernel).number == 1
    assert post.component(post.gp.kernel.parts[0]).number == 0
    alike = made(k.RBF(1.0) + 2.0 * k.RBF(3.0)).condition(X, Y)
    assert alike.component(k.RBF(3.0)).number == 0, "the only one without a scale"
    twins = made(2.0 * k.RBF(1.0) + 2.0 * k.RBF(3.0)).condition(X, Y)
    assert twins.component(k.RBF(3.0)).number == 1, "the one with its values"
    for part in (k.RBF(2.0), k.Matern(), 2, -1, True, "trend"):
        with pytest.raises(DomainError, match=r"`part` must be the number of a term.*pass one of 0: variance"):
            twins.component(part)  # type: ignore[arg-type]


def test_full_scale_with_all_rows_as_neighbours_is_exact() -> None:
    gp = made(TREND + SEASON)
    whole = gp.condition(X, Y, approximation="full_scale", inducing=20, neighbours=90)
    for one, other in zip(whole.components, gp.condition(X, Y).components, strict=True):
        assert relative(one.predict(NEW).mean, other.predict(NEW).mean) < 1e-4
        assert relative(one.predict(NEW).variance, other.predict(NEW).variance) < 1e-4
        assert relative(one.predict(NEW).covariance(), other.predict(NEW).covariance()) < 1e-4


def test_a_mixture_has_no_terms() -> None:
    fit = fgp.fit(made(TREND + SEASON), X[:30], Y[:30], starts=1, uncertainty="laplace", max_iterations=5)
    assert "one set of hyperparameters" in str(fit.posterior.can("component"))
    shown = str(fit.posterior.predict(NEW)).splitlines()
    assert shown[2].split()[1] == f"{float(fit.posterior.predict(NEW).mean[0]):.4g}"


def test_gradients_reach_the_points() -> None:
    post = made(TREND + SEASON).condition(X, Y)
    x = NEW.clone().requires_grad_()
    (slope,) = torch.autograd.grad(post.component(0).predict(x).mean.sum(), x)
    assert float(slope[:, 1].abs().max()) == 0.0
    assert float(slope[:, 0].abs().max()) > 0.1


def test_shares_need_two_rows_and_are_none_of_what_does_not_vary() -> None:
    gp = fgp.GP(TREND + SEASON)
    for count in (0, 1):
        with pytest.raises(fgp.DomainError, match=f"of which it needs 2, got {count}"):
            _ = gp.condition(X[:count], Y[:count]).component(0).share
    flat = gp.condition(X[:5], torch.zeros_like(Y[:5])).component(1)
    assert float(flat.share) == float(flat.share_with_others) == 0.0
