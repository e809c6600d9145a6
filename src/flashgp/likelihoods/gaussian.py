"""The Gaussian likelihood: y is f with independent noise; for rows that stand for several observations too.

Of several outputs each has a noise variance of its own, unless they are told to share one.
"""

import copy
import math
import numbers
from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy
import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from flashgp.foundations.checks import as_float_tensor, check_count, check_finite
from flashgp.foundations.errors import DomainError, ShapeError
from flashgp.foundations.normal import LOG_2PI, standard_quantile
from flashgp.foundations.parameters import Domain, Parameter, as_parameter
from flashgp.foundations.usual_names import usual_names_refused
from flashgp.likelihoods.base import Likelihood, LinearNoise, PredictiveDistribution, Sites

Numeric = float | Tensor | Parameter
_POSITIVE = math.ulp(0.0)  # the smallest weight that is one


class Gaussian(Likelihood):
    """y_i = f(x_i) + e_i with e_i ~ N(0, noise_variance / w_i + row_variance_i), eq. (M-28).

    Weights are relative precisions, w_i = row_weight_i over their geometric mean, eq. (M-251): an overall scale of them
    changes nothing, and noise_variance is that of a typical row and of a new observation. A GP with outputs=p has a
    noise variance for each output, (p,), which begin at the number given here: p covariance matrices, and p factors.
    With `shared` all outputs have one noise, and one factor serves them.

    Args:
        noise_variance: positive number, tensor (*batch,) or Parameter; with `outputs`, (*batch, outputs) or a number
            for all; 0 or None for none beside row_variance.
        row_variance: (*batch, n) known variances of the training rows, not trained, of every output; None for none.
        row_weight: (*batch, n) positive, such as 1 / variance of each row; kept with geometric mean 1, and their unit
            as `weight_unit`, for rows that are appended. None for rows of one noise.
        outputs: how many outputs have a noise variance of their own. None leaves it to the GP: each has one where
            noise_variance is a number.
        shared: whether all outputs of the GP have the same noise variance.

    Raises:
        DomainError: for negative variances, weights that are not positive, span more than float64 holds or have no
            noise_variance to divide, or `outputs` beside `shared`.
        ShapeError: for a noise_variance that does not fit `outputs`.

    Example:
        >>> x, y = torch.rand(20, 1), torch.rand(20)
        >>> gp = fgp.GP(fgp.kernels.Matern(), likelihood=fgp.likelihoods.Gaussian(noise_variance=0.1))
        >>> gp.condition(x, y).predict(x[:3]).observation_variance.shape
        torch.Size([3])
        >>> gp = fgp.GP(fgp.kernels.Matern(), likelihood=fgp.likelihoods.Gaussian(0.1), outputs=2)
        >>> gp.likelihood.noise_variance.value.shape
        torch.Size([2])
    """

    has_sites = True
    roles = {"noise_variance": "noise_variance"}
    row_variance: Tensor | None
    row_weight: Tensor | None
    weight_unit: Tensor | None

    @usual_names_refused
    def __init__(
        self,
        noise_variance: Numeric | None = 0.1,
        row_variance: Any = None,
        row_weight: Any = None,
        *,
        outputs: int | None = None,
        shared: bool = False,
    ) -> None:
        super().__init__()
        self.noise_variance: Parameter | None = None
        self.shared = bool(shared)
        if outputs is not None and self.shared:
            raise DomainError(
                f"`shared` must be False where outputs have noise of their own, got outputs={outputs} beside it; leave "
                "one of them out"
            )
        if noise_variance is not None and not _is_zero(noise_variance):
            self.outputs = None if outputs is None else check_count(outputs, "outputs", 1)
            self.noise_variance = as_parameter(
                _for_each(noise_variance, self.outputs), Domain(lower=0.0), "noise_variance",
                event_dim=0 if self.outputs is None else 1,
            )  # fmt: skip
        known, weight = _per_row(row_variance, "row_variance", 0.0), self._checked_weight(row_weight)
        weight, unit = (None, None) if weight is None else _relative(weight)
        self.register_buffer("row_variance", None if known is None else known.clone())  # the caller may write in theirs
        self.register_buffer("row_weight", weight)
        self.register_buffer("weight_unit", unit)

    def arguments(self) -> dict[str, Any]:
        found, unit = super().arguments(), self.weight_unit
        return (
            found if unit is None or "row_weight" not in found else found | {"row_weight": found["row_weight"] * unit}
        )

    def _checked_weight(self, row_weight: Any) -> Tensor | None:
        """Weights as they came. Raises: DomainError, ShapeError for numbers that are none, or that divide nothing."""
        weight = _per_row(row_weight, "row_weight", _POSITIVE)
        if weight is not None and self.noise_variance is None:
            raise DomainError(
                "`row_weight` must be None without a noise_variance, which it divides, got weights of "
                f"{weight.shape[-1]:,} rows; leave them out, or pass a noise_variance"
            )
        return weight

    def for_outputs(self, outputs: int | None) -> "Gaussian":
        """A copy with a noise variance for each output of a GP, unless they share one.

        Raises:
            DomainError: where it is one of another number of outputs, or where a tensor may mean outputs or a batch.
        """
        if self.outputs is not None and self.outputs != outputs:
            raise DomainError(
                f"`likelihood` must be one for outputs={outputs} like the GP, got Gaussian(..., outputs="
                f"{self.outputs}); give both the same number"
            )
        noise = self.noise_variance
        if outputs is None or outputs == 1 or self.outputs is not None or self.shared or noise is None:
            return self
        each = f"Gaussian(..., outputs={outputs}) with shape (*batch, {outputs}) for one of each output"
        if noise.given:  # which stays one wherever it is used
            raise DomainError(
                f"`noise_variance` must be a number, or say what it is of {outputs} outputs, got one Parameter, of "
                f"{tuple(noise.raw.shape)}; write {each}, or Gaussian(..., shared=True) for one of all outputs"
            )
        if noise.raw.dim():
            raise DomainError(
                f"`noise_variance` must be a number, or say what it is of {outputs} outputs, got shape "
                f"{tuple(noise.raw.shape)}, which may mean outputs or a batch of models; write {each}, or "
                "Gaussian(..., shared=True) for a batch of models, with one noise variance each for all their outputs"
            )
        return self._with_noise(noise.repeated(outputs), outputs)

    def output(self, index: int, *, live: bool = True) -> "Gaussian":
        """Likelihood of one output alone."""
        if self.outputs is None or self.noise_variance is None:
            return self
        noise = self.noise_variance.entry(index) if live else self.noise_variance.own_entry(index)
        return self._with_noise(noise, None)

    def _with_noise(self, noise: Parameter, outputs: int | None) -> Self:
        """A copy, of its own class, with another parameter."""
        same = copy.copy(self)
        same._modules, same._buffers = {**self._modules, "noise_variance": noise}, {**self._buffers}
        same.outputs = outputs
        return same

    def variance(self, device: torch.device) -> Float64[Tensor, "*batch"]:
        """The variance of a new observation around f, shape (*batch,), or (*batch, outputs) with `outputs`, float64."""
        if self.noise_variance is None:
            return torch.zeros((), dtype=torch.float64, device=device)
        return self.noise_variance.value.to(device)

    def diagonal(self, n: int, device: torch.device) -> Tensor:
        """The noise variance of each training row, float64: (*batch, n), or (*batch, 1) when all are equal; with
        `outputs` (*batch, n or 1, outputs).

        Raises:
            ShapeError: when row_variance or row_weight has another number of rows.
        """
        at = -1 if self.outputs is None else -2
        total = self.variance(device).unsqueeze(at)
        for name in ("row_weight", "row_variance"):
            rows = getattr(self, name)
            if rows is None:
                continue
            if rows.shape[-1] != n:
                raise ShapeError(
                    f"`{name}` must have one entry per training row ({n}), got shape {tuple(rows.shape)}; "
                    "pass it for the rows you condition on"
                )
            rows = rows.to(device) if self.outputs is None else rows.to(device).unsqueeze(-1)
            total = total / rows if name == "row_weight" else total + rows
        return total

    def _beside(self, values: Tensor) -> Tensor:
        """The variance of a new observation, to go with values (*batch, n), or (outputs, *batch, n) with `outputs`."""
        noise = self.variance(values.device)
        if self.outputs is None:
            return noise.unsqueeze(-1)
        noise = noise.movedim(-1, 0)  # (outputs, *batch)
        between = (1,) * (values.dim() - 1 - noise.dim())
        return noise.reshape(noise.shape[0], *between, *noise.shape[1:], 1)

    def rows(self, index: Int[Tensor, "some"]) -> "Gaussian":
        """The likelihood for some of the training rows; parameters are shared."""
        return self._with_each(lambda values: values[..., index.to(values.device)])

    def by_rows(self, function: Callable[[Tensor], Tensor]) -> "Gaussian":
        if self.rows_alike:
            return self
        known, weight, unit = self.row_variance, self.row_weight, self.weight_unit
        known = None if known is None else function(known)
        if weight is None or unit is None:
            return self.with_rows(known, None if weight is None else function(weight))
        return self.weighted(function(weight * unit), known)

    def weighted(self, weight: Any, row_variance: Any = None) -> "Gaussian":
        """An ordinary likelihood with the same parameters and relative precisions of rows, eq. (M-251)."""
        return Gaussian(self.noise_variance, row_variance, weight, outputs=self.outputs, shared=self.shared)

    def _with_each(self, function: Callable[[Tensor], Tensor]) -> "Gaussian":
        """The likelihood with a function of each tensor of rows; parameters are shared."""
        other = self.with_rows()
        for name in ("row_variance", "row_weight"):
            values = getattr(self, name)
            setattr(other, name, None if values is None else function(values))
        return other

    def with_weights(self, row_weight: Any = None, weight_unit: Any = None) -> "Gaussian":
        """The likelihood with the weights of a file, set in place: over their unit, or without one as they stand.

        Args:
            row_weight: as they stand in the file.
            weight_unit: theirs; None for none.

        Raises:
            DomainError: for numbers that are no weights.
            ShapeError: for a weight_unit that is not one of all rows.
        """
        weight, unit = (
            _per_row(value, name, _POSITIVE)
            for name, value in (("row_weight", row_weight), ("weight_unit", weight_unit))
        )
        if unit is not None and (weight is None or unit.shape != (*weight.shape[:-1], 1)):
            raise ShapeError(
                f"`weight_unit` must be one of all rows, got shape {tuple(unit.shape)}; save the model again"
            )
        self.row_weight, self.weight_unit = weight, unit
        return self

    def extended(self, n: int, more: int, row_variance: Any = None, row_weight: Any = None) -> "Gaussian":
        """The likelihood for `more` rows after the n there are; parameters are shared.

        Args:
            n: rows there are.
            more: rows that come.
            row_variance: (more,), or (*batch, more) with the batch of those of the rows before.
            row_weight: likewise, in the unit of those before, by default that of a typical one.

        Raises:
            ShapeError: for row tensors that do not fit.
            DomainError: for row tensors that are missing where the rows before have variances of their own.
        """
        given = {"row_variance": _per_row(row_variance, "row_variance", smallest=0.0),
                 "row_weight": self._checked_weight(row_weight)}  # fmt: skip
        longer = self.with_rows()
        for name, neutral in (("row_variance", 0.0), ("row_weight", 1.0)):
            before, new = getattr(self, name), given[name]
            if before is None and new is None:
                continue
            if new is None and name == "row_variance":
                raise DomainError(
                    "`row_variance` must be given for the new rows, since the rows before have variances of their own; "
                    "pass zeros for none"
                )
            before = torch.full((n,), neutral, dtype=torch.float64) if before is None else before
            new = torch.full((more,), neutral, dtype=torch.float64) if new is None else new
            if new.shape not in ((more,), (*before.shape[:-1], more)):
                raise ShapeError(
                    f"`{name}` must have one entry per new row ({more}), got shape {tuple(new.shape)}; pass it for the "
                    "new rows only"
                )
            new = new.to(before.device).expand(*before.shape[:-1], more)
            if name == "row_weight" and given[name] is not None and self.weight_unit is not None:
                new = new / self.weight_unit
            setattr(longer, name, torch.cat([before, new], dim=-1))
        return longer

    @property
    def row_tensors(self) -> dict[str, Tensor]:
        both = {"row_variance": self.row_variance, "row_weight": self.row_weight}
        return {name: rows for name, rows in both.items() if rows is not None}

    of_read = ("row_variance",)

    def read(self, numbers: Mapping[str, Any], place: str) -> dict[str, Any]:
        found = super().read(numbers, place)
        return {name: _per_row(value, f"{name} of {place}" if place else name, 0.0) for name, value in found.items()}

    def with_rows(self, row_variance: Any = None, row_weight: Any = None, **replicates: Tensor) -> "Gaussian":
        """A likelihood with the same parameters and unit of weights, for other rows.

        Args:
            row_variance: of these rows; None for none.
            row_weight: as they stand: of geometric mean 1, or relative to the unit.
            replicates: as of `ReplicatedGaussian`; without any it is an ordinary one.
        """
        likelihood = Gaussian(self.noise_variance, row_variance, outputs=self.outputs, shared=self.shared)
        likelihood.row_weight, likelihood.weight_unit = row_weight, self.weight_unit
        return ReplicatedGaussian(likelihood, **replicates) if replicates else likelihood

    def sites(self, y: Float[Tensor, "..."], outputs: int | None) -> Sites:
        """The observations themselves, with the noise variance of each row."""
        n = y.shape[-1] if outputs is None else y.shape[-2]
        return Sites(y, self.diagonal(n, y.device), self.log_scale(y.device, outputs or 1))

    def log_scale(self, device: torch.device, outputs: int) -> Tensor | None:
        """`Sites.log_scale`, differentiable in the parameters."""
        return None

    @property
    def rows_alike(self) -> bool:
        return self.row_variance is None and self.row_weight is None

    def additive_noise(self, device: torch.device) -> Float64[Tensor, "*batch"]:
        return self.variance(device)

    def linear_noise(self) -> LinearNoise:
        weight = self.row_weight
        return LinearNoise(self.noise_variance, None if weight is None else 1.0 / weight, self.row_variance)

    # -- rows of equal x -------------------------------------------------------------------------------------------
    def join_keys(self, y: Tensor) -> list[Tensor] | None:
        """Rows may join where no parameter moves the ratio of their variances, and noise-free ones where they agree."""
        known, weight, n, device = self.row_variance, self.row_weight, len(y), y.device
        if any(rows is not None and rows.dim() != 1 for rows in (known, weight)):
            return None
        noise = self.diagonal(n, device)  # refuses row tensors of another length
        if self.noise_variance is None:
            bare = (noise == 0).expand(n)
            columns = y.reshape(n, -1).unbind(-1)
            return [bare.double(), *(torch.where(bare, target.double(), 0.0) + 0.0 for target in columns)]
        if known is None:
            return []
        return [(known if weight is None else known * weight).to(device)]  # in one ratio with noise / weight

    def joined(self, y: Tensor, group: Tensor, first: Tensor) -> "tuple[Tensor, Gaussian, Tensor]":
        n, u, device = len(group), len(first), y.device

        def summed(values: Tensor) -> Tensor:
            return values.new_zeros(u, *values.shape[1:]).index_add_(0, group, values)

        known = None if self.row_variance is None else self.row_variance.to(device)
        ones = torch.ones(n, dtype=torch.float64, device=device)
        precision = ones if self.row_weight is None else self.row_weight.to(device)  # 1 / s_i, up to a factor
        least, positive = None, ones if known is None else torch.where(known > 0, known, 1.0)
        if self.noise_variance is None:  # relative to the surest of the group: a reciprocal may be beyond float64
            least = positive.new_full((u,), math.inf).scatter_reduce_(0, group, positive, "amin")
            precision = least[group] / positive
        total = summed(precision)
        share = precision / total[group]
        log_share = share.log()
        if least is not None:  # of shares that float64 does not hold, too
            held = share >= torch.finfo(torch.float64).tiny
            log_share = torch.where(held, log_share, least[group].log() - positive.log() - total[group].log())
        # Around a member of each group, so that the mean of equal targets is that target.
        targets = y.to(torch.float64).reshape(n, -1)
        anchor = targets[first]
        mean = anchor + summed(share.unsqueeze(-1) * (targets - anchor[group]))
        repeats = summed(ones) - 1.0
        squares = (targets - mean[group]).square()
        squares = squares.sum(-1, keepdim=True) if self.outputs is None else squares
        scatter = summed(share.unsqueeze(-1) * squares)  # (u, outputs or 1)
        offset = summed(-log_share)
        if isinstance(self, ReplicatedGaussian):
            excess = self.excess.to(device)
            repeats = repeats + summed(excess)
            offset = offset + summed(self.offset.to(device) - excess * log_share)
            scatter = scatter + summed(share.unsqueeze(-1) * self.scatter.to(device).reshape(n, -1))
        scatter = scatter if self.outputs is not None else scatter.squeeze(-1)
        row_variance = None if known is None else known[first] * share[first]
        if known is not None and least is not None:
            row_variance = torch.where(known[first] > 0, least / total, 0.0)
        if self.noise_variance is None:  # what has no noise is seen once
            noisy = torch.zeros_like(repeats) if row_variance is None else (row_variance > 0).double()
            repeats, offset, scatter = noisy * repeats, noisy * offset, noisy * scatter
        likelihood = ReplicatedGaussian(
            self.with_rows(row_variance, None if self.noise_variance is None else total), repeats, offset, scatter
        )
        return mean if y.dim() == 2 else mean[:, 0], likelihood, share

    def log_prob(self, y: Float[Tensor, "..."], f: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """log p(y | f), entry by entry, for new observations."""
        return _log_normal(y, f, self._beside(f))

    def predictive(self, mean: Float[Tensor, "..."], variance: Float[Tensor, "..."]) -> "Normal":
        """New observations from mean and variance of f, shapes (*batch, n), or (outputs, *batch, n) with `outputs`: the
        variance grows by the noise."""
        return Normal(mean, variance + self._beside(mean))

    def expected_log_prob(
        self, y: Float[Tensor, "..."], mean: Float[Tensor, "..."], variance: Float[Tensor, "..."]
    ) -> Float[Tensor, "..."]:
        """The expectation of log p(y | f) under f ~ N(mean, variance), eq. (M-29)."""
        noise = self._beside(mean)
        return _log_normal(y, mean, noise) - 0.5 * variance / noise

    def structure(self) -> dict[str, Any]:
        noise_free = self.noise_variance is None
        return {"kind": "Gaussian", "noise_free": noise_free, "outputs": self.outputs, "shared": self.shared}


class ReplicatedGaussian(Gaussian):
    """A Gaussian likelihood whose rows stand for several observations each: it adds the factor C_g of eq. (M-87).

    Args:
        of_rows: the likelihood of the rows, one each.
        excess: (n,) observations beyond one; offset: (n,) minus the logarithms of the shares, summed; scatter: (n,)
            squared deviations around the row's target by share, all outputs together, units of y^2; where outputs have
            noise of their own (n, outputs), of each.
    """

    joins_always = True
    excess: Tensor
    offset: Tensor
    scatter: Tensor

    def __init__(self, of_rows: Gaussian, excess: Tensor, offset: Tensor, scatter: Tensor) -> None:
        super().__init__(of_rows.noise_variance, of_rows.row_variance, outputs=of_rows.outputs, shared=of_rows.shared)
        self.row_weight, self.weight_unit = of_rows.row_weight, of_rows.weight_unit
        self.register_buffer("excess", excess)
        self.register_buffer("offset", offset)
        self.register_buffer("scatter", scatter)

    name = "Gaussian"

    rows_alike = False

    @property
    def counts(self) -> Float64[Tensor, "n"]:
        return 1.0 + self.excess

    @property
    def row_tensors(self) -> dict[str, Tensor]:
        return super().row_tensors | {"excess": self.excess, "offset": self.offset, "scatter": self.scatter}

    def output(self, index: int, *, live: bool = True) -> "ReplicatedGaussian":
        one = super().output(index, live=live)
        if one is not self:
            one.scatter = self.scatter[:, index]
        assert isinstance(one, ReplicatedGaussian)
        return one

    def by_rows(self, function: Callable[[Tensor], Tensor]) -> "ReplicatedGaussian":
        each = (function(rows) for rows in (self.excess, self.offset, self.scatter))
        return ReplicatedGaussian(self._with_each(function), *each)

    def rows(self, index: Tensor) -> "ReplicatedGaussian":
        return ReplicatedGaussian(super().rows(index), self.excess[index], self.offset[index], self.scatter[index])

    def extended(
        self, n: int, more: int, row_variance: Tensor | None = None, row_weight: Tensor | None = None
    ) -> "ReplicatedGaussian":
        known = (self.excess, self.offset, self.scatter)
        longer = (torch.cat([rows, rows.new_zeros(more, *rows.shape[1:])]) for rows in known)
        return ReplicatedGaussian(super().extended(n, more, row_variance, row_weight), *longer)

    def log_scale(self, device: torch.device, outputs: int) -> Tensor:
        """log C_g over all rows and outputs, eq. (M-87), (*batch,), nats."""
        variance = self.diagonal(len(self.excess), device)
        if self.outputs is not None:  # of each output its own
            repeats = self._by_row(self.excess) * (LOG_2PI + variance.log()) + self._by_row(self.offset)
            return -0.5 * (repeats + self.scatter / variance).sum((-2, -1))
        if self.noise_variance is None:  # rows without noise stand for one observation
            variance = torch.where(self.excess == 0, 1.0, variance)
        repeats = self.excess * (LOG_2PI + variance.log()) + self.offset
        return -0.5 * (outputs * repeats + self.scatter / variance).sum(-1)

    def scale_information(self, device: torch.device, outputs: int) -> Tensor:
        """The Fisher information of each row's noise variance s in C_g, eq. (M-109): p e / (2 s^2), (*batch, n), for p
        outputs that share it; of a noise variance of each output e / (2 s^2), (*batch, n, outputs).

        The scatter of e + 1 observations is s times a chi-squared variable of p e degrees of freedom. A row that stands
        there less than once has none to take away.
        """
        variance = self.diagonal(len(self.excess), device)
        sharing = outputs if self.outputs is None else 1
        excess = self._by_row(self.excess.to(device).clamp_min(0.0))
        return torch.where(excess > 0.0, 0.5 * sharing * excess / variance.square(), 0.0)

    def _by_row(self, values: Tensor) -> Tensor:
        """(n,) to go with the variance of each row."""
        return values if self.outputs is None else values.unsqueeze(-1)


def repeated(likelihood: Gaussian, weight: Tensor) -> ReplicatedGaussian:
    """A likelihood whose noise differs by output at most, with rows that stand there `weight` times each, whole or not.

    N(y; f, s)^w is the product of (M-86) with k = w rows of share 1 / w: a factor C of excess w - 1 and no scatter.
    """
    of_rows = likelihood.with_rows(row_weight=weight)
    each = () if likelihood.outputs is None else (likelihood.outputs,)
    scatter = weight.new_zeros(len(weight), *each)
    return ReplicatedGaussian(of_rows, weight - 1.0, weight * weight.log(), scatter)


class Normal(PredictiveDistribution):
    """Independent normal distributions, eq. (M-43)."""

    def __init__(self, mean: Tensor, variance: Tensor) -> None:
        self.mean, self.variance = mean, variance

    def quantile(self, q: float) -> Tensor:
        return self.mean + standard_quantile(q) * self.variance.sqrt()

    def log_prob(self, y: Tensor) -> Tensor:
        return _log_normal(y, self.mean, self.variance)

    def cdf(self, y: Tensor) -> Tensor:
        return torch.special.ndtr((y - self.mean) / self.variance.sqrt())

    def sample(self, generator: torch.Generator) -> Tensor:
        noise = torch.randn(self.mean.shape, generator=generator, dtype=torch.float64, device=self.mean.device)
        return self.mean + self.variance.sqrt() * noise


def _log_normal(y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    return -0.5 * ((y - mean).square() / variance + variance.log() + LOG_2PI)


def _is_zero(value: Numeric) -> bool:
    return isinstance(value, numbers.Real) and value == 0


def _for_each(value: Numeric, outputs: int | None) -> Numeric:
    """A noise variance of each output. Raises: ShapeError for a shape that is of another number of them."""
    if outputs is None:
        return value
    if not isinstance(value, Parameter):
        tensor = torch.as_tensor(value, dtype=torch.float64)
        value = tensor.expand(outputs) if tensor.dim() == 0 else tensor
    shape = value.raw.shape if isinstance(value, Parameter) else value.shape
    if shape[-1:] != (outputs,):
        raise ShapeError(
            f"`noise_variance` must have shape (*batch, {outputs}) with outputs={outputs}, got {tuple(shape)}; pass a "
            "number for each output, or one for all"
        )
    return value


def _relative(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Weights (*batch, n) over their geometric mean, eq. (M-251), and the mean, (*batch, 1); equal ones are exactly 1.

    Raises: DomainError for weights whose ratios float64 does not hold.
    """
    if not weight.numel():
        return weight, weight.new_ones(*weight.shape[:-1], 1)
    first = weight[..., :1]
    mean = (weight.log() - first.log()).mean(-1, keepdim=True).exp()  # relative to the first
    relative = weight / first / mean
    if not bool((relative.isfinite() & (relative >= torch.finfo(torch.float64).tiny)).all()):
        raise DomainError(
            "`row_weight` must have ratios that float64 holds, got weights from "
            f"{float(weight.min()):.3g} to {float(weight.max()):.3g}; leave out rows that say nothing"
        )
    return relative, first * mean


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
        advice = "correct it" if smallest == 0.0 else "leave rows that do not count out"
        raise DomainError(f"`{name}` must be {wanted}, got {rows[..., row].min().item():g} at row {row}; {advice}")
    return rows
