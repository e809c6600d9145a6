"""Expectations of the softmax of independent normal variables by one-dimensional integrals, eq. (M-306).

With independent Gumbel noise e_c, log sum_c exp f_c = E max_c (f_c + e_c) - gamma. So with F_c the distribution
function of f_c + e_c for f_c ~ N(m_c, v_c), whatever the number of classes,

    E log sum_c exp f_c               = int t (prod_c F_c)'(t) dt - gamma
    E softmax_c                       = int F_c' prod_(j /= c) F_j dt
    E softmax_c (1 - softmax_c)       = - int F_c'' prod_(j /= c) F_j dt

by the trapezoidal rule, whose error falls as exp(-pi^2 / step). F_c' has the characteristic function
exp(i w m_c - v_c w^2 / 2) Gamma(1 - i w), so that F_c' and F_c'' at all nodes are one product of matrices; F_c is what
that says beside a normal distribution of the same mean.
"""

import math

import numpy
import torch
from scipy.special import loggamma
from torch import Tensor

GAMMA = 0.5772156649015329  # of Euler and Mascheroni: the mean of e
STEP = 0.4
REACH = 6.3  # deviations of a normal variable: exp(-20) of its density
BELOW, ABOVE = 3.5, 23.0  # where the distribution function of e leaves 0 and reaches 1: 4e-15 and 1e-10
DECAY = 33.0  # of a characteristic function at the highest frequency, in logarithms: |Gamma(1 - i w)| ~ exp(-pi w / 2)
AT_ONCE = 2**22  # numbers alive in a batch of rows


def softmax_expectations(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """E log sum_c exp f_c, (n,), E softmax_c and E softmax_c (1 - softmax_c), (n, C), of f (n, C).

    The probabilities of a row add up to 1 to about 1e-9.
    Cost: for each row and class 12 T W flops, with T nodes and W frequencies, both in proportion to the range of means
        and deviations.
    """
    log_sum, probability, spread = mean.new_empty(len(mean)), torch.empty_like(mean), torch.empty_like(mean)
    centre, reach = mean.detach(), REACH * variance.detach().sqrt()
    first, last = (centre - reach).amax(1) - BELOW, (centre + reach).amax(1) + ABOVE  # F of some class is 0 before
    period = last - (centre - reach).amin(1) + BELOW  # that no F' reaches around
    size = (2.0 * period.log2()).ceil()  # so that rows of like ranges share their frequencies
    for one in size.unique().tolist():
        rows, length = (size == one).nonzero()[:, 0], 2.0 ** (0.5 * one)
        for part in rows.split(max(1, int(AT_ONCE * STEP / (length * mean.shape[1])))):
            nodes = int(float((last - first)[part].max()) / STEP) + 2
            found = _of_rows(mean[part] - first[part].unsqueeze(-1), variance[part], nodes, length)
            log_sum[part], probability[part], spread[part] = found[0] + first[part], *found[1:]
    return log_sum, probability, spread


def _of_rows(mean: Tensor, variance: Tensor, nodes: int, period: float) -> tuple[Tensor, Tensor, Tensor]:
    """`softmax_expectations` of rows with nodes at 0, STEP, 2 STEP and so on, by the series of such a period."""
    device, least = mean.device, float(variance.detach().min())
    highest = 2.0 * DECAY / (math.pi / 2.0 + math.sqrt(math.pi**2 / 4.0 + 2.0 * least * DECAY))
    highest = max(highest, math.sqrt(2.0 * DECAY / (least + math.pi**2 / 6.0)))
    w = 2.0 * math.pi / period * numpy.arange(1, math.ceil(highest * period / (2.0 * math.pi)) + 1)
    log_of_noise = torch.from_numpy(loggamma(1.0 - 1j * w)).to(device)
    frequency = torch.from_numpy(w).to(device)
    t = STEP * torch.arange(nodes, dtype=mean.dtype, device=device)
    angle = frequency.unsqueeze(-1) * t
    waves = torch.cat([angle.cos(), angle.sin()]) * (2.0 / period)  # of the sum over w > 0 and its conjugates

    def at_nodes(by_cosine: Tensor, by_sine: Tensor) -> Tensor:
        return torch.cat([by_cosine, by_sine], -1) @ waves  # (n, C, T)

    own_mean, own_variance = mean + GAMMA, variance + math.pi**2 / 6.0
    damping = -0.5 * frequency.square()
    size = (variance.unsqueeze(-1) * damping + log_of_noise.real).exp()
    phase = mean.unsqueeze(-1) * frequency + log_of_noise.imag
    real, imaginary = size * phase.cos(), size * phase.sin()  # F'(t) = sum of Re [phi(w) exp(-i w t)]
    density = at_nodes(real, imaginary) + 1.0 / period
    slope = at_nodes(imaginary * frequency, -real * frequency)
    size, phase = (own_variance.unsqueeze(-1) * damping).exp(), own_mean.unsqueeze(-1) * frequency
    real, imaginary = real - size * phase.cos(), imaginary - size * phase.sin()
    standard = (t - own_mean.unsqueeze(-1)) / own_variance.sqrt().unsqueeze(-1)
    below = torch.special.ndtr(standard) + at_nodes(-imaginary / frequency, real / frequency)
    others = _products_without_own(below)
    by_class = density * others
    log_sum = STEP * (by_class.sum(1) @ t) - GAMMA
    return log_sum, STEP * by_class.sum(-1), -STEP * (slope * others).sum(-1)


def _products_without_own(values: Tensor) -> Tensor:
    """The product over all classes but each, (n, C, T), without a division."""
    ones = torch.ones_like(values[:, :1])
    before = torch.cat([ones, values[:, :-1]], 1).cumprod(1)
    after = torch.cat([ones, values.flip(1)[:, :-1]], 1).cumprod(1).flip(1)
    return before * after
