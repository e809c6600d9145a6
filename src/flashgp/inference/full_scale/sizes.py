"""How an approximation is asked for, and the sizes that "auto" takes."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flashgp.foundations.checks import check_count, check_points
from flashgp.foundations.errors import DomainError, MemoryBudgetError, ShapeError
from flashgp.foundations.machine import available_bytes, parse_bytes
from flashgp.foundations.quantities import readable_bytes

__all__ = [
    "APPROXIMATIONS",
    "Approximation",
    "Sizes",
    "approximation_of",
    "approximation_of_read",
    "check_bytes",
    "refuse_exact",
]

APPROXIMATIONS = ("full_scale", "sparse")  # the second where fit and condition are called, not in estimators
INDUCING, NEIGHBOURS = 512, 96  # of "auto"
BLOCK = 32
PREDICTING = 128


@dataclass(frozen=True)
class Sizes:
    """Fields: inducing points; rows of a block; neighbours of a block; neighbours of a point that is predicted."""

    inducing: int
    block: int
    neighbours: int
    predicting: int


@dataclass(frozen=True, eq=False)
class Approximation:
    """Args: kind, one of APPROXIMATIONS; inducing, a number, points (m, d), or "auto"; neighbours, a number or "auto".

    Raises: DomainError, ShapeError.
    """

    kind: str
    inducing: Any = "auto"
    neighbours: Any = "auto"

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
        if self.kind == "sparse":
            if self.neighbours != "auto" and check_count(self.neighbours, "neighbours", 0):
                raise DomainError(
                    f'`neighbours` is of approximation="full_scale", got {self.neighbours!r} beside inducing points '
                    "alone; leave it out"
                )
            if self.chosen and self.most_inducing < 1:
                raise DomainError("`inducing` must be at least 1 without neighbours, got 0; leave it out for 'auto'")

    @property
    def chosen(self) -> bool:
        """Whether inducing points are chosen, and not the caller's own."""
        return isinstance(self.inducing, str | int) or not hasattr(self.inducing, "__len__")

    @property
    def most_inducing(self) -> int:
        """Inducing points that are chosen, where there are as many rows. Raises: DomainError."""
        if not self.chosen:
            return 0
        return INDUCING if self.inducing == "auto" else check_count(self.inducing, "inducing", 0)

    def points_like(self, x: Tensor) -> Tensor | None:
        """Inducing points of the caller's own, (m, d), in x's dtype; None where they are chosen."""
        if self.chosen:
            return None
        points = check_points(self.inducing, "inducing", like=x)
        if points.dim() != 2:
            raise ShapeError(f"`inducing` must be a number or points (m, d), got shape {tuple(points.shape)}")
        return points.detach().clone()

    def sizes(self, n: int) -> Sizes:
        """The sizes for n rows. Raises: DomainError for more points or neighbours than rows."""
        if hasattr(self.inducing, "__len__") and not isinstance(self.inducing, str):
            inducing = len(self.inducing)
        elif self.inducing == "auto":
            inducing = min(INDUCING, n)
        else:
            inducing = check_count(self.inducing, "inducing", 0)
        neighbours = min(NEIGHBOURS, n) if self.neighbours == "auto" else check_count(self.neighbours, "neighbours", 0)
        for name, value in (("inducing", inducing), ("neighbours", neighbours)):
            if value > n:
                raise DomainError(f"`{name}` must be at most the {n:,} rows, got {value:,}; pass fewer, or 'auto'")
        block = max(1, BLOCK if not neighbours else min(BLOCK, -(-neighbours // 3)))
        return Sizes(inducing, block, neighbours, 0 if not neighbours else max(neighbours, min(PREDICTING, n)))


def approximation_of(kind: Any, inducing: Any, neighbours: Any) -> Approximation | None:
    """What was asked for; None for exact inference. Raises: DomainError for sizes of no approximation."""
    if kind == "sparse":
        raise DomainError(
            "`approximation` must be None or 'full_scale' here, got 'sparse'; call fgp.fit or gp.condition with it"
        )
    if kind is not None:
        return Approximation(kind, inducing, neighbours)
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
    """The same for rows that are read, where inducing points alone are the only one. Raises: DomainError."""
    if kind == "full_scale":
        raise DomainError(
            "`approximation` must be 'sparse' or 'auto' for rows that are read, got 'full_scale', which needs rows "
            "that are held; pass x and y, or leave it out"
        )
    return Approximation("sparse" if kind is None or kind == "auto" else kind, inducing, neighbours)


def check_bytes(n: int, sizes: Sizes, memory: str | int | None, device: torch.device) -> int:
    """What a pass over n rows takes at its peak. Raises: MemoryBudgetError, with fewer inducing points that would fit.

    A and its gradient, rows and neighbours of every block.
    """

    def needed(m: int) -> int:
        return 8 * n * (2 * m + 2 + (sizes.neighbours + sizes.block) // max(1, sizes.block)) + 4 * 8 * m * m + 2**26

    available = available_bytes(device) if memory is None else parse_bytes(memory, "memory")
    if needed(sizes.inducing) > available:
        most = max(0, (available - 2**26) // (16 * max(1, n)))
        raise MemoryBudgetError(
            f"{sizes.inducing:,} inducing points of {n:,} rows need {readable_bytes(needed(sizes.inducing))} with "
            f"{readable_bytes(available)} available; pass inducing={most:,}, or a larger memory=",
            needed_bytes=needed(sizes.inducing),
            available_bytes=available,
        )
    return needed(sizes.inducing)
