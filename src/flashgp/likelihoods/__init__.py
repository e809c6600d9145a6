"""Likelihoods: how observations y scatter around latent values f."""

from typing import Any

from flashgp.foundations.errors import MissingNameError
from flashgp.likelihoods.base import Likelihood, PredictiveDistribution, Sites
from flashgp.likelihoods.bernoulli import Bernoulli
from flashgp.likelihoods.categorical import Categorical
from flashgp.likelihoods.counts import Binomial, NegativeBinomial, Poisson
from flashgp.likelihoods.custom import Custom
from flashgp.likelihoods.gaussian import Gaussian
from flashgp.likelihoods.heteroscedastic import HeteroscedasticGaussian
from flashgp.likelihoods.ordinal import Ordinal
from flashgp.likelihoods.shares import Beta, Gamma
from flashgp.likelihoods.student_t import StudentT

REGISTRY: dict[str, type[Likelihood]] = {
    kind.__name__: kind
    for kind in (
        Bernoulli,
        Beta,
        Binomial,
        Categorical,
        Custom,
        Gamma,
        Gaussian,
        HeteroscedasticGaussian,
        NegativeBinomial,
        Ordinal,
        Poisson,
        StudentT,
    )
}

__all__ = [
    "REGISTRY",
    "Bernoulli",
    "Beta",
    "Binomial",
    "Categorical",
    "Custom",
    "Gamma",
    "Gaussian",
    "HeteroscedasticGaussian",
    "Likelihood",
    "NegativeBinomial",
    "Ordinal",
    "Poisson",
    "PredictiveDistribution",
    "Sites",
    "StudentT",
]


def __getattr__(name: str) -> Any:
    """Raises: MissingNameError."""
    if name.startswith("_"):
        raise AttributeError(f"module 'flashgp.likelihoods' has no attribute {name!r}")
    raise MissingNameError(
        f"`flashgp.likelihoods` has {', '.join(REGISTRY)}, got {name!r}; choose one of these, and for a positive or "
        "skewed target TableModel or GPRegressor with target_transform='auto'"
    )
