"""Rows that join a posterior whose sites were found by iteration: sites of their own by local steps, (M-275).

Those of the rows before stay where they are, at a q(f) that has moved: by how much, the record of updates says.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from flashgp.inference.base_state import BaseState
from flashgp.inference.online.update import checked_rows
from flashgp.inference.sites import Marginals, excess, local_sites
from flashgp.likelihoods.held_sites import HeldSites

S = TypeVar("S", bound=BaseState)
Moments = Callable[[Any, Tensor], tuple[Tensor, Tensor]]  # mean and variance of f at points, by a state


@torch.no_grad()
def with_sites_to_come(state: S, x: Any, y: Any, moments: Moments) -> S:
    """The state with sites for new rows in its likelihood; itself where theirs need no iteration. Raises: as
    `Posterior.append`."""
    held, likelihood = state.prior.likelihood, state.prior.likelihood.underlying
    if likelihood.has_sites or not held.has_sites:
        return state
    x, y = checked_rows(state.prior, x, y, state.like)
    if not len(x):
        return state
    y = y.double()
    before = Marginals(*(t.double() for t in moments(state, x)))
    sites, at = local_sites(likelihood, y, before)
    to_come = HeldSites(likelihood, sites, excess(likelihood, y, at, sites))
    prior = state.prior.with_likelihood(cast(HeldSites, held).extended_by(to_come))
    online = replace(state.online, moved=state.online.moved + at.divergence(before))
    return replace(state, prior=prior, online=online)  # type: ignore[type-var]
