"""What a state offers to predictions: mean, variance, covariance and paths of f at points."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flashgp.foundations.report import Report

__all__ = ["Predictor", "Variance"]


@dataclass(frozen=True, eq=False)
class Variance:
    """Var f at points, (*batch, n_test, outputs or 1), float64.

    Fields: value; where it is sampled standard_error, and lower and upper, which hold the exact one with a probability
    of 95 %; None where it is exact.
    """

    value: Tensor
    standard_error: Tensor | None = None
    lower: Tensor | None = None
    upper: Tensor | None = None

    def mapped(self, function: Callable[[Tensor], Tensor]) -> "Variance":
        """The same with a function applied to every tensor, such as one that changes their shape."""
        others = (None if part is None else function(part) for part in (self.standard_error, self.lower, self.upper))
        return Variance(function(self.value), *others)


class Predictor(ABC):
    """f at points x (*batch, n_test, d), in float64. A `Prediction` has one of its own, and asks it nothing else.

    Fields: deterministic, whether all answers have the same bits whatever the number of threads; differentiable,
    whether they carry gradients to parameters, x and y beside those to the points; report.
    """

    deterministic: bool = False
    differentiable: bool = False
    report: Report

    @abstractmethod
    def mean(self, x: Tensor) -> Tensor:
        """E f(x), (*batch, n_test, outputs or 1)."""

    @abstractmethod
    def variance(self, x: Tensor) -> Variance:
        """Var f(x), the same for every output."""

    @abstractmethod
    def covariance(self, x: Tensor) -> Tensor:
        """Of f at the points with each other, (*batch, n_test, n_test)."""

    @abstractmethod
    def paths(self, count: int, features: int, seed: int | None) -> Any:
        """Draws of f as functions of points, (count, *batch, n_test[, outputs])."""

    def rounding(self, x: Tensor) -> Tensor:
        """How far rounding may move entries of the covariance, (*batch,): what a jitter may hide."""
        return x.shape[-2] * torch.finfo(torch.float64).eps * self.variance(x).value.detach().mean((-2, -1))

    def forget(self) -> None:  # noqa: B027 - most keep nothing
        """Drop what is kept of the points: gradients are asked for that it does not carry."""

    def wants_graph(self, x: Tensor) -> bool:
        """Whether answers carry gradients now."""
        return torch.is_grad_enabled() and (x.requires_grad or self.differentiable)
