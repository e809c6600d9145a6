"""GPyTorch on a cell: at its defaults, or strict, factorising by Cholesky whatever the size.

Both train as its regression example does: Adam, rate 0.1, 50 steps unless told otherwise, from its own initial values.
At its defaults it computes in float32, torch's default as in its examples, and stops conjugate gradients where it
wants to; strict it computes in float64, with fast computations off and the Cholesky size above n.
"""

import contextlib
import time
import warnings
from typing import Any

import peer_models
import torch
from cells import LINE_SECONDS
from common import Split
from uci_types import Answer, Cell

import flashgp as fgp
from flashgp.foundations.errors import MemoryBudgetError
from flashgp.foundations.machine import available_bytes, parse_bytes
from flashgp.foundations.quantities import readable_bytes

ADAM_RATE = 0.1
# n x n matrices alive at once, the most of training and prediction, by the operating system's own count: at its
# defaults at n = 4500 (float32), strict at n = 2500 (float64).
MATRICES = {False: 10.5, True: 12.6}


def needed_bytes(n: int, strict: bool) -> int:
    """What training and predicting takes above the data."""
    return int(MATRICES[strict] * n * n * _dtype(strict).itemsize)


def run(cell: Cell, parts: Split, quiet: bool = False, *, strict: bool) -> Answer:
    """Train, predict, and afterwards measure the residual of its solve with a float64 product of ours.

    Raises: MemoryBudgetError before any work if the matrices do not fit the budget, or what is free.
    """
    n = parts.x.shape[0]
    _require_room(n, strict, cell.memory)
    x, y, x_test = (part.to(_dtype(strict)) for part in (parts.x, parts.y, parts.x_test))
    warnings.simplefilter("ignore")
    torch.manual_seed(cell.seed)
    with contextlib.ExitStack() as settings:
        for setting in _settings(n + x_test.shape[0], strict):
            settings.enter_context(setting)
        started = time.perf_counter()
        model, steps = _train(cell, x, y, quiet)
        fitted = time.perf_counter()
        with torch.no_grad():
            prediction = model.likelihood(model(x_test))
            mean, variance = prediction.mean, prediction.variance
        predicted = time.perf_counter()
    values = _hyperparameters(model)
    weights = model.prediction_strategy.mean_cache.detach().double()
    entries = {
        "route": "Cholesky" if strict else "defaults",
        "backend": "gpytorch",
        "dtype": str(_dtype(strict)).removeprefix("torch."),
        "training": f"Adam, rate {ADAM_RATE}, {steps} steps",
        "evaluations": steps,
        "interrupted": steps < cell.peer_steps,
        "hyperparameters": values,
        "predicted_bytes": needed_bytes(n, strict),
    }
    return Answer(
        mean, variance, fitted - started, predicted - fitted, 0.0, entries,
        lambda: {"relative_residual": _relative_residual(parts, values, weights)},
    )  # fmt: skip


def _dtype(strict: bool) -> torch.dtype:
    return torch.float64 if strict else torch.float32


def _require_room(n: int, strict: bool, memory: str | None) -> None:
    needed = needed_bytes(n, strict)
    free = available_bytes(torch.device("cpu"))
    allowed = free if memory is None else min(free, parse_bytes(memory))
    if needed > allowed:
        raise MemoryBudgetError(
            f"GPyTorch needs about {readable_bytes(needed)} for {n:,} rows, and {readable_bytes(allowed)} may be taken",
            needed_bytes=needed,
            available_bytes=allowed,
        )


def _settings(rows: int, strict: bool) -> list[Any]:
    import gpytorch

    if not strict:
        return []
    return [
        gpytorch.settings.fast_computations(covar_root_decomposition=False, log_prob=False, solves=False),
        gpytorch.settings.max_cholesky_size(rows + 1),
    ]


def _train(cell: Cell, x: torch.Tensor, y: torch.Tensor, quiet: bool) -> tuple[Any, int]:
    objective = peer_models.exact(x, y, peer_models.matern(x.shape[1]))
    step = peer_models.adam(objective, ADAM_RATE)
    began = spoken = time.monotonic()
    done = 0
    while done < cell.peer_steps:
        step(x, y)
        done += 1
        now = time.monotonic()
        if cell.time_limit is not None and now - began > cell.time_limit:
            break
        if not quiet and now - spoken > LINE_SECONDS:
            spoken = now
            print(f"  {cell.key}: step {done} of {cell.peer_steps}", flush=True)
    return objective.eval().model, done


def _hyperparameters(model: Any) -> dict[str, Any]:
    return {
        "lengthscale": model.kernel.base_kernel.lengthscale.detach().reshape(-1).tolist(),
        "variance": model.kernel.outputscale.item(),
        "noise_variance": model.likelihood.noise.item(),
        "mean": model.mean.constant.item(),
    }


def _relative_residual(parts: Split, values: dict[str, Any], weights: torch.Tensor) -> float:
    """|y - m - (K + noise) w| / |y - m| in float64, with the weights that its mean is made of."""
    matern = fgp.kernels.Matern(nu=1.5, lengthscale=torch.tensor(values["lengthscale"], dtype=torch.float64))
    operator = (values["variance"] * matern).operator(parts.x).with_noise(values["noise_variance"])
    target = parts.y - values["mean"]
    with torch.no_grad():
        residual = target - (operator @ weights.reshape(-1, 1)).squeeze(-1)
    return float(residual.norm() / target.norm())
