"""Log marginal likelihood and gradient of few rows in NumPy and LAPACK calls, eqs. (M-33) and (M-34).

`SmallModel` needs no autograd: unconstrained values in, value and gradient by them out. It serves models whose kernels
state how their features move with their parameters (`small_features`) and whose mean is Zero or Constant. For other
models autograd connects features and parameters, and `SmallLikelihood` is what lies between. The formula of each
profile is the one generated program (`pairwise/numpy_pairs.py`).
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch
from torch import Tensor

from flashgp.foundations.determinism import is_deterministic
from flashgp.foundations.form import Form
from flashgp.foundations.normal import LOG_2PI
from flashgp.foundations.parameters import Parameter
from flashgp.foundations.profile_ranges import profiled
from flashgp.foundations.transforms import in_forward_mode, is_transformed
from flashgp.foundations.workspace import Workspace
from flashgp.inference.exact.solve import LikelihoodRounding
from flashgp.inference.numpy_prior import collect_leaves, is_plain
from flashgp.inference.prior import Prior
from flashgp.kernels.base import Leaf
from flashgp.means import Constant, Zero
from flashgp.pairwise.numpy_pairs import MAX_NUMPY_ROWS, TITLE, NumpyPairs, RowArrays

Array = numpy.ndarray
MAX_SCIPY_ROWS = 64  # above, LAPACK is torch's: quicker there, and one pool of threads instead of two


class SmallLikelihood:
    """One covariance matrix of few rows, its factorisation and the pullback of its gradient.

    Args:
        pairs: the covariance function; rows: its rows; workspace: records the backend.
    """

    def __init__(self, pairs: NumpyPairs, rows: RowArrays, workspace: Workspace | None = None) -> None:
        if workspace is not None:
            workspace.ran(TITLE)
        self.matrix, self.pull = pairs.taped_block(rows)

    @profiled("factorisation")
    def solve(
        self, noise: Array, residual: Array, rounding: LikelihoodRounding | None = None
    ) -> tuple[float, Array, Array] | None:
        """(log likelihood, K^-1 r, lower factor) with `noise` on the diagonal, in the memory of the matrix.

        None if it is not positive definite. `rounding` is told of it.
        """
        dpotrf, dpotrs = _routines()
        n, p = residual.shape
        matrix = self.matrix
        matrix.ravel()[:: n + 1] += noise
        # A symmetric row-major matrix read by columns is itself, its upper triangle the lower one.
        if n <= MAX_SCIPY_ROWS:
            lower, info = dpotrf(matrix.T, lower=1, overwrite_a=1, clean=1)
            weights = None if info else dpotrs(lower, residual, lower=1)[0]
        else:
            factor, status = torch.from_numpy(matrix).mT, torch.empty((), dtype=torch.int32)
            torch.linalg.cholesky_ex(factor, out=(factor, status))
            lower, info = factor.numpy(), int(status)
            weights = None if info else torch.cholesky_solve(torch.from_numpy(residual), factor).numpy()
        if weights is None:
            return None
        log_determinant = 2.0 * float(numpy.log(lower.diagonal()).sum())
        fit = float(numpy.vdot(residual, weights))
        value = -0.5 * (fit + p * log_determinant + n * p * LOG_2PI)
        if rounding is not None:
            rounding.note_small(lower, weights, value)
        return value, weights, lower

    @profiled("factorisation")
    def slope(self, weights: Array, lower: Array) -> Array:
        """dL/dK = 1/2 (A A^T - p K^-1), eq. (M-34), in the memory of the factor."""
        inverse, right = torch.from_numpy(lower), torch.from_numpy(weights)
        torch.cholesky_inverse(inverse, out=inverse)
        inverse.addmm_(right, right.mT, beta=-0.5 * weights.shape[1], alpha=0.5)
        slope: Array = inverse.mT.numpy()  # symmetric: the same, row by row
        return slope


@functools.lru_cache(maxsize=1)
def _routines() -> tuple[Any, Any]:
    from scipy.linalg.lapack import dpotrf, dpotrs

    return dpotrf, dpotrs


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
    Cost of a call: n^3 flops and a few dozen NumPy calls.
    """

    def __init__(self, prior: Prior, x: Array, y: Array, leaves: list[Leaf], theta: list[Parameter]) -> None:
        self.form = _shared(prior.kernel.form)
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
        self.mean = raw_of(prior.mean.value) if isinstance(prior.mean, Constant) else None
        noise = prior.likelihood.linear_noise()
        assert noise is not None
        self.noise = None if noise.parameter is None else raw_of(noise.parameter)
        self.share: Any = 1.0 if noise.scale is None else noise.scale.numpy()  # of the noise in each row
        self.known: Any = 0.0 if noise.offset is None else noise.offset.numpy()

    @classmethod
    def of(cls, prior: Prior, x: Tensor, y: Tensor) -> "SmallModel | None":
        """The small model of a prior and checked data, or None."""
        n = x.shape[-2]
        if in_forward_mode() or is_transformed(x) or is_transformed(y):
            return None
        if not (0 < n <= MAX_NUMPY_ROWS and x.dim() == 2 and x.device.type == "cpu" and not x.requires_grad):
            return None
        if prior.separate:  # a model for each output
            return None
        if (
            y.requires_grad
            or y.dim() != (1 if prior.outputs is None else 2)
            or type(prior.mean) not in (Zero, Constant)
        ):
            return None
        leaves: list[Leaf] = []
        theta: list[Parameter] = []
        if not collect_leaves(prior.kernel, leaves, theta, x):
            return None
        noise = prior.likelihood.linear_noise()
        if noise is None:
            return None
        for rows in (noise.scale, noise.offset):
            if rows is not None and (rows.shape != (n,) or rows.requires_grad or is_transformed(rows)):
                return None
        parameters = [*theta, *(p for k in leaves for p in k.children() if isinstance(p, Parameter))]
        parameters += [p for p in (getattr(prior.mean, "value", None), noise.parameter) if p is not None]
        if not all(is_plain(p) for p in parameters):
            return None
        targets = y.detach().numpy().astype(numpy.float64, copy=False)
        return cls(prior, x.detach().numpy().astype(numpy.float64, copy=False), targets.reshape(n, -1), leaves, theta)

    def __call__(
        self, workspace: Workspace | None = None, rounding: LikelihoodRounding | None = None
    ) -> tuple[float, dict[Parameter, Array]] | None:
        """(log marginal likelihood, gradient by every parameter's raw value), eqs. (M-33), (M-34).

        None where the general path is to answer: the matrix is not positive definite, or the result must be
        deterministic. The workspace records the backend, and `rounding` is told of the value.
        """
        if is_deterministic():
            return None
        features: list[Array] = []
        pulls: list[tuple[int, Callable[[Sequence[Any]], dict[str, Any]]]] = []
        for leaf, columns, raws in self.leaves:
            of_leaf, pull = leaf.small_features(columns, {name: raw.value() for name, raw in raws.items()})
            pulls.append((len(features), pull))
            features += of_leaf
        noise = self.known if self.noise is None else self.share * self.noise.value() + self.known
        residual = self.y if self.mean is None else self.y - self.mean.value()
        pairs = NumpyPairs(self.form, [float(raw.value()) for raw in self.theta])
        problem = SmallLikelihood(pairs, RowArrays(features, (), len(self.x)), workspace)
        solved = problem.solve(noise, residual, rounding)
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


Again = Callable[[Sequence[Parameter], Sequence[Tensor]], Tensor]


def small_likelihood(model: SmallModel, again: Again, rounding: LikelihoodRounding | None = None) -> Tensor | None:
    """The value as a tensor, differentiable in the raw values; None when the matrix is not positive definite.

    Args: again: the value for raw values of some parameters, the general way: second derivatives go through it.
    """
    solved = model(rounding=rounding)
    if solved is None:
        return None
    value, slopes = solved
    followed = [(p, g) for p, g in slopes.items() if p.raw.requires_grad]
    if not followed:
        return torch.tensor(value, dtype=torch.float64)
    gradients = [torch.from_numpy(numpy.asarray(g).reshape(p.raw.shape)) for p, g in followed]
    parameters = [p for p, _ in followed]
    result: Tensor = _Known.apply(value, gradients, lambda raws: again(parameters, raws), *(p.raw for p in parameters))
    return result


class _Known(torch.autograd.Function):
    """A number whose gradients are known already: backward scales them, or takes those of the general way where it is
    to be differentiated again."""

    @staticmethod
    def forward(
        ctx: Any, value: float, gradients: list[Tensor], again: Callable[[Sequence[Tensor]], Tensor], *raws: Tensor
    ) -> Tensor:
        ctx.gradients, ctx.again = gradients, again
        ctx.save_for_backward(*raws)
        return torch.tensor(value, dtype=torch.float64)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        if not torch.is_grad_enabled():  # no graph of the gradient is asked for
            return (None, None, None, *(g * gradient for g in ctx.gradients))
        raws = ctx.saved_tensors
        found = torch.autograd.grad(ctx.again(raws), raws, gradient, create_graph=True, allow_unused=True)
        return (None, None, None, *found)
