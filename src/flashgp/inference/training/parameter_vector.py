"""The unconstrained values of all trainable tensors of a prior as one flat vector: bounds, units, starting values."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy
import torch
from torch import Tensor, nn

from flashgp.foundations.parameters import Parameter, named_parameter_objects
from flashgp.inference.training.initial import RoleStart, UsualPrior, WeakPrior, power_of_two

Array = numpy.ndarray
EDGE_SHARE = 1e-2  # of an interval, or of where a half-line begins: a value so close to it is on it
SAME_START = 1e-3  # of the spread of random starts: vectors so close are one start
LOGARITHMS = (math.log(torch.finfo(torch.float64).tiny), math.log(torch.finfo(torch.float64).max))


@dataclass(frozen=True, eq=False)
class Slot:
    """Position of one trainable tensor in the vector.

    Fields: name; tensor; owner, its Parameter, None for a tensor of a user's own module; role, what the data say about
    it, if they do; entries.
    """

    name: str
    tensor: nn.Parameter
    owner: Parameter | None
    role: RoleStart | None
    entries: slice

    @property
    def positive(self) -> bool:
        """True if the vector has logarithms of its values."""
        return self.owner is not None and self.owner.domain.kind == "positive"

    @property
    def weak_prior(self) -> UsualPrior | None:
        """The prior that the data suggest, where its user gave none; of logarithms only of a positive parameter."""
        if self.owner is None or self.role is None or self.owner.prior is not None:
            return None
        return self.role.prior if self.owner.domain.kind in ("positive", "real") else None

    def start(self) -> Array | None:
        """The data's starting value, unconstrained; None where they have none that the parameter may take."""
        if self.owner is None or self.role is None:
            return None
        value = self.role.start.clamp(self.role.lower, self.role.upper)
        return self.owner.domain.raw(value).reshape(-1).numpy() if self.owner.domain.contains(value) else None

    def bounds(self) -> tuple[float, float]:
        """Bounds by the data; without them, the range of a logarithm in float64, infinite for others."""
        if self.owner is not None and self.owner.domain.kind == "real" and self.role is not None:
            return self.role.lower, self.role.upper
        if self.owner is None or not self.positive:
            return -math.inf, math.inf
        if self.role is None:
            return LOGARITHMS
        floor, lower, upper = self.owner.domain.lower, self.role.lower, self.role.upper
        # The domain may begin above the data's idea of a lower bound: then a hair above its beginning.
        low = math.log(lower - floor if lower > floor else 1e-12 * upper)
        return low, math.log(max(upper - floor, 2e-12 * upper))


class ParameterVector:
    """A flat vector of a prior's trainable tensors, in the order of `named_parameters`.

    Fields: slots; size.
    """

    def __init__(self, prior: nn.Module, roles: Mapping[Parameter, RoleStart]) -> None:
        owners = {id(p.raw): p for _, p in named_parameter_objects(prior)}
        self.slots: list[Slot] = []
        self.size = 0
        for name, tensor in prior.named_parameters():
            if tensor.requires_grad:
                owner, end = owners.get(id(tensor)), self.size + tensor.numel()
                role = roles.get(owner) if owner is not None else None
                self.slots.append(Slot(name, tensor, owner, role, slice(self.size, end)))
                self.size = end

    @property
    def tensors(self) -> list[nn.Parameter]:
        return [slot.tensor for slot in self.slots]

    @property
    def own_count(self) -> int:
        """Number of entries of Parameters, and not of a user's own modules."""
        return sum(slot.tensor.numel() for slot in self.slots if slot.owner is not None)

    def values(self) -> Array:
        """The current values, (p,)."""
        return numpy.concatenate(
            [numpy.zeros(0), *(t.detach().reshape(-1).double().cpu().numpy() for t in self.tensors)]
        )

    def assign(self, theta: Array) -> None:
        """Set the parameters."""
        flat = torch.from_numpy(theta)
        with torch.no_grad():
            for slot in self.slots:
                slot.tensor.copy_(flat[slot.entries].view(slot.tensor.shape))

    def flat(self, parts: Sequence[Tensor | None]) -> Array:
        """One part per tensor, zero for None, as a vector."""
        vector = numpy.zeros(self.size)
        for part, slot in zip(parts, self.slots, strict=False):
            if part is not None:
                vector[slot.entries] = part.reshape(-1).cpu().numpy()
        return vector

    def starts(self, count: int, *, from_data: bool, spread: float, seed: int) -> list[Array]:
        """Starting vectors: data-driven, the current values where they differ, then random ones around the first.

        Values of a kernel for standardised columns are those that the data suggest, up to rounding.
        """
        given = self.values()
        data = given.copy()
        for slot in self.slots:
            if slot.owner is not None:  # by its value, which is what a user gave
                raw = slot.owner.domain.raw(slot.owner.value.detach()).reshape(-1).cpu().numpy()
                given[slot.entries] = data[slot.entries] = raw
            start = slot.start()
            if start is not None:
                data[slot.entries] = start
        generator, unit = numpy.random.default_rng(seed), self.units()
        differ = bool((numpy.abs(given - data) > SAME_START * spread * unit).any())
        starts = ([data, given] if differ else [data])[:count] if from_data else [given]
        while len(starts) < count:
            theta = starts[0].copy()
            for slot in self.slots:
                if slot.positive:
                    theta[slot.entries] += spread * unit[slot.entries] * generator.standard_normal(slot.tensor.numel())
            starts.append(theta)
        return starts

    def with_lengthscales_reset(self, theta: Array, ratio: float) -> tuple[Array, int]:
        """A vector with every lengthscale that is longer than so many times its start put back to it; how many."""
        long = [slot for slot in self.slots if slot.role is not None and slot.role.input_scale]
        return _reset(theta, long, lambda values, start: values > start + math.log(ratio))

    def with_noise_reset(self, theta: Array, share: float) -> tuple[Array, int]:
        """The vector with every noise variance below such a share of its start put back to its start."""
        noise = [slot for slot in self.slots if slot.name.startswith("likelihood")]
        return _reset(theta, noise, lambda values, start: values < start + math.log(share))

    def of_likelihood(self) -> Array:
        """The numbers of the entries that are the likelihood's."""
        return _entries(slot for slot in self.slots if slot.name.startswith("likelihood"))

    def of_variances(self) -> Array:
        """The numbers of the entries that are logarithms of variances of the covariance function."""
        return _entries(slot for slot in self.slots if slot.role is not None and slot.role.output_scale)

    def bounds(self) -> tuple[Array, Array]:
        """Lower and upper bounds, (p,) each, infinite for none."""
        low, high = numpy.empty(self.size), numpy.empty(self.size)
        for slot in self.slots:
            low[slot.entries], high[slot.entries] = slot.bounds()
        return low, high

    def on_edges(self, theta: Array) -> list[tuple[str, float]]:
        """The entries whose value is at an end of its domain, such as interval(1.9, 2.1), by name, and that end."""
        names, found = self.names(), []
        for slot in self.slots:
            if slot.owner is None:
                continue
            values = slot.owner.domain.value(torch.from_numpy(theta[slot.entries])).tolist()
            for name, value in zip(names[slot.entries], values, strict=True):
                edge = slot.owner.domain.edge(value, EDGE_SHARE)
                if edge is not None:
                    found.append((name, edge))
        return found

    def units(self, start: Array | None = None) -> Array:
        """Step of the optimiser in each entry: 1 for logarithms, the scale of y (over that of x) for means, the share
        of a period in the range of x for its logarithm.

        Without it a mean of targets of size 1e12 would never move, and one of targets of size 1e-8 nothing else would;
        and a first step would leave the period that it begins with.

        Args: start: the vector that steps begin at, which has periods; None for the starts of the data.
        """
        unit = numpy.ones(self.size)
        for slot in self.slots:
            role, owner = slot.role, slot.owner
            if owner is None or role is None:
                continue
            if role.unit is not None:
                unit[slot.entries] = role.unit.reshape(-1).numpy()
            elif role.turn is not None:
                raw = torch.from_numpy(start[slot.entries]) if start is not None else owner.domain.raw(role.start)
                turns = owner.domain.value(raw).reshape(-1) / role.turn.reshape(-1)
                unit[slot.entries] = power_of_two(turns.clamp(max=1.0)).numpy()
        return unit

    def joint(self) -> tuple[Array, Array] | None:
        """Root of the covariance of priors whose entries have something in common, and its inverse, (p, p) each, by
        which a search is whitened (M-290); of other entries the identity. None where all are."""
        priors = [(slot.entries, slot.weak_prior) for slot in self.slots if slot.weak_prior is not None]
        if not any(prior.common for _, prior in priors):
            return None
        root, inverse = numpy.eye(self.size), numpy.eye(self.size)
        for entries, prior in priors:
            if isinstance(prior, WeakPrior) and prior.common:
                d = prior.mean.shape[-1]
                together = numpy.kron(numpy.eye(prior.mean.numel() // d), numpy.full((d, d), 1.0 / d))
                alone, whole = prior.sd, math.hypot(prior.sd, prior.common * math.sqrt(d))  # of differences, of a sum
                own = numpy.eye(len(together)) - together
                root[entries, entries] = alone * own + whole * together
                inverse[entries, entries] = own / alone + together / whole
        return root, inverse

    def reach(self, distance: float, *, noise: bool = True) -> Array:
        """Largest step of each entry, (p,): a distance for logarithms, infinite for others, and for noise if asked."""
        reach = numpy.full(self.size, numpy.inf)
        for slot in self.slots:
            if slot.positive and (noise or not slot.name.startswith("likelihood")):
                reach[slot.entries] = distance
        return reach

    def information_growth(self, ratio: float) -> Array:
        """Growth of the Fisher information of each entry with so many times the rows, (p,): as much, but for those of
        the mean, which 1^T K^-1 1 says no more of once the rows are closer than the covariance is long."""
        growth = numpy.full(self.size, ratio)
        for slot in self.slots:
            if slot.name.startswith("mean."):
                growth[slot.entries] = 1.0
        return growth

    def names(self) -> list[str]:
        """The name of every entry."""
        names = []
        for slot in self.slots:
            name, size = slot.name.removesuffix(".raw"), slot.tensor.numel()
            names += [name] if size == 1 else [f"{name}[{i}]" for i in range(size)]
        return names


def _entries(slots: Iterable[Slot]) -> Array:
    """The numbers of the entries of slots."""
    return numpy.concatenate(
        [numpy.zeros(0, int), *(numpy.arange(one.entries.start, one.entries.stop) for one in slots)]
    )


def _reset(theta: Array, slots: Iterable[Slot], lost: Callable[[Array, Array], Array]) -> tuple[Array, int]:
    """A vector whose positive entries of some slots are at their starts where they are lost; how many."""
    changed, count = theta.copy(), 0
    for slot in slots:
        start = slot.start() if slot.positive else None
        if start is not None:
            where = lost(theta[slot.entries], start)
            changed[slot.entries][where] = start[where]
            count += int(where.sum())
    return changed, count
