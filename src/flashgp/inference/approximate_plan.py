"""Plans of approximations for a prior: which sizes fit the time and memory given, and what would fit instead."""

import contextlib
import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from flashgp.foundations.determinism import deterministic_where
from flashgp.foundations.errors import DomainError, MemoryBudgetError
from flashgp.foundations.events import Event, EventKind
from flashgp.inference.approximation import DEFAULT, LADDER, Approximation
from flashgp.inference.plan_settings import PlanSettings, RowCounts, conditioning_problem, resources_of
from flashgp.inference.prior import Prior
from flashgp.likelihoods import Gaussian
from flashgp.planner.approximate import ApproximatePlan, plan_approximate, refuse_too_large
from flashgp.planner.approximate_prices import ApproximateWork, Sizes
from flashgp.planner.plan import Offer, Plan, offers_text
from flashgp.planner.prices import Priced
from flashgp.planner.training import exact_seconds
from flashgp.sources.shuffled import buffer_rows


@deterministic_where(lambda prior, rows, asked, settings, time_limit=None, **_: settings.deterministic)
def approximate_plan(
    prior: Prior,
    rows: RowCounts,
    asked: Approximation,
    settings: PlanSettings,
    time_limit: float | None = None,
    *,
    training: bool = True,
    read: bool = False,
    taken: bool = False,
) -> ApproximatePlan:
    """The plan of an approximation, its "auto" sizes chosen by what fits, eq. (M-187).

    Args:
        asked: of kind "full_scale" or "sparse".
        settings: of its ranks bytes and seconds are those of each.
        time_limit: seconds of a whole fit, or without `training` of conditioning. With it "auto" takes the largest
            sizes of the ladder that keep to it and fit, by passes or by a sample, (M-244); without it the
            default ones, or the largest smaller ones that fit, and a fit may take twice the neighbours if that fits
            too, (M-209). Where none does, the smallest.
        training: whether a fit has to fit, and not conditioning alone; read: whether rows are read, not held; taken:
            whether the sizes are there already, so that nothing is refused.
    Raises: MemoryBudgetError, before anything is allocated, where sizes that were asked for do not fit, or the smallest
        do not; DomainError for more points or neighbours than rows; ShapeError for points of other columns.
    Cost: a plan for each step of the ladder, some 50 us each.
    """
    problem, resources = conditioning_problem(prior, rows, settings), resources_of(settings)
    asked.points_of(problem.d)  # which may be refused
    # What is free now is asked for once: all steps compare with the same number.
    resources = replace(resources, memory=max(1, resources.available()[str(resources.devices[0])]))

    # A minibatch has one noise variance, and one process.
    stepping = training and settings.ranks == 1 and rows.alike and prior.likelihood.rows_alike
    work = ApproximateWork()

    def with_sizes(one: Approximation, sizes: Sizes) -> ApproximatePlan:
        plan = plan_approximate(
            one.kind, problem, sizes.within(problem.u), resources, read=read, points_open=one.leaves_points
        )
        if time_limit is None or not stepping or not plan.by_sample(time_limit):
            return plan
        size = min(problem.n, max(work.min_block, work.block_numbers // max(1, plan.inducing)))
        mixed = min(problem.n, buffer_rows(size, problem.d + problem.outputs))
        return plan.with_sample(mixed, time_limit)

    def plan_of(one: Approximation, step: int) -> ApproximatePlan:
        return with_sizes(one, one.sizes_at(step, problem.n))

    def fits(plan: ApproximatePlan) -> bool:
        return (plan.training_bytes if training else plan.peak_bytes) <= plan.available_bytes

    def on_time(plan: ApproximatePlan) -> bool:
        return time_limit is None or (plan.fit_seconds if training else plan.seconds) <= time_limit

    def largest(one: Approximation) -> tuple[ApproximatePlan, bool]:
        top = DEFAULT if time_limit is None else len(LADDER) - 1
        plans = [plan_of(one, step) for step in range(top, -1, -1)]
        fitting = [plan for plan in plans if fits(plan)]
        quick = [plan for plan in fitting if on_time(plan)]
        return (quick or fitting[-1:] or plans[-1:])[0], bool(fitting)

    chosen, there = largest(asked) if asked.automatic else (plan_of(asked, DEFAULT), False)
    if not there and not taken and not fits(chosen):
        free = Approximation(asked.kind)
        other, found = largest(free)
        refuse_too_large(chosen, other if found else None, training=training)
    if training and time_limit is None and asked.leaves_neighbours and not taken and fits(chosen):
        more = with_sizes(asked, chosen.sizes.doubled())
        if more.neighbours > chosen.neighbours and fits(more):
            return chosen.with_more_neighbours(more)
    return chosen


def exact_price(prior: Prior, rows: RowCounts, settings: PlanSettings) -> Callable[[int], float]:
    """Seconds of an exact value with its gradient of so many of the rows."""
    priced = Priced(conditioning_problem(prior, rows, settings), resources_of(settings).rates)
    return functools.partial(exact_seconds, priced, resources_of(settings).devices[0])


def obstacle(prior: Prior, kind: str, *, batch: bool) -> str:
    """Why a model has no approximation of a kind, and what to do; nothing where it has one.

    Args: batch, whether it is of several tables or models.
    """
    if batch:
        return "is of one table and one model, got a batch; fit its members one by one, or leave it out"
    if prior.separate and prior.factors > 1:
        return (
            f"needs outputs that share their noise, got {prior.factors} with noise of their own; pass "
            "Gaussian(shared=True), or fit a model for each output"
        )
    likelihood = prior.likelihood
    known = isinstance(likelihood, Gaussian) and likelihood.row_weight is None and likelihood.counts is None
    if kind == "sparse" and not likelihood.rows_alike and not known:
        return (
            "by inducing points alone needs a likelihood that treats all rows alike but for known variances, got "
            'row_weight; leave it out, or pass approximation="full_scale" with neighbours'
        )
    return ""


def refuse_unfit(prior: Prior, kind: str, *, batch: bool) -> None:
    """DomainError for models that the approximation is not made for."""
    if why := obstacle(prior, kind, batch=batch):
        raise DomainError(f"`approximation` {why}")


def offered(
    prior: Prior, rows: RowCounts, settings: PlanSettings, time_limit: float | None = None, *, training: bool = True
) -> tuple[ApproximatePlan, ...]:
    """The approximations that a model can have and that fit, full scale first. Cost: a millisecond."""
    plans, batch = [], rows.batch * prior.kernel.batch_shape.numel() > 1
    for kind in ("full_scale", "sparse"):
        if rows.n and not obstacle(prior, kind, batch=batch):
            with contextlib.suppress(MemoryBudgetError):
                plan = approximate_plan(prior, rows, Approximation(kind), settings, time_limit, training=training)
                plans.append(plan)
    return tuple(plans)


def offers_of(plans: tuple[ApproximatePlan, ...], *, training: bool = True) -> tuple[Offer, ...]:
    """Their costs, of a whole fit or of conditioning."""
    return tuple(
        Offer(
            plan.approximation, plan.inducing, plan.neighbours, plan.training_bytes if training else plan.peak_bytes,
            plan.fit_seconds if training else plan.seconds,
        )
        for plan in plans
    )  # fmt: skip


def costs(exact: Plan | None, plans: tuple[ApproximatePlan, ...], *, training: bool = True) -> dict[str, Any]:
    """Seconds and bytes of exact inference and of approximations, as fields of an event; None where nothing fits."""
    found: dict[str, Any] = {"exact_seconds": None, "exact_bytes": None}
    if exact is not None:
        found["exact_seconds"] = exact.fit_seconds if training else exact.seconds
        found["exact_bytes"] = exact.training_bytes if training else exact.peak_bytes
    for one in offers_of(plans, training=training):
        found |= {f"{one.approximation}_seconds": one.seconds, f"{one.approximation}_bytes": one.bytes}
    return found


def offer_event(exact: Plan, plans: tuple[ApproximatePlan, ...], limit: float | None) -> Event:
    """That an exact fit takes longer than its limit, and what approximations would take."""
    both = len(plans) > 1
    return Event(EventKind.APPROXIMATION_OFFERED, limit=limit, both=both or None, **costs(exact, plans))


def with_offers(error: MemoryBudgetError, plans: tuple[ApproximatePlan, ...], *, training: bool) -> MemoryBudgetError:
    """The same refusal of exact inference, with the approximations that would fit."""
    offers = offers_of(plans, training=training)
    if not offers:
        return error
    return MemoryBudgetError(
        f"{error}; or {offers_text(offers)}", needed_bytes=error.needed_bytes, available_bytes=error.available_bytes,
        cheapest_plan=error.cheapest_plan, offers=offers,
    )  # fmt: skip
