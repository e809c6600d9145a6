"""Spectrum of a stationary covariance function on a grid, from its one formula, and the grid that it asks for.

Made periodic over a box, k(r) ~ sum_j c_j exp(2 pi i nu_j . r), with c_j >= 0 its Fourier coefficients: the FFT of its
values at twice as many lags as there are frequencies. Two errors, both known before any row is seen, eq. (M-431):

    repeated    a term that decays comes again at r + L: k(L - range) at most; others have a period that divides L
    left out    frequencies |j| > m: the variance of their c_j, which inference treats as noise, so that none is lost

What both make of a posterior is measured by another grid that errs more, eq. (M-465).
"""

import contextlib
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from flashgp.foundations.events import NoSeries
from flashgp.inference.fourier.domain_basis import WORTH, least_coordinates
from flashgp.inference.fourier.grid import Grid, fast_length
from flashgp.inference.fourier.grids import Grids, Series, coordinates_of, series_of
from flashgp.kernels.base import Constant, Kernel, Leaf, Product, Scaled, Sum, terms
from flashgp.kernels.periodic import Cosine, Periodic
from flashgp.kernels.spectral_mixture import SpectralMixture
from flashgp.kernels.squared_exponential import Stationary
from flashgp.operators.covariance import CovarianceOperator
from flashgp.planner.fourier_price import Refusal

MOST_COLUMNS = 3
OVERSAMPLED = 2  # lags for each frequency
LAGS = 2**14  # of a column, by which its spectrum is looked at
FARTHEST = 1e9  # ranges, up to which decay is looked for
STEPS = 600  # of distances there
CONSTANT = 1e-6  # of its size, the range that a constant column is taken to have
LEAST_REPEATED = 1e-12  # of its variance, about the accuracy of values
LINES = 1e-13  # of the variance of a column, which rounding leaves beyond the last of some lines of a spectrum
F64 = torch.float64


@dataclass(frozen=True)
class GridSettings:
    """Sizes of a grid, (M-431).

    Fields: tail, of the noise variance, that each column leaves out at most, of one to three; least_tail, of the prior
    variance, below which nothing is asked for; finer, parts of the tail that are left out where B still has a factor of
    half of `finest` rows, or all, and searched, times the tail that a search without one leaves out; repeated, of its
    variance, that a term may have where it comes again, with a factor of B and without, and repeated_noise, of the
    noise variance, as far as the distance to there grows by no more than `grown`; room, times that lengthscales may
    grow or shrink while a grid is kept; most_periods in a box; off_period, parts of a period by which a box of several
    may miss them; beyond, parts of the range by which points may lie outside it, of one to three columns; coarser,
    times the tail and what is repeated, that the grid has which measures the error of another.
    """

    tail: tuple[float, ...] = (1e-4, 5e-3, 5e-3)
    least_tail: float = 1e-9
    finer: tuple[tuple[float, float], ...] = ((1e-4, 0.25), (1e-3, 0.4), (1e-2, 0.6), (1e-1, 1.0))
    finest: int = 2500
    searched: float = 8.0
    repeated: tuple[float, float] = (1e-6, 1e-3)
    repeated_noise: tuple[float, float] = (1e-4, 2e-2)
    grown: float = 1.5
    room: float = 1.25
    most_periods: int = 4096
    off_period: float = 1e-3
    beyond: tuple[float, ...] = (0.25, 0.1, 0.05)
    coarser: tuple[float, float] = (3.0, 10.0)


class Repeats(NamedTuple):
    """How far a box goes beyond the rows. Fields: room, times the distance; share of its variance that a term may have
    where it comes again; and at_most, share whose distance grows by no more than `grown`."""

    room: float
    share: float
    at_most: float


class NoGridError(Exception):
    """There is no grid for a covariance function; the text is the reason, and what to do."""


@dataclass(frozen=True, eq=False)
class Decaying:
    """A sum of terms that all decay along the same columns, and repeat or stay along the others."""

    kernel: Kernel
    columns: frozenset[int]


def obstacle(kernel: Kernel, d: int) -> Refusal | None:
    """Reason that a covariance function of d columns has no grid; None if it may have one."""
    known = (Stationary, Periodic, Cosine, SpectralMixture, Constant)
    other = [k for k in kernel.modules() if isinstance(k, Kernel) and k.parts and type(k) not in (Sum, Product, Scaled)]
    other += [leaf for leaf in kernel.leaves() if not isinstance(leaf, known)]
    if other:
        name = type(other[0]).__name__
        return Refusal(
            NoSeries.KERNEL,
            f"by Fourier series needs a stationary covariance function, got {name}; pass sums or products of "
            'Matern and others like it, or "full_scale"',
        )
    widest = max(map(len, column_sets(kernel, d)), default=0)
    if not 1 <= widest <= MOST_COLUMNS:
        return Refusal(
            NoSeries.COLUMNS,
            f"by Fourier series is for covariance functions whose terms have one to {MOST_COLUMNS} columns each, got "
            f'one of {widest}; pass a sum of terms of fewer columns, or "full_scale"',
        )
    return None


def column_sets(kernel: Kernel, d: int) -> list[tuple[int, ...]]:
    """Sets of columns that terms look at, each once."""
    return [*dict.fromkeys(columns for term in terms(kernel) if (columns := columns_of(term, d)))]


def by_columns(kernel: Kernel, sets: Sequence[tuple[int, ...]], d: int) -> list[Kernel | None]:
    """The sum of the terms of each set of columns, None where there are none; constants are of the first set."""
    found: list[list[Kernel]] = [[] for _ in sets]
    for term in terms(kernel):
        columns = columns_of(term, d)
        found[sets.index(columns) if columns in sets else 0].append(term)
    return [None if not some else some[0] if len(some) == 1 else Sum(*some) for some in found]


def columns_of(kernel: Kernel, d: int) -> tuple[int, ...]:
    """Columns of x that a covariance function looks at."""
    leaves = (leaf for leaf in kernel.leaves() if not isinstance(leaf, Constant))
    return tuple(sorted({column for leaf in leaves for column in own_columns(leaf, d)}))


def own_columns(leaf: Kernel, d: int) -> tuple[int, ...]:
    """Columns of x that a leaf looks at."""
    assert isinstance(leaf, Leaf)
    return tuple(range(d)) if leaf.active_dims is None else tuple(leaf.active_dims)


def leaves_along(term: Kernel, column: int, d: int) -> tuple[list[Kernel], list[Kernel]]:
    """Leaves of a term that look at a column: those that decay, those that repeat."""
    own = [leaf for leaf in term.leaves() if not isinstance(leaf, Constant) and column in own_columns(leaf, d)]
    lasting: list[Kernel] = [leaf for leaf in own if isinstance(leaf, Periodic | Cosine)]
    return [leaf for leaf in own if leaf not in lasting], lasting


def _groups(kernel: Kernel, d: int) -> list[Decaying]:
    """The terms by the columns along which they decay."""
    found: dict[frozenset[int], list[Kernel]] = {}
    for term in terms(kernel):
        along = frozenset(column for column in range(d) if leaves_along(term, column, d)[0])
        found.setdefault(along, []).append(term)
    return [Decaying(some[0] if len(some) == 1 else Sum(*some), along) for along, some in found.items()]


def _values(kernel: Kernel, lags: Tensor) -> Tensor:
    """k at lags (n, d), (n,), differentiable by the parameters."""
    zero, rows = kernel.rows(torch.zeros_like(lags[:1])), kernel.rows(lags)
    return CovarianceOperator.of(kernel.form, kernel.theta(), zero, rows, dtype=F64).to_dense()[0]


def _folded(group: Decaying, d: int, axes: Sequence[tuple[int, float, Tensor]]) -> Tensor:
    """Values of a group on a product of lags, with what repeats from the next box along columns where it decays.

    Args: axes, (column, length of the box, lags) each. Returns: of the shape of the product.
    """
    shape = tuple(len(lags) for _, _, lags in axes)
    total: Tensor | None = None
    choices = [(False, True) if column in group.columns else (False,) for column, _, _ in axes]
    for far in itertools.product(*choices):
        moved = [
            lags - torch.where(lags >= 0, length, -length) if beyond else lags
            for beyond, (_, length, lags) in zip(far, axes, strict=True)
        ]
        points = torch.zeros(math.prod(shape), d, dtype=F64)
        product = torch.meshgrid(*moved, indexing="ij")
        for (column, _, _), values in zip(axes, product, strict=True):
            points[:, column] = values.reshape(-1)
        found = _values(group.kernel, points).reshape(shape)
        total = found if total is None else total + found
    assert total is not None
    return total


def coefficients(kernel: Kernel, grid: Series, d: int, oversampled: float = OVERSAMPLED) -> Tensor:
    """c_j, a half of the grid's shape, differentiable by the parameters. Cost: 2^d M to 8^d M values."""
    if isinstance(grid, Grids):
        each = zip(by_columns(kernel, [part.columns for part in grid.parts], d), grid.parts, strict=True)
        return grid.joined(
            [torch.zeros(part.shape, dtype=F64) if own is None else coefficients(own, part, d) for own, part in each]
        )
    counts = [fast_length(math.ceil(2 * oversampled * m) + 1) for m in grid.orders]
    vectors = (Cosine, SpectralMixture)
    even = not any(isinstance(leaf, vectors) and len(own_columns(leaf, d)) > 1 for leaf in kernel.leaves())
    axes = []
    for column, length, count in zip(grid.columns, grid.lengths, counts, strict=True):
        steps = torch.arange(count // 2 + 1 if even else count, dtype=F64)
        axes.append((column, length, torch.where(steps > count // 2, steps - count, steps) * (length / count)))
    total = sum(_folded(group, d, axes) for group in _groups(kernel, d))
    assert isinstance(total, Tensor)
    return series(total, grid, counts, even=even).clamp_min(0.0)


def series(total: Tensor, grid: Grid, counts: Sequence[int], *, even: bool) -> Tensor:
    """Fourier coefficients of a grid, a half, of values at so many lags; even: those up to half of each, in all."""
    if even:
        for axis, count in enumerate(counts):
            steps = torch.arange(count)
            total = total.index_select(axis, torch.minimum(steps, count - steps))
    spectrum = torch.fft.rfftn(total, norm="forward").real
    for axis, (m, count) in enumerate(zip(grid.orders[:-1], counts[:-1], strict=True)):
        spectrum = spectrum.index_select(axis, torch.arange(-m, m + 1) % count)
    return spectrum[..., : grid.orders[-1] + 1]


def differentiable_variance(kernel: Kernel, d: int) -> Tensor:
    """k(0), differentiable by the parameters."""
    return _values(kernel, torch.zeros(1, d, dtype=F64))[0]


def left_out(kernel: Kernel, grid: Series, spectrum: Tensor, d: int) -> Tensor:
    """The tail t, differentiable by the parameters: what the coefficients lack of k(0) with what repeats there."""
    if isinstance(grid, Grid):
        lags, boxes = torch.zeros(1, dtype=F64), zip(grid.columns, grid.lengths, strict=True)
        zero = [(column, length, lags) for column, length in boxes]
        whole = torch.stack([_folded(group, d, zero).reshape(()) for group in _groups(kernel, d)]).sum()
        return (whole - grid.total(spectrum)).clamp_min(0.0)
    each = zip(by_columns(kernel, [part.columns for part in grid.parts], d), grid.parts, strict=True)
    tails = [
        left_out(own, part, c, d) for (own, part), c in zip(each, grid.split(spectrum), strict=True) if own is not None
    ]
    return torch.stack(tails).sum()


@torch.no_grad()
def prior_variance(kernel: Kernel, d: int) -> float:
    """k(0)."""
    return float(differentiable_variance(kernel, d))


@torch.no_grad()
def grid_of(
    kernel: Kernel, low: Tensor, high: Tensor, noise: float, settings: GridSettings, most: int, *, search: bool = False
) -> Series:
    """The grid for rows between two corners (d,) at a noise variance, or one for each set of columns that terms have,
    where that takes fewer coordinates. Args: most, rows of a factor of B; search, whether parameters will move.

    Raises: NoGridError.
    """
    room, (few, many) = settings.room if search else 1.0, _repeated(kernel, len(low), noise, settings)
    few_rows = min(most, settings.finest)
    for share, part in [*(() if search else settings.finer), (1.0, 1.0)]:
        rows = int(part * few_rows)
        try:
            found = _series(kernel, (low, high), share * noise, settings, Repeats(room, *few), rows)
        except NoGridError:
            continue
        if coordinates_of(found, rows):
            return found
    allowed = noise * (settings.searched if search else 1.0)
    found = _series(kernel, (low, high), allowed, settings, Repeats(room, *many), most)
    if isinstance(found, Grids) and not coordinates_of(found, most):
        each = [(coordinates_of(Grids((part,)), most) or least_coordinates(part), part) for part in found.parts]
        sizes = ", ".join(f"{size:,.0f} for columns {part.columns}" for size, part in each)
        raise NoGridError(
            f"by Fourier series of terms in different columns has at most {most:,} coordinates of all terms, got about "
            f'{sizes}; pass "full_scale"'
        )
    return found


def _series(
    kernel: Kernel, corners: tuple[Tensor, Tensor], noise: float, settings: GridSettings,
    repeats: Repeats, most: int,
) -> Series:  # fmt: skip
    """One grid of all columns, or one for each set of columns that terms have: what has the smaller factor of no more
    than `most` rows, and one grid where neither has. Raises: NoGridError."""
    d, choices, refused = len(corners[0]), list[Series](), list[NoGridError]()
    for sets in dict.fromkeys([(columns_of(kernel, d),), tuple(column_sets(kernel, d))]):
        if max(map(len, sets)) > MOST_COLUMNS:
            continue
        each = [kernel] if len(sets) == 1 else by_columns(kernel, sets, d)
        try:
            choices.append(
                series_of([_grid(own, corners, noise, settings, repeats) for own in each if own is not None])
            )
        except NoGridError as reason:
            refused.append(reason)
    if not choices:
        raise refused[0]
    sizes = [coordinates_of(one, most) or math.inf for one in choices]
    return choices[-1] if sizes[-1] < WORTH * sizes[0] else choices[0]


def _grid(
    kernel: Kernel, corners: tuple[Tensor, Tensor], noise: float, settings: GridSettings,
    repeats: Repeats,
) -> Grid:  # fmt: skip
    """The grid for a noise variance. Raises: NoGridError."""
    low, high = corners
    d = len(low)
    groups, columns = _groups(kernel, d), columns_of(kernel, d)
    tail = max(settings.tail[len(columns) - 1] * noise, settings.least_tail * prior_variance(kernel, d))
    lengths, orders, reach = [], [], []
    for column in columns:
        wide = _wide(low, high, column)
        beyond = wide * settings.beyond[len(columns) - 1]
        reach.append(wide + 2.0 * beyond)
        lengths.append(_length(kernel, column, d, wide + beyond, settings, repeats))
        orders.append(math.ceil(repeats.room * _order(groups, column, d, lengths[-1], tail)))
    centre = tuple(0.5 * float(low[column] + high[column]) for column in columns)
    reach = [min(pair) for pair in zip(reach, lengths, strict=True)]
    return Grid(columns, centre, tuple(lengths), tuple(orders), tuple(reach))


@torch.no_grad()
def coarser_grid(kernel: Kernel, low: Tensor, high: Tensor, grid: Series, settings: GridSettings) -> Series:
    """A grid that leaves more out, and repeats more, than one that `grid_of` found, by some factors, (M-465)."""
    d, parts = len(low), list[Grid]()
    for own, part in zip(by_columns(kernel, [part.columns for part in grid.parts], d), grid.parts, strict=True):
        found = [
            _coarser(own or kernel, column, _wide(low, high, column), (length, m), settings, part.d, d)
            for column, length, m in zip(part.columns, part.lengths, part.orders, strict=True)
        ]
        lengths, orders = zip(*found, strict=True)
        reach = tuple(min(pair) for pair in zip(part.reach, lengths, strict=True))
        parts.append(Grid(part.columns, part.centre, lengths, orders, reach))
    return series_of(parts)


def _coarser(
    kernel: Kernel, column: int, wide: float, known: tuple[float, int], settings: GridSettings, columns: int, d: int
) -> tuple[float, int]:
    """Length and order of a coarser grid along a column. Args: known, those of the grid, of so many columns."""
    (length, m), (tail, repeated), wide = known, settings.coarser, wide * (1.0 + settings.beyond[columns - 1])
    there, shorter = _decay(kernel, column, d, torch.tensor([length - wide], dtype=F64)), length
    if there is not None:
        share = min(0.5, repeated * max(float(there), LEAST_REPEATED))
        with contextlib.suppress(NoGridError):  # of periods that fit the box of the grid alone
            shorter = min(length, _length(kernel, column, d, wide, settings, Repeats(1.0, share, share)))
    left = _left(_groups(kernel, d), column, d, length)
    beyond = float(left[min(m, len(left) - 1)])
    if beyond > LINES * float(left[0]):
        m = min(m - 1, int((left > tail * beyond).sum()))
    return shorter, max(1, math.ceil(m * shorter / length))


@torch.no_grad()
def product_grid(kernel: Kernel, low: Tensor, high: Tensor, most: float, settings: GridSettings) -> Grid:
    """The grid for products between rows in a box, beyond which no coefficient is above `most`, (M-441).

    Raises: NoGridError.
    """
    d, groups = len(low), _groups(kernel, len(low))
    columns = columns_of(kernel, d)
    wide = [_wide(low, high, column) for column in columns]
    lengths = [
        _length(kernel, column, d, one, settings, Repeats(1.0, *2 * settings.repeated[1:]))
        for column, one in zip(columns, wide, strict=True)
    ]
    spectra = [along(groups, column, d, length) for column, length in zip(columns, lengths, strict=True)]
    spectra = [one.flip(0).cummax(0).values.flip(0)[1:] for one in spectra]
    together = all(len(group.columns) == len(columns) for group in groups)
    allowed = prior_variance(kernel, d)
    while True:  # a coefficient along a column is a sum over about as many as there are orders of the others
        orders = [max(1, int((one > allowed).sum())) for one in spectra]
        beside = math.prod(orders) / max(orders) if together else 1.0
        if allowed <= most * beside:
            break
        allowed *= 0.8
    if any(m >= len(one) for m, one in zip(orders, spectra, strict=True)):
        raise NoGridError(f"by Fourier series needs more than {LAGS // 2:,} frequencies in a column")
    centre = tuple(0.5 * float(low[column] + high[column]) for column in columns)
    return Grid(columns, centre, tuple(lengths), tuple(orders), tuple(wide))


def _decay(kernel: Kernel, column: int, d: int, lags: Tensor) -> Tensor | None:
    """The largest part of its variance that a term which decays along a column has at lags; None where none does."""
    points, found = torch.zeros(len(lags), d, dtype=F64), list[Tensor]()
    points[:, column] = lags
    for term in terms(kernel):
        if decaying := leaves_along(term, column, d)[0]:
            each = [(_values(leaf, points) / _values(leaf, torch.zeros_like(points[:1]))).abs() for leaf in decaying]
            found.append(torch.stack(each).prod(0))
    return torch.stack(found).amax(0) if found else None


def _length(kernel: Kernel, column: int, d: int, wide: float, settings: GridSettings, repeats: Repeats) -> float:
    """Length of the box along a column: its range and what terms take to decay, in whole periods of those that do
    not. Raises: NoGridError."""
    lags = wide * torch.logspace(-6.0, math.log10(FARTHEST), STEPS, dtype=F64)
    left = _decay(kernel, column, d, lags)

    def distance(share: float) -> float:
        there = lags[:0] if left is None else (left > share).nonzero()
        return float(lags[min(int(there[-1]) + 1, STEPS - 1)]) if len(there) else 0.0

    margin = min(distance(repeats.share), settings.grown * distance(repeats.at_most))
    least = 0.0 if left is None else wide + repeats.room * margin
    along_it = [leaves_along(term, column, d) for term in terms(kernel)]
    periods = [_period(leaf, column, d) for decaying, lasting in along_it if not decaying for leaf in lasting]
    if not periods:
        return least
    first = max(periods)
    start = max(1, math.ceil(least / first))
    for count in range(start, start + settings.most_periods):
        ratios = [count * first / one for one in periods]
        if all(abs(ratio - round(ratio)) < settings.off_period for ratio in ratios):
            return count * first
    named = ", ".join(f"{period:g}" for period in periods)
    raise NoGridError(
        f"by Fourier series needs periods with a common multiple, got {named}; multiply by a function that decays, or "
        'pass "full_scale"'
    )


@torch.no_grad()
def correlation(kernel: Kernel, column: int, d: int, lag: float) -> float:
    """|k| at a lag along a column, over k(0)."""
    point = torch.zeros(2, d, dtype=F64)
    point[0, column] = lag
    far, own = _values(kernel, point).tolist()
    return abs(far) / own


def _period(leaf: Kernel, column: int, d: int) -> float:
    """Period of a leaf along a column."""
    assert isinstance(leaf, Periodic | Cosine)
    columns = own_columns(leaf, d)
    values = leaf.period.value if isinstance(leaf, Periodic) else 1.0 / leaf.frequency.value.abs()
    return float(values.expand(len(columns))[columns.index(column)])


def _order(groups: Sequence[Decaying], column: int, d: int, length: float, tail: float) -> int:
    """Frequencies to each side along a column that leave no more variance out. Raises: NoGridError."""
    enough = (_left(groups, column, d, length) <= tail).nonzero()
    if not len(enough):
        raise NoGridError(
            f"by Fourier series needs frequencies up to {LAGS // 2:,} in column {column}, where more would be left out "
            'than the noise allows; pass "full_scale"'
        )
    return max(1, int(enough[0]))


def _left(groups: Sequence[Decaying], column: int, d: int, length: float) -> Tensor:
    """Variance of the frequencies along a column from 1, 2, ... on."""
    return 2.0 * along(groups, column, d, length)[1:].flip(0).cumsum(0).flip(0)


def _repeated(kernel: Kernel, d: int, noise: float, settings: GridSettings) -> list[tuple[float, float]]:
    """Of its variance what a term may have where it comes again, with a factor of B and without, each by the noise and
    whatever that is."""
    over = noise / max(prior_variance(kernel, d), torch.finfo(F64).tiny)
    each = zip(settings.repeated, settings.repeated_noise, strict=True)
    return [(max(LEAST_REPEATED, min(most, share * over)), most) for most, share in each]


def _wide(low: Tensor, high: Tensor, column: int) -> float:
    """Range along a column."""
    wide, size = float(high[column] - low[column]), max(1.0, float(high[column].abs()))
    return wide if wide > 1e-12 * size else CONSTANT * size


def along(groups: Sequence[Decaying], column: int, d: int, length: float) -> Tensor:
    """Coefficients of the covariance function along a column, 0 in the others, at frequencies 0, 1, ..."""
    lags = torch.arange(LAGS, dtype=F64) * (length / LAGS)
    lags = torch.where(lags > 0.5 * length, lags - length, lags)
    values = sum(_folded(group, d, [(column, length, lags)]) for group in groups)
    assert isinstance(values, Tensor)
    return torch.fft.rfft(values, norm="forward").real.clamp_min(0.0)
