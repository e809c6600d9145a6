"""A command that torchrun has started several times: one group, and one voice, that of rank 0.

Every rank runs the command with the same words, reads its part of the table, and ends with the same exit code. Does not
do: launching.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flashgp.foundations.errors import ProcessGroupError
from flashgp.processes.group import ALONE, Group, GroupSettings

from .console import Console

__all__ = ["SilentConsole", "launched", "process_group"]

# Seconds that ranks wait while rank 0 scores and writes: torch's own limit. A rank that has died ends them at once.
SETTINGS = GroupSettings(time_limit=1800.0)


class SilentConsole(Console):
    """That of ranks that say nothing: rank 0 says it, errors that all share included."""

    def __init__(self, began: float | None = None) -> None:
        super().__init__(quiet=True, began=began)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def error(self, error: BaseException) -> None:
        pass

    def finish(self, result: Any) -> None:
        pass


def launched() -> bool:
    """Whether torchrun, or who sets its variables, has started several processes."""
    return "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") not in ("", "1")


@contextmanager
def process_group() -> Iterator[Group]:
    """The group of all ranks that torchrun has started, for the duration of a command; this process alone otherwise.

    Raises: ProcessGroupError where it cannot be made.
    """
    if not launched():
        yield ALONE
        return
    import torch
    from torch import distributed as dist

    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    try:
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    except (RuntimeError, ValueError) as error:
        raise ProcessGroupError(
            f"the ranks that RANK and WORLD_SIZE name cannot be joined ({error}); start the command by torchrun "
            "--nproc-per-node N -m flashgp, or unset WORLD_SIZE",
            operation="init_process_group",
        ) from None
    try:
        yield Group.of(dist.group.WORLD, SETTINGS)
    finally:
        dist.destroy_process_group()
