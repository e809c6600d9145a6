"""The small exact problem on compiled loops: matrix and pullback in two calls, between them LAPACK. Needs numba.

Differences and products are swept, so that one form compiles once for every number of columns; blocks are small, so
that half of the pairs is left out from a few hundred rows on.
"""

import functools
from collections.abc import Sequence

import numpy
import torch

from flashgp.foundations.form import Form
from flashgp.foundations.profile_ranges import stretched
from flashgp.foundations.workspace import Workspace
from flashgp.pairwise.cpu.engine import CompiledPairs
from flashgp.pairwise.cpu.layout import Statistic, narrow_codes
from flashgp.pairwise.program.families import indexed
from flashgp.pairwise.small import Pulled, SmallProblem

__all__ = ["CompiledProblem", "small_layout"]

Array = numpy.ndarray
ONE_BLOCK, SMALL_BLOCK = 96, 64  # rows up to which there is one block; rows of a block where there are more
LANES = 16  # a block's rows are a multiple of this
WAYS = {"distance": "differences", "product": "dot", "match": "match"}


@functools.lru_cache(maxsize=256)
def small_layout(form: Form) -> tuple[Statistic, ...]:
    """How the statistics of a small problem are evaluated."""
    return tuple(Statistic(kind, WAYS[kind], 0) for kind in form.statistics)


class CompiledProblem(SmallProblem):
    """One model's covariance matrix, its upper triangle, and the pullback of a slope; see SmallProblem."""

    @stretched("pairwise products")
    def __init__(
        self,
        form: Form,
        theta: Sequence[float],
        features: Sequence[Array],
        count: int,
        scalars: Sequence[Array] = (),
        workspace: Workspace | None = None,
    ) -> None:
        size = SMALL_BLOCK if count > ONE_BLOCK else -(-count // LANES) * LANES
        layout = small_layout(form)
        arguments = []
        columns = [f.T if f.ndim == 2 else narrow_codes(f)[0] for f in features]
        for numbers in indexed(form, layout).statistics:
            one = _blocks(columns[numbers[0]], size) if len(numbers) == 1 else _stacked(columns, numbers, size)
            arguments += [one, one]
        for scalar in scalars:
            arguments += [_blocks(scalar[None], size)[:, 0]] * 2
        widths = [f.shape[1] if f.ndim == 2 else 0 for f in features]
        self._pairs = CompiledPairs(
            form, theta, layout, arguments, count, count, widths, size, torch.float64, True, workspace
        )
        self.matrix = torch.empty(count, count, dtype=torch.float64).numpy()  # NumPy would ask for huge pages
        self._pairs.block(self.matrix)

    @stretched("pairwise products")
    def pull(self, slope: Array) -> list[Pulled]:
        by_rows, _, by_theta = self._pairs.block_gradient(slope)
        return [*by_rows, *by_theta.tolist()]


def _stacked(columns: Sequence[Array], numbers: Sequence[int], size: int) -> Array:
    """(d, n) of the members of a family to (members, blocks, d in fours, size), padded with zeros."""
    parts = [_blocks(columns[k], size) for k in numbers]
    out = numpy.zeros((len(parts), len(parts[0]), max(part.shape[1] for part in parts), size))
    for member, part in zip(out, parts, strict=True):
        member[:, : part.shape[1]] = part
    return out


def _blocks(columns: Array, size: int) -> Array:
    """(d, n) to (blocks, d in fours, size), or codes (n,) to (blocks, size), padded with zeros."""
    n = columns.shape[-1]
    shape = (-(-n // size), size) if columns.ndim == 1 else (-(-n // size), max(4, -(-len(columns) // 4) * 4), size)
    out = numpy.zeros(shape, numpy.int32 if columns.ndim == 1 else numpy.float64)
    for block, start in enumerate(range(0, n, size)):
        stop = min(n, start + size)
        if columns.ndim == 1:
            out[block, : stop - start] = columns[start:stop]
        else:
            out[block, : len(columns), : stop - start] = columns[:, start:stop]
    return out
