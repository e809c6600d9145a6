"""The reverse pass on the host: one launch that owns the rows, one with the sides exchanged, eq. (M-63)."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from flashgp.foundations.form import Form
from flashgp.pairwise.backend import PairGradient
from flashgp.pairwise.problem import exchanged
from flashgp.pairwise.program.program import program_of
from flashgp.pairwise.triton.launch import LaunchSettings, blocks_for, columns_per_split, launch, routes
from flashgp.pairwise.triton.packing import Packed
from flashgp.pairwise.triton.tile_source import power_of_two


def pair_gradient(
    form: Form,
    job: Packed,
    symmetric: bool,
    how: tuple[str, int],
    given: Callable[[bool], Mapping[str, Any]],
    settings: LaunchSettings,
) -> PairGradient:
    """Gradients of sum(W * K) by rows, columns and parameters, eqs. (M-23) to (M-26).

    Args:
        symmetric: both sides are the same rows and W is symmetric: what a row receives as a column is what it
            receives as a row, so one launch serves, doubled.
        how: the way the kernel has W, and the columns of left and right in it; see GradientText.
        given: the kernel's arguments that hold W; with True those of its transpose.
    Cost: one pass over the pairs when symmetric, two otherwise, and d / 64 as many for features of d > 64 columns.
    """
    rows, theta = _rows_first(form, job, how, given(False), settings, with_theta=True)
    if symmetric:
        return PairGradient([None if g is None else g.mul_(2.0) for g in rows], [], theta)
    cols, _ = _rows_first(exchanged(form), job.swapped(), how, given(True), settings, with_theta=False)
    return PairGradient(rows, cols, theta)


def _rows_first(
    form: Form, job: Packed, how: tuple[str, int], given: Mapping[str, Any], settings: LaunchSettings, with_theta: bool
) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """Gradients by what the first side's rows contribute, in the order of Rows.tensors, and by theta."""
    program = program_of(form)
    present = [s for s, slope in program.derivatives.items() if not slope.is_zero]
    features = [s.index for s in present if s.kind in ("distance", "product")]
    scalars = [s.index for s in present if s.kind == "left"]
    fast = routes(form, job.columns, False)
    wide = [job.columns[k] for k in features if fast[k].route != "unrolled"]
    widest = max(wide, default=1)
    width = power_of_two(widest, most=64 if len(wide) <= 1 else 32)
    shape = settings.shape("gradient", fast)
    n, m, device = job.rows.count, job.cols.count, job.route.device
    blocks, chunks = blocks_for(n, shape.rows), blocks_for(max(1, widest), width)
    splits = settings.splits(blocks, job.members * chunks, m, shape)
    parameters = max(1, form.parameter_count)
    outputs = {f"g{k}": torch.empty((splits, job.members, n, job.columns[k]), device=device) for k in features}
    outputs |= {f"h{k}": torch.empty((splits, job.members, n), device=device) for k in scalars}
    to_theta = torch.empty((job.members, splits * blocks, parameters), dtype=torch.float64, device=device)
    counts = {"blocks": blocks, "splits": splits, "split_columns": columns_per_split(m, splits, shape)}
    launch(
        "gradient",
        form,
        job,
        (*how, width, with_theta),
        {**given, **outputs, "to_theta": to_theta, **counts, "chunks": chunks},
        shape,
        blocks * splits * chunks * job.members,
        {"SPAN": shape.span, "THETA": parameters},
    )
    count = len(form.statistics)
    rows: list[Tensor | None] = [None] * (count + form.scalar_count)
    for k in features:
        rows[k] = _joined(outputs[f"g{k}"], job)
    for k in scalars:
        rows[count + k] = _joined(outputs[f"h{k}"], job)
    theta: list[Tensor | None] = [None] * form.parameter_count
    if with_theta:
        sums = to_theta.sum(1)
        for s in present:
            if s.kind == "parameter":
                theta[s.index] = sums[:, s.index].reshape(job.batch)
    return rows, theta


def _joined(parts: Tensor, job: Packed) -> Tensor:
    """The sum over splits, with the batch's shape."""
    total = parts[0] if parts.shape[0] == 1 else parts.sum(0)
    return total.reshape(*job.batch, *total.shape[1:])
