"""Answers for the rows of a table in units of the target, and how good they are: the scores of numbers.

A model predicts distributions of new observations; `Answers` is what a user gets of them, a row of the table each.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


class Answers(ABC):
    """New observations of one target, each on its own, in its units; NaN in rows without a prediction."""

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def predicted(self) -> npt.NDArray[np.bool_]:
        """Mask of the rows that have a prediction."""

    @abstractmethod
    def rows(self, index: Any) -> Self:
        """Answers for some rows, as NumPy indexes them."""

    @abstractmethod
    def log_prob(self, y: Array) -> Array:
        """The log density of y, row by row, nats."""

    @abstractmethod
    def columns(
        self, *, std: bool | None = None, std_error: Array | None = None, interval: float | None = None
    ) -> dict[str, Any]:
        """Named columns of a table. Args: std, None for them where there are any; std_error, theirs.

        Raises: DomainError for what the target has not.
        """

    @abstractmethod
    def scores(self, y: Array, unit: float) -> "Scores":
        """Scores against y, finite and predicted in every row. Args: unit, of standardised ones."""


class NumberAnswers(Answers):
    """Answers for a target of numbers."""

    @property
    @abstractmethod
    def mean(self) -> Array:
        """E y."""

    @property
    @abstractmethod
    def std(self) -> Array:
        """The standard deviation of y."""

    @property
    def median(self) -> Array:
        """The median of y."""
        return self.quantile(0.5)

    @abstractmethod
    def quantile(self, q: float) -> Array:
        """The q-quantile of y. Raises: DomainError unless 0 < q < 1."""

    @abstractmethod
    def interval(self, level: float = 0.95) -> tuple[Array, Array]:
        """The central interval that holds y with that probability. Raises: DomainError unless 0 < level < 1."""

    def inside(self, y: Array) -> npt.NDArray[np.bool_]:
        """Mask of the rows whose central 95 % interval holds y."""
        lower, upper = self.interval(0.95)
        return (lower <= y) & (y <= upper)

    def columns(
        self, *, std: bool | None = None, std_error: Array | None = None, interval: float | None = None
    ) -> dict[str, Any]:
        columns = {"mean": self.mean}
        if std is None or std:
            columns["std"] = self.std
            if std_error is not None:
                columns["std_error"] = std_error
        if interval is not None:
            columns["lower"], columns["upper"] = self.interval(interval)
        return columns

    def scores(self, y: Array, unit: float) -> "Scores":
        return Scores.of(y, self, unit)


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
    def of(y: Array, predicted: "NumberAnswers", scale: float) -> "Scores":
        """Compare y with predictions of new observations, all of shape (n,), n at least 1, in units of y.

        scale: the standard deviation of the training targets, in the same units.
        """
        with np.errstate(invalid="ignore"):
            nll = -float(np.mean(predicted.log_prob(y)))
        rmse = float(np.sqrt(np.mean(np.square(y - predicted.mean))))
        return Scores(
            rows=len(y),
            rmse=rmse,
            nll=nll,
            coverage=float(np.mean(predicted.inside(y))),
            standardised_rmse=rmse / scale,
            standardised_nll=nll - math.log(scale),
        )

    def joined(self, other: "Scores") -> "Scores":
        """Scores of the rows of both."""
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
