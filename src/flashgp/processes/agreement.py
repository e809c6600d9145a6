"""What ranks decide together that each of them would decide by its own clock, memory or processor."""

import dataclasses
from dataclasses import dataclass

import torch

from flashgp.foundations.deadline import Deadline
from flashgp.processes.group import ALONE, Group

__all__ = ["GroupDeadline", "deadline_of", "late"]


@dataclass(frozen=True)
class GroupDeadline(Deadline):
    """A deadline that has passed when it has on any rank; all ranks ask at the same places. Fields: group."""

    group: Group = ALONE

    def passed(self, seconds: float = 0.0) -> bool:
        return late(self.group, dataclasses.replace(self, group=ALONE), seconds)


def deadline_of(group: Group, deadline: Deadline) -> Deadline:
    """The same deadline for all ranks; with a group of one the deadline itself."""
    if group.size == 1:
        return deadline
    return GroupDeadline(deadline.limit, deadline.end, deadline.clock, group)


def late(group: Group, deadline: Deadline, seconds: float = 0.0) -> bool:
    """Whether a deadline has passed on any rank. Limits are the same on all, and without one nobody asks."""
    if deadline.limit is None:
        return False
    passed = Deadline.passed(deadline, seconds)
    return bool(group.max(torch.tensor([float(passed)]))) if group.size > 1 else passed
