"""Prices of approximate fits: bytes of every allocation and seconds, from sizes, eqs. (M-183) to (M-186).

Seconds are flops, covariances and bytes moved at the rates of the profile that exact plans use; what is counted instead
of derived stands in `ApproximateWork`. Plans are made of them in planner/approximate.py.
"""

from dataclasses import dataclass, field, replace

import torch

from flashgp.foundations.profile import DeviceRates
from flashgp.planner.fit_stages import Search, Usual, fit_stages, part_sizes
from flashgp.planner.prices import Priced
from flashgp.planner.problem import ConditioningProblem
from flashgp.planner.training import exact_seconds, information_seconds

__all__ = [
    "FEW",
    "GRADIENT",
    "HELD",
    "LAYOUT",
    "PASS",
    "PHASES",
    "Allocation",
    "ApproximateWork",
    "FullScalePrice",
    "Price",
    "Sizes",
    "SparsePrice",
]

F64 = torch.float64


@dataclass(frozen=True)
class Sizes:
    """Fields: inducing points; rows of a block; neighbours of a block; neighbours of a point that is predicted."""

    inducing: int
    block: int
    neighbours: int
    predicting: int

    def doubled(self) -> "Sizes":
        """Twice the neighbours; without any twice the inducing points."""
        if self.neighbours:
            return replace(self, neighbours=2 * self.neighbours)
        return replace(self, inducing=2 * self.inducing)

    def within(self, rows: int) -> "Sizes":
        """The same where there are no more rows."""
        return replace(self, inducing=min(self.inducing, rows), neighbours=min(self.neighbours, rows))


@dataclass(frozen=True)
class ApproximateWork:
    """What an approximation takes beside its formulas: counted on fits, or constants of the code that does it.

    Args:
        set_pairs: covariances of small matrices that are taken together (inference/full_scale/factor.py).
        candidates: rows among which neighbours are looked for; pivot_share: rows that pivots are looked for among, for
            each of them; pivot_block: columns made at once.
        search_bytes: of the search for neighbours.
        block_numbers, min_block: of one buffer of a block of rows that are read, and its fewest rows.
        sample_rows: of rows that are read, kept at least.
        small: by how much a small factorisation is slower than a product of its flops.
        gradient_pairs: a covariance with its derivatives, in covariances; pair_width, of so many features, and as many
            times as long where there are more.
        moves: times that a number of A at a set is read or written while its gradient is added up.
        part, all_rows, all_rows_read: evaluations of a stage on a part of the rows, and of all of them together.
        min_evaluations: of all rows by the collapsed bound that have to fit into a time limit; where fewer do,
            minibatch steps take their place.
    """

    set_pairs: int = 2**18
    candidates: int = 4096
    pivot_share: int = 20
    pivot_block: int = 128
    search_bytes: int = 2**24
    block_numbers: int = 2**21
    min_block: int = 256
    sample_rows: int = 2000
    small: float = 3.0
    gradient_pairs: float = 3.0
    pair_width: int = 8
    moves: float = 8.0
    part: Usual = field(default_factory=lambda: Usual(3.0, 8.0, 20.0))
    all_rows: Usual = field(default_factory=lambda: Usual(7.0, 16.0, 40.0))
    all_rows_read: Usual = field(default_factory=lambda: Usual(10.0, 22.0, 45.0))
    choices: int = 3
    min_evaluations: float = 3.0


@dataclass(frozen=True)
class Allocation:
    """Buffers of one kind. Fields: during, what they are there for: one of PHASES; name; bytes."""

    during: str
    name: str
    bytes: int


HELD, LAYOUT, PASS, GRADIENT, FEW = "all of it", "choosing points", "a pass", "a gradient", "few rows"
PHASES = (HELD, LAYOUT, PASS, GRADIENT, FEW)


@dataclass(frozen=True)
class Price:
    """What both approximations have in common."""

    priced: Priced
    sizes: Sizes
    device: torch.device
    work: ApproximateWork

    @property
    def problem(self) -> ConditioningProblem:
        return self.priced.problem

    @property
    def rates(self) -> DeviceRates:
        return self.priced.profile.rates(self.device)

    def step(self, rows: int) -> float:
        """Seconds of one value with its gradient."""
        raise NotImplementedError

    def layout(self, rows: int) -> float:
        """Seconds of choosing points, and neighbours."""
        raise NotImplementedError

    def condition(self) -> float:
        """Seconds of conditioning, the choice of points included."""
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
    def all_rows(self) -> Usual:
        """Evaluations of all rows."""
        raise NotImplementedError

    def gemm(self, flops: float) -> float:
        return flops / self.rates.gemm(F64)

    @property
    def derivatives(self) -> float:
        """A covariance with its derivatives, in covariances."""
        return self.work.gradient_pairs * max(1.0, self.problem.features.width / self.work.pair_width)

    def points(self, rows: int) -> float:
        """Seconds of a partial Cholesky factor of 20 m rows."""
        m = self.sizes.inducing
        among = min(rows, self.work.pivot_share * m)
        return among * m / self.rates.block_pairs + self.gemm(2.0 * among * m**2)

    def fit_seconds(self) -> tuple[float, float, float]:
        """Few, usual and many seconds of a whole fit, eq. (M-186)."""
        problem, priced, device = self.problem, self.priced, self.device
        last = self.condition()
        if not problem.u:
            return last, last, last
        settings = problem.stages.for_model(own_modules=problem.own_modules)
        stages = fit_stages(
            problem.u, settings, parameters=problem.parameters, scored=not problem.own_modules,
            estimated=problem.u > settings.first_rows,
        )  # fmt: skip
        exact = [stage for stage in stages if stage.search is not Search.ESTIMATED]
        total = Usual(last, last, last)
        for stage in exact:
            total = total.plus(stage.evaluations.times(exact_seconds(priced, device, stage.rows)))
        if any(stage.search is Search.SCORING for stage in exact):
            informations = information_seconds(priced, device, exact[0].rows)
            total = total.plus(settings.work.informations.times(informations))
        once = information_seconds(priced, device, exact[-1].rows)
        parts = self.parts(exact[-1].rows)
        once += sum(self.layout(rows) for rows in parts) + self.work.choices * self.layout(problem.u)
        total = total.plus(Usual(once, once, once))
        for rows in parts:
            total = total.plus(self.work.part.times(self.step(rows)))
        total = total.plus(self.all_rows.times(self.step(problem.u)))
        return total.low, total.middle, total.high

    def choosing(self) -> list[Allocation]:
        m, work = self.sizes.inducing, self.work
        among = min(self.problem.u, work.pivot_share * m)
        rows = 8 * among * (self.problem.numbers + 4)
        return [
            Allocation(LAYOUT, "partial Cholesky factor", 8 * among * m),
            Allocation(LAYOUT, "its rows and columns", rows + 8 * among * min(m, work.pivot_block) + 16 * m * m // 4),
        ]

    def square(self, count: int) -> int:
        """Bytes of so many m x m matrices."""
        return 8 * count * self.sizes.inducing**2


@dataclass(frozen=True)
class FullScalePrice(Price):
    """Of the full-scale model: bytes (M-183), seconds (M-184)."""

    @property
    def width(self) -> int:
        return self.sizes.neighbours + self.sizes.block

    def sets(self, rows: int) -> int:
        return -(-rows // self.sizes.block)

    @property
    def at_once(self) -> int:
        """Sets whose matrices are taken together."""
        return min(self.sets(self.problem.u), max(1, self.work.set_pairs // self.width**2))

    @property
    def all_rows(self) -> Usual:
        return self.work.all_rows

    def parts(self, first: int) -> list[int]:
        return part_sizes(self.problem.u, first, self.problem.stages.part_ratio)

    def value(self, rows: int) -> float:
        m, w, b, sets, work = self.sizes.inducing, self.width, self.sizes.block, self.sets(rows), self.work
        pairs = (0.5 * sets * w**2 + rows * m) / self.rates.block_pairs
        products = sets * (2.0 * m * w**2 + 2.0 * b * w * m) + 3.0 * rows * m**2
        small = work.small * sets * (w**3 / 3.0 + w**2 * b)
        calls = 30.0 * self.rates.call_seconds * -(-sets // max(1, work.set_pairs // w**2))
        return pairs + self.gemm(products + small) + calls

    def step(self, rows: int) -> float:
        m, w, b, sets, work = self.sizes.inducing, self.width, self.sizes.block, self.sets(rows), self.work
        pairs = self.derivatives * (sets * w**2 + rows * m) / self.rates.block_pairs
        products = sets * (2.0 * m * w**2 + 10.0 * b * w * m) + 5.0 * rows * m**2
        small = work.small * sets * (w**3 / 3.0 + 4.0 * w**2 * b)
        moved = 8.0 * work.moves * sets * w * m / self.rates.copy_bytes
        return self.value(rows) + pairs + self.gemm(products + small) + moved

    def layout(self, rows: int) -> float:
        distances = rows * min(rows, self.work.candidates) + self.sets(rows) ** 2
        return distances / self.rates.block_pairs + self.points(rows)

    def condition(self) -> float:
        return self.layout(self.problem.u) + self.value(self.problem.u)

    def predict(self) -> float:
        m, q = self.sizes.inducing, min(self.sizes.predicting, self.problem.u)
        flops = q**2 * (2.0 * m + self.work.small * q / 3.0) + 4.0 * m**2
        distances = min(self.problem.u, 2**15)
        return self.gemm(flops) + (0.5 * q**2 + m + distances) / self.rates.block_pairs

    def allocations(self) -> list[Allocation]:
        problem, m, w, work = self.problem, self.sizes.inducing, self.width, self.work
        u, p, numbers, sets = problem.u, problem.outputs, problem.numbers, self.at_once
        slots = self.sets(u) * w
        of_set = 8 * sets * w * m
        of_pairs = 8 * sets * w * w
        evaluated = of_pairs * (problem.temporaries + 2)  # before A is gathered
        joined = 8 * problem.n * (problem.d + p) + (8 * u * (problem.d + 3 * p) if u < problem.n else 0)
        return [
            Allocation(HELD, "rows and targets", joined),
            Allocation(HELD, "features, residual and noise", 8 * u * (numbers + 2 * p + 2)),
            Allocation(HELD, "blocks and neighbours", 8 * slots),
            Allocation(HELD, "functions of your own", problem.features.function_bytes),
            *self.choosing(),
            Allocation(
                LAYOUT, "blocks while they are looked for", min(work.search_bytes, 8 * u * u) + 16 * u * problem.d
            ),
            Allocation(PASS, "covariances with inducing points, A", 8 * u * m),
            Allocation(PASS, "A at sets of rows", 3 * of_set),
            Allocation(PASS, "covariances of sets of rows", max(5 * of_pairs, evaluated - 3 * of_set) + 8 * slots),
            Allocation(PASS, "matrices of inducing points", self.square(5)),
            Allocation(GRADIENT, "covariances with inducing points, A", 8 * u * m),
            Allocation(GRADIENT, "gradient by A", 8 * u * m),
            Allocation(GRADIENT, "gradients by rows", 8 * u * (2 * numbers + p + 2)),
            Allocation(GRADIENT, "A at sets of rows", 5 * of_set),
            Allocation(
                GRADIENT, "covariances of sets of rows", max(11 * of_pairs, 2 * evaluated - 5 * of_set) + 8 * slots
            ),
            Allocation(GRADIENT, "matrices of inducing points", self.square(6)),
        ]


@dataclass(frozen=True)
class SparsePrice(Price):
    """Of the collapsed bound: bytes and seconds (M-185). Field: read, whether rows are read, not held."""

    read: bool = False

    @property
    def rows_at_once(self) -> int:
        block = max(self.work.min_block, self.work.block_numbers // max(1, self.sizes.inducing))
        return min(self.problem.n, block)

    @property
    def sample(self) -> int:
        return min(self.problem.n, max(self.work.sample_rows, self.work.pivot_share * self.sizes.inducing))

    @property
    def all_rows(self) -> Usual:
        return self.work.all_rows_read

    def parts(self, first: int) -> list[int]:
        size = self.sample
        return [size] if size >= 1.5 * first and self.problem.n >= 1.5 * size else []

    def value(self, rows: int) -> float:
        m = self.sizes.inducing
        return rows * m / self.rates.block_pairs + self.gemm(2.0 * rows * m**2 + 2.0 * m**3)

    def step(self, rows: int) -> float:
        m = self.sizes.inducing
        pairs = self.derivatives * rows * m / self.rates.block_pairs
        return self.value(rows) + pairs + self.gemm(5.0 * rows * m**2 + 6.0 * m**3)

    def layout(self, rows: int) -> float:
        return self.points(rows)

    def condition(self) -> float:
        problem = self.problem
        reading = 10.0 * 8.0 * problem.n * (problem.d + problem.outputs) / self.rates.copy_bytes
        return reading + self.layout(problem.n) + self.value(problem.n)

    def predict(self) -> float:
        m = self.sizes.inducing
        return m / self.rates.block_pairs + self.gemm(2.0 * m**2)

    def allocations(self) -> list[Allocation]:
        problem, m = self.problem, self.sizes.inducing
        n, d, p, rows = problem.n, problem.d, problem.outputs, self.rows_at_once
        block, beside = 8 * rows * m, 8 * rows * (problem.numbers + d + 4 * p + 4)
        return [
            Allocation(HELD, "rows and targets", 0 if self.read else 8 * n * (d + p)),
            Allocation(HELD, "sample of rows", 2 * 8 * self.sample * (d + p)),
            Allocation(HELD, "functions of your own", problem.features.function_bytes),
            *self.choosing(),
            Allocation(PASS, "covariances of a block of rows", 3 * block),
            Allocation(PASS, "a block of rows", beside),
            Allocation(PASS, "matrices of inducing points", self.square(5)),
            Allocation(GRADIENT, "covariances of a block of rows", 4 * block),
            Allocation(GRADIENT, "a block of rows", 2 * beside),
            Allocation(GRADIENT, "matrices of inducing points", self.square(9)),
        ]
