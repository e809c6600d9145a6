"""Likelihoods of counts: Poisson, negative binomial, binomial, with closed forms where there are any, eq. (M-280)."""

import copy
import numbers
from collections.abc import Mapping
from typing import Any, Self

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from flashgp.foundations.checks import check_count
from flashgp.foundations.errors import DomainError
from flashgp.foundations.parameters import POSITIVE, Parameter, as_parameter
from flashgp.foundations.usual_names import usual_names_refused
from flashgp.likelihoods.base import Likelihood
from flashgp.likelihoods.logistic import expected_log_sigmoid, log_expected_sigmoid, variances_of_sigmoid
from flashgp.likelihoods.non_gaussian import NonGaussian, random_numbers, special
from flashgp.likelihoods.quadrature import Analytic

QUARTER_TURN = torch.pi / 2.0  # |Im f| below which exp(-exp(f)) stays bounded
log_sigmoid = torch.nn.functional.logsigmoid


class _Counts(NonGaussian):
    """Counts of mean exposure times e^f."""

    of_rows: tuple[str, ...] = ("row_weight", "exposure")
    discrete = True
    strip = QUARTER_TURN
    wanted, advice = (
        "a whole number from 0",
        "leave that row out if it is a mistake, or use Gamma for positive numbers and StudentT for others",
    )
    exposure: Tensor | None

    def allowed(self, y: Tensor, **numbers: Tensor) -> Bool[Tensor, "..."]:
        return (y >= 0.0) & (y == y.floor())

    def from_line(self, z: Tensor, **numbers: Tensor) -> Tensor:
        return (z + _log_exposure(numbers)).exp() - 1.0

    def _excess(self) -> Tensor | float:
        """Of the variance given f over the mean, over the mean squared."""
        return 0.0

    def observation_mean(self, mean: Tensor, variance: Tensor, **numbers: Tensor) -> Tensor:
        return (mean + 0.5 * variance + _log_exposure(numbers)).exp()

    def observation_variance(self, mean: Tensor, variance: Tensor, **numbers: Tensor) -> Tensor:
        rate = self.observation_mean(mean, variance, **numbers)
        return rate + rate.square() * (variance.expm1() + self._excess() * variance.exp())


class Poisson(_Counts):
    """Counts y ~ Poisson(exposure e^f).

    Args:
        exposure: (n,) of the training rows, positive, such as hours or areas; new observations have 1, or what
            `predictive(mean, variance, exposure=...)` is told. None for 1.
        row_weight: (n,) of the training rows, 0 or more: log p of a row counts that often. None for 1.

    Example:
        >>> likelihood = fgp.likelihoods.Poisson(exposure=torch.tensor([1.0, 10.0, 10.0]))
        >>> gp = fgp.GP(fgp.kernels.Matern(), likelihood=likelihood)
        >>> p = gp.condition(torch.zeros(3, 1), torch.tensor([2.0, 20.0, 21.0])).predict(torch.zeros(1, 1))
        >>> p.observation_mean.round(decimals=1), p.quantile(0.5)
        (tensor([2.]), tensor([2.]))
    """

    @usual_names_refused
    def __init__(self, exposure: Any = None, row_weight: Any = None) -> None:
        super().__init__(row_weight, exposure=exposure)

    def log_prob(self, y: Float[Tensor, "..."], f: Float[Tensor, "..."], **numbers: Tensor) -> Float[Tensor, "..."]:
        log_rate = f + _log_exposure(numbers)
        return y * log_rate - log_rate.exp() - (y + 1.0).lgamma()

    def expected(
        self, y: Float[Tensor, "..."], mean: Float[Tensor, "..."], variance: Float[Tensor, "..."], **numbers: Tensor
    ) -> Float64[Tensor, "..."]:
        log_rate = mean + _log_exposure(numbers)
        return y * log_rate - (log_rate + 0.5 * variance).exp() - (y + 1.0).lgamma()

    def cdf(self, y: Tensor, f: Tensor, **numbers: Tensor) -> Tensor:
        return special("gammaincc", y + 1.0, (f + _log_exposure(numbers)).exp())

    def draw(self, f: Tensor, generator: torch.Generator, **numbers: Tensor) -> Tensor:
        return torch.poisson((f + _log_exposure(numbers)).exp(), generator)


class NegativeBinomial(_Counts):
    """Counts of mean exposure e^f and of variance mean + dispersion mean^2: a Poisson rate that scatters.

    Args:
        dispersion: positive number or Parameter, trained by `fit`.
        exposure: as of `Poisson`.
        row_weight: as of `Poisson`.

    Example:
        >>> y = fgp.likelihoods.NegativeBinomial(0.5).predictive(torch.zeros(1), torch.zeros(1))
        >>> y.mean, y.variance.detach()
        (tensor([1.], dtype=torch.float64), tensor([1.5000], dtype=torch.float64))
    """

    roles = {"dispersion": "dispersion"}

    @usual_names_refused
    def __init__(
        self, dispersion: float | Tensor | Parameter = 0.1, exposure: Any = None, row_weight: Any = None
    ) -> None:
        super().__init__(row_weight, exposure=exposure)
        self.dispersion = as_parameter(dispersion, POSITIVE, "dispersion")

    def where(self, y: Tensor, **numbers: Tensor) -> Analytic:
        return Analytic(torch.pi, -self.dispersion.value.detach().log() - _log_exposure(numbers))

    def log_prob(self, y: Float[Tensor, "..."], f: Float[Tensor, "..."], **numbers: Tensor) -> Float[Tensor, "..."]:
        r = 1.0 / self.dispersion.value
        odds = f + _log_exposure(numbers) - r.log()
        constant = (y + r).lgamma() - r.lgamma() - (y + 1.0).lgamma()
        return constant + y * log_sigmoid(odds) + r * log_sigmoid(-odds)

    def _excess(self) -> Tensor:
        return self.dispersion.value

    def cdf(self, y: Tensor, f: Tensor, **numbers: Tensor) -> Tensor:
        r = 1.0 / self.dispersion.value.detach()
        return special("betainc", r.expand(y.shape), y + 1.0, torch.sigmoid(r.log() - f - _log_exposure(numbers)))

    def draw(self, f: Tensor, generator: torch.Generator, **numbers: Tensor) -> Tensor:
        r = 1.0 / float(self.dispersion)
        gamma = torch.from_numpy(random_numbers(generator).standard_gamma(r, tuple(f.shape))).to(f.device)
        return torch.poisson((f + _log_exposure(numbers)).exp() * gamma / r, generator)


class Binomial(NonGaussian):
    """Counts y of 0 to trials, each trial with the probability 1 / (1 + exp(-f)).

    Args:
        trials: a whole number, also of new observations; or (n,) of the training rows, where new observations have 1,
            or what `predictive(mean, variance, trials=...)` is told.
        row_weight: as of `Poisson`.

    Example:
        >>> y = fgp.likelihoods.Binomial(10).predictive(torch.zeros(1), torch.ones(1))
        >>> y.mean, y.quantile(0.9)
        (tensor([5.0000], dtype=torch.float64), tensor([8.], dtype=torch.float64))
    """

    of_rows: tuple[str, ...] = ("row_weight", "trials")
    discrete = True
    strip = QUARTER_TURN
    wanted, advice = "a whole number from 0 to trials", "give the number of trials of each row, as trials=(n,)"
    trials: Any

    @usual_names_refused
    def __init__(self, trials: Any = 1, row_weight: Any = None) -> None:
        if isinstance(trials, numbers.Real):
            self.of_rows = ("row_weight",)  # trials are of all alike
            super().__init__(row_weight)
            self.trials = check_count(trials, "trials", 1)
        else:
            super().__init__(row_weight, trials=trials)
            self._check_whole()

    def with_rows(self, **numbers: Any) -> Self:
        known = self
        if "trials" in numbers and isinstance(self.trials, int):  # of other rows, in place of that of all
            known = copy.copy(self)
            known.of_rows = type(self).of_rows
        found = super(Binomial, known).with_rows(**numbers)
        if "trials" in numbers:
            found._check_whole()
        return found

    def of_new_rows(self, n: int, more: int, row_variance: Any, row_weight: Any, numbers: Mapping[str, Any]) -> Self:
        if isinstance(self.trials, int):  # of all rows
            Likelihood.with_numbers(self, **{name: value for name, value in numbers.items() if value is not None})
        return super().of_new_rows(n, more, row_variance, row_weight, numbers)

    def _check_whole(self) -> None:
        wrong = (self.trials != self.trials.floor()).nonzero()
        if len(wrong):
            row = int(wrong[0])
            raise DomainError(f"`trials` must be whole numbers, got {float(self.trials[row]):g} at row {row}; round it")

    def _trials(self, numbers: dict[str, Tensor]) -> Tensor | float:
        return numbers.get("trials", self.trials if isinstance(self.trials, int) else 1.0)

    def allowed(self, y: Tensor, **numbers: Tensor) -> Bool[Tensor, "..."]:
        return (y >= 0.0) & (y <= self._trials(numbers)) & (y == y.floor())

    def from_line(self, z: Tensor, **numbers: Tensor) -> Tensor:
        return (self._trials(numbers) + 1.0) * torch.sigmoid(z) - 1.0

    def log_prob(self, y: Float[Tensor, "..."], f: Float[Tensor, "..."], **numbers: Tensor) -> Float[Tensor, "..."]:
        return self._by_odds(y, log_sigmoid(f), log_sigmoid(-f), numbers)

    def expected(
        self, y: Float[Tensor, "..."], mean: Float[Tensor, "..."], variance: Float[Tensor, "..."], **numbers: Tensor
    ) -> Float64[Tensor, "..."]:
        success, failure = expected_log_sigmoid(mean, variance), expected_log_sigmoid(-mean, variance)
        return self._by_odds(y, success, failure, numbers)

    def _by_odds(self, y: Tensor, success: Tensor, failure: Tensor, numbers: dict[str, Tensor]) -> Tensor:
        trials = torch.as_tensor(self._trials(numbers), dtype=y.dtype, device=y.device)
        ways = (trials + 1.0).lgamma() - (y + 1.0).lgamma() - (trials - y + 1.0).lgamma()
        return ways + y * success + (trials - y) * failure

    def observation_mean(self, mean: Tensor, variance: Tensor, **numbers: Tensor) -> Tensor:
        return self._trials(numbers) * log_expected_sigmoid(mean, variance).exp()

    def observation_variance(self, mean: Tensor, variance: Tensor, **numbers: Tensor) -> Tensor:
        trials, (within, between) = self._trials(numbers), variances_of_sigmoid(mean, variance)
        return trials * within + trials * trials * between

    def cdf(self, y: Tensor, f: Tensor, **numbers: Tensor) -> Tensor:
        more = (self._trials(numbers) - y).clamp_min(0.0)
        return torch.where(more > 0.0, special("betainc", more, y + 1.0, torch.sigmoid(-f)), 1.0)

    def draw(self, f: Tensor, generator: torch.Generator, **numbers: Tensor) -> Tensor:
        trials = torch.as_tensor(self._trials(numbers), dtype=torch.float64, device=f.device).expand(f.shape)
        return torch.binomial(trials.contiguous(), torch.sigmoid(f), generator=generator)

    def structure(self) -> dict[str, Any]:
        return super().structure() | ({"trials": self.trials} if isinstance(self.trials, int) else {})


def _log_exposure(numbers: dict[str, Tensor]) -> Tensor | float:
    return numbers["exposure"].log() if "exposure" in numbers else 0.0
