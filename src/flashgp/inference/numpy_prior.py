"""A prior for one point at a time, in NumPy calls: its features, covariances, mean and noise.

A row that joins a posterior, or a point that is predicted, takes some microseconds of arithmetic beside the triangle; a
call of torch or of a module costs as much as all of it. So what does not change from point to point is looked up once,
for a prior of one table in float64 on the CPU whose rows are all alike. The formulas are those of every other route.
"""

from collections.abc import Sequence
from typing import Any

import numpy
import torch
from torch import Tensor

from flashgp.foundations.form import Rows
from flashgp.foundations.parameters import Parameter, named_parameter_objects
from flashgp.foundations.workspace import Workspace
from flashgp.inference.prior import Prior
from flashgp.kernels.base import Kernel, Leaf, Product, Scaled, Sum
from flashgp.means import Constant, Zero
from flashgp.pairwise.numpy_pairs import TITLE, Array, NumpyPairs, RowArrays

__all__ = ["TITLE", "NumpyPrior", "collect_leaves", "is_plain", "plain_array"]


class NumpyPrior:
    """Parts of a prior's points. Made by `of`, for the parameters as they are then.

    Fields: covariance, of blocks of few pairs; mean, of every point, () or (outputs,); noise, of every row, (1,).
    """

    def __init__(
        self, prior: Prior, covariance: NumpyPairs, leaves: Sequence[Leaf] | None, mean: Array, noise: Tensor
    ) -> None:
        self.covariance, self.mean, self.noise = covariance, mean, noise
        self._kernel = prior.kernel
        self._leaves: list[tuple[Leaf, list[int] | None, dict[str, Any]]] | None = None
        if leaves is not None:
            self._leaves = [(leaf, _columns(leaf), _values(leaf)) for leaf in leaves]

    @classmethod
    def of(cls, prior: Prior, theta: Sequence[Tensor], x: Tensor) -> "NumpyPrior | None":
        """The prior's points in NumPy; None where rows are not all alike, or where only torch can tell what they are.

        Args: prior, whose parameters nothing changes any more; theta, the kernel's; x (n, d), some points.
        """
        linear = prior.likelihood.linear_noise()  # None where the sites of a row are not its observation
        if (
            prior.separate
            or linear is None
            or linear.scale is not None
            or linear.offset is not None
            or not prior.likelihood.rows_alike
        ):
            return None
        noise = torch.zeros((), dtype=torch.float64) if linear.parameter is None else linear.parameter.value
        if x.dim() != 2 or x.device.type != "cpu" or type(prior.mean) not in (Zero, Constant):
            return None
        parameters = [p for _, p in named_parameter_objects(prior)]
        if not all(is_plain(p) and not p.raw.requires_grad for p in parameters):
            return None
        covariance = NumpyPairs.of(prior.kernel.form, theta)
        if covariance is None:
            return None
        mean = prior.mean.value.value.numpy() if isinstance(prior.mean, Constant) else numpy.zeros(())
        return cls(prior, covariance, _leaves(prior.kernel, x), mean, noise.reshape(1))

    def rows(self, x: Array) -> RowArrays:
        """Features of points (k, d) in the form."""
        x = x if x.dtype == numpy.float64 else x.astype(numpy.float64)
        if self._leaves is None:
            with torch.no_grad():
                return RowArrays.of(self._kernel.rows(torch.from_numpy(numpy.array(x))))  # whatever its strides
        features: list[Array] = []
        for leaf, columns, values in self._leaves:
            features += leaf.small_features(x if columns is None else x[:, columns], values)[0]
        return RowArrays(features, (), len(x))

    def block(self, rows: Rows, others: Rows, workspace: Workspace) -> Tensor:
        """K between some rows, (k, n)."""
        workspace.ran(TITLE)
        return torch.from_numpy(self.covariance.block(RowArrays.of(rows), RowArrays.of(others)))


def plain_array(value: Any) -> Array | None:
    """The numbers of a tensor or array where they lie; None where torch has to say what they are: with a graph, on
    another device, inside a transform, lazily negated, or of a type of its own."""
    if type(value) is numpy.ndarray:
        return value
    if type(value) is not Tensor:
        return None
    try:
        numbers: Array = value.numpy()
    except (RuntimeError, TypeError):
        return None
    return numbers


def _columns(leaf: Leaf) -> list[int] | None:
    return None if leaf.active_dims is None else list(leaf.active_dims)


def _values(leaf: Leaf) -> dict[str, Any]:
    """The parameters of a leaf by name."""
    return {name: p.value.detach().numpy() for name, p in leaf.named_children() if isinstance(p, Parameter)}


def _leaves(kernel: Kernel, x: Tensor) -> list[Leaf] | None:
    """The leaves of a kernel in the order of its form; None where one of them states no small features."""
    leaves: list[Leaf] = []
    return leaves if collect_leaves(kernel, leaves, [], x) else None


def collect_leaves(kernel: Kernel, leaves: list[Leaf], theta: list[Parameter], x: Tensor) -> bool:
    """Leaves and profile parameters in the order of the form; False when a kernel states no small features."""
    if isinstance(kernel, Scaled):
        theta.append(kernel.variance)
        return collect_leaves(kernel.kernel, leaves, theta, x)
    if isinstance(kernel, Sum | Product):
        return all(collect_leaves(part, leaves, theta, x) for part in kernel.parts)
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
