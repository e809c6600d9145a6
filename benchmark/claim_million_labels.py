"""Two classes of up to a million rows of Parquet files, which are read in passes: `TableModel` at its defaults.

    python benchmark/claim_million_labels.py --sizes 1000000 --scratch FOLDER

Rows are uniform in the unit cube of 8 columns. The truth is a smooth function, a draw of a squared-exponential prior of
lengthscale 1 and variance 4 by 1,024 random features, and a label is "yes" where it and standard normal noise are
positive together, else "no", so that the log probability of each label is known: log Phi of the function with the sign
of the label. Scores are of 10,000 rows that no fit has seen: the mean negative log probability beside that of the
truth, and the share of right labels beside that of the function's sign.

Rows are in four files. Seconds are those of `TableModel().fit`, from the files to the posterior; the peak is the
operating system's, above what the process has before.
"""

import argparse
import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
from cells import Cell, Claim, Entry, Speaker, main_of, options_of

import flashgp as fgp
from flashgp.bench.memory import PeakMeter
from flashgp.foundations.quantities import readable_bytes, readable_seconds

D, LENGTHSCALE, VARIANCE, FEATURES = 8, 1.0, 4.0, 1024
POINTS, FILES, SEED = 10_000, 4, 0
AT_ONCE = 50_000  # rows whose features are made together
SECONDS, PEAK, BEHIND = 1500.0, 6 * 2**30, 0.01  # of a million rows: time, memory, and nats behind the truth
COLUMNS = [
    {"key": "work", "title": "rows"},
    {"key": "fit_seconds", "title": "fit"},
    {"key": "predict_seconds", "title": "10,000 predictions"},
    {"key": "peak_bytes", "title": "peak"},
    {"key": "nlpd", "title": "negative log density", "format": "fixed4"},
    {"key": "truth", "title": "of the truth", "format": "fixed4"},
    {"key": "accuracy", "title": "accuracy", "format": "fixed4"},
    {"key": "accuracy_of_truth", "title": "of the truth", "format": "fixed4"},
    {"key": "target", "title": "to be reached", "format": "text"},
    {"key": "reached", "title": "reached"},
]
Array = Any  # float64


def drawn(n: int, points: int) -> tuple[Array, Array, Array]:
    """Rows with those held out behind them, (n + points, d), whether each is "yes", and the function there."""
    from scipy.special import ndtr

    generator = numpy.random.default_rng(SEED)
    frequencies = generator.standard_normal((D, FEATURES)) / LENGTHSCALE
    phases, weights = generator.uniform(0.0, 2.0 * math.pi, FEATURES), generator.standard_normal(FEATURES)
    x = generator.uniform(size=(n + points, D))
    parts = [x[start : start + AT_ONCE] for start in range(0, len(x), AT_ONCE)]
    height = math.sqrt(2.0 * VARIANCE / FEATURES)
    f = numpy.concatenate([height * numpy.cos(part @ frequencies + phases) @ weights for part in parts])
    return x, generator.uniform(size=len(f)) < ndtr(f), f


def table_of(x: Array, yes: Array) -> dict[str, Array]:
    return {f"x{j}": x[:, j] for j in range(D)} | {"label": numpy.where(yes, "yes", "no")}


def run_cell(cell: Cell) -> Entry:
    import pyarrow
    import pyarrow.parquet
    from scipy.special import log_ndtr

    n = cell["n"]
    x, yes, f = drawn(n, cell["points"])
    paths = [str(Path(cell["scratch"]) / f"million-labels-{n}-{number}.parquet") for number in range(FILES)]
    Path(cell["scratch"]).mkdir(parents=True, exist_ok=True)
    for path, part in zip(paths, numpy.array_split(numpy.arange(n), FILES), strict=True):
        pyarrow.parquet.write_table(pyarrow.table(table_of(x[part], yes[part])), path, row_group_size=65_536)
    x, yes, f = x[n:].copy(), yes[n:].copy(), f[n:].copy()
    began = time.perf_counter()
    with PeakMeter() as meter:
        model = fgp.TableModel().fit(paths, target="label", progress=Speaker(cell.key).training)
        fitted = time.perf_counter()
    found = model.predict({key: values for key, values in table_of(x, yes).items() if key != "label"})
    probability = found.probability[:, found.labels.index("yes")]
    ended = time.perf_counter()
    return {
        "fit_seconds": fitted - began, "predict_seconds": ended - fitted,
        "peak_bytes": meter.peak_bytes, "peak_method": meter.method,
        "nlpd": -float(numpy.log(numpy.where(yes, probability, 1.0 - probability)).mean()),
        "truth": -float(log_ndtr(numpy.where(yes, f, -f)).mean()),
        "accuracy": float(((probability > 0.5) == yes).mean()), "accuracy_of_truth": float(((f > 0.0) == yes).mean()),
        "events": [str(event) for event in model.report.events],
    }  # fmt: skip


def rows(entries: Mapping[str, Entry]) -> list[dict[str, Any]]:
    table: list[dict[str, Any]] = []
    for entry in sorted(entries.values(), key=lambda entry: entry["n"]):
        row = {"work": f"n={entry['n']:,}, d={D}"}
        if entry["status"] != "done":
            table.append({**row, "target": str(entry["error"]).splitlines()[0][:80]})
            continue
        row |= {column["key"]: entry.get(column["key"]) for column in COLUMNS if column["key"] not in row}
        limit = SECONDS * entry["n"] / 1e6
        row["target"] = f"{readable_seconds(limit)}, 6.0 GiB, 0.01 behind the truth"
        near = entry["nlpd"] <= entry["truth"] + BEHIND
        table.append({**row, "reached": bool(near and entry["fit_seconds"] <= limit and entry["peak_bytes"] <= PEAK)})
    return table


def line(entry: Entry) -> str:
    memory = readable_bytes(entry["peak_bytes"])
    return (
        f"negative log density {entry['nlpd']:.4f}, of the truth {entry['truth']:.4f}, "
        f"{readable_seconds(entry['fit_seconds'])}, {memory}"
    )


CLAIM = Claim("million_labels", "claim_million_labels", "Two classes of a million rows", COLUMNS, rows, line)


def main(argv: Sequence[str] | None = None) -> int:
    def more(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--sizes", nargs="+", type=int, default=[200_000, 1_000_000], metavar="ROWS")

    options = options_of(__doc__ or "", argv, CLAIM.name, more)
    if options.toy:
        options.sizes = [200]
    points = 50 if options.toy else POINTS
    cells = [
        Cell(f"n={n}", {"n": n, "points": points}, 60.0 + 6e-4 * n, {"scratch": str(options.scratch)})
        for n in options.sizes
    ]
    return main_of(CLAIM, cells, options)


if __name__ == "__main__":
    sys.exit(main())
