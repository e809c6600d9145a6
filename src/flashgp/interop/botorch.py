"""`FlashGPModel`: BoTorch's SingleTaskGP, whose posteriors, fantasies, draws and fits are FlashGP's.

BoTorch keeps the description: transforms, GPyTorch modules with their priors, state_dict, the shapes of batches and
outputs. Every number comes from one `Posterior` for each member of the batch of models and outputs.
"""

from collections.abc import Callable, Sequence
from typing import Any

import gpytorch
import torch
from botorch.fit import _fit_fallback
from botorch.models import SingleTaskGP
from botorch.sampling.pathwise import SamplePath
from botorch.sampling.pathwise.posterior_samplers import DrawMatheronPaths
from botorch.sampling.pathwise.utils import get_output_transform
from botorch.utils.types import DEFAULT
from gpytorch.distributions import MultivariateNormal
from linear_operator import to_linear_operator
from torch import Tensor

from flashgp.foundations.errors import DomainError, warn
from flashgp.inference.fit import fit
from flashgp.inference.online.fantasies import Fantasies
from flashgp.inference.posterior import Posterior
from flashgp.inference.predict.joint import joint_moments
from flashgp.interop.gpytorch import gp_from, kernel_to, linked, member_of, members, write_back
from flashgp.kernels import Kernel

__all__ = ["FlashGPModel", "FlashGPPaths"]

LEARNED = "a transform of the inputs is learned too: the fit is BoTorch's own search, with gradients by GPyTorch"


class FlashGPModel(SingleTaskGP):
    """A SingleTaskGP by FlashGP: the same arguments, state_dict and answers, sooner.

    Args:
        train_X: (*batch, n, d).
        train_Y: (*batch, n, m).
        train_Yvar: as train_Y, variances of the noise; None to learn one for each output.
        kernel: a covariance function of `flashgp.kernels`, of which each member of the batch and each output gets its
            own parameters; None for `covar_module`, and without it for BoTorch's default.
        likelihood, covar_module, mean_module, outcome_transform, input_transform: as of SingleTaskGP.

    Raises: DomainError for a module of GPyTorch that has no counterpart, by its name, when it is needed.

    Example:
        >>> from flashgp.interop.botorch import FlashGPModel  # doctest: +SKIP
        >>> model = FlashGPModel(train_X, train_Y).fit()  # doctest: +SKIP
        >>> candidates, value = optimize_acqf(LogExpectedImprovement(model, best_f), ...)  # doctest: +SKIP
    """

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        train_Yvar: Tensor | None = None,
        likelihood: Any = None,
        covar_module: Any = None,
        mean_module: Any = None,
        outcome_transform: Any = DEFAULT,
        input_transform: Any = None,
        kernel: Kernel | None = None,
    ) -> None:
        if kernel is not None:
            if covar_module is not None:
                raise DomainError("`kernel` and `covar_module` are the same thing, got both; leave one of them out")
            outputs = train_Y.shape[-1:] if train_Y.shape[-1] > 1 else ()
            covar_module = kernel_to(kernel, torch.Size((*train_X.shape[:-2], *outputs)))
        super().__init__(
            train_X, train_Y, train_Yvar, likelihood, covar_module, mean_module, outcome_transform, input_transform
        )
        if kernel is not None:
            lead = len(self._aug_batch_shape) - 1  # where the outputs are
            places = {f"covar_module.{name}": lead - one.dim() for name, one in self.covar_module.named_parameters()}
            self._subset_batch_dict = places | {"mean_module.raw_constant": -1}
            if train_Yvar is None:
                self._subset_batch_dict["likelihood.noise_covar.raw_noise"] = -2

    prediction_strategy: Any
    _known: Sequence[Tensor] = ()

    # -- fitting -------------------------------------------------------------------------------------------------------
    def fit(self, **options: Any) -> "FlashGPModel":
        """Fit the parameters with the priors that the modules have, and go into evaluation mode.

        Args: options, of `fgp.fit`; by default one search from the values there are.
        """
        batch = self._aug_batch_shape
        if self._shares_parameters():
            raise DomainError(
                f"`covar_module` must have parameters of its own for each of {batch.numel()} outputs or models, got "
                f"some in common; give it batch_shape={batch}, or pass kernel="
            )
        self.train()
        x = self.transform_inputs(self.train_inputs[0]).detach()
        fitted = []
        for index in members(batch):
            gp = gp_from(self, x.shape[-1], index)
            own = member_of(x, 2, index), member_of(self.train_targets.detach(), 1, index)
            fitted.append(fit(gp, *own, **{"initial": "given", "priors": "given", "progress": False, **options}).gp)
        write_back(self, fitted)
        return self.eval()

    def custom_fit(self, mll: Any, **options: Any) -> Any:
        """What `fit_gpytorch_mll` calls: `fit`, with max_iterations where optimizer_kwargs has it as maxiter."""
        learned = any(one.requires_grad for one in getattr(self, "input_transform", torch.nn.Identity()).parameters())
        if learned:
            warn(LEARNED)
            return _fit_fallback(mll=mll, **options)
        most = ((options.get("optimizer_kwargs") or {}).get("options") or {}).get("maxiter")
        self.fit(**({} if most is None else {"max_iterations": most}))
        return mll.eval()

    def _shares_parameters(self) -> bool:
        if self._aug_batch_shape.numel() == 1:
            return False
        kernel = gp_from(self, self.train_inputs[0].shape[-1], next(members(self._aug_batch_shape))).kernel
        places = linked(self.covar_module, [kernel])
        return any(getattr(one, link.theirs).dim() - link.event < len(self._aug_batch_shape) for one, link, _ in places)

    # -- answers -------------------------------------------------------------------------------------------------------
    def __call__(self, *inputs: Tensor, **options: Any) -> MultivariateNormal:
        if self.training or gpytorch.settings.prior_mode.on() or self.train_inputs is None:
            return super().__call__(*inputs, **options)
        mean, covariance = self._posteriors().at(inputs[0])
        return MultivariateNormal(mean, to_linear_operator(covariance))

    def _posteriors(self) -> "_Posteriors":
        """Kept where GPyTorch keeps what it predicts from, until it forgets that or a parameter is written to."""
        kept = self.prediction_strategy
        if not isinstance(kept, _Posteriors) or (kept.rows is None and self._moved()):
            x, y, batch = self.train_inputs[0].detach(), self.train_targets.detach(), self._aug_batch_shape
            each = [
                gp_from(self, x.shape[-1], index).condition(member_of(x, 2, index), member_of(y, 1, index))
                for index in members(batch)
            ]
            self.prediction_strategy = _Posteriors(each, batch)
            self._known = [one.detach().clone() for one in self.parameters()]
        return self.prediction_strategy

    def _moved(self) -> bool:
        """Whether parameters have other values than what is kept was made with; GPyTorch writes past their versions."""
        return not all(map(torch.equal, self.parameters(), self._known))

    def get_fantasy_model(self, inputs: Tensor, targets: Tensor, **options: Any) -> Any:
        self._posteriors()
        return super().get_fantasy_model(inputs, targets, **options)

    def subset_output(self, idcs: list[int]) -> "FlashGPModel":
        found: Any = super().subset_output(idcs)
        if isinstance(self.prediction_strategy, _Posteriors) and self.num_outputs > 1:
            found.prediction_strategy = self._posteriors().subset(idcs)
            found._known = [one.detach().clone() for one in found.parameters()]
        return found


class _Posteriors:
    """Posteriors of all members; in the place of GPyTorch's prediction strategy.

    Args: each, of the members, with or without fantasies; batch, of models and outputs.
    """

    train_prior_dist = None

    def __init__(self, each: Sequence[Posterior], batch: torch.Size, fantasies: "_Rows | None" = None) -> None:
        self.each, self.batch, self.rows = each, batch, fantasies
        self.fantasies = None if fantasies is None else fantasies.beside(each, batch)

    def at(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean (*batch, q) and covariance (*batch, q, q) at points (*batch, q, d), whose batch goes with that of the
        members by broadcasting."""
        lead = () if self.rows is None else self.rows.targets.shape[:-1]
        shape = torch.broadcast_shapes(x.shape[:-2], (*lead, *(() if lead else self.batch)))
        parts = [self._member(k, member_of(x, 2, index)) for k, index in enumerate(members(self.batch))]
        own = len(self.batch)
        outer, q = shape[: len(shape) - own], x.shape[-2]
        means, covariances = zip(*parts, strict=True)
        mean = torch.stack([one.expand(*outer, q) for one in means], -2).reshape(*shape, q)
        covariance = torch.stack([one.expand(*outer, q, q) for one in covariances], -3).reshape(*shape, q, q)
        return mean, covariance

    def _member(self, which: int, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.fantasies is not None:
            return self.fantasies[which].joint(x)
        state = self.each[which].state.parts[0]
        if state.float64_factor is None:
            found = self.each[which].predict(x)
            return found.mean, found.covariance()
        joint = joint_moments(state, x)
        return joint.mean.squeeze(-1).to(x.dtype), joint.covariance.to(x.dtype)

    def get_fantasy_strategy(
        self, inputs: Any, targets: Tensor, full_inputs: Any, full_targets: Tensor, full_output: Any, noise: Any = None
    ) -> "_Posteriors":
        """With more rows. Args: as GPyTorch's: inputs, [(*b, q, d)]; targets, (*s, *b, q); noise, of fixed-noise
        models, as targets."""
        rows = _Rows(inputs[0], targets, noise)
        if not targets.shape[-1]:
            return self if self.rows is None else _Posteriors(self.each, self.batch, self.rows)
        if self.rows is not None:
            return _Posteriors(self.each, self.batch, self.rows.joined(rows))
        if targets.shape[:-1] == self.batch and inputs[0].dim() - 2 <= len(self.batch) and not rows.wants_graph:
            return _Posteriors(rows.appended(self.each, self.batch), self.batch)
        return _Posteriors(self.each, self.batch, rows)

    def subset(self, outputs: Sequence[int]) -> "_Posteriors":
        """Those of some outputs, the last dimension of the batch."""
        own, m = self.batch[:-1], self.batch[-1]
        each = [self.each[k * m + j] for k in range(own.numel()) for j in outputs]
        batch = torch.Size((*own, *((len(outputs),) if len(outputs) > 1 else ())))
        return _Posteriors(each, batch, None if self.rows is None else self.rows.subset(outputs))

    def __deepcopy__(self, memo: Any) -> "_Posteriors":
        return self  # a value


class _Rows:
    """Rows beside those of the posteriors. Args: as `get_fantasy_strategy`."""

    def __init__(self, x: Tensor, targets: Tensor, noise: Tensor | None) -> None:
        self.x, self.targets, self.noise = x, targets, noise

    @property
    def wants_graph(self) -> bool:
        return torch.is_grad_enabled() and (self.x.requires_grad or self.targets.requires_grad)

    def joined(self, more: "_Rows") -> "_Rows":
        lead = torch.broadcast_shapes(self.targets.shape[:-1], more.targets.shape[:-1])
        place = torch.broadcast_shapes(self.x.shape[:-2], more.x.shape[:-2])
        x = torch.cat([one.x.expand(*place, *one.x.shape[-2:]) for one in (self, more)], -2)
        targets = torch.cat([one.targets.expand(*lead, -1) for one in (self, more)], -1)
        noises = [one.noise for one in (self, more) if one.noise is not None]
        noise = torch.cat([one.expand(*lead, -1) for one in noises], -1) if len(noises) == 2 else None
        return _Rows(x, targets, noise)

    def subset(self, outputs: Sequence[int]) -> "_Rows":
        def some(value: Tensor, dim: int) -> Tensor:
            if value.shape[dim] > 1:
                value = value.index_select(dim, torch.tensor(outputs, device=value.device))
            return value.squeeze(dim) if len(outputs) == 1 else value

        noise = None if self.noise is None else some(self.noise, -2)
        return _Rows(some(self.x, -3), some(self.targets, -2), noise)

    def of(self, index: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor | None]:
        """Rows, targets and variances of a member."""
        noise = None if self.noise is None else member_of(self.noise, 1, index)
        return member_of(self.x, 2, index), member_of(self.targets, 1, index), noise

    def appended(self, each: Sequence[Posterior], batch: torch.Size) -> list[Posterior]:
        found = []
        for one, index in zip(each, members(batch), strict=True):
            x, y, noise = self.of(index)
            found.append(one.append(x.detach(), y.detach(), row_variance=noise))
        return found

    def beside(self, each: Sequence[Posterior], batch: torch.Size) -> list[Fantasies]:
        found = []
        for one, index in zip(each, members(batch), strict=True):
            x, y, noise = self.of(index)
            # Variances are of rows, whatever their targets are.
            variance = None if noise is None else noise.reshape(-1, *noise.shape[noise.dim() - x.dim() + 1 :])[0]
            found.append(one.fantasize(x, y, row_variance=None if variance is None else variance.expand(x.shape[:-1])))
        return found


class FlashGPPaths(SamplePath):
    """Functions drawn from a model's posterior, `Posterior.paths` of each member.

    Args: model, in evaluation mode; sample_shape, of the functions.
    """

    def __init__(self, model: FlashGPModel, sample_shape: torch.Size) -> None:
        super().__init__()
        model.eval()
        self.input_transform = model.transform_inputs
        self.output_transform = get_output_transform(model)
        self.sample_shape, self.batch = sample_shape, model._aug_batch_shape
        self.each = [one.paths(max(1, sample_shape.numel())) for one in model._posteriors().each]

    def set_ensemble_as_batch(self, ensemble_as_batch: bool) -> None:
        """Nothing: members of a batch are no ensemble."""

    def forward(self, x: Tensor) -> Tensor:
        """(*samples, *batch, q) at points (..., q, d) whose batch goes with that of the functions by broadcasting."""
        behind, samples = (*self.sample_shape, *self.batch), len(self.sample_shape)
        shape = torch.broadcast_shapes(x.shape[:-2], behind)
        outer, q = shape[: len(shape) - len(behind)], x.shape[-2]
        values = []
        for paths, index in zip(self.each, members(self.batch), strict=True):
            points = member_of(x, 2, index)
            points = points.reshape(*(1,) * (samples + 2 - points.dim()), *points.shape)
            drawn = paths(points)  # (count, *own, *samples or ones, q): all functions at the points of each
            own = points.dim() - 2 - samples
            if samples:
                drawn = drawn.expand(paths.count, *drawn.shape[1 : own + 1], *self.sample_shape, q).flatten(own + 1, -2)
                drawn = drawn.diagonal(dim1=0, dim2=-2).movedim(-1, -2).unflatten(-2, self.sample_shape)
            values.append((drawn if samples else drawn.squeeze(0)).expand(*outer, *self.sample_shape, q))
        return torch.stack(values, -2).reshape(*shape, q)


@DrawMatheronPaths.register(FlashGPModel)
def _draw_paths(model: FlashGPModel, *, sample_shape: torch.Size, **_: Callable[..., Any]) -> FlashGPPaths:
    return FlashGPPaths(model, sample_shape)
