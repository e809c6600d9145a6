"""The approximation that a user asks for, and the ladder of sizes that "auto" chooses from."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from flashgp.foundations.checks import check_count, check_points
from flashgp.foundations.errors import DomainError, ShapeError
from flashgp.planner.plan import MOST_PREDICTING, Sizes

APPROXIMATIONS = ("fourier", "full_scale", "sparse", "auto")
# Inducing points, rows of a block, neighbours, from the least time and memory to the most. DEFAULT is what "auto" takes
# without a time limit: docs/decisions/0033-sizes-by-plan.md.
LADDER = (
    (64, 8, 24), (128, 16, 48), (256, 32, 64), (512, 32, 96), (512, 128, 256), (1024, 128, 512),
)  # fmt: skip
DEFAULT = 3
BLOCK, LARGE_BLOCK, LARGE_NEIGHBOURS = 32, 128, 256  # rows of a block, for a number of neighbours that was asked for
MORE_FOR_POINTS = 4  # times the neighbours for a point that is predicted
NEIGHBOURS = LADDER[DEFAULT][2]  # of the default sizes
PREDICTING = MORE_FOR_POINTS * NEIGHBOURS


@dataclass(frozen=True, eq=False)
class Approximation:
    """Args: kind, one of APPROXIMATIONS; inducing, a number, points (m, d), or "auto"; neighbours, a number or "auto";
    chosen_sizes, what a plan made of "auto", in place of the defaults; series, whether "auto" may take Fourier series.

    Raises: DomainError, ShapeError.
    """

    kind: str
    inducing: Any = "auto"
    neighbours: Any = "auto"
    chosen_sizes: Sizes | None = None
    series: bool = True

    def __post_init__(self) -> None:
        if not (isinstance(self.kind, str) and self.kind in APPROXIMATIONS):
            raise DomainError(
                f"`approximation` must be None or one of {', '.join(APPROXIMATIONS)}, got {self.kind!r}; leave it out "
                "for exact inference"
            )
        for name in ("inducing", "neighbours"):
            value = getattr(self, name)
            if isinstance(value, str) and value != "auto":
                raise DomainError(f"`{name}` must be a number or 'auto', got {value!r}; leave it out for 'auto'")
            if not isinstance(value, str) and (name == "neighbours" or self.chosen):
                check_count(value, name, 0)
        if self.kind == "fourier" and not self.without_sizes:
            raise DomainError(
                "`inducing` and `neighbours` are of other approximations, got one of them beside Fourier series, whose "
                "frequencies follow from the covariance function; leave them out"
            )
        if self.kind == "sparse" and not isinstance(self.neighbours, str) and not self.without_neighbours:
            raise DomainError(
                f'`neighbours` is of approximation="full_scale", got {self.neighbours!r} beside inducing points '
                "alone; leave it out"
            )
        if self.without_points and (self.kind == "sparse" or self.without_neighbours):
            raise DomainError("`inducing` must be at least 1 without neighbours, got 0; leave it out for 'auto'")

    @property
    def by_passes(self) -> bool:
        """True if rows are gone through as a source, whether they are held or read."""
        return self.kind in ("fourier", "sparse")

    @property
    def chosen(self) -> bool:
        """True if inducing points are chosen, and not the caller's own."""
        one = isinstance(self.inducing, str | int) or getattr(self.inducing, "ndim", None) == 0
        return one or not hasattr(self.inducing, "__len__")

    @property
    def without_points(self) -> bool:
        """True if no inducing points were asked for."""
        return not (self.most_inducing if self.chosen else len(self.inducing))

    @property
    def without_neighbours(self) -> bool:
        """True if no neighbours were asked for."""
        return not isinstance(self.neighbours, str) and not int(self.neighbours)

    @property
    def candidates(self) -> tuple["Approximation", ...]:
        """Approximations that "auto" chooses among, full scale first: without neighbours it is inducing points
        alone."""
        full_scale = () if self.without_neighbours else (replace(self, kind="full_scale"),)
        return full_scale + (() if self.without_points else (Approximation("sparse", self.inducing),))

    @property
    def without_sizes(self) -> bool:
        """True if no inducing points or neighbours were asked for."""
        return isinstance(self.inducing, str) and isinstance(self.neighbours, str)

    @property
    def most_inducing(self) -> int:
        """Inducing points that are chosen, where there are as many rows."""
        if not self.chosen:
            return 0
        if self.chosen_sizes is not None:
            return self.chosen_sizes.inducing
        return LADDER[DEFAULT][0] if isinstance(self.inducing, str) else int(self.inducing)

    @property
    def leaves_points(self) -> bool:
        """True if the number of inducing points is left open."""
        return isinstance(self.inducing, str)

    @property
    def leaves_neighbours(self) -> bool:
        """True if the number of neighbours is left open."""
        return self.kind == "full_scale" and isinstance(self.neighbours, str)

    @property
    def automatic(self) -> bool:
        """True if a size is left to the plan, which has not chosen yet."""
        if self.chosen_sizes is not None:
            return False
        return self.leaves_points or self.leaves_neighbours

    def points_of(self, d: int) -> Tensor | None:
        """Inducing points of the caller's own, (m, d); None where they are chosen. Raises: ShapeError, DomainError."""
        if self.chosen:
            return None
        device = self.inducing.device if isinstance(self.inducing, Tensor) else None
        points = check_points(self.inducing, "inducing", like=torch.empty(0, d, device=device))
        if points.dim() != 2:
            raise ShapeError(f"`inducing` must be a number or points (m, d), got shape {tuple(points.shape)}")
        return points

    def points_like(self, x: Tensor) -> Tensor | None:
        """A copy of them in x's dtype, where x is. Raises: ShapeError, DomainError."""
        points = self.points_of(x.shape[-1])
        return None if points is None else points.detach().clone().to(x)

    def sizes(self, n: int) -> Sizes:
        """The sizes for n rows: those that a plan chose, or the default ones.

        Raises: DomainError for more points or neighbours than rows.
        """
        return self.sizes_at(DEFAULT, n)

    def sizes_at(self, step: int, n: int) -> Sizes:
        """The sizes for n rows with those that are "auto" from a step of the ladder, or those that a plan chose.

        Raises: DomainError.
        """
        if self.chosen_sizes is not None:
            return self.chosen_sizes.within(n)
        if self.kind == "fourier":
            return Sizes(0, 0, 0, 0)
        points, block, near = LADDER[step]
        inducing, neighbours = min(points, n), min(near, n)
        if not self.chosen:
            inducing = len(self.inducing)
        elif not isinstance(self.inducing, str):
            inducing = int(self.inducing)
        if not isinstance(self.neighbours, str):
            neighbours = int(self.neighbours)
            block = LARGE_BLOCK if neighbours >= LARGE_NEIGHBOURS else min(BLOCK, -(-neighbours // 3))
        for name, value in (("inducing", inducing), ("neighbours", neighbours)):
            if value > n:
                raise DomainError(f"`{name}` must be at most the {n:,} rows, got {value:,}; pass fewer, or 'auto'")
        if self.kind == "sparse":
            return Sizes(inducing, 0, 0, 0)
        predicting = max(neighbours, min(MORE_FOR_POINTS * neighbours, MOST_PREDICTING, n))
        return Sizes(inducing, max(1, min(block, n)), neighbours, predicting)

    def with_points(self, inducing: int) -> "Approximation":
        """The approximation with so many inducing points, which leaves them open no longer."""
        sizes = None if self.chosen_sizes is None else replace(self.chosen_sizes, inducing=inducing)
        return replace(self, inducing=inducing, chosen_sizes=sizes)

    def resolved(self, sizes: Sizes) -> "Approximation":
        """The approximation with the sizes that a plan chose."""
        return replace(self, chosen_sizes=sizes)


def approximation_of(kind: Any, inducing: Any, neighbours: Any) -> Approximation | None:
    """The approximation asked for of rows that are held; None for exact inference.

    Full scale without neighbours is inducing points alone: their collapsed bound, eq. (M-160).
    Raises: DomainError for sizes of no approximation.
    """
    if kind is not None:
        asked = Approximation(kind, inducing, neighbours)
        return replace(asked, kind="sparse") if kind == "full_scale" and asked.without_neighbours else asked
    for name, value in (("inducing", inducing), ("neighbours", neighbours)):
        if not (isinstance(value, str) and value == "auto"):
            raise DomainError(
                f"`{name}` is of an approximation, got {value!r} beside exact inference; pass "
                'approximation="full_scale" too, or leave it out'
            )
    return None


def refuse_exact(**settings: Any) -> None:
    """DomainError for settings of exact inference that are not None or False."""
    for name, value in settings.items():
        if value is not None and value is not False:
            raise DomainError(
                f"`{name}` is of exact inference, got {value!r} beside an approximation; leave one of them out"
            )


def approximation_of_read(kind: Any, inducing: Any, neighbours: Any) -> Approximation:
    """The approximation of rows that are read: inducing points alone, Fourier series, or "auto" of these where no sizes
    were asked for. Raises: DomainError."""
    if kind == "full_scale":
        raise DomainError(
            "`approximation` must be 'sparse', 'fourier' or 'auto' for rows that are read, got 'full_scale', which "
            "needs rows that are held; pass x and y, or leave it out"
        )
    if kind is not None and kind != "auto":
        return Approximation(kind, inducing, neighbours)
    points = Approximation("sparse", inducing, neighbours)
    return replace(points, kind="auto") if points.without_sizes else points
