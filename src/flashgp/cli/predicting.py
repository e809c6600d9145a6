"""`flashgp predict`: a model and a table to a file of predictions, one row for each row of the table, in its order.

Parquet files are read, predicted and appended to the file a part at a time: memory does not grow with the rows. Text is
one table, which is held: what its columns are is known after its last row. The file is there once all of it is.

`flashgp update`: rows of a table are predicted, then learned, hyperparameters as they are. The new model file replaces
the old one once it is complete: whatever ends the command before that leaves the old one.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flashgp.cli.console import Console
from flashgp.cli.options import PredictArguments, UpdateArguments, require_distinct, require_writable
from flashgp.data.files import found_files, is_parquet, is_pattern
from flashgp.foundations.errors import DomainError, ModelFileError, ShapeError
from flashgp.foundations.events import Event
from flashgp.foundations.normal import half_width
from flashgp.inference.judgement.residuals import drifting
from flashgp.scores import NumberAnswers, TargetScores
from flashgp.table import STANDARD_OUTPUT, prediction_file, read_table, require_format
from flashgp.table_model import TableModel, TablePrediction
from flashgp.table_model.prediction import PredictedRows

SHOWN_NOTES = 10  # of parts that differ


def run_predict(options: PredictArguments, console: Console) -> dict[str, Any]:
    """Predict and write. Returns: the result as JSON values. Raises: FlashGPError, OSError."""
    began = time.perf_counter()
    files = _files(options)
    if options.interval is not None:
        half_width(options.interval, "--interval")  # refuses what is no probability
    for path in files or [options.table]:
        require_distinct({"MODEL": options.model, "TABLE": path, "--out": options.out})
    require_format(options.out, "--out")
    if options.out != STANDARD_OUTPUT:
        require_writable(options.out, "--out")
    elif console.json:
        raise DomainError("`--out` - and `--json` both write to standard output; give --out a file")
    model = read_model(options.model, "predict MODEL TABLE")
    so_far = _SoFar(model.target)
    console.aside = options.out == STANDARD_OUTPUT
    with prediction_file(options.out) as write, console.stages() as stage:
        for prediction in _predictions(options, model, files):
            so_far.add(prediction)
            columns = _beside(prediction.kept, prediction.columns(std=options.std, interval=options.interval))
            so_far.columns = [*columns]
            write(columns)
            if stage is not None and files:
                stage(f"{so_far.counts.rows:,} rows predicted", 0.5)
        if not so_far.columns:
            raise ShapeError(f"{options.table!r} must have at least one row, got none; check that it is what you meant")
    for text in so_far.all_notes:
        console.note(text)
    scores, rows, events = so_far.scores, so_far.counts.predicted, so_far.events
    console.say(f"predicted {rows:,} rows of {options.table} from {model.posterior.count:,} fitted rows")
    known = so_far.known_scores
    if scores is not None:
        which = "" if known is None else " that were not fitted"
        console.say(f"against {model.target}, {scores.rows:,} rows{which}: {scores.line(model.target, None)}")
    if known is not None:
        console.say(
            f"against {model.target}, {known.rows:,} rows that were fitted, new rows are predicted less well: "
            f"{known.line(model.target, None)}"
        )
    if so_far.sampled:
        console.pairs("deviations are estimates", [("event", str(event)) for event in events])
    if options.out != STANDARD_OUTPUT:
        console.say(f"wrote {options.out}: {', '.join(so_far.columns)}")
    return {
        "command": "predict",
        "model": options.model,
        "table": options.table,
        "out": options.out,
        "columns": so_far.columns,
        "interval": options.interval,
        "rows": so_far.counts.rows,
        "rows_predicted": rows,
        "variance": "sampled" if so_far.sampled else "exact",
        "largest_std_error": so_far.largest_error,
        "events": [event.to_json() for event in events],
        "scores": None if scores is None else scores.to_json(),
        "rows_fitted": so_far.known,
        "fitted_scores": None if known is None else known.to_json(),
        "seconds": time.perf_counter() - began,
    }


def _files(options: PredictArguments) -> list[str]:
    """The Parquet files that are meant, none for a table of text. Raises: DomainError."""
    if not is_pattern(options.table):
        return [options.table] if is_parquet(options.table) else []
    options.refuse_beside_pattern(options.table)
    return found_files(options.table)


def _predictions(options: PredictArguments, model: TableModel, files: list[str]) -> Iterator[TablePrediction]:
    """Predictions of one part after the other. Raises: FlashGPError."""
    asked: Any = {
        "unseen": options.unseen, "missing": options.missing, "variance": options.variance, "memory": options.memory,
        "time_limit": options.time_limit,
    }  # fmt: skip
    if files:
        yield from model.predict_parts(options.table, **asked, keep=options.keep or ())
        return
    header = model.encoding.header
    table = read_table(options.table, header=header, keep=options.keep or (), **options.text)
    yield model.predict(table, **asked)


def _beside(kept: Mapping[str, Any], columns: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of the table, then those of the predictions. Raises: DomainError for two of one name."""
    both = next((name for name in kept if name in columns), None)
    if both is not None:
        raise DomainError(
            f"`--keep` must name columns beside {', '.join(columns)}, got {both!r}; rename it in the table"
        )
    return {**kept, **columns}


@dataclass
class _SoFar:
    """Totals of the parts so far."""

    target: str
    counts: PredictedRows = field(default_factory=PredictedRows)
    scores: TargetScores | None = None
    known_scores: TargetScores | None = None
    known: int | None = None
    columns: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)
    sampled: bool = False
    largest_error: float | None = None

    def add(self, prediction: TablePrediction) -> None:
        """The next part."""
        self.counts = self.counts.joined(PredictedRows.of(prediction))
        self.scores = _joined(self.scores, prediction.scores)
        self.known_scores = _joined(self.known_scores, prediction.known_scores)
        if prediction.known is not None:
            self.known = (self.known or 0) + int(prediction.known.sum())
        seen = {event.kind for event in self.events}
        self.events += [event for event in prediction.report.events if event.kind not in seen]
        self.notes |= dict.fromkeys(prediction.notes)
        if prediction.std_error is not None:
            self.sampled = True
            if len(prediction.rows):
                share = prediction.std_error / np.maximum(prediction.std, np.finfo(np.float64).tiny)
                self.largest_error = max(self.largest_error or 0.0, float(share[prediction.rows].max()))

    @property
    def all_notes(self) -> list[str]:
        """Notes of all parts, those that differ from part to part cut short, and what the counts say."""
        found = [*self.notes]
        more = len(found) - SHOWN_NOTES
        found = [*found[:SHOWN_NOTES], *([f"and {more:,} more like these."] if more > 0 else [])]
        return [*dict.fromkeys((*found, *self.counts.notes(self.target)))]


def _joined(one: TargetScores | None, other: TargetScores | None) -> TargetScores | None:
    """Scores of the rows of both."""
    return other if one is None else one if other is None else one.joined(other)


def read_model(path: str, usage: str) -> TableModel:
    """The model of a table in a file.

    Args: usage: the command and its arguments in order, for who gave another kind of file, such as the table.
    Raises: ModelFileError as `TableModel.load`.
    """
    try:
        return TableModel.load(path)
    except ModelFileError as error:
        if not error.foreign:
            raise
        raise ModelFileError(f"{error}; the order is: flashgp {usage}", foreign=True) from None


def run_update(options: UpdateArguments, console: Console) -> dict[str, Any]:
    """Learn and write. Returns: the result as JSON values. Raises: FlashGPError, OSError."""
    began = time.perf_counter()
    out = options.model if options.out is None else options.out
    require_distinct({"MODEL": options.model, "ROWS": options.rows})
    if options.out is not None:
        require_distinct({"ROWS": options.rows, "--out": out})
    require_writable(out, "--out" if options.out is not None else "MODEL")
    model = read_model(options.model, "update MODEL ROWS")
    before, header = model.posterior, model.encoding.header
    table = read_table(options.rows, header=header, **options.text)
    with console.stages() as stage:
        model = model.update(
            table, window=options.window, refine=options.refine, missing=options.missing, progress=stage
        )
    learned, posterior = model.learned, model.posterior
    assert learned is not None
    for text in learned.notes:
        console.note(text)
    model.save(out)
    scores = learned.scores
    console.say(
        f"learned {len(learned.rows):,} rows of {options.rows}: the model had {before.count:,} rows and has "
        f"{posterior.count:,}"
    )
    scored = ("predicted before they were learned", "known already, so that these figures say nothing of new rows")
    for words, found in zip(scored, (scores, learned.known_scores), strict=True):
        if found is not None:
            console.say(f"{words}, {found.rows:,} rows: {found.line(model.target, None)}")
    drift = _drift(learned)
    if drift is not None:
        console.warn(str(drift))
    residual = posterior.report.relative_residual
    console.pairs("posterior", [("residual", "-" if residual is None else f"{residual:.1e}"),
                                *(("event", str(event)) for event in posterior.report.events)])  # fmt: skip
    console.say(f"wrote {out}")
    return {
        "command": "update",
        "model": options.model,
        "table": options.rows,
        "out": out,
        "rows": table.rows,
        "rows_learned": len(learned.rows),
        "rows_before": before.count,
        "rows_now": posterior.count,
        "window": options.window,
        "refine": options.refine,
        "rows_known": None if learned.known is None else int(learned.known.sum()),
        "scores": None if scores is None else scores.to_json(),
        "drift": None if drift is None else drift.to_json(),
        "relative_residual": residual,
        "events": [event.to_json() for event in posterior.report.events],
        "seconds": time.perf_counter() - began,
    }


def _drift(learned: TablePrediction) -> Event | None:
    """Finding of rows that were predicted worse than they should be before they were learned."""
    answers, observed = learned.distribution, learned.observed
    if not isinstance(answers, NumberAnswers) or observed is None:
        return None
    new = np.isfinite(observed) & answers.predicted & ~(False if learned.known is None else learned.known)
    return drifting(answers.rows(new).inside(observed[new]).tolist())
