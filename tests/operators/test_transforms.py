"""torch.func over operators, on both routes: grad, vjp, jacrev, vmap, jvp, second order; against plain torch."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import flashgp as fgp
from flashgp.operators.covariance import CovarianceOperator
from flashgp.pairwise.backend import Backend
from flashgp.pairwise.cpu.backend import CpuTiles, cpu_tiles_missing
from flashgp.pairwise.torch.tiles import TorchTiles
from operators.operator_cases import operator_with

F64 = torch.float64
ROUTES = {"torch": TorchTiles, "cpu": lambda: CpuTiles(min_pairs=0)}


CHOSEN: list[Backend] = []  # the backend of operators


@pytest.fixture(params=ROUTES)
def route(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "cpu" and cpu_tiles_missing():
        pytest.skip("numba is not installed")
    CHOSEN.append(ROUTES[request.param]())
    yield
    CHOSEN.clear()


def operator_of(kernel: fgp.kernels.Kernel, x: Tensor, z: Tensor | None = None) -> CovarianceOperator:
    return operator_with(kernel, x, z, backend=CHOSEN[0])


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


KERNEL = 1.7 * fgp.kernels.Matern(2.5, 0.8)


def ours(x: Tensor, z: Tensor, v: Tensor) -> Tensor:
    return operator_of(KERNEL, x, z) @ v


def plain(x: Tensor, z: Tensor, v: Tensor) -> Tensor:
    q = (x.unsqueeze(-2) - z.unsqueeze(-3)).square().sum(-1) / 0.8**2
    r = (5 * q + 1e-300).sqrt()
    return 1.7 * ((1 + r + r * r / 3) * torch.exp(-r)) @ v


X, Z, V = numbers(6, 2), numbers(5, 2, seed=1), numbers(5, 3, seed=2)


@pytest.mark.parametrize("argument", [0, 1, 2])
def test_grad_vjp_and_jacobians(route: object, argument: int) -> None:
    def at(function: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
        arguments = [X, Z, V]

        def one(a: Tensor) -> Tensor:
            arguments[argument] = a
            return function(*arguments)

        return one

    given = [X, Z, V][argument]
    weights = numbers(6, 3, seed=3)
    close(grad(lambda a: (weights * at(ours)(a)).sum())(given), grad(lambda a: (weights * at(plain)(a)).sum())(given))
    close(vjp(at(ours), given)[1](weights)[0], vjp(at(plain), given)[1](weights)[0])
    close(jacrev(at(ours))(given), jacrev(at(plain))(given))
    close(jacfwd(at(ours))(given), jacrev(at(plain))(given))
    tangent = numbers(*given.shape, seed=4)
    close(jvp(at(ours), (given,), (tangent,))[1], jvp(at(plain), (given,), (tangent,))[1])


@pytest.mark.parametrize("argument", [0, 1])
def test_second_order(route: object, argument: int) -> None:
    weights = numbers(6, 3, seed=3)

    def value(function: Callable[..., Tensor], a: Tensor) -> Tensor:
        arguments = [X, Z, V]
        arguments[argument] = a
        return (weights * function(*arguments)).sum()

    given = [X, Z][argument]
    close(hessian(lambda a: value(ours, a))(given), hessian(lambda a: value(plain, a))(given), 1e-10)
    close(jacrev(jacrev(lambda a: value(ours, a)))(given), hessian(lambda a: value(plain, a))(given), 1e-10)


def test_vmap(route: object) -> None:
    xs, zs, vs = numbers(4, 6, 2), numbers(4, 5, 2, seed=5), numbers(4, 5, 3, seed=6)
    close(vmap(ours)(xs, zs, vs), torch.stack([plain(*one) for one in zip(xs, zs, vs, strict=True)]))
    close(vmap(ours, (None, None, 0))(X, Z, vs), torch.stack([plain(X, Z, v) for v in vs]))
    close(vmap(ours, (0, None, None))(xs, Z, V), torch.stack([plain(x, Z, V) for x in xs]))
    close(vmap(ours, (None, 0, 1), 1)(X, zs, vs.movedim(0, 1)), vmap(plain, (None, 0, 1), 1)(X, zs, vs.movedim(0, 1)))

    def energy(function: Callable[..., Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda x, v: function(x, Z, v).square().sum()

    close(vmap(grad(energy(ours)))(xs, vs), vmap(grad(energy(plain)))(xs, vs))
    close(vmap(grad(energy(ours), 1))(xs, vs), vmap(grad(energy(plain), 1))(xs, vs))


def test_parameters(route: object) -> None:
    kernel = fgp.kernels.RBF(0.8)
    names = dict(kernel.named_parameters())

    def value(raw: Tensor) -> Tensor:
        return torch.func.functional_call(Wrapped(kernel), {"kernel." + name: raw for name in names}, (X, Z, V)).sum()

    raw = next(iter(names.values())).detach()

    def wanted(r: Tensor) -> Tensor:
        q = (X[:, None] - Z).square().sum(-1) / torch.exp(2 * r)
        return (torch.exp(-q / 2) @ V).sum()

    close(grad(value)(raw), grad(wanted)(raw))
    close(hessian(value)(raw), hessian(wanted)(raw))
    close(vmap(grad(value))(torch.stack([raw, raw + 0.3])), vmap(grad(wanted))(torch.stack([raw, raw + 0.3])))


class Wrapped(torch.nn.Module):
    def __init__(self, kernel: fgp.kernels.Kernel) -> None:
        super().__init__()
        self.kernel = kernel

    def forward(self, x: Tensor, z: Tensor, v: Tensor) -> Tensor:
        return self.kernel.operator(x, z) @ v


def test_dense_blocks(route: object) -> None:
    def dense(x: Tensor) -> Tensor:
        return operator_of(KERNEL, x).to_dense()

    eye = torch.eye(6, dtype=F64)
    close(jacrev(dense)(X), jacrev(lambda x: plain(x, x, eye))(X), 1e-10)
    xs = numbers(3, 6, 2)
    close(vmap(dense)(xs), torch.stack([dense(x).detach() for x in xs]))
    weights = numbers(6, 6, seed=7)
    close(
        hessian(lambda x: (weights * dense(x)).sum())(X),
        hessian(lambda x: (weights * plain(x, x, eye)).sum())(X),
        1e-6,  # the plain formula divides by a distance of 1e-150 on the diagonal
    )


def close(found: Tensor, wanted: Tensor, tolerance: float = 1e-12) -> None:
    assert found.shape == wanted.shape
    assert float((found - wanted).abs().max()) <= tolerance * max(1.0, float(wanted.abs().max()))
