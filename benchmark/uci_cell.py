"""One cell of the table of published sets: a set, a split and a method, run in a process of its own.

Inputs and targets are z-scored with the statistics of the training rows; the model is variance * Matern-3/2 ARD plus a
constant mean and Gaussian noise, and every method trains its own parameters. RMSE, NLL (mean negative log density of a
new observation) and coverage are of the test rows, in units of standardised y. Peak memory is the operating system's,
above the data and the packages; what a library imports on first use it has imported before, on sixteen rows.
"""

import dataclasses
import functools
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import uci_gpytorch
from cells import Speaker
from common import Split, scores, split_of
from uci_types import Answer, Cell

import flashgp as fgp
from flashgp.bench.memory import PeakMeter

WARM_ROWS = 16


def run_cell(cell: Cell) -> dict[str, Any]:
    """The finished entry of a cell. Raises: MemoryBudgetError where it does not fit; whatever the method raises."""
    method = METHODS[cell.method]
    parts = split_of(cell.set, cell.split, Path(cell.data), cell.rows)
    method(dataclasses.replace(cell, memory=None, time_limit=None, peer_steps=1), _first_rows(parts), quiet=True)
    began = time.perf_counter()
    with PeakMeter() as meter:
        answer = method(cell, parts)
    seconds = time.perf_counter() - began
    scored = scores(answer.mean.double(), answer.variance.double(), parts.y_test)
    if not all(math.isfinite(value) for value in scored.values()):
        raise ArithmeticError(f"the predictions are not finite numbers with positive variances: {scored}")
    return {
        "n": parts.x.shape[0],
        "d": parts.x.shape[1],
        "n_distinct": int(torch.unique(parts.x, dim=0).shape[0]),
        "n_test": parts.x_test.shape[0],
        **scored,
        "seconds": seconds,
        "fit_seconds": answer.fit_seconds,
        "predict_seconds": answer.predict_seconds,
        "compile_seconds": answer.compile_seconds,
        "peak_bytes": meter.peak_bytes,
        "peak_method": meter.method,
        **answer.entries,
        **answer.later(),
    }


def _first_rows(parts: Split) -> Split:
    return Split(*(part[:WARM_ROWS] for part in parts))


# -- FlashGP ------------------------------------------------------------------------------------------------------
def flashgp(cell: Cell, parts: Split, quiet: bool = False) -> Answer:
    """`fgp.fit` at its defaults, and `posterior.predict`."""
    gp = _prior(parts.x.shape[1])
    return _fitted(cell, parts, gp, quiet, memory=cell.memory)


def dense(cell: Cell, parts: Split, quiet: bool = False) -> Answer:
    """The same with the plan forced to a float64 Cholesky of all rows: the optimum that others are measured by."""
    gp = _prior(parts.x.shape[1])
    return _fitted(cell, parts, gp, quiet, plan=_of_all_rows(cell, parts, gp))


def polished(cell: Cell, parts: Split, quiet: bool = False) -> Answer:
    """The optimum beside what FlashGP finds: from there on with a float64 Cholesky of all rows in every step.

    The time limit is of what comes on top.
    """
    gp = fgp.fit(_prior(parts.x.shape[1]), parts.x, parts.y, seed=cell.seed, memory=cell.memory).gp
    return _fitted(cell, parts, gp, quiet, plan=_of_all_rows(cell, parts, gp), initial="given", starts=1)


def _of_all_rows(cell: Cell, parts: Split, gp: fgp.GP) -> Any:
    """A plan that takes a float64 factor of all rows for every gradient, whatever it costs."""
    n, d = parts.x.shape
    distinct = len(torch.unique(parts.x, dim=0))
    plan = fgp.plan(gp, n=n, d=d, distinct=distinct, memory=cell.memory, route="direct")
    return dataclasses.replace(plan, training="exact", training_bytes=plan.peak_bytes)


def _prior(d: int) -> fgp.GP:
    kernel = 1.0 * fgp.kernels.Matern(nu=1.5, lengthscale=torch.ones(d, dtype=torch.float64))
    return fgp.GP(kernel, fgp.means.Constant(), fgp.likelihoods.Gaussian(0.1))


def _fitted(cell: Cell, parts: Split, gp: fgp.GP, quiet: bool, **how: Any) -> Answer:
    started = time.perf_counter()
    progress = None if quiet else Speaker(cell.key).training
    fit = fgp.fit(gp, parts.x, parts.y, seed=cell.seed, time_limit=cell.time_limit, progress=progress, **how)
    fitted = time.perf_counter()
    prediction = fit.posterior.predict(parts.x_test, memory=cell.memory)
    mean, variance = prediction.mean, prediction.observation_variance
    predicted = time.perf_counter()
    report, after = fit.report, prediction.report
    fit_compile, predict_compile = report.compile_seconds or 0.0, after.compile_seconds or 0.0
    entries = {
        "route": report.route,
        "backend": report.backend,
        "relative_residual": report.relative_residual,
        "error_bound": report.error_bound,
        "evaluations": len(fit.history),
        "values": [[e.start, e.seconds, e.value] for e in fit.history if e.measure != "gain" and not quiet],
        "gains": [[e.start, e.seconds, e.value] for e in fit.history if e.measure == "gain"],
        "iterations": report.iterations,
        "solve_iterations": fit.posterior.report.iterations,
        "interrupted": fit.interrupted,
        "predicted_bytes": report.predicted_bytes,
        "predicted_seconds": report.predicted_seconds,
        "reported_peak_bytes": report.peak_bytes,
        "standard_error": after.standard_error,
        "events": [str(event) for event in (*report.events, *after.events)],
    }
    return Answer(
        mean, variance, fitted - started - fit_compile, predicted - fitted - predict_compile,
        fit_compile + predict_compile, entries, lambda: {"hyperparameters": _hyperparameters(fit.gp)},
    )  # fmt: skip


def _hyperparameters(gp: Any) -> dict[str, Any]:
    return {
        "lengthscale": gp.kernel.kernel.lengthscale.value.tolist(),
        "variance": gp.kernel.variance.value.item(),
        "noise_variance": gp.likelihood.noise_variance.value.item(),
        "mean": gp.mean.value.value.item(),
    }


METHODS: dict[str, Callable[..., Answer]] = {
    "flashgp": flashgp,
    "dense": dense,
    "polished": polished,
    "gpytorch-default": functools.partial(uci_gpytorch.run, strict=False),
    "gpytorch-cholesky": functools.partial(uci_gpytorch.run, strict=True),
}
