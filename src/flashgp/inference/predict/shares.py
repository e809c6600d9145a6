"""Sobol indices of the posterior mean: shares of its variance by inputs, alone and together, (M-412) and (M-413).

Estimated by pick and freeze on the mean itself, which serves every covariance function; a closed form would need one
that is a product over columns (decision 64). Points are randomised quasi-random ones, which give the error as well.

Does not do: inputs that depend on each other. Columns are drawn each by itself from their values in the training rows.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from flashgp.foundations.cells import Tabled
from flashgp.foundations.errors import DomainError

MeanAt = Callable[[Tensor], Tensor]  # from points (s, d) to means (s, outputs or 1)


@dataclass(frozen=True)
class ShareSettings:
    """Args:
    points: at which the mean is taken at most, over all groups.
    least, most: of one estimate of all of them, a power of 2 for each replicate.
    replicates: randomisations, whose spread is the error.
    paired: groups whose pairs are looked at, those that act together with others most.
    together: share that a group has to have with others to be one of them.
    """

    points: int = 16_384
    least: int = 128
    most: int = 2_048
    replicates: int = 8
    paired: int = 3
    together: float = 0.02

    def count(self, groups: int) -> int:
        """Points of each replicate."""
        whole = min(self.most, max(self.least, self.points // (groups + 2)))
        return int(2 ** math.floor(math.log2(whole / self.replicates)))

    def evaluations(self, groups: int) -> int:
        """Points at which the mean is taken, over all groups and pairs, at most."""
        return (2 + groups + math.comb(self.paired, 2)) * self.replicates * self.count(groups)


@dataclass(frozen=True, eq=False, repr=False)
class Shares(Tabled):
    """Shares of the variance of the posterior mean that come from each input, eq. (M-412).

    The distribution of inputs has the columns of the training rows, independent of each other: where columns go
    together, this counts rows as well that no table has. Of the function f, before any likelihood or transform of y.
    Of more than 2,048 rows, and of an approximation, f is the mean given that many of them by exact inference. Of the
    functions of one observation, as classes have them, variances are added up.

    Attributes:
        names: of the g columns, or groups of columns.
        first: share of each input alone, (g,) or (g, outputs).
        first_error: its standard error, of the points.
        total: share of each with all its interactions; what would be left if all others were known.
        total_error: its standard error.
        pairs: positions of two inputs, of those that act together with others most.
        together: share of each pair beyond what both have alone, (pairs,) or (pairs, outputs).
        together_error: its standard error.

    Example:
        >>> x = torch.rand(80, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        >>> post = fgp.GP(fgp.kernels.RBF(0.7)).condition(x, x[:, 0] * x[:, 1])
        >>> shares = post.importance().shares
        >>> value, error = shares.interaction("x1", "x2")
        >>> bool(abs(value - 1 / 7) < 0.05), bool(shares.total[2] < 0.01)
        (True, True)
    """

    names: tuple[str, ...]
    first: Float64[Tensor, "*groups"]
    first_error: Float64[Tensor, "*groups"]
    total: Float64[Tensor, "*groups"]
    total_error: Float64[Tensor, "*groups"]
    pairs: tuple[tuple[int, int], ...]
    together: Float64[Tensor, "*pairs"]
    together_error: Float64[Tensor, "*pairs"]

    def _table(self) -> tuple[str, list[str], list[list[str]]]:
        """Title, head and rows: inputs, the largest share first, then pairs; standard errors of the points."""
        total = self.total.reshape(len(self.names), -1)
        rows = [
            [self.names[j], _percent(self.first[j], self.first_error[j]), _percent(self.total[j], self.total_error[j])]
            for j in total.mean(-1).argsort(descending=True).tolist()
        ]
        for k, (i, j) in enumerate(self.pairs):
            both = _percent(self.together[k], self.together_error[k])
            rows.append([f"{self.names[i]} and {self.names[j]} together", both, ""])
        return "Shares of the variance of the posterior mean", ["", "alone", "with others"], rows

    def cells(self, position: int, output: int = 0) -> list[str]:
        """First and total share of an input, of one output, in words."""
        values = (value.reshape(len(self.names), -1)[position] for value in (self.first, self.total))
        alone, total = (min(100.0, max(0.0, 100 * float(value[min(output, len(value) - 1)]))) for value in values)
        return [f"{alone:.3g} %", f"{max(alone, total):.3g} %"]  # whose errors may put one above the other

    def interaction(
        self, one: int | str, other: int | str
    ) -> tuple[Float64[Tensor, "*outputs"], Float64[Tensor, "*outputs"]]:
        """Share of two inputs beyond what both have alone, and its standard error, eq. (M-413).

        Args:
            one: name or position.
            other: likewise.

        Raises:
            DomainError: for a pair that was not looked at, whose share is at most the lesser `total - first`.
        """
        wanted = {self.names.index(name) if name in self.names else name for name in (one, other)}
        for k, pair in enumerate(self.pairs):
            if {*pair} == wanted:
                return self.together[k], self.together_error[k]
        known = ", ".join(f"({self.names[i]}, {self.names[j]})" for i, j in self.pairs) or "none"
        raise DomainError(
            f"`one` and `other` must be a pair that was looked at ({known}), got {one!r} and {other!r}; total - first "
            "bounds the share of all others"
        )


@torch.no_grad()
def shares_of(
    mean: MeanAt, x: Tensor, groups: Mapping[str, Sequence[int]], read: Sequence[int], seed: int,
    settings: ShareSettings = ShareSettings(), *, as_one: bool = False,
) -> Shares | None:  # fmt: skip
    """Shares of the variance of a function, eqs. (M-412) and (M-413); None where it does not vary.

    Args:
        mean: the function.
        x: (n, d), whose columns are the distribution of inputs.
        groups: names and columns that are drawn together.
        read: positions of the groups that the function reads; the shares of others are 0.
        seed: of the randomisation.
        as_one: whether variances of all outputs are added up, in place of a share of each.
    Cost: (2 + |read| + pairs) times `settings.count` values of the function.
    """
    columns = [[*groups[name]] for name in groups]
    design = _Design(x, columns, settings.count(len(read)), settings.replicates, seed)

    def over(products: Tensor) -> Tensor:
        """Means over points of (replicates, points, p), (replicates, p or 1)."""
        found = products.mean(1)
        return found.sum(-1, keepdim=True) if as_one else found

    a, b = (_by_replicate(mean(points), settings) for points in (design.first, design.second))
    centre = 0.5 * (a.mean((0, 1)) + b.mean((0, 1)))
    a, b = a - centre, b - centre
    variance = 0.5 * over(a.square() + b.square())  # (replicates, p or 1)
    if not bool((variance.mean(0) > 0.0).all()):
        return None
    nothing = torch.zeros(len(columns), *variance.shape, dtype=torch.float64, device=x.device)
    alone, total = nothing.clone(), nothing.clone()
    at_once = max(1, settings.points // len(design.first))
    for start in range(0, len(read), at_once):
        some = read[start : start + at_once]
        values = mean(torch.cat([design.exchanged(columns[j]) for j in some]))
        for j, value in zip(some, values.split(len(design.first)), strict=True):
            moved = _by_replicate(value, settings) - centre
            alone[j] = over(b * (moved - a))
            total[j] = 0.5 * over((moved - a).square())
    with_others, its_error = (value.mean(-1) for value in _ratio(total - alone, variance))
    most = sorted(read, key=lambda j: -float(with_others[j]))[: settings.paired]
    some = sorted(j for j in most if float(with_others[j]) > max(settings.together, 2.0 * float(its_error[j])))
    pairs, both = [*itertools.combinations(some, 2)], nothing.new_zeros(math.comb(len(some), 2), *nothing.shape[1:])
    for k, (i, j) in enumerate(pairs):
        moved = _by_replicate(mean(design.exchanged(columns[i] + columns[j])), settings) - centre
        both[k] = over(b * (moved - a)) - alone[i] - alone[j]
    found = [value for parts in (alone, total, both) for value in _ratio(parts, variance)]
    first, first_error, whole, whole_error, together, together_error = (
        (value if variance.shape[-1] > 1 else value.squeeze(-1)).cpu() for value in found
    )
    return Shares(tuple(groups), first, first_error, whole, whole_error, tuple(pairs), together, together_error)


class _Design:
    """Two independent samples of the inputs, (replicates count, d): first, second."""

    def __init__(self, x: Tensor, columns: Sequence[Sequence[int]], count: int, replicates: int, seed: int) -> None:
        each = 2 * len(columns)
        uniform = torch.cat([_uniform(count, each, seed + 7919 * k) for k in range(replicates)]).to(x.device)
        whole = x.median(0).values.repeat(2, len(uniform), 1)  # of columns that no group has
        for k, some in enumerate(columns):
            values = x[:, list(some)]
            values = values[values[:, 0].argsort()]
            for side, sample in enumerate(whole):
                place = (uniform[:, 2 * k + side] * len(x)).long().clamp_max(len(x) - 1)
                sample[:, list(some)] = values[place]
        self.first, self.second = whole

    def exchanged(self, columns: Sequence[int]) -> Tensor:
        """The first sample with the values of the second in some columns."""
        moved = self.first.clone()
        moved[:, list(columns)] = self.second[:, list(columns)]
        return moved


def _percent(value: Tensor, error: Tensor) -> str:
    """Each share with its standard error, in percent."""
    pairs = zip(value.reshape(-1).tolist(), error.reshape(-1).tolist(), strict=True)
    return ", ".join(f"{100 * share:.3g} ± {100 * spread:.1g} %" for share, spread in pairs)


def _uniform(count: int, dims: int, seed: int) -> Tensor:
    """Scrambled Sobol points, (count, dims); of more dimensions than these have random ones."""
    if dims <= torch.quasirandom.SobolEngine.MAXDIM:
        return torch.quasirandom.SobolEngine(dims, scramble=True, seed=seed).draw(count, dtype=torch.float64)
    return torch.rand(count, dims, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _by_replicate(values: Tensor, settings: ShareSettings) -> Tensor:
    """(replicates, count, p)."""
    return values.double().reshape(settings.replicates, -1, values.shape[-1])


def _ratio(parts: Tensor, whole: Tensor) -> tuple[Tensor, Tensor]:
    """Ratio of means over replicates and its standard error, (k, p). Args: parts (k, replicates, p); whole."""
    scale = whole.mean(0)
    value = parts.mean(1) / scale
    left = (parts - value.unsqueeze(1) * whole) / scale
    return value, left.square().sum(1).div(parts.shape[1] - 1).sqrt() / math.sqrt(parts.shape[1])
