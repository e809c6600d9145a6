"""The spectral mixture, eq. (M-52), and its initial values from the spectrum of data, eq. (M-53)."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.errors import DomainError, FlashGPError, ShapeError
from flashgp.kernels import SpectralMixture
from flashgp.kernels.spectrum import mixture_of, spectrum_of

f64 = torch.float64


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=f64)


@pytest.mark.parametrize("d", [1, 2])
def test_the_spectrum_of_scattered_data_is_that_of_least_squares(d: int) -> None:
    """(M-53) with (M-247), and its largest value is at the frequency that is there, to the resolution of the data."""
    x = 20 * random(150, d)
    y = 3.0 + torch.sin(2 * math.pi * (x @ torch.tensor([0.3, 0.1], dtype=f64)[:d]))
    frequencies, power, resolution = spectrum_of(x, y, 0)
    for k in (3, 100):
        angle = 2 * math.pi * (x @ frequencies[k])
        waves = torch.stack([torch.ones_like(y), angle.cos(), angle.sin()], 1)
        left = y - waves @ torch.linalg.lstsq(waves, y[:, None]).solution[:, 0]
        assert float(power[k]) == pytest.approx(1 - float(left.var() / y.var()), abs=1e-6)
    assert abs(float(frequencies[power.argmax(), 0]) - 0.3) <= float(resolution[0])
    assert float(resolution[0]) == pytest.approx(1 / float(x[:, 0].max() - x[:, 0].min()))


def test_the_mixture_describes_two_peaks() -> None:
    frequencies = torch.linspace(0, 4, 2048, dtype=f64)[:, None]
    power = sum(
        share * torch.exp(-0.5 * ((frequencies[:, 0] - mean) / 0.05) ** 2) for share, mean in ((2.0, 0.9), (1.0, 3.1))
    )
    assert isinstance(power, Tensor)
    shares, means, scales = mixture_of(frequencies, power, 2, torch.tensor([0.02], dtype=f64))
    order = means[:, 0].argsort()
    shares, means, scales = shares[order], means[order], scales[order]
    assert torch.allclose(shares, torch.tensor([2 / 3, 1 / 3], dtype=f64), atol=0.01)
    assert torch.allclose(means[:, 0], torch.tensor([0.9, 3.1], dtype=f64), atol=0.01)
    assert torch.allclose(scales, torch.tensor(0.05, dtype=f64), atol=0.01)


def test_initial_values_find_what_repeats_and_fit_keeps_it() -> None:
    """Two sines far above what a start at 1 would find: within one resolution of both, and extrapolated after fit."""
    x = 20 * random(120, 1)
    f = torch.sin(2 * math.pi * 0.7 * x[:, 0]) + 0.5 * torch.cos(2 * math.pi * 1.9 * x[:, 0])
    y = f + 0.05 * torch.randn(120, generator=torch.Generator().manual_seed(1), dtype=f64)
    kernel = SpectralMixture.from_data(x, y, 2)
    assert torch.allclose(kernel.means.value.sort(0).values[:, 0], torch.tensor([0.7, 1.9], dtype=f64), atol=0.05)
    assert float(kernel.weights.value.sum()) == pytest.approx(float(y.var(correction=0)))
    fit = fgp.fit(fgp.GP(kernel), x, y, max_iterations=30)
    later = 20 + random(50, 1)
    wanted = torch.sin(2 * math.pi * 0.7 * later[:, 0]) + 0.5 * torch.cos(2 * math.pi * 1.9 * later[:, 0])
    assert float((fit.posterior.predict(later).mean - wanted).abs().max()) < 0.3


def test_initial_values_in_two_columns_and_of_active_ones() -> None:
    x = 10 * random(300, 3)
    y = torch.sin(2 * math.pi * (0.3 * x[:, 2] - 0.2 * x[:, 0]))
    kernel = SpectralMixture.from_data(x, y, 1, active_dims=[2, 0])
    mean = kernel.means.value[0]
    assert torch.allclose(mean * mean[0].sign(), torch.tensor([0.3, -0.2], dtype=f64), atol=0.1)
    assert kernel.operator(x[:4]).shape == (4, 4)


@pytest.mark.parametrize("y", [torch.zeros(9, dtype=f64), torch.ones(9, dtype=f64)], ids=["zeros", "ones"])
def test_data_without_a_spectrum(y: Tensor) -> None:
    for x in (random(9, 1), torch.ones(9, 2, dtype=f64)):
        kernel = SpectralMixture.from_data(x, y, 3)
        assert all(p.isfinite().all() for p in kernel.parameters())


REFUSED: list[tuple[str, Any, type[FlashGPError], list[str]]] = [





    ("too many", lambda: SpectralMixture([1.0] * 129, [1.0] * 129, [1.0] * 129), DomainError, ["at most 128", "129"]),
    ("columns", lambda: SpectralMixture([1.0], [1.0], [1.0]).operator(random(3, 2)), ShapeError, ["`means`"]),
    ("none", lambda: SpectralMixture.from_data(random(5, 1), random(5), 0), DomainError, ["`components`", "0"]),
    ("one row", lambda: SpectralMixture.from_data(random(1, 1), random(1)), ShapeError, ["`x`", "(1, 1)"]),

]  # fmt: skip


@pytest.mark.parametrize(("make", "error", "words"), [pytest.param(m, e, w, id=name) for name, m, e, w in REFUSED])
def test_what_is_refused(make: Any, error: type[FlashGPError], words: list[str]) -> None:
    with pytest.raises(error) as raised:
        make()
    assert all(word in str(raised.value) for word in words), str(raised.value)
