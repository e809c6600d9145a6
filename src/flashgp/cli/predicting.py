"""`flashgp predict`: a model and a table to a file of predictions, one row for each row of the table, in its order."""

import time
from typing import Any

import numpy as np
import numpy.typing as npt

from flashgp.foundations.normal import half_width
from flashgp.table import Encoding, Table, read_table, require_format, write_predictions
from flashgp.target_transform import WarpedNormal

from .console import Console
from .model import RowPredictions, TableModel
from .options import PredictOptions
from .paths import require_distinct, require_writable
from .scores import Scores

__all__ = ["run_predict"]

_Numbers = npt.NDArray[np.float64]


def run_predict(options: PredictOptions, console: Console) -> dict[str, Any]:
    """Predict and write. Returns: the result as JSON values. Raises: FlashGPError, OSError."""
    began = time.perf_counter()
    if options.interval is not None:
        half_width(options.interval, "--interval")  # refuses what is no probability
    require_distinct({"MODEL": options.model, "TABLE": options.table, "--out": options.out})
    require_format(options.out, "--out")
    require_writable(options.out, "--out")
    model = TableModel.load(options.model)
    encoding = model.encoding
    table = read_table(options.table, header=encoding.header, delimiter=options.delimiter, decimal=options.decimal)
    data = encoding.apply(table, need_target=False, unseen=options.unseen, missing=options.missing)
    for text in dict.fromkeys((*table.notes, *data.notes)):
        console.note(text)
    if len(data.rows) < table.rows:
        console.note(
            f"{table.rows - len(data.rows):,} rows with missing inputs have nan in every column of the result."
        )
    predictions = model.predict(data.x, options.variance, options.memory)
    mean, std = predictions.mean, predictions.std
    columns: dict[str, npt.NDArray[Any]] = {"mean": _in_order(mean, data.rows, table.rows)}
    if options.std:
        columns["std"] = _in_order(std, data.rows, table.rows)
        if predictions.std_error is not None:
            columns["std_error"] = _in_order(predictions.std_error, data.rows, table.rows)
    if options.interval is not None:
        for name, bound in zip(("lower", "upper"), predictions.target.interval(options.interval), strict=True):
            columns[name] = _in_order(bound, data.rows, table.rows)
    write_predictions(options.out, columns)
    scores = _scores(model, table, data.rows, predictions.target, console)
    console.say(f"predicted {len(data.rows):,} rows of {options.table} from {model.posterior.count:,} fitted rows")
    if scores is not None:
        console.pairs(f"against {encoding.target}, {scores.rows:,} rows", scores.lines(encoding.target))
    if predictions.std_error is not None:
        console.pairs("deviations are estimates", [("event", str(event)) for event in predictions.events])
    console.say(f"wrote {options.out}: {', '.join(columns)}")
    return {
        "command": "predict",
        "model": options.model,
        "table": options.table,
        "out": options.out,
        "columns": list(columns),
        "interval": options.interval,
        "rows": table.rows,
        "rows_predicted": len(data.rows),
        "variance": "exact" if predictions.std_error is None else "sampled",
        "largest_std_error": _largest(predictions),
        "events": [event.to_json() for event in predictions.events],
        "scores": None if scores is None else scores.to_json(),
        "seconds": time.perf_counter() - began,
    }


def _largest(predictions: RowPredictions) -> float | None:
    """The largest standard error of a sampled deviation, as a share of it."""
    if predictions.std_error is None or not len(predictions.std):
        return None
    return float((predictions.std_error / np.maximum(predictions.std, np.finfo(np.float64).tiny)).max())


def _in_order(values: _Numbers, rows: npt.NDArray[np.int64], count: int) -> _Numbers:
    """Values at their rows of the table, NaN at the others."""
    whole = np.full(count, np.nan)
    whole[rows] = values
    return whole


def _scores(
    model: TableModel, table: Table, rows: npt.NDArray[np.int64], target: WarpedNormal, console: Console
) -> Scores | None:
    """Figures of merit when the table also holds the target; rows without a value are not scored."""
    position = _target_position(model.encoding, table)
    if position is None:
        return None
    goal = table.columns[position]
    if goal.kind not in ("number", "boolean"):
        console.note(f"the target {goal.name!r} is not numeric in this table, so the predictions are not scored.")
        return None
    y = goal.values[rows]
    known = np.isfinite(y)
    if not known.any():
        return None
    if not known.all():
        console.note(f"{int((~known).sum()):,} rows have no value of {goal.name!r} and are not scored.")
    return Scores.of(y[known], target.rows(known), model.scaling)


def _target_position(encoding: Encoding, table: Table) -> int | None:
    if encoding.header:
        return table.names.index(encoding.target) if encoding.target in table.names else None
    return encoding.target_position if len(table.columns) == encoding.table_columns else None
