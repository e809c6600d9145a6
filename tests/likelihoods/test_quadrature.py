"""Expectations under normal distributions, (M-276) to (M-278), against sums over very many equal steps."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from flashgp.likelihoods.logistic import expected_log_sigmoid, log_expected_sigmoid
from flashgp.likelihoods.quadrature import Analytic, expectation, nodes

F64 = torch.float64
MEANS = torch.tensor([-300.0, -20.0, -3.0, 0.0, 0.7, 8.0, 300.0], dtype=F64)
VARIANCES = torch.tensor([1e-6, 1e-2, 1.0, 10.0, 1e4], dtype=F64)
LOGIT, PROBIT = torch.nn.functional.logsigmoid, torch.special.log_ndtr


def student(f: Tensor) -> Tensor:
    return -2.5 * torch.log1p(((f - 0.5) / 0.3).square() / 4.0)


def by_steps(function: Callable[[Tensor], Tensor], mean: float, variance: float, steps: int = 200_001) -> float:
    t = torch.linspace(-9.0, 9.0, steps, dtype=F64)
    weights = (-0.5 * t.square()).exp()
    return float((function(mean + math.sqrt(variance) * t) * weights).sum() / weights.sum())


def grid() -> tuple[Tensor, Tensor]:
    mean, variance = torch.meshgrid(MEANS, VARIANCES, indexing="ij")
    return mean, variance


@pytest.mark.parametrize(
    ("function", "where"),
    [(LOGIT, Analytic(math.pi)), (PROBIT, Analytic(2.8)), (student, Analytic(0.6, 0.5))],
    ids=["logit", "probit", "student"],
)
def test_the_rule_is_exact_for_every_mean_and_variance(function: Callable[[Tensor], Tensor], where: Analytic) -> None:
    mean, variance = grid()
    found = expectation(function, mean, variance, where)
    right = torch.tensor([[by_steps(function, float(m), float(v)) for v in VARIANCES] for m in MEANS], dtype=F64)
    assert float(((found - right) / right.abs().clamp_min(1.0)).abs().max()) < 5e-10


def test_nodes_grow_with_the_logarithm_of_the_deviation() -> None:
    for deviation, most in ((1e-3, 25), (1.0, 40), (1e2, 110), (1e6, 240)):
        for _, t, weights in nodes(torch.zeros(1, dtype=F64), torch.tensor([deviation], dtype=F64), Analytic(math.pi)):
            assert t.shape[-1] <= most
            assert float((weights * t.square()).sum()) == pytest.approx(1.0, abs=1e-9)


def test_rows_come_in_their_order_and_without_a_deviation_are_points() -> None:
    mean = torch.tensor([[2.0, -1.0, 0.3]], dtype=F64)
    variance = torch.tensor([[1e4, 0.0, 1.0]], dtype=F64)
    found = expectation(lambda f, y: y * f, mean, variance, Analytic(1.0), torch.tensor([1.0, 2.0, 3.0]))
    assert torch.allclose(found, torch.tensor([[2.0, -2.0, 0.9]], dtype=F64), rtol=0.0, atol=1e-10)


def test_derivatives_are_those_of_the_expectation() -> None:
    """By Bonnet and Price: E g' by the mean, E g'' / 2 by the variance."""
    mean, variance = (t.clone().requires_grad_() for t in grid())
    value = expectation(LOGIT, mean, variance, Analytic(math.pi)).sum()
    by_mean, by_variance = torch.autograd.grad(value, (mean, variance))
    first = expectation(lambda f: torch.sigmoid(-f), mean.detach(), variance.detach(), Analytic(math.pi))
    second = expectation(lambda f: torch.sigmoid(f) * torch.sigmoid(-f), *grid(), Analytic(math.pi))
    assert torch.allclose(by_mean, first, rtol=0.0, atol=1e-10)
    assert torch.allclose(by_variance, -0.5 * second, rtol=0.0, atol=1e-10)


def test_the_logistic_function_is_a_mixture_of_normal_ones() -> None:
    """(M-277)."""
    mean, variance = grid()
    found = expected_log_sigmoid(mean, variance)
    assert torch.allclose(found, expectation(LOGIT, mean, variance, Analytic(math.pi)), rtol=1e-12, atol=1e-11)


def test_the_logistic_probability_is_right_in_its_tail() -> None:
    """Where E sigmoid(f) is about exp(mean + variance / 2), and where f is known, against steps in logarithms."""
    for mean, variance in ((-300.0, 1e-6), (-30.0, 4.0), (-30.0, 59.0), (-30.0, 61.0), (-200.0, 1e4), (3.0, 2.0)):
        t = torch.linspace(-40.0, 40.0, 400_001, dtype=F64)
        f = mean + math.sqrt(variance) * t
        logs = LOGIT(f) - 0.5 * t.square()
        right = float(torch.logsumexp(logs, 0) - torch.logsumexp(-0.5 * t.square(), 0))
        found = log_expected_sigmoid(torch.tensor(mean), torch.tensor(variance, dtype=F64))
        assert float(found) == pytest.approx(right, abs=1e-9)
