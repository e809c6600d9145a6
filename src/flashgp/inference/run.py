"""Settings of a public call: one value, made at the door and handed down."""

from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from flashgp.foundations.deadline import NO_DEADLINE, Deadline
from flashgp.planner.problem import PlanSettings
from flashgp.planner.variances import STRIP_BYTES
from flashgp.processes.group import ALONE, Group


@dataclass(frozen=True)
class OnlineSettings:
    """Settings of updates of a float64 factor, and of predictions at a few points.

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


T = TypeVar("T", bound=Any)  # options, with a field `run`


@dataclass(frozen=True)
class Run:
    """Settings of a public call. A state keeps those that its later answers need (`kept`).

    Fields:
        seed: of all draws.
        deterministic: whether answers have the same bits whatever the number of threads (foundations/determinism.py).
        tolerance: of the mean, in standard deviations of an observation.
        group: ranks that share the work.
        device, dtype, memory: as they were asked for; memory in bytes, or text.
        deadline: of all work.
        online: how updates go.
    """

    seed: int = 0
    deterministic: bool = False
    tolerance: float = 1e-3
    group: Group = ALONE
    device: str | torch.device | None = None
    dtype: torch.dtype | None = None
    memory: str | int | None = None
    deadline: Deadline = NO_DEADLINE
    online: OnlineSettings = OnlineSettings()

    @property
    def kept(self) -> "Run":
        """Settings that a state keeps: limits and places are those of one call."""
        return replace(self, device=None, dtype=None, memory=None, deadline=NO_DEADLINE)

    @property
    def alike(self) -> dict[str, object]:
        """Arguments that must be alike on all ranks, by name."""
        return {
            "seed": self.seed, "deterministic": self.deterministic, "tolerance": self.tolerance, "dtype": self.dtype,
            "memory": self.memory, "time_limit": self.deadline.limit,
        }  # fmt: skip

    def planning(self, **more: Any) -> PlanSettings:
        """Options that plans have to keep to. Args: more, fields of `PlanSettings`."""
        asked: dict[str, Any] = {
            "memory": self.memory, "device": self.device, "deterministic": self.deterministic,
            "ranks": self.group.size,
        }  # fmt: skip
        return PlanSettings(**asked | more)


def with_run(asked: T, /, **changes: Any) -> T:
    """The options with fields of their run changed."""
    changed: T = replace(asked, run=replace(asked.run, **changes))
    return changed


DEFAULT_RUN = Run()
