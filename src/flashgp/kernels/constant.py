"""The constant covariance function, eq. (M-14)."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from flashgp.foundations.expression import Expression, parameter
from flashgp.foundations.form import broadcast_batch
from flashgp.foundations.parameters import Domain, Parameter
from flashgp.kernels.kernel import Leaf, Numeric
from flashgp.kernels.random_features import Draw, Term

__all__ = ["Constant"]


class Constant(Leaf):
    """k(x, x') = variance, eq. (M-14): an unknown offset of that prior variance; written `k + 1.0`.

    Args:
        variance: positive number or (*batch,); units of y squared.
        active_dims: accepted for uniformity; it does not matter.
    """

    roles = {"variance": "output_variance"}
    per_column = frozenset()

    def __init__(self, variance: Numeric = 1.0, active_dims: Sequence[int] | int | None = None) -> None:
        super().__init__(active_dims)
        self.variance = self._parameter(variance, "variance", Domain(lower=0.0))

    @property
    def profile(self) -> Expression:
        return parameter(0)

    @property
    def statistics(self) -> tuple[str, ...]:
        return ()

    def _features(self, x: Tensor) -> tuple[Tensor, ...]:
        return ()

    def small_features(
        self, x: Any, values: dict[str, Any]
    ) -> tuple[list[Any], Callable[[Sequence[Any]], dict[str, Any]]]:
        return [], lambda gradients: {}

    def feature_terms(self, x: Tensor, draw: Draw) -> list[Term]:
        root = self.variance.value.to(x.device).sqrt()[..., None, None]
        batch = broadcast_batch(root.shape[:-2], x.shape[:-2])
        return [Term(exact=root.expand(*batch, x.shape[-2], 1))]

    def _profile_parameters(self) -> tuple[Parameter, ...]:
        return (self.variance,)
