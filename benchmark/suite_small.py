"""Where the small path pays: one objective on NumPy and on torch tiles, four starts batched or one by one."""

import sys
from collections.abc import Sequence
from typing import Any
from unittest import mock

import torch
from common import RECORDS, arguments, interleaved, smooth_data

import flashgp as fgp
from flashgp.bench import write_record
from flashgp.inference import likelihood_gradient, small_model
from flashgp.inference.likelihood_gradient import DirectSettings
from flashgp.inference.objective import FlatObjective
from flashgp.pairwise.torch_tiles import TorchTiles

COLUMNS = [
    {"key": "work", "title": "n"},
    {"key": "numpy_seconds", "title": "NumPy", "format": "seconds"},
    {"key": "torch_seconds", "title": "torch tiles", "format": "seconds"},
    {"key": "four_seconds", "title": "four vectors, one by one", "format": "seconds"},
    {"key": "batch_seconds", "title": "four vectors, one batch", "format": "seconds"},
]


def row_of(n: int, repeats: int) -> dict[str, Any]:
    x, y = smooth_data(n, 6, torch.float64)
    gp = fgp.GP(1.0 * fgp.kernels.Matern(nu=2.5, lengthscale=torch.ones(6)))
    objective = FlatObjective(gp, x, y, DirectSettings(TorchTiles()), {}, weak=False)
    theta = objective.vector()

    # The same objective twice, one of them made where no problem counts as small.
    with mock.patch.object(small_model, "SMALL_ROWS", 10**6):
        in_numpy = FlatObjective(gp, x, y, DirectSettings(TorchTiles()), {}, weak=False)
    with mock.patch.object(small_model, "SMALL_ROWS", 0):
        in_torch = FlatObjective(gp, x, y, DirectSettings(TorchTiles()), {}, weak=False)

    def on_tiles() -> Any:
        with mock.patch.object(likelihood_gradient, "SMALL_ROWS", 0):
            return in_torch(theta)

    four = [theta + 0.01 * k for k in range(4)]
    timed = interleaved(
        {
            "numpy": lambda: in_numpy(theta),
            "torch": on_tiles,
            "four": lambda: [in_numpy(t) for t in four],
            "batch": lambda: objective.together(four),
        },
        repeats,
        3,
    )
    return {"work": n, **{f"{name}_seconds": timed[name].seconds for name in timed}}


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv, __doc__ or "")
    rows = [row_of(n, 3 if options.toy else 31) for n in ((8,) if options.toy else (20, 50, 100, 128, 200, 300))]
    for row in rows:
        print(row)
    if not options.toy:
        title = "One objective with gradient, Matern-5/2 ARD, d=6, float64"
        write_record(RECORDS / "small.json", {"title": title, "columns": COLUMNS, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
