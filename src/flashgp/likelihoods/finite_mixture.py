"""Distributions of new observations where one of several holds, with known probabilities, eq. (M-380)."""

from functools import cached_property

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from flashgp.foundations.normal import standard_quantile
from flashgp.likelihoods.base import PredictiveDistribution
from flashgp.likelihoods.mixture import increasing_root


class FiniteMixture(PredictiveDistribution):
    """Observations of one of k distributions, each on its own.

    Args:
        each: the distributions, of shape (*shape, k, n), for observations (*shape, n).
        log_weights: logarithms of their probabilities, (k,), or (k, n) where they differ between observations.

    Example:
        >>> from flashgp.likelihoods.finite_mixture import FiniteMixture
        >>> each = fgp.likelihoods.Gaussian(1.0).predictive(torch.tensor([[-3.0], [3.0]]), torch.zeros(2, 1))
        >>> y = FiniteMixture(each, torch.full((2,), 0.5, dtype=torch.float64).log())
        >>> y.variance.item(), y.quantile(0.75).round()
        (10.0, tensor([3.], dtype=torch.float64))
    """

    def __init__(self, each: PredictiveDistribution, log_weights: Float64[Tensor, "k ..."]) -> None:
        self._each = each
        self._log = log_weights if log_weights.dim() > 1 else log_weights.unsqueeze(-1)

    @property
    def each(self) -> PredictiveDistribution:
        """The distributions, of shape (*shape, k, n)."""
        return self._each

    @property
    def weights(self) -> Float64[Tensor, "k ..."]:
        """Their probabilities, (*shape, k, n)."""
        return self._log.exp().expand(self._each.mean.shape)

    def _averaged(self, values: Tensor) -> Tensor:
        return (self._log.exp() * values).sum(-2)

    @cached_property
    def mean(self) -> Tensor:  # type: ignore[override]
        return self._averaged(self._each.mean)

    @cached_property
    def variance(self) -> Tensor:  # type: ignore[override]
        return self._averaged(self._each.variance + (self._each.mean - self.mean.unsqueeze(-2)).square())

    def log_prob(self, y: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return torch.logsumexp(self._log + self._each.log_prob(y.unsqueeze(-2)), -2)

    def cdf(self, y: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return self._averaged(self._each.cdf(y.unsqueeze(-2)))

    def quantile(self, q: float) -> Float64[Tensor, "..."]:
        """The q-quantile; differentiable by a step of Newton's method from where it is."""
        mean, unit = self.mean.detach(), self.variance.detach().sqrt()
        start = torch.full_like(mean, standard_quantile(q))
        y = mean + unit * increasing_root(lambda z: self.cdf(mean + unit * z) - q, start)
        if not self._each.mean.requires_grad:
            return y
        return y - (self.cdf(y) - q) / self.log_prob(y).exp().detach()

    def sample(self, generator: torch.Generator) -> Float64[Tensor, "..."]:
        shape, device = self.mean.shape, self.mean.device
        below = self._log.exp().cumsum(-2)[..., :-1, :]
        uniform = torch.rand(shape, generator=generator, dtype=torch.float64, device=device)
        which = (below < uniform.unsqueeze(-2)).sum(-2, keepdim=True)
        return self._each.sample(generator).gather(-2, which).squeeze(-2)
