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
from hunt.usefulness import DateCase, DensityCase, DrawCase, LimitCase, ModeCase, PeriodCase, WeightCase

__all__ = [
    "ApproximateCase",
    "CallCase",
    "Categorical",
    "ChainCase",
    "Constant",
    "Coregionalization",
    "Cosine",
    "Custom",
    "DateCase",
    "DensityCase",
    "DrawCase",
    "Each",
    "EstimatorCase",
    "FitCase",
    "GradientCase",
    "LikelihoodCase",
    "LimitCase",
    "LinalgCase",
    "Linear",
    "Matern",
    "Mean",
    "ModeCase",
    "Noise",
    "OperatorCase",
    "PeriodCase",
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
    "WeightCase",
    "torch",
]
