"""The spectrum of scattered data, and a mixture of Gaussians that describes it, eq. (M-53): initial values only.

    P(f) = share of sum_i (y_i - mean)^2 that a cosine and a sine at f explain                    (periodogram.py)

on an even grid for one column, at random frequencies for several. The mixture is fitted by expectation maximisation
with the power as weights, from the strongest separate peaks.
"""

import math

import torch
from torch import Tensor

from flashgp.kernels.periodogram import SinusoidFits, periodogram

MAX_ROWS = 4096
FREQUENCIES = 2048
STEPS = 50


def spectrum_of(x: Tensor, y: Tensor, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """(frequencies (F, d), power (F,), resolution (d,)) of targets y (n,) at x (n, d).

    Frequencies go up to half the median density of distinct values of each column; the resolution is one over its
    range: what is closer cannot be told apart.
    """
    step = -(-len(x) // MAX_ROWS)
    x, y = x[::step], y[::step]
    highest, resolution = [], []
    for column in x.unbind(-1):
        gaps = column.unique().diff()
        span = float(gaps.sum()) or 1.0
        highest.append(0.5 / float(gaps.median()) if len(gaps) else 0.5)
        resolution.append(1.0 / span)
    limit, width = torch.tensor(highest, dtype=torch.float64), torch.tensor(resolution, dtype=torch.float64)
    # n rows tell n^(1/d) / 2 periods per column apart.
    limit = torch.minimum(limit, width * len(x) ** (1 / x.shape[-1]) / 2)
    if x.shape[-1] == 1:
        found = periodogram(x[:, 0], y, degree=0, highest=float(limit), frequencies=FREQUENCIES)
        return found.frequencies[:, None], found.power, width
    generator = torch.Generator().manual_seed(seed)
    unit = torch.rand(FREQUENCIES, x.shape[-1], generator=generator, dtype=torch.float64)
    unit[:, 1:] = 2 * unit[:, 1:] - 1  # f and -f are one frequency
    frequencies = unit * limit

    def sums(values: Tensor, times: int) -> Tensor:
        waves = (-2j * math.pi * times * (x @ part.T) for part in frequencies.split(256))
        return torch.cat([values.to(torch.complex128) @ wave.exp() for wave in waves], 1)

    weights = torch.full_like(y, 1.0 / len(y))
    return frequencies, SinusoidFits(sums, x, weights, 0).power(y), width


def mixture_of(
    frequencies: Tensor, power: Tensor, components: int, resolution: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """(shares (Q,), means (Q, d), standard deviations (Q, d)) of a Gaussian mixture with the power as weights.

    Standard deviations are at least a quarter of the resolution, shares at least 1e-3: every component can be learnt.
    """
    # Noise has the same power everywhere, exponentially distributed: little of it is above five medians.
    above = (power - 5 * power.median()).clamp_min(0.0)
    total = float(above.sum())
    weights = above / total if total > 0 else torch.full_like(power, 1.0 / len(power))
    least = 0.25 * resolution
    means = separate_peaks(frequencies, weights, components, resolution)
    scales = torch.maximum(least, resolution).expand_as(means).clone()
    shares = torch.full((len(means),), 1.0 / len(means), dtype=torch.float64)
    for _ in range(STEPS):
        distances = ((frequencies[:, None] - means) / scales).square().sum(-1)  # (F, Q)
        logs = shares.log() - 0.5 * distances - scales.log().sum(-1)
        owned = torch.softmax(logs, -1) * weights[:, None]
        mass = owned.sum(0).clamp_min(1e-12)
        means = (owned.T @ frequencies) / mass[:, None]
        spread = (owned[:, :, None] * (frequencies[:, None] - means).square()).sum(0) / mass[:, None]
        scales = torch.maximum(least, spread.sqrt())
        shares = mass / mass.sum()
    shares = shares.clamp_min(1e-3)
    return shares / shares.sum(), means, scales


def separate_peaks(frequencies: Tensor, weights: Tensor, components: int, resolution: Tensor) -> Tensor:
    """The strongest frequencies that are at least two resolutions apart; repeated from the start when there are few."""
    left = weights.clone()
    means: list[Tensor] = []
    while len(means) < components:
        best = int(left.argmax())
        if left[best] < 0:
            left = weights.clone()
            best = int(left.argmax())
        means.append(frequencies[best])
        near = ((frequencies - frequencies[best]).abs() <= 2 * resolution).all(-1)
        left[near] = -1.0
    return torch.stack(means)
