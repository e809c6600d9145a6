"""Rows scored beside a constant model, which knows the targets and no input: what share of the loss inputs explain.

Numbers are scored by squared errors, classes by log loss, likelihoods of heavy tails by the median of absolute errors,
which rows far off do not move. Pure functions of numbers.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from flashgp.foundations.estimate import Estimate, Measure
from flashgp.foundations.normal import QUANTILE_975

Array = npt.NDArray[np.float64]
LEVEL = 0.95  # of the intervals that are counted
RESAMPLES, MOST_RESAMPLED = 100, 4_000  # of the rows, for the error of a share of medians


@dataclass(frozen=True)
class Calibration:
    """Rows of which what was predicted with a probability holds, beside how many it should hold of, eq. (M-421).

    Fields: rows; held, of them; expected and error, mean and standard deviation of held if probabilities are right;
    discrete, whether intervals may hold more than they should.
    """

    rows: int
    held: int
    expected: float
    error: float
    discrete: bool = False

    @property
    def share(self) -> float:
        return self.held / self.rows

    @property
    def range(self) -> tuple[float, float]:
        """Shares that are as expected, at 95 %."""
        return self._range(QUANTILE_975)

    def _range(self, errors: float) -> tuple[float, float]:
        low, high = self.expected - errors * self.error, self.expected + errors * self.error
        return max(0.0, low / self.rows), min(1.0, high / self.rows)

    def off(self, below: float, above: float, errors: float = QUANTILE_975) -> int:
        """-1 where fewer rows are held than should be, 1 where more are, else 0.

        Args: below and above, by which a share may be off in any case; errors, standard errors that are chance.
        """
        (low, high), middle = self._range(errors), self.expected / self.rows
        if self.share < min(low, middle - below):
            return -1
        return int(self.share > max(high, min(middle + above, 1.0)) and not self.discrete)


@dataclass(frozen=True, eq=False)
class Scored:
    """Losses of some rows.

    Fields: measure; loss and plain, (n,), of the model and of the constant one; calibration; standard, (n,), errors in
    standard deviations that were predicted, None of classes.
    """

    measure: Measure
    loss: Array
    plain: Array
    calibration: Calibration
    standard: Array | None = None

    @cached_property
    def explained(self) -> Estimate | None:
        """Share of the loss that the predictions take away, eq. (M-420): None where the constant loses nothing.

        Its error is that of a ratio of means, to first order; of medians by resampling.
        """
        n = len(self.loss)
        scale = float(self.plain.mean()) if n else 0.0
        if not scale > 0.0 or not math.isfinite(scale):
            return None
        if self.measure is Measure.SPREAD:
            return _of_medians(self.loss, self.plain)
        share = 1.0 - float(self.loss.mean()) / scale
        if not math.isfinite(share):
            return Estimate(-math.inf, -math.inf, -math.inf)
        left = self.loss - (1.0 - share) * self.plain
        error = float(left.std(ddof=1)) / scale / n**0.5 if n > 1 else math.inf
        return Estimate.of(share, error, -math.inf, 1.0)


def _of_medians(loss: Array, plain: Array) -> Estimate | None:
    """1 - (median loss / median plain)^2 of absolute errors, with the quantiles of resampled rows."""
    step = max(1, -(-len(loss) // MOST_RESAMPLED))
    loss, plain = loss[::step], plain[::step]

    def share(rows: Any) -> float:
        below = float(np.median(plain[rows]))
        return 1.0 - (float(np.median(loss[rows])) / below) ** 2 if below > 0.0 else math.nan

    generator = np.random.default_rng(0)
    found = [share(generator.integers(len(loss), size=len(loss))) for _ in range(RESAMPLES)]
    value, error = share(slice(None)), float(np.std(found))
    # The resampled rows shrink the spread by their number in relation to all.
    return Estimate.of(value, error / step**0.5, -math.inf, 1.0) if math.isfinite(value + error) else None


def of_numbers(
    y: Array,
    predicted: Any,
    others: Array | None = None,
    *,
    measure: Measure = Measure.VARIANCE,
    discrete: bool = False,
) -> Scored:
    """Scores of numbers.

    Args:
        y: (n,), finite.
        predicted: their distributions, with mean, inside(y, level) and standardised(y), (n,) each, or median for
            SPREAD.
        others: targets that the constant model has seen; None for all of y but the row itself.
        measure: VARIANCE or SPREAD.
        discrete: whether they are counts or levels.
    """
    n = len(y)
    if measure is Measure.SPREAD:
        middle = np.median(y if others is None else others)
        loss, plain = np.abs(y - predicted.median), np.abs(y - middle)
    else:
        if others is None:
            middle = (y.sum() - y) / max(1, n - 1)
        else:
            middle = others.mean()
        loss, plain = np.square(y - predicted.mean), np.square(y - middle)
    held = int(predicted.inside(y, LEVEL).sum())
    calibration = Calibration(n, held, LEVEL * n, (LEVEL * (1.0 - LEVEL) * n) ** 0.5, discrete)
    standard = None
    if measure is Measure.VARIANCE:
        with np.errstate(divide="ignore", invalid="ignore"):
            standard = predicted.standardised(y)
    return Scored(measure, loss, plain, calibration, standard)


def of_classes(codes: npt.NDArray[np.int64], log_probability: Array, others: Any = None) -> Scored:
    """Scores of classes.

    Args:
        codes: (n,), those that were observed.
        log_probability: (n, classes).
        others: codes that the constant model has seen; None for all but the row itself, and each class once more.
    """
    n, classes = log_probability.shape
    seen = np.bincount(codes if others is None else others, minlength=classes).astype(np.float64)
    if others is None:
        plain = -np.log(seen[codes] / (n - 1 + classes))  # of the others, and one more of each class
    else:
        plain = -np.log((seen[codes] + 1.0) / (seen.sum() + classes))
    if (np.bincount(codes, minlength=classes) + seen > 0.0).sum() < 2:  # known without the one more
        plain = np.zeros(n)
    best = np.exp(log_probability.max(axis=1))
    right = int((log_probability.argmax(axis=1) == codes).sum())
    calibration = Calibration(n, right, float(best.sum()), float((best * (1.0 - best)).sum()) ** 0.5)
    return Scored(Measure.LOG_LOSS, -log_probability[np.arange(n), codes], plain, calibration)
