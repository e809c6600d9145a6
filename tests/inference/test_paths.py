"""Paths are functions, and have the posterior's distribution, eq. (M-94)."""

from collections.abc import Callable

import pytest
import torch

import flashgp as fgp
from flashgp.foundations.errors import DomainError, MemoryBudgetError, ShapeError
from flashgp.inference.predict import paths, prior_draws
from inference.allocations import Allocations
from inference.plain_gp import F64, PlainGP, data

K = fgp.kernels
CASES = {
    "random features": lambda: 1.3 * K.Matern(2.5, torch.tensor([0.8, 1.4], dtype=F64)),
    "finite rank": lambda: K.Linear(0.5) + 0.7,
    "product of sums": lambda: (K.RBF(1.2) + 0.3) * (K.Linear(0.2) + K.Matern(0.5, 2.0)),
    "drawn as asked": lambda: K.Custom(lambda x, z, s: torch.minimum((s * x).exp(), (s * z).exp()).sum(), s=0.4),
}


def gp_of(kernel: K.Kernel, noise: float = 0.05, **options: object) -> fgp.GP:
    likelihood = fgp.likelihoods.Gaussian(noise_variance=noise)
    return fgp.GP(kernel, fgp.means.Constant(0.4), likelihood, **options)  # type: ignore[arg-type]


def moments(post: fgp.Posterior, x_test: torch.Tensor, seeds: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and standard error over seeds of (values, centred products), so that features are averaged over too."""
    truth = post.predict(x_test).mean
    means, products = [], []
    for seed in range(seeds):
        values = post.paths(count, features=256, seed=seed)(x_test)
        means.append(values.mean(0))
        products.append((values - truth).mT @ (values - truth) / count)
    found = [torch.stack(parts) for parts in (means, products)]
    errors = torch.cat([f.std(0).flatten() / seeds**0.5 for f in found])
    return torch.cat([f.mean(0).flatten() for f in found]), errors


@pytest.mark.parametrize("name", CASES)
def test_mean_and_covariance_are_the_posteriors(name: str) -> None:
    x, y = data(9)
    post = gp_of(CASES[name]()).condition(x, y)
    x_test = data(5, seed=3)[0]
    plain = PlainGP(post.gp, x, y)
    if name == "drawn as asked":  # the definition of this kernel is not among the plain formulas
        wanted = (post.predict(x_test).mean, post.predict(x_test).covariance())
    else:
        wanted = plain.predict(x_test)
    found, errors = moments(post, x_test, seeds=25, count=40)
    expected = torch.cat([part.detach().flatten() for part in wanted])
    assert bool(((found - expected).abs() <= 4.5 * errors + 1e-9).all())
    assert bool((errors < 0.2).all()), "the test must be able to see an error"


def test_a_path_is_one_function() -> None:
    x, y = data(9)
    f = gp_of(CASES["product of sums"]()).condition(x, y).paths(3, features=64, seed=1)
    points = data(20, seed=3)[0]
    whole = f(points)
    torch.testing.assert_close(torch.cat([f(points[:7]), f(points[7:])], dim=-1), whole, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(f(points.flip(0)), whole.flip(-1), rtol=1e-10, atol=1e-10)
    assert f(points[:0]).shape == (3, 0)


def test_tiles_change_nothing() -> None:
    """Points are taken tile by tile, with gradients and without."""
    x, _ = data(9)
    gp = gp_of(CASES["random features"]())
    f = prior_draws.prior_draws(gp, x, torch.Size([]), 3, 64, torch.Generator().manual_seed(1))
    assert isinstance(f, prior_draws.FeatureDraws)
    points = data(20, seed=3)[0].requires_grad_()
    whole = f(points)
    (gradient,) = torch.autograd.grad(whole.square().sum(), points)
    f = prior_draws.FeatureDraws(f.features, f.weights, tile_bytes=8 * 64 * 6)
    tiled = f(points)
    torch.testing.assert_close(tiled, whole)
    torch.testing.assert_close(torch.autograd.grad(tiled.square().sum(), points)[0], gradient)
    torch.testing.assert_close(f(points.detach()), whole.detach())


@pytest.mark.parametrize("name", ["random features", "finite rank", "product of sums"])
def test_differentiable_in_points(name: str) -> None:
    x, y = data(7)
    f = gp_of(CASES[name]()).condition(x, y).paths(2, features=16, seed=1)
    points = data(3, seed=3)[0].requires_grad_()
    assert torch.autograd.gradcheck(f, (points,))
    assert not f(points.detach()).requires_grad


def test_differentiable_in_parameters() -> None:
    """From `condition(differentiable=True)`: by finite differences of the same seed."""
    x, y = data(7)
    points = data(3, seed=3)[0]
    gp = gp_of(CASES["random features"]())
    raw = gp.kernel.kernel.lengthscale.raw

    def value() -> torch.Tensor:
        return gp.condition(x, y, differentiable=True).paths(2, features=16, seed=1)(points).square().sum()

    (gradient,) = torch.autograd.grad(value(), raw)
    step = 1e-5
    with torch.no_grad():
        for k in range(2):
            raw[k] += step
            above = value()
            raw[k] -= 2 * step
            below = value()
            raw[k] += step
            assert float(gradient[k]) == pytest.approx(float(above - below) / (2 * step), rel=1e-5)


def test_noise_free_paths_pass_through_the_data() -> None:
    x, y = data(9)
    post = gp_of(CASES["random features"](), noise=0.0).condition(x, y)
    f = post.paths(4, features=128, seed=0)
    torch.testing.assert_close(f(x), y.expand(4, -1), rtol=1e-7, atol=1e-7)
    assert f.report.error_bound is None
    assert f.report.relative_residual < 1e-10


def test_rows_have_their_own_noise() -> None:
    """A row with next to no variance is met, one with much is not."""
    x, y = data(9)
    likelihood = fgp.likelihoods.Gaussian(None, row_variance=torch.tensor([1e-10] + [4.0] * 8, dtype=F64))
    f = fgp.GP(CASES["random features"](), likelihood=likelihood).condition(x, y).paths(50, seed=0)
    spread = f(x).std(0)
    assert float(spread[0]) < 1e-4
    assert float(spread[1:].min()) > 0.1


def test_without_data_a_path_is_a_draw_of_the_prior() -> None:
    gp = gp_of(CASES["random features"]())
    post = gp.condition(torch.zeros(0, 2, dtype=F64), torch.zeros(0, dtype=F64))
    points = data(4, seed=3)[0]
    found, errors = moments(post, points, seeds=30, count=60)
    wanted = torch.cat([torch.full((4,), 0.4, dtype=F64), gp.kernel(points).to_dense().detach().flatten()])
    assert bool(((found - wanted).abs() <= 4.5 * errors).all())
    f = post.paths(2, seed=0)
    f(points)
    assert f.prior_error is not None
    assert "2,048 random features: prior error" in str(f.report)


def test_outputs_and_batches_are_independent() -> None:
    x, y = data(8)
    gp = fgp.GP(torch.ones(2) * K.RBF(), fgp.means.Zero(), outputs=2)
    post = gp.condition(x, torch.stack([y, -y], -1))
    points = data(3, seed=3)[0]
    f = post.paths(2000, features=256, seed=1)
    values = f(points)
    assert values.shape == (2000, 2, 3, 2)
    mean = post.predict(points).mean
    error = values.std(0) / 2000**0.5
    assert bool(((values.mean(0) - mean).abs() < 4.5 * error + 1e-9).all())
    correlation = torch.corrcoef(values[:, :, 0, :].reshape(2000, 4).mT) - torch.eye(4, dtype=F64)
    assert float(correlation.abs().max()) < 4 / 2000**0.5
    batched = f(points.expand(2, 3, 2))
    torch.testing.assert_close(batched, values)
    with pytest.raises(ShapeError, match="`x` has batch shape"):
        f(points.expand(3, 3, 2))


def test_float32() -> None:
    """Points and values in float32; a float32 factor is corrected until the answer is that of float64."""
    x, y = data(40)
    gp = gp_of(CASES["random features"](), noise=1e-4)
    points = data(6, seed=3)[0]
    exact = gp.condition(x, y).paths(5, seed=2)
    single = gp.condition(x.float(), y.float(), dtype=torch.float32).paths(5, seed=2)
    values = single(points.float())
    assert values.dtype == torch.float32
    allowed = 1e-2 * 1e-4**0.5 + 1e-3  # tolerance, and float32 inputs
    assert float((values - exact(points)).abs().max()) < allowed
    rough = gp.condition(x, y, dtype=torch.float32).paths(5, seed=2)
    assert float((rough(points) - exact(points)).abs().max()) < 1e-3 * 1e-4**0.5
    assert rough.report.error_bound is not None


def test_the_report() -> None:
    """(M-95): the prior error is what it says, exact is said of finite ranks only; the bound of (M-37)."""
    x, y = data(50)
    kernel = CASES["random features"]()
    post = gp_of(kernel).condition(x, y)
    few, many = post.paths(2, features=64, seed=0), post.paths(2, features=4096, seed=0)
    psi = post.gp.kernel.features(64, torch.Generator().manual_seed(0))(x)
    exact = kernel(x).to_dense().detach()
    wanted = ((psi @ psi.mT - exact) / 1.3).square().mean().sqrt()
    assert few.prior_error == pytest.approx(float(wanted))
    assert many.prior_error < 0.4 * few.prior_error
    assert "prior error" in str(few.report)
    assert "exact" not in str(few.report)
    assert few.report.relative_residual < 1e-12
    assert 0.0 <= few.report.error_bound < 1e-8
    assert repr(few).startswith("2 posterior functions of 50 rows\n")
    assert "<table>" in few._repr_html_()
    finite = gp_of(CASES["finite rank"]()).condition(x, y).paths(2, seed=0)
    assert finite.prior_error == 0.0
    assert "the prior is exact" in str(finite.report)


def test_what_pivots_leave() -> None:
    """(M-95): the missing share of the trace."""
    x = torch.linspace(0.0, 1.0, 30, dtype=F64).unsqueeze(-1)
    gp = gp_of(K.Custom(lambda a, b: torch.exp(-(a - b).abs().sum()), columns=1))
    rows = gp.kernel(x).to_dense()
    pivots, _, residual = prior_draws.pivots_of(gp, x, 10, torch.Generator().manual_seed(4))
    cross = rows[:, pivots]
    left = rows.diagonal().sum() - (cross @ torch.linalg.solve(cross[pivots], cross.mT)).trace()
    assert residual == pytest.approx(float(left / 30), rel=1e-9)


def test_pivots_stop_where_nothing_is_left() -> None:
    x = torch.linspace(0.0, 1.0, 30, dtype=F64).unsqueeze(-1)
    pivots, _, residual = prior_draws.pivots_of(gp_of(K.Linear() + 1.0), x, 30, torch.Generator().manual_seed(4))
    assert pivots.numel() == 2
    assert residual < 1e-12


def test_seeds() -> None:
    x, y = data(9)
    post = gp_of(CASES["random features"]()).condition(x, y)
    points = data(4, seed=3)[0]
    torch.manual_seed(3)
    before = torch.get_rng_state()
    assert torch.equal(post.paths(2, seed=9)(points), post.paths(2, seed=9)(points))
    assert not torch.equal(post.paths(2, seed=9)(points), post.paths(2, seed=8)(points))
    assert torch.equal(torch.get_rng_state(), before)
    first = post.paths(2)(points)
    after = torch.get_rng_state()
    torch.set_rng_state(before)
    assert int(torch.randint(2**63 - 1, ())) >= 0
    assert torch.equal(torch.get_rng_state(), after), "one integer is drawn"
    torch.manual_seed(3)
    assert torch.equal(post.paths(2)(points), first)


def test_counts() -> None:
    x, y = data(9)
    post = gp_of(CASES["random features"]()).condition(x, y)
    assert post.paths(0, seed=0)(x).shape == (0, 9)
    for count in (-1, 1.5, True):
        with pytest.raises(DomainError, match="`count` must be a whole number, 0 or more"):
            post.paths(count)
    with pytest.raises(DomainError, match="`count` must be a whole number, 2 or more"):
        post.paths(2, features=1)


@pytest.mark.parametrize("options", [{}, {"solver": "cg"}], ids=str)
def test_memory_is_announced_and_what_does_not_fit_refused(
    options: dict[str, object], set_free_memory: Callable[..., int]
) -> None:
    x, y = data(1500)
    post = gp_of(K.RBF(0.7)).condition(x, y, **options)  # type: ignore[arg-type]
    post.paths(2, seed=0)
    with Allocations() as seen:
        report = post.paths(1024, seed=0).report
    assert report.predicted_bytes is not None
    assert 0.6 * report.predicted_bytes <= seen.peak <= report.predicted_bytes
    set_free_memory(report.predicted_bytes // 4 + 1024)
    with pytest.raises(MemoryBudgetError, match="draw at most 256 at a time") as caught:
        paths.draw_paths(post.state, 1024, 1024, 0, unchecked_bytes=0)
    assert caught.value.needed_bytes == report.predicted_bytes
    assert paths.draw_paths(post.state, 256, 1024, 0, unchecked_bytes=0).count == 256


def test_what_fits_is_counted_in_functions_of_all_outputs(set_free_memory: Callable[..., int]) -> None:
    x, y = data(30)
    post = fgp.GP(K.RBF(0.7), outputs=2).condition(x, torch.stack([y, -y], dim=-1))
    needed = post.paths(64, seed=0).report.predicted_bytes
    set_free_memory(needed // 4 + 1024)
    with pytest.raises(MemoryBudgetError, match="draw at most 16 at a time"):
        paths.draw_paths(post.state, 64, 1024, 0, unchecked_bytes=0)
    assert paths.draw_paths(post.state, 16, 1024, 0, unchecked_bytes=0).count == 16
    set_free_memory(needed // 100)
    with pytest.raises(MemoryBudgetError, match="free; free some memory"):
        paths.draw_paths(post.state, 64, 1024, 0, unchecked_bytes=0)


@pytest.mark.parametrize("kernel", [K.Matern(), K.Custom(lambda x, z: torch.minimum(x.exp(), z.exp()).sum())])
def test_a_batch_of_no_models_has_paths(kernel: K.Kernel) -> None:
    post = gp_of(kernel).condition(torch.zeros(0, 4, 1, dtype=F64), torch.zeros(0, 4, dtype=F64))
    assert post.paths(3, features=8, seed=0)(torch.zeros(0, 2, 1, dtype=F64)).shape == (3, 0, 2)
