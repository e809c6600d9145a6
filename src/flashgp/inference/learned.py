"""What happened to a posterior online: counts that go on from update to update, and the line of its report."""

from dataclasses import dataclass

from torch import Tensor

from flashgp.foundations.report import counted

__all__ = ["NOTHING_LEARNED", "ONLINE", "Learned"]

ONLINE = "online: "  # how the lines of a report begin that the next update replaces


@dataclass(frozen=True, eq=False)
class Learned:
    """What happened to a posterior since it was conditioned.

    Fields: appended, dropped, refactorised, refined, how often; turn, the row whose residual is computed next;
    whitened, L^-1 of the residual, (u, p), None where it was not needed yet. Of solves: usual_iterations, of one that
    was prepared for its rows; made, what is prepared; last, what the report says of the last one.
    """

    appended: int = 0
    dropped: int = 0
    refactorised: int = 0
    refined: int = 0
    turn: int = 0
    whitened: Tensor | None = None
    usual_iterations: int | None = None
    made: str = "the factor"
    last: str = ""

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
