"""An order of rows in which near ones stand together: repeated halving along the widest column (a k-d tree).

Any order gives correct results; a good one makes boxes around runs of rows small. Codes and inner products take no
part: only distances decay. Source: Bentley (1975), Multidimensional binary search trees used for associative searching.
"""

import numpy
import torch
from torch import Tensor

from flashgp.foundations.form import Form, Rows

Array = numpy.ndarray


def spatial_order(form: Form, rows: Rows, size: int) -> Tensor:
    """Numbers of all rows in their new order, (n,): every aligned run of size * 2^s of them is a box of the tree.

    Args: rows: detached, on the CPU; members of a batch share one order, made from the columns of all of them.
    Returns: the order as it is when there is no distance, or no more rows than one panel.
    Cost: about n log2(n / size) steps per column, in float32: the order is exact whatever it rounds.
    """
    order = numpy.arange(rows.count)
    distances = [
        f.numpy()
        for kind, f in zip(form.statistics, rows.features, strict=True)
        if kind == "distance" and f.shape[-1] > 0
    ]
    if not distances or rows.count <= size:
        return torch.from_numpy(order)
    points = numpy.concatenate([_columns(f) for f in distances])
    levels = (-(-rows.count // size) - 1).bit_length()
    open_nodes = [(0, rows.count, size << (levels - 1))]
    while open_nodes:
        start, stop, half = open_nodes.pop()
        if stop - start > half:
            _cut(points[:, start:stop], order[start:stop], half)
        if half > size:
            middle = min(stop, start + half)
            open_nodes += [(a, b, half // 2) for a, b in ((start, middle), (middle, stop)) if a < b]
    return torch.from_numpy(order)


def _columns(feature: Array) -> Array:
    """(*batch, n, d) around its middle as (all columns, n), float32: contiguous, four times quicker to go over."""
    middle = 0.5 * (feature.min(-2, keepdims=True) + feature.max(-2, keepdims=True))
    centred = (feature - middle).astype(numpy.float32)
    return numpy.ascontiguousarray(numpy.swapaxes(centred, -1, -2)).reshape(-1, feature.shape[-2])


def _cut(points: Array, order: Array, count: int) -> None:
    """The `count` rows that are lowest in the widest column come first, in place."""
    widths = points.max(1) - points.min(1)
    widest = int(widths.argmax())
    if widths[widest] > 0:
        parts = numpy.argpartition(points[widest], count)
        points[:], order[:] = points[:, parts], order[parts]
