"""Several classes: the softmax of one latent function for each."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from flashgp.foundations.checks import check_count
from flashgp.foundations.errors import DomainError
from flashgp.foundations.estimate import Measure
from flashgp.likelihoods.base import LEAST, PredictiveDistribution, Sites
from flashgp.likelihoods.row_numbers import RowNumbers
from flashgp.likelihoods.softmax import softmax_expectations

SMALLEST = 1e-9  # error of the integrals: a probability below it may end below 0, which has no logarithm


class Categorical(RowNumbers):
    """y_i is one of some classes, class c with probability exp f_c / sum_j exp f_j, of f = f(x_i), eq. (M-306).

    The latent functions, one for each class, are independent a priori, with one covariance function and mean zero.
    Sites are diagonal in the classes: those of a class make it one regression. All that they need of the softmax is
    exact, integrals over one variable for any number of classes.

    Args:
        classes: how many, 2 or more.
        row_weight: (n,) of the training rows, 0 or more: log p of a row counts that often. None for 1.

    Example:
        >>> x = torch.linspace(0, 6, 40, dtype=torch.float64)[:, None]
        >>> y = (x[:, 0] / 2.0).floor().clamp(max=2)
        >>> gp = fgp.GP(4.0 * fgp.kernels.Matern(nu=2.5), likelihood=fgp.likelihoods.Categorical(3))
        >>> gp.condition(x, y).predict(x[[5, 20, 35]]).probability.argmax(1)
        tensor([0, 1, 2])
    """

    discrete = True
    measure = Measure.LOG_LOSS
    spread_by_leaving_out = True
    step = 0.8  # whole ones of all classes together go to and fro between two that are confused

    def __init__(self, classes: int, row_weight: Any = None) -> None:
        super().__init__(row_weight)
        self.classes = self.outputs = check_count(classes, "classes", 2)
        self._last: tuple[Tensor, Tensor, tuple[Tensor, Tensor, Tensor]] | None = None

    def encoded(self, y: Any, name: str) -> Any:
        """Classes 0, 1, ... of the rows, (n,), as indicators, (n, classes); indicators as they are."""
        labels = torch.as_tensor(y)
        if labels.dim() != 1:
            return y
        wrong = ~((labels >= 0) & (labels < self.classes) & (labels == labels.round()))  # NaN too
        if bool(wrong.any()):
            row = int(wrong.nonzero()[0])
            raise DomainError(
                f"`{name}` must be whole numbers from 0 to {self.classes - 1}, of {self.classes} classes, got "
                f"{labels[row].item():g} in row {row}; number the classes from 0"
            )
        return torch.nn.functional.one_hot(labels.long(), self.classes).double()

    def check_targets(
        self, y: Float[Tensor, "*n classes"], first: int = 0, *, rows: Sequence[int] | None = None, name: str = "y"
    ) -> None:
        self._of(y, "row_weight")  # refuses another number of rows
        wrong = ~(((y == 0.0) | (y == 1.0)).all(-1) & (y.sum(-1) == 1.0))
        if bool(wrong.any()):
            row = int(wrong.nonzero()[0][-1])
            raise DomainError(
                f"`{name}` must have one 1 among zeros for {self.name}, got {y[..., row, :].tolist()} in row "
                f"{first + row if rows is None else int(rows[row])}; pass classes 0, 1, ... of shape (n,)"
            )

    def log_prob(self, y: Float[Tensor, "*n classes"], f: Float[Tensor, "*n classes"]) -> Float[Tensor, "*n"]:
        return (y * f.log_softmax(-1)).sum(-1)

    def expected_log_prob(
        self, y: Float[Tensor, "n classes"], mean: Float[Tensor, "n classes"], variance: Float[Tensor, "n classes"]
    ) -> Float[Tensor, "n"]:
        value, weight = (y * mean).sum(-1) - self._expectations(mean, variance)[0], self.weight_of(y)
        return value if weight is None else weight * value

    def sites_at(
        self, y: Float[Tensor, "n classes"], mean: Float[Tensor, "n classes"], variance: Float[Tensor, "n classes"],
        outputs: int | None,
    ) -> Sites:  # fmt: skip
        """Sites, eq. (M-307). The likelihood does not see a shift of all functions, which are zero together under
        converged ones: without the shift of those at hand steps do not creep along it."""
        _, probability, spread = self._expectations(mean, variance)
        weight, slope = self.weight_of(y), y - probability
        if weight is not None:
            slope, spread = weight.unsqueeze(-1) * slope, weight.unsqueeze(-1) * spread
        precision = torch.maximum(spread, LEAST / variance)
        return Sites(mean - mean.mean(-1, keepdim=True) + slope / precision, 1.0 / precision)

    def _expectations(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Those of the last q(f) are kept: a bound and the sites of the next step are asked for one after the other."""
        if mean.requires_grad or variance.requires_grad:
            return softmax_expectations(mean, variance)
        last = self._last
        if last is None or not (torch.equal(last[0], mean) and torch.equal(last[1], variance)):
            self._last = last = mean.clone(), variance.clone(), softmax_expectations(mean, variance)
        return last[2]

    def predictive(self, mean: Float[Tensor, "classes *n"], variance: Float[Tensor, "classes *n"]) -> "Classes":
        _, probability, _ = softmax_expectations(
            *(t.movedim(0, -1).reshape(-1, self.classes) for t in (mean, variance))
        )
        probability = probability.clamp_min(SMALLEST)
        probability = probability / probability.sum(-1, keepdim=True)
        return Classes(probability.reshape(*mean.shape[1:], self.classes))

    def structure(self) -> dict[str, Any]:
        return {"kind": "Categorical", "classes": self.classes}


class Classes(PredictiveDistribution):
    """Independent classes. Attributes: probability, (*n, classes); mean and variance, of indicators, (classes, *n)."""

    def __init__(self, probability: Tensor) -> None:
        self.probability = probability
        self.mean = probability.movedim(-1, 0)
        self.variance = self.mean * (1.0 - self.mean)

    def quantile(self, q: float) -> Tensor:
        raise DomainError("`quantile` needs observations in an order, got classes; take `probability`")

    def cdf(self, y: Tensor) -> Tensor:
        raise DomainError("`cdf` needs observations in an order, got classes; take `probability`")

    def log_prob(self, y: Tensor) -> Tensor:
        """Of indicators (classes, *n): (*n,)."""
        return (y * self.mean.log()).nan_to_num(nan=0.0).sum(0)

    def sample(self, generator: torch.Generator) -> Tensor:
        """Indicators, (classes, *n)."""
        classes = self.probability.shape[-1]
        drawn = torch.multinomial(self.probability.reshape(-1, classes), 1, generator=generator)
        drawn = drawn.reshape(self.probability.shape[:-1])
        return torch.nn.functional.one_hot(drawn, classes).movedim(-1, 0).double()
