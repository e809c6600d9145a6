"""Columns in units of their own spread: (v - offset) / scale, without 0/0 and without losing digits."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Standardisation"]

Array = npt.NDArray[np.float64]

# A column whose spread is below this many roundings of its largest entry holds no more than rounding.
CONSTANT_ROUNDINGS = 1e3


@dataclass(frozen=True, eq=False)
class Standardisation:
    """The affine map of each column to mean 0 and standard deviation 1, and back.

    Fields: offset and scale, shape (columns,), float64, in units of the column; constant, shape (columns,), which
    columns have no spread (their scale is 1).
    """

    offset: Array
    scale: Array
    constant: npt.NDArray[np.bool_]

    @classmethod
    def identity(cls, columns: int) -> "Standardisation":
        """The map that changes nothing."""
        return cls(np.zeros(columns), np.ones(columns), np.zeros(columns, dtype=bool))

    @classmethod
    def of(cls, values: Array, weights: Array | None = None, within: Array | None = None) -> "Standardisation":
        """Mean and standard deviation (divided by n) of every column.

        Args:
            values: shape (n, columns), finite, n at least 1.
            weights: shape (n,), positive: how often each row counts; None for once.
            within: shape (columns,), squared deviations around `values` to be added (rows that are means); None for 0.
        Cost: two passes; the largest entry is divided out first, so that squares neither overflow nor underflow.
        """
        largest = np.abs(values).max(axis=0)
        # A power of two: dividing by it rounds nothing.
        unit = np.exp2(np.floor(np.log2(largest, out=np.zeros_like(largest), where=largest > 0)))
        reduced = values / unit
        mean = np.average(reduced, axis=0, weights=weights)
        mean += np.average(reduced - mean, axis=0, weights=weights)  # what rounding left out of the first mean
        variance = np.average(np.square(reduced - mean), axis=0, weights=weights)
        if within is not None:
            variance += within / unit / unit / (len(values) if weights is None else weights.sum())
        spread = np.sqrt(variance)
        exact = values.min(axis=0) == values.max(axis=0)
        constant = spread <= CONSTANT_ROUNDINGS * np.finfo(np.float64).eps * (largest / unit)
        offset = np.where(exact, values[0], mean * unit)
        return cls(offset, np.where(constant, 1.0, spread * unit), constant)

    def keeping(self, columns: list[int]) -> "Standardisation":
        """The same map, except that these columns pass unchanged."""
        offset, scale = self.offset.copy(), self.scale.copy()
        offset[columns], scale[columns] = 0.0, 1.0
        return Standardisation(offset, scale, self.constant)

    def apply(self, values: npt.NDArray[np.floating]) -> Array:
        """Values (n, columns) in standard units: a new array, float64."""
        moved = np.subtract(values, self.offset, dtype=np.float64, order="C")
        return np.divide(moved, self.scale, out=moved)

    def undo(self, values: Array) -> Array:
        """Standard units (..., columns) back in units of the column."""
        return values * self.scale + self.offset
