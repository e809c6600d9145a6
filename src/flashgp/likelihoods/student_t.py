"""The Student t likelihood: y is f with independent noise that is now and then far off, eq. (M-282)."""

import math
from typing import Any

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from flashgp.foundations.estimate import Measure
from flashgp.foundations.normal import LOG_2PI, standard_quantile
from flashgp.foundations.parameters import POSITIVE, Domain, Parameter, as_parameter
from flashgp.foundations.usual_names import usual_names_refused
from flashgp.likelihoods.base import PredictiveDistribution
from flashgp.likelihoods.mixture import increasing_root
from flashgp.likelihoods.non_gaussian import NonGaussian, random_numbers
from flashgp.likelihoods.quadrature import DIGITS, Analytic

TAIL = 120.0  # twice the nats at which the density of precisions is left


class StudentT(NonGaussian):
    """y = f + scale t with t of a Student t distribution, in units of y: a few rows far off hardly move f.

    Not log-concave: the site of a row that is farther off than scale sqrt(degrees_of_freedom) has next to no precision.

    Args:
        degrees_of_freedom: more than 1, or Parameter; trained by `fit`.
        scale: positive number or Parameter, in units of y; trained by `fit`.
        row_weight: (n,) of the training rows, 0 or more: log p of a row counts that often. None for 1.

    Example:
        >>> y = fgp.likelihoods.StudentT(4.0, 0.5).predictive(torch.zeros(1), torch.ones(1))
        >>> y.variance.detach(), y.quantile(0.5).abs().detach() < 1e-9
        (tensor([1.5000], dtype=torch.float64), tensor([True]))
    """

    latent_is_y = True
    measure = Measure.SPREAD
    log_concave = False
    roles = {"degrees_of_freedom": "concentration", "scale": "noise_deviation"}
    wanted, advice = "a number", "leave that row out"

    @usual_names_refused
    def __init__(
        self,
        degrees_of_freedom: float | Tensor | Parameter = 4.0,
        scale: float | Tensor | Parameter = 0.3,
        row_weight: Any = None,
    ) -> None:
        super().__init__(row_weight)
        self.degrees_of_freedom = as_parameter(degrees_of_freedom, Domain(lower=1.0), "degrees_of_freedom")
        self.scale = as_parameter(scale, POSITIVE, "scale")

    def allowed(self, y: Tensor, **numbers: Tensor) -> Bool[Tensor, "..."]:
        return y.isfinite()

    def where(self, y: Tensor, **numbers: Tensor) -> Analytic:
        return Analytic(float(self.degrees_of_freedom) ** 0.5 * float(self.scale), y)

    def log_prob(self, y: Float[Tensor, "..."], f: Float[Tensor, "..."], **numbers: Tensor) -> Float[Tensor, "..."]:
        nu, scale = self.degrees_of_freedom.value, self.scale.value
        half = 0.5 * (nu + 1.0)
        constant = half.lgamma() - (0.5 * nu).lgamma() - 0.5 * (math.pi * nu).log() - scale.log()
        return constant - half * torch.log1p(((y - f) / scale).square() / nu)

    def predictive(
        self, mean: Float[Tensor, "..."], variance: Float[Tensor, "..."], **numbers: Tensor
    ) -> "ScatteredNormal":
        return ScatteredNormal(mean.double(), variance.double(), self.degrees_of_freedom.value, self.scale.value)


class ScatteredNormal(PredictiveDistribution):
    """N(mean, variance + scale^2 / precision), precision ~ Gamma(nu / 2, nu / 2): by nodes in log precision, (M-282).

    Args: mean, variance of f; degrees_of_freedom, scale, numbers.
    """

    def __init__(self, mean: Tensor, variance: Tensor, degrees_of_freedom: Tensor, scale: Tensor) -> None:
        nu = degrees_of_freedom
        self.mean, self._latent, self._nu, self._scale = mean, variance, nu, scale
        heavy = torch.where(nu > 2.0, nu / (nu - 2.0).clamp_min(torch.finfo(torch.float64).tiny), torch.inf)
        self.variance = variance + scale.square() * heavy
        number = float(nu.detach())
        below = TAIL / number + math.sqrt(2.0 * TAIL / number)
        above = min(math.sqrt(2.0 * TAIL / number), math.log1p(2.0 * TAIL / number) + 1.5)
        turn = min(1.2, math.sqrt(4.0 * DIGITS / number))
        step = 2.0 * math.pi * turn / (DIGITS + 0.25 * number * turn**2)
        log_precision = torch.linspace(
            -below, above, math.ceil((below + above) / step) + 1, dtype=torch.float64, device=mean.device
        )
        self._log_weights = torch.log_softmax(0.5 * nu * (log_precision - log_precision.exp()), 0)
        self._variances = variance.unsqueeze(-1) + scale.square() * (-log_precision).exp()

    def log_prob(self, y: Float[Tensor, "..."]) -> Float64[Tensor, "..."]:
        squares = (y - self.mean).unsqueeze(-1).square() / self._variances
        return torch.logsumexp(self._log_weights - 0.5 * (squares + self._variances.log() + LOG_2PI), -1)

    def cdf(self, y: Float[Tensor, "..."]) -> Float64[Tensor, "..."]:
        """P(observation <= y)."""
        return torch.special.ndtr((y - self.mean).unsqueeze(-1) / self._variances.sqrt()) @ self._log_weights.exp()

    def quantile(self, q: float) -> Float64[Tensor, "..."]:
        """The q-quantile; differentiable by a step of Newton's method from where it is."""
        unit = (self._latent + self._scale.square()).sqrt().detach()
        start = torch.full_like(unit, standard_quantile(q))
        y = self.mean.detach() + unit * increasing_root(lambda z: self.cdf(self.mean + unit * z) - q, start)
        return y - (self.cdf(y) - q) / self.log_prob(y).exp().detach()

    def sample(self, generator: torch.Generator) -> Float64[Tensor, "..."]:
        shape, random = tuple(self.mean.shape), random_numbers(generator)
        normal, scattered = random.standard_normal(shape), random.standard_t(float(self._nu), shape)
        latent, noise = (torch.as_tensor(t, dtype=torch.float64, device=self.mean.device) for t in (normal, scattered))
        return self.mean + self._latent.sqrt() * latent + self._scale * noise
