"""How good predictions are: root mean squared error, negative log predictive density, coverage of the 95 % interval."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flashgp.foundations.normal import LOG_2PI, QUANTILE_975
from flashgp.standardise import Scaling

__all__ = ["Scores"]


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
    def of(
        y: npt.NDArray[np.float64], mean: npt.NDArray[np.float64], std: npt.NDArray[np.float64], scaling: Scaling
    ) -> "Scores":
        """Compare with predictions of new observations, all of shape (n,), n at least 1, in units of y."""
        error = y - mean
        with np.errstate(divide="ignore", invalid="ignore"):
            z = np.where(error == 0.0, 0.0, error / std)
            nll = float(np.mean(0.5 * np.square(z) + np.log(std))) + 0.5 * LOG_2PI
        rmse = float(np.sqrt(np.mean(np.square(error))))
        return Scores(
            rows=len(y),
            rmse=rmse,
            nll=nll,
            coverage=float(np.mean(np.abs(z) <= QUANTILE_975)),
            standardised_rmse=rmse / scaling.y_scale,
            standardised_nll=nll - math.log(scaling.y_scale),
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
