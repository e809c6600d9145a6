"""One covariance matrix to be evaluated: the covariance function with its parameters, and the rows on both sides."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from flashgp.foundations.expression import Symbol
from flashgp.foundations.form import Form, Rows, broadcast_batch
from flashgp.pairwise.near.tile_lists import NearTiles


@dataclass(frozen=True)
class PairProblem:
    """K_ij = g(q_ij; theta) of eq. (M-1) for all rows i and columns j.

    Fields:
        form: the structure of the covariance function.
        theta: the parameters of its profile, () or (*batch,) each.
        rows: what the points of the rows contribute.
        columns: the same of the columns; None for the rows themselves, then K is symmetric.
        near: the tiles that products and their gradients evaluate, K taken as 0 elsewhere, eq. (M-72); None for all.
    """

    form: Form
    theta: Sequence[Tensor]
    rows: Rows
    columns: Rows | None = None
    near: NearTiles | None = None

    @property
    def symmetric(self) -> bool:
        return self.columns is None

    @property
    def right(self) -> Rows:
        """The columns, also of a symmetric problem."""
        return self.rows if self.columns is None else self.columns

    @property
    def batch_shape(self) -> torch.Size:
        return broadcast_batch(self.rows.batch_shape, self.right.batch_shape, *(t.shape for t in self.theta))

    @property
    def shape(self) -> torch.Size:
        return torch.Size((*self.batch_shape, self.rows.count, self.right.count))

    @property
    def device(self) -> torch.device:
        return self.rows.device

    @property
    def pair_count(self) -> int:
        """Pairs of one model that a product evaluates."""
        return self.rows.count * self.right.count if self.near is None else self.near.pair_count

    @property
    def kept(self) -> float:
        """The share of the n m pairs that a product evaluates."""
        return 1.0 if self.near is None else self.near.pair_count / max(1, self.near.n * self.near.m)

    @property
    def T(self) -> "PairProblem":
        """The problem of the transpose; a symmetric problem is its own."""
        if self.columns is None:
            return self
        near = None if self.near is None else self.near.T
        return PairProblem(exchanged(self.form), self.theta, self.columns, self.rows, near)

    @property
    def whole(self) -> "PairProblem":
        """The problem with every pair."""
        return self if self.near is None else replace(self, near=None)

    def between(self, rows: Rows, columns: Rows | None) -> "PairProblem":
        """The covariance function between other rows."""
        return PairProblem(self.form, self.theta, rows, columns)

    def detached(self) -> "PairProblem":
        """The problem on tensors without their graph."""
        columns = None if self.columns is None else self.columns.detach()
        return replace(self, theta=[t.detach() for t in self.theta], rows=self.rows.detach(), columns=columns)

    # -- the tensors that can carry gradients, flat: those of the rows, of the columns, theta -----------------------
    @property
    def tensors(self) -> tuple[Tensor, ...]:
        columns = () if self.columns is None else self.columns.tensors
        return (*self.rows.tensors, *columns, *self.theta)

    @property
    def event_dims(self) -> list[int]:
        """Dimensions of each of `tensors` that are not batch dimensions."""
        rows = [2 if f.is_floating_point() else 1 for f in self.rows.features] + [1] * len(self.rows.scalars)
        return [*rows, *(() if self.columns is None else rows), *(0 for _ in self.theta)]

    def with_tensors(self, tensors: Sequence[Tensor]) -> "PairProblem":
        """The problem of other tensors."""
        a = len(self.rows.tensors)
        b = a + (0 if self.columns is None else len(self.columns.tensors))
        columns = None if self.columns is None else self.columns.rebuilt(tensors[a:b])
        return replace(self, theta=tuple(tensors[b:]), rows=self.rows.rebuilt(tensors[:a]), columns=columns)


def exchanged(form: Form) -> Form:
    """The form of k(x', x): left and right row scalars change places."""
    rename = {
        s: Symbol("right" if s.kind == "left" else "left", s.index)
        for s in form.profile.symbols
        if s.kind in ("left", "right")
    }
    return replace(form, profile=form.profile.renamed(rename))
