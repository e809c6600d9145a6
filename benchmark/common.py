"""What the suites share: arguments, peers that may be missing, whole-job timing, and where records go."""

import argparse
import gzip
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import torch

from flashgp.bench.suite import peer as peer
from flashgp.bench.suites import smooth_data as smooth_data
from flashgp.foundations.normal import LOG_2PI, QUANTILE_975
from flashgp.units import ColumnScaling

RECORDS = Path(__file__).parent / "records"
SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "uci"


def arguments(argv: Sequence[str] | None, description: str) -> argparse.Namespace:
    """--toy: smallest sizes, no record, no peers needed."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--toy", action="store_true", help="smallest sizes, to see that the suite runs; no record")
    parser.add_argument("--only", default="", help="run the rows whose name contains this text; no record")
    return parser.parse_args(argv)


@dataclass
class Timed:
    """Seconds of interleaved runs (median and interquartile range) and the last result."""

    seconds: float
    spread: float
    result: Any


def interleaved(
    jobs: dict[str, Callable[[], Any]], repeats: int, warmup: int = 1, least_seconds: float = 0.0
) -> dict[str, Timed]:
    """Whole jobs (fits, predictions) timed in turn, A B A B; what a job returns is kept for its error.

    A turn calls its job until `least_seconds` are over, once at least, and counts as the mean of its calls: a short job
    is then timed at its own pace, not at what the long one before it left of caches and of threads that still spin.
    """
    times: dict[str, list[float]] = {name: [] for name in jobs}
    results: dict[str, Any] = {}
    for round_number in range(warmup + repeats):
        for name, job in jobs.items():
            calls, started, seconds = 0, time.perf_counter(), 0.0
            while not calls or seconds < least_seconds:
                results[name] = job()
                calls, seconds = calls + 1, time.perf_counter() - started
            if round_number >= warmup:
                times[name].append(seconds / calls)
    timed = {}
    for name, values in times.items():
        timed[name] = Timed(statistics.median(values), interquartile_range(values), results[name])
    return timed


def interquartile_range(values: Sequence[float]) -> float:
    """The third quartile less the first; 0 of a single value."""
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4)
    return high - low


class Split(NamedTuple):
    """One split of a table, z-scored with the training rows' statistics; float64."""

    x: torch.Tensor
    y: torch.Tensor
    x_test: torch.Tensor
    y_test: torch.Tensor


def split_of(name: str, number: int, folder: Path = SHARED_DATA, rows: int | None = None) -> Split:
    """A published split: data.csv.gz, whose last column is the target, and column `number` of test_mask.csv.gz.

    Args: rows: keep the first so many training rows, before the statistics are taken.
    """
    with gzip.open(folder / name / "data.csv.gz") as file:
        table = numpy.loadtxt(file, delimiter=",", ndmin=2)
    with gzip.open(folder / name / "test_mask.csv.gz") as file:
        test = numpy.loadtxt(file, delimiter=",", ndmin=2)[:, number] > 0.5
    return _standardised(table[~test][:rows], table[test])


def precipitation_split(number: int, rows: int | None = None) -> Split:
    """Nine tenths of precipitation to train on, by a permutation of that number, in standard units.

    Args: rows: the first so many of them, before the statistics are taken.
    """
    with gzip.open(SHARED_DATA.parent / "nongaussian" / "precipitation.csv.gz") as file:
        table = numpy.loadtxt(file, delimiter=",", skiprows=1)
    table = table[numpy.random.default_rng(number).permutation(len(table))]
    return _standardised(table[len(table) // 10 :][:rows], table[: len(table) // 10])


def _standardised(train: numpy.ndarray, held_out: numpy.ndarray) -> Split:
    """By the statistics of the training rows; the last column is the target."""
    x, y = ColumnScaling.of(train[:, :-1]), ColumnScaling.of(train[:, -1:])
    halves = [(x.apply(half[:, :-1]), y.apply(half[:, -1:])[:, 0]) for half in (train, held_out)]
    return Split(*(torch.from_numpy(part) for half in halves for part in half))


def scores(mean: torch.Tensor, variance: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
    """Root mean squared error, mean negative log density, share inside 95 % intervals: mean and variance are of a new
    observation, all in units of y."""
    error = y - mean
    nll = 0.5 * (error.square() / variance + variance.log() + LOG_2PI)
    inside = error.abs() <= QUANTILE_975 * variance.sqrt()
    return {
        "rmse": float(error.square().mean().sqrt()),
        "nll": float(nll.mean()),
        "coverage": float(inside.double().mean()),
    }
