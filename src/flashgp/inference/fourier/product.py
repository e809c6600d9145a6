"""Products K v by nonuniform FFTs, for solves that exact products refine, eqs. (M-440) to (M-442), (M-457) to (M-461).

    K~ v = E diag(c) E* v,   K - K~ ~ t I,   t = k(0) - sum_j c_j

Grid and price come from the spectrum, the noise and the rows: a finer grid costs more in each product, and leaves fewer
exact ones to do. Of a Matern function a few frequencies and the pairs that are near make a product to any accuracy:
exact ones too, with an error that is measured at some rows.
"""

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from flashgp.foundations.errors import BackendUnavailableError
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.quantities import readable_bytes
from flashgp.inference.fourier.grid import Grid, library, transform
from flashgp.inference.fourier.planned import ExpectedSettings, expected_model, unfit
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
from flashgp.inference.fourier.split import Split, matern_of, split_coefficients, split_grid
from flashgp.inference.plan_settings import RowCounts
from flashgp.inference.prior import Prior
from flashgp.inference.run import Run
from flashgp.kernels.base import Kernel
from flashgp.operators.covariance import CovarianceOperator
from flashgp.pairwise.cpu.backend import cpu_tiles_missing
from flashgp.pairwise.cpu.near_sums import NearSums
from flashgp.planner.fourier_price import ProductPrice, SplitPrice
from flashgp.planner.plan import Plan
from flashgp.planner.problem import PlanSettings
from flashgp.solvers.iterative.refinement import RefinementSettings
from flashgp.solvers.preconditioners.full_scale import making_bytes

OVERSAMPLED = 1.5  # lags for each frequency
EXPECTED_ROWS = 2000  # by which a plan counts near pairs
LOW_RANK_BUFFERS = 2  # of rows by rank, while the low rank of a preconditioner is made
F64 = torch.float64


@dataclass(frozen=True)
class SplitSettings:
    """Fields: radii, of near pairs, in lengthscales; largest, times k(0), that near may be there; share, of the
    tolerance, that exact products may be off by; single, share of the noise that approximate ones may, over the root
    of n; accuracy, of transforms of exact products, and coarse, of approximate ones; sampled, rows by which pairs are
    counted, and partners of each; measured, random rows where an error is measured, by a generator of that seed, and
    those of the largest entries; safety, times the largest error there; min_gain, times quicker than all pairs in
    float64; number_bytes, of each number of the half of a grid, row_numbers, of each row."""

    radii: tuple[float, ...] = tuple(0.2 * 1.15**k for k in range(20))
    largest: float = 0.5
    share: float = 0.02
    single: float = 1e-3
    accuracy: float = 1e-13
    coarse: float = 2e-6
    sampled: tuple[int, int] = (500, 10_000)
    measured: tuple[int, int] = (448, 64)
    seed: int = 2**31
    safety: float = 1.5
    min_gain: float = 1.5
    number_bytes: int = 200
    row_numbers: int = 30


@dataclass(frozen=True)
class ProductSettings:
    """Fields: grid; shares of the noise variance that n c_j beyond a grid may be, of which the quickest is taken;
    repeated, of the prior variance, where a term comes again, over that share; relative, residual of solves with K~,
    and accuracy of transforms, over what an exact product leaves, and least_accuracy, in float32 and float64; min_gain,
    times quicker than all pairs in float32, from which they serve; min_seconds of these, below which nothing is looked
    at; number_bytes, of each frequency; row_numbers, of each row beside the preconditioner; split, of near pairs."""

    grid: GridSettings = field(default_factory=lambda: GridSettings(repeated=(1e-4, 1e-4), beyond=(0.0, 0.0, 0.0)))
    shares: tuple[float, ...] = (1e-2, 3e-3, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7)
    repeated: float = 0.05
    relative: float = 0.05
    accuracy: float = 2e-4
    least_accuracy: tuple[float, float] = (2e-5, 1e-11)
    min_gain: float = 1.5
    min_seconds: float = 10.0
    number_bytes: int = 150
    row_numbers: int = 60
    split: SplitSettings = field(default_factory=SplitSettings)


@dataclass(frozen=True, eq=False)
class Waves:
    """E diag(c) E* of rows (n, d). Fields: grid; spectrum, c, a half, in the precision of transforms; x; accuracy.

    Cost: two nonuniform FFTs of two columns at once, as a complex one, and of the half of the frequencies for one.
    """

    grid: Grid
    spectrum: Tensor
    x: Tensor
    accuracy: float

    def __matmul__(self, v: Tensor) -> Tensor:
        found, angles = torch.empty_like(v), self.grid.angles(self.x)
        for start in range(0, v.shape[1] - 1, 2):
            pair = v[:, start : start + 2]
            product = self._product(angles, torch.complex(*pair.mT.contiguous()), self.grid.whole(self.spectrum))
            found[:, start], found[:, start + 1] = product.real, product.imag
        if v.shape[1] % 2:
            found[:, -1] = self._of_one(angles, v[:, -1])
        return found

    def _of_one(self, angles: list[Tensor], v: Tensor) -> Tensor:
        """Frequencies j_d >= 0 alone, around the middle of these: the others are their conjugates."""
        middle = (self.grid.orders[-1] + 1) // 2
        turn = torch.polar(torch.ones_like(angles[-1]), -middle * angles[-1])
        return (self._product(angles, v * turn, self.spectrum * self.grid.multiplicity.to(self.spectrum)) / turn).real

    def _product(self, angles: list[Tensor], v: Tensor, spectrum: Tensor) -> Tensor:
        packed = v.to(spectrum.dtype.to_complex()).unsqueeze(0)
        waves = transform("1", angles, packed, tuple(spectrum.shape), self.accuracy)
        return transform("2", angles, waves.mul_(spectrum), (), self.accuracy)[0]


@dataclass(frozen=True, eq=False)
class SplitProducts:
    """K of rows by near pairs and frequencies, (M-457) to (M-460). Fields: near; waves, of rows in its order; kernel,
    x and settings, by which errors are measured."""

    near: NearSums
    waves: Waves
    kernel: Kernel
    x: Tensor
    settings: SplitSettings

    def __matmul__(self, v: Tensor) -> Tensor:
        """K v of (n, t), float64."""
        order = torch.from_numpy(self.near.order)
        moved, found = v[order], torch.empty_like(v)
        near = [torch.from_numpy(self.near @ one.contiguous().numpy()) for one in moved.mT]
        found[order] = (self.waves @ moved).add_(torch.stack(near, -1))
        return found

    @torch.no_grad()
    def error(self, v: Tensor, product: Tensor) -> Tensor:
        """About a bound of |K v - product|, (t,), (M-460): sqrt(n) times the largest error of rows drawn at random, and
        of those whose entries of v are the largest, near which it is when these are few.

        Cost: `measured` n pairs.
        """
        generator, (drawn, most) = torch.Generator().manual_seed(self.settings.seed), self.settings.measured
        sizes = v.norm(dim=0).clamp_min(torch.finfo(F64).tiny)
        largest = (v / sizes).abs().amax(1).topk(min(most, len(v))).indices
        rows = torch.cat([torch.randint(len(v), (drawn,), generator=generator), largest])
        some, all_rows = self.kernel.rows(self.x[rows]), self.kernel.rows(self.x)
        exact = CovarianceOperator.of(self.kernel.form, self.kernel.theta(), some, all_rows, dtype=F64) @ v
        return (exact - product[rows]).abs().amax(0) * (self.settings.safety * math.sqrt(len(v)))


@dataclass(frozen=True, eq=False)
class FourierProducts:
    """K~ of rows (n, d). Fields: grid; products; left_out, t; relative; finer, exact ones that are quicker than all
    pairs, None for none; event."""

    grid: Grid
    products: Waves | SplitProducts
    left_out: float
    relative: float
    finer: SplitProducts | None
    event: Event

    def __matmul__(self, v: Tensor) -> Tensor:
        """K~ v of (n, t), float64."""
        return self.products @ v


@torch.no_grad()
def fourier_products(
    kernel: Kernel, x: Tensor, noise: Tensor, plan: Plan, run: Run, settings: ProductSettings | None = None
) -> tuple[FourierProducts | None, list[Event]]:
    """Products for the solves of a plan by all pairs, where these take long and the others at least `min_gain` less;
    with events: the choice, or why there are none. Args: x (n, d) distinct rows; noise, variances, (n,) or (1,)."""
    settings = settings or ProductSettings()
    if plan.route != "recomputed" or plan.seconds_by_pairs < settings.min_seconds:
        return None, []
    try:
        return _chosen(kernel, x, noise, plan, run, settings)
    except NoGridError as reason:
        why = str(reason)
    except BackendUnavailableError:
        why = "by Fourier series need finufft, which is not installed; pip install flashgp[fourier]"
    return None, [Event(EventKind.APPROXIMATE_PRODUCTS_REFUSED, why=why)]


@torch.no_grad()
def expected_products(prior: Prior, rows: RowCounts, plan: Plan, asked: PlanSettings, *, training: bool) -> Plan:
    """A plan of solves by all pairs, priced as `fourier_products` chooses where rows are uniform, (M-461), at the
    default tolerance. Args: training, whether a fit finds the parameters. Cost: tenths of a second."""
    settings = ProductSettings()
    if plan.route != "recomputed" or plan.device != "cpu" or plan.seconds < settings.min_seconds:
        return plan
    if asked.deterministic or plan.shared is not None or unfit(prior, rows.d) is not None:
        return plan
    kernel, high, noises = expected_model(prior, rows, ExpectedSettings(), training=training)
    least = float(noises.min())
    if not (least > 0.0 and high.isfinite().all()):
        return plan
    generator = torch.Generator().manual_seed(settings.split.seed)
    x = high * torch.rand(EXPECTED_ROWS, rows.d, generator=generator, dtype=F64)
    try:
        *_, (seconds, _, _) = _quickest(_Job(kernel, x, plan.distinct, least, plan, Run(), settings))
    except (NoGridError, BackendUnavailableError):
        return plan
    return plan if plan.seconds < settings.min_gain * seconds else plan.with_products(seconds)


@dataclass(frozen=True, eq=False)
class _Job:
    """What products are chosen for. Fields: kernel; x, of n rows or some of them; least, of the noise; plan; run;
    settings; taken, bytes of exact products; beside, bytes of a solve that are there anyway; free, bytes that others
    leave."""

    kernel: Kernel
    x: Tensor
    n: int
    least: float
    plan: Plan
    run: Run
    settings: ProductSettings
    taken: int = 0

    @property
    def beside(self) -> int:
        n, solves = self.n, RefinementSettings().solves
        rank = min(self.plan.rank, solves.low_rank.max_rank)
        making = making_bytes(n, rank, solves.full_scale[0])
        return max(LOW_RANK_BUFFERS * 8 * n * rank, making) + 8 * n * self.settings.row_numbers

    @property
    def free(self) -> int:
        return self.plan.available_bytes - self.beside - self.taken


@dataclass(frozen=True, eq=False)
class _Parts:
    """Near pairs and frequencies that a product may be of. Fields: split; grid; error, of a pair; price; bytes."""

    split: Split
    grid: Grid
    error: float
    price: SplitPrice
    bytes: int


_Choice = tuple[float, ProductPrice, Grid | _Parts]  # seconds; their price; products


def _chosen(
    kernel: Kernel, x: Tensor, noise: Tensor, plan: Plan, run: Run, settings: ProductSettings
) -> tuple[FourierProducts | None, list[Event]]:
    """Raises: NoGridError, BackendUnavailableError."""
    d, least = x.shape[1], float(noise.min())
    if x.device.type != "cpu" or run.deterministic or run.group.size > 1 or not least > 0.0:
        raise NoGridError(
            "by Fourier series are for one process on a CPU, rows with noise, and without deterministic=True"
        )
    job, base, finer, (seconds, price, found) = _quickest(_Job(kernel, x, len(x), least, plan, run, settings))
    grid = found if isinstance(found, Grid) else found.grid
    gain = plan.seconds_by_pairs / seconds
    if gain < settings.min_gain:
        fields = {"frequencies": grid.size, "gain": gain, "least": settings.min_gain}
        return None, [Event(EventKind.APPROXIMATE_PRODUCTS_DEARER, **fields)]
    left_out, dtype = 0.0, torch.float32 if price.single and isinstance(found, Grid) else F64
    accuracy = max(settings.least_accuracy[0 if price.single else 1], settings.accuracy * price.contraction)
    products: Waves | SplitProducts
    if isinstance(found, Grid):
        spectrum = coefficients(kernel, grid, d, OVERSAMPLED)
        left_out = max(0.0, prior_variance(kernel, d) - float(grid.total(spectrum)))
        products = Waves(grid, spectrum.to(dtype), x, accuracy)
    else:
        products = _split_products(job, found, settings.split.coarse)
    exact = None if finer is None else _split_products(job, finer, settings.split.accuracy)
    event = Event(EventKind.APPROXIMATE_PRODUCTS, frequencies=grid.size, gain=gain)
    said = [] if finer is None else [_told(finer, base.all_pairs)]
    return FourierProducts(grid, products, left_out, settings.relative * price.contraction, exact, event), said


def _quickest(job: _Job) -> tuple[_Job, ProductPrice, _Parts | None, _Choice]:
    """The job with exact products, None for those of all pairs; their price; and approximate ones beside them. Raises:
    NoGridError, BackendUnavailableError."""
    kernel, settings, d = job.kernel, job.settings, job.x.shape[1]
    if why := obstacle(kernel, d):
        raise NoGridError(why.text)
    if (columns := len(columns_of(kernel, d))) > MOST_COLUMNS:
        raise NoGridError(f"by Fourier series are for up to {MOST_COLUMNS} columns in all, got {columns}")
    library()
    wanted = job.run.tolerance * math.sqrt(job.least / (job.n * prior_variance(kernel, d)))
    base = ProductPrice(job.plan, job.n, columns, 0, settings.shares[0], wanted)
    finer = _exact_parts(job, base)
    if finer is not None:
        base, job = replace(base, exact=finer.price.seconds), replace(job, taken=finer.bytes)
    choice = min(_choices(job, base), key=lambda one: one[0])
    found = choice[2]
    grid = found if isinstance(found, Grid) else found.grid
    needed = found.bytes if isinstance(found, _Parts) else settings.number_bytes * grid.size
    if needed > job.free:
        total, free = (readable_bytes(one) for one in (needed + job.beside + job.taken, job.plan.available_bytes))
        raise NoGridError(f"by Fourier series of {grid.size:,} frequencies need {total}, with {free} available")
    return job, base, finer, choice


def _choices(job: _Job, base: ProductPrice) -> list[_Choice]:
    """Products near K and their prices. Raises: NoGridError."""
    settings, choices = job.settings, list[_Choice]()
    low, high = job.x.amin(0), job.x.amax(0)
    for parts in _parts(job, settings.split.single * job.least / math.sqrt(base.n), job.free):
        share, product = settings.split.single, parts.price.coarse_seconds
        price = replace(base, share=share, product=product)  # no frequency is left out
        choices.append((price.seconds, price, parts))
    for share in settings.shares:
        repeated = min(settings.grid.repeated[1], settings.repeated * share)
        rule = replace(settings.grid, repeated=(repeated, repeated))
        try:
            grid = product_grid(job.kernel, low, high, share * job.least / base.n, rule)
        except NoGridError:  # finer ones have none either
            if choices:
                break
            raise
        if settings.number_bytes * grid.size <= job.free or not choices:
            price = replace(base, frequencies=grid.size, share=share)
            choices.append((price.seconds, price, grid))
    return choices


# -- near pairs --------------------------------------------------------------------------------------------------------
def _told(finer: _Parts, all_pairs: float) -> Event:
    fields = {"radius": finer.split.radius, "frequencies": finer.grid.size, "gain": all_pairs / finer.price.seconds}
    return Event(EventKind.EXACT_PRODUCTS_SPLIT, **fields)


def _exact_parts(job: _Job, base: ProductPrice) -> _Parts | None:
    """The quickest of exact products, None where those of all pairs are about as quick."""
    variance = prior_variance(job.kernel, job.x.shape[1])
    asked = job.run.tolerance * job.least / math.sqrt(variance)  # of |A v - product|, v of about |v| = sqrt(n / s)
    error = job.settings.split.share * asked * math.sqrt(job.least) / base.n
    found = min(_parts(job, error, job.free // 2), key=lambda parts: parts.price.seconds, default=None)
    if found is None or base.all_pairs < job.settings.split.min_gain * found.price.seconds:
        return None
    return found


def _parts(job: _Job, error: float, room: int) -> list[_Parts]:
    """Near pairs of each radius and their frequencies, that fit. Args: error, of a pair; room, bytes."""
    matern, settings, d = matern_of(job.kernel), job.settings.split, job.x.shape[1]
    if matern is None or cpu_tiles_missing():
        return []
    columns, variance = columns_of(job.kernel, d), prior_variance(job.kernel, d)
    scales = matern.lengthscale.value.detach().double().reshape(-1).expand(len(columns)).clone()
    corners, points = (job.x.amin(0), job.x.amax(0)), job.x[:, list(columns)].double() / scales
    counted = _distances(points, settings)
    found: list[_Parts] = []
    for radius in settings.radii:
        split = Split.of(matern.nu, variance, radius, error)
        if split.largest > settings.largest * variance:
            break
        grid = split_grid(split, columns, corners, scales, error)
        numbers = math.prod(grid.shape)
        needed = settings.number_bytes * numbers + 8 * settings.row_numbers * job.n
        share = int((counted < radius).count_nonzero()) / counted.numel()
        if needed <= room:
            price = SplitPrice(job.n, len(columns), numbers, share)
            found.append(_Parts(split, grid, error, price, needed))
    return found


def _distances(points: Tensor, settings: SplitSettings) -> Tensor:
    """Between some rows and others, by which near pairs are counted."""
    generator = torch.Generator().manual_seed(settings.seed)
    left, right = (
        torch.randint(len(points), (min(count, len(points)),), generator=generator) for count in settings.sampled
    )
    return torch.cdist(points[left], points[right])


def _split_products(job: _Job, parts: _Parts, accuracy: float) -> SplitProducts:
    matern, columns = matern_of(job.kernel), list(parts.grid.columns)
    assert matern is not None
    scales = matern.lengthscale.value.detach().double().reshape(-1).expand(len(columns)).clone()
    points = (job.x[:, columns].double() / scales).numpy()
    polynomial, _ = parts.split.polynomial(0.1 * parts.error)
    near = NearSums.of(points, parts.split.radius, polynomial)
    spectrum = split_coefficients(parts.split, parts.grid, scales)
    waves = Waves(parts.grid, spectrum, job.x[torch.from_numpy(near.order)], accuracy)
    return SplitProducts(near, waves, job.kernel, job.x, job.settings.split)
