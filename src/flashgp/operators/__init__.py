"""Covariance matrices as lazy linear operators."""

from flashgp.operators.covariance import CovarianceOperator
from flashgp.operators.linear import DiagonalOperator, LinearOperator, SumOperator

__all__ = ["CovarianceOperator", "DiagonalOperator", "LinearOperator", "SumOperator"]
