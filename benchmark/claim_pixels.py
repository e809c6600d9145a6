"""Classes of columns in one unit, (M-450): digits, and tables whose columns stay in their own units.

    python benchmark/claim_pixels.py
    python benchmark/claim_pixels.py --cells digits

A cell is a table and some splits, a fifth of whose rows are held out; fits are those of GPClassifier at its defaults.
Digits are those of scikit-learn: 10 classes, 64 pixels. The tables of two classes, in the units of their files, stand
beside themselves with every column divided by its own deviation, as a paired difference of the negative log density and
one standard error of it; tables without columns in one unit are the same model twice and left out. Seconds are CPU time
of the fit on a machine with other work.
"""

import gzip
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy
from cells import Cell, Claim, Entry, main_of, options_of
from common import SHARED_DATA

import flashgp as fgp

Array = Any  # float64

TABLES = ("ionosphere", "breast")
FIRST, SPLITS, OF_DIGITS = 200, 6, 1
DIGITS = (11, 21)  # splits
BINS = 10
GOALS = "0.055, 0.987, 0.02, 60 s"
COLUMNS = [
    {"key": "problem", "title": "table"},
    {"key": "nlpd", "title": "negative log density", "format": "fixed4"},
    {"key": "accuracy", "title": "accuracy", "format": "fixed4"},
    {"key": "calibration", "title": "calibration error", "format": "fixed4"},
    {"key": "cpu_seconds", "title": "CPU time of a fit"},
    {"key": "beside", "title": "beside deviations of each column", "format": "text"},
    {"key": "target", "title": "to be reached", "format": "text"},
    {"key": "met", "title": "reached"},
]


def split_of(name: str, seed: int) -> tuple[Array, Array, Array, Array]:
    """x, y, x_test, y_test with labels 0, 1, ..."""
    if name == "digits":
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
    elif name == "drawn":
        generator = numpy.random.default_rng(seed)
        x = generator.integers(0, 5, (60, 4)).astype(float)
        y = (x[:, 0] > 2.0).astype(int)
    else:
        with gzip.open(SHARED_DATA.parent / "nongaussian" / f"{name}.csv.gz") as file:
            place = file.readline().decode().strip().split(",").index("label")
            numbers = numpy.loadtxt(file, delimiter=",", ndmin=2)
        x, y = numpy.delete(numbers, place, axis=1), (numbers[:, place] > numbers[:, place].min()).astype(int)
    order, count = numpy.random.default_rng(seed).permutation(len(y)), len(y) // 5
    test, train = order[:count], order[count:]
    return x[train], y[train], x[test], y[test]


def scores(x: Array, y: Array, x_test: Array, y_test: Array) -> dict[str, float]:
    began = time.process_time()
    model = fgp.GPClassifier(random_state=0).fit(x, y)
    seconds, probability = time.process_time() - began, model.predict_proba(x_test)
    best, right = probability.max(axis=1), probability.argmax(axis=1) == y_test
    bins = numpy.minimum((best * BINS).astype(int), BINS - 1)
    gaps = [abs(float((best - right)[bins == k].sum())) for k in range(BINS)]
    nlpd = -float(numpy.log(probability[numpy.arange(len(y_test)), y_test]).mean())
    found = {"nlpd": nlpd, "accuracy": float(right.mean()), "calibration": sum(gaps) / len(y_test)}
    return found | {"cpu_seconds": seconds}


def run_cell(cell: Cell) -> Entry:
    """Scores of each split, of the table as it is, and of columns divided by their own deviations."""
    warnings.simplefilter("ignore")
    entry: dict[str, Any] = {"own": []}
    for seed in range(cell["first"], cell["first"] + cell["splits"]):
        x, y, x_test, y_test = split_of(cell["table"], seed)
        for name, value in scores(x, y, x_test, y_test).items():
            entry.setdefault(name, []).append(value)
        if cell["table"] != "digits":
            centre, spread = x.mean(axis=0), x.std(axis=0)
            spread = numpy.where(spread > 0.0, spread, 1.0)
            entry["own"].append(scores((x - centre) / spread, y, (x_test - centre) / spread, y_test)["nlpd"])
    return entry | {"rows_used": len(y), "d": x.shape[1]}


def rows(entries: Mapping[str, Entry]) -> list[dict[str, Any]]:
    """One row for each cell."""
    table: list[dict[str, Any]] = []
    for entry in entries.values():
        if entry["status"] != "done":
            continue
        name = (
            f"{entry['table']}, n={entry['rows_used']:,}, d={entry['d']}, {entry['splits']} split from {entry['first']}"
        )
        row: dict[str, Any] = {"problem": name}
        row |= {key: float(numpy.mean(entry[key])) for key in ("nlpd", "accuracy", "calibration", "cpu_seconds")}
        if entry["own"]:
            gap = numpy.array(entry["nlpd"]) - numpy.array(entry["own"])
            row["beside"] = f"{gap.mean():+.4f} ± {gap.std(ddof=1) / len(gap) ** 0.5:.4f}"
        else:
            good = row["nlpd"] <= 0.055 and row["accuracy"] >= 0.987 and row["calibration"] <= 0.02
            row |= {"target": GOALS, "met": good and row["cpu_seconds"] <= 120.0}  # two cores
        table.append(row)
    return table


def line(entry: Entry) -> str:
    return ", ".join(
        f"{key} {numpy.mean(entry[key]):.4f}" for key in ("nlpd", "accuracy", "calibration", "cpu_seconds")
    )


CLAIM = Claim("pixels", "claim_pixels", "Classes of columns in one unit", COLUMNS, rows, line)


def main(argv: Sequence[str] | None = None) -> int:
    options = options_of(__doc__ or "", argv, CLAIM.name)
    if options.toy:
        found = [("drawn", 0, 2, 1.0)]
    elif not SHARED_DATA.exists():
        print(f"not run: the tables are not at {SHARED_DATA}")
        return 0
    else:
        found = [("digits", seed, OF_DIGITS, 100.0) for seed in DIGITS]
        found += [(name, FIRST, SPLITS, 20.0) for name in TABLES]
    cells = [
        Cell(f"{table}/{first}", {"table": table, "first": first, "splits": splits}, seconds)
        for table, first, splits, seconds in found
    ]
    return main_of(CLAIM, cells, options)


if __name__ == "__main__":
    sys.exit(main())
