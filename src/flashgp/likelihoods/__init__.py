"""Likelihoods: how observations y scatter around latent values f."""

from typing import Any

from flashgp.foundations.errors import MissingNameError
from flashgp.likelihoods.base import Likelihood, PredictiveDistribution, Sites
from flashgp.likelihoods.bernoulli import Bernoulli
from flashgp.likelihoods.categorical import Categorical
from flashgp.likelihoods.gaussian import Gaussian

REGISTRY: dict[str, type[Likelihood]] = {kind.__name__: kind for kind in (Bernoulli, Categorical, Gaussian)}

__all__ = ["REGISTRY", "Bernoulli", "Categorical", "Gaussian", "Likelihood", "PredictiveDistribution", "Sites"]


def __getattr__(name: str) -> Any:
    """Raises: MissingNameError."""
    if name.startswith("_"):
        raise AttributeError(f"module 'flashgp.likelihoods' has no attribute {name!r}")
    raise MissingNameError(
        f"`flashgp.likelihoods` has {', '.join(REGISTRY)}, got {name!r}; choose one of these, and for a positive or "
        "skewed target TableModel or GPRegressor with target_transform='auto'"
    )
