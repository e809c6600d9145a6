"""What conditioning and fits over ranks ask of the ranks before work begins: the same model, the same sizes."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from flashgp.foundations.deadline import Deadline
from flashgp.inference.approximation import Approximation
from flashgp.inference.prior import Prior
from flashgp.inference.training.checkpoint import EvaluationLog
from flashgp.planner.approximate import ApproximatePlan
from flashgp.processes.agreement import mark_of_parts
from flashgp.processes.group import Group
from flashgp.sources.source import RowSource

__all__ = ["check_alike", "dealt", "log_over", "planned_over"]


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


def log_over(group: Group, path: Path | None, mark: str, seconds_between_writes: float) -> EvaluationLog:
    """The checkpoint that rank 0 writes, and that all ranks go on from. Raises: as `EvaluationLog`; RankMismatchError
    where ranks have other data or models."""
    if group.size == 1 or path is None:
        return EvaluationLog(path, mark, seconds_between_writes)
    group.compare(checkpoint=mark)
    with group.together():
        log = EvaluationLog(path if group.rank == 0 else None, mark, seconds_between_writes)
    mine = [path.read_bytes()] if group.rank == 0 and path.exists() else []
    there = int(group.max(torch.tensor(len(mine))))
    stored = group.gather_bytes(b"".join(mine))[0]
    if there:
        log.take(stored, path)
    return log
