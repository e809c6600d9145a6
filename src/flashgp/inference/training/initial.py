"""What the data say before fitting: initial values, weak priors and bounds, by the role a parameter plays.

Roles are declared by kernels, means and likelihoods (`roles`); this file gives them numbers. With s_k the standard
deviation of column k, d the columns a kernel sees and v the variance of y:

    input_scale      start s_k sqrt(d)             prior log l ~ N(log s_k + sqrt 2 + log(d) / 2, 3)      (M-44)
    output_variance  start v / (added terms)       prior log v' ~ N(log v, 2^2)                            (M-45)
    noise_variance   start v / 10                  prior log n ~ N(log v - 4, 2^2)                         (M-46)

The lengthscale prior grows with sqrt(d) so that its correlation at typical distances does not vanish in high
dimension (Hvarfner, Hellsten & Nardi, 2024). Nothing here is attached to the model: `fit` adds it to its objective.
"""

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from flashgp.foundations.parameters import Parameter
from flashgp.inference.prior import Prior
from flashgp.kernels import Kernel, Sum, Warped

__all__ = ["DataFacts", "RoleStart", "role_starts"]

LENGTHSCALE_PRIOR = (math.sqrt(2.0), math.sqrt(3.0))
VARIANCE_PRIOR_SD = 2.0
NOISE_PRIOR = (-4.0, 2.0)
RANGE_FACTOR = 1e5  # bounds: start / 1e5 to start * 1e5; noise down to 1e-10 of the variance of y


@dataclass(frozen=True)
class DataFacts:
    """What initial values need to know: spread of each column (d,), mean and variance of y."""

    spread: Tensor
    mean: Tensor
    variance: float

    @classmethod
    def of(cls, x: Tensor, y: Tensor, outputs: int | None, counts: Tensor | None = None) -> "DataFacts":
        """Of data (*batch, n, d); counts, (n,): how often each row of one table stands there, None for once."""
        flat = x.detach().double().reshape(-1, x.shape[-1])
        spread = _variance(flat, counts).sqrt() if flat.shape[0] else torch.ones(x.shape[-1], dtype=torch.float64)
        largest = flat.abs().amax(dim=0) if flat.shape[0] else spread
        # A column that is constant up to rounding has no scale: its own size, or 1, is as good as any.
        constant = spread <= 1e3 * torch.finfo(torch.float64).eps * largest
        spread = torch.where(constant, torch.where(largest > 0, largest, 1.0), spread)
        targets = y.detach().double()
        columns = targets.unsqueeze(-1) if outputs is None else targets
        mean = _mean(columns, counts) if targets.numel() else torch.zeros(())
        mean = mean.squeeze(-1) if outputs is None and targets.numel() else mean
        variance = float(_variance(columns, counts).mean()) if targets.numel() else 1.0
        size = float(targets.abs().max()) if targets.numel() else 1.0
        if not variance > (1e3 * torch.finfo(torch.float64).eps * size) ** 2:
            variance = 1.0 if size == 0 else size * size * 1e-6  # a constant target has no scale of its own
        return cls(spread.to("cpu"), mean.to("cpu"), variance)


def _mean(columns: Tensor, counts: Tensor | None) -> Tensor:
    if counts is None:
        return columns.mean(dim=-2)
    return (counts.to(columns.device).unsqueeze(-1) * columns).sum(dim=-2) / counts.sum()


def _variance(columns: Tensor, counts: Tensor | None) -> Tensor:
    if counts is None:
        return columns.var(dim=-2, correction=0)
    return _mean((columns - _mean(columns, counts)).square(), counts)


@dataclass(frozen=True)
class RoleStart:
    """For one parameter: where to start, the weak prior on its logarithm (or None), its bounds, all in value; and for
    one on the whole real line the unit in which steps are of size 1 (a power of two, so that no digit changes).
    input_scale: whether a long one makes columns of x not count."""

    start: Tensor
    log_prior: tuple[Tensor, float] | None
    lower: float
    upper: float
    unit: Tensor | None = None
    input_scale: bool = False


def role_starts(gp: Prior, facts: DataFacts) -> dict[Parameter, RoleStart]:
    """A RoleStart for every parameter whose role the data can speak to; others are absent."""
    found: dict[Parameter, RoleStart] = {}
    for owner, parameter, role, spread, terms in _roles(gp, facts):
        if parameter in found:
            continue
        one = _role_start(owner, parameter, role, spread, terms, facts)
        if one is not None:
            found[parameter] = one
    return found


def _roles(gp: Prior, facts: DataFacts) -> Iterator[tuple[nn.Module, Parameter, str, Tensor | None, int]]:
    """(owner, parameter, role, spread of the columns it sees or None, kernels its share of variance is split among)."""
    yield from _kernel_roles(gp.kernel, facts.spread, 1)
    for owner in (gp.mean, gp.likelihood):
        for name, role in getattr(owner, "roles", {}).items():
            parameter = getattr(owner, name)
            if isinstance(parameter, Parameter):
                yield owner, parameter, role, facts.spread, 1


def _kernel_roles(
    kernel: Kernel, spread: Tensor | None, terms: int
) -> Iterator[tuple[nn.Module, Parameter, str, Tensor | None, int]]:
    dims = getattr(kernel, "active_dims", None)
    seen = spread[list(dims)] if spread is not None and dims is not None else spread
    for name, role in getattr(kernel, "roles", {}).items():
        yield kernel, getattr(kernel, name), role, seen, terms
    if isinstance(kernel, Sum):
        terms *= len(kernel.parts)
    for part in kernel.parts:
        # What a learned module returns has no known scale.
        yield from _kernel_roles(part, None if isinstance(kernel, Warped) else spread, terms)


def _role_start(
    owner: nn.Module, parameter: Parameter, role: str, spread: Tensor | None, terms: int, facts: DataFacts
) -> RoleStart | None:
    shape = parameter.raw.shape
    ones = torch.ones(shape, dtype=torch.float64)
    v = facts.variance
    match role:
        case "input_scale" if spread is not None:
            d = spread.shape[-1]
            scale = spread if parameter.event_dim and shape[-1] == d else spread.log().mean().exp()
            start = ones * scale * math.sqrt(d)
            shift, sd = LENGTHSCALE_PRIOR
            prior = (start.log() + shift, sd)
            return dataclasses.replace(_bounded(start, prior), input_scale=True)
        case "period" if spread is not None:
            return _bounded(parameter.value.detach().cpu().clone(), None)
        case "output_variance":
            start = ones * (v / terms)
            return _bounded(start, (ones * math.log(v), VARIANCE_PRIOR_SD))
        case "slope_variance" if spread is not None:
            d = spread.shape[-1]
            scale = spread if parameter.event_dim and shape[-1] == d else spread.log().mean().exp()
            if type(owner).__name__ == "Polynomial":  # a weight of columns inside a power, not of y
                return _bounded(ones / (scale.square() * d), None)
            start = ones * v / (scale.square() * d * terms)
            return _bounded(start, (start.log(), VARIANCE_PRIOR_SD))
        case "noise_variance":
            shift, sd = NOISE_PRIOR
            start = ones * (0.1 * v)
            return RoleStart(start, (ones * (math.log(v) + shift), sd), 1e-10 * v, 1e4 * v)
        case "output_mean":
            mean = facts.mean
            start = ones * (mean if mean.shape == shape or mean.dim() == 0 else mean.mean())
            return RoleStart(start, None, -math.inf, math.inf, _power_of_two(ones * math.sqrt(v)))
        case "output_slope" if spread is not None:
            unit = ones * math.sqrt(v) / spread if shape[-1] == spread.shape[-1] else ones
            return RoleStart(parameter.value.detach().cpu().clone(), None, -math.inf, math.inf, _power_of_two(unit))
    return None


def _power_of_two(scale: Tensor) -> Tensor:
    return scale.log2().round().exp2()


def _bounded(start: Tensor, prior: tuple[Tensor, float] | None) -> RoleStart:
    return RoleStart(start, prior, float(start.min()) / RANGE_FACTOR, float(start.max()) * RANGE_FACTOR)
