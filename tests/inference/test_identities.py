"""Identities that hold for any Gaussian process: no data, one row, repeats, permutations, more data, linearity."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import flashgp as fgp
from inference.plain_gp import F64, data, model, relative

k, m, lik = fgp.kernels, fgp.means, fgp.likelihoods


@pytest.mark.parametrize("outputs", [None, 2])
def test_no_test_rows(outputs: int | None) -> None:
    x, y = data(4)
    y = y if outputs is None else torch.stack([y, y], -1)
    found = fgp.GP(k.RBF(), outputs=outputs).condition(x.float(), y).predict(x[:0].float())
    shape = (0,) if outputs is None else (0, 2)
    for value in (found.mean, found.variance, found.observation_variance, found.quantile(0.3), found.log_prob(y[:0])):
        assert value.shape == shape
        assert value.dtype == torch.float32
    assert found.covariance().shape == (*shape[1:], 0, 0)
    assert found.sample(2, seed=0).shape == (2, *shape)
    assert found.joint_log_prob(y[:0]) == 0.0


@pytest.mark.parametrize(
    "kernel", [None, k.Custom(lambda x, z, scale: torch.minimum(scale * x.exp(), scale * z.exp()).sum(), scale=0.7)]
)
def test_an_empty_batch(kernel: k.Kernel | None) -> None:
    """Of a formula, and of a function that goes pair by pair."""
    gp = model() if kernel is None else fgp.GP(kernel)
    posterior = gp.condition(torch.zeros(0, 5, 2, dtype=F64), torch.zeros(0, 5, dtype=F64))
    found = posterior.predict(data(3)[0])
    assert found.mean.shape == (0, 3)
    assert found.variance.shape == (0, 3)
    assert posterior.log_marginal_likelihood().shape == (0,)
    values = gp.log_marginal_likelihood(torch.zeros(0, 5, 2, dtype=F64), torch.zeros(0, 5, dtype=F64))
    assert values.shape == (0,)
    values.sum().backward()
    assert all(p.grad is None or not bool(p.grad.any()) for p in gp.parameters())
    assert gp.kernel(torch.zeros(0, 5, 2, dtype=F64)).diagonal().shape == (0, 5)


@pytest.mark.parametrize("noise", [0.3, None])
def test_a_row_of_weight_two_is_two_rows(noise: float | None) -> None:
    """Two observations a, b at one x, each of variance s, say what their mean says with variance s / 2, eq. (M-28).

    Weights 2 of these means and 1 of other rows have the geometric mean sqrt 2, which noise_variance is divided by,
    (M-251).

    N(a; f, s) N(b; f, s) = N((a + b)/2; f, s/2) N(a - b; 0, 2 s): the change of variables has determinant 1, so that
    the likelihoods differ by the last factor, which no parameter but s enters.
    """
    x, y = data(6)
    generator = torch.Generator().manual_seed(2)
    weight = torch.tensor([2.0, 2.0, 2.0, 1.0, 1.0, 1.0], dtype=F64)
    half = torch.where(weight > 1.0, 0.4 * torch.randn(6, generator=generator, dtype=F64), 0.0)
    kernel, mean = 1.2 * k.Matern(2.5), m.Constant(0.1)
    if noise is None:
        twice, s = lik.Gaussian(None, row_variance=torch.full((9,), 0.3, dtype=F64)), 0.3
        once = lik.Gaussian(None, row_variance=0.3 / weight)
    else:
        twice, s = lik.Gaussian(noise), noise
        once = lik.Gaussian(noise / math.sqrt(2.0), row_weight=weight)
    two = fgp.GP(kernel, mean, twice).condition(torch.cat([x, x[:3]]), torch.cat([y + half, (y - half)[:3]]))
    one = fgp.GP(kernel, mean, once).condition(x, y)
    x_test, _ = data(5, seed=9)
    differences = -0.5 * ((2 * half[:3]) ** 2 / (2 * s) + math.log(2 * s) + math.log(2 * math.pi))
    wanted = one.log_marginal_likelihood() + differences.sum()
    assert relative(two.log_marginal_likelihood(), wanted) < 1e-12
    assert relative(two.predict(x_test).mean, one.predict(x_test).mean) < 1e-12
    assert relative(two.predict(x_test).covariance(), one.predict(x_test).covariance()) < 1e-12


@settings(max_examples=5)
@given(seed=st.integers(0, 2**31), order=st.permutations(range(7)))
def test_the_order_of_rows_does_not_matter(seed: int, order: list[int]) -> None:
    x, y = data(7, seed=seed)
    x_test, _ = data(3, seed=seed + 1)
    noise, weight = torch.linspace(0.1, 0.4, 7), torch.linspace(0.5, 2.0, 7)
    kernel = k.Matern(1.5, torch.tensor([0.7, 1.3]))
    one = fgp.GP(kernel, None, lik.Gaussian(0.1, noise, weight)).condition(x, y)
    two = fgp.GP(kernel, None, lik.Gaussian(0.1, noise[order], weight[order])).condition(x[order], y[order])
    assert relative(two.predict(x_test).mean, one.predict(x_test).mean) < 1e-12
    assert relative(two.predict(x_test).covariance(), one.predict(x_test).covariance()) < 1e-12
    assert relative(two.log_marginal_likelihood(), one.log_marginal_likelihood()) < 1e-12
    assert relative(two.leave_one_out().mean, one.leave_one_out().mean[order]) < 1e-12


@settings(max_examples=5)
@given(seed=st.integers(0, 2**31), keep=st.integers(0, 9))
def test_more_data_never_raise_a_variance(seed: int, keep: int) -> None:
    x, y = data(10, seed=seed)
    x_test, _ = data(6, seed=seed + 1)
    gp = fgp.GP(k.RBF(0.8) * (k.Linear(0.3) + 1.0), None, lik.Gaussian(0.05))
    few = gp.condition(x[:keep], y[:keep]).predict(x_test).variance
    more = gp.condition(x, y).predict(x_test).variance
    assert bool((more <= few * (1 + 1e-12)).all())


@settings(max_examples=5)
@given(seed=st.integers(0, 2**31), a=st.floats(-3, 3), b=st.floats(-3, 3))
def test_the_mean_is_linear_in_y(seed: int, a: float, b: float) -> None:
    x, y = data(8, seed=seed)
    _, z = data(8, seed=seed + 1)
    x_test, _ = data(4, seed=seed + 2)
    gp = fgp.GP(1.4 * k.Matern(0.5), m.Zero(), lik.Gaussian(0.1))

    def mean(target: torch.Tensor) -> torch.Tensor:
        return gp.condition(x, target).predict(x_test).mean

    wanted = a * mean(y) + b * mean(z)
    assert float((mean(a * y + b * z) - wanted).abs().max()) <= 1e-12 * (1 + abs(a) + abs(b)) * float(
        mean(y).abs().max() + mean(z).abs().max()
    )


def test_y_moved_and_scaled() -> None:
    """CONTRACTS' case 4 for given parameters: y to c y + s with variances times c^2 and the mean moved along."""
    x, y = data(10)
    x_test, _ = data(4, seed=8)
    plain = fgp.GP(1.7 * k.RBF(), m.Constant(0.2), lik.Gaussian(0.1)).condition(x, y)
    for c, s in ((1e12, 1e15), (1e-8, 0.0), (1e8, -1e8)):
        moved = fgp.GP(1.7 * c**2 * k.RBF(), m.Constant(0.2 * c + s), lik.Gaussian(0.1 * c**2)).condition(x, c * y + s)
        found, wanted = moved.predict(x_test), plain.predict(x_test)
        assert relative((found.mean - s) / c, wanted.mean) < 1e-6
        assert relative(found.variance / c**2, wanted.variance) < 1e-10
        shift = -10 * math.log(c)
        assert relative(moved.log_marginal_likelihood() - shift, plain.log_marginal_likelihood()) < 1e-6
