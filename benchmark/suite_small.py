"""Where small paths pay: one objective on NumPy, compiled and on torch tiles, four starts batched or one by one."""

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import torch
from common import RECORDS, arguments, interleaved, smooth_data

import flashgp as fgp
from flashgp.bench import write_record
from flashgp.inference.exact.likelihood import DirectSettings
from flashgp.inference.training.objective import FlatObjective
from flashgp.pairwise import small
from flashgp.pairwise.torch.tiles import TorchTiles

COLUMNS = [
    {"key": "work", "title": "n"},
    {"key": "numpy_seconds", "title": "NumPy", "format": "seconds"},
    {"key": "compiled_seconds", "title": "compiled", "format": "seconds"},
    {"key": "torch_seconds", "title": "torch tiles", "format": "seconds"},
    {"key": "four_seconds", "title": "four vectors, one by one", "format": "seconds"},
    {"key": "batch_seconds", "title": "four vectors, one batch", "format": "seconds"},
]


def row_of(n: int, repeats: int) -> dict[str, Any]:
    x, y = smooth_data(n, 6, torch.float64)
    gp = fgp.GP(1.0 * fgp.kernels.Matern(nu=2.5, lengthscale=torch.ones(6)))
    objective = FlatObjective(gp, x, y, DirectSettings(TorchTiles()), {}, weak=False)
    theta = objective.vector()
    four = [theta + 0.01 * k for k in range(4)]

    def by_route(thetas: Sequence[Any], **limits: float) -> Callable[[], Any]:
        def evaluate() -> Any:
            with mock.patch.multiple(small, **limits):
                return [objective(t) for t in thetas]

        return evaluate

    in_numpy: dict[str, float] = {"SMALL_ROWS": 10**6, "COMPILE_SECONDS": math.inf}
    timed = interleaved(
        {
            "numpy": by_route([theta], **in_numpy),
            "compiled": by_route([theta], LOAD_SECONDS=0.0, COMPILE_SECONDS=0.0),
            "torch": by_route([theta], COMPILED_ROWS=0),
            "four": by_route(four, **in_numpy),
            "batch": lambda: objective.together(four),
        },
        repeats,
        3,
    )
    route_seconds = {name: timed[name].seconds for name in ("numpy", "compiled", "torch")}
    values = [timed[name].result[0][0] for name in route_seconds]
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
