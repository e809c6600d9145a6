"""What approximation="auto" makes of a time limit: seconds taken, and how far from the true function it comes.

    python benchmark/claim_auto_limit.py --cells 300000

A cell is a fit with default settings under a limit, in a process of its own that has imported the library before; for
`command` it is `python -m flashgp fit` of a pattern of Parquet files, timed from the start of its process to its end.
The target is 3 sin(2 lat) cos(1.5 lon) + 4 sin(2 pi hour / 24) + 12 of three columns, with noise .8. What is to hold:
at most the limit, a tenth of it, and 2 s; and the RMSE to the function beside that of 512 inducing points.
"""

import json
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
from cells import Cell, Claim, Entry, main_of, options_of

import flashgp as fgp
from flashgp.foundations.events import EventKind, of_kind
from flashgp.foundations.quantities import readable_seconds

SHARE, SPARE_SECONDS, TEST_ROWS, NOISE = 1.1, 2.0, 5000, 0.8
# How it is fitted, rows, limit.
PROBLEMS: tuple[tuple[str, int, float], ...] = (
    ("auto", 300_000, 30.0),
    ("512 points", 300_000, 30.0),
    ("auto", 2_000_000, 120.0),
    ("512 points", 2_000_000, 120.0),
    ("auto", 1_000_000, 180.0),
    ("auto", 20_000, 10.0),
    ("auto", 300_000, 10.0),
    ("command", 2_000_000, 120.0),
)
COLUMNS = [
    {"key": "problem", "title": "fit, rows"},
    {"key": "limit_seconds", "title": "limit"},
    {"key": "taken_seconds", "title": "taken"},
    {"key": "allowed_seconds", "title": "1.1 limits + 2 s"},
    {"key": "inducing", "title": "inducing points", "format": "integer"},
    {"key": "rmse", "title": "RMSE to f", "format": "fixed4"},
]


def drawn(n: int) -> tuple[numpy.ndarray, numpy.ndarray, numpy.ndarray]:
    """Rows (n, 3), targets (n,), and the function there (n,)."""
    random = numpy.random.default_rng(3)
    lat, lon, hour = random.uniform(47, 55, n), random.uniform(6, 15, n), random.uniform(0, 24, n)
    f = 12 + 3 * numpy.sin(2 * lat) * numpy.cos(1.5 * lon) + 4 * numpy.sin(2 * numpy.pi * hour / 24)
    return numpy.stack([lat, lon, hour], 1), f + random.normal(0, NOISE, n), f


def run_cell(cell: Cell) -> dict[str, Any]:
    """The entry of one fit."""
    how, n, limit = cell["how"], cell["n"], cell["limit"]
    x, y, f = drawn(n)
    if how == "command":
        return _command(x, y, limit, Path(cell["scratch"]))
    test = numpy.random.default_rng(4).permutation(n)[:TEST_ROWS]
    x, y_scaled = (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std()
    gp = fgp.GP(1.0 * fgp.kernels.Matern(nu=1.5, lengthscale=torch.ones(3, dtype=torch.float64)))
    fgp.fit(gp, x[:64], y_scaled[:64], starts=1, max_iterations=2)  # imports, first calls
    asked: dict[str, Any] = {"approximation": "auto"}
    if how != "auto":
        asked = {"approximation": "sparse", "inducing": int(how.split()[0])}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        began = time.perf_counter()
        fit = fgp.fit(gp, x, y_scaled, time_limit=limit, **asked)
        seconds = time.perf_counter() - began
        mean = fit.posterior.predict(x[test]).mean.numpy() * y.std() + y.mean()
    state = fit.posterior.state
    ended = of_kind(fit.report.events, EventKind.FIT_TIME_UP) or of_kind(fit.report.events, EventKind.FIT_ENDED)
    return {
        "taken_seconds": seconds,
        "inducing": len(state.inducing) if fit.posterior.can("bound") is None else None,
        "rmse": float(numpy.sqrt(numpy.mean((mean - f[test]) ** 2))),
        "ended": [event.to_json() for event in ended],
        "events": [str(event) for event in fit.report.events],
    }


def _command(x: numpy.ndarray, y: numpy.ndarray, limit: float, scratch: Path) -> dict[str, Any]:
    """The same of `flashgp fit`, as a process of its own: its leave-one-out RMSE has the noise, which is taken off."""
    import pyarrow
    from pyarrow import parquet

    scratch.mkdir(parents=True, exist_ok=True)
    for number, part in enumerate(numpy.array_split(numpy.arange(len(y)), 4)):
        columns = {"lat": x[part, 0], "lon": x[part, 1], "hour": x[part, 2], "y": y[part]}
        parquet.write_table(pyarrow.table(columns), scratch / f"part-{number}.parquet")
    command = [
        sys.executable, "-m", "flashgp", "fit", str(scratch / "part-*.parquet"), "--target", "y",
        "--time-limit", str(limit), "--json",
    ]  # fmt: skip
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    if done.returncode:
        raise RuntimeError(done.stderr)
    told = json.loads(done.stdout)
    scored = told["held_out"] or told["leave_one_out"]
    return {
        "taken_seconds": seconds,
        "inducing": told["plan"]["inducing"] if "plan" in told else None,
        "rmse": None if scored is None else max(0.0, scored["rmse"] ** 2 - NOISE**2) ** 0.5,
        "observed_rmse": None if scored is None else scored["rmse"],
        "events": told["events"],
        "notes": told["notes"],
    }


def rows(entries: Mapping[str, Entry]) -> list[dict[str, Any]]:
    """A row of each cell that is done, in the order of `PROBLEMS`."""
    return [
        {
            "problem": f"{e['how']}, {e['n']:,}", "limit_seconds": e["limit"],
            "allowed_seconds": SHARE * e["limit"] + SPARE_SECONDS,
            **{key: e[key] for key in ("taken_seconds", "inducing", "rmse") if e[key] is not None},
        }
        for e in entries.values() if e["status"] == "done"
    ]  # fmt: skip


def line(entry: Entry) -> str:
    allowed = SHARE * entry["limit"] + SPARE_SECONDS
    late = "" if entry["taken_seconds"] <= allowed else ", late"
    error = "" if entry["rmse"] is None else f", RMSE {entry['rmse']:.3f}"
    return f"{readable_seconds(entry['taken_seconds'])} of {readable_seconds(allowed)}{late}{error}"


CLAIM = Claim("auto_limit", "claim_auto_limit", 'Time limits of approximation="auto"', COLUMNS, rows, line)


def main(argv: Sequence[str] | None = None) -> int:
    options = options_of(__doc__ or "", argv, CLAIM.name)
    problems = (("auto", 90, 2.0), ("512 points", 700, 2.0), ("command", 90, 60.0)) if options.toy else PROBLEMS
    cells = [
        Cell(
            f"{how}/n={n}/{limit:g} s", {"how": how, "n": n, "limit": limit}, limit + 6.0,
            {"scratch": str(options.scratch)},
        )
        for how, n, limit in problems
    ]  # fmt: skip
    return main_of(CLAIM, cells, options)


if __name__ == "__main__":
    sys.exit(main())
