"""A table of which every rank has all rows: what one process decides is decided by rank 0, for all of them.

The scale of the target, the covariance function, and whether the fit is exact. The others wait for rank 0: each choice
is of short fits to 300 rows, and ranks of one machine share its cores.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from flashgp.foundations.events import Event
from flashgp.inference.approximate_plan import approximate_plan
from flashgp.inference.approximation import Approximation
from flashgp.inference.exact_plan import conditioning_plan
from flashgp.inference.gathered import agreed_memory, agreed_plan, tensor_mark
from flashgp.inference.gp import GP
from flashgp.inference.over_ranks import decided_over, planned_over
from flashgp.inference.plan_settings import PlanSettings, RowCounts
from flashgp.inference.training.options import FitOptions
from flashgp.planner.approximate import ApproximatePlan
from flashgp.planner.plan import Plan
from flashgp.processes.agreement import decided_by_first
from flashgp.processes.group import Group
from flashgp.target_transform import TargetTransform
from flashgp.units import StandardRows, standard_rows

from .settings import TableSettings

_Numbers = npt.NDArray[np.float64]


def check_same_rows(group: Group, names: list[str], **numbers: npt.NDArray[Any]) -> None:
    """Raises: RankMismatchError, on every rank, where ranks have read other numbers. Args: names, of the columns."""
    if group.size > 1:
        marks = {name: tensor_mark(torch.from_numpy(np.ascontiguousarray(one))) for name, one in numbers.items()}
        group.compare(columns=names, **marks)


def standard_rows_of_first(
    group: Group, gp: GP, x: _Numbers, y: _Numbers, wanted: str, options: FitOptions
) -> StandardRows:
    """`standard_rows` with the transform of the target that rank 0 chose. Raises: as it."""

    def to_json(found: StandardRows) -> list[Any]:
        return [found.units.transforms[0].to_json(), [event.to_json() for event in found.events]]

    def from_json(data: Any) -> StandardRows:
        found = standard_rows(gp, x, y, TargetTransform.from_json(data[0]), options)
        return replace(found, events=tuple(map(Event.from_json, data[1])))

    return decided_by_first(group, lambda: standard_rows(gp, x, y, wanted, options), to_json, from_json)


@dataclass(frozen=True)
class PlannedFit:
    """How a table is fitted. Fields: approximation, None for exact inference; plan; events, why."""

    approximation: Approximation | None
    plan: Plan | ApproximatePlan
    events: tuple[Event, ...] = ()


def memory_of_each(group: Group, settings: TableSettings) -> str | int | None:
    """The bytes that a plan of each rank may take; of one process what was asked for."""
    device: Any = "cpu" if settings.device in (None, "auto") else settings.device
    return agreed_memory(settings.memory, torch.device(device), group)


def planned_over_ranks(
    group: Group, gp: GP, rows: RowCounts, settings: TableSettings, options: FitOptions
) -> PlannedFit:
    """What several ranks do: the plan that each of them has room for, and rank 0's decision between approximations.

    Raises: MemoryBudgetError, on every rank.
    """
    asked, limit = settings.asked_approximation, settings.time_limit or None
    wanted = PlanSettings(
        memory_of_each(group, settings), settings.device, settings.compute_dtype,
        solver=settings.solver, deterministic=settings.deterministic, stages=options.stages, ranks=group.size,
    )  # fmt: skip
    if asked is None:
        return PlannedFit(None, agreed_plan(conditioning_plan(gp, rows, wanted, training=True), group))
    if asked.kind == "auto":
        approximation, taken, event = decided_over(group, gp, rows, asked, wanted, limit)
        return PlannedFit(approximation, taken, (event,))
    plan = planned_over(group, lambda one: approximate_plan(gp, rows, one, wanted, limit), asked)
    return PlannedFit(asked, plan)
