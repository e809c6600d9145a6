"""Constrained parameters: a float64 unconstrained tensor, the map to its domain, and an optional prior.

The constraint is one of `torch.distributions.constraints` (real, positive, greater_than, interval, unit_interval);
the maps are exp for half-lines and the logistic function for intervals, eqs. (M-18) and (M-19). One Parameter
object used in two places is one parameter: sharing is object identity, as everywhere in `torch.nn`.
"""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.distributions import Distribution, constraints

from flashgp.foundations.errors import DomainError, ShapeError
from flashgp.foundations.own_module import OwnModule
from flashgp.foundations.transforms import is_transformed

PARAMETER_DTYPE = torch.float64


@dataclass(frozen=True)
class Domain:
    """An open interval (lower, upper) of the real line and the smooth map from the whole line onto it.

    Half-line, eq. (M-18): value = lower + exp(raw).
    Interval, eq. (M-19): value = lower + (upper - lower) / (1 + exp(-raw)).
    """

    lower: float = -math.inf
    upper: float = math.inf

    @classmethod
    def of(cls, constraint: Any) -> "Domain":
        """The domain of a `torch.distributions` constraint; DomainError for one that is not an interval."""
        match constraint:
            case None:
                return cls()
            case Domain():
                return constraint
            case constraints.greater_than() | constraints.greater_than_eq():
                return cls(lower=float(constraint.lower_bound))
            case constraints.interval() | constraints.half_open_interval():
                return cls(float(constraint.lower_bound), float(constraint.upper_bound))
        if constraint is constraints.real:
            return cls()
        raise DomainError(
            f"`constraint` must be real, positive, greater_than, interval or unit_interval of torch.distributions."
            f"constraints, got {constraint!r}; choose one of these"
        )

    @property
    def kind(self) -> str:
        if math.isinf(self.lower):
            return "real"
        return "positive" if math.isinf(self.upper) else "interval"

    def value(self, raw: Tensor) -> Tensor:
        """Map the real line onto the domain."""
        match self.kind:
            case "real":
                return raw
            case "positive":
                return raw.exp() if self.lower == 0.0 else raw.exp() + self.lower
            case _:
                return self.lower + (self.upper - self.lower) * torch.sigmoid(raw)

    def raw(self, value: Tensor) -> Tensor:
        """The inverse map."""
        match self.kind:
            case "real":
                return value
            case "positive":
                return (value - self.lower).log()
            case _:
                unit = (value - self.lower) / (self.upper - self.lower)
                return torch.logit(unit)

    def log_jacobian(self, raw: Tensor) -> Tensor:
        """log |d value / d raw|, entry by entry."""
        match self.kind:
            case "real":
                return torch.zeros_like(raw)
            case "positive":
                return raw
            case _:
                log_sigmoids = nn.functional.logsigmoid(raw) + nn.functional.logsigmoid(-raw)
                return log_sigmoids + math.log(self.upper - self.lower)

    def edge(self, value: float, share: float) -> float | None:
        """The finite end that a value is at, or None: to such a share of an end that is positive, else of the interval.

        Zero is none: values that vanish are on their way to it from anywhere.
        """
        for end in (self.lower, self.upper):
            width = abs(end) if self.lower >= 0.0 or self.kind != "interval" else self.upper - self.lower
            if math.isfinite(end) and width and abs(value - end) <= share * width:
                return end
        return None

    def contains(self, value: Tensor) -> bool:
        return bool(((value > self.lower) & (value < self.upper) & value.isfinite()).all())

    def __str__(self) -> str:
        match self.kind:
            case "real":
                return "real"
            case "positive":
                return "positive" if self.lower == 0.0 else f"> {self.lower:g}"
            case _:
                return f"in ({self.lower:g}, {self.upper:g})"


POSITIVE = Domain(lower=0.0)


USUAL = 700.0  # exp of this, and of its negative, is a float64 number


class Parameter(OwnModule):
    """A constrained value with an optional prior; a module, so that torch sees its unconstrained tensor `raw`.

    Args:
        value: number or tensor, shape (*batch, *event), inside the constraint's domain.
        constraint: a `torch.distributions.constraints` object; None means the one its place asks for (a lengthscale is
            positive), or real when it stands alone.
        prior: a `torch.distributions.Distribution` over the constrained value, or None.
        trainable: whether `fit` and optimisers may change it.

    Raises:
        DomainError: for a value outside the domain, complex or not finite.

    Example:
        >>> positive = torch.distributions.constraints.positive
        >>> prior = torch.distributions.LogNormal(0.0, 1.0)
        >>> lengthscale = fgp.Parameter(0.5, positive, prior)
        >>> round(lengthscale.value.item(), 3)
        0.5
    """

    not_fingerprinted = frozenset({"held", "given"})

    def __init__(
        self,
        value: float | Tensor,
        constraint: Any = None,
        prior: Distribution | None = None,
        trainable: bool = True,
    ) -> None:
        super().__init__()
        tensor = _as_parameter_tensor(value)
        if prior is not None and not isinstance(prior, Distribution):
            raise DomainError(
                f"`prior` must be a torch.distributions.Distribution, got {type(prior).__name__}; "
                "for example torch.distributions.LogNormal(0.0, 1.0)"
            )
        if not isinstance(trainable, bool | numpy.bool_):
            raise DomainError(f"`trainable` must be True or False, got {trainable!r}; pass one of these")
        self.prior = prior
        self.event_dim = 0
        self.held = False
        self.given = True  # False of one that stands for a number
        self._constrained_by_user = constraint is not None
        self.domain = Domain.of(constraint)
        self.raw = nn.Parameter(torch.empty_like(tensor), requires_grad=bool(trainable))
        self._store(tensor)

    def _store(self, value: Tensor, name: str = "value") -> None:
        if not self.domain.contains(value):
            raise DomainError(
                f"`{name}` must be finite and {self.domain}, got {_brief(value)}; give a value inside the domain"
            )
        with torch.no_grad():
            raw = self.domain.raw(value)
            if raw.shape == self.raw.shape:
                self.raw.copy_(raw)
            else:
                self.raw = nn.Parameter(raw.clone(), requires_grad=self.raw.requires_grad)

    def settle(self, domain: Domain, event_dim: int, name: str) -> "Parameter":
        """Take the domain and event dimensions of the place it is used in; called by the owner, once per place.

        The numbers stay to the last bit where the domain does: a posterior of fewer rows shares them.
        """
        self.event_dim = max(self.event_dim, event_dim)
        if self._constrained_by_user or self.domain == domain:
            return self
        value = self.value.detach()
        self.domain = domain
        self._store(value, name)
        return self

    @property
    def value(self) -> Tensor:
        """The constrained value, shape (*batch, *event), float64, differentiable in `raw`."""
        return self.domain.value(self.raw)

    @value.setter
    def value(self, value: float | Tensor) -> None:
        tensor = _as_parameter_tensor(value).to(self.raw.device)
        self._store(tensor.expand(self.raw.shape) if tensor.dim() < self.raw.dim() else tensor)

    def forward(self) -> Tensor:
        return self.value

    @property
    def batch_shape(self) -> torch.Size:
        """The leading dimensions, before those that belong to one model."""
        return self.raw.shape[: self.raw.dim() - self.event_dim]

    @property
    def trainable(self) -> bool:
        """True if optimisers may change it; also while a posterior holds it still."""
        return self.raw.requires_grad or self.held

    @property
    def constrained_by_user(self) -> bool:
        """True if its domain was given with it, and is not that of the place it is used in."""
        return self._constrained_by_user

    @property
    def varies(self) -> bool:
        """True if it is trainable, or stands here for a value that was given (theta=), whoever follows that."""
        return self.trainable or not isinstance(self.raw, nn.Parameter)

    def hold(self) -> None:
        """Stop gradients, and remember whether it was trainable."""
        self.held = self.trainable
        self.raw.requires_grad_(False)

    def release(self) -> None:
        """Undo `hold`."""
        if self.held:
            self.raw.requires_grad_(True)
        self.held = False

    def column(self) -> Tensor:
        """The value of a per-column parameter ready to meet x (*batch, n, d): (*batch, 1, d or 1), or a scalar."""
        value = self.value
        if self.event_dim:
            return value.unsqueeze(-2) if value.dim() > 1 else value
        return value[..., None, None] if value.dim() else value

    def entry(self, index: int) -> "ParameterEntry":
        """One entry of the last dimension of the event, as it is at any time."""
        return ParameterEntry(self, index)

    def own_entry(self, index: int) -> "Parameter":
        """A parameter of its own with the numbers of one entry now, its domain, prior and whether it is trainable."""
        return self._with_raw(self.raw[..., index], self.event_dim - 1, _entry_of(self.prior, self.raw.shape, index))

    def repeated(self, count: int) -> "Parameter":
        """A parameter of its own, (*batch, *event, count), whose entries all have the numbers of this one."""
        raw = self.raw.unsqueeze(-1).expand(*self.raw.shape, count)
        return self._with_raw(raw, self.event_dim + 1, self.prior)

    def _with_raw(self, raw: Tensor, event_dim: int, prior: Distribution | None) -> "Parameter":
        """Another parameter of this domain, with these numbers to the last bit."""
        other = Parameter(torch.zeros_like(raw, memory_format=torch.contiguous_format))
        other.domain, other.event_dim, other.prior, other.held = self.domain, event_dim, prior, self.held
        other._constrained_by_user, other.given = self._constrained_by_user, self.given
        other.raw = nn.Parameter(raw.detach().clone(), requires_grad=self.raw.requires_grad)
        return other

    def log_prior(self, *, jacobian: bool = False) -> Tensor:
        """Sum over the event of log p(value), shape (*batch,); with `jacobian` the density is that of `raw`."""
        raw = self.raw
        total = torch.zeros((), dtype=raw.dtype, device=raw.device)
        if self.prior is not None:
            total = total + _sum_event(self.prior.log_prob(self.value), self.event_dim)
        if jacobian and self.varies:
            total = total + _sum_event(self.domain.log_jacobian(raw), self.event_dim)
        return total

    def _apply(self, fn: Any, recurse: bool = True) -> "Parameter":
        """Follow a module to another device, but stay in float64 (docs/design.md: parameters live in float64)."""
        exact = self.raw.data
        gradient = None if self.raw.grad is None else self.raw.grad.data
        super()._apply(fn, recurse)
        if self.raw.dtype != exact.dtype:  # from what it was: the digits beyond float32 are gone from the converted
            self.raw.data = exact.to(self.raw.device)
            self.raw.grad = None if gradient is None else gradient.to(self.raw.device)
        return self

    @property
    def prior_text(self) -> str:
        """The prior in a few words, its parameters by their first entries; empty for none."""
        if self.prior is None:
            return ""
        numbers = (float(getattr(self.prior, name).reshape(-1)[0]) for name in self.prior.arg_constraints)
        return f"{type(self.prior).__name__}({', '.join(f'{number:.3g}' for number in numbers)})"

    def __float__(self) -> float:
        """The value of one number. Raises: ShapeError for several."""
        value = self.value.detach()
        if value.numel() != 1:
            raise ShapeError(
                f"`parameter` must have one value to be a float, got shape {tuple(value.shape)}; take .value"
            )
        return float(value)

    def extra_repr(self) -> str:
        prior = f", {self.prior_text}" if self.prior is not None else ""
        return f"{_brief(self.value.detach())}, {self.domain}{prior}" + ("" if self.trainable else ", fixed")


class ParameterEntry(Parameter):
    """One entry of the last dimension of a parameter's event, as it is at any time. It owns no numbers.

    Fields: whole, the parameter, which is no part of this module; index. Priors and the list of parameters are those of
    `whole`; what holds or releases an entry does so with all of it.
    """

    whole: Parameter
    index: int
    _given: Tensor | None

    def __init__(self, whole: Parameter, index: int) -> None:
        nn.Module.__init__(self)
        self.prior, self.event_dim, self.domain = None, whole.event_dim - 1, whole.domain
        self._constrained_by_user, self.given, self.index = whole._constrained_by_user, whole.given, index
        self.__dict__["whole"] = whole  # not by nn.Module, which would make it a part
        self.__dict__["_given"] = None

    @property
    def raw(self) -> Tensor:  # type: ignore[override]
        """A view of the whole tensor, differentiable."""
        return self.whole.raw[..., self.index] if self._given is None else self._given

    @contextlib.contextmanager
    def at(self, raw: Tensor) -> Iterator[None]:
        """Within the block this entry, not the whole, has another unconstrained value."""
        self.__dict__["_given"] = raw
        try:
            yield
        finally:
            self.__dict__["_given"] = None

    @property
    def held(self) -> bool:  # type: ignore[override]
        return self.whole.held

    @property
    def trainable(self) -> bool:
        return self.whole.trainable

    @property
    def varies(self) -> bool:
        return self.whole.varies

    def settle(self, domain: Domain, event_dim: int, name: str) -> "ParameterEntry":
        return self

    def hold(self) -> None:
        self.whole.hold()

    def release(self) -> None:
        self.whole.release()

    def _apply(self, fn: Any, recurse: bool = True) -> "ParameterEntry":
        return self


def _entry_of(prior: Distribution | None, shape: torch.Size, index: int) -> Distribution | None:
    """A prior of values of some shape as that of one entry of their last dimension."""
    if prior is None or not prior.batch_shape:
        return prior
    arguments = {name: getattr(prior, name).expand(shape)[..., index] for name in prior.arg_constraints}
    return type(prior)(**arguments)


def as_parameter(value: "float | Tensor | Parameter", domain: Domain, name: str, *, event_dim: int = 0) -> Parameter:
    """The Parameter of a numeric argument: a Parameter passes through (and is shared), a number becomes one.

    `event_dim` is the number of trailing dimensions that belong to one model; all dimensions before are batch.
    """
    if isinstance(value, Parameter):
        return value.settle(domain, event_dim, name)
    tensor = number_tensor(value, name)
    if not domain.contains(tensor):
        raise DomainError(f"`{name}` must be finite and {domain}, got {_brief(tensor)}; give a value inside the domain")
    parameter = Parameter(tensor)
    parameter.given = False
    return parameter.settle(domain, event_dim, name)


def number_tensor(value: Any, name: str) -> Tensor:
    """A numeric argument as a float64 tensor of its own. Raises: DomainError, ShapeError for what is none."""
    try:
        return _as_parameter_tensor(value)
    except (DomainError, ShapeError) as error:
        raise type(error)(str(error).replace("`value`", f"`{name}`", 1)) from None


def dimensions_of(value: "float | Tensor | Parameter", name: str) -> int:
    """Number of dimensions of a numeric argument. Raises: DomainError for what is no number, tensor or Parameter."""
    if isinstance(value, Parameter):
        return value.raw.dim()
    try:
        return int(numpy.ndim(value))
    except ValueError as error:  # rows of different lengths
        raise DomainError(
            f"`{name}` must be a number, a tensor or a flashgp.Parameter, got {type(value).__name__} ({error}); pass "
            "one of these"
        ) from None


def named_parameter_objects(module: nn.Module) -> Iterator[tuple[str, Parameter]]:
    """Every Parameter of a module tree once, with the first path that leads to it, in definition order."""
    for name, child in module.named_modules():
        if isinstance(child, Parameter):
            yield name, child


def _is_usual(raw: Tensor) -> bool:
    """True if no domain maps these unconstrained numbers beyond what float64 holds: a quick look at most of them."""
    if raw.is_meta or raw.dtype != torch.float64 or is_transformed(raw):
        return False
    low, high = raw.detach().aminmax()  # NaN where one is
    return float(low) > -USUAL and float(high) < USUAL


def check_numbers(module: nn.Module) -> None:
    """Raises: DomainError naming the first parameter whose value over- or underflows. Cost: a look at every number."""
    waiting: list[nn.Module] = [module]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Parameter) and not _is_usual(one.raw):
            break
        waiting.extend(child for child in one._modules.values() if child is not None)
    else:
        return
    for name, parameter in named_parameter_objects(module):
        raw, value, positive = parameter.raw, parameter.value.detach(), parameter.domain == POSITIVE
        if raw.is_meta or is_transformed(value):
            continue
        right = value.isfinite() & (value > 0.0) if positive else value.isfinite()
        if not bool(right.all()):
            wrong = right.logical_not()
            got, unconstrained = (_brief(t.detach()[wrong][0]) for t in (value, raw))
            raise DomainError(
                f"`{name or 'value'}` must be finite{' and positive' if positive else ''}, got {got} from the "
                f"unconstrained {unconstrained}; give it a value again (.value = ...), or take smaller steps"
            )


def _sum_event(tensor: Tensor, event_dim: int) -> Tensor:
    return tensor.flatten(-event_dim).sum(-1) if event_dim and tensor.dim() else tensor


def _as_parameter_tensor(value: Any) -> Tensor:
    if isinstance(value, numpy.ma.MaskedArray) and numpy.ma.is_masked(value):
        raise DomainError("`value` must not be masked, got a masked array; pass its numbers")
    try:
        # A Python float is 64 bits: torch would round it to its default dtype, float32.
        tensor = value if isinstance(value, Tensor) else torch.as_tensor(numpy.array(value, order="C"))
    except (TypeError, ValueError, RuntimeError):
        raise DomainError(
            f"`value` must be a number, a tensor or a flashgp.Parameter, got {type(value).__name__}; pass one of these"
        ) from None
    if tensor.layout != torch.strided:
        raise DomainError(f"`value` must be dense, got layout {tensor.layout}; pass its to_dense()")
    if tensor.is_complex():
        raise DomainError(f"`value` must be real, got dtype {tensor.dtype}; pass its real part")
    if tensor.numel() == 0:
        raise ShapeError(f"`value` must have at least one entry, got shape {tuple(tensor.shape)}; pass a number")
    return tensor.detach().to(PARAMETER_DTYPE).clone()


def _brief(value: Tensor) -> str:
    flat = value.reshape(-1)
    shown = ", ".join(f"{entry:.4g}" for entry in flat[:6].tolist())
    if value.dim() == 0:
        return shown
    return f"[{shown}{', ...' if flat.numel() > 6 else ''}]"
