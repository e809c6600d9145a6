"""The stages of a fit: on how many rows it searches, how, and how many evaluations that usually takes.

The search (inference/training) goes through these stages, and plans price them (planner/pricing.py): both from here.
"""

import enum
import math
from dataclasses import dataclass, field, replace

ALL_ROWS = 2**62  # as many as there are


class Search(enum.Enum):
    """Search methods of a stage."""

    STARTS = "L-BFGS-B from every start, once more with long lengthscales reset"
    VALUES = "L-BFGS-B from the optimum of few rows"
    SCORING = "Fisher scoring with exact gradients"
    ESTIMATED = "Fisher scoring with estimated gradients"


@dataclass(frozen=True)
class Cost:
    """Seconds, or how often, which differ from fit to fit: usually, and between what nine of ten lie; and bytes that
    rank 0 sends, usually."""

    low: float = 0.0
    middle: float = 0.0
    high: float = 0.0
    sent: float = 0.0

    @classmethod
    def of(cls, seconds: float, sent: float = 0.0) -> "Cost":
        """A cost whose low, middle and high seconds are the same."""
        return cls(seconds, seconds, seconds, sent)

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.low + other.low, self.middle + other.middle, self.high + other.high, self.sent + other.sent)

    def __mul__(self, other: "Cost | float") -> "Cost":
        """Cost of so many times, a number or itself a Cost."""
        one = other if isinstance(other, Cost) else Cost.of(other)
        sent = self.middle * one.sent + self.sent * one.middle
        return Cost(self.low * one.low, self.middle * one.middle, self.high * one.high, sent)


@dataclass(frozen=True)
class WorkSettings:
    """Evaluations that a stage usually takes, and the cost of one: measured on the tables of
    benchmark/claim_fit_plan.py at other sizes, only ever a prediction.

    Args:
        run, run_per_parameter: evaluations of one run of L-BFGS-B on few of the rows, and more for each parameter.
        last_run, last_run_per_parameter: the same where there are no more rows, so that a run is followed to its end.
        scoring, scoring_per_parameter: evaluations of a stage of Fisher scoring.
        reset: more in the first of these stages, for long lengthscales reset, in runs on few rows.
        estimated: evaluations of a stage by estimated gradients.
        step_passes: passes over the pairs of the solves of one of them: the spectrum decides how many these need.
        first_passes: more for the first of a stage, whose solves begin at zero, choose a preconditioner, and may fail.
        gradient_passes: as long as so many passes that compute the pairs again its gradient takes.
        passes_at_once, passes_compared, passes_low_rank: passes of a solve that begins with the full-scale
            preconditioner, that comes to it by a comparison, and with the low rank alone.
        preconditioners: blocks and neighbours of the full-scale one, and the passes that making it may take, (M-121).
        at_once, at_once_most: of these, where a solve begins with it, the smallest one's and the largest one's.
        made_most, compared_most: after a comparison; beyond compared_most there is none.
        making: times as long as its flops say making one takes.
        informations: times that the Fisher information is drawn.
        pairs: passes over the pairs of one evaluation, at the rate of a dense block.
        calls, few_calls: small operations of one evaluation, and of one of few rows, in NumPy.
        alone_rows, alone: up to so many rows one thread evaluates; so many times as long its factorisation takes.
        draw_calls: small operations of one simulated score of the Fisher information.
    """

    run: Cost = Cost(11.0, 15.0, 20.0)
    run_per_parameter: Cost = Cost(0.45, 0.65, 0.95)
    last_run: Cost = Cost(15.0, 27.0, 42.0)
    last_run_per_parameter: Cost = Cost(0.5, 0.75, 1.2)
    scoring: Cost = Cost(2.0, 5.0, 9.0)
    scoring_per_parameter: Cost = Cost(0.12, 0.3, 0.6)
    reset: Cost = Cost(0.0, 0.45, 1.2)
    estimated: Cost = Cost(3.0, 7.0, 13.0)
    step_passes: Cost = Cost(5.0, 12.0, 38.0)
    first_passes: Cost = Cost(10.0, 40.0, 1000.0)
    gradient_passes: float = 10.0
    passes_at_once: Cost = Cost(20.0, 26.0, 45.0)
    passes_compared: Cost = Cost(18.0, 36.0, 75.0)
    passes_low_rank: Cost = Cost(10.0, 60.0, 140.0)
    preconditioners: tuple[tuple[int, int, float], ...] = (
        (64, 128, math.inf), (128, 256, math.inf), (128, 512, math.inf), (128, 896, 3.0),
    )  # fmt: skip
    at_once: float = 1.0
    at_once_most: float = 2.0
    made_most: float = 12.5
    compared_most: float = 40.0
    making: float = 2.0
    informations: Cost = Cost(1.0, 1.2, 2.0)
    pairs: float = 3.0
    calls: float = 40.0
    few_calls: float = 10.0
    alone_rows: int = 400
    alone: float = 1.6
    draw_calls: float = 40.0

    def of_run(self, parameters: int, *, last: bool) -> Cost:
        """Evaluations of one run of L-BFGS-B."""
        base, slope = (self.last_run, self.last_run_per_parameter) if last else (self.run, self.run_per_parameter)
        return base + slope * parameters

    def of_scoring(self, parameters: int) -> Cost:
        """Evaluations of a stage of Fisher scoring."""
        return self.scoring + self.scoring_per_parameter * parameters


@dataclass(frozen=True)
class StageSettings:
    """Settings of the stages of a fit; defaults are those of training (inference/training/settings.py).

    Args:
        starts: runs from different initial values, on few rows; with more than one, a last run with long lengthscales
            reset. None for `default_starts`, or for 1 where modules of a user's own have their initial values.
        start_rows: rows to which starts are fitted; all of them where a table has no more.
        stage_ratio: of rows, at most, from one stage of exact gradients to the next.
        first_rows: rows fitted with exact gradients before any is estimated.
        part_ratio: of rows, from one part to the next, where gradients are estimated.
        max_parameters: whose Fisher information is drawn; models of more take L-BFGS-B.
        draws_per_parameter, min_draws: simulated scores for the Fisher information.
        work: what stages usually take.
    """

    starts: int | None = None
    default_starts: int = 4
    start_rows: int = 400
    stage_ratio: float = 3.0
    first_rows: int = 2000
    part_ratio: int = 4
    max_parameters: int = 200
    draws_per_parameter: int = 5
    min_draws: int = 60
    work: WorkSettings = field(default_factory=WorkSettings)

    @property
    def runs(self) -> int:
        """Starts, by default where none are named."""
        return self.default_starts if self.starts is None else self.starts

    @property
    def resets(self) -> bool:
        """True if long lengthscales are reset once."""
        return self.runs > 1

    def draws(self, parameters: int) -> int:
        """Simulated scores for the Fisher information of a model of so many parameters."""
        return max(self.min_draws, self.draws_per_parameter * parameters)

    def for_model(self, *, own_modules: bool) -> "StageSettings":
        """Settings for a model with or without modules of a user's own: with them it starts once, where its user has
        put it, on all rows of exact gradients, since few would lose it."""
        if not own_modules or self.starts not in (None, 1):
            return self
        return replace(self, starts=1, start_rows=ALL_ROWS)


@dataclass(frozen=True)
class FitStage:
    """A search over so many rows. Fields: rows; search; evaluations, usually."""

    rows: int
    search: Search
    evaluations: Cost


def fit_stages(
    rows: int, settings: StageSettings, *, parameters: int, scored: bool, estimated: bool
) -> tuple[FitStage, ...]:
    """The stages of a fit, in their order.

    Args:
        rows: distinct rows of the table, 1 or more.
        parameters: numbers that are trained.
        scored: whether the curvature is known beforehand: the log joint of one table, without modules of a user's own.
        estimated: whether gradients of many rows are estimated.
    """
    last = min(rows, settings.first_rows) if estimated else rows
    few, work = min(settings.start_rows, last), settings.work
    run = work.of_run(parameters, last=few == rows)
    stages = [FitStage(few, Search.STARTS, run * (settings.runs + settings.resets))]
    if few < last and scored and parameters <= settings.max_parameters:
        reset = run * work.reset if settings.resets else Cost()
        for size in stage_sizes(few, last, settings.stage_ratio):
            stages.append(FitStage(size, Search.SCORING, work.of_scoring(parameters) + reset))
            reset = Cost()
    elif few < last:
        stages.append(FitStage(last, Search.VALUES, work.of_run(parameters, last=True)))
    if estimated:
        sizes = [*part_sizes(rows, last, settings.part_ratio), rows]
        stages += [FitStage(size, Search.ESTIMATED, work.estimated) for size in sizes]
    return tuple(stages)


def stage_sizes(first: int, last: int, ratio: float) -> list[int]:
    """Rows of the stages after the first one: each at most `ratio` times the one before, evenly, ending with `last`."""
    count = math.ceil(math.log(last / first) / math.log(ratio) - 1e-9)
    return [round(first * (last / first) ** (i / count)) for i in range(1, count + 1)]


def part_sizes(n: int, first: int, ratio: int) -> list[int]:
    """Rows of the parts between the first rows and all n: each `ratio` times the one before, ending below n."""
    sizes: list[int] = []
    size = n // ratio
    while size > first:
        sizes.insert(0, size)
        size //= ratio
    return sizes
