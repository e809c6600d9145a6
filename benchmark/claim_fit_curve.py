"""What a whole fit costs as rows are added, on published tables of 100 to 16,000 rows.

    python benchmark/claim_fit_curve.py --cells n=1000 n=2000

Matern-3/2 with a lengthscale per column, all defaults, the first n training rows of the first split. A cell is a table
and a number of rows, in a process of its own: seconds of the fit, of one Cholesky factorisation with its inverse of
that size in the same process, evaluations of all rows, the log joint per row, and how the held-out rows are predicted
(what the search leaves: claim_search_quality). A cell that ends in `busy` fits twice, alone and beside a process that
keeps one core busy. The picture, records/fit_curve.png, is drawn of the record's cells.
"""

import itertools
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from cells import Cell, Claim, Entry, main_of, options_of, stored
from common import SHARED_DATA, scores, smooth_data, split_of

import flashgp as fgp
from flashgp.foundations.quantities import readable_seconds
from flashgp.inference.fit import Fit
from flashgp.inference.training.history import Stage
from flashgp.plots.axes import new_figure

TABLES = ("elevators", "pol", "kin40k", "keggdirected", "airfoil", "concrete")
SIZES = (100, 200, 500, 1000, 2000, 3000, 4000, 8000, 16000)
SMALLER = {"airfoil": 1352, "concrete": 927, "elevators": 14940, "pol": 13500}  # tables that end before
BUSY = (1000, 2000, 3000, 4000)
FACTORS, SPARE_SECONDS = 20.0, 3.0  # what was to be reached: so many factorisations with inverse, and so much more
COLUMNS = [
    {"key": "problem", "title": "table"},
    {"key": "fit_seconds", "title": "fit"},
    {"key": "limit_seconds", "title": "20 Cholesky with inverse + 3 s"},
    {"key": "evaluations", "title": "evaluations of all rows", "format": "integer"},
    {"key": "larger_ratio", "title": "of the fit of the next larger size", "format": "fixed2"},
    {"key": "nll", "title": "negative log density", "format": "fixed4"},
    {"key": "busy_ratio", "title": "beside a busy core", "format": "fixed2"},
]


def run_cell(cell: Cell) -> dict[str, Any]:
    """The entry of a table and a number of rows."""
    name, n = cell["table"], cell["n"]
    if name == "drawn":
        x, y = smooth_data(n + 50, 3, torch.float64)
        x, y, x_test, y_test = x[:n], y[:n], x[n:], y[n:]
    else:
        x, y, x_test, y_test = split_of(name, 0, rows=n)
    rows = len(x)
    fgp.fit(_model(x.shape[1]), x[:64], y[:64], starts=1, max_iterations=2)  # imports, first calls
    seconds, fit = _fitted(x, y)
    prediction = fit.posterior.predict(x_test)
    entry = {
        "rows_used": rows,
        "d": x.shape[1],
        "fit_seconds": seconds,
        "factor_seconds": _factor_seconds(rows),
        "evaluations": sum(e.run.stage is Stage.ALL_ROWS for e in fit.history),
        "evaluations_of_few": sum(e.run.stage is not Stage.ALL_ROWS for e in fit.history),
        "log_joint": _log_joint(fit),
        "training": fit.report.plan.training,
        **scores(prediction.mean, prediction.observation_variance, y_test),
    }
    if cell["busy"]:
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as spinning:
            time.sleep(2.0)
            try:
                entry["busy_seconds"] = _fitted(x, y)[0]
            finally:
                spinning.kill()
    return entry


def _fitted(x: torch.Tensor, y: torch.Tensor) -> tuple[float, Fit]:
    """Seconds of a fit, less what was compiled, and the fit."""
    began = time.perf_counter()
    fit = fgp.fit(_model(x.shape[1]), x, y)
    return time.perf_counter() - began - (fit.report.compile_seconds or 0.0), fit


def _model(d: int) -> fgp.GP:
    kernel = 1.0 * fgp.kernels.Matern(nu=1.5, lengthscale=torch.ones(d, dtype=torch.float64))
    return fgp.GP(kernel, fgp.means.Constant(), fgp.likelihoods.Gaussian(0.1))


def _log_joint(fit: Fit) -> float | None:
    """The best value per row over all rows, None where gradients were estimated and no value is known."""
    known = [e.value for e in fit.history if e.run.stage is Stage.ALL_ROWS and e.measure == "log joint"]
    return max(known) / fit.posterior.x.shape[-2] if known else None


def _factor_seconds(n: int) -> float:
    """A Cholesky factorisation and the inverse of a matrix of this size."""
    matrix = torch.eye(n, dtype=torch.float64) + torch.rand(n, n, dtype=torch.float64) / n
    seconds = []
    for _ in range(3 if n <= 4000 else 1):
        began = time.perf_counter()
        torch.cholesky_inverse(torch.linalg.cholesky(matrix @ matrix.mT if n < 64 else matrix + matrix.mT))
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def rows(entries: Mapping[str, Entry]) -> list[dict[str, Any]]:
    """A row of each cell that is done, by table and rows."""
    done = [entry for entry in entries.values() if entry["status"] == "done"]
    busy = {(e["table"], e["n"]): e for e in done if e["busy"]}
    table = []
    for curve in _curves(done).values():
        for e, larger in itertools.zip_longest(curve, curve[1:]):
            row = {"problem": f"{e['table']}, n={e['rows_used']:,}, d={e['d']}"}
            row |= {key: e[key] for key in ("fit_seconds", "evaluations", "nll")}
            row["limit_seconds"] = FACTORS * e["factor_seconds"] + SPARE_SECONDS
            if larger is not None:
                row["larger_ratio"] = e["fit_seconds"] / larger["fit_seconds"]
            beside = busy.get((e["table"], e["n"]))
            if beside is not None:
                row["busy_ratio"] = beside["busy_seconds"] / beside["fit_seconds"]
            table.append(row)
    return table


def _curves(done: Sequence[Entry]) -> dict[str, list[Entry]]:
    """The quiet fits of each table, by number of rows."""
    curves = {}
    for name in (*TABLES, "drawn"):
        own = sorted((e for e in done if e["table"] == name and not e["busy"]), key=lambda e: e["n"])
        if own:
            curves[name] = own
    return curves


def draw(done: Sequence[Entry], path: Path) -> None:
    """Seconds of a fit against the number of rows, a line for each table, and what was to be reached."""
    figure = new_figure((8.0, 5.0))
    ax = figure.subplots()
    curves = _curves(done)
    for name, curve in curves.items():
        ax.plot([e["n"] for e in curve], [e["fit_seconds"] for e in curve], marker="o", markersize=3, label=name)
    limits = {e["n"]: FACTORS * e["factor_seconds"] + SPARE_SECONDS for curve in curves.values() for e in curve}
    sizes = sorted(limits)
    ax.plot(sizes, [limits[n] for n in sizes], "--", color="grey", label="20 Cholesky with inverse + 3 s")
    ax.set(xscale="log", yscale="log", xlabel="rows", ylabel="seconds of a whole fit")
    ax.grid(True, color="#e4e4e4")
    ax.legend(fontsize="small")
    figure.savefig(path, dpi=120, metadata={"Software": None})


def line(entry: Entry) -> str:
    limit = readable_seconds(FACTORS * entry["factor_seconds"] + SPARE_SECONDS)
    return f"{readable_seconds(entry['fit_seconds'])} of {limit}, {entry['evaluations']} evaluations of all rows"


CLAIM = Claim("fit_curve", "claim_fit_curve", "Whole fits as rows are added", COLUMNS, rows, line)


def main(argv: Sequence[str] | None = None) -> int:
    options = options_of(__doc__ or "", argv, CLAIM.name)
    if options.toy:
        problems = [("drawn", 90, False)]
    elif not SHARED_DATA.exists():
        print(f"not run: the tables are not at {SHARED_DATA}")
        return 0
    else:
        problems = [(t, n, False) for t in TABLES for n in SIZES if n < SMALLER.get(t, n + 1)]
        problems += [(t, n, False) for t, n in SMALLER.items()]
        problems += [("elevators", n, True) for n in BUSY]
    cells = [
        Cell(f"{t}/n={n}" + "/busy" * busy, {"table": t, "n": n, "busy": busy}, 3.0 + 3.0 * (n / 2000) ** 1.5)
        for t, n, busy in problems
    ]
    failed = main_of(CLAIM, cells, options)
    if options.record.exists() and not (options.toy or options.list):
        draw([e for e in stored(options.record).values() if e["status"] == "done"], options.record.with_suffix(".png"))
    return failed


if __name__ == "__main__":
    sys.exit(main())
