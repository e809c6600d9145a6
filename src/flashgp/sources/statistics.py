"""Mean and spread of every column, batch by batch, eq. (M-164)."""

from dataclasses import dataclass

import torch
from torch import Tensor

CONSTANT_ROUNDINGS = 1e3  # of the mean, below which a spread is none


@dataclass(frozen=True, eq=False)
class Moments:
    """Of the columns of a table. Fields: count of its rows; mean (columns,); squares, sums of squared deviations.

    Source: Chan, Golub & LeVeque (1983), Algorithms for computing the sample variance, eq. 2.1.
    """

    count: int
    mean: Tensor
    squares: Tensor

    @classmethod
    def of(cls, table: Tensor) -> "Moments":
        """Of some rows, (n, columns), n at least 1."""
        mean = table.mean(0)
        return cls(len(table), mean, (table - mean).square().sum(0))

    def joined(self, other: "Moments") -> "Moments":
        """Of the rows of both, (M-164)."""
        count, apart = self.count + other.count, other.mean - self.mean
        mean = self.mean + apart * (other.count / count)
        squares = self.squares + other.squares + apart.square() * (self.count * other.count / count)
        return Moments(count, mean, squares)

    @property
    def scale(self) -> Tensor:
        """Standard deviations, with n in the denominator; 1 for a column that is constant up to rounding."""
        found = (self.squares / max(self.count, 1)).sqrt()
        rounding = CONSTANT_ROUNDINGS * torch.finfo(torch.float64).eps * self.mean.abs()
        return torch.where(found > rounding, found, torch.ones_like(found))
