"""Variances from sampled deviations, eqs. (M-96) and (M-97): right on average, and intervals that hold the truth."""

import pytest
import torch

import flashgp as fgp
from flashgp.foundations.errors import DomainError, ShapeError
from flashgp.inference.predict.prior_draws import pivots_of
from flashgp.inference.predict.sampled_variance import (
    SampledVariance,
    deviation_interval,
    deviation_moments,
    variance_probes,
)
from flashgp.planner.variances import ProbeSizes
from flashgp.solvers.contract import Limits
from inference.plain_gp import F64

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


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """(M-97) with Gaussian deviations, from no control (v_C far above v) to nearly all: 93 to 97 % of many trials."""
    generator = torch.Generator().manual_seed(5)
    for share in (1e-3, 0.2, 0.5, 0.9, 0.999):
        normal = torch.randn(2, 4000, 64, generator=generator, dtype=F64)
        d, h = share**0.5 * normal[0], (1 - share) ** 0.5 * normal[1]
        bound = torch.full((4000,), 4.0, dtype=F64)
        found = deviation_interval(deviation_moments(2 * d, 2 * h, bound), 64, bound)
        v = 4 * share
        assert 0.93 < float(((found.lower <= v) & (v <= found.upper)).double().mean()) < 0.97
        error = found.variance - v
        assert abs(float(error.mean())) < 0.15 * float(error.std())
        assert float(found.standard_error.mean()) == pytest.approx(float(error.std()), rel=0.06)
        assert found.dispersion < 1.02
        expected = 4 * (2 / 64) ** 0.5 * share * (1 - share) / (share**2 + (1 - share) ** 2) ** 0.5
        assert float(error.std()) == pytest.approx(expected, rel=0.06)
        assert bool(((found.lower < found.variance) & (found.variance < found.upper)).all())
        assert bool((found.upper < found.bound).all())


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_dispersion_widens_the_interval(share: float) -> None:
    """Deviations with heavier tails than Gaussian: intervals as wide as their scatter needs, whichever decides v."""
    generator = torch.Generator().manual_seed(5)
    normal = torch.randn(2, 4000, 64, generator=generator, dtype=F64)
    scale = torch.where(torch.rand(2, 4000, 64, generator=generator) < 0.5, 0.4, 1.6).double().sqrt()
    d, h = scale * normal
    bound = torch.ones(4000, dtype=F64)
    found = deviation_interval(deviation_moments(d * share**0.5, h * (1 - share) ** 0.5, bound), 64, bound)
    assert 1.3 < found.dispersion < 1.7
    assert 0.93 < float(((found.lower <= share) & (found.upper >= share)).double().mean()) < 0.97


@pytest.mark.parametrize(("d", "noise"), [(2, 1e-1), (4, 1e-3), (2, 1e-5), (4, 1e-5)])
def test_coverage_and_accuracy(d: int, noise: float) -> None:
    """Matern-3/2: the error is far below that of plain deviations, (2 / S)^(1/2), and what the interval says."""
    post, x_test = posterior(200, d, noise)
    v = post.predict(x_test).variance
    covered, errors, scores = [], [], []
    for seed in range(4):
        found = variance_probes(post.state, ProbeSizes(64, 40, 24), factor=_factor(post, 40), features=256, seed=seed)(
            x_test
        )
        covered.append(((found.lower <= v) & (v <= found.upper)).double().mean())
        errors.append((found.variance / v - 1).square().mean().sqrt())
        scores.append((found.variance - v) / found.standard_error)
        assert bool((found.bound >= v * (1 - 1e-9)).all())
    assert float(torch.stack(errors).mean()) < 0.25 * (2 / 64) ** 0.5
    assert 0.90 < float(torch.stack(covered).mean()) < 0.99
    assert 0.7 < float(torch.stack(scores).square().mean().sqrt()) < 1.4


@pytest.mark.parametrize("sizes", [ProbeSizes(16, 32, 96), ProbeSizes(8, 0, 128)])
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


def test_kernels_with_products_and_rows_without_noise() -> None:
    kernel = K.RBF(0.6) * K.Linear(0.7) + K.Matern(2.5, 0.5)
    post, x_test = posterior(60, 2, 0.01, kernel=kernel)
    found = variance_probes(post.state, ProbeSizes(32), seed=1)(x_test)
    v = post.predict(x_test).variance
    assert float((found.variance / v - 1).abs().max()) < 0.3
    same = variance_probes(post.state, ProbeSizes(32), seed=1)
    torch.testing.assert_close(same(x_test).variance, found.variance)
    torch.testing.assert_close(same(x_test[:5]).bound, found.bound[:5])
    assert same(x_test[:0]).variance.shape == (0,)
    exact = fgp.GP(kernel, likelihood=fgp.likelihoods.Gaussian(0.0)).condition(post.x[:20], post.x[:20, 0])
    at_rows = variance_probes(exact.state, ProbeSizes(8), seed=1)(post.x[:20])
    assert float(at_rows.variance.abs().max()) < 1e-6


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
