"""What the first fit of a process waits for: beside the second one of the same data, in processes of their own.

Each process has imported torch; what it imports, compiles or measures beyond counts. A first run of each, which may
fill caches on disk, is not timed. Of `GPRegressor` the import of scikit-learn is also stated apart.
"""

import csv
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
from common import RECORDS, arguments

from flashgp.bench import write_record

AT_MOST_SECONDS, ROUNDS = 1.0, 2
COLUMNS = [
    {"key": "work", "title": "call"},
    {"key": "rows", "title": "rows, 6 columns", "format": "integer"},
    {"key": "first_seconds", "title": "first"},
    {"key": "second_seconds", "title": "second"},
    {"key": "more_seconds", "title": "first takes more"},
    {"key": "scikit_learn_seconds", "title": "of it importing scikit-learn"},
    {"key": "target_seconds", "title": "at most"},
    {"key": "met", "title": "reached"},
]
# Of each call: what is imported before the clock starts anew, and the call.
CALLS = {
    "`fgp.fit`": (
        "",
        "import flashgp as fgp; fgp.fit(fgp.GP(1.0 * fgp.kernels.Matern(nu=1.5, lengthscale=torch.ones(6).double())), "
        "torch.from_numpy(x), torch.from_numpy(y))",
    ),
    "`GPRegressor().fit`": ("import sklearn.base", "import flashgp as fgp; fgp.GPRegressor().fit(x, y)"),
    "`flashgp fit`": (
        "",
        "from flashgp.cli.application import application; "
        "application(['fit', table, '--target', 'y', '--out', table + '.safetensors'], standalone_mode=False)",
    ),
}
PROGRAM = """
import contextlib, io, json, sys, time, numpy, torch
table, library, call = sys.argv[1:]
numbers = numpy.loadtxt(table, delimiter=",", skiprows=1)
x, y = numbers[:, :-1], numbers[:, -1]
found = [time.perf_counter()]
exec(library)
found.append(time.perf_counter())
for _ in range(2):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        exec(call)
    found.append(time.perf_counter())
print(json.dumps(found))
"""


def _once(table: Path, work: str) -> tuple[float, float, float]:
    """Seconds of the first fit, of what it imports from elsewhere, and of the second fit."""
    library, call = CALLS[work]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(table), library, call], check=True, capture_output=True, text=True,
        env=environment,
    )  # fmt: skip
    began, imported, first, second = json.loads(run.stdout)
    return first - began, imported - began, second - first


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv, __doc__ or "")
    sizes = (12,) if options.toy else (50, 500)
    cells = [(work, n) for work in CALLS for n in sizes if options.only in work][: 1 if options.toy else None]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        tables = {n: _table(Path(folder) / f"{n}.csv", n) for n in sizes}
        rounds = [[_once(tables[n], work) for work, n in cells] for _ in range(1 if options.toy else 1 + ROUNDS)]
    for k, (work, n) in enumerate(cells):
        timed = numpy.array([one[k] for one in rounds[1:] or rounds])
        first, imported, second = numpy.median(timed, axis=0).tolist()
        more = float(numpy.median(timed[:, 0] - timed[:, 2]))
        row = {"work": work, "rows": n, "first_seconds": first, "second_seconds": second, "more_seconds": more}
        row |= {"scikit_learn_seconds": imported if CALLS[work][0] else None, "target_seconds": AT_MOST_SECONDS}
        rows.append(row | {"met": more <= AT_MOST_SECONDS})
        print(rows[-1], flush=True)
    if not options.toy and not options.only:
        write_record(RECORDS / "first_fits.json", {"title": "First fits", "columns": COLUMNS, "rows": rows})
    return 0


def _table(path: Path, n: int) -> Path:
    """A smooth function of six columns with a little noise, as a CSV file."""
    generator = numpy.random.default_rng(0)
    x = generator.uniform(size=(n, 6))
    y = numpy.sin(3.0 * x[:, 0]) + x[:, 1] ** 2 + 0.1 * generator.standard_normal(n)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([[*(f"x{j + 1}" for j in range(6)), "y"], *numpy.column_stack([x, y]).tolist()])
    return path


if __name__ == "__main__":
    sys.exit(main())
