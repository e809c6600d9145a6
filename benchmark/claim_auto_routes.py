"""approximation="auto" under a time limit beside each route alone: held-out log density on 20 tables.

    python benchmark/claim_auto_routes.py --cells kin40k

A cell is a table, a limit and a route: `GPRegressor` with that `approximation` and `time_limit`, the target as it is,
all else at its defaults, in a process of its own that has fitted 64 rows before. Scores are the mean negative log
density of at most 1,000 held-out rows, in standard deviations of the training targets. "Behind" is how far "auto" is
behind the best route alone, nats a row, of those that kept to the limit: a tenth of it, and 2 s, beside.
"""

import math
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy
from cells import Cell, Claim, Entry, main_of, options_of
from claim_small_tables import TABLES as MEASURED
from claim_small_tables import split_of
from common import SHARED_DATA

import flashgp as fgp

ROUTES: dict[str, str | None] = {"auto": "auto", "exact": None, "full_scale": "full_scale", "sparse": "sparse"}
LIMITS = (5.0, 20.0, 60.0, 120.0)
SHARE, SPARE_SECONDS, TEST_ROWS, AT_MOST = 1.1, 2.0, 1000, 0.02
MADE: dict[str, tuple[int, int]] = {  # rows and columns
    "smooth": (300_000, 3), "rough": (50_000, 2), "additive": (30_000, 10), "noisy": (40_000, 5), "waves": (100_000, 2),
    "friedman": (20_000, 10),
}  # fmt: skip
LARGE = ("elevators", "pol", "kin40k", "keggdirected", "precipitation", *MADE)  # which longer limits matter to
TABLES = (*MEASURED, *MADE)
COLUMNS = [
    {"key": "problem", "title": "table"},
    {"key": "limit_seconds", "title": "limit"},
    {"key": "taken_seconds", "title": "auto took"},
    {"key": "inference", "title": "by", "format": "text"},
    *({"key": route, "title": route, "format": "fixed4"} for route in ROUTES),
    {"key": "behind", "title": "auto behind the best", "format": "fixed4"},
]


def made(name: str) -> tuple[numpy.ndarray, numpy.ndarray, numpy.ndarray, numpy.ndarray]:
    """x, y, x_test, y_test of a made table."""
    n, d = MADE[name]
    random = numpy.random.default_rng(sorted(MADE).index(name))
    x = random.uniform(size=(n + TEST_ROWS, d))
    if name == "smooth":
        f, noise = 3 * numpy.sin(16 * x[:, 0]) * numpy.cos(13 * x[:, 1]) + 4 * numpy.sin(2 * math.pi * x[:, 2]), 0.8
    elif name == "rough":  # sums of many waves whose weights fall slowly
        frequency = random.standard_t(1.0, (2000, d)) * 8.0
        waves = numpy.cos(x @ frequency.T.astype(numpy.float32) + random.uniform(0, 2 * math.pi, 2000))
        f, noise = waves.sum(1) * math.sqrt(2 / 2000), 0.1
    elif name == "additive":
        f, noise = sum(numpy.sin((j + 1) * math.pi * x[:, j]) for j in range(d)), 0.5
    elif name == "noisy":
        f, noise = numpy.sin(3 * x[:, 0]) + x[:, 1], 5.0
    elif name == "waves":
        f, noise = numpy.sin(40 * x[:, 0]) * numpy.sin(40 * x[:, 1]), 0.05
    else:
        f = 10 * numpy.sin(math.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
        noise = 1.0
    y = f + noise * random.standard_normal(len(x))
    return x[:n], y[:n], x[n:], y[n:]


def run_cell(cell: Cell) -> dict[str, Any]:
    """The entry of one fit."""
    warnings.simplefilter("ignore")
    name = cell["table"]
    x, y, x_test, y_test = made(name) if name in MADE else split_of(name, 0, 10**9)
    approximation = ROUTES[cell["route"]]
    fgp.GPRegressor(starts=1, max_iterations=2, target_transform="none").fit(x[:64], y[:64])  # imports, first calls
    model = fgp.GPRegressor(approximation=approximation, time_limit=cell["limit"], target_transform="none")
    began = time.perf_counter()
    model.fit(x, y)
    seconds = time.perf_counter() - began
    predicted, scale = model.predict_distribution(x_test), float(numpy.std(y))
    plan = model.report_.plan
    return {
        "rows_used": len(y), "d": x.shape[1], "taken_seconds": seconds,
        "nll": -float(predicted.log_prob(y_test).mean()) - math.log(scale),
        "rmse": float(numpy.sqrt(numpy.mean(numpy.square(predicted.mean - y_test)))) / scale,
        "inference": (plan and plan.approximation) or "exact",
        "events": [str(event) for event in model.report_.events],
    }  # fmt: skip


def rows(entries: Mapping[str, Entry]) -> list[dict[str, Any]]:
    """A row of each table and limit whose routes are done."""
    found: list[dict[str, Any]] = []
    done = [e for e in entries.values() if e["status"] == "done"]
    for name in (*TABLES, "drawn"):
        for limit in sorted({e["limit"] for e in done if e["table"] == name}):
            of = {e["route"]: e for e in done if e["table"] == name and e["limit"] == limit}
            if "auto" not in of:
                continue
            auto, allowed = of["auto"], SHARE * limit + SPARE_SECONDS
            row = {"problem": f"{name}, n={auto['rows_used']:,}, d={auto['d']}", "limit_seconds": limit}
            row |= {"taken_seconds": auto["taken_seconds"], "inference": auto["inference"]}
            row |= {route: e["nll"] for route, e in of.items()}
            rivals = [e["nll"] for r, e in of.items() if r != "auto" and e["taken_seconds"] <= allowed]
            row |= {"behind": auto["nll"] - min(rivals)} if rivals else {}
            found.append(row)
    return found


def line(entry: Entry) -> str:
    return f"negative log density {entry['nll']:.4f}, {entry['taken_seconds']:.1f} s of {entry['limit']:g}"


CLAIM = Claim("auto_routes", "claim_auto_routes", 'approximation="auto" beside each route', COLUMNS, rows, line)


def main(argv: Sequence[str] | None = None) -> int:
    options = options_of(__doc__ or "", argv, CLAIM.name)
    grid = [(name, limit) for limit in LIMITS for name in TABLES if limit == LIMITS[0] or name in LARGE]
    if options.toy:
        grid = [("drawn", 2.0)]
    elif not SHARED_DATA.exists():
        print(f"not run: the tables are not at {SHARED_DATA}")
        return 0
    cells = [
        Cell(f"{name}/{limit:g} s/{route}", {"table": name, "limit": limit, "route": route}, limit + 8.0)
        for name, limit in grid
        for route in ROUTES
    ]
    return main_of(CLAIM, cells, options)


if __name__ == "__main__":
    sys.exit(main())
