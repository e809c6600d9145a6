"""Price of Fourier series: a pass over the rows, then work that counts frequencies, eq. (M-437)."""

import math
from dataclasses import dataclass

from flashgp.planner.approximate import ApproximatePrice
from flashgp.planner.exact import solve_passes
from flashgp.planner.fit_stages import Cost, WorkSettings
from flashgp.planner.plan import GRADIENT, HELD, LAYOUT, PASS, Allocation, Plan

ASSUMED = (300, 60, 20)  # frequencies to each side of a column, of which there are one to three, for ranges of some
# five lengthscales; a fit chooses them by what it finds


def assumed_frequencies(d: int) -> int:
    """Frequencies that a plan counts on before the rows are seen."""
    return math.prod([2 * ASSUMED[min(d, 3) - 1] + 1] * min(d, 3))


@dataclass(frozen=True)
class FourierPrice(ApproximatePrice):
    """Fields: iterations of a solve; probes, solves of an evaluation; transforms, seconds of a row and of a number of
    a grid."""

    iterations: int = 120
    probes: int = 9
    row_seconds: tuple[float, ...] = (5e-8, 1.5e-7, 1e-6)
    number_seconds: float = 1.5e-8

    @property
    def frequencies(self) -> int:
        return assumed_frequencies(self.problem.d)

    @property
    def padded(self) -> int:
        return self.frequencies * 2 ** min(3, self.problem.d)

    @property
    def dense(self) -> bool:
        return self.frequencies <= 2048

    def sums(self) -> float:
        """Seconds of a pass."""
        return self.problem.n * self.row_seconds[min(3, self.problem.d) - 1] * self.problem.outputs

    def solve(self, vectors: int) -> float:
        if self.dense:
            return self.gemm(4.0 * self.frequencies**3)
        return vectors * self.iterations * self.padded * 2.0 * self.number_seconds

    def step(self, rows: int) -> Cost:
        spectrum = 8.0 * self.padded / self.rates.block_pairs
        return Cost.of(self.solve(self.problem.outputs + self.probes) + spectrum)

    def layout(self, rows: int) -> Cost:
        return Cost.of(self.sums())

    def parts(self, first: int) -> list[int]:
        return []

    @property
    def all_rows(self) -> Cost:
        return self.work.all_rows

    @property
    def few_wire(self) -> float:
        return 0.0

    def condition(self) -> Cost:
        return Cost.of(2.0 * self.sums() + self.solve(self.problem.outputs))

    def predict(self) -> float:
        return self.row_seconds[min(3, self.problem.d) - 1]

    def allocations(self) -> list[Allocation]:
        problem, piece = self.problem, min(self.problem.n, 2**21)
        vectors = problem.outputs + self.probes
        dense = 16 * 4 * self.frequencies**2 if self.dense else 0
        return [
            Allocation(HELD, "rows and targets", 8 * problem.n * (problem.d + problem.outputs)),
            Allocation(LAYOUT, "a piece of the rows", piece * (8 * problem.d + 40)),
            Allocation(PASS, "grids of a transform", 16 * 8 * self.padded),
            Allocation(PASS, "vectors of frequencies", 16 * 6 * problem.outputs * self.frequencies),
            Allocation(PASS, "a factor", dense),
            Allocation(GRADIENT, "vectors of frequencies", 16 * 8 * vectors * self.frequencies),
            Allocation(GRADIENT, "grids of vectors", 8 * 3 * vectors * self.padded),
            Allocation(GRADIENT, "a factor", dense),
        ]


@dataclass(frozen=True)
class ProductPrice:
    """Price of a solve by approximate products, refined by exact ones, (M-442).

    Fields: plan, of the solve by all pairs; n distinct rows of d columns; frequencies; share of the noise that n c_j
    beyond them may be; wanted, residual over that of the noise; growth, of what an exact product leaves of the
    residual, over (M-441); iterations; double, passes that a float64 one takes as long as; making, passes of the
    preconditioner; row_seconds and number_seconds, of a row of one to three columns and of a frequency in a transform
    in float32, which serves while that leaves at least single_contraction, in float64 as many times that.
    """

    plan: Plan
    n: int
    d: int
    frequencies: int
    share: float
    wanted: float
    growth: float = 2.5
    iterations: int = 45
    double: float = 2.7
    making: float = 2.0
    row_seconds: tuple[float, ...] = (3e-8, 6e-8, 2e-7)
    number_seconds: float = 2.5e-8
    single_contraction: float = 1e-2
    float64: float = 3.0

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
    def seconds(self) -> float:
        passes, made = solve_passes(self.n, self.plan.rank, WorkSettings())
        one = self.plan.seconds / (passes.middle + made)
        product = self.n * self.row_seconds[self.d - 1] + self.frequencies * self.number_seconds
        product *= 1.0 if self.single else self.float64
        return (self.double * self.exact_products + self.making) * one + 2.0 * self.iterations * product
