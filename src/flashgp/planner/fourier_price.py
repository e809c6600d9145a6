"""Price of Fourier series: a pass over the rows, then work that counts frequencies, eq. (M-437)."""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from flashgp.foundations.events import NoSeries
from flashgp.planner.approximate import ApproximatePrice
from flashgp.planner.exact import solve_passes
from flashgp.planner.fit_stages import Cost, WorkSettings
from flashgp.planner.plan import GRADIENT, HELD, LAYOUT, PASS, Allocation, Plan
from flashgp.planner.wire import evaluation_wire, summed_wire, survey_wire

IMAGE_BYTES = 2**26


class Refusal(NamedTuple):
    """Reason that there are no Fourier series, and the text that says so and what to do."""

    reason: NoSeries
    text: str


class Beside(NamedTuple):
    """Work of a pass where grids are side by side, (M-427). Fields: transforms, columns of each and numbers of its
    grid; row_flops, of products of functions at each row."""

    transforms: tuple[tuple[int, int], ...]
    row_flops: float


@dataclass(frozen=True)
class GridSizes:
    """Fields: columns that there are frequencies of; frequencies; coordinates, rows of the factor of the weights, 0
    where there is none; probes of a log determinant without one; passes over the rows of an evaluation; posterior, of
    the finer grid that the posterior of a fit takes, None for this one; beside, of several grids, of which the
    columns are those of one at most, None for one grid."""

    columns: int
    frequencies: int
    coordinates: int
    probes: int
    passes: int = 0
    posterior: "GridSizes | None" = None
    beside: "Beside | None" = None

    @property
    def factor_bytes(self) -> int:
        """Of a factor and what it is made of: of one column vectors of the domain too, and images of some of them."""
        q = self.coordinates
        if self.columns == 1 and q:
            return 24 * self.frequencies * q + IMAGE_BYTES + 64 * q**2
        return 128 * q**2

    @property
    def transform_bytes(self) -> int:
        """Of the grids of a transform, and sums of a coarser grid."""
        of_two = max((numbers for _, numbers in self.beside.transforms), default=0) if self.beside else 0
        return max(136 * self.frequencies * 2**self.columns, 32 * of_two)


@dataclass(frozen=True)
class FourierPrice(ApproximatePrice):
    """Fields: grid; iterations of a solve for one to three columns; block, rows of a preconditioner's factor;
    factor_flops, those of a factor with what is made of it, for each cube of its rows; seconds of a row in a pass, of
    its site where iteration finds it, of a number of a grid in a product, and of an evaluation however small; coarser,
    work of the grid that measures the error, over that of the grid, (M-465)."""

    grid: GridSizes
    iterations: tuple[float, ...] = (40.0, 60.0, 150.0)
    block: int = 1500
    factor_flops: float = 10.0
    row_seconds: tuple[float, ...] = (1.2e-7, 2.5e-7, 1.5e-6)
    site_seconds: float = 5e-6
    number_seconds: float = 4e-8
    least_seconds: float = 0.01
    coarser: float = 0.8

    @property
    def padded(self) -> int:
        return self.grid.frequencies * 2**self.grid.columns

    def sums(self) -> float:
        """Seconds of a pass."""
        rows = self.of_rank(self.problem.n) * self.problem.outputs
        if (beside := self.grid.beside) is None:
            return self.least_seconds + rows * self.row_seconds[self.grid.columns - 1]
        of_row = sum(self.row_seconds[d - 1] for d, _ in beside.transforms) + self.gemm(beside.row_flops)
        numbers = sum(each for _, each in beside.transforms)
        return self.least_seconds + numbers * self.number_seconds + rows * of_row

    @property
    def sums_wire(self) -> float:
        """Bytes sent for the sums of a pass, (M-452)."""
        entries = self.grid.coordinates**2 if self.grid.beside else self.padded
        return summed_wire(self.problem, entries + self.problem.outputs * (self.grid.frequencies + 1) + 2)

    @property
    def settled(self) -> "FourierPrice":
        """The price of the posterior's grid."""
        return self if self.grid.posterior is None else replace(self, grid=self.grid.posterior)

    def solve(self, vectors: int) -> float:
        """Seconds of a solve, beside a factor that is made for it."""
        if self.grid.coordinates:
            return self.gemm(self.factor_flops * self.grid.coordinates**3)
        factor = self.gemm(self.factor_flops * min(self.block, self.grid.frequencies // 8) ** 3)
        return factor + vectors * self.iterations[self.grid.columns - 1] * self.padded * self.number_seconds

    @property
    def sites(self) -> float:
        """Seconds of the sites of all rows, and of their variances, where iteration finds them."""
        if not self.problem.iterates:
            return 0.0
        of_row = self.site_seconds + (self.predict() if self.grid.beside else 0.0)
        return self.of_rank(self.problem.n) * of_row + self.gemm(self.factor_flops * self.grid.coordinates**3)

    def step(self, rows: int) -> Cost:
        spectrum = 8.0 * self.padded / self.rates.block_pairs
        more = self.grid.passes * self.sums() + self.sites
        sent = 3.0 * self.sums_wire * bool(self.grid.passes) + evaluation_wire(self.problem)
        return Cost.of(self.least_seconds + more + self.solve(self.problem.outputs + self.grid.probes) + spectrum, sent)

    def layout(self, rows: int) -> Cost:
        return Cost.of(self.sums(), self.sums_wire)

    def parts(self, first: int) -> list[int]:
        return []

    @property
    def all_rows(self) -> Cost:
        return self.work.all_rows_fourier if self.grid.coordinates else self.work.coarse

    few_wire = 0.0

    def condition(self) -> Cost:
        last, problem = self.settled, self.problem
        both = 1.0 + self.coarser
        sent = survey_wire(problem, self.work.sample_rows) + both * last.sums_wire
        return Cost.of((1.0 + both) * self.sums() + last.sites + both * last.solve(problem.outputs), sent)

    def predict(self) -> float:
        functions = self.gemm(2.0 * self.grid.coordinates**2) if self.grid.beside else 0.0
        return self.row_seconds[self.grid.columns - 1] + functions

    def rest(self) -> Cost:
        """What follows the search of few rows, on a grid that is known."""
        return self.all_rows * self.step(self.n) + self.layout(self.n) + self.condition()

    def allocations(self) -> list[Allocation]:
        problem, grid, rows = self.problem, self.grid, self.of_rank(self.problem.n)
        vectors, last = problem.outputs + grid.probes, self.settled.grid
        return [
            Allocation(HELD, "rows and targets", 8 * rows * (problem.d + problem.outputs)),
            Allocation(LAYOUT, "a piece of the rows", min(rows, 2**21) * (8 * problem.d + 40)),
            Allocation(PASS, "grids of a transform", last.transform_bytes),
            Allocation(PASS, "vectors of frequencies", 16 * 6 * problem.outputs * last.frequencies),
            Allocation(PASS, "a factor", last.factor_bytes),
            Allocation(GRADIENT, "vectors of frequencies", 16 * 8 * vectors * grid.frequencies),
            Allocation(GRADIENT, "grids of vectors", 8 * 3 * vectors * self.padded),
            Allocation(GRADIENT, "a factor", grid.factor_bytes),
        ]


@dataclass(frozen=True)
class ProductPrice:
    """Price of a solve by approximate products, refined by exact ones, (M-442).

    Fields: plan, of the solve by all pairs; n distinct rows of d columns; frequencies; share of the noise that n c_j
    beyond them may be; wanted, residual over that of the noise; growth, of what an exact product leaves of the
    residual, over (M-441); iterations, of a solve by one matrix near K, and relative, residual of each over that;
    double, passes that a float64 one takes as long as; making, passes of the preconditioner; row_seconds and
    number_seconds, of a row of one to three columns and of a frequency in a transform in float32, which serves while
    that leaves at least single_contraction, in float64 as many times that; whitening_seconds, of a row in the
    preconditioner; product, seconds of a product where it is none by a grid alone; exact, seconds of an exact product,
    None for all pairs.
    """

    plan: Plan
    n: int
    d: int
    frequencies: int
    share: float
    wanted: float
    growth: float = 2.5
    iterations: float = 26.0
    relative: float = 0.05
    double: float = 2.7
    making: float = 2.0
    row_seconds: tuple[float, ...] = (3e-8, 6e-8, 2e-7)
    number_seconds: float = 2.5e-8
    whitening_seconds: float = 1.2e-6
    single_contraction: float = 1e-2
    float64: float = 3.0
    product: float | None = None
    exact: float | None = None

    @property
    def contraction(self) -> float:
        """What an exact product leaves of the residual."""
        return min(0.5, self.growth * self.share * math.sqrt(1.0 + self.frequencies / self.n))

    @property
    def single(self) -> bool:
        """True if transforms in float32 are as exact as the grid."""
        return self.contraction >= self.single_contraction

    @property
    def exact_products(self) -> float:
        return max(1.0, math.log(self.wanted) / math.log(self.contraction))

    @property
    def all_pairs(self) -> float:
        """Seconds of an exact product of all pairs."""
        passes, made = solve_passes(self.n, self.plan.rank, WorkSettings())
        return self.double * self.plan.seconds_by_pairs / (passes.middle + made)

    @property
    def seconds(self) -> float:
        one = self.all_pairs / self.double
        product = 2.0 * (self.n * self.row_seconds[self.d - 1] + self.frequencies * self.number_seconds)
        product *= 1.0 if self.single else self.float64
        product = product if self.product is None else self.product
        exact = self.all_pairs if self.exact is None else self.exact
        iterations = self.iterations * (1.0 + math.log(self.relative) / math.log(self.contraction))
        return (
            self.exact_products * exact + self.making * one + iterations * (product + self.n * self.whitening_seconds)
        )


@dataclass(frozen=True)
class SplitPrice:
    """Price of a product by near pairs and frequencies, (M-461).

    Fields: n rows of d columns; numbers of the half of a grid; share of the pairs that are near; visited, pairs of one
    to three columns that loops over cells take for each of these; pair_seconds, of one of them, and cell_seconds, of
    each row; row_seconds and number_seconds, of a row and of a number of the half, in two float64 transforms to
    rounding; coarse, of that, what those of approximate products take.
    """

    n: int
    d: int
    numbers: int
    share: float
    visited: tuple[float, ...] = (1.4, 1.9, 2.5)
    pair_seconds: float = 2.1e-9
    cell_seconds: float = 2e-7
    row_seconds: tuple[float, ...] = (2e-7, 6e-7, 3.8e-6)
    number_seconds: float = 7e-7
    coarse: float = 0.22

    @property
    def near(self) -> float:
        """Seconds of near pairs."""
        pairs = 0.5 * self.n**2 * self.share * self.visited[self.d - 1]
        return pairs * self.pair_seconds + self.n * self.cell_seconds

    @property
    def seconds(self) -> float:
        return self.near + self._far

    @property
    def coarse_seconds(self) -> float:
        """Seconds of an approximate product."""
        return self.near + self.coarse * self._far

    @property
    def _far(self) -> float:
        return self.n * self.row_seconds[self.d - 1] + self.numbers * self.number_seconds
