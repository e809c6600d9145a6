"""A training step on a minibatch by the bound of inducing points, beside GPyTorch's SVGP.

    python benchmark/claim_minibatch_step.py

One step is the bound on the next batch, its gradient by mean, lengthscales, variance and noise, a step of Adam on
these, and one of the distribution q(u) of the inducing values, which stay where they are; Matern-3/2 with a lengthscale
per column. The cells, each in a process of its own, are

    flashgp            `gp.minibatch_bound`, float64: q(u) by its natural-gradient step
    gpytorch/float64   GPyTorch's whitened SVGP, the Cholesky factor of S among what Adam moves
    gpytorch/float32   the same in float32, in which it is mostly used

The error of a value is per row, at the best q(u) of one batch, against the bound by NumPy in float64 with the jitter of
that library: with the logarithm for FlashGP (2025), with the trace for GPyTorch (Hensman et al. 2013).
"""

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy
import peer_models
import scipy.linalg
import torch
from cells import Cell, Claim, Entry, main_of, options_of
from common import interquartile_range, smooth_data

import flashgp as fgp
from flashgp.bench.memory import PeakMeter
from flashgp.foundations.quantities import readable_bytes, readable_seconds

D, VARIANCE, NOISE, LENGTHSCALE = 8, 1.0, 0.01, 2.0
MIN_RATIO = 4.0  # what was to be reached, beside the same precision
WARMUP = 5  # steps that are not measured: compiles, first gradients
COLUMNS = [
    {"key": "method", "title": "step"},
    {"key": "step_seconds", "title": "seconds"},
    {"key": "ratio", "title": "times faster than GPyTorch"},
    {"key": "value_error", "title": "error of the value, nats a row"},
    {"key": "peak_bytes", "title": "peak above the data"},
    {"key": "target", "title": "to be reached"},
    {"key": "met", "title": "reached"},
]


def run_cell(cell: Cell) -> Entry:
    return METHODS[cell["method"]](cell)


def _batches(cell: Cell, dtype: torch.dtype) -> tuple[list[tuple[torch.Tensor, torch.Tensor]], torch.Tensor]:
    """Batches of rows in random order, and inducing points among them."""
    x, y = smooth_data(cell["n"], D, torch.float64)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    x, y = x[order].to(dtype), y[order].to(dtype)
    size = cell["batch"]
    parts = [(x[i : i + size].clone(), y[i : i + size].clone()) for i in range(0, len(x) - size + 1, size)]
    return parts, x[:: len(x) // cell["m"]][: cell["m"]].clone()


def _measured(step: Callable[[int], None], repeats: int) -> dict[str, Any]:
    """Seconds of one step, of so many after the warm-up."""
    for number in range(WARMUP):
        step(number)
    seconds = []
    with PeakMeter() as meter:
        for number in range(WARMUP, WARMUP + repeats):
            began = time.perf_counter()
            step(number)
            seconds.append(time.perf_counter() - began)
    return {
        "step_seconds": statistics.median(seconds), "spread_seconds": interquartile_range(seconds),
        "peak_bytes": meter.peak_bytes, "peak_method": meter.method, "d": D,
    }  # fmt: skip


def _flashgp(cell: Cell) -> Entry:
    batches, z = _batches(cell, torch.float64)
    kernel = VARIANCE * fgp.kernels.Matern(nu=1.5, lengthscale=torch.full((D,), LENGTHSCALE, dtype=torch.float64))
    gp = fgp.GP(kernel, fgp.means.Constant(0.0), fgp.likelihoods.Gaussian(NOISE))
    first = gp.minibatch_bound(*batches[0], count=cell["n"], inducing=z)
    wanted = _Reference(*batches[0], z, cell["n"], 1e-8, 0.0).value(logarithm=True)
    held, optimiser = [first.q], torch.optim.Adam(gp.parameters(), lr=0.01)

    def step(number: int) -> None:
        found = gp.minibatch_bound(*batches[number % len(batches)], count=cell["n"], inducing=z, q=held[0])
        optimiser.zero_grad()
        (-found.value).backward()
        optimiser.step()
        held[0] = found.q

    entry = _measured(step, cell["repeats"])
    return {**entry, "value_error": abs(first.value.item() - wanted) / cell["n"], "step_size": held[0].step_size}


def _gpytorch(cell: Cell) -> Entry:
    gpytorch = peer_models.library("gpytorch")
    dtype = getattr(torch, cell["dtype"])
    batches, z = _batches(cell, dtype)
    objective = peer_models.svgp(z, peer_models.matern(D), cell["n"], learn=False, mean_init_std=0.0)
    model, likelihood = objective.model, objective.likelihood
    model.kernel.base_kernel.lengthscale, model.kernel.outputscale, likelihood.noise = LENGTHSCALE, VARIANCE, NOISE
    objective.train()
    jitter = gpytorch.settings.variational_cholesky_jitter.value(dtype)
    reference = _Reference(*(t.double() for t in batches[0]), z.double(), cell["n"], jitter, jitter)
    with torch.no_grad():
        model(batches[0][0])  # which sets q(u) to the prior, once
        q = model.variational_strategy._variational_distribution
        q.variational_mean.copy_(torch.from_numpy(reference.weights))
        q.chol_variational_covar.copy_(torch.from_numpy(numpy.linalg.cholesky(reference.covariance)))
        value = float(objective(model(batches[0][0]), batches[0][1])) * cell["n"]
    step = peer_models.adam(objective, 0.01)
    entry = _measured(lambda number: step(*batches[number % len(batches)]), cell["repeats"])
    error = abs(value - reference.value(logarithm=False)) / cell["n"]
    return {**entry, "value_error": error, "gpytorch": gpytorch.__version__}


class _Reference:
    """The bound on a batch at the best q(u) of that batch by plain NumPy. Fields: weights, its mean; covariance."""

    def __init__(self, x: Any, y: Any, z: Any, n: int, jitter: float, jitter_of_rows: float) -> None:
        x, y, z = x.numpy(), y.numpy(), z.numpy()
        lower = numpy.linalg.cholesky(_covariance(z, z) + jitter * VARIANCE * numpy.eye(len(z)))
        self.a = scipy.linalg.solve_triangular(lower, _covariance(z, x), lower=True).T
        self.left = VARIANCE + jitter_of_rows - (self.a**2).sum(1)
        self.y, self.scale = y, n / len(x)
        precision = numpy.eye(len(z)) + self.scale / NOISE * self.a.T @ self.a
        self.covariance = numpy.linalg.inv(precision)
        self.covariance = 0.5 * (self.covariance + self.covariance.T)
        self.weights = numpy.linalg.solve(precision, self.scale / NOISE * self.a.T @ y)

    def value(self, *, logarithm: bool) -> float:
        spread = ((self.a @ self.covariance) * self.a).sum(1)
        fit = ((self.y - self.a @ self.weights) ** 2 + spread) / NOISE + math.log(2.0 * math.pi * NOISE)
        left = numpy.log1p(self.left / NOISE) if logarithm else self.left / NOISE
        _, determinant = numpy.linalg.slogdet(self.covariance)
        divergence = 0.5 * (self.covariance.trace() + self.weights @ self.weights - len(self.weights) - determinant)
        return float(-0.5 * self.scale * (fit + left).sum() - divergence)


def _covariance(one: Any, other: Any) -> Any:
    near = numpy.sqrt(3.0 * sum((one[:, j, None] - other[:, j]) ** 2 for j in range(D))) / LENGTHSCALE
    return VARIANCE * (1.0 + near) * numpy.exp(-near)


METHODS: dict[str, Callable[[Cell], Entry]] = {"flashgp": _flashgp, "gpytorch": _gpytorch}


# -- the table --------------------------------------------------------------------------------------------------------
def rows(entries: Mapping[str, Entry]) -> list[dict[str, Any]]:
    """One row for each cell; FlashGP's float64 step beside GPyTorch's in both precisions."""
    table_rows = []
    ours = entries.get("flashgp", {}).get("step_seconds")
    for entry in entries.values():
        name = "FlashGP, float64" if entry["method"] == "flashgp" else f"GPyTorch's SVGP, {entry['dtype']}"
        row: dict[str, Any] = {"method": f"{name}, {entry['m']} points, batches of {entry['batch']:,}"}
        if entry["status"] != "done":
            table_rows.append({**row, "met": str(entry["error"]).splitlines()[0][:80]})
            continue
        row |= {key: entry.get(key) for key in ("step_seconds", "peak_bytes", "value_error")}
        if entry["method"] == "gpytorch" and ours is not None:
            row["ratio"] = entry["step_seconds"] / ours
            if entry["dtype"] == "float64":
                row |= {"target": MIN_RATIO, "met": row["ratio"] >= MIN_RATIO}
        table_rows.append(row)
    return table_rows


def line(entry: Entry) -> str:
    return f"{readable_seconds(entry['step_seconds'])} a step, peak {readable_bytes(entry['peak_bytes'])}"


CLAIM = Claim("minibatch_step", "claim_minibatch_step", "A training step on a minibatch", COLUMNS, rows, line)


def main(argv: Sequence[str] | None = None) -> int:
    def more(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--n", type=int, default=36_000, metavar="ROWS", help="of the table")
        parser.add_argument("--batch", type=int, default=1024, metavar="ROWS", help="of a minibatch")
        parser.add_argument("--inducing", type=int, default=512, metavar="POINTS")
        parser.add_argument("--repeats", type=int, default=50, metavar="N", help="steps that are measured")

    options = options_of(__doc__ or "", argv, CLAIM.name, more)
    n, batch, m, repeats = (
        (300, 60, 20, 3) if options.toy else (options.n, options.batch, options.inducing, options.repeats)
    )
    sizes = {"n": n, "batch": batch, "m": m, "repeats": repeats}
    seconds = 10.0 + 0.3 * repeats
    cells = [Cell("flashgp", {**sizes, "method": "flashgp", "dtype": "float64"}, seconds)]
    cells += [
        Cell(f"gpytorch/{dtype}", {**sizes, "method": "gpytorch", "dtype": dtype}, seconds)
        for dtype in ("float64", "float32")
    ]
    if options.toy:  # which needs no peers
        cells = [cell for cell in cells if cell["method"] != "gpytorch"]
    return main_of(CLAIM, cells, options)


if __name__ == "__main__":
    sys.exit(main())
