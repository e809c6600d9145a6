"""Given hyperparameters, up to 36,000 rows: every route against a float64 Cholesky factor, with its seconds and memory.

    python benchmark/claim_conditioning.py --sizes 8000 --noises 1e-3 --routes default stored --scratch FOLDER

x is uniform in the unit cube, d = 8, y a draw of a Matern-3/2 prior of unit variance and lengthscale 0.5 sqrt(d) with
noise. The reference is plain NumPy and LAPACK (problems.py), made once for each size and noise by the cell "reference",
or by the first that needs it, and kept in --scratch: its factor of 36,000 rows takes 10.4 GB and some minutes. Errors:

    mean       the largest at 512 points, in standard deviations of an observation's noise; at most 1e-3
    variance   the largest at 32 of them, relative to the variance itself; at most 1 %
    sampled    how many of the 512 variances lie in the 95 % interval of `variance_probes`; 93 to 97 %

The cells of a size and noise are "reference", "default" (the plan chooses), the routes "direct", "refined", "stored"
and "recomputed" forced, and "sampled". Peaks are the operating system's while conditioning, beside the plan's, of
which 1.1 times, or 64 MiB more, may be taken.
"""

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
from cells import Cell, Claim, Entry, Speaker, beside_plan, kept_plan, main_of, options_of
from problems import Reference, Table, drawn_table, kept

import flashgp as fgp
from flashgp.bench.memory import PeakMeter
from flashgp.foundations.quantities import readable_seconds
from flashgp.inference.predict.sampled_variance import variance_probes
from flashgp.planner.variances import ProbeSizes

D, LENGTHSCALE = 8, 0.5 * 8**0.5
POINTS, SOLVED_POINTS = 512, 32  # test points of means and sampled variances; of exact variances
SAMPLES = 64
MEAN_GOAL, VARIANCE_GOAL = 1e-3, 1e-2
COVERAGE = (0.93, 0.97)
ROUNDING = 1e-6  # of a reference variance, relative
ROUTES = ("direct", "refined", "stored", "recomputed")
WARM_ROWS = 3400  # enough pairs that a route compiles what it will run
COLUMNS = [
    {"key": "work", "title": "rows and noise variance"},
    {"key": "route", "title": "route"},
    {"key": "mean_error", "title": "mean, standard deviations"},
    {"key": "bound_error", "title": "its bound"},
    {"key": "variance_error", "title": "variance, of itself", "format": "error"},
    {"key": "coverage", "title": "in the sampled 95 % interval", "format": "percent"},
    {"key": "condition_seconds", "title": "condition"},
    {"key": "predicted_seconds", "title": "planned"},
    {"key": "peak_bytes", "title": "peak"},
    {"key": "predicted_bytes", "title": "planned"},
    {"key": "iterations", "title": "iterations", "format": "integer"},
    {"key": "met", "title": "reached"},
]


def run_cell(cell: Cell) -> Entry:
    """A reference, a route, or sampled variances."""
    n, noise = cell["n"], cell["noise"]
    table = drawn_table(n, cell["points"], D, LENGTHSCALE, noise)
    began = time.perf_counter()
    truth = _reference(table, n, noise, Path(cell["scratch"]))
    if cell["what"] == "reference":
        return {"seconds": time.perf_counter() - began, "log_marginal_likelihood": float(truth["likelihood"])}
    if cell["what"] == "sampled":
        return _sampled(cell, table, truth)
    return _routed(cell, table, truth)


def _reference(table: Table, n: int, noise: float, scratch: Path) -> dict[str, Any]:
    """Mean and variance at the test points; nothing of the factor is kept."""

    def make() -> dict[str, Any]:
        print(f"  the float64 reference of {n:,} rows: {8 * n * n / 2**30:.1f} GiB", file=sys.stderr, flush=True)
        points = table.x_test / LENGTHSCALE
        posterior = Reference("Matern-3/2", table.x / LENGTHSCALE, table.y, noise)
        return {
            "mean": posterior.mean(points), "variance": posterior.variance(points),
            "likelihood": numpy.array(posterior.log_marginal_likelihood), "y": table.y[:64],
        }  # fmt: skip

    path = scratch / f"conditioning-{n}-{noise:g}-{len(table.x_test)}.npz"
    made = kept(path, make)
    if not numpy.array_equal(made["y"], table.y[:64]):
        raise ValueError(f"{path} is of another table; delete it")
    return made


def _prior(noise: float) -> fgp.GP:
    kernel = fgp.kernels.Matern(nu=1.5, lengthscale=LENGTHSCALE)
    return fgp.GP(kernel, fgp.means.Zero(), fgp.likelihoods.Gaussian(noise))


def _conditioned(cell: Cell, table: Table) -> tuple[Any, float, PeakMeter]:
    """(posterior, seconds, what memory it took), when everything that compiles has compiled."""
    gp = _prior(cell["noise"])
    x, y = torch.from_numpy(table.x), torch.from_numpy(table.y)

    def plan(rows: int) -> Any:
        return fgp.plan(gp, n=rows, d=D, route=cell["what"]) if cell["what"] in ROUTES else None

    few = min(WARM_ROWS, len(x))
    gp.condition(x[:few], y[:few], plan=plan(few)).predict(x[:2]).mean.sum()
    speaker, chosen = Speaker(cell.key), plan(len(x))
    began = time.perf_counter()
    with PeakMeter() as meter:
        post = gp.condition(x, y, plan=chosen, time_limit=cell["time_limit"], progress=speaker.solving)
    return post, time.perf_counter() - began, meter


def _routed(cell: Cell, table: Table, truth: Mapping[str, Any]) -> Entry:
    post, seconds, meter = _conditioned(cell, table)
    report, noise_sd = post.report, cell["noise"] ** 0.5
    began = time.perf_counter()
    mean = post.predict(torch.from_numpy(table.x_test)).mean.numpy()
    mean_seconds = time.perf_counter() - began
    few = slice(None, None, max(1, len(table.x_test) // cell["solved_points"]))
    began = time.perf_counter()
    prediction = post.predict(torch.from_numpy(table.x_test[few].copy()))
    variance = prediction.variance.numpy()
    return {
        "d": D,
        "route": report.route,
        "backend": report.backend,
        "mean_error": float(numpy.abs(mean - truth["mean"]).max()) / noise_sd,
        "bound_error": None if report.error_bound is None else report.error_bound / noise_sd,
        "variance_error": float(numpy.abs(variance / truth["variance"][few] - 1.0).max()),
        "relative_residual": report.relative_residual,
        "iterations": report.iterations,
        "condition_seconds": seconds,
        "predicted_seconds": report.predicted_seconds,
        "mean_seconds": mean_seconds,
        "variance_seconds": time.perf_counter() - began,
        "peak_bytes": meter.peak_bytes,
        "peak_method": meter.method,
        "reported_peak_bytes": report.peak_bytes,
        "predicted_bytes": report.predicted_bytes,
        "events": [str(event) for event in (*report.events, *prediction.report.events)],
    }


def _sampled(cell: Cell, table: Table, truth: Mapping[str, Any]) -> Entry:
    post, seconds, _ = _conditioned(cell, table)
    began = time.perf_counter()
    probes = variance_probes(post.state, ProbeSizes(cell["samples"]), seed=0)
    sampled = probes(torch.from_numpy(table.x_test))
    sampled_seconds = time.perf_counter() - began
    exact = torch.from_numpy(truth["variance"])
    slack = ROUNDING * exact  # where the low-rank bound is the variance itself, the interval has no width
    inside = ((sampled.lower - slack <= exact) & (exact <= sampled.upper + slack)).double().mean()
    return {
        "d": D,
        "route": post.report.route,
        "coverage": float(inside),
        "sampled_error": float((sampled.variance / exact - 1.0).square().mean().sqrt()),
        "condition_seconds": seconds,
        "variance_seconds": sampled_seconds,
        "dispersion": sampled.dispersion,
    }


def rows(entries: Mapping[str, Entry]) -> list[dict[str, Any]]:
    """A row for each route of a size and noise, and for its sampled variances."""
    table_rows = []
    for entry in entries.values():
        if entry["what"] == "reference":
            continue
        row: dict[str, Any] = {"work": f"n={entry['n']:,}, noise {entry['noise']:g}", "route": entry["what"]}
        if entry["status"] != "done":
            table_rows.append({**row, "met": str(entry["error"]).splitlines()[0][:80]})
            continue
        if entry["what"] in ("default", "sampled"):
            row["route"] += f" ({entry['route']})"
        keys = [column["key"] for column in COLUMNS if column["key"] not in ("work", "route", "met")]
        table_rows.append({**row, **{key: entry.get(key) for key in keys}, "met": _shortfall(entry) or "yes"})
    return table_rows or [{"work": "references only"}]


def _shortfall(entry: Entry) -> str:
    if entry["what"] == "sampled":
        return "" if COVERAGE[0] <= entry["coverage"] <= COVERAGE[1] else "coverage"
    checked = {
        "mean": entry["mean_error"] <= MEAN_GOAL,
        "variance": entry["variance_error"] <= VARIANCE_GOAL,
        "memory": kept_plan(entry["peak_bytes"], entry["predicted_bytes"]),
    }
    return ", ".join(name for name, met in checked.items() if not met)


def line(entry: Entry) -> str:
    if entry["what"] == "reference":
        return f"{readable_seconds(entry['seconds'])}"
    taken = readable_seconds(entry["condition_seconds"])
    if entry["what"] == "sampled":
        return f"{100 * entry['coverage']:.1f} % inside, condition {taken}, {entry['route']}"
    return (
        f"mean {entry['mean_error']:.1e} sd, variance {100 * entry['variance_error']:.2g} %, condition {taken}, "
        f"{beside_plan(entry['peak_bytes'], entry['predicted_bytes'])}, {entry['route']}"
    )


CLAIM = Claim(
    "conditioning", "claim_conditioning", "Conditioning on many rows, given hyperparameters", COLUMNS, rows, line
)


def _seconds(n: int, noise: float, what: str) -> float:
    """On two cores, roughly: for what is left only."""
    factor, pairs = n**3 / 3 / 5e10, n * n / 4e8
    passes = {1e-1: 30, 1e-3: 150}.get(noise, 500)
    solved = passes * pairs  # the mean; blocks of points for the variance take some times as long
    taken = {"reference": 2.0 * factor, "direct": 2.0 * factor, "refined": factor + 40.0 * pairs,
             "stored": solved, "recomputed": 5.0 * solved, "sampled": 4.0 * factor}  # fmt: skip
    return 10.0 + taken.get(what, 1.5 * factor)


def main(argv: Sequence[str] | None = None) -> int:
    def more(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--sizes", nargs="+", type=int, default=[2000, 8000, 16000, 36000], metavar="ROWS")
        parser.add_argument("--noises", nargs="+", type=float, default=[1e-1, 1e-3, 1e-5], metavar="VARIANCE")
        parser.add_argument("--routes", nargs="+", choices=WHATS, default=list(WHATS), metavar="ROUTE")
        parser.add_argument("--time-limit", type=float, metavar="SECONDS", help="of conditioning")

    options = options_of(__doc__ or "", argv, CLAIM.name, more)
    if options.toy:
        options.sizes, options.noises = [60], [1e-2]
        options.routes = ["reference", "default", "stored", "sampled"]
    points, solved, samples = (10, 2, 4) if options.toy else (POINTS, SOLVED_POINTS, SAMPLES)
    fixed = {"points": points, "solved_points": solved, "samples": samples, "time_limit": options.time_limit}
    cells = [
        Cell(
            f"n={n}/noise={noise:g}/{what}", {"n": n, "noise": noise, "what": what, **fixed}, _seconds(n, noise, what),
            {"scratch": str(options.scratch)},
        )
        for n in options.sizes
        for noise in options.noises
        for what in options.routes
    ]  # fmt: skip
    return main_of(CLAIM, cells, options)


WHATS = ("reference", "default", *ROUTES, "sampled")

if __name__ == "__main__":
    sys.exit(main())
