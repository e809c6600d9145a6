"""The Matern covariance functions of half-integer smoothness, eqs. (M-6) to (M-8)."""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from flashgp.foundations.errors import DomainError
from flashgp.foundations.expression import Expression, distance, exp, square_root, squared_distance
from flashgp.kernels.base import Numeric
from flashgp.kernels.random_features import Draw, Term, fourier, gamma_quantile
from flashgp.kernels.squared_exponential import Stationary

WIDE = 0.25  # shape of the gamma distribution that half of the frequencies come from


class Matern(Stationary):
    """Matern covariance of smoothness nu = 1/2, 3/2 or 5/2, eqs. (M-6), (M-7), (M-8); r in units of the lengthscale.

        exp(-r),   (1 + sqrt(3) r) exp(-sqrt(3) r),   (1 + sqrt(5) r + 5/3 r^2) exp(-sqrt(5) r)

    Args:
        nu: 0.5, 1.5 or 2.5; samples are continuous, once or twice differentiable.
        lengthscale: positive; a number, or a tensor (d,) for one per column (ARD), or (*batch, 1 or d); units of x.
        active_dims: the columns of x it acts on; None for all.

    Raises:
        DomainError: for another nu.
    Source: Rasmussen & Williams (2006), eq. 4.17.

    Example:
        >>> x = torch.tensor([[0.0], [1.0]])
        >>> fgp.kernels.Matern(nu=1.5, lengthscale=2.0)(x).to_dense().detach()
        tensor([[1.0000, 0.7849],
                [0.7849, 1.0000]])
    """

    def __init__(
        self, nu: float = 2.5, lengthscale: Numeric = 1.0, active_dims: Sequence[int] | int | None = None
    ) -> None:
        super().__init__(lengthscale, active_dims)
        if getattr(nu, "ndim", 0) != 0 or nu not in (0.5, 1.5, 2.5):
            raise DomainError(f"`nu` must be 0.5, 1.5 or 2.5, got {nu!r}; use SquaredExponential for nu = infinity")
        self.nu = float(nu)

    @property
    def profile(self) -> Expression:
        r, q = distance(), squared_distance()
        if self.nu == 0.5:
            return exp(-r)
        if self.nu == 1.5:
            return (1 + square_root(3) * r) * exp(-square_root(3) * r)
        return (1 + square_root(5) * r + Fraction(5, 3) * q) * exp(-square_root(5) * r)

    def feature_terms(self, x: Tensor, draw: Draw) -> list[Term]:
        """Frequencies follow a multivariate t distribution with 2 nu degrees of freedom, eq. (M-91).

        Half of them are drawn with 1/2 degree of freedom instead, and all weighted: what data leave uncertain are high
        frequencies, of which the distribution itself would give none or one.
        """
        return [fourier(self.rows(x).features[0], draw, self._mixing)]

    def _mixing(self, u: Tensor) -> tuple[Tensor, Tensor]:
        wide = u >= 0.5
        shape = torch.where(wide, WIDE, self.nu).to(u)
        g = gamma_quantile(shape, 2.0 * u - wide.to(u))
        ratio = g ** (WIDE - self.nu) * (math.gamma(self.nu) / math.gamma(WIDE))  # of the wide density to the other
        return self.nu / g, (0.5 + 0.5 * ratio).rsqrt()

    def options(self) -> dict[str, Any]:
        return {"nu": self.nu}
