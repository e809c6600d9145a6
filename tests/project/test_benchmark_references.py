"""What the long benchmarks are judged by: plain references against the library and automatic differentiation."""

import math

import numpy as np
import problems
import pytest
import torch

import flashgp as fgp


@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        ("squared exponential", fgp.kernels.RBF(0.4)),
        ("Matern-1/2", fgp.kernels.Matern(0.5, 0.4)),
        ("Matern-3/2", fgp.kernels.Matern(1.5, 0.4)),
    ],
)
def test_the_plain_reference_is_the_direct_route(name: str, kernel: fgp.kernels.Kernel) -> None:
    table = problems.drawn_table(47, 9, 2, 0.4, 0.01)
    gp = fgp.GP(kernel, fgp.means.Zero(), fgp.likelihoods.Gaussian(0.01))
    post = gp.condition(torch.from_numpy(table.x), torch.from_numpy(table.y), dtype=torch.float64)
    p = post.predict(torch.from_numpy(table.x_test))
    plain = problems.Reference(name, table.x / 0.4, table.y, 0.01, panel=20, strip_numbers=150)  # the last ones shorter
    rounding = 10 * np.finfo(float).eps * 47 / 0.01  # eps times the largest condition number
    np.testing.assert_allclose(plain.mean(table.x_test / 0.4), p.mean, rtol=0, atol=10 * rounding)
    np.testing.assert_allclose(plain.variance(table.x_test / 0.4), p.variance, rtol=0, atol=rounding)
    assert plain.log_marginal_likelihood == pytest.approx(float(post.log_marginal_likelihood()), abs=47 * rounding)


def test_the_plain_gradient_is_that_of_automatic_differentiation() -> None:
    table = problems.drawn_table(31, 1, 3, 0.5, 0.05)
    values = torch.tensor([0.4, 0.7, 1.3, 1.7, 0.05], dtype=torch.float64)
    logs, mean = values.log().requires_grad_(), torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    x, y = torch.from_numpy(table.x) / logs[:3].exp(), torch.from_numpy(table.y)
    squared = (x[:, None] - x[None]).square().sum(-1)
    s = (3.0 * squared + torch.eye(31, dtype=torch.float64)).sqrt() - torch.eye(
        31, dtype=torch.float64
    )  # the root has no slope at 0
    K = logs[3].exp() * (1.0 + s) * (-s).exp() + logs[4].exp() * torch.eye(31, dtype=torch.float64)
    normal = torch.distributions.MultivariateNormal(mean.expand(31), K)
    normal.log_prob(y).backward()
    expected = torch.cat([logs.grad, mean.grad.reshape(1)]).numpy()
    found = problems.matern_gradient(table.x, table.y, values[:3].numpy(), *values[3:].tolist(), 0.3, strip_numbers=200)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_a_draw_of_the_prior_has_its_covariance_and_does_not_depend_on_how_many_rows_there_are() -> None:
    x = np.array([[0.0, 0.0], [0.2, 0.1], [0.6, 0.5]])
    draws = np.stack([problems.prior_draw(x, 0.4, seed, 256) for seed in range(2000)])
    expected = problems.covariance("Matern-3/2", x / 0.4, x / 0.4)
    np.testing.assert_allclose(draws.T @ draws / 2000, expected, atol=4 * math.sqrt(2 / 2000))
    few, many = (problems.drawn_table(n, 5, 2, 0.4, 0.1) for n in (7, 50))
    np.testing.assert_array_equal(few.f_test, many.f_test)
    np.testing.assert_allclose(few.y, many.y[:7], rtol=1e-12)
