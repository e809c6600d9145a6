"""Tables, priors and settings for tests of training by estimated gradients, at sizes where exact answers are known."""

import dataclasses
from typing import Any

import torch

import flashgp as fgp
from flashgp.inference.exact.likelihood import DirectSettings
from flashgp.inference.run import Run
from flashgp.inference.training.objective import LogJoint, Problem
from flashgp.inference.training.options import FitSettings
from flashgp.inference.training.settings import StochasticSettings
from flashgp.inference.training.stochastic_objective import EstimatedLogJoint, EstimateOptions
from flashgp.pairwise.torch.tiles import TorchTiles

F64 = torch.float64
FEW_ROWS = StochasticSettings(first_rows=150, min_draws=30, doubled_rows=0)  # exact gradients end early
SETTINGS = FitSettings(stochastic=FEW_ROWS)


def table(n: int, d: int = 3, outputs: int | None = None, noise: float = 0.1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(n + d)
    x = torch.randn(n, d, generator=generator, dtype=F64)
    f = torch.sin(2.0 * x[:, 0]) + x[:, 1].square() * 0.3
    columns = [f + noise**0.5 * torch.randn(n, generator=generator, dtype=F64) for _ in range(outputs or 1)]
    return x, torch.stack(columns, dim=-1) if outputs else columns[0]


def prior(d: int = 3, outputs: int | None = None, noise: float = 0.1, lengthscale: float = 1.2) -> fgp.GP:
    kernel = 1.5 * fgp.kernels.Matern(nu=1.5, lengthscale=torch.full((d,), lengthscale, dtype=F64))
    return fgp.GP(kernel, likelihood=fgp.likelihoods.Gaussian(noise), outputs=outputs)


def problem(gp: fgp.GP, x: torch.Tensor, y: torch.Tensor) -> Problem:
    return Problem(gp, x, y, DirectSettings(TorchTiles()))


def objectives(gp: fgp.GP, x: torch.Tensor, y: torch.Tensor, **options: Any) -> tuple[LogJoint, EstimatedLogJoint]:
    """The exact objective and the estimated one, with `EstimateOptions`, and `EstimateSettings` as `limits`."""
    limits = options.pop("limits", {})
    run = Run(**{name: options.pop(name) for name in ("seed", "deadline", "group") if name in options})
    estimate = dataclasses.replace(StochasticSettings().estimate, **limits)
    settings = dataclasses.replace(StochasticSettings(), estimate=estimate)
    estimated = EstimatedLogJoint(
        problem(gp, x, y), settings, EstimateOptions(**{"stored": True, "run": run, **options})
    )
    return LogJoint(problem(gp, x, y)), estimated


def planned(gp: fgp.GP, n: int, training: str = "stored", **changes: Any) -> fgp.Plan:
    """A plan of that way of training."""
    return dataclasses.replace(fgp.plan(gp, n=n, d=3), training=training, **changes)


def kinds(events: list[Any]) -> list[str]:
    return [event.kind.name for event in events]
