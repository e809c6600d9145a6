"""Opaque statistics on tiles: a Python function of two points, evaluated over pairs piece by piece.

A tile is cut into pieces whose temporaries stay below PIECE_NUMBERS numbers, so that a function that makes (d,) or
(d, d) tensors of every pair never has more of them alive than that, whatever n, m and d.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flashgp.foundations.form import Form, Rows
from flashgp.foundations.pair_function import PairFunction, both_sides, over_batch

PIECE_NUMBERS = 2**21  # float64 numbers that the pairs of one piece make on the way: 16 MiB
KEPT_SHARE = 2  # as much again is kept by the C library, which does not give freed pieces back at once
GRADIENT_SHARE = 3  # a reverse pass keeps what the function made, and makes about twice as much


def temporary_bytes(form: Form, rows: Rows, batch: int) -> int:
    """Upper bound of the bytes that opaque statistics take beyond their tiles; 0 without any. Rows: of any number."""
    pieces = [
        f.numbers(d) * batch * GRADIENT_SHARE for f, d in zip(form.pair_functions, columns(form, rows), strict=True)
    ]
    return 8 * KEPT_SHARE * max((max(PIECE_NUMBERS, numbers) for numbers in pieces), default=0)


def columns(form: Form, rows: Rows) -> list[int]:
    """Number of columns that each Python function takes of its points."""
    kinds = zip(form.statistics, rows.features, strict=True)
    return [feature.shape[-1] for kind, feature in kinds if kind == "opaque"]


def _pieces(numbers: int, rows: int, columns: int) -> Iterator[tuple[slice, slice]]:
    """Row and column ranges of pieces, `numbers` per pair."""
    pairs = max(1, PIECE_NUMBERS // numbers)
    step = max(1, min(columns, pairs))
    lines = max(1, pairs // step)
    for i in range(0, rows, lines):
        for j in range(0, columns, step):
            yield slice(i, min(rows, i + lines)), slice(j, min(columns, j + step))


@dataclass(frozen=True)
class Pieces:
    """Row and column ranges that cover n x m pairs; the reverse pass of each stays below PIECE_NUMBERS numbers.

    Not listed: there are as many as pairs in units of a piece.
    """

    numbers: int
    n: int
    m: int

    @classmethod
    def of(cls, form: Form, rows: Rows, batch: int, n: int, m: int, most: int) -> "Pieces":
        """Pieces for a form's functions, of at most so many pairs."""
        numbers = [f.numbers(d) for f, d in zip(form.pair_functions, columns(form, rows), strict=True)]
        return cls(max(sum(numbers) * batch * GRADIENT_SHARE, -(-PIECE_NUMBERS // most)), n, m)

    def __bool__(self) -> bool:
        return bool(self.n and self.m)

    def __iter__(self) -> Iterator[tuple[slice, slice]]:
        return _pieces(self.numbers, self.n, self.m)


def tiles(
    function: PairFunction, theta: Sequence[Tensor], left: Tensor, right: Tensor, dtype: torch.dtype
) -> Callable[[slice, slice], Tensor]:
    """A maker of tiles o(x_i, z_j), eq. (M-48), computed in the points' dtype; left and right are the points."""
    values = function.parameters(theta)
    batch = _batch(function, left, right, values)
    numbers = function.numbers(left.shape[-1]) * batch.numel()

    def make(i: slice, j: slice) -> Tensor:
        x, z = left[..., i, :], right[..., j, :]
        shape = (x.shape[-2], z.shape[-2])
        if not batch.numel():  # no pairs: vmap takes none
            return left.new_zeros((*batch, *shape), dtype=dtype)
        if numbers * shape[0] * shape[1] <= PIECE_NUMBERS:
            return function.pairs(x, z, values).to(dtype)
        out = torch.empty((*batch, *shape), dtype=dtype, device=left.device)
        for a, b in _pieces(numbers, *shape):
            out[..., a, b] = function.pairs(x[..., a, :], z[..., b, :], values)
        return out

    return make


def diagonal(function: PairFunction, theta: Sequence[Tensor], x: Tensor) -> Tensor:
    """o(x_i, x_i), (*batch, n), some rows at a time; x (*batch, n, d)."""
    values = function.parameters(theta)
    batch = _batch(function, x, x, values)
    if not batch.numel():
        return x.new_zeros((*batch, x.shape[-2]))
    step = max(1, PIECE_NUMBERS // max(1, function.numbers(x.shape[-1]) * batch.numel()))
    return torch.cat([function.diagonal(part, values) for part in x.split(step, -2)], -1)


def pullback(
    function: PairFunction, theta: Sequence[Tensor], x: Tensor, z: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Gradient of sum(weights * o(x_i, z_j)) by x, z and the function's entries of theta, eq. (M-49).

    Pairs at which torch finds no derivative (the root of a zero distance) have the mean of both sides, eq. (M-261).

    Args: x (*batch, n, d), z (*batch, m, d), weights (*batch, n, m).
    Returns: (*batch, n, d), (*batch, m, d) and one (*batch,) per entry, in the dtype of the points.
    """
    values = function.parameters(theta)
    batch = torch.broadcast_shapes(_batch(function, x, z, values), weights.shape[:-2])
    x, z = x.expand(*batch, *x.shape[-2:]), z.expand(*batch, *z.shape[-2:])
    values = tuple(v.expand((*batch, *shape)) for v, shape in zip(values, function.shapes, strict=True))
    weights = weights.to(x.dtype).expand(*batch, x.shape[-2], z.shape[-2])
    to_x, to_z = torch.zeros_like(x), torch.zeros_like(z)
    to_values = [torch.zeros_like(v) for v in values]
    if not batch.numel():
        return to_x, to_z, list(function.flat(to_values))
    numbers = function.numbers(x.shape[-1]) * batch.numel() * GRADIENT_SHARE
    step: Tensor | None = None  # between the sides

    def every(u: Tensor, v: Tensor, *own: Tensor) -> Tensor:
        return function.pairs(u, v, own)

    for a, b in _pieces(numbers, x.shape[-2], z.shape[-2]):
        pull: Callable[[Tensor], tuple[Tensor, ...]]
        _, pull = torch.func.vjp(every, x[..., a, :], z[..., b, :], *values)  # type: ignore[misc]
        part_x, part_z, *parts = pull(weights[..., a, b])
        if not all(bool(part.isfinite().all()) for part in (part_x, part_z, *parts)):
            step = both_sides(x, z) if step is None else step
            one, other = x[..., a, :], z[..., b, :]
            part_x, part_z, *parts = _from_both_sides(function, one, other, values, weights[..., a, b], step)
        to_x[..., a, :] += part_x
        to_z[..., b, :] += part_z
        for total, part in zip(to_values, parts, strict=True):
            total += part
    return to_x, to_z, list(function.flat(to_values))


def _from_both_sides(
    function: PairFunction, x: Tensor, z: Tensor, values: Sequence[Tensor], weights: Tensor, step: Tensor
) -> list[Tensor]:
    """The pullback of a piece pair by pair, with (f'(x + step, z) + f'(x - step, z)) / 2 where f' is no number."""
    of_parameters = (None,) * len(values)
    slope = torch.func.grad(function, tuple(range(2 + len(values))))
    columns = torch.func.vmap(slope, (None, 0, *of_parameters))
    pairs = torch.func.vmap(columns, (0, None, *of_parameters))
    events = (2, 2, *map(len, function.shapes))

    def at(points: Tensor) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = over_batch(pairs, (points, z, *values), events)
        return found

    parts = []
    for k, (here, ahead, behind) in enumerate(zip(at(x), at(x + step), at(x - step), strict=True)):
        slopes = torch.where(here.isfinite(), here, 0.5 * (ahead + behind))  # (M-261)
        weighted = slopes * weights.reshape(*weights.shape, *(1,) * (slopes.dim() - weights.dim()))
        rows, columns_ = weights.dim() - 2, weights.dim() - 1
        parts.append(weighted.sum(columns_ if k == 0 else rows if k == 1 else (rows, columns_)))
    return parts


def _batch(function: PairFunction, x: Tensor, z: Tensor, values: Sequence[Tensor]) -> torch.Size:
    own = (v.shape[: v.dim() - len(shape)] for v, shape in zip(values, function.shapes, strict=True))
    return torch.broadcast_shapes(x.shape[:-2], z.shape[:-2], *own)
