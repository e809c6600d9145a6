"""Common decisions of ranks that each would make by its own clock, memory or processor."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from flashgp.foundations.deadline import Deadline
from flashgp.processes.group import ALONE, Group

T = TypeVar("T")


@dataclass(frozen=True)
class GroupDeadline(Deadline):
    """A deadline that has passed when it has on any rank; all ranks ask at the same places. Fields: group.

    Cost: of `passed`, one collective of a number. `left` is this rank's own: it shifts an end and decides nothing.
    """

    group: Group = ALONE

    @property
    def own(self) -> Deadline:
        return Deadline(self.limit, self.end, self.clock)

    def passed(self, seconds: float = 0.0) -> bool:
        return late(self.group, self.own, seconds)


def deadline_of(group: Group, deadline: Deadline) -> Deadline:
    """One deadline for all ranks; with a group of one the deadline itself."""
    if group.size == 1:
        return deadline
    return GroupDeadline(deadline.limit, deadline.end, deadline.clock, group=group)


def late(group: Group, deadline: Deadline, seconds: float = 0.0) -> bool:
    """True if a deadline has passed on any rank. Limits are the same on all, and without one nobody asks."""
    if deadline.limit is None:
        return False
    passed = Deadline.passed(deadline, seconds)
    return bool(group.max(torch.tensor([float(passed)]))) if group.size > 1 else passed


def largest(group: Group, number: float) -> float:
    """The largest of every rank's number, such as by how much its work takes longer."""
    return float(group.max(torch.tensor([number], dtype=torch.float64))) if group.size > 1 else number


def smallest(group: Group, number: float) -> float:
    """The smallest of every rank's number, such as what it has time for."""
    return -largest(group, -number)


def decided_by_first(
    group: Group, decide: Callable[[], T], to_json: Callable[[T], Any], from_json: Callable[[Any], T]
) -> T:
    """The decision of rank 0, on every rank; the others wait.

    Args: to_json and from_json, a decision as JSON values, and back.
    Raises: what the decision raises, on every rank.
    """
    if group.size == 1:
        return decide()
    with group.together():
        own = None if group.rank else decide()
        text = group.text_of_first("" if own is None else json.dumps(to_json(own)))
    return from_json(json.loads(text)) if own is None else own
