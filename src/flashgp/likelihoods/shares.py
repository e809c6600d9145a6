"""Likelihoods of positive numbers and of shares between 0 and 1: Gamma and Beta, eq. (M-281)."""

from typing import Any

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from flashgp.foundations.parameters import POSITIVE, Parameter, as_parameter
from flashgp.foundations.usual_names import usual_names_refused
from flashgp.likelihoods.counts import QUARTER_TURN
from flashgp.likelihoods.logistic import log_expected_sigmoid, variances_of_sigmoid
from flashgp.likelihoods.non_gaussian import NonGaussian, random_numbers, special
from flashgp.likelihoods.quadrature import Analytic


class Gamma(NonGaussian):
    """Positive y of mean e^f and variance mean^2 / shape.

    Args:
        shape: positive number or Parameter, trained by `fit`; 1 is an exponential distribution.
        row_weight: (n,) of the training rows, 0 or more: log p of a row counts that often. None for 1.

    Example:
        >>> y = fgp.likelihoods.Gamma(4.0).predictive(torch.zeros(1), torch.zeros(1))
        >>> y.mean, y.variance.detach()
        (tensor([1.], dtype=torch.float64), tensor([0.2500], dtype=torch.float64))
    """

    roles = {"shape": "concentration"}
    strip = QUARTER_TURN
    wanted, advice = "positive", "leave rows of 0 out, or use Poisson or NegativeBinomial for counts"

    @usual_names_refused
    def __init__(self, shape: float | Tensor | Parameter = 1.0, row_weight: Any = None) -> None:
        super().__init__(row_weight)
        self.shape = as_parameter(shape, POSITIVE, "shape")

    def allowed(self, y: Tensor, **numbers: Tensor) -> Bool[Tensor, "..."]:
        return y > 0.0

    def from_line(self, z: Tensor, **numbers: Tensor) -> Tensor:
        return z.exp()

    def log_prob(self, y: Float[Tensor, "..."], f: Float[Tensor, "..."], **numbers: Tensor) -> Float[Tensor, "..."]:
        return self._by_mean(y, f, (y.log() - f).exp())

    def expected(
        self, y: Float[Tensor, "..."], mean: Float[Tensor, "..."], variance: Float[Tensor, "..."], **numbers: Tensor
    ) -> Float64[Tensor, "..."]:
        return self._by_mean(y, mean, (y.log() - mean + 0.5 * variance).exp())

    def _by_mean(self, y: Tensor, f: Tensor, ratio: Tensor) -> Tensor:
        a = self.shape.value
        return a * (a.log() + y.log() - f - ratio) - y.log() - a.lgamma()

    def observation_mean(self, mean: Tensor, variance: Tensor, **numbers: Tensor) -> Tensor:
        return (mean + 0.5 * variance).exp()

    def observation_variance(self, mean: Tensor, variance: Tensor, **numbers: Tensor) -> Tensor:
        return (2.0 * mean + variance).exp() * (variance.expm1() + variance.exp() / self.shape.value)

    def cdf(self, y: Tensor, f: Tensor, **numbers: Tensor) -> Tensor:
        a = self.shape.value.detach()
        return special("gammainc", a.expand(f.shape), a * (y.log() - f).exp())

    def draw(self, f: Tensor, generator: torch.Generator, **numbers: Tensor) -> Tensor:
        a = float(self.shape)
        return f.exp() * torch.from_numpy(random_numbers(generator).standard_gamma(a, tuple(f.shape))).to(f.device) / a


class Beta(NonGaussian):
    """Shares y between 0 and 1, of mean 1 / (1 + exp(-f)) and variance mean (1 - mean) / (1 + precision).

    Not log-concave in f: sites of rows that are far off have next to no precision.

    Args:
        precision: positive number or Parameter, trained by `fit`.
        row_weight: (n,) of the training rows, 0 or more: log p of a row counts that often. None for 1.

    Example:
        >>> y = fgp.likelihoods.Beta(3.0).predictive(torch.zeros(1), torch.zeros(1))
        >>> y.mean, y.variance.detach()
        (tensor([0.5000], dtype=torch.float64), tensor([0.0625], dtype=torch.float64))
    """

    log_concave = False
    roles = {"precision": "concentration"}
    strip = QUARTER_TURN
    wanted = "more than 0 and less than 1"
    advice = "move shares of exactly 0 or 1 inwards by half of what they are rounded to, or use Binomial for counts"

    @usual_names_refused
    def __init__(self, precision: float | Tensor | Parameter = 10.0, row_weight: Any = None) -> None:
        super().__init__(row_weight)
        self.precision = as_parameter(precision, POSITIVE, "precision")

    def allowed(self, y: Tensor, **numbers: Tensor) -> Bool[Tensor, "..."]:
        return (y > 0.0) & (y < 1.0)

    def where(self, y: Tensor, **numbers: Tensor) -> Analytic:
        """log Gamma(precision sigmoid(f)) has its poles at f = log(k / (k + precision)) + pi i."""
        return Analytic(torch.pi, 0.0, self.precision.value.detach().log1p())

    def from_line(self, z: Tensor, **numbers: Tensor) -> Tensor:
        return torch.sigmoid(z)

    def log_prob(self, y: Float[Tensor, "..."], f: Float[Tensor, "..."], **numbers: Tensor) -> Float[Tensor, "..."]:
        whole = self.precision.value
        # log Gamma(x) = log Gamma(1 + x) - log x, so that a mean that underflows has a logarithm
        odds = torch.nn.functional.logsigmoid(f), torch.nn.functional.logsigmoid(-f)
        one, other = (whole * part.exp() for part in odds)
        spread = (1.0 + one).lgamma() + (1.0 + other).lgamma() - odds[0] - odds[1] - 2.0 * whole.log()
        return whole.lgamma() - spread + (one - 1.0) * y.log() + (other - 1.0) * torch.log1p(-y)

    def observation_mean(self, mean: Tensor, variance: Tensor, **numbers: Tensor) -> Tensor:
        return log_expected_sigmoid(mean, variance).exp()

    def observation_variance(self, mean: Tensor, variance: Tensor, **numbers: Tensor) -> Tensor:
        within, between = variances_of_sigmoid(mean, variance)
        return within / (1.0 + self.precision.value) + between

    def cdf(self, y: Tensor, f: Tensor, **numbers: Tensor) -> Tensor:
        whole = self.precision.value.detach()
        return special("betainc", whole * torch.sigmoid(f), whole * torch.sigmoid(-f), y.expand(f.shape))

    def draw(self, f: Tensor, generator: torch.Generator, **numbers: Tensor) -> Tensor:
        whole, random = float(self.precision), random_numbers(generator)
        one, other = ((whole * torch.sigmoid(sign * f)).clamp_min(1e-300).cpu().numpy() for sign in (1.0, -1.0))
        return torch.as_tensor(random.beta(one, other), dtype=torch.float64, device=f.device)
