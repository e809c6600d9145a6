"""Deadline: when a call has to have answered. It is made where the call begins, and passed down to all that takes time.

Whatever may take long asks it before it begins: how much is left, and whether so many seconds more would pass it. What
has begun is not interrupted. Does not do: Ctrl-C, after which another deadline holds.
"""

import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any

from flashgp.foundations.errors import DomainError


@dataclass(frozen=True)
class Deadline:
    """The end of a call's time.

    Args:
        limit: seconds, as the user gave them, for messages; None for no limit.
        end: a time of the clock.
        clock: in seconds; tests have one of their own.
        by_hand: whether Ctrl-C made it.

    Example:
        >>> deadline = Deadline.after(60.0)
        >>> 59.0 < deadline.left <= 60.0, deadline.passed(), deadline.passed(61.0)
        (True, False, True)
        >>> deadline.before(50.0).left < 10.0, deadline.share(0.5).left < 30.0
        (True, True)
    """

    limit: float | None = None
    end: float = math.inf
    clock: Callable[[], float] = time.perf_counter
    by_hand: bool = False

    @classmethod
    def after(
        cls, time_limit: float | None, clock: Callable[[], float] = time.perf_counter, *, began: float | None = None
    ) -> "Deadline":
        """Deadline so many seconds from now, or from when the call began; None for none.

        Raises: DomainError for what is no number of seconds.
        """
        if time_limit is None:
            return NO_DEADLINE
        number: Any = time_limit
        if isinstance(number, bool) or not isinstance(number, Real) or not float(number) >= 0:
            raise DomainError(f"`time_limit` must be 0 or more seconds, got {time_limit!r}; leave it out for none")
        return cls(float(number), (clock() if began is None else began) + float(number), clock)

    @property
    def own(self) -> "Deadline":
        """The deadline of this process alone; what asks it must not decide for others (processes/agreement.py)."""
        return self

    @property
    def left(self) -> float:
        """Seconds until the end, less than 0 after it; inf without a limit."""
        return self.end - self.clock()

    def passed(self, seconds: float = 0.0) -> bool:
        """True if the time is up, now or in so many seconds; never without a limit, in infinitely many either."""
        return self.end != math.inf and self.left <= seconds

    def before(self, seconds: float) -> "Deadline":
        """Deadline so many seconds earlier, which are left to what follows."""
        return dataclasses.replace(self, end=self.end - seconds)

    def interrupted(self, seconds: float) -> "Deadline":
        """Deadline of what follows Ctrl-C: so many seconds from now, or this one where it ends before."""
        end = self.clock() + seconds
        return self if self.end <= end else dataclasses.replace(self, limit=seconds, end=end, by_hand=True)

    @property
    def told(self) -> dict[str, Any]:
        """Fields of an event that it is the reason of."""
        return {"limit": self.limit, **({"by_hand": True} if self.by_hand else {})}

    def share(self, part: float) -> "Deadline":
        """Deadline of this part of the time that is left, if any."""
        return self if self.end == math.inf else self.before((1.0 - part) * max(0.0, self.left))


NO_DEADLINE = Deadline()


class TimeUp(Exception):  # noqa: N818 - not an error
    """There is no time for what would come next: the best so far is the answer."""
