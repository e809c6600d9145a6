"""What a transform of the target chosen by the evidence buys: GPRegressor with "auto" and with "none" on real tables.

Five fixed splits of six small tables, defaults otherwise; RMSE and NLL in standard deviations of the training targets.
A table is worse where the mean of the paired differences exceeds one of their standard errors. Where "auto" keeps the
target, its fit is the other one bit for bit, and is not repeated. Every finished piece is kept in
records/target_transform_pieces.json, so that the suite can be stopped and run again.
"""

import sys
import time
import warnings
from collections.abc import Sequence
from typing import Any

import numpy
import torch
from common import RECORDS, Split, arguments
from splits import Piece, complete, paired, pieces_of

import flashgp as fgp
from flashgp.bench import write_record

METHODS = ("auto", "none")
COLUMNS = [
    {"key": "work", "title": "set"},
    {"key": "rows", "title": "rows", "format": "integer"},
    {"key": "transformed", "title": "splits transformed", "format": "integer"},
    {"key": "none_rmse", "title": "RMSE, none", "format": "fixed4"},
    {"key": "auto_rmse", "title": "auto", "format": "fixed4"},
    {"key": "none_nll", "title": "NLL, none", "format": "fixed4"},
    {"key": "auto_nll", "title": "auto", "format": "fixed4"},
    {"key": "verdict", "title": "paired difference against one standard error"},
]


def scored(split: Split, transform: str) -> Piece:
    """Scores of a fit with that transform, which was chosen, and the seconds of the fit."""
    x, y, x_test, y_test = (part.numpy() for part in split)
    started = time.perf_counter()
    model = fgp.GPRegressor(target_transform=transform).fit(x, y)
    seconds = time.perf_counter() - started
    predicted = model.predict_distribution(x_test)
    return {
        "rmse": float(numpy.sqrt(numpy.mean(numpy.square(predicted.mean - y_test)))),
        "nll": -float(predicted.log_prob(y_test).mean()),
        "transform": str(model.scaling_.target.transform),
        "events": [event.to_json() for event in model.report_.events if event.kind.name.startswith("TARGET")],
        "seconds": seconds,
        "rows": len(x),
    }


def piece(method: str, split: Split, before: dict[str, Piece]) -> Piece:
    """Scores of a split; of "none" those of "auto" where it kept the target."""
    kept = method == "none" and before.get("auto", {}).get("transform") == "none"
    return before["auto"] if kept else scored(split, method)


def table(pieces: dict[str, Piece]) -> list[dict[str, Any]]:
    """One row for each complete set: means over splits, and the paired differences."""
    rows = []
    for name, values in complete(pieces, METHODS):
        row: dict[str, Any] = {"work": name, "rows": values["none"][0]["rows"]}
        row["transformed"] = sum(v["transform"] != "none" for v in values["auto"])
        verdicts = []
        for score in ("rmse", "nll"):
            row |= {f"{m}_{score}": float(numpy.mean([v[score] for v in values[m]])) for m in METHODS}
            mean, standard_error = paired(values["auto"], values["none"], score)
            row[f"{score}_difference"], row[f"{score}_standard_error"] = mean, standard_error
            if mean > standard_error:
                verdicts.append(f"{score} worse by {mean:.4f}")
            elif mean < -standard_error:
                verdicts.append(f"{score} better by {-mean:.4f}")
        row["verdict"] = "; ".join(verdicts) or "not worse"
        row["met"] = "worse by" not in row["verdict"]
        rows.append(row)
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv, __doc__ or "")
    warnings.simplefilter("ignore")
    if options.toy:
        x = torch.randn(30, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        y = x[:, 0].exp()
        assert scored(Split(x[:24], y[:24], x[24:], y[24:]), "auto")["rmse"] < 5.0
        return 0
    store = RECORDS / "target_transform_pieces.json"
    pieces = pieces_of(store, "Pieces of the table of target transforms", METHODS, piece, options.only)
    if pieces:
        title = "Transforms of the target, means over splits 0 to 4"
        write_record(RECORDS / "target_transform.json", {"title": title, "columns": COLUMNS, "rows": table(pieces)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
