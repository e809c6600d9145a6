"""Prior: covariance function, mean and likelihood, as what inference needs of them.

Every room of inference takes a `Prior`; `GP` is the same object with the methods that users call.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any, Self, TypeVar

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from flashgp.foundations.cells import html_table
from flashgp.foundations.checks import check_targets
from flashgp.foundations.errors import DomainError, ShapeError
from flashgp.foundations.form import Rows, broadcast_batch
from flashgp.foundations.named_values import NamedValues
from flashgp.foundations.parameters import named_parameter_objects
from flashgp.kernels import Warped
from flashgp.kernels.base import Kernel
from flashgp.likelihoods.base import Likelihood, Sites
from flashgp.means import REGISTRY, evaluate_mean, mean_of_output
from flashgp.processes.gradient_shares import copied, summed_gradients, summed_parameters, unwrapped
from flashgp.processes.group import Group

Value = TypeVar("Value")


class Prior(NamedValues):
    """f ~ GP(mean, kernel), y | f ~ likelihood.

    Fields: kernel, mean, likelihood; outputs, None for y of shape (*batch, n), p for (*batch, n, p).
    """

    def __init__(self, kernel: Kernel, mean: nn.Module, likelihood: Likelihood, outputs: int | None) -> None:
        super().__init__()
        self.outputs = outputs
        self.kernel = kernel
        self.mean = mean
        self.likelihood = likelihood
        self._held_names: tuple[str, ...] = ()

    def __setattr__(self, name: str, value: Any) -> None:
        """A likelihood becomes one of all outputs, whenever it is set."""
        super().__setattr__(name, value.for_outputs(self.outputs) if isinstance(value, Likelihood) else value)

    # -- parameters -----------------------------------------------------------------------------------------------
    def log_prior(self, *, jacobian: bool = False) -> Float64[Tensor, "*batch"]:
        """Sum of the log densities of all priors, shape (*batch,)."""
        total = torch.zeros((), dtype=torch.float64)
        for _, parameter in named_parameter_objects(self):
            if parameter.prior is not None or (jacobian and parameter.varies):
                total = total + parameter.log_prior(jacobian=jacobian)
        return total

    def at(self, theta: Mapping[str, Tensor], x: Tensor, y: Tensor, function: "Callable[[Self], Tensor]") -> Tensor:
        """Value of a function of the prior at other unconstrained values; their chain dimensions come first."""
        if not isinstance(theta, Mapping):
            raise DomainError(
                f"`theta` must be a mapping from parameter names to tensors, got {type(theta).__name__}; for example "
                "dict(gp.named_parameters())"
            )
        known = dict(self.named_parameters())
        owners = {id(parameter.raw): parameter for _, parameter in named_parameter_objects(self)}
        batches = [x.dim() - 2, y.dim() - (1 if self.outputs is None else 2)]
        rank = max(*batches, *(len(parameter.batch_shape) for parameter in owners.values()), 0)
        given: dict[str, Tensor] = {}
        for name, value in theta.items():
            if name not in known:
                raise DomainError(
                    f"`theta` names {name!r}, which is not a parameter; choose from {', '.join(sorted(known))}"
                )
            if not isinstance(value, Tensor):
                raise DomainError(
                    f"`theta[{name!r}]` must be a tensor, got {type(value).__name__}; use torch.tensor(..., "
                    "dtype=torch.float64)"
                )
            if value.is_complex() or value.layout != torch.strided:
                raise DomainError(
                    f"`theta[{name!r}]` must be real and dense, got dtype {value.dtype} and layout {value.layout}; "
                    "pass its .real or .to_dense()"
                )
            shape = known[name].shape
            chains = value.dim() - len(shape)
            if chains < 0 or value.shape[chains:] != shape:
                raise ShapeError(
                    f"`theta[{name!r}]` must have shape (*chains, {', '.join(map(str, shape))}), got "
                    f"{tuple(value.shape)}; put chain dimensions before the parameter's own"
                )
            owner = owners.get(id(known[name]))
            if chains and owner is not None:  # a parameter without the batch dimensions of others, or of the data
                missing = rank - len(owner.batch_shape)
                value = value.reshape(*value.shape[:chains], *(1,) * missing, *shape)
            given[name] = value
        return self.substituted(given, function)

    def substituted(self, values: Mapping[str, Tensor], function: "Callable[[Self], Value]") -> "Value":
        """Value of a function of the prior with other tensors in place of some parameters. Args: values, by name."""
        known = dict(self.named_parameters())
        # Shared modules keep one name each, else torch puts back the wrong tensor; tied tensors get all their names.
        places: dict[int, list[str]] = {}
        for path, module in self.named_modules():
            for leaf, tensor in module.named_parameters(recurse=False, remove_duplicate=False):
                places.setdefault(id(tensor), []).append(f"prior.{path}.{leaf}" if path else f"prior.{leaf}")
        named = {place: value for name, value in values.items() for place in places[id(known[name])]}
        found: Value = torch.func.functional_call(_Call(self, function), named, (), tie_weights=False)
        return found

    def sharing(self, group: Group, device: torch.device, function: "Callable[[Self], Value]") -> "Value":
        """Value of a function of the prior, a rank's share of it by every gradient: parameters get the sum, (M-220).

        Args: device, on which gradients are summed.
        """
        if group.size == 1 or not torch.is_grad_enabled():
            return function(self)
        own = {name: p for name, p in unwrapped(self).items() if p.requires_grad}
        values = summed_parameters(group, list(own.values()), device) if own else ()
        with summed_gradients(group):
            return self.substituted(dict(zip(own, values, strict=True)), function)

    def held(self) -> Self:
        """A copy that carries no gradients; it remembers what was trainable, for `released`."""
        prior = copied(self)
        prior._held_names = tuple(prior.trainable_names())
        for _, parameter in named_parameter_objects(prior):
            parameter.hold()
        return prior.requires_grad_(False)

    def released(self) -> Self:
        """A copy in which what was trainable before `held` is so again."""
        prior = copied(self)
        for _, parameter in named_parameter_objects(prior):
            parameter.release()
        for name, tensor in prior.named_parameters():
            if name in prior._held_names:
                tensor.requires_grad_(True)
        prior._held_names = ()
        return prior

    def trainable_names(self) -> list[str]:
        """The names, as `named_parameters` has them, of all tensors that fitting may change."""
        return [name for name, tensor in self.named_parameters() if tensor.requires_grad or name in self._held_names]

    @property
    def trainable_count(self) -> int:
        """Numbers that fitting may change."""
        held = self._held_names
        return sum(t.numel() for name, t in self.named_parameters() if t.requires_grad or name in held)

    @property
    def has_user_modules(self) -> bool:
        """True if the model has modules of the user's, whose initial values are their own."""
        owned = {id(parameter.raw) for _, parameter in named_parameter_objects(self)}
        names = self.trainable_names()
        foreign = any(name in names and id(tensor) not in owned for name, tensor in self.named_parameters())
        known = isinstance(self.mean, tuple(REGISTRY.values()))
        return foreign or not known or any(isinstance(module, Warped) for module in self.modules())

    def with_likelihood(self, likelihood: Likelihood) -> Self:
        """The prior with another likelihood; covariance function and mean share their parameters."""
        prior = copy.copy(self)  # not by its class, which may be a user's with a constructor of its own
        prior._modules = {**self._modules, "likelihood": likelihood}
        return prior

    def without_held_sites(self) -> Self:
        """The prior under the likelihood itself, whose sites are those of any rows."""
        own = self.likelihood.underlying
        return self if own is self.likelihood else self.with_likelihood(own)

    # -- several outputs ------------------------------------------------------------------------------------------
    @property
    def separate(self) -> bool:
        """True if outputs have noise of their own, so that each has a covariance matrix of the observations."""
        return self.likelihood.outputs is not None

    @property
    def factors(self) -> int:
        """Number of covariance matrices of the observations, for each model of a batch."""
        return self.likelihood.outputs or 1

    def output(self, index: int, *, live: bool = True) -> Self:
        """The prior of one output alone, of y without an axis for outputs.

        Args:
            index: of the output, from 0 on.
            live: whether its parameters are those of this prior; else those of one output are copies, the kernel's not.
        """
        assert self.outputs is not None
        prior = copy.copy(self)
        likelihood = self.likelihood.output(index, live=live)
        mean = mean_of_output(self.mean, self.outputs, index, live=live)
        prior._modules = {**self._modules, "mean": mean, "likelihood": likelihood}
        prior.outputs = None
        return prior

    # -- what inference computes with -----------------------------------------------------------------------------
    def is_batch(self, x: Tensor, y: Tensor) -> bool:
        """True if there is more than one system, or one in a batch: these take a factor."""
        of_y = y.dim() - (1 if self.outputs is None else 2)
        return x.dim() > 2 or of_y > 0 or any(p.batch_shape for _, p in named_parameter_objects(self))

    def sites(self, y: Tensor) -> Sites:
        """The Gaussian factors that stand for the likelihood of y, (*batch, n) or (*batch, n, outputs)."""
        return self.likelihood.sites(y, self.outputs)

    def additive_noise(self, device: torch.device) -> Float64[Tensor, "*batch"]:
        """The variance of a new observation around f, (*batch,), where a row's site is its observation.

        With noise of each output (*batch, outputs).

        Raises: DomainError for a likelihood whose observations are not f plus noise, or whose sites are others.
        """
        noise = self.likelihood.additive_noise(device)
        if noise is None or self.likelihood.linear_noise() is None:
            raise DomainError(f"`likelihood` must add noise to f for this, got {self.likelihood.name}; use Gaussian")
        return noise

    def log_scale(self, y: Tensor) -> Tensor | None:
        """Log factor of the likelihood beside that of its sites under the covariance matrix, (*batch,); None for
        zero."""
        return self.sites(y).log_scale

    def likelihood_inputs(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Rows, list[Tensor]]:
        """(residual, noise, rows, theta): what the likelihood is a function of, each differentiable.

        The noise is (*batch, n or 1), with one of each output (*batch, n or 1, outputs).
        """
        theta, sites = [t.to(x.device) for t in self.kernel.theta()], self.sites(y)
        return self.residual(x, sites.targets), sites.variance, self.kernel.rows(x), theta

    def checked_targets(self, y: Any, x: Tensor, *, new: bool = False) -> Tensor:
        """Targets of rows x, `new` ones or those that the likelihood may know. Raises: ShapeError, DomainError."""
        y = check_targets(self.likelihood.encoded(y, "y"), "y", x, self.outputs, missing=self.separate)
        if not (new and self.likelihood.underlying.numbers_of_rows):  # which come with the new rows
            (self.likelihood.underlying.with_rows() if new else self.likelihood).check_targets(y)
        return y

    def mean_at(self, x: Float[Tensor, "*points n d"]) -> Float64[Tensor, "*batch n outputs_or_1"]:
        """The prior mean, (*batch, n, outputs or 1)."""
        mean = evaluate_mean(self.mean, x, self.outputs)
        return mean if self.outputs is not None else mean.unsqueeze(-1)

    def residual(self, x: Float[Tensor, "*points n d"], y: Float[Tensor, "..."]) -> Float64[Tensor, "*batch n p"]:
        """Targets of sites minus the prior mean, (*batch, n, outputs or 1), float64."""
        y = y.to(torch.float64)
        return (y if self.outputs is not None else y.unsqueeze(-1)) - self.mean_at(x)

    def repairable(self, x: Tensor, y: Tensor) -> bool:
        """True if a failed factorisation may be due to rounding: not if equal noise-free rows disagree in y."""
        if not self.likelihood.has_sites:  # iterated ones have variances
            return True
        with torch.no_grad():
            sites = self.sites(y)
            if bool((sites.variance > 0).all()):
                return True
            return not conflicting(x, sites.targets, sites.variance, self.outputs)

    # -- as text --------------------------------------------------------------------------------------------------
    def describe(self) -> list[tuple[str, str, str, str]]:
        """(name, value, domain, prior) of every parameter."""
        rows = []
        for name, parameter in named_parameter_objects(self):
            values = parameter.value.detach().reshape(-1).tolist()
            text = ", ".join(f"{v:.4g}" for v in values[:8]) + (", ..." if len(values) > 8 else "")
            domain = str(parameter.domain) + ("" if parameter.trainable else ", fixed")
            rows.append((name, text, domain, parameter.prior_text or "-"))
        return rows

    @property
    def title(self) -> str:
        """Title in one line."""
        parts = f"kernel={outline(self.kernel)}, mean={type(self.mean).__name__}, likelihood={self.likelihood.name}"
        return f"GP({parts})" if self.outputs is None else f"GP({parts}, outputs={self.outputs})"

    def __repr__(self) -> str:
        rows = [("parameter", "value", "domain", "prior"), *self.describe()]
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([self.title, *lines])

    def _repr_html_(self) -> str:
        return html_table(self.describe(), ("parameter", "value", "domain", "prior"))


class _Call(nn.Module):
    """Lets `functional_call` reach a method other than forward."""

    def __init__(self, prior: "Prior", function: "Callable[[Any], Any]") -> None:
        super().__init__()
        self.prior = prior
        self.function = function

    def forward(self) -> Any:
        return self.function(self.prior)


def conflicting(x: Tensor, y: Tensor, noise: Tensor, outputs: int | None) -> bool:
    """True if two rows without noise are equal in x and differ in y, in any batch member. Cost: a sort."""
    batch = broadcast_batch(x.shape[:-2], y.shape[: y.dim() - (1 if outputs is None else 2)], noise.shape[:-1])
    y = y.unsqueeze(-1) if outputs is None else y
    n = x.shape[-2]
    x = x.expand(*batch, *x.shape[-2:]).reshape(-1, n, x.shape[-1])
    y = y.expand(*batch, *y.shape[-2:]).reshape(-1, n, y.shape[-1])
    bare = (noise <= 0).expand(*batch, n).reshape(-1, n)
    for member in range(x.shape[0]):
        rows, targets = x[member][bare[member]], y[member][bare[member]].to(torch.float64)
        _, group = torch.unique(rows, dim=0, return_inverse=True)
        count = int(group.max()) + 1 if group.numel() else 0
        low = torch.full((count, targets.shape[-1]), torch.inf, dtype=torch.float64, device=targets.device)
        index = group.unsqueeze(-1).expand_as(targets)
        high = (-low).scatter_reduce(0, index, targets, "amax")
        low = low.scatter_reduce(0, index, targets, "amin")
        if bool((high > low).any()):
            return True
    return False


def outline(kernel: Kernel) -> str:
    """A one-line formula of a kernel tree."""
    name = type(kernel).__name__
    parts = [outline(part) for part in kernel.parts]
    match name:
        case "Sum":
            return "(" + " + ".join(parts) + ")"
        case "Product":
            return " * ".join(parts)
        case "Scaled":
            return f"variance * {parts[0]}"
        case "Matern":
            return f"Matern(nu={kernel.nu:g})"
        case _:
            return f"{name}({', '.join(parts)})" if parts else name
