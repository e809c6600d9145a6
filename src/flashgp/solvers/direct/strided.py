"""Triangular solves, products, factors and orthogonal updates in place, on parts of a matrix, which torch would copy.

torch solves with a triangle only if it lies in memory without gaps; of a view it makes an n x n copy, which costs many
times the solve. BLAS and LAPACK take the length of a row as an argument. On the CPU they are called through the
pointers that SciPy exports for this (`scipy.linalg.cython_blas`, `cython_lapack`): no copy, no compiler, the
interpreter lock released. Elsewhere torch does the same with its copies.
"""

import contextlib
import ctypes
import functools
from collections.abc import Iterator
from typing import Any

import numpy
import torch
from torch import Tensor

from flashgp.foundations.lazy_import import lazy_import
from flashgp.solvers.direct.rotations import Rotations, rotations

F64 = torch.float64
Array = numpy.ndarray[Any, numpy.dtype[numpy.float64]]
PREFIX = {torch.float64: "d", torch.float32: "s"}  # of a routine's name
REFLECTORS = 8  # of one block: measured best for updates by one to a few columns (docs/decisions/0014)
MANY_REFLECTORS = 32  # from MANY columns on, where the products inside fill the processor
MANY = 16
FEW = 5  # columns up to which rotations, one column after the other, are quicker than reflections
_lapack = True  # whether SciPy's routines are used
STRIP = 256  # rows that are moved at once: what lies above the diagonal is not touched


@contextlib.contextmanager
def using_routines(compiled: Rotations, *, lapack: bool = True) -> Iterator[None]:
    """Inside, updates take those rotations, and LAPACK's routines or torch alone; not for several threads."""
    global rotations, _lapack
    before, rotations, _lapack = (rotations, _lapack), compiled, lapack
    try:
        yield
    finally:
        rotations, _lapack = before


def load_routines(*, removals: bool) -> None:
    """Load now what the first solve, and with removals the compiled rotations, would load when they come.

    Cost: 0.1 s; with removals a second, some seconds where the rotations are not in the cache.
    """
    _routines()
    if removals:
        rotations.wait()


def solve_triangle_(lower: Tensor, rhs: Tensor, *, transposed: bool) -> None:
    """X <- X L^-T, or X L^-1 where `transposed`: each row of X is a right-hand side of L or of L^T, overwritten.

    Args: lower (c, c), of which the lower triangle is read; rhs (t, c), its rows without gaps between entries.
    Cost: c^2 t flops, no memory on the CPU.
    """
    c, t = lower.shape[-1], rhs.shape[0]
    if not c or not t:
        return
    routine, place = _routine("trsm", lower, rhs), _place(lower)
    if routine is None or place is None:
        triangle, out = (lower if transposed else lower.mT), rhs if rhs.is_contiguous() else None
        solved = torch.linalg.solve_triangular(triangle, rhs, upper=not transposed, left=False, out=out)
        if out is None:
            rhs.copy_(solved)
        return
    if t == 1 and (alone := Triangle.of(lower)) is not None:
        alone.solve_(rhs[0].numpy(), transposed=transposed)
        return
    by_rows, length = place  # what BLAS reads by columns is the upper triangle of rows
    uplo, trans = (b"U", b"N" if transposed else b"T") if by_rows else (b"L", b"T" if transposed else b"N")
    size, leading = ctypes.c_int(c), ctypes.c_int(length)
    count, rhs_leading = ctypes.c_int(t), ctypes.c_int(max(c, rhs.stride(0)))
    one = _number(1.0, rhs.dtype)
    routine(
        b"L", uplo, trans, b"N", _at(size), _at(count), _at(one), lower.data_ptr(), _at(leading), rhs.data_ptr(),
        _at(rhs_leading),
    )  # fmt: skip


def add_product_(total: Tensor, one: Tensor, two: Tensor, *, alpha: float = 1.0, beta: float = 1.0) -> None:
    """total <- beta total + alpha one two, as `total.addmm_`; with beta 0 what total held is not read.

    Args: total (n, p), one (n, k), two (k, p); their rows, or their columns, without gaps between entries.
    Cost: 2 n k p flops, no memory on the CPU.
    """
    (n, p), k = total.shape, one.shape[1]
    routine, places = _routine("gemm", total, one, two), [_place(t) for t in (total, one, two)]
    if routine is None or not n * p * k or None in places:
        total.addmm_(one, two, alpha=alpha, beta=beta)
        return
    (by_rows, length), (one_by_rows, one_length), (two_by_rows, two_length) = (place for place in places if place)
    if not by_rows:
        add_product_(total.mT, two.mT, one.mT, alpha=alpha, beta=beta)
        return
    # Rows that BLAS reads as columns: it computes total^T = two^T one^T.
    sizes = [ctypes.c_int(size) for size in (p, n, k, two_length, one_length, length)]
    factors = [_number(factor, total.dtype) for factor in (alpha, beta)]
    routine(
        b"N" if two_by_rows else b"T", b"N" if one_by_rows else b"T", *map(_at, sizes[:3]), _at(factors[0]),
        two.data_ptr(), _at(sizes[3]), one.data_ptr(), _at(sizes[4]), _at(factors[1]), total.data_ptr(), _at(sizes[5]),
    )  # fmt: skip


def add_gram_(total: Tensor, a: Tensor, *, alpha: float = 1.0) -> None:
    """total <- total + alpha a^T a, its lower triangle; above the diagonal it stays undefined.

    Args: total ([s,] m, m) and a ([s,] b, m); their rows, or their columns, without gaps between entries.
    Cost: s b m^2 flops, no memory on the CPU.
    """
    routine = _routine("syrk", total, a)
    if total.dim() > 2:
        if routine is None:
            total.baddbmm_(a.mT, a, alpha=alpha)
            return
        for one, part in zip(total, a, strict=True):
            add_gram_(one, part, alpha=alpha)
        return
    (b, m), place, a_place = a.shape, _place(total), _place(a)
    if routine is None or not b * m or place is None or a_place is None:
        total.addmm_(a.mT, a, alpha=alpha)
        return
    uplo, trans = b"U" if place[0] else b"L", b"N" if a_place[0] else b"T"  # BLAS reads rows as columns
    sizes = [ctypes.c_int(size) for size in (m, b, a_place[1], place[1])]
    factor, one = _number(alpha, total.dtype), _number(1.0, total.dtype)
    routine(
        uplo, trans, _at(sizes[0]), _at(sizes[1]), _at(factor), a.data_ptr(), _at(sizes[2]), _at(one),
        total.data_ptr(), _at(sizes[3]),
    )  # fmt: skip


def factorise_(matrices: Tensor) -> Tensor:
    """The lower triangles of matrices (s, m, m) become their Cholesky factors; above the diagonal they stay undefined.

    Args: matrices, their rows, or their columns, without gaps between entries.
    Returns: (s,), True for those that have no factor, whose triangles are undefined.
    Cost: s m^3 / 3 flops, no memory on the CPU.
    """
    routine, places = _routine("potrf", matrices), [_place(one) for one in matrices]
    if routine is None or not matrices.numel() or None in places:
        lower, info = torch.linalg.cholesky_ex(matrices)
        matrices.copy_(lower)
        return info > 0
    failed = []
    size, info = ctypes.c_int(matrices.shape[-1]), ctypes.c_int(0)
    for one, (by_rows, length) in zip(matrices, (place for place in places if place), strict=True):
        leading = ctypes.c_int(length)
        routine(b"U" if by_rows else b"L", _at(size), one.data_ptr(), _at(leading), _at(info))
        failed.append(info.value > 0)
    return torch.tensor(failed)


def _number(value: float, dtype: torch.dtype) -> "ctypes.c_double | ctypes.c_float":
    return ctypes.c_double(value) if dtype == F64 else ctypes.c_float(value)


class Triangle:
    """A lower triangle the way BLAS takes it, prepared once: a vector is then solved for in one call.

    Args: lower (c, c), of which the lower triangle is read, float64 or float32 on the CPU, one of its strides 1;
        routine, by_rows and length: what `of` found.
    """

    def __init__(self, lower: Tensor, routine: Any, by_rows: bool, length: int) -> None:
        self._lower, self._routine = lower, routine  # so that the numbers stay alive
        self._leading = ctypes.c_int(length)
        self._uplo = b"U" if by_rows else b"L"
        self._trans = (b"T", b"N") if by_rows else (b"N", b"T")
        self._numbers = (lower.data_ptr(), _at(self._leading))

    @classmethod
    def of(cls, lower: Tensor) -> "Triangle | None":
        """The triangle; None where BLAS cannot read it where it lies."""
        routine, place = _routine("trsv", lower), _place(lower)
        return None if routine is None or place is None else cls(lower, routine, *place)

    def solve_(self, vector: Array, *, transposed: bool) -> None:
        """x <- L^-1 x, or L^-T x where `transposed`, by the first rows and columns of the triangle, as many as x has.

        Args: vector: without gaps, in the triangle's dtype; of at most c numbers, unless rows were added in its memory.
        Cost: one call; as many flops as entries squared.
        """
        size = ctypes.c_int(len(vector))
        lower, leading = self._numbers
        self._routine(self._uplo, self._trans[transposed], b"N", _at(size), lower, leading, vector.ctypes.data, _AT_ONE)


def update_triangle(
    source: Tensor,
    out: Tensor,
    columns: Tensor,
    *,
    below: tuple[Tensor, Tensor] | None = None,
    compiled: bool = True,
) -> bool:
    """out becomes the lower factor L' with L' L'^T = L L^T + V V^T, L in source, by orthogonal maps of [L V], (M-112).

    Nothing is subtracted: the update is backward stable whatever V is. A few columns take compiled Givens rotations
    (rotations.py) where these are ready, else Householder reflections.

    Args:
        source: L, (c, c), of which the lower triangle is read.
        out: (c, c), row by row, may be source; above its diagonal it stays undefined.
        columns: V, (c, k), overwritten.
        below: rows (p, c) under L, contiguous, and their entries (p, k) in V; rotations map the rows along, in place.
        compiled: False for the reflections in any case: bits that do not depend on what is ready.
    Returns: whether `below` was mapped; reflections leave it as it is.
    Cost: 3 c^2 k flops by rotations, 2 c^2 k by reflections; c numbers for every reflection of a block.
    Source: Golub & Van Loan (2013), section 6.5.4; LAPACK's dtpqrt.
    """
    c, k = columns.shape
    routine = _routine("tpqrt", source, out, columns)
    if routine is not None and compiled and 0 < k <= FEW and c and out.dtype == F64:
        rotate = rotations.update(c)
        if rotate is not None:
            turns = torch.empty(2, c, dtype=F64).numpy()
            before, target = source.numpy(), out.numpy()
            under, entries = (out.new_empty(0, c), out.new_empty(0, k)) if below is None else below
            carried = under.numpy()
            for column, entry in zip(columns.mT.contiguous().numpy(), entries.mT.contiguous().numpy(), strict=True):
                rotate(before, target, column, carried, entry, turns[0], turns[1])
                before = target
            return True
    # Reflections turn a negative diagonal into a positive one, so they begin with -L.
    for start in range(0, c, STRIP):
        rows = slice(start, start + STRIP)
        torch.neg(source[rows, : start + STRIP], out=out[rows, : start + STRIP])
    if not k or not c:
        out.neg_()
    elif routine is None or (place := _place(out)) is None or not place[0]:
        stacked = torch.cat([out.tril(), columns], dim=-1)
        out.copy_(torch.linalg.qr(stacked.mT, mode="r").R[:c].mT)
    else:
        _reflect(routine, out, place[1], columns.contiguous())
    wrong = out.diagonal() < 0  # columns that no reflection touched, since V was zero there
    if bool(wrong.any()):
        index = wrong.nonzero().squeeze(-1)
        out[:, index] = -out[:, index]
    return False


def _reflect(routine: Any, out: Tensor, length: int, columns: Tensor) -> None:
    c, k = columns.shape
    block = min(c, MANY_REFLECTORS if k >= MANY else REFLECTORS)
    work = torch.empty(2, block, c, dtype=out.dtype)
    rows, cols, none, size = ctypes.c_int(k), ctypes.c_int(c), ctypes.c_int(0), ctypes.c_int(block)
    leading, info = ctypes.c_int(length), ctypes.c_int(0)
    routine(
        _at(rows), _at(cols), _at(none), _at(size), out.data_ptr(), _at(leading), columns.data_ptr(), _at(rows),
        work[0].data_ptr(), _at(size), work[1].data_ptr(), _at(info),
    )  # fmt: skip
    assert info.value == 0, f"dtpqrt refused its argument {-info.value}"


def _place(matrix: Tensor) -> tuple[bool, int] | None:
    """(row by row, numbers from one row to the next), or columns; None where neither has its entries side by side."""
    (down, along), (k, c) = matrix.stride(), matrix.shape
    if along == 1 and (down >= c or k == 1):
        return True, max(down, c)
    if down == 1 and (along >= k or c == 1):
        return False, max(along, k)
    return None


def _routine(name: str, *tensors: Tensor) -> Any:
    """The routine where it may read and write all of these; None elsewhere."""
    prefix = PREFIX.get(tensors[0].dtype)
    if prefix is None or any(t.device.type != "cpu" or t.dtype != tensors[0].dtype for t in tensors):
        return None
    return _routines().get(prefix + name) if _lapack else None


_at = ctypes.addressof
_ONE = ctypes.c_int(1)
_AT_ONE = _at(_ONE)


@functools.lru_cache(maxsize=1)
def _routines() -> dict[str, Any]:
    """The routines by name; none where SciPy exports them with another signature."""
    lazy_import("scipy.linalg.cython_blas")
    lazy_import("scipy.linalg.cython_lapack")
    from scipy.linalg import cython_blas, cython_lapack

    routines = {}
    wanted = [(cython_blas, "trsv", 8), (cython_blas, "trsm", 11), (cython_blas, "gemm", 13), (cython_blas, "syrk", 10)]
    for module, name, arguments in (*wanted, (cython_lapack, "tpqrt", 12), (cython_lapack, "potrf", 5)):
        for prefix in PREFIX.values():
            address = _exported(module, prefix + name, arguments)
            if address is not None:
                routines[prefix + name] = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * arguments)(address)
    return routines


def _exported(module: Any, name: str, arguments: int) -> int | None:
    """The address of a routine whose whole numbers are C's int; None for any other."""
    capsule = getattr(module, "__pyx_capi__", {}).get(name)
    if capsule is None:
        return None
    named = ctypes.pythonapi.PyCapsule_GetName
    named.restype, named.argtypes = ctypes.c_char_p, [ctypes.py_object]
    signature = named(capsule)
    kinds = signature.decode().partition("(")[2].rstrip(")").split(",")
    if len(kinds) != arguments or any(
        not (kind.strip() in ("int *", "char *") or kind.strip().endswith(f"_{name[0]} *")) for kind in kinds
    ):
        return None
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address: int = pointer(capsule, signature)
    return address
