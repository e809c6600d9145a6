"""Targets: values of y as a likelihood takes them, and its predictions as answers in units of y.

`Number` shifts and scales, after a transform. The JSON form comes back from untrusted files, so reading it checks every
field. Does not do: the inputs (`flashgp.units`), the choice of a transform (`flashgp.choices`).
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from flashgp.foundations.json_values import json_fields, refused
from flashgp.likelihoods import PredictiveDistribution
from flashgp.likelihoods.gaussian import Normal
from flashgp.scores import Answers
from flashgp.target_transform import TargetTransform, WarpedNormal

Array = npt.NDArray[np.float64]

MIN_SCALE, MAX_SCALE = 1e-290, 1e290  # scales outside would overflow when squared or divided by


@dataclass(frozen=True)
class Placed:
    """Rows of a table that were predicted. Fields: rows, their positions, increasing; count, rows of the table."""

    rows: npt.NDArray[np.int64]
    count: int

    def __call__(self, values: Any) -> Array:
        """Values (..., rows predicted) at their rows, NaN at the others."""
        found = values.detach().double().numpy(force=True) if hasattr(values, "detach") else np.asarray(values)
        if len(self.rows) == self.count:
            return np.asarray(found)
        whole = np.full((*found.shape[:-1], self.count), np.nan)
        whole[..., self.rows] = found
        return whole

    @staticmethod
    def all(count: int) -> "Placed":
        """All rows of a table."""
        return Placed(np.arange(count), count)


class Target(ABC):
    """One target: what a likelihood gets for y, and what a user gets for its predictions."""

    @property
    @abstractmethod
    def unit(self) -> float:
        """The standard deviation of the training targets, in units of y."""

    @property
    @abstractmethod
    def sizes(self) -> tuple[float, float]:
        """Shift and scale of `plain`."""

    @property
    @abstractmethod
    def linear(self) -> bool:
        """True if f is y, shifted and scaled, so that its parameters have units of y."""

    @property
    @abstractmethod
    def described(self) -> tuple[str, str, str]:
        """What it is, mean and standard deviation, in words."""

    @abstractmethod
    def check(self, y: Any, rows: Any = None, name: str = "y") -> None:
        """Raises: DomainError naming the row of the first of y, (n,), that cannot be. Args: rows, their numbers; name,
        of the target."""

    @abstractmethod
    def plain(self, y: Any) -> Any:
        """y before it is shifted and scaled, of its shape; NaN where it cannot be."""

    @abstractmethod
    def encode(self, y: Any) -> Any:
        """y as the likelihood takes it, of its shape, array or tensor; NaN where it cannot be."""

    @abstractmethod
    def in_units(self, shift: float, scale: float) -> Self:
        """The target with a shift and a scale of `plain`, where it has such."""

    @abstractmethod
    def log_slope(self, y: Array) -> Array:
        """log of the derivative of `encode` at y, nats: what the log density of encoded values lacks to be of y."""

    @abstractmethod
    def answers(self, found: PredictiveDistribution, placed: Placed) -> Answers:
        """Answers for the rows of a table, from the distribution of encoded observations, (rows predicted,)."""

    def std_error(self, found: PredictiveDistribution, error: Any, placed: Placed) -> Array | None:
        """Standard errors of the deviations of `answers`, where f has variances with these; None for none."""
        return None

    @abstractmethod
    def mean_of(self, mean: Array, std: Array) -> Array:
        """The mean of y, from mean and standard deviation of its encoded value."""

    @property
    @abstractmethod
    def told(self) -> dict[str, Any]:
        """What it is, as JSON values for a report."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """JSON values; `from_json` gives an equal target back."""

    @staticmethod
    def from_json(data: object) -> "Target":
        """Read what `to_json` wrote, from a file that may be hostile.

        Raises:
            ModelFileError: naming the first field that is absent, unknown, or no finite (positive) number.
        """
        transformed = isinstance(data, dict) and "transform" in data
        fields = json_fields(data, "scaling", ("y_shift", "y_scale", *("transform",) * transformed))
        shift, scale = number(fields["y_shift"], "y_shift"), number(fields["y_scale"], "y_scale", positive=True)
        return Number(
            shift, scale, TargetTransform.from_json(fields["transform"]) if transformed else TargetTransform()
        )


@dataclass(frozen=True)
class Number(Target):
    """A number: encoded as (T(y) - shift) / scale.

    Fields:
        shift, scale: of y, transformed; scale is positive.
        transform: T, eq. (M-140); the identity by default.
    """

    shift: float = 0.0
    scale: float = 1.0
    transform: TargetTransform = field(default_factory=TargetTransform)

    @property
    def unit(self) -> float:
        return self.scale if self.transform.identity else self.transform.scale

    @property
    def sizes(self) -> tuple[float, float]:
        return self.shift, self.scale

    @property
    def linear(self) -> bool:
        return self.transform.identity

    @property
    def described(self) -> tuple[str, str, str]:
        what = "target" if self.transform.identity else f"target, transformed ({self.transform})"
        return what, f"{self.shift:.4g}", f"{self.scale:.4g}"

    def check(self, y: Any, rows: Any = None, name: str = "y") -> None:
        self.transform.check(y, rows, name)

    def plain(self, y: Any) -> Any:
        return self.transform.forward(y)

    def encode(self, y: Any) -> Any:
        return (self.plain(y) - self.shift) / self.scale

    def in_units(self, shift: float, scale: float) -> "Number":
        return replace(self, shift=shift, scale=scale)

    def decode(self, z: Any) -> Any:
        """Encoded targets, samples or quantiles to units of y."""
        return self.transform.inverse(self.mean(z))

    def mean(self, mean: Any) -> Any:
        """An encoded mean to units of T(y), which are those of y without a transform."""
        return mean * self.scale + self.shift

    def std(self, std: Any) -> Any:
        """An encoded standard deviation to units of T(y)."""
        return std * self.scale

    def log_slope(self, y: Array) -> Array:
        return self.transform.log_slope(y) - math.log(self.scale)

    def normal(self, mean: Array, std: Array) -> WarpedNormal:
        """The distribution of y whose encoded value is normal, eq. (M-141)."""
        return WarpedNormal(np.asarray(self.mean(mean), np.float64), np.asarray(self.std(std), np.float64),
                            self.transform)  # fmt: skip

    def answers(self, found: PredictiveDistribution, placed: Placed) -> WarpedNormal:
        assert isinstance(found, Normal)
        return self.normal(placed(found.mean), placed(found.variance.sqrt()))

    def std_error(self, found: PredictiveDistribution, error: Any, placed: Placed) -> Array:
        # To first order: the root of a variance v moves by half the error of v over the root.
        mean, std = placed(found.mean), placed(found.variance.sqrt())
        moved = 0.5 * placed(error) / np.maximum(std, np.finfo(np.float64).tiny)
        if self.linear:
            return np.asarray(self.std(moved))
        return np.abs(self.normal(mean, std + moved).std - self.normal(mean, std).std)

    def mean_of(self, mean: Array, std: Array) -> Array:
        """Eq. (M-142)."""
        return self.normal(mean, std).mean

    @property
    def told(self) -> dict[str, Any]:
        return {"target_transform": self.transform.to_json()}

    def to_json(self) -> dict[str, Any]:
        units = {"y_shift": self.shift, "y_scale": self.scale}
        return units if self.transform.identity else {**units, "transform": self.transform.to_json()}


def number(value: Any, name: str, positive: bool = False) -> float:
    """A number of a file. Raises: ModelFileError."""
    low = MIN_SCALE if positive else -MAX_SCALE
    if type(value) not in (int, float) or not low < value < MAX_SCALE:
        raise refused(f"scaling.{name}", "a finite positive number" if positive else "a finite number", value)
    return float(value)
