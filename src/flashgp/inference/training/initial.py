"""Initial values, weak priors and bounds from the data before fitting, by the role that a parameter plays.

Roles are declared by kernels, means and likelihoods (`roles`); this file gives them numbers. With s_k the standard
deviation of column k, of all where they are in one unit, (M-450), d the columns a kernel sees and v the variance of y:

    input_scale      start s_k sqrt(d)             prior log l ~ N(log s_k + sqrt 2 + log(d) / 2, 3)      (M-44)
    output_variance  start v / (added terms)       prior log v' ~ N(log v, 2^2)                            (M-45)
    noise_variance   start v / 10                  prior log n ~ N(log v - 4, 2^2)                         (M-46)
    noise_deviation  start sqrt(v / 10)            prior log s ~ N((log v - 4) / 2, 1)
    log_noise_variance, inverse_deviation         the same of a logarithm; start 1 / sqrt(v), prior log ~ N(it, 1.5^2)
    dispersion, concentration of a likelihood      prior log ~ N(log 0.1 or log 5, 1.5^2)

Of several outputs v is the mean of their variances, but for the noise that is one output's own: there it is that
output's.

The lengthscale prior grows with sqrt(d) so that its correlation at typical distances does not vanish in high
dimension (Hvarfner, Hellsten & Nardi, 2024). Columns of one kernel have most of its variance in common, the fewer they
are. Nothing here is attached to the model: `fit` adds it to its objective.

Terms of a sum are there to differ in scale, by orders of magnitude where a series has a trend and a quick part. Of r
terms with lengthscales of the same columns the one that its user gave the j-th longest starts at n^(-j / (r d)) of the
above, j = 0 to r - 1: from the spread of the rows to near their distance, and their priors are r times as wide. Priors
of variances and slopes are as many times as wide as there are terms.

Where f is latent, found by sites, labels say little of each column: columns differ less from their common scale; the
mean and the variance of f have priors too (M-290).
"""

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy
import torch
from torch import Tensor, nn

from flashgp.foundations.errors import DomainError
from flashgp.foundations.parameters import Parameter
from flashgp.inference.missing_cells import observed
from flashgp.inference.prior import Prior
from flashgp.inference.site_methods import Marginals
from flashgp.kernels import Kernel, Sum, Warped

LENGTHSCALE_PRIOR = (math.sqrt(2.0), math.sqrt(3.0))
VARIANCE_PRIOR_SD = 2.0
LATENT_VARIANCE_PRIOR_SD = 1.5
MANY_ROWS = 1000
SPARSE_SCALE, RANGE = 0.1, math.sqrt(12.0)  # of common inverse squares, in units of a range, so many deviations
LEAST_OWN, OWN_OF_COLUMN = 1 / 3, 1 / 192  # share of the variance of log lengthscales that is a column's own; of each
COLUMN_SDS = (0.25, 0.5)  # of columns around their common scale where f is latent; from MANY_ROWS on
LATENT_START = 0.6  # of the usual start: a search that begins with short ones takes a fifth fewer evaluations
NOISE_PRIOR = (-4.0, 2.0)
DISPERSION, CONCENTRATION, OWN_PRIOR_SD = 0.1, 5.0, 1.5  # of a likelihood's own parameters, weak
ONE_UNIT_COLUMNS = 3  # from which on columns with the same range may be numbers of one kind
RANGE_FACTOR = 1e5  # bounds: start / 1e5 to start * 1e5; noise down to 1e-10 of the variance of y
LEAST_LOG_NOISE = 1e-3  # of the variance of y, a noise variance that varies, where its latent function is 0
MOST_SPREAD = 5.0  # of a log noise variance, where its latent function has the variance of y
SMALLEST, LARGEST = torch.finfo(torch.float64).tiny, torch.finfo(torch.float64).max
# Of variances, with room for bounds.
SMALLEST_VARIANCE, LARGEST_VARIANCE = SMALLEST * RANGE_FACTOR, LARGEST / RANGE_FACTOR


@dataclass(frozen=True)
class DataFacts:
    """Facts on the data for initial values: spread of each column (d,), mean and variance of y, number of rows;
    variances, of each output, (outputs or 1,); latent, whether mean and variances are of f, and not of y; sparse,
    whether few of many columns are expected to matter."""

    spread: Tensor
    mean: Tensor
    variance: float
    rows: int
    variances: Tensor
    latent: bool = False
    sparse: bool = False

    @classmethod
    def of(cls, x: Tensor, y: Tensor, outputs: int | None, counts: Tensor | None = None) -> "DataFacts":
        """Facts on data (*batch, n, d); counts, (n,): how often each row of one table stands there, None for once."""
        flat = x.detach().double().reshape(-1, x.shape[-1])
        largest = flat.abs().amax(dim=0) if flat.shape[0] else torch.ones(x.shape[-1], dtype=torch.float64)
        unit = _power_of_two_below(largest)  # squares neither overflow nor underflow
        spread = _variance(flat / unit, counts).sqrt() * unit if flat.shape[0] else largest
        # A column that is constant up to rounding has no scale: its own size, or 1, is as good as any.
        constant = spread <= 1e3 * torch.finfo(torch.float64).eps * largest
        if in_one_unit(flat, constant):
            most = spread.max()  # whose square may not be held
            spread = most * (spread[~constant] / most).square().mean().sqrt().expand_as(spread)
        spread = torch.where(constant, torch.where(largest > 0, largest, 1.0), spread)
        targets = y.detach().double()
        columns = targets.unsqueeze(-1) if outputs is None else targets
        if not targets.numel():
            ones = torch.ones(columns.shape[-1], dtype=torch.float64)
            return cls(spread.to("cpu"), torch.zeros(()), 1.0, x.shape[-2], ones)
        cells = observed(targets, outputs)
        if cells is not None:
            columns, counts = columns.nan_to_num(nan=0.0), cells.double()
        size = columns.abs().max()
        unit = _power_of_two_below(size)
        columns = columns / unit
        mean = _mean(columns, counts) * unit
        mean = mean.squeeze(-1) if outputs is None else mean
        every = _variance(columns, counts)
        reduced, relative = float(every.mean()), float(size / unit)
        if not reduced > (1e3 * torch.finfo(torch.float64).eps * relative) ** 2:
            reduced = 1.0 if relative == 0 else relative * relative  # its own size is the only scale of equal targets
        variances = every.reshape(-1, columns.shape[-1]).mean(0).to("cpu")
        negligible = (1e3 * torch.finfo(torch.float64).eps) ** 2 * reduced
        variances = torch.where(variances > negligible, variances, reduced)
        square = float(unit) * float(unit)
        return cls(spread.to("cpu"), mean.to("cpu"), reduced * square, x.shape[-2], variances * square)

    def of_most(self, y: Tensor) -> "DataFacts":
        """Facts of targets of which some may be far off: their median, and the spread of the central two thirds."""
        low, middle, high = (float(y.double().quantile(q)) for q in (0.16, 0.5, 0.84))
        variance = (0.5 * (high - low)) ** 2
        if not variance > 0.0:
            return self
        one = torch.tensor([variance], dtype=torch.float64)
        return dataclasses.replace(self, mean=torch.tensor(middle), variance=variance, variances=one)

    def of_latent(self, at: Marginals, variance: float | None) -> "DataFacts":
        """Facts of latent values in place of the targets, where these are on another scale.

        Args: at, q(f) of rows by themselves; variance, that the likelihood expects of f, None for that of these.
        """
        centre = at.mean.mean()
        if variance is None:
            variance = float((at.mean - centre).square().mean() + at.variance.mean())
        one = torch.tensor([variance], dtype=torch.float64)
        return dataclasses.replace(self, mean=centre.cpu(), variance=variance, variances=one, latent=True)


def in_one_unit(x: Tensor, constant: Tensor) -> bool:
    """True if the columns of x, (n, d), are numbers of one kind, such as pixels: most have the same least and greatest
    value, and no other one reaches beyond, eq. (M-450). Deviations of their own would enlarge those that seldom vary.

    Args: constant, (d,), which columns have no spread.
    """
    varying = x[:, ~constant]
    if not len(x) or varying.shape[-1] < ONE_UNIT_COLUMNS:
        return False
    low, high = varying.amin(0), varying.amax(0)
    whole = (low == low.min()) & (high == high.max())
    return 2 * int(whole.sum()) > len(low)


def _power_of_two_below(size: Tensor) -> Tensor:
    """The largest power of two up to a size, which rounds nothing as a divisor; 1 for 0."""
    return torch.where(size > 0, torch.ldexp(torch.ones_like(size), size.frexp().exponent - 1), 1.0)


def _mean(columns: Tensor, counts: Tensor | None) -> Tensor:
    if counts is None:
        return columns.mean(dim=-2)
    counts = (counts.unsqueeze(-1) if counts.dim() == 1 else counts).to(columns.device)  # of rows, or of cells
    return (counts * columns).sum(dim=-2) / counts.sum(dim=-2)


def _variance(columns: Tensor, counts: Tensor | None) -> Tensor:
    if counts is None:
        return columns.var(dim=-2, correction=0)
    return _mean((columns - _mean(columns, counts)).square(), counts)


@dataclass(frozen=True)
class WeakPrior:
    """Normal density of the logarithms of a positive parameter, of the values of another one.

    Fields: mean, of the parameter's shape; sd, of each entry by itself; common, of what the entries of the last
    dimension share beside, so that their covariance is sd^2 I + common^2 1 1^T, (M-290).
    """

    mean: Tensor
    sd: float
    common: float = 0.0

    @property
    def shared(self) -> float:
        """Share of the deviations of entries that is common, common^2 / (sd^2 + d common^2)."""
        return self.common**2 / (self.sd**2 + self.mean.shape[-1] * self.common**2) if self.common else 0.0

    def __str__(self) -> str:
        return f"{self.sd:.3g}" if not self.common else f"{self.sd:.3g} and {self.common:.3g} in common"


@dataclass(frozen=True)
class SparsePrior:
    """Half-Cauchy density of inverse squared lengthscales around a common scale that is half-Cauchy too, (M-386).

    With v = (unit / lengthscale)^2 of each column, v ~ HalfCauchy(t), t ~ HalfCauchy(scale), t integrated out: few
    columns stand out of many. Source: Eriksson & Jankowiak (2021), High-dimensional Bayesian optimization with sparse
    axis-aligned subspaces, whose unit is the range of a column.

    Fields: log_unit, of the parameter's shape; scale.
    """

    log_unit: Tensor
    scale: float = SPARSE_SCALE
    common: ClassVar[float] = 0.0

    def log_density(self, log_lengthscale: numpy.ndarray) -> tuple[float, numpy.ndarray]:
        """log p and its gradient by the logarithms of lengthscales, (..., d), by the trapezoidal rule in log t.

        The integrand is analytic in a strip, so that steps of about 1.4 / sqrt(d) leave 1e-9 of it.
        """
        d = log_lengthscale.shape[-1]
        u = 2.0 * (self.log_unit.numpy().reshape(log_lengthscale.shape) - log_lengthscale).reshape(-1, d)
        middle, margin = math.log(self.scale), 1.0 + 40.0 / (d + 1.0)
        step = min(0.4, math.pi * math.sqrt(2.0 / (23.0 * d)))
        t = numpy.arange(min(u.min(), middle) - margin, max(u.max(), middle) + margin + step, step)
        from_t = u[:, :, None] - t
        shrunk = numpy.exp(-2.0 * numpy.abs(from_t))
        log_each = -numpy.abs(from_t) - numpy.log1p(shrunk)  # log sech - log 2
        log_scale = -numpy.abs(t - middle) - numpy.log1p(numpy.exp(-2.0 * numpy.abs(t - middle)))
        whole = log_each.sum(1) + log_scale  # (groups, nodes)
        most = whole.max(axis=1, keepdims=True)
        weights = numpy.exp(whole - most)
        total = weights.sum(axis=1, keepdims=True)
        constant = (d + 1) * math.log(2.0 / math.pi) + d * math.log(2.0) + math.log(step)
        value = float((most + numpy.log(total) + constant).sum())
        slopes = numpy.sign(from_t) * (1.0 - shrunk) / (1.0 + shrunk) * (weights / total)[:, None]
        return value, 2.0 * slopes.sum(-1).reshape(log_lengthscale.shape)


@dataclass(frozen=True)
class LargePrior:
    """Gamma density of a variance, in units of that of y, (M-423): room for trends, which are long lengthscales of a
    large variance. Source: that of fully Bayesian models with sparse priors, Eriksson & Jankowiak (2021).

    Fields: unit, of the parameter's shape, variance of y; shape, rate.
    """

    unit: Tensor
    shape: float = 2.0
    rate: float = 0.15
    common: ClassVar[float] = 0.0


UsualPrior = WeakPrior | SparsePrior | LargePrior


@dataclass(frozen=True)
class RoleStart:
    """Start of one parameter.

    Fields:
        start, lower, upper: start and bounds, in value.
        prior: the weak one, or None.
        unit: of a parameter on the whole real line, in which steps are of size 1 (a power of two, so that no digit
            changes).
        turn: of a period, the length of x over which one full turn of phase is a step of size 1.
        input_scale: True if a long one makes columns of x not count, which no prior keeps from it.
        output_scale: True of a variance of the covariance function, or of its slopes.
    """

    start: Tensor
    prior: UsualPrior | None
    lower: float
    upper: float
    unit: Tensor | None = None
    turn: Tensor | None = None
    input_scale: bool = False
    output_scale: bool = False

    def containing(self, value: Tensor) -> "RoleStart":
        """The start with bounds as wide as it takes to contain a value too."""
        low, high = float(value.min()), float(value.max())
        return dataclasses.replace(self, lower=min(self.lower, low), upper=max(self.upper, high))


@dataclass(frozen=True)
class Place:
    """Position of a kernel in its model.

    Fields: spread, of the columns it sees, None where nothing tells; terms, of the sums around it; rivals, terms of its
    sum with lengthscales of the same columns; rung, 0 for the longest of these.
    """

    spread: Tensor | None
    terms: int = 1
    rivals: int = 1
    rung: int = 0


def role_starts(gp: Prior, facts: DataFacts) -> dict[Parameter, RoleStart]:
    """A RoleStart for every parameter whose role the data can speak to; others are absent."""
    found: dict[Parameter, RoleStart] = {}
    for owner, parameter, role, place in _roles(gp, facts):
        if parameter in found:
            continue
        one = _role_start(owner, parameter, role, place, facts)
        if one is not None:
            found[parameter] = one
    return found


def _roles(gp: Prior, facts: DataFacts) -> Iterator[tuple[nn.Module, Parameter, str, Place]]:
    """(owner, parameter, role, place of its kernel)."""
    whole = Place(facts.spread)
    yield from _kernel_roles(gp.kernel, whole)
    for owner in (gp.mean, gp.likelihood):
        for name, role in getattr(owner, "roles", {}).items():
            parameter = getattr(owner, name)
            if isinstance(parameter, Parameter):
                yield owner, parameter, role, whole


def _kernel_roles(kernel: Kernel, place: Place) -> Iterator[tuple[nn.Module, Parameter, str, Place]]:
    dims, spread = getattr(kernel, "active_dims", None), place.spread
    seen = spread[list(dims)] if spread is not None and dims is not None else spread
    for name, role in getattr(kernel, "roles", {}).items():
        yield kernel, getattr(kernel, name), role, dataclasses.replace(place, spread=seen)
    places = _places(kernel, place) if isinstance(kernel, Sum) else [place] * len(kernel.parts)
    if isinstance(kernel, Warped):  # what a learned module returns has no known scale
        places = [dataclasses.replace(place, spread=None)] * len(kernel.parts)
    for part, of_part in zip(kernel.parts, places, strict=True):
        yield from _kernel_roles(part, of_part)


def _places(kernel: Sum, place: Place) -> list[Place]:
    """The places of a sum's terms. A periodic term is nobody's rival: its lengthscale says how the period decays."""
    columns, given = [], []
    for part in kernel.parts:
        roles = list(_kernel_roles(part, place))
        own = [(owner, p) for owner, p, role, _ in roles if role == "input_scale"]
        if any(role in ("period", "frequency") for _, _, role, _ in roles):
            own = []
        columns.append({getattr(owner, "active_dims", None) for owner, _ in own})
        given.append(sum(float(p.value.detach().log().mean()) for _, p in own) / max(1, len(own)))
    places = []
    for i, seen in enumerate(columns):
        of_part = dataclasses.replace(place, terms=place.terms * len(columns))
        if seen:
            rivals = sorted((k for k, other in enumerate(columns) if other == seen), key=lambda k: -given[k])
            of_part = dataclasses.replace(of_part, rivals=len(rivals), rung=rivals.index(i))
        places.append(of_part)
    return places


def _role_start(owner: nn.Module, parameter: Parameter, role: str, place: Place, facts: DataFacts) -> RoleStart | None:
    shape = parameter.raw.shape
    ones = torch.ones(shape, dtype=torch.float64)
    spread, v = place.spread, facts.variance
    width = (LATENT_VARIANCE_PRIOR_SD if facts.latent else VARIANCE_PRIOR_SD) * place.terms
    if role in ("output_variance", "slope_variance", "noise_variance") and not _is_held(v):
        raise DomainError(
            f"`y` must have a variance that float64 holds, {SMALLEST_VARIANCE:.0e} to {LARGEST_VARIANCE:.0e}, got "
            f"{v:.3g}; divide y by its standard deviation"
        )
    match role:
        case "input_scale" if spread is not None:
            d = spread.shape[-1]
            scale = spread if parameter.event_dim and shape[-1] == d else spread.log().mean().exp()
            whole = ones * scale * math.sqrt(d)
            shift, sd = LENGTHSCALE_PRIOR
            prior = WeakPrior(whole.log() + shift, sd * place.rivals)
            start = whole * max(2, facts.rows) ** (-place.rung / (place.rivals * d))
            if facts.latent:
                start = LATENT_START * start
            if parameter.event_dim and shape[-1] > 1:
                if facts.sparse and shape[-1] == d:
                    return _bounded(start, SparsePrior((ones * scale * RANGE).log()), input_scale=True)
                prior = _of_columns(prior, facts)
            return dataclasses.replace(_bounded(start, prior), input_scale=not (facts.latent and prior.common))
        case "period" if spread is not None:
            start = parameter.value.detach().cpu().clone()
            d = spread.shape[-1]
            scale = spread if parameter.event_dim and shape[-1] == d else spread.log().mean().exp()
            wide = _bounded(torch.cat([start.reshape(-1), scale.reshape(-1)]), None)  # a given one may be far off
            return dataclasses.replace(wide, start=start, turn=ones * math.sqrt(12.0) * scale)
        case "frequency" if spread is not None and parameter.domain.kind == "real":
            start = parameter.value.detach().cpu().clone()
            scale = spread if parameter.event_dim and shape[-1] == spread.shape[-1] else spread.max()
            unit = ones / (math.sqrt(12.0) * scale)  # a turn over all rows
            return RoleStart(start, None, -math.inf, math.inf, power_of_two(unit))
        case "output_variance":
            start = ones * (v / place.terms)
            alone = facts.sparse and not facts.latent and place.terms == 1  # a term of a sum may vanish
            of_output = LargePrior(ones * v) if alone else WeakPrior(ones * math.log(v), width)
            return dataclasses.replace(_bounded(start, of_output), output_scale=True)
        case "slope_variance" if spread is not None:
            d = spread.shape[-1]
            scale = spread if parameter.event_dim and shape[-1] == d else spread.log().mean().exp()
            if type(owner).__name__ == "Polynomial":  # a weight of columns inside a power, not of y
                return _bounded(ones * _slope_variance(1.0, scale) / d, None)
            start = ones * _slope_variance(v, scale) / (d * place.terms)
            return dataclasses.replace(_bounded(start, WeakPrior(start.log(), width)), output_scale=True)
        case "noise_variance":
            shift, sd = NOISE_PRIOR
            if parameter.event_dim:  # one of each output
                each = ones * facts.variances
                low, high = 1e-10 * float(each.min()), 1e4 * float(each.max())
                return RoleStart(0.1 * each, WeakPrior(each.log() + shift, sd), low, high)
            start = ones * (0.1 * v)
            return RoleStart(start, WeakPrior(ones * (math.log(v) + shift), sd), max(1e-10 * v, SMALLEST), 1e4 * v)
        case "noise_deviation":
            shift, sd = NOISE_PRIOR
            return _bounded(ones * math.sqrt(0.1 * v), WeakPrior(ones * 0.5 * (math.log(v) + shift), 0.5 * sd))
        case "log_noise_variance":
            shift, sd = NOISE_PRIOR
            start, low, high = ones * math.log(0.1 * v), math.log(LEAST_LOG_NOISE * v), math.log(1e4 * v)
            return RoleStart(start, WeakPrior(ones * (math.log(v) + shift), sd), low, high, ones)
        case "inverse_deviation":
            start = ones / math.sqrt(v)
            bounded = _bounded(start, WeakPrior(start.log(), OWN_PRIOR_SD))
            return dataclasses.replace(bounded, upper=MOST_SPREAD / math.sqrt(v))
        case "dispersion" | "concentration" | "gap":  # numbers without a unit: from where the user begins
            middle = {"dispersion": DISPERSION, "concentration": CONCENTRATION}.get(role)
            start = parameter.value.detach().cpu().clone()
            log_middle = start.log() if middle is None else ones * math.log(middle)
            return _bounded(start, WeakPrior(log_middle, OWN_PRIOR_SD))
        case "threshold":
            start = parameter.value.detach().cpu().clone()
            return RoleStart(start, WeakPrior(start, 2.0 * OWN_PRIOR_SD), -math.inf, math.inf, ones)
        case "output_mean":
            mean = facts.mean
            start = ones * (mean if mean.shape == shape or mean.dim() == 0 else mean.mean())
            centre = WeakPrior(start, math.sqrt(v)) if facts.latent else None
            return RoleStart(start, centre, -math.inf, math.inf, power_of_two(ones * math.sqrt(v)))
        case "output_slope" if spread is not None:
            unit = ones * math.sqrt(v) / spread if shape[-1] == spread.shape[-1] else ones
            return RoleStart(parameter.value.detach().cpu().clone(), None, -math.inf, math.inf, power_of_two(unit))
    return None


def _of_columns(prior: WeakPrior, facts: DataFacts) -> WeakPrior:
    """The prior of columns that have a scale in common: of each by itself as before, but where f is latent, (M-290)."""
    if facts.latent:
        return WeakPrior(prior.mean, COLUMN_SDS[facts.rows >= MANY_ROWS], prior.sd)
    share = max(LEAST_OWN, OWN_OF_COLUMN * prior.mean.shape[-1])
    if share >= 1.0:
        return prior
    return WeakPrior(prior.mean, prior.sd * math.sqrt(share), prior.sd * math.sqrt(1.0 - share))


def _slope_variance(v: float, scale: Tensor) -> Tensor:
    """v over the scale of x squared. Raises: DomainError where it is no float64 number."""
    ratio = math.sqrt(v) / scale  # the square of either may be none
    if not all(map(_is_held, ratio.square().reshape(-1).tolist())):
        raise DomainError(
            "`x` and `y` must be of scales between which a slope has a variance that float64 holds, got standard "
            f"deviations of {float(scale.min()):.2g} to {float(scale.max()):.2g} of the columns of x; divide them by "
            "their own, and y by its own"
        )
    return ratio.square()


def _is_held(variance: float) -> bool:
    return SMALLEST_VARIANCE <= variance <= LARGEST_VARIANCE


def power_of_two(scale: Tensor) -> Tensor:
    """The nearest power of two, by which numbers are scaled without rounding."""
    return scale.log2().round().exp2()


def _bounded(start: Tensor, prior: UsualPrior | None, *, input_scale: bool = False) -> RoleStart:
    low, high = float(start.min()) / RANGE_FACTOR, min(float(start.max()), LARGEST / RANGE_FACTOR) * RANGE_FACTOR
    return RoleStart(start, prior, max(low, SMALLEST), high, input_scale=input_scale)
