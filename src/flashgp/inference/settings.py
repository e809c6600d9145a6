"""How conditioning and solves were asked for, as values that are passed down."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from flashgp.planner.plan import Plan
from flashgp.planner.variances import STRIP_BYTES
from flashgp.solvers.contract import Step

__all__ = ["ConditionSettings", "OnlineSettings", "SolveSettings"]


@dataclass(frozen=True)
class OnlineSettings:
    """How updates of a float64 factor go, and predictions at a few points.

    Fields:
        numpy_pairs: of a block, up to which NumPy evaluates its covariances where the prior allows it (numpy_prior.py):
            the calls weigh as much as the arithmetic. 0 for never.
        few_rows: that come or go at once, up to which memory is the limit and a second thread only makes others wait.
        checked_rows: of the factor that are checked in so many updates, (M-113).
        check_every: updates in which so many rows are checked: a few in each, so that all take as long; on an
            accelerator, which would be waited for, all of them in every so many updates.
        max_drift: times sqrt(n) eps, a backward error beyond which the factor is made again.
        strip_bytes: of covariances alive at once, of predictions of fantasies.
    """

    numpy_pairs: int = 2**14
    few_rows: int = 16
    checked_rows: int = 16
    check_every: int = 4
    max_drift: float = 100.0
    strip_bytes: int = STRIP_BYTES


@dataclass(frozen=True)
class SolveSettings:
    """How solves go, beside the plan; a state keeps it for what it answers later.

    Fields: seed of a method's draws; deterministic, whether all answers have the same bits whatever the number of
    threads (foundations/determinism.py); tolerance of the mean, in standard deviations of an observation; online, of
    updates.
    """

    seed: int = 0
    deterministic: bool = False
    tolerance: float = 1e-3
    online: OnlineSettings = OnlineSettings()


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
