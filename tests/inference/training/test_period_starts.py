"""Periods are found from wherever a fit begins: starts from the periodogram, weighed by the log joint, eq. (M-250)."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.distributions import LogNormal, constraints

import flashgp as fgp
from flashgp.inference.training.history import Stage
from flashgp.kernels import RBF, Cosine, Kernel, Linear, Periodic, Warped

f64 = torch.float64


def random(n: int, seed: int) -> Tensor:
    return torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=f64)


def noise(n: int, seed: int = 7) -> Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=f64)


def wave(x: Tensor, period: float) -> Tensor:
    return torch.sin(2 * math.pi * x / period)


def periods(kernel: Kernel) -> list[float]:
    """Of every leaf that has them, in order of size."""
    found: list[float] = []
    for leaf in kernel.leaves():
        if isinstance(leaf, Periodic):
            found += leaf.period.value.detach().reshape(-1).tolist()
        elif isinstance(leaf, Cosine):
            found += (1 / leaf.frequency.value.detach().abs()).reshape(-1).tolist()
    return sorted(found)


class Log(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.log()


X = 10 * random(60, 1) + 0.1
CASES: dict[str, tuple[Callable[[], Kernel], Tensor, Tensor, list[float]]] = {
    "long": (lambda: 1.0 * Periodic(), X, wave(X, 6.0), [6.0]),
    "short": (lambda: 1.0 * Periodic(), X, wave(X, 0.5), [0.5]),
    "cosine": (lambda: 1.0 * Cosine(), X, wave(X, 3.0), [3.0]),
    "product": (lambda: 1.0 * Periodic() * RBF(3.0), X, wave(X, 1.7) * (1 + 0.3 * torch.sin(X / 3)), [1.7]),
    "sum": (lambda: 1.0 * Periodic() + 1.0 * RBF(3.0), X, wave(X, 1.7) + 2 * wave(X + 1, 14.0), [1.7]),
    "trend": (lambda: 1.0 * Periodic() + Linear(), X, wave(X, 3.0) + 5 * X, [3.0]),
    "two": (lambda: 1.0 * Periodic() + 1.0 * Periodic(), X, wave(X, 3.0) + 0.7 * wave(X, 1.1), [1.1, 3.0]),
    "seconds": (lambda: 1.0 * Periodic(), 1.5e9 + 3e7 * X, wave(X, 3.0), [9e7]),
    "warped": (lambda: 2.0 * (1.0 * Warped(Log(), Periodic())), X, wave(X.log(), 0.6), [0.6]),
}


@pytest.mark.parametrize("name", CASES)
def test_the_period_is_found_wherever_the_fit_begins(name: str) -> None:
    kernel, x, y, wanted = CASES[name]
    found = periods(fgp.fit(fgp.GP(kernel()), x[:, None], y + 0.1 * noise(60)).gp.kernel)
    assert found == pytest.approx(wanted, rel=0.03)


def test_each_column_and_each_model_of_a_batch_has_its_own() -> None:
    x = 10 * torch.stack([random(90, 1), random(90, 2), random(90, 3)], 1)
    y = wave(x[:, 1], 1.7) + wave(x[:, 2], 3.0) + torch.sin(x[:, 0] / 2) + 0.1 * noise(90)
    kernel = 1.0 * RBF(1.0, active_dims=0) + 1.0 * Periodic([1.0, 1.0], active_dims=[2, 1])
    fit = fgp.fit(fgp.GP(kernel), x, y)
    assert periods(fit.gp.kernel) == pytest.approx([1.7, 3.0], rel=0.02)
    plane = torch.cos(2 * math.pi * (0.3 * x[:, 0] - 0.2 * x[:, 2])) + 0.1 * noise(90)
    found = fgp.fit(fgp.GP(1.0 * Cosine([0.5, 0.5], active_dims=[0, 2])), x, plane).gp.kernel
    assert periods(found) == pytest.approx([1 / 0.3, 5.0], rel=0.02)
    two = torch.stack([wave(X, 1.7), wave(X, 3.0)]) + 0.1 * noise(120).reshape(2, 60)
    batch = fgp.fit(fgp.GP(1.0 * Periodic(torch.ones(2, 1))), X[:, None], two).gp.kernel
    assert periods(batch) == pytest.approx([1.7, 3.0], rel=0.02)


def test_bounds_priors_and_fixed_periods_are_respected() -> None:
    """3.0 is stronger than 0.8, which is what they leave."""
    x = 10 * random(150, 4)
    y = wave(x, 3.0) + 0.5 * wave(x, 0.8) + 0.05 * noise(150)
    bounded = fgp.Parameter(0.9, constraints.interval(0.7, 1.0))
    believed = fgp.Parameter(1.0, constraints.positive, LogNormal(math.log(0.85), 0.05))
    for period in (bounded, believed):
        found = fgp.fit(fgp.GP(1.0 * Periodic(period)), x[:, None], y).gp.kernel
        assert periods(found) == pytest.approx([0.8], rel=0.02)
    fixed = fgp.Parameter(torch.tensor(3.0), trainable=False)
    found = fgp.fit(fgp.GP(1.0 * Periodic(fixed) + 1.0 * Periodic(1.0)), x[:, None], y).gp.kernel
    assert periods(found) == pytest.approx([0.8, 3.0], rel=0.02)


def test_what_the_user_gave_remains_a_start() -> None:
    """And only that with initial="given"; without trained periods nothing is weighed."""
    y = wave(X, 3.0) + 0.1 * noise(60)
    fit = fgp.fit(fgp.GP(1.0 * Periodic(1.25)), X[:, None], y)
    first = {e.start: e.theta for e in reversed(fit.history) if e.run.stage is Stage.ALL_ROWS}
    at = [name for name, _ in fit.gp.named_parameters()].index("kernel.kernel.period.raw")
    begun = [math.exp(theta[at]) for theta in first.values()]
    assert min(abs(period - 1.25) for period in begun) < 1e-9
    assert min(abs(period - 3.0) for period in begun) < 0.1
    given = fgp.fit(fgp.GP(1.0 * Periodic(1.25)), X[:, None], y, initial="given")
    plain = fgp.fit(fgp.GP(1.0 * RBF()), X[:, None], y)
    assert not [e for one in (given, plain) for e in one.history if e.run.stage is Stage.PERIODS]


@pytest.mark.parametrize("approximation", ["full_scale", "sparse"])
def test_approximations_share_the_search(approximation: str) -> None:
    x = 30 * random(240, 5)
    fit = fgp.fit(
        fgp.GP(1.0 * Periodic()), x[:, None], wave(x, 3.3) + 0.2 * noise(240), approximation=approximation,
        inducing=16, neighbours=16 if approximation == "full_scale" else "auto",
    )  # fmt: skip
    assert periods(fit.gp.kernel) == pytest.approx([3.3], rel=0.01)
