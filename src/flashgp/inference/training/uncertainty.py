"""Posteriors over hyperparameters: draws around the optimum of a fit, by Laplace's approximation or by NUTS.

Densities are those of the unconstrained values that a search moves, (M-381). A fit's log joint counts weak priors as
densities of logarithms; a user's prior is one of the value, and gets the Jacobian.
"""

import math
import time
from dataclasses import dataclass, field, replace

import numpy
import torch

from flashgp.foundations.deadline import NO_DEADLINE
from flashgp.foundations.errors import ConvergenceError, DomainError, NotPositiveDefiniteError, warn
from flashgp.foundations.events import Event, EventKind, NoDraws
from flashgp.inference.data import Data
from flashgp.inference.exact.condition import condition
from flashgp.inference.exact.evidence import log_evidence
from flashgp.inference.exact.mixture import MixtureState, batch_of, in_own_memory
from flashgp.inference.output_states import AnyState
from flashgp.inference.prior import Prior
from flashgp.inference.run import with_run
from flashgp.inference.settings import ConditionSettings
from flashgp.inference.threads import one_thread
from flashgp.inference.training.nuts import Array, Density, NutsSettings, convergence, nuts
from flashgp.inference.training.objective import LogJoint, Problem

HALVINGS = 20  # of the start of a chain, before it begins at the centre
EDGE = 1e-9  # of a uniform number: no draw lies at infinity
METHODS = ("laplace", "nuts", "auto")


@dataclass(frozen=True)
class UncertaintySettings:
    """Settings of draws of hyperparameters.

    Args:
        draws: beside the optimum.
        sparse: whether lengthscales of columns have sparse priors in place of weak ones.
        step: of finite differences of gradients, in units of the search.
        least_curvature: nats per squared unit; flatter directions are drawn from as if they had so much.
        share: of the evaluations of the fit that "auto" may take.
        chains: of NUTS; transitions, kept of each, of which every few are the draws.
        most_r_hat, least_effective: beyond which a warning says that chains have not settled.
        nuts: of the sampler.
    """

    draws: int = 31
    sparse: bool = True
    step: float = 1e-3
    least_curvature: float = 0.2
    share: float = 1.0
    chains: int = 4
    transitions: int = 250
    most_r_hat: float = 1.05
    least_effective: float = 40.0
    nuts: NutsSettings = field(default_factory=NutsSettings)


class Target:
    """Log density of the unconstrained values, up to a constant, (M-381). Args: objective, minus the log joint."""

    def __init__(self, objective: LogJoint) -> None:
        self.objective, self.parameters = objective, objective.parameters
        self.low, self.high = self.parameters.bounds()
        self._by_value = [
            (slot.entries, slot.owner.domain)
            for slot in self.parameters.slots
            if slot.owner is not None and (slot.owner.prior is not None or slot.owner.domain.kind not in _UNBOUNDED)
        ]

    def log_jacobian(self, theta: Array) -> tuple[float, Array]:
        """Log Jacobian of values whose priors are densities of them, and its gradient."""
        total, gradient = 0.0, numpy.zeros_like(theta)
        for entries, domain in self._by_value:
            raw = torch.from_numpy(theta[entries]).requires_grad_()
            with torch.enable_grad():
                value = domain.log_jacobian(raw).sum()
                if value.requires_grad:
                    gradient[entries] = torch.autograd.grad(value, raw)[0].numpy()
            total += value.item()
        return total, gradient

    def log_prior(self, theta: Array) -> float:
        """That of all but the likelihood."""
        self.parameters.assign(theta)
        return self.objective.log_prior(theta) + self.log_jacobian(theta)[0]

    def __call__(self, theta: Array) -> tuple[float, Array]:
        """Log density and gradient; -inf outside the bounds, and where there is no factor."""
        nowhere = -math.inf, numpy.zeros_like(theta)
        if bool(((theta < self.low) | (theta > self.high)).any()):
            return nowhere
        try:
            found = self.objective(theta)
        except (NotPositiveDefiniteError, ConvergenceError):
            return nowhere
        if found.value is None or not math.isfinite(found.value):
            return nowhere
        value, slope = self.log_jacobian(theta)
        return value - found.value, slope - found.gradient


_UNBOUNDED = ("positive", "real")


@dataclass(frozen=True)
class Laplace:
    """A normal density of unconstrained values: centre (p,), and a root of its covariance (p, p), eq. (M-381).

    Fields: curvature, minus the second derivatives of the log density at the optimum, (p, p).
    """

    centre: Array
    root: Array
    curvature: Array

    @classmethod
    def at(cls, target: Target, theta: Array, settings: UncertaintySettings) -> "Laplace":
        """That of a density at its optimum, or a step of Newton's method, one standard deviation at most, from there.

        Cost: p + 1 gradients.
        """
        units = target.parameters.units(theta)
        _, gradient = target(theta)
        curvature = numpy.empty((len(theta), len(theta)))
        for i, unit in enumerate(units):
            step = settings.step * unit * (1.0 if theta[i] + settings.step * unit <= target.high[i] else -1.0)
            moved = theta.copy()
            moved[i] += step
            curvature[i] = (gradient - target(moved)[1]) / step
        curvature = 0.5 * (curvature + curvature.T)
        values, vectors = numpy.linalg.eigh(curvature * numpy.outer(units, units))
        root = units[:, None] * vectors / numpy.sqrt(numpy.maximum(values, settings.least_curvature))
        away = root.T @ gradient
        away /= max(1.0, float(numpy.linalg.norm(away)))
        centre = (theta + root @ away).clip(target.low, target.high)
        return cls(centre if math.isfinite(target(centre)[0]) else theta, root, curvature)

    def draws(self, count: int, seed: int) -> tuple[Array, Array]:
        """So many quasi-random draws (count, p), and their log densities but for a constant, (count,)."""
        sobol = torch.quasirandom.SobolEngine(len(self.centre), scramble=True, seed=seed)
        uniform = sobol.draw(max(1, count), dtype=torch.float64)[:count].clamp(EDGE, 1.0 - EDGE)
        normal = torch.special.ndtri(uniform).numpy()
        return self.centre + normal @ self.root.T, -0.5 * numpy.square(normal).sum(axis=1)


def obstacle(problem: Problem, data: Data, *, exact: bool) -> NoDraws | None:
    """Reason that there are no draws of the hyperparameters of a model. Args: exact, whether its gradients are."""
    prior = problem.prior
    if not prior.likelihood.has_sites:
        return NoDraws.LIKELIHOOD
    if data.is_batch:
        return NoDraws.TABLES
    if prior.has_user_modules:
        return NoDraws.MODULES
    if not any(p.requires_grad for p in prior.parameters()):
        return NoDraws.FIXED
    if not exact or problem.direct.dtype != torch.float64 or problem.x.device.type != "cpu":
        return NoDraws.ROWS
    return None


def refuse(reason: NoDraws | None, uncertainty: str | None) -> None:
    """Raises: DomainError for a method that was named where there is a reason against it."""
    if reason is not None and uncertainty in METHODS[:2]:
        raise DomainError(
            f'`uncertainty` cannot be had for this fit, got {uncertainty!r} where {reason}; pass None or "auto"'
        )


@dataclass(frozen=True)
class Uncertainty:
    """How hyperparameters are drawn, beside a fit.

    Fields: method; seed; evaluations, of all rows that the fit was worth; left, seconds until its time limit; settings.
    """

    method: str
    seed: int
    evaluations: float
    left: float
    settings: UncertaintySettings

    def mixture(
        self, prior: Prior, data: Data, objective: LogJoint, theta: Array, conditioning: ConditionSettings
    ) -> tuple[MixtureState | None, Event]:
        """The mixture over draws, the optimum first, and an event; None where "auto" leaves it.

        Args: prior, of the rows of data, with the parameters of the objective; theta, its optimum.
        Cost: of Laplace p + 1 gradients, and a batch of factors; of NUTS some thousand gradients.
        """
        target, settings = Target(objective), self.settings
        with one_thread(objective.rows):
            began = time.perf_counter()
            target(theta)
            needed = self._gradients(len(theta))
            late = (time.perf_counter() - began) * needed > self.left
            if late or (self.method == "auto" and needed > settings.share * self.evaluations):
                target.parameters.assign(theta)
                share = None if late else needed / max(self.evaluations, 1.0)
                reason = NoDraws.TIME if late else NoDraws.SECONDS
                return None, Event(EventKind.HYPERPARAMETERS_FIXED, reason=reason, share=share)
            laplace = Laplace.at(target, theta, settings)
            if self.method == "nuts":
                draws, told = self._by_nuts(target, laplace)
            else:
                draws, log_density = laplace.draws(settings.draws, self.seed)
                draws = draws.clip(target.low, target.high)
            draws = numpy.concatenate([theta[None], draws])
            each = _conditioned(prior, data, objective, draws, conditioning)
            if self.method != "nuts":
                evidence = log_evidence(each).numpy()[1:]
                excess = evidence + [target.log_prior(one) for one in draws[1:]] - log_density
                told = Event(EventKind.HYPERPARAMETERS_DRAWN, draws=len(draws), effective=_effective(excess))
        target.parameters.assign(theta)
        log_weights = torch.full((len(draws),), -math.log(len(draws)), dtype=torch.float64)
        report = replace(each.report, events=[*each.report.events, told])
        return MixtureState(each, log_weights, report), told

    def _gradients(self, size: int) -> float:
        """About how many gradients take as long as all of it, of so many parameters."""
        settings = self.settings
        chains = settings.chains * (settings.nuts.warm_up + settings.transitions) if self.method == "nuts" else 0
        return size + 0.5 * settings.draws + settings.nuts.usual_steps * chains

    def _by_nuts(self, target: Target, laplace: Laplace) -> tuple[Array, Event]:
        """Draws of several chains, in whitened coordinates."""
        settings = self.settings

        def density(z: Array) -> tuple[float, Array]:
            value, gradient = target(laplace.centre + laplace.root @ z)
            return value, laplace.root.T @ gradient

        chains = []
        for k in range(settings.chains):
            generator = numpy.random.default_rng((self.seed, k))
            start = begun(density, generator.standard_normal(len(laplace.centre)))
            chains.append(nuts(density, start, settings.transitions, generator, settings.nuts))
        r_hat, effective = convergence(numpy.array([numpy.c_[one.draws, one.log_density] for one in chains]))
        told = Event(
            EventKind.HYPERPARAMETERS_SAMPLED,
            chains=len(chains), r_hat=float(r_hat.max()), effective=float(effective.min()),
            evaluations=sum(one.evaluations for one in chains),
            divergences=sum(one.divergences for one in chains) or None,
        )  # fmt: skip
        if not (r_hat.max() <= settings.most_r_hat and effective.min() >= settings.least_effective):
            warn(
                f"{told} Chains so short have not settled: pass uncertainty='laplace', or more transitions in settings"
            )
        every = numpy.concatenate([one.draws for one in chains])
        every = every[numpy.linspace(0, len(every) - 1, settings.draws).round().astype(int)]
        return laplace.centre + every @ laplace.root.T, told


def begun(density: Density, start: Array) -> Array:
    """A start of finite density: halved towards 0, where it is finite, as often as it takes, at most HALVINGS times."""
    for _ in range(HALVINGS):
        if math.isfinite(density(start)[0]):
            return start
        start = 0.5 * start
    return numpy.zeros_like(start)


def _effective(log_weights: Array) -> float:
    """Effective number of draws by importance weights, (sum w)^2 / sum w^2."""
    if not len(log_weights):
        return 0.0
    weights = numpy.exp(log_weights - log_weights.max())
    return float(weights.sum() ** 2 / numpy.square(weights).sum())


def _conditioned(prior: Prior, data: Data, objective: LogJoint, draws: Array, settings: ConditionSettings) -> AnyState:
    """The posteriors of draws (k, p) as a batch."""
    flat = torch.from_numpy(draws)
    slots = objective.parameters.slots
    values = {slot.name: flat[:, slot.entries].reshape(-1, *slot.tensor.shape).contiguous() for slot in slots}
    batch = batch_of(prior, values)
    found = condition(batch, Data(batch, data.x, data.y, data.promoted), with_run(settings, deadline=NO_DEADLINE))
    return in_own_memory(found)
