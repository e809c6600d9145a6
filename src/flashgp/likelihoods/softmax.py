"""Expectations of the softmax of independent normal variables by one-dimensional integrals, eq. (M-306).

With independent Gumbel noise e_c, log sum_c exp f_c = E max_c (f_c + e_c) - gamma. So with F_c the distribution
function of f_c + e_c for f_c ~ N(m_c, v_c), whatever the number of classes,

    E log sum_c exp f_c               = int t (prod_c F_c)'(t) dt - gamma
    E softmax_c                       = int F_c' prod_(j /= c) F_j dt
    E softmax_c (1 - softmax_c)       = - int F_c'' prod_(j /= c) F_j dt

by the trapezoidal rule with a step that suits the variances: the wider, the smoother. F_c' has the characteristic
function exp(i w m_c - v_c w^2 / 2) Gamma(1 - i w), so that F_c' and F_c'' at all nodes are one product of matrices; F_c
is what that says beside a normal distribution of the same mean.
"""

import math

import numpy
import torch
from scipy.special import loggamma
from torch import Tensor

GAMMA = 0.5772156649015329  # of Euler and Mascheroni: the mean of e
ERROR = 25.0  # of the trapezoidal rule, in logarithms below 0: steps are 0.4 for variances of 0
REACH = 6.3  # deviations of a normal variable: exp(-20) of its density
BELOW, ABOVE = 3.5, 23.0  # where the distribution function of e leaves 0 and reaches 1: 4e-15 and 1e-10
DECAY = 33.0  # of a characteristic function at the highest frequency, in logarithms: |Gamma(1 - i w)| ~ exp(-pi w / 2)
AT_ONCE = 2**22  # numbers alive in a batch of rows


def softmax_expectations(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """E log sum_c exp f_c, (n,), E softmax_c and E softmax_c (1 - softmax_c), (n, C), of f (n, C).

    The probabilities of a row add up to 1 to about 1e-9.
    Cost: for each row and class 12 T W flops and 4 W + 2 T functions, with T nodes and W frequencies: some 50 to 200
        and 30 to 150.
    """
    log_sum, probability, spread = mean.new_empty(len(mean)), torch.empty_like(mean), torch.empty_like(mean)
    centre, own = mean.detach(), variance.detach()
    reach = REACH * own.sqrt()
    first, last = (centre - reach).amax(1) - BELOW, (centre + reach).amax(1) + ABOVE  # F of some class is 0 before
    period = last - (centre - reach).amin(1) + BELOW  # that no F' reaches around
    step = 2.0 * math.pi / _frequency((1.0 / own).sum(1).reciprocal(), ERROR)
    # Steps and periods in powers of sqrt(2): rows of like ones share their nodes and frequencies.
    groups = torch.stack([(2.0 * step.log2()).floor(), (2.0 * period.log2()).ceil()], 1)
    for one in groups.unique(dim=0):
        rows, (h, length) = (groups == one).all(1).nonzero()[:, 0], (2.0 ** (0.5 * one)).tolist()
        for part in rows.split(max(1, int(AT_ONCE * h / (length * mean.shape[1])))):
            found = _of_rows(mean[part] - first[part].unsqueeze(-1), variance[part], (last - first)[part], h, length)
            log_sum[part], probability[part], spread[part] = found[0] + first[part], *found[1:]
    return log_sum, probability, spread


def _frequency(variance: Tensor, decay: float) -> Tensor:
    """Where exp(-variance w^2 / 2 - pi w / 2), about a characteristic function of f + e, is exp(-decay)."""
    return 2.0 * decay / (math.pi / 2.0 + (math.pi**2 / 4.0 + 2.0 * variance * decay).sqrt())


def _of_rows(mean: Tensor, variance: Tensor, span: Tensor, h: float, period: float) -> tuple[Tensor, Tensor, Tensor]:
    """`softmax_expectations` of rows with nodes at 0, h, 2 h and so on as far as their spans, (n,), by the series of
    such a period."""
    device, least = mean.device, variance.detach().min()
    highest = float(torch.maximum(_frequency(least, DECAY), (2.0 * DECAY / (least + math.pi**2 / 6.0)).sqrt()))
    w = 2.0 * math.pi / period * numpy.arange(1, math.ceil(highest * period / (2.0 * math.pi)) + 1)
    log_of_noise = torch.from_numpy(loggamma(1.0 - 1j * w)).to(device)
    frequency = torch.from_numpy(w).to(device)
    t = h * torch.arange(int(float(span.max()) / h) + 2, dtype=mean.dtype, device=device)
    angle = frequency.unsqueeze(-1) * t
    waves = torch.cat([angle.cos(), angle.sin()]) * (2.0 / period)  # of the sum over w > 0 and its conjugates

    def at_nodes(by_cosine: Tensor, by_sine: Tensor) -> Tensor:
        return torch.cat([by_cosine, by_sine], -1) @ waves  # (n, C, T)

    own_mean, own_variance = mean + GAMMA, variance + math.pi**2 / 6.0
    phase = mean.unsqueeze(-1) * frequency
    cosine, sine = phase.cos(), phase.sin()
    damped = (-0.5 * frequency.square() * variance.unsqueeze(-1)).exp()

    def turned(by: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
        """Real and imaginary part of exp(i (w m + by)) size: F'(t) is a sum of Re [phi(w) exp(-i w t)]."""
        by_cosine, by_sine = by.cos() * size, by.sin() * size
        return cosine * by_cosine - sine * by_sine, sine * by_cosine + cosine * by_sine

    real, imaginary = turned(log_of_noise.imag, damped * log_of_noise.real.exp())
    density = at_nodes(real, imaginary) + 1.0 / period
    slope = at_nodes(imaginary * frequency, -real * frequency)
    normal = turned(GAMMA * frequency, damped * (-(math.pi**2) / 12.0 * frequency.square()).exp())
    real, imaginary = real - normal[0], imaginary - normal[1]
    standard = (t - own_mean.unsqueeze(-1)) / own_variance.sqrt().unsqueeze(-1)
    below = torch.special.ndtr(standard) + at_nodes(-imaginary / frequency, real / frequency)
    others = _products_without_own(below) * (t <= span.unsqueeze(-1)).unsqueeze(1)  # beyond, the series begins again
    by_class = density * others
    log_sum = h * (by_class.sum(1) @ t) - GAMMA
    return log_sum, h * by_class.sum(-1), -h * (slope * others).sum(-1)


def _products_without_own(values: Tensor) -> Tensor:
    """The product over all classes but each, (n, C, T), without a division."""
    ones = torch.ones_like(values[:, :1])
    before = torch.cat([ones, values[:, :-1]], 1).cumprod(1)
    after = torch.cat([ones, values.flip(1)[:, :-1]], 1).cumprod(1).flip(1)
    return before * after
