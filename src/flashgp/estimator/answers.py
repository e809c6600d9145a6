"""What brings numbers of a prediction in standard units to what a user of the estimator gets."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from flashgp.inference.predict.prediction import Prediction
from flashgp.target_transform import WarpedNormal
from flashgp.units import Units

Array = npt.NDArray[np.floating[Any]]


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
                return mean, self(joint if self.outputs is None else _of_each(joint, self.outputs), power=2)
            return mean
        distributions = self.distributions(prediction, latent)
        mean = self._shaped([one.mean for one in distributions])
        if return_std:
            return mean, self._shaped([one.std for one in distributions])
        if return_cov:
            joint = prediction.covariance(observed=not latent)
            each = self._placed(_of_each(joint, self.outputs or 1).detach().cpu().double().numpy(), (0, 1))
            triples = zip(distributions, np.moveaxis(each, -1, 0), self.units.y.scale, strict=True)
            return mean, self._shaped([one.covariance(joint * scale**2) for one, joint, scale in triples])
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


def _of_each(joint: Tensor, outputs: int) -> Tensor:
    """Joint covariances, (n, n) that outputs share or (outputs, n, n), as (n, n, outputs)."""
    return joint.movedim(0, -1) if joint.dim() == 3 else joint.unsqueeze(-1).expand(*joint.shape, outputs)
