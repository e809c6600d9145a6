"""Warnings that wait: several processes that have the same one give it once, when they next meet."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, eq=False)
class HeldWarning:
    """A warning, and the line that it is of. Fields: message; category; filename, line and module; registry, in which
    Python notes what it has shown of that module."""

    message: str
    category: type[Warning]
    filename: str
    line: int
    module: str
    registry: Any = field(repr=False)

    def show(self) -> None:
        """As Python's filters have it: shown, left out, or raised."""
        warnings.warn_explicit(self.message, self.category, self.filename, self.line, self.module, self.registry)


_HELD: ContextVar[list[HeldWarning] | None] = ContextVar("flashgp_held_warnings", default=None)


def give(warning: HeldWarning, *, at_once: bool = False) -> None:
    """Show a warning, or keep it within `held_warnings`. Args: at_once, whether to show it in any case."""
    held = _HELD.get()
    if held is None or at_once:
        warning.show()
    else:
        held.append(warning)


@contextmanager
def held_warnings(held: list[HeldWarning] | None) -> Iterator[None]:
    """Warnings of this thread within are put into a list; with None they are shown at once."""
    token = _HELD.set(held)
    try:
        yield
    finally:
        _HELD.reset(token)
