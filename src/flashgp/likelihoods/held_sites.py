"""Sites that were found by iteration, held for each training row: what inference sees of such a likelihood."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from flashgp.likelihoods.base import Likelihood, PredictiveDistribution, Sites


class HeldSites(Likelihood):
    """A likelihood with the sites of its training rows, whatever y is; new observations are the likelihood's own.

    Args:
        likelihood: whose sites they are.
        sites: targets and variances of every row, each (n,), or (n, outputs) of several latent functions.
        excess: what the bound on log p(y) has beside the log density of the targets, of each row, (n,), nats; None
            where it is not known.

    Example:
        >>> sites = Sites(torch.zeros(3), torch.ones(3, dtype=torch.float64))
        >>> held = HeldSites(fgp.likelihoods.Gaussian(0.1), sites)
        >>> held.rows(torch.tensor([0, 2])).sites(torch.ones(2), None).targets
        tensor([0., 0.])
    """

    has_sites = True
    NAMES = frozenset({"site_targets", "site_variance", "site_excess"})  # of its own numbers of rows

    def __init__(self, likelihood: Likelihood, sites: Sites, excess: Tensor | None = None) -> None:
        super().__init__()
        self.likelihood = likelihood
        self.register_buffer("targets", sites.targets)
        self.register_buffer("variance", sites.variance)
        self.register_buffer("excess", excess)
        self.outputs = None if sites.targets.dim() == 1 else sites.targets.shape[1]
        self._to_come: tuple[HeldSites, ...] = ()

    targets: Tensor
    variance: Tensor
    excess: Tensor | None

    def hold(self, sites: Sites) -> None:
        """Other sites of the same rows, in place of these."""
        self.targets, self.variance, self.excess = sites.targets, sites.variance, None

    @property
    def name(self) -> str:
        return self.likelihood.name

    @property
    def underlying(self) -> Likelihood:
        return self.likelihood.underlying

    def log_prob(self, y: Float[Tensor, "..."], f: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return self.likelihood.log_prob(y, f)

    def predictive(self, mean: Float[Tensor, "..."], variance: Float[Tensor, "..."]) -> PredictiveDistribution:
        return self.likelihood.predictive(mean, variance)

    def predictive_of_rows(self, mean: Float[Tensor, "..."], variance: Float[Tensor, "..."]) -> PredictiveDistribution:
        return self.likelihood.predictive_of_rows(mean, variance)

    def expected_log_prob(
        self, y: Float[Tensor, "..."], mean: Float[Tensor, "..."], variance: Float[Tensor, "..."]
    ) -> Float[Tensor, "..."]:
        return self.likelihood.expected_log_prob(y, mean, variance)

    def sites(self, y: Float[Tensor, "..."], outputs: int | None) -> Sites:
        return Sites(self.targets, self.variance, None if self.excess is None else self.excess.sum())

    def additive_noise(self, device: Any) -> Tensor | None:
        return self.likelihood.additive_noise(device)

    def encoded(self, y: Any, name: str) -> Any:
        return self.likelihood.encoded(y, name)

    def output(self, index: int, *, live: bool = True) -> "HeldSites":
        excess = None if self.excess is None else self.excess / self.targets.shape[1]  # which the outputs sum up to
        found = HeldSites(self.likelihood, Sites(self.targets[:, index], self.variance[:, index]), excess)
        found._to_come = tuple(others.output(index, live=live) for others in self._to_come)
        return found

    rows_alike = False

    def rows(self, index: Tensor) -> "HeldSites":
        return self._of(self.likelihood.rows(index), lambda numbers: numbers[index])

    def by_rows(self, function: Callable[[Tensor], Tensor]) -> "HeldSites":
        return self._of(self.likelihood.by_rows(function), function)

    @property
    def row_tensors(self) -> dict[str, Tensor]:
        own = {"site_targets": self.targets, "site_variance": self.variance, "site_excess": self.excess}
        return self.likelihood.row_tensors | {name: each for name, each in own.items() if each is not None}

    def with_rows(
        self, site_targets: Any = None, site_variance: Any = None, site_excess: Any = None, **numbers: Any
    ) -> "HeldSites":
        """The likelihood with the sites of other rows, by default of none."""
        none = self.targets[:0], self.variance[:0]
        sites = Sites(*none) if site_targets is None else Sites(site_targets, site_variance)
        return HeldSites(self.likelihood.with_rows(**numbers), sites, site_excess)

    def _of(self, likelihood: Likelihood, function: Callable[[Tensor], Tensor]) -> "HeldSites":
        excess = None if self.excess is None else function(self.excess)
        found = HeldSites(likelihood, Sites(function(self.targets), function(self.variance)), excess)
        found._to_come = self._to_come
        return found

    def extended_by(self, to_come: "HeldSites") -> "HeldSites":
        """These sites, which `extended` follows by others."""
        found = self._of(self.likelihood, lambda numbers: numbers)
        found._to_come = (to_come,)
        return found

    def extended(self, n: int, more: int, row_variance: Any = None, row_weight: Any = None) -> "HeldSites":
        (others,) = self._to_come
        likelihood = self.likelihood.followed_by(others.likelihood, n, more)
        targets, variance = torch.cat([self.targets, others.targets]), torch.cat([self.variance, others.variance])
        excess = None
        if self.excess is not None and others.excess is not None:
            excess = torch.cat([self.excess, others.excess])
        return HeldSites(likelihood, Sites(targets, variance), excess)
