"""A window of rows that moves on: the oldest leave, others come, and the factor is not rewritten.

From the second time that the oldest rows leave: the first one puts the factor into one panel with room for a window.
Rows that left stay in the factor for a while, eq. (M-118), so that their features are kept as long.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from flashgp.foundations.errors import NotPositiveDefiniteError
from flashgp.foundations.form import Rows
from flashgp.foundations.workspace import Workspace
from flashgp.inference.state import State
from flashgp.solvers.growing.panels import PanelFactor
from flashgp.solvers.growing.window import WindowFactor, room_of

__all__ = ["Moved", "moved_window", "panels_of", "spare_rows"]


@dataclass(frozen=True, eq=False)
class Moved:
    """Fields: factor; known, the rows that are in it, those that left first."""

    factor: WindowFactor
    known: Rows

    @property
    def rows(self) -> Rows:
        """Those that are there, as a view."""
        return self.known.part(self.factor.pending, self.known.count)


def moved_window(
    post: State,
    gone: int,
    residual: Tensor,
    noise: Tensor,
    new: Rows | None,
    covariance: Callable[[Rows, Rows], Tensor],
    workspace: Workspace,
) -> Moved | None:
    """The factor without the `gone` first rows and with new ones, eqs. (M-118) to (M-120).

    Args: residual (n', p) and noise (n',), of all rows after it, jitter included.
    Returns: None where another way is needed: few rows, many at once, or new ones that rows which left determine.
    """
    factor, more = post.factor, 0 if new is None else new.count
    known = post.online.known
    if not isinstance(factor, WindowFactor):
        begun = None
        if gone and isinstance(factor, PanelFactor):
            whitened = post.whitened_residual
            begun = WindowFactor.begun(factor, factor.half_solve(post.residual) if whitened is None else whitened)
        if begun is None:
            return None
        factor, known = begun, post.rows
    if known is None or not factor.takes(gone, more):
        return None
    border: tuple[Tensor, ...] = ()
    if new is not None:
        held = known.count
        known = known.followed_by(new)
        block = covariance(new, known)
        corner = block[:, held:].clone()
        corner.diagonal().add_(noise[-more:])
        border = block[:, :held], corner, residual[-more:]
    try:
        after = factor.moved(gone, *border, compiled=not post.settings.deterministic, workspace=workspace)
    except NotPositiveDefiniteError as error:
        pivot = error.smallest_pivot
        if not factor.pending + gone or (pivot is not None and not math.isfinite(pivot)):
            raise
        return None  # of rows that left: those that are there decide
    return Moved(after, known.part(known.count - after.pending - after.count, known.count))


def panels_of(post: State, workspace: Workspace) -> tuple[PanelFactor, Tensor | None]:
    """The factor as panels of rows, and L^-1 of the residual where it is known for these."""
    factor = post.factor
    assert factor is not None
    if isinstance(factor, WindowFactor):
        compiled = not post.settings.deterministic
        return factor.flushed(compiled=compiled, workspace=workspace), None
    return PanelFactor.of(factor), post.whitened_residual


def spare_rows(count: int, gone: int | None, factor: PanelFactor, default: int) -> int:
    """Spare rows of a panel that is made by removing rows: those of a window where the oldest left, else `default`."""
    window = gone is not None and factor.dtype == torch.float64 and factor.device.type == "cpu"
    return max(default, room_of(count)) if window else default
