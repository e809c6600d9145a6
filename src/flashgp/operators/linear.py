"""Linear operators that are not stored: what they share, sums of them, and diagonals (noise)."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor

from flashgp.foundations.checks import as_float_tensor
from flashgp.foundations.errors import DomainError, ShapeError
from flashgp.foundations.form import broadcast_batch
from flashgp.foundations.report import Report
from flashgp.foundations.transforms import is_transformed
from flashgp.operators.indexing import Side, sides


@dataclass(frozen=True)
class Product:
    """A product with what is known about it.

    Attributes:
        value: as `operator @ right`.
        error_bound: an upper bound of the change of each entry of value by far tiles that were left out, float64, in
            its shape and units (rounding is not in it), eq. (M-73).
        report: its error_bound is the largest of them.
    """

    value: Tensor
    error_bound: Tensor
    report: Report


class LinearOperator(ABC):
    """A matrix (*batch, n, m) given by what it does. Has `dtype`, and everything below.

    Example:
        >>> K = fgp.kernels.Matern()(torch.rand(40, 2))
        >>> isinstance(K, fgp.operators.LinearOperator), (K @ torch.ones(40, 3)).shape, (torch.ones(2, 40) @ K).shape
        (True, torch.Size([40, 3]), torch.Size([2, 40]))
    """

    dtype: torch.dtype
    __array_ufunc__ = None  # NumPy leaves array @ K to us, instead of applying K to each of its numbers

    @property
    @abstractmethod
    def shape(self) -> torch.Size: ...

    @property
    @abstractmethod
    def device(self) -> torch.device: ...

    @property
    @abstractmethod
    def T(self) -> "LinearOperator": ...

    @abstractmethod
    def diagonal(self) -> Tensor: ...

    @abstractmethod
    def to_dense(self, dtype: torch.dtype | None = None) -> Tensor: ...

    @abstractmethod
    def _apply(self, matrix: Tensor) -> Tensor:
        """self @ matrix for (*batch, m, t) of the right shape, dtype and device."""

    @abstractmethod
    def _part(self, rows: Side, cols: Side) -> "LinearOperator":
        """Some rows and columns: of checked slices or positions, as an operator."""

    def __matmul__(self, right: Any) -> Tensor:
        """self @ right for right (m,) or (*batch, m, t); half precision is taken as float32 by a float32 operator.

        Raises: ShapeError, DomainError for a right-hand side that does not fit, or is a NumPy array.
        """
        if isinstance(right, numpy.ndarray):
            raise _no_array("right")
        if not isinstance(right, Tensor):
            return NotImplemented
        if self.dtype == torch.float32 and right.dtype in (torch.float16, torch.bfloat16):
            right = right.float()  # as the points are
        vector = right.dim() == 1
        matrix = right.unsqueeze(-1) if vector else right
        m = self.shape[-1]
        if matrix.dim() < 2 or matrix.shape[-2] != m:
            raise ShapeError(
                f"`right` must have {m} rows like the operator {tuple(self.shape)} has columns, got "
                f"{tuple(right.shape)}; transpose one of them"
            )
        if right.device != self.device or right.dtype != self.dtype:
            raise DomainError(
                f"`right` must be {self.dtype} on {self.device} like the operator, got {right.dtype} on "
                f"{right.device}; move it with .to(...)"
            )
        out = self._apply(matrix)
        return out.squeeze(-1) if vector else out

    def product(self, right: Tensor) -> Product:
        """self @ right, a bound of its error, and a report; errors are those of `self @ right`.

        Cost: the product, and for operators that skip one pass over `right`.
        """
        if not isinstance(right, Tensor):
            raise DomainError(f"`right` must be a tensor, got {type(right).__name__}; use torch.as_tensor")
        began = time.perf_counter()
        value = self @ right
        report = self._record()
        bound = self._left_out(right.unsqueeze(-1) if right.dim() == 1 else right)
        if bound is None:
            bound = torch.zeros(value.shape, dtype=torch.float64, device=value.device)
        else:
            bound = (bound.squeeze(-1) if right.dim() == 1 else bound).expand(value.shape)
        report.error_bound = float(bound.max()) if bound.numel() else 0.0
        report.seconds = time.perf_counter() - began
        return Product(value, bound, report)

    def _left_out(self, matrix: Tensor) -> Tensor | None:
        """The bound of (M-73) for (*batch, m, t); None where nothing is left out."""
        return None

    def _record(self) -> Report:
        """Report of the last product."""
        return Report(device=str(self.device), dtype=str(self.dtype).removeprefix("torch."))

    def __rmatmul__(self, left: Any) -> Tensor:
        """left @ self for left (n,) or (*batch, t, n): by the transpose."""
        if isinstance(left, numpy.ndarray):
            raise _no_array("left")
        if not isinstance(left, Tensor):
            return NotImplemented
        return self.T @ left if left.dim() < 2 else (self.T @ left.mT).mT

    def __getitem__(self, index: Any) -> "LinearOperator | Tensor":
        """A part of the matrix, not computed: K[i, j] for slices, integer or boolean lists or tensors; K[i] for rows.

        An integer row gives that row as a tensor (*batch, m), an integer column that column; both give a number.
        Equal slices, or one object on both sides, keep a symmetric operator symmetric.
        Raises: ShapeError, DomainError for an index that is not one, or out of range.
        """
        rows, cols, single = sides(index, self.shape[-2], self.shape[-1], self.device)
        part = self._part(rows, cols)
        if not any(single):
            return part
        dense = part.to_dense()
        for dim, dropped in ((-1, single[1]), (-2 if not single[1] else -1, single[0])):
            dense = dense.squeeze(dim) if dropped else dense
        return dense

    def __add__(self, other: "LinearOperator") -> "SumOperator":
        if not isinstance(other, LinearOperator):
            return NotImplemented
        return SumOperator(self, other)

    def with_noise(self, variance: Any) -> "SumOperator":
        """self + diag(variance), for a number or (*batch, n) variances, not negative; a square operator."""
        n, m = self.shape[-2:]
        if n != m:
            raise ShapeError(f"`with_noise` needs a square operator, got shape {tuple(self.shape)}")
        if not isinstance(variance, Tensor | int | float):
            variance = as_float_tensor(variance, "variance")
        if isinstance(variance, Tensor) and (variance.is_complex() or variance.layout != torch.strided):
            raise DomainError(
                f"`variance` must be real and dense, got dtype {variance.dtype} and layout {variance.layout}; pass its "
                ".real or .to_dense()"
            )
        values = torch.as_tensor(variance, dtype=self.dtype, device=self.device)
        if not is_transformed(values) and not bool(((values >= 0) & values.isfinite()).all()):
            raise DomainError(f"`variance` must be finite and not negative, got {variance!r}; correct it")
        if values.dim() == 0:
            values = values.expand(n)
        return SumOperator(self, DiagonalOperator(values))

    def to_scipy(self) -> Any:
        """A scipy.sparse.linalg.LinearOperator: for its iterative solvers. One model on the CPU; no gradients.

        It takes real and complex vectors and matrices, in the operator's precision.
        """
        from scipy.sparse.linalg import LinearOperator as SciPyOperator

        if len(self.shape) != 2 or self.device.type != "cpu":
            raise ShapeError(
                f"`to_scipy` needs one matrix on the CPU, got shape {tuple(self.shape)} on {self.device}; "
                "take a member of the batch, or move the points with .cpu()"
            )

        def applied(operator: "LinearOperator") -> Any:
            def apply(right: numpy.ndarray) -> numpy.ndarray:
                given = torch.from_numpy(numpy.ascontiguousarray(right))
                with torch.no_grad():
                    if not given.is_complex():
                        return (operator @ given.to(self.dtype)).numpy()
                    parts = torch.view_as_real(given).to(self.dtype)  # real and imaginary, as columns
                    out = (operator @ parts.flatten(1)).unflatten(1, parts.shape[1:])
                    return torch.view_as_complex(out.contiguous()).numpy()

            return apply

        kind = torch.empty(0, dtype=self.dtype).numpy().dtype
        there, back = applied(self), applied(self.T)  # the matrix is real: its adjoint is its transpose
        return SciPyOperator(tuple(self.shape), matvec=there, rmatvec=back, matmat=there, rmatmat=back, dtype=kind)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={tuple(self.shape)}, dtype={self.dtype}, device={self.device})"


class DiagonalOperator(LinearOperator):
    """diag(values), values (*batch, n).

    Example:
        >>> fgp.operators.DiagonalOperator(torch.tensor([1.0, 2.0])) @ torch.ones(2, 1)
        tensor([[1.],
                [2.]])
    """

    def __init__(self, values: Tensor) -> None:
        if not isinstance(values, Tensor) or values.dim() == 0:
            raise ShapeError(f"`values` must be a tensor (*batch, n), got {values!r}")
        self.values, self.dtype = values, values.dtype

    @property
    def shape(self) -> torch.Size:
        return torch.Size((*self.values.shape, self.values.shape[-1]))

    @property
    def device(self) -> torch.device:
        return self.values.device

    @property
    def T(self) -> "DiagonalOperator":
        return self

    mT = T  # noqa: N815 - as in torch

    def diagonal(self) -> Tensor:
        return self.values

    def to_dense(self, dtype: torch.dtype | None = None) -> Tensor:
        return torch.diag_embed(self.values.to(check_floating(dtype or self.dtype)))

    def _apply(self, matrix: Tensor) -> Tensor:
        return self.values.unsqueeze(-1) * matrix

    def _part(self, rows: Side, cols: Side) -> "LinearOperator":
        if rows is cols and isinstance(rows, slice):  # of distinct positions
            return DiagonalOperator(self.values[..., rows])
        every = torch.arange(self.values.shape[-1], device=self.device)
        return DiagonalPart(self.values, every[rows], every[cols])


class DiagonalPart(LinearOperator):
    """Some rows and columns of diag(values): entry (i, j) is values[rows_i] where rows_i = cols_j, else 0.

    Args:
        values: (*batch, n); rows, cols: positions in it, in any order, repeated or not.
    """

    def __init__(self, values: Tensor, rows: Tensor, cols: Tensor) -> None:
        self.values, self.rows, self.cols, self.dtype = values, rows, cols, values.dtype

    @property
    def shape(self) -> torch.Size:
        return torch.Size((*self.values.shape[:-1], len(self.rows), len(self.cols)))

    @property
    def device(self) -> torch.device:
        return self.values.device

    @property
    def T(self) -> "DiagonalPart":
        return DiagonalPart(self.values, self.cols, self.rows)

    mT = T  # noqa: N815 - as in torch

    def diagonal(self) -> Tensor:
        k = min(len(self.rows), len(self.cols))
        rows = self.rows[:k]
        return torch.where(rows == self.cols[:k], self.values[..., rows], 0.0)

    def to_dense(self, dtype: torch.dtype | None = None) -> Tensor:
        values = self.values.to(check_floating(dtype or self.dtype))
        return torch.where(self.rows[:, None] == self.cols, values[..., self.rows, None], 0.0)

    def _apply(self, matrix: Tensor) -> Tensor:
        zeros = matrix.new_zeros((*matrix.shape[:-2], self.values.shape[-1], matrix.shape[-1]))
        at_home = zeros.index_add(-2, self.cols, matrix)
        return self.values[..., self.rows, None] * at_home[..., self.rows, :]

    def _part(self, rows: Side, cols: Side) -> "DiagonalPart":
        return DiagonalPart(self.values, self.rows[rows], self.cols[cols])


class SumOperator(LinearOperator):
    """The sum of operators of one shape (batches broadcast), dtype and device.

    Example:
        >>> K = fgp.kernels.Matern()(torch.rand(40, 2)).with_noise(0.1)
        >>> type(K).__name__, K.shape
        ('SumOperator', torch.Size([40, 40]))
    """

    def __init__(self, *parts: LinearOperator) -> None:
        first = parts[0]
        for part in parts:
            if part.shape[-2:] != first.shape[-2:]:
                raise ShapeError(
                    f"`parts` of a sum must have one shape, got {tuple(first.shape)} and {tuple(part.shape)}"
                )
            if part.dtype != first.dtype or part.device != first.device:
                raise DomainError(
                    f"`parts` of a sum must share dtype and device, got {first.dtype} on {first.device} and "
                    f"{part.dtype} on {part.device}; move one with .to(...)"
                )
        self.parts, self.dtype = parts, first.dtype

    @property
    def shape(self) -> torch.Size:
        batch = broadcast_batch(*(part.shape[:-2] for part in self.parts))
        return torch.Size((*batch, *self.parts[0].shape[-2:]))

    @property
    def device(self) -> torch.device:
        return self.parts[0].device

    @property
    def T(self) -> "SumOperator":
        return SumOperator(*(part.T for part in self.parts))

    mT = T  # noqa: N815 - as in torch

    def diagonal(self) -> Tensor:
        first, *rest = (part.diagonal() for part in self.parts)
        return sum(rest, first)

    def to_dense(self, dtype: torch.dtype | None = None) -> Tensor:
        """The matrix itself; a diagonal is added in place to what the first part allocates."""
        dense = self.parts[0].to_dense(dtype)
        for part in self.parts[1:]:
            if not isinstance(part, DiagonalOperator):
                dense = dense + part.to_dense(dtype)
            elif _is_followed(dense) or _is_followed(part.values):
                dense = dense + part.to_dense(dense.dtype)
            else:
                shape = (*broadcast_batch(dense.shape[:-1], part.values.shape), dense.shape[-1])
                if not (dense.shape == shape and dense.is_contiguous()):
                    dense = dense.expand(shape).clone(memory_format=torch.contiguous_format)
                dense.diagonal(dim1=-2, dim2=-1).add_(part.values.to(dense.dtype))
        return dense

    def _apply(self, matrix: Tensor) -> Tensor:
        first, *rest = (part._apply(matrix) for part in self.parts)
        return sum(rest, first)

    def _left_out(self, matrix: Tensor) -> Tensor | None:
        bounds = [bound for part in self.parts if (bound := part._left_out(matrix)) is not None]
        return sum(bounds[1:], bounds[0]) if bounds else None

    def _record(self) -> Report:
        """Report of all parts, one after the other: times add up, and the largest is the peak."""
        parts = [part._record() for part in self.parts]

        def of(name: str, together: Callable[[list[Any]], Any]) -> Any:
            known = [value for part in parts if (value := getattr(part, name)) is not None]
            return together(known) if known else None

        def named(known: list[str]) -> str:
            return " + ".join(dict.fromkeys(filter(None, known)))

        return Report(
            **{name: of(name, named) for name in ("route", "backend", "device", "dtype")},
            **{name: of(name, max) for name in ("predicted_bytes", "peak_bytes")},
            **{name: of(name, sum) for name in ("predicted_seconds", "seconds", "compile_seconds")},
            events=list(dict.fromkeys(event for part in parts for event in part.events)),
            plan=of("plan", lambda plans: plans[0] if len(plans) == 1 else None),
        )

    def _part(self, rows: Side, cols: Side) -> "SumOperator":
        return SumOperator(*(part._part(rows, cols) for part in self.parts))


def _is_followed(tensor: Tensor) -> bool:
    """True if a gradient or a transform of torch.func needs it, so that it is not changed in place."""
    return tensor.requires_grad or is_transformed(tensor)


def check_floating(dtype: torch.dtype) -> torch.dtype:
    """A dtype that holds covariances. Raises: DomainError."""
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise DomainError(f"`dtype` must be a floating dtype, got {dtype}; for example torch.float32")
    return dtype


def _no_array(name: str) -> DomainError:
    return DomainError(
        f"`{name}` must be a torch tensor, got a NumPy array; pass torch.from_numpy(...), or use K.to_scipy()"
    )
