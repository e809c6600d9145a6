"""Sites of likelihoods that are not Gaussian: the steps that find them, by any engine, eq. (M-267).

Given sites, inference is regression with a noise variance for each row, which every engine does; given the marginals of
the training rows, a likelihood has its next sites. An engine never learns which likelihood it works for. Marginals come
from leaving rows out where an exact posterior is at hand (posterior_by_sites.py), from the gradient of an exact
objective, (M-270), and from the neighbours of each block by full scale, (M-272).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from flashgp.foundations.deadline import NO_DEADLINE, Deadline, TimeUp
from flashgp.foundations.errors import ConvergenceError, warn
from flashgp.foundations.events import Event, EventKind
from flashgp.inference.anderson import Anderson
from flashgp.inference.prior import Prior
from flashgp.inference.site_methods import METHODS, Marginals, method_of
from flashgp.likelihoods import Likelihood, Sites
from flashgp.likelihoods.base import LEAST
from flashgp.likelihoods.held_sites import HeldSites
from flashgp.planner.plan import FACTORED, Plan
from flashgp.processes.group import Group

A = TypeVar("A")
LEAST_NOISE = 1e-10  # of a site, of the prior variance of f: engines round smaller ones up
SMALLEST_SHARE = 1e-6  # of the variance of a site and of the prior that a marginal has: approximations may ask for less


@dataclass(frozen=True)
class SiteSettings:
    """Numbers that tune the search for sites.

    Args:
        search, posterior: nats by which a whole step may move the marginals at the end, in an evaluation of a fit and
            in conditioning, of so many rows or fewer; of more rows in proportion. One more step follows it, which is
            nearer by orders of magnitude.
        rows: of those tolerances.
        slack: nats a row by which a step may lower a value that is no bound: whole steps of all rows from the prior go
            far beyond where many of them say the same.
        max_steps: of a posterior; search_steps, of an evaluation of a fit; smallest_step, of halved ones, below which
            none raises the bound.
        turning: steps are halved where whole ones move by more than this share of the last but one, since they
            go to and fro, and doubled again where they end as much as such a share of a whole one would, unless
            those have gone to and fro twice.
        near: nats by which the last step moved q(f) from where on a step that is halved counts as one to and fro.
        first_shares: of the prior variance, within which first steps are tried where f is in units of y.
        unsettled: times the tolerance that the last of all steps may move q(f) by in a search; in a posterior any
            number of nats, which an event and a warning say.
        likelihoods: that an evaluation of a fit is priced at, and foreseen, where a step is not taken that is expected
            to move little; conditionings, that an exact posterior is,
            two a step, and linear_conditionings, that one without a factor is.
        exact_seconds: that a plan of exact inference may take where approximation="auto" is to choose.
        solved_seconds: that finding sites of an exact posterior without a factor may take, by the machine's rates, by a
            solve for the variance of every row; beyond it these are sampled.
        solving_seconds: the same for kernels that have no samples; beyond it they are refused.
        searched_seconds: that the search of an exact fit may take by a factor in each step; beyond it, and where none
            fits, the parameters are those of full scale.
        errors: standard errors of an estimated bound by which a step may lower it.
        start_variance: of f, at least, under which each row by itself suggests starting values: wide for logarithms and
            log odds, so that a search begins where much is explained.
        mixed, mix_below: steps before the last one that the next sites are taken from, where a bound judges them,
            (M-340), and nats a row that the last one moves f of each row by at most then.
        rounds: choices of points and neighbours for all rows in a fit by full scale, where regression may have three;
            with inducing points alone one fewer, as none is coarse.
        coarse_gradients, gradients: evaluations of all rows at most, by coarse sizes and by those asked for, after a
            search on a part of them; negligible_gain, nats a row, of a step of theirs that is the last.
        start_rows, stage_ratio, draws_per_parameter: of a fit, as those of its settings, where these ask for more work.
        sample_ratio: times as many rows as the sample of those that are read, from which on it is asked first.
        left_out_rows: at most, of which the variance of several classes is that under which left out ones are likely;
            searched_rows, at most, that their other parameters are searched on.
    """

    search: float = 1e-2
    posterior: float = 1e-4
    rows: int = 1000
    slack: float = 0.1
    max_steps: int = 200
    search_steps: int = 60
    smallest_step: float = 2.0**-30
    near: float = 10.0
    first_shares: tuple[float, ...] = (1.0, 1e-2, 1e-4)
    unsettled: float = 1000.0
    turning: float = 0.9
    likelihoods: float = 4.5
    foreseen: float = 2.5
    conditionings: int = 25
    linear_conditionings: int = 12
    exact_seconds: float = 60.0
    solved_seconds: float = 60.0
    solving_seconds: float = 600.0
    searched_seconds: float = 600.0
    errors: float = 6.0
    start_variance: float = 10.0
    rounds: int = 2
    coarse_gradients: int = 4
    gradients: int = 8
    negligible_gain: float = 5e-4
    start_rows: int = 250
    sample_ratio: float = 2.0
    left_out_rows: int = 500
    searched_rows: int = 600
    mixed: int = 4
    mix_below: float = 0.1
    stage_ratio: float = 4.0
    draws_per_parameter: int = 2

    def posterior_of(self, rows: int) -> float:
        """The tolerance of a posterior of so many rows, before `of_rows`: of more than `rows` with their square, to a
        hundred times as much, which is half a hundredth of a deviation of f."""
        return self.posterior * min(max(1.0, rows / self.rows) ** 2, 100.0)

    def conditionings_of(self, plan: Plan) -> int:
        """Conditionings that a posterior of a plan takes: where variances are solved for, one a step."""
        return self.conditionings if plan.route in FACTORED else self.linear_conditionings

    def likelihoods_of(self, likelihood: Likelihood, approximation: str) -> float:
        """Likelihoods of an evaluation. Args: approximation, the name of one, of which inducing points alone make sites
        by the bound; empty for none."""
        foreseen = not method_of(likelihood).climbs and approximation != "sparse"
        return self.foreseen if foreseen else self.likelihoods

    @property
    def most_steps(self) -> int:
        return self.max_steps if math.isinf(self.unsettled) else self.search_steps

    def of_posterior(self) -> "SiteSettings":
        """Settings of the last steps of all, which are worth having wherever they end."""
        return replace(self, unsettled=math.inf)

    def of_rows(self, tolerance: float, rows: int) -> float:
        """A tolerance of so many rows, nats."""
        return tolerance * max(1.0, rows / self.rows)


@dataclass(frozen=True)
class Found(Generic[A]):
    """Answers of an engine for sites.

    Fields: sites; at, q(f) under them; value, the bound of (M-267), nats, None where the engine does not know it;
    answer, of the engine.
    """

    sites: Sites
    at: Marginals
    value: float | None
    answer: A

    def held_next(self, likelihood: Likelihood, y: Tensor) -> HeldSites:
        """The sites of the next step. The bound is flat in q(f) at its optimum, so that these marginals serve it."""
        method = method_of(likelihood)
        sites = method.next_sites(likelihood, y, self.at, self.sites)
        return HeldSites(likelihood, sites, method.excess(likelihood, y, self.at, sites).detach())


def steps_event(
    likelihood: Likelihood, steps: int, moved: float, tolerance: float, deadline: Deadline, solves: int = 0
) -> Event:
    """Event of a report on steps, which the time limit ended, or their number, if the last one moved q(f) by more than
    the tolerance. Args: solves, that they took, where there was no factor."""
    if moved < tolerance:
        return Event(EventKind.SITES, likelihood=likelihood.name, steps=steps, moved=moved, solves=solves or None)
    event = Event(EventKind.SITES_CUT, likelihood=likelihood.name, steps=steps, moved=moved, **deadline.told)
    warn(str(event))
    return event


def doubts(likelihood: Likelihood, y: Tensor, at: Marginals) -> list[Event]:
    """See `SiteMethod.doubts`; warned of."""
    found = method_of(likelihood).doubts(likelihood, y, at)
    for event in found:
        warn(str(event))
    return found


def prior_variance(prior: Prior, x: Tensor, diagonal: Tensor | None = None) -> Tensor:
    """Variance of f at every row, (n,) or (n, outputs), float64. Args: diagonal, that of K where it is at hand."""
    own = prior.kernel(x).diagonal().detach().double() if diagonal is None else diagonal
    return own if prior.outputs is None else own.unsqueeze(-1).expand(-1, prior.outputs)


def prior_mean(prior: Prior, x: Tensor) -> Tensor:
    """Mean of f at every row, (n,) or (n, outputs)."""
    mean = prior.mean_at(x).detach().expand(len(x), prior.outputs or 1)
    return mean if prior.outputs is not None else mean[:, 0]


@torch.no_grad()
def from_prior(prior: Prior, x: Tensor, y: Tensor) -> Found[None]:
    """Sites that say next to nothing, under which q(f) is the prior."""
    variance, mean = prior_variance(prior, x), prior_mean(prior, x)
    at = Marginals(mean, variance)
    value = float(method_of(prior.likelihood).aim_alone(prior.likelihood, y, at, at).sum())
    return Found(Sites(mean, variance / LEAST), at, value, None)


@torch.no_grad()
def first_sites(prior: Prior, x: Tensor, y: Tensor, settings: SiteSettings) -> Sites:
    """Sites to begin with: those of each row by itself, (M-275), where whole steps from the prior may go far beyond;
    where f is in units of y, of the first such step, since an outlier by itself is as right as any row, from the share
    of the prior variance that is best of each row by itself: a log noise has expectations that explode in all of it."""
    likelihood, before = prior.likelihood, from_prior(prior, x, y).at
    if likelihood.latent_is_y:
        method, best, found = method_of(likelihood), -math.inf, None
        for share in settings.first_shares:
            near = Marginals(before.mean, share * before.variance)
            sites = method.next_sites(likelihood, y, near, None)
            precision = 1.0 / before.variance + 1.0 / sites.variance
            at = Marginals(
                (before.mean / before.variance + sites.targets / sites.variance) / precision, 1.0 / precision
            )
            value = float(method.aim_alone(likelihood, y, at, before).sum())
            if value > best and bool((sites.variance >= LEAST_NOISE * before.variance).all()):  # else they overflow
                best, found = value, sites
        if found is not None:
            return found
    return local_sites(likelihood, y, before, replace(settings, posterior=settings.search))[0]


def better_start(found: Found[A], cold: Found[Any]) -> Found[Any]:
    """Of two places where steps may begin that of the higher bound."""
    assert cold.value is not None
    return cold if found.value is None or not found.value >= cold.value else found  # NaN too


def marginals_by_gradient(sites: Sites, slopes: Sequence[Tensor | None], own: Tensor) -> Marginals:
    """q(f) from the gradient of log N(targets; m, K + S), or of a bound on it, by targets and variances, (M-270).

    Args: slopes, by residual, (n, 1), and by noise, (n,), before others; own, the prior variance of each row.
    """
    by_residual, by_variance = slopes[:2]
    assert by_residual is not None
    assert by_variance is not None
    s, by_target = sites.variance, by_residual.reshape(sites.variance.shape)
    variance = s + s.square() * (2.0 * by_variance - by_target.square())
    return Marginals(sites.targets + s * by_target, within(variance, s, own))


def within(variance: Tensor, of_site: Tensor, own: Tensor) -> Tensor:
    """Variances of q(f) between nothing and that of the prior, as an approximation may not give them."""
    return variance.clamp(SMALLEST_SHARE * torch.minimum(of_site, own), own)


def of_first(at: Marginals, group: Group) -> Marginals:
    """Rank 0's q(f), from which all ranks take the same steps."""
    if group.size == 1:
        return at
    return Marginals(group.from_first(at.mean), group.from_first(at.variance))


class Valued(Protocol):
    """An end of a step. Fields: value, of the bound, nats, None where it is not known."""

    @property
    def value(self) -> float | None: ...


ROUNDING = 64.0 * torch.finfo(torch.float64).eps  # of a bound by its size, and of a divergence, nats
V = TypeVar("V", bound=Valued)


def settle(
    likelihood: Likelihood, start: V, step: Callable[[V, float], V], divergence: Callable[[V, V], float],
    tolerance: float, settings: SiteSettings, slack: float = 0.0, ahead: Callable[[V], float] | None = None,
) -> tuple[V, int, float]:  # fmt: skip
    """Steps (M-267) from a start until a whole one moves q(f) by less than a tolerance, in nats: what was found, how
    many, and how far that would move it; also where there is no time for the next one.

    Args: step, of a size, from what is kept; divergence, of q after it from that before; slack, nats by which a step
        may lower the bound beside the tolerance: of one that marginals do not belong to; ahead, nats by which a whole
        step from there will move q(f), where that is known without it.
    Raises: ConvergenceError where no step raises the bound, or steps do not settle; TimeUp without time for one.
    """
    size = longest = most = likelihood.step
    refused = math.inf  # the size of the last one that was, until a step of half of it
    moved, kept, turned = [math.inf, math.inf], start, set[float]()

    def lowest(best: float) -> float:
        return best - tolerance - slack - (ROUNDING * abs(best) if math.isfinite(best) else 0.0)

    def shorten() -> None:
        """Halve the longest step, for good where that has gone to and fro before."""
        nonlocal longest, most
        most = 0.5 * longest if longest in turned else most
        turned.add(longest)
        longest *= 0.5

    for steps in range(1, settings.most_steps + 1):
        if ahead is not None and (expected := ahead(kept)) < tolerance:
            return kept, steps - 1, expected
        try:
            found, best = step(kept, size), kept.value
        except TimeUp:
            if kept is start:
                raise
            return kept, steps - 1, moved[-1]
        if found.value is not None and best is not None and not found.value >= lowest(best):  # NaN too
            if size == longest and moved[-1] < settings.near:  # else whole ones are tried again and again
                shorten()
            refused = size
            size *= 0.5
            if size < settings.smallest_step:
                break
            continue
        moved.append(max(divergence(found, kept), ROUNDING) / size**2)
        kept = found
        if moved[-1] < tolerance:
            return found, steps, moved[-1]
        if moved[-1] > settings.turning * moved[-3] and size == longest:
            shorten()
        elif moved[-1] < (1.0 - 0.5 * size) ** 2 * moved[-2]:  # as far as a share goes where a whole step ends all
            longest = min(most, 2.0 * longest)
        size, refused = (size if refused <= 2.0 * size else min(longest, 2.0 * size)), math.inf
    if moved[-1] < settings.unsettled * tolerance:
        return kept, steps, moved[-1]
    raise ConvergenceError(
        f"`likelihood` {likelihood.name}: its sites did not settle in {steps} steps, the last of which moved q(f) by "
        f"{moved[-1]:.2g} nats; scale the targets, or give the kernel a smaller variance",
        iterations=steps, residual=moved[-1], tolerance=tolerance,
    )  # fmt: skip


def cavity(at: Marginals, sites: Sites, own: Tensor) -> Marginals:
    """q(f) of each row without its own site, no wider than the prior. Args: own, the prior variance of each row."""
    precision = (1.0 / at.variance - 1.0 / sites.variance).maximum(1.0 / own)
    return Marginals((at.mean / at.variance - sites.targets / sites.variance) / precision, 1.0 / precision)


@torch.no_grad()
def local_sites(
    likelihood: Likelihood, y: Tensor, before: Marginals, settings: SiteSettings = SiteSettings()
) -> tuple[Sites, Marginals]:
    """Sites of new rows, each by itself, and q(f) with them, (M-275). Args: before, predictions of f."""
    method = method_of(likelihood)
    if not method.climbs and likelihood.weight_of(y) is None:  # a whole step is exact
        sites = method.next_sites(likelihood, y, before, None)
        variance = 1.0 / (1.0 / before.variance + 1.0 / sites.variance)
        return sites, Marginals(variance * (before.mean / before.variance + sites.targets / sites.variance), variance)
    if not method.climbs:
        method = METHODS["variational"]
    linear, precision = torch.zeros_like(before.mean), torch.zeros_like(before.mean)
    size = torch.full((len(y), *[1] * (y.dim() - 1)), likelihood.step, dtype=linear.dtype, device=linear.device)
    at, sites = before, method.next_sites(likelihood, y, before, None)
    while bool((wild := ~(sites.targets.isfinite() & (sites.variance > 0.0))).any()) and bool(
        (at.variance > 1.0).any()
    ):
        at = Marginals(at.mean, torch.where(wild, 0.25 * at.variance, at.variance))  # expectations that overflow
        sites = method.next_sites(likelihood, y, at, None)

    best = method.aim_alone(likelihood, y, at, before)
    for _ in range(settings.max_steps):
        other = (
            torch.lerp(linear, sites.targets / sites.variance, size),
            torch.lerp(precision, 1.0 / sites.variance, size),
        )
        variance = 1.0 / (1.0 / before.variance + other[1])
        found = Marginals(variance * (before.mean / before.variance + other[0]), variance)
        new = method.aim_alone(likelihood, y, found, before)
        better = new >= best - torch.finfo(new.dtype).eps * best.abs()  # not NaN
        moved = torch.where(better, new - best, 0.0).abs().amax() if len(y) else 0.0
        best, good = torch.where(better, new, best), better.reshape(size.shape)
        linear, precision = torch.where(good, other[0], linear), torch.where(good, other[1], precision)
        at = Marginals(torch.where(good, found.mean, at.mean), torch.where(good, found.variance, at.variance))
        size = torch.where(good, (2.0 * size).clamp(max=likelihood.step), 0.5 * size)
        sites = method.next_sites(likelihood, y, at, None)
        if float(moved) < settings.posterior and bool(good.all()):
            break
    return sites, at


def each_alone(prior: Prior, x: Tensor, y: Tensor, settings: SiteSettings) -> Marginals:
    """q(f) of every row by itself under a wide prior: what starting values are taken from."""
    before = from_prior(prior, x, y).at
    wide = Marginals(before.mean, before.variance.clamp_min(settings.start_variance))
    return local_sites(prior.likelihood, y, wide, settings)[1]


def settle_rows(
    likelihood: Likelihood, y: Tensor, start: Found[Any], evaluate: Callable[[Sites], Found[A]],
    tolerance: float | None, settings: SiteSettings, slack: float = 0.0, deadline: Deadline = NO_DEADLINE,
) -> tuple[Found[A], int, float]:  # fmt: skip
    """`settle` of sites that are kept for every row.

    Args: evaluate, what an engine answers for sites; tolerance, None for that of a search, in which, without a bound, a
        step is not taken that is expected to move q(f) by less, as it would move each row alone; deadline, which a step
        is not expected to pass that takes as long as the last one; the first one does not ask it.
    Raises: ConvergenceError as `settle`; TimeUp in a search, where a value is that of sites that have settled.
    """
    began: float | None = None
    late, keeps = False, tolerance is not None
    method, coming = method_of(likelihood), list[tuple[Found[A], Sites]]()
    foreseen = tolerance is None and not method.climbs
    settings = settings if tolerance is None else settings.of_posterior()
    rows = len(y) if tolerance is None else y.numel()  # of a posterior, every site counts
    tolerance = settings.of_rows(settings.search if tolerance is None else tolerance, rows)
    mixing = Anderson(likelihood.step, settings.mixed) if method.bound and start.value is not None else None

    def next_of(kept: Found[A]) -> Sites:
        if not coming or coming[0][0] is not kept:
            coming[:] = [(kept, method.next_sites(likelihood, y, kept.at, kept.sites))]
            if mixing is not None:
                mixing.add(kept.sites, coming[0][1])
        return coming[0][1]

    def expected(kept: Found[A]) -> float:
        return kept.at.divergence_of(kept.sites, next_of(kept))

    def step(kept: Found[A], size: float) -> Found[A]:
        plain = _between(kept.sites, next_of(kept), size)
        if (
            mixing is None
            or size < likelihood.step
            or kept.value is None
            or expected(kept) > settings.mix_below * len(y)
        ):
            return timed(plain)
        mixed = mixing.mixed(kept.at)
        found = None if mixed is None else timed(mixed)
        if found is not None and found.value is not None and found.value >= kept.value - tolerance:
            return found
        mixing.forget()
        return timed(plain)

    def timed(sites: Sites) -> Found[A]:
        nonlocal began, late
        before, began = began, deadline.clock()
        if before is not None and deadline.passed(began - before):
            late = True
            raise TimeUp
        return evaluate(sites)

    def divergence(one: Found[A], other: Found[A]) -> float:
        moved = one.at.divergence(other.at)
        return moved if mixing is None else max(moved, expected(one))  # a mixed step may be short by chance

    if method.climbs:  # which ends going to and fro
        settings = replace(settings, turning=math.inf)
    slack = slack if method.climbs else max(slack, settings.slack * len(y))
    ahead = expected if foreseen else None
    try:
        found = settle(likelihood, start, step, divergence, tolerance, settings, slack, ahead)
    except TimeUp:
        if not keeps:
            raise
        return start, 0, math.inf
    if late and not keeps:
        raise TimeUp
    return found


def _between(one: Sites, other: Sites, share: float) -> Sites:
    """Sites whose natural parameters are so far from one to the other."""
    if share == 1.0:
        return other
    precision = torch.lerp(1.0 / one.variance, 1.0 / other.variance, share)
    linear = torch.lerp(one.targets / one.variance, other.targets / other.variance, share)
    return Sites(linear / precision, 1.0 / precision)


@dataclass
class IteratedSites:
    """Sites of a problem's rows, which an evaluation leaves to the next one.

    Fields: held; settings; deadline, of the evaluations of a search; steps that each evaluation took, of all numbers of
    rows; at, q(f) of the last one, and moved, nats by which a whole step would move it.
    """

    held: HeldSites
    settings: SiteSettings
    deadline: Deadline = NO_DEADLINE
    steps: list[int] = field(default_factory=list)
    at: Marginals | None = None
    moved: float = math.inf

    @classmethod
    def of(
        cls, prior: Prior, x: Tensor, y: Tensor, settings: SiteSettings, deadline: Deadline = NO_DEADLINE
    ) -> "IteratedSites | None":
        """Sites of the first step from the prior; None for a likelihood whose sites need no iteration."""
        likelihood = prior.likelihood
        if likelihood.has_sites:
            return None
        return cls(HeldSites(likelihood, first_sites(prior, x, y, settings)), settings, deadline)

    def rows(self, index: Tensor) -> "IteratedSites":
        """Sites of some of the rows."""
        return IteratedSites(self.held.rows(index), self.settings, self.deadline, self.steps)

    @torch.no_grad()
    def settle(
        self, prior: Prior, x: Tensor, y: Tensor, evaluate: Callable[[], tuple[float | None, Marginals]],
        tolerance: float | None, slack: float, deadline: Deadline,
    ) -> Found[None]:  # fmt: skip
        """Steps (M-267), (M-291) from the sites held, or from the prior where these say less.

        Those of the next step are held then, nearer to where a bound is greatest by orders of magnitude; of a search
        without one those that q(f) is of, which no step followed to measure how far it went.

        Args: evaluate, log N(targets; m, K + S) at the sites held, nats, None where it is not known, and q(f) under
            them; tolerance, None for that of a search; slack, as of `settle`, nats a row; deadline, of steps that are
            not of a search.
        Raises: as `settle_rows`.
        """
        held, likelihood, rows = self.held, prior.likelihood, len(y)
        method = method_of(likelihood)
        last_one = tolerance is None and not method.climbs  # is held

        mean = prior_mean(prior, x)
        floor = LEAST_NOISE * prior_variance(prior, x)

        def found(sites: Sites) -> Found[None]:
            sites = replace(sites, variance=torch.maximum(sites.variance, floor))
            held.hold(sites)
            density, at = evaluate()
            return Found(sites, at, method.aim(likelihood, y, at, sites, mean, density), None)

        start = found(self._sites)
        if start.value is not None and (method.climbs or math.isnan(start.value)):
            start = better_start(start, from_prior(prior, x, y))
        deadline = self.deadline if tolerance is None else deadline
        try:
            last, steps, self.moved = settle_rows(
                likelihood, y, start, found, tolerance, self.settings, slack * rows, deadline
            )
        except (ConvergenceError, TimeUp):
            held.hold(start.sites)  # for the next evaluation
            raise
        held.hold(last.sites if last_one else method.next_sites(likelihood, y, last.at, last.sites))
        self.at = last.at
        self.steps.append(steps + 1 + (not last_one))
        return last

    def beyond(self, prior: Prior, y: Tensor) -> Tensor:
        """The sum of `excess` at the sites held, differentiable in the likelihood's parameters, q(f) and sites held,
        (M-271)."""
        return method_of(prior.likelihood).excess(prior.likelihood, y, self._at, self._sites).sum()

    @torch.no_grad()
    def by_mode(self, prior: Prior, y: Tensor) -> Tensor | None:
        """See `SiteMethod.by_mode`, at the sites held."""
        return method_of(prior.likelihood).by_mode(prior.likelihood, y, self._at, self._sites)

    def of_mode(self, prior: Prior, y: Tensor, t: Tensor, w: Tensor) -> Tensor:
        """See `SiteMethod.of_mode`. Args: t, of (M-351), and w, (K + S)^-1 t."""
        return method_of(prior.likelihood).of_mode(prior.likelihood, y, self._at, t - self.held.variance * w)

    @property
    def _sites(self) -> Sites:
        return Sites(self.held.targets, self.held.variance)

    @property
    def _at(self) -> Marginals:
        assert self.at is not None
        return self.at
