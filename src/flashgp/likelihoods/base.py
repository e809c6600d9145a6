"""Interface of a likelihood to inference: sites, densities, distributions of new observations."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from flashgp.foundations.errors import DomainError
from flashgp.foundations.estimate import Measure
from flashgp.foundations.named_values import NamedValues
from flashgp.foundations.parameters import Parameter

LEAST = 1e-8  # of the precision of f, which a site has at least
FARTHEST = 1e5  # deviations of f by which a target is away, at most: rounding of marginals (M-270) grows by its square


@dataclass(frozen=True, eq=False)
class Sites:
    """A likelihood as one Gaussian factor for each row, exp(log_scale) prod_i N(targets_i; f_i, variance_i).

    Args:
        targets: (*batch, n) or (*batch, n, outputs), units of y.
        variance: inverse precision of each row, (*batch, n), or (*batch, 1) where all are equal, float64, 0 or more;
            the same for every output. Of a likelihood with `outputs`, one for each, (*batch, n or 1, outputs).
        log_scale: (*batch,), nats; None for 0.
    """

    targets: Float[Tensor, "*targets"]
    variance: Float64[Tensor, "*variances"]
    log_scale: Float64[Tensor, "*batch"] | None = None


@dataclass(frozen=True)
class LinearNoise:
    """Sites at the observations whose variances are one parameter times a scale, plus an offset.

    None for no parameter, ones and zeros; scale and offset are (*batch, n).
    """

    parameter: Parameter | None
    scale: Tensor | None
    offset: Tensor | None


def bounded_sites(mean: Tensor, variance: Tensor, slope: Tensor, precision: Tensor) -> Sites:
    """Sites with a slope at the mean and a precision where N(mean, variance) is what is known of f.

    A row that says next to nothing keeps LEAST of the information that it has of f: no variance is infinite. One that
    pulls without bending log p, or that bends it the other way, has a target FARTHEST away.
    """
    least = torch.maximum(LEAST / variance, slope.abs() / (FARTHEST * variance.sqrt()))
    precision = torch.maximum(precision, least)
    return Sites(mean + slope / precision, 1.0 / precision)


class PredictiveDistribution(ABC):
    """Distribution of new observations, each on its own.

    Attributes:
        mean: of the observations.
        variance: of the same shape.

    Example:
        >>> y = fgp.likelihoods.Gaussian(0.5).predictive(torch.zeros(2), torch.ones(2))
        >>> isinstance(y, fgp.likelihoods.PredictiveDistribution), y.variance.detach()
        (True, tensor([1.5000, 1.5000], dtype=torch.float64))
    """

    mean: Tensor
    variance: Tensor

    @abstractmethod
    def quantile(self, q: float) -> Tensor:
        """The q-quantile, 0 < q < 1."""

    def inside(self, y: Tensor, level: float) -> Tensor:
        """Mask of the entries of y that lie in their central interval of that probability, its ends included."""
        tail = 0.5 * (1.0 - level)
        return (self.quantile(tail) <= y) & (y <= self.quantile(1.0 - tail))

    @abstractmethod
    def log_prob(self, y: Tensor) -> Tensor:
        """The log density of y, entry by entry, nats."""

    def cdf(self, y: Tensor) -> Tensor:
        """P(observation <= y), entry by entry. Raises: DomainError where it is not known."""
        raise DomainError(f"`cdf` must be known for this, got {type(self).__name__} without one; give the class one")

    @abstractmethod
    def sample(self, generator: torch.Generator) -> Tensor:
        """One draw of each, float64."""


class Likelihood(NamedValues, ABC):
    """p(y | f), row by row. Subclasses give densities, predictive distributions, and sites where they can.

    Inference needs `sites`. Those of `Gaussian` are its observations. A likelihood whose sites are found by iteration
    leaves `has_sites` False: `expected_log_prob` is all that conditioning and fits ask of it then (inference/sites.py).

    Example:
        >>> import torch, flashgp as fgp
        >>> likelihood = fgp.likelihoods.Gaussian(noise_variance=0.25)
        >>> y = likelihood.predictive(torch.tensor([1.0]), torch.tensor([0.75]))
        >>> y.variance
        tensor([1.], dtype=torch.float64, grad_fn=<AddBackward0>)
    """

    has_sites: ClassVar[bool] = False
    step: ClassVar[float] = 1.0  # the longest towards new sites
    spread_by_leaving_out: ClassVar[bool] = False  # whether the bound wants too little variance of f
    latent_is_y: ClassVar[bool] = False  # whether f is in units of y, where sites are found by iteration
    joins_always: ClassVar[bool] = False  # whether rows are put in the order of their x even where none repeats
    method: str = "variational"  # by which sites are found, a name of inference/site_methods.py
    methods: ClassVar[tuple[str, ...]] = ("variational",)  # that there are of it
    latent_variance: ClassVar[float | None] = None  # of f that a fit expects where y has no scale, as of labels
    measure: Measure = Measure.VARIANCE  # by which its predictions are judged
    discrete: bool = False  # whether observations are classes, levels or counts
    of_rows: tuple[str, ...] = ()  # tensors with a number for each training row, where it may have such
    one_observation: ClassVar[bool] = False  # whether all `outputs` are functions of one number, which has no axis
    outputs: int | None = None  # how many outputs have noise of their own; None where one noise serves all of them

    @abstractmethod
    def log_prob(self, y: Float[Tensor, "..."], f: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """log p(y | f), entry by entry, for new observations."""

    @abstractmethod
    def predictive(self, mean: Float[Tensor, "..."], variance: Float[Tensor, "..."]) -> PredictiveDistribution:
        """New observations where f ~ N(mean, variance), shapes (*batch, n), or (outputs, *batch, n) with `outputs`."""

    @abstractmethod
    def expected_log_prob(
        self, y: Float[Tensor, "..."], mean: Float[Tensor, "..."], variance: Float[Tensor, "..."]
    ) -> Float[Tensor, "..."]:
        """The expectation of log p(y | f) under f ~ N(mean, variance)."""

    def predictive_of_rows(self, mean: Float[Tensor, "..."], variance: Float[Tensor, "..."]) -> PredictiveDistribution:
        """As `predictive`, of observations with the training rows' own numbers, such as exposures."""
        return self.predictive(mean, variance)

    def check_targets(
        self, y: Float[Tensor, "..."], first: int = 0, *, rows: Sequence[int] | None = None, name: str = "y"
    ) -> None:
        """Refuse targets of the training rows that have no density.

        Args:
            y: targets of some rows.
            first: the number of the first of them.
            rows: the numbers of all of them, in place of it.
            name: of the targets.

        Raises:
            DomainError: naming the first such row.
        """

    def sites(self, y: Float[Tensor, "..."], outputs: int | None) -> Sites:
        """Sites of the training rows y, (*batch, n) or (*batch, n, outputs), without iteration.

        Raises:
            DomainError: where there are none.
        """
        raise DomainError(
            f"`likelihood` must have sites that need no iteration here, got {self.name}; ask the posterior, "
            "gp.condition(x, y)"
        )

    def log_prob_of_rows(self, y: Float[Tensor, "..."], f: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """log p(y | f) of the training rows, with their weights and numbers."""
        return self.log_prob(y, f)

    def by_method(self, method: str) -> Self:
        """The likelihood with its sites found by another method; parameters are shared. Raises: DomainError."""
        if self.has_sites:
            raise DomainError(
                f"`method` is of likelihoods whose sites are found by iteration, got {method!r} for {self.name}; "
                "leave it out"
            )
        if method not in self.methods:
            raise DomainError(
                f"`method` must be {' or '.join(map(repr, self.methods))} for {self.name}, got {method!r}; choose one "
                "of these"
            )
        same = copy.copy(self)
        same._modules, same._buffers, same.method = {**self._modules}, {**self._buffers}, method
        return same

    def expectations(
        self, y: Float[Tensor, "..."], mean: Float[Tensor, "..."], variance: Float[Tensor, "..."]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """E log p(y | f) under f ~ N(mean, variance), entry by entry, and its derivatives by mean and by variance."""
        return with_derivatives(lambda *moments: self.expected_log_prob(y, *moments), mean, variance)

    def log_evidence(
        self, y: Float[Tensor, "..."], mean: Float[Tensor, "..."], variance: Float[Tensor, "..."]
    ) -> Float[Tensor, "..."]:
        """log E p(y | f) of single training rows under f ~ N(mean, variance), whatever their weights."""
        return self.predictive(mean, variance).log_prob(y)

    def weight_of(self, y: Float[Tensor, "..."]) -> Float[Tensor, "..."] | None:
        """How often each of the training rows y counts; None for once."""
        return None

    def sites_at(
        self, y: Float[Tensor, "..."], mean: Float[Tensor, "..."], variance: Float[Tensor, "..."], outputs: int | None
    ) -> Sites:
        """Sites of rows whose latent values are N(mean, variance), eq. (M-267); those without iteration do not look.

        Source: Khan & Lin (2017), Conjugate-computation variational inference.
        """
        if self.has_sites:
            return self.sites(y, outputs)
        _, by_mean, by_variance = self.expectations(y, mean, variance)
        return bounded_sites(mean, variance, by_mean, -2.0 * by_variance)

    def encoded(self, y: Any, name: str) -> Any:
        """Targets as inference takes them, of as many columns as there are `outputs`. Raises: DomainError."""
        return y

    @property
    def name(self) -> str:
        return type(self).__name__

    @property
    def underlying(self) -> "Likelihood":
        """The likelihood of which sites are held; itself where none are."""
        return self

    # -- several outputs -------------------------------------------------------------------------------------------
    def for_outputs(self, outputs: int | None) -> "Likelihood":
        """The likelihood of a GP with so many outputs, with parameters for each where they are not shared.

        Raises:
            DomainError: where it is one of another number of outputs.
        """
        return self

    def output(self, index: int, *, live: bool = True) -> "Likelihood":
        """Likelihood of one output alone; with `live` its parameters stay those of this likelihood, else they are
        copies.
        """
        return self

    # -- rows that a likelihood knows one by one; by default it knows nothing of them ------------------------------
    @property
    def rows_alike(self) -> bool:
        """True if it holds no numbers of single training rows."""
        return True

    @property
    def counts(self) -> Float64[Tensor, "n"] | None:
        """Number of observations of each training row; None for one each."""
        return None

    @property
    def row_tensors(self) -> dict[str, Tensor]:
        """All that it knows of single training rows, (n, ...) each, by the names that `with_rows` has for them."""
        return {}

    def with_rows(self, **numbers: Any) -> "Likelihood":
        """The likelihood for other rows, with what is known of them; parameters are shared.

        Raises:
            DomainError: for numbers that it does not take.
        """
        if numbers:
            self.read(numbers, "")
        return self

    @property
    def of_read(self) -> tuple[str, ...]:
        """Names of numbers that rows which are read may bring, first the one that may come without a name."""
        return ()

    def read(self, numbers: Mapping[str, Any], place: str) -> dict[str, Any]:
        """Numbers of rows that are read, by name. Raises: DomainError for some that it does not take."""
        may = self.of_read
        named = {name or (*may, "row_variance")[0]: value for name, value in numbers.items()}
        if unknown := sorted(named.keys() - {*may}):
            raise DomainError(
                f"`{unknown[0]}` is not what rows of this likelihood may bring, got some of {place or 'the rows'} for "
                f"{self.name}; leave it out, or give {' and '.join(may) or 'x and y alone'}"
            )
        return named

    @property
    def numbers_of_rows(self) -> tuple[str, ...]:
        """Names of the numbers of single training rows that it knows, beside weights: they decide which targets these
        may have."""
        return ()

    def with_numbers(self, **numbers: Any) -> "Likelihood":
        """The likelihood of new observations with such numbers, one for each. Raises: DomainError for unknown ones."""
        if numbers:
            raise DomainError(
                f"`{next(iter(numbers))}` is no number of rows of {self.name}, which has none; leave it out"
            )
        return self

    def rows(self, index: Tensor) -> "Likelihood":
        """The likelihood for some of the training rows; parameters are shared."""
        return self

    def by_rows(self, function: Callable[[Tensor], Tensor]) -> "Likelihood":
        """The likelihood for the rows of several, by a function that joins numbers of rows to those of the others;
        parameters are shared."""
        return self

    def followed_by(self, others: "Likelihood", n: int, more: int) -> "Likelihood":
        """The likelihood for n rows and `more` others behind them, which `of_new_rows` has made; one that has numbers
        of single rows joins them."""
        return self if self.rows_alike else self.extended(n, more)

    def of_new_rows(
        self, n: int, more: int, row_variance: Any, row_weight: Any, numbers: Mapping[str, Any]
    ) -> "Likelihood":
        """The likelihood for the `more` rows alone that follow n. Raises: as `extended`, and for unknown numbers."""
        longer = self.with_numbers(**numbers).extended(n, more, row_variance, row_weight)
        return longer.rows(torch.arange(n, n + more))

    def extended(self, n: int, more: int, row_variance: Any = None, row_weight: Any = None) -> "Likelihood":
        """The likelihood for `more` rows after the n there are. Raises: DomainError for row tensors unknown to it."""
        for name, value in (("row_variance", row_variance), ("row_weight", row_weight)):
            if value is not None:
                raise DomainError(f"`{name}` is of a Gaussian likelihood, got one for {self.name}; leave it out")
        return self

    # -- what only some likelihoods have ---------------------------------------------------------------------------
    def additive_noise(self, device: torch.device) -> Float64[Tensor, "*batch"] | None:
        """The variance of e where a new observation is y = f + e with e independent of f; None where it is not.

        (*batch,), or (*batch, outputs) with `outputs`.

        Predictions ask for it alone. Updates and fantasies, whose new rows are observations, also need `linear_noise`.
        """
        return None

    def linear_noise(self) -> LinearNoise | None:
        """Dependence of site variances on the one parameter, where sites are observations; None where they are not."""
        return None

    def scale_information(self, device: torch.device, outputs: int) -> Tensor | None:
        """The Fisher information of each row's site variance in `Sites.log_scale`, of its shape; None for nothing."""
        return None

    def join_keys(self, y: Tensor) -> list[Tensor] | None:
        """Columns, each (n,), that rows of equal x must have in common to be joined; None where none may be."""
        return None

    def joined(self, y: Tensor, group: Tensor, first: Tensor) -> tuple[Tensor, Self, Tensor]:
        """Targets, likelihood and shares of rows that join others, eqs. (M-86) and (M-87).

        Args:
            y: (n,) or (n, outputs).
            group: (n,), the row that each joins.
            first: (u,), a member of each group.
        """
        raise NotImplementedError(f"rows of {self.name} are never joined")


def with_derivatives(
    function: Callable[[Tensor, Tensor], Tensor], mean: Tensor, variance: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """A function of means and variances, entry by entry, and its derivatives by either."""
    with torch.enable_grad():
        moments = mean.detach().requires_grad_(), variance.detach().requires_grad_()
        value = function(*moments)
        by_mean, by_variance = torch.autograd.grad(value.sum(), moments)
    return value.detach(), by_mean, by_variance
