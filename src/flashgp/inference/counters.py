"""What happened to a posterior online: counts that go on from update to update, and the line of its report."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from flashgp.foundations.form import Rows
from flashgp.foundations.report import counted

__all__ = ["NOTHING_LEARNED", "ONLINE", "Learned"]

ONLINE = "online: "  # how the lines of a report begin that the next update replaces
# Rows of the factor and of L z that are looked at in every so many updates: a few in each, so that all steps take the
# same; where a device would be waited for, more of them and seldom.
CHECKED_ROWS, CHECK_EVERY = 16, 4


@dataclass(frozen=True, eq=False)
class Learned:
    """What happened to a posterior since it was conditioned.

    Fields: appended, dropped, refactorised, refined, how often; updates since the last look at the factor; turn, the
    row that is looked at next; whitened, L^-1 of the residual, (u, p), None where it was not needed yet, or the factor
    of a window has it; known, all rows in such a factor, those that left first, else None. Of solves:
    usual_iterations, of one that was prepared for its rows; made, what is prepared; last, what the report says of the
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
    last: str = ""

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
    def event(self) -> str:
        """The line of the report."""
        made_anew = "never" if not self.refactorised else counted(self.refactorised, "time")
        refined = f", hyperparameters refined {counted(self.refined, 'time')}" if self.refined else ""
        return (
            f"{ONLINE}{counted(self.appended, 'row')} appended and {self.dropped:,} dropped since conditioning, "
            f"{self.made} made anew {made_anew}{refined}{self.last}"
        )


NOTHING_LEARNED = Learned()
