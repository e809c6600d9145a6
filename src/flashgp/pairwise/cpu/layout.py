"""How rows lie in memory for the generated loops: blocks of B rows, each column of a block contiguous.

A statistic is evaluated in one of these ways, which decide the generated text:

    inline       up to INLINE columns, unrolled in the pair loop: sum_k (u_k - v_k)^2, or sum_k u_k v_k
    split        the same with every column as a float32 and what it lost: (u - v) + (u' - v')          (M-68)
    differences  more columns: four at a time, for four rows at once, into a row buffer
    dot          |u|^2 + |v|^2 - 2 u.v: half the work of differences, where its rounding is admissible  (M-69);
                 unrolled for a few columns, else four at a time
    match        equal codes

Rows are padded to whole blocks with copies of the last one, right-hand sides with zeros: a padded pair is finite and
adds nothing.
"""

from dataclasses import dataclass

import numpy
import torch
from torch import Tensor

from flashgp.foundations.form import Form, Rows
from flashgp.pairwise.program import program_of

__all__ = ["INLINE", "ROWS", "Statistic", "block_size", "layout_of", "packed", "packed_columns"]

INLINE = 8  # columns unrolled in the pair loop; a kernel of more compiles once for all numbers of columns
ROWS = 4  # rows evaluated together
LANES = 16  # loops run over a multiple of this
SPLIT_BOUND = 4e-7  # largest 2^-24 |u| |u - v| for which float32 columns keep a product's error below 1e-6
DOT_BOUND = 2e-6  # largest 2^-24 (|u|^2 + |v|^2), times the slope bound, of the form that cancels
BLOCK, NARROW_BLOCK, MANY_COLUMNS = 512, 256, 12  # rows per block, for few columns and for more
NEAR_COLUMNS = 5  # from here on the form that cancels saves more than its norms cost


@dataclass(frozen=True)
class Statistic:
    """One statistic as the generated code sees it: kind, way, and its columns when they are unrolled (else 0)."""

    kind: str
    way: str
    columns: int


def layout_of(form: Form, rows: Rows, cols: Rows, dtype: torch.dtype) -> tuple[tuple[Statistic, ...], list[Tensor]]:
    """The statistics of one model, and the centre (d,) of each feature that is subtracted before packing.

    Cost: two passes over the features.
    """
    found: list[Statistic] = []
    centres: list[Tensor] = []
    program = program_of(form)
    for index, kind in enumerate(form.statistics):
        left, right = rows.features[index], cols.features[index]
        if kind == "match":
            found.append(Statistic(kind, "match", 0))
            centres.append(left.new_zeros(0))
            continue
        d = left.shape[-1]
        centre = torch.zeros(d, dtype=torch.float64)
        if kind == "distance":
            centre = 0.5 * (left.amin(0) + left.amax(0)).double()
        centres.append(centre)
        if kind == "product":
            found.append(Statistic(kind, "inline", d) if d <= INLINE else Statistic(kind, "dot", 0))
            continue
        reach = max(float((f.double() - centre).square().sum(-1).amax()) for f in (left, right))
        eps = torch.finfo(dtype).eps / 2
        close = program.bounded_slope[index] and 2 * reach * eps <= DOT_BOUND * eps * 2.0**24
        if d <= INLINE and close and d >= NEAR_COLUMNS:
            found.append(Statistic(kind, "dot", d))
            continue
        if d <= INLINE:
            # Rounding moves u by 2^-24 |u|, q by 2 |u - v| times that; pairs that count are about 1 apart.
            far = dtype == torch.float32 and 2.0**-24 * reach**0.5 > SPLIT_BOUND
            found.append(Statistic(kind, "split" if far else "inline", d))
            continue
        found.append(Statistic(kind, "dot" if close else "differences", 0))
    return tuple(found), centres


def block_size(layout: tuple[Statistic, ...], rows: Rows) -> int:
    """Rows per block: fewer where many columns of one would leave the first-level cache (decision 7)."""
    columns = 0
    for statistic, feature in zip(layout, rows.features, strict=True):
        if statistic.kind != "match":
            columns += feature.shape[-1] * (2 if statistic.way == "split" else 1)
    return NARROW_BLOCK if columns > MANY_COLUMNS else BLOCK


def packed(
    feature: Tensor, centre: Tensor, statistic: Statistic, block: int, dtype: torch.dtype
) -> list[numpy.ndarray]:
    """Arrays (blocks, columns, B) of a feature, and (blocks, B) of its squared norms where they are needed."""
    way = statistic.way
    moved = feature.detach().double() - centre
    values = moved.to(dtype)
    parts = [values]
    if way == "split":
        parts.append((moved - values.double()).to(dtype))
    columns = torch.cat(parts, -1)
    if statistic.columns == 0:
        columns = torch.nn.functional.pad(columns, (0, -columns.shape[-1] % 4))
    arrays = [packed_columns(columns.mT, block)]
    if way == "dot" and statistic.kind == "distance":
        arrays.append(packed_columns(values.double().square().sum(-1).to(dtype), block))
    return arrays


def packed_columns(columns: Tensor, block: int, pad: str = "last") -> numpy.ndarray:
    """(k, n) to (blocks, k, B), or (n,) to (blocks, B); the last block is filled with the last row, or zeros."""
    n = columns.shape[-1]
    blocks = -(-n // block)
    filler = (
        columns[..., -1:].expand(*columns.shape[:-1], blocks * block - n)
        if pad == "last"
        else columns.new_zeros((*columns.shape[:-1], blocks * block - n))
    )
    whole = torch.cat([columns, filler], -1).unflatten(-1, (blocks, block))
    return (whole.movedim(-2, 0) if columns.dim() > 1 else whole).contiguous().numpy()
