"""Choice of inference and its sizes: plans of a prior, exact and approximate, ways out of a refusal, and "auto"."""

import functools
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from flashgp.foundations.contexts import entered
from flashgp.foundations.errors import DomainError, MemoryBudgetError
from flashgp.foundations.events import ApproximationReason, Event, EventKind, NoSeries
from flashgp.foundations.quantities import readable_bytes
from flashgp.inference.approximation import DEFAULT, LADDER, Approximation
from flashgp.inference.plan_settings import RowCounts, conditioning_problem
from flashgp.inference.prior import Prior
from flashgp.inference.site_methods import method_of
from flashgp.inference.sites import SiteSettings
from flashgp.planner.approximate import (
    ApproximatePrice,
    ApproximateWork,
    by_sample,
    with_more_neighbours,
    with_sample,
)
from flashgp.planner.conditioning import plan_conditioning
from flashgp.planner.fourier_price import FourierPrice, GridSizes, Refusal
from flashgp.planner.full_scale_price import FullScalePrice
from flashgp.planner.plan import FACTORED, Offer, Plan, Sizes, offers_text
from flashgp.planner.problem import ConditioningProblem, PlanSettings
from flashgp.planner.sparse_price import SparsePrice
from flashgp.sources.shuffled import buffer_rows


@dataclass(frozen=True)
class SeriesSettings:
    """Fields: min_gain, times quicker than an exact plan that is on time Fourier series have to be planned to be, and
    min_seconds, of that plan, from which they are looked at."""

    min_gain: float = 3.0
    min_seconds: float = 5.0


DEFAULTS, SERIES = SiteSettings(), SeriesSettings()
SOLVED = "without a factor a step takes solves for the variances of the rows too, which are not in these seconds"
# What is taken, None for exact inference, with its sizes; its plan; and why, with all costs.
Decision = tuple[Approximation | None, Plan, Event]
# Sizes of the grid that rows are expected to take, by approximation, or the reason that there is none; filled by GP.
GRIDS: dict[str, Callable[..., GridSizes | Refusal]] = {}
# Plans of solves by all pairs with the price of other products, where these are expected; filled by GP.
PRODUCTS: dict[str, Callable[..., Plan]] = {}
TOLD = (NoSeries.LIBRARY, NoSeries.FREQUENCIES)  # reasons that something can be done about
WORDS = {"fourier": "Fourier series", "full_scale": "Full scale", "sparse": "An approximation by inducing points"}


def priced_with_sites(prior: Prior, plan: Plan) -> Plan:
    """A plan with the price of finding sites, where iteration does."""
    settings = SiteSettings()
    if prior.likelihood.has_sites or plan.conditionings > 1:
        return plan
    times = settings.conditionings_of(plan)
    plan = plan.repeated(times, settings.likelihoods_of(prior.likelihood, plan.approximation))
    if plan.approximation or plan.route in FACTORED or prior.kernel.has_features:
        return plan
    return replace(plan, notes=(*plan.notes, SOLVED))


def _too_large(plan: Plan, other: Plan, *, training: bool) -> MemoryBudgetError:
    """A plan does not fit what is available. Args: other, the largest that would, where that does."""
    needed, advice = plan.bytes_of(training=training), "pass a larger memory=, or fewer rows"
    if other.fits(training=training):
        sizes = f"inducing={other.inducing}"
        sizes += f", neighbours={other.neighbours}" if other.approximation == "full_scale" else ""
        bytes_there = readable_bytes(other.bytes_of(training=training))
        advice = f"{sizes} needs {bytes_there} and fits; or pass a larger memory="
    return MemoryBudgetError(
        f"`memory` allows {readable_bytes(plan.available_bytes)}, but {plan.sizes_text} of {plan.distinct:,} rows need "
        f"{readable_bytes(needed)}; {advice}",
        needed_bytes=needed,
        available_bytes=plan.available_bytes,
        cheapest_plan=other if other.fits(training=training) else None,
    )


def refuse_batch(*, batch: bool) -> None:
    """DomainError for several tables or models, which have no approximation."""
    if batch:
        raise DomainError(
            "`approximation` is of one table and one model, got a batch; fit its members one by one, or leave it out"
        )


def offers_of(plans: Sequence[Plan], *, training: bool = True) -> tuple[Offer, ...]:
    """Offers of the plans with their costs, of a whole fit or of conditioning."""
    return tuple(
        Offer(
            plan.approximation, plan.inducing, plan.neighbours, plan.bytes_of(training=training),
            plan.seconds_of(training=training),
        )
        for plan in plans
    )  # fmt: skip


def _costs(exact: Plan | None, plans: Sequence[Plan], *, training: bool = True) -> dict[str, Any]:
    """Seconds and bytes of exact inference and of approximations, as fields of an event; None where nothing fits."""
    found: dict[str, Any] = {"exact_seconds": None, "exact_bytes": None}
    for one in plans if exact is None else (exact, *plans):
        name = one.approximation or "exact"
        found[f"{name}_seconds"] = one.seconds_of(training=training)
        found[f"{name}_bytes"] = one.bytes_of(training=training)
    return found


def offer_event(exact: Plan, plans: Sequence[Plan], limit: float | None) -> Event:
    """Event of an exact fit that takes longer than its limit, with the time of approximations."""
    both = len(plans) > 1
    return Event(EventKind.APPROXIMATION_OFFERED, limit=limit, both=both or None, **_costs(exact, plans))


def with_offers(error: MemoryBudgetError, plans: Sequence[Plan], *, training: bool) -> MemoryBudgetError:
    """The refusal of exact inference with the approximations that would fit."""
    offers = offers_of(plans, training=training)
    if not offers:
        return error
    return MemoryBudgetError(
        f"{error}; or {offers_text(offers)}", needed_bytes=error.needed_bytes, available_bytes=error.available_bytes,
        cheapest_plan=error.cheapest_plan, offers=offers,
    )  # fmt: skip


def cut_short(prior: Prior, settings: PlanSettings) -> bool:
    """True if a time limit may end a search by full scale, whose posterior has the parameters found until then."""
    return settings.ranks == 1 and not settings.whole and prior.likelihood.has_sites


def full_scale_is_late(plan: Plan, event: Event, time_limit: float | None) -> bool:
    """True if full scale was chosen though a fit of all rows passes the time limit, where inducing points are left."""
    late = time_limit is not None and plan.fit_seconds > time_limit
    return late and plan.approximation == "full_scale" and event.fields.get("sparse_seconds") is not None


def instead(event: Event, kind: str) -> Event:
    """The event of a choice, of this approximation in place of the one that the plan chose."""
    return Event(event.kind, **{**event.fields, "chosen": kind, "approximation": WORDS[kind]})


# -- what is chosen --------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Choice:
    """What inference is chosen for.

    Fields: prior; rows, of which the batch may be empty; settings, what plans keep to, of ranks each; time_limit,
        seconds of a whole fit, or without `training` of conditioning; training, whether a fit has to fit and be on
        time, and not conditioning alone.
    """

    prior: Prior
    rows: RowCounts
    settings: PlanSettings
    time_limit: float | None = None
    training: bool = True

    @property
    def problem(self) -> ConditioningProblem:
        return conditioning_problem(self.prior, self.rows, self.settings)

    def seconds(self, plan: Plan) -> float:
        return plan.seconds_of(training=self.training)

    def on_time(self, plan: Plan) -> bool:
        return self.time_limit is None or self.seconds(plan) <= self.time_limit

    # -- exact -------------------------------------------------------------------------------------------------------
    @entered(lambda self: self.settings.deterministic)
    def exact(self) -> Plan:
        """Plan of exact inference; a refusal offers approximations. Raises: as `plan`."""
        settings, training = self.settings, self.training
        try:
            plan = plan_conditioning(self.problem, settings)
            return PRODUCTS["fourier"](self.prior, self.rows, plan, settings, training=training)
        except MemoryBudgetError as error:
            if settings.factored or settings.route is not None:
                raise
            raise with_offers(error, replace(self, time_limit=None).offered(), training=training) from None

    def searched(self, plan: Plan, sites: SiteSettings = DEFAULTS) -> Plan:
        """A plan of exact inference with the price of finding sites: of a fit whose parameters are those of full scale
        where a factor for each step would not fit, or takes long, and variances of all rows can be sampled, (M-451)."""
        prior, settings, plan = self.prior, self.settings, priced_with_sites(self.prior, plan)
        few = prior.likelihood.spread_by_leaving_out  # rows are searched
        searched = few or plan.fit_seconds - plan.seconds <= sites.searched_seconds
        quick = plan.route in FACTORED and plan.fits(training=True) and searched
        free = settings.route is None and settings.dtype is None and not settings.factored
        if prior.likelihood.has_sites or quick or not (free and prior.kernel.has_features):
            return plan
        fit = replace(self, time_limit=None, training=True)
        for search in fit.approximations((Approximation("full_scale"),))[0]:  # one, where it fits
            other = priced_with_sites(prior, search)
            more = plan.seconds - other.seconds
            plan = replace(
                plan, training="full_scale", training_bytes=max(plan.peak_bytes, other.training_bytes),
                fit_step_seconds=other.fit_step_seconds, fit_seconds=other.fit_seconds + more,
                fit_seconds_low=other.fit_seconds_low + more, fit_seconds_high=other.fit_seconds_high + more,
            )  # fmt: skip
        return plan

    # -- approximate -------------------------------------------------------------------------------------------------
    @entered(lambda self, *_, **__: self.settings.deterministic)
    def approximate(self, asked: Approximation, *, read: bool = False, taken: bool = False) -> Plan:
        """The plan of an approximation, its "auto" sizes chosen by what fits, eq. (M-187).

        With a time limit "auto" takes the largest sizes of the ladder that keep to it and fit, by passes or by a
        sample, (M-244); without it the default ones, or the largest smaller ones that fit, and a fit may take twice the
        neighbours if that fits too, (M-209). Where none does, the smallest. Full scale takes larger sizes up to the
        default ones where the posterior takes a small share of the limit: the search, by coarse sizes, then ends with
        the time.

        Args:
            asked: of any kind but "auto".
            read: whether rows are read, not held.
            taken: whether the sizes are there already, so that nothing is refused.
        Raises: MemoryBudgetError, before anything is allocated, where sizes that were asked for do not fit, or the
            smallest do not; DomainError for more points or neighbours than rows, and where there is no grid for Fourier
            series; ShapeError for points of other columns.
        Cost: a plan for each step of the ladder, some 50 us each.
        """
        problem, device, work = self.problem, self.settings.devices[0], ApproximateWork()
        training, time_limit = self.training, self.time_limit
        asked.points_of(problem.d)  # which may be refused
        series = self._series_sizes() if asked.kind == "fourier" else None
        # What is free now is asked for once: all steps compare with the same number.
        settings = replace(self.settings, memory=max(1, self.settings.available()[str(device)]))
        # A minibatch has one noise variance, and one process.
        likelihood = self.prior.likelihood
        alike = self.rows.alike and (likelihood.rows_alike or not likelihood.has_sites)
        stepping = training and settings.ranks == 1 and alike

        def with_sizes(one: Approximation, sizes: Sizes) -> Plan:
            common = problem, settings.rates, device, sizes.within(problem.u), work
            sparse = one.kind == "sparse"
            price: ApproximatePrice
            if series is not None:
                price = FourierPrice(*common, series)
            else:
                price = SparsePrice(*common, read) if sparse else FullScalePrice(*common, one.leaves_points)
            plan = price.plan(one.kind, settings)
            if time_limit is None or not stepping or not by_sample(plan, time_limit):
                return plan
            size = min(problem.n, max(work.min_block, work.block_numbers // max(1, plan.inducing)))
            mixed = min(problem.n, buffer_rows(size, problem.d + problem.outputs))
            return with_sample(plan, mixed, time_limit)

        def largest(one: Approximation) -> Plan:
            top = DEFAULT if time_limit is None else len(LADDER) - 1
            plans = [(step, with_sizes(one, one.sizes_at(step, problem.n))) for step in range(top, -1, -1)]
            fitting = [(step, plan) for step, plan in plans if plan.fits(training=training)]
            quick = [
                plan for step, plan in fitting if self.on_time(plan) or (step <= DEFAULT and posterior_on_time(plan))
            ]
            return (quick or [plan for _, plan in fitting[-1:] or plans[-1:]])[0]

        def posterior_on_time(plan: Plan) -> bool:
            cut = training and cut_short(self.prior, settings) and plan.approximation == "full_scale"
            return time_limit is not None and cut and work.slack * plan.seconds <= work.cut_share * time_limit

        chosen = largest(asked) if asked.automatic else with_sizes(asked, asked.sizes_at(DEFAULT, problem.n))
        if not taken and not chosen.fits(training=training):
            raise _too_large(chosen, largest(Approximation(asked.kind)), training=training)
        if training and time_limit is None and asked.leaves_neighbours and not taken and chosen.fits(training=True):
            more = with_sizes(asked, chosen.sizes.doubled())
            if more.neighbours > chosen.neighbours and more.fits(training=True):
                return with_more_neighbours(chosen, more)
        return chosen

    def _series_sizes(self) -> GridSizes:
        """Raises: DomainError."""
        found = GRIDS["fourier"](self.prior, self.rows, training=self.training, named=True)
        if isinstance(found, Refusal):
            raise DomainError(f"`approximation` {found.text}")
        return found

    def offered(self) -> tuple[Plan, ...]:
        """The approximations that a model can have and that fit, full scale first. Cost: a millisecond."""
        return tuple(self.approximations((Approximation("full_scale"), Approximation("sparse")))[0])

    def approximations(self, kinds: Sequence[Approximation]) -> tuple[list[Plan], list[MemoryBudgetError]]:
        """Plans of the approximations that a model can have, and refusals of those that do not fit."""
        plans: list[Plan] = []
        refusals: list[MemoryBudgetError] = []
        batch = self.rows.batch * self.prior.kernel.batch_shape.numel() > 1
        kinds = () if batch or not self.rows.n or method_of(self.prior.likelihood).exact else kinds
        for one in kinds:
            try:
                plans.append(self.approximate(one))
            except MemoryBudgetError as error:
                refusals.append(error)
        return plans, refusals

    # -- approximation="auto" ----------------------------------------------------------------------------------------
    def decided(self, asked: Approximation) -> Decision:
        """Fourier series where these are much quicker than an exact plan that is on time, or quicker than what is taken
        where it is late; else exact inference where its plan keeps to the limits, and where sites are found by
        iteration takes little time; else full scale, else inducing points alone.

        Unless the settings are of a `whole` fit, full scale comes first also where its plan is late: the fit tries it
        on the rows that it has time for beside inducing points.

        Args: asked, of kind "auto", with sizes where they were asked for.
        Returns: what is taken, None for exact inference, with its sizes; its plan; and the reason with all costs. Where
            nothing keeps to the time limit, the quickest of what fits the memory.
        Raises: MemoryBudgetError where nothing fits the memory; ShapeError, DomainError for points of other columns.
        """
        rows, training = self.rows, self.training
        exact: Plan | None = None
        refusals: list[MemoryBudgetError] = []
        try:
            exact = self.exact()
        except MemoryBudgetError as error:
            refusals.append(error)
        asked.points_of(rows.d)  # which may be refused, also where they are not taken
        if exact is not None and not exact.fits(training=training):
            needed, available = exact.bytes_of(training=training), exact.available_bytes
            refusals.append(MemoryBudgetError(
                f"`memory` allows {readable_bytes(available)}, but an exact fit of {rows.n:,} rows needs "
                f"{readable_bytes(needed)}, and no approximation fits; pass a larger memory=",
                needed_bytes=needed, available_bytes=available,
            ))  # fmt: skip
            exact = None
        late = exact is None or not self.on_time(exact)
        found = not self.prior.likelihood.has_sites  # by iteration
        long = exact is not None and found and self.seconds(exact) > SiteSettings().exact_seconds
        series, factored = self._series(asked)
        if isinstance(series, Plan) and exact is not None and not (late or long):
            took = self.seconds(exact)
            if factored and SERIES.min_gain * self.seconds(series) <= took >= SERIES.min_seconds:
                why = self._event("fourier", ApproximationReason.QUICKER, exact, (series,))
                return Approximation("fourier"), series, why
        without = NoSeries.SLOWER if isinstance(series, Plan) else series
        event = functools.partial(self._event, without=without)
        if exact is not None and not (late or long):
            return None, replace(exact, no_series=without), event(None, ApproximationReason.FITS, exact, ())
        plans, others = self.approximations(asked.candidates)
        reason = ApproximationReason.MEMORY if exact is None else ApproximationReason.TIME
        reason = reason if late else ApproximationReason.SITES
        quick = [plan for plan in plans if self.on_time(plan)]
        chosen = min(plans, key=self.seconds, default=None) if not quick else quick[0]
        if chosen is not None and exact is not None and not quick and self.seconds(exact) <= self.seconds(chosen):
            chosen = None
        elif chosen is not None and training and cut_short(self.prior, self.settings):
            chosen = plans[0]
        other = chosen or exact
        if isinstance(series, Plan) and (other is None or self.seconds(series) <= self.seconds(other)):
            return Approximation("fourier"), series, event("fourier", reason, exact, (series, *plans), without=None)
        if chosen is not None:
            taken = next(one for one in asked.candidates if one.kind == chosen.approximation).resolved(chosen.sizes)
            return taken, replace(chosen, no_series=without), event(taken.kind, reason, exact, plans)
        if exact is None:
            raise [*refusals, *others][0]
        return None, replace(exact, no_series=without), event(None, ApproximationReason.NO_OTHER, exact, plans)

    def decided_of_read(self, asked: Approximation) -> tuple[Approximation, Plan, Event | None, Plan]:
        """For rows that are read Fourier series where these have a factor, keep to the time limit and are much quicker
        than passes over all rows by inducing points; else these.

        Args: asked, as `decided`. Returns: what is taken; its plan; the event where it is series; and the plan of
            points.
        Raises: MemoryBudgetError where the points do not fit.
        """
        points, limit = Approximation("sparse", asked.inducing), self.time_limit
        other = self.approximate(points, read=True)
        whole = other if limit is None else replace(self, time_limit=None).approximate(points, read=True)
        series, factored = self._series(asked)
        if not isinstance(series, Plan):
            return points, replace(other, no_series=series), None, other
        took = self.seconds(series)
        quicker = self.seconds(whole) >= max(SERIES.min_seconds, SERIES.min_gain * took)
        if not (quicker and factored and took <= max(limit or math.inf, self.seconds(other))):
            return points, replace(other, no_series=NoSeries.SLOWER), None, other
        exact = None
        with suppress(MemoryBudgetError):
            exact = self.exact()
        event = self._event("fourier", ApproximationReason.READ, exact, (series, whole))
        return Approximation("fourier"), series, event, other

    def _series(self, asked: Approximation) -> tuple[Plan | NoSeries, bool]:
        """The plan of Fourier series, and whether its weights have a factor; or the reason that there are none."""
        rows = self.rows
        found = GRIDS["fourier"](self.prior, rows, training=self.training, named=False)
        if isinstance(found, Refusal):
            return found.reason, False
        if not rows.complete or rows.batch != 1 or not rows.n:
            return NoSeries.MODEL, False
        if not asked.without_sizes:
            return NoSeries.SIZES, False
        if self.settings.devices[0].type != "cpu":
            return NoSeries.DEVICE, False
        if not asked.series:
            return NoSeries.FREQUENCIES, False
        try:
            plan = replace(self, time_limit=None).approximate(Approximation("fourier"))
        except MemoryBudgetError:
            return NoSeries.FREQUENCIES, False
        return plan, found.coordinates > 0

    def beside_series(self) -> tuple[Approximation | None, Plan | None]:
        """What a fit takes where Fourier series turn out to be slow: what "auto" takes beside them, or full scale where
        that is exact inference and slower; and its plan, None where nothing fits."""
        scale = Approximation("full_scale")
        try:
            taken, plan, _ = self.decided(Approximation("auto", series=False))
        except MemoryBudgetError:
            return None, None
        plans = self.approximations((scale,))[0] if taken is None else []
        if plans and plans[0].fit_seconds < plan.fit_seconds:
            return scale.resolved(plans[0].sizes), plans[0]
        return taken, plan

    def _event(
        self, approximation: str | None, reason: ApproximationReason, exact: Plan | None, plans: Sequence[Plan], *,
        without: NoSeries | None = None,
    ) -> Event:  # fmt: skip
        told = without if without in TOLD else None
        return Event(
            EventKind.APPROXIMATION_CHOSEN, chosen=approximation or "exact",
            approximation=WORDS.get(approximation or ""), reason=reason, no_series=told,
            **_costs(exact, plans, training=self.training),
        )  # fmt: skip
