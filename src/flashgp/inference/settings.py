"""How conditioning and solves were asked for, as values that are passed down."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from flashgp.planner.plan import Plan
from flashgp.solvers.contract import Step

__all__ = ["ConditionSettings", "SolveSettings"]


@dataclass(frozen=True)
class SolveSettings:
    """How solves go, beside the plan; a state keeps it for what it answers later.

    Fields: seed of a method's draws; deterministic, whether all answers have the same bits whatever the number of
    threads (foundations/determinism.py); tolerance of the mean, in standard deviations of an observation.
    """

    seed: int = 0
    deterministic: bool = False
    tolerance: float = 1e-3


@dataclass(frozen=True)
class ConditionSettings:
    """What `GP.condition` is asked for beside prior and data; the fields are its arguments.

    Fields: interrupted is called when Ctrl-C ends an iterative solve, whose best weights the state then has, labelled;
    without it, and in a factorisation or preparation, Ctrl-C is raised. float32_factor is False where float32 factors
    are known to fail, or to need many corrections, so that none is made if a float64 one fits.
    """

    solve: SolveSettings = SolveSettings()
    solver: str | None = None
    time_limit: float | None = None
    memory: str | int | None = None
    plan: Plan | None = None
    progress: Callable[[Step], bool | None] | None = None
    interrupted: Callable[[], None] | None = None
    device: str | torch.device | None = None
    dtype: torch.dtype | None = None
    jitter: float | None = None
    differentiable: bool = False
    float32_factor: bool = True
