"""Figures over rows: by what rows are scored, and a figure with its interval at 95 %."""

import math
from dataclasses import dataclass
from enum import StrEnum

from flashgp.foundations.normal import QUANTILE_975


class Measure(StrEnum):
    """Loss by which predictions are judged; its value is what they explain a share of."""

    VARIANCE = "the variance"
    LOG_LOSS = "the log loss of the class shares"
    SPREAD = "the squared median deviation"


@dataclass(frozen=True)
class Estimate:
    """A figure over rows. Fields: value; low and high, its interval at 95 %."""

    value: float
    low: float
    high: float

    @staticmethod
    def of(value: float, error: float, least: float = 0.0, most: float = math.inf) -> "Estimate":
        """Args: error, its standard error; least and most, that it may be."""
        half = QUANTILE_975 * error
        return Estimate(value, max(least, value - half), min(most, value + half))

    def text(self, scale: float = 1.0) -> str:
        """For people, the interval in brackets. Args: scale, that it is multiplied by."""
        return f"{scale * self.value:.3g} ({scale * self.low:.3g} to {scale * self.high:.3g})"
