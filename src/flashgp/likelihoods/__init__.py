"""Likelihoods: how observations y scatter around latent values f."""

from flashgp.likelihoods.base import Likelihood, PredictiveDistribution, Sites
from flashgp.likelihoods.gaussian import Gaussian

__all__ = ["Gaussian", "Likelihood", "PredictiveDistribution", "Sites"]
