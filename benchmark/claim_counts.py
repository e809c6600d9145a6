"""Counts and outliers: likelihoods beside the Gaussian one, by exact inference.

    python benchmark/claim_counts.py
    python benchmark/claim_counts.py --cells bike_counts --splits 1

A cell is a table, a likelihood and a split. Scores are the mean negative log probability of a held-out count, or
density of a target in its own units, and the root mean square error: of means of counts, of medians of targets.

    bike_counts     3,000 random rows of hourly rentals, 3,000 others held out; the hour as two harmonics. "gaussian" is
                    one on log(count + 1/2) whose mass from count - 1/2 to count + 1/2 is the probability of a count.
    housing, clean  a tenth held out
    housing, 5 %    the same with 5 % of the training targets times 10
"""

import argparse
import gzip
import math
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy
import torch
from cells import Cell, Claim, Entry, main_of, options_of
from common import SHARED_DATA

import flashgp as fgp

F64 = torch.float64
FIRST, SPLITS = 100, 5
COUNTS, HELD_OUT, OUTLIERS, FACTOR = 3000, 0.1, 0.05, 10.0
OF_COUNTS, OF_NUMBERS = ("gaussian", "poisson", "negative-binomial"), ("gaussian", "student-t")
TABLES = {"bike_counts": OF_COUNTS, "housing, clean": OF_NUMBERS, "housing, 5 %": OF_NUMBERS}
SECONDS = {"bike_counts": 300.0}
SCORES = ("nlpd", "rmse", "seconds")
SMALLEST = math.log(torch.finfo(F64).tiny)
LIKELIHOODS = {
    "gaussian": lambda: fgp.likelihoods.Gaussian(0.1),
    "poisson": lambda: fgp.likelihoods.Poisson(),
    "negative-binomial": lambda: fgp.likelihoods.NegativeBinomial(),
    "student-t": lambda: fgp.likelihoods.StudentT(),
}


class Rows(NamedTuple):
    """Rows that are fitted and held out, inputs in units of the former."""

    x: torch.Tensor
    y: torch.Tensor
    x_test: torch.Tensor
    y_test: torch.Tensor


# -- data -------------------------------------------------------------------------------------------------------------
def split_of(name: str, seed: int) -> Rows:
    generator = numpy.random.default_rng(seed)
    if name == "bike_counts":
        with gzip.open(SHARED_DATA.parent / "nongaussian" / "bike_counts.csv.gz") as file:
            names = file.readline().decode().strip().split(",")
            numbers = numpy.loadtxt(file, delimiter=",")
        y, hour = numbers[:, names.index("count")], 2.0 * math.pi * numbers[:, names.index("hr")] / 24.0
        others = numpy.delete(numbers, [names.index("count"), names.index("hr")], axis=1)
        harmonics = [wave(k * hour) for k in (1, 2) for wave in (numpy.sin, numpy.cos)]
        x, held = numpy.column_stack([others, *harmonics]), COUNTS
        order = generator.permutation(len(y))[: 2 * COUNTS]
    elif name.startswith("drawn"):
        x = generator.uniform(size=(60, 2))
        y = generator.poisson(numpy.exp(2.0 + numpy.sin(5.0 * x[:, 0]))).astype(float)
        order, held = generator.permutation(60), 20
    else:
        with gzip.open(SHARED_DATA / "housing" / "data.csv.gz") as file:
            numbers = numpy.loadtxt(file, delimiter=",")
        x, y = numbers[:, :-1], numbers[:, -1].copy()
        order, held = generator.permutation(len(y)), round(HELD_OUT * len(y))
    test, train = order[:held], order[held:]
    if name.endswith("5 %"):
        y[generator.choice(train, round(OUTLIERS * len(train)), replace=False)] *= FACTOR
    centre, spread = x[train].mean(axis=0), x[train].std(axis=0)
    x = (x - centre)[:, spread > 0.0] / spread[spread > 0.0]
    return Rows(*(torch.from_numpy(t[index]) for index in (train, test) for t in (x, y)))


# -- fits -------------------------------------------------------------------------------------------------------------
def run_cell(cell: Cell) -> dict[str, Any]:
    """Scores of a split and the seconds of its fit."""
    warnings.simplefilter("ignore")
    table, method = cell["table"], cell["likelihood"]
    rows = split_of(table, cell["seed"])
    logged = method == "gaussian" and not table.startswith("housing")
    numbers = not logged and table.startswith("housing")
    y = (rows.y + 0.5).log() if logged else rows.y
    centre, unit = (float(y.mean()), float(y.std(correction=0))) if logged or numbers else (0.0, 1.0)
    kernel = 1.0 * fgp.kernels.Matern(nu=2.5, lengthscale=torch.ones(rows.x.shape[1], dtype=F64))
    gp = fgp.GP(kernel, fgp.means.Constant(), LIKELIHOODS[method]())
    began = time.perf_counter()
    fit = fgp.fit(gp, rows.x, (y - centre) / unit)
    seconds = time.perf_counter() - began
    p = fit.posterior.predict(rows.x_test)
    if logged:
        density, found = of_rounded(p, rows.y_test, centre, unit)
    else:
        density = p.log_prob((rows.y_test - centre) / unit) - math.log(unit)
        found = centre + unit * (p.quantile(0.5) if numbers else p.observation_mean)
    error = (found - rows.y_test).square().mean().sqrt()
    return {
        "nlpd": -float(density.mean()), "rmse": float(error), "seconds": seconds, "rows_used": len(rows.y),
        "d": rows.x.shape[1],
    }  # fmt: skip


def of_rounded(p: fgp.Prediction, y: torch.Tensor, centre: float, unit: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Log probability of counts by a normal distribution of log(count + 1/2), and their means by it."""
    mean, deviation = centre + unit * p.mean, unit * p.observation_variance.sqrt()
    upper, lower = (((y + more).log() - mean) / deviation for more in (1.0, 0.0))  # of 0 from -inf on
    above = lower > 0.0  # where the tail of the other side is resolved
    upper, lower = torch.where(above, -lower, upper), torch.where(above, -upper, lower)
    log_upper, log_lower = torch.special.log_ndtr(upper), torch.special.log_ndtr(lower)
    density = log_upper + torch.log1p(-(log_lower - log_upper).exp())
    return density.clamp_min(SMALLEST), (mean + 0.5 * deviation.square()).exp() - 0.5


# -- the table --------------------------------------------------------------------------------------------------------
def columns() -> list[dict[str, str]]:
    first = [{"key": "problem", "title": "table"}, {"key": "score", "title": "score"}]
    first.append({"key": "splits", "title": "splits", "format": "integer"})
    return [*first, *({"key": name, "title": name, "format": "fixed4"} for name in LIKELIHOODS)]


def rows(entries: Mapping[str, Entry]) -> list[dict[str, Any]]:
    """By table and score: means over the splits that all likelihoods of a table have, of seconds medians."""
    done = [entry for entry in entries.values() if entry["status"] == "done"]
    table: list[dict[str, Any]] = []
    for name in dict.fromkeys(entry["table"] for entry in done):
        cells = [entry for entry in done if entry["table"] == name]
        seeds = {one: {e["seed"] for e in cells if e["likelihood"] == one} for one in LIKELIHOODS}
        common = set.intersection(*(found for found in seeds.values() if found))
        for score in SCORES if common else ():
            average = numpy.median if score == "seconds" else numpy.mean
            row: dict[str, Any] = {"problem": f"{name}, n={cells[0]['rows_used']:,}", "score": score}
            for one in (one for one, found in seeds.items() if found):
                values = [e[score] for e in cells if e["likelihood"] == one and e["seed"] in common]
                row[one] = float(average(values))
            table.append(row | {"splits": len(common)})
    return table


def line(entry: Entry) -> str:
    return f"negative log density {entry['nlpd']:.4f}, error {entry['rmse']:.3f}, {entry['seconds']:.1f} s"


CLAIM = Claim("counts", "claim_counts", "Counts and outliers", columns(), rows, line)


def main(argv: Sequence[str] | None = None) -> int:
    def more(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--splits", type=int, metavar="N", default=SPLITS, help="only the first N splits")

    options = options_of(__doc__ or "", argv, CLAIM.name, more)
    tables: Mapping[str, Sequence[str]] = TABLES
    if options.toy:
        tables, options.splits = {"drawn": OF_COUNTS}, 1
    elif not SHARED_DATA.exists():
        print(f"not run: the tables are not at {SHARED_DATA}")
        return 0
    cells = [
        Cell(
            f"{table}/{likelihood}/{seed}", {"table": table, "likelihood": likelihood, "seed": seed},
            SECONDS.get(table, 5.0),
        )
        for table, likelihoods in tables.items()
        for likelihood in likelihoods
        for seed in range(FIRST, FIRST + options.splits)
    ]  # fmt: skip
    return main_of(CLAIM, cells, options)


if __name__ == "__main__":
    sys.exit(main())
