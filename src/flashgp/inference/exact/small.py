"""A whole small model without autograd: unconstrained values in, value and gradient by them out.

It serves models whose kernels state how their features move with their parameters (`small_features`) and whose mean is
Zero or Constant; everything else takes the general path, where autograd connects features and parameters. The formula
of each profile is still the one generated program (`pairwise/small.py`).
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from flashgp.foundations.form import Form
from flashgp.foundations.parameters import Parameter
from flashgp.foundations.workspace import Workspace
from flashgp.kernels.composition import Product, Scaled, Sum
from flashgp.kernels.kernel import Kernel, Leaf
from flashgp.means import Constant, Zero
from flashgp.pairwise.small import COMPILED_ROWS, small_problem

__all__ = ["SmallModel", "is_plain", "small_leaves", "small_likelihood"]

Array = numpy.ndarray


class _Raw:
    """A parameter's unconstrained array, followed in place: its value, and what a gradient by the value is by it."""

    __slots__ = ("grown", "lower", "parameter", "raw", "span")

    def __init__(self, parameter: Parameter) -> None:
        self.parameter, domain = parameter, parameter.domain
        self.raw: Array = parameter.raw.detach().numpy()
        self.lower, self.span = domain.lower, domain.upper - domain.lower
        self.grown: Any = None

    def value(self) -> Array:
        """Eqs. (M-17) to (M-19)."""
        if self.lower == -math.inf:
            return self.raw
        if self.span == math.inf:
            self.grown = numpy.exp(self.raw)
            return self.grown + self.lower if self.lower else self.grown
        unit = 1.0 / (1.0 + numpy.exp(-self.raw))
        self.grown = self.span * unit * (1.0 - unit)
        return self.lower + self.span * unit

    def by_raw(self, gradient: Any) -> Array:
        """d/d raw from d/d value, at the value that was asked for last."""
        if self.lower == -math.inf:
            return numpy.asarray(gradient, dtype=numpy.float64)
        return gradient * self.grown


class SmallModel:
    """The log marginal likelihood of one model and its data as a function of its parameters' current values.

    Make one with `of`, which gives None for what it does not serve; call it for (value, gradient by raw values).
    Values may change in place between calls, tensors may not be replaced.
    Cost of a call: n^3 flops and a few dozen NumPy calls, or few compiled ones.
    """

    def __init__(self, gp: Any, x: Array, y: Array, leaves: list[Leaf], theta: list[Parameter]) -> None:
        self.form = _shared(gp.kernel.form)
        self.x, self.y = x, y
        raws: dict[Parameter, _Raw] = {}

        def raw_of(parameter: Parameter) -> _Raw:
            if parameter not in raws:
                raws[parameter] = _Raw(parameter)
            return raws[parameter]

        self.leaves = [
            (
                leaf,
                x if leaf.active_dims is None else x[:, list(leaf.active_dims)],
                {name: raw_of(p) for name, p in leaf._modules.items() if isinstance(p, Parameter)},
            )
            for leaf in leaves
        ]
        self.theta = [raw_of(p) for p in theta]
        likelihood = gp.likelihood
        self.mean = raw_of(gp.mean.value) if isinstance(gp.mean, Constant) else None
        noise = likelihood.noise_variance
        self.noise = None if noise is None else raw_of(noise)
        weight, known = likelihood.row_weight, likelihood.row_variance
        self.share: Any = 1.0 if weight is None else 1.0 / weight.numpy()  # of the noise in each row
        self.known: Any = 0.0 if known is None else known.numpy()

    @classmethod
    def of(cls, gp: Any, x: Tensor, y: Tensor) -> "SmallModel | None":
        """The small model of a GP and checked data, or None."""
        n = x.shape[-2]
        if not (0 < n <= COMPILED_ROWS and x.dim() == 2 and x.device.type == "cpu" and not x.requires_grad):
            return None
        if y.requires_grad or y.dim() != (1 if gp.outputs is None else 2) or type(gp.mean) not in (Zero, Constant):
            return None
        leaves: list[Leaf] = []
        theta: list[Parameter] = []
        if not _collect(gp.kernel, leaves, theta, x):
            return None
        likelihood = gp.likelihood
        for rows in (likelihood.row_weight, likelihood.row_variance):
            if rows is not None and rows.shape != (n,):
                return None
        parameters = [*theta, *(p for k in leaves for p in k.children() if isinstance(p, Parameter))]
        parameters += [p for p in (getattr(gp.mean, "value", None), likelihood.noise_variance) if p is not None]
        if not all(is_plain(p) for p in parameters):
            return None
        targets = y.detach().numpy().astype(numpy.float64, copy=False)
        return cls(gp, x.detach().numpy().astype(numpy.float64, copy=False), targets.reshape(n, -1), leaves, theta)

    def __call__(self, workspace: Workspace | None = None) -> tuple[float, dict[Parameter, Array]] | None:
        """(log marginal likelihood, gradient by every parameter's raw value), eqs. (M-33), (M-34).

        None where the general path is to answer: the matrix is not positive definite, or n is too large for now.
        The workspace hears what ran.
        """
        problem_of = small_problem(self.form, len(self.x))
        if problem_of is None:
            return None
        features: list[Array] = []
        pulls: list[tuple[int, Callable[[Sequence[Any]], dict[str, Any]]]] = []
        for leaf, columns, raws in self.leaves:
            made, pull = leaf.small_features(columns, {name: raw.value() for name, raw in raws.items()})
            pulls.append((len(features), pull))
            features += made
        noise = self.known if self.noise is None else self.share * self.noise.value() + self.known
        residual = self.y if self.mean is None else self.y - self.mean.value()
        problem = problem_of(
            self.form, [float(raw.value()) for raw in self.theta], features, len(self.x), workspace=workspace
        )
        solved = problem.solve(noise, residual)
        if solved is None:
            return None
        value, weights, lower = solved
        slope = problem.slope(weights, lower)
        pulled = problem.pull(slope)
        total: dict[Parameter, Array] = {}

        def add(raw: _Raw, gradient: Any) -> None:
            part, parameter = raw.by_raw(gradient), raw.parameter
            total[parameter] = total[parameter] + part if parameter in total else part

        for (leaf, _, raws), (at, pull) in zip(self.leaves, pulls, strict=True):
            if leaf.statistics:
                for name, gradient in pull(pulled[at : at + len(leaf.statistics)]).items():
                    add(raws[name], gradient)
        for raw, gradient in zip(self.theta, pulled[len(features) :], strict=True):
            add(raw, 0.0 if gradient is None else gradient)
        if self.mean is not None:
            add(self.mean, weights.sum(0) if self.mean.parameter.event_dim else weights.sum())
        if self.noise is not None:
            by_row = slope.diagonal()
            add(self.noise, by_row.sum() if isinstance(self.share, float) else numpy.dot(by_row, self.share))
        return value, total


@functools.lru_cache(maxsize=256)
def _shared(form: Form) -> Form:
    """One object for all equal forms: what is looked up by form is then found without comparing formulas."""
    return form


def small_leaves(kernel: Kernel, x: Tensor) -> list[Leaf] | None:
    """The leaves of a kernel in the order of its form; None where one of them states no small features."""
    leaves: list[Leaf] = []
    return leaves if _collect(kernel, leaves, [], x) else None


def _collect(kernel: Kernel, leaves: list[Leaf], theta: list[Parameter], x: Tensor) -> bool:
    """Leaves and profile parameters in the order of the form; False when a kernel states no small features."""
    if isinstance(kernel, Scaled):
        theta.append(kernel.variance)
        return _collect(kernel.kernel, leaves, theta, x)
    if isinstance(kernel, Sum | Product):
        return all(_collect(part, leaves, theta, x) for part in kernel.parts)
    if not isinstance(kernel, Leaf) or type(kernel).small_features is Leaf.small_features:
        return False
    kernel.select(x)  # refuses what does not fit
    leaves.append(kernel)
    theta += kernel._profile_parameters()
    return True


def is_plain(parameter: Parameter) -> bool:
    """One model's float64 values on the CPU, not seen through a functional transform."""
    raw = parameter.raw
    return (
        raw.dtype == torch.float64
        and raw.device.type == "cpu"
        and raw.dim() <= parameter.event_dim
        and not torch._C._functorch.is_functorch_wrapped_tensor(raw)
    )


def small_likelihood(model: SmallModel) -> Tensor | None:
    """The value as a tensor, differentiable once in the raw values; None when the matrix is not positive definite."""
    found = model()
    if found is None:
        return None
    value, slopes = found
    raws = [p.raw for p in slopes if p.raw.requires_grad]
    if not raws:
        return torch.tensor(value, dtype=torch.float64)
    gradients = [
        torch.from_numpy(numpy.asarray(g).reshape(p.raw.shape)) for p, g in slopes.items() if p.raw.requires_grad
    ]
    return _Known.apply(value, gradients, *raws)


class _Known(torch.autograd.Function):
    """A number whose gradients are known already; backward only scales them."""

    @staticmethod
    def forward(ctx: Any, value: float, gradients: list[Tensor], *raws: Tensor) -> Tensor:
        ctx.gradients = gradients
        return torch.tensor(value, dtype=torch.float64)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return (None, None, *(g * gradient for g in ctx.gradients))
