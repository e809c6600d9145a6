"""`flashgp update`: rows of a table are predicted by a model, then learned by it, hyperparameters as they are.

The new model file replaces the old one once it is complete: whatever ends the command before that leaves the old one.
"""

import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from flashgp.inference.stream import Stream
from flashgp.table import read_table

from .console import Console
from .model import TableModel
from .options import UpdateOptions
from .paths import require_distinct, require_writable
from .scores import Scores

__all__ = ["run_update"]

BLOCK_ROWS = 64  # predicted, then learned, together: the scores hardly change, the work is matrix products


def run_update(options: UpdateOptions, console: Console) -> dict[str, Any]:
    """Learn and write. Returns: the result as JSON values. Raises: FlashGPError, OSError."""
    began = time.perf_counter()
    out = options.model if options.out is None else options.out
    require_distinct({"MODEL": options.model, "ROWS": options.rows})
    if options.out is not None:
        require_distinct({"ROWS": options.rows, "--out": out})
    require_writable(out, "--out" if options.out is not None else "MODEL")
    model = TableModel.load(options.model)
    before = model.posterior
    encoding = model.encoding
    table = read_table(options.rows, header=encoding.header, delimiter=options.delimiter, decimal=options.decimal)
    data = encoding.apply(table, need_target=True, missing=options.missing)
    for text in dict.fromkeys((*table.notes, *data.notes)):
        console.note(text)
    assert data.y is not None
    model.scaling.transform.check(data.y, data.rows + 1)
    x = torch.from_numpy(np.ascontiguousarray(model.scaling.x(data.x))).to(before.x.dtype)
    y = torch.from_numpy(np.ascontiguousarray(model.scaling.y(data.y))).to(before.y.dtype)
    stream = Stream(before, window=options.window)
    means, stds = [], []
    with console.stages() as stage:
        for start in range(0, len(x), BLOCK_ROWS):
            if stage is not None:
                stage(f"learning row {start:,} of {len(x):,}", start / len(x))
            step = stream.step(x[start : start + BLOCK_ROWS], y[start : start + BLOCK_ROWS])
            means.append(step.mean.double().numpy())
            stds.append(step.variance.double().sqrt().numpy())
    scores = None
    if means:
        before_learned = model.scaling.predictive(np.concatenate(means), np.concatenate(stds))
        scores = Scores.of(data.y, before_learned, model.scaling)
    posterior = stream.posterior
    if options.refine is not None:
        posterior = posterior.refine(options.refine)
    replace(model, posterior=posterior).save(out)
    console.say(
        f"learned {len(x):,} rows of {options.rows}: the model had {before.count:,} rows and has {posterior.count:,}"
    )
    if scores is not None:
        console.pairs("predicted before they were learned", scores.lines(encoding.target))
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
        "rows_learned": len(x),
        "rows_before": before.count,
        "rows_now": posterior.count,
        "window": options.window,
        "refine": options.refine,
        "scores": None if scores is None else scores.to_json(),
        "relative_residual": residual,
        "events": [event.to_json() for event in posterior.report.events],
        "seconds": time.perf_counter() - began,
    }
