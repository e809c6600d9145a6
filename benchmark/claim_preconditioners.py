"""Iterative solves in few and many dimensions: by the low-rank preconditioner alone, and with full scale compared.

    python benchmark/claim_preconditioners.py --n 20000 --cells d=3

The weights of a Matern-3/2 model given 20,000 rows, uniform in the unit cube, of a draw of the prior with noise, or the
training rows of a published table, at most as many, at parameters that a fit has found; to 1e-3 standard deviations of
an observation: `flashgp.solvers.ConjugateGradients` without comparisons, and as it is used. The low rank alone ends
after `TIMES` times as long, if it has not come so far.
Both in one process, the latter first, after what is compiled on first use; seconds are of preparation and solve, the
error is the certified bound. Then the log determinant by stochastic Lanczos quadrature with the preconditioner that the
solve has come to as control variate: its standard error over 16 probes, in nats, and its steps. A published table is
also conditioned on by `gp.condition` at its defaults, by the route that its plan chooses.
"""

import argparse
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from cells import Cell, Claim, Entry, main_of, options_of
from common import split_of
from problems import drawn_table

import flashgp as fgp
from flashgp.foundations.deadline import Deadline
from flashgp.foundations.events import EventKind, StopReason
from flashgp.foundations.quantities import readable_seconds
from flashgp.inference.exact.solve import mean_goal
from flashgp.inference.system import CovarianceSystem
from flashgp.solvers import ConjugateGradients, Limits
from flashgp.solvers.iterative.lanczos import log_determinant
from flashgp.solvers.preconditioners.candidate import Compared
from flashgp.solvers.settings import DEFAULTS

TOLERANCE, WARM_ROWS = 1e-3, 500
# (d, lengthscale, noise variance): from a curve to a cloud in which no row is near another.
PROBLEMS = [
    (1, 0.01, 0.01),
    (2, 0.05, 0.01),
    (3, 0.1, 0.01),
    (3, 0.1, 0.0001),
    (4, 0.3, 0.001),
    (5, 0.8, 0.001),
    (8, 0.5 * 8**0.5, 0.01),
    (8, 0.5, 0.01),
]
# Lengthscales, variance, noise variance and mean: kin40k of all rows, pol and keggdirected of 4,000.
TRAINED: dict[str, tuple[list[float], float, float, float]] = {
    "kin40k": ([33.6, 32.2, 18.3, 20.8, 20.7, 16.1, 16.2, 22.9], 197.0, 2.9e-5, 1.40),
    "pol": (
        [0.544, 0.628, 1.38, 1.94, 1.42, 4.24, 4.57, 7.33, 97.8, 7.89, 4.79, 4.23, 8.14,
         67.0, 68.4, 3.93, 20.2, 57.1, 9.32, 42.1, 36.7, 67.5, 86.5, 14.3, 39.7, 26.0], 0.126, 0.00179, -0.625,
    ),
    "keggdirected": (
        [6.56, 599.0, 381.0, 117.0, 141.0, 282.0, 15.2, 19.1, 36.8, 25.4,
         16.3, 355.0, 25.6, 15.7, 18.9, 17.8, 134.0, 92.8, 225.0, 31.5], 5.59, 0.00656, -0.608,
    ),
}  # fmt: skip
TIMES, LEAST_SECONDS = 10.0, 20.0
COLUMNS = [
    {"key": "work", "title": "rows"},
    {"key": "low_iterations", "title": "iterations, low rank", "format": "text"},
    {"key": "iterations", "title": "as used", "format": "integer"},
    {"key": "low_seconds", "title": "seconds, low rank"},
    {"key": "seconds", "title": "as used"},
    {"key": "speedup", "title": "quicker", "format": "ratio"},
    {"key": "bound", "title": "bound, standard deviations", "format": "error"},
    {"key": "full_scale", "title": "full-scale preconditioner"},
    {"key": "low_determinant", "title": "log determinant, low rank", "format": "text"},
    {"key": "determinant", "title": "as used", "format": "text"},
    {"key": "condition_seconds", "title": "gp.condition at its defaults"},
    {"key": "route", "title": "its route"},
]


def run_cell(cell: Cell) -> Entry:
    """One system solved twice."""
    kernel, x, y, noise = problem(cell)
    entry: Entry = {"threads": torch.get_num_threads(), "rows_used": len(x)}
    few = system(kernel, x[:WARM_ROWS], noise)  # what is compiled and imported on first use, for both
    warm = ConjugateGradients().prepare(few).preconditioner
    assert isinstance(warm, Compared)
    warm.candidate.preconditioner()
    for v in (y.float(), y):
        system(kernel, x, noise).multiply(v)
    for name, compare in (("", True), ("low_", False)):
        one = system(kernel, x, noise)
        began = time.perf_counter()
        solver = ConjugateGradients(settings=replace(DEFAULTS, compare=compare)).prepare(one)
        seconds = None if compare else max(LEAST_SECONDS, TIMES * entry["seconds"])
        solution = solver.solve(y, mean_goal(one, TOLERANCE).goal, limits=Limits(Deadline.after(seconds, began=began)))
        entry |= {
            f"{name}seconds": time.perf_counter() - began,
            f"{name}iterations": solution.iterations,
            f"{name}passes": solution.passes,
            f"{name}bound": float(solution.energy_bound.max()) / math.sqrt(noise),
            f"{name}stopped": solution.stopped,
            f"{name}events": list(solution.events),
            f"{name}full_scale": outcome_of(solution.events),
        }
        began = time.perf_counter()
        found = log_determinant(one, solver.preconditioner.kept())
        entry |= {
            f"{name}determinant_seconds": time.perf_counter() - began,
            f"{name}determinant_value": found.value,
            f"{name}standard_error": found.standard_error,
            f"{name}steps": found.steps,
        }
    return {**entry, **conditioned(cell)} if cell["table"] else entry


def conditioned(cell: Cell) -> Entry:
    """The table conditioned on by the route that the plan chooses, at the same hyperparameters."""
    kernel, x, y, noise = problem(cell)
    gp = fgp.GP(kernel, fgp.means.Zero(), fgp.likelihoods.Gaussian(noise))
    began = time.perf_counter()
    report = gp.condition(x, y[:, 0]).report
    return {
        "condition_seconds": time.perf_counter() - began,
        "route": report.route,
        "condition_bound": report.error_bound,
        "condition_peak_bytes": report.peak_bytes,
    }


def problem(cell: Cell) -> tuple[fgp.kernels.Kernel, torch.Tensor, torch.Tensor, float]:
    """The covariance function, inputs, targets less their mean, (n, 1), and the noise variance of a cell."""
    if cell["table"]:
        lengthscales, variance, noise, mean = TRAINED[cell["table"]]
        x, y, *_ = split_of(cell["table"], 0, rows=cell["n"])
        kernel = variance * fgp.kernels.Matern(nu=1.5, lengthscale=torch.tensor(lengthscales, dtype=torch.float64))
        return kernel.requires_grad_(False), x, (y - mean).unsqueeze(-1), noise
    n, d, lengthscale, noise = (cell[name] for name in ("n", "d", "lengthscale", "noise"))
    table = drawn_table(n, 1, d, lengthscale, noise)
    x, y = torch.from_numpy(table.x), torch.from_numpy(table.y).unsqueeze(-1)
    return fgp.kernels.Matern(nu=1.5, lengthscale=lengthscale).requires_grad_(False), x, y, noise


def outcome_of(events: Sequence[fgp.Event]) -> str:
    """What became of the full-scale preconditioner in a solve: the last that its events say."""
    outcome = "not tried"
    for event in events:
        if event.kind is EventKind.PRECONDITIONER_COMPARED:
            outcome = "kept" if event.fields["kept"] else "tried, not kept"
        elif event.kind is EventKind.PRECONDITIONER_UNDECIDED:
            outcome = "tried, undecided"
        elif event.kind is EventKind.PRECONDITIONER_REFUSED:
            outcome = "could not be made"
    return outcome


def system(kernel: fgp.kernels.Kernel, x: torch.Tensor, noise: float) -> CovarianceSystem:
    return CovarianceSystem(kernel(x), torch.tensor([noise], dtype=torch.float64))


def rows(entries: Mapping[str, Entry]) -> list[dict[str, Any]]:
    table_rows = []
    for entry in entries.values():
        work = f"n={entry.get('rows_used', entry['n']):,}, "
        if entry.get("table"):
            work = f"{entry['table']}, {work}noise {TRAINED[entry['table']][2]:.2g}"
        else:
            work += f"d={entry['d']}, lengthscale {entry['lengthscale']:.3g}, noise {entry['noise']:g}"
        if entry["status"] != "done":
            table_rows.append({"work": work, "full_scale": str(entry["error"]).splitlines()[0][:80]})
            continue
        row = {column["key"]: entry[column["key"]] for column in COLUMNS if column["key"] in entry}
        if entry.get("table"):
            row["bound"] *= TRAINED[entry["table"]][1] ** 0.5  # of the mean: times the root of the prior variance
        ended = entry["low_stopped"]
        row["low_iterations"] = (
            f"{row['low_iterations']}" if ended == StopReason.GOAL else f"{row['low_iterations']}, {ended}"
        )
        for name in ("", "low_"):
            if f"{name}standard_error" not in entry:  # a cell of before
                continue
            row[f"{name}determinant"] = (
                f"± {entry[f'{name}standard_error']:.2g}, {entry[f'{name}steps']} steps, "
                f"{readable_seconds(entry[f'{name}determinant_seconds'])}"
            )
        table_rows.append({**row, "work": work, "speedup": entry["low_seconds"] / entry["seconds"]})
    return table_rows


def line(entry: Entry) -> str:
    return (
        f"{entry['low_iterations']} iterations in {readable_seconds(entry['low_seconds'])}, as used "
        f"{entry['iterations']} in {readable_seconds(entry['seconds'])}: full scale {entry['full_scale']}"
    )


CLAIM = Claim("preconditioners", "claim_preconditioners", "Low rank and full scale", COLUMNS, rows, line)


def main(argv: Sequence[str] | None = None) -> int:
    def more(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--n", type=int, default=20_000, metavar="ROWS")

    options = options_of(__doc__ or "", argv, CLAIM.name, more)
    n = 60 if options.toy else options.n
    cells = [
        Cell(
            f"n={n}/d={d}/lengthscale={lengthscale:.3g}/noise={noise:g}",
            {"table": None, "n": n, "d": d, "lengthscale": lengthscale, "noise": noise},
            10.0 + 120.0 * (n / 20_000) ** 2,
        )
        for d, lengthscale, noise in (PROBLEMS[1:2] if options.toy else PROBLEMS)
    ]
    tables = [
        Cell(f"{name}/n={n}", {"table": name, "n": n}, 10.0 + 240.0 * (n / 20_000) ** 2)
        for name in TRAINED if not options.toy
    ]  # fmt: skip
    return main_of(CLAIM, [*cells, *tables], options)


if __name__ == "__main__":
    sys.exit(main())
