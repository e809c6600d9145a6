"""Objectives of `fit`: value and gradient at a flat vector of parameters, in float64.

`LogJoint`, minus the exact log joint (M-38), is the objective of most fits; another one is a subclass of `Objective`,
passed as `FitSettings(objective=...)`. Priors that are LogNormal, Gamma or Normal, and the weak priors of `fit`, are
evaluated in closed form on the flat vector; others go through autograd.
"""

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy
import torch
from torch import Tensor
from torch.distributions import Gamma, LogNormal, Normal

from flashgp.foundations.deadline import NO_DEADLINE, Deadline
from flashgp.foundations.errors import DomainError
from flashgp.foundations.events import Event
from flashgp.foundations.form import Rows
from flashgp.foundations.normal import LOG_2PI
from flashgp.foundations.parameters import Domain, Parameter, ParameterEntry
from flashgp.foundations.transforms import vector_jacobian
from flashgp.inference.exact.kept import MOST_ROWS, KeptCovariance
from flashgp.inference.exact.likelihood import DirectSettings, parts_of, value_and_gradients
from flashgp.inference.exact.small import SmallModel
from flashgp.inference.missing_cells import observed, of_observed, rows_of_output
from flashgp.inference.parameter_rows import prior_texts
from flashgp.inference.prior import Prior
from flashgp.inference.site_methods import Marginals
from flashgp.inference.sites import (
    Found,
    IteratedSites,
    doubts,
    marginals_by_gradient,
    prior_variance,
    steps_event,
)
from flashgp.inference.threads import one_thread
from flashgp.inference.training.history import Solving
from flashgp.inference.training.initial import LargePrior, RoleStart, SparsePrior, WeakPrior
from flashgp.inference.training.parameter_vector import ParameterVector

Array = numpy.ndarray


@dataclass(frozen=True)
class Problem:
    """A prior with trainable parameters, and data.

    Args:
        prior: a private copy; its parameters are moved by every evaluation.
        x, y: checked data on their device.
        direct: how exact computations run.
        roles: starts, bounds and weak priors that the data suggest, by parameter.
        weak: whether the weak priors are part of the objective.
        sites: of a likelihood whose sites are found by iteration, as the last evaluation left them; None for others.
    """

    prior: Prior
    x: Tensor
    y: Tensor
    direct: DirectSettings
    roles: Mapping[Parameter, RoleStart] = field(default_factory=dict)
    weak: bool = False
    sites: IteratedSites | None = None

    @property
    def with_sites(self) -> Prior:
        """The prior with a likelihood that has sites: its own, or that of the sites held now."""
        return self.prior if self.sites is None else self.prior.with_likelihood(self.sites.held)

    @property
    def rows(self) -> int:
        return self.x.shape[-2]

    def subset(self, count: int, seed: int) -> "Problem":
        """The problem of a random subset of the rows, of the same parameters.

        A smaller subset of the same seed is part of a larger one.
        """
        order = torch.randperm(self.rows, generator=torch.Generator().manual_seed(seed))
        index = order[: min(count, self.rows)].sort().values.to(self.x.device)
        prior = self.prior.with_likelihood(self.prior.likelihood.rows(index))
        x, y = self.x[..., index, :], self.y[..., index] if prior.outputs is None else self.y[..., index, :]
        direct = dataclasses.replace(self.direct, repair=lambda: prior.repairable(x, y))
        sites = None if self.sites is None else self.sites.rows(index)
        return dataclasses.replace(self, prior=prior, x=x, y=y, direct=direct, sites=sites)


@dataclass(frozen=True)
class Estimate:
    """The uncertainty of an estimated objective.

    Fields: loss, nats by which its optimum lies below that of the true objective on average, (M-102);
    negligible_gain, nats of improvement that no prediction shows.
    """

    loss: float
    negligible_gain: float


@dataclass(frozen=True)
class Evaluation:
    """An objective at one vector.

    Fields: value, to be minimised, nats, None where only the gradient is known; gradient, (p,), nats per unit of each
    entry; estimate, what is uncertain about them, None for exact ones.
    """

    value: float | None
    gradient: Array
    estimate: Estimate | None = None


class Objective(ABC):
    """A function of the flat vector of a problem's parameters, to be minimised.

    Fields: problem; parameters, the vector; rows, of the problem; solving and probes, by which gradients are estimated:
    none and infinitely many for exact ones.
    """

    solving: Solving = Solving.ITERATIONS
    probes: float = math.inf

    def __init__(self, problem: Problem) -> None:
        self.problem, self.rows = problem, problem.rows
        self.parameters = ParameterVector(problem.prior, problem.roles)

    @property
    def has_user_modules(self) -> bool:
        """True if the model has modules of the user's, whose initial values are their own."""
        return self.problem.prior.has_user_modules

    @property
    def estimate(self) -> Estimate | None:
        """Uncertainty of the next evaluation; None if it is exact."""
        return None

    @property
    def cost_power(self) -> int:
        """The power of the rows by which the cost of an evaluation grows."""
        return 3

    @property
    def cost_rows(self) -> int:
        """The rows that an evaluation goes through, where they stand for others."""
        return self.rows

    @abstractmethod
    def __call__(self, theta: Array) -> Evaluation:
        """The evaluation at a vector, (p,). Raises: NotPositiveDefiniteError where there is none."""

    def refresh(self, anchor: Array) -> None:  # noqa: B027 - exact objectives have none
        """New random numbers from the next evaluation on, those that depend on parameters drawn at `anchor`."""

    def solve_by(self, factors: Solving = Solving.FLOAT32_FACTOR) -> None:  # noqa: B027
        """Gradients by that, or what serves later, from now on, where they are estimated."""


def log_values(lower: Array | float, theta: Array) -> tuple[Array, Array]:
    """log(lower + e^theta) and its slope, also where a search tries a theta whose exponential overflows."""
    with numpy.errstate(divide="ignore"):
        found = numpy.logaddexp(numpy.log(lower), theta)
    return found, numpy.exp(theta - found)


class ParameterPriors:
    """Log densities of the priors on a vector's entries in closed form, eqs. (M-45) to (M-47), and (M-290).

    Args: weak: whether parameters without a prior get the weak one of their role.
    Fields: general, parameters whose priors have no closed form here.
    """

    def __init__(self, parameters: ParameterVector, *, weak: bool) -> None:
        self.general: list[Parameter] = []
        # Rows of entry, lower end of the domain, mean and sd of a normal on the logarithm of the value, 1 where that is
        # a density of the value itself; of entry, lower end, concentration, rate, the same; of entry, mean, sd.
        log_normal: list[tuple[float, ...]] = []
        gamma: list[tuple[float, ...]] = []
        normal: list[tuple[float, ...]] = []
        # Entries (groups, d), lower end, means of priors whose entries have something in common.
        self._sparse: list[tuple[Array, float, SparsePrior]] = []  # entries (groups, d), lower end
        self._common: list[tuple[Array, float, Array, WeakPrior]] = []
        for slot in parameters.slots:
            owner, usual = slot.owner, slot.weak_prior if weak else None
            if owner is None or (owner.prior is None and usual is None):
                continue
            prior, domain, shape = owner.prior, owner.domain, owner.raw.shape
            size = slot.tensor.numel()
            entries, lower = range(slot.entries.start, slot.entries.stop), [domain.lower] * size

            def column(value: Any, shape: torch.Size = shape) -> list[float]:
                return torch.as_tensor(value, dtype=torch.float64).expand(shape).reshape(-1).tolist()

            if isinstance(usual, SparsePrior):
                self._sparse.append((numpy.array(entries).reshape(-1, shape[-1]), domain.lower, usual))
            elif isinstance(usual, LargePrior):  # a density of the logarithm, (M-423): one power of the value more
                rates = (usual.rate / usual.unit).reshape(-1).tolist()
                gamma += zip(entries, lower, [usual.shape + 1.0] * size, rates, strict=True)
            elif usual is not None:
                means, sds = usual.mean.reshape(-1).tolist(), [usual.sd] * size
                if domain.kind == "positive":
                    # A weak prior is a normal on log(value): its mode is where a user would look for it.
                    log_normal += zip(entries, lower, means, sds, [0.0] * size, strict=True)
                else:
                    normal += zip(entries, means, sds, strict=True)
                if usual.common:
                    at = numpy.array(entries).reshape(-1, shape[-1])
                    self._common.append((at, domain.lower, numpy.array(means).reshape(at.shape), usual))
            elif isinstance(prior, LogNormal) and domain.kind == "positive":
                log_normal += zip(entries, lower, column(prior.loc), column(prior.scale), [1.0] * size, strict=True)
            elif type(prior) is Gamma and domain.kind == "positive":
                gamma += zip(entries, lower, column(prior.concentration), column(prior.rate), strict=True)
            elif type(prior) is Normal and domain.kind == "real":
                normal += zip(entries, column(prior.loc), column(prior.scale), strict=True)
            else:
                _check_support(slot.name.removesuffix(".raw"), owner)
                self.general.append(owner)
        self._log_normal, self._gamma, self._normal = (
            [numpy.array(c) for c in zip(*rows, strict=True)] for rows in (log_normal, gamma, normal)
        )

    def value_and_gradient(self, theta: Array) -> tuple[float, Array]:
        """Sum of log densities and its gradient, for one vector (p,)."""
        gradient = numpy.zeros_like(theta)
        total = 0.0
        if self._log_normal:
            at, lower, mean, sd, density = self._log_normal
            log_value, slope = log_values(lower, theta[at])
            z = (log_value - mean) / sd
            total -= float((0.5 * z * z + numpy.log(sd) + 0.5 * LOG_2PI + density * log_value).sum())
            numpy.add.at(gradient, at, -(z / sd + density) * slope)
        if self._gamma:
            at, lower, shape, rate = self._gamma
            log_value, slope = log_values(lower, theta[at])
            with numpy.errstate(over="ignore"):  # whose density is 0
                value = rate * numpy.exp(log_value)
            constant = shape * numpy.log(rate) - numpy.array([math.lgamma(s) for s in shape])
            total += float(((shape - 1) * log_value - value + constant).sum())
            numpy.add.at(gradient, at, (shape - 1 - value) * slope)
        if self._normal:
            at, mean, sd = self._normal
            z = (theta[at] - mean) / sd
            total -= float((0.5 * z * z + numpy.log(sd) + 0.5 * LOG_2PI).sum())
            numpy.add.at(gradient, at, -z / sd)
        for at, low, means, prior in self._common:  # beside the above, (M-290)
            log_value, slope = log_values(low, theta[at])
            sums = ((log_value - means) / prior.sd).sum(-1, keepdims=True)
            spread = math.log1p(at.shape[-1] * (prior.common / prior.sd) ** 2)
            total += 0.5 * float((prior.shared * sums * sums - spread).sum())
            gradient[at] += prior.shared / prior.sd * sums * slope
        for at, low, sparse in self._sparse:
            log_value, slope = log_values(low, theta[at])
            value, slopes = sparse.log_density(log_value)
            total += value
            gradient[at] += slopes * slope
        return total, gradient

    def curvature(self, theta: Array, step: float = 1e-3) -> Array:
        """Minus their second derivatives, (p, p), those below zero left out."""
        moved = step * numpy.eye(len(theta))
        slopes = [self.value_and_gradient(theta - one)[1] - self.value_and_gradient(theta + one)[1] for one in moved]
        found = numpy.array(slopes) / (2.0 * step)
        numpy.fill_diagonal(found, found.diagonal().clip(0.0))
        return found


def priors_in_force(parameters: ParameterVector, *, weak: bool) -> dict[str, list[str]]:
    """The prior of each entry of every Parameter that a fit changes, by its path, in words, weak ones too."""
    found: dict[str, list[str]] = {}
    for slot in parameters.slots:
        if slot.owner is None:
            continue
        path = slot.name.removesuffix(".raw")
        found[path] = prior_texts(slot.owner)
        prior = slot.weak_prior if weak else None
        if isinstance(prior, SparsePrior):
            name = path.rpartition(".")[2]
            found[path] = [
                f"({math.exp(unit):.3g} / {name})^2 ~ HalfCauchy(t), t ~ HalfCauchy({prior.scale:g})"
                for unit in prior.log_unit.reshape(-1).tolist()
            ]
        elif isinstance(prior, LargePrior):
            name = path.rpartition(".")[2]
            each = prior.unit.reshape(-1).tolist()
            found[path] = [f"{name} / {unit:.3g} ~ Gamma({prior.shape:g}, {prior.rate:g})" for unit in each]
        elif prior is not None:
            what = "log " * slot.positive + path.rpartition(".")[2]
            found[path] = [
                f"{what} ~ Normal({round(mean, 9) + 0.0:.3g}, {prior}), weak"
                for mean in prior.mean.reshape(-1).tolist()
            ]
    return found


class LogJoint(Objective):
    """Minus the log joint of a prior and data, eq. (M-38), with its closed-form gradient.

    Where sites are found by iteration the bound (M-267) takes the place of the likelihood. It is greatest in the sites
    at every vector, so that its gradient is that with the sites held, (M-271).

    Cost: n^3 flops and one n x n buffer per evaluation; with iterated sites 3 to 6 times as much.
    """

    keeps_covariance: ClassVar[bool] = True  # over the steps of an evaluation

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        prior, direct = problem.with_sites, problem.direct
        self.priors = ParameterPriors(self.parameters, weak=problem.weak)
        self._small: list[SmallModel] | None = None  # of every covariance matrix
        if direct.dtype == torch.float64 and not direct.jitter:
            self._small = _small_models(prior, problem.x, problem.y)
        self._kept: KeptCovariance | None = None  # while an evaluation finds sites
        self._has_beyond = prior.log_scale(problem.y) is not None

    @property
    def bound_slack(self) -> float:
        """Nats a row by which its marginals may not belong to its likelihood."""
        return 0.0

    def log_prior(self, theta: Array) -> float:
        """The log density of all priors at a vector that the parameters have, nats."""
        general = sum(float(owner.log_prior().sum().detach()) for owner in self.priors.general)
        return self.priors.value_and_gradient(theta)[0] + general

    def at(self, theta: Array) -> None:
        """Set the parameters, and sites that are found by iteration. Raises: ConvergenceError."""
        self.parameters.assign(theta)
        self.settled()

    def settled(self, tolerance: float | None = None, deadline: Deadline = NO_DEADLINE) -> Found[None] | None:
        """Sites that iteration finds at the parameters that the prior has now; None where sites need none.

        Args: tolerance, nats by which the last step may move q(f); None for that of a search; deadline, of steps.
        """
        problem, sites = self.problem, self.problem.sites
        if sites is None:
            return None
        self._kept = self._covariance()
        return sites.settle(problem.prior, problem.x, problem.y, self.marginals, tolerance, self.bound_slack, deadline)

    def _covariance(self) -> KeptCovariance | None:
        """The matrix that all steps at the parameters need, where it may be kept."""
        if not self.keeps_covariance or self.rows > MOST_ROWS:
            return None
        with torch.no_grad():
            _, _, rows, theta = self.likelihood_inputs()
        return KeptCovariance(self.problem.direct, self.problem.prior.kernel.form, theta, rows)

    def with_sites(self, deadline: Deadline) -> tuple[Prior, list[Event]]:
        """The prior with the sites of a posterior, and events of a report. Raises: ConvergenceError."""
        problem, sites = self.problem, self.problem.sites
        assert sites is not None
        likelihood, wanted = problem.prior.likelihood, sites.settings.posterior_of(problem.y.numel())
        found = self.settled(wanted, deadline)
        assert found is not None
        tolerance = sites.settings.of_rows(wanted, problem.y.numel())
        event = steps_event(likelihood, sites.steps[-1], sites.moved, tolerance, deadline)
        told = [event, *doubts(likelihood, problem.y, found.at)]
        return problem.prior.with_likelihood(found.held_next(likelihood, problem.y)), told

    @torch.no_grad()
    def marginals(self) -> tuple[float | None, Marginals]:
        """The likelihood at the sites held now, None where it is not known, and q(f) under them, (M-270)."""
        residual, noise, rows, theta = self.likelihood_inputs()
        tensors = [residual, noise, *rows.tensors, *theta]
        value, slopes = self.likelihood(rows, tensors, [True, True, *[False] * (len(tensors) - 2)])
        assert value is not None
        problem, kept = self.problem, self._kept
        own = prior_variance(problem.prior, problem.x, None if kept is None else kept.diagonal)
        return value, marginals_by_gradient(problem.with_sites.sites(problem.y), slopes, own)

    def __call__(self, theta: Array) -> Evaluation:
        with one_thread(self.rows):
            self.at(theta)
            small = self._by_small_models()
            value, gradient = self._by_autograd() if small is None else self._from_small(*small)
        self._kept = None
        prior, prior_gradient = self.priors.value_and_gradient(theta)
        return Evaluation(None if value is None else -(value + prior), -(gradient + prior_gradient))

    def _by_small_models(self) -> "tuple[float, dict[Parameter, Array]] | None":
        """The sum over all covariance matrices; None where one of them asks for the general path."""
        total, slopes = 0.0, dict[Parameter, Array]()
        for model in self._small or ():
            found = model(self.problem.direct.workspace)
            if found is None:
                return None
            total += found[0]
            for parameter, slope in found[1].items():
                slopes[parameter] = slopes[parameter] + slope if parameter in slopes else slope
        return (total, slopes) if self._small else None

    def _by_autograd(self) -> tuple[float | None, Array]:
        """The log joint but for priors in closed form: autograd sees only the chain from parameters to the inputs of
        the likelihood (features, mean, noise)."""
        with torch.enable_grad():
            residual, noise, rows, theta = self.likelihood_inputs()
            inputs = (residual, noise, *rows.tensors, *theta)
            value, slopes = self.likelihood(rows, [t.detach() for t in inputs], [t.requires_grad for t in inputs])
            problem, sites = self.problem, self.problem.sites
            beyond = [] if sites is None else [sites.beyond(problem.prior, problem.y)]
            if sites is not None and (t := sites.by_mode(problem.prior, problem.y)) is not None:
                slopes, w = self._through_mode(rows, inputs, slopes, t)
                beyond.append(sites.of_mode(problem.prior, problem.y, t, w))
            total, gradient = self.pull(inputs, slopes, beyond)
        return None if value is None else total + value, gradient

    def _through_mode(
        self, rows: Rows, inputs: Sequence[Tensor], slopes: Sequence[Tensor | None], t: Tensor
    ) -> tuple[list[Tensor | None], Tensor]:
        """Slopes with those of -t' (K + S)^-1 (targets - m), and w = (K + S)^-1 t, (M-351): half the difference of the
        likelihood's at targets to which t is added and from which it is taken."""
        self._kept = None  # it is done with K
        residual, *others = (tensor.detach() for tensor in inputs)
        wanted = [True, *(tensor.requires_grad for tensor in inputs[1:])]
        (_, above), (_, below) = (
            self.likelihood(rows, [residual + one, *others], wanted) for one in (t.unsqueeze(-1), -t.unsqueeze(-1))
        )
        more = [None if a is None or b is None else 0.5 * (a - b) for a, b in zip(above, below, strict=True)]
        assert more[0] is not None
        both = [s if m is None else m if s is None else s + m for s, m in zip(slopes, more, strict=True)]
        return both, -more[0].reshape(t.shape)

    def likelihood_inputs(self) -> tuple[Tensor, Tensor, Rows, list[Tensor]]:
        """(residual, noise, rows, theta): what the likelihood is a function of, each differentiable."""
        return self.problem.with_sites.likelihood_inputs(self.problem.x, self.problem.y)

    def likelihood(
        self, rows: Rows, tensors: Sequence[Tensor], wanted: Sequence[bool]
    ) -> tuple[float | None, list[Tensor | None]]:
        """The log marginal likelihood and its gradient by residual, noise, tensors of the rows and theta.

        Outputs with noise of their own come one after the other: the likelihood is the sum over them.
        """
        if self._kept is not None:
            return self._kept.value_and_gradients(tensors[0], tensors[1], wanted)
        prior = self.problem.prior
        if not prior.separate:
            return self.one_likelihood(rows, tensors, wanted, 0)
        residual, noise, *shared = tensors
        values: list[float | None] = []
        by_residual, by_noise = torch.zeros_like(residual), torch.zeros_like(noise)
        by_shared: list[Tensor | None] = [None] * len(shared)
        cells = observed(self.problem.y, prior.outputs)
        for j in range(prior.factors):
            of_output = [residual[..., j : j + 1], noise[..., j], *shared]
            if cells is None:
                value, slopes = self.one_likelihood(rows, of_output, wanted, j)
            elif bool(cells[:, j].any()):
                value, slopes = self._of_observed(rows, of_output, wanted, rows_of_output(cells, j), j)
            else:  # a subset in which it was not observed
                continue
            values.append(value)
            if slopes[0] is not None:
                by_residual[..., j : j + 1] = slopes[0].sum_to_size(of_output[0].shape)
            if slopes[1] is not None:
                by_noise[..., j] = slopes[1].sum_to_size(of_output[1].shape)
            pairs = zip(by_shared, slopes[2:], strict=True)
            by_shared = [more if known is None else known if more is None else known + more for known, more in pairs]
        known = [value for value in values if value is not None]
        return sum(known) if len(known) == len(values) else None, [by_residual, by_noise, *by_shared]

    def _of_observed(
        self, rows: Rows, tensors: Sequence[Tensor], wanted: Sequence[bool], index: Tensor, output: int
    ) -> tuple[float | None, list[Tensor | None]]:
        """`one_likelihood` of an output that was observed in some rows, eq. (M-252): its gradient by all rows."""
        with torch.enable_grad():
            leaves = [t.detach().requires_grad_(t.is_floating_point()) for t in tensors]
            residual, noise, every, theta = parts_of(rows, leaves)
            own = every.take(index)
            noise = noise if noise.shape[-1] == 1 else noise[..., index]
            some = [residual[..., index, :], noise, *own.tensors, *theta]
        value, slopes = self.one_likelihood(own, [t.detach() for t in some], wanted, output)
        known = [(t, s.sum_to_size(t.shape)) for t, s in zip(some, slopes, strict=True) if s is not None]
        moved = [k for k, leaf in enumerate(leaves) if leaf.requires_grad]
        found: list[Tensor | None] = [None] * len(leaves)
        if known:
            by_leaf = vector_jacobian(known, [leaves[k] for k in moved])
            for k, slope in zip(moved, by_leaf, strict=True):
                found[k] = slope
        return value, found

    def one_likelihood(
        self, rows: Rows, tensors: Sequence[Tensor], wanted: Sequence[bool], index: int
    ) -> tuple[float | None, list[Tensor | None]]:
        """Likelihood and gradients of one covariance matrix, the only one or that of an output: residual (*batch, n,
        p), noise (*batch, n or 1)."""
        value, slopes = value_and_gradients(self.problem.direct, self.problem.prior.kernel.form, rows, tensors, wanted)
        return float(value.sum()), slopes

    def pull(
        self,
        inputs: Sequence[Tensor],
        slopes: Sequence[Tensor | None],
        more: Sequence[Tensor] = (),
        *,
        retain_graph: bool = False,
    ) -> tuple[float, Array]:
        """The gradient by the flat vector from slopes by the likelihood's inputs, with that of the terms that only
        autograd knows, and of more; and the value of those."""
        pairs = [
            (tensor, slope if slope.shape == tensor.shape else slope.sum_to_size(tensor.shape))
            for tensor, slope in zip(inputs, slopes, strict=True)
            if tensor.requires_grad and slope is not None
        ]
        terms = self._extra_terms(more)
        pairs += [(term, torch.ones_like(term)) for term in terms]
        parts: Sequence[Tensor | None] = ()
        if pairs:
            parts = vector_jacobian(pairs, self.parameters.tensors, retain_graph=retain_graph)
        return sum(term.item() for term in terms), self.parameters.flat(parts)

    def _extra_terms(self, more: Sequence[Tensor]) -> list[Tensor]:
        """Terms of the log joint that autograd takes care of: uncommon priors, what replicated rows say about noise."""
        terms = [*(owner.log_prior().sum() for owner in self.priors.general), *more]
        scale = self.log_scale()
        if scale is not None:
            terms.append(scale.sum())
        return [term for term in terms if term.requires_grad] + [
            t.detach().requires_grad_() for t in terms if not t.requires_grad
        ]

    def log_scale(self) -> Tensor | None:
        """Log factor that the likelihood adds to the density of its sites."""
        return self.problem.with_sites.log_scale(self.problem.y)

    def _from_small(self, value: float, slopes: dict[Parameter, Array]) -> tuple[float, Array]:
        """The small model's gradient by parameter as a flat one, with the extra terms."""
        gradient = numpy.zeros(self.parameters.size)
        entries = {slot.owner: slot.entries for slot in self.parameters.slots if slot.owner is not None}
        for parameter, slope in slopes.items():
            if isinstance(parameter, ParameterEntry):  # of one table: its whole is (outputs,)
                if parameter.whole in entries:
                    gradient[entries[parameter.whole].start + parameter.index] += float(slope)
            elif parameter in entries:
                gradient[entries[parameter]] += numpy.ravel(slope)
        if self.priors.general or self._has_beyond:
            with torch.enable_grad():
                extra, by_extra = self.pull((), ())
            value, gradient = value + extra, gradient + by_extra
        return value, gradient


class LinearLogJoint(LogJoint):
    """A log joint whose evaluation is linear in the rows, without a covariance matrix of all of them."""

    keeps_covariance: ClassVar[bool] = False

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._small = None

    cost_power = 1


def _small_models(prior: Prior, x: Tensor, y: Tensor) -> list[SmallModel] | None:
    """The small model of every covariance matrix; None where one has none."""
    if not prior.separate:
        one = SmallModel.of(prior, x, y)
        return None if one is None else [one]
    tables = (of_observed(prior, x, y, j, live=True) for j in range(prior.factors))
    found = [SmallModel.of(*table) for table in tables if len(table[1])]
    models = [one for one in found if one is not None]
    return models if len(models) == len(found) else None


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
