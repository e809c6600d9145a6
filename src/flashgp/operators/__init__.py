"""Covariance matrices as lazy linear operators."""

from flashgp.operators.compiled import CompiledOperator as _CompiledOperator  # noqa: F401 - loads with the others
from flashgp.operators.covariance import CovarianceOperator
from flashgp.operators.linear import DiagonalOperator, LinearOperator, Product, SumOperator
from flashgp.operators.skipping import SkippingOperator

__all__ = ["CovarianceOperator", "DiagonalOperator", "LinearOperator", "Product", "SkippingOperator", "SumOperator"]
