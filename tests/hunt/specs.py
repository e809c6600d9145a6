"""Kernels, means and noise as values: how a case writes them down, and how the library is asked for them.

Parameters are numbers, tuples (one per column) or `Each` (one per member of a batch). Nothing here computes.
"""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy
import torch

import flashgp as fgp

Value = Any  # float, tuple of floats, or Each


@dataclass(frozen=True)
class Each:
    """One value for each member of a batch of models."""

    values: tuple[Any, ...]


@dataclass(frozen=True)
class Spec:
    """A kernel. `positive` names the parameters of a half-line; `kept` what is no parameter."""

    positive = ("lengthscale", "variance", "period", "scale_mixture", "offset", "weights", "scales", "diagonal")
    kept = ("dims", "nu", "degree", "name", "columns", "rank", "count")

    def parameters(self) -> list[str]:
        return [f.name for f in fields(self) if f.name not in self.kept and not isinstance(getattr(self, f.name), Spec)]

    def parts(self) -> "list[Spec]":
        return []


@dataclass(frozen=True)
class SquaredExponential(Spec):
    lengthscale: Value = 1.0
    dims: tuple[int, ...] | None = None


ANY_KERNEL = SquaredExponential()


@dataclass(frozen=True)
class Matern(Spec):
    nu: float = 2.5
    lengthscale: Value = 1.0
    dims: tuple[int, ...] | None = None


@dataclass(frozen=True)
class RationalQuadratic(Spec):
    scale_mixture: Value = 1.0
    lengthscale: Value = 1.0
    dims: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Periodic(Spec):
    period: Value = 1.0
    lengthscale: Value = 1.0
    dims: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Cosine(Spec):
    frequency: Value = 1.0
    dims: tuple[int, ...] | None = None


@dataclass(frozen=True)
class SpectralMixture(Spec):
    weights: Value = (1.0,)
    means: Value = ((0.1,),)
    scales: Value = ((0.1,),)
    dims: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Linear(Spec):
    variance: Value = 1.0
    dims: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Polynomial(Spec):
    degree: int = 2
    offset: Value = 1.0
    variance: Value = 1.0
    dims: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Constant(Spec):
    variance: Value = 1.0


@dataclass(frozen=True)
class Categorical(Spec):
    lengthscale: Value = 1.0
    dims: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Coregionalization(Spec):
    count: int = 2
    factor: Value = ((1.0,), (0.5,))
    diagonal: Value = (0.5, 0.5)
    dims: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Custom(Spec):
    """One of FUNCTIONS, with a positive `scale`, over as many columns."""

    name: str = "laplace"
    columns: int = 1
    scale: Value = 1.0
    dims: tuple[int, ...] | None = None

    positive = ("scale",)


@dataclass(frozen=True)
class Warped(Spec):
    """`kernel` of `sines`: sin(x_k / 2) and x_1 / 3, a module without parameters."""

    kernel: Spec = ANY_KERNEL
    dims: tuple[int, ...] | None = None

    def parts(self) -> list[Spec]:
        return [self.kernel]


@dataclass(frozen=True)
class Scaled(Spec):
    variance: Value
    kernel: Spec

    def parts(self) -> list[Spec]:
        return [self.kernel]


@dataclass(frozen=True)
class Sum(Spec):
    left: Spec
    right: Spec

    def parts(self) -> list[Spec]:
        return [self.left, self.right]


@dataclass(frozen=True)
class Product(Spec):
    left: Spec
    right: Spec

    def parts(self) -> list[Spec]:
        return [self.left, self.right]


# -- functions of the user's ------------------------------------------------------------------------------------------
def laplace(x: torch.Tensor, z: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return torch.exp(-((x - z) / scale).abs().sum())


def brownian(x: torch.Tensor, z: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return torch.minimum(torch.exp(x / scale), torch.exp(z / scale)).sum()


def waves(x: torch.Tensor, z: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (1.0 + (x / scale).sin().sum() ** 2) * (1.0 + (z / scale).sin().sum() ** 2) + (x @ z) / scale**2


FUNCTIONS = {"laplace": laplace, "brownian": brownian, "waves": waves}


class Sines(torch.nn.Module):
    """sin(x_k / 2) of every column, and a third of the first."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.sin(x / 2), x[..., :1] / 3], dim=-1)


# -- the library's objects ---------------------------------------------------------------------------------------------
class Maker:
    """Builds the library's kernel of a spec."""

    def number(self, value: Value, per_column: bool = False) -> Any:
        if isinstance(value, Each):
            rows = numpy.array(value.values, dtype=float)
            return torch.tensor(rows[:, None] if per_column and rows.ndim == 1 else rows, dtype=torch.float64)
        if isinstance(value, tuple):
            return torch.tensor(value, dtype=torch.float64)
        return value

    def kernel(self, spec: Spec) -> fgp.kernels.Kernel:
        parts = [self.kernel(part) for part in spec.parts()]
        values = {}
        for name in spec.parameters():
            columned = name in ("lengthscale", "period", "frequency") or (
                name == "variance" and isinstance(spec, Linear | Polynomial)
            )
            value = getattr(spec, name)
            plain = isinstance(spec, Custom)
            values[name] = value if plain else self.number(value, columned)
        match spec:
            case Sum():
                out: Any = parts[0] + parts[1]
            case Product():
                out = parts[0] * parts[1]
            case Scaled():
                out = fgp.kernels.Scaled(parts[0], values["variance"])
            case Warped():
                out = fgp.kernels.Warped(Sines(), parts[0], spec.dims)
            case Custom():
                columns = None if spec.dims else spec.columns
                number = torch.as_tensor(self.number(values["scale"]), dtype=torch.float64)
                scale = fgp.Parameter(number, torch.distributions.constraints.positive)
                out = fgp.kernels.Custom(FUNCTIONS[spec.name], spec.dims, columns, scale=scale)
            case Coregionalization():
                out = fgp.kernels.Coregionalization(
                    spec.count, len(spec.factor[0]), values["factor"], values["diagonal"], spec.dims
                )
            case Matern():
                out = fgp.kernels.Matern(spec.nu, active_dims=spec.dims, **values)
            case Polynomial():
                out = fgp.kernels.Polynomial(spec.degree, active_dims=spec.dims, **values)
            case Constant():
                out = fgp.kernels.Constant(**values)
            case _:
                out = getattr(fgp.kernels, type(spec).__name__)(active_dims=spec.dims, **values)
        return out


def member(spec: Spec, index: int) -> Spec:
    """The kernel of one member of a batch."""
    changed: dict[str, Any] = {}
    for f in fields(spec):
        value = getattr(spec, f.name)
        if isinstance(value, Spec):
            changed[f.name] = member(value, index)
        elif isinstance(value, Each):
            changed[f.name] = value.values[index]
    return replace(spec, **changed)


@dataclass(frozen=True)
class Mean:
    """kind: zero, constant or linear, with an intercept (one for each output, or one) and slopes."""

    kind: str = "zero"
    intercept: Value = 0.0
    slope: tuple[float, ...] = ()

    def build(self, outputs: int | None) -> torch.nn.Module:
        match self.kind:
            case "zero":
                return fgp.means.Zero()
            case "constant":
                value = torch.tensor(self.intercept, dtype=torch.float64)
                return fgp.means.Constant(value, outputs=outputs)
            case "linear":
                return fgp.means.Linear(torch.tensor(self.slope, dtype=torch.float64), self.intercept)
        return Bowl()


ZERO = Mean()


class Bowl(torch.nn.Module):
    """A mean of the user's: half the first column squared, by row."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[..., 0].square() / 2
