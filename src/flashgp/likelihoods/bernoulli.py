"""The Bernoulli likelihood: two classes, by a probit or a logit link."""

from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from flashgp.foundations.errors import DomainError
from flashgp.foundations.estimate import Measure
from flashgp.foundations.usual_names import usual_names_refused
from flashgp.likelihoods.levels import Levels
from flashgp.likelihoods.logistic import expected_log_sigmoid, log_expected_sigmoid
from flashgp.likelihoods.non_gaussian import NonGaussian
from flashgp.likelihoods.quadrature import Analytic, expectation

LINKS = ("probit", "logit")
PROBIT = Analytic(2.8)  # log Phi has its singularities at 1.92 +- 2.82 i and beyond


class Bernoulli(NonGaussian):
    """y of 0 or 1, and 1 with the probability Phi(f), or 1 / (1 + exp(-f)) with link="logit".

    Predictive probabilities are in closed form: Phi(mean / sqrt(1 + variance)), or eq. (M-278).

    Args:
        link: "probit" or "logit".
        row_weight: (n,) of the training rows, 0 or more: log p of a row counts that often. None for 1.
        method: "ep", by moments (M-291): quickest, and closest to log p(y), but no bound on it; "variational" for one.
            Inducing points are variational where it says "ep". Or "laplace", for comparison.

    Example:
        >>> x = torch.linspace(0.0, 1.0, 20, dtype=torch.float64)[:, None]
        >>> gp = fgp.GP(4.0 * fgp.kernels.Matern(lengthscale=0.3), likelihood=fgp.likelihoods.Bernoulli())
        >>> p = gp.condition(x, (x[:, 0] > 0.5).double()).predict(x[[0, 19]])
        >>> p.distribution.probability.round(decimals=1)
        tensor([0.1000, 0.9000], dtype=torch.float64)
    """

    latent_variance = 4.0
    discrete = True
    measure = Measure.LOG_LOSS
    methods = ("ep", "variational", "laplace")
    wanted, advice = "0 or 1", "number the classes 0 and 1, as in y = (labels == labels.max()).double()"

    @usual_names_refused
    def __init__(
        self,
        link: Literal["probit", "logit"] = "probit",
        row_weight: Any = None,
        method: Literal["ep", "variational", "laplace"] = "ep",
    ) -> None:
        for name, value, known in (("link", link, LINKS), ("method", method, self.methods)):
            if value not in known:
                raise DomainError(
                    f"`{name}` must be {' or '.join(map(repr, known))}, got {value!r}; choose one of these"
                )
        super().__init__(row_weight)
        self.link, self.method = link, method

    def allowed(self, y: Tensor, **numbers: Tensor) -> Bool[Tensor, "..."]:
        return (y == 0.0) | (y == 1.0)

    def log_prob(self, y: Float[Tensor, "..."], f: Float[Tensor, "..."], **numbers: Tensor) -> Float[Tensor, "..."]:
        signed = (2.0 * y - 1.0) * f
        return torch.special.log_ndtr(signed) if self.link == "probit" else torch.nn.functional.logsigmoid(signed)

    def expected(
        self, y: Float[Tensor, "..."], mean: Float[Tensor, "..."], variance: Float[Tensor, "..."], **numbers: Tensor
    ) -> Float64[Tensor, "..."]:
        signed = (2.0 * y - 1.0) * mean
        if self.link == "logit":
            return expected_log_sigmoid(signed, variance)
        return expectation(torch.special.log_ndtr, signed, variance, PROBIT)

    def predictive(self, mean: Float[Tensor, "..."], variance: Float[Tensor, "..."], **numbers: Tensor) -> Levels:
        both = torch.stack([-mean.double(), mean.double()], dim=-1)
        return Levels(self._log_probability(both, variance.double().unsqueeze(-1)))

    def log_evidence(
        self, y: Float[Tensor, "..."], mean: Float[Tensor, "..."], variance: Float[Tensor, "..."]
    ) -> Float64[Tensor, "..."]:
        return self._log_probability((2.0 * y - 1.0) * mean.double(), variance.double())

    def _log_probability(self, signed: Tensor, variance: Tensor) -> Tensor:
        """Of the label whose sign the mean has taken."""
        if self.link == "logit":
            return log_expected_sigmoid(signed, variance)
        return torch.special.log_ndtr(signed / (1.0 + variance).sqrt())

    def structure(self) -> dict[str, Any]:
        return {"kind": self.name, "link": self.link, "method": self.method}
