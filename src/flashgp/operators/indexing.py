"""Index of `K[i, j]`: checked, and made slices or positions of rows and columns."""

import operator
from typing import Any

import numpy
import torch
from torch import Tensor

from flashgp.foundations.errors import DomainError, ShapeError

Side = slice | Tensor  # forward slice (its rows are a view), or positions 0 to count - 1
WHOLE = slice(None)
WANTED = "an integer, a slice, or a one-dimensional list, array or tensor of integers or booleans"


def sides(index: Any, rows: int, cols: int, device: torch.device) -> tuple[Side, Side, tuple[bool, bool]]:
    """Rows and columns of an index, and whether each is a single one, whose dimension is dropped.

    Both sides are one object where they are the same: then the part is symmetric if the matrix is.
    Raises: ShapeError for more than two indices, masks of another length, positions out of range and tensors that are
        not one-dimensional; DomainError for what is no index.
    """
    given = index if isinstance(index, tuple) else (index,)
    if len(given) > 2:
        raise ShapeError(f"`index` must be one or two indices, K[i] or K[i, j], got {len(given)}; leave the others out")
    left, right = (*given, WHOLE, WHOLE)[:2]
    i, one_row = _side(left, rows, device)
    j, one_col = _side(right, cols, device)
    same = left is right or (isinstance(left, slice) and isinstance(right, slice) and left == right)
    return i, i if same and rows == cols else j, (one_row, one_col)


def _side(index: Any, count: int, device: torch.device) -> tuple[Side, bool]:
    if isinstance(index, slice):
        return _of_slice(index, count, device), False
    number = _as_integer(index)
    if number is None:
        return _positions(index, count).to(device), False
    if not -count <= number < count:
        raise ShapeError(f"`index` must be within {count} rows or columns, got {number}; count from 0, or from -1 back")
    return slice(number % count, number % count + 1), True


def _as_integer(index: Any) -> int | None:
    """Python's and NumPy's integers and tensors without dimensions; None for what has several entries."""
    boolean = isinstance(index, bool | numpy.bool_) or getattr(index, "dtype", None) in (torch.bool, numpy.bool_)
    if getattr(index, "ndim", 0) or isinstance(index, list | tuple | range):
        return None
    try:
        if boolean:
            raise TypeError("one boolean")
        return operator.index(index)
    except TypeError as error:
        raise DomainError(f"`index` must be {WANTED}, got {index!r} ({error}); for example K[0, 2:5]") from None


def _of_slice(index: slice, count: int, device: torch.device) -> Side:
    try:
        start, stop, step = index.indices(count)
    except (TypeError, ValueError) as error:
        raise DomainError(
            f"`index` must be a slice of integers, got {index!r} ({error}); write K[start:stop]"
        ) from None
    if step > 0:
        return slice(start, max(start, stop), step)
    return torch.arange(count, device=device)[list(range(start, stop, step))]


def _positions(index: Any, count: int) -> Tensor:
    """Positions 0 to count - 1, int64, of a mask or of positions that may count from the end."""
    try:
        given = torch.as_tensor(index)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DomainError(f"`index` must be {WANTED}, got {type(index).__name__} ({error}); convert it") from None
    if given.dim() != 1:
        raise ShapeError(f"`index` must be {WANTED}, got shape {tuple(given.shape)}; flatten it")
    if given.dtype == torch.bool:
        if len(given) != count:
            raise ShapeError(f"`index` must be a mask of {count} entries here, got {len(given)}; one per row or column")
        return given.nonzero()[:, 0]
    if given.numel() and (given.dtype == torch.uint8 or given.is_floating_point() or given.is_complex()):
        raise DomainError(f"`index` must be {WANTED}, got dtype {given.dtype}; convert it with .bool() or .long()")
    positions = given.long()
    wrong = positions[(positions < -count) | (positions >= count)]
    if len(wrong):
        raise ShapeError(
            f"`index` must be within {count} rows or columns, got {int(wrong[0])}; count from 0, or from -1 back"
        )
    return torch.where(positions < 0, positions + count, positions)
