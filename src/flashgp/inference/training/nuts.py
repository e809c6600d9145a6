"""The No-U-Turn sampler: multinomial draws along Hamiltonian trajectories, dual averaging of the step, eq. (M-383).

Coordinates come whitened, so that the mass matrix is the identity. Sources: Hoffman & Gelman (2014), The No-U-Turn
sampler, algorithm 6 for the step; Betancourt (2017), A conceptual introduction to Hamiltonian Monte Carlo, appendix A.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy

Array = numpy.ndarray
Density = Callable[[Array], tuple[float, Array]]  # log density, -inf where there is none, and its gradient


@dataclass(frozen=True)
class NutsSettings:
    """Settings of the sampler.

    Args:
        warm_up: transitions that adapt the step and are not kept.
        accept: mean acceptance that the step is adapted to.
        max_depth: of the tree of a transition, at most 2^max_depth - 1 steps.
        first_step: in standard deviations of the whitening approximation.
        usual_steps: of a transition, by which its time is estimated.
        divergence: nats of energy error beyond which a trajectory has left the density.
        shrinkage, offset, decay: of dual averaging, gamma, t0 and kappa of its source.
    """

    warm_up: int = 250
    accept: float = 0.8
    max_depth: int = 7
    first_step: float = 0.5
    usual_steps: float = 12.0
    divergence: float = 1000.0
    shrinkage: float = 0.05
    offset: float = 10.0
    decay: float = 0.75


@dataclass(frozen=True)
class Chain:
    """Draws (count, p), their log densities (count,), evaluations, and how many kept transitions diverged."""

    draws: Array
    log_density: Array
    evaluations: int
    divergences: int


class _Point(NamedTuple):
    """A point of a trajectory: position, momentum, log density and gradient."""

    z: Array
    momentum: Array
    log_density: float
    gradient: Array

    @property
    def energy(self) -> float:
        """Minus the Hamiltonian."""
        return self.log_density - 0.5 * float(self.momentum @ self.momentum)


class _Tree(NamedTuple):
    """A piece of a trajectory: its ends in the direction of time that built it, the sum of its momenta, the log of its
    weight, the point drawn from it, and whether it may go on."""

    first: _Point
    last: _Point
    momenta: Array
    log_weight: float
    drawn: _Point
    goes_on: bool


@dataclass
class _Trajectory:
    """One transition in the making."""

    density: Density
    step: float
    start: float
    settings: NutsSettings
    generator: numpy.random.Generator
    accepted: float = 0.0
    steps: int = 0
    diverged: bool = field(default=False)

    def leapfrog(self, at: _Point, step: float) -> _Point:
        half = at.momentum + 0.5 * step * at.gradient
        z = at.z + step * half
        value, gradient = self.density(z)
        return _Point(z, half + 0.5 * step * gradient, value, gradient)

    def tree(self, at: _Point, direction: float, depth: int) -> _Tree:
        """2^depth steps from a point that is none of them, cut where they turn or diverge."""
        if not depth:
            point = self.leapfrog(at, direction * self.step)
            gain = point.energy - self.start
            gain = gain if math.isfinite(gain) else -math.inf
            self.accepted += math.exp(min(0.0, gain))
            self.steps += 1
            held = gain > -self.settings.divergence
            self.diverged |= not held
            return _Tree(point, point, point.momentum, gain, point, held)
        one = self.tree(at, direction, depth - 1)
        if not one.goes_on:
            return one
        two = self.tree(one.last, direction, depth - 1)
        both = self.joined(one, two, math.exp(two.log_weight - numpy.logaddexp(one.log_weight, two.log_weight)))
        return both._replace(goes_on=two.goes_on and both.goes_on)

    def joined(self, one: _Tree, two: _Tree, share: float) -> _Tree:
        """Two pieces, one after the other. Args: share, probability of drawing from the second."""
        drawn = two.drawn if self.generator.random() < share else one.drawn
        momenta = one.momenta + two.momenta
        spans = ((momenta, one.first, two.last), (one.momenta + two.first.momentum, one.first, two.first),
                 (two.momenta + one.last.momentum, one.last, two.last))  # fmt: skip
        turning = any(min(float(sum_ @ a.momentum), float(sum_ @ b.momentum)) <= 0.0 for sum_, a, b in spans)
        log_weight = float(numpy.logaddexp(one.log_weight, two.log_weight))
        return _Tree(one.first, two.last, momenta, log_weight, drawn, not turning)

    def run(self, at: _Point) -> _Point:
        whole = _Tree(at, at, at.momentum, 0.0, at, True)
        for depth in range(self.settings.max_depth):
            forward = self.generator.random() < 0.5
            if not forward:
                whole = _reversed(whole)
            more = self.tree(whole.last, 1.0 if forward else -1.0, depth)
            if not more.goes_on:
                return whole.drawn
            share = math.exp(min(0.0, more.log_weight - whole.log_weight))  # biased towards what is new
            whole = self.joined(whole, more, share)
            if not forward:
                whole = _reversed(whole)
            if not whole.goes_on:
                break
        return whole.drawn


def _reversed(tree: _Tree) -> _Tree:
    return tree._replace(first=tree.last, last=tree.first)


def nuts(
    density: Density, start: Array, count: int, generator: numpy.random.Generator, settings: NutsSettings
) -> Chain:
    """A chain of `count` draws behind its warm-up. Args: density, at which `start` is finite."""
    value, gradient = density(start)
    at = _Point(start, numpy.zeros_like(start), value, gradient)
    step, evaluations, divergences = settings.first_step, 1, 0
    centre, error, log_step = math.log(2.0 * step), 0.0, math.log(step)
    kept: list[_Point] = []
    for transition in range(settings.warm_up + count):
        at = at._replace(momentum=generator.standard_normal(len(start)))
        trajectory = _Trajectory(density, step, at.energy, settings, generator)
        at = trajectory.run(at)
        evaluations += trajectory.steps
        if transition >= settings.warm_up:
            kept.append(at)
            divergences += trajectory.diverged
            continue
        t = transition + 1.0
        share = 1.0 / (t + settings.offset)
        error += share * (settings.accept - trajectory.accepted / max(1, trajectory.steps) - error)
        tried, weight = centre - math.sqrt(t) / settings.shrinkage * error, t**-settings.decay
        log_step = weight * tried + (1.0 - weight) * log_step
        step = math.exp(log_step if transition + 1 == settings.warm_up else tried)
    draws = numpy.array([point.z for point in kept]).reshape(count, len(start))
    return Chain(draws, numpy.array([point.log_density for point in kept]), evaluations, divergences)


def convergence(chains: Array) -> tuple[Array, Array]:
    """Split R-hat and effective sample size of every column of chains (c, count, p), eq. (M-384).

    Source: Vehtari, Gelman, Simpson, Carpenter & Bürkner (2021), Rank-normalization, folding, and localization, without
    its ranks; autocorrelations are cut as Geyer (1992) cuts them.
    """
    half = chains.shape[1] // 2
    parts = numpy.concatenate([chains[:, :half], chains[:, half : 2 * half]])  # (2 c, half, p)
    m, n, p = parts.shape
    within = parts.var(axis=1, ddof=1).mean(axis=0)
    between = n * parts.mean(axis=1).var(axis=0, ddof=1)
    whole = (n - 1.0) / n * within + between / n
    centred = parts - parts.mean(axis=1, keepdims=True)
    lags = numpy.array([(centred[:, : n - t] * centred[:, t:]).sum(axis=1).mean(axis=0) / n for t in range(n)])
    with numpy.errstate(divide="ignore", invalid="ignore"):
        r_hat = numpy.sqrt(whole / within)
        correlation = 1.0 - (within - lags * n / (n - 1.0)) / whole  # (n, p)
    pairs = correlation[: 2 * (n // 2)].reshape(-1, 2, p).sum(axis=1)
    pairs = numpy.minimum.accumulate(numpy.where(numpy.cumprod(pairs > 0.0, axis=0) > 0, pairs, 0.0), axis=0)
    effective = m * n / numpy.maximum(2.0 * pairs.sum(axis=0) - 1.0, 1.0 / numpy.log10(max(10.0, m * n)))
    return r_hat, effective
