"""Permutation importance: how much worse held-out rows are predicted where one column of x is permuted among them.

One over a lengthscale says how fast the function may change along a column, not how much of the target it explains.
Here a model with the parameters as they are is conditioned on other rows than those that it predicts, once with their
columns as they are and once with the values of one column exchanged between them, eqs. (M-151) to (M-153).

Does not do: new parameters for each column, which says what a model could do without it.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch
from jaxtyping import Float64
from torch import Tensor

from flashgp.foundations.cells import Tabled
from flashgp.foundations.checks import check_count, check_seed
from flashgp.foundations.contexts import entered
from flashgp.foundations.errors import DomainError
from flashgp.foundations.normal import half_width
from flashgp.inference.data import Data
from flashgp.inference.exact.condition import condition
from flashgp.inference.findings import Unfinished
from flashgp.inference.output_states import AnyState
from flashgp.inference.predict.exact_predictor import predict
from flashgp.inference.predict.plan import Wanted
from flashgp.inference.predict.shares import Shares, shares_of
from flashgp.inference.prior import Prior
from flashgp.inference.settings import ConditionSettings
from flashgp.likelihoods.base import PredictiveDistribution
from flashgp.likelihoods.gaussian import Normal

CALL_PAIRS = 2**19  # of training and predicted rows, below which a call costs more than its arithmetic
InUnits = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class ImportanceSettings:
    """Numbers of rows and permutations.

    Args:
        rows, permutations, seed: as `Posterior.importance`.
        min_rows, max_rows: held out without `rows`, between them a quarter of all, and all where there are fewer.
        largest_part: of all rows that is held out at once.
        others: rows that those are predicted from at most.
        points: predicted at most, which divides by the columns to rows and permutations.
        least_rows: held out at least, however many columns there are.
        max_permutations: of each column, without `permutations`.

    Raises: DomainError for counts that are none.
    """

    rows: int | None = None
    permutations: int | None = None
    seed: int = 0
    min_rows: int = 100
    max_rows: int = 256
    largest_part: float = 0.25
    others: int = 2048
    points: int = 2304
    least_rows: int = 64
    max_permutations: int = 8

    def __post_init__(self) -> None:
        if self.rows is not None:
            check_count(self.rows, "rows", 2)
        if self.permutations is not None:
            check_count(self.permutations, "permutations", 1)
        check_seed(self.seed)

    def sizes(self, n: int, groups: int) -> tuple[int, int, int]:
        """Rows held out of n, permutations, and how many parts are held out one after the other."""
        affordable = max(self.least_rows, self.points // max(1, groups))
        usual = min(max(self.min_rows, int(self.largest_part * n)), self.max_rows)
        rows = min(n, self.rows or min(usual, affordable))
        permutations = self.permutations or max(1, min(self.max_permutations, affordable // rows))
        return rows, min(rows - 1, permutations), min(rows, math.ceil(rows / (self.largest_part * n)))


@dataclass(frozen=True, eq=False, repr=False)
class Importance(Tabled):
    """Importance of each column of x: the loss of accuracy of held-out rows without it, eqs. (M-151) to (M-153).

    The parameters were fitted to the rows held out too. Columns that say the same stand in for each other: of two
    copies of one column neither may look important.

    Attributes:
        names: of the g columns, or groups of columns.
        rmse: increase of the root mean squared error, in units of y, (g,) or (g, outputs); of classes that of their
            probabilities.
        log_density: decrease of the mean log density of a held-out observation, nats a row, the same shape.
        rmse_error: standard errors of `rmse`, over rows and permutations.
        log_density_error: standard errors of `log_density`.
        rows: held out.
        others: rows that each was predicted from.
        permutations: of each column.
        by: what columns are ordered and shown by: "rmse", or "log_density" of classes, levels and counts.
        unfinished: reason that the model is not final, where one is known; the intervals are of rows and permutations,
            not of the fit.
        shares: of the variance of the posterior mean that come from each column, alone and with others; None where it
            does not vary. Of an approximation, or of more than 2,048 rows, the mean is that given `others` of the rows
            by exact inference.

    Example:
        >>> x = torch.rand(60, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        >>> post = fgp.GP(fgp.kernels.RBF(torch.tensor([0.5, 9.0]))).condition(x, torch.sin(6.0 * x[:, 0]))
        >>> found = post.importance()
        >>> [found.names[j] for j in found.order]
        ['x1', 'x2']
        >>> low, high = found.interval(0.95)
        >>> bool(low[0] > 0.0), high.shape
        (True, torch.Size([2]))
    """

    names: tuple[str, ...]
    rmse: Float64[Tensor, "*groups"]
    rmse_error: Float64[Tensor, "*groups"]
    log_density: Float64[Tensor, "*groups"]
    log_density_error: Float64[Tensor, "*groups"]
    rows: int
    others: int
    permutations: int
    unfinished: Unfinished | None = None
    by: Literal["rmse", "log_density"] = "rmse"
    shares: Shares | None = None

    def _table(self) -> tuple[str, list[str], list[list[str]]]:
        """Title, head and rows, the most important first, with 95 % intervals."""
        (low, high), (low_density, high_density) = self.interval(), self.log_density_interval()
        lines = [
            f"Importance: {self.rows:,} held-out rows predicted from {self.others:,} others, {self.permutations} "
            f"permutation{'s' * (self.permutations > 1)} of each column",
            *([] if self.unfinished is None else [self.unfinished.heading]),
        ]
        head = ["", f"{self.measure} grows by", "95 % interval", "nats a row" if self.by == "rmse" else "RMSE"]
        rows = []
        pairs = [(self.rmse, low, high), (self.log_density, low_density, high_density)]
        first, second = pairs if self.by == "rmse" else reversed(pairs)
        for j in self.order:
            for output in range(self.rmse[j].numel()):
                each = (*first, *second)
                value, a, b, other, c, d = (float(one.reshape(len(self.names), -1)[j, output]) for one in each)
                name = self.names[j] + (f", output {output + 1}" if self.rmse.dim() > 1 else "")
                row = [name, f"{value:.4g}", f"{a:.4g} to {b:.4g}", f"{other:.4g}", f"{c:.4g} to {d:.4g}"]
                rows.append(row + ([] if self.shares is None else self.shares.cells(j, output)))
        shares = [] if self.shares is None else ["of variance alone", "with others"]
        return "\n".join(lines), [*head, "95 % interval", *shares], rows

    @property
    def measure(self) -> str:
        """Name of what grows."""
        return "RMSE" if self.by == "rmse" else "log loss"

    @property
    def growth(self) -> Float64[Tensor, "*groups"]:
        """How much it grows: of RMSE in units of y, of log loss in nats a row."""
        return self.rmse if self.by == "rmse" else self.log_density

    def growth_interval(self, level: float = 0.95) -> tuple[Float64[Tensor, "*groups"], Float64[Tensor, "*groups"]]:
        """Interval of `growth`, as `interval`."""
        return self.interval(level) if self.by == "rmse" else self.log_density_interval(level)

    @cached_property
    def order(self) -> list[int]:
        """Positions in `names`, the most important first, by `growth`; of several outputs by the sum of its squares.

        Of numbers not by `log_density`, in which a few rows with small variances outweigh all others.
        """
        sizes = self.growth.reshape(len(self.names), -1)
        total = (sizes.sign() * sizes.square()).sum(-1).nan_to_num(nan=-math.inf)
        return sorted(range(len(self.names)), key=lambda j: -float(total[j]))

    def interval(self, level: float = 0.95) -> tuple[Float64[Tensor, "*groups"], Float64[Tensor, "*groups"]]:
        """Interval that holds `rmse` of ever more rows and permutations, lower and upper ends.

        Args:
            level: probability, 0 < level < 1.

        Raises:
            DomainError: unless 0 < level < 1.
        """
        half = half_width(level) * self.rmse_error
        return self.rmse - half, self.rmse + half

    def log_density_interval(
        self, level: float = 0.95
    ) -> tuple[Float64[Tensor, "*groups"], Float64[Tensor, "*groups"]]:
        """Interval of `log_density`, as `interval`."""
        half = half_width(level) * self.log_density_error
        return self.log_density - half, self.log_density + half


def column_groups(groups: Mapping[str, int | Sequence[int]] | None, d: int) -> dict[str, tuple[int, ...]]:
    """Names and columns of x of what is permuted together; x1, x2, ... for None. Raises: DomainError."""
    if groups is None:
        return {f"x{j + 1}": (j,) for j in range(d)}
    if not isinstance(groups, Mapping):
        raise DomainError(
            f"`groups` must be a mapping from names to columns of x, got {type(groups).__name__}; for example "
            '{"size": 0, "colour": [1, 2, 3]}'
        )
    found: dict[str, tuple[int, ...]] = {}
    for name, columns in groups.items():
        each: Sequence[Any] = columns if isinstance(columns, Sequence) else (columns,)
        for column in each:
            if not isinstance(column, int) or isinstance(column, bool) or not 0 <= column < d:
                raise DomainError(
                    f"`groups[{name!r}]` must have columns of x, 0 to {d - 1}, got {column!r}; give numbers of columns"
                )
        found[str(name)] = tuple(each)
    return found


@entered(lambda state, *_, **__: state.run.deterministic)
def importance(
    state: AnyState,
    groups: Mapping[str, int | Sequence[int]] | None = None,
    settings: ImportanceSettings = ImportanceSettings(),
    in_units: InUnits | None = None,
) -> Importance:
    """See `Posterior.importance`; in_units: from location and spread of predictions, (..., outputs or 1), to means in
    the units that `rmse` is in."""
    if state.batch_shape or state.x.dim() != 2:
        raise DomainError(
            f"`importance` is of one model, got a posterior of a batch, of shape {tuple(state.batch_shape)}; "
            "condition on one table at a time"
        )
    if state.count < 2:
        raise DomainError(
            f"`importance` needs 2 rows at least, to exchange their values, got {state.count}; condition on more rows"
        )
    names = column_groups(groups, state.x.shape[-1])
    split = _Split.of(state, len(names), settings)
    columns = [*names.values()]
    first, *blocks = split.blocks()
    if not all(len(split.rest(block)) for block in (first, *blocks)):
        raise DomainError(
            f"`importance` predicts rows from others, and rows of equal x are held out together, got "
            f"{int(split.group.max()) + 1} that differ in {state.count:,}; there are too few"
        )
    behind = _behind(state, split.rest(first))
    parts = [_predicted(state, behind, split, first, columns)]
    parts += [_predicted(state, _behind(state, split.rest(block)), split, block, columns) for block in blocks]
    base, permuted = zip(*parts, strict=True)
    y = _targets(state.prior, state.y[split.held])
    before, after = ([torch.cat(parts, dim=2) for parts in zip(*each, strict=True)] for each in (base, permuted))
    in_units = in_units or _own_units
    observed = in_units(y, torch.zeros_like(y))
    squares, squares_after = ((in_units(at, spread) - observed).square() for at, spread, _ in (before, after))
    grown = squares_after - squares  # (g, s, m, p)
    fall, fall_error = _mean_and_error(before[2] - after[2], split.shifts)  # eq. (M-151)
    mean_square = squares.mean((1, 2))  # (g, p), the same for every group
    root, root_moved = mean_square.sqrt(), (mean_square + grown.mean((1, 2))).clamp_min(0.0).sqrt()  # eq. (M-152)
    slope, slope_moved = (torch.where(value > 0.0, 0.5 / value, 0.0) for value in (root, root_moved))
    beside = squares.mean(1) * (slope_moved - slope).unsqueeze(1)  # (g, m, p), eq. (M-153)
    _, rmse_error = _mean_and_error(slope_moved[:, None, None] * grown, split.shifts, beside)
    outputs = state.prior.outputs
    found, likelihood = [root_moved - root, rmse_error, fall, fall_error], state.prior.likelihood.underlying
    one = outputs is None or not (likelihood.has_sites or likelihood.outputs is None)  # functions of one observation
    if one:
        found = [value.mean(-1) for value in found]
    rmse, rmse_error, log_density, log_density_error = (value.cpu() for value in found)
    return Importance(
        tuple(names), rmse, rmse_error, log_density, log_density_error, len(split.held), split.others,
        len(split.shifts), by="log_density" if likelihood.discrete else "rmse",
        shares=_shares(state, behind, names, settings, as_one=one),
    )  # fmt: skip


@dataclass(frozen=True)
class _Split:
    """Rows that are held out, and others that they are predicted from.

    Fields: held, (m,), in random order; order, (n,), of all rows; group, (n,), rows of equal x have one number; parts,
    how many are held out one after the other; shifts, by how many places the values of a column move in that order, one
    for each permutation; others, rows behind the first block.
    """

    held: Tensor
    order: Tensor
    group: Tensor
    parts: int
    shifts: tuple[int, ...]
    most_others: int

    @classmethod
    def of(cls, state: AnyState, groups: int, settings: ImportanceSettings) -> "_Split":
        n, generator = state.count, torch.Generator().manual_seed(settings.seed)
        replicates = state.replicates
        group = torch.arange(n) if replicates is None else replicates.group.cpu()
        ranks = torch.randperm(int(group.max()) + 1, generator=generator)
        order = torch.argsort(ranks[group], stable=True)  # rows of equal x one after the other
        m, count, parts = settings.sizes(n, groups)
        held = order[:m][torch.randperm(m, generator=generator)]
        shifts = 1 + torch.randperm(m - 1, generator=generator)[:count]
        return cls(held, order, group, parts, tuple(shifts.tolist()), settings.others)

    def blocks(self) -> Iterator[slice]:
        """Places in `held` of what is held out together."""
        m = len(self.held)
        ends = [round(part * m / self.parts) for part in range(self.parts + 1)]
        return (slice(a, b) for a, b in itertools.pairwise(ends))

    def rest(self, block: slice) -> Tensor:
        """Rows that a block is predicted from: without its own and their equals, the table's order."""
        left = self.order[~torch.isin(self.group[self.order], self.group[self.held[block]])]
        return left[: self.most_others].sort().values

    @property
    def others(self) -> int:
        return len(self.rest(next(self.blocks())))


def _behind(state: AnyState, rest: Tensor) -> AnyState:
    """The state of some of the rows, with the parameters as they are."""
    prior = state.prior.with_likelihood(state.prior.likelihood.rows(rest))
    left = Data(prior, state.x[rest], state.y[rest])
    return condition(prior, left, ConditionSettings(replace(state.run, dtype=torch.float64), solver="cholesky"))


def _shares(
    state: AnyState, behind: AnyState, names: Mapping[str, Sequence[int]], settings: ImportanceSettings, *, as_one: bool
) -> Shares | None:
    """Shares of the mean given all rows where these are few, else given those that a first block is predicted from."""
    known = state if isinstance(state, AnyState) and state.count <= settings.others else behind
    x, at_once = known.x, max(1, CALL_PAIRS // max(1, known.distinct))

    def mean(points: Tensor) -> Tensor:
        each = [predict(known, some.to(x.dtype), Wanted("exact")).mean for some in points.split(at_once)]
        return _targets(known.prior, torch.cat(each))

    read = []
    for k, columns in enumerate(names.values()):
        moved = x.clone()
        moved[:, list(columns)] = x[:, list(columns)].roll(1, 0)
        if not _same_features(state.prior, moved, x):
            read.append(k)
    return shares_of(mean, x, names, read, settings.seed, as_one=as_one)


def _predicted(
    state: AnyState, behind: AnyState, split: _Split, block: slice, groups: Sequence[Sequence[int]]
) -> tuple[tuple[Tensor, ...], ...]:
    """(location, spread, log density) of a block's observations, for each group of columns and shift, (g, s, b, p), and
    the same where these columns are moved; p is outputs or 1.

    Columns that the prior does not read are not predicted again: they change nothing, not even by rounding.
    """
    prior, held = state.prior, split.held[block]
    values, places, shifts = state.x[split.held], torch.arange(len(split.held))[block], len(split.shifts)
    donors = torch.cat([(places + shift) % len(split.held) for shift in split.shifts])
    as_it_is = state.x[held].repeat(shifts, 1)
    moved = []
    for columns in groups:
        x = as_it_is.clone()
        x[:, list(columns)] = values[donors][:, list(columns)]
        moved.append(x)
    read = [k for k, x in enumerate(moved) if not _same_features(prior, x, as_it_is)]
    at_once = max(1, CALL_PAIRS // (behind.count * len(as_it_is)))
    parts = []
    for start in range(0, len(read) + 1, at_once):
        some = [as_it_is, *(moved[k] for k in read)][start : start + at_once]
        y = state.y[held].repeat(len(some) * shifts, *(1,) * (state.y.dim() - 1))
        own = prior.with_likelihood(prior.likelihood.rows(held.repeat(len(some) * shifts)))
        with torch.no_grad():
            p = predict(behind, torch.cat(some), Wanted("exact"))
            scores = _observed(own, y, _targets(prior, p.mean), _targets(prior, p.variance))
        parts.append([score.reshape(len(some), shifts, len(held), -1) for score in scores])
    found = [torch.cat(each) for each in zip(*parts, strict=True)]
    base = [each[:1].expand(len(groups), *each.shape[1:]) for each in found]
    after = [each.clone() for each in base]
    for each, scored in zip(after, found, strict=True):
        each[read] = scored[1:]
    return tuple(base), tuple(after)


def _same_features(prior: Prior, x: Tensor, other: Tensor) -> bool:
    """True if neither the kernel nor the mean tells two tables of points apart."""
    with torch.no_grad():
        pairs = zip(prior.kernel.rows(x).tensors, prior.kernel.rows(other).tensors, strict=True)
        same = all(a.shape == b.shape and torch.equal(a, b) for a, b in pairs)
        return same and torch.equal(prior.mean_at(x), prior.mean_at(other))


def _observed(own: Prior, y: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Location, spread and log density of the observations y of some rows, from the latent moments, each (b, p)."""
    target = _targets(own, y)
    if own.likelihood.additive_noise(y.device) is None:
        mean, variance, target = (values.movedim(-1, 0) for values in (mean, variance, target))
        found: PredictiveDistribution = own.likelihood.predictive_of_rows(mean, variance)
        location, spread, log_prob = found.mean, found.variance.sqrt(), found.log_prob(target)
        return location.movedim(0, -1), spread.movedim(0, -1), log_prob.movedim(0, -1)
    noise = own.sites(y).variance
    noise = noise if own.separate else noise.unsqueeze(-1)  # (b or 1, p or 1)
    normal = Normal(mean, variance + noise)
    return mean, normal.variance.sqrt(), normal.log_prob(target)


def _targets(prior: Prior, values: Tensor) -> Tensor:
    """(b,) or (b, outputs) as (b, outputs or 1), float64."""
    values = values.double()
    return values if prior.outputs is not None else values.unsqueeze(-1)


def _own_units(location: Tensor, spread: Tensor) -> Tensor:
    return location


def _mean_and_error(
    values: Tensor, shifts: Sequence[int], beside: Tensor | float = 0.0
) -> tuple[Float64[Tensor, "g p"], Float64[Tensor, "g p"]]:
    """The mean of values of pairs (g, s, m, p) and its standard error, eq. (M-153); beside: (g, m, p), what else each
    row adds to it.

    A row takes part as the one that is predicted and as the one that gives its value to another.
    """
    m = values.shape[2]
    mean = values.mean((1, 2))
    as_donor = torch.stack([values[:, k].roll(shift, dims=1) for k, shift in enumerate(shifts)], dim=1)
    influence = values.mean(1) + as_donor.mean(1) + beside
    return mean, influence.std(1, correction=1) / math.sqrt(m)
