"""Prices of the full-scale model: bytes (M-183), seconds (M-184), of a rank of a group (M-230) and (M-231)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flashgp.planner.approximate import ApproximatePrice
from flashgp.planner.fit_stages import Cost, part_sizes
from flashgp.planner.plan import GRADIENT, HELD, LAYOUT, PASS, Allocation
from flashgp.planner.wire import evaluation_wire, neighbours_wire, points_wire, summed_wire, table_wire


@dataclass(frozen=True)
class FullScalePrice(ApproximatePrice):
    """Price of the full-scale model; a rank has a share of the blocks.

    Field: points_open, True if fewer points are tried.
    """

    points_open: bool = False

    @property
    def width(self) -> int:
        return self.sizes.neighbours + self.sizes.block

    def sets(self, rows: int) -> int:
        return -(-rows // self.sizes.block)

    def needed(self, rows: int) -> int:
        """Rows that the blocks of a rank have and need, at most."""
        return min(rows, self.of_rank(self.sets(rows)) * self.width)

    @property
    def at_once(self) -> int:
        """Sets whose matrices are taken together."""
        return min(self.of_rank(self.sets(self.n)), max(1, self.work.set_pairs // self.width**2))

    @property
    def all_rows(self) -> Cost:
        return self.counted("all_rows")

    def parts(self, first: int) -> list[int]:
        return part_sizes(self.n, first, self.problem.stages.part_ratio)

    def value(self, rows: int) -> float:
        m, w, b, sets, work = self.sizes.inducing, self.width, self.sizes.block, self.sets(rows), self.work
        sets, here, own = self.of_rank(sets), self.needed(rows), self.of_rank(rows)
        pairs = (0.5 * sets * w**2 + here * m) / self.rates.block_pairs
        each = self.problem.factors
        products = sets * (2.0 * m * w**2 + each * 2.0 * b * w * m) + (here + each * 2.0 * own) * m**2
        small = each * work.small * sets * (w**3 / 3.0 + w**2 * b)
        calls = 30.0 * self.rates.call_seconds * -(-sets // max(1, work.set_pairs // w**2))
        return pairs + self.gemm(products + small) + calls

    @property
    def sums_wire(self) -> float:
        """Bytes sent for one value."""
        m = self.sizes.inducing
        return summed_wire(self.problem, self.problem.factors * (m * m + 3) + m * self.problem.outputs)

    def step(self, rows: int) -> Cost:
        m, w, b, sets, work = self.sizes.inducing, self.width, self.sizes.block, self.sets(rows), self.work
        sets, here, own = self.of_rank(sets), self.needed(rows), self.of_rank(rows)
        pairs = self.derivatives * (sets * w**2 + here * m) / self.rates.block_pairs
        each = self.problem.factors
        products = sets * (2.0 * m * w**2 + each * 10.0 * b * w * m) + (3.0 * here + each * 2.0 * own) * m**2
        small = each * work.small * sets * (w**3 / 3.0 + 4.0 * w**2 * b)
        moved = each * 8.0 * work.moves * sets * w * m / self.rates.copy_bytes
        # Sent are gradients by residual, noise and features of all rows, by points and parameters.
        problem, width = self.problem, self.problem.features.width
        numbers = rows * (problem.outputs + problem.factors + width) + m * width + problem.parameters
        sent = self.sums_wire + summed_wire(problem, numbers) + evaluation_wire(problem)
        return Cost.of(self.value(rows) + pairs + self.gemm(products + small) + moved, sent)

    def layout(self, rows: int) -> Cost:
        distances = (rows * min(rows, self.work.candidates) + self.sets(rows) ** 2) / self.problem.ranks
        near = neighbours_wire(self.problem, rows, self.sizes.block, self.sizes.neighbours)
        sent = near + points_wire(self.problem, self.sizes.inducing)
        return Cost.of(distances / self.rates.block_pairs + self.points(rows), sent)

    def condition(self) -> Cost:
        values = [self, self.fewer] if self.points_open else [self]
        sent = table_wire(self.problem) + sum(one.sums_wire for one in values)
        return self.layout(self.n) + Cost.of(sum(one.value(self.n) for one in values), sent)

    def trial(self) -> float:
        """Seconds of the first choice for all rows with the sizes asked for."""
        return self.value(self.n) + self.fewer.value(self.n) if self.points_open else 0.0

    def searches(self, parts: Sequence[int]) -> list[tuple[ApproximatePrice, int, Cost]]:
        """Searches with coarse sizes, and at last with those asked for, eq. (M-208)."""
        coarse = replace(self, sizes=self.sizes.coarse(), points_open=False)
        begun = [(coarse, rows, self.counted("part")) for rows in parts]
        return [*begun, (coarse, self.n, self.counted("coarse")), (self, self.n, self.all_rows)]

    @property
    def fewer(self) -> "FullScalePrice":
        """The price with the fewer points that are tried, eq. (M-207)."""
        return replace(self, sizes=replace(self.sizes, inducing=-(-self.sizes.inducing // self.work.fewer_points)))

    @property
    def few_wire(self) -> float:
        return evaluation_wire(self.problem)

    def predict(self) -> float:
        m, q = self.sizes.inducing, min(self.sizes.predicting, self.n)
        flops = q**2 * (m + self.work.small * q / 3.0) + 4.0 * m**2
        distances = min(self.n, 2**18)
        return self.problem.factors * (self.gemm(flops) + (0.5 * q**2 + m + distances) / self.rates.block_pairs)

    def allocations(self) -> list[Allocation]:
        problem, m, w, work = self.problem, self.sizes.inducing, self.width, self.work
        u, p, numbers, sets = self.n, problem.outputs, problem.numbers, self.at_once
        here, slots = self.needed(u), self.of_rank(self.sets(u)) * w
        shared = problem.ranks > 1
        copied = 8 * (here * (numbers + p + 2) + slots) if shared else 0
        summed = 8 * (here + 3 * u) * (problem.features.width + p + 1) if shared else 0
        of_set = 8 * sets * w * m
        of_pairs = 8 * sets * w * w
        more = of_pairs * (problem.factors > 1)  # the covariances that outputs have in common
        squares = problem.factors - 1
        evaluated = of_pairs * (problem.temporaries + 2)  # before A is gathered
        joined = 8 * problem.n * (problem.d + p) + (8 * u * (problem.d + 3 * p) if u < problem.n else 0)
        return [
            Allocation(HELD, "rows and targets", joined),
            Allocation(HELD, "rows of all ranks", 8 * problem.n * (problem.d + p) if shared else 0),
            Allocation(HELD, "features, residual and noise", 8 * u * (numbers + 2 * p + 1 + problem.factors)),
            Allocation(HELD, "blocks and neighbours", 8 * self.sets(u) * w),
            Allocation(HELD, "functions of your own", problem.features.function_bytes),
            *self.choosing(),
            *self.tiles(here),
            *(Allocation(during, "rows that blocks need", copied) for during in (PASS, GRADIENT)),
            Allocation(GRADIENT, "gradients of all ranks", summed),
            Allocation(
                LAYOUT, "blocks while they are looked for", min(work.search_bytes, 8 * u * u) + 16 * u * problem.d
            ),
            Allocation(PASS, "covariances with inducing points, A", 8 * here * m),
            Allocation(PASS, "A of fewer points", 8 * here * self.fewer.sizes.inducing * self.points_open),
            Allocation(PASS, "A at sets of rows", 3 * of_set),
            Allocation(
                PASS, "covariances of sets of rows", max(5 * of_pairs + more, evaluated - 3 * of_set) + 8 * slots
            ),
            Allocation(PASS, "matrices of inducing points", self.square((7 if shared else 5) + squares)),
            Allocation(GRADIENT, "covariances with inducing points, A", 8 * here * m),
            Allocation(GRADIENT, "gradient by A", 8 * here * m),
            Allocation(GRADIENT, "gradients by rows", 8 * u * (2 * numbers + p + 2)),
            Allocation(GRADIENT, "A at sets of rows", 5 * of_set),
            Allocation(
                GRADIENT,
                "covariances of sets of rows",
                max(11 * of_pairs + 2 * more, 2 * evaluated - 5 * of_set) + 8 * slots,
            ),
            Allocation(GRADIENT, "matrices of inducing points", self.square(6 + squares)),
        ]
