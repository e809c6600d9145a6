"""Errors and warnings of FlashGP: what failed, with the numbers as fields; warnings that wait for other processes.

A message has four parts: the argument, what was expected, what arrived, one thing to do. Nothing here
knows about tensors or data.
"""

import sys
import warnings
from collections.abc import Iterator, Sequence
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
        """Show, leave out or raise the warning, as Python's filters have it."""
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


# Packages whose frames lie between the line that a user wrote and ours.
_WRAPPERS = frozenset({"flashgp", "torch", "contextlib", "jaxtyping", "beartype", "sklearn"})


class FlashGPWarning(UserWarning):
    """Every warning FlashGP gives is of this class."""


def warn(message: str, *, at_once: bool = False) -> None:
    """Give a FlashGPWarning that points at the line outside FlashGP that led here.

    Ranks that work together give it at the end of that (`Group.together`), unless at_once: what is of use before.
    """
    frame = sys._getframe()
    while frame.f_globals.get("__name__", "").partition(".")[0] in _WRAPPERS and frame.f_back is not None:
        frame = frame.f_back
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    module = frame.f_globals.get("__name__", "<string>")
    warning = HeldWarning(message, FlashGPWarning, frame.f_code.co_filename, frame.f_lineno, module, registry)
    give(warning, at_once=at_once)


class FlashGPError(Exception):
    """Every error FlashGP raises on purpose is of this class."""


class ShapeError(FlashGPError, ValueError):
    """An argument's shape does not fit; the message names the argument, the shape wanted and the one given."""


class DomainError(FlashGPError, ValueError):
    """An argument's value, type or dtype is outside what is defined."""


class DerivativeError(FlashGPError, NotImplementedError):
    """A derivative of this order, or of so many rows, is not to be had here; it is never given as zero.

    Attributes:
        order: of the derivative, by all that it is taken by.
        rows: of the covariance matrix, or None.
    """

    def __init__(self, message: str, *, order: int, rows: int | None = None) -> None:
        super().__init__(message)
        self.order = order
        self.rows = rows


class MeasurementDisturbedError(FlashGPError, RuntimeError):
    """Other processes kept busy the cores that something was to be timed on; nothing of it was kept.

    Attributes:
        others_cores: number of cores that other processes kept busy.
        cores: number of cores that this process may use.
        threads: number of threads that it works with.
    """

    def __init__(self, message: str, *, others_cores: float, cores: int, threads: int) -> None:
        super().__init__(message)
        self.others_cores = others_cores
        self.cores = cores
        self.threads = threads


class ModelFileError(FlashGPError, ValueError):
    """A model file is truncated, foreign, hostile, or of an unknown version; nothing of it was used.

    Attributes:
        foreign: True for another kind of file, by its first bytes.
    """

    def __init__(self, message: str, *, foreign: bool = False) -> None:
        super().__init__(message)
        self.foreign = foreign


class NotPositiveDefiniteError(FlashGPError, ArithmeticError):
    """A covariance matrix could not be factorised.

    Attributes:
        smallest_pivot: float or None.
        jitters: relative jitters tried.
        indices: failing batch members; empty without a batch.
    """

    def __init__(
        self,
        message: str,
        *,
        smallest_pivot: float | None = None,
        jitters: Sequence[float] = (),
        indices: Sequence[tuple[int, ...]] = (),
    ) -> None:
        super().__init__(message)
        self.smallest_pivot = smallest_pivot
        self.jitters = tuple(jitters)
        self.indices = tuple(indices)


class ConvergenceError(FlashGPError, ArithmeticError):
    """An iteration ended without reaching its tolerance.

    Attributes:
        iterations: number of iterations.
        residual: at the end, in the unit of the tolerance.
        tolerance: as asked for.
    """

    def __init__(self, message: str, *, iterations: int, residual: float, tolerance: float) -> None:
        super().__init__(message)
        self.iterations = iterations
        self.residual = residual
        self.tolerance = tolerance


class MemoryBudgetError(FlashGPError, MemoryError):
    """No plan fits the memory budget.

    Attributes:
        needed_bytes: of what was asked for.
        available_bytes: of the budget.
        cheapest_plan: the cheapest plan that fits, or None.
        offers: approximations that would fit, with their costs.
    """

    def __init__(
        self,
        message: str,
        *,
        needed_bytes: int,
        available_bytes: int,
        cheapest_plan: object | None = None,
        offers: Sequence[object] = (),
    ) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes
        self.cheapest_plan = cheapest_plan
        self.offers = tuple(offers)


class FitInterrupted(KeyboardInterrupt):
    """Ctrl-C in the last solve of `fit`, where there is no partial answer.

    Attributes:
        gp: as trained.
        history: of the search.
    """

    def __init__(self, message: str, *, gp: object, history: Sequence[object]) -> None:
        super().__init__(message)
        self.gp = gp
        self.history = list(history)


class BackendUnavailableError(FlashGPError, ImportError):
    """A package or a device that was asked for is missing; the message says what to install."""


class MissingNameError(FlashGPError, AttributeError):
    """A name that other libraries have, and this one has not; the message says what there is."""


class ProcessGroupError(FlashGPError, RuntimeError):
    """A process group cannot be used, a rank did not answer in time, or a rank raised an error of another library.

    Attributes:
        ranks: the ranks concerned, () where they are unknown.
        operation: the collective that was going on.
    """

    def __init__(self, message: str, *, ranks: Sequence[int] = (), operation: str = "") -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)
        self.operation = operation


class RankMismatchError(ProcessGroupError, ValueError):
    """Ranks of one group got different values of arguments that must be equal on all of them.

    Attributes:
        names: of the arguments that differ.
        ranks: the ranks concerned.
    """

    def __init__(self, message: str, *, names: Sequence[str], ranks: Sequence[int]) -> None:
        super().__init__(message, ranks=ranks)
        self.names = tuple(names)
