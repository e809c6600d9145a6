"""What happened to a posterior online: counts that go on from update to update, and the event of its report."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.form import Rows

__all__ = ["NOTHING_LEARNED", "UPDATE", "Learned"]

UPDATE = "update"  # the stage of the events of a report that the next update replaces
# Rows of the factor and of L z that are looked at in every so many updates: a few in each, so that all steps take the
# same; where a device would be waited for, more of them and seldom.
CHECKED_ROWS, CHECK_EVERY = 16, 4


@dataclass(frozen=True, eq=False)
class Learned:
    """What happened to a posterior since it was conditioned.

    Fields: appended, dropped, refactorised, refined, how often; updates since the last look at the factor; turn, the
    row that is looked at next; whitened, L^-1 of the residual, (u, p), None where it was not needed yet, or the factor
    of a window has it; known, all rows in such a factor, those that left first, else None. Of solves:
    usual_iterations, of one that was prepared for its rows; made, what is prepared; last, the event fields of the
    last one.
    """

    appended: int = 0
    dropped: int = 0
    refactorised: int = 0
    refined: int = 0
    updates: int = 0
    turn: int = 0
    whitened: Tensor | None = None
    known: Rows | None = None
    usual_iterations: int | None = None
    made: str = "the factor"
    last: tuple[tuple[str, Any], ...] = ()

    def looked_at(self, count: int, device: torch.device) -> slice | None:
        """The rows, of so many, that the next update looks at; None where it does not."""
        every, rows = (1, CHECKED_ROWS // CHECK_EVERY) if device.type == "cpu" else (CHECK_EVERY, CHECKED_ROWS)
        if self.updates + 1 < every:
            return None
        start = self.turn if self.turn < count else 0
        return slice(start, min(start + rows, count))

    def counted(self, appended: int, dropped: int) -> "Learned":
        """With so many more rows."""
        return replace(self, appended=self.appended + appended, dropped=self.dropped + dropped)

    @property
    def event(self) -> Event:
        """Of the report."""
        return Event(
            EventKind.UPDATED,
            appended=self.appended, dropped=self.dropped, kept=self.made, refactorised=self.refactorised or None,
            refined=self.refined or None, stage=UPDATE, **dict(self.last),
        )  # fmt: skip


NOTHING_LEARNED = Learned()
