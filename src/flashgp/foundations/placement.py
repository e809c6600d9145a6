"""`fgp.runtime`: how many threads compute and on which cores, for the time of a block and the whole process.

The second of the two process-wide values (docs/design.md); it changes how fast results come, and none beyond its
tolerance. Threads are those of torch, of BLAS libraries and of the compiled loops, which take torch's number. Cores are
the affinity of all threads that exist, OpenMP's and our workers among them; a thread that starts later inherits that of
its creator. Only Linux lets a process choose.

Memory is not moved: the system puts a page on the NUMA node of the core that first writes to it, so that what is made
within the block lies near its cores, and what was made before stays where it is.
"""

import math
import os
import platform
import threading
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from flashgp.foundations import machine
from flashgp.foundations.checks import check_count
from flashgp.foundations.errors import BackendUnavailableError, DomainError, FlashGPWarning
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.lazy_import import load_late, no_forks
from flashgp.foundations.processors import core_text, numa_nodes, own_cores, parse_cores, usable_cores
from flashgp.foundations.report import counted

__all__ = ["BINDING_VARIABLES", "Placement", "active_placement", "launcher_text", "placement_events", "runtime"]

Result = TypeVar("Result")

# With one of these OpenMP pins its threads itself, the calling one included, when torch is loaded.
BINDING_VARIABLES = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")


@dataclass(frozen=True)
class Placement:
    """Where a runtime computes. Fields: threads; cores, None where all that were allowed still are; numa_node."""

    threads: int
    cores: tuple[int, ...] | None = None
    numa_node: int | None = None

    def __str__(self) -> str:
        where = "" if self.cores is None else f" on {'core' if len(self.cores) == 1 else 'cores'} "
        where += "" if self.cores is None else core_text(self.cores)
        where += "" if self.numa_node is None else f" of NUMA node {self.numa_node}"
        return counted(self.threads, "thread") + where


@contextmanager
def runtime(
    *, threads: int | None = None, cores: str | Iterable[int] | None = None, numa_node: int | None = None
) -> Iterator[Placement]:
    """Within the block the process computes with so many threads, on these cores; then all is as it was before.

    Args:
        threads: of torch, BLAS and our compiled loops; where left out, as many as before, and not more than cores.
        cores: core numbers, "0-3,8" or a list, among those the process may use; numa_node: those of a node instead,
            as many of them as the process may use.
    Returns: the Placement, to be printed.
    Raises: DomainError for cores outside of the process's own (a launcher's binding is never left), for a node without
        cores of ours, for both at once, and while a runtime of another thread is active: there is one per process.
        BackendUnavailableError where the system lets no process choose its cores.
    Cost: some milliseconds, and SciPy's linear algebra is loaded, so that its threads count too. Blocks may be nested.
        Processes started within the block inherit the cores, not the threads.
    """
    placement = _checked(threads, cores, numa_node)
    held = _Held(placement, threads)
    with no_forks():
        held.enter()
    try:
        yield placement
    finally:
        with no_forks():
            held.leave()


def active_placement() -> Placement | None:
    """Where the runtime that is active computes; None without one."""
    return _active[-1].placement if _active else None


def placement_events() -> list[Event]:
    """The runtime that a report was made under: one event, or none."""
    return [Event(EventKind.RUNTIME, placement=str(_active[-1].placement))] if _active else []


def launcher_text() -> str:
    """'LOCAL_RANK 1 of 4' in a process that torchrun, or a launcher like it, has started; else empty."""
    rank, size = os.environ.get("LOCAL_RANK", ""), os.environ.get("LOCAL_WORLD_SIZE", "")
    return "" if not rank else f"LOCAL_RANK {rank}" + (f" of {size}" if size else "")


# -- what is asked for -------------------------------------------------------------------------------------------------
def _checked(threads: int | None, cores: str | Iterable[int] | None, numa_node: int | None) -> Placement:
    if threads is not None:
        threads = check_count(threads, "threads", 1)
    if cores is not None and numa_node is not None:
        raise DomainError(
            f"`cores` and `numa_node` name cores twice, got {cores!r} and {numa_node!r}; give one of them"
        )
    chosen = None
    if cores is not None:
        chosen = _allowed(parse_cores(cores))
    elif numa_node is not None:
        chosen = _of_node(check_count(numa_node, "numa_node", 0))
    most = usable_cores() if chosen is None else len(chosen)
    if threads is None:
        threads = torch.get_num_threads() if chosen is None else min(torch.get_num_threads(), most)
    elif threads > most:
        warnings.warn(
            f"{counted(threads, 'thread')} on {counted(most, 'core')}: they wait for each other; take threads={most}",
            FlashGPWarning,
            stacklevel=4,
        )
    return Placement(threads, None if chosen is None else tuple(sorted(chosen)), numa_node)


def _allowed(cores: frozenset[int]) -> frozenset[int]:
    own = _own("cores")
    if not cores <= own:
        raise DomainError(
            f"`cores` must be among those this process may use, {core_text(own)}{_why_bound()}, got "
            f"{core_text(cores)}; leave out the others, or start the process with more"
        )
    return cores


def _of_node(number: int) -> frozenset[int]:
    own, nodes = _own("numa_node"), numa_nodes()
    if not nodes:
        raise BackendUnavailableError(
            f"`numa_node` {number} cannot be looked up: this system names no NUMA nodes in /sys/devices/system/node; "
            "give cores= instead"
        )
    found = nodes.get(number, frozenset()) & own
    if not found:
        known = ", ".join(f"{node}: {core_text(cores) or 'none'}" for node, cores in nodes.items())
        raise DomainError(
            f"`numa_node` must be a node with cores that this process may use, {core_text(own)}{_why_bound()}, got "
            f"{number}; the nodes and their cores are {known}"
        )
    return found


def _own(name: str) -> frozenset[int]:
    own = own_cores()
    if own is None:
        raise BackendUnavailableError(
            f"`{name}` needs a system on which a process can choose its cores, which is Linux, and this is "
            f"{platform.system()}; take threads= alone, or on Windows `start /affinity`"
        )
    if not _tasks():
        raise BackendUnavailableError(
            f"`{name}` needs /proc, where the threads of this process stand, and there is none; start the process on "
            "its cores instead, with `taskset --cpu-list`"
        )
    return own


def _why_bound() -> str:
    said = [launcher_text(), *(f"{name}={os.environ[name]}" for name in BINDING_VARIABLES if os.environ.get(name))]
    return f" ({', '.join(filter(None, said))})" if any(said) else ""


# -- what is set, and what comes back ----------------------------------------------------------------------------------
_active: list["_Held"] = []  # the runtimes that are entered, the innermost last


class _Held:
    """One entered runtime, and what was before it.

    Fields: asked, the threads that were asked for; threads, of the calling thread; fresh_threads, of one that torch has
    not seen; libraries, (controller, count) of each BLAS; masks, by thread, and own, that of the calling one; narrowed,
    what was made of them.
    """

    def __init__(self, placement: Placement, asked: int | None) -> None:
        self.placement = placement
        self.asked = asked
        self.owner = threading.get_ident()
        self.threads = self.fresh_threads = 0
        self.libraries: list[tuple[Any, int]] = []
        self.masks: dict[int, set[int]] | None = None
        self.own: set[int] = set()
        self.narrowed: set[int] = set()

    def enter(self) -> None:
        if _active and _active[-1].owner != self.owner:
            raise DomainError(
                f"`runtime` is active in another thread ({_active[-1].placement}) and holds for the whole process; "
                "enter it once, around both, or use a process for each"
            )
        self.threads, self.fresh_threads = torch.get_num_threads(), _in_new_thread(torch.get_num_threads)
        self.libraries = [(library, library.get_num_threads()) for library in _blas_libraries()]
        _active.append(self)
        try:
            if self.placement.cores is not None:
                self.masks, self.own = {}, os.sched_getaffinity(0)
                self.narrowed = set(self.placement.cores)
                _place_all(self.narrowed, self.masks)
            if self.asked or self.placement.threads < self.threads:
                torch.set_num_threads(self.placement.threads)
            most = len(self.placement.cores or ()) or math.inf
            for library, count in self.libraries:
                library.set_num_threads(self.asked or min(count, most))
        except OSError as error:
            self.leave()
            raise BackendUnavailableError(
                f"`cores` {core_text(self.narrowed)} could not be taken: this system refuses ({error.strerror or error}"
                "); start the process on its cores instead, with `taskset --cpu-list`"
            ) from None
        except BaseException:
            self.leave()
            raise

    def leave(self) -> None:
        """Undo; a runtime that is left before one inside of it leaves that one what it found, to be undone last."""
        place = _active.index(self)
        del _active[place]
        if place < len(_active):
            self._hand_over(_active[place])
            return
        for library, count in self.libraries:
            library.set_num_threads(count)
        torch.set_num_threads(self.threads)  # the calling thread's, and beside it that of threads new to torch
        if self.fresh_threads != self.threads:
            _in_new_thread(lambda: torch.set_num_threads(self.fresh_threads))
        if self.masks is not None:
            self._restore_masks()

    def _hand_over(self, inner: "_Held") -> None:
        inner.threads, inner.fresh_threads, inner.libraries = self.threads, self.fresh_threads, self.libraries
        if self.masks is not None:
            inner.narrowed = inner.narrowed or self.narrowed
            inner.masks, inner.own = self.masks, self.own

    def _restore_masks(self) -> None:
        """Each thread its own cores again; those of the block, who inherited, the cores of the thread that entered."""
        assert self.masks is not None
        for task in _tasks():
            with suppress(OSError):  # it has ended
                mask = self.masks.get(task)
                if mask is None and os.sched_getaffinity(task) == self.narrowed:
                    mask = self.own
                if mask is not None:
                    os.sched_setaffinity(task, mask)


def _place_all(cores: Collection[int], before: dict[int, set[int]]) -> None:
    """Put every thread of the process on these cores, and note where it was.

    The calling thread first, then again until no other thread has started meanwhile from one that was not yet placed.
    """
    before[threading.get_native_id()] = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    while new := [task for task in _tasks() if task not in before]:
        for task in new:
            before[task] = set()
            with suppress(ProcessLookupError):
                before[task] = os.sched_getaffinity(task)
                os.sched_setaffinity(task, cores)


def _tasks() -> list[int]:
    """The system's numbers of this process's threads; empty without /proc."""
    try:
        return [int(path.name) for path in (Path(machine.ROOT) / "proc/self/task").iterdir()]
    except OSError:
        return []


def _blas_libraries() -> list[Any]:
    """Controllers of the BLAS libraries of this process, SciPy's included; torch's own follows torch's count."""
    load_late("scipy.linalg")
    from threadpoolctl import ThreadpoolController

    return list(ThreadpoolController().select(user_api="blas").lib_controllers)


def _in_new_thread(call: Callable[[], Result]) -> Result:
    """What a call gives in a thread that torch has not seen."""
    found: list[Result] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0]


def _forget_other_owners() -> None:
    """In a forked child: the runtime of a thread that is not here can never be left; its cores stay, as inherited."""
    _active[:] = [held for held in _active if held.owner == threading.get_ident()]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_other_owners)
