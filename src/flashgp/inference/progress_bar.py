"""A bar for what takes a while, where somebody looks: on a terminal or in a notebook."""

import importlib
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import Any, Literal, Protocol, TypeVar

WAIT_SECONDS = 1.0  # what takes less shows none
REFRESH_SECONDS = 0.1


class Shown(Protocol):
    """Contents of a bar: a fraction and a text."""

    @property
    def fraction(self) -> float: ...


ShownT = TypeVar("ShownT", bound=Shown)


class ProgressLine:
    """A callback that shows a bar and a text in one place, again and again.

    Args: after: seconds before it appears.
    """

    def __init__(self, after: float = WAIT_SECONDS) -> None:
        self._next, self._started = time.monotonic() + after, False

    def __call__(self, progress: Shown) -> None:
        if time.monotonic() < self._next:
            return
        self._draw(progress.fraction, str(progress))
        self._next, self._started = time.monotonic() + REFRESH_SECONDS, True

    def close(self) -> None:
        """Take it away."""
        if self._started:
            self._erase()

    def _draw(self, fraction: float, text: str) -> None:
        raise NotImplementedError

    def _erase(self) -> None:
        raise NotImplementedError


class ProgressBar(ProgressLine):
    """A line on stderr. Args: console: rich's, where to."""

    def __init__(self, console: Any, after: float = WAIT_SECONDS) -> None:
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar

        super().__init__(after)
        columns = (BarColumn(bar_width=16), TextColumn("{task.description}", markup=False))
        # What other threads print meanwhile goes above the bar, but where stdout is a file it stays there.
        redirect = sys.stdout is not None and sys.stdout.isatty()
        # No thread of its own: there is none to spare.
        self._bar = Bar(*columns, console=console, transient=True, auto_refresh=False, redirect_stdout=redirect)
        self._task = self._bar.add_task("", total=1.0)

    def _draw(self, fraction: float, text: str) -> None:
        if not self._started:
            self._bar.start()
        self._bar.update(self._task, completed=fraction, description=text, refresh=True)

    def _erase(self) -> None:
        self._bar.stop()


class NotebookBar(ProgressLine):
    """An output of a notebook's cell. Args: display: IPython's."""

    def __init__(self, display: Callable[..., Any], after: float = WAIT_SECONDS) -> None:
        super().__init__(after)
        self._display, self._output = display, uuid.uuid4().hex

    def _draw(self, fraction: float, text: str) -> None:
        self._show({"text/plain": text, "text/html": f'<progress value="{fraction:.3f}"></progress> {escape(text)}'})

    def _erase(self) -> None:
        self._show({"text/plain": "", "text/html": ""})

    def _show(self, shown: dict[str, str]) -> None:
        self._display(shown, raw=True, display_id=self._output, update=self._started)


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
    bar: ProgressLine
    if console.is_jupyter:
        bar = NotebookBar(importlib.import_module("IPython.display").display)
    elif console.is_terminal and not console.is_dumb_terminal:
        bar = ProgressBar(console)
    else:
        yield None
        return
    try:
        yield bar
    finally:
        bar.close()
