"""Every name that the repr of a case needs."""

import torch

from hunt.approximations import ApproximateCase
from hunt.calls import CallCase
from hunt.cases import Noise, OperatorCase, Points, PosteriorCase
from hunt.chains import ChainCase
from hunt.estimators import EstimatorCase
from hunt.gradients import GradientCase
from hunt.pieces import FitCase, LikelihoodCase, LinalgCase, StreamCase
from hunt.specs import (
    Categorical,
    Constant,
    Coregionalization,
    Cosine,
    Custom,
    Each,
    Linear,
    Matern,
    Mean,
    Periodic,
    Polynomial,
    Product,
    RationalQuadratic,
    Scaled,
    SpectralMixture,
    SquaredExponential,
    Sum,
    Warped,
)
from hunt.table_models import TableCase

__all__ = [
    "ApproximateCase",
    "CallCase",
    "Categorical",
    "ChainCase",
    "Constant",
    "Coregionalization",
    "Cosine",
    "Custom",
    "Each",
    "EstimatorCase",
    "FitCase",
    "GradientCase",
    "LikelihoodCase",
    "LinalgCase",
    "Linear",
    "Matern",
    "Mean",
    "Noise",
    "OperatorCase",
    "Periodic",
    "Points",
    "Polynomial",
    "PosteriorCase",
    "Product",
    "RationalQuadratic",
    "Scaled",
    "SpectralMixture",
    "SquaredExponential",
    "StreamCase",
    "Sum",
    "TableCase",
    "Warped",
    "torch",
]
