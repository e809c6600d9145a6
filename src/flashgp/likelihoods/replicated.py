"""A Gaussian likelihood whose rows stand for several observations each, eqs. (M-86) and (M-87)."""

import math

import torch
from torch import Tensor

from flashgp.foundations.parameters import Parameter
from flashgp.likelihoods.gaussian import Gaussian

__all__ = ["ReplicatedGaussian", "repeated"]

LOG_2PI = math.log(2.0 * math.pi)


class ReplicatedGaussian(Gaussian):
    """A Gaussian likelihood whose rows stand for several observations each: it adds the factor C_g of eq. (M-87).

    Args:
        noise_variance, row_variance, row_weight: as Gaussian, of the rows.
        excess: (n,) observations beyond one; offset: (n,) minus the logarithms of the shares, summed; scatter: (n,)
            squared deviations around the row's target by share, all outputs together, units of y^2.
    """

    excess: Tensor
    offset: Tensor
    scatter: Tensor

    def __init__(
        self,
        noise_variance: Parameter | None,
        row_variance: Tensor | None,
        row_weight: Tensor | None,
        excess: Tensor,
        offset: Tensor,
        scatter: Tensor,
    ) -> None:
        super().__init__(noise_variance, row_variance, row_weight)
        self.register_buffer("excess", excess)
        self.register_buffer("offset", offset)
        self.register_buffer("scatter", scatter)

    def rows(self, index: Tensor) -> "ReplicatedGaussian":
        part = super().rows(index)
        return ReplicatedGaussian(
            part.noise_variance, part.row_variance, part.row_weight,
            self.excess[index], self.offset[index], self.scatter[index],
        )  # fmt: skip

    def extended(
        self, n: int, more: int, row_variance: Tensor | None = None, row_weight: Tensor | None = None
    ) -> "ReplicatedGaussian":
        part = super().extended(n, more, row_variance, row_weight)
        nothing = self.excess.new_zeros(more)
        return ReplicatedGaussian(
            part.noise_variance, part.row_variance, part.row_weight,
            *(torch.cat([own, nothing]) for own in (self.excess, self.offset, self.scatter)),
        )  # fmt: skip

    def beyond_matrix(self, device: torch.device, outputs: int) -> Tensor:
        """log C_g over all rows and outputs, eq. (M-87), (*batch,), nats."""
        variance = self.diagonal(len(self.excess), device)
        if self.noise_variance is None:  # rows without noise stand for one observation
            variance = torch.where(self.excess == 0, 1.0, variance)
        repeats = self.excess * (LOG_2PI + variance.log()) + self.offset
        return -0.5 * (outputs * repeats + self.scatter / variance).sum(-1)

    def beyond_information(self, device: torch.device, outputs: int) -> Tensor:
        """The Fisher information of each row's noise variance s in C_g, eq. (M-109): p e / (2 s^2), (*batch, n).

        The scatter of e + 1 observations is s times a chi-squared variable of p e degrees of freedom. A row that stands
        there less than once has none to take away.
        """
        variance = self.diagonal(len(self.excess), device)
        excess = self.excess.to(device).clamp_min(0.0)
        return torch.where(excess > 0.0, 0.5 * outputs * excess / variance.square(), 0.0)


def repeated(likelihood: Gaussian, weight: Tensor) -> ReplicatedGaussian:
    """A likelihood of one noise variance, with rows that stand there `weight` times each, whole or not.

    N(y; f, s)^w is the product of (M-86) with k = w rows of share 1 / w: a factor C of excess w - 1 and no scatter.
    """
    noise = likelihood.noise_variance
    return ReplicatedGaussian(noise, None, weight, weight - 1.0, weight * weight.log(), torch.zeros_like(weight))
