"""Interface of states to predictions: mean, variance, covariance and paths of f at points."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from flashgp.foundations.errors import MemoryBudgetError
from flashgp.foundations.machine import available_bytes
from flashgp.foundations.quantities import readable_bytes
from flashgp.foundations.report import Report

UNCHECKED_BYTES = 2**28  # of a joint covariance, below which the free memory is not asked for


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
        """The variance with a function applied to every tensor, such as one that changes their shape."""
        others = (None if part is None else function(part) for part in (self.standard_error, self.lower, self.upper))
        return Variance(function(self.value), *others)

    @classmethod
    def beside(cls, each: "Sequence[Variance]") -> "Variance":
        """Variances of several outputs, (*batch, n_test, 1) each, side by side; with errors where any of them has
        some."""

        def joined(parts: "list[Tensor | None]", exact: list[Tensor]) -> Tensor | None:
            if all(part is None for part in parts):
                return None
            known = [other if part is None else part for part, other in zip(parts, exact, strict=True)]
            return torch.cat(known, dim=-1)

        values = [one.value for one in each]
        zeros = [torch.zeros_like(value) for value in values]
        return cls(
            torch.cat(values, dim=-1), joined([one.standard_error for one in each], zeros),
            joined([one.lower for one in each], values), joined([one.upper for one in each], values),
        )  # fmt: skip


def check_joint(points: int, needed: int, device: torch.device, unchecked: int = UNCHECKED_BYTES) -> None:
    """MemoryBudgetError for a joint covariance of more bytes than are free, which below `unchecked` are not asked
    for."""
    if needed > unchecked and needed > (free := available_bytes(device)):
        raise MemoryBudgetError(
            f"`x_test` has {points:,} points, whose joint covariance needs {readable_bytes(needed)} with "
            f"{readable_bytes(free)} free; ask for fewer points, or for .variance, which needs no matrix",
            needed_bytes=needed,
            available_bytes=free,
        )


class Predictor(ABC):
    """f at points x (*batch, n_test, d), in float64. A `Prediction` has one of its own, and asks it nothing else.

    Fields: deterministic, whether all answers have the same bits whatever the number of threads; differentiable,
    whether they carry gradients to parameters, x and y beside those to the points; separate, whether outputs have
    covariances of their own; report.
    """

    deterministic: bool = False
    differentiable: bool = False
    separate: bool = False
    report: Report

    @abstractmethod
    def mean(self, x: Tensor) -> Tensor:
        """E f(x), (*batch, n_test, outputs or 1)."""

    @abstractmethod
    def variance(self, x: Tensor) -> Variance:
        """Var f(x), of the points and outputs."""

    @abstractmethod
    def covariance(self, x: Tensor) -> Tensor:
        """Covariance of f at the points with each other, (*batch, n_test, n_test); where outputs are `separate`
        (*batch, outputs, n_test, n_test)."""

    @abstractmethod
    def paths(self, count: int, features: int, seed: int | None) -> Any:
        """Draws of f as functions of points, (count, *batch, n_test[, outputs])."""

    def rounding(self, x: Tensor) -> Tensor:
        """Rounding of entries of the covariance, of its shape without the last two dimensions: what a jitter may
        hide."""
        return x.shape[-2] * torch.finfo(torch.float64).eps * self.variance(x).value.detach().mean((-2, -1))

    @property
    def quick(self) -> bool:
        """True if a few points take no solves, and nothing of other ranks."""
        return True

    def aside(self) -> "Predictor":
        """A predictor for other points, which leaves this one and its report as they are."""
        other = copy.copy(self)
        other.report = replace(self.report, events=[*self.report.events])
        return other

    def forget(self) -> None:  # noqa: B027 - most keep nothing
        """Drop what is kept of the points: gradients are asked for that it does not carry."""

    def wants_graph(self, x: Tensor) -> bool:
        """True if answers carry gradients now."""
        return torch.is_grad_enabled() and (x.requires_grad or self.differentiable)
