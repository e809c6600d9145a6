"""How long calls with a time limit take, against the limit, on every route; of the command line the whole process.

    python benchmark/claim_time_limit.py --cells command

A cell is a call with its limit, in a process of its own that has imported the library before; for `command` it is
`python -m flashgp fit` with --time-limit, timed from the start of its process to its end, reading, scores and report
included. What is to hold: at most the limit, a tenth of it, and 2 s.
"""

import gzip
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
from common import SHARED_DATA, scores, smooth_data, split_of

import flashgp as fgp
from flashgp.foundations.quantities import readable_seconds

SHARE, SPARE_SECONDS = 1.1, 2.0
# What is called, table, rows, limit.
PROBLEMS: tuple[tuple[str, str, int, float], ...] = (
    ("fit", "elevators", 2000, 0.2),
    ("fit", "elevators", 2000, 2.0),
    ("fit", "elevators", 8000, 5.0),
    ("fit", "elevators", 14940, 5.0),
    ("fit", "elevators", 14940, 20.0),
    ("fit, solver=cg", "kin40k", 6000, 2.0),
    ("fit, solver=cg", "kin40k", 6000, 20.0),
    ("condition", "elevators", 14940, 2.0),
    ("condition, solver=cg", "kin40k", 20000, 10.0),
    ("command", "airfoil", 1352, 0.2),
    ("command", "elevators", 14940, 5.0),
    ("command --report", "elevators", 14940, 10.0),
    ("command --solver cg", "kin40k", 36000, 20.0),
)
COLUMNS = [
    {"key": "problem", "title": "call, table, rows"},
    {"key": "limit_seconds", "title": "limit"},
    {"key": "taken_seconds", "title": "taken"},
    {"key": "allowed_seconds", "title": "1.1 limits + 2 s"},
    {"key": "evaluations", "title": "evaluations", "format": "integer"},
    {"key": "posterior_rows", "title": "rows of the posterior", "format": "integer"},
    {"key": "rmse", "title": "RMSE", "format": "fixed4"},
]


def run_cell(cell: Cell) -> dict[str, Any]:
    """The entry of one call."""
    call, name, n, limit = (cell[key] for key in ("call", "table", "n", "limit"))
    if call.startswith("command"):
        return _command(call.removeprefix("command").split(), name, n, limit, Path(cell["scratch"]))
    x, y, x_test, y_test = _rows(name, n)
    kernel = 1.0 * fgp.kernels.Matern(nu=1.5, lengthscale=torch.ones(x.shape[1], dtype=torch.float64))
    fgp.GPRegressor(max_iterations=2, starts=1).fit(x[:64], y[:64])  # imports, first calls
    evaluations = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        began = time.perf_counter()
        solver = "cg" if call.endswith("cg") else None
        if call.startswith("fit"):
            model = fgp.GPRegressor(kernel, solver=solver, time_limit=limit).fit(x, y)
            seconds, posterior, evaluations = time.perf_counter() - began, model.posterior_, len(model.history_)
            mean = torch.from_numpy(model.predict(x_test))
        else:
            posterior = fgp.GP(kernel, likelihood=fgp.likelihoods.Gaussian(0.1)).condition(
                x, y, solver=solver, time_limit=limit
            )
            seconds, mean = time.perf_counter() - began, posterior.predict(x_test).mean
    return {
        "taken_seconds": seconds,
        "evaluations": evaluations,
        "posterior_rows": posterior.count,
        "rmse": scores(mean, torch.ones_like(mean), y_test)["rmse"],
        "events": [str(event) for event in posterior.report.events],
    }


def _rows(name: str, n: int) -> Sequence[torch.Tensor]:
    if name == "drawn":
        x, y = smooth_data(n + 50, 3, torch.float64)
        return x[:n], y[:n], x[n:], y[n:]
    return split_of(name, 0, rows=n)


def _command(more: Sequence[str], name: str, n: int, limit: float, scratch: Path) -> dict[str, Any]:
    """The same of `flashgp fit`, as a process of its own."""
    scratch.mkdir(parents=True, exist_ok=True)
    table = scratch / f"{name}-{n}.csv"
    if name == "drawn":
        x, y = smooth_data(n, 3, torch.float64)
        numpy.savetxt(table, torch.cat([x, y[:, None]], 1).numpy(), delimiter=",", fmt="%.10g")
    else:
        with gzip.open(SHARED_DATA / name / "data.csv.gz", "rt") as file:
            table.write_text("".join(line for _, line in zip(range(n), file, strict=False)))
    columns = table.open().readline().count(",") + 1
    report = [str(scratch / "report.html") if part == "--report" else "" for part in more]
    extra = [text for pair in zip(more, report, strict=True) for text in pair if text]
    command = [
        sys.executable, "-m", "flashgp", "fit", str(table), "--target", str(columns), "--no-header",
        "--test-fraction", "0.1", "--time-limit", str(limit), "--out", str(scratch / "model"), "--json", *extra,
    ]  # fmt: skip
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    if done.returncode:
        raise RuntimeError(done.stderr)
    told = json.loads(done.stdout)
    held_out = told["held_out"]
    parts = [e["fields"]["rows"] for e in told["events"] if e["kind"] == "POSTERIOR_OF_PART"]
    return {
        "taken_seconds": seconds,
        "evaluations": told["evaluations"],
        "posterior_rows": parts[0] if parts else told["rows_fitted"],
        "rmse": None if held_out is None else held_out["standardised_rmse"],
        "events": told["events"],
        "notes": told["notes"],
    }


def rows(entries: Mapping[str, Entry]) -> list[dict[str, Any]]:
    """A row of each cell that is done, in the order of `PROBLEMS`."""
    table = []
    for e in entries.values():
        if e["status"] != "done":
            continue
        row = {"problem": f"{e['call']}, {e['table']}, {e['n']:,}", "limit_seconds": e["limit"]}
        row |= {"allowed_seconds": SHARE * e["limit"] + SPARE_SECONDS}
        row |= {key: e[key] for key in ("taken_seconds", "evaluations", "posterior_rows") if e[key] is not None}
        table.append(row if e["rmse"] is None else row | {"rmse": e["rmse"]})
    return table


def line(entry: Entry) -> str:
    allowed = SHARE * entry["limit"] + SPARE_SECONDS
    late = "" if entry["taken_seconds"] <= allowed else ", late"
    return f"{readable_seconds(entry['taken_seconds'])} of {readable_seconds(allowed)}{late}"


CLAIM = Claim("time_limit", "claim_time_limit", "Calls with a time limit", COLUMNS, rows, line)


def main(argv: Sequence[str] | None = None) -> int:
    options = options_of(__doc__ or "", argv, CLAIM.name)
    problems = PROBLEMS
    if options.toy:
        problems = (("fit", "drawn", 90, 2.0), ("condition", "drawn", 90, 2.0), ("command", "drawn", 90, 5.0))
    elif not SHARED_DATA.exists():
        print(f"not run: the tables are not at {SHARED_DATA}")
        return 0
    cells = [
        Cell(
            f"{call}/{name}/n={n}/{limit:g} s", {"call": call, "table": name, "n": n, "limit": limit}, limit + 4.0,
            {"scratch": str(options.scratch)},
        )
        for call, name, n, limit in problems
    ]  # fmt: skip
    return main_of(CLAIM, cells, options)


if __name__ == "__main__":
    sys.exit(main())
