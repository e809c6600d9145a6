"""What the suites share: arguments, peers that may be missing, whole-job timing, and where records go."""

import argparse
import importlib
import importlib.util
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

RECORDS = Path(__file__).parent / "records"
SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "uci"


def arguments(argv: Sequence[str] | None, description: str) -> argparse.Namespace:
    """--toy: smallest sizes, no record, no peers needed."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--toy", action="store_true", help="smallest sizes, to see that the suite runs; no record")
    parser.add_argument("--only", default="", help="run the rows whose name contains this text; no record")
    return parser.parse_args(argv)


def peer(name: str) -> Any | None:
    """A peer library, or None when it is not installed."""
    if importlib.util.find_spec(name) is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(name)


@dataclass
class Timed:
    """Seconds of interleaved runs (median and interquartile range) and the last result."""

    seconds: float
    spread: float
    result: Any


def interleaved(jobs: dict[str, Callable[[], Any]], repeats: int, warmup: int = 1) -> dict[str, Timed]:
    """Whole jobs (fits, predictions) timed in turn, A B A B; what a job returns is kept for its error."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    results: dict[str, Any] = {}
    for round_number in range(warmup + repeats):
        for name, job in jobs.items():
            started = time.perf_counter()
            results[name] = job()
            if round_number >= warmup:
                times[name].append(time.perf_counter() - started)
    timed = {}
    for name, values in times.items():
        quartiles = statistics.quantiles(values, n=4) if len(values) > 1 else [values[0]] * 3
        timed[name] = Timed(statistics.median(values), quartiles[2] - quartiles[0], results[name])
    return timed


def smooth_data(n: int, d: int, dtype: torch.dtype, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """x ~ N(0, 1)^d and a smooth function of three columns plus noise of standard deviation 0.1."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=generator, dtype=torch.float64)
    y = torch.sin(x[:, 0] + 0.5 * x[:, 1]) + 0.3 * x[:, 2 % d] + 0.1 * torch.randn(n, generator=generator).double()
    return x.to(dtype), y.to(dtype)
