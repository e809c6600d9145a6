"""Transforms of the target: a monotone T for which T(y) is modelled, and distributions of y back in its own units.

The identity, the logarithm, and the powers of Yeo & Johnson (2000) applied to the standardised target. The JSON form
comes back from untrusted files, so reading it checks every number. Which one a table gets is `choices`'
business. Does not do: powers outside 0 to 2, whose range is bounded, so that some of a normal variable would be no y.
"""

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from flashgp.foundations.errors import DomainError
from flashgp.foundations.json_values import json_fields, refused
from flashgp.foundations.normal import LOG_2PI, check_probability, half_width, standard_quantile
from flashgp.scores import NumberAnswers

Array = npt.NDArray[np.float64]

KINDS = ("none", "log", "yeo-johnson")
_MIN, _MAX = 1e-290, 1e290  # of a scale, as `units`
_FARTHEST, _BISECTIONS = 38.0, 60  # a standard normal value, of float64; halvings of an interval
_MAX_POWER = 2.0
_NODES = 96  # of each side of 0: moments to 1e-9 for deviations up to 10 standard deviations of the target
_TAIL = 10.0  # standard deviations beyond which a normal density is below rounding
_HERMITE_TERMS = 40
_BLOCK_ROWS = 4096


def check_target_transform(wanted: object) -> None:
    """Raises: DomainError for what is neither "auto" nor one of `KINDS`."""
    if not isinstance(wanted, str) or wanted not in ("auto", *KINDS):
        raise DomainError(
            f"`target_transform` must be one of {', '.join(('auto', *KINDS))}, got {wanted!r}; choose one of these"
        )


@dataclass(frozen=True)
class TargetTransform:
    """A strictly increasing T from y to w, eq. (M-140): what is modelled is w, standardised afterwards.

    With s = (y - shift) / scale: "none" is y itself; "log" is log s with shift 0, for positive y; "yeo-johnson" is
    ((1 + s)^power - 1) / power for s of 0 or more, and -((1 - s)^(2 - power) - 1) / (2 - power) below 0, with
    logarithms where an exponent is 0.

    Args:
        kind: one of `KINDS`.
        power: of Yeo-Johnson, 0 to 2; 1 is linear.
        shift, scale: of y, in its units; scale positive.

    Source: Yeo & Johnson (2000), A new family of power transformations, eq. 2.1.

    Example:
        >>> transform = TargetTransform("yeo-johnson", power=0.5, shift=1.0, scale=2.0)
        >>> w = transform.forward(np.array([-3.0, 1.0, 7.0]))
        >>> transform.inverse(w).round(12)
        array([-3.,  1.,  7.])
    """

    kind: str = "none"
    power: float = 1.0
    shift: float = 0.0
    scale: float = 1.0

    @property
    def identity(self) -> bool:
        """True if w is y."""
        return self.kind == "none"

    def __str__(self) -> str:
        return f"Yeo-Johnson with power {self.power:g}" if self.kind == "yeo-johnson" else self.kind

    def forward(self, y: Any) -> Any:
        """w = T(y), eq. (M-140), any shape; NaN where y is outside its domain."""
        if self.identity:
            return y
        s = (np.asarray(y, dtype=np.float64) - self.shift) / self.scale
        with np.errstate(divide="ignore", invalid="ignore"):
            if self.kind == "log":
                return np.log(s)
            return np.where(s < 0.0, -_box_cox(np.maximum(-s, 0.0), 2.0 - self.power),
                            _box_cox(np.maximum(s, 0.0), self.power))  # fmt: skip

    def check(self, y: Any, rows: Any = None, name: str = "y") -> None:
        """Raises: DomainError naming the row of the first target, (n,), that has no logarithm.

        Args: rows: their numbers; name: of the target.
        """
        if self.kind == "log" and bool((np.asarray(y) <= 0.0).any()):
            first = int(np.argmax(np.asarray(y) <= 0.0))
            row = first if rows is None else int(rows[first])
            raise DomainError(
                f"`{name}` must be positive for a logarithm of the target, got {float(y[first]):g} at row {row}; use "
                "the transform yeo-johnson, or leave such rows out"
            )

    def inverse(self, w: Any) -> Any:
        """y of w, any shape; inf where it overflows."""
        if self.identity:
            return w
        w = np.asarray(w, dtype=np.float64)
        with np.errstate(over="ignore"):
            if self.kind == "log":
                s = np.exp(w)
            else:
                s = np.where(w < 0.0, -_inverse_box_cox(np.maximum(-w, 0.0), 2.0 - self.power),
                             _inverse_box_cox(np.maximum(w, 0.0), self.power))  # fmt: skip
            return s * self.scale + self.shift

    def log_slope(self, y: Any) -> Array:
        """log dT/dy at y, nats: what the log density of w gains to be that of y, eq. (M-141)."""
        y = np.asarray(y, dtype=np.float64)
        if self.identity:
            return np.zeros_like(y)
        if self.kind == "log":
            with np.errstate(divide="ignore", invalid="ignore"):
                return np.asarray(-np.log(y - self.shift))
        s = (y - self.shift) / self.scale
        return np.asarray((self.power - 1.0) * np.sign(s) * np.log1p(np.abs(s)) - math.log(self.scale))

    def to_json(self) -> dict[str, Any]:
        """JSON values; `from_json` gives an equal object back."""
        return {"kind": self.kind, "power": self.power, "shift": self.shift, "scale": self.scale}

    @staticmethod
    def from_json(data: object) -> "TargetTransform":
        """Read what `to_json` wrote, from a file that may be hostile.

        Raises:
            ModelFileError: naming the first field that is absent, unknown, or out of its range.
        """
        where = "scaling.transform"
        fields = json_fields(data, where, ("kind", "power", "shift", "scale"))
        kind = fields.pop("kind")
        if not isinstance(kind, str) or kind not in KINDS:
            raise refused(f"{where}.kind", f"one of {', '.join(KINDS)}", kind)
        bounds = {"power": (0.0, _MAX_POWER), "shift": (-_MAX, _MAX), "scale": (_MIN, _MAX)}
        for name, (low, high) in bounds.items():
            if type(fields[name]) not in (int, float) or not low <= fields[name] <= high:
                raise refused(f"{where}.{name}", f"a number from {low:g} to {high:g}", fields[name])
        if kind != "yeo-johnson" and (fields["power"] != 1.0 or fields["shift"] != 0.0):
            raise refused(where, f"a {kind} transform with power 1 and shift 0", "others")
        if kind == "none" and fields["scale"] != 1.0:
            raise refused(f"{where}.scale", "1 without a transform", fields["scale"])
        return TargetTransform(kind, **{name: float(value) for name, value in fields.items()})


@dataclass(frozen=True, eq=False)
class WarpedNormal(NumberAnswers):
    """New observations y = T^-1(w), each with w ~ N(location, spread^2), in units of y, eqs. (M-141) and (M-142).

    Args:
        location, spread: of w, any one shape, float64; spread 0 or more.
        transform: T.

    Source: Snelson, Rasmussen & Ghahramani (2003), Warped Gaussian processes, section 3.

    Example:
        >>> y = WarpedNormal(np.zeros(1), np.ones(1), TargetTransform("log"))
        >>> y.median, y.mean.round(4), y.quantile(0.975).round(3)
        (array([1.]), array([1.6487]), array([7.099]))
    """

    location: Array
    spread: Array
    transform: TargetTransform

    def __len__(self) -> int:
        return len(self.location)

    @property
    def predicted(self) -> npt.NDArray[np.bool_]:
        return np.isfinite(self.location)

    def rows(self, index: Any) -> "WarpedNormal":
        """Distribution of some entries, as NumPy indexes them."""
        return WarpedNormal(self.location[index], self.spread[index], self.transform)

    @property
    def mean(self) -> Array:
        """E y: in closed form for the identity and the logarithm, else by quadrature. Cost: 200 powers an entry."""
        return self._moments()[0]

    @property
    def std(self) -> Array:
        """The standard deviation of y, as `mean`."""
        return self._moments()[1]

    @property
    def median(self) -> Array:
        """The median of y."""
        return np.asarray(self.transform.inverse(self.location))

    def quantile(self, q: float) -> Array:
        """The q-quantile of y. Raises: DomainError unless 0 < q < 1."""
        return np.asarray(self.transform.inverse(self.location + standard_quantile(q) * self.spread))

    def interval(self, level: float = 0.95) -> tuple[Array, Array]:
        """The central interval that holds y with that probability. Raises: DomainError unless 0 < level < 1."""
        half = half_width(level) * self.spread
        lower, upper = (self.transform.inverse(self.location + move) for move in (-half, half))
        return np.asarray(lower), np.asarray(upper)

    def standardised(self, y: Array) -> Array:
        """(T(y) - location) / spread: standard normal where predictions are right; 0 for 0/0, -inf outside T.

        NaN where y or the prediction is.
        """
        error = np.asarray(self.transform.forward(y)) - self.location
        outside = np.isnan(error) & ~np.isnan(y) & ~np.isnan(self.location)
        with np.errstate(divide="ignore", invalid="ignore"):
            z = np.where(error == 0.0, 0.0, error / self.spread)
        return np.where(outside, -np.inf, z)

    def inside(self, y: Array, level: float = 0.95) -> npt.NDArray[np.bool_]:
        return np.asarray(np.abs(self.standardised(y)) <= half_width(level))

    def log_prob(self, y: Array) -> Array:
        """The log density of y, entry by entry, nats, eq. (M-141); -inf where no y can be."""
        z, slope = self.standardised(y), self.transform.log_slope(y)
        with np.errstate(divide="ignore", invalid="ignore"):
            value = -0.5 * (np.square(z) + LOG_2PI) - np.log(self.spread) + slope
        return np.where(np.isinf(z), -np.inf, value)

    def covariance(self, joint: Array) -> Array:
        """Cov(y_i, y_j) where the w are jointly normal with the covariance `joint` (n, n), eq. (M-142).

        Exact for the identity and the logarithm. Else 40 terms of Mehler's expansion, the diagonal by quadrature.
        Cost: 40 products of n^2 entries. location and spread are (n,).
        """
        if self.transform.identity:
            return joint
        mean, std = self._moments()
        if self.transform.kind == "log":
            return np.asarray(np.outer(mean, mean) * np.expm1(joint))
        scale = np.where(self.spread > 0.0, self.spread, 1.0)
        correlation = np.clip(joint / np.outer(scale, scale), -1.0, 1.0)
        terms = self._hermite()
        total, power = np.zeros_like(joint), np.ones_like(joint)
        for term in terms.T:
            power *= correlation
            total += power * np.outer(term, term)
        np.fill_diagonal(total, np.square(std))
        return total

    # -- quadrature -------------------------------------------------------------------------------------------------
    def _moments(self) -> tuple[Array, Array]:
        """Mean and standard deviation, eq. (M-142)."""
        transform, location, spread = self.transform, self.location, self.spread
        if transform.identity:
            return location, spread
        if transform.kind == "log":
            variance = np.square(spread)
            with np.errstate(over="ignore", invalid="ignore"):
                mean = transform.scale * np.exp(location + 0.5 * variance)
                return mean, np.where(spread > 0.0, mean * np.sqrt(np.expm1(variance)), 0.0)
        mean, std = np.empty(location.size), np.empty(location.size)
        unit = math.ldexp(1.0, math.frexp(transform.scale)[1])  # squares may overflow; this rounds nothing
        for rows, _, weights, offsets in self._nodes():
            # Around the median, so that what is squared is as small as the deviation.
            first = (weights * offsets).sum(1)
            mean[rows] = np.ravel(self.median)[rows] + first
            std[rows] = unit * np.sqrt((weights * np.square((offsets - first[:, None]) / unit)).sum(1))
        return mean.reshape(location.shape), std.reshape(location.shape)

    def _hermite(self) -> Array:
        """Coefficients of y in orthonormal Hermite polynomials of (w - location) / spread, from the first, (n, 40)."""
        found = np.empty((self.location.size, _HERMITE_TERMS))
        for rows, t, weights, offsets in self._nodes():
            before, polynomial = np.zeros_like(t), np.ones_like(t)
            for k in range(_HERMITE_TERMS):
                before, polynomial = polynomial, (t * polynomial - math.sqrt(k) * before) / math.sqrt(k + 1)
                found[rows, k] = (weights * polynomial * offsets).sum(1)
        return found

    def _nodes(self) -> Any:
        """Blocks of entries: which; t of the standard normal, weights and y - median at its nodes, each (block, 192).

        Gauss-Legendre on both sides of w = 0, where the third derivative of T jumps; the tails reach further where y
        grows exponentially.
        """
        transform = self.transform
        unit, unit_weight = _legendre()
        locations, spreads, medians = (np.ravel(v) for v in (self.location, self.spread, self.median))
        for start in range(0, len(locations), _BLOCK_ROWS):
            rows = slice(start, start + _BLOCK_ROWS)
            m, s = locations[rows, None], spreads[rows, None]
            low = -_TAIL - 2.0 * s * (transform.power == _MAX_POWER)
            high = _TAIL + 2.0 * s * (transform.power == 0.0)
            kink = np.clip(np.divide(-m, s, out=np.where(m > 0.0, -np.inf, np.inf), where=s > 0.0), low, high)
            t = np.concatenate([low + (kink - low) * unit, kink + (high - kink) * unit], axis=1)
            weights = np.concatenate([(kink - low) * unit_weight, (high - kink) * unit_weight], axis=1)
            weights *= np.exp(-0.5 * (np.square(t) + LOG_2PI))
            yield rows, t, weights, transform.inverse(m + s * t) - medians[rows, None]


@dataclass(frozen=True, eq=False)
class WarpedMixture(NumberAnswers):
    """New observations of which each is one of k warped normal ones, with known probabilities, eqs. (M-141), (M-380).

    Fields: parts, whose location and spread are (k, n); weights, (k, n).
    """

    parts: WarpedNormal
    weights: Array

    def __len__(self) -> int:
        return self.weights.shape[-1]

    @property
    def predicted(self) -> npt.NDArray[np.bool_]:
        return np.isfinite(self.parts.location[0])

    def rows(self, index: Any) -> "WarpedMixture":
        location, spread = self.parts.location[:, index], self.parts.spread[:, index]
        return WarpedMixture(WarpedNormal(location, spread, self.parts.transform), self.weights[:, index])

    @property
    def mean(self) -> Array:
        return self._averaged(self.parts.mean)

    @property
    def std(self) -> Array:
        mean, std = self.parts.mean, self.parts.std
        return np.sqrt(self._averaged(np.square(std) + np.square(mean - self._averaged(mean))))

    def _averaged(self, values: Array) -> Array:
        return np.asarray((self.weights * values).sum(axis=0))

    def cdf(self, y: Array) -> Array:
        """P(observation <= y)."""
        from scipy.special import ndtr

        return self._averaged(ndtr(self.parts.standardised(y)))

    def standardised(self, y: Array) -> Array:
        """The standard normal value that is exceeded with the probability that y is; each tail by its own."""
        from scipy.special import ndtr, ndtri

        z = self.parts.standardised(y)
        below, above = (self._averaged(ndtr(sign * z)) for sign in (1.0, -1.0))
        return np.clip(np.where(below < above, ndtri(below), -ndtri(above)), -_FARTHEST, _FARTHEST)

    def inside(self, y: Array, level: float = 0.95) -> npt.NDArray[np.bool_]:
        return np.asarray(np.abs(self.cdf(y) - 0.5) <= 0.5 * level)

    def quantile(self, q: float) -> Array:
        """The q-quantile of y, by bisection between those of the parts. Raises: DomainError unless 0 < q < 1."""
        z = standard_quantile(q)
        ends = self.parts.location + z * self.parts.spread
        low, high = ends.min(axis=0), ends.max(axis=0)
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            below = self.cdf(np.asarray(self.parts.transform.inverse(middle))) < q
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return np.asarray(self.parts.transform.inverse(0.5 * (low + high)))

    def interval(self, level: float = 0.95) -> tuple[Array, Array]:
        tail = 0.5 * (1.0 - check_probability(level, "level"))
        return self.quantile(tail), self.quantile(1.0 - tail)

    def log_prob(self, y: Array) -> Array:
        with np.errstate(divide="ignore"):
            return np.asarray(np.logaddexp.reduce(np.log(self.weights) + self.parts.log_prob(y), axis=0))


@cache
def _legendre() -> tuple[Array, Array]:
    """Nodes and weights of Gauss-Legendre on (0, 1)."""
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    return 0.5 * (nodes + 1.0), 0.5 * weights


def _box_cox(s: Array, power: float) -> Array:
    """((1 + s)^power - 1) / power, log(1 + s) for power 0; s 0 or more."""
    return np.asarray(np.log1p(s) if power == 0.0 else np.expm1(power * np.log1p(s)) / power)


def _inverse_box_cox(w: Array, power: float) -> Array:
    """s of w, 0 or more."""
    return np.asarray(np.expm1(w) if power == 0.0 else np.expm1(np.log1p(power * w) / power))
