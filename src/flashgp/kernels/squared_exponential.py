"""The squared exponential covariance function, eq. (M-5)."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from flashgp.foundations.expression import Expression, exp, squared_distance
from flashgp.foundations.parameters import Domain
from flashgp.kernels.base import Leaf, Numeric, SmallFeatures
from flashgp.kernels.random_features import Draw, Term, fourier


class Stationary(Leaf):
    """A function of the distance between x / lengthscale and x' / lengthscale, with unit variance.

    Args:
        lengthscale: positive; a number, or a tensor (d,) for one per column (ARD), or (*batch, 1 or d); units of x.
        active_dims: the columns of x it acts on; None for all.
    """

    roles = {"lengthscale": "input_scale"}

    def __init__(self, lengthscale: Numeric = 1.0, active_dims: Sequence[int] | int | None = None) -> None:
        super().__init__(active_dims)
        self.lengthscale = self._parameter(lengthscale, "lengthscale", Domain(lower=0.0), event_dim=None)

    statistics = ("distance",)

    def _features(self, x: Tensor) -> tuple[Tensor, ...]:
        return (x / self.lengthscale.column().to(x.device),)

    def small_features(self, x: Any, values: dict[str, Any]) -> SmallFeatures:
        scale = values["lengthscale"]
        scaled = x / scale

        def pull(gradients: Sequence[Any]) -> dict[str, Any]:
            return {"lengthscale": self._per_column(gradients[0] * scaled, scale) / -scale}

        return [scaled], pull


class SquaredExponential(Stationary):
    """exp(-q / 2) with q = |x - x'|^2 in units of the lengthscale, eq. (M-5). Samples are infinitely smooth.

    Args:
        lengthscale: positive; a number, or a tensor (d,) for one per column (ARD), or (*batch, 1 or d); units of x.
        active_dims: the columns of x it acts on; None for all.
    Source: Rasmussen & Williams (2006), eq. 4.9.

    Example:
        >>> x = torch.tensor([[0.0], [1.0]])
        >>> fgp.kernels.SquaredExponential(lengthscale=2.0)(x).to_dense().detach()
        tensor([[1.0000, 0.8825],
                [0.8825, 1.0000]])
    """

    @property
    def profile(self) -> Expression:
        return exp(-squared_distance() / 2)

    def feature_terms(self, x: Tensor, draw: Draw) -> list[Term]:
        return [fourier(self.rows(x).features[0], draw)]
