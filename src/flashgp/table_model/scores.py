"""How good predictions are: root mean squared error, negative log predictive density, coverage of the 95 % interval."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flashgp.foundations.normal import QUANTILE_975
from flashgp.target_transform import WarpedNormal


@dataclass(frozen=True)
class Scores:
    """Figures over some rows.

    Fields: rows; rmse, units of y; nll, the mean of -log p(y_i), nats, density per unit of y; coverage, the share of
    rows inside their central 95 % interval; standardised_rmse and standardised_nll, the same for y in standard
    deviations of the training targets.
    """

    rows: int
    rmse: float
    nll: float
    coverage: float
    standardised_rmse: float
    standardised_nll: float

    @staticmethod
    def of(y: npt.NDArray[np.float64], target: WarpedNormal, scale: float) -> "Scores":
        """Compare y with predictions of new observations, all of shape (n,), n at least 1, in units of y.

        scale: the standard deviation of the training targets, in the same units.
        """
        with np.errstate(invalid="ignore"):
            nll = -float(np.mean(target.log_prob(y)))
        rmse = float(np.sqrt(np.mean(np.square(y - target.mean))))
        return Scores(
            rows=len(y),
            rmse=rmse,
            nll=nll,
            coverage=float(np.mean(np.abs(target.standardised(y)) <= QUANTILE_975)),
            standardised_rmse=rmse / scale,
            standardised_nll=nll - math.log(scale),
        )

    def joined(self, other: "Scores") -> "Scores":
        """Of the rows of both."""
        rows = self.rows + other.rows
        share = other.rows / rows

        def mean(one: float, more: float) -> float:
            return one + share * (more - one) if math.isfinite(one) and math.isfinite(more) else one + more

        return Scores(
            rows=rows,
            rmse=math.sqrt(mean(self.rmse**2, other.rmse**2)),
            nll=mean(self.nll, other.nll),
            coverage=mean(self.coverage, other.coverage),
            standardised_rmse=math.sqrt(mean(self.standardised_rmse**2, other.standardised_rmse**2)),
            standardised_nll=mean(self.standardised_nll, other.standardised_nll),
        )

    def lines(self, unit: str) -> Sequence[tuple[str, str]]:
        """(name, text) pairs for people."""
        return [
            ("RMSE", f"{self.rmse:.4g} in units of {unit} ({self.standardised_rmse:.4g} standardised)"),
            ("NLL", f"{self.nll:.4g} nats per row in units of {unit} ({self.standardised_nll:.4g} standardised)"),
            ("95 % coverage", f"{100 * self.coverage:.1f} %"),
        ]

    def to_json(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "rmse": self.rmse,
            "nll": self.nll,
            "coverage_95": self.coverage,
            "standardised_rmse": self.standardised_rmse,
            "standardised_nll": self.standardised_nll,
        }
