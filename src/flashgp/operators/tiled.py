"""Sums over tiles of the pairs, differentiable to any order in both modes, with one tile alive at a time.

A sum over tiles (I, J) of what a function makes of the parts of its tensors that belong to a tile,

    F(tensors) = sum over (I, J) of scatter_IJ f(tensors at I and J),                          (M-110)

has derivatives that are sums of the same kind, of the derivatives of f. So every derivative of a product is computed
tile by tile: each is recomputed for each order, its own graph dropped before the next. Nothing of size n m is kept,
where a graph over F as a whole would keep every tile several times.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from flashgp.foundations.profile_ranges import profiled
from flashgp.pairwise.problem import PairProblem
from flashgp.pairwise.torch import differentiable
from flashgp.pairwise.torch.opaque import Pieces
from flashgp.pairwise.torch.tiles import tile_rows

Tile = tuple[slice, slice]
NOWHERE: Tile = (slice(0, 0), slice(0, 0))  # of no pairs: it tells the shapes of a sum that has no tiles


@dataclass(frozen=True)
class Slot:
    """Place of a part: to which tensor it belongs, and which of its dimensions run over rows and over columns of K."""

    tensor: int
    rows: int | None = None
    cols: int | None = None

    def part(self, tensor: Tensor, tile: Tile) -> Tensor:
        """The part of a tensor that belongs to a tile, as a view."""
        for dim, places in zip((self.rows, self.cols), tile, strict=True):
            if dim is not None:
                tensor = tensor.narrow(dim, places.start, places.stop - places.start)
        return tensor

    def zeros(self, part: Tensor, counts: Sequence[int]) -> Tensor:
        """The whole that a part is of; of a mapped part (torch.func.vmap) mapped too."""
        shape = list(part.shape)
        for dim, count in zip((self.rows, self.cols), counts, strict=True):
            if dim is not None:
                shape[dim] = count
        return part.new_zeros(shape)


@dataclass(frozen=True)
class TiledSum:
    """A sum over tiles, eq. (M-110); call it with its tensors.

    Args:
        function: of a tile and the parts that `takes` names, in plain torch; returns the parts that `gives` names.
        tiles: ranges of rows and of columns; without any the sum is zero. counts: how many there are in all.
        takes, gives: the tensors behind arguments and results; a tensor may be taken, or added to, at several places.
    Cost: one tile of `function` at a time, and the results.
    """

    function: Callable[..., Sequence[Tensor]]
    tiles: tuple[Tile, ...] | Pieces
    counts: tuple[int, int]
    takes: tuple[Slot, ...]
    gives: tuple[Slot, ...]

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return _Tiled.apply(self, *tensors)

    @property
    def outputs(self) -> int:
        return 1 + max(slot.tensor for slot in self.gives)

    @profiled("pairwise products")
    def evaluated(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The values, without a graph."""
        sums: dict[int, Tensor] = {}
        for tile in self.tiles or (NOWHERE,):
            parts = self.function(tile, *(slot.part(tensors[slot.tensor], tile) for slot in self.takes))
            for slot, part in zip(self.gives, parts, strict=True):
                if slot.tensor not in sums:
                    sums[slot.tensor] = slot.zeros(part, self.counts)
                slot.part(sums[slot.tensor], tile).add_(part)
        return tuple(sums[k] for k in range(self.outputs))

    def pulled(self, wanted: Sequence[int]) -> "TiledSum":
        """The gradients by the `wanted` tensors, as a sum of a cotangent of every output, then of the tensors."""
        moving = [k for k, slot in enumerate(self.takes) if slot.tensor in wanted]
        given, outputs = len(self.gives), self.outputs

        def function(tile: Tile, *values: Tensor) -> tuple[Tensor, ...]:
            return _pull(self.function, tile, values[given:], moving)[1](values[:given])

        return replace(
            self,
            function=function,
            takes=(*self.gives, *(replace(slot, tensor=outputs + slot.tensor) for slot in self.takes)),
            gives=tuple(replace(self.takes[k], tensor=wanted.index(self.takes[k].tensor)) for k in moving),
        )

    def pushed(self, moved: Sequence[int]) -> "TiledSum":
        """The directional derivatives, as a sum of tangents of the `moved` tensors, then of all tensors.

        By reverse mode alone: the pullback is linear in the cotangent, and its own pullback pushes tangents forward.
        Forward mode does not nest in a dual level that a caller has opened.
        """
        moving = [k for k, slot in enumerate(self.takes) if slot.tensor in moved]
        given = len(moving)

        def function(tile: Tile, *values: Tensor) -> tuple[Tensor, ...]:
            outputs, pull = _pull(self.function, tile, values[given:], moving)
            _, push = torch.func.vjp(pull, tuple(torch.zeros_like(o) for o in outputs))  # type: ignore[misc]
            return push(values[:given])[0]

        tangents = (replace(self.takes[k], tensor=moved.index(self.takes[k].tensor)) for k in moving)
        return replace(
            self,
            function=function,
            takes=(*tangents, *(replace(slot, tensor=len(moved) + slot.tensor) for slot in self.takes)),
        )

    def gradients(self, cotangents: Sequence[Tensor], tensors: Sequence[Tensor], wanted: Sequence[bool]) -> list[Any]:
        """Gradients by the wanted tensors, None for others and for codes; differentiable again."""
        moving = [k for k, tensor in enumerate(tensors) if wanted[k] and tensor.is_floating_point()]
        found = dict(zip(moving, self.pulled(moving)(*cotangents, *tensors), strict=True)) if moving else {}
        return [found.get(k) for k in range(len(tensors))]

    def tangents(self, tensors: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
        """The directional derivative of every output; differentiable again."""
        moving = [k for k, tensor in enumerate(tensors) if tensor.is_floating_point() and tangents[k] is not None]
        return self.pushed(moving)(*(t for k in moving if (t := tangents[k]) is not None), *tensors)


def _pull(
    function: Callable[..., Sequence[Tensor]], tile: Tile, values: Sequence[Tensor], moving: Sequence[int]
) -> tuple[tuple[Tensor, ...], Callable[[Sequence[Tensor]], tuple[Tensor, ...]]]:
    """Value of a function at one tile, and the pullback to the arguments that move."""

    def at(*moved: Tensor) -> tuple[Tensor, ...]:
        everything = list(values)
        for k, value in zip(moving, moved, strict=True):
            everything[k] = value
        return tuple(function(tile, *everything))

    outputs, pull = torch.func.vjp(at, *(values[k] for k in moving))  # type: ignore[misc]
    return outputs, lambda cotangents: pull(tuple(cotangents))


class _Tiled(torch.autograd.Function):
    """A sum over tiles whose derivatives are such sums."""

    generate_vmap_rule = True

    @staticmethod
    def forward(total: TiledSum, *tensors: Tensor) -> tuple[Tensor, ...]:
        return total.evaluated(tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.total, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *ctx.total.gradients(cotangents, ctx.saved_tensors, ctx.needs_input_grad[1:]))

    @staticmethod
    def jvp(ctx: Any, _total: None, *tangents: Tensor | None) -> tuple[Tensor, ...]:
        return ctx.total.tangents(ctx.saved_tensors, tangents)


def product_sum(problem: PairProblem, pairs: int | None = None) -> TiledSum:
    """K @ right on portable tiles of so many pairs, as a sum of right and of the tensors of the problem."""

    def function(tile: Tile, right: Tensor, *tensors: Tensor) -> tuple[Tensor]:
        return (_block(problem, tile, tensors).to(right.dtype) @ right,)

    takes = (Slot(0, cols=-2), *_slots(problem, 1))
    return TiledSum(function, _product_tiles(problem, pairs), _counts(problem), takes, (Slot(0, rows=-2),))


def block_sum(problem: PairProblem, dtype: torch.dtype, pairs: int | None = None) -> TiledSum:
    """The dense block on portable tiles of so many pairs, as a sum of the tensors of the problem."""

    def function(tile: Tile, *tensors: Tensor) -> tuple[Tensor]:
        return (_block(problem, tile, tensors).to(dtype),)

    slots, gives = _slots(problem, 0), (Slot(0, rows=-2, cols=-1),)
    return TiledSum(function, _every_tile(problem, pairs), _counts(problem), slots, gives)


def row_panels(problem: PairProblem, pairs: int | None = None) -> list[slice]:
    """Ranges of rows, each of one tile; of no rows one range, which is empty."""
    n, m = problem.shape[-2:]
    step = tile_rows(m, problem.batch_shape.numel(), problem.device, pairs)
    return [slice(i, min(n, i + step)) for i in range(0, max(n, 1), step)]


def _every_tile(problem: PairProblem, pairs: int | None) -> tuple[Tile, ...] | Pieces:
    """Row and column ranges that cover all pairs; small ones where a Python function makes much of every pair."""
    n, m = problem.shape[-2:]
    if not problem.form.fusable:
        batch = max(1, problem.batch_shape.numel())
        return Pieces.of(problem.form, problem.rows, batch, n, m, tile_rows(1, batch, problem.device, pairs))
    return tuple((i, slice(0, m)) for i in row_panels(problem, pairs))


def _product_tiles(problem: PairProblem, pairs: int | None) -> tuple[Tile, ...] | Pieces:
    """Row and column ranges that cover what products run over, by rows; every row is in one."""
    n, near = problem.rows.count, problem.near
    if near is None:
        return _every_tile(problem, pairs)
    size, columns = near.size, tile_rows(near.size, problem.batch_shape.numel(), problem.device, pairs)
    runs = near.everywhere.runs(columns)
    covered = {i.start for i, _ in runs}
    empty = [(slice(i, min(n, i + size)), slice(0, 0)) for i in range(0, n, size) if i not in covered]
    return tuple(sorted(runs + empty, key=lambda ranges: (ranges[0].start, ranges[1].start)))


def _counts(problem: PairProblem) -> tuple[int, int]:
    return problem.rows.count, problem.right.count


def _slots(problem: PairProblem, first: int) -> tuple[Slot, ...]:
    """Slots of the row tensors, the column tensors and theta; the columns of a symmetric problem are its rows."""
    dims = [-event or None for event in problem.event_dims]
    side = len(problem.rows.tensors)
    before = 0 if problem.symmetric else side
    rows = [Slot(first + k, rows=dims[k]) for k in range(side)]
    cols = [Slot(first + before + k, cols=dims[k]) for k in range(side)]
    return (*rows, *cols, *(Slot(first + before + side + k) for k in range(len(problem.theta))))


def _block(problem: PairProblem, tile: Tile, tensors: Sequence[Tensor]) -> Tensor:
    """The covariances of one tile from its parts, as `_slots` orders them."""
    side = len(problem.rows.tensors)
    rows, cols = (
        replace(given.rebuilt(tensors[at : at + side]), count=places.stop - places.start)
        for given, places, at in zip((problem.rows, problem.right), tile, (0, side), strict=True)
    )
    return differentiable.block(PairProblem(problem.form, tensors[2 * side :], rows, cols))
