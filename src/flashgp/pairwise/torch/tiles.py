"""The portable backend: torch tiles on any device, in float64 or float32, one tile of the matrix alive at a time.

`tile_job.py` has the loop over tiles, `tile_gradient.py` the reverse pass.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from flashgp.foundations.form import Form, Rows, broadcast_batch
from flashgp.foundations.profile_ranges import profiled
from flashgp.foundations.transforms import vector_jacobian
from flashgp.foundations.workspace import Workspace
from flashgp.pairwise.backend import Backend, PairGradient, register_backend
from flashgp.pairwise.problem import PairProblem
from flashgp.pairwise.program.program import program_of
from flashgp.pairwise.torch import differentiable, opaque
from flashgp.pairwise.torch.tile_gradient import Accumulator, pull_panels
from flashgp.pairwise.torch.tile_job import TITLE, TileJob, TileSettings, tile_pairs, tile_rows, visit_panels

__all__ = ["TileSettings", "TorchTiles", "tile_pairs", "tile_rows"]


@register_backend("torch")
class TorchTiles(Backend):
    """Straight torch calls over row panels; see Backend for the contract.

    Args:
        product_pairs: of a tile in products, as a plan says; by default those of the settings, as everything else.
        settings: sizes of tiles.
    """

    title = TITLE

    def __init__(self, product_pairs: int | None = None, settings: TileSettings | None = None) -> None:
        self.product_pairs, self.settings = product_pairs, settings or TileSettings()

    def block(
        self, problem: PairProblem, *, dtype: torch.dtype, workspace: Workspace | None = None, upper: bool = False
    ) -> Tensor:
        job = TileJob(problem.whole, dtype, self.settings)
        panels = job.panels()
        workspace = workspace or Workspace()
        if len(panels) == 1 and job.single_fits:
            workspace.ran(self.title)
            return job.value(*panels[0])
        out = workspace.empty(tuple(problem.shape), dtype, problem.device)

        def fill(i: slice, j: slice) -> None:
            out[..., i, j] = job.value(i, j)
            if job.symmetric and not upper and j.stop > i.stop:
                out[..., i.stop : j.stop, i] = out[..., i, i.stop : j.stop].mT

        visit_panels(job, workspace, job.program.value_temporaries, fill)
        return out

    def diagonal(self, problem: PairProblem, *, dtype: torch.dtype) -> Tensor:
        form, theta, rows = problem.form, problem.theta, problem.rows
        program = program_of(form)
        statistics, scalars, own = _diagonal_statistics(form, theta, rows, dtype)
        values = [t.unsqueeze(-1).to(dtype) if t.dim() else t.to(dtype) for t in theta]
        value = program.value(statistics, scalars, values, own)
        shape = (*broadcast_batch(rows.batch_shape, *(t.shape for t in theta)), rows.count)
        return torch.as_tensor(value, dtype=dtype, device=rows.device).expand(shape)

    def product(self, problem: PairProblem, right: Tensor, *, workspace: Workspace | None = None) -> Tensor:
        job = TileJob(problem, right.dtype, self.settings, self.product_pairs)
        workspace = workspace or Workspace()
        batch = broadcast_batch(job.batch_shape, right.shape[:-2])
        out = workspace.empty((*batch, problem.rows.count, right.shape[-1]), right.dtype, problem.device)
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

        visit_panels(job, workspace, job.program.value_temporaries, add)
        return out

    def block_gradient(
        self, problem: PairProblem, weights: Tensor, *, workspace: Workspace | None = None
    ) -> PairGradient:
        job = TileJob(problem.whole, weights.dtype, self.settings)
        return pull_panels(job, lambda i, j: weights[..., i, j], workspace)

    def taped_block(
        self, problem: PairProblem, *, dtype: torch.dtype, workspace: Workspace | None = None
    ) -> tuple[Tensor, Callable[[Tensor], PairGradient]]:
        job, rows = TileJob(problem.whole, dtype, self.settings), problem.rows
        pairs = rows.count**2 * job.batch_shape.numel()
        workspace = workspace or Workspace()
        if pairs > self.settings.taped_pairs or not job.single_fits:
            return super().taped_block(problem, dtype=dtype, workspace=workspace)
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

        @profiled("pairwise products")
        def pull(weights: Tensor) -> PairGradient:
            assert tape, "a tape is used up by its first gradient"
            total = Accumulator(job)
            total.add_panel(everything, everything, weights, tape.pop())
            total.commit()
            return total.gradient()

        return block, pull

    def bilinear_gradient(
        self, problem: PairProblem, left: Tensor, right: Tensor, *, workspace: Workspace | None = None
    ) -> PairGradient:
        job = TileJob(problem, right.dtype, self.settings)
        if not job.symmetric:
            return pull_panels(job, lambda i, j: left[..., i, :] @ right[..., j, :].mT, workspace)
        # Only the upper panels are visited, so the weights must be symmetric: (U V^T + V U^T) / 2, eq. (M-21).
        first, second = torch.cat([left, right], -1), torch.cat([right, left], -1) * 0.5
        return pull_panels(job, lambda i, j: first[..., i, :] @ second[..., j, :].mT, workspace)

    def diagonal_gradient(self, problem: PairProblem, weights: Tensor) -> PairGradient:
        rows = problem.rows
        with torch.enable_grad():
            leaf = [t.detach().requires_grad_(t.is_floating_point()) for t in rows.tensors]
            values = [t.detach().requires_grad_() for t in problem.theta]
            out = differentiable.diagonal(PairProblem(problem.form, values, rows.rebuilt(leaf))).to(weights.dtype)
            if not out.requires_grad:  # a stationary diagonal depends on nothing
                return PairGradient([None] * len(leaf), [], [None] * len(values))
            inputs = [t for t in (*leaf, *values) if t.requires_grad]
            found = iter(vector_jacobian([(out, weights.expand_as(out))], inputs))
        gradients = [next(found) if t.requires_grad else None for t in (*leaf, *values)]
        return PairGradient(gradients[: len(leaf)], [], gradients[len(leaf) :])


def _diagonal_statistics(
    form: Form, theta: Sequence[Tensor], rows: Rows, dtype: torch.dtype
) -> tuple[list[Tensor], list[Tensor], bool]:
    statistics = []
    shape = (*rows.batch_shape, rows.count)
    for index, (kind, feature) in enumerate(zip(form.statistics, rows.features, strict=True)):
        if kind == "product":
            statistics.append(feature.square().sum(-1).to(dtype))
        elif kind == "opaque":
            statistics.append(opaque.diagonal(form.opaque(index), theta, feature).to(dtype))
        else:
            fill = torch.zeros if kind == "distance" else torch.ones
            statistics.append(fill(shape, dtype=dtype, device=rows.device))
    scalars = [a.to(dtype) for a in rows.scalars] * 2
    return statistics, scalars, False
