"""q(f) of the training rows of an exact posterior: by leaving each out, or without a factor by solves, eq. (M-370)."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from flashgp.foundations.errors import DomainError
from flashgp.foundations.quantities import readable_seconds
from flashgp.inference.output_states import AnyState
from flashgp.inference.posterior import Posterior
from flashgp.inference.predict.leave_one_out import leave_one_out
from flashgp.inference.predict.plan import price_of
from flashgp.inference.predict.sampled_variance import VarianceProbes, probes_of
from flashgp.inference.site_methods import Marginals
from flashgp.inference.sites import SiteSettings, prior_variance, within
from flashgp.inference.state import State
from flashgp.likelihoods import Sites
from flashgp.processes.agreement import largest
from flashgp.processes.group import Group


class RowMarginals:
    """q(f) of the training rows of posteriors that differ in their sites.

    Without a factor the variances are by exact solves where these take little time, else sampled with the same draws in
    every step, so that steps settle: the mean is by certified solves, and a variance has a standard error, (M-370).

    Args: settings, of what solves may take; group, whose ranks ask together.
    Fields: solves so far, of weights and of variances.
    """

    def __init__(self, settings: SiteSettings, group: Group) -> None:
        self.settings, self.group, self.solves = settings, group, 0
        self._probes: list[VarianceProbes] = []  # of every output, of the last step

    def __call__(self, posterior: Posterior, sites: Sites) -> Marginals:
        """Raises: DomainError, as `samples`. Cost: as `Posterior.leave_one_out`, or variances of n points by solves."""
        state = posterior.state
        if state.obstacle("leave_one_out") is None:
            return _by_leaving_out(posterior, sites)
        if not self.samples(state):
            found = posterior.predict(posterior.x, variance="exact")
            self.solves += len(state.parts) * (1 + state.distinct)
            return Marginals(found.mean.double(), found.variance.double())
        parts: tuple[State, ...] = state.parts
        before: Sequence[VarianceProbes | None] = self._probes or [None] * len(parts)
        self._probes = [probes_of(part, before=one) for part, one in zip(parts, before, strict=True)]
        self.solves += sum(1 + probes.drawn.shape[1] for probes in self._probes)
        each = [_of_table(part, probes) for part, probes in zip(parts, self._probes, strict=True)]
        variance = each[0] if state.prior.outputs is None else torch.stack(each, dim=-1)
        return Marginals(posterior.predict(posterior.x).mean.double(), variance)

    def samples(self, state: Any) -> bool:
        """True if variances of a state without a factor are sampled, False if there is a solve for each row.

        Raises: DomainError, on every rank, where exact solves take too long and the kernel has no samples.
        """
        settings, steps = self.settings, self.settings.conditionings // 2

        prices = [price_of(part, state.distinct, "exact", state.run.deterministic) for part in state.parts]
        seconds = largest(self.group, steps * sum(price.seconds for price in prices))
        if seconds > settings.solved_seconds and state.prior.kernel.has_features:
            return True
        if seconds > settings.solving_seconds:
            raise DomainError(
                f"`likelihood` {state.prior.likelihood.name} needs the variance of every row in each of some {steps} "
                "steps, got no factor, and a kernel without random features to sample them: they are "
                f"{state.distinct:,} solves a step, about {readable_seconds(seconds)}; "
                'pass approximation="full_scale", or more memory='
            )
        return False


def _of_table(state: State, probes: VarianceProbes) -> Tensor:
    """Sampled variances of all rows of the table, (n,)."""
    found = probes.of_rows().variance
    return found if state.replicates is None else found[state.replicates.group]


def _by_leaving_out(posterior: Posterior, sites: Sites) -> Marginals:
    left = leave_one_out(cast(AnyState, posterior.state))  # of the targets of sites
    mean, whole = left.mean.double(), left.variance.double()
    cavity = whole - sites.variance
    variance = within(cavity * sites.variance / whole, sites.variance, prior_variance(posterior.gp, posterior.x))
    return Marginals((mean * sites.variance + sites.targets * cavity) / whole, variance)
