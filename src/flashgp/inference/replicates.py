"""Rows of equal x become one row that says the same: likelihood, gradient, predictions and leave-one-out are exact.

Let rows i of a group g share one x, with noise variances s_i (M-28) whose ratios no parameter moves. With the shares
t_i = (1 / s_i) / sum_j 1 / s_j, eqs. (M-86) and (M-87):

    prod_i N(y_i; f, s_i) = N(y_g; f, s_g) C_g        y_g = sum_i t_i y_i,   s_g = t_i s_i = 1 / sum_i 1 / s_i
    log C_g = -1/2 [ (k - 1) log(2 pi s_g) - sum_i log t_i + sum_i t_i (y_i - y_g)^2 / s_g ]

So the posterior needs one row of noise s_g, and the marginal likelihood the factor C_g, which holds what the repeats
say about the noise. The shares are known without any parameter when no row variance is known beside a trained noise
variance, when only row variances are known, and for rows whose weight and row variance are in one ratio; other rows of
equal x stay as they are. So do a batch of tables, and noise-free rows of equal x that differ in y, which contradict
each other. Noise-free rows that agree are one observation: there is no density C_g, and none is counted.
"""

import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from flashgp.foundations.events import Event, EventKind
from flashgp.inference.prior import Prior
from flashgp.likelihoods.base import Likelihood

LISTED_ROWS = 1024  # up to so many rows on the CPU a set of tuples finds repeats sooner than a sort


@dataclass(frozen=True, eq=False)
class Replicates:
    """The rows of a table that differ, u of n, in lexicographic order, and where each row of the table went.

    Fields: x (u, d); y (u,) or (u, outputs), the means y_g in float64; likelihood, of these rows, with the parameters
    of the GP's own; group (n,), the row that each row of the table joined; share (n,), its t_i of eq. (M-86).
    """

    x: Tensor
    y: Tensor
    likelihood: Likelihood
    group: Tensor
    share: Tensor

    def of_output(self, index: int, *, live: bool = False) -> "Replicates":
        """Replicates of one output, as `Prior.output`."""
        likelihood = self.likelihood.output(index, live=live)
        return replace(self, y=self.y[..., index].contiguous(), likelihood=likelihood)

    def copied(self) -> "Replicates":
        """The replicates with tensors of their own."""
        x, y, group, share = (t.clone() for t in (self.x, self.y, self.group, self.share))
        return Replicates(x, y, copy.deepcopy(self.likelihood), group, share)

    def of_every_row(self, y: Tensor, weights: Tensor, precision: Tensor) -> tuple[Tensor, Tensor]:
        """Representer weights and the diagonal of K^-1 of the whole table from those of its distinct rows, eq. (M-88).

        Args: y (n,) or (n, outputs), of the table; weights (*batch, u, outputs or 1); precision (*batch, u).
        Returns: the same for n rows. Without noise the precision of a repeated row is infinite: its copy tells its y.
        """
        y = y.to(torch.float64)
        deviation = y - self.y[self.group]
        deviation = deviation if deviation.dim() == 2 else deviation.unsqueeze(-1)
        share = self.share
        noise = self.likelihood.sites(self.y, None if self.y.dim() == 1 else self.y.shape[-1]).variance
        noise = noise.expand(*noise.shape[:-1], len(self.x))[..., self.group]
        inverse_noise = torch.where(noise > 0, share / noise, 0.0)  # 1 / s_i
        weights = share.unsqueeze(-1) * weights[..., self.group, :] + inverse_noise.unsqueeze(-1) * deviation
        precision = share.square() * precision[..., self.group] + inverse_noise * (1.0 - share)
        return weights, torch.where((noise <= 0) & (share < 1), torch.inf, precision)


@torch.no_grad()
def equal_rows(prior: Prior, x: Tensor, y: Tensor) -> Tensor | None:
    """The number of the row that each row of x joins, (n,), in lexicographic order; None where the rows stay.

    Rows are equal when every number is (-0.0 is 0.0), and can be joined as the module says. Where rows already stand
    for several, they are put in order in any case: a weight and a repetition then agree to the last bit.
    Args: x (n, d) and y (n,) or (n, outputs), checked; with batch dimensions the answer is None.
    Cost: a look at the rows of a small table, a sort of the first column of a large one; a sort of every column where
        that leaves ties.
    """
    likelihood, n = prior.likelihood, x.shape[-2]
    if x.dim() != 2 or y.dim() != (1 if prior.outputs is None else 2) or n == 0:
        return None
    if not likelihood.joins_always and _all_differ(x):
        return None
    keys = joining_keys(likelihood, x, y)
    if keys is None:
        return None
    order = torch.arange(n, device=x.device)
    for column in reversed(keys):
        order = order[column[order].argsort(stable=True)]
    follows = torch.zeros(n, dtype=torch.bool, device=x.device)  # whether a row differs from the one before it
    for column in keys:
        sorted_column = column[order]
        follows[1:] |= sorted_column[1:] != sorted_column[:-1]
    if not likelihood.joins_always and bool(follows[1:].all()):
        return None
    return torch.empty_like(order).index_copy_(0, order, follows.cumsum(0))


def joining_keys(likelihood: Likelihood, x: Tensor, y: Tensor) -> list[Tensor] | None:
    """Columns, each (n,), in which rows that are joined are equal; None where none may be. Args: x (n, d)."""
    more_keys = likelihood.join_keys(y)
    return None if more_keys is None else [*(column + 0.0 for column in x.unbind(-1)), *more_keys]


def _all_differ(x: Tensor) -> bool:
    """True if a quick look already shows that no row repeats."""
    n = len(x)
    if n <= LISTED_ROWS and x.device.type == "cpu":
        return len(set(x[:, 0].tolist())) == n or len(set(map(tuple, x.tolist()))) == n
    first = x[:, 0].sort().values
    return bool((first[1:] != first[:-1]).all())


@torch.no_grad()
def join(prior: Prior, x: Tensor, y: Tensor, group: Tensor) -> Replicates:
    """The table of distinct rows, eqs. (M-86) and (M-87); `group` is that of `equal_rows`. Cost: O(n (d + outputs))."""
    n, u = len(group), int(group.max()) + 1
    first = torch.full((u,), n, device=x.device)
    first.scatter_reduce_(0, group, torch.arange(n, device=x.device), "amin")
    targets, likelihood, share = prior.likelihood.joined(y, group, first)
    return Replicates(x[first] + 0.0, targets, likelihood, group, share)


def joined_event(group: Tensor) -> Event:
    """Event of a report, for rows that were joined."""
    return Event(EventKind.ROWS_JOINED, rows=len(group), distinct=int(group.max()) + 1)
