"""A whole small model in NumPy: unconstrained values in, value and gradient by them out, no autograd at all.

It serves models whose kernels state how their features move with their parameters (`small_features`) and whose mean is
Zero or Constant; everything else takes the general path, where autograd connects features and parameters. The formula
of each profile is still the one generated program (`pairwise/small.py`).
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from flashgp.foundations.parameters import Parameter
from flashgp.kernels.composition import Product, Scaled, Sum
from flashgp.kernels.kernel import Kernel, Leaf
from flashgp.means import Constant, Zero
from flashgp.pairwise.small import SMALL_ROWS, SmallProblem

__all__ = ["SmallModel", "small_likelihood"]

Array = numpy.ndarray


class SmallModel:
    """The log marginal likelihood of one model and its data as a function of its parameters' current values.

    Make one with `of`, which gives None for what it does not serve; call it for (value, gradient by raw values).
    Cost of a call: a few dozen NumPy calls and n^3 flops.
    """

    def __init__(self, gp: Any, x: Array, y: Array, leaves: list[Leaf], theta: list[Parameter]) -> None:
        self.gp, self.x, self.y, self.leaves, self.theta = gp, x, y, leaves, theta
        self.columns = [x if k.active_dims is None else x[:, list(k.active_dims)] for k in leaves]
        self.form = gp.kernel.form
        likelihood = gp.likelihood
        self.mean = gp.mean.value if isinstance(gp.mean, Constant) else None
        self.noise = likelihood.noise_variance
        n = len(x)
        self.share = numpy.ones(n) if likelihood.row_weight is None else 1.0 / likelihood.row_weight.numpy()
        self.known = numpy.zeros(n) if likelihood.row_variance is None else likelihood.row_variance.numpy()

    @classmethod
    def of(cls, gp: Any, x: Tensor, y: Tensor) -> "SmallModel | None":
        """The small model of a GP and checked data, or None."""
        n = x.shape[-2]
        if not (0 < n <= SMALL_ROWS and x.dim() == 2 and x.device.type == "cpu" and not x.requires_grad):
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
        if not all(_plain(p) for p in parameters):
            return None
        targets = y.detach().numpy().astype(numpy.float64, copy=False)
        return cls(gp, x.detach().numpy().astype(numpy.float64, copy=False), targets.reshape(n, -1), leaves, theta)

    def __call__(self) -> tuple[float, dict[Parameter, Array]] | None:
        """(log marginal likelihood, gradient by every parameter's raw value), eqs. (M-33), (M-34); None when the
        matrix is not positive definite."""
        features: list[Array] = []
        pulls: list[tuple[int, Callable[[Sequence[Any]], dict[str, Any]]]] = []
        for leaf, columns in zip(self.leaves, self.columns, strict=True):
            made, pull = leaf.small_features(columns, _values(leaf))
            pulls.append((len(features), pull))
            features += made
        noise = self.known if self.noise is None else self.share * _value(self.noise) + self.known
        residual = self.y if self.mean is None else self.y - _value(self.mean)
        theta = [float(_value(p)) for p in self.theta]
        problem = SmallProblem(self.form, theta, features, len(self.x))
        solved = problem.solve(noise, residual)
        if solved is None:
            return None
        value, weights, lower = solved
        slope = problem.slope(weights, lower)
        pulled = problem.pull(slope)
        total: dict[Parameter, Array] = {}

        def add(parameter: Parameter, gradient: Any) -> None:
            part = _to_raw(parameter, gradient)
            total[parameter] = total[parameter] + part if parameter in total else part

        for leaf, (at, pull) in zip(self.leaves, pulls, strict=True):
            if leaf.statistics:
                for name, gradient in pull(pulled[at : at + len(leaf.statistics)]).items():
                    add(getattr(leaf, name), gradient)
        for parameter, gradient in zip(self.theta, pulled[len(features) :], strict=True):
            add(parameter, 0.0 if gradient is None else gradient)
        if self.mean is not None:
            add(self.mean, weights.sum(0) if self.mean.event_dim else weights.sum())
        if self.noise is not None:
            add(self.noise, numpy.dot(slope.diagonal(), self.share))
        return value, total


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


def _plain(parameter: Parameter) -> bool:
    """One model's float64 values on the CPU, not seen through a functional transform."""
    raw = parameter.raw
    return (
        raw.dtype == torch.float64
        and raw.device.type == "cpu"
        and raw.dim() <= parameter.event_dim
        and not torch._C._functorch.is_functorch_wrapped_tensor(raw)
    )


def _value(parameter: Parameter) -> Array:
    raw, domain = parameter.raw.detach().numpy(), parameter.domain
    if domain.kind == "positive":
        return numpy.exp(raw) + domain.lower if domain.lower else numpy.exp(raw)
    if domain.kind == "real":
        return raw
    return domain.lower + (domain.upper - domain.lower) / (1.0 + numpy.exp(-raw))


def _values(leaf: Leaf) -> dict[str, Array]:
    return {name: _value(p) for name, p in leaf._modules.items() if isinstance(p, Parameter)}


def _to_raw(parameter: Parameter, gradient: Any) -> Array:
    """d/d raw from d/d value, eqs. (M-18) and (M-19)."""
    domain = parameter.domain
    if domain.kind == "real":
        return numpy.asarray(gradient, dtype=numpy.float64)
    raw = parameter.raw.detach().numpy()
    if domain.kind == "positive":
        return gradient * numpy.exp(raw)
    unit = 1.0 / (1.0 + numpy.exp(-raw))
    return gradient * ((domain.upper - domain.lower) * unit * (1.0 - unit))


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
