"""The standard units of an estimator: what its columns and targets are shifted and divided by, and the way back.

`Units` are learned from training rows; `Answers` brings numbers of a prediction to what the user gets. Does not do:
the choice of a transform of the target (`flashgp.target_choice`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from flashgp.inference.predict.prediction import Prediction
from flashgp.inference.prior import Prior
from flashgp.inference.replicates import equal_rows, join
from flashgp.kernels import Kernel, Warped
from flashgp.standardise import ColumnScaling, Scaling
from flashgp.target_transform import TargetTransform, WarpedNormal

__all__ = ["Answers", "Units", "units_of_inputs"]

Array = npt.NDArray[np.floating[Any]]
_Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Units:
    """Fields: x, of every column of X; y, of every output after its transform; transforms, one for each output."""

    x: ColumnScaling
    y: ColumnScaling
    transforms: tuple[TargetTransform, ...]

    @classmethod
    def identity(cls, columns: int) -> "Units":
        """Those of an estimator without data, with one output."""
        return cls(ColumnScaling.identity(columns), ColumnScaling.identity(1), (TargetTransform(),))

    @classmethod
    def learn(
        cls,
        prior: Prior,
        x: _Numbers,
        y: _Numbers,
        transforms: tuple[TargetTransform, ...],
        counts: Tensor | None,
        *,
        countable: bool,
        standardise: str,
    ) -> "Units":
        """From the distinct rows: a weight and a repetition then agree to the last bit.

        Args:
            prior: whose kernel says which columns hold codes.
            x: shape (n, d).
            y: shape (n, p), of every output after its transform.
            transforms: of the outputs.
            counts: shape (n,), how often each row counts; None for once.
            countable: whether equal rows may be joined.
            standardise: "both", "x", "y" or "none".
        """
        weight, within = None if counts is None else counts.numpy(), None
        if countable:
            rows_x, rows_y = torch.from_numpy(x), torch.from_numpy(y if prior.outputs is not None else y[:, 0])
            group = equal_rows(prior, rows_x, rows_y)
            if group is not None:
                rows = join(prior, rows_x, rows_y, group)
                means = rows.y.reshape(len(rows.y), -1).numpy()
                squares = np.square(y - means[group.numpy()])
                within = (squares if weight is None else weight[:, None] * squares).sum(axis=0)
                assert rows.likelihood.counts is not None
                x, y, weight = rows.x.numpy(), means, rows.likelihood.counts.numpy()
        of_x = units_of_inputs(x, weight, prior.kernel, standardise)
        if standardise not in ("both", "y"):
            return cls(of_x, ColumnScaling.identity(y.shape[1]), transforms)
        of_y = ColumnScaling.of(y, weight, within)
        # A constant target says nothing about spread; its own size is the only scale there is.
        size = np.where(of_y.constant & (of_y.offset != 0), np.abs(of_y.offset), of_y.scale)
        return cls(of_x, ColumnScaling(of_y.offset, size, of_y.constant), transforms)

    @property
    def warped(self) -> bool:
        """Whether any output has a transform."""
        return not all(transform.identity for transform in self.transforms)

    def scalings(self) -> tuple[Scaling, ...]:
        """As values that print and are kept in files, one for each output."""
        shift, scale = tuple(self.x.offset.tolist()), tuple(self.x.scale.tolist())
        outputs = zip(self.y.offset.tolist(), self.y.scale.tolist(), self.transforms, strict=True)
        return tuple(Scaling(shift, scale, *output) for output in outputs)


def units_of_inputs(x: _Numbers, weight: _Numbers | None, kernel: Kernel, standardise: str) -> ColumnScaling:
    """Of the columns of X; those that hold integer codes for this kernel stay as they are."""
    if standardise not in ("both", "x"):
        return ColumnScaling.identity(x.shape[1])
    return ColumnScaling.of(x, weight).keeping(_code_columns(kernel, x.shape[1]))


@dataclass(frozen=True, eq=False)
class Answers:
    """Numbers in standard units to what the user gets: units of y, dtype of X, NaN for rows without all values.

    Fields:
        units: of the estimator.
        outputs: columns of y; None where y is a vector.
        dtype: of X.
        present: which of the rows passed were predicted; None for all.
    """

    units: Units
    outputs: int | None
    dtype: npt.DTypeLike
    present: npt.NDArray[np.bool_] | None

    def __call__(self, values: Tensor, power: int = 0, inverse: bool = False) -> Array:
        """Values (..., n) or (..., n, p): of T(y) itself (power 0), a deviation (1), or a covariance (2) of two rows.

        With `inverse` of y itself.
        """
        array = values.detach().cpu().numpy()
        array = array if self.outputs is not None else array[..., None]
        array = self._scaled(array, power)
        if inverse:
            columns = zip(self.units.transforms, np.moveaxis(array, -1, 0), strict=True)
            array = np.stack([transform.inverse(column) for transform, column in columns], axis=-1)
        array = self._placed(array, (-3, -2) if power == 2 else (-2,))
        return (array if self.outputs is not None else array[..., 0]).astype(self.dtype)

    def moments(
        self, prediction: Prediction, latent: bool, return_std: bool, return_cov: bool
    ) -> Array | tuple[Array, Array]:
        """Mean, and on request deviation or covariance; of a transformed y by quadrature, eq. (M-142)."""
        if not self.units.warped:
            mean = self(prediction.mean)
            if return_std:
                return mean, self((prediction.variance if latent else prediction.observation_variance).sqrt(), power=1)
            if return_cov:
                joint = prediction.covariance(observed=not latent)
                each = joint if self.outputs is None else joint.unsqueeze(-1).expand(*joint.shape, self.outputs)
                return mean, self(each, power=2)
            return mean
        distributions = self.distributions(prediction, latent)
        mean = self._shaped([one.mean for one in distributions])
        if return_std:
            return mean, self._shaped([one.std for one in distributions])
        if return_cov:
            joint = prediction.covariance(observed=not latent)
            shared = self._placed(joint.detach().cpu().double().numpy(), (0, 1))
            pairs = zip(distributions, self.units.y.scale, strict=True)
            return mean, self._shaped([one.covariance(shared * scale**2) for one, scale in pairs])
        return mean

    def distributions(self, prediction: Prediction, latent: bool) -> tuple[WarpedNormal, ...]:
        """Distributions of y, one for each output, NaN for rows without all values."""
        variance = prediction.variance if latent else prediction.observation_variance
        location, spread = (
            self._placed(self._scaled(values.detach().cpu().double().numpy().reshape(len(values), -1), power), (0,))
            for values, power in ((prediction.mean, 0), (variance.sqrt(), 1))
        )
        return tuple(WarpedNormal(location[:, j], spread[:, j], one) for j, one in enumerate(self.units.transforms))

    def _scaled(self, array: Any, power: int) -> Any:
        return array * self.units.y.scale**power if power else self.units.y.undo(array)

    def _shaped(self, columns: Sequence[Array]) -> Array:
        """Columns of the outputs the way the user wants them."""
        return (columns[0] if self.outputs is None else np.stack(columns, axis=-1)).astype(self.dtype)

    def _placed(self, array: Any, axes: tuple[int, ...]) -> Any:
        """The rows along these axes in their places, NaN in between."""
        if self.present is None:
            return array
        for axis in axes:
            moved = np.moveaxis(array, axis, 0)
            full = np.full((len(self.present), *moved.shape[1:]), np.nan)
            full[self.present] = moved
            array = np.moveaxis(full, 0, axis)
        return array


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
