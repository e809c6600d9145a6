"""Distributions of observations that take one of a few levels, by their probabilities."""

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from flashgp.likelihoods.base import PredictiveDistribution


class Levels(PredictiveDistribution):
    """Observations 0, 1, ..., levels - 1, each on its own.

    Args: log_probabilities, (*shape, levels), float64.

    Example:
        >>> y = fgp.likelihoods.Bernoulli().predictive(torch.zeros(1), torch.ones(1))
        >>> y.probability, y.quantile(0.4)
        (tensor([0.5000], dtype=torch.float64), tensor([0.], dtype=torch.float64))
    """

    def __init__(self, log_probabilities: Float64[Tensor, "*shape levels"]) -> None:
        self._log = log_probabilities
        levels = torch.arange(self._log.shape[-1], dtype=torch.float64, device=self._log.device)
        each = self._log.exp()
        self.mean = each @ levels
        self.variance = (each * (levels - self.mean.unsqueeze(-1)).square()).sum(-1)

    @property
    def probability(self) -> Float64[Tensor, "..."]:
        """Of each level, (*shape, levels); of two levels that of 1, (*shape)."""
        each = self._log.exp()
        return each[..., 1] if each.shape[-1] == 2 else each

    def quantile(self, q: float) -> Float64[Tensor, "*shape"]:
        """The smallest level that is not exceeded with a probability of q."""
        below = self._log.exp().cumsum(-1)[..., :-1]
        return (below < q).sum(-1).double()

    def log_prob(self, y: Float[Tensor, "..."]) -> Float64[Tensor, "..."]:
        y, each = torch.broadcast_tensors(y.unsqueeze(-1), self._log)
        return each.gather(-1, y[..., :1].long()).squeeze(-1)

    def cdf(self, y: Float[Tensor, "..."]) -> Float64[Tensor, "..."]:
        levels = torch.arange(self._log.shape[-1], device=self._log.device)
        return torch.where(levels <= y.unsqueeze(-1), self._log.exp(), 0.0).sum(-1)

    def sample(self, generator: torch.Generator) -> Float64[Tensor, "*shape"]:
        each = self._log.exp().cumsum(-1)[..., :-1]
        uniform = torch.rand(each.shape[:-1], generator=generator, dtype=torch.float64, device=each.device)
        return (each < uniform.unsqueeze(-1)).sum(-1).double()
