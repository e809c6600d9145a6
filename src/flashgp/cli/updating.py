"""`flashgp update`: rows of a table are predicted by a model, then learned by it, hyperparameters as they are.

The new model file replaces the old one once it is complete: whatever ends the command before that leaves the old one.
"""

import time
from typing import Any

from flashgp.table import read_table

from .console import Console
from .models import read_model
from .options import UpdateOptions
from .paths import require_distinct, require_writable


def run_update(options: UpdateOptions, console: Console) -> dict[str, Any]:
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
            console.pairs(f"{words}, {found.rows:,} rows", found.lines(model.target))
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
        "relative_residual": residual,
        "events": [event.to_json() for event in posterior.report.events],
        "seconds": time.perf_counter() - began,
    }
