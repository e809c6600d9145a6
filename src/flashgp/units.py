"""Standard units: what columns are shifted and divided by, learned from training rows.

`ColumnScaling` holds any number of columns as arrays; `Scaling` is that of the inputs beside one target
(`flashgp.targets`), which a model file keeps. Its JSON form comes back from untrusted files, so reading it checks
every number. Does not do: the choice of a transform (`flashgp.choices`).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from flashgp.foundations.errors import DomainError, ShapeError
from flashgp.foundations.json_values import json_fields, refused
from flashgp.inference.prior import Prior
from flashgp.inference.replicates import equal_rows, join
from flashgp.inference.training.initial import in_one_unit
from flashgp.kernels import Kernel, Warped
from flashgp.targets import MAX_SCALE, MIN_SCALE, Target, number

Array = npt.NDArray[np.float64]

# Fields of a target by the version of a file; the oldest that holds it is written.
_OF_TARGET = {1: ("y_shift", "y_scale"), 2: ("y_shift", "y_scale", "transform"), 3: ("target",)}
_CONSTANT_ROUNDINGS = 1e3  # a column whose spread is below so many roundings of its largest entry is constant


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

    def in_one_unit(self, columns: npt.NDArray[np.bool_]) -> "ColumnScaling":
        """The map with one shift and scale for those of these columns, (columns,) of bool, that vary: from their
        mean and the mean square of their deviations."""
        varying, offset, scale = columns & ~self.constant, self.offset.copy(), self.scale.copy()
        largest = scale[varying].max()  # whose square may not be held
        offset[varying] = offset[varying].mean()
        scale[varying] = largest * np.sqrt(np.square(scale[varying] / largest).mean())
        return ColumnScaling(offset, scale, self.constant)

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
    """standardised = (value - shift) / scale, column by column of x; and the target.

    Takes NumPy arrays and torch tensors alike and returns what it was given; a transform takes and returns arrays. A
    column that does not vary (beyond rounding) is only shifted; a target that does not is scaled by its size.

    Fields:
        x_shift, x_scale: one number per column; scales are positive.
        target: what a likelihood gets for y, and answers in its units.
    """

    x_shift: tuple[float, ...]
    x_scale: tuple[float, ...]
    target: Target

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
        """Targets as the likelihood takes them. Raises: DomainError naming the first that cannot be."""
        self.target.check(y)
        return self.target.encode(y)

    def to_json(self) -> dict[str, Any]:
        """JSON values; `from_json` gives an equal object back."""
        units = {"x_shift": list(self.x_shift), "x_scale": list(self.x_scale)}
        return {"version": self.target.version, **units, **self.target.to_json()}

    @staticmethod
    def from_json(data: object) -> "Scaling":
        """Read what `to_json` wrote, from a file that may be hostile.

        Raises:
            ModelFileError: naming the first field that is absent, unknown, or no finite (positive) number.
        """
        version = data.get("version") if isinstance(data, dict) else None
        of_y = _OF_TARGET.get(version, _OF_TARGET[1]) if type(version) is int else _OF_TARGET[1]
        fields = json_fields(data, "scaling", ("version", "x_shift", "x_scale", *of_y))
        if type(version) is not int or version not in _OF_TARGET:
            raise refused("scaling.version", " or ".join(map(str, _OF_TARGET)), version)
        x_shift, x_scale = _numbers(fields["x_shift"], "x_shift"), _numbers(fields["x_scale"], "x_scale", positive=True)
        if len(x_shift) != len(x_scale) or not x_shift:
            raise refused("scaling.x_scale", "as many numbers as x_shift, at least one", fields["x_scale"])
        return Scaling(x_shift, x_scale, Target.from_json({name: fields[name] for name in of_y}))


def _like(numbers: Sequence[float], array: Any) -> Any:
    """Numbers as an array of the same library, dtype and device."""
    if hasattr(array, "new_tensor"):
        return array.new_tensor(numbers)
    return np.asarray(numbers, dtype=np.float64)


def _numbers(values: Any, name: str, positive: bool = False) -> tuple[float, ...]:
    if not isinstance(values, list):
        raise refused(f"scaling.{name}", "numbers", values)
    return tuple(number(value, name, positive) for value in values)


def check_scales(scaling: Scaling, names: Sequence[str]) -> None:
    """Raises: DomainError naming the column whose size is beyond what squares of float64 hold.

    Args: names, of the inputs and of the target behind them.
    """
    of_y = scaling.target.sizes
    shifts, scales = (*scaling.x_shift, of_y[0]), (*scaling.x_scale, of_y[1])
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
    targets: Sequence[Target],
    counts: Tensor | None = None,
    *,
    countable: bool = True,
    standardise: str = "both",
) -> tuple[Scaling, ...]:
    """Scaling of each output, from the distinct rows: a weight and a repetition then agree to the last bit.

    Args:
        prior: whose kernel says which columns hold codes.
        x: shape (n, d).
        y: shape (n, p), of every output as `Target.plain`; NaN where a cell is missing.
        targets: the outputs, whose units are learned.
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
        Scaling(shift, scale, target.in_units(*units))
        for target, *units in zip(targets, of_y.offset.tolist(), size.tolist(), strict=True)
    )


def units_of_inputs(x: Array, weight: Array | None, kernel: Kernel, standardise: str) -> ColumnScaling:
    """`scaling_of_inputs`, where they are standardised, with the columns that hold integer codes for this kernel."""
    if standardise not in ("both", "x"):
        return ColumnScaling.identity(x.shape[1])
    return scaling_of_inputs(x, weight, _code_columns(kernel, x.shape[1]))


def scaling_of_inputs(x: Array, weight: Array | None, codes: Sequence[int]) -> ColumnScaling:
    """Scaling of the columns of X, one for all where they are in one unit, (M-450); codes, columns of integer codes,
    stay as they are."""
    scaling = ColumnScaling.of(x, weight)
    numbers = np.isin(np.arange(x.shape[1]), list(codes), invert=True)
    if in_one_unit(torch.from_numpy(x[:, numbers]), torch.from_numpy(scaling.constant[numbers])):
        scaling = scaling.in_one_unit(numbers)
    return scaling.keeping(codes)


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
