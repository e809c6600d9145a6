"""Coordinates of the weights that rows tell of, where they lie in a part of the box, eq. (M-446).

Of all functions on the box, of which most is there so that it does not repeat, those that live where the rows are have
few coordinates: along each axis the eigenvectors of the energy there, discrete prolate spheroidal sequences, whose
eigenvalue is not 0. With V these vectors, E = E V V*, so that

    B = J (I + R' V* T V R) J* + (I - J J*),   J = W V R^-T,   R R' = V* W^2 V,   J* J = I
"""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

from flashgp.inference.fourier.grid import C128, Gram, Grid, fast_length

F64 = torch.float64
LEAST = 1e-11  # of a vector's energy that lies where rows are
BEYOND = 24  # eigenvectors looked at whose energy is less than half
MOST_ORDERS = 10_000  # whose eigenvectors are computed
LAGGED = 2**25  # numbers of vectors, or of their pairs at all lags, at most
IMAGES = 2**21  # of their images at once
WORTH = 0.7  # of the frequencies, for fewer coordinates
JITTER = 1e-14  # of the largest prior variance of a coordinate


@lru_cache(maxsize=64)
def prolate(m: int, share: float) -> tuple[Tensor, Tensor]:
    """Eigenvectors of the energy in a share of the box, (2 m + 1, r), and whether they are odd, (r,).

    Source: Slepian (1978), a tridiagonal matrix that has them. Cost: m r; `scipy.signal.windows.dpss` takes m r^2.
    """
    count = 2 * m + 1
    if share == 1.0 or m < 2:
        steps = torch.eye(m + 1, dtype=F64)
        even, odd = torch.cat([steps[1:].flip(0), steps]), torch.cat([-steps[1:].flip(0), steps])[:, 1:]
        vectors = torch.cat([even, odd], 1)
        return vectors / vectors.norm(dim=0), torch.tensor([0] * (m + 1) + [1] * m)
    from scipy.linalg import eigh_tridiagonal

    most, steps = min(count, math.ceil(count * share) + BEYOND), torch.arange(count, dtype=F64)
    diagonal = (m - steps).square() * math.cos(math.pi * share)
    beside = 0.5 * steps[1:] * (count - steps[1:])
    vectors = torch.zeros(count, most, dtype=F64)
    for parity in (0, 1):  # in turn by their eigenvalues; of each a matrix of half the size
        here, wanted = slice(m + parity, None), (most + 1 - parity) // 2
        apart = beside[here].clone()
        apart[:1] *= 1.0 if parity else math.sqrt(2.0)
        chosen = {"select": "i", "select_range": (m - parity - wanted + 1, m - parity), "lapack_driver": "stemr"}
        found = torch.from_numpy(eigh_tridiagonal(diagonal[here].numpy(), apart.numpy(), **chosen)[1]).flip(1)
        found[1 - parity :] *= math.sqrt(0.5)
        vectors[here, parity::2], vectors[: m + 1 - parity, parity::2] = found, found.flip(0) * (1.0 - 2.0 * parity)
    inside = math.floor(count * share)  # vectors that have more than half of their energy there
    weak = torch.fft.rfft(vectors[:, inside:], 2 * count, dim=0).abs().square()
    correlations = torch.fft.irfft(weak, dim=0)[:count]
    lags = 2.0 * share * torch.sinc(share * steps)
    lags[0] = share
    kept = torch.cat([torch.ones(inside, dtype=torch.bool), lags @ correlations > LEAST])
    vectors, odd = vectors[:, kept], torch.arange(most)[kept] % 2
    lobes = vectors.square() > max(1e-7, 1.0 / count)  # signs as those of SciPy, which files and ranks rely on
    first = vectors.gather(0, lobes.byte().argmax(0, keepdim=True)).squeeze(0)
    signs = torch.where(odd == 1, first, vectors.sum(0)).sign()
    return (vectors * signs).contiguous(), odd


@dataclass(frozen=True, eq=False)
class Domain:
    """V of a grid. Fields: grid; vectors and odd of each axis, as `prolate` has them."""

    grid: Grid
    vectors: tuple[Tensor, ...]
    odd: tuple[Tensor, ...]

    @cached_property
    def sizes(self) -> list[int]:
        return [v.shape[1] for v in self.vectors]

    @property
    def size(self) -> int:
        return math.prod(self.sizes)

    @cached_property
    def turns(self) -> Tensor:
        """i^p that makes functions real, p the number of axes along which they are odd, (size,)."""
        count = torch.zeros(1, dtype=torch.int64)
        for odd in self.odd:
            count = (count.unsqueeze(1) + odd).reshape(-1)
        return torch.tensor([1.0, 1.0j, -1.0, -1.0j], dtype=C128)[count % 4]

    def analysis(self, half: Tensor) -> Tensor:
        """i^-p V* a of (k, *shape), (k, size)."""
        d, found = self.grid.d, half * self.grid.multiplicity
        for axis, vectors in enumerate(self.vectors):
            rows = vectors[-half.shape[-1] :] if axis == d - 1 else vectors
            found = torch.tensordot(found, rows.to(C128), dims=([1], [0]))
        return (found.reshape(len(half), -1) * torch.conj(self.turns)).real

    def synthesis(self, coordinates: Tensor) -> Tensor:
        """V i^p u of (k, size), (k, *shape)."""
        d, last = self.grid.d, self.grid.shape[-1]
        found = (coordinates * self.turns).reshape(-1, *self.sizes)
        for axis, vectors in enumerate(self.vectors):
            rows = vectors[-last:] if axis == d - 1 else vectors
            found = torch.tensordot(found, rows.to(C128), dims=([1], [1]))
        return found

    @cached_property
    def _parities(self) -> list[list[tuple[Tensor, Tensor]]]:
        """Of each axis where its even and its odd vectors are, and their halves j >= 0, those of j > 0 twice."""
        found = []
        for vectors, odd in zip(self.vectors, self.odd, strict=True):
            half = vectors[len(vectors) // 2 :] * 2.0
            half[0] *= 0.5
            found.append([(at := (odd == k).nonzero().squeeze(1), half[:, at]) for k in (0, 1)])
        return found

    def at(self, x: Tensor) -> Tensor:
        """Psi = E V i^p, real functions at points (n, columns), (n, size)."""
        found, grid = torch.ones(len(x), 1, dtype=F64), self.grid
        for ((even, cosines), (odd, sines)), column, centre, length in zip(
            self._parities, grid.columns, grid.centre, grid.lengths, strict=True
        ):
            waves = _powers((x[:, column].double() - centre) * (2.0 * math.pi / length), len(cosines))
            own = torch.empty(len(x), len(even) + len(odd), dtype=F64)
            own[:, even], own[:, odd] = waves.real @ cosines, waves.imag @ -sines
            found = (found.unsqueeze(2) * own.unsqueeze(1)).flatten(1)
        return found

    # -- quadratic forms: contractions of one axis after the other --------------------------------------------------
    def form(self, half: Tensor, times: int) -> Tensor:
        """V* A V, real, (size, size): of a diagonal A for `times` 0, of A_jk = a_(j - k) for 2, `half` (*shape)."""
        d = self.grid.d
        whole = self.grid.whole(half)
        if d == 1:
            return self._form_of_one(whole, times)
        for vectors in self.vectors:
            pairs = _pairs(vectors, times)
            whole = torch.tensordot(whole, pairs.to(whole.dtype), dims=([0], [2]))
        order = [2 * axis for axis in range(d)] + [2 * axis + 1 for axis in range(d)]
        found = whole.permute(order).reshape(self.size, self.size)
        return self._turned(found)

    def _form_of_one(self, whole: Tensor, times: int) -> Tensor:
        """`form` along one axis, where all pairs of vectors would need more memory than the matrix: real products of
        halves, as the real part of A leaves vectors even or odd and its imaginary part turns them round."""
        ((even, cosines), (odd, sines)), (vectors,) = self._parities[0], self.vectors
        m, found = len(vectors) // 2, torch.zeros(self.size, self.size, dtype=F64)
        if not times:
            for at, half in self._parities[0]:
                found[at.unsqueeze(1), at] = half.mT @ (whole[m:].unsqueeze(1) * vectors[m:, at])
            return 0.5 * (found + found.mT)
        size = fast_length(6 * m + 1)
        plain, turning = (torch.fft.rfft(part, n=size) for part in (whole.real, whole.imag))

        def blocks(at: Tensor, *kinds: tuple[Tensor, Tensor]) -> list[Tensor]:
            """Products of halves with images of vectors by symbols, halves and symbols of `kinds`."""
            each = [list[Tensor]() for _ in kinds]
            for some in vectors.mT[at].split(max(1, IMAGES // size)):
                spectrum = torch.fft.rfft(some.contiguous(), n=size)
                for own, (half, symbol) in zip(each, kinds, strict=True):
                    own.append(half.mT @ torch.fft.irfft(spectrum * symbol, n=size)[:, 3 * m : 4 * m + 1].mT)
            return [torch.cat(own, 1) for own in each]

        (found[even.unsqueeze(1), even],) = blocks(even, (cosines, plain))
        if len(odd):
            found[odd.unsqueeze(1), odd], across = blocks(odd, (sines, plain), (cosines, turning))
            found[even.unsqueeze(1), odd], found[odd.unsqueeze(1), even] = -across, -across.mT
        return 0.5 * (found + found.mT)

    def lags(self, matrix: Tensor) -> Tensor:
        """sum of (V M V*)_jk over j - k = l of a real symmetric M, for l up to twice the orders, as a half, (M-448): of
        more than one axis."""
        d = self.grid.d
        found = matrix * (self.turns.unsqueeze(1) * torch.conj(self.turns))
        found = found.reshape(*self.sizes, *self.sizes).permute([axis for k in range(d) for axis in (k, d + k)])
        for vectors in self.vectors:
            found = torch.tensordot(found, _pairs(vectors, 2).to(C128), dims=([0, 1], [0, 1]))
        return self.grid.half(found)

    def _turned(self, form: Tensor) -> Tensor:
        found = (form.to(C128) * torch.conj(self.turns).unsqueeze(1) * self.turns).real
        return 0.5 * (found + found.mT)

    def diagonal(self, matrix: Tensor) -> Tensor:
        """Diagonal of V M V*, as a half."""
        d = self.grid.d
        if d == 1:  # even and odd vectors cancel
            (vectors,) = self.vectors
            found = torch.zeros(len(vectors) - len(vectors) // 2, dtype=F64)
            for at, _ in self._parities[0]:
                half = vectors[len(vectors) // 2 :, at]
                found += ((half @ matrix[at.unsqueeze(1), at]) * half).sum(1)
            return found
        found = (matrix * (self.turns.unsqueeze(1) * torch.conj(self.turns))).reshape(*self.sizes, *self.sizes)
        order = [axis for k in range(d) for axis in (k, d + k)]
        found = found.permute(order)
        for vectors in self.vectors:
            found = torch.tensordot(found, _pairs(vectors, 0).to(C128), dims=([0, 1], [0, 1]))
        return self.grid.half(found).real.contiguous()


def least_coordinates(grid: Grid) -> float:
    """About as many as a domain has at least."""
    shares = (part / length for part, length in zip(grid.reach, grid.lengths, strict=True))
    return math.prod(2.0 * m * share + 1.0 for m, share in zip(grid.orders, shares, strict=True))


@lru_cache(maxsize=32)
def prolate_domain(grid: Grid) -> Domain | None:
    """That of a grid; None where pairs of vectors of an axis beside others take too much memory."""
    if max(grid.orders) > MOST_ORDERS or max(grid.orders) * least_coordinates(grid) > LAGGED:
        return None
    shares = (part / length for part, length in zip(grid.reach, grid.lengths, strict=True))
    vectors, odd = zip(*(prolate(m, share) for m, share in zip(grid.orders, shares, strict=True)), strict=True)
    found = Domain(grid, vectors, odd)
    if grid.d > 1 and any(r**2 * (8 * m + 2) > LAGGED for r, m in zip(found.sizes, grid.orders, strict=True)):
        return None
    return found


def domain_of(grid: Grid, most: int) -> Domain | None:
    """That of a grid whose rows lie in a part of the box; None where it has more coordinates than `most`, or hardly
    fewer than there are frequencies, of which there may be no more than `most`; or where there is none."""
    if least_coordinates(grid) > min(most, WORTH * grid.size) or (found := prolate_domain(grid)) is None:
        return None
    return found if found.size <= (most if grid.size > most else WORTH * grid.size) else None


def _powers(angles: Tensor, count: int) -> Tensor:
    """exp(i j a) for j below a count, (n, count): of few exponentials, and their products."""
    step = math.isqrt(count - 1) + 1
    fine, coarse = (
        torch.polar(torch.ones_like(found), found)
        for found in (angles.unsqueeze(1) * (torch.arange(step) * one) for one in (1, step))
    )
    return (coarse.unsqueeze(2) * fine.unsqueeze(1)).flatten(1)[:, :count]


def _pairs(vectors: Tensor, times: int) -> Tensor:
    """v_ja v_ja', (r, r, 2 m + 1), or their sums over j at lags k, v_ja v_(j - k)a', (r, r, 4 m + 1)."""
    if not times:
        return torch.einsum("ja,jb->abj", vectors, vectors)
    m = len(vectors) // 2
    size = 8 * m + 2
    spectrum = torch.fft.rfft(vectors.mT, n=size)
    found = torch.fft.irfft(spectrum.unsqueeze(1) * torch.conj(spectrum).unsqueeze(0), n=size)
    return torch.cat([found[..., -2 * m :], found[..., : 2 * m + 1]], -1) if m else found[..., :1]


@dataclass(frozen=True, eq=False)
class DomainBasis:
    """J. Fields: domain; root, W, of the grid's shape."""

    domain: Any
    root: Tensor

    @property
    def size(self) -> int:
        return self.domain.size

    @cached_property
    def _factor(self) -> Tensor:
        """R."""
        prior = self.domain.form(self.root.square(), 0)
        prior.diagonal().add_(JITTER * float(prior.diagonal().max()))
        return torch.linalg.cholesky(prior)

    def coordinates(self, vectors: Tensor) -> Tensor:
        """J* b of (k, *shape), (k, size)."""
        found = self.domain.analysis(self.root * vectors)
        return torch.linalg.solve_triangular(self._factor, found.mT, upper=False).mT

    def whitened(self, factor: Tensor) -> Tensor:
        """L^-1 R' of a factor L, which makes L^-1 J* W phi of V* phi, phi the waves of points."""
        return torch.linalg.solve_triangular(factor, self._factor.mT, upper=False)

    def put(self, _: Any, coordinates: Tensor) -> Tensor:
        """J c, (k, *shape)."""
        found = torch.linalg.solve_triangular(self._factor.mT, coordinates.mT, upper=True).mT
        return self.root * self.domain.synthesis(found)

    def outside(self, vectors: Tensor) -> Tensor:
        """(I - J J*) b of (k, *shape), on which B is I."""
        return vectors - self.put(vectors, self.coordinates(vectors))

    def matrix(self, gram: Gram, root: Tensor) -> Tensor:
        """J* B J, (size, size)."""
        found = self._factor.mT @ self.domain.form(gram.entries, 2) @ self._factor
        found.diagonal().add_(1.0)
        return found

    def powers(self, matrix: Tensor) -> Tensor:
        """Diagonal of J M J*, of the grid's shape."""
        half = torch.linalg.solve_triangular(self._factor.mT, matrix, upper=True)
        both = torch.linalg.solve_triangular(self._factor.mT, half.mT, upper=True)
        return self.domain.diagonal(both) * self.root.square()
