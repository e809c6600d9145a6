"""Products by near pairs and frequencies: dense float64 within what they say, and answers within their bound."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.events import EventKind, of_kind
from flashgp.inference.fourier.product import ProductSettings, SplitProducts, SplitSettings, fourier_products
from flashgp.inference.fourier.split import Split
from flashgp.inference.run import Run
from flashgp.inference.system import CovarianceSystem
from flashgp.pairwise.cpu.near_sums import NearSums
from flashgp.planner.fourier_price import SplitPrice
from flashgp.planner.plan import Plan
from flashgp.solvers.contract import Goal
from flashgp.solvers.iterative.refinement import RefinedGradients

F64 = torch.float64
k = fgp.kernels


def _rows(n: int, d: int) -> Tensor:
    """With a cluster, rows that come twice, and a gap."""
    x = torch.rand(n, d, dtype=F64, generator=torch.Generator().manual_seed(n))
    x[: n // 6] = 0.3 + 0.02 * x[: n // 6]
    x[n // 6 : n // 4] = x[n // 2 : n // 2 + n // 4 - n // 6]
    x[:, 0] += 0.5 * (x[:, 0] > 0.6)
    return x


def _slow(gp: fgp.GP, n: int, d: int) -> Plan:
    """The plan of a machine on which pairs take long."""
    return replace(fgp.plan(gp, n=n, d=d, route="recomputed", device="cpu"), seconds=1e5)


def _gp(kernel: k.Kernel, noise: float) -> fgp.GP:
    return fgp.GP(kernel, fgp.means.Zero(), fgp.likelihoods.Gaussian(noise))


def _exact(kernel: k.Kernel, x: Tensor, split: SplitSettings, noise: float = 0.01) -> SplitProducts:
    gp = _gp(kernel, noise)
    settings = ProductSettings(split=split)
    found, events = fourier_products(kernel, x, torch.tensor([noise], dtype=F64), _slow(gp, *x.shape), Run(), settings)
    assert found is not None
    assert isinstance(found.finer, SplitProducts)
    assert of_kind(events, EventKind.EXACT_PRODUCTS_SPLIT)
    return found.finer


@pytest.mark.parametrize("radius", [0.3, 1.5])
@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
def test_near_ends_at_the_radius_and_far_is_of_few_frequencies(nu: float, radius: float) -> None:
    """(M-457), (M-458): k = near + far, near is 0 from the radius on, and so is the transform of far from its highest
    frequency on, up to an error."""
    error = 1e-9
    split, r = Split.of(nu, 1.7, radius, error), torch.linspace(0.0, 30.0, 20_001, dtype=F64)
    expected = 1.7 * k.Matern(nu=nu).operator(r.unsqueeze(-1), torch.zeros(1, 1, dtype=F64)).to_dense()[:, 0].detach()
    torch.testing.assert_close(split.far(r) + split.near(r), expected, atol=1e-14, rtol=0.0)
    assert bool((split.near(r)[r >= radius] == 0.0).all())
    step = float(r[1])
    transform = torch.fft.rfft(torch.cat([split.far(r), split.far(r)[1:-1].flip(0)])).real * step
    angular = torch.arange(len(transform)) * (torch.pi / 30.0)
    beyond = transform[angular > 1.02 * split.highest].abs().sum() / 30.0
    assert float(beyond) <= 5.0 * error
    coefficients, off = split.polynomial(0.1 * error)
    t = torch.linspace(-1.0, 1.0, 77, dtype=F64)
    value = sum(float(c) * t**power for power, c in enumerate(coefficients))
    assert isinstance(value, Tensor)
    assert off <= 0.1 * error
    assert float((value - split.near(0.5 * radius * (t + 1.0))).abs().max()) <= 2.0 * off


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("radius", [0.05, 0.3, 5.0])
def test_sums_over_near_pairs(d: int, radius: float) -> None:
    """(M-459): those of all pairs with zeros beyond the radius; every pair is met once, in cells of any size."""
    x = _rows(400, d)
    polynomial = torch.randn(9, dtype=F64, generator=torch.Generator().manual_seed(d)).numpy()
    v = torch.randn(400, dtype=F64, generator=torch.Generator().manual_seed(7))
    near, found = NearSums.of(x.numpy(), radius, polynomial), torch.empty(400, dtype=F64)
    order = torch.from_numpy(near.order)
    found[order] = torch.from_numpy(near @ v[order].numpy())
    r = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")
    t = 2.0 * r / radius - 1.0
    matrix = sum(float(c) * t**power for power, c in enumerate(polynomial)) * (r < radius)
    torch.testing.assert_close(found, matrix @ v, atol=1e-9, rtol=1e-10)


CASES = [
    (1, 0.5, 0.05), (1, 2.5, 0.3), (2, 1.5, 0.08), (2, 2.5, 1.5), (3, 0.5, 0.7), (3, 1.5, 0.3), (3, 1.5, 3.0),
]  # fmt: skip


@pytest.mark.parametrize(("d", "nu", "lengthscale"), CASES)
def test_products_are_exact_to_what_they_say(d: int, nu: float, lengthscale: float) -> None:
    """Beside dense float64, (M-460): and what they say is little, of one column and of several."""
    scales = lengthscale * torch.tensor([1.0, 1.3, 0.8], dtype=F64)[:d]
    kernel, x = 1.4 * k.Matern(nu=nu, lengthscale=scales), _rows(500, d)
    products = _exact(kernel, x, SplitSettings())
    v = torch.randn(500, 3, dtype=F64, generator=torch.Generator().manual_seed(1))
    exact = kernel.operator(x).to_dense().detach() @ v
    for some in (v[:, :1], v[:, :2], v):
        found = products @ some
        error = products.error(some, found)
        assert bool(((found - exact[:, : some.shape[1]]).norm(dim=0) <= error).all())
        assert float(error.max()) <= 1e-6


def test_errors_of_few_rows_are_told() -> None:
    """(M-460): one row of a large entry, and all others but a few so far away that they have next to none of it."""
    n, kernel, split = 2000, k.Matern(nu=1.5, lengthscale=0.1), SplitSettings(radii=(0.5,), min_gain=0.0)
    x, v = torch.linspace(0.0, 1.0, n, dtype=F64).unsqueeze(1), torch.eye(n, 1, dtype=F64)

    def off_and_told(x: Tensor) -> tuple[Tensor, Tensor]:
        products = _exact(kernel, x, split)
        found = products @ v
        return (found - kernel.operator(x, x[:1]).to_dense().detach())[:, 0], products.error(v, found)

    off = off_and_told(x)[0]
    i = int((off[n // 3 : -1] * off[n // 3 + 1 :]).argmin()) + n // 3  # between these rows there is no error
    x[1:-1] = x[i] + 1e-6 * x[1:-1] + float(off[i] / (off[i] - off[i + 1])) / n
    off, told = off_and_told(x)
    assert float(off[1:-1].norm()) < float(off[0].abs())
    assert float(off.norm()) <= float(told)


def test_a_column_of_zeros_hides_no_error() -> None:
    """The rows where the others have their largest entries are looked at all the same."""
    kernel, x = k.Matern(nu=1.5, lengthscale=0.1), _rows(3000, 1)
    products = _exact(kernel, x, SplitSettings())
    for row in (7, 400, 1234, 2998):
        v = torch.zeros(3000, 2, dtype=F64)
        v[row, 0] = 1.0
        spoiled = products @ v
        spoiled[row, 0] += 0.5
        told = products.error(v, spoiled)
        assert float(told[0]) > 0.5
        assert float(told[1]) < 1e-9


@pytest.mark.parametrize("share", [0.02, 1e3, 1e7])
def test_errors_are_in_the_bound(share: float) -> None:
    """(M-460): bounds hold the exact answer, also where frequencies are few; where far too few, all pairs go on,
    to the same goal."""
    n, noise, kernel = 400, 0.01, k.Matern(nu=1.5, lengthscale=0.3)
    x = torch.rand(n, 2, dtype=F64, generator=torch.Generator().manual_seed(5))
    y = torch.sin(6.0 * x.sum(1, keepdim=True)) + 0.1 * torch.randn(
        n, 1, dtype=F64, generator=torch.Generator().manual_seed(2)
    )
    finer = _exact(kernel, x, SplitSettings(share=share), noise)
    dense = kernel.operator(x).to_dense().detach()
    off = (finer @ y - dense @ y).norm()
    assert float(off) <= float(finer.error(y, finer @ y))
    noises = torch.full((n,), noise, dtype=F64)
    products, _ = fourier_products(kernel, x, noises, _slow(_gp(kernel, noise), n, 2), Run())
    assert products is not None
    system = CovarianceSystem(kernel.operator(x), noises)
    found = RefinedGradients(replace(products, finer=finer)).prepare(system).solve(y, Goal(0.0, 1e-4))
    A = dense + noises.diag()
    error = found.value - torch.linalg.solve(A, y)
    assert float((error * (A @ error)).sum().sqrt()) <= float(found.energy_bound)
    assert float(found.energy_bound) <= 1e-4
    assert bool(of_kind(found.events, EventKind.EXACT_PRODUCTS_LEFT)) == (share > 1.0)


def test_a_certified_mean() -> None:
    """Within its bound of the dense solution, by no product of all pairs."""
    n, noise, kernel = 400, 0.01, 1.5 * k.Matern(nu=2.5, lengthscale=0.4)
    x, x_test = torch.rand(n, 3, dtype=F64, generator=torch.Generator().manual_seed(5)), _rows(60, 3)
    y = torch.sin(6.0 * x.sum(1))
    post = _gp(kernel, noise).condition(x, y, plan=_slow(_gp(kernel, noise), n, 3))
    dense = kernel.operator(x).to_dense().detach() + noise * torch.eye(n, dtype=F64)
    mean = kernel.operator(x_test, x).to_dense().detach() @ torch.linalg.solve(dense, y)
    assert of_kind(post.report.events, EventKind.EXACT_PRODUCTS_SPLIT)
    assert not of_kind(post.report.events, EventKind.EXACT_PRODUCTS_LEFT)
    assert post.report.error_bound is not None
    assert float((post.predict(x_test).mean - mean).abs().max()) <= post.report.error_bound
    assert post.report.error_bound <= 1e-3 * noise**0.5


@pytest.mark.parametrize("kernel", [k.RBF(0.3), k.Matern(nu=1.5) + k.Matern(nu=0.5), k.Matern() * k.Periodic()])
def test_what_has_no_near_part_takes_all_pairs(kernel: k.Kernel) -> None:
    gp = _gp(kernel, 0.1)
    x, noise = _rows(200, 1), torch.tensor([0.1], dtype=F64)
    found, _ = fourier_products(kernel, x, noise, _slow(gp, 200, 1), Run())
    assert found is not None
    assert found.finer is None


def test_pairs_are_priced_beside_frequencies() -> None:
    """(M-461): a larger radius takes more of the one and fewer of the other."""
    near = SplitPrice(n=100_000, d=3, numbers=10**5, share=0.1)
    far = SplitPrice(n=100_000, d=3, numbers=10**7, share=0.001)
    assert near.near > far.near
    assert min(near.seconds, far.seconds) > SplitPrice(n=100_000, d=3, numbers=10**5, share=0.001).seconds
