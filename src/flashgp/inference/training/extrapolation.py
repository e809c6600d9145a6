"""Where the optimum goes as rows are added: the start of a search over more rows.

More rows see finer structure, so that noise falls and lengthscales shorten, by about as much for each doubling. With
optima of a and of b rows, delta = theta_b - theta_a, and B the curvature of b rows without what first steps have put on
it, the search over n rows begins at

    theta_b + w delta min(2, log(n / b) / log(b / a)),   w = max(0, 1 - p c / (delta^T B delta)),                (M-122)
    c = b / a - 1 + (1 + b / a) / S

p parameters, S probes of each gradient. p c is the expectation of delta^T B delta without a trend: the b rows contain
the a, so that the optima differ by a covariance of B^-1 (b / a - 1), and estimated gradients add theirs. w shrinks the
step as James and Stein's estimator does. b / a is 1.5 or more: closer sizes say too little of a trend.

Source: James & Stein (1961), Estimation with quadratic loss, for the shrinkage.
"""

import math

import numpy

from flashgp.inference.training.settings import StochasticSettings


class Trend:
    """The optima of the last two numbers of rows.

    Args:
        theta: (p,), of `rows` rows.
        settings: of which `min_trend_ratio` and `max_trend` count.
    Fields: theta, rows: the last.
    """

    def __init__(self, theta: numpy.ndarray, rows: int, settings: StochasticSettings) -> None:
        self.theta, self.rows, self.settings = theta, rows, settings
        self._before: tuple[numpy.ndarray, int] | None = None

    def add(self, theta: numpy.ndarray, rows: int) -> None:
        """The optimum of more rows."""
        if rows >= self.settings.min_trend_ratio * self.rows:
            self._before = self.theta, self.rows
        self.theta, self.rows = theta, rows

    def extrapolate(self, rows: int, curvature: numpy.ndarray, probes: float, reach: numpy.ndarray) -> numpy.ndarray:
        """Where the optimum of more rows may be, eq. (M-122), (p,); the last one itself where nothing tells.

        Args: curvature: at the last one, of its rows, (p, p), nats; probes: of each gradient; reach: of the step, (p,).
        """
        if self._before is None:
            return self.theta
        theta, count = self._before
        drift, ratio = self.theta - theta, self.rows / count
        seen = float(drift @ curvature @ drift)
        chance = len(drift) * (ratio - 1.0 + (1.0 + ratio) / probes)
        if not seen > chance:
            return self.theta
        step = (1.0 - chance / seen) * min(self.settings.max_trend, math.log(rows / self.rows) / math.log(ratio))
        return self.theta + (step * drift).clip(-reach, reach)
