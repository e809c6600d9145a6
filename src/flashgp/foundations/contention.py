"""How busy others keep the cores of this process: what is measured meanwhile is of a busy machine."""

from time import perf_counter
from types import TracebackType

from flashgp.foundations.processors import own_cores

__all__ = ["MOST_OTHERS", "OtherWork", "busy_seconds"]

_IDLE = ("idle", "iowait", "guest", "guest_nice")  # guests' time stands in user's too
MOST_OTHERS = 0.2  # of a core, kept busy by other work, before what is measured is called that of a busy machine
LEAST_SECONDS = 5.0  # of a block: the system counts in hundredths of a second, and short ones say little


def busy_seconds() -> tuple[float, float] | None:
    """Processor seconds that anybody spent on this process's cores since they started, and this process itself with
    its children; None where the system does not say."""
    import psutil

    try:
        cores = psutil.cpu_times(percpu=True)
        own = psutil.Process().cpu_times()
    except (psutil.Error, OSError, NotImplementedError):
        return None
    mine = own_cores() or range(len(cores))
    spent = sum(
        seconds for core in mine if core < len(cores) for name, seconds in cores[core]._asdict().items()
        if name not in _IDLE
    )  # fmt: skip
    return spent, own.user + own.system + own.children_user + own.children_system


class OtherWork:
    """Around a block: how many cores others kept busy meanwhile.

    Fields: cores, the mean number of them; None until the block has ended, after a short block, and where the system
    does not say. What steals time from a virtual machine counts as others.
    """

    cores: float | None = None

    def __enter__(self) -> "OtherWork":
        self._began, self._before = perf_counter(), busy_seconds()
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        elapsed, after = perf_counter() - self._began, busy_seconds()
        if kind is None and elapsed >= LEAST_SECONDS and after is not None and self._before is not None:
            everybody, own = (now - then for now, then in zip(after, self._before, strict=True))
            self.cores = max(0.0, everybody - own) / elapsed
