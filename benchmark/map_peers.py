"""Whole fits of a map, rows held: Fourier series, "auto" and full scale beside KISS-GP, SVGP and GPBoost's Vecchia.

Matern-3/2 with a lengthscale per column, noise found. Each peer as its own documentation has it: KISS-GP (GPyTorch)
with the grid that it chooses and Adam at rate .1, of whose hundred steps the first are timed, SVGP (GPyTorch) with 512
inducing points, batches of 1,024 rows and twenty epochs at .01, GPBoost with its defaults. Scores are of 2,000 new
points.
"""

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy
import peer_models
import torch
from cells import Cell, Entry, Speaker
from common import scores
from peer_models import Fitted

import flashgp as fgp
from flashgp.bench.memory import PeakMeter

F64 = torch.float64
OURS = {"fourier": "fourier", "auto": "auto", "full_scale": "full_scale"}
STEPS, EPOCHS, INDUCING, BATCH = 10, 20, 512, 1024


def fitted_map(cell: Cell, function: Callable[[Any], Any]) -> Entry:
    """Scores and seconds of a method at n rows of a function in two columns with noise of deviation .1."""
    n, method, generator = cell["n"], cell["method"], numpy.random.default_rng(4)
    x = generator.random((n + 2_000, 2))
    truth = torch.from_numpy(function(x))
    y, x = truth + 0.1 * torch.from_numpy(generator.standard_normal(len(x))), torch.from_numpy(x)
    package = {"kiss_gp": "gpytorch", "svgp": "gpytorch", "gpboost": "gpboost"}.get(method)
    if package is not None:
        peer_models.library(package)
    with PeakMeter() as meter:
        began, own = time.perf_counter(), time.process_time()
        predict = METHODS[method](x[:n], y[:n], cell)
        done, used = time.perf_counter(), time.process_time()
        mean, variance = predict(x[n:])
        ended = time.perf_counter()
    return {
        "fit_seconds": done - began, "cpu_seconds": used - own, "predict_seconds": ended - done,
        "peak_bytes": meter.peak_bytes, "peak_method": meter.method,
        "rmse": float((mean - truth[n:]).square().mean().sqrt()),
        "log_loss": scores(mean, variance, y[n:])["nll"],
        "true_loss": scores(truth[n:], torch.full_like(mean, 0.01), y[n:])["nll"],
    }  # fmt: skip


def _flashgp(x: torch.Tensor, y: torch.Tensor, cell: Cell) -> Fitted:
    gp = fgp.GP(1.0 * fgp.kernels.Matern(nu=1.5, lengthscale=torch.ones(2, dtype=F64)))
    fit = fgp.fit(gp, x, y, approximation=OURS[cell["method"]], progress=Speaker(cell.key).training)

    def predict(points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = fit.posterior.predict(points)
        return found.mean, found.observation_variance

    return predict


def _kiss_gp(x: torch.Tensor, y: torch.Tensor, cell: Cell) -> Fitted:
    gpytorch, speaker = peer_models.library("gpytorch"), Speaker(cell.key)
    x, y = x.float(), y.float()
    grid = gpytorch.utils.grid.choose_grid_size(x, kronecker_structure=True)
    kernel = gpytorch.kernels.GridInterpolationKernel(peer_models.matern(2), grid_size=grid, num_dims=2)
    objective = peer_models.exact(x, y, kernel)
    step = peer_models.adam(objective, 0.1)
    with warnings.catch_warnings(action="ignore"):
        for number in range(cell["steps"]):
            step(x, y)
            speaker(f"step {number + 1} of {cell['steps']}")
    return _of_gpytorch(objective)


def _svgp(x: torch.Tensor, y: torch.Tensor, cell: Cell) -> Fitted:
    torch.manual_seed(0)
    z = x[torch.randperm(len(x))[:INDUCING]].float()
    objective = peer_models.svgp(z, peer_models.matern(2), len(x))
    step = peer_models.adam(objective, 0.01)
    peer_models.epochs(step, x.float(), y.float(), batch=BATCH, count=cell["epochs"], said=Speaker(cell.key))
    return _of_gpytorch(objective)


def _of_gpytorch(objective: Any) -> Fitted:
    def predict(points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with peer_models.library("gpytorch").settings.fast_pred_var():
            return peer_models.predicted(objective, points.float())

    return predict


METHODS: dict[str, Callable[[torch.Tensor, torch.Tensor, Cell], Fitted]] = {
    **dict.fromkeys(OURS, _flashgp), "kiss_gp": _kiss_gp, "svgp": _svgp,
    "gpboost": lambda x, y, _: peer_models.vecchia(x, y),
}  # fmt: skip
TITLES = {
    "kiss_gp": f"KISS-GP of GPyTorch, {STEPS} steps of a hundred",
    "svgp": "SVGP of GPyTorch",
    "gpboost": "Vecchia of GPBoost",
}
