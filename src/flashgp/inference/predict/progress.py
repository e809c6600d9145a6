"""Progress of variances without a factor, which may take a minute or hours."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from flashgp.foundations.quantities import readable_seconds


@dataclass(frozen=True)
class PredictionProgress:
    """Argument of a progress callback of `Posterior.predict`, after every iteration of a solve.

    Fields: points whose variances are known, of so many; iteration of the solve; seconds so far; expected seconds of
    all, by the plan and within the time limit; sampled, whether variances come from samples.
    """

    points: int
    of: int
    iteration: int
    seconds: float
    expected: float
    sampled: bool

    @property
    def fraction(self) -> float:
        """Fraction of all seconds, by the plan; below 1."""
        return min(0.99, self.seconds / self.expected) if self.expected > 0.0 else 0.0

    def __str__(self) -> str:
        what = "by samples" if self.sampled else f"{self.points:,} of {self.of:,} points"
        left = max(0.0, self.expected - self.seconds)
        return f"variances, {what}, iteration {self.iteration}, about {readable_seconds(left)} left"


ToldProgress = Callable[[PredictionProgress], None] | Literal[False] | None
