"""What a plan knows of Fourier series: whether a model has one, and the grid that it is expected to take.

The lengthscales of a fit are not known before it: the rows are taken to range over some of them, (M-437).
"""

import copy
import importlib.util
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from flashgp.foundations.events import NoSeries
from flashgp.inference.fourier.grids import Grids, Series, coordinates_of
from flashgp.inference.fourier.spectrum import (
    GridSettings,
    NoGridError,
    columns_of,
    grid_of,
    leaves_along,
    obstacle,
    own_columns,
    prior_variance,
)
from flashgp.inference.fourier.state import FourierSettings
from flashgp.inference.fourier.system import SolveSettings
from flashgp.inference.plan_settings import RowCounts
from flashgp.inference.prior import Prior
from flashgp.kernels.base import Kernel
from flashgp.kernels.periodic import Periodic
from flashgp.kernels.squared_exponential import Stationary
from flashgp.means import Constant, Zero
from flashgp.planner.fourier_price import Beside, GridSizes, Refusal

F64 = torch.float64


@dataclass(frozen=True)
class ExpectedSettings:
    """Fields: lengthscales in the range of the rows, and least_lengthscales, down to which fewer are taken where a fit
    is asked for and more have no grid; periods where nothing decays along a column; noise, over the prior variance, and
    site_noise, of sites that are found by iteration; grid."""

    lengthscales: float = 5.0
    least_lengthscales: float = 1.0
    periods: float = 10.0
    noise: float = 0.05
    site_noise: float = 1.0
    grid: GridSettings = field(default_factory=GridSettings)


def unfit(prior: Prior, d: int) -> Refusal | None:
    """Reason that a model of d columns has no Fourier series; None if it has."""
    why = ""
    if prior.separate:
        why = (
            f"by Fourier series needs one noise for all outputs, got one for each of {prior.likelihood.name}; pass "
            'likelihood=Gaussian(shared=True), or "full_scale"'
        )
    elif prior.kernel.batch_shape:
        why = "by Fourier series is of one model, got a batch; fit its members one by one"
    if why:
        return Refusal(NoSeries.MODEL, why)
    return obstacle(prior.kernel, d)


def passes_of(prior: Prior, *, alike: bool = True) -> int:
    """Passes over the rows that an evaluation of a fit takes, or the value of its sites: none where rows have one noise
    and a constant mean, so that sums over them hardly change. Args: alike, whether rows that were given have no
    variance of their own."""
    moves = not isinstance(prior.mean, Constant | Zero)
    unlike = moves or not (alike and prior.likelihood.rows_alike and prior.likelihood.has_sites)
    return 3 + moves if unlike else 0


def expected_sizes(prior: Prior, rows: RowCounts, *, training: bool, named: bool) -> GridSizes | Refusal:
    """Sizes of the grid that rows are expected to take, or the reason that there is none. Args: training, whether a fit
    finds the parameters; named, whether the caller named series, who is then told what is wrong when it is."""
    refusal = unfit(prior, rows.d)
    if not named and refusal is None and importlib.util.find_spec("finufft") is None:
        refusal = Refusal(NoSeries.LIBRARY, "by Fourier series needs finufft; pip install flashgp[fourier]")
    settings, solves = ExpectedSettings(), FourierSettings.of(prior.likelihood).solves
    while refusal is None:
        try:
            grid = expected_grid(prior, rows, settings, training=training)
            found = sizes_of(grid, rows.n, passes_of(prior, alike=rows.alike), solves)
            if not (named or prior.likelihood.has_sites or found.coordinates):
                why = "by Fourier series finds sites where the weights have a factor"
                return Refusal(NoSeries.FREQUENCIES, why)
            if not training:
                return found
            last = expected_grid(prior, rows, settings, training=training, search=False)
            return replace(found, posterior=sizes_of(last, rows.n, solves=solves))
        except NoGridError as reason:
            settings = replace(settings, lengthscales=0.5 * settings.lengthscales)
            if not (named and training) or settings.lengthscales < settings.least_lengthscales:
                refusal = Refusal(NoSeries.FREQUENCIES, str(reason))
    return refusal


@torch.no_grad()
def expected_grid(
    prior: Prior, rows: RowCounts, settings: ExpectedSettings, *, training: bool, search: bool | None = None
) -> Series:
    """The grid that rows are expected to take: conditioning knows lengthscales and noise, a fit finds them. Args:
    search, whether it is that of the search of a fit, or of its posterior.

    Raises: NoGridError. Cost: milliseconds, of several grids some tens.
    """
    solves, search = FourierSettings.of(prior.likelihood).solves, training if search is None else search
    kernel, high, noise = expected_model(prior, rows, settings, training=training)
    level = float(noise.mean())
    return grid_of(kernel, torch.zeros_like(high), high, level, settings.grid, solves.dense, search=search)


@torch.no_grad()
def expected_model(
    prior: Prior, rows: RowCounts, settings: ExpectedSettings, *, training: bool
) -> tuple[Kernel, Tensor, Tensor]:
    """The covariance function that rows are expected to have, their ranges (d,), and noise variances, one or more."""
    kernel, d, by_sites = copy.deepcopy(prior.kernel), rows.d, not prior.likelihood.has_sites
    noise = torch.tensor([(settings.site_noise if by_sites else settings.noise) * prior_variance(kernel, d)], dtype=F64)
    known = prior.likelihood.additive_noise(torch.device("cpu"))
    if not training and known is not None and known.numel():
        noise = known.detach().double()
    if rows.extent is None:
        ranges = [_range(kernel, column, d, settings) for column in range(d)]
    else:
        ranges = [max(one, torch.finfo(F64).tiny) for one in rows.extent]
        if training:
            _assume(kernel, ranges, settings.lengthscales)
    return kernel, torch.tensor(ranges, dtype=F64), noise


def sizes_of(grid: Series, rows: int = 1, passes: int = 0, solves: SolveSettings | None = None) -> GridSizes:
    """Sizes of a grid, by which work is priced. Args: rows, of a pass; passes, of an evaluation."""
    solves = solves or SolveSettings()
    coordinates, probes = coordinates_of(grid, solves.dense), solves.probes_of(grid.size)
    if not (isinstance(grid, Grids) and coordinates):
        return GridSizes(grid.d, grid.size, coordinates, probes, passes)
    pairs = grid.domains.pairs(rows).values()
    transforms = [*grid.parts, *(pair.grid for pair in pairs if pair is not None)]
    flops = float(coordinates) ** 2 if None in pairs else 0.0
    beside = Beside(tuple((each.d, each.size * 2**each.d) for each in transforms), flops)
    return GridSizes(grid.d, grid.size, coordinates, probes, passes, beside=beside)


def _range(kernel: Kernel, column: int, d: int, settings: ExpectedSettings) -> float:
    """So many of the longest lengthscale along a column, or of the longest period."""
    if column not in columns_of(kernel, d):
        return 1.0
    leaves = [leaf for leaf in kernel.leaves() if isinstance(leaf, Stationary) and column in own_columns(leaf, d)]
    scales = [float(_along(leaf.lengthscale.value, leaf, column, d)) for leaf in leaves]
    if scales:
        return settings.lengthscales * max(scales)
    periods = [leaf.period.value for leaf in leaves_along(kernel, column, d)[1] if isinstance(leaf, Periodic)]
    return settings.periods * max((float(one.max()) for one in periods), default=1.0)


def _along(values: Tensor, leaf: Stationary, column: int, d: int) -> Tensor:
    columns = own_columns(leaf, d)
    return values.reshape(-1).expand(len(columns))[columns.index(column)]


def _assume(kernel: Kernel, ranges: list[float], lengthscales: float) -> None:
    """Lengthscales that a fit finds, where their bounds have room, are taken for a part of the range."""
    for leaf in kernel.leaves():
        if not (isinstance(leaf, Stationary) and leaf.lengthscale.trainable):
            continue
        own = torch.tensor([ranges[column] for column in own_columns(leaf, len(ranges))], dtype=F64) / lengthscales
        now, wide = leaf.lengthscale.value, own[own > torch.finfo(F64).tiny]  # a constant column says nothing
        if not len(wide):
            continue
        value = own if now.numel() > 1 else wide.log().mean().exp()
        value = value.reshape(now.shape).to(now)
        if leaf.lengthscale.domain.contains(value):
            leaf.lengthscale.value = value
