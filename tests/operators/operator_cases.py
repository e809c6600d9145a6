"""Operators with options that the public `kernel.operator` settles by itself."""

from typing import Any

from torch import Tensor

from flashgp.kernels import Kernel
from flashgp.operators import CovarianceOperator, SkippingOperator
from flashgp.operators.multiplication import OperatorOptions


def operator_with(kernel: Kernel, x: Tensor, z: Tensor | None = None, **options: Any) -> CovarianceOperator:
    """`kernel.operator(x, z)` with the fields of OperatorOptions."""
    made = kernel.operator(x, z)
    return CovarianceOperator(made.problem, made.dtype, options=OperatorOptions(**options))


def skipping_with(
    kernel: Kernel, x: Tensor, z: Tensor | None, skip_below: float, panel: int, **options: Any
) -> SkippingOperator:
    """`kernel.operator(x, z, skip_below=)` with panels of so many rows and the fields of OperatorOptions."""
    return SkippingOperator.of(operator_with(kernel, x, z, **options), skip_below, panel)
