"""Standardising: inputs and target to zero mean and unit standard deviation, learned from training rows, undone later.

Works on NumPy arrays and torch tensors alike and returns what it was given. A column that does not vary (beyond
rounding) is only shifted. Its JSON form comes back from untrusted model files, so reading it checks every number.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flashgp.foundations.errors import ModelFileError, ShapeError

__all__ = ["Scaling"]

_VERSION = 1
_ROUNDING = 1e3 * float(np.finfo(np.float64).eps)  # a spread below this share of a column's size is rounding
_LEAST, _MOST = 1e-290, 1e290  # scales outside would overflow when squared or divided by


@dataclass(frozen=True)
class Scaling:
    """standardised = (value - shift) / scale, column by column of x, and for y.

    Fields: x_shift, x_scale, one number per column; y_shift, y_scale; scales are positive.
    """

    x_shift: tuple[float, ...]
    x_scale: tuple[float, ...]
    y_shift: float
    y_scale: float

    @staticmethod
    def learn(x: Any, y: Any, skip: Collection[int] = ()) -> "Scaling":
        """Mean and standard deviation (of the rows, not corrected) of each column.

        Args:
            x: training inputs, shape (n, d), finite; y: training targets, shape (n,), finite.
            skip: columns left as they are, such as category codes.
        Raises: ShapeError for other shapes or no rows.
        Cost: O(n d).
        """
        columns, target = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
        if columns.ndim != 2 or target.shape != columns.shape[:1] or len(target) == 0:
            raise ShapeError(
                f"`x` and `y` must have shapes (n, d) and (n,) with n at least 1, got {columns.shape} and "
                f"{target.shape}; pass the training rows"
            )
        found = [(0.0, 1.0) if j in skip else _shift_and_scale(columns[:, j]) for j in range(columns.shape[1])]
        shift, scale = _shift_and_scale(target)
        return Scaling(tuple(pair[0] for pair in found), tuple(pair[1] for pair in found), shift, scale)

    def x(self, x: Any) -> Any:
        """Inputs (n, d) in units of the table to standardised ones."""
        if getattr(x, "shape", ())[-1:] != (len(self.x_shift),):
            raise ShapeError(
                f"`x` must have {len(self.x_shift)} columns, got shape {tuple(getattr(x, 'shape', ()))}; "
                "select the columns of the training table"
            )
        return (x - _like(self.x_shift, x)) / _like(self.x_scale, x)

    def y(self, y: Any) -> Any:
        """Targets to standardised ones."""
        return (y - self.y_shift) / self.y_scale

    def mean(self, mean: Any) -> Any:
        """A standardised mean, quantile or target to units of y."""
        return mean * self.y_scale + self.y_shift

    def std(self, std: Any) -> Any:
        """A standardised standard deviation to units of y."""
        return std * self.y_scale

    def log_density(self, value: Any) -> Any:
        """The log density of a standardised y, in nats, to that of y: the scale moves it by -log(y_scale)."""
        return value - math.log(self.y_scale)

    def to_json(self) -> dict[str, Any]:
        """JSON values; `from_json` gives an equal object back."""
        return {
            "version": _VERSION,
            "x_shift": list(self.x_shift),
            "x_scale": list(self.x_scale),
            "y_shift": self.y_shift,
            "y_scale": self.y_scale,
        }

    @staticmethod
    def from_json(data: object) -> "Scaling":
        """Read what `to_json` wrote, from a file that may be hostile.

        Raises: ModelFileError naming the first field that is absent, unknown, or no finite (positive) number.
        """
        keys = ("version", "x_shift", "x_scale", "y_shift", "y_scale")
        if not isinstance(data, dict) or sorted(map(str, data)) != sorted(keys):
            raise _refused("scaling", f"an object with the keys {', '.join(keys)}")
        if type(data["version"]) is not int or data["version"] != _VERSION:
            raise _refused("scaling.version", str(_VERSION))
        shifts, scales = _numbers(data["x_shift"], "x_shift"), _numbers(data["x_scale"], "x_scale", positive=True)
        if len(shifts) != len(scales) or not shifts:
            raise _refused("scaling.x_scale", "as many numbers as x_shift, at least one")
        (y_shift,), (y_scale,) = (
            _numbers([data["y_shift"]], "y_shift"),
            _numbers([data["y_scale"]], "y_scale", positive=True),
        )
        return Scaling(shifts, scales, y_shift, y_scale)


def _shift_and_scale(values: Any) -> tuple[float, float]:
    """Mean and standard deviation without overflow; scale 1 for a column that is constant up to rounding."""
    size = float(np.abs(values).max())
    if size == 0.0:
        return 0.0, 1.0
    unit = values / size
    shift, spread = float(unit.mean()), float(unit.std())
    scale = spread * size
    if spread <= _ROUNDING or not _LEAST < scale < _MOST:
        return shift * size, 1.0
    return shift * size, scale


def _like(numbers: Sequence[float], array: Any) -> Any:
    """Numbers as an array of the same library, dtype and device."""
    if hasattr(array, "new_tensor"):
        return array.new_tensor(numbers)
    return np.asarray(numbers, dtype=np.float64)


def _numbers(values: object, name: str, positive: bool = False) -> tuple[float, ...]:
    wanted = "finite positive numbers" if positive else "finite numbers"
    if not isinstance(values, list):
        raise _refused(f"scaling.{name}", wanted)
    for value in values:
        if type(value) not in (int, float) or not -_MOST < value < _MOST or (positive and not value > _LEAST):
            raise _refused(f"scaling.{name}", wanted)
    return tuple(float(value) for value in values)


def _refused(where: str, expected: str) -> ModelFileError:
    return ModelFileError(
        f"`{where}` of the model file must be {expected}, got something else; "
        "the file is damaged or foreign, save the model again."
    )
