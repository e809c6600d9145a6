"""The headline figures of two checkouts, in turns on one machine: what a change of the code costs or brings.

    python benchmark/before_after.py --against ../before/src             # this checkout beside another one's src
    python benchmark/before_after.py --against ../before/src --only fit  # rows whose name contains this; no record
    python benchmark/before_after.py --against ../before/src --long      # whole fits of published sets too
    python benchmark/before_after.py --against ../before/src --only fit --record FILE  # with one

Every row runs in a process of its own and uses public names only, so that the same text runs on both. Processes take
turns, A B B A ..., and a row's seconds are the smallest of its turns: other work on the machine only ever adds time.
Beside the seconds stand the process's peak memory and a number that says how right the answer is: its error against a
float64 reference, or what was reached (nats a row, root mean squared error). Each row of the record,
before_after.json, has the commits of the two checkouts that it was measured on.
"""

import argparse
import gzip
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy
import torch

from flashgp.bench import read_record, write_record
from flashgp.bench.records import commit

HERE = Path(__file__).resolve()
RECORD = HERE.parent / "records" / "before_after.json"
TABLES = HERE.parents[2] / "shared" / "data" / "uci"
COLUMNS = [
    {"key": "work", "title": "work"},
    {"key": "before_seconds", "title": "before"},
    {"key": "after_seconds", "title": "after"},
    {"key": "ratio", "title": "after / before", "format": "fixed2"},
    {"key": "before_peak_bytes", "title": "memory before"},
    {"key": "after_peak_bytes", "title": "after"},
    {"key": "measure", "title": "answer", "format": "text"},
    {"key": "before_answer", "title": "before", "format": "text"},
    {"key": "after_answer", "title": "after", "format": "text"},
]
Row = Callable[[], tuple[float, float]]  # seconds, and how right the answer is
ROWS: dict[str, tuple[Row, str]] = {}
LONG: set[str] = set()


def row(name: str, measure: str, long: bool = False) -> Callable[[Row], Row]:
    """Register a row by name; measure: what its second number is."""

    def register(function: Row) -> Row:
        ROWS[name] = (function, measure)
        if long:
            LONG.add(name)
        return function

    return register


def timed(job: Callable[[], Any], turns: int, warmup: int = 1) -> tuple[float, Any]:
    """The median seconds of some calls after others, and the last answer."""
    for _ in range(warmup):
        answer = job()
    seconds = []
    for _ in range(turns):
        started = time.perf_counter()
        answer = job()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds), answer


def table(name: str, rows: int | None = None) -> tuple[torch.Tensor, ...]:
    """Training and test parts of a published split, standardised by the training rows."""
    with gzip.open(TABLES / name / "data.csv.gz") as file:
        data = numpy.loadtxt(file, delimiter=",", ndmin=2)
    with gzip.open(TABLES / name / "test_mask.csv.gz") as file:
        test = numpy.loadtxt(file, delimiter=",", ndmin=2)[:, 0] > 0.5
    train, held_out = data[~test][:rows], data[test]
    centre, spread = train.mean(0), train.std(0)
    spread[spread == 0] = 1.0
    train, held_out = (train - centre) / spread, (held_out - centre) / spread
    return tuple(torch.from_numpy(numpy.ascontiguousarray(t)) for t in
                 (train[:, :-1], train[:, -1], held_out[:, :-1], held_out[:, -1]))  # fmt: skip


def points(n: int, d: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def model(d: int, lengthscale: float = 0.5, noise: float = 0.05) -> Any:
    import flashgp as fgp

    kernel = 1.0 * fgp.kernels.Matern(nu=1.5, lengthscale=torch.full((d,), lengthscale))
    return fgp.GP(kernel, likelihood=fgp.likelihoods.Gaussian(noise))


def matern(x1: torch.Tensor, x2: torch.Tensor, lengthscale: float = 0.5) -> torch.Tensor:
    r = math.sqrt(3.0) * torch.cdist(x1, x2, compute_mode="donot_use_mm_for_euclid_dist") / lengthscale
    return (1.0 + r) * torch.exp(-r)


def product(n: int, t: int, dtype: torch.dtype) -> tuple[float, float]:
    x, v = points(n, 8).to(dtype), points(n, t, 1).to(dtype)
    operator = model(8).kernel.operator(x)
    with torch.no_grad():
        seconds, answer = timed(lambda: operator @ v, 3, warmup=2)
    truth = matern(x[:256].double(), x.double()) @ v.double()
    return seconds, float((answer[:256].double() - truth).norm() / truth.norm())


row("product, 20,000 rows, 1 column, float32", "relative error")(lambda: product(20_000, 1, torch.float32))
row("product, 20,000 rows, 16 columns, float32", "relative error")(lambda: product(20_000, 16, torch.float32))
row("product, 10,000 rows, 1 column, float64", "relative error")(lambda: product(10_000, 1, torch.float64))
row("product, 1,000 rows, 1 column, float64", "relative error")(lambda: product(1000, 1, torch.float64))


@row("gradient of a product, 10,000 rows, float32", "gradient of the variance")
def _gradient() -> tuple[float, float]:
    x, v = points(10_000, 8).float(), points(10_000, 4, 1).float()
    kernel = model(8).kernel

    def job() -> float:
        kernel.zero_grad()
        (kernel.operator(x) @ v).square().mean().backward()
        return float(next(iter(kernel.parameters())).grad.sum())

    return timed(job, 3, warmup=2)


@row("block, 4,096 rows, float32", "relative error")
def _block() -> tuple[float, float]:
    x = points(4096, 8).float()
    operator = model(8).kernel.operator(x)
    with torch.no_grad():
        seconds, answer = timed(operator.to_dense, 5, warmup=2)
    truth = matern(x[:256].double(), x.double())
    return seconds, float((answer[:256].double() - truth).norm() / truth.norm())


def objective(n: int, turns: int) -> tuple[float, float]:
    x = points(n, 8)
    y = (
        torch.sin(4.0 * x[:, 0])
        + x[:, 1]
        + 0.1 * torch.randn(n, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    )
    gp = model(8)

    def job() -> float:
        gp.zero_grad()
        value = gp.log_marginal_likelihood(x, y)
        value.backward()
        return float(value.detach()) / n

    return timed(job, turns, warmup=max(2, turns // 5))


for _n, _turns in ((50, 200), (200, 100), (500, 30), (2000, 5)):
    row(f"likelihood with gradient, {_n:,} rows", "nats a row")(lambda n=_n, turns=_turns: objective(n, turns))


def fitted(name: str, rows: int | None, **options: Any) -> tuple[float, float]:
    import flashgp as fgp

    x, y, x_test, y_test = table(name, rows)
    started = time.perf_counter()
    fit = fgp.fit(model(x.shape[1], lengthscale=1.0, noise=0.1), x, y, **options)
    mean = fit.posterior.predict(x_test).mean
    return time.perf_counter() - started, float((mean - y_test).square().mean().sqrt())


row("fit, concrete, 927 rows", "RMSE")(lambda: fitted("concrete", None))
row("fit, elevators, 1,000 rows", "RMSE")(lambda: fitted("elevators", 1000))
row("fit by full scale, 4,000 rows of kin40k", "RMSE")(
    lambda: fitted("kin40k", 4000, approximation="full_scale", inducing=64, neighbours=32, starts=1)
)
row("fit by inducing points, 10,000 rows of kin40k", "RMSE")(
    lambda: fitted("kin40k", 10_000, approximation="sparse", inducing=64, starts=1)
)
row("fit by estimated gradients, 5,000 rows of elevators", "RMSE", long=True)(lambda: fitted("elevators", 5000))
row("fit, elevators, all rows", "RMSE", long=True)(lambda: fitted("elevators", None))
row("fit, pol, all rows", "RMSE", long=True)(lambda: fitted("pol", None))


@row("collapsed bound with gradient, 20,000 rows, 256 points", "nats a row")
def _bound() -> tuple[float, float]:
    x = points(20_000, 8)
    y, gp = torch.sin(4.0 * x[:, 0]) + x[:, 1], model(8)

    def job() -> float:
        gp.zero_grad()
        value = gp.collapsed_bound(x, y, inducing=x[:256])
        value.backward()
        return float(value.detach()) / len(x)

    return timed(job, 3, warmup=2)


@row("mean and variance of a point, 2,000 rows", "RMSE")
def _one_point() -> tuple[float, float]:
    x, y, x_test, y_test = table("elevators", 2000)
    post = model(x.shape[1], lengthscale=8.0, noise=0.1).condition(x, y)

    def job() -> torch.Tensor:
        prediction = post.predict(x_test[:1])
        return prediction.mean + 0.0 * prediction.variance

    seconds, _ = timed(job, 100, warmup=20)
    return seconds, float((post.predict(x_test[:500]).mean - y_test[:500]).square().mean().sqrt())


def conditioned(rows: int, **options: Any) -> tuple[float, float]:
    x, y, x_test, y_test = table("elevators", rows)
    gp = model(x.shape[1], lengthscale=8.0, noise=0.1)

    def job() -> torch.Tensor:
        post = gp.condition(x, y, **options)
        prediction = post.predict(x_test[:500])
        return prediction.mean if options else prediction.mean + 0.0 * prediction.variance

    seconds, mean = timed(job, 2)
    return seconds, float((mean - y_test[:500]).square().mean().sqrt())


row("conditioning with variances, 3,000 rows", "RMSE")(lambda: conditioned(3000))
row("conditioning by conjugate gradients, 8,000 rows", "RMSE")(lambda: conditioned(8000, solver="cg"))


@row("conditioning at a low noise, 6,000 rows of kin40k", "RMSE", long=True)
def _low_noise() -> tuple[float, float]:
    x, y, x_test, y_test = table("kin40k", 6000)
    gp = model(x.shape[1], lengthscale=2.0, noise=1e-4)
    seconds, mean = timed(lambda: gp.condition(x, y, solver="cg").predict(x_test[:500]).mean, 1, warmup=0)
    return seconds, float((mean - y_test[:500]).square().mean().sqrt())


def solved(rows: int) -> tuple[float, float]:
    """kin40k at hyperparameters that a fit has found, where float32 products of a solve end early."""
    import flashgp as fgp

    x, y, x_test, y_test = table("kin40k", rows)
    lengthscales = torch.tensor([33.6, 32.2, 18.3, 20.8, 20.7, 16.1, 16.2, 22.9], dtype=torch.float64)
    kernel = 197.0 * fgp.kernels.Matern(nu=1.5, lengthscale=lengthscales)
    gp = fgp.GP(kernel, fgp.means.Constant(1.40), fgp.likelihoods.Gaussian(2.9e-5))
    gp.condition(x[:3400], y[:3400], solver="cg")  # imports, what is compiled
    seconds, post = timed(lambda: gp.condition(x, y, solver="cg"), 1, warmup=0)
    return seconds, float((post.predict(x_test[:500]).mean - y_test[:500]).square().mean().sqrt())


for _n in (16_000, 36_000):
    row(f"conditioning at a low noise, {_n:,} rows of kin40k", "RMSE", long=True)(lambda n=_n: solved(n))


def online(rows: int, step: str, steps: int, **options: Any) -> tuple[float, float]:
    x, y, x_test, y_test = table("elevators", rows + steps + 20)
    gp = model(x.shape[1], lengthscale=8.0, noise=0.1)
    post = gp.condition(x[:rows], y[:rows], **options)
    seconds = []
    for i in range(rows, rows + steps + 20):
        started = time.perf_counter()
        post = getattr(post, step)(x[i : i + 1], y[i : i + 1])
        mean = post.predict(x_test[:1]).mean
        seconds.append(time.perf_counter() - started)
    mean = post.predict(x_test[:500]).mean
    return statistics.median(seconds[20:]), float((mean - y_test[:500]).square().mean().sqrt())


row("append a row and predict, 500 rows", "RMSE")(lambda: online(500, "append", 200))
row("append a row and predict, 2,000 rows", "RMSE")(lambda: online(2000, "append", 100))
row("slide by a row and predict, 500 rows", "RMSE")(lambda: online(500, "slide", 200))
row("slide by a row and predict, 2,000 rows", "RMSE")(lambda: online(2000, "slide", 100))
row("append without a factor, 4,000 rows", "RMSE")(lambda: online(4000, "append", 4, solver="cg"))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the rows of both checkouts in turns and print their table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="src folder of the other checkout")
    parser.add_argument("--only", default="", help="rows whose name contains this text; no record unless --record")
    parser.add_argument("--record", type=Path, metavar="FILE", help="another record; with --only too")
    parser.add_argument("--turns", type=int, default=3, help="processes of each checkout for each row")
    parser.add_argument("--long", action="store_true", help="whole fits of published sets as well")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.row:
        seconds, measured = ROWS[options.row][0]()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        source = str(Path(sys.modules["flashgp"].__file__ or "").resolve().parents[1])
        print(json.dumps({"seconds": seconds, "measured": measured, "peak_bytes": peak, "source": source}))
        return 0
    sources = {"after": HERE.parents[1] / "src"}
    if options.against is not None:
        sources = {"before": options.against.resolve(), **sources}
    names = [n for n in ROWS if options.only in n and (options.long or n not in LONG)]
    measured_rows = [_measure_in_turns(name, sources, 1 if name in LONG else options.turns) for name in names]
    if options.record is not None or not options.only:
        record_file, by_name = options.record or RECORD, {}
        if record_file.exists():
            earlier = read_record(record_file)
            by_name = {row["work"]: {"after_commit": earlier["commit"], **row} for row in earlier["rows"]}
        by_name.update((row["work"], row) for row in measured_rows)
        rows = [by_name[name] for name in ROWS if name in by_name]
        record = {"title": "Before and after", "columns": COLUMNS, "rows": rows}
        cells = [{"commit": row.get(f"{which}_commit")} for row in rows for which in ("before", "after")]
        write_record(record_file, {**record, "cells": cells, "commit": commit(sources["after"])})
    return 0


def _measure_in_turns(name: str, sources: dict[str, Path], turns: int) -> dict[str, Any]:
    """One row: the quickest of each checkout's processes, their peak memory, answers and commits."""
    runs: dict[str, list[dict[str, Any]]] = {which: [] for which in sources}
    commits = {which: commit(source) for which, source in sources.items()}
    for turn in range(turns):
        for which in sorted(sources, reverse=turn % 2 == 0):
            environment = {**os.environ, "PYTHONPATH": str(sources[which])}
            command = [sys.executable, str(HERE), "--row", name]
            run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if run.returncode:
                raise SystemExit(f"{name} of {which} failed:\n{run.stderr[-2000:]}")
            runs[which].append(json.loads(run.stdout.strip().splitlines()[-1]))
            if runs[which][-1]["source"] != str(sources[which]):
                raise SystemExit(f"{name} of {which} ran {runs[which][-1]['source']} instead of {sources[which]}")
            if (now := commit(sources[which])) != commits[which]:
                raise SystemExit(f"{which} was {commits[which]} when {name} began and is {now} now; measure again")
    best = {which: min(repeated, key=lambda run: run["seconds"]) for which, repeated in runs.items()}
    outcome: dict[str, Any] = {"work": name, "measure": ROWS[name][1]}
    for which, run in best.items():
        outcome |= {f"{which}_seconds": run["seconds"], f"{which}_peak_bytes": run["peak_bytes"]}
        outcome[f"{which}_answer"] = f"{run['measured']:.4g}"
        outcome[f"{which}_commit"] = commits[which]
    if len(best) == 2:
        outcome["ratio"] = best["after"]["seconds"] / best["before"]["seconds"]
    print("   ".join(f"{key} {value:.6g}" if isinstance(value, float) else str(value)
                     for key, value in outcome.items()), flush=True)  # fmt: skip
    return outcome


if __name__ == "__main__":
    sys.exit(main())
