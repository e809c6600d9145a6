"""Data: rows that are held, checked once where a public call begins, and what all that follows asks of them."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from flashgp.foundations.checks import check_points, check_targets, promotions
from flashgp.foundations.events import Event
from flashgp.inference.missing_cells import observed
from flashgp.inference.plan_settings import RowCounts
from flashgp.inference.prior import Prior
from flashgp.inference.replicates import equal_rows
from flashgp.sources.source import Held


@dataclass(frozen=True, eq=False)
class Data:
    """A table x (*batch, n, d) and y (*batch, n) or (*batch, n, outputs): the caller's tensors, where they were such.

    Fields: prior, whose outputs and likelihood say which cells may be missing and which rows of equal x are one;
    promoted, an event for each argument of half precision.

    Example:
        >>> gp = fgp.GP(fgp.kernels.Matern())
        >>> data = Data.of(gp, torch.ones(3, 1), torch.ones(3))
        >>> data.count, data.distinct
        (3, 1)
    """

    prior: Prior
    x: Tensor
    y: Tensor
    promoted: tuple[Event, ...] = ()

    @classmethod
    def of(cls, prior: Prior, x: Any, y: Any) -> "Data":
        """Data of a caller. Raises: ShapeError, DomainError."""
        promoted = promotions(x=x, y=y)
        x = check_points(x, "x")
        return cls(prior, x, prior.checked_targets(y, x), tuple(promoted))

    @property
    def count(self) -> int:
        """n, the rows."""
        return self.x.shape[-2]

    @property
    def is_batch(self) -> bool:
        """True if there are several models or tables."""
        return self.prior.is_batch(self.x, self.y)

    @cached_property
    def cells(self) -> Bool[Tensor, "n outputs"] | None:
        """Mask of the cells of y with a value; None if all have one."""
        return observed(self.y, self.prior.outputs)

    @cached_property
    def group(self) -> Tensor | None:
        """The row that each row joins, (n,), as `equal_rows` says; None where cells are missing too."""
        return None if self.cells is not None else equal_rows(self.prior, self.x, self.y)

    @cached_property
    def distinct(self) -> int:
        """Number of rows that differ in x."""
        return self.count if self.group is None else int(self.group.max()) + 1

    @property
    def counts(self) -> RowCounts:
        """Sizes of the data, which plans are made for."""
        x, extent = self.x, None
        if x.dim() == 2 and len(x):
            extent = tuple((x.amax(0).double() - x.amin(0).double()).tolist())
        return RowCounts(
            self.count, x.shape[-1], self.distinct, x.shape[:-2].numel(), extent=extent, complete=self.cells is None
        )

    def random(self, rows: int, seed: int) -> "Data":
        """So many random rows, in their order."""
        order = torch.randperm(self.count, generator=torch.Generator().manual_seed(seed))
        index = order[:rows].sort().values.to(self.x.device)
        y = self.y[..., index] if self.prior.outputs is None else self.y[..., index, :]
        prior = self.prior.with_likelihood(self.prior.likelihood.rows(index))
        return Data(prior, self.x[..., index, :], y)

    def complete(self) -> "Data":
        """The data themselves. Raises: DomainError for missing cells, where something needs all of them."""
        if self.cells is not None:
            check_targets(self.y, "y", self.x, self.prior.outputs)
        return self


def held(data: Data) -> Held:
    """A copy of rows that the caller holds, as a source of passes. Raises: DomainError for missing cells."""
    data.complete()
    return Held(data.x.detach().clone(), data.y.detach().clone())
