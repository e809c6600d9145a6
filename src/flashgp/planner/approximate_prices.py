"""What all approximate fits are priced by: sizes, buffers, stages, eqs. (M-183) and (M-186).

Seconds are flops, covariances and bytes moved at the rates of the profile that exact plans use; what is counted instead
of derived stands in `ApproximateWork`. Each approximation has a file of its own, full_scale_price.py and
sparse_price.py; plans are made of them in planner/approximate.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from flashgp.foundations.profile import DeviceRates
from flashgp.pairwise.torch.tiles import tile_rows
from flashgp.planner.fit_stages import Search, Usual, fit_stages
from flashgp.planner.prices import Priced
from flashgp.planner.problem import ConditioningProblem
from flashgp.planner.training import exact_seconds, information_seconds

F64 = torch.float64


@dataclass(frozen=True)
class Sizes:
    """Fields: inducing points; rows of a block; neighbours of a block; neighbours of a point that is predicted."""

    inducing: int
    block: int
    neighbours: int
    predicting: int

    def doubled(self) -> "Sizes":
        """Twice the neighbours, of points too; without any twice the inducing points."""
        if self.neighbours:
            neighbours = 2 * self.neighbours
            predicting = max(neighbours, min(2 * self.predicting, ApproximateWork.most_predicting))
            return replace(self, neighbours=neighbours, predicting=predicting)
        return replace(self, inducing=2 * self.inducing)

    def coarse(self) -> "Sizes":
        """What a search begins with, eq. (M-208): an eighth of the inducing points, half the neighbours."""
        points = -(-self.inducing // ApproximateWork.fewer_points)
        return replace(self, inducing=points, neighbours=-(-self.neighbours // 2))

    def within(self, rows: int) -> "Sizes":
        """The same where there are no more rows."""
        return replace(
            self, inducing=min(self.inducing, rows), neighbours=min(self.neighbours, rows),
            predicting=min(self.predicting, rows),
        )  # fmt: skip


@dataclass(frozen=True)
class ApproximateWork:
    """What an approximation takes beside its formulas: counted on fits, or constants of the code that does it.

    Args:
        set_pairs: covariances of small matrices that are taken together (inference/full_scale/factor.py).
        candidates: rows among which neighbours are looked for; pivot_share: rows that pivots are looked for among, for
            each of them; pivot_block: columns made at once; fewer_points, one in so many is tried.
        most_predicting: neighbours of a point that is predicted, at most, unless a block has more.
        search_bytes: of the search for neighbours.
        block_numbers, min_block: of one buffer of a block of rows that are read, and its fewest rows.
        sample_rows: of rows that are read, kept at least.
        small: by how much a small factorisation is slower than a product of its flops.
        gradient_pairs: a covariance with its derivatives, in covariances; pair_width, of so many features, and as many
            times as long where there are more.
        moves: times that a number of A at a set is read or written while its gradient is added up.
        part, coarse, all_rows, all_rows_read: evaluations of a stage on a part of the rows, of all of them with coarse
            sizes, of all together with the sizes asked for, and of all by the collapsed bound.
        min_evaluations: of all rows by the collapsed bound that have to fit into a time limit, as many as a search
            usually takes; where fewer do, a sample takes their place.
        learned_rows: for each inducing point, from which minibatches learn what these say: m parameters of n rows cost
            m / 2n nats a row, here .005.
        minibatch: what a batch takes, in values of its rows.
        slack: times the price of what follows the first rows that has to fit into a time limit: other processes may
            keep cores busy, and more points that learn little are worse than fewer.
    """

    set_pairs: int = 2**18
    candidates: int = 4096
    pivot_share: int = 20
    pivot_block: int = 128
    fewer_points: int = 8
    most_predicting: int = 1024
    search_bytes: int = 2**24
    block_numbers: int = 2**21
    min_block: int = 256
    sample_rows: int = 2000
    small: float = 3.0
    gradient_pairs: float = 3.0
    pair_width: int = 8
    moves: float = 8.0
    part: Usual = field(default_factory=lambda: Usual(3.0, 8.0, 20.0))
    coarse: Usual = field(default_factory=lambda: Usual(4.0, 10.0, 20.0))
    all_rows: Usual = field(default_factory=lambda: Usual(1.0, 9.0, 25.0))
    all_rows_read: Usual = field(default_factory=lambda: Usual(10.0, 22.0, 45.0))
    choices: int = 3
    min_evaluations: float = 22.0
    learned_rows: int = 100
    minibatch: float = 1.6
    slack: float = 2.0


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

    def of_rank(self, count: int) -> int:
        """The most of so many that are one rank's, (M-230)."""
        return -(-count // self.problem.ranks)

    def step(self, rows: int) -> float:
        """Seconds of one value with its gradient."""
        raise NotImplementedError

    def step_wire(self, rows: int) -> float:
        """Bytes that rank 0 sends for it, (M-231)."""
        raise NotImplementedError

    def layout(self, rows: int) -> float:
        """Seconds of choosing points, and neighbours."""
        raise NotImplementedError

    def layout_wire(self, rows: int) -> float:
        raise NotImplementedError

    def condition(self) -> float:
        """Seconds of conditioning, the choice of points included."""
        raise NotImplementedError

    def condition_wire(self) -> float:
        raise NotImplementedError

    @property
    def few_wire(self) -> float:
        """Of an exact evaluation of few rows, which each rank makes."""
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

    def trial(self) -> float:
        """Seconds of trying fewer points."""
        return 0.0

    def fit(self) -> tuple[Usual, float]:
        """Seconds of a whole fit, eq. (M-186), and bytes that rank 0 usually sends in it."""
        last, sent = self.condition(), self.condition_wire()
        if not self.problem.u:
            return Usual(last, last, last), sent
        total, sent_before, first = self.first_stages()
        total, sent = total.plus(Usual(last, last, last)), sent + sent_before
        parts = self.parts(first)
        searches = self.searches(parts)
        again = self.work.choices - sum(rows == self.problem.u for _, rows, _ in searches)
        once = self.trial()
        for price, rows in (*((price, rows) for price, rows, _ in searches), *[(self, self.problem.u)] * again):
            once += price.layout(rows)
            sent += price.layout_wire(rows)
        total = total.plus(Usual(once, once, once))
        for price, rows, steps in searches:
            total = total.plus(steps.times(price.step(rows)))
            sent += steps.middle * price.step_wire(rows)
        return total, sent

    def first_stages(self) -> tuple[Usual, float, int]:
        """Seconds of the exact stages of few rows, bytes that rank 0 sends in them, and the rows of the last one."""
        problem, priced, device = self.problem, self.priced, self.device
        total, sent = Usual(0.0, 0.0, 0.0), 0.0
        settings = problem.stages.for_model(own_modules=problem.own_modules)
        stages = fit_stages(
            problem.u, settings, parameters=problem.parameters, scored=not problem.own_modules,
            estimated=problem.u > settings.first_rows,
        )  # fmt: skip
        exact = [stage for stage in stages if stage.search is not Search.ESTIMATED]
        for stage in exact:
            total = total.plus(stage.evaluations.times(exact_seconds(priced, device, stage.rows)))
            sent += stage.evaluations.middle * self.few_wire
        if any(stage.search is Search.SCORING for stage in exact):
            informations = information_seconds(priced, device, exact[0].rows)
            total = total.plus(settings.work.informations.times(informations))
        once = information_seconds(priced, device, exact[-1].rows)
        return total.plus(Usual(once, once, once)), sent, exact[-1].rows

    def by_sample(self) -> tuple[float, float]:
        """Seconds of a fit by a sample, the least and with all rows learned, eq. (M-244); 0 where there is none."""
        return 0.0, 0.0

    def searches(self, parts: Sequence[int]) -> list[tuple["Price", int, Usual]]:
        """Prices, rows and evaluations of the stages after the exact ones, those of parts of the rows first."""
        return [*((self, rows, self.work.part) for rows in parts), (self, self.problem.u, self.all_rows)]

    def choosing(self) -> list[Allocation]:
        m, work = self.sizes.inducing, self.work
        among = min(self.problem.u, work.pivot_share * m)
        rows = 8 * among * (self.problem.numbers + 4)
        return [
            Allocation(LAYOUT, "partial Cholesky factor", 8 * among * m),
            Allocation(LAYOUT, "its rows and columns", rows + 8 * among * min(m, work.pivot_block) + 16 * m * m // 4),
        ]

    def tiles(self, rows: int) -> list[Allocation]:
        """Of the portable backend at the covariances of rows with inducing points, (M-55): a gradient keeps two tiles.

        On a CPU a tile has a few MiB, which the buffers of other moments cover; one of an accelerator has 2^24 pairs.
        """
        if self.device.type == "cpu":
            return []
        tile = 8 * self.problem.temporaries * min(rows * self.sizes.inducing, tile_rows(1, 1, self.device))
        return [Allocation(PASS, "a tile of covariances", tile), Allocation(GRADIENT, "tiles of covariances", 2 * tile)]

    def square(self, count: int) -> int:
        """Bytes of so many m x m matrices."""
        return 8 * count * self.sizes.inducing**2
