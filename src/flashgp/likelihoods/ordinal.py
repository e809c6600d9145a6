"""The ordinal likelihood: levels in an order, such as ratings, by thresholds of f with logistic noise, eq. (M-283)."""

from typing import Any

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from flashgp.foundations.checks import check_count
from flashgp.foundations.errors import ShapeError
from flashgp.foundations.estimate import Measure
from flashgp.foundations.parameters import POSITIVE, Domain, as_parameter
from flashgp.foundations.usual_names import usual_names_refused
from flashgp.likelihoods.levels import Levels
from flashgp.likelihoods.logistic import expected_log_sigmoid, log_expected_sigmoid
from flashgp.likelihoods.non_gaussian import NonGaussian

log_sigmoid = torch.nn.functional.logsigmoid


class Ordinal(NonGaussian):
    """y of 0 to levels - 1: the number of thresholds below f with logistic noise. Everything is in closed form.

    Args:
        levels: how many, at least 3; for two use Bernoulli(link="logit").
        lowest: the first threshold, a number or Parameter, trained by `fit`; by default thresholds are such that all
            levels are alike at f = 0.
        gaps: from each threshold to the next, (levels - 2,), positive, or Parameter; trained by `fit`.
        row_weight: (n,) of the training rows, 0 or more: log p of a row counts that often. None for 1.

    Example:
        >>> likelihood = fgp.likelihoods.Ordinal(3, lowest=-1.0, gaps=[2.0])
        >>> likelihood.thresholds.detach()
        tensor([-1.,  1.], dtype=torch.float64)
        >>> likelihood.predictive(torch.zeros(1), torch.zeros(1)).probability.detach()
        tensor([[0.2689, 0.4621, 0.2689]], dtype=torch.float64)
    """

    discrete = True
    measure = Measure.LOG_LOSS
    roles = {"lowest": "threshold", "gaps": "gap"}
    advice = "number the levels from 0 in their order"

    @usual_names_refused
    def __init__(self, levels: int, lowest: Any = None, gaps: Any = None, row_weight: Any = None) -> None:
        super().__init__(row_weight)
        self.levels = check_count(levels, "levels", 3)
        even = torch.logit(torch.arange(1.0, self.levels, dtype=torch.float64) / self.levels)
        self.lowest = as_parameter(even[0] if lowest is None else lowest, Domain(), "lowest")
        self.gaps = as_parameter(even.diff() if gaps is None else gaps, POSITIVE, "gaps", event_dim=1)
        if self.gaps.raw.shape != (self.levels - 2,):
            raise ShapeError(
                f"`gaps` must have shape ({self.levels - 2},) with levels={self.levels}, got "
                f"{tuple(self.gaps.raw.shape)}; pass one from each threshold to the next"
            )

    @property
    def wanted(self) -> str:  # type: ignore[override]
        return f"a whole number from 0 to {self.levels - 1}"

    @property
    def thresholds(self) -> Float64[Tensor, "thresholds"]:
        """Increasing, (levels - 1,)."""
        return torch.cat([torch.zeros_like(self.lowest.value)[None], self.gaps.value.cumsum(-1)]) + self.lowest.value

    def allowed(self, y: Tensor, **numbers: Tensor) -> Bool[Tensor, "..."]:
        return (y >= 0.0) & (y < self.levels) & (y == y.floor())

    def log_prob(self, y: Float[Tensor, "..."], f: Float[Tensor, "..."], **numbers: Tensor) -> Float[Tensor, "..."]:
        below, above = self._around(y)
        return self._between(y, log_sigmoid(f - below), log_sigmoid(above - f))

    def expected(
        self, y: Float[Tensor, "..."], mean: Float[Tensor, "..."], variance: Float[Tensor, "..."], **numbers: Tensor
    ) -> Float64[Tensor, "..."]:
        below, above = self._around(y)
        parts = expected_log_sigmoid(mean - below, variance), expected_log_sigmoid(above - mean, variance)
        return self._between(y, *parts)

    def _around(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """The thresholds below and above a level; the next one of the first and of the last."""
        each, level = self.thresholds, y.long()
        return each[(level - 1).clamp_min(0)], each[level.clamp_max(self.levels - 2)]

    def _between(self, y: Tensor, over: Tensor, under: Tensor) -> Tensor:
        """sigmoid(b - f) - sigmoid(a - f) = sigmoid(f - a) sigmoid(b - f) (1 - exp(a - b)), in logarithms."""
        within = (-(-self.gaps.value).expm1()).log()[(y.long() - 1).clamp(0, self.levels - 3)]
        first, last = y == 0.0, y == self.levels - 1.0
        return torch.where(first, under, torch.where(last, over, over + under + within))

    def predictive(self, mean: Float[Tensor, "..."], variance: Float[Tensor, "..."], **numbers: Tensor) -> Levels:
        apart = self.thresholds - mean.double().unsqueeze(-1)  # (*shape, levels - 1)
        variance = variance.double().unsqueeze(-1)
        below, above = log_expected_sigmoid(apart, variance), log_expected_sigmoid(-apart, variance)
        # the difference of two probabilities by those that are small
        low = below[..., 1:] + _log1mexp(below[..., :-1] - below[..., 1:])
        high = above[..., :-1] + _log1mexp(above[..., 1:] - above[..., :-1])
        inner = torch.where(apart[..., 1:] + apart[..., :-1] < 0.0, low, high)
        return Levels(torch.cat([below[..., :1], inner, above[..., -1:]], dim=-1))

    def structure(self) -> dict[str, Any]:
        return super().structure() | {"levels": self.levels}


def _log1mexp(x: Tensor) -> Tensor:
    """log(1 - exp(x)) of negative x."""
    return (-x.expm1()).log()
