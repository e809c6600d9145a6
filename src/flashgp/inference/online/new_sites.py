"""Rows that join a posterior whose sites were found by iteration, one after the other: sites of their own by local
steps, (M-275).

Those of the rows before stay where they are, at a q(f) that has moved: by how much, the record of updates says.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from flashgp.foundations.errors import DomainError
from flashgp.inference.base_state import BaseState
from flashgp.inference.online.update import checked_rows
from flashgp.inference.site_methods import Marginals, method_of
from flashgp.inference.sites import local_sites
from flashgp.likelihoods import Likelihood, Sites
from flashgp.likelihoods.held_sites import HeldSites

S = TypeVar("S", bound=BaseState)
Moments = Callable[[Any, Tensor], tuple[Tensor, Tensor]]  # mean and variance of f at points, by a state
Append = Callable[[Any, Tensor, Tensor], Any]  # a state with rows more, whose sites are in its likelihood


@torch.no_grad()
def with_sites_to_come(
    state: S, x: Any, y: Any, known: Sequence[Any], numbers: Mapping[str, Any], moments: Moments, append: Append
) -> S:
    """The state with sites for new rows in its likelihood; itself where theirs need no iteration.

    Each is found from what the rows before it say, so that several together are as one after the other.
    Args: known, variances and weights of the new rows, None for none; numbers, others of each, by name.
    Raises: as `Posterior.append`.
    """
    likelihood = state.prior.likelihood.underlying
    if likelihood.has_sites or not state.prior.likelihood.has_sites:
        refuse_numbers(likelihood, numbers)
        return state
    x, y = checked_rows(state.prior, x, y, state.like)
    if not len(x):
        return state
    n = state.count
    row_variance, row_weight = known or (None, None)
    likelihood = likelihood.of_new_rows(n, len(x), row_variance, row_weight, numbers)
    likelihood.check_targets(y, n)
    moved, found, grown = state.online.moved, list[tuple[Tensor, ...]](), state
    for i, (row, target) in enumerate(zip(x.split(1), y.split(1), strict=True)):
        before = Marginals(*(t.double() for t in moments(grown, row)))
        one = likelihood.rows(torch.tensor([i]))
        sites, at = local_sites(one, target.double(), before)
        moved += at.divergence(before)
        found.append((sites.targets, sites.variance, method_of(one).excess(one, target.double(), at, sites)))
        if len(found) < len(x):
            grown = append(_extended(grown, HeldSites(one, sites, found[-1][-1]), moved), row, target)
    targets, variance, beside = (torch.cat(parts) for parts in zip(*found, strict=True))
    together = HeldSites(likelihood, Sites(targets, variance), beside)
    return _extended(state, together, moved)


def refuse_numbers(likelihood: Likelihood, numbers: Mapping[str, Any]) -> None:
    """Raises: DomainError for numbers of rows where there are none."""
    if numbers:
        raise DomainError(
            f"`{next(iter(numbers))}` is no number of rows that {likelihood.name} takes here; leave it out, or "
            "condition on all rows again"
        )


def _extended(state: S, to_come: HeldSites, moved: float) -> S:
    prior = state.prior.with_likelihood(cast(HeldSites, state.prior.likelihood).extended_by(to_come))
    return state.under(prior, replace(state.online, moved=moved))
