"""Argument checks at the public door: each is made once and names the argument, what arrived and what to do."""

import contextlib
import math
import numbers
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flashgp.foundations.errors import DomainError, ShapeError
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.transforms import is_transformed

_PROMOTED = (torch.float16, torch.bfloat16)


def as_float_tensor(value: Any, name: str) -> Tensor:
    """A real floating tensor: integers and booleans become float64, half precision float32; complex is refused.

    A NumPy array is taken as it is (read-only and negative strides included), what has `__dlpack__` by that; anything
    else as an array.

    Raises: DomainError for what is no dense array of real numbers.
    """
    if not isinstance(value, Tensor):
        value = _from_array(value, name)
    if value.layout != torch.strided:
        raise DomainError(f"`{name}` must be dense, got layout {value.layout}; pass its to_dense()")
    if value.is_complex():
        raise DomainError(f"`{name}` must be real, got dtype {value.dtype}; pass its real part")
    if value.is_inference() and not torch.is_inference_mode_enabled():
        value = value.clone()  # an ordinary tensor again, which a gradient may pass
    if value.dtype in _PROMOTED:
        return value.to(torch.float32)
    if not value.is_floating_point():
        _refuse_inexact(value, name)
        return value.to(torch.float64)
    return value


def _refuse_inexact(value: Tensor, name: str) -> None:
    """DomainError naming the first whole number that float64 does not hold."""
    if value.dtype not in (torch.int64, torch.uint64) or value.is_meta or is_transformed(value):
        return
    found = first_inexact(value.numpy(force=True))
    if found is not None:
        index, number = found
        raise DomainError(
            f"`{name}` must hold whole numbers that float64 holds, got {number} at {_place(index)}, which it merges "
            f"with its neighbours; subtract one number first, as in {name} - {name}.min(), or pass .double() to round"
        )


def _place(index: Sequence[int]) -> str:
    labels = ("row", "column")[: len(index)] if len(index) in (1, 2) else ()
    return " and ".join(map("{} {}".format, labels, index)) if labels else f"index {tuple(index)}"


def promotions(**values: Any) -> list[Event]:
    """An event for each argument of half precision, by name: what `as_float_tensor` makes of it."""
    kinds = {name: str(getattr(value, "dtype", "")).removeprefix("torch.") for name, value in values.items()}
    return [
        Event(EventKind.HALF_PRECISION, argument=name, dtype=kind)
        for name, kind in kinds.items()
        if kind in ("float16", "bfloat16")
    ]


def _from_array(value: Any, name: str) -> Tensor:
    import numpy

    if isinstance(value, numpy.ma.MaskedArray) and numpy.ma.is_masked(value):
        raise DomainError(
            f"`{name}` must not be masked, got {numpy.ma.count_masked(value)} masked entries; "
            "drop such rows or fill them in"
        )
    if not isinstance(value, numpy.ndarray) and hasattr(value, "__dlpack__"):
        with contextlib.suppress(BufferError, RuntimeError, TypeError, ValueError):
            return torch.utils.dlpack.from_dlpack(value)  # JAX, CuPy and others, on their device and without a copy
    try:
        array = numpy.asarray(value)
        if array.dtype == object or array.dtype.kind in "USmM":
            raise TypeError(f"dtype {array.dtype}")
        if not array.flags.writeable or any(stride < 0 for stride in array.strides) or not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="), copy=True)
        return torch.from_numpy(numpy.atleast_1d(array)) if array.ndim == 0 else torch.from_numpy(array)
    except (TypeError, ValueError) as error:
        raise DomainError(
            f"`{name}` must be a tensor or an array of real numbers, got {type(value).__name__} ({error}); "
            "convert its columns to numbers first"
        ) from None


def check_count(value: Any, name: str, least: int) -> int:
    """A whole number from `least` on, Python's or NumPy's. Raises: DomainError."""
    try:
        count = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        count = least - 1
    if not least <= count < 2**62:
        raise DomainError(
            f"`{name}` must be a whole number, {least} or more, got {value!r}; for example {max(least, 1)}"
        )
    return count


def check_seed(value: Any, name: str = "seed") -> int:
    """A whole number of less than 62 bits, which generators and files take. Raises: DomainError."""
    try:
        seed = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        seed = None
    if seed is None or not abs(seed) < 2**62:
        raise DomainError(f"`{name}` must be a whole number below 2^62, got {value!r}; for example 0")
    return seed


def check_flag(value: Any, name: str) -> bool:
    """True or False, Python's or NumPy's. Raises: DomainError."""
    if isinstance(value, bool) or (type(value).__name__ in ("bool", "bool_") and type(value).__module__ == "numpy"):
        return bool(value)
    raise DomainError(f"`{name}` must be True or False, got {value!r}; pass one of these")


def check_dtype(value: Any) -> torch.dtype | None:
    """None, torch.float64 or torch.float32. Raises: DomainError."""
    if value is None or (isinstance(value, torch.dtype) and value in (torch.float64, torch.float32)):
        return value
    raise DomainError(f"`dtype` must be torch.float64, torch.float32 or None, got {value!r}; leave it out")


def check_device(value: Any) -> Any:
    """None, or what may name a device. Raises: DomainError."""
    if value is None or isinstance(value, str | int | torch.device):
        return value
    raise DomainError(f"`device` must be None, 'auto' or a torch device, got {value!r}; for example 'cpu'")


def check_jitter(value: Any) -> float | None:
    """None, or a finite number that is not negative. Raises: DomainError."""
    if value is None:
        return None
    try:
        number = math.nan if isinstance(value, bool) or not isinstance(value, numbers.Real) else float(value)
    except OverflowError:  # a whole number beyond float64
        number = math.inf
    if not (math.isfinite(number) and number >= 0.0):
        raise DomainError(f"`jitter` must be a finite number >= 0, relative to the mean diagonal, got {value!r}")
    return number


def check_finite(tensor: Tensor, name: str) -> None:
    """DomainError naming the first row and column that holds a NaN or an infinity."""
    if tensor.numel() == 0 or tensor.is_meta or is_transformed(tensor):
        return
    plain = tensor.detach()
    # One reduction decides the usual case: a sum is finite unless an entry is not (or it overflows).
    if math.isfinite(plain.sum().item()):
        return
    bad = (~plain.isfinite()).nonzero()
    if bad.shape[0] == 0:
        return
    place = bad[0].tolist()
    value = tensor.detach()[tuple(place)].item()
    where = _place(place)
    text = "NaN" if value != value else "inf" if value > 0 else "-inf"
    count = bad.shape[0]
    others = f" ({count} such entries)" if count > 1 else ""
    raise DomainError(
        f'`{name}` must be finite, got {text} at {where}{others}; drop such rows (missing="drop" does so in '
        "GPRegressor and on the command line) or fill them in"
    )


def check_points(x: Any, name: str, *, like: Tensor | None = None) -> Tensor:
    """Points of shape (*batch, n, d), d at least 1, finite; with `like`, as many columns and the same device."""
    x = as_float_tensor(x, name)
    if x.dim() < 2:
        raise ShapeError(
            f"`{name}` must have shape (*batch, n, d), got {tuple(x.shape)}; "
            f"use {name}[:, None] for n points in one dimension"
        )
    if x.shape[-1] == 0:
        raise ShapeError(f"`{name}` must have at least one column, got shape {tuple(x.shape)}; pass the input columns")
    if like is not None:
        if x.shape[-1] != like.shape[-1]:
            raise ShapeError(
                f"`{name}` must have {like.shape[-1]} columns like `x`, got shape {tuple(x.shape)}; "
                "select the same columns, or pass `active_dims`"
            )
        if x.device != like.device:
            raise DomainError(
                f"`{name}` must be on {like.device} like `x`, got {x.device}; move it with .to({str(like.device)!r})"
            )
    check_finite(x, name)
    return x


def check_targets(y: Any, name: str, x: Tensor, outputs: int | None, *, missing: bool = False) -> Tensor:
    """Targets of shape (*batch, n), or (*batch, n, outputs) when the model has several outputs; finite; x's device.

    Args: missing, whether cells of one table with several outputs may be NaN, where they have noise of their own.
    """
    y = as_float_tensor(y, name)
    n = x.shape[-2]
    tail = (n,) if outputs is None else (n, outputs)
    if tuple(y.shape[-len(tail) :]) != tail or y.dim() < len(tail):
        wanted = "(*batch, n)" if outputs is None else f"(*batch, n, {outputs})"
        advice = (
            f"use {name}[:, 0] for one target, or GP(..., outputs={y.shape[-1]}) for several"
            if outputs is None and y.dim() >= 2 and y.shape[-2] == n
            else "pass one target per row of x"
        )
        raise ShapeError(f"`{name}` must have shape {wanted} with n = {n} like `x`, got {tuple(y.shape)}; {advice}")
    batch_y = y.shape[: y.dim() - len(tail)]
    try:
        if batch_y and x.dim() > 2:
            torch.broadcast_shapes(batch_y, x.shape[:-2])
    except RuntimeError:
        raise ShapeError(
            f"`{name}` has batch shape {tuple(batch_y)}, which does not broadcast with x's {tuple(x.shape[:-2])}; "
            "give both the same leading dimensions"
        ) from None
    if y.device != x.device:
        raise DomainError(f"`{name}` must be on {x.device} like `x`, got {y.device}; move one of them")
    if missing and outputs is not None and y.dim() == 2 == x.dim() and not y.is_meta and not is_transformed(y):
        empty = y.detach().isnan().all(-1)
        if bool(empty.any()):
            row = int(empty.nonzero()[0])
            raise DomainError(f"`{name}` must have a value in every row, got none in row {row}; leave that row out")
        check_finite(y.nan_to_num(nan=0.0, posinf=math.inf, neginf=-math.inf), name)
        return y
    if (
        outputs is not None
        and outputs > 1
        and not y.is_meta
        and not is_transformed(y)
        and bool(y.detach().isnan().any())
    ):
        place = _place(y.detach().isnan().nonzero()[0].tolist())
        raise DomainError(
            f"`{name}` must be finite here, got NaN at {place}; cells of single outputs may be missing in gp.condition "
            "and fgp.fit where outputs have noise of their own and inference is exact, else fit each output by itself"
        )
    check_finite(y, name)
    return y


# -- whole numbers that float64 cannot hold ----------------------------------------------------------------------------
LARGEST_EXACT = 2**53  # up to here every whole number is a float64 number


def first_inexact(values: Any) -> tuple[tuple[int, ...], int] | None:
    """The first whole number of an array that conversion to float64 would change, and its index; None where none is.

    Args: values: NumPy array of any shape; of a dtype other than integers and objects there is none.
    Cost: a look at the largest, and four operations on every number where it is beyond 2**53.
    """
    if values.dtype.kind == "O":
        for index, value in np.ndenumerate(values):
            if isinstance(value, int | np.integer) and not _is_exact(int(value)):
                return index, int(value)
        return None
    if values.dtype.kind not in "iu" or values.dtype.itemsize < 8 or not values.size:
        return None
    if int(values.max()) <= LARGEST_EXACT and int(values.min()) >= -LARGEST_EXACT:
        return None
    # A number is its lowest bit that is set times an odd one, which must have 53 bits at most.
    lowest = values & (~values + 1)
    wrong = np.abs(values // np.where(lowest == 0, 1, lowest)) > LARGEST_EXACT
    if not wrong.any():
        return None
    index = tuple(int(i) for i in np.argwhere(wrong)[0])
    return index, int(values[index])


def _is_exact(value: int) -> bool:
    try:
        return int(float(value)) == value
    except OverflowError:
        return False
