"""One call of the tile backend: its program, the statistics of its rows, and the panels that it visits.

When memory runs out inside a tile, the loop goes on with half the rows per tile from the panel that failed; a
panel's result is added only when all of it is there, so that nothing is counted twice.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.workspace import Workspace, ran_out_of_memory
from flashgp.pairwise.problem import PairProblem
from flashgp.pairwise.program.program import Partial, Program, program_of
from flashgp.pairwise.program.tile_code import Scalar
from flashgp.pairwise.torch import opaque
from flashgp.pairwise.torch.statistics import FAR_SQUARED, TileStatistics

TITLE = "portable backend"  # in reports
TILE_PAIRS = {"cpu": 2**18}  # pairs per tile: two float64 tiles fit a 4 MiB cache (docs/decisions/0003)
ACCELERATOR_TILE_PAIRS = 2**24
TILE_SHARE = 64  # of all pairs, at most, in a larger tile: its temporaries stay well below the matrix


def tile_pairs(pairs: int, best: int, device: torch.device) -> int:
    """Pairs per tile of a product over so many: `best`, which was measured, as far as it is a small share of them."""
    return max(TILE_PAIRS.get(device.type, ACCELERATOR_TILE_PAIRS), min(best, pairs // TILE_SHARE))


def tile_rows(columns: int, batch: int, device: torch.device, pairs: int | None = None) -> int:
    """Rows per tile so that a tile of that many columns (and batch members) stays within the tile size.

    Args: pairs: per tile; by default the least that anything takes.
    """
    pairs = TILE_PAIRS.get(device.type, ACCELERATOR_TILE_PAIRS) if pairs is None else pairs
    return max(1, pairs // max(1, columns * batch))


@dataclass(frozen=True)
class TileSettings:
    """Sizes of the portable backend (docs/decisions/0003 has the measurements).

    Fields:
        pairs: of a tile; None for what suits the device.
        direct_pairs: of a problem up to which squared distances are direct differences, not one matrix product.
        taped_pairs: of a block that keeps its derivatives until its gradient is asked for.
    """

    pairs: int | None = None
    direct_pairs: int = 2**16
    taped_pairs: int = 2**20


class TileJob:
    """One call: the program, the statistics of its rows, theta in the cheapest form, and the panels to visit.

    Args: pairs: per tile, instead of those of the settings.
    """

    def __init__(
        self,
        problem: PairProblem,
        dtype: torch.dtype,
        settings: TileSettings = TileSettings(),
        pairs: int | None = None,
    ) -> None:
        pairs = settings.pairs if pairs is None else pairs
        form, theta, rows, tiles = problem.form, problem.theta, problem.rows, problem.near
        self.form, self.rows, self.dtype, self.exact_theta = form, rows, dtype, tuple(theta)
        self.symmetric, self.cols, self.batch_shape = problem.symmetric, problem.right, problem.batch_shape
        self.program: Program = program_of(form)
        self.statistics = TileStatistics(
            form, rows, self.cols, dtype, self.program.bounded_slope, theta, settings.direct_pairs
        )
        # Row and column ranges to evaluate: everything, or what the tiles cover; each is cut to `step` rows at a time.
        self.ranges = [(slice(0, rows.count), slice(0, self.cols.count))]
        if tiles is not None:
            self.ranges = tiles.runs(tile_rows(tiles.size, self.batch_shape.numel(), rows.device, pairs))
        self.width = max((j.stop - j.start for _, j in self.ranges), default=0)
        most = max((i.stop - i.start for i, _ in self.ranges), default=1)
        self.step = min(max(1, most), tile_rows(self.width, self.batch_shape.numel(), rows.device, pairs))
        self._sides: dict[int, tuple[Tensor, Tensor]] = {}
        self._far: dict[int, Tensor | None] = {}
        device = rows.device
        self.theta: list[Scalar] = [
            t.item() if t.dim() == 0 and device.type == "cpu" else t.to(dtype)[..., None, None] for t in theta
        ]
        # A tile may be overwritten in place only if every statistic already has the full batch shape.
        shapes = {f.shape[:-2] if f.is_floating_point() else f.shape[:-1] for f in rows.features}
        shapes |= {f.shape[:-2] if f.is_floating_point() else f.shape[:-1] for f in self.cols.features}
        self.own = all(shape == self.batch_shape for shape in shapes) and all(
            a.shape[:-1] == self.batch_shape for a in (*rows.scalars, *self.cols.scalars)
        )

    @property
    def single_fits(self) -> bool:
        return bool(self.form.statistics or self.form.scalar_count)

    def panels(self, ranges: Sequence[tuple[slice, slice]] | None = None) -> list[tuple[slice, slice]]:
        """Ranges cut into row panels; for a symmetric job none reaches to the left of its own diagonal block."""
        return [
            (
                slice(start, min(i.stop, start + self.step)),
                slice(max(j.start, start) if self.symmetric else j.start, j.stop),
            )
            for i, j in (self.ranges if ranges is None else ranges)
            for start in range(i.start, i.stop, self.step)
        ]

    def beyond(self, i: slice, j: slice) -> int | None:
        """The first column of a symmetric job's panel that also stands for its mirror image, if there is one."""
        return max(j.start, i.stop) if self.symmetric and j.stop > i.stop else None

    def temporary_bytes(self, temporaries: int) -> int:
        """Upper bound of the bytes of tile temporaries."""
        pairs = min(self.step, self.rows.count) * self.width * self.batch_shape.numel()
        return temporaries * pairs * 8 + opaque.temporary_bytes(self.form, self.rows, self.batch_shape.numel())

    def sides(self, kind: str, index: int) -> tuple[Tensor, Tensor]:
        """The features of both sides that a pullback multiplies by, in the tiles' dtype.

        Those of a distance are centred in float64 first: eq. (M-24) is unchanged by a common shift, and without it
        the difference of two sums loses the digits of an offset (all of them in float32 at an offset of 1e6).
        """
        if index not in self._sides:
            u, v = self.rows.features[index], self.cols.features[index]
            if kind == "distance":
                centre = u.mean(dim=-2, keepdim=True)
                u, v = u - centre, v - centre
            self._sides[index] = (u.to(self.dtype), v.to(self.dtype))
        return self._sides[index]

    def far(self, index: int) -> Tensor | None:
        """Members whose distances pull back by differences, (*batch, 1, 1); None when no member's do."""
        if index not in self._far:
            reach = [side.square().sum(-1).amax(-1) for side in self.sides("distance", index) if side.shape[-2]]
            far = None if not reach else torch.stack(torch.broadcast_tensors(*reach)).amax(0) > FAR_SQUARED[self.dtype]
            self._far[index] = far[..., None, None] if far is not None and bool(far.any()) else None
        return self._far[index]

    def value(self, i: slice, j: slice) -> Tensor:
        statistics, scalars = self.statistics.tile(i, j)
        value: Any = self.program.value(statistics, scalars, self.theta, self.own)
        shape = (*self.batch_shape, i.stop - i.start, j.stop - j.start)
        if isinstance(value, float):
            return torch.full(shape, value, dtype=self.dtype, device=self.rows.device)
        return value if value.shape == shape else value.expand(shape)

    def partials(self, i: slice, j: slice) -> tuple[Any, list[Partial]]:
        statistics, scalars = self.statistics.tile(i, j)
        return self.program.partials(statistics, scalars, self.theta, self.own)


def visit_panels(job: TileJob, workspace: Workspace, temporaries: int, visit: Callable[[slice, slice], None]) -> None:
    """Visit every panel; where memory runs out, go on from that panel with half the rows per tile, and say so.

    `visit` changes its result only after everything it needs is computed: a panel that failed has left no trace.
    """
    workspace.ran(TITLE)
    panels, done = job.panels(), 0
    while True:
        try:
            with workspace.hold(job.temporary_bytes(temporaries)):
                while done < len(panels):
                    visit(*panels[done])
                    done += 1
                return
        except (MemoryError, RuntimeError) as error:
            if job.step == 1 or not ran_out_of_memory(error):
                raise
        # Out of the handler, whose error holds the tiles that filled the memory.
        job.step //= 2
        panels, done = job.panels(panels[done:]), 0
        workspace.note(Event(EventKind.TILES_HALVED, rows=job.step))
