"""The portable backend: torch tiles on any device, in float64 or float32, one tile of the matrix alive at a time.

When memory runs out inside a tile, the tile loop goes on with half the rows per tile from the panel that failed; a
panel's result is added only when all of it is there, so that nothing is counted twice.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from flashgp.foundations.form import Form, Rows, broadcast_batch
from flashgp.foundations.workspace import Workspace, ran_out_of_memory
from flashgp.pairwise import differentiable, opaque
from flashgp.pairwise.backend import Backend, PairGradient, register_backend
from flashgp.pairwise.near import NearTiles
from flashgp.pairwise.program import Partial, Program, Scalar, program_of
from flashgp.pairwise.statistics import FAR_SQUARED, TileStatistics

__all__ = ["TorchTiles", "tile_rows"]

TILE_PAIRS = {"cpu": 2**18}  # pairs per tile: two float64 tiles fit a 4 MiB cache (docs/decisions/0003)
ACCELERATOR_TILE_PAIRS = 2**24
TAPED_PAIRS = 2**20  # a whole block this small keeps its derivatives until the gradient (docs/decisions/0003)


def tile_rows(columns: int, batch: int, device: torch.device) -> int:
    """Rows per tile so that a tile of that many columns (and batch members) stays within the tile size."""
    pairs = TILE_PAIRS.get(device.type, ACCELERATOR_TILE_PAIRS)
    return max(1, pairs // max(1, columns * batch))


@register_backend("torch")
class TorchTiles(Backend):
    """Straight torch calls over row panels; see Backend for the contract."""

    title = "torch tiles"

    def block(
        self,
        form: Form,
        theta: Sequence[Tensor],
        rows: Rows,
        cols: Rows | None,
        *,
        dtype: torch.dtype,
        workspace: Workspace | None = None,
        upper: bool = False,
    ) -> Tensor:
        job = _Job(form, theta, rows, cols, dtype)
        panels = job.panels()
        workspace = workspace or Workspace()
        if len(panels) == 1 and job.single_fits:
            workspace.ran(self.title)
            return job.value(*panels[0])
        out = workspace.empty((*job.batch_shape, rows.count, job.cols.count), dtype, rows.device)

        def fill(i: slice, j: slice) -> None:
            out[..., i, j] = job.value(i, j)
            if job.symmetric and not upper and j.stop > i.stop:
                out[..., i.stop : j.stop, i] = out[..., i, i.stop : j.stop].mT

        _visit(job, workspace, job.program.value_temporaries, fill)
        return out

    def diagonal(self, form: Form, theta: Sequence[Tensor], rows: Rows, *, dtype: torch.dtype) -> Tensor:
        program = program_of(form)
        statistics, scalars, own = _diagonal_statistics(form, theta, rows, dtype)
        values = [t.unsqueeze(-1).to(dtype) if t.dim() else t.to(dtype) for t in theta]
        value = program.value(statistics, scalars, values, own)
        shape = (*broadcast_batch(rows.batch_shape, *(t.shape for t in theta)), rows.count)
        return torch.as_tensor(value, dtype=dtype, device=rows.device).expand(shape)

    def product(
        self,
        form: Form,
        theta: Sequence[Tensor],
        rows: Rows,
        cols: Rows | None,
        right: Tensor,
        *,
        workspace: Workspace | None = None,
        tiles: NearTiles | None = None,
    ) -> Tensor:
        job = _Job(form, theta, rows, cols, right.dtype, tiles)
        workspace = workspace or Workspace()
        batch = broadcast_batch(job.batch_shape, right.shape[:-2])
        out = workspace.empty((*batch, rows.count, right.shape[-1]), right.dtype, rows.device)
        out.zero_()

        def add(i: slice, j: slice) -> None:
            tile = job.value(i, j)
            ahead, mirrored = tile @ right[..., j, :], None
            beyond = job.beyond(i, j)
            if beyond is not None:
                mirrored = tile[..., beyond - j.start :].mT @ right[..., i, :]
            out[..., i, :] += ahead
            if mirrored is not None:
                out[..., beyond : j.stop, :] += mirrored

        _visit(job, workspace, job.program.value_temporaries, add)
        return out

    def block_gradient(
        self,
        form: Form,
        theta: Sequence[Tensor],
        rows: Rows,
        cols: Rows | None,
        weights: Tensor,
        *,
        workspace: Workspace | None = None,
    ) -> PairGradient:
        job = _Job(form, theta, rows, cols, weights.dtype)
        return _pull(job, lambda i, j: weights[..., i, j], workspace)

    def taped_block(
        self,
        form: Form,
        theta: Sequence[Tensor],
        rows: Rows,
        *,
        dtype: torch.dtype,
        workspace: Workspace | None = None,
    ) -> tuple[Tensor, Callable[[Tensor], PairGradient]]:
        job = _Job(form, theta, rows, None, dtype)
        pairs = rows.count**2 * job.batch_shape.numel()
        workspace = workspace or Workspace()
        if pairs > TAPED_PAIRS or not job.single_fits:
            untaped = self.block(form, theta, rows, None, dtype=dtype, workspace=workspace, upper=True)
            return untaped, lambda weights: self.block_gradient(form, theta, rows, None, weights, workspace=workspace)
        everything = slice(0, rows.count)
        workspace.ran(self.title)
        (scalar, tile), partials = job.partials(everything, everything)
        for kept in {id(p.tile): p.tile for p in partials if p.tile is not None}.values():
            workspace.adopt(kept)
        shape = (*job.batch_shape, rows.count, rows.count)
        block = torch.full(shape, scalar, dtype=dtype, device=rows.device) if tile is None else tile * scalar
        if block.shape != shape:
            block = block.expand(shape)
        workspace.adopt(block)
        tape = [partials]

        def pull(weights: Tensor) -> PairGradient:
            assert tape, "a tape is used up by its first gradient"
            total = _Accumulator(job)
            total.add_panel(everything, everything, weights, tape.pop())
            total.commit()
            return total.gradient()

        return block, pull

    def bilinear_gradient(
        self,
        form: Form,
        theta: Sequence[Tensor],
        rows: Rows,
        cols: Rows | None,
        left: Tensor,
        right: Tensor,
        *,
        workspace: Workspace | None = None,
        tiles: NearTiles | None = None,
    ) -> PairGradient:
        job = _Job(form, theta, rows, cols, right.dtype, tiles)
        if not job.symmetric:
            return _pull(job, lambda i, j: left[..., i, :] @ right[..., j, :].mT, workspace)
        # Only the upper panels are visited, so the weights must be symmetric: (U V^T + V U^T) / 2, eq. (M-21).
        first, second = torch.cat([left, right], -1), torch.cat([right, left], -1) * 0.5
        return _pull(job, lambda i, j: first[..., i, :] @ second[..., j, :].mT, workspace)

    def diagonal_gradient(self, form: Form, theta: Sequence[Tensor], rows: Rows, weights: Tensor) -> PairGradient:
        with torch.enable_grad():
            leaf = [t.detach().requires_grad_(t.is_floating_point()) for t in rows.tensors]
            values = [t.detach().requires_grad_() for t in theta]
            out = differentiable.diagonal(form, values, rows.rebuilt(leaf)).to(weights.dtype)
            if not out.requires_grad:  # a stationary diagonal depends on nothing
                return PairGradient([None] * len(leaf), [], [None] * len(values))
            inputs = [t for t in (*leaf, *values) if t.requires_grad]
            found = iter(torch.autograd.grad(out, inputs, weights.expand_as(out), allow_unused=True))
        gradients = [next(found) if t.requires_grad else None for t in (*leaf, *values)]
        return PairGradient(gradients[: len(leaf)], [], gradients[len(leaf) :])


class _Job:
    """One call: the program, the statistics of its rows, theta in the cheapest form, and the panels to visit."""

    def __init__(
        self,
        form: Form,
        theta: Sequence[Tensor],
        rows: Rows,
        cols: Rows | None,
        dtype: torch.dtype,
        tiles: NearTiles | None = None,
    ) -> None:
        self.form, self.rows, self.dtype, self.exact_theta = form, rows, dtype, tuple(theta)
        self.symmetric = cols is None
        self.cols = rows if cols is None else cols
        self.program: Program = program_of(form)
        self.statistics = TileStatistics(form, rows, self.cols, dtype, self.program.bounded_slope, theta)
        self.batch_shape = broadcast_batch(rows.batch_shape, self.cols.batch_shape, *(t.shape for t in theta))
        # Row and column ranges to evaluate: everything, or what the tiles cover; each is cut to `step` rows at a time.
        self.ranges = [(slice(0, rows.count), slice(0, self.cols.count))]
        if tiles is not None:
            self.ranges = tiles.runs(tile_rows(tiles.size, self.batch_shape.numel(), rows.device))
        self.width = max((j.stop - j.start for _, j in self.ranges), default=0)
        most = max((i.stop - i.start for i, _ in self.ranges), default=1)
        self.step = min(max(1, most), tile_rows(self.width, self.batch_shape.numel(), rows.device))
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


def _diagonal_statistics(
    form: Form, theta: Sequence[Tensor], rows: Rows, dtype: torch.dtype
) -> tuple[list[Tensor], list[Tensor], bool]:
    statistics = []
    shape = (*rows.batch_shape, rows.count)
    for index, (kind, feature) in enumerate(zip(form.statistics, rows.features, strict=True)):
        if kind == "product":
            statistics.append(feature.square().sum(-1).to(dtype))
        elif kind == "opaque":
            function = form.opaque(index)
            statistics.append(function.diagonal(feature, function.parameters(theta)).to(dtype))
        else:
            fill = torch.zeros if kind == "distance" else torch.ones
            statistics.append(fill(shape, dtype=dtype, device=rows.device))
    scalars = [a.to(dtype) for a in rows.scalars] * 2
    return statistics, scalars, False


def _visit(job: _Job, workspace: Workspace, temporaries: int, visit: Callable[[slice, slice], None]) -> None:
    """Visit every panel; where memory runs out, go on from that panel with half the rows per tile, and say so.

    `visit` changes its result only after everything it needs is computed: a panel that failed has left no trace.
    """
    workspace.ran(TorchTiles.title)
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
        workspace.note(f"memory ran out in a tile: went on with {job.step} rows per tile, and the same result")


class _Accumulator:
    """Adds up the pullback of sum(W * K) over tiles, eqs. (M-23) to (M-26).

    What a panel contributes is collected first and added by `commit`: a panel that failed is dropped as a whole.
    """

    def __init__(self, job: _Job) -> None:
        self.job = job
        form = job.form
        self.rows: list[Tensor | None] = [None] * (len(form.statistics) + form.scalar_count)
        self.cols: list[Tensor | None] = self.rows if job.symmetric else [None] * len(self.rows)
        self.theta: list[Tensor | None] = [None] * form.parameter_count
        self._parts: list[tuple[list[Tensor | None], int, slice | None, Tensor]] = []

    def gradient(self) -> PairGradient:
        return PairGradient(self.rows, [] if self.job.symmetric else self.cols, self.theta)

    def add_panel(self, i: slice, j: slice, weight: Tensor, partials: list[Partial]) -> None:
        """Collect what one panel contributes; the partials' memory is used up."""
        self._parts = []
        count = len(self.job.form.statistics)
        products: dict[int, Tensor] = {}
        for partial in partials:
            if partial.tile is None:
                weighted = weight
            elif id(partial.tile) in products:
                weighted = products[id(partial.tile)]
            else:
                # The tile has served: its memory takes the product, since fresh pages would cost as much again.
                own = partial.tile.shape == weight.shape
                weighted = products[id(partial.tile)] = partial.tile.mul_(weight) if own else weight * partial.tile
            symbol, scalar = partial.symbol, partial.scalar
            if symbol.kind == "parameter":
                self.add_theta(symbol.index, weighted.sum((-2, -1)) * _flat(scalar))
            elif symbol.kind in ("left", "right"):
                part = weighted.sum(-1 if symbol.kind == "left" else -2)
                part = part * (scalar if isinstance(scalar, float) else scalar.squeeze(-1))
                side, where = (self.rows, i) if symbol.kind == "left" else (self.cols, j)
                self.add_rows(side, count + symbol.index, where, part)
            else:
                _pull_statistic(self, symbol.kind, symbol.index, i, j, weighted, scalar)

    def add_rows(self, side: list[Tensor | None], slot: int, where: slice, part: Tensor) -> None:
        """Collect what a tile says about part of the rows; features are (*batch, n, d'), scalars (*batch, n)."""
        self._parts.append((side, slot, where, part))

    def add_theta(self, index: int, part: Tensor) -> None:
        """Collect what a tile says about one parameter, (*batch,)."""
        self._parts.append((self.theta, index, None, part))

    def commit(self) -> None:
        """Add what was collected: first every allocation, then the sums, which need none of size n."""
        for side, slot, where, part in self._parts:
            if side[slot] is None and where is not None:
                shape, dim = list(part.shape), self._dim(slot)
                shape[dim] = (self.job.rows if side is self.rows else self.job.cols).count
                if shape != list(part.shape):
                    side[slot] = torch.zeros(shape, dtype=part.dtype, device=part.device)
        for side, slot, where, part in self._parts:
            target = side[slot]
            if target is None:
                side[slot] = part
            elif where is None:
                side[slot] = target + part
            else:
                target.narrow(self._dim(slot), where.start, where.stop - where.start).add_(part)
        self._parts = []

    def _dim(self, slot: int) -> int:
        return -2 if slot < len(self.job.form.statistics) else -1


def _pull(job: _Job, weights: Callable[[slice, slice], Tensor], workspace: Workspace | None) -> PairGradient:
    """The pullback panel by panel, where `weights` gives those of a panel."""
    total = _Accumulator(job)

    def add(i: slice, j: slice) -> None:
        tile = weights(i, j)
        beyond = job.beyond(i, j)
        if beyond is not None:
            tile = tile.clone()
            tile[..., beyond - j.start :] *= 2.0  # the mirrored pairs are not visited, eq. (M-23)
        total.add_panel(i, j, tile, job.partials(i, j)[1])
        total.commit()

    _visit(job, workspace or Workspace(), job.program.partial_temporaries, add)
    return total.gradient()


def _flat(scalar: Scalar) -> Scalar:
    return scalar if isinstance(scalar, float) else scalar[..., 0, 0]


def _pull_statistic(
    total: _Accumulator, kind: str, index: int, i: slice, j: slice, weighted: Tensor, scalar: Scalar
) -> None:
    """Through q = |u - v|^2, eq. (M-24), or s = u . v, eq. (M-25), to the features of both sides."""
    job = total.job
    if kind == "opaque":
        _pull_opaque(total, index, i, j, weighted * scalar)
        return
    left, right = job.sides(kind, index)
    u, v = left[..., i, :], right[..., j, :]
    far = job.far(index) if kind == "distance" else None
    if far is not None:
        far_u, far_v = _by_differences(
            weighted, job.rows.features[index][..., i, :], job.cols.features[index][..., j, :]
        )
    if job.symmetric and i == j and not weighted.requires_grad:
        # Symmetric weights over one whole tile: both sides are the same sum, counted twice.
        part = weighted @ u
        if kind == "distance":
            part = (weighted.sum(-1).unsqueeze(-1) * u).sub_(part)
            part = (part if far is None else torch.where(far, far_u, part)).mul_(2.0)
        total.add_rows(total.rows, index, i, part * (scalar * 2.0))
        return
    to_u, to_v = weighted @ v, weighted.mT @ u
    if kind == "distance":
        to_u = weighted.sum(-1).unsqueeze(-1) * u - to_u
        to_v = weighted.sum(-2).unsqueeze(-1) * v - to_v
        if far is not None:
            to_u, to_v = torch.where(far, far_u, to_u), torch.where(far, far_v, to_v)
        to_u, to_v = to_u * 2.0, to_v * 2.0
    total.add_rows(total.rows, index, i, to_u * scalar)
    total.add_rows(total.cols, index, j, to_v * scalar)


def _pull_opaque(total: _Accumulator, index: int, i: slice, j: slice, weighted: Tensor) -> None:
    """Through a Python function to the points and its parameters, eq. (M-49)."""
    job = total.job
    function, left, right = job.form.opaque(index), job.rows.features[index], job.cols.features[index]
    to_x, to_z, to_theta = opaque.pullback(function, job.exact_theta, left[..., i, :], right[..., j, :], weighted)
    total.add_rows(total.rows, index, i, to_x)
    total.add_rows(total.cols, index, j, to_z)
    for at, part in enumerate(to_theta):
        total.add_theta(function.first + at, part)


def _by_differences(weighted: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """sum_j c_ij (u_i - v_j) and sum_i c_ij (v_j - u_i), eq. (M-24), by columns: one tile more, no cancellation."""
    to_u, to_v = [], []
    for column in range(u.shape[-1]):
        difference = (u[..., column].unsqueeze(-1) - v[..., column].unsqueeze(-2)).to(weighted.dtype)
        part = weighted * difference
        to_u.append(part.sum(-1))
        to_v.append(-part.sum(-2))
    return torch.stack(to_u, dim=-1), torch.stack(to_v, dim=-1)
