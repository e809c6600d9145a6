"""`TableModel`: a Gaussian process of a table, which takes its columns as they are and answers in their units."""

import copy
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from flashgp.data.files import BATCH_ROWS, is_pattern
from flashgp.data.table_parts import ParquetParts
from flashgp.files import load_metadata, save
from flashgp.files.container import file_path
from flashgp.fitted_table import FittedTable, TableSettings, restored
from flashgp.foundations.checks import check_count
from flashgp.foundations.deadline import NO_DEADLINE, Deadline
from flashgp.foundations.errors import DomainError, ModelFileError, ShapeError
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.report import Report
from flashgp.inference.base_state import UPDATE
from flashgp.inference.judgement.verdict import How, Verdict, unjudged
from flashgp.inference.judging import Told, findings_of, judged_unasked, out_of_range, unasked, verdict_of_rows
from flashgp.inference.parameter_rows import number_rows, table_text
from flashgp.inference.posterior import Posterior
from flashgp.inference.predict.importance import Importance, ImportanceSettings
from flashgp.inference.predict.plan import price_of
from flashgp.inference.progress_bar import shown_progress
from flashgp.kernels import Kernel
from flashgp.likelihoods import Likelihood, PredictiveDistribution
from flashgp.processes.group import Group
from flashgp.scores import Answers
from flashgp.table import EncodedTable, Encoding, Missing, Order, Table, Unseen, table_of
from flashgp.targets import Placed
from flashgp.units import Scaling

from .prediction import KnownRows, PredictedRows, TablePrediction

if TYPE_CHECKING:  # a fit and an update import what they need; predictions do without it
    from flashgp.inference.fit import Fit
    from flashgp.inference.training.history import Progress

    from .preparation import PreparedTable

TABLE_KEY = "flashgp.table"  # of a file's metadata
UNITS = "standardised columns and target; TableModel.predict answers in units of the table"
_FIELDS = ("encoding", "scaling", "kernel")
_BLOCK_ROWS = 64  # predicted, then learned, together: the predictions hardly change, the work is matrix products
_LOGGER = logging.getLogger("flashgp.table")
_Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False, kw_only=True)
class _Learned(FittedTable):
    """State of a fitted model.

    Fields: encoding, of columns; last, predictions of the rows that `update` learned, each made before.
    """

    encoding: Encoding
    last: TablePrediction | None = None

    @cached_property
    def known(self) -> KnownRows | None:
        """The rows that it has learned; None where they are not held."""
        rows = self.posterior.state.rows_learned
        return None if rows is None else KnownRows.of(*rows)

    @cached_property
    def told(self) -> Told:
        inputs = self.encoding.inputs
        times, codes = ([j for j, c in enumerate(inputs) if c.kind == kind] for kind in ("date", "category"))
        return replace(super().told, columns=[c.name for c in inputs], times=times, codes=codes)

    def outside(self, x: _Numbers) -> Event | None:
        """Finding of rows (m, d), encoded, outside the range of those that were fitted."""
        return out_of_range(self.posterior.state, self.scaling.x(x), self.told)

    def judged(self, prediction: TablePrediction, x: _Numbers) -> Verdict:
        """The verdict on the rows of a table that were not learned. Args: x, encoded, of those that were predicted."""
        observed, state = prediction.observed, self.posterior.state
        assert observed is not None
        new = np.isfinite(observed) & prediction.distribution.predicted
        if prediction.known is not None:
            new &= ~prediction.known
        findings = [] if prediction.outside is None else [prediction.outside]
        fitted = 0 if prediction.known is None else int(prediction.known.sum())
        if fitted:
            findings.append(Event(EventKind.ROWS_FITTED, rows=fitted, of=len(observed)))
        if not new.any():
            return unjudged("no row with a value of the target is new to the model.", findings)
        rows = state.rows_learned
        learned = state.sample.y if rows is None else rows[1]  # type: ignore[attr-defined]
        seen = learned.argmax(-1) if learned.dim() > 1 else learned
        others = np.asarray(self.scaling.target.decode(seen.double().numpy(force=True)))
        answers = prediction.distribution.rows(new)
        return self.verdict_of(x[new[prediction.rows]], observed[new], answers, others).with_findings(findings)

    def verdict_of(
        self, x: _Numbers, observed: _Numbers, predicted: Answers, others: _Numbers | None, how: How = How.HELD_OUT
    ) -> Verdict:
        """The verdict on rows, encoded, with their answers. Args: others, targets that were learned; None of rows that
        were left out one by one."""
        state = self.posterior.state
        if not len(observed):
            return unjudged("no row was left out or held out.", findings_of(state, self.told))
        scored = predicted.scored(observed, others, state.prior.likelihood.underlying)
        return verdict_of_rows(state, self.scaling.x(x), scored, self.told, how)


class TableModel:
    """A Gaussian process of one column of a table given the others, in the units of the table: numbers or classes.

    Columns of numbers, percentages, booleans, dates (days since 1970-01-01), clock times (hours since midnight) and
    text or categories. A table is a pandas, polars or pyarrow frame (or another with `__arrow_c_stream__` or
    `to_arrow`), a dict of columns, or the path of a CSV, gzipped CSV or Parquet file. Columns are matched by name;
    those that do not vary are left out. Inside, numbers are standardised, and the target after its transform.
    `flashgp fit` does the same, and `flashgp predict` reads its files.

    A value: `fit` and `update` return a new model and change nothing.

    Args:
        kernel: None for the default covariance function (`GPRegressor`), "auto" for the best of five, an expression as
            on the command line ("Matern(nu=1.5) + Linear()", lengthscales in units of their columns), or a Kernel over
            standardised inputs, whose active_dims count the inputs in the order of the table and whose parameters are
            fitted from values that the data suggest.
        target_transform: "auto", "none", "log" or "yeo-johnson", as `GPRegressor`.
        missing: rows with missing values are an "error"; or "drop" to leave them out of a fit and predict NaN for them.
        starts: as `flashgp.fit`.
        time_limit: as `flashgp.fit`.
        solver: as `GP.condition`.
        memory: as `GP.condition`.
        device: "auto" for an accelerator when there is one, or a torch device.
        dtype: as `GP.condition`.
        tolerance: as `GP.condition`.
        seed: as `flashgp.fit`.
        deterministic: as `flashgp.fit`.
        approximation: None for exact inference; "full_scale", "sparse" and "fourier" (a stationary kernel, whose terms
            have one to three columns of numbers each) for ones that are linear in the rows; "auto" for exact inference
            where it keeps to time_limit and memory, else an approximation, as `flashgp.fit`. Tables that are read are
            fitted by inducing points or series, as `flashgp.fit` says.
        inducing: of an approximation, how many points or "auto", as `flashgp.fit`.
        neighbours: of an approximation, as `flashgp.fit`.
        likelihood: None: classes where the target is text, true or false, or holds two numbers in five rows or more,
            which an event says, else Gaussian; "auto": also "negative-binomial" of counts; "gaussian", "bernoulli",
            "categorical", "student-t", "poisson", "negative-binomial", "gamma", "beta"; or a Likelihood, in the units
            of the target.
        uncertainty: of the parameters, as `flashgp.fit`.

    Raises:
        DomainError: for settings that are none.

    Example:
        >>> table = {"size": [60.0, 80, 120, 95, 70], "city": ["Ulm", "Bonn", "Ulm", "Bonn", "Ulm"],
        ...          "price": [210.0, 330, 420, 380, 245]}
        >>> model = fgp.TableModel().fit(table, target="price")
        >>> prediction = model.predict({"city": ["Bonn"], "size": [100.0]})
        >>> bool(330 < prediction.mean[0] < 450)
        True
        >>> model.save("model.safetensors")
        >>> again = fgp.load("model.safetensors")
        >>> bool(again.predict({"city": ["Bonn"], "size": [100.0]}).mean == prediction.mean)
        True
    """

    def __init__(
        self,
        kernel: Kernel | str | None = None,
        *,
        target_transform: Literal["auto", "none", "log", "yeo-johnson"] = "auto",
        missing: Missing = "error",
        starts: int | None = None,
        time_limit: float | None = None,
        solver: str | None = None,
        memory: str | int | None = None,
        device: str | torch.device | None = "auto",
        dtype: str | torch.dtype | None = None,
        tolerance: float = 1e-3,
        seed: int = 0,
        deterministic: bool = False,
        approximation: str | None = None,
        inducing: int | str = "auto",
        neighbours: int | str = "auto",
        likelihood: Likelihood | str | None = None,
        uncertainty: Literal["laplace", "nuts", "auto"] | None = None,
    ) -> None:
        self.settings = TableSettings(
            kernel, target_transform, missing, starts, time_limit, solver, memory, device, dtype, tolerance, seed,
            deterministic, approximation, inducing, neighbours, likelihood, uncertainty=uncertainty,
        )  # fmt: skip
        self._fitted: _Learned | None = None

    # -- learning -----------------------------------------------------------------------------------------------------
    def fit(
        self,
        table: Any,
        target: str,
        *,
        drop: Sequence[str] = (),
        dates: Order | None = None,
        categorical: Sequence[str] = (),
        checkpoint: str | Path | None = None,
        progress: Callable[["Progress"], None] | Literal[False] | None = None,
        group: Any = None,
    ) -> "TableModel":
        """A model fitted to all rows of a table.

        Parquet files given by a pattern ("part-*.parquet") or as a list of paths are read in passes, a part at a time,
        and not held: inducing points stand for their rows, as `flashgp.fit` says of rows that are read.

        Args:
            table: a frame, a dict of columns, or a path; or a pattern or list of paths of Parquet files.
            target: the column to predict; of a path also its position, from 1.
            drop: columns not to use, likewise.
            dates: "dmy" or "mdy", the order of day and month in dates such as 05/01/2000; None where columns tell it by
                a day above 12. Years of two digits are then 1969 to 2068.
            categorical: columns of which each value is a category, such as codes that are numbers.
            checkpoint: as `flashgp.fit`.
            progress: as `flashgp.fit`.
            group: as `flashgp.fit`, of files that every rank names alike: Parquet files by a pattern or a list are read
                in parts, one file is read whole by every rank, and rank 0 chooses what the data decide.

        Returns:
            A new model. What was decided of the columns is in its `notes`, and logged ("flashgp.table").

        Raises:
            DomainError: for a column that cannot be used, missing values under "error", or a target that is no number.
            ShapeError: for a table without rows, or two columns of one name.
            BackendUnavailableError: without pyarrow (flashgp[table]).
            MemoryBudgetError: as `flashgp.fit`.
            NotPositiveDefiniteError: as `flashgp.fit`.
        Cost: as `flashgp.fit`.
        """
        ranks, deadline = Group.of(group), Deadline.after(self.settings.time_limit)
        with ranks.together():
            prepared = self._prepared(table, target, (drop, dates, categorical), deadline, ranks)
            for note in prepared.notes:
                _LOGGER.info(note)
            with shown_progress(False if progress is None and ranks.rank else progress) as callback:
                return fit_prepared(prepared, deadline, checkpoint, callback)

    def _prepared(
        self,
        table: Any,
        target: str,
        columns: tuple[Sequence[str], Order | None, Sequence[str]],
        deadline: Deadline,
        ranks: Group,
    ) -> "PreparedTable":
        """The table made ready to fit. Args: columns, `drop`, `dates` and `categorical`."""
        from .preparation import prepare, prepare_rows

        parts = ParquetParts(table) if is_pattern(table) else None
        source = table_of(table) if parts is None else None
        names = source.names if source is not None else parts.names if parts is not None else ()
        drop, dates, categorical = columns
        drop, categorical = ((one,) if isinstance(one, str) else tuple(one) for one in (drop, categorical))
        for name in (target, *drop, *categorical):
            if not isinstance(name, str):
                raise DomainError(
                    f"`target`, `drop` and `categorical` must name columns, got {name!r}; choose from "
                    f"{', '.join(names[:20])}"
                )
        if parts is not None:
            return prepare_rows(self.settings, parts, (target, drop, categorical), dates, deadline, ranks)
        if ranks.size > 1 and not isinstance(table, str | os.PathLike):
            raise DomainError(
                f"`group` of {ranks.size} ranks is for files that all of them name alike, got {type(table).__name__}; "
                "pass a path, or a pattern or a list of Parquet files"
            )
        assert source is not None
        missing: Any = self.settings.missing
        encoding = Encoding.learn(source, target, drop, missing, dates, categorical, self.settings.classes)
        data = encoding.apply(source, need_target=True)
        return prepare(self.settings, source, encoding, data, deadline=deadline, group=ranks)

    def update(
        self,
        table: Any,
        *,
        window: int | None = None,
        refine: int | None = None,
        missing: Missing | None = None,
        progress: Callable[[str, float], None] | None = None,
    ) -> "TableModel":
        """A model that also knows the rows of another table; units and hyperparameters stay as they are.

        Args:
            table: as `fit`, with the target.
            window: keep the latest so many rows; None for all.
            refine: then improve the hyperparameters by so many steps; None for none.
            missing: "error" or "drop"; None as the model was made.
            progress: called with what is done next and the fraction done.

        Returns:
            A new model, whose `learned` has the predictions of these rows, each made before it was learned.

        Raises:
            DomainError: as `predict`, and for a value of the target that its transform does not take.
            ShapeError: as `predict`.
        Cost: O(n^2) for each row, as `Posterior.append`; with draws of hyperparameters n^3 for each draw.

        Example:
            >>> x = np.linspace(0.0, 6.0, 40)
            >>> model = fgp.TableModel().fit({"x": x, "wave": np.sin(x)}, target="wave")
            >>> more = model.update({"x": [6.2, 6.4], "wave": [-0.08, 0.12]})
            >>> more.posterior.count, more.learned.scores.rows
            (42, 2)
        """
        from flashgp.inference.stream import Stream

        fitted = self._require("update")
        source = table_of(table, header=fitted.encoding.header)
        data = fitted.encoding.apply(source, need_target=True, missing=missing)
        assert data.y is not None
        before, scaling = fitted.posterior, self.scaling
        scaling.target.check(data.y, data.rows + source.first_row)
        dtype = before.state.like[0].dtype
        x, y = (torch.from_numpy(one).to(dtype) for one in (scaling.x(data.x), scaling.target.encode(data.y)))
        likelihood = before.state.prior.likelihood
        y = likelihood.underlying.encoded(y, "y")
        if (reason := before.can("append")) is not None:
            raise DomainError(f"`update` learns rows one after the other, but {reason}")
        stream = Stream(before, window=window)
        if refine is not None:
            check_count(refine, "refine", 1)
            if (reason := before.can("refine")) is not None:
                raise DomainError(reason)  # before anything is learned
        moments: list[tuple[torch.Tensor, torch.Tensor]] = []
        mixed = before.state.draws > 1
        with torch.no_grad():
            drawn = stream.posterior.predict(x).distribution if mixed else None
        block = len(x) if mixed else _BLOCK_ROWS  # draws are conditioned anew, once
        for start in range(0, len(x), block):
            if progress is not None:
                progress(f"learning row {start:,} of {len(x):,}", start / len(x))
            step = stream.step(x[start : start + block], y[start : start + block])
            moments.append(step.f)
        posterior = stream.posterior if refine is None else stream.posterior.refine(refine)
        mean, variance = (
            torch.cat(each).double().movedim(-1, 0) for each in zip(*moments, strict=True)
        )  # classes before rows
        found = drawn or likelihood.predictive(mean, variance)
        last = self._prediction(source, data, (found, None), data.y, posterior.report)
        last = replace(last, notes=(*last.notes, *PredictedRows.of(last).notes(self.target)))
        if last.known is not None and last.known.any():
            repeated = Event(EventKind.ROWS_KNOWN, rows=int(last.known.sum()), of=len(x), stage=UPDATE)
            posterior.report.events.append(repeated)
        return self._with(replace(fitted, posterior=posterior, last=last))

    # -- answers ------------------------------------------------------------------------------------------------------
    def predict(
        self,
        table: Any,
        *,
        unseen: Unseen = "error",
        missing: Missing | None = None,
        variance: str = "auto",
        memory: str | int | None = None,
        time_limit: float | None = None,
    ) -> TablePrediction:
        """New observations of the target at every row of a table, in its order.

        Args:
            table: as `fit`; columns in any order, others than the model's are ignored.
            unseen: a category that the fit did not see is an "error", or "new": unlike all known ones.
            missing: rows with missing inputs are an "error", or "drop" to predict NaN; None as the model was made.
            variance: as `Posterior.predict`.
            memory: as `Posterior.predict`.
            time_limit: seconds that deviations may take, as `Posterior.predict`.

        Returns:
            Mean, deviation, intervals, quantiles and log densities in units of the target, and figures of merit where
            the table has the target.

        Raises:
            DomainError: naming the column that is missing, of another kind, or holds an unseen category or a missing or
                infinite value, with its row.
        Cost: as `Posterior.predict`.
        """
        self._require("predict")
        source, how = table_of(table, header=self.encoding.header), (unseen, missing)
        found = self._predicted(source, how, variance=variance, memory=memory, time_limit=time_limit)
        return replace(found, notes=(*found.notes, *PredictedRows.of(found).notes(self.target)))

    def predict_parts(
        self,
        paths: Any,
        *,
        unseen: Unseen = "error",
        missing: Missing | None = None,
        variance: str = "auto",
        memory: str | int | None = None,
        time_limit: float | None = None,
        rows: int = BATCH_ROWS,
        keep: Sequence[str] = (),
    ) -> Iterator[TablePrediction]:
        """Predictions of Parquet files, a part at a time: memory does not grow with the rows.

        Args:
            paths: a file, a pattern such as "part-*.parquet", or a list of either, of the same columns; their rows
                follow each other.
            unseen: as `predict`.
            missing: as `predict`.
            variance: as `predict`; where parts are several, "auto" takes samples or not for all of them alike.
            memory: as `predict`, of a part.
            time_limit: as `predict`, of a part.
            rows: of a part, at most.
            keep: columns whose cells the predictions keep as they are, by name or position from 1.

        Returns:
            An iterator of predictions, each of the next rows; their notes leave out what `PredictedRows` adds up.

        Raises:
            DomainError: as `predict`, naming file and row; for files that cannot be read.
        Cost: as `predict`, for each part.

        Example:
            >>> import pyarrow, pyarrow.parquet
            >>> x = np.linspace(0.0, 6.0, 40)
            >>> pyarrow.parquet.write_table(pyarrow.table({"x": x}), "new.parquet")
            >>> model = fgp.TableModel().fit({"x": x, "wave": np.sin(x)}, target="wave")
            >>> [len(part) for part in model.predict_parts("new.parquet", rows=25)]
            [25, 15]
        """
        self._require("predict_parts")
        parts = ParquetParts(paths, check_count(rows, "rows", 1), keep)
        if (parts.count > rows or len(parts.paths) > 1) and variance == "auto":
            variance = self._variance_of(parts.count)
        for part in parts.parts():
            yield self._predicted(part, (unseen, missing), variance=variance, memory=memory, time_limit=time_limit)

    def _variance_of(self, count: int) -> str:
        """Method of the variances of so many rows, the same for all parts."""
        parts = self.posterior.state.parts
        if len(parts) != 1 or not parts[0].exact or parts[0].factor is not None or not parts[0].count:
            return "exact"
        return "sampled" if price_of(parts[0], count, "auto", deterministic=False).way == "samples" else "exact"

    def _predicted(self, source: Table, how: tuple[Unseen, Missing | None], **asked: Any) -> TablePrediction:
        """Predictions of a table.

        Args: how unseen categories and missing values are taken; asked, as `Posterior.predict`.
        """
        data = self.encoding.apply(source, need_target=False, unseen=how[0], missing=how[1])
        *answers, report = self.predict_encoded(data.x, **asked)
        observed, note = self.encoding.observed(source)
        found = self._prediction(source, data, answers, observed, report)
        return replace(found, notes=(*found.notes, *note))

    def predict_encoded(
        self, x: _Numbers, variance: str = "auto", memory: str | int | None = None, time_limit: float | None = None
    ) -> tuple[PredictiveDistribution, torch.Tensor | None, Report]:
        """Standardised predictions of encoded rows.

        Args:
            x: encoded rows, (n, d).
            variance: as `Posterior.predict`.
            memory: as `Posterior.predict`.
            time_limit: as `predict`.

        Returns:
            Distribution of new observations, (n,), which `scaling.target` takes to its units; the standard error of
                the variance of f where it was sampled, else None; the report.
        """
        fitted = self._require("predict_encoded")
        with torch.no_grad():
            prediction = fitted.predict(x, variance=variance, memory=memory, time_limit=time_limit)
            return prediction.distribution, prediction.variance_standard_error, prediction.report

    def importance(
        self,
        groups: Mapping[str, str | Sequence[str]] | None = None,
        *,
        rows: int | None = None,
        permutations: int | None = None,
        seed: int = 0,
    ) -> Importance:
        """Importance of the inputs: the loss of accuracy of held-out rows where one is permuted, eq. (M-151).

        Args:
            groups: names with the inputs that are permuted together; every input by itself by default.
            rows: as `Posterior.importance`.
            permutations: as `Posterior.importance`.
            seed: as `Posterior.importance`.

        Returns:
            Importance of every input, in the order of the table; `rmse` in units of the target.

        Raises:
            DomainError: as `Posterior.importance`, and for inputs that the model has not.
        Cost: as `Posterior.importance`.

        Example:
            >>> x = np.linspace(0.0, 6.0, 60)
            >>> table = {"hour": x, "flag": np.tile([0.0, 1.0], 30), "wave": 10.0 * np.sin(x)}
            >>> found = fgp.TableModel().fit(table, target="wave").importance()
            >>> [found.names[j] for j in found.order]
            ['hour', 'flag']
        """
        places = {name: j for j, name in enumerate(self.inputs)}
        wanted = groups or {name: name for name in self.inputs}
        columns: dict[str, list[int]] = {}
        for name, members in wanted.items():
            each = [members] if isinstance(members, str) else list(members)
            missing = next((one for one in each if one not in places), None)
            if missing is not None:
                raise DomainError(
                    f"`groups[{name!r}]` must name inputs of the model, got {missing!r}; choose from "
                    f"{', '.join(self.inputs[:20])}"
                )
            columns[name] = [places[one] for one in each]
        settings = ImportanceSettings(rows=rows, permutations=permutations, seed=seed)
        return self._require("importance").importance(columns, settings)

    @property
    def verdict(self) -> Verdict:
        """How good the predictions are, by leave-one-out, in units of the table, and what to check. Never raises."""
        return self._require("verdict").verdict

    def verdict_of(
        self, x: _Numbers, observed: _Numbers, predicted: Answers, others: _Numbers | None, how: How = How.HELD_OUT
    ) -> Verdict:
        """The verdict on encoded rows whose answers are known. Args: observed, targets in their units; others, targets
        that were learned, None of rows that were left out one by one; how, which of both."""
        return self._require("verdict_of").verdict_of(x, observed, predicted, others, how)

    def judge(self, table: Any, *, unseen: Unseen = "error", missing: Missing | None = None) -> Verdict:
        """The verdict on rows that were held out: those of a table with the target that the model has not learned.

        Args:
            table: as `fit`.
            unseen: as `predict`.
            missing: as `predict`.

        Returns:
            Verdict; of rows that were all fitted, one that says so.

        Raises:
            ShapeError: for a table without the target.
            DomainError: as `predict`.

        Example:
            >>> x = np.linspace(0.0, 6.0, 60)
            >>> model = fgp.TableModel().fit({"hour": x, "wave": 10.0 * np.sin(x)}, target="wave")
            >>> model.judge({"hour": x + 0.03, "wave": 10.0 * np.sin(x + 0.03)}).word.value
            'excellent'
        """
        fitted = self._require("judge")
        source = table_of(table)
        prediction = self._predicted(source, (unseen, missing))
        if prediction.observed is None:
            raise ShapeError(f"`table` must have the target {self.target!r} to be judged, got none; add that column")
        data = self.encoding.apply(source, need_target=False, unseen=unseen, missing=missing)
        return fitted.judged(prediction, data.x)

    @property
    def posterior(self) -> Posterior:
        """The posterior of the standardised model: x and y have mean 0 and standard deviation 1, categories are codes.

        Its predictions are in these units, of the transformed target where there is a transform; `scaling` takes
        numbers there and back. `predict` answers in units of the table.
        """
        return self._require("posterior").posterior

    @property
    def encoding(self) -> Encoding:
        """Encoding of the columns as numbers."""
        return self._require("encoding").encoding

    @property
    def scaling(self) -> Scaling:
        """Scaling to and from standard units, with the transform of the target."""
        return self._require("scaling").scaling

    @property
    def target(self) -> str:
        """The column that is predicted."""
        return self.encoding.target

    @property
    def inputs(self) -> tuple[str, ...]:
        """The columns that it is predicted from, in the order of `posterior.x`."""
        return tuple(column.name for column in self.encoding.inputs)

    @property
    def notes(self) -> tuple[str, ...]:
        """Decisions on the columns made in the fit; empty for a model from a file."""
        return self.encoding.notes

    @property
    def training(self) -> "Fit | None":
        """The fit, in standard units: history, report, whether it was interrupted; None for a model from a file."""
        return self._require("training").fit

    @property
    def report(self) -> Report:
        """Report of the posterior: its computation and accuracy."""
        return self.posterior.report

    @property
    def learned(self) -> TablePrediction | None:
        """Predictions of the rows of the last `update`, each made before it was learned; None before one."""
        return self._require("learned").last

    # -- files --------------------------------------------------------------------------------------------------------
    def save(self, path: str | os.PathLike[str], *, metadata: Any = MappingProxyType({})) -> None:
        """Write the model to one file, whole or not at all; `flashgp.load` and `flashgp predict` read it.

        Args:
            path: the file; an existing one is replaced.
            metadata: JSON values of the caller's own, for `flashgp.files.load_metadata`.

        Raises:
            DomainError: as `flashgp.save`.
        Cost: O(n^2) bytes.
        """
        fitted = self._require("save")
        kernel = self.settings.kernel
        data = {"encoding": fitted.encoding.to_json(), "scaling": fitted.scaling.to_json(),
                "kernel": kernel if isinstance(kernel, str) else ""}  # fmt: skip
        save(fitted.posterior, path, metadata={**metadata, TABLE_KEY: data})

    @staticmethod
    def load(path: str | os.PathLike[str], modules: Any = MappingProxyType({}), *, device: Any = None) -> "TableModel":
        """Read what `save` or `flashgp fit` wrote.

        Args:
            path: the file.
            modules: as `flashgp.load`.
            device: as `flashgp.load`.

        Raises:
            ModelFileError: for another file, or a model that does not know a table's columns.
        Cost: one pass over the file.
        """
        name = file_path(path)
        data: Any = load_metadata(path).get(TABLE_KEY)
        if not isinstance(data, dict) or sorted(data) != sorted(_FIELDS) or not isinstance(data["kernel"], str):
            raise ModelFileError(
                f"the model must be one that `flashgp fit` or TableModel.save wrote, got {name!r}, which does not know "
                "a table's columns; use flashgp.load in Python, or fit again with --out"
            )
        encoding, scaling = Encoding.from_json(data["encoding"]), Scaling.from_json(data["scaling"])
        fitted = restored(path, modules, device, (scaling,), len(encoding.inputs), UNITS)
        model = TableModel(missing=encoding.missing)
        model.settings = replace(model.settings, kernel=data["kernel"] or None)
        return model._with(_Learned(fitted.posterior, fitted.scalings, encoding=encoding))

    def with_posterior(self, posterior: Posterior) -> "TableModel":
        """The model with another standardised posterior, such as one conditioned by another solver."""
        return self._with(replace(self._require("with_posterior"), posterior=posterior.in_units(UNITS)))

    # -- parts --------------------------------------------------------------------------------------------------------
    def __repr__(self) -> str:
        if self._fitted is None:
            return f"TableModel(kernel={self.settings.kernel!r}), not fitted"
        what, kinds = self.scaling.target.described[0], [f"{c.name} ({c.kind})" for c in self.encoding.inputs[:12]]
        more = len(self.inputs) - len(kinds)
        how = what.removeprefix("target")
        post, training = self.posterior, self.training
        pairs = [] if training is None else [f"{name:<24} {text}" for name, text in training.summary()]
        numbers = number_rows(post.state.prior, self.inputs, None if training is None else training.priors)
        return "\n".join([
            self._judged(),
            f"TableModel of {self.target!r}{how} from {', '.join(kinds)}{f' and {more:,} more' * bool(more)}; "
            f"{post.count:,} rows",
            f"Posterior of {post.units}", *pairs, post.state.prior.title,
            table_text(numbers, priors=training is not None), str(post.report),
        ])  # fmt: skip

    def _repr_html_(self) -> str:
        title = "".join(f"<p>{escape(line)}</p>" for line in repr(self).splitlines()[:2])
        if self._fitted is None:
            return title
        if self.training is None:
            return title + self.posterior._repr_html_()
        return f"{title}<p>Posterior of {escape(self.posterior.units)}</p>{self.training.tables_html()}"

    def _judged(self) -> str:
        """The verdict, where it takes a moment or has been asked for."""
        fitted = self._require("verdict")
        if "verdict" in vars(fitted) or judged_unasked(self.posterior.state):
            return str(self.verdict)
        return str(unasked(self.posterior.state))

    def _require(self, what: str) -> _Learned:
        if self._fitted is None:
            raise DomainError(
                f"`{what}` needs a fitted TableModel, got one without rows; use what fit(table, target=...) returns"
            )
        return self._fitted

    def _with(self, fitted: _Learned) -> "TableModel":
        model = copy.copy(self)
        model._fitted = fitted
        return model

    def _prediction(
        self, table: Table, data: EncodedTable, answers: Sequence[Any], observed: _Numbers | None, report: Report
    ) -> TablePrediction:
        """Standardised predictions of the encoded rows, in units of the target and in the order of the table.

        Args: answers, of observations, and the standard error of the variance or None.
        """
        target, placed = self.scaling.target, Placed(data.rows, data.total)
        if observed is not None and len(observed) != placed.count:
            observed = placed(observed)
        found, error = answers
        errors = None if error is None else target.std_error(found, error, placed)
        notes, known = tuple(dict.fromkeys((*table.notes, *data.notes))), None
        if observed is not None:
            known = self._known(data, observed)
            if known is None:
                notes = (*notes, "whether rows that are scored were fitted is not known: the model does not hold them.")
        return TablePrediction(
            self.target, target.answers(found, placed), data.rows, errors, observed, target.unit, notes, report, known,
            table.kept, self._require("outside").outside(data.x),
        )  # fmt: skip

    def _known(self, data: EncodedTable, observed: _Numbers) -> npt.NDArray[np.bool_] | None:
        """Mask of the rows, with `observed` targets, that the model has learned; None if that is unknown."""
        rows = self._require("known").known
        if rows is None:
            return None
        scaling, known = self.scaling, np.zeros(data.total, bool)
        known[data.rows] = rows.hold(scaling.x(data.x), scaling.target.encode(observed[data.rows]))
        return known


def fit_prepared(
    prepared: "PreparedTable",
    deadline: Deadline = NO_DEADLINE,
    checkpoint: str | Path | None = None,
    progress: Callable[["Progress"], None] | None = None,
) -> TableModel:
    """A model fitted to a table that has been prepared, within a deadline. Raises: as `flashgp.fit`."""
    fitted = prepared.fit(UNITS, deadline, checkpoint, progress)
    assert fitted.fit is not None
    fitted.fit.columns = tuple(prepared.names)
    model, encoding = TableModel(), replace(prepared.encoding, notes=prepared.notes)
    model.settings = prepared.settings
    return model._with(_Learned(fitted.posterior, fitted.scalings, fitted.fit, encoding=encoding))
