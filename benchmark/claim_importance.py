"""Which columns of a table matter, and what it costs to know: permutation importance beside the fit.

    python benchmark/claim_importance.py

A cell is a table with a column of coins and a number of its rows, in a process of its own, after a short fit: a
`TableModel` of the target as it is, all else at its defaults, then its `importance()`. RMSE and its 95 % interval are
in standard deviations of the target. Of 8,000 rows the importance is computed again with all other rows behind the
predictions, and not 2,048 of them.
"""

import gzip
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy
from cells import Cell, Claim, Entry, main_of, options_of
from common import SHARED_DATA

import flashgp as fgp
from flashgp.inference.predict.importance import ImportanceSettings, importance

CONCRETE = ("cement", "slag", "ash", "water", "superplasticiser", "coarse", "fine", "age")
COIN = "coin"
FEW_ROWS = 420
PROBLEMS = (("concrete", 500), ("concrete", 1030), ("elevators", 2000), ("elevators", 8000))
COLUMNS = [
    {"key": "problem", "title": "table"},
    {"key": "first", "title": "first"},
    {"key": "second", "title": "second"},
    {"key": "third", "title": "third"},
    {"key": "coin", "title": "the coin"},
    {"key": "place", "title": "its place"},
    {"key": "fit_seconds", "title": "fit"},
    {"key": "importance_seconds", "title": "importance"},
    {"key": "share", "title": "share of the fit", "format": "percent"},
    {"key": "difference", "title": "RMSE by all other rows, of the first three"},
]


def table_of(name: str, n: int) -> dict[str, Any]:
    """n random rows of a table, with a column of coins; the target is "y"."""
    rng = numpy.random.default_rng(0)
    if name == "drawn":
        numbers = rng.uniform(size=(n, 3))
        numbers[:, 2] = numpy.sin(5.0 * numbers[:, 0])
    else:
        with gzip.open(SHARED_DATA / name / "data.csv.gz") as file:
            numbers = numpy.loadtxt(file, delimiter=",")
    numbers = numbers[rng.permutation(len(numbers))[:n]]
    d = numbers.shape[1] - 1
    names = CONCRETE if name == "concrete" else [f"x{j + 1}" for j in range(d)]
    table = {column: numbers[:, j] for j, column in enumerate(names)}
    return {**table, COIN: rng.integers(0, 2, len(numbers)).astype(float), "y": numbers[:, -1]}


def run_cell(cell: Cell) -> dict[str, Any]:
    """The entry of a table and a number of rows."""
    table = table_of(cell["table"], cell["n"])
    model = fgp.TableModel(starts=2).fit({name: column[:FEW_ROWS] for name, column in table.items()}, target="y")
    model.importance(rows=8)
    began = time.perf_counter()
    model = fgp.TableModel(target_transform="none").fit(table, target="y")
    fitted = time.perf_counter()
    found = model.importance()
    seconds = time.perf_counter() - fitted
    unit = model.scaling.target.unit
    low, high = (end / unit for end in found.interval())
    whole = None
    if found.rows + found.others < cell["n"]:
        state, columns = model.posterior.state, {name: j for j, name in enumerate(model.inputs)}
        whole = importance(state, columns, ImportanceSettings(others=cell["n"])).rmse
    return {
        "rows_used": len(table["y"]),
        "fit_seconds": fitted - began,
        "importance_seconds": seconds,
        "held_out": found.rows,
        "others": found.others,
        "permutations": found.permutations,
        "columns": [
            {
                "name": found.names[j], "rmse": float(found.rmse[j]) / unit, "low": float(low[j]),
                "high": float(high[j]), "log_density": float(found.log_density[j]),
                "rmse_by_all": None if whole is None else float(whole[j]),
            }
            for j in found.order
        ],
    }  # fmt: skip


def rows(entries: Mapping[str, Entry]) -> list[dict[str, Any]]:
    """A row of each cell that is done, in the order of PROBLEMS."""
    done = [entry for entry in entries.values() if entry["status"] == "done"]
    order = {problem: i for i, problem in enumerate(PROBLEMS)}
    done.sort(key=lambda e: order.get((e["table"], e["n"]), 0))
    return [_row(entry) for entry in done]


def _row(entry: Entry) -> dict[str, Any]:
    columns = entry["columns"]
    coin = next(i for i, column in enumerate(columns) if column["name"] == COIN)
    texts = [f"{c['name']} {c['rmse']:.2f} ({c['low']:.2f} to {c['high']:.2f})" for c in columns[:3]]
    first, second, third = [*texts, "", ""][:3]
    by_all = [f"{c['name']} {c['rmse_by_all']:.2f}" for c in columns[:3] if c["rmse_by_all"] is not None]
    return {
        "problem": f"{entry['table']}, n={entry['rows_used']:,}, d={len(columns)}",
        "first": first, "second": second, "third": third,
        "coin": f"{columns[coin]['rmse']:.3f} ({columns[coin]['low']:.3f} to {columns[coin]['high']:.3f})",
        "place": f"{coin + 1} of {len(columns)}",
        "fit_seconds": entry["fit_seconds"],
        "importance_seconds": entry["importance_seconds"],
        "share": entry["importance_seconds"] / entry["fit_seconds"],
        "difference": ", ".join(by_all) or None,
    }  # fmt: skip


def line(entry: Entry) -> str:
    row = _row(entry)
    return f"{row['first']}, coin {row['coin']}; {100.0 * row['share']:.1f} % of a fit of {row['fit_seconds']:.1f} s"


CLAIM = Claim("importance", "claim_importance", "Permutation importance beside a fit", COLUMNS, rows, line)


def main(argv: Sequence[str] | None = None) -> int:
    options = options_of(__doc__ or "", argv, CLAIM.name)
    problems: Sequence[tuple[str, int]] = PROBLEMS
    if options.toy:
        problems = [("drawn", 60)]
    elif not SHARED_DATA.exists():
        print(f"not run: the tables are not at {SHARED_DATA}")
        return 0
    cells = [Cell(f"{table}/n={n}", {"table": table, "n": n}, 5.0 + 60.0 * (n / 8000) ** 2) for table, n in problems]
    return main_of(CLAIM, cells, options)


if __name__ == "__main__":
    sys.exit(main())
