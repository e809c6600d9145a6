"""What draws of a prior are: functions of points, whatever they are made of."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from flashgp.foundations.events import Event
from flashgp.foundations.form import Rows
from flashgp.inference.prior import Prior
from flashgp.operators.covariance import CovarianceOperator
from flashgp.pairwise.problem import PairProblem


class PriorDraws(ABC):
    """Functions f0 of the prior without its mean; called on x (*batch, n, d), their values (*batch, n, columns).

    Fields: error, eq. (M-95); 0 where they have the prior's distribution, None where it is not measured yet.
    """

    error: float | None = None

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor: ...

    @property
    @abstractmethod
    def event(self) -> Event:
        """What the draws are, for the report."""


def prior_covariance(prior: Prior, rows: Rows, cols: Rows | None = None) -> CovarianceOperator:
    """The prior covariance between rows, float64."""
    theta = [t.to(rows.device) for t in prior.kernel.theta()]
    return CovarianceOperator(PairProblem(prior.kernel.form, theta, rows, cols), torch.float64)
