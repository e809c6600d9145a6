"""Prices of the variances of a prediction, and their source: a factor, exact solves, or samples.

A float64 factor gives them at once, eq. (M-59). Without one an exact variance costs a solve, and many of them take long
where samples take one block of solves for all points, eq. (M-107). A float32 factor is corrected by solves.
"""

import json
import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from flashgp.foundations.errors import DomainError
from flashgp.foundations.quantities import readable_seconds
from flashgp.pairwise.cpu.backend import PORTABLE_PAIRS
from flashgp.pairwise.torch.tiles import tile_rows
from flashgp.planner.choice import Candidate
from flashgp.planner.exact import SAMPLES, usual_passes
from flashgp.planner.pricing import Price
from flashgp.planner.problem import ProductProblem
from flashgp.planner.products import product_prices

VARIANCES = ("auto", "exact", "sampled")
STRIP_BYTES = 2**25  # of K_sx alive at once: 32 MiB
STRIP_SHARE = 64  # of the rows of a factor, in a wider strip for it
SOLVED_POINTS = 64  # right-hand sides of one block solve
CORRECTION_SECONDS = 10.0  # a float32 factor's variances are corrected at all points while that takes less
CORRECTION_PASSES = 4  # in float64, of one corrected block
FEATURES = 1024  # of the probes that samples are made with
BLOCK_VECTORS = 13  # n x points in float64: the covariances, what a solver holds (nine), z, A z and a product of two
POINT_WORK = 8  # evaluations that take as long as one of K_sx and finding near rows by it
SYSTEMS = 4  # neighbours (neighbours + rank) numbers per point of a strip of samples


@dataclass(frozen=True)
class ProbeSizes:
    """Sizes of the samples of variances.

    Fields: samples, of which each takes a solve; rank, columns of the low-rank factor, which takes a float64 product
    with as many; neighbours, rows near each point.
    """

    samples: int = SAMPLES
    rank: int = 128
    neighbours: int = 64


@dataclass(frozen=True)
class VarianceSettings:
    """Limits from which samples replace exact solves, and their number.

    Args:
        sampled_seconds: of exact solves, beyond which samples are taken where they are quicker: about how long one
            waits for numbers.
        limit_seconds: of samples that nobody asked for, after which their solves end, eq. (M-263); sizes are the
            largest that keep to it.
        time_limit: seconds in place of both, as the user gave them.
        sizes: of the probes, from the largest; with few samples neighbours, which cost no pass, do more of the work.
        features: of each sample's draw of the prior, as it is priced.
        strip_bytes: of K_sx alive at once.
    """

    sampled_seconds: float = 60.0
    limit_seconds: float = 60.0
    time_limit: float | None = None
    sizes: tuple[ProbeSizes, ...] = (ProbeSizes(), ProbeSizes(16, 32, 192), ProbeSizes(8, 0, 256))
    features: int = FEATURES
    strip_bytes: int = STRIP_BYTES

    @property
    def patience(self) -> float:
        """Seconds of exact solves up to which these are taken."""
        return self.sampled_seconds if self.time_limit is None else self.time_limit

    def limit(self, asked: str) -> float:
        """Seconds of samples, where variances were asked for so; inf for none."""
        if self.time_limit is not None:
            return self.time_limit
        return math.inf if asked == "sampled" else self.limit_seconds


DEFAULT_VARIANCES = VarianceSettings()


@dataclass(frozen=True)
class VarianceProblem(Price):
    """Problem that variances of a prediction are priced for.

    Fields: n_test; room, bytes that a prediction may take, for wider strips; settings.
    """

    n_test: int
    room: float = 0.0
    settings: VarianceSettings = DEFAULT_VARIANCES


@dataclass(frozen=True)
class VariancePrice:
    """Source of the variances, "factor", "solves" or "samples", and its cost beside the mean.

    Fields: least_seconds, without which none can be had: all of them, but of samples those of one iteration; sizes and
    after_seconds, of samples: what follows their solves.
    """

    way: str
    peak_bytes: int
    seconds: float
    note: str = ""
    least_seconds: float = 0.0
    sizes: ProbeSizes = ProbeSizes()
    after_seconds: float = 0.0

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "VariancePrice":
        values = json.loads(text)
        return cls(**{**values, "sizes": ProbeSizes(**values["sizes"])})


def check_variance(variance: Any) -> str:
    """Raises: DomainError for a way to variances that does not exist."""
    if not isinstance(variance, str) or variance not in VARIANCES:
        raise DomainError(
            f"`variance` must be one of {', '.join(VARIANCES)}, got {variance!r}; leave it out to have one chosen"
        )
    return str(variance)


def variance_price(
    priced: VarianceProblem, route: str, passes: int | None = None, asked: str = "auto"
) -> VariancePrice:
    """The way to variances that `predict` takes on a posterior conditioned by a route, and its price.

    Args: passes over the pairs, of a block of solves without a factor, None for what is usual; asked, one of VARIANCES.
    """
    passes = usual_passes(priced.n) if passes is None else passes
    by_factor = _by_factor(priced)
    if asked == "sampled":
        return _from_samples(priced, route, passes, math.inf)
    if route == "direct" or not priced.n or priced.problem.batch != 1:
        return by_factor
    exact = _by_solves(priced, route, passes)
    if route == "refined" and exact.seconds > CORRECTION_SECONDS:
        return by_factor  # if its rounding matters at the points is seen there
    return _cheaper(priced, route, passes, asked, exact)


def exact_or_sampled(priced: VarianceProblem, route: str, passes: int, asked: str = "auto") -> VariancePrice:
    """The price of variances by solves or samples, if a factor does not give them."""
    if asked == "sampled":
        return _from_samples(priced, route, passes, math.inf)
    return _cheaper(priced, route, passes, asked, _by_solves(priced, route, passes))


def _cheaper(priced: VarianceProblem, route: str, passes: int, asked: str, exact: VariancePrice) -> VariancePrice:
    """Exact solves, or samples where these are quicker and exact solves take longer than `sampled_seconds`, (M-107)."""
    if asked == "exact" or not priced.problem.has_features or exact.seconds <= priced.settings.patience:
        return exact
    sampled = _from_samples(priced, route, passes, exact.seconds)
    return sampled if sampled.seconds < exact.seconds else exact


def strip_points(n: int, batch: int = 1, room: float = 0.0, strip_bytes: int = STRIP_BYTES) -> int:
    """Points of a strip of K_sx with a factor of n rows, (M-59): triangular solves with fewer columns than a 64th of
    their rows take longer for each of them. As many are taken as make three strips a quarter of the room, in bytes."""
    least = max(1, strip_bytes // (8 * max(1, n) * max(1, batch)))
    wide = int(min(n // STRIP_SHARE, room / (4 * 3 * 8 * max(1, n))))
    return max(least, wide) if batch == 1 else least


def _by_factor(priced: VarianceProblem) -> VariancePrice:
    """Strips of K_sx and their triangular solves, eq. (M-59)."""
    n, n_test, batch, rates = priced.n, priced.n_test, priced.problem.batch, priced.rates
    rows = min(strip_points(n, batch, priced.room, priced.settings.strip_bytes), n_test)
    strip = 8 * n * rows * batch
    tile = 8 * priced.problem.temporaries * min(rows, tile_rows(n, batch, priced.device)) * n * batch
    features = 8 * (n_test + n) * priced.problem.features.width * batch
    flops = batch * n_test * n * n
    seconds = flops / rates.gemm_float64 + 2 * batch * n_test * n / rates.block_pairs
    seconds += math.ceil(n_test / max(1, rows)) * rates.call_seconds
    peak = 3 * strip + tile + priced.problem.features.function_bytes + features
    return VariancePrice("factor", peak, seconds, least_seconds=seconds)


def _by_solves(priced: VarianceProblem, route: str, passes: int) -> VariancePrice:
    """A block of solves for every SOLVED_POINTS points, eq. (M-107)."""
    n, points = priced.n, min(SOLVED_POINTS, max(1, priced.n_test))
    blocks = math.ceil(priced.n_test / SOLVED_POINTS)
    peak, seconds = _block(priced, route, passes, points)
    features = 8 * (priced.n_test + n) * priced.problem.features.width
    note = f"variance by solves, {SOLVED_POINTS} points at a time"
    return VariancePrice("solves", peak + features, blocks * seconds, note, blocks * seconds)


def _from_samples(priced: VarianceProblem, route: str, passes: int, instead: float) -> VariancePrice:
    """Samples with the largest sizes that keep to the limit, else the smallest, whose solves end with it, eq. (M-264).

    Args: instead, seconds of exact solves; inf where samples were asked for.
    """
    limit = priced.settings.limit("auto" if math.isfinite(instead) else "sampled")
    prices = [_with_probes(priced, route, passes, sizes) for sizes in priced.settings.sizes]
    price = next((one for one in prices if one.seconds <= limit), prices[-1])
    price = replace(price, seconds=min(price.seconds, max(limit, price.least_seconds)))
    if math.isinf(instead):
        return price
    return replace(price, note=f"{price.note}: exact solves would take about {readable_seconds(instead)}")


def _with_probes(priced: VarianceProblem, route: str, passes: int, sizes: ProbeSizes) -> VariancePrice:
    """One block of solves, the low-rank factor, and what each point takes then, eq. (M-107)."""
    n, n_test, rates = priced.n, priced.n_test, priced.rates
    samples, rank, near = sizes.samples, sizes.rank, sizes.neighbours
    block, solving = (0, 2 * n * n * samples / rates.gemm_float64)
    least = solving
    if route != "direct":
        block, solving = _block(priced, route, passes, samples)
        least = _block(priced, route, 1, samples, 1)[1]
    low_rank = n * rank / rates.block_pairs + 2 * n * rank**2 / rates.gemm_float64
    if rank:
        low_rank += _product(priced, "recomputed", torch.float64, rank, 1).seconds
    drawing = n * samples * priced.settings.features / rates.block_pairs
    evaluations = samples * priced.settings.features + POINT_WORK * n + near**2
    after = n_test * evaluations / rates.block_pairs
    gemms = n * (samples + rank) + near**2 * rank
    after += n_test * (2 * gemms / rates.gemm_float64 + near**3 / 3 / rates.cholesky_float64)
    kept = 8 * n * 2 * (samples + rank)
    strip = 8 * min(n_test, max(1, STRIP_BYTES // (8 * max(1, n)))) * (n + SYSTEMS * near * (near + rank))
    peak = kept + max(block, 3 * 8 * n * rank, 3 * strip) + 2 * STRIP_BYTES
    beside = low_rank + drawing + after
    note = f"variance from {samples} samples, with a standard error"
    return VariancePrice("samples", peak, beside + solving, note, beside + least, sizes, after)


def _block(
    priced: VarianceProblem, route: str, passes: int, points: int, corrections: int = CORRECTION_PASSES
) -> tuple[int, float]:
    """(bytes, seconds) of one block of solves; not of what a posterior keeps, its tiles and preconditioner."""
    exact = _product(priced, "recomputed", torch.float64, points, corrections)
    beside = 8 * priced.n * BLOCK_VECTORS * points + exact.peak_bytes
    if route == "refined":
        solving = 2 * corrections * priced.n**2 * points / priced.rates.gemm_float64
        return beside, exact.seconds + solving
    return beside, _product(priced, route, torch.float32, points, passes).seconds + exact.seconds


def _product(priced: VarianceProblem, route: str, dtype: torch.dtype, points: int, passes: int) -> Candidate:
    """The quickest way to so many products with so many columns."""
    small = priced.device.type == "cpu" and priced.n**2 < PORTABLE_PAIRS
    products = passes if route == "recomputed" else max(2, passes)  # for one product alone no tiles would be kept
    sizes = priced.problem
    product = ProductProblem(
        sizes.form, priced.n, None, sizes.product_features, t=points, products=products, dtype=dtype
    )
    prices = product_prices(product, priced.device, priced.profile)
    return min(
        (p for p in prices if p.route == route and not (small and p.backend != "torch")), key=lambda p: p.seconds
    )
