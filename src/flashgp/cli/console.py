"""Output of a command: results on stdout, notes, warnings, errors and progress on stderr.

With --json stdout carries one JSON object and nothing else. Progress is a bar on a terminal; elsewhere a line every ten
seconds, so that a log of a long fit is not silent. Names from tables are shown without control characters.
"""

import json
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import typer

from flashgp.processes.group import ALONE

if TYPE_CHECKING:
    from flashgp.inference.fit import Progress

_LINE_SECONDS = 10.0
_MAX_NOTES = 4  # of a brief console


class Console:
    """One command's voice.

    Args: json: one JSON object on stdout and no text there; quiet: no text but warnings and errors; began: when the
        command began, by `time.perf_counter`, now by default.
    Fields: aside, whether results go to stderr, since stdout has data; brief, whether only the first notes are shown,
    the others counted; notes and warnings said so far; group, of the ranks that it speaks for; together, until these
    part.
    """

    def __init__(self, *, json: bool = False, quiet: bool = False, began: float | None = None) -> None:
        self.began = time.perf_counter() if began is None else began
        self.json = json
        self.quiet = quiet
        self.group = ALONE
        self.together = ExitStack()
        self.aside = False
        self.brief = False
        self.notes: list[str] = []
        self.warnings: list[str] = []

    # -- text ---------------------------------------------------------------------------------------------------
    def say(self, text: str = "") -> None:
        """A line of results."""
        if not (self.json or self.quiet):
            typer.echo(_shown(text), err=self.aside)

    def pairs(self, title: str, pairs: Sequence[tuple[str, str]]) -> None:
        """A title and names with values under it."""
        self.say(title)
        width = max((len(name) for name, _ in pairs), default=0)
        for name, value in pairs:
            self.say(f"  {name.ljust(width)}  {value}")

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[int] = ()) -> None:
        """Columns under their heads."""
        lines = [head, *rows]
        widths = [max(len(_shown(line[j])) for line in lines) for j in range(len(head))]
        for line in lines:
            cells = [
                _shown(cell).rjust(width) if j in numeric else _shown(cell).ljust(width)
                for j, (cell, width) in enumerate(zip(line, widths, strict=True))
            ]
            self.say("  " + "  ".join(cells).rstrip())

    def note(self, text: str) -> None:
        """Say a decision made for the user."""
        self.notes.append(text)
        if not self.quiet and not (self.brief and len(self.notes) > _MAX_NOTES):
            typer.echo(_shown(f"note: {text}"), err=True)

    def rest(self) -> None:
        """Say how many notes were not shown."""
        more = len(self.notes) - _MAX_NOTES
        if self.brief and more > 0 and not self.quiet:
            typer.echo(f"note: {more:,} more with --verbose", err=True)

    def warn(self, text: str) -> None:
        """Warn of a likely mistake; said once."""
        if text not in self.warnings:
            self.warnings.append(text)
            typer.echo(_shown(f"warning: {text}"), err=True)

    def error(self, error: BaseException) -> None:
        """Say why the command failed: on stderr, and with --json also as the one object on stdout."""
        typer.echo(_shown(f"error: {error}"), err=True)
        if self.json:
            numbers = {k: v for k, v in vars(error).items() if isinstance(v, int | float) and not isinstance(v, bool)}
            fields = {"type": type(error).__name__, "message": str(error), **numbers}
            typer.echo(json.dumps({"error": finite(fields)}, allow_nan=False))

    def finish(self, result: Mapping[str, Any]) -> None:
        """The result as JSON, when that is wanted."""
        if self.json:
            whole = {**result, "notes": self.notes, "warnings": self.warnings}
            typer.echo(json.dumps(finite(whole), allow_nan=False))

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Warnings of the library become warnings of the command."""
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_args, **_kwargs: self.warn(str(message))
            yield

    # -- progress -----------------------------------------------------------------------------------------------
    @contextmanager
    def progress(self) -> Iterator[Callable[["Progress"], None] | None]:
        """A callback for `fit`: a bar on a terminal, a line now and then elsewhere, None when quiet."""
        with self.stages() as bar:
            if bar is not None:
                yield lambda progress: bar(str(progress), progress.fraction)
            else:
                yield None if self.quiet else _lines()

    @contextmanager
    def stages(self) -> Iterator[Callable[[str, float], None] | None]:
        """A callback (what is done next, fraction done) for work in known stages: a bar on a terminal, else nothing."""
        if self.quiet or not sys.stderr.isatty():
            yield None
            return
        from rich import progress as rich
        from rich.console import Console as Terminal

        columns = (rich.BarColumn(bar_width=24), rich.TextColumn("{task.description}", markup=False))
        with rich.Progress(*columns, console=Terminal(stderr=True), transient=True) as bar:
            task = bar.add_task("", total=1.0)
            yield lambda what, fraction: bar.update(task, completed=fraction, description=what)


def _lines() -> Callable[["Progress"], None]:
    last = [time.monotonic()]

    def show(progress: "Progress") -> None:
        if time.monotonic() - last[0] >= _LINE_SECONDS:
            last[0] = time.monotonic()
            typer.echo(str(progress), err=True)

    return show


def _shown(text: str) -> str:
    """Without control characters other than line breaks: a column name cannot move the cursor."""
    return "".join(c if c.isprintable() or c == "\n" else f"\\x{ord(c):02x}" for c in text)


def finite(value: Any) -> Any:
    """JSON values in which a number that is not finite is null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value
