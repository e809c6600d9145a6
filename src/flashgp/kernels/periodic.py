"""The periodic covariance function, eq. (M-10), and the cosine, eq. (M-11): distances and products on the circle."""

import math
from collections.abc import Sequence
from typing import Any

import numpy
import torch
from torch import Tensor

from flashgp.foundations.expression import Expression, exp, product, squared_distance
from flashgp.foundations.parameters import Domain
from flashgp.kernels.base import Leaf, Numeric, SmallFeatures
from flashgp.kernels.random_features import Draw, Term, fourier


class Periodic(Leaf):
    """exp(-2 sum_k sin^2(pi (x_k - x'_k) / period_k) / lengthscale_k^2), eq. (M-10).

    The features are (cos, sin)(2 pi x / period) / lengthscale, whose squared distance is 4 sin^2(...) / lengthscale^2.

    Args:
        period: positive; a number, (d,) or (*batch, 1 or d); units of x.
        lengthscale: positive; a number, (d,) or (*batch, 1 or d); no unit.
        active_dims: the columns of x it acts on; None for all.
    Source: MacKay (1998), Introduction to Gaussian processes, eq. 47.

    Example:
        >>> x = torch.tensor([[0.0], [0.5], [2.0]])
        >>> fgp.kernels.Periodic(period=2.0)(x).to_dense().detach()[0]
        tensor([1.0000, 0.3679, 1.0000])
    """

    roles = {"period": "period", "lengthscale": "shape"}

    def __init__(
        self,
        period: Numeric = 1.0,
        lengthscale: Numeric = 1.0,
        active_dims: Sequence[int] | int | None = None,
    ) -> None:
        super().__init__(active_dims)
        self.period = self._parameter(period, "period", Domain(lower=0.0), event_dim=None)
        self.lengthscale = self._parameter(lengthscale, "lengthscale", Domain(lower=0.0), event_dim=None)

    @property
    def profile(self) -> Expression:
        return exp(-squared_distance() / 2)

    statistics = ("distance",)

    def _features(self, x: Tensor) -> tuple[Tensor, ...]:
        angle = x * (2.0 * math.pi / self.period.column().to(x.device))
        scale = self.lengthscale.column().to(x.device)
        return (torch.cat([angle.cos() / scale, angle.sin() / scale], dim=-1),)

    def small_features(self, x: Any, values: dict[str, Any]) -> SmallFeatures:
        period, scale = values["period"], values["lengthscale"]
        angle = x * (2.0 * math.pi / period)
        cosine, sine = numpy.cos(angle) / scale, numpy.sin(angle) / scale

        def pull(gradients: Sequence[Any]) -> dict[str, Any]:
            by_cosine, by_sine = numpy.split(gradients[0], 2, axis=1)
            by_angle = by_sine * cosine - by_cosine * sine
            return {
                "period": self._per_column(by_angle * angle, period) / -period,
                "lengthscale": self._per_column(by_cosine * cosine + by_sine * sine, scale) / -scale,
            }

        return [numpy.concatenate([cosine, sine], axis=1)], pull

    def feature_terms(self, x: Tensor, draw: Draw) -> list[Term]:
        """Terms of the squared exponential on the circle, eq. (M-91)."""
        return [fourier(self.rows(x).features[0], draw)]


class Cosine(Leaf):
    """cos(2 pi w . (x - x')), eq. (M-11): positive definite in every dimension, of rank two.

    Args:
        frequency: w; a number (the same for every column), (d,) or (*batch, 1 or d); cycles per unit of x.
        active_dims: the columns of x it acts on; None for all.

    Example:
        >>> x = torch.tensor([[0.0], [0.5], [1.0]])
        >>> fgp.kernels.Cosine(frequency=1.0)(x).to_dense().detach()[0]
        tensor([ 1., -1.,  1.])
    """

    roles = {"frequency": "frequency"}

    def __init__(self, frequency: Numeric = 1.0, active_dims: Sequence[int] | int | None = None) -> None:
        super().__init__(active_dims)
        self.frequency = self._parameter(frequency, "frequency", Domain(), event_dim=None)

    @property
    def profile(self) -> Expression:
        return product()

    statistics = ("product",)

    def _features(self, x: Tensor) -> tuple[Tensor, ...]:
        angle = 2.0 * math.pi * (x * self.frequency.column().to(x.device)).sum(-1, keepdim=True)
        return (torch.cat([angle.cos(), angle.sin()], dim=-1),)

    def small_features(self, x: Any, values: dict[str, Any]) -> SmallFeatures:
        frequency = values["frequency"]
        angle = 2.0 * math.pi * (x * frequency).sum(1, keepdims=True)
        cosine, sine = numpy.cos(angle), numpy.sin(angle)

        def pull(gradients: Sequence[Any]) -> dict[str, Any]:
            by_cosine, by_sine = numpy.split(gradients[0], 2, axis=1)
            by_angle = by_sine * cosine - by_cosine * sine
            return {"frequency": self._per_column(2.0 * math.pi * by_angle * x, frequency)}

        return [numpy.concatenate([cosine, sine], axis=1)], pull

    def feature_terms(self, x: Tensor, draw: Draw) -> list[Term]:
        return [Term(exact=self.rows(x).features[0])]
