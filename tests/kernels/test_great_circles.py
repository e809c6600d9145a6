"""Functions of two points whose derivative torch does not find: the root of a zero distance, antipodes, eq. (M-261)."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import flashgp as fgp

F64 = torch.float64
Function = Callable[..., Tensor]


def haversine(x: Tensor, z: Tensor) -> Tensor:
    half = (x - z) / 2
    a = torch.sin(half[0]) ** 2 + torch.cos(x[0]) * torch.cos(z[0]) * torch.sin(half[1]) ** 2
    return 2 * torch.arcsin(torch.sqrt(a))


def law_of_cosines(x: Tensor, z: Tensor) -> Tensor:
    c = torch.sin(x[0]) * torch.sin(z[0]) + torch.cos(x[0]) * torch.cos(z[0]) * torch.cos(x[1] - z[1])
    return torch.acos(c.clamp(-1, 1))


def kinked(distance: Function) -> Function:
    return lambda x, z, scale: torch.exp(-distance(x, z) / scale)


def smooth(distance: Function) -> Function:
    def matern(x: Tensor, z: Tensor, scale: Tensor) -> Tensor:
        r = math.sqrt(3) * distance(x, z) / scale
        return (1 + r) * torch.exp(-r)

    return matern


def varying(distance: Function) -> Function:
    def function(x: Tensor, z: Tensor, scale: Tensor) -> Tensor:
        return (1 + x[0] ** 2) * (1 + z[0] ** 2) * torch.exp(-distance(x, z) / scale)

    return function


def plain(a: Tensor, b: Tensor) -> Tensor:
    """The distances between points (n, 2) and (m, 2) by their chords."""
    one, two = (
        torch.stack([p[:, 0].cos() * p[:, 1].cos(), p[:, 0].cos() * p[:, 1].sin(), p[:, 0].sin()], 1) for p in (a, b)
    )
    return 2 * torch.asin((torch.cdist(one, two, compute_mode="donot_use_mm_for_euclid_dist") / 2).clamp(max=1))


def points() -> Tensor:
    """A row twice, two antipodes, one place at two longitudes that differ by a turn, and others."""
    given = [[0.3, 0.2], [0.3, 0.2], [-0.3, 0.2 + math.pi], [0.9, -1.0], [0.9, -1.0 + 2 * math.pi], [-0.7, 2.0]]
    return torch.tensor(given, dtype=F64)


FUNCTIONS = {
    "haversine, kink": kinked(haversine),
    "cosines, kink": kinked(law_of_cosines),
    "haversine, smooth": smooth(haversine),
    "haversine, varying": varying(haversine),
}


def kernel(name: str) -> fgp.kernels.Custom:
    scale = fgp.Parameter(1.0, torch.distributions.constraints.positive)
    return fgp.kernels.Custom(FUNCTIONS[name], scale=scale, columns=2)


def test_values_are_those_of_the_chords() -> None:
    x = points()
    for name in ("haversine, kink", "cosines, kink"):
        # The arcsine of a root near one, and the arccosine near one, hold half the digits.
        assert (kernel(name)(x).to_dense() - torch.exp(-plain(x, x))).abs().max() < 1e-7


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_the_mean_of_both_sides(name: str) -> None:
    """Compared with central differences of the likelihood, whose two points lie on both sides of a kink.

    Not at two longitudes a turn apart: rounding has them at a distance of 1e-16, with a derivative of one side.
    """
    k = kernel(name)
    gp = fgp.GP(k, fgp.means.Zero(), fgp.likelihoods.Gaussian(0.1))
    x = points().requires_grad_()
    y = torch.linspace(-1, 1, len(x), dtype=F64)
    gp.log_marginal_likelihood(x, y).backward()
    assert x.grad is not None
    assert k.scale.raw.grad is not None
    assert bool(k.scale.raw.grad.isfinite())
    step = 1e-4
    with torch.no_grad():
        for place in ((0, 0), (0, 1), (2, 0), (2, 1), (5, 0)):
            ends = []
            for sign in (1.0, -1.0):
                moved = x.detach().clone()
                moved[place] += sign * step
                ends.append(float(gp.log_marginal_likelihood(moved, y)))
            assert abs(float(x.grad[place]) - (ends[0] - ends[1]) / (2 * step)) < 1e-3 * (1 + abs(float(x.grad[place])))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_predictions_at_training_rows_have_gradients(name: str) -> None:
    x = points()[[0, 2, 3, 5]]
    gp = fgp.GP(kernel(name), fgp.means.Zero(), fgp.likelihoods.Gaussian(0.1))
    at = x[:2].clone().requires_grad_()
    p = gp.condition(x, x[:, 0].sin()).predict(at)
    for value in (p.mean, p.variance):
        (slopes,) = torch.autograd.grad(value.sum(), at, retain_graph=True)
        assert bool(slopes.isfinite().all())


def test_a_derivative_that_is_none_on_both_sides_stays_none() -> None:
    """A function with nan in its derivative everywhere is not given a number."""

    def broken(x: Tensor, z: Tensor) -> Tensor:
        zero = torch.sqrt((x - z).sum() * 0.0)
        return torch.exp(-(x - z).abs().sum()) + torch.where(zero > 0, zero, 0.0) + zero

    x = points().requires_grad_()
    fgp.kernels.Custom(broken, columns=2)(x).to_dense().sum().backward()
    assert x.grad is not None
    assert bool(x.grad.isnan().any())
