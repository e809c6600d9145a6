"""GP: the prior, a description of covariance function, mean and likelihood, and what it says about data."""

import copy
import html
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from flashgp.foundations.checks import check_points, check_targets
from flashgp.foundations.contexts import exact_precision
from flashgp.foundations.errors import DomainError, ShapeError
from flashgp.foundations.form import Rows, broadcast_batch
from flashgp.foundations.lazy_import import load_late
from flashgp.foundations.parameters import Parameter, named_parameter_objects
from flashgp.inference.exact.likelihood import DirectSettings, log_marginal_likelihood
from flashgp.inference.exact.small import SmallModel, small_likelihood
from flashgp.inference.threads import one_thread
from flashgp.kernels.base import Kernel
from flashgp.likelihoods import Gaussian
from flashgp.means import Constant, evaluate_mean
from flashgp.pairwise.torch.tiles import TorchTiles

if TYPE_CHECKING:
    from flashgp.inference.posterior import Posterior
    from flashgp.planner.plan import Plan
    from flashgp.solvers.iterative.contract import Step

__all__ = ["GP"]


class GP(nn.Module):
    """A Gaussian process prior with its likelihood: f ~ GP(mean, kernel), y | f ~ likelihood.

    Args:
        kernel: covariance function.
        mean: prior mean, a flashgp mean or any nn.Module from (*batch, n, d) to (*batch, n); Constant by default.
        likelihood: `flashgp.likelihoods.Gaussian` by default.
        outputs: None for y of shape (*batch, n); p for y of shape (*batch, n, p): p right-hand sides of one factor.
    Raises: DomainError for arguments of the wrong kind.
    """

    def __init__(
        self,
        kernel: Kernel,
        mean: nn.Module | None = None,
        likelihood: Gaussian | None = None,
        outputs: int | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(kernel, Kernel):
            raise DomainError(
                f"`kernel` must be a covariance function, got {type(kernel).__name__}; for example "
                "2.0 * flashgp.kernels.Matern(nu=2.5)"
            )
        if outputs is not None and (not isinstance(outputs, int) or isinstance(outputs, bool) or outputs < 1):
            raise DomainError(f"`outputs` must be None or a positive integer, got {outputs!r}; the columns of y")
        mean = Constant(outputs=outputs) if mean is None else mean
        likelihood = Gaussian() if likelihood is None else likelihood
        if not isinstance(mean, nn.Module):
            raise DomainError(
                f"`mean` must be a torch.nn.Module, got {type(mean).__name__}; use flashgp.means.Constant()"
            )
        if not isinstance(likelihood, Gaussian):
            raise DomainError(
                f"`likelihood` must be flashgp.likelihoods.Gaussian, got {type(likelihood).__name__}; exact inference "
                "needs a Gaussian one"
            )
        self.kernel = kernel
        self.mean = mean
        self.likelihood = likelihood
        self.outputs = outputs
        self._held_names: tuple[str, ...] = ()

    # -- what users call ----------------------------------------------------------------------------------------
    def condition(
        self,
        x: Any,
        y: Any,
        *,
        solver: str | None = None,
        tolerance: float = 1e-3,
        time_limit: float | None = None,
        memory: str | int | None = None,
        plan: "Plan | None" = None,
        seed: int = 0,
        deterministic: bool = False,
        progress: "Callable[[Step], bool | None] | None" = None,
        device: str | torch.device | None = None,
        dtype: torch.dtype | None = None,
        jitter: float | None = None,
        differentiable: bool = False,
    ) -> "Posterior":
        """The posterior given rows x, (*batch, n, d), and targets y, (*batch, n) or (*batch, n, outputs).

        Detached from parameters and data unless `differentiable`. n = 0 gives the prior as a posterior. Whatever the
        route, the mean is that of a float64 Cholesky factor to `tolerance`, and the report says how certain that is.
        Rows of equal x are joined, which changes no answer (`Posterior.replicates`), but not with `differentiable`.

        Args:
            solver: "cholesky" or "cg" (block conjugate gradients); by default the plan chooses: a factor while one is
                quick or fits, else conjugate gradients. What fails hands over to a float64 factor where it fits.
            tolerance: of the mean, in standard deviations of an observation.
            time_limit: seconds after which an iteration ends; the report then says how far off the mean may be. A
                factorisation, or a preparation that has begun, is not interrupted.
            memory: budget like "8GiB", what is free by default; plan: a plan to run exactly.
            seed: of the preconditioner's draws.
            deterministic: the same seed gives the same bits on one machine's processor, whatever its number of threads:
                all of it runs on one thread and is planned with built-in rates, and so is what the posterior answers.
                Pass memory= or plan= too where memory is short: what is free decides which route fits. A time limit is
                a clock, and a gradient you take through an answer runs on your threads.
            progress: called after every iteration with its `Step`; a true answer ends the solve.
            device: None for x's device, "auto" for an accelerator when there is one.
            dtype: torch.float64 for a float64 factor, torch.float32 for a float32 one whose weights float64 corrects.
            jitter: relative to the mean diagonal; None tries n eps times 1, 10, 100 after a failure, and says so.
            differentiable: keep gradients to parameters, x and y (an autograd graph over n x n matrices).
        Raises: ShapeError, DomainError, MemoryBudgetError, NotPositiveDefiniteError.
        Cost: as `flashgp.plan` says: n^3 / 3 flops and one n x n buffer, or passes over the pairs, with n the number of
        distinct rows.
        """
        load_late("flashgp.inference.exact.condition")
        from flashgp.inference.exact.condition import condition

        return condition(
            self,
            x,
            y,
            solver=solver,
            tolerance=tolerance,
            time_limit=time_limit,
            memory=memory,
            plan=plan,
            seed=seed,
            deterministic=deterministic,
            progress=progress,
            device=device,
            dtype=dtype,
            jitter=jitter,
            differentiable=differentiable,
        )

    @exact_precision
    def log_marginal_likelihood(
        self,
        x: Any,
        y: Any,
        *,
        theta: Mapping[str, Tensor] | None = None,
        dtype: torch.dtype | None = None,
        jitter: float | None = None,
    ) -> Float64[Tensor, "*batch"]:
        """log p(y | x), eq. (M-33), in nats, with a closed-form gradient: for own training loops.

        Args:
            x: (*batch, n, d); y: (*batch, n) or (*batch, n, outputs).
            theta: unconstrained values by parameter name (the keys of `named_parameters()`), each of the parameter's
                shape behind any leading chain dimensions; names left out keep their value.
            dtype: of the n x n matrix; float64 by default.
        Returns: (*batch,), float64; with theta, the chain dimensions.
        Raises: ShapeError, DomainError, NotPositiveDefiniteError naming the batch members that failed.
        Cost: n^3 flops with the gradient, one n x n buffer. The gradient can be taken once (no second order).
        """
        x = check_points(x, "x")
        y = check_targets(y, "y", x, self.outputs)
        if theta is not None:
            return self._at(theta, x, y, lambda gp: gp.log_marginal_likelihood(x, y, dtype=dtype, jitter=jitter))
        settings = DirectSettings(TorchTiles(), dtype or torch.float64, jitter, repair=lambda: self.repairable(x, y))
        return self.evaluate_likelihood(settings, x, y)

    @exact_precision
    def log_joint(
        self,
        x: Any,
        y: Any,
        *,
        theta: Mapping[str, Tensor] | None = None,
        jacobian: bool = False,
        dtype: torch.dtype | None = None,
        jitter: float | None = None,
    ) -> Float64[Tensor, "*batch"]:
        """log p(y | x, theta) + log p(theta) over all priors, eq. (M-38): the objective of `fit`, or of a sampler.

        Args: as `log_marginal_likelihood`; jacobian: add log |d value / d raw|, so that the density is that of the
            unconstrained values, as Hamiltonian Monte Carlo needs.
        Returns: (*batch,), or the chain dimensions of theta.
        """
        if theta is not None:
            x = check_points(x, "x")
            y = check_targets(y, "y", x, self.outputs)
            return self._at(theta, x, y, lambda gp: gp.log_joint(x, y, jacobian=jacobian, dtype=dtype, jitter=jitter))
        return self.log_marginal_likelihood(x, y, dtype=dtype, jitter=jitter) + self.log_prior(jacobian=jacobian)

    def log_prior(self, *, jacobian: bool = False) -> Float64[Tensor, "*batch"]:
        """Sum of the log densities of all priors, shape (*batch,)."""
        total = torch.zeros((), dtype=torch.float64)
        for _, parameter in named_parameter_objects(self):
            if parameter.prior is not None or (jacobian and parameter.trainable):
                total = total + parameter.log_prior(jacobian=jacobian)
        return total

    def _at(self, theta: Mapping[str, Tensor], x: Tensor, y: Tensor, function: Callable[["GP"], Tensor]) -> Tensor:
        """What a function of the GP gives at other unconstrained values; their chain dimensions come first."""
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
        # Shared modules keep one name each, else torch puts back the wrong tensor; tied tensors get all their names.
        places: dict[int, list[str]] = {}
        for path, module in self.named_modules():
            for leaf, tensor in module.named_parameters(recurse=False, remove_duplicate=False):
                places.setdefault(id(tensor), []).append(f"gp.{path}.{leaf}" if path else f"gp.{leaf}")
        named = {place: value for name, value in given.items() for place in places[id(known[name])]}
        return torch.func.functional_call(_Call(self, function), named, (), tie_weights=False)

    def held(self) -> "GP":
        """A copy that carries no gradients; it remembers what was trainable, for `released`."""
        gp = copy.deepcopy(self)
        gp._held_names = tuple(gp.trainable_names())
        for _, parameter in named_parameter_objects(gp):
            parameter.hold()
        return gp.requires_grad_(False)

    def released(self) -> "GP":
        """A copy in which what was trainable before `held` is so again."""
        gp = copy.deepcopy(self)
        for _, parameter in named_parameter_objects(gp):
            parameter.release()
        for name, tensor in gp.named_parameters():
            if name in gp._held_names:
                tensor.requires_grad_(True)
        gp._held_names = ()
        return gp

    def trainable_names(self) -> list[str]:
        """The names, as `named_parameters` has them, of all tensors that fitting may change."""
        return [name for name, tensor in self.named_parameters() if tensor.requires_grad or name in self._held_names]

    # -- what inference uses ------------------------------------------------------------------------------------
    def evaluate_likelihood(self, settings: DirectSettings, x: Tensor, y: Tensor) -> Tensor:
        """The log marginal likelihood of checked data."""
        with one_thread(x.shape[-2] * x.shape[:-2].numel()):
            return self._evaluated_likelihood(settings, x, y)

    def _evaluated_likelihood(self, settings: DirectSettings, x: Tensor, y: Tensor) -> Tensor:
        value = None
        if settings.dtype == torch.float64 and not settings.jitter and torch.is_grad_enabled():
            small = SmallModel.of(self, x, y)
            value = None if small is None else small_likelihood(small)
        if value is None:
            residual, noise, rows, theta = self.likelihood_inputs(x, y)
            value = log_marginal_likelihood(settings, self.kernel.form, theta, rows, residual, noise)
        beyond = self.beyond_matrix(x.device)
        return value if beyond is None else value + beyond

    def beyond_matrix(self, device: torch.device) -> Tensor | None:
        """What the likelihood adds to that of y under the covariance matrix, (*batch,); None for nothing."""
        return self.likelihood.beyond_matrix(device, self.outputs or 1)

    def likelihood_inputs(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Rows, list[Tensor]]:
        """(residual, noise, rows, theta): what the likelihood is a function of, each differentiable."""
        theta = [t.to(x.device) for t in self.kernel.theta()]
        noise = self.likelihood.diagonal(x.shape[-2], x.device)
        return self.residual(x, y), noise, self.kernel.rows(x), theta

    def residual(self, x: Float[Tensor, "*points n d"], y: Float[Tensor, "..."]) -> Float64[Tensor, "*batch n p"]:
        """y minus the prior mean, (*batch, n, outputs or 1), float64."""
        y = y.to(torch.float64)
        mean = evaluate_mean(self.mean, x, self.outputs)
        return y - mean if self.outputs is not None else (y - mean).unsqueeze(-1)

    def repairable(self, x: Tensor, y: Tensor) -> bool:
        """Whether a failed factorisation may be blamed on rounding: not if equal noise-free rows disagree in y."""
        with torch.no_grad():
            noise = self.likelihood.diagonal(x.shape[-2], x.device)
            if bool((noise > 0).all()):
                return True
            return not _conflicting(x, y, noise, self.outputs)

    def describe(self) -> list[tuple[str, str, str, str]]:
        """(name, value, domain, prior) of every parameter."""
        rows = []
        for name, parameter in named_parameter_objects(self):
            values = parameter.value.detach().reshape(-1).tolist()
            text = ", ".join(f"{v:.4g}" for v in values[:8]) + (", ..." if len(values) > 8 else "")
            domain = str(parameter.domain) + ("" if parameter.trainable else ", fixed")
            rows.append((name, text, domain, _prior_text(parameter)))
        return rows

    def __repr__(self) -> str:
        rows = [("parameter", "value", "domain", "prior"), *self.describe()]
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        title = f"GP(kernel={_outline(self.kernel)}, mean={type(self.mean).__name__}, likelihood=Gaussian"
        title += f", outputs={self.outputs})" if self.outputs is not None else ")"
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([title, *lines])

    def _repr_html_(self) -> str:
        body = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in self.describe())
        head = "<tr><th>parameter</th><th>value</th><th>domain</th><th>prior</th></tr>"
        return f"<table>{head}{body}</table>"


class _Call(nn.Module):
    """Lets `functional_call` reach a method other than forward."""

    def __init__(self, gp: GP, function: Callable[[GP], Tensor]) -> None:
        super().__init__()
        self.gp = gp
        self.function = function

    def forward(self) -> Tensor:
        return self.function(self.gp)


def _prior_text(parameter: Parameter) -> str:
    if parameter.prior is None:
        return "-"
    names = ", ".join(
        f"{float(getattr(parameter.prior, k).reshape(-1)[0]):.3g}" for k in parameter.prior.arg_constraints
    )
    return f"{type(parameter.prior).__name__}({names})"


def _outline(kernel: Kernel) -> str:
    """A one-line formula of a kernel tree."""
    name = type(kernel).__name__
    parts = [_outline(part) for part in kernel.parts]
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


def _conflicting(x: Tensor, y: Tensor, noise: Tensor, outputs: int | None) -> bool:
    """Whether two rows without noise are equal in x and differ in y, in any batch member. Cost: a sort."""
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
