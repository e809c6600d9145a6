"""Whole fits of many rows at their defaults: of Parquet files that are read, and of held rows to the exact mean.

    python benchmark/claim_whole_fits.py --sizes 1000000 --what read --scratch FOLDER

The truth is a draw of a Matern-3/2 prior by 4,096 random features in the unit cube, as in claim_million.py, of
lengthscale 0.5 sqrt(8) in 8 columns (read) and 0.1 in 3 (exact); observations have noise of variance 0.01. The model
has a lengthscale for each column, a variance, a constant mean and a noise variance, none of which are told it.

    read     `fgp.fit(gp, fgp.data.parquet(...))` of four files: inducing points and their collapsed bound
    exact    `fgp.fit(gp, x, y, approximation="full_scale", exact_posterior=True, memory="5.2GiB")`: parameters by the
             approximation, then the exact mean by conjugate gradients, with its bound

Beside seconds and the operating system's peak stand the RMSE of the mean to the function at 10,000 points, and the
mean negative log density of new observations there, whose least value, by the true parameters and the function itself,
is log(2 pi e 0.01) / 2 = -0.884.
"""

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from cells import Cell, Claim, Entry, Speaker, beside_plan, main_of, options_of
from claim_million import LENGTHSCALES, NOISE, SEED
from problems import drawn_table

import flashgp as fgp
from flashgp.bench.memory import PeakMeter
from flashgp.foundations.normal import LOG_2PI
from flashgp.foundations.quantities import readable_seconds

WHATS = {"read": (8, 1200.0), "exact": (3, 480.0)}  # columns, and seconds that may be taken for a million rows
POINTS, FILES, MEMORY_GOAL = 10_000, 4, 5e9
MEMORY = "5.2GiB"  # of exact means: what a plan may take for the goal to be kept
COLUMNS = [
    {"key": "work", "title": "rows"},
    {"key": "fit_seconds", "title": "fit"},
    {"key": "predicted_seconds", "title": "planned"},
    {"key": "peak_bytes", "title": "peak"},
    {"key": "evaluations", "title": "evaluations", "format": "integer"},
    {"key": "rmse", "title": "RMSE to the function", "format": "fixed4"},
    {"key": "nll", "title": "negative log density", "format": "fixed4"},
    {"key": "bound_error", "title": "bound of the mean, standard deviations"},
    {"key": "reached", "title": "reached"},
    {"key": "note", "title": "note"},
]


def _prior(d: int) -> fgp.GP:
    kernel = 1.0 * fgp.kernels.Matern(nu=1.5, lengthscale=torch.ones(d, dtype=torch.float64))
    return fgp.GP(kernel, fgp.means.Constant(), fgp.likelihoods.Gaussian(0.1))


def _written(folder: Path, x: torch.Tensor, y: torch.Tensor) -> list[Path]:
    """The rows as Parquet files."""
    import pyarrow
    import pyarrow.parquet

    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, part in enumerate(torch.arange(len(x)).tensor_split(FILES)):
        columns = {f"x{j}": x[part, j].numpy() for j in range(x.shape[1])} | {"y": y[part].numpy()}
        paths.append(folder / f"part-{number}.parquet")
        pyarrow.parquet.write_table(pyarrow.table(columns), paths[-1], row_group_size=65_536)
    return paths


def run_cell(cell: Cell) -> Entry:
    n, d, what = cell["n"], cell["d"], cell["what"]
    table = drawn_table(n, cell["points"], d, LENGTHSCALES[d], NOISE, SEED)
    x, y, x_test, f_test = map(torch.from_numpy, table)
    few = min(3400, n)
    fgp.fit(_prior(d), x[:few], y[:few], starts=1, max_iterations=2, progress=False)  # what is compiled
    source = None
    if what == "read":
        paths = _written(Path(cell["scratch"]) / f"whole-fits-{n}", x, y)
        source = fgp.data.parquet(paths, target="y")
        del x, y, table
    speaker, began = Speaker(cell.key), time.perf_counter()
    with PeakMeter() as meter:
        if source is not None:
            fit = fgp.fit(_prior(d), source, approximation="sparse", progress=speaker.training)
        else:
            fit = fgp.fit(
                _prior(d), x, y, approximation="full_scale", exact_posterior=True, memory=MEMORY,
                progress=speaker.training,
            )  # fmt: skip
        seconds = time.perf_counter() - began
    prediction = fit.posterior.predict(x_test)
    # "read" gives variances of new observations; the exact mean of so many rows has none within the time.
    variance = prediction.observation_variance if what == "read" else None
    generator = torch.Generator().manual_seed(SEED + 1)
    observed = f_test + NOISE**0.5 * torch.randn(len(f_test), generator=generator, dtype=torch.float64)
    error, report = observed - prediction.mean, fit.report
    nll = None if variance is None else float(0.5 * (LOG_2PI + variance.log() + error.square() / variance).mean())
    bound = fit.posterior.report.error_bound
    return {
        "fit_seconds": seconds,
        "predicted_seconds": report.predicted_seconds,
        "peak_bytes": meter.peak_bytes,
        "peak_method": meter.method,
        "predicted_bytes": report.predicted_bytes,
        "evaluations": len(fit.history),
        "rmse": float((prediction.mean - f_test).square().mean().sqrt()),
        "nll": nll,
        "bound_error": None if bound is None else bound / NOISE**0.5,
        "noise": float(fit.gp.likelihood.noise_variance.value.detach()),
        "events": [str(event) for event in report.events],
    }


def rows(entries: Mapping[str, Entry]) -> list[dict[str, Any]]:
    table_rows = []
    for entry in sorted(entries.values(), key=lambda entry: (entry["what"], entry["n"])):
        row = {"work": f"{entry['what']}, n={entry['n']:,}, d={entry['d']}"}
        if entry["status"] != "done":
            table_rows.append({**row, "note": str(entry["error"]).splitlines()[0][:80]})
            continue
        row |= {column["key"]: entry.get(column["key"]) for column in COLUMNS if column["key"] not in row}
        limit = WHATS[entry["what"]][1] * entry["n"] / 1e6
        row["reached"] = bool(entry["fit_seconds"] <= limit and entry["peak_bytes"] <= MEMORY_GOAL)
        table_rows.append(row)
    return table_rows


def line(entry: Entry) -> str:
    memory = beside_plan(entry["peak_bytes"], entry["predicted_bytes"] or 0)
    return f"RMSE {entry['rmse']:.4f}, {readable_seconds(entry['fit_seconds'])}, {memory}"


CLAIM = Claim("whole_fits", "claim_whole_fits", "Whole fits of up to a million rows", COLUMNS, rows, line)


def main(argv: Sequence[str] | None = None) -> int:
    def more(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--sizes", nargs="+", type=int, default=[1_000_000], metavar="ROWS")
        parser.add_argument("--what", nargs="+", choices=list(WHATS), default=list(WHATS))

    options = options_of(__doc__ or "", argv, CLAIM.name, more)
    sizes, points = ([200], 20) if options.toy else (options.sizes, POINTS)
    cells = [
        Cell(
            f"{what}/n={n}", {"what": what, "n": n, "d": WHATS[what][0], "points": points}, WHATS[what][1] * n / 1e6,
            {"scratch": str(options.scratch)},
        )
        for what in options.what
        for n in sizes
    ]  # fmt: skip
    return main_of(CLAIM, cells, options)


if __name__ == "__main__":
    sys.exit(main())
