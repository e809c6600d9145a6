"""The periodogram against plain least squares, eq. (M-247), and the frequencies found one by one, eq. (M-249)."""

import math

import pytest
import torch
from torch import Tensor

from flashgp.kernels.periodogram import highest_frequency, periodogram, strongest_frequencies

f64 = torch.float64


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=f64)


def noise(n: int, seed: int = 9) -> Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=f64)


def left(columns: list[Tensor], y: Tensor, weights: Tensor) -> float:
    """The weighted sum of squares that least squares leaves."""
    root = weights.sqrt()
    a, b = torch.stack(columns, 1) * root[:, None], root * y
    return float((b - a @ torch.linalg.lstsq(a, b[:, None], driver="gelsd").solution[:, 0]).square().sum())


@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("n", [7, 40, 211])
def test_power_is_that_of_least_squares(n: int, degree: int) -> None:
    """(M-247) by the sums of (M-248), for dates in seconds too."""
    x, weights = 1.6e9 + 3e7 * random(n, seed=n), random(n, seed=1)
    y = noise(n) + 1e-7 * x
    found = periodogram(x, y, weights, degree=degree)
    centred = (x - x.mean()) / 3e7
    powers = [centred**power for power in range(degree + 1)]
    for k in range(0, len(found.power), max(1, len(found.power) // 17)):
        angle = 2 * math.pi * found.frequencies[k] * (x - x.min())
        wanted = 1 - left([*powers, angle.cos(), angle.sin()], y, weights) / left(powers, y, weights)
        assert float(found.power[k]) == pytest.approx(wanted, abs=1e-4)


def test_a_trend_has_no_power_and_weights_count() -> None:
    x = 10 * random(90)
    signal = torch.sin(2 * math.pi * x / 1.7)
    for y in (signal, signal + 1e3 * x):
        found = periodogram(x, y)
        assert float(1 / found.frequencies[found.power.argmax()]) == pytest.approx(1.7, rel=0.03)
    assert float(periodogram(x, 1e3 * x).power.max()) == 0.0
    spoiled = torch.where(torch.arange(90) % 2 == 0, signal, 50 * noise(90))
    weights = torch.where(torch.arange(90) % 2 == 0, 1.0, 1e-6).double()
    found = periodogram(x, spoiled, weights)
    assert float(1 / found.frequencies[found.power.argmax()]) == pytest.approx(1.7, rel=0.03)


def test_frequencies_come_one_after_the_other() -> None:
    """(M-249): a season of a hundredth of what changes slowly, and a weak one beside a strong one."""
    x = 10 * random(150)
    slow = 10 * torch.sin(2 * math.pi * x / 8.7) + 3 * x
    y = slow + torch.sin(2 * math.pi * x / 1.3) + 0.2 * torch.sin(2 * math.pi * x / 0.61) + 0.02 * noise(150)
    found = strongest_frequencies(x, y, count=5)
    for period in (1.3, 0.61):
        assert float((found.frequencies * period - 1).abs().min()) < 0.01
    apart = (found.frequencies[:, None] - found.frequencies).abs() + torch.eye(5)
    # One over the range apart on the grid, whose steps are a fifth of that; each is moved by half a step at most.
    assert float(apart.min()) >= 0.8 / float(x.max() - x.min())


def test_some_hours_of_years_tell_a_day() -> None:
    """Random rows of an even grid have few gaps of one step: they tell periods far below their mean distance."""
    hours = torch.randperm(20_000, generator=torch.Generator().manual_seed(0))[:5000].double()
    y = torch.sin(2 * math.pi * hours / 24) + noise(5000)
    assert float(1 / strongest_frequencies(hours, y, count=1).frequencies[0]) == pytest.approx(24, rel=1e-3)
    assert highest_frequency(torch.arange(50.0)) == pytest.approx(0.5)


@pytest.mark.parametrize("x", [torch.ones(5), torch.zeros(1), torch.zeros(0), torch.arange(2.0)], ids=str)
def test_where_nothing_can_repeat(x: Tensor) -> None:
    found = periodogram(x, torch.ones(len(x)))
    assert found.frequencies.shape == found.power.shape
    assert not float(found.power.sum())
    assert len(strongest_frequencies(x, torch.ones(len(x))).frequencies) == 0


def test_as_many_frequencies_as_are_asked_for() -> None:
    x = random(40)
    found = periodogram(x, noise(40), frequencies=17).frequencies
    assert len(found) == 17
    assert float(found[-1]) == pytest.approx(highest_frequency(x))
