"""Products that skip far tiles, beside the same product of all pairs: time, error against its bound, peak memory.

n rows uniform in the unit square or cube, RBF, float32, V ~ N(0, 1), tiles below 1e-9 of the prior variance skipped.
The error is against float64 by direct differences on 200 rows, as the largest share of (|K| |V|)_i; the share of the
certified bound is that of the same product in float64, in which rounding hides nothing. Sorting the rows is in its own
column: it is done once for all products of an operator.
"""

import functools
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
from common import RECORDS, arguments, interleaved

import flashgp as fgp
from flashgp.bench import measure_peak_bytes, write_record
from flashgp.pairwise.near import far
from flashgp.planner.problem import Features, PlanSettings, ProductProblem
from flashgp.planner.products import plan_product

F64 = torch.float64
COLUMNS = [
    {"key": "work", "title": "product"},
    {"key": "kept", "title": "pairs kept", "format": "percent"},
    {"key": "ours_seconds", "title": "near tiles"},
    {"key": "all_seconds", "title": "all tiles"},
    {"key": "ratio", "title": "times faster"},
    {"key": "target", "title": "at least"},
    {"key": "order_seconds", "title": "order, once"},
    {"key": "error", "title": "largest error"},
    {"key": "bound_share", "title": "of its bound", "format": "error"},
    {"key": "peak_bytes", "title": "peak above the data"},
    {"key": "planned", "title": "time, of the plan's", "format": "fixed2"},
]
SKIP_BELOW, SAMPLE = 1e-9, 200
# (d, lengthscale, times the product of all pairs): where few pairs are near, skipping is to be worth ten times.
GRID = [(2, 0.01, 10.0), (2, 0.03, None), (2, 0.1, None), (3, 0.01, 10.0), (3, 0.03, None), (3, 0.1, None)]


def points(n: int, d: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(n, d, generator=generator), torch.randn(n, 1, generator=generator)


def largest_error(
    kernel: fgp.kernels.Kernel, x: torch.Tensor, right: torch.Tensor, product: torch.Tensor
) -> tuple[float, torch.Tensor]:
    """The largest share of |K| |V| on sampled rows, and their numbers."""
    index = torch.randperm(x.shape[0], generator=torch.Generator().manual_seed(1))[:SAMPLE]
    dense = kernel.operator(x[index].double(), x.double()).to_dense()
    exact, scale = dense @ right.double(), dense.abs() @ right.double().abs()
    return float(((product[index].double() - exact).abs() / scale).max()), index


def share_of_bound(kernel: fgp.kernels.Kernel, x: torch.Tensor, right: torch.Tensor, index: torch.Tensor) -> float:
    """The largest error of the float64 product on sampled rows, as a share of its certified bound there."""
    made = kernel.operator(x.double(), skip_below=SKIP_BELOW).product(right.double())
    exact = kernel.operator(x[index].double(), x.double()).to_dense() @ right.double()
    off, bound = (made.value[index] - exact).abs(), made.error_bound[index]
    rounding = 1e-13 * exact.abs().max()
    return float(((off - rounding).clamp_min(0.0) / bound.clamp_min(torch.finfo(F64).tiny)).max())


def _prepare(n: int, d: int, lengthscale: float) -> Any:
    x, right = points(n, d)
    kernel = fgp.kernels.RBF(lengthscale)
    few = kernel.operator(x[:20_000], skip_below=SKIP_BELOW)
    with torch.no_grad():
        few @ right[:20_000]  # what the compiler keeps is not of this product
    return kernel.operator(x, skip_below=SKIP_BELOW), right


def _product(given: Any) -> None:
    operator, right = given
    with torch.no_grad():
        operator @ right


def measured(n: int, d: int, lengthscale: float, target: float | None, *, toy: bool) -> dict[str, Any]:
    """One row of the record."""
    kernel, (x, right) = fgp.kernels.RBF(lengthscale), points(n, d)
    with torch.no_grad():
        kernel.operator(x, skip_below=SKIP_BELOW) @ right
        began = time.perf_counter()
        operator = kernel.operator(x, skip_below=SKIP_BELOW)
        order_seconds = time.perf_counter() - began
        plain = kernel.operator(x)
        timed = interleaved({"near": lambda: operator @ right, "all": lambda: plain @ right}, 1 if toy else 5)
        error, index = largest_error(kernel, x, right, timed["near"].result)
        within = share_of_bound(kernel, x, right, index)
    product = ProductProblem(kernel.form, n, None, Features(d), kept=operator.kept, dtype=torch.float32)
    planned = plan_product(product, PlanSettings("64GiB"))
    prepare = functools.partial(_prepare, n, d, lengthscale)
    near, everything = timed["near"].seconds, timed["all"].seconds
    row = {
        "work": f"RBF, n={n:,}, d={d}, lengthscale {lengthscale:g}", "kept": operator.kept, "ours_seconds": near,
        "all_seconds": everything, "ratio": everything / near, "target": target, "order_seconds": order_seconds,
        "error": error, "bound_share": within, "spread": timed["near"].spread, "all_spread": timed["all"].spread,
        "predicted_seconds": planned.seconds, "planned": (near + order_seconds) / planned.seconds,
        "predicted_bytes": planned.peak_bytes, "skip_below": SKIP_BELOW,
        "peak_bytes": None if toy else measure_peak_bytes(_product, setup=prepare),
    }  # fmt: skip
    row["met"] = within <= 1.0 and error <= 2e-6 and (target is None or row["ratio"] >= target)
    return row


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv, __doc__ or "")
    if options.toy:
        row = measured(16 * far.PANEL, 2, 0.01, None, toy=True)
        assert row["kept"] < 1.0
        assert row["met"], row
        return 0
    rows: list[dict[str, Any]] = []
    for d, lengthscale, target in GRID:
        if options.only in f"RBF, n=100,000, d={d}, lengthscale {lengthscale:g}":
            rows.append(measured(100_000, d, lengthscale, target, toy=False))
            print(rows[-1], flush=True)
    if not options.only:
        title = "Products that skip far tiles, against all tiles"
        write_record(RECORDS / "far_tiles.json", {"title": title, "columns": COLUMNS, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
