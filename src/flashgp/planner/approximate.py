"""Prices of approximate fits: buffers, stages, eqs. (M-183) and (M-186), and the plans made of them.

Seconds are flops, covariances and bytes moved at the rates of the profile that exact plans use; what is counted instead
of derived stands in `ApproximateWork`. Each approximation prices itself in a file of its own, full_scale_price.py and
sparse_price.py. Which sizes are planned is decided where sizes are asked for (inference/choice.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flashgp.foundations.quantities import readable_seconds
from flashgp.pairwise.torch.tiles import tile_rows
from flashgp.planner.exact import factored_plan, stages_of
from flashgp.planner.fit_stages import Cost, Search
from flashgp.planner.plan import FEW, FEWER_POINTS, GRADIENT, LAYOUT, PASS, Allocation, Plan, Shared, Sizes, peak_of
from flashgp.planner.pricing import Price
from flashgp.planner.problem import PlanSettings


@dataclass(frozen=True)
class ApproximateWork:
    """Work of an approximation beside its formulas: counted on fits, or constants of the code that does it.

    Args:
        set_pairs: covariances of small matrices that are taken together (inference/full_scale/factor.py).
        candidates: rows among which neighbours are looked for; pivot_share: rows that pivots are looked for among, for
            each of them; pivot_block: columns made at once; fewer_points, one in so many is tried.
        search_bytes: of the search for neighbours.
        block_numbers, min_block: of one buffer of a block of rows that are read, and its fewest rows.
        sample_rows: of rows that are read, kept at least.
        small: by how much a small factorisation is slower than a product of its flops.
        gradient_pairs: a covariance with its derivatives, in covariances; pair_width, of so many features, and as many
            times as long where there are more.
        moves: times that a number of A at a set is read or written while its gradient is added up.
        part, coarse, all_rows, all_rows_read, all_rows_fourier: evaluations of a stage on a part of the rows, of all
            of them with coarse sizes or estimated gradients, of all together with the sizes asked for, of all by the
            collapsed bound, and by Fourier series with a factor; with _by_sites where sites are found by iteration,
            whose evaluations of all rows are few (decision 57).
        choices, choices_by_sites: of points and neighbours for all rows.
        site_pairs: as long as so many covariances a site of a row takes that a pass makes: from a sixth of that
            (counts) to twelve times (quadrature).
        min_evaluations: of all rows by the collapsed bound that have to fit into a time limit, as many as a search
            usually takes; where fewer do, a sample takes their place.
        learned_rows: for each inducing point, from which minibatches learn what these say: m parameters of n rows cost
            m / 2n nats a row, here .005.
        minibatch: what a batch takes, in values of its rows.
        slack: times the price of what follows the first rows that has to fit into a time limit: other processes may
            keep cores busy, and more points that learn little are worse than fewer.
        cut_share: of a time limit that a posterior by full scale, times the slack, may take for its sizes to be
            planned though a whole search with them would be late.
    """

    set_pairs: int = 2**18
    candidates: int = 4096
    pivot_share: int = 20
    pivot_block: int = 128
    fewer_points: int = FEWER_POINTS
    search_bytes: int = 2**24
    block_numbers: int = 2**21
    min_block: int = 256
    sample_rows: int = 2000
    small: float = 3.0
    gradient_pairs: float = 3.0
    pair_width: int = 8
    moves: float = 8.0
    part: Cost = field(default_factory=lambda: Cost(3.0, 8.0, 20.0))
    coarse: Cost = field(default_factory=lambda: Cost(4.0, 10.0, 20.0))
    all_rows: Cost = field(default_factory=lambda: Cost(1.0, 9.0, 25.0))
    all_rows_read: Cost = field(default_factory=lambda: Cost(10.0, 22.0, 45.0))
    all_rows_fourier: Cost = field(default_factory=lambda: Cost(2.0, 5.0, 12.0))
    part_by_sites: Cost = field(default_factory=lambda: Cost(3.0, 5.0, 12.0))
    coarse_by_sites: Cost = field(default_factory=lambda: Cost(3.0, 5.0, 6.0))
    all_rows_by_sites: Cost = field(default_factory=lambda: Cost(1.0, 3.0, 9.0))
    all_rows_read_by_sites: Cost = field(default_factory=lambda: Cost(3.0, 7.0, 9.0))
    choices: int = 3
    choices_by_sites: int = 2
    site_pairs: float = 2000.0
    min_evaluations: float = 22.0
    learned_rows: int = 100
    minibatch: float = 1.6
    slack: float = 2.0
    cut_share: float = 0.25


@dataclass(frozen=True)
class ApproximatePrice(Price):
    """Price of an approximation.

    Fields: sizes; work.
    """

    sizes: Sizes
    work: ApproximateWork

    def of_rank(self, count: int) -> int:
        """The most of so many that are one rank's, (M-230)."""
        return -(-count // self.problem.ranks)

    def step(self, rows: int) -> Cost:
        """One value with its gradient, and bytes that rank 0 sends for it, (M-231)."""
        raise NotImplementedError

    def layout(self, rows: int) -> Cost:
        """Choosing points, and neighbours."""
        raise NotImplementedError

    def condition(self) -> Cost:
        """The choice of points included."""
        raise NotImplementedError

    @property
    def few_wire(self) -> float:
        """Bytes of an exact evaluation of few rows, which each rank makes."""
        raise NotImplementedError

    def allocations(self) -> list[Allocation]:
        raise NotImplementedError

    def predict(self) -> float:
        """Seconds of mean and variance at a point."""
        raise NotImplementedError

    def parts(self, first: int) -> list[int]:
        """Rows of the stages between the exact ones and all."""
        raise NotImplementedError

    @property
    def all_rows(self) -> Cost:
        """Evaluations of all rows."""
        raise NotImplementedError

    @property
    def derivatives(self) -> float:
        """A covariance with its derivatives, in covariances."""
        return self.work.gradient_pairs * max(1.0, self.problem.features.width / self.work.pair_width)

    def points(self, rows: int) -> float:
        """Seconds of a partial Cholesky factor of 20 m rows."""
        m = self.sizes.inducing
        among = min(rows, self.work.pivot_share * m)
        return among * m / self.rates.block_pairs + self.gemm(2.0 * among * m**2)

    def trial(self) -> float:
        """Seconds of trying fewer points."""
        return 0.0

    def fit(self) -> Cost:
        """A whole fit, eq. (M-186)."""
        if not self.n:
            return self.condition()
        first, rows = self.first_stages()
        searches = self.searches(self.parts(rows))
        again = self.counted("choices") - sum(count == self.n for _, count, _ in searches)
        total = self.condition() + first + Cost.of(self.trial())
        for price, count in (*((price, count) for price, count, _ in searches), *[(self, self.n)] * again):
            total += price.layout(count)
        for price, count, steps in searches:
            total += steps * price.step(count)
        return total

    def first_stages(self) -> tuple[Cost, int]:
        """The exact stages of few rows, and the rows of the last one."""
        problem = self.problem
        settings = problem.stages.for_model(own_modules=problem.own_modules)
        stages = stages_of(self, estimated=self.n > settings.first_rows)
        rows = [stage.rows for stage in stages if stage.search is not Search.ESTIMATED][-1]
        return self.exact_stages(stages, self.few_wire) + Cost.of(self.information_seconds(rows)), rows

    def counted(self, stage: str) -> Any:
        """Evaluations of a stage, or choices, of the likelihood's kind."""
        return getattr(self.work, f"{stage}_by_sites" if self.problem.iterates else stage)

    def by_sample(self) -> tuple[float, float]:
        """Seconds of a fit by a sample, the least and with all rows learned, eq. (M-244); 0 where there is none."""
        return 0.0, 0.0

    def searches(self, parts: Sequence[int]) -> list[tuple["ApproximatePrice", int, Cost]]:
        """Prices, rows and evaluations of the stages after the exact ones, those of parts of the rows first."""
        return [*((self, rows, self.counted("part")) for rows in parts), (self, self.n, self.all_rows)]

    def choosing(self) -> list[Allocation]:
        m, work = self.sizes.inducing, self.work
        among = min(self.problem.u, work.pivot_share * m)
        rows = 8 * among * (self.problem.numbers + 4)
        return [
            Allocation(LAYOUT, "partial Cholesky factor", 8 * among * m),
            Allocation(LAYOUT, "its rows and columns", rows + 8 * among * min(m, work.pivot_block) + 16 * m * m // 4),
        ]

    def tiles(self, rows: int) -> list[Allocation]:
        """Tiles of the portable backend at the covariances of rows with inducing points, (M-55): a gradient keeps two.

        On a CPU a tile has a few MiB, which the buffers of other moments cover; one of an accelerator has 2^24 pairs.
        """
        if self.device.type == "cpu":
            return []
        tile = 8 * self.problem.temporaries * min(rows * self.sizes.inducing, tile_rows(1, 1, self.device))
        return [Allocation(PASS, "a tile of covariances", tile), Allocation(GRADIENT, "tiles of covariances", 2 * tile)]

    def square(self, count: int) -> int:
        """Bytes of so many m x m matrices."""
        return 8 * count * self.sizes.inducing**2

    def plan(self, kind: str, settings: PlanSettings) -> Plan:
        """The plan of these sizes; whether it fits is for the caller."""
        problem, sizes = self.problem, self.sizes
        few = min(self.n, problem.stages.first_rows)
        exact = factored_plan(Price(replace(problem, n=few, distinct=None), self.profile, self.device), "direct")
        allocations = tuple(one for one in self.allocations() if one.bytes > 0)
        allocations += (Allocation(FEW, "exact searches", exact.training_bytes),)
        condition, fit = self.condition(), self.fit()
        more = replace(self, sizes=sizes.doubled().within(self.n)).fit()
        shared = None if problem.ranks == 1 else Shared(problem.ranks, round(condition.sent), round(fit.sent))
        return Plan(
            device=str(self.device), n=problem.n, distinct=self.n, d=problem.d, outputs=problem.outputs,
            peak_bytes=peak_of(allocations, (LAYOUT, PASS)), seconds=condition.middle,
            training_bytes=peak_of(allocations, (LAYOUT, PASS, GRADIENT, FEW)),
            fit_step_seconds=self.step(self.n).middle, available_bytes=settings.available()[str(self.device)],
            profile=self.profile.name, kernel=problem.form.fusion, fit_seconds=fit.middle, fit_seconds_low=fit.low,
            fit_seconds_high=fit.high, notes=settings.notes(), shared=shared, approximation=kind,
            inducing=sizes.inducing, block=sizes.block, neighbours=sizes.neighbours, predicting=sizes.predicting,
            allocations=allocations, predict_seconds=self.predict(), more_seconds=more.middle,
            sample_seconds=self.by_sample() if self.n else (0.0, 0.0),
        )  # fmt: skip


def with_more_neighbours(plan: Plan, more: Plan) -> Plan:
    """A plan where a fit may take the neighbours of another one, (M-209)."""
    larger = max(plan, more, key=lambda one: one.training_bytes)  # fewer wide sets are taken together
    high = max(plan.fit_seconds_high, more.fit_seconds_high + more.seconds)  # and trying them
    return replace(
        plan, allocations=larger.allocations, peak_bytes=max(plan.peak_bytes, more.peak_bytes),
        training_bytes=larger.training_bytes, fit_seconds_high=high, most_neighbours=more.neighbours,
    )  # fmt: skip


def by_sample(plan: Plan, time_limit: float | None, min_evaluations: float = ApproximateWork.min_evaluations) -> bool:
    """True if too few values with gradients of all rows fit into the time of a fit of inducing points alone, so that
    those of a sample take their place."""
    late = time_limit is not None and min_evaluations * plan.fit_step_seconds > time_limit
    return late and plan.approximation == "sparse"


def with_sample(plan: Plan, buffer_rows: int, time_limit: float) -> Plan:
    """A plan where a fit searches a sample and learns rows until a time limit at most, with so many of them in a buffer
    that mixes them, three times."""
    buffer = Allocation(GRADIENT, "rows in random order", 3 * 8 * buffer_rows * (plan.d + plan.outputs))
    allocations, (least, whole) = (*plan.allocations, buffer), plan.sample_seconds
    note = (
        "a fit finds hyperparameters on a random sample whose rows count for all, and learns from as many rows as the "
        f"time limit allows: a value of all rows with its gradient takes {readable_seconds(plan.fit_step_seconds)}"
    )
    most = max(time_limit, least)
    return replace(
        plan, allocations=allocations, training_bytes=peak_of(allocations, (LAYOUT, PASS, GRADIENT, FEW)),
        fit_seconds=min(whole, most), fit_seconds_low=least, fit_seconds_high=most, notes=(*plan.notes, note),
    )  # fmt: skip
