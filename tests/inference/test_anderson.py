"""Anderson mixing of the steps that find sites, and where they begin, eq. (M-340)."""

import pytest
import torch
from sklearn.datasets import load_digits

import flashgp as fgp
from flashgp.foundations.events import EventKind
from flashgp.inference.anderson import Anderson
from flashgp.inference.site_methods import Marginals
from flashgp.likelihoods import Sites

F64 = torch.float64
likelihoods = fgp.likelihoods


def drawn(n: int) -> tuple[torch.Tensor, torch.Tensor, torch.Generator]:
    generator = torch.Generator().manual_seed(0)
    x = 6.0 * torch.rand(n, 2, generator=generator, dtype=F64)
    return x, 2.0 * torch.sin(x[:, 0]) + x[:, 1] / 3.0, generator


def steps_and_bound(
    likelihood: likelihoods.Likelihood, variance: float, x: torch.Tensor, y: torch.Tensor, lengthscale: float = 2.0
) -> tuple[int, float]:
    mean = fgp.means.Zero() if isinstance(likelihood, likelihoods.Categorical) else fgp.means.Constant()
    kernel = variance * fgp.kernels.Matern(nu=2.5, lengthscale=lengthscale)
    posterior = fgp.GP(kernel, mean, likelihood).condition(x, y)
    (event,) = (event for event in posterior.report.events if event.kind is EventKind.SITES)
    return event.fields["steps"], float(posterior.log_marginal_likelihood())


def test_classes_under_a_large_variance_settle_soon() -> None:
    digits = load_digits()
    x, y = torch.from_numpy(digits.data[:120] / digits.data.std()), torch.from_numpy(digits.target[:120]).double()
    steps, _ = steps_and_bound(likelihoods.Categorical(10), 1000.0, x, y, lengthscale=10.7)
    assert steps < 25, "35 plain ones"


@pytest.mark.parametrize("size", [1.0, 0.8])
def test_mixing_ends_a_linear_iteration_in_as_many_steps_as_it_has_errors(size: float) -> None:
    """Natural parameters that move by a linear map of two eigenvalues, one of which plain steps creep along."""
    random = torch.Generator().manual_seed(1)
    optimum = 1.0 + torch.rand(2, 6, generator=random, dtype=F64)
    turn = torch.linalg.qr(torch.randn(6, 6, generator=random, dtype=F64)).Q
    shares = turn @ torch.diag(torch.tensor([0.97, 0.97, -0.5, -0.5, -0.5, 0.97], dtype=F64)) @ turn.mT
    at, mixing = Marginals(torch.zeros(6, dtype=F64), torch.full((6,), 0.4, dtype=F64)), Anderson(size, 4)
    natural = optimum + 0.1 * torch.randn(2, 6, generator=random, dtype=F64)

    def sites(values: torch.Tensor) -> Sites:
        return Sites(values[0] / values[1], 1.0 / values[1])

    for _ in range(8):
        coming = optimum + (natural - optimum) @ shares
        mixing.add(sites(natural), sites(coming))
        mixed = mixing.mixed(at)
        natural = torch.lerp(natural, coming, size)
        if mixed is not None:
            natural = torch.stack([mixed.targets / mixed.variance, 1.0 / mixed.variance])
    assert torch.allclose(natural, optimum, atol=1e-6), "plain steps leave 0.97^8 of an error"


def test_a_precision_stays_positive_and_a_repeated_step_says_nothing() -> None:
    at, mixing = Marginals(torch.zeros(1, dtype=F64), torch.ones(1, dtype=F64)), Anderson(1.0, 4)
    one = torch.ones(1, dtype=F64)
    mixing.add(Sites(one, one), Sites(one, one / 0.9))
    assert mixing.mixed(at) is None, "of a single step"
    mixing.add(Sites(one, one), Sites(one, one / 0.9))
    again = mixing.mixed(at)
    assert again is None or bool(again.variance.isfinite().all())
    mixing.add(Sites(one, one / 0.9), Sites(one, one / 0.8))  # as long a step again: it leads to no end, or below 0
    mixed = mixing.mixed(at)
    assert mixed is None or bool((mixed.variance > 0.0).all())


@pytest.mark.parametrize(
    ("likelihood", "expected"), [(likelihoods.Poisson(), -1500.0), (likelihoods.Gamma(2.0), -1900.0)]
)
def test_steps_settle_where_the_prior_expects_next_to_nothing(
    likelihood: fgp.likelihoods.Likelihood, expected: float
) -> None:
    """exp(f) of a variance of 300 has a mean of 1e65, which no step from there comes back from."""
    x, f, generator = drawn(150)
    y = torch.poisson((f + 8.0).exp(), generator) if isinstance(likelihood, likelihoods.Poisson) else (f + 8.0).exp()
    steps, bound = steps_and_bound(likelihood, 300.0, x, y)
    assert steps < 20
    assert bound > expected


def test_outliers_do_not_begin_at_themselves() -> None:
    x, f, generator = drawn(150)
    y = f + 0.1 * torch.randn(150, generator=generator, dtype=F64)
    y[::9] += 8.0
    _, bound = steps_and_bound(likelihoods.StudentT(4.0, 0.1), 10.0, x, y, lengthscale=0.3)
    assert bound > -440.0, "each row by itself leads to -451.7"
