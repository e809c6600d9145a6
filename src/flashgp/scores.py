"""Answers for the rows of a table in units of the target, and how good they are: scores of numbers and of classes.

A model predicts distributions of new observations; `Answers` is what a user gets of them, a row of the table each.
Intervals of scores are over rows, by their standard errors; parameters are taken as they are.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from flashgp.foundations.cells import html_table
from flashgp.foundations.errors import DomainError
from flashgp.foundations.estimate import Estimate
from flashgp.foundations.normal import QUANTILE_975
from flashgp.inference.judgement.scored import Scored, of_classes, of_numbers
from flashgp.likelihoods import Likelihood

Array = npt.NDArray[np.float64]


class TargetScores(ABC):
    """Figures over some rows, those of one kind of target. Fields: rows, how many."""

    rows: int

    def _repr_html_(self) -> str:
        return html_table(self.lines("y"), title=f"{self.rows:,} rows")

    @abstractmethod
    def joined(self, other: Any) -> Self:
        """Scores of the rows of both."""

    @abstractmethod
    def lines(self, unit: str) -> Sequence[tuple[str, str]]:
        """(name, text) pairs for people. Args: unit, what the target is called."""

    @abstractmethod
    def line(self, unit: str, explained: Estimate | None) -> str:
        """The figures that matter most, in a line. Args: explained, share of the variance that a verdict has told, None
        where there is none."""

    @abstractmethod
    def highlights(self, unit: str) -> Sequence[tuple[str, str]]:
        """(text, name) pairs of the figures that matter most, in words that people know."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """JSON values."""


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

    def values(self, y: Any) -> Array:
        """Values of y as a user has them, (n,), as `log_prob` and `scores` take them."""
        return np.asarray(y, dtype=np.float64)

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
    def scores(self, y: Array, unit: float) -> TargetScores:
        """Scores against y, finite and predicted in every row. Args: unit, of standardised ones."""

    @abstractmethod
    def scored(self, y: Array, others: Array | None, likelihood: Likelihood) -> Scored:
        """y beside a constant model, for a verdict. Args: others, targets that it has seen; None for all of y but the
        row itself."""


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

    def standardised(self, y: Array) -> Array:
        """Errors of y in standard deviations."""
        return (y - self.mean) / self.std

    def scored(self, y: Array, others: Array | None, likelihood: Likelihood) -> Scored:
        return of_numbers(y, self, others, measure=likelihood.measure, discrete=likelihood.discrete)

    def inside(self, y: Array, level: float = 0.95) -> npt.NDArray[np.bool_]:
        """Mask of the rows whose central interval of that probability holds y."""
        lower, upper = self.interval(level)
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


@dataclass(frozen=True, eq=False)
class ClassAnswers(Answers):
    """Answers for a target of classes.

    Fields: log_probability, (n, classes); labels, of the classes, in this order.
    """

    log_probability: Array
    labels: tuple[Any, ...]

    def __len__(self) -> int:
        return len(self.log_probability)

    @property
    def predicted(self) -> npt.NDArray[np.bool_]:
        return ~np.isnan(self.log_probability[:, 0])

    @property
    def probability(self) -> Array:
        """Probability of each class, (n, classes)."""
        return np.exp(self.log_probability)

    @property
    def label(self) -> npt.NDArray[Any]:
        """The most probable label, (n,); None in rows without a prediction."""
        codes = np.where(self.predicted, np.nan_to_num(self.log_probability).argmax(axis=1), len(self.labels))
        return np.array([*self.labels, None], dtype=object)[codes]

    def rows(self, index: Any) -> "ClassAnswers":
        return ClassAnswers(self.log_probability[index], self.labels)

    def values(self, y: Any) -> Array:
        """Codes of labels, NaN for those that are none."""
        codes = {label: float(code) for code, label in enumerate(self.labels)}
        return np.array([codes.get(one, np.nan) for one in np.asarray(y).tolist()])

    def log_prob(self, y: Array) -> Array:
        known = np.isfinite(y)
        codes = np.where(known, y, 0).astype(np.int64)
        return np.where(known, np.take_along_axis(self.log_probability, codes[:, None], axis=1)[:, 0], np.nan)

    def columns(
        self, *, std: bool | None = None, std_error: Array | None = None, interval: float | None = None
    ) -> dict[str, Any]:
        if std or interval is not None:
            raise DomainError(
                f"`{'std' if std else 'interval'}` is of numbers, got it for classes {self.labels[0]!r}, "
                f"{self.labels[1]!r}; leave it out: their probabilities say it all"
            )
        each = zip(self.labels, self.probability.T, strict=True)
        return {"label": self.label, **{f"probability of {label}": column for label, column in each}}

    def scored(self, y: Array, others: Array | None, likelihood: Likelihood) -> Scored:
        return of_classes(y.astype(np.int64), self.log_probability, None if others is None else others.astype(np.int64))

    def scores(self, y: Array, unit: float) -> "ClassScores":
        return ClassScores(y.astype(np.int64), self.log_probability)


@dataclass(frozen=True)
class Scores(TargetScores):
    """Figures over some rows.

    Fields: rows; rmse and mae, root of the mean square and mean absolute error of the mean, units of y; nll, the mean
    of -log p(y_i), nats, density per unit of y; coverage, the share of rows inside their central 95 % interval;
    standardised_rmse and standardised_nll, the same for y in standard deviations of the training targets.
    """

    rows: int
    rmse: float
    nll: float
    coverage: float
    standardised_rmse: float
    standardised_nll: float
    mae: float

    @classmethod
    def of(cls, y: Array, predicted: "NumberAnswers", scale: float) -> Self:
        """Compare y with predictions of new observations, all of shape (n,), n at least 1, in units of y.

        scale: the standard deviation of the training targets, in the same units.
        """
        with np.errstate(invalid="ignore"):
            nll = -float(np.mean(predicted.log_prob(y)))
        errors = np.abs(y - predicted.mean)
        rmse = float(np.sqrt(np.mean(np.square(errors))))
        return cls(
            rows=len(y),
            rmse=rmse,
            nll=nll,
            coverage=float(np.mean(predicted.inside(y))),
            standardised_rmse=rmse / scale,
            standardised_nll=nll - math.log(scale),
            mae=float(np.mean(errors)),
        )

    def joined(self, other: Self) -> Self:
        rows = self.rows + other.rows
        share = other.rows / rows

        def mean(one: float, more: float) -> float:
            return one + share * (more - one) if math.isfinite(one) and math.isfinite(more) else one + more

        return type(self)(
            rows=rows,
            rmse=math.sqrt(mean(self.rmse**2, other.rmse**2)),
            nll=mean(self.nll, other.nll),
            coverage=mean(self.coverage, other.coverage),
            standardised_rmse=math.sqrt(mean(self.standardised_rmse**2, other.standardised_rmse**2)),
            standardised_nll=mean(self.standardised_nll, other.standardised_nll),
            mae=mean(self.mae, other.mae),
        )

    def line(self, unit: str, explained: Estimate | None) -> str:
        squared = "" if explained is None else f", R² {explained.value:.3f}"
        inside = f"; {100 * self.coverage:.1f} % inside 95 % intervals" if explained is None else ""
        return f"RMSE {self.rmse:.4g}, mean absolute error {self.mae:.4g} in units of {unit}{squared}{inside}"

    def highlights(self, unit: str) -> Sequence[tuple[str, str]]:
        return [
            (f"{self.rmse:.4g}", f"usual error (RMSE), in units of {unit}"),
            (f"{100 * self.coverage:.1f} %", "of rows inside their 95 % intervals"),
        ]

    def lines(self, unit: str) -> Sequence[tuple[str, str]]:
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
            "mae": self.mae,
        }


class CountScores(Scores):
    """Scores of counts, whose size says what an error of one is worth."""

    def highlights(self, unit: str) -> Sequence[tuple[str, str]]:
        return [(f"{self.mae:.4g}", "mean absolute error"), *super().highlights(unit)[1:]]

    def lines(self, unit: str) -> Sequence[tuple[str, str]]:
        return [
            ("mean absolute error", f"{self.mae:.4g} in units of {unit}"),
            ("NLL", f"{self.nll:.4g} nats per row"),
            ("95 % coverage", f"{100 * self.coverage:.1f} %"),
        ]


@dataclass(frozen=True, eq=False)
class ClassScores(TargetScores):
    """Figures of probabilities over some rows, eqs. (M-300) to (M-303).

    Fields: codes, (n,), the observed classes; log_probability, (n, classes). n is at least 1.
    """

    codes: npt.NDArray[np.int64]
    log_probability: Array

    @property
    def rows(self) -> int:  # type: ignore[override]
        return len(self.codes)

    def joined(self, other: "ClassScores") -> "ClassScores":  # whose curves need all probabilities
        return ClassScores(np.concatenate([self.codes, other.codes]),
                           np.concatenate([self.log_probability, other.log_probability]))  # fmt: skip

    @cached_property
    def shares(self) -> Array:
        """Share of each class among the rows."""
        return np.bincount(self.codes, minlength=self.log_probability.shape[1]) / self.rows

    @cached_property
    def log_loss(self) -> Estimate:
        """The mean of -log p of the observed class, nats, eq. (M-300)."""
        losses = -self.log_probability[np.arange(self.rows), self.codes]
        with np.errstate(invalid="ignore"):  # a loss may be infinite
            return Estimate.of(float(losses.mean()), float(losses.std(ddof=1 if self.rows > 1 else 0)) / self.rows**0.5)

    @cached_property
    def share_loss(self) -> float:
        """The loss of whoever knew the shares of the classes and nothing else, nats."""
        positive = self.shares[self.shares > 0.0]
        return -float(positive @ np.log(positive))

    @cached_property
    def accuracy(self) -> Estimate:
        """Share of rows whose most probable class was observed, with Wilson's interval, eq. (M-300)."""
        share, n = float((self.log_probability.argmax(axis=1) == self.codes).mean()), self.rows
        square = QUANTILE_975**2 / n
        middle = (share + 0.5 * square) / (1.0 + square)
        half = math.sqrt(square * share * (1.0 - share) + 0.25 * square**2) / (1.0 + square)
        return Estimate(share, max(0.0, middle - half), min(1.0, middle + half))

    @cached_property
    def auc(self) -> Estimate | None:
        """Area under the curve of true by false positives, eq. (M-301); None unless two classes were observed of two.

        Source: DeLong, DeLong & Clarke-Pearson (1988), by midranks.
        """
        from scipy.stats import rankdata

        positive = self.codes == 1
        m, n = int(positive.sum()), int((~positive).sum())
        if self.log_probability.shape[1] != 2 or not m or not n:
            return None
        odds = self.log_probability[:, 1] - self.log_probability[:, 0]
        whole = rankdata(odds)
        above = (whole[positive] - rankdata(odds[positive])) / n
        below = 1.0 - (whole[~positive] - rankdata(odds[~positive])) / m
        spread = sum(float(each.var(ddof=1)) / len(each) for each in (above, below) if len(each) > 1)
        return Estimate.of(float(above.mean()), spread**0.5, most=1.0)

    @cached_property
    def bins(self) -> "CalibrationBins":
        """Bins of like probabilities."""
        p = np.exp(self.log_probability)
        chance, hit = p[:, -1], self.codes == 1
        if p.shape[1] > 2:
            chance, hit = p.max(axis=1), p.argmax(axis=1) == self.codes
        return CalibrationBins.of(chance, hit)

    def line(self, unit: str, explained: Estimate | None) -> str:
        auc = "" if self.auc is None else f", AUC {self.auc.value:.3g}"
        return (
            f"accuracy {100 * self.accuracy.value:.1f} % (the most frequent class alone {100 * self.shares.max():.1f} "
            f"%), log loss {self.log_loss.value:.3g} (the shares of the classes alone {self.share_loss:.3g}){auc}"
        )

    def highlights(self, unit: str) -> Sequence[tuple[str, str]]:
        most = 100 * self.shares.max()
        auc = [] if self.auc is None else [(f"{self.auc.value:.3g}", "AUC: 1 tells all apart, 0.5 none")]
        return [
            (f"{100 * self.accuracy.value:.1f} %", f"of labels right, {most:.3g} % by the most frequent class"),
            *auc,
        ]

    def lines(self, unit: str) -> Sequence[tuple[str, str]]:
        most, auc = 100 * self.shares.max(), self.auc
        return [
            (
                "log loss",
                f"{self.log_loss.text()} nats per row; the shares of the classes alone: {self.share_loss:.3g}",
            ),
            ("accuracy", f"{self.accuracy.text(100)} %; the most frequent class alone: {most:.3g} %"),
            *([] if auc is None else [("AUC", auc.text())]),
            ("calibration error", f"{self.bins.error.text()}; by chance if calibrated: {self.bins.by_chance:.3g}"),
        ]

    def __repr__(self) -> str:
        return "\n".join([f"{self.rows:,} rows", *(f"{name:<18} {text}" for name, text in self.lines(""))])

    def to_json(self) -> dict[str, Any]:
        each = {"log_loss": self.log_loss, "accuracy": self.accuracy, "auc": self.auc,
                "calibration_error": self.bins.error}  # fmt: skip
        return {
            "rows": self.rows,
            **{name: None if one is None else one.value for name, one in each.items()},
            **{f"{name}_95": None if one is None else [one.low, one.high] for name, one in each.items()},
            "calibration_error_by_chance": self.bins.by_chance,
            "log_loss_of_shares": self.share_loss,
        }


@dataclass(frozen=True, eq=False)
class CalibrationBins:
    """Rows by their probability, as many in each bin, eqs. (M-302) and (M-303).

    Fields: rows, of each bin; probability, mean of what was predicted; share, of what was observed; spread, standard
    error of their difference; by_chance, the error that a calibrated model shows with so few rows.
    """

    rows: npt.NDArray[np.int64]
    probability: Array
    share: Array
    spread: Array
    by_chance: float

    @staticmethod
    def of(chance: Array, hit: npt.NDArray[np.bool_], most: int = 15, rows: int = 25) -> "CalibrationBins":
        """Args: chance, (n,), predicted; hit, whether it came true; most, bins; rows, of a bin at least if possible."""
        order = np.argsort(chance, kind="stable")
        parts = np.array_split(order, max(1, min(most, len(order) // rows)))
        count = np.array([len(part) for part in parts])
        p, share = (np.array([float(each[part].mean()) for part in parts]) for each in (chance, hit))
        errors = hit - chance
        spread = np.array([float(errors[part].std()) for part in parts]) / np.sqrt(count)
        expected = np.array([float((chance[part] * (1.0 - chance[part])).mean()) for part in parts])
        by_chance = float(count @ np.sqrt(2.0 / math.pi * expected / count)) / len(order)
        return CalibrationBins(count, p, share, spread, by_chance)

    @property
    def error(self) -> Estimate:
        """The mean of |predicted - observed| over rows, with the variance of a folded normal in each bin."""
        from scipy.special import erf

        weight, moved = self.rows / self.rows.sum(), np.abs(self.share - self.probability)
        z = np.divide(moved, self.spread, out=np.full_like(moved, np.inf), where=self.spread > 0)
        folded = self.spread * math.sqrt(2.0 / math.pi) * np.exp(-0.5 * z**2) + moved * erf(z / math.sqrt(2.0))
        variance = np.maximum(moved**2 + self.spread**2 - folded**2, 0.0)
        return Estimate.of(float(weight @ moved), math.sqrt(float(weight**2 @ variance)), most=1.0)
