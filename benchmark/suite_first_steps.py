"""What somebody new waits for, each in a process of its own: the doctor, a profile of the machine, the first plan."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

from common import RECORDS, arguments

from flashgp.bench import write_record

COLUMNS = [
    {"key": "work", "title": "in a process of its own"},
    {"key": "seconds", "title": "takes", "format": "seconds"},
    {"key": "target_seconds", "title": "at most"},
    {"key": "met", "title": "reached"},
]

PLAN = """
import json, time
import flashgp as fgp
gp = fgp.GP(1.0 * fgp.kernels.Matern(nu=1.5))
started = time.perf_counter()
fgp.plan(gp, n=36_000, d=8, n_test=4_000)
print(json.dumps(time.perf_counter() - started))
"""


def _command(*arguments: str, **environment: str) -> float:
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "flashgp", *arguments], check=True, capture_output=True,
        env={**os.environ, **environment},
    )  # fmt: skip
    return time.perf_counter() - started


def _import_of(name: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", f"import {name}"], check=True)
    return time.perf_counter() - started


def _first_plan() -> float:
    run = subprocess.run([sys.executable, "-c", PLAN], check=True, capture_output=True, text=True)
    return float(json.loads(run.stdout))


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv, __doc__ or "")
    if options.toy:  # the rest has no toy size
        exec(PLAN, {})
        return 0
    with tempfile.TemporaryDirectory() as folder:  # of the profile, which is nobody's
        works: dict[str, tuple[Callable[[], float], int, float | None]] = {
            "`import torch`, which all others begin with": (lambda: _import_of("torch"), 5, None),
            "`flashgp doctor --json`": (lambda: _command("doctor", "--json"), 5, 3.0),
            "the first `fgp.plan` after the import, 36,000 rows": (_first_plan, 5, 0.5),
            "`flashgp tune`": (lambda: _command("tune", FLASHGP_PROFILE=folder), 1, 60.0),
        }
        rows: list[dict[str, Any]] = []
        for work, (measure, repeats, most) in works.items():
            times = sorted(measure() for _ in range(repeats))
            seconds = times[len(times) // 2]
            rows.append({"work": work, "seconds": seconds, "target_seconds": most, "met": most and seconds <= most})
            print(rows[-1])
    if not options.only:
        write_record(RECORDS / "first_steps.json", {"title": "First steps", "columns": COLUMNS, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
