"""What likelihoods share whose sites are found by iteration: numbers of rows, expectations, checks of targets."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from flashgp.foundations.errors import DomainError
from flashgp.foundations.lazy_import import lazy_import
from flashgp.likelihoods.base import PredictiveDistribution
from flashgp.likelihoods.mixture import Mixture
from flashgp.likelihoods.quadrature import Analytic, expectation
from flashgp.likelihoods.row_numbers import RowNumbers

ROWS = 20_000  # of which expectations keep their nodes for derivatives


class NonGaussian(RowNumbers):
    """log p of each training row times its weight: a row of weight 2 is as that row twice.

    Numbers of rows, such as exposures, are keywords of `log_prob`, `expected` and `predictive`; left out, they are
    those of a new observation.

    Class attributes:
        log_concave: whether log p is concave in f for every y.
        wanted: targets, in words; advice, what to do about others.
    """

    log_concave: bool = True
    methods: ClassVar[tuple[str, ...]] = ("variational", "laplace")
    wanted: ClassVar[str]
    advice: ClassVar[str]

    # -- of one class ----------------------------------------------------------------------------------------------
    @abstractmethod
    def log_prob(self, y: Float[Tensor, "..."], f: Float[Tensor, "..."], **numbers: Tensor) -> Float[Tensor, "..."]:
        """log p(y | f), entry by entry, for observations with these numbers, by default new ones."""

    @abstractmethod
    def allowed(self, y: Tensor, **numbers: Tensor) -> Bool[Tensor, "..."]:
        """Whether each target may be observed."""

    def where(self, y: Tensor, **numbers: Tensor) -> Analytic | None:
        """Where log p(y | f) is analytic in f, for expectations that are not in closed form; None if not known."""
        return None

    @property
    def strip(self) -> float | None:
        """|Im f| below which p(y | f) is analytic in f; None if not known."""
        return None

    def observation_mean(self, mean: Tensor, variance: Tensor, **numbers: Tensor) -> Tensor:
        """Mean of observations where f ~ N(mean, variance)."""
        raise self._unknown("observation_mean")

    def observation_variance(self, mean: Tensor, variance: Tensor, **numbers: Tensor) -> Tensor:
        """Variance of observations where f ~ N(mean, variance)."""
        raise self._unknown("observation_variance")

    def cdf(self, y: Tensor, f: Tensor, **numbers: Tensor) -> Tensor:
        """P(observation <= y) given f, without gradients; of counts a smooth one between whole numbers too."""
        raise self._unknown("cdf")

    def draw(self, f: Tensor, generator: torch.Generator, **numbers: Tensor) -> Tensor:
        """An observation given each f."""
        raise self._unknown("draw")

    def from_line(self, z: Tensor, **numbers: Tensor) -> Tensor:
        """Observations as an increasing function of the whole line, about in units of f; of counts from -1."""
        return z

    def _unknown(self, name: str) -> DomainError:
        return DomainError(
            f"`likelihood` must say its {name} for this, got {self.name}, which does not; write that method"
        )

    def predictive(
        self, mean: Float[Tensor, "..."], variance: Float[Tensor, "..."], **numbers: Tensor
    ) -> PredictiveDistribution:
        self.refuse_unknown(numbers)
        each = {name: torch.as_tensor(value, dtype=torch.float64) for name, value in numbers.items()}
        return Mixture(self, mean, variance, **each)

    def expected(
        self, y: Float[Tensor, "..."], mean: Float[Tensor, "..."], variance: Float[Tensor, "..."], **numbers: Tensor
    ) -> Float64[Tensor, "..."]:
        """E log p(y | f) of single observations under f ~ N(mean, variance), by default by quadrature, (M-276)."""

        def log_prob(f: Tensor, y: Tensor, *each: Tensor) -> Tensor:
            return self.log_prob(y, f, **dict(zip(numbers, each, strict=True)))

        return expectation(log_prob, mean, variance, self.where(y, **numbers), y, *numbers.values())

    def predictive_of_rows(self, mean: Float[Tensor, "..."], variance: Float[Tensor, "..."]) -> PredictiveDistribution:
        return self.predictive(mean, variance, **self.numbers(mean))

    # -- of all ----------------------------------------------------------------------------------------------------
    def log_prob_of_rows(self, y: Float[Tensor, "..."], f: Float[Tensor, "..."]) -> Float64[Tensor, "..."]:
        value, weight = self.log_prob(y.double(), f.double(), **self.numbers(y)), self._of(y, "row_weight")
        return value if weight is None else weight * value

    def expected_log_prob(
        self, y: Float[Tensor, "..."], mean: Float[Tensor, "..."], variance: Float[Tensor, "..."]
    ) -> Float64[Tensor, "..."]:
        """E log p(y | f) of the training rows, times their weights."""
        value = self.expected(y.double(), mean.double(), variance.double(), **self.numbers(y))
        weight = self._of(y, "row_weight")
        return value if weight is None else weight * value

    def expectations(
        self, y: Float[Tensor, "..."], mean: Float[Tensor, "..."], variance: Float[Tensor, "..."]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As `Likelihood.expectations`, of so many rows at a time as keep what derivatives need small."""
        if y.dim() != 1 or len(y) <= ROWS:
            return super().expectations(y, mean, variance)
        self.numbers(y)  # refuses another number of rows
        parts = [
            self.rows(index).expectations(y[index], mean[index], variance[index])
            for index in torch.arange(len(y), device=y.device).split(ROWS)
        ]
        value, by_mean, by_variance = (torch.cat(column) for column in zip(*parts, strict=True))
        return value, by_mean, by_variance

    def log_evidence(
        self, y: Float[Tensor, "..."], mean: Float[Tensor, "..."], variance: Float[Tensor, "..."]
    ) -> Float[Tensor, "..."]:
        return self.predictive_of_rows(mean, variance).log_prob(y)

    def numbers(self, y: Tensor) -> dict[str, Tensor]:
        """Numbers of the training rows y by name, but for weights. Raises: ShapeError."""
        found = {name: self._of(y, name) for name in self.of_rows[1:]}
        return {name: value for name, value in found.items() if value is not None}

    def check_targets(
        self, y: Float[Tensor, "..."], first: int = 0, *, rows: Sequence[int] | None = None, name: str = "y"
    ) -> None:
        self._of(y, "row_weight")  # refuses another number of rows
        right = self.allowed(y.detach().double(), **self.numbers(y))
        if not bool(right.all()):
            place = (~right).nonzero()[0].tolist()
            number = first + place[-1] if rows is None else int(rows[place[-1]])
            row = f"row {number}" + (f" of table {tuple(place[:-1])}" if len(place) > 1 else "")
            raise DomainError(
                f"`{name}` must be {self.wanted} for {self.name}, got {float(y[tuple(place)]):.12g} in {row}; "
                f"{self.advice}"
            )

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.structure().items() if name != "kind")

    def structure(self) -> dict[str, Any]:
        """What a file says beside parameters and numbers of rows."""
        return {"kind": self.name} | ({} if self.method == type(self).method else {"method": self.method})


def special(name: str, *values: Tensor) -> Float64[Tensor, "..."]:
    """A function of scipy.special that torch does not have, without gradients."""
    lazy_import("scipy.special")
    import scipy.special

    found = getattr(scipy.special, name)(*(value.detach().cpu().double().numpy() for value in values))
    return torch.as_tensor(found, dtype=torch.float64, device=values[0].device)


def random_numbers(generator: torch.Generator) -> numpy.random.Generator:
    """NumPy's random numbers, which have more distributions, from a seed that torch draws."""
    seed = torch.randint(2**62, (1,), generator=generator, device=generator.device)
    return numpy.random.default_rng(int(seed))
