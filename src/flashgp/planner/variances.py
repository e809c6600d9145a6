"""What the variances of a prediction take, and where they come from: a factor, exact solves, or samples.

A float64 factor gives them at once, eq. (M-59). Without one an exact variance costs a solve, and many of them take long
where samples take one block of solves for all points, eq. (M-107). A float32 factor is corrected by solves.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from flashgp.foundations.errors import DomainError
from flashgp.foundations.form import Form
from flashgp.foundations.profile import MachineProfile
from flashgp.foundations.quantities import readable_seconds
from flashgp.pairwise.cpu.backend import PORTABLE_PAIRS
from flashgp.pairwise.torch.tiles import tile_rows
from flashgp.planner.choice import Candidate
from flashgp.planner.prices import PASSES
from flashgp.planner.problem import Features, ProductProblem
from flashgp.planner.products import product_prices

__all__ = [
    "CORRECTION_PASSES",
    "CORRECTION_SECONDS",
    "DEFAULT_VARIANCES",
    "FEATURES",
    "LOW_RANK",
    "NEIGHBOURS",
    "SAMPLES",
    "SOLVED_POINTS",
    "STRIP_BYTES",
    "VARIANCES",
    "VariancePrice",
    "VarianceProblem",
    "VarianceSettings",
    "check_variance",
    "exact_or_sampled",
    "strip_points",
    "variance_price",
]

VARIANCES = ("auto", "exact", "sampled")
STRIP_BYTES = 2**25  # of K_sx alive at once: 32 MiB
STRIP_SHARE = 64  # of the rows of a factor, in a wider strip for it
SOLVED_POINTS = 64  # right-hand sides of one block solve
CORRECTION_SECONDS = 10.0  # a float32 factor's variances are corrected at all points while that takes less
CORRECTION_PASSES = 4  # in float64, of one corrected block
SAMPLES, LOW_RANK, NEIGHBOURS, FEATURES = 64, 128, 64, 1024  # of the probes that samples are made with
BLOCK_VECTORS = 13  # n x points in float64: the covariances, what a solver holds (nine), z, A z and a product of two
SYSTEMS = 4  # (rank + neighbours)^2 numbers per point of a strip of samples


@dataclass(frozen=True)
class VarianceSettings:
    """When exact solves give way to samples.

    Args:
        sampled_seconds: of exact solves, beyond which samples are taken where they are quicker: about how long one
            waits for numbers.
        features: of each sample's draw of the prior, as it is priced.
        strip_bytes: of K_sx alive at once.
    """

    sampled_seconds: float = 60.0
    features: int = FEATURES
    strip_bytes: int = STRIP_BYTES


DEFAULT_VARIANCES = VarianceSettings()


@dataclass(frozen=True)
class VarianceProblem:
    """What the price depends on.

    Fields: form; n, training rows; n_test; batch, models; features; temporaries, tiles alive at once; device, profile;
    has_features, whether the kernel has random features, without which nothing is sampled; room, bytes that a
    prediction may take, for wider strips; settings.
    """

    form: Form
    n: int
    n_test: int
    batch: int
    features: Features
    temporaries: int
    device: torch.device
    profile: MachineProfile
    has_features: bool
    room: float = 0.0
    settings: VarianceSettings = DEFAULT_VARIANCES


@dataclass(frozen=True)
class VariancePrice:
    """Where the variances come from, "factor", "solves" or "samples", and what they take beside the mean."""

    way: str
    peak_bytes: int
    seconds: float
    note: str = ""


def check_variance(variance: Any) -> str:
    """Raises: DomainError for a way to variances that does not exist."""
    if not isinstance(variance, str) or variance not in VARIANCES:
        raise DomainError(
            f"`variance` must be one of {', '.join(VARIANCES)}, got {variance!r}; leave it out to have one chosen"
        )
    return str(variance)


def variance_price(problem: VarianceProblem, route: str, passes: int = PASSES, asked: str = "auto") -> VariancePrice:
    """The way to variances that `predict` takes on a posterior conditioned by a route, and its price.

    Args: passes over the pairs, of a block of solves without a factor; asked, one of VARIANCES.
    """
    by_factor = _by_factor(problem)
    if asked == "sampled":
        return _from_samples(problem, route, passes)
    if route == "direct" or not problem.n or problem.batch != 1:
        return by_factor
    exact = _by_solves(problem, route, passes)
    if route == "refined" and exact.seconds > CORRECTION_SECONDS:
        return by_factor  # if its rounding matters at the points is seen there
    return _cheaper(problem, route, passes, asked, exact)


def exact_or_sampled(problem: VarianceProblem, route: str, passes: int = PASSES, asked: str = "auto") -> VariancePrice:
    """The same where it is settled that a factor does not give them."""
    return _cheaper(problem, route, passes, asked, _by_solves(problem, route, passes))


def _cheaper(problem: VarianceProblem, route: str, passes: int, asked: str, exact: VariancePrice) -> VariancePrice:
    """Exact solves, or samples where these are quicker and exact solves take longer than `sampled_seconds`, (M-107)."""
    if asked == "exact" or not problem.has_features or exact.seconds <= problem.settings.sampled_seconds:
        return exact
    sampled = _from_samples(problem, route, passes, instead=exact.seconds)
    return sampled if sampled.seconds < exact.seconds else exact


def strip_points(n: int, batch: int = 1, room: float = 0.0, strip_bytes: int = STRIP_BYTES) -> int:
    """Points of a strip of K_sx with a factor of n rows, (M-59): triangular solves with fewer columns than a 64th of
    their rows take longer for each of them. As many are taken as make three strips a quarter of the room, in bytes."""
    least = max(1, strip_bytes // (8 * max(1, n) * max(1, batch)))
    wide = int(min(n // STRIP_SHARE, room / (4 * 3 * 8 * max(1, n))))
    return max(least, wide) if batch == 1 else least


def _by_factor(problem: VarianceProblem) -> VariancePrice:
    """Strips of K_sx and their triangular solves, eq. (M-59)."""
    n, n_test, batch, rates = problem.n, problem.n_test, problem.batch, problem.profile.rates(problem.device)
    rows = min(strip_points(n, batch, problem.room, problem.settings.strip_bytes), n_test)
    strip = 8 * n * rows * batch
    tile = 8 * problem.temporaries * min(rows, tile_rows(n, batch, problem.device)) * n * batch
    features = 8 * (n_test + n) * problem.features.width * batch
    flops = batch * n_test * n * n
    seconds = flops / rates.gemm_float64 + 2 * batch * n_test * n / rates.block_pairs
    seconds += math.ceil(n_test / max(1, rows)) * rates.call_seconds
    return VariancePrice("factor", 3 * strip + tile + problem.features.function_bytes + features, seconds)


def _by_solves(problem: VarianceProblem, route: str, passes: int) -> VariancePrice:
    """A block of solves for every SOLVED_POINTS points, eq. (M-107)."""
    n, points = problem.n, min(SOLVED_POINTS, max(1, problem.n_test))
    blocks = math.ceil(problem.n_test / SOLVED_POINTS)
    peak, seconds = _block(problem, route, passes, points)
    features = 8 * (problem.n_test + n) * problem.features.width
    note = f"variance by solves, {SOLVED_POINTS} points at a time"
    return VariancePrice("solves", peak + features, blocks * seconds, note)


def _from_samples(problem: VarianceProblem, route: str, passes: int, instead: float | None = None) -> VariancePrice:
    """One block of solves, the low-rank factor, and what each point takes then, eq. (M-107)."""
    n, n_test, rates = problem.n, problem.n_test, problem.profile.rates(problem.device)
    block, seconds = (0, 2 * n * n * SAMPLES / rates.gemm_float64)
    if route != "direct":
        block, seconds = _block(problem, route, passes, SAMPLES)
    evaluations = n * LOW_RANK + (n + n_test) * SAMPLES * problem.settings.features + n_test * n
    flops = 2 * n * LOW_RANK**2 + 2 * n * n_test * (SAMPLES + LOW_RANK)
    systems = n_test * (LOW_RANK + NEIGHBOURS) ** 3 / 3
    seconds += evaluations / rates.block_pairs + flops / rates.gemm_float64 + systems / rates.cholesky_float64
    kept = 8 * n * 2 * (SAMPLES + LOW_RANK)
    strip = 8 * min(n_test, max(1, STRIP_BYTES // (8 * max(1, n)))) * (n + SYSTEMS * (LOW_RANK + NEIGHBOURS) ** 2)
    peak = kept + max(block, 3 * 8 * n * LOW_RANK, 3 * strip) + 2 * STRIP_BYTES
    note = f"variance from {SAMPLES} samples, with a standard error"
    if instead is not None:
        note += f": exact solves would take about {readable_seconds(instead)}"
    return VariancePrice("samples", peak, seconds, note)


def _block(problem: VarianceProblem, route: str, passes: int, points: int) -> tuple[int, float]:
    """(bytes, seconds) of one block of solves; not of what a posterior keeps, its tiles and preconditioner."""
    exact = _product(problem, "recomputed", torch.float64, points, CORRECTION_PASSES)
    beside = 8 * problem.n * BLOCK_VECTORS * points + exact.peak_bytes
    if route == "refined":
        solving = 2 * CORRECTION_PASSES * problem.n**2 * points / problem.profile.rates(problem.device).gemm_float64
        return beside, exact.seconds + solving
    return beside, _product(problem, route, torch.float32, points, passes).seconds + exact.seconds


def _product(problem: VarianceProblem, route: str, dtype: torch.dtype, points: int, passes: int) -> Candidate:
    """The quickest way to so many products with so many columns."""
    small = problem.device.type == "cpu" and problem.n**2 < PORTABLE_PAIRS
    features = replace(problem.features, width=max(1, problem.features.width))
    # For one product alone no tiles would be kept.
    product = ProductProblem(problem.form, problem.n, None, features, t=points, products=max(2, passes), dtype=dtype)
    prices = product_prices(product, problem.device, problem.profile)
    return min(
        (p for p in prices if p.route == route and not (small and p.backend != "torch")), key=lambda p: p.seconds
    )
