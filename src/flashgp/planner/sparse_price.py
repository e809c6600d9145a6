"""Prices of inducing points by their collapsed bound: bytes and seconds (M-185), of a rank (M-230) and (M-231)."""

from dataclasses import dataclass

from flashgp.planner.approximate import ApproximatePrice
from flashgp.planner.fit_stages import Cost
from flashgp.planner.plan import GRADIENT, HELD, LAYOUT, PASS, Allocation
from flashgp.planner.wire import evaluation_wire, points_wire, summed_wire, survey_wire


@dataclass(frozen=True)
class SparsePrice(ApproximatePrice):
    """Price of the collapsed bound; a rank has a share of the rows.

    Field: read, True if rows are read, not held.
    """

    read: bool = False

    @property
    def rows_at_once(self) -> int:
        numbers = self.problem.factors * self.sizes.inducing
        block = max(self.work.min_block, self.work.block_numbers // max(1, numbers))
        return min(max(self.of_rank(self.problem.n), self.sample), block)

    def own(self, rows: int) -> int:
        """Rows of a rank: a share of all rows, but all of the sample, which each rank goes through by itself."""
        return rows if rows < self.n else self.of_rank(rows)

    @property
    def sample(self) -> int:
        return min(self.problem.n, max(self.work.sample_rows, self.work.pivot_share * self.sizes.inducing))

    @property
    def all_rows(self) -> Cost:
        return self.counted("all_rows_read")

    def parts(self, first: int) -> list[int]:
        size = self.sample
        return [size] if size >= 1.5 * first and self.problem.n >= 1.5 * size else []

    def value(self, rows: int) -> float:
        m, own = self.sizes.inducing, self.own(rows)
        pairs, solved = float(own * m), self.gemm(own * m**2)  # A, which outputs with noise of their own have in common
        flops = own * m**2 + 2.0 * m**3
        if self.problem.iterates:  # variances of every row, and its sites
            pairs, flops = pairs + self.problem.factors * own * self.work.site_pairs, flops + own * m**2
        return pairs / self.rates.block_pairs + solved + self.problem.factors * self.gemm(flops)

    @property
    def sums_wire(self) -> float:
        """Bytes sent for a value of all rows."""
        m = self.sizes.inducing
        return summed_wire(self.problem, self.problem.factors * (m * m + 4) + m * self.problem.outputs + 2)

    def step(self, rows: int) -> Cost:
        m, own, problem = self.sizes.inducing, self.own(rows), self.problem
        pairs = self.derivatives * own * m / self.rates.block_pairs
        sent = 0.0  # of the sample, which ranks search by themselves
        if rows >= self.n:
            numbers = m * problem.features.width + 2 * problem.parameters  # a gradient by points and parameters
            sent = self.sums_wire + summed_wire(problem, numbers) + evaluation_wire(problem)
        products = 2.0 * own * m**2 + problem.factors * (3.0 * own * m**2 + 6.0 * m**3)
        return Cost.of(self.value(rows) + pairs + self.gemm(products), sent)

    def layout(self, rows: int) -> Cost:
        return Cost.of(self.points(rows), points_wire(self.problem, self.sizes.inducing))

    @property
    def reading(self) -> float:
        """Seconds of a pass that reads the rows."""
        problem = self.problem
        return 10.0 * 8.0 * self.of_rank(problem.n) * (problem.d + problem.outputs) / self.rates.copy_bytes

    def by_sample(self) -> tuple[float, float]:
        work, n, (first, rows) = self.work, self.n, self.first_stages()
        search = sum(self.counted("part").low * self.step(part).middle for part in self.parts(rows))
        both = min(n, work.learned_rows * self.sizes.inducing), n
        # (M-244)
        least, whole = (search + self.reading + 2.0 * self.points(n) + work.minibatch * self.value(k) for k in both)
        return first.low + work.slack * least, first.low + work.slack * whole

    def condition(self) -> Cost:
        rows = self.problem.n
        sent = survey_wire(self.problem, self.sample) + self.sums_wire
        return self.layout(rows) + Cost.of(self.reading + self.value(rows), sent)

    few_wire = 0.0  # ranks search the sample by themselves

    def predict(self) -> float:
        m = self.sizes.inducing
        return m / self.rates.block_pairs + self.gemm(2.0 * m**2)

    def allocations(self) -> list[Allocation]:
        problem, m = self.problem, self.sizes.inducing
        n, d, p, rows = problem.n, problem.d, problem.outputs, self.rows_at_once
        block, beside = 8 * rows * m, 8 * rows * (problem.numbers + d + 4 * p + 4)
        more = problem.factors - 1
        samples = 0 if problem.ranks == 1 else min(n, problem.ranks * self.sample)
        return [
            Allocation(HELD, "rows and targets", 0 if self.read else 8 * self.of_rank(n) * (d + p)),
            Allocation(HELD, "sample of rows", 2 * 8 * self.sample * (d + p)),
            Allocation(HELD, "functions of your own", problem.features.function_bytes),
            *self.choosing(),
            *self.tiles(rows),
            Allocation(LAYOUT, "samples of all ranks", 2 * 8 * samples * (d + p + 2)),
            Allocation(PASS, "covariances of a block of rows", 9 * block // 4),
            Allocation(PASS, "a block of rows", beside),
            Allocation(PASS, "matrices of inducing points", self.square((7 if samples else 5) + 7 * more)),
            Allocation(GRADIENT, "covariances of a block of rows", 11 * block // 4),
            Allocation(GRADIENT, "a block of rows", 2 * beside),
            Allocation(GRADIENT, "matrices of inducing points", self.square(9 + 9 * more)),
        ]
