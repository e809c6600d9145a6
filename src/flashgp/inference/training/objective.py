"""The objective of `fit` as a function of one flat vector: minus the log joint, with its gradient, in float64.

The vector holds the unconstrained values of every trainable tensor. Priors that are LogNormal, Gamma or Normal, and
the weak priors of `fit`, are evaluated in closed form on the flat vector; others go through autograd.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch
from torch import Tensor
from torch.distributions import Gamma, LogNormal, Normal

from flashgp.foundations.errors import DomainError, NotPositiveDefiniteError
from flashgp.foundations.form import Rows
from flashgp.foundations.parameters import Domain, Parameter, named_parameter_objects
from flashgp.inference.exact.likelihood import DirectSettings, evaluate_likelihood, value_and_gradients
from flashgp.inference.exact.small import SmallModel
from flashgp.inference.prior import Prior
from flashgp.inference.threads import one_thread
from flashgp.inference.training.initial import RoleStart

__all__ = ["FlatObjective", "FlatPriors"]


@dataclass
class _Slot:
    """Where one trainable tensor lives in the flat vector."""

    name: str
    tensor: torch.nn.Parameter
    owner: Parameter | None
    start: int
    stop: int


@dataclass
class FlatPriors:
    """Closed-form log densities on entries of the flat vector, eqs. (M-45) to (M-47).

    Each row says: entry, lower end of the domain, and (shift, sd) of a normal on the logarithm of the value (LogNormal
    density when `density`, else a normal on the logarithm itself), or (concentration, rate) of a Gamma.
    """

    log_normal: list[tuple[int, float, float, float, float]] = field(default_factory=list)
    gamma: list[tuple[int, float, float, float]] = field(default_factory=list)
    normal: list[tuple[int, float, float]] = field(default_factory=list)

    def freeze(self) -> None:
        self._log_normal = [numpy.array(c) for c in zip(*self.log_normal, strict=True)] if self.log_normal else None
        self._gamma = [numpy.array(c) for c in zip(*self.gamma, strict=True)] if self.gamma else None
        self._normal = [numpy.array(c) for c in zip(*self.normal, strict=True)] if self.normal else None

    def value_and_gradient(self, theta: numpy.ndarray) -> tuple[float, numpy.ndarray]:
        """Sum of log densities and its gradient, for one vector (p,)."""
        gradient = numpy.zeros_like(theta)
        total = 0.0
        if self._log_normal is not None:
            at, lower, mean, sd, density = self._log_normal
            grown = numpy.exp(theta[at])
            value = lower + grown
            z = (numpy.log(value) - mean) / sd
            total -= float(
                (0.5 * z * z + numpy.log(sd) + 0.5 * math.log(2 * math.pi) + density * numpy.log(value)).sum()
            )
            numpy.add.at(gradient, at, -(z / sd + density) * grown / value)
        if self._gamma is not None:
            at, lower, shape, rate = self._gamma
            grown = numpy.exp(theta[at])
            value = lower + grown
            constant = shape * numpy.log(rate) - numpy.array([math.lgamma(s) for s in shape])
            total += float(((shape - 1) * numpy.log(value) - rate * value + constant).sum())
            numpy.add.at(gradient, at, ((shape - 1) / value - rate) * grown)
        if self._normal is not None:
            at, mean, sd = self._normal
            z = (theta[at] - mean) / sd
            total -= float((0.5 * z * z + numpy.log(sd) + 0.5 * math.log(2 * math.pi)).sum())
            numpy.add.at(gradient, at, -z / sd)
        return total, gradient


class FlatObjective:
    """Minus the log joint of a GP and data as a function of a flat vector; one vector, or a batch of vectors.

    Args:
        gp: a private copy; its parameters are moved by every evaluation.
        x, y: checked data on their device; roles: weak priors and bounds by parameter (empty for none).
    """

    def __init__(
        self,
        gp: Prior,
        x: Tensor,
        y: Tensor,
        settings: DirectSettings,
        roles: Mapping[Parameter, RoleStart],
        weak: bool,
    ) -> None:
        self.gp, self.x, self.y, self.settings = gp, x, y, settings
        self.rows = x.shape[-2]
        owners = {id(p.raw): p for _, p in named_parameter_objects(gp)}
        self.slots: list[_Slot] = []
        at = 0
        for name, tensor in gp.named_parameters():
            if tensor.requires_grad:
                self.slots.append(_Slot(name, tensor, owners.get(id(tensor)), at, at + tensor.numel()))
                at += tensor.numel()
        self.size = at
        self._tensors = [s.tensor for s in self.slots]
        self.batchable = all(slot.owner is not None for slot in self.slots) and not _foreign(gp)
        self.priors = FlatPriors()
        self._slow_priors: list[Parameter] = []
        for slot in self.slots:
            if slot.owner is not None:
                self._add_prior(slot, roles.get(slot.owner) if weak else None)
        self.priors.freeze()
        self._small = SmallModel.of(gp, x, y) if settings.dtype == torch.float64 and not settings.jitter else None
        self._has_beyond = gp.beyond_matrix(x.device) is not None

    def _add_prior(self, slot: _Slot, role: RoleStart | None) -> None:
        owner = slot.owner
        assert owner is not None
        prior, domain = owner.prior, owner.domain
        entries = range(slot.start, slot.stop)
        if prior is None:
            if role is not None and role.log_prior is not None and domain.kind == "positive":
                mean, sd = role.log_prior
                # A weak prior is a normal on log(value): its mode is where a user would look for it.
                for entry, m in zip(entries, mean.reshape(-1).tolist(), strict=True):
                    self.priors.log_normal.append((entry, domain.lower, m, sd, 0.0))
            return
        shape = owner.raw.shape

        def column(value: Any) -> list[float]:
            return torch.as_tensor(value, dtype=torch.float64).expand(shape).reshape(-1).tolist()

        if isinstance(prior, LogNormal) and domain.kind == "positive":
            for entry, m, s in zip(entries, column(prior.loc), column(prior.scale), strict=True):
                self.priors.log_normal.append((entry, domain.lower, m, s, 1.0))
        elif type(prior) is Gamma and domain.kind == "positive":
            for entry, c, r in zip(entries, column(prior.concentration), column(prior.rate), strict=True):
                self.priors.gamma.append((entry, domain.lower, c, r))
        elif type(prior) is Normal and domain.kind == "real":
            for entry, m, s in zip(entries, column(prior.loc), column(prior.scale), strict=True):
                self.priors.normal.append((entry, m, s))
        else:
            _check_support(slot.name.removesuffix(".raw"), owner)
            self._slow_priors.append(owner)

    # -- vectors ------------------------------------------------------------------------------------------------
    def vector(self) -> numpy.ndarray:
        """The current values as a flat vector."""
        parts = [s.tensor.detach().reshape(-1).double().cpu().numpy() for s in self.slots]
        return numpy.concatenate([numpy.zeros(0), *parts])

    def assign(self, theta: numpy.ndarray) -> None:
        """Set the parameters."""
        values = torch.from_numpy(theta)
        with torch.no_grad():
            for s in self.slots:
                s.tensor.copy_(values[s.start : s.stop].view(s.tensor.shape))

    # -- evaluation ---------------------------------------------------------------------------------------------
    def __call__(self, theta: numpy.ndarray) -> tuple[float, numpy.ndarray]:
        """(minus log joint, gradient) at one vector. Raises: NotPositiveDefiniteError."""
        with one_thread(self.rows):
            return self._evaluated(theta)

    def _evaluated(self, theta: numpy.ndarray) -> tuple[float, numpy.ndarray]:
        self.assign(theta)
        if self._small is not None and (found := self._small(self.settings.workspace)) is not None:
            return self._from_small(theta, *found)
        with torch.enable_grad():
            residual, noise, rows, values = self.gp.likelihood_inputs(self.x, self.y)
            inputs = (residual, noise, *rows.tensors, *values)
            wanted = [t.requires_grad for t in inputs]
            value, slopes = self.likelihood(rows, [t.detach() for t in inputs], wanted)
            total, gradient = self.pull(inputs, slopes)
        total += value
        prior, prior_gradient = self.priors.value_and_gradient(theta)
        return -(total + prior), -(gradient + prior_gradient)

    def likelihood(
        self, rows: Rows, tensors: Sequence[Tensor], wanted: Sequence[bool]
    ) -> tuple[float, list[Tensor | None]]:
        """The log marginal likelihood and its gradient by residual, noise, tensors of the rows and theta."""
        value, slopes = value_and_gradients(self.settings, self.gp.kernel.form, rows, tensors, wanted)
        return float(value.sum()), slopes

    def pull(self, inputs: Sequence[Tensor], slopes: Sequence[Tensor | None]) -> tuple[float, numpy.ndarray]:
        """From slopes by the likelihood's inputs to the flat vector; with the terms that only autograd knows, and
        their value.

        The chain from parameters to features, mean and noise is the only thing autograd sees.
        """
        total, outputs, grads = 0.0, [], []
        for tensor, slope in zip(inputs, slopes, strict=True):
            if tensor.requires_grad and slope is not None:
                outputs.append(tensor)
                grads.append(slope if slope.shape == tensor.shape else slope.sum_to_size(tensor.shape))
        for term in self._extra_terms():
            total += term.item()
            outputs.append(term)
            grads.append(torch.ones_like(term))
        pulled = torch.autograd.grad(outputs, self._tensors, grads, allow_unused=True) if outputs else ()
        gradient = numpy.zeros(self.size)
        for part, slot in zip(pulled, self.slots, strict=False):
            if part is not None:
                gradient[slot.start : slot.stop] = part.reshape(-1).cpu().numpy()
        return total, gradient

    def _extra_terms(self) -> list[Tensor]:
        """Terms of the log joint that autograd takes care of: uncommon priors, what replicated rows say about noise."""
        terms = [owner.log_prior().sum() for owner in self._slow_priors]
        beyond = self.gp.beyond_matrix(self.x.device)
        if beyond is not None:
            terms.append(beyond.sum())
        return [term for term in terms if term.requires_grad] + [
            t.detach().requires_grad_() for t in terms if not t.requires_grad
        ]

    def _from_small(
        self, theta: numpy.ndarray, value: float, slopes: dict[Parameter, numpy.ndarray]
    ) -> tuple[float, numpy.ndarray]:
        """The small model's answer as a flat one."""
        gradient = numpy.zeros(self.size)
        for slot in self.slots:
            if slot.owner in slopes:
                gradient[slot.start : slot.stop] = numpy.ravel(slopes[slot.owner])
        if self._slow_priors or self._has_beyond:
            with torch.enable_grad():
                terms = self._extra_terms()
                found = torch.autograd.grad(
                    terms, self._tensors, [torch.ones_like(t) for t in terms], allow_unused=True
                )
            value += sum(t.item() for t in terms)
            for part, slot in zip(found, self.slots, strict=True):
                if part is not None:
                    gradient[slot.start : slot.stop] += part.reshape(-1).numpy()
        prior, prior_gradient = self.priors.value_and_gradient(theta)
        return -(value + prior), -(gradient + prior_gradient)

    def batch(self, thetas: list[numpy.ndarray]) -> list[tuple[float, numpy.ndarray] | NotPositiveDefiniteError]:
        """Several vectors: one tensor program on an accelerator, one by one where that is cheaper (decision 4).

        A member that cannot be factorised returns its error, the others their values.
        """
        if len(thetas) > 1 and self.batchable and self.x.device.type != "cpu":
            try:
                return list(self.together(thetas))
            except NotPositiveDefiniteError:
                pass  # find out which, one by one
        return [self._one(theta) for theta in thetas]

    def together(self, thetas: list[numpy.ndarray]) -> list[tuple[float, numpy.ndarray]]:
        """Several vectors in one tensor program, a leading batch dimension on every parameter.

        Raises: NotPositiveDefiniteError naming the members that failed.
        """
        stacked = torch.from_numpy(numpy.stack(thetas))
        named = {
            s.name: stacked[:, s.start : s.stop].reshape(-1, *s.tensor.shape).to(s.tensor.device).requires_grad_()
            for s in self.slots
        }
        with torch.enable_grad():
            value = self.gp.at(named, self.x, self.y, lambda gp: self._totals(gp, len(thetas)))
            grads = torch.autograd.grad(value.sum(), list(named.values()), allow_unused=True)
        flat = [
            torch.zeros(len(thetas), s.stop - s.start, dtype=torch.float64)
            if g is None
            else g.reshape(len(thetas), -1).cpu()
            for g, s in zip(grads, self.slots, strict=True)
        ]
        results = []
        for theta, v, g in zip(thetas, value.tolist(), torch.cat(flat, dim=1).numpy(), strict=True):
            prior, prior_gradient = self.priors.value_and_gradient(theta)
            results.append((-(v + prior), -(g + prior_gradient)))
        return results

    def _totals(self, gp: Prior, count: int) -> Tensor:
        """Per vector, the likelihood summed over the models of a batch, and each prior once."""
        value = evaluate_likelihood(gp, self.settings, self.x, self.y).reshape(count, -1).sum(-1)
        for owner in self._slow_priors:
            value = value + owner.log_prior().reshape(count, -1).sum(-1)
        return value

    def _one(self, theta: numpy.ndarray) -> tuple[float, numpy.ndarray] | NotPositiveDefiniteError:
        try:
            return self(theta)
        except NotPositiveDefiniteError as error:
            return error


def _check_support(name: str, owner: Parameter) -> None:
    """DomainError for a prior that is not defined on all of its parameter's domain: the search would leave it."""
    assert owner.prior is not None
    try:
        support = Domain.of(owner.prior.support)
    except DomainError:
        return  # a support of another kind: torch judges it
    if support.lower > owner.domain.lower or support.upper < owner.domain.upper:
        raise DomainError(
            f"`prior` of {name} must be defined wherever the parameter may go ({owner.domain}), got "
            f"{type(owner.prior).__name__} on ({support.lower:g}, {support.upper:g}); pass the Parameter constraint="
            f"torch.distributions.constraints.interval({support.lower:g}, {support.upper:g})"
        )


def _foreign(gp: Prior) -> bool:
    """Whether modules of the user's take part, which may not accept a batch of parameters."""
    from flashgp.kernels import Warped
    from flashgp.means import REGISTRY

    return not isinstance(gp.mean, tuple(REGISTRY.values())) or any(isinstance(m, Warped) for m in gp.modules())
