"""A bar for what takes a while, where somebody looks: on a terminal or in a notebook."""

import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, Protocol, TypeVar

WAIT_SECONDS = 1.0  # what takes less shows none
REFRESH_SECONDS = 0.1


class Shown(Protocol):
    """Contents of a bar: a fraction and a text."""

    @property
    def fraction(self) -> float: ...


ShownT = TypeVar("ShownT", bound=Shown)


class ProgressBar:
    """A callback that draws a line with a bar on stderr, and takes it away at the end.

    Args: console: rich's, where to; after: seconds before it appears.
    """

    def __init__(self, console: Any, after: float = WAIT_SECONDS) -> None:
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar

        columns = (BarColumn(bar_width=16), TextColumn("{task.description}", markup=False))
        # What other threads print meanwhile goes above the bar, but where stdout is a file it stays there.
        redirect = sys.stdout is not None and sys.stdout.isatty()
        # No thread of its own: there is none to spare.
        self._bar = Bar(*columns, console=console, transient=True, auto_refresh=False, redirect_stdout=redirect)
        self._task = self._bar.add_task("", total=1.0)
        self._next, self._started = time.monotonic() + after, False

    def __call__(self, progress: Shown) -> None:
        if time.monotonic() < self._next:
            return
        if not self._started:
            self._bar.start()
            self._started = True
        self._next = time.monotonic() + REFRESH_SECONDS
        self._bar.update(self._task, completed=progress.fraction, description=str(progress), refresh=True)

    def close(self) -> None:
        """Take the line away."""
        if self._started:
            self._bar.stop()


@contextmanager
def shown_progress(
    progress: Callable[[ShownT], None] | Literal[False] | None,
) -> Iterator[Callable[[ShownT], None] | None]:
    """The callback of a call: the one given, none for False, for None a bar where a terminal or a notebook shows it."""
    if progress is not None:
        yield None if progress is False else progress
        return
    from rich.console import Console

    console = Console(stderr=True)
    shown = console.is_terminal or (console.is_jupyter and _notebook_draws())
    if not shown or console.is_dumb_terminal:
        yield None
        return
    bar = ProgressBar(console)
    try:
        yield bar
    finally:
        bar.close()


def _notebook_draws() -> bool:
    """True if rich finds what it draws bars in notebooks with: without it one would only be warned."""
    return importlib.util.find_spec("ipywidgets") is not None
