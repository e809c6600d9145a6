"""How well a plan predicts the seconds of a whole fit, on published tables of 100 to 6,000 rows.

    python benchmark/claim_fit_plan.py

A problem is a table, a number of its first training rows, and a kernel; a cell is one fit with all defaults in a
process of its own, after a short one of drawn rows: what a process does once (imports, loading and compiling loops,
up to two seconds) is not in it. It is predicted by its plan, with the rates that `flashgp tune` measures here
beforehand (kept in the scratch folder), and, for comparison, with the built-in ones.
"""

import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from cells import Cell, Claim, Entry, main_of, options_of
from common import SHARED_DATA, smooth_data, split_of

import flashgp as fgp
from flashgp.foundations.profile import BUILT_IN
from flashgp.foundations.profile_store import CHOICE, read_profile
from flashgp.foundations.quantities import readable_seconds

FEW_ROWS = 420  # as many as take every path of a fit by exact gradients
WITHIN = 2.0  # a prediction is right that is off by no more than this factor
KERNELS: dict[str, Callable[[torch.Tensor], fgp.kernels.Kernel]] = {
    "Matern-5/2": lambda ones: 1.0 * fgp.kernels.Matern(nu=2.5, lengthscale=ones),
    "Matern-3/2": lambda ones: 1.0 * fgp.kernels.Matern(nu=1.5, lengthscale=ones),
    "RBF, one lengthscale": lambda ones: 1.0 * fgp.kernels.RBF(),
    "Matern-3/2 + Linear": lambda ones: 1.0 * fgp.kernels.Matern(nu=1.5, lengthscale=ones) + fgp.kernels.Linear(),
    "RationalQuadratic": lambda ones: 1.0 * fgp.kernels.RationalQuadratic(lengthscale=ones),
}
M52, M32, RBF, SUM, RQ = KERNELS
PROBLEMS = (
    ("yacht", 100, M52), ("yacht", 277, M52), ("yacht", 277, SUM), ("housing", 200, M32), ("housing", 455, M52),
    ("housing", 455, RBF), ("energy", 400, M52), ("energy", 691, M52), ("energy", 691, RQ), ("concrete", 500, M32),
    ("concrete", 927, M52), ("concrete", 927, SUM), ("airfoil", 700, M52), ("airfoil", 1352, M52),
    ("airfoil", 1352, RBF), ("wine", 300, M52), ("wine", 1439, M52), ("wine", 1439, SUM), ("elevators", 1000, M52),
    ("elevators", 2500, M32), ("elevators", 6000, M52), ("pol", 800, M52), ("pol", 2000, M32), ("pol", 4000, RBF),
    ("kin40k", 1500, M52), ("kin40k", 3000, M32), ("kin40k", 5000, M52), ("keggdirected", 600, M52),
    ("keggdirected", 2000, M52), ("keggdirected", 4500, M32),
)  # fmt: skip
COLUMNS = [
    {"key": "problem", "title": "table"},
    {"key": "kernel", "title": "kernel"},
    {"key": "predicted_seconds", "title": "predicted"},
    {"key": "range", "title": "most between"},
    {"key": "fit_seconds", "title": "took"},
    {"key": "ratio", "title": "took / predicted", "format": "fixed2"},
    {"key": "in_range", "title": "in the range"},
    {"key": "ratio_built_in", "title": "took / predicted by built-in rates", "format": "fixed2"},
]


def run_cell(cell: Cell) -> dict[str, Any]:
    """The entry of a table, a number of rows and a kernel."""
    n = cell["n"]
    if cell["table"] == "drawn":
        x, y = smooth_data(n, 3, torch.float64)
    else:
        x, y, _, _ = split_of(cell["table"], 0, rows=n)
    gp = _model(cell["kernel"], x.shape[1])
    few = smooth_data(FEW_ROWS, x.shape[1], torch.float64)
    fgp.fit(_model(cell["kernel"], x.shape[1]), *few, starts=2, max_iterations=2)
    began = time.perf_counter()
    fit = fgp.fit(gp, x, y)
    seconds = time.perf_counter() - began
    plan = fit.report.plan
    return {
        "rows_used": len(x),
        "distinct": plan.distinct,
        "d": x.shape[1],
        "parameters": gp.trainable_count,
        "training": plan.training,
        "profile": plan.profile,
        "predicted_seconds": plan.fit_seconds,
        "low_seconds": plan.fit_seconds_low,
        "high_seconds": plan.fit_seconds_high,
        "built_in_seconds": fgp.plan(gp, len(x), x.shape[1], distinct=plan.distinct, profile=BUILT_IN).fit_seconds,
        "fit_seconds": seconds - (fit.report.compile_seconds or 0.0),
        "evaluations": dict(Counter(str(e.run) for e in fit.history)),
        "until": {str(e.run): e.seconds for e in fit.history},
    }


def _model(kernel: str, d: int) -> fgp.GP:
    return fgp.GP(
        KERNELS[kernel](torch.ones(d, dtype=torch.float64)), fgp.means.Constant(), fgp.likelihoods.Gaussian(0.1)
    )


def rows(entries: Mapping[str, Entry]) -> list[dict[str, Any]]:
    """A row of each cell that is done, in the order of PROBLEMS, and one of all."""
    done = [entry for entry in entries.values() if entry["status"] == "done"]
    order = {problem: i for i, problem in enumerate(PROBLEMS)}
    done.sort(key=lambda e: order.get((e["table"], e["n"], e["kernel"]), 0))
    table = [
        {
            "problem": f"{e['table']}, n={e['rows_used']:,}, d={e['d']}",
            "range": f"{readable_seconds(e['low_seconds'])} and {readable_seconds(e['high_seconds'])}",
            "ratio": e["fit_seconds"] / e["predicted_seconds"],
            "ratio_built_in": e["fit_seconds"] / e["built_in_seconds"],
            "in_range": e["low_seconds"] <= e["fit_seconds"] <= e["high_seconds"],
            **{key: e[key] for key in ("kernel", "predicted_seconds", "fit_seconds")},
        }
        for e in done
    ]
    near = [_near(row["ratio"]) for row in table]
    built_in = [_near(row["ratio_built_in"]) for row in table]
    all_of_them = {
        "problem": f"all {len(table)}: within {WITHIN:g}x, with built-in rates, in the range",
        "kernel": f"{sum(near)}, {sum(built_in)}, {sum(row['in_range'] for row in table)}",
        "ratio": statistics.median(row["ratio"] for row in table),
        "ratio_built_in": statistics.median(row["ratio_built_in"] for row in table),
    }
    return [*table, all_of_them]


def _near(ratio: float) -> bool:
    return 1.0 / WITHIN <= ratio <= WITHIN


def line(entry: Entry) -> str:
    low, middle, high, took = (readable_seconds(entry[f"{key}_seconds"]) for key in ("low", "predicted", "high", "fit"))
    return f"{took}, predicted {middle} ({low} to {high}), {sum(entry['evaluations'].values())} evaluations"


CLAIM = Claim("fit_plan", "claim_fit_plan", "Whole fits, predicted and measured", COLUMNS, rows, line)


def main(argv: Sequence[str] | None = None) -> int:
    options = options_of(__doc__ or "", argv, CLAIM.name)
    problems: Sequence[tuple[str, int, str]] = PROBLEMS
    if options.toy:
        problems = [("drawn", 90, M52)]
    elif not SHARED_DATA.exists():
        print(f"not run: the tables are not at {SHARED_DATA}")
        return 0
    elif not options.list:
        options.scratch.mkdir(parents=True, exist_ok=True)
        os.environ[CHOICE] = str(options.scratch)  # of the processes of the cells too
        if read_profile() is None:
            print("measuring the rates of this machine", flush=True)
            fgp.tune()
    cells = [
        Cell(f"{table}/n={n}/{kernel}", {"table": table, "n": n, "kernel": kernel}, 4.0 + 8.0 * (n / 4000) ** 2)
        for table, n, kernel in problems
    ]
    return main_of(CLAIM, cells, options)


if __name__ == "__main__":
    sys.exit(main())
