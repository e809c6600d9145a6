"""Targets: values of y as a likelihood takes them, and its predictions as answers in units of y.

`Number` shifts and scales, after a transform; `Unshifted` leaves counts and other targets with a zero as they are, or
scales them; `Classes` numbers labels. The JSON form comes back from untrusted files, so reading it checks every field.
Does not do: the inputs (`flashgp.units`), the choice of a transform (`flashgp.choices`).
"""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from flashgp.foundations.errors import DomainError
from flashgp.foundations.json_values import json_fields, json_flag, json_list, refused
from flashgp.foundations.normal import check_probability
from flashgp.likelihoods import REGISTRY, Bernoulli, Categorical, Likelihood, PredictiveDistribution
from flashgp.likelihoods.finite_mixture import FiniteMixture
from flashgp.likelihoods.gaussian import Normal
from flashgp.scores import Answers, ClassAnswers, CountScores, NumberAnswers, Scores
from flashgp.target_transform import TargetTransform, WarpedMixture, WarpedNormal

Array = npt.NDArray[np.float64]

_LABELS = (str, bool, int, float)  # types of a file
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
    def transforms(self) -> bool:
        """True if `plain` is not y."""
        return False

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
    def decode(self, z: Any) -> Any:
        """Encoded targets, samples or quantiles to units of y."""

    def transformed(self, transform: TargetTransform) -> "Target":
        """The target after a transform, the identity where it takes none."""
        return self

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

    @property
    def version(self) -> int:
        """Version of a scaling whose file form this is part of."""
        return 3

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """JSON values; `from_json` gives an equal target back."""

    @staticmethod
    def from_json(data: dict[str, Any]) -> "Target":
        """Read what `to_json` wrote, from a file that may be hostile.

        Raises:
            ModelFileError: naming the first field that is absent, unknown, or no finite (positive) number.
        """
        if "target" in data:
            kind = data["target"].get("kind") if isinstance(data["target"], dict) else None
            if kind not in ("classes", "unshifted"):
                raise refused("scaling.target.kind", "classes or unshifted", kind)
            return (Classes if kind == "classes" else Unshifted).read(data["target"])
        shift, scale = number(data["y_shift"], "y_shift"), number(data["y_scale"], "y_scale", positive=True)
        transform = TargetTransform.from_json(data["transform"]) if "transform" in data else TargetTransform()
        return Number(shift, scale, transform)


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
    def transforms(self) -> bool:
        return not self.transform.identity

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

    def transformed(self, transform: TargetTransform) -> "Number":
        return replace(self, transform=transform)

    def in_units(self, shift: float, scale: float) -> "Number":
        return replace(self, shift=shift, scale=scale)

    def decode(self, z: Any) -> Any:
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

    def answers(self, found: PredictiveDistribution, placed: Placed) -> NumberAnswers:
        if isinstance(found, FiniteMixture):
            parts = self.normal(placed(found.each.mean), placed(found.each.variance.sqrt()))
            return WarpedMixture(parts, placed(found.weights))
        if not isinstance(found, Normal):
            return Observations.of(found, placed, self.shift, self.scale)
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

    @property
    def version(self) -> int:
        return 1 if self.transform.identity else 2  # of older files

    def to_json(self) -> dict[str, Any]:
        units = {"y_shift": self.shift, "y_scale": self.scale}
        return units if self.transform.identity else {**units, "transform": self.transform.to_json()}


NUMBER = Number()  # as it is


@dataclass(frozen=True)
class Unshifted(Target):
    """A number whose zero means something: encoded as y / scale.

    Fields: scale; counts, whether it is a whole number; scaled, whether the scale is the mean of the training targets.
    """

    scale: float = 1.0
    counts: bool = False
    scaled: bool = False

    @property
    def unit(self) -> float:
        return self.scale

    @property
    def sizes(self) -> tuple[float, float]:
        return 0.0, self.scale

    linear = False

    @property
    def described(self) -> tuple[str, str, str]:
        return "target, counts" if self.counts else "target", "", f"{self.scale:.4g}" if self.scaled else ""

    @property
    def told(self) -> dict[str, Any]:
        return {"target_scale": self.scale}

    def check(self, y: Any, rows: Any = None, name: str = "y") -> None:
        """Nothing: what may be observed is the likelihood's matter."""

    def plain(self, y: Any) -> Any:
        return y

    def encode(self, y: Any) -> Any:
        return y / self.scale

    def decode(self, z: Any) -> Any:
        return z * self.scale

    def in_units(self, shift: float, scale: float) -> "Unshifted":
        return replace(self, scale=shift) if self.scaled and shift > 0.0 else self

    def log_slope(self, y: Array) -> Array:
        return np.full(np.shape(y), -math.log(self.scale))

    def answers(self, found: PredictiveDistribution, placed: Placed) -> "Observations":
        return Observations.of(found, placed, 0.0, self.scale, CountScores if self.counts else Scores)

    def mean_of(self, mean: Array, std: Array) -> Array:
        return mean * self.scale

    def to_json(self) -> dict[str, Any]:
        fields = {"scale": self.scale, "counts": self.counts, "scaled": self.scaled}
        return {"target": {"kind": "unshifted", **fields}}

    @staticmethod
    def read(data: dict[str, Any]) -> "Unshifted":
        """Raises: ModelFileError."""
        fields = json_fields(data, "scaling.target", ("kind", "scale", "counts", "scaled"))
        scale = number(fields["scale"], "target.scale", positive=True)
        return Unshifted(scale, *(json_flag(fields[name], f"scaling.target.{name}") for name in ("counts", "scaled")))


@dataclass(frozen=True, eq=False)
class Observations(NumberAnswers):
    """New observations y = scale * v + shift with v of any distribution.

    Fields: found, of v, (rows predicted,); place, (n,), of each row among these, -1 for none; shift; scale; kind, of
    scores.
    """

    found: PredictiveDistribution
    place: npt.NDArray[np.int64]
    shift: float
    scale: float
    kind: type[Scores] = Scores

    @staticmethod
    def of(found: PredictiveDistribution, placed: Placed, *units: Any) -> "Observations":
        """Args: units, shift, scale and kind."""
        place = np.full(placed.count, -1)
        place[placed.rows] = np.arange(len(placed.rows))
        return Observations(found, place, *units)

    def __len__(self) -> int:
        return len(self.place)

    @property
    def predicted(self) -> npt.NDArray[np.bool_]:
        return self.place >= 0

    def rows(self, index: Any) -> "Observations":
        return replace(self, place=self.place[index])

    def _placed(self, values: Tensor) -> Array:
        found = np.append(values.double().numpy(force=True), np.nan)
        return found[self.place]

    @property
    def mean(self) -> Array:
        return self._placed(self.found.mean) * self.scale + self.shift

    @property
    def std(self) -> Array:
        return self._placed(self.found.variance.sqrt()) * self.scale

    def quantile(self, q: float) -> Array:
        return self._placed(self.found.quantile(check_probability(q, "q"))) * self.scale + self.shift

    def interval(self, level: float = 0.95) -> tuple[Array, Array]:
        tail = 0.5 * (1.0 - check_probability(level, "level"))
        return self.quantile(tail), self.quantile(1.0 - tail)

    def inside(self, y: Array, level: float = 0.95) -> npt.NDArray[np.bool_]:
        known, values = self._standing(y)
        return known & (self._placed(self.found.inside(values, check_probability(level, "level"))) == 1.0)

    def log_prob(self, y: Array) -> Array:
        known, values = self._standing(y)
        return np.where(known, self._placed(self.found.log_prob(values)) - math.log(self.scale), np.nan)

    def _standing(self, y: Array) -> tuple[npt.NDArray[np.bool_], Tensor]:
        """Rows that have a prediction and a value, and y in units of v, in the order of the predictions."""
        known = self.predicted & np.isfinite(y)
        values = self.found.mean.new_ones(self.found.mean.shape, dtype=torch.float64)  # of rows that nobody asks for
        values[torch.from_numpy(self.place[known])] = values.new_tensor((y[known] - self.shift) / self.scale)
        return known, values

    def scores(self, y: Array, unit: float) -> Scores:
        return self.kind.of(y, self, unit)


@dataclass(frozen=True)
class Classes(Target):
    """Labels, which come as codes 0, 1, ... into them, and stay these.

    Fields: labels, two or more, sorted: texts, booleans or numbers.
    """

    labels: tuple[Any, ...]
    unit = 1.0
    sizes = 0.0, 1.0
    linear = False

    @property
    def described(self) -> tuple[str, str, str]:
        shown = ", ".join(map(str, self.labels[:8])) + (", ..." if len(self.labels) > 8 else "")
        return f"target, {len(self.labels)} classes: {shown}", "", ""

    @property
    def told(self) -> dict[str, Any]:
        return {"classes": list(self.labels)}

    def check(self, y: Any, rows: Any = None, name: str = "y") -> None:
        """Nothing: labels became codes."""

    def plain(self, y: Any) -> Any:
        return y

    def encode(self, y: Any) -> Any:
        return y

    def decode(self, z: Any) -> Any:
        return z

    def in_units(self, shift: float, scale: float) -> "Classes":
        return self

    def log_slope(self, y: Array) -> Array:
        return np.zeros(np.shape(y))

    def answers(self, found: PredictiveDistribution, placed: Placed) -> ClassAnswers:
        probability: Tensor = found.probability  # type: ignore[attr-defined]
        if probability.dim() == 2:  # of several latent functions
            logs = probability.log().mT
        else:
            logs = torch.stack([found.log_prob(torch.full_like(probability, code)) for code in (0.0, 1.0)])
        return ClassAnswers(placed(logs).T, self.labels)

    def mean_of(self, mean: Array, std: Array) -> Array:
        return mean

    def to_json(self) -> dict[str, Any]:
        return {"target": {"kind": "classes", "labels": list(self.labels)}}

    @staticmethod
    def read(data: dict[str, Any]) -> "Classes":
        """Raises: ModelFileError."""
        fields = json_fields(data, "scaling.target", ("kind", "labels"))
        labels = json_list(fields["labels"], "scaling.target.labels")
        if (
            len(labels) < 2
            or len({*map(repr, labels)}) != len(labels)
            or not all(type(one) in _LABELS for one in labels)
        ):
            raise refused("scaling.target.labels", "two or more texts, numbers or booleans that differ", labels)
        return Classes(tuple(labels))


# -- likelihoods of tables ---------------------------------------------------------------------------------------------
_COUNTS = Unshifted(counts=True)
# Targets of likelihoods by their classes' names; None for classes.
_TARGETS: Mapping[str, Target | None] = {
    "Gaussian": NUMBER, "StudentT": NUMBER, "Bernoulli": None, "Categorical": None, "Poisson": _COUNTS,
    "NegativeBinomial": _COUNTS,
    "Gamma": Unshifted(scaled=True), "Beta": Unshifted(),
}  # fmt: skip


def likelihood_names() -> dict[str, type[Likelihood]]:
    """Likelihoods by the name that tables have for them, such as "student-t"."""
    return {_dashed(name): REGISTRY[name] for name in _TARGETS if name in REGISTRY}


def _dashed(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()


def target_of(likelihood: Likelihood, labels: Sequence[Any] = ()) -> Target:
    """Target of a likelihood, before its units are learned. Args: labels, of classes."""
    return _TARGETS.get(likelihood.name, Unshifted()) or Classes(tuple(labels))


def likelihood_of_classes(count: int, asked: Likelihood | str | None = None) -> Likelihood:
    """The likelihood of so many classes, or the one asked for. Raises: DomainError where it is of others."""
    if isinstance(asked, Likelihood):
        found = asked
    else:
        found = Bernoulli() if count == 2 and asked != "categorical" else Categorical(count)
    most = found.classes if isinstance(found, Categorical) else 2
    if most != count or (asked == "bernoulli" and count != 2):
        raise DomainError(
            f"`likelihood` must be of {count} classes, as many as `y` has, got "
            f"{asked if isinstance(asked, str) else found.name} of {most if asked != 'bernoulli' else 2}; leave it out"
        )
    return found


def of_classes(likelihood: Likelihood | type[Likelihood]) -> bool:
    """True if a likelihood is of labels."""
    kind = likelihood if isinstance(likelihood, type) else type(likelihood)
    return _TARGETS.get(kind.__name__, NUMBER) is None


def number(value: Any, name: str, positive: bool = False) -> float:
    """A number of a file. Raises: ModelFileError."""
    low = MIN_SCALE if positive else -MAX_SCALE
    if type(value) not in (int, float) or not low < value < MAX_SCALE:
        raise refused(f"scaling.{name}", "a finite positive number" if positive else "a finite number", value)
    return float(value)
