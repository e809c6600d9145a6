"""20,000, 200,000 and 1,000,000 rows, given hyperparameters: what the plan says, then mean and 64 posterior paths.

    python benchmark/claim_million.py --sizes 200000 --dims 3 --time-limit 3600 --scratch FOLDER

The truth is a draw of a Matern-3/2 prior of unit variance by 4,096 random features in the unit cube, of lengthscale 0.1
(d = 3) or 0.5 sqrt(d) (d = 8); observations have noise of variance 0.01. A size and d has four cells:

    plan    `fgp.plan`: route, bytes and seconds of conditioning and of the mean at 10,000 points; takes no time
    mean    `gp.condition` (ended by --time-limit, with the bound reached) and the mean at 10,000 points
    pairs   the same by products of all pairs alone, by a plan that says that these take no time
    paths   64 posterior functions at these points, from the posterior that "mean" has left in --scratch, or its own

Errors are against the function that is known: the mean's RMSE says how well it was learnt, and how often the function
lies in the mean's +- 1.96 standard deviations of the paths whether these are what they should be (95 %). The solves of
paths have no time limit: --end-after ends the cell.
"""

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from cells import Cell, Claim, Entry, Speaker, beside_plan, main_of, options_of
from problems import drawn_table

import flashgp as fgp
from flashgp.bench.memory import PeakMeter
from flashgp.foundations.events import EventKind, of_kind
from flashgp.foundations.normal import QUANTILE_975
from flashgp.foundations.quantities import readable_bytes, readable_seconds

NOISE, SEED = 0.01, 0
LENGTHSCALES = {3: 0.1, 8: 0.5 * 8**0.5}
POINTS, PATHS = 10_000, 64
WARM_ROWS = 3400  # enough pairs that the compiled backend is compiled
COLUMNS = [
    {"key": "work", "title": "rows"},
    {"key": "what", "title": "of"},
    {"key": "route", "title": "route"},
    {"key": "total_seconds", "title": "seconds"},
    {"key": "predicted_seconds", "title": "planned"},
    {"key": "peak_bytes", "title": "peak"},
    {"key": "predicted_bytes", "title": "planned"},
    {"key": "cpu_seconds", "title": "seconds of the cores"},
    {"key": "iterations", "title": "iterations", "format": "integer"},
    {"key": "passes", "title": "passes over the pairs", "format": "integer"},
    {"key": "bound_error", "title": "bound, standard deviations"},
    {"key": "rmse", "title": "RMSE to the function", "format": "fixed4"},
    {"key": "coverage", "title": "function in 95 % of the paths", "format": "percent"},
    {"key": "note", "title": "note"},
]


def run_cell(cell: Cell) -> Entry:
    if cell["what"] == "plan":
        return _planned(cell)
    table = drawn_table(cell["n"], cell["points"], cell["d"], LENGTHSCALES[cell["d"]], NOISE, SEED)
    x, y, x_test, f_test = (torch.from_numpy(part).to(cell["device"]) for part in table)
    return (_paths if cell["what"] == "paths" else _mean)(cell, x, y, x_test, f_test)


def _prior(d: int) -> fgp.GP:
    kernel = fgp.kernels.Matern(nu=1.5, lengthscale=LENGTHSCALES[d])
    return fgp.GP(kernel, fgp.means.Zero(), fgp.likelihoods.Gaussian(NOISE))


def _planned(cell: Cell) -> Entry:
    n, d = cell["n"], cell["d"]
    began = time.perf_counter()
    plan = fgp.plan(_prior(d), n=n, d=d, memory=cell["memory"], device=cell["device"])
    at_points = fgp.plan(
        _prior(d), n=n, d=d, n_test=cell["points"], variance=False, memory=cell["memory"], device=cell["device"]
    )
    print(f"{plan}\n", flush=True)
    return {
        "route": plan.route,
        "backend": plan.backend,
        "profile": plan.profile,
        "predicted_seconds": plan.seconds + at_points.seconds,
        "predicted_bytes": max(plan.peak_bytes, at_points.peak_bytes),
        "total_seconds": time.perf_counter() - began,
        "plan": plan.to_json(),
        "prediction_plan": at_points.to_json(),
    }


def _conditioned(cell: Cell, x: torch.Tensor, y: torch.Tensor) -> Any:
    gp = _prior(cell["d"])
    plan = fgp.plan(gp, n=len(x), d=cell["d"], memory=cell["memory"], device=cell["device"])
    plan = replace(plan, seconds=0.0) if cell["what"] == "pairs" else plan
    return gp.condition(x, y, plan=plan, time_limit=cell["time_limit"], progress=Speaker(cell.key).solving)


def _warm(cell: Cell, x: torch.Tensor, y: torch.Tensor) -> None:
    """Compile what the routes of many rows run, on few."""
    gp, few = _prior(cell["d"]), min(WARM_ROWS, len(x))
    plan = fgp.plan(gp, n=len(x), d=cell["d"], memory=cell["memory"], device=cell["device"])
    small = fgp.plan(gp, n=few, d=cell["d"], route=plan.route, device=cell["device"])
    gp.condition(x[:few], y[:few], plan=small).predict(x[:2]).mean.sum()


def _file(cell: Cell) -> Path:
    return Path(cell["scratch"]) / f"million-{cell['n']}-{cell['d']}.safetensors"


def _meter(cell: Cell) -> PeakMeter:
    return PeakMeter(cuda=cell["device"].startswith("cuda"))


def _mean(cell: Cell, x: torch.Tensor, y: torch.Tensor, x_test: torch.Tensor, f_test: torch.Tensor) -> Entry:
    _warm(cell, x, y)
    began, processed = time.perf_counter(), time.process_time()
    with _meter(cell) as meter:
        post = _conditioned(cell, x, y)
        conditioned = time.perf_counter()
        prediction = post.predict(x_test, memory=cell["memory"])
        mean = prediction.mean.cpu()
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - processed
    _file(cell).parent.mkdir(parents=True, exist_ok=True)
    fgp.save(post, _file(cell))
    report = post.report
    passes = [event.fields["passes"] for event in of_kind(report.events, EventKind.SOLVED)]
    return {
        "route": report.route,
        "backend": report.backend,
        "iterations": report.iterations,
        "passes": passes[0] if passes else None,
        "cpu_seconds": cpu_seconds,
        "relative_residual": report.relative_residual,
        "bound_error": None if report.error_bound is None else report.error_bound / NOISE**0.5,
        "rmse": _rmse(mean, f_test),
        "function_sd": float(f_test.std()),
        "total_seconds": seconds,
        "condition_seconds": conditioned - began,
        "predicted_seconds": (report.predicted_seconds or 0.0) + (prediction.report.predicted_seconds or 0.0),
        "peak_bytes": meter.peak_bytes,
        "peak_method": meter.method,
        "predicted_bytes": max(report.predicted_bytes or 0, prediction.report.predicted_bytes or 0),
        "events": [str(event) for event in (*report.events, *prediction.report.events)],
    }


def _paths(cell: Cell, x: torch.Tensor, y: torch.Tensor, x_test: torch.Tensor, f_test: torch.Tensor) -> Entry:
    _warm(cell, x, y)
    loaded = _file(cell).exists()
    post = fgp.load(_file(cell)) if loaded else _conditioned(cell, x, y)
    if loaded and (post.count, post.x.shape[-1]) != (cell["n"], cell["d"]):
        raise ValueError(f"{_file(cell)} is a posterior of other data; delete it")
    began = time.perf_counter()
    with _meter(cell) as meter:
        paths = post.paths(cell["paths"], seed=SEED)
        drawn = time.perf_counter()
        values = paths(x_test).cpu()
    seconds = time.perf_counter() - began
    mean, deviation = values.mean(0), values.std(0)
    mean = post.predict(x_test, memory=cell["memory"]).mean.cpu()
    inside = (f_test.cpu() - mean).abs() <= QUANTILE_975 * deviation
    report = paths.report
    return {
        "route": post.report.route,
        "iterations": report.iterations,
        "relative_residual": report.relative_residual,
        "bound_error": None if report.error_bound is None else report.error_bound / NOISE**0.5,
        "prior_error": paths.prior_error,
        "rmse": _rmse(values.mean(0), f_test),
        "coverage": float(inside.double().mean()),
        "mean_deviation": float(deviation.mean()),
        "total_seconds": seconds,
        "solve_seconds": drawn - began,
        "peak_bytes": meter.peak_bytes,
        "peak_method": meter.method,
        "loaded": loaded,
        "events": list(map(str, report.events)),
    }


def _rmse(mean: torch.Tensor, truth: torch.Tensor) -> float:
    return float((mean - truth.cpu()).square().mean().sqrt())


def rows(entries: Mapping[str, Entry]) -> list[dict[str, Any]]:
    """A row for each cell, sizes and dimensions in turn."""
    order = {"plan": 0, "mean": 1, "pairs": 2, "paths": 3}
    table_rows = []
    for entry in sorted(entries.values(), key=lambda entry: (entry["d"], entry["n"], order[entry["what"]])):
        row = {"work": f"n={entry['n']:,}, d={entry['d']}, {entry['device']}", "what": entry["what"]}
        if entry["status"] != "done":
            table_rows.append({**row, "note": str(entry["error"]).splitlines()[0][:80]})
            continue
        row |= {column["key"]: entry.get(column["key"]) for column in COLUMNS if column["key"] not in row}
        limit = entry["time_limit"]
        if entry["what"] in ("mean", "pairs") and limit is not None and entry["condition_seconds"] >= limit:
            row["note"] = f"ended by its time limit of {readable_seconds(limit)}"
        table_rows.append(row)
    return table_rows


def line(entry: Entry) -> str:
    if entry["what"] == "plan":
        return (
            f"{entry['route']} on {entry['backend']}, {readable_bytes(entry['predicted_bytes'])}, "
            f"{readable_seconds(entry['predicted_seconds'])}"
        )
    bound = "" if entry["bound_error"] is None else f"bound {entry['bound_error']:.1e} sd, "
    memory = beside_plan(entry["peak_bytes"], entry["predicted_bytes"]) if entry["what"] != "paths" else ""
    inside = f"{100 * entry['coverage']:.1f} % inside" if entry["what"] == "paths" else memory
    return f"RMSE {entry['rmse']:.4f}, {bound}{readable_seconds(entry['total_seconds'])}, {inside}"


CLAIM = Claim("million", "claim_million", "Up to a million rows, given hyperparameters", COLUMNS, rows, line)


def _seconds(n: int, what: str) -> float:
    """On two cores, roughly, for what is left only: passes of one product, and of one with 64 columns."""
    passes = {"plan": 0.0, "mean": 40.0, "pairs": 100.0, "paths": 1000.0}[what]
    return 3.0 if what == "plan" else 20.0 + passes * n * n / 5e8


def main(argv: Sequence[str] | None = None) -> int:
    def more(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--sizes", nargs="+", type=int, default=[20_000, 200_000, 1_000_000], metavar="ROWS")
        parser.add_argument("--dims", nargs="+", type=int, choices=list(LENGTHSCALES), default=list(LENGTHSCALES))
        parser.add_argument("--what", nargs="+", choices=WHATS, default=list(WHATS))
        parser.add_argument("--time-limit", type=float, metavar="SECONDS", help="of conditioning")
        parser.add_argument("--memory", metavar="BYTES", help="budget, such as 8GiB; what is free if left out")
        parser.add_argument("--device", default="cpu", help="where the data are, such as cuda")

    options = options_of(__doc__ or "", argv, CLAIM.name, more)
    if options.toy:
        options.sizes, options.dims = [100], options.dims[:1]
    points, paths = (20, 4) if options.toy else (POINTS, PATHS)
    fixed = {"points": points, "paths": paths, "time_limit": options.time_limit, "memory": options.memory}
    suffix = "" if options.device == "cpu" else f"/{options.device}"
    cells = [
        Cell(
            f"n={n}/d={d}/{what}{suffix}", {"n": n, "d": d, "what": what, "device": options.device, **fixed},
            _seconds(n, what), {"scratch": str(options.scratch)},
        )
        for what in options.what  # plans of all sizes first: they say what the rest takes
        for n in options.sizes
        for d in options.dims
    ]  # fmt: skip
    return main_of(CLAIM, cells, options)


WHATS = ("plan", "mean", "pairs", "paths")

if __name__ == "__main__":
    sys.exit(main())
