"""Likelihoods: how observations y scatter around latent values f."""

from typing import Any

from flashgp.foundations.errors import MissingNameError
from flashgp.likelihoods.base import Likelihood, PredictiveDistribution, Sites
from flashgp.likelihoods.gaussian import Gaussian

__all__ = ["Gaussian", "Likelihood", "PredictiveDistribution", "Sites"]


def __getattr__(name: str) -> Any:
    """Raises: MissingNameError."""
    if name.startswith("_"):
        raise AttributeError(f"module 'flashgp.likelihoods' has no attribute {name!r}")
    raise MissingNameError(
        f"`flashgp.likelihoods` has Gaussian alone so far, got {name!r}; use Gaussian(noise_variance=0.1), and for a "
        "positive or skewed target TableModel or GPRegressor with target_transform='auto'"
    )
