"""A fit says where it explains nothing: its evidence beside that of a constant with noise."""

import math

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.events import EventKind, of_kind
from flashgp.kernels import RBF, Kernel, Linear, Matern, Periodic

f64 = torch.float64
X = 10 * torch.rand(60, 1, generator=torch.Generator().manual_seed(1), dtype=f64)
NOISE = torch.randn(60, generator=torch.Generator().manual_seed(2), dtype=f64)
SIGNAL = torch.sin(2 * math.pi * X[:, 0] / 1.7)


def said(kernel: Kernel, y: Tensor, outputs: int | None = None, **options: object) -> bool:
    fit = fgp.fit(fgp.GP(kernel, outputs=outputs), X, y, **options)
    return bool(of_kind(fit.report.events, EventKind.NOTHING_EXPLAINED))


@pytest.mark.parametrize(
    "kernel", [1.0 * RBF(), 1.0 * Matern(1.5) + Linear(), 1.0 * Periodic()], ids=["smooth", "trend", "periodic"]
)
def test_noise_is_not_explained_and_a_signal_is(kernel: Kernel) -> None:
    assert said(kernel, NOISE)
    assert said(kernel, 1e6 * NOISE + 1e8)  # in any unit
    assert not said(kernel, SIGNAL + 0.5 * NOISE)


def test_a_period_that_is_missed_is_told_by_how_little_it_explains() -> None:
    assert said(1.0 * Periodic(1.0), SIGNAL + 0.1 * NOISE, initial="given", starts=1)
    assert not said(1.0 * Periodic(1.0), SIGNAL + 0.1 * NOISE)


def test_outputs_and_approximations_say_so_too() -> None:
    both = torch.stack([NOISE, NOISE.flip(0)], 1)
    assert said(1.0 * RBF(), both, outputs=2)
    both[3, 0] = both[4:20, 1] = torch.nan  # missing cells
    assert said(1.0 * RBF(), both, outputs=2)
    assert not said(1.0 * RBF(), both + 2 * SIGNAL[:, None], outputs=2)
    assert said(1.0 * RBF(), NOISE, approximation="full_scale", inducing=8, neighbours=8)


def test_nothing_is_said_of_a_constant_target_or_of_noise_that_is_known() -> None:
    assert not said(1.0 * RBF(), torch.ones(60, dtype=f64))
    gp = fgp.GP(1.0 * RBF(), likelihood=fgp.likelihoods.Gaussian(fgp.Parameter(1.0, trainable=False)))
    assert not of_kind(fgp.fit(gp, X, NOISE).report.events, EventKind.NOTHING_EXPLAINED)
