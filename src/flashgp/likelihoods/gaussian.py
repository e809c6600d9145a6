"""Likelihoods: how observations y scatter around latent values f."""

import math
from typing import Any

import numpy
import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor, nn

from flashgp.foundations.checks import as_float_tensor, check_finite
from flashgp.foundations.errors import DomainError, ShapeError
from flashgp.foundations.parameters import Domain, Parameter, as_parameter

__all__ = ["Gaussian"]

Numeric = float | Tensor | Parameter


class Gaussian(nn.Module):
    """y_i = f(x_i) + e_i with e_i ~ N(0, noise_variance / row_weight_i + row_variance_i), eq. (M-28).

    Args:
        noise_variance: positive number, tensor (*batch,) or Parameter; 0 or None for none beside row_variance.
        row_variance: (*batch, n) known variances of the training rows, not trained; None for none.
        row_weight: (*batch, n) positive; a row of weight w counts like the mean of w observations; None for ones.
    Raises: DomainError for negative variances or weights that are not positive.
    """

    roles = {"noise_variance": "noise_variance"}
    row_variance: Tensor | None
    row_weight: Tensor | None

    def __init__(
        self,
        noise_variance: Numeric | None = 0.1,
        row_variance: Any = None,
        row_weight: Any = None,
    ) -> None:
        super().__init__()
        self.noise_variance: Parameter | None = None
        if noise_variance is not None and not _is_zero(noise_variance):
            self.noise_variance = as_parameter(noise_variance, Domain(lower=0.0), "noise_variance")
        self.register_buffer("row_variance", _per_row(row_variance, "row_variance", smallest=0.0))
        self.register_buffer("row_weight", _per_row(row_weight, "row_weight", smallest=math.ulp(0.0)))

    def variance(self, device: torch.device) -> Float64[Tensor, "*batch"]:
        """The variance of a new observation around f, shape (*batch,), float64."""
        if self.noise_variance is None:
            return torch.zeros((), dtype=torch.float64, device=device)
        return self.noise_variance.value.to(device)

    def diagonal(self, n: int, device: torch.device) -> Float64[Tensor, "*batch rows"]:
        """The noise variance of each training row, shape (*batch, n) (or (*batch, 1) when all are equal), float64.

        Raises: ShapeError when row_variance or row_weight has another number of rows.
        """
        total = self.variance(device).unsqueeze(-1)
        for name in ("row_weight", "row_variance"):
            rows = getattr(self, name)
            if rows is None:
                continue
            if rows.shape[-1] != n:
                raise ShapeError(
                    f"`{name}` must have one entry per training row ({n}), got shape {tuple(rows.shape)}; "
                    "pass it for the rows you condition on"
                )
            rows = rows.to(device)
            total = total / rows if name == "row_weight" else total + rows
        return total

    def rows(self, index: Int[Tensor, "some"]) -> "Gaussian":
        """The same likelihood for some of the training rows; parameters are shared."""
        part = Gaussian(self.noise_variance)
        for name in ("row_variance", "row_weight"):
            values = getattr(self, name)
            setattr(part, name, None if values is None else values[..., index.to(values.device)])
        return part

    def extended(self, n: int, more: int, row_variance: Any = None, row_weight: Any = None) -> "Gaussian":
        """The same likelihood for `more` rows after the n there are; parameters are shared.

        Raises: ShapeError, DomainError for row tensors that do not fit, or that are missing where the rows before have
            variances of their own.
        """
        given = {"row_variance": _per_row(row_variance, "row_variance", smallest=0.0),
                 "row_weight": _per_row(row_weight, "row_weight", smallest=math.ulp(0.0))}  # fmt: skip
        longer = Gaussian(self.noise_variance)
        for name, neutral in (("row_variance", 0.0), ("row_weight", 1.0)):
            own, new = getattr(self, name), given[name]
            if own is None and new is None:
                continue
            if new is None and name == "row_variance":
                raise DomainError(
                    "`row_variance` must be given for the new rows, since the rows before have variances of their own; "
                    "pass zeros for none"
                )
            if new is not None and new.shape != (more,):
                raise ShapeError(
                    f"`{name}` must have one entry per new row ({more}), got shape {tuple(new.shape)}; pass it for the "
                    "new rows only"
                )
            own = torch.full((n,), neutral, dtype=torch.float64) if own is None else own
            new = torch.full((more,), neutral, dtype=torch.float64) if new is None else new
            setattr(longer, name, torch.cat([own, new.to(own.device)]))
        return longer

    def beyond_information(self, device: torch.device, outputs: int) -> Tensor | None:
        """The Fisher information of each row's noise variance in what `beyond_matrix` adds; None for nothing."""
        return None

    def beyond_matrix(self, device: torch.device, outputs: int) -> Tensor | None:
        """A term of the log likelihood besides that of y under the covariance matrix, (*batch,); None for none."""
        return None

    def log_prob(self, y: Float[Tensor, "..."], f: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """log p(y | f), entry by entry, for new observations."""
        return _log_normal(y, f, self.variance(f.device).unsqueeze(-1))

    def predictive(
        self, mean: Float[Tensor, "*shape"], variance: Float[Tensor, "..."]
    ) -> tuple[Float[Tensor, "*shape"], Float[Tensor, "..."]]:
        """Mean and variance of new observations from those of f, shapes (*batch, n)."""
        return mean, variance + self.variance(variance.device).unsqueeze(-1)

    def expected_log_prob(
        self, y: Float[Tensor, "..."], mean: Float[Tensor, "..."], variance: Float[Tensor, "..."]
    ) -> Float[Tensor, "..."]:
        """The expectation of log p(y | f) under f ~ N(mean, variance), eq. (M-29)."""
        noise = self.variance(mean.device).unsqueeze(-1)
        return _log_normal(y, mean, noise) - 0.5 * variance / noise

    def structure(self) -> dict[str, Any]:
        return {"kind": "Gaussian", "noise_free": self.noise_variance is None}


def _log_normal(y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    return -0.5 * ((y - mean).square() / variance + variance.log() + math.log(2.0 * math.pi))


def _is_zero(value: Numeric) -> bool:
    return not isinstance(value, Parameter | Tensor) and value == 0


def _per_row(value: Any, name: str, smallest: float) -> Tensor | None:
    if value is None:
        return None
    rows = as_float_tensor(value, name).detach().to(torch.float64)
    check_finite(rows, name)
    if rows.dim() == 0 or (not isinstance(value, Tensor) and numpy.ndim(value) == 0):
        raise ShapeError(f"`{name}` must have shape (*batch, n), got a number; use noise_variance for one variance")
    if bool((rows < smallest).any()):
        row = int((rows < smallest).nonzero()[0][-1])
        wanted = "0 or more" if smallest == 0.0 else "positive"
        raise DomainError(f"`{name}` must be {wanted}, got {rows[..., row].min().item():g} at row {row}; correct it")
    return rows
