"""What rounding of the covariance matrix does to what is computed from it, eqs. (M-147), (M-259) and (M-260).

No residual shows it, since residuals are computed with the rounded matrix. Estimates, no bounds: they are for
roundings that are independent of each other, and were 3 to 20 times too large where they were compared.
"""

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from flashgp.foundations.errors import warn
from flashgp.foundations.events import Event, EventKind

LIKELIHOOD_SHARE = 1e-3  # of a log likelihood, or nats below 1: what rounding may move it by unsaid


@dataclass(frozen=True)
class Rounding:
    """Of one system, of a batch the worst of each.

    Fields: norm, of the change of the matrix, in its units; weights, the largest norm of a column of K^-1 (y - m);
    nats, how far the log likelihood moves, eq. (M-260).
    """

    norm: float
    weights: float
    nats: float

    @classmethod
    def of(cls, n: int, dtype: torch.dtype, largest: float, pivot: float, weights: Tensor) -> Self:
        """Args: largest diagonal entry; pivot, smallest squared pivot; weights, K^-1 (y - m), (*batch, n, p)."""
        squares = weights.detach().double().square().sum(-2)  # of every column
        norm = math.sqrt(n) * torch.finfo(dtype).eps * largest  # (M-147)
        nats = 0.5 * norm * (float(squares.sum(-1).max()) + squares.shape[-1] / pivot)  # (M-260)
        return cls(norm, math.sqrt(float(squares.max())), nats)


def smallest_pivot(lower: Tensor) -> float:
    """The smallest squared pivot of lower Cholesky factors (*batch, n, n), which stands for an eigenvalue below it."""
    return float(lower.detach().diagonal(dim1=-2, dim2=-1).double().square().min())


@dataclass
class LikelihoodRounding:
    """What rounding may do to log likelihoods that are computed while it is passed down; `warn` says the worst.

    Fields: worst, an event; share, of the log likelihood.
    """

    worst: Event | None = None
    share: float = LIKELIHOOD_SHARE

    def note(self, lower: Tensor, weights: Tensor, value: Tensor) -> None:
        """Args: a factor of K^ (*batch, n, n), K^-1 (y - m), (*batch, n, p), and the log likelihoods, (*batch,)."""
        if not weights.numel():
            return
        largest = float(torch.linalg.vector_norm(lower.detach(), dim=-1).max()) ** 2  # without a second matrix
        nats = Rounding.of(lower.shape[-1], lower.dtype, largest, smallest_pivot(lower), weights).nats
        size = float(value.detach().abs().min())
        if nats > self.share * max(1.0, size):
            self.share = nats / max(1.0, size)
            name = str(lower.dtype).removeprefix("torch.")
            self.worst = Event(EventKind.LIKELIHOOD_ROUNDED, dtype=name, value=float(value.min()), nats=nats)

    def warn(self) -> None:
        """A warning where it is above the share."""
        if self.worst is not None:
            warn(str(self.worst))
