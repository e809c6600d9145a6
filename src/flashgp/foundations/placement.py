"""`fgp.runtime`: how many threads compute and on which cores, for the time of a block and the whole process.

The second of the two process-wide values (docs/design.md); it changes how fast results come, and none beyond its
tolerance. Threads are those of torch, of BLAS libraries and of the compiled loops, which take torch's number. Cores are
the affinity of all threads that exist; a thread that starts later inherits that of its creator. Only Linux lets a
process choose. The decision is docs/decisions/0016-branches.md.
"""

import os
import platform
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from flashgp.foundations.checks import check_count
from flashgp.foundations.errors import BackendUnavailableError, DomainError, warn
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.lazy_import import lazy_import, no_forks
from flashgp.foundations.processors import core_text, own_cores, parse_cores, usable_cores
from flashgp.foundations.quantities import counted


@dataclass(frozen=True)
class Placement:
    """Placement of a runtime.

    Fields: threads; cores, None where all that were allowed still are.
    """

    threads: int
    cores: tuple[int, ...] | None = None

    def __str__(self) -> str:
        where = ""
        if self.cores is not None:
            where = f" on {'core' if len(self.cores) == 1 else 'cores'} {core_text(self.cores)}"
        return counted(self.threads, "thread") + where


_active: list[tuple[Placement, int]] = []  # those entered, the innermost last, each with its thread


def _forget_other_threads() -> None:
    """In a forked child: a runtime of a thread that the child does not have is never left there."""
    _active[:] = [entered for entered in _active if entered[1] == threading.get_ident()]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_other_threads)


@contextmanager
def runtime(*, threads: int | None = None, cores: str | Iterable[int] | None = None) -> Iterator[Placement]:
    """Within the block the process computes with so many threads, on these cores; then all is as it was before.

    Args:
        threads: of torch, BLAS and our compiled loops; where left out, as many as before, and not more than cores.
        cores: core numbers, "0-3,8" or a list, among those the process may use.

    Returns:
        The Placement, to be printed.

    Raises:
        DomainError: for cores outside of the process's own, and while a runtime of another thread is active: there is
            one per process.
        BackendUnavailableError: where the system lets no process choose its cores.

    Cost: some milliseconds, and SciPy's linear algebra is loaded, so that its threads count too. Blocks may be nested.

    Example:
        >>> with fgp.runtime(threads=1) as placement:
        ...     print(placement)
        1 thread
    """
    placement = _checked(threads, cores)
    lazy_import("scipy.linalg")
    with no_forks():  # of two threads that come at once the second one is refused
        if _active and _active[-1][1] != threading.get_ident():
            raise DomainError(
                f"`runtime` is active in another thread ({_active[-1][0]}) and holds for the whole process; enter it "
                "once, around both, or use a process for each"
            )
        from threadpoolctl import ThreadpoolController

        blas = [(one, one.get_num_threads()) for one in ThreadpoolController().select(user_api="blas").lib_controllers]
        before, masks = torch.get_num_threads(), dict[int, set[int]]()
        _active.append((placement, threading.get_ident()))
    try:
        if placement.cores is not None:
            _place_all(set(placement.cores), masks)
        if placement.threads != before:
            torch.set_num_threads(placement.threads)
        for library, count in blas:
            library.set_num_threads(placement.threads if threads else min(count, placement.threads))
        yield placement
    finally:
        try:
            for library, count in blas:
                library.set_num_threads(count)
            if placement.threads != before:
                torch.set_num_threads(before)
            _restore(masks, set(placement.cores or ()))
        finally:
            _active.pop()  # last: until then no other thread may come in


def active_placement() -> Placement | None:
    """Placement of the active runtime; None without one."""
    return _active[-1][0] if _active else None


def placement_events() -> list[Event]:
    """The runtime that a report was made under: one event, or none."""
    return [Event(EventKind.RUNTIME, placement=str(_active[-1][0]))] if _active else []


def launcher_text() -> str:
    """'LOCAL_RANK 1 of 4' in a process that torchrun, or a launcher like it, has started; else empty."""
    rank, size = os.environ.get("LOCAL_RANK", ""), os.environ.get("LOCAL_WORLD_SIZE", "")
    return "" if not rank else f"LOCAL_RANK {rank}" + (f" of {size}" if size else "")


def _checked(threads: int | None, cores: str | Iterable[int] | None) -> Placement:
    if threads is not None:
        threads = check_count(threads, "threads", 1)
    chosen = None if cores is None else _chosen(cores)
    most = usable_cores() if chosen is None else len(chosen)
    if threads is None:
        threads = torch.get_num_threads() if chosen is None else min(torch.get_num_threads(), most)
    elif threads > most:
        warn(f"{counted(threads, 'thread')} on {counted(most, 'core')}: they wait for each other; take threads={most}")
    return Placement(threads, None if chosen is None else tuple(sorted(chosen)))


def _chosen(cores: str | Iterable[int]) -> frozenset[int]:
    """The cores that are asked for."""
    usable = own_cores()
    if usable is None:
        raise BackendUnavailableError(
            "`cores` needs a system on which a process can choose its cores, which is Linux, and this is "
            f"{platform.system()}; take threads= alone"
        )
    chosen = parse_cores(cores)
    if not chosen <= usable:
        launcher = f" ({launcher_text()})" if launcher_text() else ""
        raise DomainError(
            f"`cores` must be among the cores this process may use, {core_text(usable)}{launcher}, got "
            f"{core_text(chosen)}; leave out the others, or start the process with more"
        )
    return chosen


# -- affinity --------------------------------------------------------------------------------------------------------
def _threads() -> list[int]:
    """The system's numbers of this process's threads."""
    return [int(path.name) for path in Path("/proc/self/task").iterdir()]


def _place_all(cores: set[int], before: dict[int, set[int]]) -> None:
    """Put every thread of the process on these cores and note where it was: the calling one first, then again until
    no other has started meanwhile from one that was not yet placed."""
    try:
        before[threading.get_native_id()] = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cores)
        while new := [thread for thread in _threads() if thread not in before]:
            for thread in new:
                before[thread] = set()
                with suppress(ProcessLookupError):
                    before[thread] = os.sched_getaffinity(thread)
                    os.sched_setaffinity(thread, cores)
    except OSError as error:
        raise BackendUnavailableError(
            f"`cores` {core_text(cores)} could not be taken: this system refuses ({error.strerror or error}); start "
            "the process on its cores instead, with `taskset --cpu-list`"
        ) from None


def _restore(masks: dict[int, set[int]], cores: set[int]) -> None:
    """Each thread its own cores again; those of the block, who inherited, the cores of the thread that entered."""
    if not masks:
        return
    entered_on = masks[threading.get_native_id()]
    with suppress(OSError):
        for thread in _threads():
            with suppress(OSError):  # it has ended
                mask = masks.get(thread) or (entered_on if os.sched_getaffinity(thread) == cores else None)
                if mask:
                    os.sched_setaffinity(thread, mask)
