"""Standard units: what columns are shifted and divided by, and the transform of the target, learned from training rows.

`ColumnScaling` holds any number of columns as arrays; `Scaling` is that of the inputs and one target, with the
target's transform, which a model file keeps. Its JSON form comes back from untrusted files, so reading it checks
every number. Does not do: the choice of a transform (`flashgp.choices`).
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from flashgp.foundations.errors import DomainError, ShapeError
from flashgp.foundations.json_values import json_fields, refused
from flashgp.inference.prior import Prior
from flashgp.inference.replicates import equal_rows, join
from flashgp.kernels import Kernel, Warped
from flashgp.target_transform import TargetTransform, WarpedNormal

Array = npt.NDArray[np.float64]

_VERSION = 2  # since a target may be transformed; without a transform version 1 is written
_CONSTANT_ROUNDINGS = 1e3  # a column whose spread is below so many roundings of its largest entry is constant
MIN_SCALE, MAX_SCALE = 1e-290, 1e290  # scales outside would overflow when squared or divided by


@dataclass(frozen=True, eq=False)
class ColumnScaling:
    """standardised = (value - offset) / scale, column by column, without 0/0 and without losing digits.

    Fields:
        offset, scale: shape (columns,), float64, in units of the column.
        constant: shape (columns,), which columns have no spread (their scale is 1).
    """

    offset: Array
    scale: Array
    constant: npt.NDArray[np.bool_]

    @classmethod
    def identity(cls, columns: int) -> "ColumnScaling":
        """The map that changes nothing."""
        return cls(np.zeros(columns), np.ones(columns), np.zeros(columns, dtype=bool))

    @classmethod
    def of(cls, values: Array, weights: Array | None = None, within: Array | None = None) -> "ColumnScaling":
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
        constant = spread <= _CONSTANT_ROUNDINGS * np.finfo(np.float64).eps * (largest / unit)
        offset = np.where(exact, values[0], mean * unit)
        return cls(offset, np.where(constant, 1.0, spread * unit), constant)

    @classmethod
    def of_present(cls, values: Array) -> "ColumnScaling":
        """Scaling of the numbers of every column, (n, columns), beside NaN; each has one at least."""
        each = [cls.of(column[~np.isnan(column)][:, None]) for column in values.T]
        return cls(*(np.concatenate([getattr(one, name) for one in each]) for name in ("offset", "scale", "constant")))

    def keeping(self, columns: Collection[int]) -> "ColumnScaling":
        """The map with these columns passed unchanged."""
        offset, scale = self.offset.copy(), self.scale.copy()
        offset[list(columns)], scale[list(columns)] = 0.0, 1.0
        return ColumnScaling(offset, scale, self.constant)

    def apply(self, values: npt.NDArray[np.floating]) -> Array:
        """Values (n, columns) in standard units: a new array, float64."""
        moved = np.subtract(values, self.offset, dtype=np.float64, order="C")
        return np.divide(moved, self.scale, out=moved)

    def undo(self, values: Array) -> Array:
        """Standard units (..., columns) back in units of the column."""
        return values * self.scale + self.offset


@dataclass(frozen=True)
class Scaling:
    """standardised = (value - shift) / scale, column by column of x, and for T(y).

    Takes NumPy arrays and torch tensors alike and returns what it was given; a transform takes and returns arrays. A
    column that does not vary (beyond rounding) is only shifted; a target that does not is scaled by its size.

    Fields:
        x_shift, x_scale: one number per column.
        y_shift, y_scale: of the target, transformed.
        transform: T of the target, eq. (M-140); the identity by default.
        Scales are positive.
    """

    x_shift: tuple[float, ...]
    x_scale: tuple[float, ...]
    y_shift: float
    y_scale: float
    transform: TargetTransform = field(default_factory=TargetTransform)

    @property
    def target_scale(self) -> float:
        """The standard deviation of the training targets, in units of y."""
        return self.y_scale if self.transform.identity else self.transform.scale

    def x(self, x: Any) -> Any:
        """Inputs (n, d) in units of the table to standardised ones."""
        if getattr(x, "shape", ())[-1:] != (len(self.x_shift),):
            raise ShapeError(
                f"`x` must have {len(self.x_shift)} columns, got shape {tuple(getattr(x, 'shape', ()))}; "
                "select the columns of the training table"
            )
        moved = (x - _like(self.x_shift, x)) / _like(self.x_scale, x)
        return np.ascontiguousarray(moved) if isinstance(moved, np.ndarray) else moved

    def y(self, y: Any) -> Any:
        """Targets to standardised ones. Raises: DomainError naming the first that the transform does not take."""
        self.transform.check(y)
        return (self.transform.forward(y) - self.y_shift) / self.y_scale

    def target(self, z: Any) -> Any:
        """Standardised targets, samples or quantiles to units of y."""
        return self.transform.inverse(self.mean(z))

    def predictive(self, mean: Any, std: Any) -> WarpedNormal:
        """The distribution of a target whose standardised value is normal, in units of y, eq. (M-141)."""
        return WarpedNormal(np.asarray(self.mean(mean), np.float64), np.asarray(self.std(std), np.float64),
                            self.transform)  # fmt: skip

    def mean_of(self, mean: Any, std: Any) -> Any:
        """The mean of y where its standardised value is normal, eq. (M-142); of float64 tensors or arrays, (..., 1)."""
        found = self.predictive(*(np.asarray(value) for value in (mean, std))).mean
        return mean.new_tensor(found) if hasattr(mean, "new_tensor") else found

    def mean(self, mean: Any) -> Any:
        """A standardised mean to units of T(y), which are those of y without a transform."""
        return mean * self.y_scale + self.y_shift

    def std(self, std: Any) -> Any:
        """A standardised standard deviation to units of T(y)."""
        return std * self.y_scale

    def log_density(self, value: Any) -> Any:
        """The log density of a standardised y, in nats, to that of T(y): the scale moves it by -log(y_scale)."""
        return value - math.log(self.y_scale)

    def to_json(self) -> dict[str, Any]:
        """JSON values; `from_json` gives an equal object back."""
        numbers = {
            "x_shift": list(self.x_shift),
            "x_scale": list(self.x_scale),
            "y_shift": self.y_shift,
            "y_scale": self.y_scale,
        }
        if self.transform.identity:
            return {"version": 1, **numbers}
        return {"version": _VERSION, **numbers, "transform": self.transform.to_json()}

    @staticmethod
    def from_json(data: object) -> "Scaling":
        """Read what `to_json` wrote, from a file that may be hostile.

        Raises:
            ModelFileError: naming the first field that is absent, unknown, or no finite (positive) number.
        """
        version = data.get("version") if isinstance(data, dict) else None
        since = ("transform",) * (version == _VERSION)
        fields = json_fields(data, "scaling", ("version", "x_shift", "x_scale", "y_shift", "y_scale", *since))
        if type(version) is not int or version not in (1, _VERSION):
            raise refused("scaling.version", f"1 or {_VERSION}", version)
        x_shift, x_scale = _numbers(fields["x_shift"], "x_shift"), _numbers(fields["x_scale"], "x_scale", positive=True)
        if len(x_shift) != len(x_scale) or not x_shift:
            raise refused("scaling.x_scale", "as many numbers as x_shift, at least one", fields["x_scale"])
        (y_shift,) = _numbers([fields["y_shift"]], "y_shift")
        (y_scale,) = _numbers([fields["y_scale"]], "y_scale", positive=True)
        transform = TargetTransform.from_json(fields["transform"]) if since else TargetTransform()
        return Scaling(x_shift, x_scale, y_shift, y_scale, transform)


def _like(numbers: Sequence[float], array: Any) -> Any:
    """Numbers as an array of the same library, dtype and device."""
    if hasattr(array, "new_tensor"):
        return array.new_tensor(numbers)
    return np.asarray(numbers, dtype=np.float64)


def _numbers(values: Any, name: str, positive: bool = False) -> tuple[float, ...]:
    low = MIN_SCALE if positive else -MAX_SCALE
    if not isinstance(values, list) or not all(type(v) in (int, float) and low < v < MAX_SCALE for v in values):
        raise refused(f"scaling.{name}", "finite positive numbers" if positive else "finite numbers", values)
    return tuple(float(value) for value in values)


def check_scales(scaling: Scaling, names: Sequence[str]) -> None:
    """Raises: DomainError naming the column whose size is beyond what squares of float64 hold.

    Args: names, of the inputs and of the target behind them.
    """
    shifts, scales = (*scaling.x_shift, scaling.y_shift), (*scaling.x_scale, scaling.y_scale)
    for name, shift, scale in zip(names, shifts, scales, strict=True):
        if not (abs(shift) < MAX_SCALE and MIN_SCALE < scale < MAX_SCALE):
            raise DomainError(
                f"column {name!r} must have a mean below {MAX_SCALE:g} and a standard deviation between {MIN_SCALE:g} "
                f"and {MAX_SCALE:g}, got {shift:g} and {scale:g}; write it in other units"
            )


def learned_scalings(
    prior: Prior,
    x: Array,
    y: Array,
    transforms: Sequence[TargetTransform],
    counts: Tensor | None = None,
    *,
    countable: bool = True,
    standardise: str = "both",
) -> tuple[Scaling, ...]:
    """Scaling of each output, from the distinct rows: a weight and a repetition then agree to the last bit.

    Args:
        prior: whose kernel says which columns hold codes.
        x: shape (n, d).
        y: shape (n, p), of every output after its transform; NaN where a cell is missing.
        transforms: of the outputs.
        counts: shape (n,), how often each row counts; None for once.
        countable: whether equal rows may be joined.
        standardise: "both", "x", "y" or "none".
    """
    weight, within = None if counts is None else counts.numpy(), None
    missing = np.isnan(y).any()
    if countable and not missing:
        rows_x, rows_y = torch.from_numpy(x), torch.from_numpy(y if prior.outputs is not None else y[:, 0])
        group = equal_rows(prior, rows_x, rows_y)
        if group is not None:
            rows = join(prior, rows_x, rows_y, group)
            means = rows.y.reshape(len(rows.y), -1).numpy()
            squares = np.square(y - means[group.numpy()])
            within = (squares if weight is None else weight[:, None] * squares).sum(axis=0)
            assert rows.likelihood.counts is not None
            x, y, weight = rows.x.numpy(), means, rows.likelihood.counts.numpy()
    of_x, of_y = units_of_inputs(x, weight, prior.kernel, standardise), ColumnScaling.identity(y.shape[1])
    if standardise in ("both", "y"):
        of_y = ColumnScaling.of_present(y) if missing else ColumnScaling.of(y, weight, within)
    # A constant target says nothing about spread; its own size is the only scale there is.
    size = np.where(of_y.constant & (of_y.offset != 0), np.abs(of_y.offset), of_y.scale)
    shift, scale = tuple(of_x.offset.tolist()), tuple(of_x.scale.tolist())
    return tuple(
        Scaling(shift, scale, *of_one) for of_one in zip(of_y.offset.tolist(), size.tolist(), transforms, strict=True)
    )


def units_of_inputs(x: Array, weight: Array | None, kernel: Kernel, standardise: str) -> ColumnScaling:
    """Scaling of the columns of X; those that hold integer codes for this kernel stay as they are."""
    if standardise not in ("both", "x"):
        return ColumnScaling.identity(x.shape[1])
    return ColumnScaling.of(x, weight).keeping(_code_columns(kernel, x.shape[1]))


def _code_columns(kernel: Kernel, columns: int) -> list[int]:
    """The columns of x that hold integer codes for this kernel."""
    if isinstance(kernel, Warped):
        return []  # what its parts see is the module's
    if kernel.parts:
        return sorted({c for part in kernel.parts for c in _code_columns(part, columns)})
    if "match" not in kernel.form.statistics:
        return []
    dims = getattr(kernel, "active_dims", None)
    return list(range(columns)) if dims is None else [c % columns for c in dims]
