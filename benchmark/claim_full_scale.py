"""The full-scale approximation beside the exact fit of the same rows, at defaults.

    python benchmark/claim_full_scale.py

A cell is a table, the first training rows of split 0 and all of its test rows, in a process of its own:
Matern-3/2 with a lengthscale for each column, columns and target standardised by the training rows, fitted exactly and
by `approximation="full_scale"`. RMSE and the mean negative log density of the test rows are of the standardised target;
log p / n is of the training rows under each model; what is lost is `posterior.lost`, an estimate. All rows of a table
are fitted by the approximation alone: what the exact fit of them reaches is in the record of `make uci`.
"""

import math
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from cells import Cell, Claim, Entry, main_of, options_of
from common import RECORDS, SHARED_DATA, split_of

import flashgp as fgp
from flashgp.bench import read_record

FEW_ROWS = 4000
# Of all rows: what was to be reached, as RMSE, NLL above the exact fit's, and seconds.
GOALS = {
    "kin40k": (0.095, 0.15, 120.0),
    "elevators": (0.361, 0.02, 40.0),
    "pol": (0.080, 0.15, 60.0),
    "keggdirected": (0.090, 0.05, 60.0),
}
ALL_ROWS = {"kin40k": 36000, "elevators": 14940, "pol": 13500, "keggdirected": 43945}
PROBLEMS = (
    *((table, FEW_ROWS, True) for table in ("elevators", "pol", "kin40k")),
    *((table, rows, False) for table, rows in ALL_ROWS.items()),
)
COLUMNS = [
    {"key": "problem", "title": "table"},
    {"key": "exact", "title": "exact: RMSE, NLL"},
    {"key": "approximate", "title": "full scale: RMSE, NLL"},
    {"key": "exact_evidence", "title": "exact log p / n"},
    {"key": "evidence", "title": "full scale log p / n"},
    {"key": "lost", "title": "said to be lost, nats a row"},
    {"key": "exact_seconds", "title": "exact fit"},
    {"key": "seconds", "title": "full-scale fit"},
    {"key": "predict_seconds", "title": "its test rows"},
    {"key": "target", "title": "to be reached: RMSE, NLL, seconds", "format": "text"},
    {"key": "met", "title": "reached"},
]
Rows = tuple[torch.Tensor, torch.Tensor]


def rows_of(name: str, n: int) -> tuple[Rows, Rows]:
    """Standardised training and test rows."""
    if name != "drawn":
        split = split_of(name, 0, rows=n)
        return (split.x, split.y), (split.x_test, split.y_test)
    x = torch.rand(2 * n, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = torch.sin(6.0 * x.sum(1))
    return (x[:n], y[:n]), (x[n:], y[n:])


def fitted(train: Rows, test: Rows, **options: Any) -> tuple[fgp.Posterior, dict[str, float]]:
    """A posterior with its scores and seconds."""
    gp = fgp.GP(1.0 * fgp.kernels.Matern(nu=1.5, lengthscale=torch.ones(train[0].shape[1])))
    began = time.perf_counter()
    posterior = fgp.fit(gp, *train, progress=False, **options).posterior
    ended = time.perf_counter()
    prediction = posterior.predict(test[0])
    error = prediction.mean - test[1]
    numbers = {
        "rmse": float(error.square().mean().sqrt()),
        "nll": -float(prediction.log_prob(test[1]).mean()),
        "evidence": float(posterior.log_marginal_likelihood()) / len(train[0]),
        "seconds": ended - began,
        "predict_seconds": time.perf_counter() - ended,
    }
    return posterior, numbers


def run_cell(cell: Cell) -> dict[str, Any]:
    """The entry of a table and a number of rows."""
    train, test = rows_of(cell["table"], cell["n"])
    approximate, numbers = fitted(train, test, approximation="full_scale")
    lost = approximate.lost
    exact = fitted(train, test)[1] if cell["exact"] else None
    return {
        "rows_used": len(train[0]), "columns": train[0].shape[1], "test_rows": len(test[0]), "full_scale": numbers,
        "exact_fit": exact, "lost": lost.nats, "lost_error": lost.standard_error,
    }  # fmt: skip


def rows(entries: Mapping[str, Entry]) -> list[dict[str, Any]]:
    """A row of each cell that is done, in the order of PROBLEMS."""
    done = [entry for entry in entries.values() if entry["status"] == "done"]
    order = {problem[:2]: i for i, problem in enumerate(PROBLEMS)}
    done.sort(key=lambda e: order.get((e["table"], e["n"]), 0))
    return [_row(entry) for entry in done]


def exact_of_all(table: str) -> dict[str, float] | None:
    """RMSE and NLL of the exact fit of all rows, split 0, by the record of `make uci`."""
    path = RECORDS / "uci.json"
    entry = read_record(path)["cells"].get(f"{table}/0/flashgp") if path.exists() else None
    return entry if entry is not None and entry["status"] == "done" else None


def _row(entry: Entry) -> dict[str, Any]:
    exact, approximate = entry["exact_fit"], entry["full_scale"]
    goal: dict[str, Any] = {}
    if entry["table"] in GOALS and exact is None:
        (most, gap, seconds), exact_all = GOALS[entry["table"]], exact_of_all(entry["table"])
        if exact_all is not None:
            nll = exact_all["nll"] + gap
            reached = approximate["rmse"] <= most and approximate["nll"] <= nll and approximate["seconds"] <= seconds
            goal = {"target": f"{most:g}, {nll:.3f}, {seconds:g} s", "met": reached}
            exact = {**exact_all, "seconds": exact_all["fit_seconds"], "evidence": math.nan}

    def scores(numbers: dict[str, float] | None) -> str | None:
        return None if numbers is None else f"{numbers['rmse']:.4f}, {numbers['nll']:.3f}"

    def evidence(numbers: dict[str, float] | None) -> str | None:
        return None if numbers is None or math.isnan(numbers["evidence"]) else f"{numbers['evidence']:.4f}"

    return {
        "problem": f"{entry['table']}, n={entry['rows_used']:,}, d={entry['columns']}",
        "exact": scores(exact),
        "approximate": scores(approximate),
        "exact_evidence": evidence(exact),
        "evidence": evidence(approximate),
        "lost": f"{entry['lost']:.4f} ± {entry['lost_error']:.4f}",
        "exact_seconds": None if exact is None else exact["seconds"],
        "seconds": approximate["seconds"],
        "predict_seconds": approximate["predict_seconds"],
        **goal,
    }


def line(entry: Entry) -> str:
    row = _row(entry)
    return f"exact {row['exact']}, full scale {row['approximate']}, loses {row['lost']}"


CLAIM = Claim(
    "full_scale", "claim_full_scale", "The full-scale approximation beside the exact fit", COLUMNS, rows, line
)


def main(argv: Sequence[str] | None = None) -> int:
    options = options_of(__doc__ or "", argv, CLAIM.name)
    problems: Sequence[tuple[str, int, bool]] = PROBLEMS
    if options.toy:
        problems = [("drawn", 60, True)]
    elif not SHARED_DATA.exists():
        print(f"not run: the tables are not at {SHARED_DATA}")
        return 0
    cells = [
        Cell(f"{table}/n={n}", {"table": table, "n": n, "exact": exact}, 60.0 + n / 50.0)
        for table, n, exact in problems
    ]
    return main_of(CLAIM, cells, options)


if __name__ == "__main__":
    sys.exit(main())
