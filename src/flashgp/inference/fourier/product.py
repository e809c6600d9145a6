"""Products K v by nonuniform FFTs, for solves that exact products of all pairs refine, eqs. (M-440) to (M-442).

    K~ v = E diag(c) E* v,   K - K~ ~ t I,   t = k(0) - sum_j c_j

Grid and price come from the spectrum, the noise and the rows: a finer grid costs more in each product, and leaves fewer
exact ones to do.
"""

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from flashgp.foundations.errors import BackendUnavailableError
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.quantities import readable_bytes
from flashgp.inference.fourier.grid import Grid, library, transform
from flashgp.inference.fourier.spectrum import (
    MOST_COLUMNS,
    GridSettings,
    NoGridError,
    coefficients,
    columns_of,
    obstacle,
    prior_variance,
    product_grid,
)
from flashgp.inference.run import Run
from flashgp.kernels.base import Kernel
from flashgp.planner.exact import RANK_BUFFERS
from flashgp.planner.fourier_price import ProductPrice
from flashgp.planner.plan import Plan

OVERSAMPLED = 1.5  # lags for each frequency


@dataclass(frozen=True)
class ProductSettings:
    """Fields: grid; shares of the noise variance that n c_j beyond a grid may be, of which the quickest is taken;
    repeated, of the prior variance, where a term comes again, over that share; relative, residual of solves with K~,
    and accuracy of transforms, over what an exact product leaves, and least_accuracy, in float32 and float64; min_gain,
    times quicker than all pairs in float32, from which they serve; min_seconds of these, below which nothing is looked
    at; number_bytes, of each frequency; row_numbers, of each row beside the preconditioner of that rank."""

    grid: GridSettings = field(default_factory=lambda: GridSettings(repeated=(1e-4, 1e-4), beyond=(0.0, 0.0, 0.0)))
    shares: tuple[float, ...] = (1e-2, 3e-3, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7)
    repeated: float = 0.05
    relative: float = 0.05
    accuracy: float = 2e-4
    least_accuracy: tuple[float, float] = (2e-5, 1e-11)
    min_gain: float = 1.5
    min_seconds: float = 10.0
    number_bytes: int = 150
    row_numbers: int = 140
    rank: int = 128


@dataclass(frozen=True, eq=False)
class FourierProducts:
    """K~ of rows (n, d). Fields: grid; spectrum, c of all frequencies, in the precision of transforms; x; left_out, t;
    relative; accuracy; event.

    Cost: two nonuniform FFTs of two columns at once, as a complex one: K~ is real.
    """

    grid: Grid
    spectrum: Tensor
    x: Tensor
    left_out: float
    relative: float
    accuracy: float
    event: Event

    def __matmul__(self, v: Tensor) -> Tensor:
        """K~ v of (n, t), float64."""
        angles, shape = self.grid.angles(self.x), tuple(self.spectrum.shape)
        found = torch.empty_like(v)
        for start in range(0, v.shape[1], 2):
            pair = v[:, start : start + 2]
            packed = torch.complex(pair[:, 0].contiguous(), pair[:, -1].contiguous()).unsqueeze(0)
            packed = packed.to(self.spectrum.dtype.to_complex())
            waves = transform("1", angles, packed.numpy(), shape, self.accuracy)
            waves *= self.spectrum.numpy()
            product = torch.from_numpy(transform("2", angles, waves, (), self.accuracy))[0]
            found[:, start] = product.real
            found[:, start + pair.shape[1] - 1] = product.imag if pair.shape[1] > 1 else product.real
        return found


@torch.no_grad()
def fourier_products(
    kernel: Kernel, x: Tensor, noise: Tensor, plan: Plan, run: Run, settings: ProductSettings | None = None
) -> tuple[FourierProducts | None, list[Event]]:
    """Products for the solves of a plan by all pairs, where these take long and the others at least `min_gain` less;
    with events: the choice, or why there are none. Args: x (n, d) distinct rows; noise, variances, (n,) or (1,)."""
    settings = settings or ProductSettings()
    if plan.route != "recomputed" or plan.seconds < settings.min_seconds:
        return None, []
    try:
        return _chosen(kernel, x, noise, plan, run, settings)
    except NoGridError as reason:
        why = str(reason)
    except BackendUnavailableError:
        why = "by Fourier series need finufft, which is not installed; pip install flashgp[fourier]"
    return None, [Event(EventKind.APPROXIMATE_PRODUCTS_REFUSED, why=why)]


def _chosen(
    kernel: Kernel, x: Tensor, noise: Tensor, plan: Plan, run: Run, settings: ProductSettings
) -> tuple[FourierProducts | None, list[Event]]:
    """Raises: NoGridError, BackendUnavailableError."""
    (n, d), least = x.shape, float(noise.min())
    if x.device.type != "cpu" or run.deterministic or run.group.size > 1 or not least > 0.0:
        raise NoGridError(
            "by Fourier series are for one process on a CPU, rows with noise, and without deterministic=True"
        )
    if why := obstacle(kernel, d):
        raise NoGridError(why.text)
    if (columns := len(columns_of(kernel, d))) > MOST_COLUMNS:
        raise NoGridError(f"by Fourier series are for up to {MOST_COLUMNS} columns in all, got {columns}")
    library()
    wanted = run.tolerance * math.sqrt(least / (n * prior_variance(kernel, d)))
    low, high = x.amin(0), x.amax(0)
    beside = 8 * n * (RANK_BUFFERS * min(plan.rank, settings.rank) + settings.row_numbers)
    choices: list[tuple[float, ProductPrice, Grid]] = []
    for share in settings.shares:
        try:
            repeated = min(settings.grid.repeated[1], settings.repeated * share)
            rule = replace(settings.grid, repeated=(repeated, repeated))
            grid = product_grid(kernel, low, high, share * least / n, rule)
        except NoGridError:  # finer ones have none either
            if choices:
                break
            raise
        if beside + settings.number_bytes * grid.size <= plan.available_bytes or not choices:
            price = ProductPrice(plan, n, grid.d, grid.size, share, wanted)
            choices.append((price.seconds, price, grid))
    seconds, price, grid = min(choices, key=lambda choice: choice[0])
    needed = beside + settings.number_bytes * grid.size
    if needed > plan.available_bytes:
        free = readable_bytes(plan.available_bytes)
        raise NoGridError(
            f"by Fourier series of {grid.size:,} frequencies need {readable_bytes(needed)}, with {free} available"
        )
    gain = plan.seconds / seconds
    if gain < settings.min_gain:
        fields = {"frequencies": grid.size, "gain": gain, "least": settings.min_gain}
        return None, [Event(EventKind.APPROXIMATE_PRODUCTS_DEARER, **fields)]
    spectrum = coefficients(kernel, grid, d, OVERSAMPLED)
    left_out = max(0.0, prior_variance(kernel, d) - float(grid.total(spectrum)))
    event = Event(EventKind.APPROXIMATE_PRODUCTS, frequencies=grid.size, gain=gain)
    whole = grid.whole(spectrum).to(torch.float32 if price.single else torch.float64)
    accuracy = max(settings.least_accuracy[0 if price.single else 1], settings.accuracy * price.contraction)
    return FourierProducts(grid, whole, x, left_out, settings.relative * price.contraction, accuracy, event), []
