"""What conditioning and fits over ranks ask of the ranks before work begins: the same model, the same sizes."""

from collections.abc import Callable
from dataclasses import astuple

import torch

from flashgp.foundations.deadline import Deadline
from flashgp.foundations.errors import DomainError
from flashgp.inference.approximation import Approximation
from flashgp.inference.gathered import compare_models, tensor_mark
from flashgp.inference.prior import Prior
from flashgp.planner.approximate import ApproximatePlan
from flashgp.planner.approximate_prices import Sizes
from flashgp.processes.group import Group
from flashgp.sources.source import RowSource

__all__ = ["check_alike", "dealt", "planned_over", "refuse_ranks"]


def check_alike(
    group: Group, prior: Prior, asked: Approximation, seed: int, deadline: Deadline, **more: object
) -> None:
    """Raises: RankMismatchError, on every rank, where ranks were given other models, points or settings."""
    if group.size == 1:
        return
    points = asked.inducing
    inducing = points if isinstance(points, str | int) else tensor_mark(torch.as_tensor(points))
    compare_models(
        prior, group, approximation=asked.kind, inducing=inducing, seed=seed, time_limit=deadline.limit, **more
    )


def dealt(rows: RowSource, group: Group) -> RowSource:
    """This rank's part of rows that all ranks name alike; rows that are its own as they are. Raises: DomainError."""
    return rows if group.size == 1 else rows.dealt(group)


def refuse_ranks(ranks: int, name: str) -> None:
    """DomainError for a posterior of several ranks, each of which would learn others. Args: name, of the argument."""
    if ranks > 1:
        raise DomainError(
            f"`{name}` learns rows in one process, got a posterior of {ranks} ranks, each of which would learn others; "
            "save it on one rank, and go on with what flashgp.load gives"
        )


def planned_over(
    group: Group, plan: Callable[[Approximation], ApproximatePlan], asked: Approximation
) -> ApproximatePlan:
    """The plan that every rank has room and time for: of the smallest sizes that a rank chose on the ladder.

    Raises: MemoryBudgetError, on every rank, before anything is allocated.
    """
    if group.size == 1:
        return plan(asked)
    with group.together():
        own = plan(asked)
    sizes = torch.tensor(astuple(own.sizes))
    least = Sizes(*(-group.max(-sizes)).tolist())
    return own if own.sizes == least else plan(asked.resolved(least))
