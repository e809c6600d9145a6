"""What a transform of the target chosen by the evidence buys: GPRegressor with "auto" and with "none" on real tables.

Five fixed splits of six small tables, defaults otherwise; RMSE and NLL in standard deviations of the training targets.
A table is worse where the mean of the paired differences exceeds one of their standard errors. Where "auto" keeps the
target, its fit is the other one bit for bit, and is not repeated. Every finished piece is kept in
records/target_transform_pieces.json, so that the suite can be stopped and run again.
"""

import math
import sys
import time
import warnings
from collections.abc import Sequence
from typing import Any

import numpy
from common import RECORDS, SHARED_DATA, arguments, split_of

import flashgp as fgp
from flashgp.bench import read_record, write_record

SETS = ("yacht", "housing", "energy", "concrete", "airfoil", "wine")
SPLITS = range(5)
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


def piece(x: Any, y: Any, x_test: Any, y_test: Any, transform: str) -> dict[str, Any]:
    """Scores of a fit with that transform, which was chosen, and the seconds of the fit."""
    started = time.perf_counter()
    model = fgp.GPRegressor(target_transform=transform).fit(x, y)
    seconds = time.perf_counter() - started
    predicted = model.predict_distribution(x_test)
    return {
        "rmse": float(numpy.sqrt(numpy.mean(numpy.square(predicted.mean - y_test)))),
        "nll": -float(predicted.log_prob(y_test).mean()),
        "transform": str(model.scaling_.transform),
        "events": [event.to_json() for event in model.report_.events if event.kind.name.startswith("TARGET")],
        "seconds": seconds,
        "rows": len(x),
    }


def table(pieces: dict[str, Any]) -> list[dict[str, Any]]:
    """One row for each complete set: means over splits, and the paired differences."""
    rows = []
    for name in SETS:
        values = {m: [pieces.get(f"{name}/{s}/{m}") for s in SPLITS] for m in METHODS}
        if any(v is None for column in values.values() for v in column):
            continue
        row: dict[str, Any] = {"work": name, "rows": values["none"][0]["rows"]}
        row["transformed"] = sum(v["transform"] != "none" for v in values["auto"])
        verdicts = []
        for score in ("rmse", "nll"):
            columns = {m: numpy.array([v[score] for v in values[m]]) for m in METHODS}
            row |= {f"{m}_{score}": float(column.mean()) for m, column in columns.items()}
            difference = columns["auto"] - columns["none"]
            standard_error = float(difference.std(ddof=1) / math.sqrt(len(difference)))
            row[f"{score}_difference"], row[f"{score}_standard_error"] = float(difference.mean()), standard_error
            if difference.mean() > standard_error:
                verdicts.append(f"{score} worse by {difference.mean():.4f}")
            elif difference.mean() < -standard_error:
                verdicts.append(f"{score} better by {-difference.mean():.4f}")
        row["verdict"] = "; ".join(verdicts) or "not worse"
        row["met"] = "worse by" not in row["verdict"]
        rows.append(row)
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv, __doc__ or "")
    warnings.simplefilter("ignore")
    if options.toy:
        generator = numpy.random.default_rng(0)
        x = generator.standard_normal((30, 2))
        y = numpy.exp(x[:, 0])
        assert piece(x[:24], y[:24], x[24:], y[24:], "auto")["rmse"] < 5.0
        return 0
    if not SHARED_DATA.exists():
        print(f"not run: the tables are not at {SHARED_DATA}")
        return 0
    store = RECORDS / "target_transform_pieces.json"
    pieces: dict[str, Any] = read_record(store)["pieces"] if store.exists() else {}
    for name in SETS:
        for split in SPLITS:
            for method in METHODS:
                key = f"{name}/{split}/{method}"
                if key in pieces or (options.only and options.only not in key):
                    continue
                kept = pieces.get(f"{name}/{split}/auto", {}).get("transform") == "none"
                if method == "none" and kept:
                    pieces[key] = pieces[f"{name}/{split}/auto"]
                else:
                    pieces[key] = piece(*(part.numpy() for part in split_of(name, split)), method)
                print(key, pieces[key], flush=True)
                write_record(store, {"title": "Pieces of the table of target transforms", "pieces": pieces})
    title = "Transforms of the target, means over splits 0 to 4"
    write_record(RECORDS / "target_transform.json", {"title": title, "columns": COLUMNS, "rows": table(pieces)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
