"""Verdicts on tables that are as they should be, and on planted faults: alarms, what is missed, and what they take.

    python benchmark/claim_verdicts.py
    python benchmark/claim_verdicts.py --cells healthy

A cell is a table, fitted by a `TableModel` at its defaults (counts with likelihood="auto") on up to 1,500 of its rows
drawn at random, and its verdict by leave-one-out. A healthy table should have no finding. A planted fault is one change
of a table; its finding must be there, and others may be. Seconds of the verdict are beside those of the fit.
"""

import gzip
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy
import torch
from cells import Cell, Claim, Entry, main_of, options_of
from common import SHARED_DATA

import flashgp as fgp

Table = dict[str, Any]
ROWS, FEW = 1_500, 400
NUMBERS = ("concrete", "energy", "airfoil", "elevators", "pol", "kin40k", "housing", "yacht", "wine")
LABELS = {"magic": "hadron", "breast": "label", "banana": "label", "heart": "label", "sonar": "label",
          "australian": "label", "ionosphere": "label", "adult": "income_over_50k"}  # fmt: skip
HEALTHY = (*NUMBERS, *LABELS, "bike_counts", "precipitation", "digits", "houses")
COLUMNS = [
    {"key": "table", "title": "table"},
    {"key": "rows", "title": "rows"},
    {"key": "word", "title": "verdict"},
    {"key": "explained", "title": "explained", "format": "percent"},
    {"key": "held", "title": "held of 95 %, or right", "format": "percent"},
    {"key": "findings", "title": "findings"},
    {"key": "planted", "title": "planted"},
    {"key": "right", "title": "as it should be"},
    {"key": "share", "title": "verdict, of the fit", "format": "percent"},
]


# -- tables -----------------------------------------------------------------------------------------------------------
def table_of(name: str, rows: int) -> tuple[Table, str]:
    """Random rows of a table, with the name of its target."""
    rng = numpy.random.default_rng(1)
    if name == "houses":
        return houses(min(rows, FEW), rng), "price"
    if name == "digits":
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
        some = rng.permutation(len(x))[: min(rows, FEW)]
        return {**{f"p{j}": x[some, j] for j in range(64)}, "y": [f"digit {one}" for one in y[some]]}, "y"
    if name in (*NUMBERS, "keggdirected"):
        with gzip.open(SHARED_DATA / name / "data.csv.gz") as file:
            numbers = numpy.loadtxt(file, delimiter=",", ndmin=2)
        names, target = [*(f"x{j + 1}" for j in range(numbers.shape[1] - 1)), "y"], "y"
    else:
        with gzip.open(SHARED_DATA.parent / "nongaussian" / f"{name}.csv.gz") as file:
            names = file.readline().decode().strip().split(",")
            numbers = numpy.loadtxt(file, delimiter=",", ndmin=2)
        target = LABELS.get(name, "count" if name == "bike_counts" else "precipitation")
    numbers = numbers[rng.permutation(len(numbers))[:rows]]
    return dict(zip(names, numbers.T, strict=True)), target


def houses(rows: int, rng: numpy.random.Generator) -> Table:
    """Prices by city, rooms, area and date."""
    worth = {"Paris": 90.0, "Bonn": 30.0, "Ulm": 10.0, "York": 120.0}
    city, rooms, area = rng.choice([*worth], rows), rng.integers(1, 7, rows), rng.gamma(5.0, 20.0, rows)
    days = numpy.arange("2021-01-01", rows, dtype="datetime64[D]") if rows else []
    price = numpy.array([worth[one] for one in city]) + 1.5 * area + 10.0 * rooms
    price += 20.0 * numpy.sin(numpy.arange(rows) / 40.0) + rng.normal(0.0, 8.0, rows)
    return {"city": city, "rooms": rooms.astype(float), "area": area, "date": [str(day) for day in days],
            "price": price}  # fmt: skip


def changed(table: Table, **columns: Any) -> Table:
    return {**table, **columns}


# -- faults -----------------------------------------------------------------------------------------------------------
def of_table(table: Table, target: str, **settings: Any) -> fgp.Verdict:
    return fgp.TableModel(**settings).fit(table, target=target).verdict


def fault(name: str, rows: int) -> fgp.Verdict:
    """The verdict on a planted fault."""
    rng = numpy.random.default_rng(2)
    table, target = table_of("concrete", rows)
    y, n = table[target], len(table[target])
    found: Mapping[str, Callable[[], fgp.Verdict]] = {
        "shuffled target": lambda: of_table(changed(table, y=rng.permutation(y)), target),
        "eight targets times a thousand": lambda: of_table(
            changed(table, y=numpy.where(numpy.arange(n) % (n // 8) == 0, 1e3 * y, y)), target, target_transform="none"
        ),
        "Cauchy noise": lambda: of_table(
            changed(table, y=y + 5.0 * rng.standard_cauchy(n)), target, target_transform="none"
        ),
        "counts as numbers": lambda: of_table(*table_of("bike_counts", rows)),
        "labels as numbers": lambda: of_table(*table_of("heart", rows), likelihood="gaussian"),
        "rows that repeat": lambda: of_table(*table_of("keggdirected", rows)),
        "every row twice": lambda: of_table(
            {key: numpy.concatenate([values, values]) for key, values in table.items()}, target
        ),
        "constant target": lambda: constant(table),
        "row numbers": lambda: of_table(changed(table, number=numpy.arange(float(n))), target),
        "three rows": lambda: of_table({key: values[:3] for key, values in table.items()}, target),
        "cell of 1e200": lambda: of_table(
            changed(table, x1=numpy.where(numpy.arange(n) == 7, 1e200, table["x1"])), target
        ),
        "no time": lambda: of_table(changed(table, time_limit=table["x1"]), target, time_limit=1e-3),
        "missing week": lambda: missing_week(min(n, FEW), rng),
        "missing order": lambda: missing_order(table, target, rng),
        "louder rows": lambda: others(table, target, lambda y: y + 30.0 * rng.standard_normal(len(y))),
        "rows far away": lambda: others(table, target, lambda y: y, area=50.0),
        "fitted rows": lambda: others(table, target, lambda y: y, fitted=True),
        "drift": lambda: drift(table, target),
    }
    return found[name]()


def constant(table: Table) -> fgp.Verdict:
    x = torch.tensor(numpy.column_stack([table["x1"], table["x2"]]))[:60]
    gp = fgp.GP(1.0 * fgp.kernels.Matern(lengthscale=[100.0, 100.0]))
    return fgp.fit(gp, x, torch.full((len(x),), 3.0, dtype=torch.float64)).verdict


def missing_week(rows: int, rng: numpy.random.Generator) -> fgp.Verdict:
    days = numpy.arange(rows)
    sales = 50.0 + 0.02 * days + 8.0 * numpy.sin(2.0 * numpy.pi * days / 7.0) + rng.normal(0.0, 2.0, rows)
    dates = [str(day) for day in numpy.datetime64("2023-01-01") + days]
    return of_table({"date": dates, "sales": sales}, "sales", kernel="Matern(nu=1.5, lengthscale=60) + Linear()")


def missing_order(table: Table, target: str, rng: numpy.random.Generator) -> fgp.Verdict:
    walk = numpy.zeros(len(table[target]))
    for row in range(1, len(walk)):
        walk[row] = 0.95 * walk[row - 1] + rng.normal()
    return of_table(changed(table, y=table[target] + 5.0 * walk), target)


def others(
    table: Table, target: str, change: Callable[[Any], Any], area: float = 1.0, fitted: bool = False
) -> fgp.Verdict:
    """The verdict on the last third of the rows, changed, of a model of the others."""
    learned, rest = (
        {key: values[part] for key, values in table.items()} for part in (slice(None, -300), slice(-300, None))
    )
    model = fgp.TableModel().fit(learned, target=target)
    if fitted:
        return model.judge(table)
    return model.judge({**rest, target: change(rest[target]), "x1": area * rest["x1"]})


def drift(table: Table, target: str) -> fgp.Verdict:
    x = torch.tensor(numpy.column_stack([values for key, values in table.items() if key != target]))
    x, y = (x - x.mean(0)) / x.std(0), torch.tensor(table[target])
    y = (y - y.mean()) / y.std()
    gp = fgp.GP(1.0 * fgp.kernels.Matern(lengthscale=[2.0] * x.shape[1]))
    half = len(x) // 2
    fit = fgp.fit(gp, x[:half], y[:half], starts=1)
    stream = fgp.Stream(fit.posterior)
    for row in range(half, min(half + 200, len(x))):
        stream.step(x[row], 0.5 * y[row] + 0.5 * (row - half > 50))
    return fit.verdict.with_findings([] if stream.drift is None else [stream.drift])


FAULTS = {
    "shuffled target": "NO_BETTER", "eight targets times a thousand": "DOMINATED", "Cauchy noise": "HEAVY_TAILS",
    "counts as numbers": "COUNTS_SUGGESTED", "labels as numbers": "TWO_VALUES", "every row twice": "ROWS_REPEATED",
    "rows that repeat": "ROWS_REPEATED",
    "constant target": "CONSTANT_TARGET", "row numbers": "COUNTS_ROWS", "three rows": "FEW_VALUES",
    "cell of 1e200": "FAR_OUT", "no time": "UNFINISHED", "missing week": "PERIOD_LEFT", "missing order": "ORDER_LEFT",
    "louder rows": "INTERVALS_NARROW", "rows far away": "OUT_OF_RANGE", "fitted rows": "ROWS_FITTED",
    "drift": "DRIFTING",
}  # fmt: skip


# -- cells ------------------------------------------------------------------------------------------------------------
def run_cell(cell: Cell) -> Entry:
    name, planted, rows = cell["table"], cell["planted"], cell["rows"]
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if planted is not None:
            verdict, took, model = fault(name, rows), 0.0, None
        else:
            table, target = table_of(name, rows)
            settings = {"likelihood": "auto"} if name == "bike_counts" else {}
            model = fgp.TableModel(**settings).fit(table, target=target)
            fitted = time.perf_counter()
            verdict = model.verdict
            took = (time.perf_counter() - fitted) / (fitted - began)
    kinds = [event.kind.name for event in verdict.findings]
    return {
        "used": verdict.rows, "word": verdict.word.value, "sentence": verdict.sentence, "findings": kinds,
        "explained": None if verdict.explained is None else verdict.explained.value,
        "held": None if verdict.calibration is None else verdict.calibration.share,
        "share": took if model is not None else None,
        "right": planted in kinds if planted is not None else not kinds,
        "seconds": time.perf_counter() - began,
    }  # fmt: skip


def rows_of(entries: Mapping[str, Entry]) -> list[dict[str, Any]]:
    found = [
        {
            **{key: entry[key] for key in ("table", "word", "explained", "held", "share")},
            "rows": entry["used"], "findings": ", ".join(entry["findings"]), "planted": entry["planted"] or "",
            "right": "yes" if entry["right"] else "no",
        }
        for entry in entries.values() if entry["status"] == "done"
    ]  # fmt: skip
    return found


def line_of(entry: Entry) -> str:
    return f"{entry['sentence']} {entry['findings']} {'as it should be' if entry['right'] else 'NOT as it should be'}"


def main(argv: Sequence[str] | None = None) -> int:
    options = options_of(__doc__ or "", argv, "verdicts")
    rows = 60 if options.toy else ROWS
    healthy = HEALTHY[-1:] if options.toy else HEALTHY
    planted = {"row numbers": FAULTS["row numbers"]} if options.toy else FAULTS
    cells = [Cell(f"healthy {name}", {"table": name, "planted": None, "rows": rows}, 15.0) for name in healthy]
    cells += [
        Cell(f"fault {name}", {"table": name, "planted": kind, "rows": rows}, 15.0) for name, kind in planted.items()
    ]
    title = "Verdicts on healthy tables and planted faults"
    return main_of(Claim("verdicts", "claim_verdicts", title, COLUMNS, rows_of, line_of), cells, options)


if __name__ == "__main__":
    sys.exit(main())
