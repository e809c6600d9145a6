"""Price of Fourier series: a pass over the rows, then work that counts frequencies, eq. (M-437)."""

import math
from dataclasses import dataclass

from flashgp.planner.approximate import ApproximatePrice
from flashgp.planner.fit_stages import Cost
from flashgp.planner.plan import GRADIENT, HELD, LAYOUT, PASS, Allocation

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
