"""What conditioning and fits over ranks ask of the ranks before work begins: the same model, the same sizes."""

from collections.abc import Callable
from dataclasses import replace

import torch

from flashgp.foundations.deadline import Deadline
from flashgp.inference.approximation import Approximation
from flashgp.inference.prior import Prior
from flashgp.planner.approximate import ApproximatePlan
from flashgp.processes.agreement import mark_of_parts
from flashgp.processes.group import Group
from flashgp.sources.source import RowSource

__all__ = ["check_alike", "dealt", "planned_over"]


def check_alike(
    group: Group, prior: Prior, asked: Approximation, seed: int, deadline: Deadline, **more: object
) -> None:
    """Raises: RankMismatchError, on every rank, where ranks were given other models, points or settings."""
    if group.size == 1:
        return
    points = asked.inducing
    sizes = points if isinstance(points, str | int) else mark_of_parts(points=torch.as_tensor(points))
    values = mark_of_parts(values=[p.detach().cpu() for p in prior.parameters()])
    group.compare(
        model=prior.title, parameters=values, approximation=asked.kind, inducing=sizes, seed=seed,
        time_limit=deadline.limit, **more,
    )  # fmt: skip


def dealt(rows: RowSource, group: Group) -> RowSource:
    """This rank's part of rows that all ranks name alike; rows that are its own as they are. Raises: DomainError."""
    return rows if group.size == 1 else rows.dealt(group)


def planned_over(
    group: Group, plan: Callable[[Approximation], ApproximatePlan], asked: Approximation
) -> ApproximatePlan:
    """The plan that every rank has room and time for: of the smallest sizes that a rank chose.

    Raises: MemoryBudgetError, on every rank, before anything is allocated.
    """
    if group.size == 1:
        return plan(asked)
    with group.together():
        own = plan(asked)
    inducing = -int(group.max(torch.tensor([-own.inducing])))
    return own if own.inducing == inducing else plan(asked.resolved(replace(own.sizes, inducing=inducing)))
