"""Predictions of the rows of a table, in its order and in units of its target; how good they are, and of which rows.

A row is known where every input and the target equal those of a learned row, in standard units and beyond what a
number loses on its way through a text file: its prediction says nothing of new rows. Rows of equal inputs that differ
in the target are new observations.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from flashgp.foundations.cells import Tabled
from flashgp.foundations.errors import DomainError, ShapeError
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.quantities import counted
from flashgp.foundations.report import Report
from flashgp.scores import Answers, ClassAnswers, NumberAnswers, TargetScores
from flashgp.sources.survey import hashes

_Numbers = npt.NDArray[np.float64]
_SHOWN_ROWS = 5
_STEPS = 2.0**32  # to a standard deviation: numbers of text differ by some 1e-16, rows of a table by far more


@dataclass(frozen=True, eq=False, repr=False)
class TablePrediction(Tabled):
    """New observations of the target at the rows of a table, noise included; NaN for rows that have missing inputs.

    Fields:
        target: its name.
        distribution: of every row of the table, in units of the target.
        rows: positions of the rows predicted, from 0, increasing.
        std_error: the standard error of `std`, (rows of the table,), where variances were sampled; None where they are
            exact.
        observed: the target, where the table has it, NaN in rows without a value; None where it has not.
        unit: the standard deviation of the training targets, for standardised scores.
        notes: what was decided, sentences for the user.
        report: how it was computed; of the posterior, where rows were predicted in several steps.
        known: which rows the model had learned before, inputs and target alike, (rows of the table,); None where the
            table has no target, or the model does not hold its rows.
        kept: columns of the table as they are, Arrow, where it was read with `keep`.
        outside: finding of rows outside the range of those that were fitted; None where all lie within.

    Example:
        >>> x = np.linspace(0.0, 6.0, 40)
        >>> model = fgp.TableModel().fit({"x": x, "wave": 10.0 + np.sin(x)}, target="wave")
        >>> prediction = model.predict({"x": [1.0, 2.0]})
        >>> prediction.mean.round(1), (prediction.quantile(0.5) - prediction.mean).round(6)
        (array([10.8, 10.9]), array([0., 0.]))
        >>> lower, upper = prediction.interval(0.95)
        >>> bool((lower < prediction.mean).all()), prediction.log_prob([10.8, 10.9]).shape
        (True, (2,))
    """

    target: str
    distribution: Answers
    rows: npt.NDArray[np.int64]
    std_error: _Numbers | None
    observed: _Numbers | None
    unit: float
    notes: tuple[str, ...]
    report: Report
    known: npt.NDArray[np.bool_] | None = None
    kept: Mapping[str, Any] = field(default_factory=dict)
    outside: Event | None = None

    @property
    def _numbers(self) -> NumberAnswers:
        if not isinstance(self.distribution, NumberAnswers):
            raise DomainError(f"{self.target!r} has classes, and no mean or interval; ask for `probability` or `label`")
        return self.distribution

    @property
    def _classes(self) -> ClassAnswers:
        if not isinstance(self.distribution, ClassAnswers):
            raise DomainError(f"{self.target!r} holds numbers, and no classes; ask for `mean` or `interval()`")
        return self.distribution

    @property
    def probability(self) -> _Numbers:
        """Probability of each of `labels`, (rows of the table, classes). Raises: DomainError for numbers, as `label`
        and `labels`."""
        return self._classes.probability

    @property
    def label(self) -> npt.NDArray[Any]:
        """The most probable label of each row; None in rows with missing inputs."""
        return self._classes.label

    @property
    def labels(self) -> tuple[Any, ...]:
        """Labels of the classes, sorted."""
        return self._classes.labels

    @cached_property
    def mean(self) -> _Numbers:
        """The mean of each row, units of the target. Raises: DomainError for classes, as all that follow."""
        return self._numbers.mean

    @cached_property
    def std(self) -> _Numbers:
        """The standard deviation of a new observation in each row, units of the target."""
        return self._numbers.std

    @property
    def median(self) -> _Numbers:
        """The median of each row, units of the target."""
        return self._numbers.median

    def interval(self, level: float = 0.95) -> tuple[_Numbers, _Numbers]:
        """The central interval that holds the target with that probability, strictly between 0 and 1."""
        return self._numbers.interval(level)

    def quantile(self, q: float) -> _Numbers:
        """The q-quantile of each row, units of the target. Raises: DomainError unless 0 < q < 1."""
        return self._numbers.quantile(q)

    def log_prob(self, y: Any = None) -> _Numbers:
        """The log density of a value of the target in each row, nats, per unit of the target; of a label its log
        probability.

        Args:
            y: one value for each row of the table; None for the target that the table has.

        Raises:
            ShapeError: for another number of values, or a table without the target.
        """
        values = self.observed if y is None else self.distribution.values(y)
        if values is None or values.shape != (len(self),):
            raise ShapeError(
                f"`y` must have one value for each of {len(self):,} rows, got "
                f"{'none' if values is None else values.shape}; pass the column {self.target!r}"
            )
        return self.distribution.log_prob(values)

    @cached_property
    def scores(self) -> TargetScores | None:
        """Scores of the predictions over rows with the target that the model has not learned; None without any. If the
        learned rows are not known (`known` is None), over all rows with the target."""
        return self._scores_of(None if self.known is None else ~self.known)

    @cached_property
    def known_scores(self) -> TargetScores | None:
        """Scores over rows that the model has learned: how closely it follows them, not how it predicts new ones. None
        without any."""
        return None if self.known is None else self._scores_of(self.known)

    def _scores_of(self, some: npt.NDArray[np.bool_] | None) -> TargetScores | None:
        if self.observed is None:
            return None
        scored = np.isfinite(self.observed) & self.distribution.predicted
        scored &= True if some is None else some
        if not scored.any():
            return None
        return self.distribution.rows(scored).scores(self.observed[scored], self.unit)

    def columns(self, *, std: bool | None = None, interval: float | None = None) -> dict[str, Any]:
        """Named columns, for a file or a frame: mean, std, std_error where deviations are estimates, lower, upper; of
        classes label and the probability of each."""
        return self.distribution.columns(std=std, std_error=self.std_error, interval=interval)

    def __len__(self) -> int:
        return len(self.distribution)

    def _table(self) -> tuple[str, list[str], list[list[str]]]:
        """Title, head and the first rows."""
        numbers = isinstance(self.distribution, NumberAnswers)
        columns = self.columns(interval=0.95 if numbers else None)
        shown = range(min(len(self), _SHOWN_ROWS))
        rows = [[str(row), *(_cell(values[row]) for values in columns.values())] for row in shown]
        more = [["...", *[""] * len(columns)]] if len(shown) < len(self) else []
        title = f"{self.target!r} of {len(self):,} rows{', 95 % intervals in lower and upper' * numbers}"
        return title, ["row", *columns], rows + more


def _cell(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class PredictedRows:
    """Rows of predictions that follow each other. Fields: rows; predicted, with all inputs; valued, with a value of the
    target, of those where the table has it, known; fitted, that the model had learned before; outside, finding of those
    outside the range of fitted rows."""

    rows: int = 0
    predicted: int = 0
    known: int = 0
    valued: int = 0
    fitted: int = 0
    outside: Event | None = None

    @staticmethod
    def of(prediction: TablePrediction) -> "PredictedRows":
        observed, rows = prediction.observed, len(prediction)
        known = (0, 0) if observed is None else (rows, int(np.isfinite(observed).sum()))
        fitted = 0 if prediction.known is None else int(prediction.known.sum())
        return PredictedRows(rows, len(prediction.rows), *known, fitted, prediction.outside)

    def joined(self, other: "PredictedRows") -> "PredictedRows":
        """Sum of both."""
        return PredictedRows(
            self.rows + other.rows, self.predicted + other.predicted, self.known + other.known,
            self.valued + other.valued, self.fitted + other.fitted, self._outside_of_both(other),
        )  # fmt: skip

    def _outside_of_both(self, other: "PredictedRows") -> Event | None:
        found = [part.outside.fields for part in (self, other) if part.outside is not None]
        if not found:
            return None
        far, of = max(found, key=lambda one: one["far"]), self.predicted + other.predicted
        return Event(EventKind.OUT_OF_RANGE, **{**far, "rows": sum(one["rows"] for one in found), "of": of})

    def notes(self, target: str) -> tuple[str, ...]:
        """Missing values, in words."""
        found, without = [], self.rows - self.predicted
        if without:
            found.append(f"{without:,} rows with missing values have nan in every column of the result.")
        if 0 < self.valued < self.known:
            found.append(f"{self.known - self.valued:,} rows have no value of {target!r} and are not scored.")
        if self.fitted:
            found.append(f"{counted(self.fitted, 'row')} of {self.rows:,} the model has learned before: scored apart.")
        if self.outside is not None:
            found.append(str(self.outside))
        return tuple(found)


@dataclass(frozen=True, eq=False)
class KnownRows:
    """Fields: marks, (n,), sorted: a 64-bit hash of each learned row."""

    marks: npt.NDArray[np.uint64]

    @staticmethod
    def of(x: Any, y: Any) -> "KnownRows":
        """Args: x (n, d) and y (n,), tensors in standard units, or indicators of classes (n, classes). Cost: 10
        operations on each number and a sort."""
        y = y.argmax(-1) if y.dim() == 2 else y
        return KnownRows(np.sort(_marks(x.double().numpy(force=True), y.double().numpy(force=True))))

    def hold(self, x: _Numbers, y: _Numbers) -> npt.NDArray[np.bool_]:
        """Mask of rows that are known, (m,).

        Args: x (m, d) and y (m,) in standard units, NaN where there is no value.
        Cost: O(m (d + log n)).
        """
        if not len(self.marks):
            return np.zeros(len(x), bool)
        wanted = _marks(x, y)
        place = np.minimum(np.searchsorted(self.marks, wanted), len(self.marks) - 1)
        return np.isfinite(y) & (self.marks[place] == wanted)


def _marks(x: _Numbers, y: _Numbers) -> npt.NDArray[np.uint64]:
    return hashes(np.round(np.column_stack([x, y]) * _STEPS))
