"""The GPU backend: products and gradients over pairs in generated Triton kernels, float32, nothing stored.

It serves float32 on CUDA devices. What it hands to the portable backend, explicitly: float64 jobs (a GPU's float64 rate
leaves nothing to gain), `diagonal` and `diagonal_gradient` (n numbers), tables without rows or columns, forms of more
than MAX_STATISTICS statistics. Derivatives of second order are the operators' matter and run there on the torch
tiles. Tensors on a CPU are refused, unless Triton interprets its kernels (TRITON_INTERPRET=1, for tests).

Launches go to the current stream, buffers come from PyTorch's allocator, nothing waits for the device; a call can be
captured in a CUDA graph once its kernels are compiled (call it once before). Equal calls give equal bits.
"""

import importlib.util

import torch
from torch import Tensor

from flashgp.foundations.errors import BackendUnavailableError, DomainError
from flashgp.foundations.form import Rows, broadcast_batch
from flashgp.foundations.workspace import Workspace
from flashgp.pairwise.backend import Backend, PairGradient, register_backend
from flashgp.pairwise.problem import PairProblem
from flashgp.pairwise.program.program import program_of
from flashgp.pairwise.torch.tiles import TorchTiles
from flashgp.pairwise.triton.gradients import pair_gradient
from flashgp.pairwise.triton.kernel_source import FEW
from flashgp.pairwise.triton.launch import LaunchSettings, blocks_for, columns_per_split, launch, on_device, routes
from flashgp.pairwise.triton.packing import Packed, member_stride, packed, packed_bytes, store_norms
from flashgp.pairwise.triton.tile_source import power_of_two

MAX_STATISTICS = 128  # each has lines of its own in a kernel, and arguments
HELD = 32  # columns of left and right that the reverse kernel keeps in registers; more are read again in every tile


@register_backend("triton")
class TritonTiles(Backend):
    """Generated Triton kernels in float32; see Backend for the contract and the module for what is handed on.

    Raises: BackendUnavailableError when Triton is not installed or the tensors are not on a CUDA device; DomainError
        for tensors on different devices.
    """

    title = "triton"

    def __init__(self, settings: LaunchSettings | None = None) -> None:
        self.settings = settings or LaunchSettings()
        self._torch = TorchTiles()

    def block(
        self, problem: PairProblem, *, dtype: torch.dtype, workspace: Workspace | None = None, upper: bool = False
    ) -> Tensor:
        form, rows, symmetric = problem.form, problem.rows, problem.symmetric
        if _not_ours(problem, dtype):
            return self._torch.block(problem, dtype=dtype, workspace=workspace, upper=upper)
        workspace = workspace or Workspace()
        workspace.ran(self.title)
        with workspace.hold(packed_bytes(rows, problem.columns)):
            job = self._pack(problem)
            shape = self.settings.shape("block", routes(form, job.columns, False))
            blocks, tiles = blocks_for(job.rows.count, shape.rows), blocks_for(job.cols.count, shape.columns)
            out = workspace.empty((job.members, job.rows.count, job.cols.count), dtype, rows.device)
            launch(
                "block",
                form,
                job,
                (symmetric,),
                {"out": out, "blocks": blocks, "tiles": tiles},
                shape,
                blocks * tiles * job.members,
                {"MIRROR": not upper} if symmetric else {},
            )
        return out.reshape(*job.batch, *out.shape[1:])

    def diagonal(self, problem: PairProblem, *, dtype: torch.dtype) -> Tensor:
        return self._torch.diagonal(problem, dtype=dtype)

    def product(self, problem: PairProblem, right: Tensor, *, workspace: Workspace | None = None) -> Tensor:
        form, rows, t = problem.form, problem.rows, right.shape[-1]
        if t == 0 or problem.near is not None or _not_ours(problem, right.dtype):
            return self._torch.product(problem, right, workspace=workspace)
        _same_device("right", right, rows)
        workspace = workspace or Workspace()
        workspace.ran(self.title)
        with workspace.hold(packed_bytes(rows, problem.columns)):
            job = self._pack(problem, right)
            shape = self.settings.shape("few" if t <= FEW else "many", routes(form, job.columns, False))
            blocks = blocks_for(job.rows.count, shape.rows)
            splits = self.settings.splits(blocks, job.members, job.cols.count, shape)
            out = workspace.empty((splits, job.members, job.rows.count, t), right.dtype, rows.device)
            flat = _flat(right, job.batch)
            arguments = {
                "right": flat,
                "right_member": member_stride(flat),
                "out": out,
                "blocks": blocks,
                "splits": splits,
                "split_columns": columns_per_split(job.cols.count, splits, shape),
            }
            width, chunks = t, 1
            if t > FEW:
                width = power_of_two(t)
                chunks = blocks_for(t, width)
                arguments |= {"t": t, "chunks": chunks}
            constants = {"SPAN": shape.span} if t <= FEW else {}
            launch("product", form, job, (width,), arguments, shape, blocks * splits * chunks * job.members, constants)
        total = out[0] if splits == 1 else out.sum(0)
        return total.reshape(*job.batch, *total.shape[1:])

    def block_gradient(
        self, problem: PairProblem, weights: Tensor, *, workspace: Workspace | None = None
    ) -> PairGradient:
        if _not_ours(problem, weights.dtype):
            return self._torch.block_gradient(problem, weights)
        _same_device("weights", weights, problem.rows)
        job = self._pack(problem, weights, slopes=True)
        flat = weights.detach()
        flat = flat.expand(*job.batch, *flat.shape[-2:]) if flat.shape[:-2].numel() > 1 else flat
        flat = flat.reshape(-1, *flat.shape[-2:])

        def given(swapped: bool) -> dict[str, object]:
            row, column = (2, 1) if swapped else (1, 2)
            return {
                "weights": flat,
                "weights_member": member_stride(flat),
                "weights_row": flat.stride(row),
                "weights_column": flat.stride(column),
            }

        return pair_gradient(problem.form, job, problem.symmetric, ("given", 0), given, self.settings)

    def bilinear_gradient(
        self, problem: PairProblem, left: Tensor, right: Tensor, *, workspace: Workspace | None = None
    ) -> PairGradient:
        if right.shape[-1] == 0 or problem.near is not None or _not_ours(problem, right.dtype):
            return self._torch.bilinear_gradient(problem, left, right)
        _same_device("left", left, problem.rows)
        _same_device("right", right, problem.rows)
        if problem.symmetric:  # symmetric weights (U V^T + V U^T) / 2 serve both sides at once, eq. (M-21)
            batch = broadcast_batch(left.shape[:-2], right.shape[:-2])
            left, right = (s.expand(*batch, *s.shape[-2:]) for s in (left, right))
            left, right = torch.cat([left, right], -1), torch.cat([right, left], -1) * 0.5
        job = self._pack(problem, left, right, slopes=True)
        t = right.shape[-1]
        how = ("few", t) if t <= FEW else ("many", power_of_two(t, most=HELD))
        sides = [_flat(left.to(right.dtype), job.batch), _flat(right, job.batch)]

        def given(swapped: bool) -> dict[str, object]:
            one, two = reversed(sides) if swapped else sides
            members = {"left": one, "right": two, "left_member": member_stride(one), "right_member": member_stride(two)}
            return members | ({"t": t} if t > FEW else {})

        return pair_gradient(problem.form, job, problem.symmetric, how, given, self.settings)

    def diagonal_gradient(self, problem: PairProblem, weights: Tensor) -> PairGradient:
        return self._torch.diagonal_gradient(problem, weights)

    def _pack(self, problem: PairProblem, *others: Tensor, slopes: bool = False) -> Packed:
        """The packed sides for the batch that everything together has; `slopes` when derivatives are wanted."""
        form, theta, rows, cols = problem.form, problem.theta, problem.rows, problem.columns
        batch = broadcast_batch(problem.batch_shape, *(t.shape[:-2] for t in others))
        columns = [f.shape[-1] if f.is_floating_point() else 0 for f in rows.features]
        fast = routes(form, columns, False)
        kinked = slopes and not all(program_of(form).bounded_slope.values())
        job = packed(form, theta, rows, cols, fast, batch, kinked)
        with on_device(job.route.device):
            store_norms(job, fast, problem.symmetric)
        return job


def _flat(side: Tensor, batch: torch.Size) -> Tensor:
    """(members or 1, rows, t), contiguous."""
    side = side.detach()
    shape = batch if side.shape[:-2].numel() > 1 else torch.Size(())
    return side.expand(*shape, *side.shape[-2:]).reshape(-1, *side.shape[-2:]).contiguous()


def _not_ours(problem: PairProblem, dtype: torch.dtype) -> bool:
    """True if the portable backend serves this call.

    Raises: BackendUnavailableError when neither does: no Triton, or float32 on a device without it.
    """
    form, rows, cols = problem.form, problem.rows, problem.columns
    if not form.fusable or dtype != torch.float32 or rows.count == 0 or (cols is not None and cols.count == 0):
        return True
    if len(form.statistics) > MAX_STATISTICS:
        return True
    if cols is not None and cols.device != rows.device:
        raise DomainError(
            f"`cols` must be on {rows.device} like `rows`, got {cols.device}; move one of them with .to(...)"
        )
    if importlib.util.find_spec("triton") is None:
        raise BackendUnavailableError(
            "the backend 'triton' needs the package triton, which is not installed; install triton or use "
            "the backend 'torch'"
        )
    if rows.device.type != "cuda" and not _interpreting():
        raise BackendUnavailableError(
            f"`rows` must be on a CUDA device for the backend 'triton', got {rows.device}; move x there or use the "
            "backend 'torch'"
        )
    return False


def _interpreting() -> bool:
    import triton

    return bool(triton.knobs.runtime.interpret)


def _same_device(name: str, tensor: Tensor, rows: Rows) -> None:
    if tensor.device != rows.device:
        raise DomainError(
            f"`{name}` must be on {rows.device} like `rows`, got {tensor.device}; move one of them with .to(...)"
        )
