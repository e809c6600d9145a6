"""40,000 rows trained under 2 GiB and under 8 GiB: memory beside the plan's, and whether the answer is the same.

    python benchmark/claim_budget.py --budgets 2GiB --time-limit 1800

`fgp.fit(gp, x, y, memory=...)` of a simulated table (uniform in the unit cube, d = 8; a draw of a Matern-3/2 prior of
unit variance and lengthscale 0.5 sqrt(d); noise variance 0.01), each budget in a process of its own; 2,000 rows are
held out. Peaks are the operating system's, above data and packages, while fitting; the plan's is that of training or
of conditioning, whichever is more. RMSE and NLL are of new observations, in units of y.
"""

import argparse
import math
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from cells import Cell, Claim, Entry, Speaker, beside_plan, kept_plan, main_of, options_of
from common import scores
from problems import drawn_table

import flashgp as fgp
from flashgp.bench.memory import PeakMeter
from flashgp.foundations.errors import DomainError
from flashgp.foundations.machine import parse_bytes
from flashgp.foundations.quantities import readable_seconds

D, LENGTHSCALE, NOISE = 8, 0.5 * 8**0.5, 0.01
RMSE_MARGIN, NLL_MARGIN = 0.002, 0.01  # between two budgets, of the same answer
WARM_ROWS = 16
# Training, conditioning and predicting 40,000 rows on two cores, roughly: for what is left only.
SECONDS = {"2GiB": 3600.0, "8GiB": 2400.0}
COLUMNS = [
    {"key": "memory", "title": "budget"},
    {"key": "n", "title": "rows", "format": "integer"},
    {"key": "peak_bytes", "title": "peak"},
    {"key": "planned_bytes", "title": "planned"},
    {"key": "share", "title": "peak / planned", "format": "fixed2"},
    {"key": "training", "title": "training"},
    {"key": "route", "title": "route"},
    {"key": "rmse", "title": "RMSE", "format": "fixed4"},
    {"key": "nll", "title": "NLL", "format": "fixed4"},
    {"key": "parameter_error", "title": "largest change of a log hyperparameter"},
    {"key": "fit_seconds", "title": "fit"},
    {"key": "predict_seconds", "title": "predict"},
    {"key": "met", "title": "reached"},
]


def run_cell(cell: Cell) -> Entry:
    """A fit within a budget, and how well it predicts."""
    n = cell["n"]
    table = drawn_table(n + cell["held_out"], 1, D, LENGTHSCALE, NOISE)
    x, y = torch.from_numpy(table.x), torch.from_numpy(table.y)
    x, y, x_test, y_test = x[:n].clone(), y[:n].clone(), x[n:].clone(), y[n:].clone()
    fgp.fit(_prior(), x[:WARM_ROWS], y[:WARM_ROWS])  # what is imported on first use
    plan = fgp.plan(_prior(), n=n, d=D, memory=cell["memory"])
    print(f"{plan}\n", flush=True)
    began = time.perf_counter()
    with PeakMeter() as meter:
        fit = fgp.fit(
            _prior(), x, y, memory=cell["memory"], seed=cell["seed"], time_limit=cell["time_limit"],
            progress=Speaker(cell.key).training,
        )  # fmt: skip
    fitted = time.perf_counter()
    prediction = fit.posterior.predict(x_test, memory=cell["memory"])
    held_out = scores(prediction.mean, prediction.observation_variance, y_test)
    predicted = time.perf_counter()
    report = fit.report
    used = report.plan
    return {
        "d": D,
        **held_out,
        "noise_rmse": math.sqrt(NOISE),
        "hyperparameters": {
            "lengthscale": fit.gp.kernel.kernel.lengthscale.value.tolist(),
            "variance": fit.gp.kernel.variance.value.item(),
            "noise_variance": fit.gp.likelihood.noise_variance.value.item(),
            "mean": fit.gp.mean.value.value.item(),
        },
        "peak_bytes": meter.peak_bytes,
        "peak_method": meter.method,
        "reported_peak_bytes": report.peak_bytes,
        "planned_bytes": max(used.training_bytes, used.peak_bytes),
        "training": used.training,
        "route": report.route,
        "error_bound": report.error_bound,
        "relative_residual": report.relative_residual,
        "evaluations": len(fit.history),
        "interrupted": fit.interrupted,
        "fit_seconds": fitted - began,
        "predict_seconds": predicted - fitted,
        "compile_seconds": report.compile_seconds,
        "predicted_seconds": report.predicted_seconds,
        "events": [str(event) for event in (*report.events, *prediction.report.events)],
    }


def _prior() -> fgp.GP:
    kernel = 1.0 * fgp.kernels.Matern(nu=1.5, lengthscale=torch.ones(D, dtype=torch.float64))
    return fgp.GP(kernel, fgp.means.Constant(), fgp.likelihoods.Gaussian(0.1))


def rows(entries: Mapping[str, Entry]) -> list[dict[str, Any]]:
    """A row for each budget, compared with the largest one of as many rows that has an answer."""
    table_rows = []
    for entry in entries.values():
        row: dict[str, Any] = {"memory": entry["memory"], "n": entry["n"]}
        if entry["status"] != "done":
            table_rows.append({**row, "met": str(entry["error"]).splitlines()[0][:80]})
            continue
        alike = [other for other in entries.values() if other["status"] == "done" and other["n"] == entry["n"]]
        best = max(alike, key=lambda other: parse_bytes(other["memory"]))
        share = entry["peak_bytes"] / entry["planned_bytes"]
        short = [] if kept_plan(entry["peak_bytes"], entry["planned_bytes"]) else ["memory"]
        if best is not entry:
            row["parameter_error"] = _change(entry["hyperparameters"], best["hyperparameters"])
            short += [] if abs(entry["rmse"] - best["rmse"]) <= RMSE_MARGIN else ["RMSE"]
            short += [] if abs(entry["nll"] - best["nll"]) <= NLL_MARGIN else ["NLL"]
        keys = [column["key"] for column in COLUMNS if column["key"] in entry]
        row |= {key: entry[key] for key in keys} | {"share": share}
        said = f"not {', '.join(short)}" if short else "yes"
        table_rows.append({**row, "met": said + (", ended by its time limit" if entry["interrupted"] else "")})
    return table_rows


def _change(values: Mapping[str, Any], others: Mapping[str, Any]) -> float:
    """The largest change of a positive one, on its logarithm: lengthscales, variance, noise variance."""
    pairs = [*zip(values["lengthscale"], others["lengthscale"], strict=True)]
    pairs += [(values[name], others[name]) for name in ("variance", "noise_variance")]
    return max(abs(math.log(a / b)) for a, b in pairs)


def line(entry: Entry) -> str:
    memory = beside_plan(entry["peak_bytes"], entry["planned_bytes"])
    return (
        f"RMSE {entry['rmse']:.4f}, NLL {entry['nll']:.4f}, {memory}, "
        f"fit {readable_seconds(entry['fit_seconds'])}, training {entry['training']}, route {entry['route']}"
    )


CLAIM = Claim("budget", "claim_budget", "Training within a memory budget", COLUMNS, rows, line)


def main(argv: Sequence[str] | None = None) -> int:
    def more(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--budgets", nargs="+", default=["2GiB", "8GiB"], metavar="BYTES")
        parser.add_argument("--n", type=int, default=40_000, metavar="ROWS")
        parser.add_argument("--seed", type=int, default=0)
        parser.add_argument("--time-limit", type=float, metavar="SECONDS", help="of each fit; its best is scored")

    options = options_of(__doc__ or "", argv, CLAIM.name, more)
    if options.toy:
        options.budgets = options.budgets[:1]
    n, held_out = (60, 10) if options.toy else (options.n, 2000)
    try:
        for budget in options.budgets:
            parse_bytes(budget, "--budgets")
    except DomainError as error:
        print(error, file=sys.stderr)
        return 2
    fixed = {"n": n, "held_out": held_out, "seed": options.seed, "time_limit": options.time_limit}
    scale = (n / 40_000) ** 2
    cells = [
        Cell(f"n={n}/{budget}", {"memory": budget, **fixed}, 30.0 + scale * SECONDS.get(budget, 3600.0))
        for budget in options.budgets
    ]
    return main_of(CLAIM, cells, options)


if __name__ == "__main__":
    sys.exit(main())
