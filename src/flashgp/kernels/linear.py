"""Linear and polynomial covariance functions, eqs. (M-12) and (M-13): functions of an inner product."""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from flashgp.foundations.checks import check_count
from flashgp.foundations.expression import Expression, parameter, product
from flashgp.foundations.form import broadcast_batch
from flashgp.foundations.parameters import Domain, Parameter
from flashgp.kernels.base import Leaf, Numeric, SmallFeatures
from flashgp.kernels.random_features import Draw, Term


class Linear(Leaf):
    """sum_k variance_k x_k x'_k, eq. (M-12): Bayesian linear regression through the origin.

    Args:
        variance: positive; prior variance of the slopes, a number, (d,) or (*batch, 1 or d); units (y / x)^2.
        active_dims: the columns of x it acts on; None for all.

    Example:
        >>> x = torch.tensor([[1.0], [3.0]])
        >>> fgp.kernels.Linear(variance=0.5)(x).to_dense().detach()
        tensor([[0.5000, 1.5000],
                [1.5000, 4.5000]])
    """

    roles = {"variance": "slope_variance"}

    def __init__(self, variance: Numeric = 1.0, active_dims: Sequence[int] | int | None = None) -> None:
        super().__init__(active_dims)
        self.variance = self._parameter(variance, "variance", Domain(lower=0.0), event_dim=None)

    @property
    def profile(self) -> Expression:
        return product()

    statistics = ("product",)

    def _features(self, x: Tensor) -> tuple[Tensor, ...]:
        return (x * self.variance.column().to(x.device).sqrt(),)

    def feature_terms(self, x: Tensor, draw: Draw) -> list[Term]:
        return [Term(exact=self.rows(x).features[0])]

    def small_features(self, x: Any, values: dict[str, Any]) -> SmallFeatures:
        weighted = x * values["variance"] ** 0.5

        def pull(gradients: Sequence[Any]) -> dict[str, Any]:
            variance = values["variance"]
            return {"variance": self._per_column(gradients[0] * weighted, variance) / (2.0 * variance)}

        return [weighted], pull


class Polynomial(Linear):
    """(offset + sum_k variance_k x_k x'_k)^degree, eq. (M-13).

    Args:
        degree: positive integer.
        offset: positive number or (*batch,); weight of the lower orders.
        variance: positive; weight of each column, a number, (d,) or (*batch, 1 or d).
        active_dims: the columns of x it acts on; None for all.

    Raises:
        DomainError: for a degree that is not a positive integer.

    Example:
        >>> x = torch.tensor([[1.0], [3.0]])
        >>> fgp.kernels.Polynomial(degree=2, offset=1.0)(x).to_dense().detach()
        tensor([[  4.,  16.],
                [ 16., 100.]])
    """

    roles = {"offset": "shape", "variance": "slope_variance"}

    def __init__(
        self,
        degree: int = 2,
        offset: Numeric = 1.0,
        variance: Numeric = 1.0,
        active_dims: Sequence[int] | int | None = None,
    ) -> None:
        super().__init__(variance, active_dims)
        self.degree = check_count(degree, "degree", 1)
        self.offset = self._parameter(offset, "offset", Domain(lower=0.0))

    @property
    def profile(self) -> Expression:
        return (product() + parameter(0)) ** self.degree

    def feature_terms(self, x: Tensor, draw: Draw) -> list[Term]:
        """All monomials while they are no more than the random features, else products of projections, eq. (M-93)."""
        (u,) = self.rows(x).features
        root = self.offset.value.to(u.device).sqrt()[..., None, None]
        batch = broadcast_batch(u.shape[:-2], root.shape[:-2])
        u = torch.cat([u.expand(*batch, *u.shape[-2:]), root.expand(*batch, u.shape[-2], 1)], dim=-1)
        columns = u.shape[-1]
        if math.comb(columns - 1 + self.degree, self.degree) > 2 * draw.pairs:
            parts = [u @ draw.part(i).signs(columns).to(u.device) for i in range(self.degree)]
            return [Term(weights=torch.stack(parts).prod(0))]
        powers = torch.tensor(list(itertools.combinations_with_replacement(range(columns), self.degree)))
        repeats = [math.prod(map(math.factorial, Counter(p).values())) for p in powers.tolist()]
        scale = (math.factorial(self.degree) / torch.tensor(repeats, dtype=torch.float64)).sqrt()
        return [Term(exact=u[..., powers.to(u.device)].prod(-1) * scale.to(u.device))]

    def _profile_parameters(self) -> tuple[Parameter, ...]:
        return (self.offset,)

    def options(self) -> dict[str, Any]:
        return {"degree": self.degree}
