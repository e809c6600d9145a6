"""Fourier series: fits of rows of Parquet files, of classes on a map, and answers beside exact inference of a model.

    python benchmark/claim_fourier.py --sizes 1000000 10000000 --scratch FOLDER

Cells, each in a process of its own:

    read/D/N         a whole fit of N rows that are read, of one column (Matern-3/2 plus a period, given as .0501, true
                     .05) or two (Matern-3/2, a lengthscale each), noise of deviation .1; then means and variances of
                     100,000 points; errors of means are against the function that rows were drawn from
    celerite2/N      the rows of read/1/N by celerite2's state space, held: Matern-3/2 plus a damped oscillator at the
                     period, fitted as its tutorial does (L-BFGS-B, differences); then means of 100,000 points
    labels/N/KIND    two classes at N points of a map, Matern-3/2, p = 1 / (1 + exp(-2 f)) of that function: a whole
                     fit by Fourier series or full scale, then 2,000 new points; minus their mean log probability, and
                     that of the true probabilities
    map/N/METHOD     a whole fit of N held rows of read/2/N beside KISS-GP, SVGP and GPBoost (map_peers.py), then 2,000
                     new points; minus their mean log density, and that of the truth
    terms/N/KIND     N held rows of six columns, a sum of functions of four of them and of the other two together, noise
                     of deviation .3; the covariance function a Matern-3/2 term each: a whole fit by Fourier series or
                     full scale, then 2,000 new rows; minus their mean log density
    answers/NUMBER   a model conditioned by Fourier series and exactly, both at given parameters: of 40, d 1 to 3, up to
                     1,500 rows, lengthscales .1 to 3 of the range, noise 1e-4 to 1; rows uniform, in clusters, with a
                     gap, or repeated. Errors of means over the exact deviation of f, of variances relative, at 200
                     points; of log p(y) in nats a row
"""

import argparse
import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
from cells import Cell, Claim, Entry, Speaker, main_of, options_of
from map_peers import EPOCHS, METHODS, OURS, STEPS, TITLES, fitted_map
from peer_models import library

import flashgp as fgp
from flashgp.bench.memory import PeakMeter
from flashgp.bench.suite import peer
from flashgp.foundations.errors import FlashGPError
from flashgp.foundations.quantities import readable_seconds

POINTS, WRITTEN, PERIOD = 100_000, 1_000_000, 0.05
SECONDS = {1: 40.0, 2: 90.0}  # of ten million rows
PEAK = 2 * 2**30
ANSWERED = "2GiB"  # by which grids of answers are refused
COLUMNS = [
    {"key": "work", "title": "work"},
    {"key": "fit_seconds", "title": "fit"},
    {"key": "cpu_seconds", "title": "its CPU"},
    {"key": "predict_seconds", "title": "100,000 predictions"},
    {"key": "peak_bytes", "title": "peak"},
    {"key": "rmse", "title": "RMSE of the function", "format": "error"},
    {"key": "log_loss", "title": "log loss", "format": "fixed4"},
    {"key": "true_loss", "title": "of the truth", "format": "fixed4"},
    {"key": "mean_error", "title": "error of means, deviations", "format": "error"},
    {"key": "bound_error", "title": "bound over error of means", "format": "fixed2"},
    {"key": "variance_error", "title": "of variances", "format": "error"},
    {"key": "evidence_error", "title": "of log p(y), nats a row", "format": "error"},
    {"key": "target", "title": "to be reached", "format": "text"},
    {"key": "met", "title": "reached"},
]
F64 = torch.float64


def function_of(x: Any) -> Any:
    """The truth at rows (n, d)."""
    smooth = numpy.sin(6.0 * x[:, 0])
    rest = 0.5 * numpy.sin(2.0 * numpy.pi * x[:, 0] / PERIOD) if x.shape[1] == 1 else numpy.cos(9.0 * x.sum(1))
    return smooth + rest


def run_cell(cell: Cell) -> Entry:
    works = {
        "read": _read, "celerite2": _celerite, "labels": _labels, "map": _map, "terms": _terms, "answers": _answers,
    }  # fmt: skip
    return works[cell["work"]](cell)


def _map(cell: Cell) -> Entry:
    return fitted_map(cell, function_of)


def _celerite(cell: Cell) -> Entry:
    celerite2 = library("celerite2")
    from scipy.optimize import minimize

    generator = numpy.random.default_rng(0)
    x = numpy.sort(generator.random((cell["n"], 1)), axis=0)
    y = function_of(x) + 0.1 * generator.standard_normal(len(x))
    points = numpy.sort(torch.rand(cell["points"], generator=torch.Generator().manual_seed(5), dtype=F64).numpy())
    points = 0.98 * points + 0.01

    def process(theta: Any) -> Any:
        smooth, length, turn, noise, mean = *numpy.exp(theta[:4]), theta[4]
        terms = celerite2.terms
        kernel = terms.Matern32Term(sigma=smooth, rho=length)
        kernel = kernel + terms.SHOTerm(sigma=turn, rho=PERIOD * 1.002, Q=1000.0)
        gp = celerite2.GaussianProcess(kernel, mean=mean)
        gp.compute(x[:, 0], diag=noise**2, quiet=True)
        return gp

    with PeakMeter() as meter:
        began, own = time.perf_counter(), time.process_time()
        start = numpy.array([0.0, 0.0, 0.0, numpy.log(0.3), y.mean()])
        found = minimize(lambda theta: -process(theta).log_likelihood(y), start, method="L-BFGS-B")
        fitted, used = time.perf_counter(), time.process_time()
        mean = process(found.x).predict(y, t=points)
        ended = time.perf_counter()
    truth = function_of(points[:, None])
    return {
        "fit_seconds": fitted - began, "cpu_seconds": used - own, "predict_seconds": ended - fitted,
        "peak_bytes": meter.peak_bytes, "peak_method": meter.method, "evaluations": int(found.nfev),
        "rmse": float(numpy.sqrt(numpy.mean((mean - truth) ** 2))), "noise": float(numpy.exp(2.0 * found.x[3])),
    }  # fmt: skip


def _labels(cell: Cell) -> Entry:
    generator = numpy.random.default_rng(3)
    x = generator.random((cell["n"] + 2_000, 2))
    chance = 1.0 / (1.0 + numpy.exp(-2.0 * function_of(x)))
    y = torch.from_numpy((generator.random(len(x)) < chance).astype(float))
    rows, labels = torch.from_numpy(x[:-2_000]), y[:-2_000]
    kernel = 1.0 * fgp.kernels.Matern(nu=1.5, lengthscale=torch.ones(2, dtype=F64))
    gp = fgp.GP(kernel, likelihood=fgp.likelihoods.Bernoulli())
    with PeakMeter() as meter:
        began, own = time.perf_counter(), time.process_time()
        fit = fgp.fit(gp, rows, labels, approximation=cell["kind"], progress=Speaker(cell.key).training)
        fitted, used = time.perf_counter(), time.process_time()
        prediction = fit.posterior.predict(torch.from_numpy(x[-2_000:]))
        loss = -float(prediction.log_prob(y[-2_000:]).mean())
        ended = time.perf_counter()
    sure = torch.from_numpy(chance[-2_000:])
    true = -float(torch.where(y[-2_000:] > 0.5, sure, 1.0 - sure).log().mean())
    return {
        "fit_seconds": fitted - began, "cpu_seconds": used - own, "predict_seconds": ended - fitted,
        "peak_bytes": meter.peak_bytes, "peak_method": meter.method, "log_loss": loss, "true_loss": true,
        "events": [str(event) for event in fit.report.events],
    }  # fmt: skip


def _terms(cell: Cell) -> Entry:
    generator = numpy.random.default_rng(4)
    x = generator.random((cell["n"] + 2_000, 6))
    truth = numpy.sin(8.0 * x[:, 0]) + numpy.exp(x[:, 1]) + 3.0 * abs(x[:, 2] - 0.5) + 0.5 * numpy.sin(20.0 * x[:, 3])
    truth += numpy.cos(5.0 * x[:, 4] + 3.0 * x[:, 5])
    y = truth + 0.3 * generator.standard_normal(len(x))
    rows, targets, new, new_targets = (torch.from_numpy(t) for t in (x[:-2_000], y[:-2_000], x[-2_000:], y[-2_000:]))
    kernel = fgp.kernels.Matern(nu=1.5, lengthscale=torch.ones(2, dtype=F64), active_dims=[4, 5]) * 1.0
    for column in range(4):
        kernel = kernel + 1.0 * fgp.kernels.Matern(nu=1.5, active_dims=[column])
    with PeakMeter() as meter:
        began, own = time.perf_counter(), time.process_time()
        how = {"approximation": cell["kind"], "progress": Speaker(cell.key).training}
        fit = fgp.fit(fgp.GP(kernel), rows, targets, **how)
        fitted, used = time.perf_counter(), time.process_time()
        prediction = fit.posterior.predict(new)
        density, mean = float(prediction.log_prob(new_targets).mean()), prediction.mean
        ended = time.perf_counter()
    return {
        "fit_seconds": fitted - began, "cpu_seconds": used - own, "predict_seconds": ended - fitted,
        "peak_bytes": meter.peak_bytes, "peak_method": meter.method, "log_density": density,
        "rmse": float((mean - torch.from_numpy(truth[-2_000:])).square().mean().sqrt()),
        "events": [str(event) for event in fit.report.events],
    }  # fmt: skip


def _read(cell: Cell) -> Entry:
    d, n, points = cell["d"], cell["n"], cell["points"]
    path = Path(cell["scratch"]) / f"fourier-{d}-{n}.parquet"
    _write(path, n, d)
    kernels, ones = fgp.kernels, torch.ones(d, dtype=F64)
    kernel = 1.0 * kernels.Matern(nu=1.5, lengthscale=ones)
    gp = fgp.GP(kernel + 1.0 * kernels.Periodic(period=0.0501) if d == 1 else kernel)
    x_test = torch.rand(points, d, generator=torch.Generator().manual_seed(5), dtype=F64) * 0.98 + 0.01
    rows = fgp.data.parquet(str(path), target="y")
    with PeakMeter() as meter:
        began, own = time.perf_counter(), time.process_time()
        fit = fgp.fit(gp, rows, approximation="fourier", progress=Speaker(cell.key).training)
        fitted, used = time.perf_counter(), time.process_time()
        prediction = fit.posterior.predict(x_test)
        mean, variance = prediction.mean, prediction.variance
        ended = time.perf_counter()
    truth = torch.from_numpy(function_of(x_test.numpy()))
    path.unlink()
    return {
        "fit_seconds": fitted - began, "cpu_seconds": used - own, "predict_seconds": ended - fitted,
        "peak_bytes": meter.peak_bytes, "peak_method": meter.method,
        "rmse": float((mean - truth).square().mean().sqrt()), "deviation": float(variance.mean().sqrt()),
        "noise": float(fit.gp.likelihood.noise_variance.value.detach()),
        "events": [str(event) for event in fit.report.events],
    }  # fmt: skip


def _write(path: Path, n: int, d: int) -> None:
    import pyarrow
    import pyarrow.parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    generator, writer = numpy.random.default_rng(0), None
    for start in range(0, n, WRITTEN):
        x = generator.random((min(WRITTEN, n - start), d))
        y = function_of(x) + 0.1 * generator.standard_normal(len(x))
        table = pyarrow.table({**{f"x{j}": x[:, j] for j in range(d)}, "y": y})
        writer = writer or pyarrow.parquet.ParquetWriter(path, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()


def _answers(cell: Cell) -> Entry:
    d, n = cell["d"], cell["n"]
    generator = numpy.random.default_rng(cell["number"])
    x = generator.random((n, d))
    match cell["number"] % 4:
        case 1:
            x = numpy.clip(generator.random((5, d))[generator.integers(5, size=n)] + 0.05 * (x - 0.5), 0.0, 1.0)
        case 2:
            x[:, 0] = numpy.where(abs(x[:, 0] - 0.5) < 0.15, x[:, 0] * 0.3, x[:, 0])
        case 3:
            x = x[generator.integers(max(1, n // 3), size=n)]
    noise, lengthscale = cell["noise"], cell["lengthscale"]
    y = numpy.sin(6.0 * x[:, 0]) + numpy.cos(4.0 * x.sum(1)) + noise**0.5 * generator.standard_normal(n)
    kernel = fgp.kernels.Matern(nu=cell["nu"], lengthscale=torch.full((d,), lengthscale, dtype=F64))
    gp = fgp.GP(1.0 * kernel, likelihood=fgp.likelihoods.Gaussian(noise))
    rows = torch.from_numpy(x), torch.from_numpy(y)
    spread = torch.from_numpy(x.min(0) + (x.max(0) - x.min(0)) * generator.random((200, d)))
    exact = gp.condition(*rows)
    known = exact.predict(spread)
    try:
        began = time.perf_counter()
        post = gp.condition(*rows, approximation="fourier", memory=ANSWERED)
        found = post.predict(spread)
        seconds = time.perf_counter() - began
        off = (found.mean - known.mean).abs()
        errors = off / known.variance.sqrt()
        ratios = (found.variance / known.variance - 1.0).abs()
    except FlashGPError as error:
        return {"refused": str(error)}
    evidence = float(post.log_marginal_likelihood() - exact.log_marginal_likelihood()) / n
    bound = post.report.error_bound
    return {
        "seconds": seconds, "mean_off": float(off.max()), "mean_error": float(errors.max()),
        "variance_error": float(ratios.max()), "evidence_error": abs(evidence), "bound": bound,
        "bound_error": math.inf if bound is None else bound / max(float(off.max()), torch.finfo(F64).eps),
        "loss": post.state.lost.nats, "frequencies": post.state.grid.size,
        "events": [str(event) for event in post.report.events],
    }  # fmt: skip


def problems(count: int) -> list[dict[str, Any]]:
    """Models of the answers, drawn once."""
    generator, found = numpy.random.default_rng(7), []
    for number in range(count):
        d = 1 + number % 3
        found.append({
            "work": "answers", "number": number, "d": d, "n": int(generator.choice([100, 400, 1500, 3000])),
            "lengthscale": float(0.02 * 150.0 ** generator.uniform()),
            "noise": float(10.0 ** generator.uniform(-6.0, 0.0)),
            "nu": float(generator.choice([1.5, 2.5])),
        })  # fmt: skip
    return found


def rows(entries: Mapping[str, Entry]) -> list[dict[str, Any]]:
    """Fits, then the answers of each number of columns."""
    table: list[dict[str, Any]] = []
    done = [entry for entry in entries.values() if entry["status"] == "done"]
    for entry in sorted((e for e in done if e["work"] == "read"), key=lambda e: (e["d"], e["n"])):
        row = {"work": f"d={entry['d']}, n={entry['n']:,}, read and fitted"}
        row |= {column["key"]: entry.get(column["key"]) for column in COLUMNS if column["key"] not in row}
        if entry["n"] == 10_000_000:
            seconds = entry["fit_seconds"] + entry["predict_seconds"]
            row["target"] = f"{readable_seconds(SECONDS[entry['d']])} in all, 2 GiB"
            row["met"] = seconds <= SECONDS[entry["d"]] and entry["peak_bytes"] <= PEAK
        table.append(row)
    for entry in sorted((e for e in done if e["work"] == "celerite2"), key=lambda e: e["n"]):
        row = {"work": f"d=1, n={entry['n']:,}, celerite2, held, {entry['evaluations']} evaluations, means alone"}
        table.append(row | {column["key"]: entry.get(column["key"]) for column in COLUMNS if column["key"] not in row})
    for entry in sorted((e for e in done if e["work"] == "labels"), key=lambda e: (e["n"], e["kind"])):
        row = {"work": f"d=2, n={entry['n']:,}, two classes, {entry['kind']}, 2,000 points"}
        row |= {column["key"]: entry.get(column["key"]) for column in COLUMNS if column["key"] not in row}
        if entry["n"] == 100_000 and entry["kind"] == "fourier":
            row["target"], row["met"] = "90 s in all", entry["fit_seconds"] + entry["predict_seconds"] <= 90.0
        table.append(row)
    order = [*METHODS]
    for entry in sorted((e for e in done if e["work"] == "map"), key=lambda e: (e["n"], order.index(e["method"]))):
        row = {"work": f"d=2, n={entry['n']:,}, held, {TITLES.get(entry['method'], entry['method'])}, 2,000 points"}
        table.append(row | {column["key"]: entry.get(column["key"]) for column in COLUMNS if column["key"] not in row})
    for entry in sorted((e for e in done if e["work"] == "terms"), key=lambda e: (e["n"], e["kind"])):
        row = {"work": f"d=1+1+1+1+2, n={entry['n']:,}, held, {entry['kind']}, 2,000 points"}
        row["log_loss"] = -entry["log_density"]
        table.append(row | {column["key"]: entry.get(column["key"]) for column in COLUMNS if column["key"] not in row})
    for d in (1, 2, 3):
        own = [entry for entry in done if entry["work"] == "answers" and entry["d"] == d]
        told = [entry for entry in own if "refused" not in entry]
        if told:
            table += [_of_answers(told, d, len(own), of) for of in ("median", "largest")]
    failed = [entry for entry in entries.values() if entry["status"] != "done"]
    return [*table, *({"work": str(e["work"]), "target": str(e["error"])[:80]} for e in failed)]


def _of_answers(told: list[Entry], d: int, count: int, of: str) -> dict[str, Any]:
    keys = "mean_error", "variance_error", "evidence_error", "bound_error"
    values = {key: sorted(entry[key] for entry in told) for key in keys}
    row: dict[str, Any] = {"work": f"d={d}, {len(told)} of {count} models beside exact ones: {of}"}
    row |= {key: one[len(one) // 2] if of == "median" else one[-1] for key, one in values.items()}
    if of == "median":
        row["target"], row["met"] = "variances within 1 %", row["variance_error"] <= 0.01
    else:
        within = [entry["bound_error"] >= 1.0 for entry in told]
        row["target"], row["met"] = f"means within the bound, {sum(within)} of {len(told)} are", all(within)
    return row


def line(entry: Entry) -> str:
    if entry["work"] in ("labels", "map"):
        return f"fit {readable_seconds(entry['fit_seconds'])}, log loss {entry['log_loss']:.4f}"
    if entry["work"] == "terms":
        return f"fit {readable_seconds(entry['fit_seconds'])}, log density {entry['log_density']:.4f}"
    if entry["work"] == "read":
        return f"fit {readable_seconds(entry['fit_seconds'])}, RMSE {entry['rmse']:.5f}"
    if entry["work"] == "celerite2":
        return f"fit {readable_seconds(entry['fit_seconds'])}, RMSE {entry['rmse']:.5f}"
    if "refused" in entry:
        return entry["refused"][:100]
    return f"means off by {entry['mean_error']:.2g}, variances {entry['variance_error']:.2g}"


CLAIM = Claim("fourier", "claim_fourier", "Fourier series", COLUMNS, rows, line)


def main(argv: Sequence[str] | None = None) -> int:
    def more(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--sizes", nargs="+", type=int, default=[1_000_000, 10_000_000], metavar="ROWS")
        parser.add_argument("--problems", type=int, default=50, metavar="COUNT")

    options = options_of(__doc__ or "", argv, CLAIM.name, more)
    if options.toy:
        options.sizes, options.problems = [1500], 2
    points = 50 if options.toy else POINTS
    cells = [
        Cell(f"read/d={d}/n={n}", {"work": "read", "d": d, "n": n, "points": points}, 60.0 + 3e-5 * n,
             {"scratch": str(options.scratch)})
        for n in options.sizes for d in (1, 2)[: 2 - options.toy]
    ]  # fmt: skip
    cells += [
        Cell(f"celerite2/n={n}", {"work": "celerite2", "n": n, "points": points}, 10.0 + 1e-4 * n)
        for n in options.sizes
        if n <= 1_000_000 and (peer("celerite2") is not None or not options.toy)
    ]
    cells += [
        Cell(f"labels/n={n}/{kind}", {"work": "labels", "n": n, "kind": kind}, 300.0)
        for n in ([400] if options.toy else [100_000]) for kind in ("fourier", "full_scale")[options.toy :]
    ]  # fmt: skip
    for method in METHODS:
        if method in OURS or not options.toy:
            n = 20_000 if method == "kiss_gp" else 100_000  # of more rows it asks for more than 16 GB
            spec = {"work": "map", "n": 400 if options.toy else n, "method": method}
            spec |= {"kiss_gp": {"steps": STEPS}, "svgp": {"epochs": EPOCHS}}.get(method, {})
            cells.append(Cell(f"map/n={spec['n']}/{method}", spec, 300.0))
    cells += [
        Cell(f"terms/n={n}/{kind}", {"work": "terms", "n": n, "kind": kind}, 600.0)
        for n in ([100] if options.toy else [20_000, 100_000])
        for kind in ("fourier", "full_scale")[options.toy :]
    ]  # fmt: skip
    cells += [Cell(f"answers/{one['number']}", one, 60.0) for one in problems(options.problems)]
    return main_of(CLAIM, cells, options)


if __name__ == "__main__":
    sys.exit(main())
