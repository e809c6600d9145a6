"""Pinned against unpinned: a product, a factor and a fit as they come, and within `fgp.runtime` on the first cores.

The same number of threads both ways, so that what differs is where they run. On a machine with one NUMA node and
nothing else running the two should be equal; on several sockets, or beside other work, they need not be. Jobs run in
turn, and the results of both must agree.
"""

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from common import RECORDS, arguments, interquartile_range, smooth_data

import flashgp as fgp
from flashgp.bench import write_record
from flashgp.foundations.processors import core_text, own_cores

COLUMNS = [
    {"key": "work", "title": "work"},
    {"key": "threads", "title": "threads", "format": "integer"},
    {"key": "cores", "title": "pinned to cores"},
    {"key": "free_seconds", "title": "as it comes", "format": "seconds"},
    {"key": "free_spread", "title": "spread", "format": "seconds"},
    {"key": "pinned_seconds", "title": "pinned", "format": "seconds"},
    {"key": "pinned_spread", "title": "spread", "format": "seconds"},
    {"key": "gain", "title": "times faster pinned", "format": "ratio"},
]
TOLERANCE = 1e-6  # of results beside each other: sums are split the same way, and orders of addition may differ
NOTHING_PINNED = "this system lets no process choose its cores: nothing to compare"


def pinned_cores(threads: int) -> tuple[int, ...]:
    """The first cores of ours, one for each thread."""
    return tuple(sorted(own_cores() or frozenset())[:threads])


def works(toy: bool) -> dict[str, Callable[[], torch.Tensor]]:
    """Name and job; what it returns is compared."""
    n, small = (256, 64) if toy else (20_000, 3_000)
    x, _ = smooth_data(n, 8, torch.float32)
    right = torch.ones(n, 1)
    x_few, y_few = smooth_data(small, 8, torch.float64)
    gp = fgp.GP(1.0 * fgp.kernels.Matern(nu=2.5, lengthscale=torch.ones(8)))
    operator = fgp.kernels.Matern(nu=2.5).operator(x)
    return {
        f"K V, n={n:,}, d=8, float32": lambda: (operator @ right).detach(),
        f"condition, n={small:,}, d=8, float64": lambda: gp.condition(x_few, y_few).predict(x_few[:5]).mean,
        f"objective and gradient, n={small:,}, d=8": lambda: _gradient(gp, x_few, y_few),
    }


def _gradient(gp: fgp.GP, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    gp.zero_grad()
    gp.log_marginal_likelihood(x, y).backward()
    return torch.cat([p.grad.reshape(-1) for p in gp.parameters() if p.grad is not None])


def row_of(work: str, job: Callable[[], torch.Tensor], cores: tuple[int, ...], repeats: int) -> dict[str, Any]:
    """One job in turn, A B A B; entering a runtime is not timed, and its first call warms up."""
    threads = len(cores)
    places: dict[str, dict[str, Any]] = {"free": {}, "pinned": {"cores": cores}}
    seconds: dict[str, list[float]] = {name: [] for name in places}
    results = {}
    for _ in range(repeats):
        for name, place in places.items():
            with fgp.runtime(threads=threads, **place):
                job()
                started = time.perf_counter()
                results[name] = job()
                seconds[name].append(time.perf_counter() - started)
    error = float((results["free"] - results["pinned"]).norm() / results["free"].norm())
    assert error <= TOLERANCE, f"{work}: where it runs changed the result by {error:.1e}"
    free, pinned = (statistics.median(seconds[name]) for name in places)
    return {
        "work": work, "threads": threads, "cores": core_text(cores), "free_seconds": free,
        "free_spread": interquartile_range(seconds["free"]), "pinned_seconds": pinned,
        "pinned_spread": interquartile_range(seconds["pinned"]), "gain": free / pinned, "error": error,
    }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv, __doc__ or "")
    if own_cores() is None:
        print(NOTHING_PINNED)
        return 0
    cores = pinned_cores(torch.get_num_threads())
    rows = []
    for work, job in works(options.toy).items():
        if options.only in work:
            rows.append(row_of(work, job, cores, 1 if options.toy else 9))
            print(rows[-1])
    if not (options.toy or options.only):
        title = "Threads pinned to cores, beside threads as they come"
        write_record(RECORDS / "placement.json", {"title": title, "columns": COLUMNS, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
