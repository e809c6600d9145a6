"""The standard normal distribution: log(2 pi), quantiles and central intervals."""

import math
from statistics import NormalDist
from typing import Any

from flashgp.foundations.errors import DomainError

LOG_2PI = math.log(2.0 * math.pi)
QUANTILE_975 = 1.959963984540054  # half the width of the central 95 % interval, in standard deviations


def check_probability(value: Any, argument: str) -> float:
    """One number strictly between 0 and 1, Python's, NumPy's or torch's. Raises: DomainError."""
    shape, number = getattr(value, "shape", ()), math.nan
    if not isinstance(shape, tuple):  # of something that is no array
        shape = ()
    if not shape and not isinstance(value, str | bytes):
        try:
            number = float(value)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            number = math.nan
    if not 0.0 < number < 1.0:
        got = f"{type(value).__name__} of shape {tuple(shape)}" if shape else repr(value)
        example = 0.975 if argument == "q" else 0.95
        raise DomainError(f"`{argument}` must be one number between 0 and 1, got {got}; for example {example}")
    return number


def standard_quantile(q: float) -> float:
    """The q-quantile of the standard normal distribution, to rounding far into both tails. Raises: DomainError."""
    return NormalDist().inv_cdf(check_probability(q, "q"))


def half_width(level: float, argument: str = "level") -> float:
    """Half the width of the central interval of that probability, in standard deviations. Raises: DomainError."""
    return -standard_quantile((1.0 - check_probability(level, argument)) / 2.0)
