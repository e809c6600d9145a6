"""`flashgp predict`: a model and a table to a file of predictions, one row for each row of the table, in its order."""

import time
from typing import Any

import numpy as np

from flashgp.data.files import is_pattern
from flashgp.foundations.errors import DomainError
from flashgp.foundations.normal import half_width
from flashgp.table import read_table, require_format, write_predictions
from flashgp.table_model import TablePrediction

from .console import Console
from .models import read_model
from .options import PredictOptions
from .paths import require_distinct, require_writable

__all__ = ["run_predict"]


def run_predict(options: PredictOptions, console: Console) -> dict[str, Any]:
    """Predict and write. Returns: the result as JSON values. Raises: FlashGPError, OSError."""
    began = time.perf_counter()
    if is_pattern(options.table):
        raise DomainError(
            f"`TABLE` must be one table, which is held while it is predicted, got the pattern {options.table!r}; "
            "predict its files one by one"
        )
    if options.interval is not None:
        half_width(options.interval, "--interval")  # refuses what is no probability
    require_distinct({"MODEL": options.model, "TABLE": options.table, "--out": options.out})
    require_format(options.out, "--out")
    require_writable(options.out, "--out")
    model = read_model(options.model, "predict MODEL TABLE")
    table = read_table(
        options.table, header=model.encoding.header, delimiter=options.delimiter, decimal=options.decimal
    )
    prediction = model.predict(
        table, unseen=options.unseen, missing=options.missing, variance=options.variance, memory=options.memory
    )
    for text in prediction.notes:
        console.note(text)
    columns = prediction.columns(std=options.std, interval=options.interval)
    write_predictions(options.out, columns)
    scores, rows, events = prediction.scores, len(prediction.rows), prediction.report.events
    console.say(f"predicted {rows:,} rows of {options.table} from {model.posterior.count:,} fitted rows")
    if scores is not None:
        console.pairs(f"against {model.target}, {scores.rows:,} rows", scores.lines(model.target))
    if prediction.std_error is not None:
        console.pairs("deviations are estimates", [("event", str(event)) for event in events])
    console.say(f"wrote {options.out}: {', '.join(columns)}")
    return {
        "command": "predict",
        "model": options.model,
        "table": options.table,
        "out": options.out,
        "columns": list(columns),
        "interval": options.interval,
        "rows": table.rows,
        "rows_predicted": rows,
        "variance": "exact" if prediction.std_error is None else "sampled",
        "largest_std_error": _largest(prediction),
        "events": [event.to_json() for event in events],
        "scores": None if scores is None else scores.to_json(),
        "seconds": time.perf_counter() - began,
    }


def _largest(prediction: TablePrediction) -> float | None:
    """The largest standard error of a sampled deviation, as a share of it."""
    if prediction.std_error is None or not len(prediction.rows):
        return None
    share = prediction.std_error / np.maximum(prediction.std, np.finfo(np.float64).tiny)
    return float(share[prediction.rows].max())
