"""Every order of derivative, in both modes, holds a few tiles and leaves none behind, eq. (M-110)."""

import dataclasses
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, jvp, vjp
from torch.utils._python_dispatch import TorchDispatchMode

import flashgp as fgp
from flashgp.operators.covariance import CovarianceOperator
from flashgp.operators.multiplication import OperatorOptions
from flashgp.operators.tiled import product_sum
from flashgp.pairwise.torch import opaque
from flashgp.pairwise.torch.tiles import TileSettings, TorchTiles


def address(value: Any) -> int | None:
    """Where a tensor's numbers lie; None for what has none: other values, and zeros that nobody wrote down."""
    return value.untyped_storage().data_ptr() if isinstance(value, Tensor) and not value._is_zerotensor() else None


class Alive(TorchDispatchMode):
    """Counts the bytes of what operations returned and nobody has dropped yet."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = set(filter(None, map(address, (*args, *(kwargs or {}).values()))))
        result = func(*args, **(kwargs or {}))
        for one in result if isinstance(result, tuple | list) else (result,):
            if address(one) not in (None, *known):
                size = one.untyped_storage().nbytes()
                self.bytes += size
                self.peak = max(self.peak, self.bytes)
                weakref.finalize(one.untyped_storage(), self._dropped, size)
        return result

    def _dropped(self, size: int) -> None:
        self.bytes -= size


TILE_PAIRS = 2**14
TILE_BYTES = 8 * TILE_PAIRS  # in float64


@pytest.fixture
def no_collector() -> Iterator[None]:
    """What is dropped must be gone at once, not when Python next looks for cycles."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def sides(n: int, m: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    numbers = (torch.randn(k, d, generator=generator, dtype=torch.float64) for k, d in ((n, 3), (m, 3), (m, 2), (n, 2)))
    x, z, v, w = numbers
    return x, z, v, w


def tiled(kernel: fgp.kernels.Kernel, x: Tensor, z: Tensor) -> CovarianceOperator:
    """K on small tiles of the portable backend."""
    backend = TorchTiles(settings=TileSettings(pairs=TILE_PAIRS))
    options = OperatorOptions(backend=backend, derivative_pairs=TILE_PAIRS)
    return CovarianceOperator(kernel.operator(x, z).problem, torch.float64, options=options)


def energy(kernel: fgp.kernels.Kernel, x: Tensor, z: Tensor, v: Tensor, w: Tensor) -> Tensor:
    """sum(w * K v)."""
    return (w * (tiled(kernel, x, z) @ v)).sum()


def twice(kernel: fgp.kernels.Kernel, x: Tensor, z: Tensor, v: Tensor, w: Tensor) -> None:
    """A Hessian times a vector, in all points and parameters, by autograd."""
    leaves = [x.clone().requires_grad_(), z.clone().requires_grad_(), *kernel.parameters()]
    slopes = torch.autograd.grad(energy(kernel, leaves[0], leaves[1], v, w), leaves, create_graph=True)
    torch.autograd.grad(sum(s.square().sum() for s in slopes), leaves)


def twice_by_functions(kernel: fgp.kernels.Kernel, x: Tensor, z: Tensor, v: Tensor, w: Tensor) -> None:
    grad(lambda a: grad(lambda b: energy(kernel, b, z, v, w))(a).square().sum())(x)


def thrice(kernel: fgp.kernels.Kernel, x: Tensor, z: Tensor, v: Tensor, w: Tensor) -> None:
    def slope(a: Tensor) -> Tensor:
        return grad(lambda b: energy(kernel, b, z, v, w))(a).square().sum()

    grad(lambda a: grad(slope)(a).sum())(x)


def forward(kernel: fgp.kernels.Kernel, x: Tensor, z: Tensor, v: Tensor, w: Tensor) -> None:
    jvp(lambda a, b: energy(kernel, a, z, b, w), (x, v), (x, v))


def forward_over_reverse(kernel: fgp.kernels.Kernel, x: Tensor, z: Tensor, v: Tensor, w: Tensor) -> None:
    jvp(grad(lambda a: energy(kernel, a, z, v, w)), (x,), (x,))


def reverse_over_forward(kernel: fgp.kernels.Kernel, x: Tensor, z: Tensor, v: Tensor, w: Tensor) -> None:
    vjp(lambda a: jvp(lambda b: energy(kernel, b, z, v, w), (a,), (x,))[1], x)[1](torch.ones((), dtype=x.dtype))


def in_a_dual_level(kernel: fgp.kernels.Kernel, x: Tensor, z: Tensor, v: Tensor, w: Tensor) -> None:
    with torch.autograd.forward_ad.dual_level():
        energy(kernel, torch.autograd.forward_ad.make_dual(x, x), z, v, w)


def dense_twice(kernel: fgp.kernels.Kernel, x: Tensor, z: Tensor, v: Tensor, w: Tensor) -> None:
    def value(a: Tensor) -> Tensor:
        return tiled(kernel, a, z).to_dense().square().sum()

    grad(lambda a: grad(value)(a).square().sum())(x)


# Of the size of K: the block itself, its square's derivatives and their cotangents.
MATRICES = {dense_twice: 6}
EVERY_ORDER = (
    twice, twice_by_functions, thrice, forward, forward_over_reverse, reverse_over_forward, in_a_dual_level,
    dense_twice,
)  # fmt: skip


def far_apart(x: Tensor, z: Tensor, width: Tensor) -> Tensor:
    return torch.exp(-(x - z).abs().pow(1.5).sum() / width)


@pytest.mark.parametrize("method", EVERY_ORDER)
def test_every_order_keeps_a_few_tiles(method: Callable[..., None], no_collector: None) -> None:
    n, m = 512, 1024  # 32 tiles, of which second derivatives hold a dozen at a time
    given = sides(n, m)
    with Alive() as alive:
        method(1.7 * fgp.kernels.Matern(2.5, 0.8), *given)
    assert TILE_BYTES <= alive.peak - 8 * n * m * MATRICES.get(method, 0) <= 32 * TILE_BYTES
    assert alive.bytes < 2 * TILE_BYTES  # some features; a tile of every panel would be 32


def test_python_functions_keep_a_few_tiles(no_collector: None) -> None:
    kernel = fgp.kernels.Custom(far_apart, width=torch.tensor(2.0, dtype=torch.float64))
    assert not kernel.form.fusable
    given = sides(512, 1024)
    for method in (twice, forward):
        with Alive() as alive:
            method(kernel, *given)
        assert alive.peak < 64 * TILE_BYTES
        assert alive.bytes < 2 * TILE_BYTES  # some features; a tile of every panel would be 32


def test_python_functions_that_make_much_of_a_pair_take_small_tiles(no_collector: None) -> None:
    """What they make of all pairs of a tile of the usual size would be 2^18 pairs times some 400 numbers."""
    x = torch.randn(400, 100, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kernel = fgp.kernels.Custom(far_apart, columns=100, width=torch.tensor(20.0, dtype=torch.float64))
    assert not kernel.form.fusable
    v = x[:, :1].contiguous()
    for method in (twice, forward):
        with Alive() as alive:
            method(kernel, x, x[:300] + 1.0, v[:300], v)
        assert alive.peak < 8 * 8 * opaque.PIECE_NUMBERS


def test_a_diagonal_of_a_python_function_is_made_of_some_rows_at_a_time(no_collector: None) -> None:
    x = torch.randn(200_000, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kernel = fgp.kernels.Custom(far_apart, columns=40, width=torch.tensor(20.0, dtype=torch.float64))
    with torch.no_grad(), Alive() as alive:
        found = kernel.operator(x).diagonal()
    assert torch.equal(found, torch.ones(200_000, dtype=torch.float64))
    assert alive.peak < 2 * 8 * opaque.PIECE_NUMBERS


def test_what_is_alive_is_counted() -> None:
    with Alive() as alive:
        kept = torch.zeros(1000, dtype=torch.float64) + 1.0
        view = kept[:10]
        (kept * 2.0).sum()
        assert alive.peak >= 16_000
        assert 8_000 <= alive.bytes < 9_000
        del kept, view
        assert alive.bytes < 1_000


def test_a_sum_over_no_tiles_is_zero_in_every_order() -> None:
    """Eq. (M-110) where nothing is summed: values and derivatives have the shapes of the whole."""
    operator = fgp.kernels.RBF(torch.ones(2)).operator(torch.ones(5, 2).double(), torch.ones(4, 2).double())
    total = dataclasses.replace(product_sum(operator.problem), tiles=())
    tensors = [t.detach() for t in operator.problem.tensors]
    right = torch.ones(4, 3, dtype=torch.float64)
    (value,) = total(right, *tensors)
    assert torch.equal(value, torch.zeros(5, 3, dtype=torch.float64))
    points = tensors[0].clone().requires_grad_()
    first = torch.autograd.grad(total(right, points, *tensors[1:])[0].sum(), points, create_graph=True)[0]
    second = torch.autograd.grad(first.sum(), points)[0]
    assert torch.equal(first, torch.zeros_like(points))
    assert torch.equal(second, torch.zeros_like(points))
    _, moved = jvp(lambda t: total(right, t, *tensors[1:])[0], (tensors[0],), (torch.ones_like(tensors[0]),))
    assert torch.equal(moved, value)
