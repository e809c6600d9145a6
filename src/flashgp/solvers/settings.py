"""Numbers that tune solvers, as frozen values with defaults; docs/decisions/0010-solvers.md has the measurements."""

import math
from dataclasses import dataclass, field, replace

import torch


@dataclass(frozen=True)
class LowRankSettings:
    """Settings of a partial Cholesky factor and the preconditioner made of it.

    Args:
        max_rank: columns at most; and no more than a quarter of the rows.
        trace_share: columns are added until what is left of the trace is this share of the trace of the noise.
        block: pivots proposed at once; the rejection loop stays below the cost of their columns.
        min_decay: a column must remove so many times what one of the identity would.
        kept_buffer: share of a buffer in use from which it is not copied to a smaller one.
        lost: where rounding of Q Q^T v may reach this share of P^-1 v, it is taken out twice.
        max_defect: of Q^T Q - I, up to which Q is made from a Gram matrix, at the speed of products, else by
            Householder.
        min_gram_flops: n k^2 from which a Gram matrix is worth it; by Householder bits repeat from run to run.
    """

    max_rank: int = 512
    trace_share: float = 0.1
    block: int = 128
    min_decay: float = 2.0
    kept_buffer: float = 0.9
    lost: float = 1e-6
    max_defect: float = 1e-11
    min_gram_flops: int = 2**27


@dataclass(frozen=True)
class FullScaleSettings:
    """Settings of a full-scale preconditioner.

    Args:
        block: rows that are whitened together, at most.
        neighbours: rows of earlier blocks that a block is given.
        candidates: rows among which neighbours are looked for.
        batch_bytes: of the small matrices that are factorised at once, and a few times as much beside them.
        dtype: that W is kept in; solves need few digits of P, only the same ones in both half solves.
        min_noise, max_noise: of each row over the mean variance, between which so few digits of W cost no iterations.
        max_price: passes over the pairs that making it may take as long as.
        applied: dtype of the products with W; float32 is for solves to a few digits.
    """

    block: int = 64
    neighbours: int = 128
    candidates: int = 4096
    batch_bytes: int = 2**23
    dtype: torch.dtype = torch.float32
    min_noise: float = 0.0
    max_noise: float = math.inf
    max_price: float = math.inf
    applied: torch.dtype = torch.float64


@dataclass(frozen=True)
class ComparisonSettings:
    """Settings of the comparison of a slow preconditioner with another one, eq. (M-121).

    Args:
        interval: iterations after which what is left of a solve is estimated.
        min_left: iterations, beside twice the price of the other preconditioner, from which a comparison begins.
        length: iterations of a comparison.
        min_gain: the other one is kept if an iteration with it leaves no more than so many of the first one.
        standing: share of the residual left by an iteration that gains nothing: a digit in 76 of them.
        growth: of the residual, from which rounding is blamed: less is a plateau.
        making_share: of the iterations that are left, at most, that making a larger one may take as long as.
        unknown_left: iterations that count as left where the last ones gained nothing.
        at_once: passes over the pairs that making the smallest other one may take as long as, where a solve begins with
            one.
        at_once_most: the same of the one it begins with, the largest of which that is true.
        pair_flops: flops of making the other one that take as long as a pair of a pass over the pairs.
    """

    interval: int = 10
    min_left: int = 20
    length: int = 8
    min_gain: float = 1.3
    standing: float = 0.97
    growth: float = 4.0
    making_share: float = 0.125
    unknown_left: int = 100
    at_once: float = 1.0
    at_once_most: float = 2.0
    pair_flops: float = 7.0


@dataclass(frozen=True)
class LanczosSettings:
    """Settings of stochastic Lanczos quadrature.

    Args:
        probes: independent ones, at least 2.
        max_steps: each is one float64 pass for all probes together.
        settled: share of the standard error that a step may still change an estimate by.
        min_settled: relative, where all probes agree.
    """

    probes: int = 16
    max_steps: int = 200
    settled: float = 0.05
    min_settled: float = 1e-10


@dataclass(frozen=True)
class SolveSettings:
    """Settings of conjugate gradients, with those of their parts.

    Args:
        low_rank, comparison: of the preconditioners.
        full_scale: of those that may be made, from the quickest to make to the one that takes fewest iterations.
        lanczos: of log determinants.
        compare: whether a slow solve compares the full-scale preconditioner with the low rank.
        single: whether products begin in float32.
        stagnation_window: iterations within which the residual must halve.
        replace_every: iterations after which the true residual replaces the recurrence.
        replace_first: the same at first with float32 products and full scale, which soon come to the end of their
            digits; twice as many after each.
        replace_below: with float32 products also once the recurrence has fallen by this factor.
        followed_share: of the digits that the recurrence claims, which must be true with float32 products.
        divergence: times the first residual, which ends a solve.
        narrow_share: of the columns that must have converged before the block is made smaller.
        corrected_excess: times the goal, up to which a bound is sharpened by a solve for the error, (M-123).
        norm_rows: rows that the lower bound of |A| is from, where a solve that stagnated may be at rounding.
        roundings: of the value, of A and of their product, in rounding units of float64: what counts as that.
    """

    low_rank: LowRankSettings = field(default_factory=LowRankSettings)
    full_scale: tuple[FullScaleSettings, ...] = (
        FullScaleSettings(), FullScaleSettings(128, 256), FullScaleSettings(128, 512),
        FullScaleSettings(128, 896, dtype=torch.float16, min_noise=1e-3, max_noise=1e6, max_price=3.0),
    )  # fmt: skip
    comparison: ComparisonSettings = field(default_factory=ComparisonSettings)
    lanczos: LanczosSettings = field(default_factory=LanczosSettings)
    compare: bool = True
    single: bool = True
    stagnation_window: int = 200
    replace_every: int = 50
    replace_first: int = 10
    replace_below: float = 1e-3
    followed_share: float = 1.0 / 3.0
    divergence: float = 1e6
    narrow_share: float = 0.25
    corrected_excess: float = 1e4
    norm_rows: int = 8
    roundings: float = 4.0


DEFAULTS = SolveSettings()
# With a factor of A as preconditioner: one that is worth its n^3 halves the residual within a few iterations.
REFINEMENT = replace(DEFAULTS, single=False, stagnation_window=50)
