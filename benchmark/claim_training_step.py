"""One training step of 10,000 rows, d = 8, Matern-3/2 ARD: error of the gradient, seconds and memory, beside GPyTorch.

    python benchmark/claim_training_step.py --cells recomputed keops

A step is one gradient of the log marginal likelihood from nothing: no answers of an earlier step to start from, the
preconditioner and the probes included; what is compiled once is not. Its error is the norm of the difference to the
exact gradient (float64 Cholesky, plain NumPy: problems.py) over the norm of that, by the logarithms of lengthscales,
variance and noise variance and by the mean. The cells, each in a process of its own, are

    recomputed        FlashGP's estimated gradient as `fit` takes it, tiles computed anew in every product
    stored            the same with tiles kept in float32
    keops             GPyTorch with its KeOps kernel at its defaults (float32): one marginal likelihood and backward
    keops-own-start   the same at GPyTorch's own initial parameters; all others are at those `fit` starts from

Every cell repeats its step with other seeds: seconds are the median, the error is the largest.
"""

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import peer_models
import torch
from cells import Cell, Claim, Entry, main_of, options_of
from common import interquartile_range, smooth_data
from problems import kept, matern_gradient

import flashgp as fgp
from flashgp.bench.memory import PeakMeter
from flashgp.foundations.quantities import readable_bytes, readable_seconds
from flashgp.inference.exact.likelihood import DirectSettings
from flashgp.inference.run import Run
from flashgp.inference.training.initial import DataFacts, role_starts
from flashgp.inference.training.objective import Problem
from flashgp.inference.training.settings import StochasticSettings
from flashgp.inference.training.stochastic_objective import EstimatedLogJoint, EstimateOptions
from flashgp.pairwise.torch.tiles import TorchTiles

MAX_ERROR, MIN_RATIO = 0.05, 20.0  # what was to be reached
WARM_ROWS = 4000  # enough that everything is compiled, and that GPyTorch takes the way of large problems
D = 8
# What a cell takes on two cores at 10,000 rows, the exact gradient of the first one included: for what is left only.
SECONDS = {"recomputed": 120.0, "stored": 40.0, "keops": 180.0, "keops-own-start": 240.0}
COLUMNS = [
    {"key": "method", "title": "one step"},
    {"key": "gradient_error", "title": "error of the gradient", "format": "percent"},
    {"key": "step_seconds", "title": "seconds"},
    {"key": "ratio", "title": "times faster than GPyTorch + KeOps"},
    {"key": "compile_seconds", "title": "compile, once"},
    {"key": "peak_bytes", "title": "peak above the data"},
    {"key": "target", "title": "to be reached", "format": "text"},
    {"key": "met", "title": "reached"},
]
TITLES = {
    "recomputed": "FlashGP, tiles recomputed",
    "stored": "FlashGP, tiles stored",
    "keops": "GPyTorch + KeOps",
    "keops-own-start": "GPyTorch + KeOps, at its own initial parameters",
}


class Values(NamedTuple):
    """Where a gradient is taken."""

    lengthscale: Any
    variance: float
    noise_variance: float
    mean: float


class Steps(NamedTuple):
    """What a cell measures. gradients: by log lengthscales, log variance, log noise variance, mean."""

    at: Values
    gradients: list[Any]
    seconds: list[float]
    compile_seconds: float
    peak_bytes: int
    peak_method: str
    entries: dict[str, Any]


def run_cell(cell: Cell) -> Entry:
    """Steps and their errors."""
    x, y = smooth_data(cell["n"], D, torch.float64)
    steps = METHODS[cell["method"]](x, y, cell["repeats"])
    exact = _exact(x, y, steps.at, Path(cell["scratch"]))
    errors = [float(numpy.linalg.norm(g - exact) / numpy.linalg.norm(exact)) for g in steps.gradients]
    return {
        "d": D,
        "gradient_error": max(errors),
        "gradient_errors": errors,
        "gradient_norm": float(numpy.linalg.norm(exact)),
        "step_seconds": statistics.median(steps.seconds),
        "spread_seconds": interquartile_range(steps.seconds),
        "compile_seconds": steps.compile_seconds,
        "peak_bytes": steps.peak_bytes,
        "peak_method": steps.peak_method,
        **steps.entries,
    }


def _exact(x: torch.Tensor, y: torch.Tensor, at: Values, scratch: Path) -> Any:
    """The exact gradient there, computed once for all cells that meet there."""
    numbers = [*at.lengthscale, *at[1:]]
    name = f"gradient-{len(x)}-" + "-".join(f"{number:.6g}" for number in (numbers[0], *numbers[D:])) + ".npz"
    made = kept(
        scratch / name, lambda: {"at": numpy.array(numbers), "gradient": matern_gradient(x.numpy(), y.numpy(), *at)}
    )
    if not numpy.allclose(made["at"], numbers, rtol=1e-12):
        raise ValueError(f"{scratch / name} holds a gradient at other parameters; delete it")
    return made["gradient"]


# -- FlashGP ----------------------------------------------------------------------------------------------------------
def _prior() -> fgp.GP:
    kernel = 1.0 * fgp.kernels.Matern(nu=1.5, lengthscale=torch.ones(D, dtype=torch.float64))
    return fgp.GP(kernel, fgp.means.Constant(), fgp.likelihoods.Gaussian(0.1))


def _objective(x: torch.Tensor, y: torch.Tensor, seed: int, stored: bool) -> tuple[EstimatedLogJoint, Any]:
    """What `fit` makes of many rows, and the vector it starts from; without priors, which are exact either way."""
    gp = _prior()
    roles = role_starts(gp, DataFacts.of(x, y, None))
    plan = fgp.plan(gp, n=len(x), d=D)
    passes, rank = plan.training_factor_passes or None, plan.training_rank or None
    options = EstimateOptions(run=Run(seed=seed), stored=stored, factor_passes=passes, rank=rank)
    problem = Problem(gp, x, y, DirectSettings(TorchTiles()), roles)
    objective = EstimatedLogJoint(problem, StochasticSettings(), options)
    return objective, objective.parameters.starts(1, from_data=True, spread=1.0, seed=seed)[0]


def _start(x: torch.Tensor, y: torch.Tensor) -> Values:
    objective, theta = _objective(x, y, 0, False)
    objective.parameters.assign(theta)
    gp = objective.problem.prior
    return Values(
        gp.kernel.kernel.lengthscale.value.detach().numpy().copy(), float(gp.kernel.variance.value.detach()),
        float(gp.likelihood.noise_variance.value.detach()), float(gp.mean.value.value.detach()),
    )  # fmt: skip


def _ours(stored: bool) -> Callable[[torch.Tensor, torch.Tensor, int], Steps]:
    def steps(x: torch.Tensor, y: torch.Tensor, repeats: int) -> Steps:
        objective, theta = _objective(x[:WARM_ROWS], y[:WARM_ROWS], 0, stored)
        objective(theta)
        compile_seconds = objective.problem.direct.workspace.compile_seconds
        gradients, seconds, passes, events = [], [], [], []
        with PeakMeter() as meter:
            for seed in range(repeats):
                objective, theta = _objective(x, y, seed, stored)
                began = time.perf_counter()
                gradient = objective(theta).gradient
                compiled = objective.problem.direct.workspace.compile_seconds
                seconds.append(time.perf_counter() - began - compiled)
                compile_seconds += compiled
                gradients.append(-_ordered(objective, gradient))  # of the likelihood, not of what is minimised
                passes.append(objective.passes)
                events += [event for event in objective.problem.direct.workspace.events if event not in events]
        plan = fgp.plan(objective.problem.prior, n=len(x), d=D)
        entries = {
            "passes": passes, "probes": objective.probes, "events": list(map(str, events)),
            "factored": objective.solving.by_factor,
            "largest_residual": objective.residual, "backend": objective.problem.direct.workspace.backend,
            "predicted_step_seconds": plan.fit_step_seconds, "planned_training": plan.training,
        }  # fmt: skip
        return Steps(_start(x, y), gradients, seconds, compile_seconds, meter.peak_bytes, meter.method, entries)

    return steps


def _ordered(objective: EstimatedLogJoint, gradient: Any) -> Any:
    """By lengthscales, variance, noise variance, mean."""
    parts = {"lengthscale": gradient[:0], "variance": gradient[:0], "noise": gradient[:0], "mean": gradient[:0]}
    for slot in objective.parameters.slots:
        names = [name for name in ("lengthscale", "noise", "mean", "variance") if name in slot.name]
        parts[names[0]] = gradient[slot.entries]
    return numpy.concatenate([parts[name] for name in ("lengthscale", "variance", "noise", "mean")])


# -- GPyTorch ---------------------------------------------------------------------------------------------------------
def _keops(own_start: bool) -> Callable[[torch.Tensor, torch.Tensor, int], Steps]:
    def steps(x: torch.Tensor, y: torch.Tensor, repeats: int) -> Steps:
        gpytorch, pykeops = map(peer_models.library, ("gpytorch", "pykeops"))
        at = None if own_start else _start(x, y)
        began = time.perf_counter()
        _keops_step(gpytorch, x[:WARM_ROWS], y[:WARM_ROWS], at)
        first = time.perf_counter() - began
        gradients, seconds = [], []
        with PeakMeter() as meter:
            for seed in range(repeats):
                torch.manual_seed(seed)
                reached, gradient, taken = _keops_step(gpytorch, x, y, at)
                gradients.append(gradient)
                seconds.append(taken)
        entries = {"dtype": "float32", "warm_seconds": first, "pykeops": pykeops.__version__, "backend": "KeOps"}
        return Steps(reached, gradients, seconds, 0.0, meter.peak_bytes, meter.method, entries)

    return steps


def _keops_step(gpytorch: Any, x: torch.Tensor, y: torch.Tensor, at: Values | None) -> tuple[Values, Any, float]:
    """Where, the gradient, and the seconds of one marginal log likelihood with its backward pass."""
    x, y = x.float(), y.float()

    base = gpytorch.kernels.keops.MaternKernel(nu=1.5, ard_num_dims=D)
    objective = peer_models.exact(x, y, gpytorch.kernels.ScaleKernel(base))
    model, likelihood = objective.model, objective.likelihood
    if at is not None:
        base.lengthscale = torch.tensor(at.lengthscale, dtype=torch.float32)
        model.kernel.outputscale, likelihood.noise, model.mean.constant.data[...] = at[1:]
    objective.train()
    with warnings.catch_warnings(action="ignore"):
        began = time.perf_counter()
        objective(model(x), y).backward()
        seconds = time.perf_counter() - began
    raw = [base.raw_lengthscale, model.kernel.raw_outputscale, likelihood.noise_covar.raw_noise]
    values = [base.lengthscale, model.kernel.outputscale, likelihood.noise]
    # Its parameters are softplus of raw ones, above a lower bound: d value / d raw = sigmoid(raw).
    parts = [
        (p.grad.double() / torch.sigmoid(p.detach().double()) * v.detach().double()).reshape(-1)
        for p, v in zip(raw, values, strict=True)
    ]
    parts.append(model.mean.constant.grad.double().reshape(-1))
    gradient = len(x) * torch.cat(parts).numpy()  # its objective is divided by the number of rows
    if at is None:
        own = base.lengthscale.detach().double().numpy().reshape(-1)
        at = Values(own, *(v.item() for v in values[1:]), model.mean.constant.item())
    return at, gradient, seconds


METHODS: dict[str, Callable[[torch.Tensor, torch.Tensor, int], Steps]] = {
    "recomputed": _ours(False),
    "stored": _ours(True),
    "keops": _keops(False),
    "keops-own-start": _keops(True),
}


# -- the table --------------------------------------------------------------------------------------------------------
def rows(entries: Mapping[str, Entry]) -> list[dict[str, Any]]:
    """One row for each cell; what was to be reached is asked of recomputed tiles."""
    table_rows = []
    for entry in entries.values():
        peer = entries.get(f"n={entry['n']}/keops", {}).get("step_seconds")
        row = {"method": f"{TITLES[entry['method']]}, n={entry['n']:,}"}
        if entry["status"] != "done":
            table_rows.append({**row, "met": str(entry["error"]).splitlines()[0][:80]})
            continue
        ours = not entry["method"].startswith("keops")
        row |= {key: entry[key] for key in ("gradient_error", "step_seconds", "compile_seconds", "peak_bytes")}
        row["ratio"] = peer / entry["step_seconds"] if ours and peer else None
        if entry["method"] == "recomputed":
            row["target"] = f"error {100 * MAX_ERROR:g} %, {MIN_RATIO:g}x"
            quick = None if row["ratio"] is None else row["ratio"] >= MIN_RATIO
            row["met"] = False if entry["gradient_error"] > MAX_ERROR else quick
        table_rows.append(row)
    return table_rows


def line(entry: Entry) -> str:
    return (
        f"error of the gradient {100 * entry['gradient_error']:.2f} %, {readable_seconds(entry['step_seconds'])}, "
        f"peak {readable_bytes(entry['peak_bytes'])}"
    )


CLAIM = Claim("training_step", "claim_training_step", "One training step", COLUMNS, rows, line)


def main(argv: Sequence[str] | None = None) -> int:
    def more(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--n", type=int, default=10_000, metavar="ROWS")
        parser.add_argument("--repeats", type=int, default=3, metavar="N", help="steps of each cell")

    options = options_of(__doc__ or "", argv, CLAIM.name, more)
    n, repeats = (300, 2) if options.toy else (options.n, options.repeats)
    beside = {"scratch": str(options.scratch)}
    share = (n / 10_000) ** 2
    cells = [
        Cell(f"n={n}/{method}", {"n": n, "method": method, "repeats": repeats}, 5.0 + share * SECONDS[method], beside)
        for method in ("recomputed", "stored", "keops", "keops-own-start")
        if not (options.toy and method.startswith("keops"))  # a toy run needs no peers
    ]
    return main_of(CLAIM, cells, options)


if __name__ == "__main__":
    sys.exit(main())
