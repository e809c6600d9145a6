"""The heteroscedastic Gaussian likelihood: noise whose logarithm is a function of x too, eq. (M-320)."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from flashgp.foundations.errors import DomainError
from flashgp.foundations.normal import LOG_2PI
from flashgp.foundations.parameters import POSITIVE, Domain, Parameter, as_parameter
from flashgp.foundations.usual_names import usual_names_refused
from flashgp.likelihoods.base import Likelihood
from flashgp.likelihoods.logistic import expected_log_sigmoid, log_expected_sigmoid
from flashgp.likelihoods.mixture import Mixture

LEAST_SHARE = 1e-4  # of the noise variance where g is 0, that every row has: a hundredth of its deviation


class HeteroscedasticGaussian(Likelihood):
    """y = level + f(x) + e with e ~ N(0, exp(offset) (exp(scale g(x)) + 1e-4)), eq. (M-320).

    The latent functions f and g, in this order, are independent a priori, with one covariance function and mean zero:
    both vary over the same lengthscales. f is in units of y, and so is g, which `scale` makes a logarithm. The noise
    that all rows have keeps targets that are free of noise from asking for ever less of it.

    Args:
        level: of y, number or Parameter.
        offset: log of the noise variance where g is 0, number or Parameter.
        scale: positive number or Parameter, per unit of y. `fit` trains all three.

    Example:
        >>> x = torch.linspace(0, 1, 40, dtype=torch.float64)[:, None]
        >>> noise = torch.randn(40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        >>> gp = fgp.GP(1.0 * fgp.kernels.Matern(nu=2.5), likelihood=fgp.likelihoods.HeteroscedasticGaussian())
        >>> p = fgp.fit(gp, x, x[:, 0] * noise, starts=1).posterior.predict(x[[0, 39]])
        >>> small, large = p.observation_variance.detach()
        >>> bool(large > 4.0 * small)
        True
    """

    latent_is_y = True
    one_observation = True
    outputs = 2
    roles = {"level": "output_mean", "offset": "log_noise_variance", "scale": "inverse_deviation"}

    @usual_names_refused
    def __init__(
        self,
        level: float | Tensor | Parameter = 0.0,
        offset: float | Tensor | Parameter = -2.0,
        scale: float | Tensor | Parameter = 1.0,
    ) -> None:
        super().__init__()
        self.level = as_parameter(level, Domain(), "level")
        self.offset = as_parameter(offset, Domain(), "offset")
        self.scale = as_parameter(scale, POSITIVE, "scale")

    def encoded(self, y: Any, name: str) -> Any:
        """Targets (n,) once for each function, (n, 2); such as they are."""
        targets = y if isinstance(y, Tensor) else torch.as_tensor(y)
        return torch.stack([targets, targets], -1) if targets.dim() == 1 else y

    def check_targets(
        self, y: Float[Tensor, "*n two"], first: int = 0, *, rows: Sequence[int] | None = None, name: str = "y"
    ) -> None:
        wrong = y[..., 0] != y[..., 1]
        if bool(wrong.any()):
            row = int(wrong.nonzero()[0][-1])
            raise DomainError(
                f"`{name}` must be one number for each row, (n,), for {self.name}, got {y[..., row, :].tolist()} in "
                f"row {first + row if rows is None else int(rows[row])}; fit a GP for each column"
            )

    @property
    def _log_least(self) -> Tensor:
        """The log of the noise variance that every row has."""
        return self.offset.value + math.log(LEAST_SHARE)

    def _log_noise(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Moments of the log of the noise variance beside that."""
        scale = self.scale.value
        return self.offset.value + scale * mean, scale.square() * variance

    def log_prob(self, y: Float[Tensor, "*n two"], f: Float[Tensor, "*n two"]) -> Float[Tensor, "*n"]:
        return self.expected_log_prob(y, f, torch.zeros_like(f))

    def expected_log_prob(
        self, y: Float[Tensor, "*n two"], mean: Float[Tensor, "*n two"], variance: Float[Tensor, "*n two"]
    ) -> Float[Tensor, "*n"]:
        noise, of_noise = self._log_noise(mean[..., 1].double(), variance[..., 1].double())
        squares = (y[..., 0] - self.level.value - mean[..., 0]).square() + variance[..., 0]
        least = self._log_least
        log_noise = least - expected_log_sigmoid(least - noise, of_noise)
        return -0.5 * (LOG_2PI + log_noise + squares * (log_expected_sigmoid(least - noise, of_noise) - least).exp())

    def predictive(self, mean: Float[Tensor, "two *n"], variance: Float[Tensor, "two *n"]) -> "NormalOfLogNoise":
        noise, of_noise = self._log_noise(mean[1].double(), variance[1].double())
        spread = variance[0].double() + self._log_least.exp()
        return NormalOfLogNoise(self.level.value + mean[0].double(), spread, noise, of_noise)

    def structure(self) -> dict[str, Any]:
        return {"kind": "HeteroscedasticGaussian"}


class _Given:
    """N(centre, spread + exp(h)) given h. Numbers of rows: centre; spread; unit, a deviation of quantiles."""

    discrete, log_concave = False, False
    strip = 0.5 * math.pi

    def log_prob(self, y: Tensor, f: Tensor, **numbers: Tensor) -> Tensor:
        variance = numbers["spread"] + f.exp()
        return -0.5 * (LOG_2PI + variance.log() + (y - numbers["centre"]).square() / variance)

    def observation_mean(self, mean: Tensor, variance: Tensor, **numbers: Tensor) -> Tensor:
        return numbers["centre"]

    def observation_variance(self, mean: Tensor, variance: Tensor, **numbers: Tensor) -> Tensor:
        return numbers["spread"] + (mean + 0.5 * variance).exp()

    def cdf(self, y: Tensor, f: Tensor, **numbers: Tensor) -> Tensor:
        return torch.special.ndtr((y - numbers["centre"]) / (numbers["spread"] + f.exp()).sqrt())

    def from_line(self, z: Tensor, **numbers: Tensor) -> Tensor:
        return numbers["centre"] + numbers["unit"] * z

    def draw(self, f: Tensor, generator: torch.Generator, **numbers: Tensor) -> Tensor:
        normal = torch.randn(f.shape, generator=generator, dtype=f.dtype, device=f.device)
        return numbers["centre"] + (numbers["spread"] + f.exp()).sqrt() * normal


class NormalOfLogNoise(Mixture):
    """N(mean, variance + exp(h)) with h ~ N(log_noise, of_log_noise)."""

    def __init__(self, mean: Tensor, variance: Tensor, log_noise: Tensor, of_log_noise: Tensor) -> None:
        unit = (variance + log_noise.exp()).sqrt().detach()
        super().__init__(_Given(), log_noise, of_log_noise, centre=mean, spread=variance, unit=unit)

    def log_prob(self, y: Float[Tensor, "..."]) -> Float64[Tensor, "..."]:
        """Of observations (*n), or as the likelihood has them, once for each latent function, (2, *n)."""
        return super().log_prob(y[0] if y.dim() > self._f.dim() else y)

    def quantile(self, q: float) -> Float64[Tensor, "..."]:
        """The q-quantile; differentiable by a step of Newton's method from where it is."""
        y = super().quantile(q).detach()
        return y - (self.probability_below(y) - q) / self.log_prob(y).exp().detach()
