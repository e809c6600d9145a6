"""Where small paths pay: one objective on NumPy and on the portable backend."""

import sys
from collections.abc import Sequence
from typing import Any
from unittest import mock

import torch
from common import RECORDS, arguments, interleaved, smooth_data

import flashgp as fgp
from flashgp.bench import write_record
from flashgp.inference.exact import likelihood, small
from flashgp.inference.exact.likelihood import DirectSettings
from flashgp.inference.training.objective import LogJoint, Problem
from flashgp.pairwise.torch.tiles import TorchTiles

COLUMNS = [
    {"key": "work", "title": "n"},
    {"key": "numpy_seconds", "title": "NumPy", "format": "seconds"},
    {"key": "torch_seconds", "title": "portable backend", "format": "seconds"},
]


def row_of(n: int, repeats: int) -> dict[str, Any]:
    x, y = smooth_data(n, 6, torch.float64)
    gp = fgp.GP(1.0 * fgp.kernels.Matern(nu=2.5, lengthscale=torch.ones(6)))

    def objective_of(rows: int) -> LogJoint:
        """The objective with NumPy up to that many rows."""
        with mock.patch.object(small, "MAX_NUMPY_ROWS", rows):
            return LogJoint(Problem(gp, x, y, DirectSettings(TorchTiles())))

    objective, portable = objective_of(10**6), objective_of(0)
    theta = objective.parameters.values()

    def by_torch() -> Any:
        with mock.patch.object(likelihood, "MAX_NUMPY_ROWS", 0):
            return portable(theta)

    timed = interleaved(
        {
            "numpy": lambda: objective(theta),
            "torch": by_torch,
        },
        repeats,
        3,
    )
    route_seconds = {name: timed[name].seconds for name in ("numpy", "torch")}
    values = [timed[name].result.value for name in route_seconds]
    assert max(values) - min(values) <= 1e-10 * abs(values[0]), "the routes disagree"
    return {"work": n, **{f"{name}_seconds": timed[name].seconds for name in timed}}


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv, __doc__ or "")
    rows = [
        row_of(n, 3 if options.toy else 31)
        for n in ((8,) if options.toy else (20, 50, 100, 128, 200, 300, 500, 800, 1000))
    ]
    for row in rows:
        print(row)
    if not options.toy:
        title = "One objective with gradient, Matern-5/2 ARD, d=6, float64"
        write_record(RECORDS / "small.json", {"title": title, "columns": COLUMNS, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
