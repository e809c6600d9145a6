"""The standard normal distribution: log(2 pi) and central intervals."""

import math
from statistics import NormalDist

from flashgp.foundations.errors import DomainError

__all__ = ["LOG_2PI", "QUANTILE_975", "half_width"]

LOG_2PI = math.log(2.0 * math.pi)
QUANTILE_975 = 1.959963984540054  # half the width of the central 95 % interval, in standard deviations


def half_width(level: float, argument: str = "level") -> float:
    """Half the width of the central interval of that probability, in standard deviations. Raises: DomainError."""
    if not 0.0 < level < 1.0:
        raise DomainError(f"`{argument}` must be between 0 and 1, got {level!r}; for example 0.95")
    return NormalDist().inv_cdf(0.5 + level / 2)
