"""Grid of frequencies, and real functions as sums over it.

    f(x) = sum_j a_j exp(2 pi i nu_j . (x - centre)),   nu_j = (j_1 / L_1, ..., j_d / L_d),   j_c in {-m_c, ..., m_c}

f is real where a_-j is the conjugate of a_j: arrays hold the half with j_d >= 0, complex, of shape (2 m_1 + 1, ...,
m_d + 1), and count as vectors of as many real numbers as there are frequencies, M.
"""

import importlib
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from flashgp.foundations.errors import BackendUnavailableError
from flashgp.foundations.lazy_import import lazy_import

C128, CPU = torch.complex128, torch.device("cpu")
ACCURACY = 1e-10  # of nonuniform transforms, relative to the sum of the moduli
COARSE = 1e-8  # accuracy from which grids of transforms may be small
EXTRAS = {"finufft": "fourier", "cufinufft": "fourier-cuda"}
PIECE = 2**21  # points that are transformed at once


@dataclass(frozen=True)
class Grid:
    """Fields: columns of x that there are frequencies of; centre and lengths L of the box, in units of these columns;
    orders, m; reach, lengths of the part around the centre where points lie."""

    columns: tuple[int, ...]
    centre: tuple[float, ...]
    lengths: tuple[float, ...]
    orders: tuple[int, ...]
    reach: tuple[float, ...]

    @property
    def d(self) -> int:
        return len(self.columns)

    @property
    def parts(self) -> "tuple[Grid, ...]":
        return (self,)

    @property
    def size(self) -> int:
        """M, the number of frequencies."""
        return math.prod(2 * m + 1 for m in self.orders)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the half that arrays hold."""
        return *(2 * m + 1 for m in self.orders[:-1]), self.orders[-1] + 1

    @property
    def zero(self) -> Any:
        """Place of the frequency 0 in arrays."""
        return (..., *self.orders[:-1], 0)

    @cached_property
    def multiplicity(self) -> Tensor:
        """How often entries count: once where j_d = 0, else twice, (m_d + 1,)."""
        found = torch.full((self.orders[-1] + 1,), 2.0, dtype=torch.float64)
        found[0] = 1.0
        return found

    def dot(self, a: Tensor, b: Tensor) -> Tensor:
        """Inner products of (k, *shape) with (k, *shape) as real vectors, (k,)."""
        return ((a.real * b.real + a.imag * b.imag) * self.multiplicity.to(a.device)).flatten(-self.d).sum(-1)

    def total(self, values: Tensor) -> Tensor:
        """Sum of (*batch, *shape) real numbers over all frequencies."""
        return (values * self.multiplicity.to(values.device)).flatten(-self.d).sum(-1)

    def normal(self, count: int, generator: torch.Generator) -> Tensor:
        """Standard normal vectors, (count, *shape)."""
        shape = (count, *(2 * m + 1 for m in self.orders))
        return self.half(self._hermitian(torch.randn(shape, generator=generator, dtype=C128)) * math.sqrt(2.0))

    def signs(self, count: int, generator: torch.Generator) -> Tensor:
        """Random vectors of entries of modulus one, (count, *shape): their outer products are I in expectation."""
        found = self.normal(count, generator)
        return found / found.abs()

    def _hermitian(self, full: Tensor) -> Tensor:
        return 0.5 * (full + torch.conj(full.flip([*range(-self.d, 0)])))

    @property
    def doubled(self) -> "Grid":
        """The grid of twice the orders, of products of functions on this one."""
        return replace(self, orders=tuple(2 * m for m in self.orders))

    def half(self, full: Tensor) -> Tensor:
        """The half that is held, of an array over all frequencies, (*batch, 2 m_1 + 1, ...)."""
        return full[..., full.shape[-1] // 2 :].contiguous()

    def whole(self, half: Tensor) -> Tensor:
        """The inverse of `half`."""
        rest = torch.conj(half[..., 1:].flip([*range(-self.d, 0)]))
        return torch.cat([rest, half], -1)

    # -- rows ------------------------------------------------------------------------------------------------------
    def waves(self, x: Tensor) -> Tensor:
        """exp(-2 pi i nu_j . (x - centre)) of points (k, d), (k, *shape), differentiable by them."""
        found: Tensor | None = None
        for axis, (column, centre, length, m) in enumerate(
            zip(self.columns, self.centre, self.lengths, self.orders, strict=True)
        ):
            steps = torch.arange(0 if axis == self.d - 1 else -m, m + 1, dtype=torch.float64, device=x.device)
            angles = (x[:, column].double() - centre).unsqueeze(1) * (steps * (-2.0 * math.pi / length))
            wave = torch.polar(torch.ones_like(angles), angles)
            wave = wave.view(len(x), *(-1 if k == axis else 1 for k in range(self.d)))
            found = wave if found is None else found * wave
        assert found is not None
        return found

    def angles(self, x: Tensor) -> list[Tensor]:
        """2 pi (x - centre) / L of each column, of points (n, d)."""
        return [
            (x[:, column].detach().double() - centre).mul(2.0 * math.pi / length).contiguous()
            for column, centre, length in zip(self.columns, self.centre, self.lengths, strict=True)
        ]

    def adjoint(self, x: Tensor, strengths: Tensor, times: int = 1, accuracy: float = ACCURACY) -> Tensor:
        """sum_n s_n exp(-2 pi i nu_j . (x_n - centre)) of real strengths (k, n), for j up to `times` the orders, as
        halves, (k, *shape), on the CPU. Two of them make one complex transform. Cost: n accuracy digits^d, M log M."""
        orders = [times * m for m in self.orders]
        shape = tuple(2 * m + 1 for m in orders)
        pairs = -(-len(strengths) // 2)
        total = torch.zeros(pairs, *shape, dtype=C128)
        for start in range(0, len(x), PIECE):
            part = strengths[:, start : start + PIECE].double()
            if len(part) % 2:
                part = torch.cat([part, torch.zeros_like(part[:1])])
            packed = torch.complex(part[::2].contiguous(), part[1::2].contiguous())
            angles = self.angles(x[start : start + PIECE])
            total += transform("1", angles, packed.detach().to(x.device), shape, accuracy).cpu()
        mirrored = torch.conj(total.flip([*range(-self.d, 0)]))
        found = torch.stack([0.5 * (total + mirrored), -0.5j * (total - mirrored)], 1).flatten(0, 1)
        return self.half(found[: len(strengths)])

    def sums(self, x: Tensor, strengths: Tensor) -> tuple[Tensor, Tensor]:
        """Entries of T by the first of some strengths (k, n), and the adjoint of the others."""
        found = self.adjoint(x, strengths, times=2)
        return found[0], self.inner(found[1:])

    def inner(self, doubled: Tensor) -> Tensor:
        """The entries |j| <= m of arrays up to 2 m."""
        front = (slice(m, 3 * m + 1) for m in self.orders[:-1])
        inside: Any = (..., *front, slice(0, self.orders[-1] + 1))
        return doubled[inside]

    def ones(self, entries: Tensor) -> Tensor:
        """E* S^-1 1, (*shape), by the entries of T."""
        return self.inner(entries)

    def gram(self, entries: Tensor) -> "Toeplitz":
        """T."""
        return Toeplitz(self, entries)

    def forward(self, x: Tensor, coefficients: Tensor, accuracy: float = ACCURACY) -> Tensor:
        """f at points (n, d) of k functions, (k, *shape): (k, n), float64, where the points are."""
        whole = self.whole(coefficients.detach().to(x.device))
        if len(whole) % 2:
            whole = torch.cat([whole, torch.zeros_like(whole[:1])])
        packed = whole[::2] + 1j * whole[1::2]
        found = torch.empty(len(whole), len(x), dtype=torch.float64, device=x.device)
        for start in range(0, len(x), PIECE):
            values = transform("2", self.angles(x[start : start + PIECE]), packed, (), accuracy)
            found[::2, start : start + PIECE], found[1::2, start : start + PIECE] = values.real, values.imag
        return found[: len(coefficients)]


def transform(kind: str, angles: Sequence[Tensor], values: Tensor, shape: tuple[int, ...], accuracy: float) -> Tensor:
    """Nonuniform FFTs, (k, ...), of type 1 to that shape, or of type 2, where the points are. Raises:
    BackendUnavailableError."""
    device = angles[0].device
    function: Callable[..., Any] = getattr(library(device), f"nufft{len(angles)}d{kind}")
    options: dict[str, Any] = {"eps": accuracy, "isign": -1 if kind == "1" else 1}
    if values.dtype == torch.complex64:
        angles = [one.float() for one in angles]
    if not len(angles[0]):
        return values.new_zeros(len(values), *(shape or (0,)))
    if kind == "1":
        options["n_modes"] = shape if len(shape) > 1 else shape[0]
    values = values.resolve_conj().contiguous()
    if device.type == "cuda":
        options["gpu_device_id"] = device.index
        options["gpu_stream"] = torch.cuda.current_stream(device).cuda_stream
        return function(*angles, values, **options).reshape(len(values), *(shape or (-1,)))
    options["nthreads"] = torch.get_num_threads()
    if accuracy >= COARSE:  # grids of 1.25 times as many numbers as frequencies, which are enough for it
        options["upsampfac"] = 1.25
    found = function(*(one.numpy() for one in angles), values.numpy(), **options)
    return torch.from_numpy(found.reshape(len(values), *(shape or (-1,))))


def library_of(device: torch.device) -> str:
    """Name of the library that transforms points on a device."""
    return "cufinufft" if device.type == "cuda" else "finufft"


def library(device: torch.device = CPU) -> Any:
    """finufft, or for points on a GPU cufinufft, imported. Raises: BackendUnavailableError."""
    name = library_of(device)
    try:
        lazy_import(name)
        return importlib.import_module(name)
    except ImportError:
        raise BackendUnavailableError(
            f'`approximation` "fourier" needs {name}, which is not installed; pip install flashgp[{EXTRAS[name]}], or '
            'pass "full_scale"'
        ) from None


class Gram(ABC):
    """T = E* S^-1 E as a function of vectors."""

    grid: Any
    entries: Tensor

    @property
    @abstractmethod
    def diagonal(self) -> float:
        """Each entry of the diagonal, sum 1 / s."""

    @abstractmethod
    def __call__(self, vectors: Tensor) -> Tensor:
        """T v of (k, *shape)."""


@dataclass(frozen=True, eq=False)
class Toeplitz(Gram):
    """T_jk = t_(j - k) as a function of vectors, by one FFT of (4 m + 1)^d numbers and one back.

    Args: grid; entries, t_j for j up to twice the orders, as a half.
    """

    grid: Grid
    entries: Tensor

    @property
    def diagonal(self) -> float:
        """t_0."""
        return float(self.entries[(*(2 * m for m in self.grid.orders[:-1]), 0)].real)

    @cached_property
    def padded(self) -> tuple[int, ...]:
        return tuple(fast_length(4 * m + 1) for m in self.grid.orders)

    @cached_property
    def symbol(self) -> Tensor:
        """FFT of the entries, real, of the padded shape."""
        return self._to_space(self.entries, 2)

    def __call__(self, vectors: Tensor) -> Tensor:
        """T v of (k, *shape)."""
        dims = [*range(-self.grid.d, 0)]
        product = torch.fft.rfftn(self._to_space(vectors, 1).mul_(self.symbol), dim=dims, norm="forward")
        found = torch.empty_like(vectors)
        for inside, outside in self._places(1):
            found[inside] = product[outside]
        return found

    def values(self, vectors: Tensor) -> Tensor:
        """Functions with these coefficients, (k, *shape), on a lattice of the padded shape."""
        return self._to_space(vectors, 1)

    def coefficients(self, values: Tensor) -> Tensor:
        """Of a function on that lattice, (*padded), up to twice the orders, as a half."""
        found = torch.fft.rfftn(values, norm="forward")
        half = found.new_empty(*(4 * m + 1 for m in self.grid.orders[:-1]), 2 * self.grid.orders[-1] + 1)
        for inside, outside in self._places(2):
            half[inside] = found[outside]
        return half

    def at(self, index: Tensor) -> Tensor:
        """t_j at frequencies (..., d) up to twice the orders."""
        back = index[..., -1] < 0
        whole = torch.where(back.unsqueeze(-1), -index, index)
        moved = [2 * m for m in self.grid.orders[:-1]]
        places = [column + more for column, more in zip(whole.unbind(-1), [*moved, 0], strict=True)]
        found = self.entries[tuple(places)]
        return torch.where(back, torch.conj(found), found)

    def _to_space(self, half: Tensor, times: int) -> Tensor:
        *front, last = self.padded
        spread = half.new_zeros(*half.shape[: -self.grid.d], *front, last // 2 + 1)
        for inside, outside in self._places(times):
            spread[outside] = half[inside]
        return torch.fft.irfftn(spread, s=self.padded, dim=[*range(-self.grid.d, 0)], norm="forward")

    def _places(self, times: int) -> Iterator[tuple[Any, Any]]:
        """Parts of a half, and where they are in the padded half: negative frequencies at the end of an axis."""
        each: list[list[tuple[slice, slice]]] = []
        for m, length in zip(self.grid.orders[:-1], self.padded[:-1], strict=True):
            k = times * m
            each.append([(slice(k, 2 * k + 1), slice(0, k + 1))])
            if k:
                each[-1].append((slice(0, k), slice(length - k, length)))
        k = times * self.grid.orders[-1]
        each.append([(slice(0, k + 1), slice(0, k + 1))])
        for parts in itertools.product(*each):
            yield (..., *(inside for inside, _ in parts)), (..., *(outside for _, outside in parts))


def fast_length(least: int) -> int:
    """The least even number of prime factors 2, 3 and 5 that is no smaller."""
    best = 2 ** max(1, math.ceil(math.log2(max(2, least))))
    for fives in range(8):
        for threes in range(10):
            odd = 5**fives * 3**threes
            if 2 * odd >= 2 * best:
                continue
            twos = max(1, math.ceil(math.log2(max(1.0, least / odd))))
            while odd * 2**twos < least:
                twos += 1
            best = min(best, odd * 2**twos)
    return best
