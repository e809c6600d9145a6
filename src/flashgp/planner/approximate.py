"""Plans of approximate fits: bytes of every allocation and seconds, from sizes, eqs. (M-183) to (M-186).

Prices are those of planner/full_scale_price.py and sparse_price.py. Which sizes are planned is decided where sizes are
asked for (inference/approximate_plan.py).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from flashgp.foundations.errors import DomainError, MemoryBudgetError
from flashgp.foundations.quantities import readable_bytes, readable_seconds
from flashgp.planner.approximate_prices import (
    FEW,
    GRADIENT,
    HELD,
    LAYOUT,
    PASS,
    PHASES,
    Allocation,
    ApproximateWork,
    Price,
    Sizes,
)
from flashgp.planner.choice import plan_json, plan_values
from flashgp.planner.full_scale_price import FullScalePrice
from flashgp.planner.plan import Shared, kernel_line, printed, printed_html, seconds_text
from flashgp.planner.prices import Priced, factored_plan
from flashgp.planner.problem import ConditioningProblem, Resources
from flashgp.planner.sparse_price import SparsePrice

KINDS = {
    "full_scale": "inducing points, and block Vecchia on what they leave",
    "sparse": "inducing points by their collapsed bound, in passes over the rows",
}


@dataclass(frozen=True)
class ApproximatePlan:
    """What an approximate fit takes, before anything is allocated.

    Fields: approximation, one of KINDS; device; n and distinct rows, d, outputs; inducing, block, neighbours and
    predicting, the sizes (0 where there are none); allocations, all of them; peak_bytes and seconds of conditioning
    once; training_bytes, the peak of a fit; fit_step_seconds of one value with its gradient; fit_seconds of a whole fit
    with its posterior, eq. (M-186), most between fit_seconds_low and fit_seconds_high; predict_seconds of a point;
    more_seconds, of a whole fit with twice the neighbours, or twice the inducing points where there are none;
    available_bytes; profile, whose rates were used; kernel, "fused" or what of it runs through Python; notes; shared,
    what ranks send where several share the work: bytes and seconds are then those of each of them, (M-230);
    most_neighbours, that a fit takes where these add much, (M-209): bytes are for them, 0 where it takes no more;
    sample_seconds, of a fit whose hyperparameters are those of a sample, (M-244): the least, and with all rows learned.
    """

    approximation: str
    device: str
    n: int
    distinct: int
    d: int
    outputs: int
    inducing: int
    block: int
    neighbours: int
    predicting: int
    allocations: tuple[Allocation, ...]
    peak_bytes: int
    training_bytes: int
    seconds: float
    fit_step_seconds: float
    fit_seconds: float
    fit_seconds_low: float
    fit_seconds_high: float
    predict_seconds: float
    more_seconds: float
    available_bytes: int
    profile: str
    kernel: str
    notes: tuple[str, ...] = field(default=(), compare=False)
    shared: Shared | None = None
    most_neighbours: int = 0
    sample_seconds: tuple[float, float] = (0.0, 0.0)

    @property
    def fit_text(self) -> str:
        """The seconds of a whole fit in words."""
        return seconds_text(self.fit_seconds_low, self.fit_seconds, self.fit_seconds_high)

    @property
    def sizes(self) -> Sizes:
        return Sizes(self.inducing, self.block, self.neighbours, self.predicting)

    @property
    def sizes_text(self) -> str:
        """The sizes in words."""
        if self.approximation == "sparse":
            return f"{self.inducing:,} inducing points"
        more = f", or {self.most_neighbours:,} where these add much" if self.most_neighbours else ""
        sizes = f"{self.inducing:,} inducing points, blocks of {self.block:,} rows, {self.neighbours:,} neighbours"
        return sizes + more

    def with_more_neighbours(self, more: "ApproximatePlan") -> "ApproximatePlan":
        """The same where a fit may take the neighbours of another plan, (M-209)."""
        larger = max(self, more, key=lambda plan: plan.training_bytes)  # fewer wide sets are taken together
        high = max(self.fit_seconds_high, more.fit_seconds_high + more.seconds)  # and trying them
        return replace(
            self, allocations=larger.allocations, peak_bytes=max(self.peak_bytes, more.peak_bytes),
            training_bytes=larger.training_bytes, fit_seconds_high=high, most_neighbours=more.neighbours,
        )  # fmt: skip

    def by_sample(self, time_limit: float | None, min_evaluations: float = ApproximateWork.min_evaluations) -> bool:
        """Whether too few values with gradients of all rows fit into the time of a fit, so that those of a sample take
        their place: of inducing points alone."""
        late = time_limit is not None and min_evaluations * self.fit_step_seconds > time_limit
        return late and self.approximation == "sparse"

    def with_sample(self, buffer_rows: int, time_limit: float) -> "ApproximatePlan":
        """The same where a fit searches a sample and learns rows until a time limit at most, with so many of them in a
        buffer that mixes them, three times."""
        buffer = Allocation(GRADIENT, "rows in random order", 3 * 8 * buffer_rows * (self.d + self.outputs))
        allocations = (*self.allocations, buffer)
        step = readable_seconds(self.fit_step_seconds)
        note = (
            "a fit finds hyperparameters on a random sample whose rows count for all, and learns from as many rows as "
        )
        note += f"the time limit allows: a value of all rows with its gradient takes {step}"
        least, whole = self.sample_seconds
        most = max(time_limit, least)
        return replace(
            self, allocations=allocations, training_bytes=peak_of(allocations, (LAYOUT, PASS, GRADIENT, FEW)),
            fit_seconds=min(whole, most), fit_seconds_low=least, fit_seconds_high=most, notes=(*self.notes, note),
        )  # fmt: skip

    def to_json(self) -> str:
        return plan_json(self)

    @classmethod
    def from_json(cls, text: str) -> "ApproximatePlan":
        """Raises: DomainError for text that is not such a plan."""
        plan = plan_values(cls, text)
        if plan.approximation not in KINDS:
            raise DomainError(f"`text` names the approximation {plan.approximation!r}; it must be one of {[*KINDS]}")
        return plan

    def lines(self) -> list[tuple[str, str]]:
        """(name, readable value)."""
        size = f"n = {self.n:,}" + (f" rows, {self.distinct:,} distinct" if self.distinct < self.n else "")
        outputs = f", {self.outputs} outputs" if self.outputs > 1 else ""
        largest = sorted(self.allocations, key=lambda one: -one.bytes)[:3]
        shown = "; ".join(f"{one.name} ({one.during}): {readable_bytes(one.bytes)}" for one in largest)
        predicted = f"about {readable_seconds(1000 * self.predict_seconds)} for 1,000 points"
        if self.predicting:
            predicted += f", each from {self.predicting:,} neighbours"
        return [
            ("problem", f"{size}, d = {self.d}{outputs}"),
            ("kernel", kernel_line(self.kernel)),
            ("approximation", f"{self.approximation}: {KINDS[self.approximation]}"),
            ("sizes", self.sizes_text),
            ("peak memory", f"{readable_bytes(self.peak_bytes)} of {readable_bytes(self.available_bytes)} available"),
            ("of it", shown),
            ("condition", f"about {readable_seconds(self.seconds)} ({self.profile} rates)"),
            *(self.shared.lines() if self.shared else []),
            ("training", f"{readable_bytes(self.training_bytes)} at most"),
            ("one fit step", f"about {readable_seconds(self.fit_step_seconds)}"),
            ("whole fit", self.fit_text),
            ("predict", predicted),
            ("twice as many", f"about {readable_seconds(self.more_seconds)} for the whole fit"),
            ("what is lost", LOST_HINT[self.approximation]),
            *(("note", note) for note in self.notes),
        ]

    def __str__(self) -> str:
        return printed(self.lines(), ())

    def _repr_html_(self) -> str:
        return printed_html(self.lines(), ())


LOST_HINT = {
    "full_scale": "posterior.lost estimates it, nats a row, with a standard error",
    "sparse": "posterior.bound has a lower and an upper bound on log p(y)",
}


def plan_approximate(
    kind: str,
    problem: ConditioningProblem,
    sizes: Sizes,
    resources: Resources,
    *,
    read: bool = False,
    points_open: bool = False,
) -> ApproximatePlan:
    """The plan of an approximation of given sizes on the first of the devices; whether it fits is for the caller.

    Args: kind, one of KINDS; read, whether rows are read, not held; points_open, whether nobody asked for a number of
        inducing points, so that full scale tries fewer.
    """
    device, work = resources.devices[0], ApproximateWork()
    priced = Priced(problem, resources.rates)
    price: Price = FullScalePrice(priced, sizes, device, work, points_open)
    if kind == "sparse":
        price = SparsePrice(priced, sizes, device, work, read)
    allocations = tuple(one for one in price.allocations() if one.bytes > 0)
    few = min(problem.u, problem.stages.first_rows)
    exact = factored_plan(replace(priced, problem=replace(problem, n=few, distinct=None)), device, "direct")
    allocations += (Allocation(FEW, "exact searches", exact.training_bytes),)
    fit, fit_sent = price.fit()
    more, _ = replace(price, sizes=sizes.doubled().within(problem.u)).fit()
    shared = None if problem.ranks == 1 else Shared(problem.ranks, round(price.condition_wire()), round(fit_sent))
    return ApproximatePlan(
        kind, str(device), problem.n, problem.u, problem.d, problem.outputs, sizes.inducing, sizes.block,
        sizes.neighbours, sizes.predicting, allocations, peak_of(allocations, (LAYOUT, PASS)),
        peak_of(allocations, (LAYOUT, PASS, GRADIENT, FEW)), price.condition(), price.step(problem.u), fit.middle,
        fit.low, fit.high, price.predict(), more.middle, resources.available()[str(device)], priced.profile.name,
        problem.form.fusion, resources.notes(), shared,
        sample_seconds=price.by_sample() if problem.u else (0.0, 0.0),
    )  # fmt: skip


def peak_of(allocations: Iterable[Allocation], phases: Iterable[str]) -> int:
    """What is held all the while, and the largest of the phases, eq. (M-183)."""
    total = dict.fromkeys(PHASES, 0)
    for one in allocations:
        total[one.during] += one.bytes
    return total[HELD] + max((total[phase] for phase in phases), default=0)


def refuse_too_large(plan: ApproximatePlan, fitting: ApproximatePlan | None, *, training: bool) -> None:
    """MemoryBudgetError where a plan does not fit what is available. Args: fitting, the largest that would."""
    needed = plan.training_bytes if training else plan.peak_bytes
    if needed <= plan.available_bytes:
        return
    advice = "pass a larger memory=, or fewer rows"
    if fitting is not None:
        sizes = f"inducing={fitting.inducing}"
        sizes += f", neighbours={fitting.neighbours}" if fitting.approximation == "full_scale" else ""
        bytes_there = fitting.training_bytes if training else fitting.peak_bytes
        advice = f"{sizes} needs {readable_bytes(bytes_there)} and fits; or pass a larger memory="
    raise MemoryBudgetError(
        f"`memory` allows {readable_bytes(plan.available_bytes)}, but {plan.sizes_text} of {plan.distinct:,} rows need "
        f"{readable_bytes(needed)}; {advice}",
        needed_bytes=needed,
        available_bytes=plan.available_bytes,
        cheapest_plan=fitting,
    )
