"""Covariance functions for a table of standardised columns: the default one, and those that "auto" chooses among.

One definition for the estimator, the command line and plans. Which is the default was measured on 14 small tables
(docs/decisions/0024-default-kernel.md). Does not do: interactions of categories with the linear trend.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flashgp.kernels.base import Kernel
from flashgp.kernels.categorical import Categorical
from flashgp.kernels.linear import Linear
from flashgp.kernels.matern import Matern
from flashgp.kernels.periodic import Periodic
from flashgp.kernels.rational_quadratic import RationalQuadratic
from flashgp.kernels.squared_exponential import SquaredExponential
from flashgp.likelihoods.base import Likelihood


@dataclass(frozen=True)
class TableKernel:
    """A covariance function for any number of columns: a stationary part, and perhaps a linear trend.

    The stationary part has a lengthscale per numeric column and is multiplied by a Categorical over the columns of
    codes; the trend, of one variance for all slopes, is added. Parameters are those that a fit begins with for
    standardised columns: lengthscales sqrt(d), and a prior variance of 1, shared equally by the terms.

    Args:
        base: name of the stationary part.
        stationary: from lengthscales (d,) and active_dims to that part, of variance 1.
        linear: whether a linear trend is added.

    Example:
        >>> from flashgp.kernels.default import DEFAULT
        >>> DEFAULT.build(3)(torch.zeros(1, 3)).to_dense().shape
        torch.Size([1, 1])
    """

    base: str
    stationary: Callable[[Tensor, Sequence[int] | None], Kernel]
    linear: bool = False

    @property
    def name(self) -> str:
        """Name as it is shown."""
        return f"{self.base} + Linear" if self.linear else self.base

    def build(self, columns: int, codes: Sequence[int] = ()) -> Kernel:
        """The kernel of a table of so many columns, those of `codes` holding integer codes of categories."""
        real = [j for j in range(columns) if j not in codes]
        dims = None if len(real) == columns else real
        linear = self.linear and bool(real)
        parts: list[Kernel] = []
        if real:
            parts.append(self.stationary(torch.full((len(real),), len(real) ** 0.5, dtype=torch.float64), dims))
        if codes:
            parts.append(Categorical(torch.ones(len(codes), dtype=torch.float64), list(codes)))
        kernel = (0.5 if linear else 1.0) * (parts[0] if len(parts) == 1 else parts[0] * parts[1])
        return kernel + Linear(0.5 / len(real), dims) if linear else kernel

    def words(self, columns: int, codes: Sequence[int] = ()) -> str:
        """The covariance function of `build`, in words."""
        real = f"{self.base} (a lengthscale per numeric column)" if len(codes) < columns else ""
        kernel = " times ".join(filter(None, (real, "Categorical (a lengthscale per column)" if codes else "")))
        return f"{kernel} plus Linear" if self.linear and real else kernel


@dataclass(frozen=True)
class SeasonalKernel(TableKernel):
    """Kernel of a table with a column of time: with a Periodic term of this column for each period added.

    Args: time, position of the column; periods, in its standardised units.
    """

    time: int = 0
    periods: tuple[float, ...] = ()

    @property
    def name(self) -> str:
        return f"{super().name} + {' + '.join(['Periodic'] * len(self.periods))}"

    def build(self, columns: int, codes: Sequence[int] = ()) -> Kernel:
        kernel = super().build(columns, codes)
        for period in self.periods:
            kernel = kernel + 0.5 * Periodic(period, 1.0, active_dims=self.time)
        return kernel

    def words(self, columns: int, codes: Sequence[int] = ()) -> str:
        terms = "a Periodic term" if len(self.periods) == 1 else f"{len(self.periods)} Periodic terms"
        return f"{super().words(columns, codes)} plus {terms}, periods from the data"


CANDIDATES = (
    TableKernel("Matern-3/2", lambda scales, dims: Matern(1.5, scales, dims), linear=True),
    TableKernel("Matern-3/2", lambda scales, dims: Matern(1.5, scales, dims)),
    TableKernel("Matern-5/2", lambda scales, dims: Matern(2.5, scales, dims)),
    TableKernel("SquaredExponential", lambda scales, dims: SquaredExponential(scales, dims)),
    TableKernel("RationalQuadratic", lambda scales, dims: RationalQuadratic(1.0, scales, dims)),
)
DEFAULT, SMOOTH = CANDIDATES[0], CANDIDATES[2]
# Rows up to which, and rows of a column from which, hyperparameters are drawn for a smooth function without a trend.
FEW_ROWS, ROWS_OF_COLUMN = 500, 5
# Of several classes a trend in many columns tells training rows apart, and rows left out by sites do not show that.
DEFAULT_OF_CLASSES = CANDIDATES[1]
STATIONARY = CANDIDATES[1]  # which Fourier series need


def default_for(
    likelihood: Likelihood | None, rows: int = 0, columns: int = 1, uncertainty: str | None = None,
    approximation: str | None = None,
) -> TableKernel:  # fmt: skip
    """The default covariance function beside a likelihood, None for the Gaussian one.

    Where hyperparameters are drawn, a long lengthscale of a large variance is a trend (docs/decisions/0065-trust.md).
    Args: rows and columns, of the table; uncertainty and approximation, of the fit.
    """
    if approximation == "fourier":
        return STATIONARY
    few = ROWS_OF_COLUMN * columns <= rows <= FEW_ROWS
    if few and uncertainty is not None and (likelihood is None or likelihood.has_sites):
        return SMOOTH
    several = likelihood is not None and likelihood.spread_by_leaving_out
    return DEFAULT_OF_CLASSES if several else DEFAULT
