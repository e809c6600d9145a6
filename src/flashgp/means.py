"""Prior means: Zero, Constant, Linear; any `nn.Module` from (*batch, n, d) to (*batch, n) serves as one too.

It is called in evaluation mode always, in `fit` too: a likelihood that changes at random cannot be maximised.
"""

from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from flashgp.foundations.checks import check_count
from flashgp.foundations.errors import DomainError, ShapeError
from flashgp.foundations.named_values import NamedValues
from flashgp.foundations.parameters import Domain, Parameter, as_parameter, number_tensor
from flashgp.processes.gradient_shares import called

__all__ = ["REGISTRY", "Constant", "Linear", "Zero"]


Numeric = float | Tensor | Parameter


class Zero(NamedValues):
    """m(x) = 0.

    Example:
        >>> fgp.means.Zero()(torch.rand(3, 2))
        tensor([0., 0., 0.], dtype=torch.float64)
    """

    def forward(self, x: Float[Tensor, "*batch n d"]) -> Float64[Tensor, "n"]:
        """Points to zeros."""
        return torch.zeros(x.shape[-2], dtype=torch.float64, device=x.device)

    def structure(self) -> dict[str, Any]:
        return {"kind": "Zero"}


class Constant(NamedValues):
    """m(x) = value, eq. (M-27).

    Args:
        value: number or (*batch,); with `outputs=p`, (*batch, p) or a number for all; units of y.
        outputs: how many outputs it serves; None for one.

    Example:
        >>> fgp.means.Constant(1.5)(torch.rand(2, 1)).detach()
        tensor([1.5000, 1.5000], dtype=torch.float64)
    """

    roles = {"value": "output_mean"}

    def __init__(self, value: Numeric = 0.0, outputs: int | None = None) -> None:
        super().__init__()
        self.outputs = outputs = None if outputs is None else check_count(outputs, "outputs", 1)
        if outputs is not None and not isinstance(value, Parameter):
            value = number_tensor(value, "value")
            if value.shape[-1:] != (outputs,):
                value = value.unsqueeze(-1).expand(*value.shape, outputs)
        self.value = as_parameter(value, Domain(), "value", event_dim=0 if outputs is None else 1)

    def forward(
        self, x: Float[Tensor, "*points n d"]
    ) -> Float64[Tensor, "*batch n"] | Float64[Tensor, "*batch n outputs"]:
        """The value at every point, with its own batch dimensions; the second where it serves several outputs."""
        n = x.shape[-2]
        value = self.value.value.to(x.device)
        if self.outputs is None:
            return value.unsqueeze(-1).expand(*value.shape, n)
        return value.unsqueeze(-2).expand(*value.shape[:-1], n, self.outputs)

    def structure(self) -> dict[str, Any]:
        return {"kind": "Constant", "outputs": self.outputs}


class Linear(NamedValues):
    """m(x) = intercept + slope . x, eq. (M-27).

    Args:
        slope: (d,) or (*batch, d); units of y / x. A number when d = 1.
        intercept: number or (*batch,); units of y.

    Example:
        >>> fgp.means.Linear(slope=torch.tensor([2.0]), intercept=1.0)(torch.tensor([[0.0], [3.0]])).detach()
        tensor([1., 7.], dtype=torch.float64)
    """

    roles = {"slope": "output_slope", "intercept": "output_mean"}

    def __init__(self, slope: Numeric, intercept: Numeric = 0.0) -> None:
        super().__init__()
        if not isinstance(slope, Parameter):
            slope = number_tensor(slope, "slope")
            slope = slope[None] if slope.dim() == 0 else slope
        elif slope.raw.dim() == 0:
            raise ShapeError("`slope` must have one entry per column of x, got a number; pass Parameter(torch.ones(d))")
        self.slope = as_parameter(slope, Domain(), "slope", event_dim=1)
        self.intercept = as_parameter(intercept, Domain(), "intercept")

    def forward(self, x: Float[Tensor, "*points n d"]) -> Float64[Tensor, "*batch n"]:
        """The value at every point; the batch is that of the points and the parameters together."""
        slope = self.slope.value.to(x.device)
        if slope.shape[-1] != x.shape[-1]:
            raise ShapeError(
                f"`slope` must have {x.shape[-1]} entries, one per column of x, got {slope.shape[-1]}; "
                "pass torch.zeros(d)"
            )
        return (x.to(slope.dtype) @ slope.unsqueeze(-1)).squeeze(-1) + self.intercept.value.to(x.device).unsqueeze(-1)

    def structure(self) -> dict[str, Any]:
        return {"kind": "Linear"}


class OutputMean(nn.Module):
    """One output of a module that serves several.

    Args:
        module: a mean of so many `outputs`.
        index: of the output.
    """

    def __init__(self, module: nn.Module, outputs: int, index: int) -> None:
        super().__init__()
        self.module, self.outputs, self.index = module, outputs, index

    def forward(self, x: Tensor) -> Tensor:
        """Points (*batch, n, d) to (*batch, n)."""
        value = evaluate_mean(self.module, x, self.outputs)
        return value[..., self.index if value.shape[-1] > 1 else 0]


def mean_of_output(mean: nn.Module, outputs: int, index: int, *, live: bool = True) -> nn.Module:
    """The mean of one output; with `live` its parameters stay those of `mean`, else those of each output are copies."""
    if isinstance(mean, Constant):
        if mean.outputs is None:
            return mean
        return Constant(mean.value.entry(index) if live else mean.value.own_entry(index))
    return mean if isinstance(mean, tuple(REGISTRY.values())) else OutputMean(mean, outputs, index)


REGISTRY: dict[str, type[nn.Module]] = {"Zero": Zero, "Constant": Constant, "Linear": Linear}


def evaluate_mean(
    mean: nn.Module, x: Float[Tensor, "*points n d"], outputs: int | None
) -> Float64[Tensor, "*batch n"] | Float64[Tensor, "*batch n outputs_or_1"]:
    """The prior mean at x, float64, shape (*batch, n) or, with outputs, (*batch, n, outputs or 1).

    A foreign module runs in the dtype of its own parameters and in evaluation mode; a trailing dimension of one is
    dropped for one output.
    Raises: ShapeError naming what the module returned.
    """
    known = isinstance(mean, tuple(REGISTRY.values()))
    if known:
        value = mean(x)
    else:
        dtype = next((p.dtype for p in mean.parameters() if p.is_floating_point()), torch.float64)
        value = called(mean, x.to(dtype))
        if not isinstance(value, Tensor):
            raise DomainError(f"`mean` must return a tensor, got {type(value).__name__}; return shape (*batch, n)")
    n = x.shape[-2]
    value = value.to(torch.float64)
    if outputs is None:
        if value.shape[-1:] != (n,) and value.shape[-2:] == (n, 1):
            value = value.squeeze(-1)
        if value.shape[-1:] != (n,):
            raise ShapeError(
                f"`mean` must return shape (*batch, {n}) for x of shape {tuple(x.shape)}, got {tuple(value.shape)}; "
                "return one value per row"
            )
        return value
    # (*batch, n) may look like (n, outputs): for a mean that follows the points, the number of dimensions decides.
    of_outputs = getattr(mean, "outputs", None) is not None if known else value.dim() >= x.dim()
    if value.shape[-2:] in ((n, outputs), (n, 1)) and (of_outputs or value.shape[-1:] != (n,)):
        return value
    if value.shape[-1:] == (n,):
        return value.unsqueeze(-1)
    raise ShapeError(
        f"`mean` must return shape (*batch, {n}, {outputs}) or (*batch, {n}) for x of shape {tuple(x.shape)}, "
        f"got {tuple(value.shape)}; return one value per row and output"
    )
