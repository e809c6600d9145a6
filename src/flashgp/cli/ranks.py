"""A command that torchrun has started several times: one group, and one voice, that of rank 0.

Every rank runs the command with the same words, reads its part of the table, and ends with the same exit code. Does not
do: launching.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import Any

from flashgp.foundations.errors import ProcessGroupError
from flashgp.processes.group import ALONE, Group, GroupSettings

from .console import Console
from .interruption import INTERRUPTED, interrupted, launched, silent

# Seconds that ranks wait for each other: torch's own limit. A rank that has died ends them at once.
SETTINGS = GroupSettings(time_limit=1800.0)
LAST_WORD_SECONDS = 10.0  # that rank 0 has to say what failed, from the end of another rank on


class SilentConsole(Console):
    """Console of a rank that prints nothing: rank 0 prints, errors that all share included."""

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


def after_first(code: int) -> None:
    """Let rank 0 say what failed: torchrun ends all ranks as soon as one has failed, this one with them."""
    if silent() and code not in (0, INTERRUPTED) and "TORCHELASTIC_RUN_ID" in os.environ:
        with suppress(KeyboardInterrupt):
            time.sleep(LAST_WORD_SECONDS)


@contextmanager
def explained(text: Callable[[], str]) -> Iterator[None]:
    """Ctrl-C within says this, in the error itself: all ranks share it, and another one would count as one more."""
    try:
        yield
    except KeyboardInterrupt as stop:
        stop.args = (text(),)
        raise
    except ProcessGroupError as error:
        if not interrupted():
            raise
        raise KeyboardInterrupt(text()) from error


@contextmanager
def usage_of_first() -> Iterator[None]:
    """Print help, and errors of the words given, from rank 0 alone."""
    if not silent():
        yield
        return
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield


@contextmanager
def own_stderr() -> Iterator[None]:
    """Work begins: whatever this rank alone runs into is shown again."""
    if not silent() or sys.__stderr__ is None:
        yield
        return
    with redirect_stderr(sys.__stderr__):
        yield


def shown_by_another_rank(console: Console, error: BaseException) -> bool:
    """True if a silent rank leaves an error to the first rank that has it, or to rank 0."""
    return isinstance(console, SilentConsole) and console.group.source_of(error) not in (None, console.group.rank)


def warn_of_others(console: Console) -> None:
    """The warnings of other ranks that rank 0 had no reason for; those that all have are said once."""
    if console.group.size == 1:
        return
    told = console.group.gather_bytes(json.dumps(console.warnings).encode(errors="surrogatepass"))
    if console.group.rank:
        return
    for rank, texts in enumerate(told):
        for text in json.loads(texts.decode(errors="surrogatepass")):
            if text not in console.warnings:
                console.warn(f"rank {rank}: {text}")


@contextmanager
def all_ranks(console: Console) -> Iterator[None]:
    """Run a body on all ranks, up to its end or to `leave_group`: `console.group` is theirs, and an error of one is
    raised by all."""
    with ExitStack() as console.together:
        console.group = console.together.enter_context(_process_group())
        # Warnings are said as they come, by `warn_of_others` those of other ranks.
        console.together.enter_context(console.group.together(hold_warnings=False))
        yield
        leave_group(console)


def leave_group(console: Console) -> None:
    """No rank waits for another from here on, however long that one works: the group is given up, and what goes wrong
    is that rank's alone. Warnings of all are said before."""
    warn_of_others(console)
    console.together.close()
    console.group = ALONE


@contextmanager
def _process_group() -> Iterator[Group]:
    """The group of all ranks that torchrun has started, for the duration of a command; this process alone otherwise.

    Raises: ProcessGroupError where it cannot be made.
    """
    if not launched():
        yield ALONE
        return
    import torch
    from torch import distributed as dist

    from flashgp.processes.attempts import init_process_group

    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    try:
        init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
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
