"""Boxes, spatial order and far tiles: bounds are never below a covariance, nothing is lost: eqs. (M-71) to (M-74)."""

import numpy
import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.kernels import Kernel
from flashgp.pairwise.backend import Backend, PairGradient
from flashgp.pairwise.cpu.backend import CpuTiles, cpu_tiles_missing
from flashgp.pairwise.near import boxes as boxes_module
from flashgp.pairwise.near.boxes import boxes_of, covariance_bound
from flashgp.pairwise.near.far import FarTiles, far_tiles, spatial_order
from flashgp.pairwise.problem import PairProblem
from flashgp.pairwise.torch.tiles import TileSettings, TorchTiles
from pairwise.pair_cases import CASES, REFERENCE, TORCH, Case

k = fgp.kernels
F64 = torch.float64
PANEL = 16  # the smallest that compiled loops take


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def clusters(n: int, d: int, seed: int = 0) -> Tensor:
    """Rows around five far centres, some of them twice."""
    x = numbers(n, d, seed=seed) + 30.0 * numbers(5, d, seed=7).repeat_interleave(-(-n // 5), 0)[:n]
    x[n // 2] = x[0]
    return x[torch.randperm(n, generator=torch.Generator().manual_seed(seed))]


def theta_of(kernel: Kernel) -> list[Tensor]:
    return [t.detach() for t in kernel.theta()]


def found(kernel: Kernel, x: Tensor, z: Tensor | None, threshold: float) -> FarTiles | None:
    rows, cols = kernel.rows(x).detach(), None if z is None else kernel.rows(z).detach()
    return far_tiles(PairProblem(kernel.form, theta_of(kernel), rows, cols), torch.tensor(threshold, dtype=F64), PANEL)


@pytest.mark.parametrize("spread", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("case", CASES)
def test_no_covariance_is_above_its_bound(case: Case, spread: float) -> None:
    """(M-71): random boxes of every registered function, against its dense block; narrow, usual and wide ones."""
    x, z = case.points(40, 1), case.points(36, 2)
    if x.abs().max() > 0 and case.name not in ("Categorical", "Coregionalization"):
        x, z = x * spread, z * spread
        z[3] = x[2]
    kernel = case.kernel
    rows, cols = kernel.rows(x).detach(), kernel.rows(z).detach()
    size = 4
    left, right = boxes_of(kernel.form, rows, size), boxes_of(kernel.form, cols, size)
    i, j = (a.ravel() for a in numpy.indices((left.count, right.count)))
    values = [t.unsqueeze(-1).numpy() for t in theta_of(kernel)]
    bound = covariance_bound(kernel.form, values, left, right, i, j).reshape(10, 9)
    dense = TORCH.block(PairProblem(kernel.form, theta_of(kernel), rows, cols), dtype=F64).abs()
    largest = dense.reshape(10, 4, 9, 4).amax((1, 3)).numpy()
    assert (bound >= largest).all()
    if kernel.form.fusable and spread == 0.01 and case.name not in ("Categorical", "Coregionalization"):
        # Small boxes: close to the truth, except where terms of both signs cancel.
        assert (bound <= 3.0 * largest + 1.0).all()
    assert not kernel.form.pair_functions or numpy.isinf(bound).all()


def test_codes_between_panels() -> None:
    """A match is 1 for panels of one code and the same, 0 for ranges apart, and either where both can be."""
    kernel = k.Categorical(0.5)
    codes = torch.tensor([1, 1, 1, 3, 4, 5, 2, 2], dtype=F64)[:, None]
    boxes = boxes_of(kernel.form, kernel.rows(codes).detach(), 2)
    i, j = (a.ravel() for a in numpy.indices((4, 4)))
    found = boxes_module._match(boxes.features[0], boxes.features[0], i, j)
    low = [[1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 1]]
    high = [[1, 1, 0, 0], [1, 1, 0, 1], [0, 0, 1, 0], [0, 1, 0, 1]]
    assert numpy.array_equal(found.low.reshape(4, 4), low)
    assert numpy.array_equal(found.high.reshape(4, 4), high)


def test_joined_boxes_are_boxes_of_both() -> None:
    kernel = k.RBF(0.5, active_dims=[0]) * k.Linear(active_dims=[1]) + k.Coregionalization(4, 1, active_dims=[2])
    x = torch.cat([numbers(50, 2), torch.randint(0, 4, (50, 1)).double()], -1)
    rows = kernel.rows(x).detach()
    one, two = boxes_of(kernel.form, rows, 8).joined(), boxes_of(kernel.form, rows, 16)
    assert one.count == two.count == 4
    pairs = [*one.features, *one.scalars], [*two.features, *two.scalars]
    for a, b in zip(*pairs, strict=True):
        assert numpy.array_equal(a.low, b.low)
        assert numpy.array_equal(a.high, b.high)
    assert all(numpy.array_equal(one.norms[key], two.norms[key]) for key in two.norms)
    assert one.norms.keys() == two.norms.keys() != set()


@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 100, 513])
def test_an_order_holds_every_row_once(n: int) -> None:
    for d in (1, 3):
        order = spatial_order(k.RBF(1.0).form, k.RBF(1.0).rows(numbers(n, d)).detach(), 16)
        assert sorted(order.tolist()) == list(range(n))


def test_an_order_brings_near_rows_together() -> None:
    """Panels of uniform points: their boxes cover little more than the square has; duplicates end it early."""
    x = torch.rand(4096, 2, generator=torch.Generator().manual_seed(0), dtype=F64)
    order = spatial_order(k.RBF(1.0).form, k.RBF(1.0).rows(x).detach(), 64)
    panels = x[order].reshape(64, 64, 2)
    areas = (panels.amax(1) - panels.amin(1)).prod(-1)
    assert float(areas.sum()) <= 1.0
    assert float(areas.max()) <= 2.0 / 64
    same = k.RBF(1.0).rows(torch.ones(100, 2, dtype=F64)).detach()
    assert torch.equal(spatial_order(k.RBF(1.0).form, same, 16), torch.arange(100))


def test_no_distance_leaves_the_order() -> None:
    for kernel in (k.Linear(), k.Constant(2.0), k.Categorical(0.5, active_dims=[0])):
        rows = kernel.rows(torch.randint(0, 4, (40, 2)).double()).detach()
        assert torch.equal(spatial_order(kernel.form, rows, 16), torch.arange(40))


DECAYING = {
    "RBF": k.RBF(1.0),
    "Matern-1/2": k.Matern(0.5, 1.0),
    "Matern-5/2, scaled": 3.0 * k.Matern(2.5, 0.8),
    "product": k.RBF(1.1) * k.Periodic(2.0) * k.Linear(0.5),
    "spectral mixture": k.SpectralMixture([0.7, 1.6], [[0.1], [0.3]], [[0.4], [0.2]], active_dims=[0]),
}


@pytest.mark.parametrize("rectangular", [False, True], ids=["symmetric", "rectangular"])
@pytest.mark.parametrize("kernel", DECAYING.values(), ids=DECAYING)
def test_tiles_and_skipped_parts_are_everything(kernel: Kernel, rectangular: bool) -> None:
    """(M-72): each pair of rows is in exactly one tile or skipped part, and a skipped part is below the threshold."""
    x, z = clusters(150, 1), clusters(97, 1, seed=3) if rectangular else None
    far = found(kernel, x, z, 1e-6)
    assert far is not None
    assert 0.0 < far.kept < 0.85
    near = far.near
    count, bounds = near.mask(), torch.zeros(near.n, near.m, dtype=F64)
    assert far.kept == pytest.approx(float(count.mean()))
    for part in far.skipped:
        for (i, j), bound in zip(part.pairs, part.bounds, strict=True):
            places = [(i, j)] if rectangular or i == j else [(i, j), (j, i)]
            for a, b in places:
                tile = slice(a * part.size, (a + 1) * part.size), slice(b * part.size, (b + 1) * part.size)
                count[tile] += 1
                bounds[tile] = float(bound)
    assert torch.equal(count, torch.ones_like(count))
    assert float(bounds.max()) < 1e-6
    dense = kernel(x, x if z is None else z).to_dense().detach()[far.row_order][:, far.column_order]
    assert bool((dense.abs() <= bounds)[near.mask() == 0].all())
    turned = far.T
    assert torch.equal(turned.near.mask(), near.mask().mT)
    assert torch.equal(turned.row_order, far.column_order)


def flat(gradient: PairGradient) -> list[Tensor | None]:
    return [*gradient.rows, *gradient.cols, *gradient.theta]


MADE: dict[str, Backend] = {"torch": TorchTiles(), "cpu": CpuTiles(min_pairs=0)}


@pytest.mark.parametrize("rectangular", [False, True], ids=["symmetric", "rectangular"])
@pytest.mark.parametrize(
    ("name", "kernel"), [*(("torch", kernel) for kernel in DECAYING), ("cpu", "Matern-1/2"), ("cpu", "product")]
)
def test_backends_run_over_the_same_tiles(name: str, kernel: str, rectangular: bool) -> None:
    """Product and gradient of K times the mask: the reference's, in one piece and in small ones."""
    if name == "cpu" and cpu_tiles_missing():
        pytest.skip("numba is not installed")
    function = DECAYING[kernel]
    x, z = clusters(70, 1), clusters(45, 1, seed=3) if rectangular else None
    far = found(function, x, z, 1e-6)
    assert far is not None
    rows = function.rows(x).detach().take(far.row_order)
    cols = None if z is None else function.rows(z).detach().take(far.column_order)
    left, right = numbers(70, 2), numbers(45 if rectangular else 70, 2, seed=1)
    problem = PairProblem(function.form, theta_of(function), rows, cols, far.near)
    wanted = REFERENCE.product(problem, right)
    got = MADE[name].product(problem, right)
    assert torch.allclose(got, wanted, rtol=1e-11, atol=1e-11)
    for one, two in zip(
        flat(MADE[name].bilinear_gradient(problem, left, right)),
        flat(REFERENCE.bilinear_gradient(problem, left, right)),
        strict=True,
    ):
        assert two is not None
        if one is not None:
            assert torch.allclose(one.reshape(two.shape), two, rtol=1e-9, atol=1e-9)
        else:
            assert not two.any()


def test_torch_tiles_cut_tiles_that_are_large() -> None:
    """Rows of a panel in parts, columns of a run in parts: the same numbers."""
    kernel, x, right = DECAYING["RBF"], clusters(200, 1), numbers(200, 2)
    far = found(kernel, x, None, 1e-6)
    assert far is not None
    rows = kernel.rows(x).detach().take(far.row_order)
    problem = PairProblem(kernel.form, [], rows, near=far.near)
    wanted = TORCH.product(problem, right)
    for pairs in (2**4, 2**7, 2**10):
        got = TorchTiles(settings=TileSettings(pairs=pairs)).product(
            PairProblem(kernel.form, [], rows, near=far.near), right
        )
        assert torch.allclose(got, wanted, rtol=0, atol=1e-13)


def test_nothing_far_is_no_tiles() -> None:
    """Functions that do not decay, rows in one place, no rows: None, which keeps everything."""
    for kernel in (k.Linear(), k.Periodic(1.0), k.Cosine(0.3), k.Constant(1.0), k.RBF(1.0) + 0.5):
        assert found(kernel, clusters(100, 2), None, 1e-9) is None
    assert found(k.RBF(1.0), numbers(100, 2), None, 1e-9) is None
    for n, m in ((0, None), (0, 5), (5, 0)):
        assert found(k.RBF(1.0), numbers(n, 2), None if m is None else numbers(m, 2), 1e-9) is None
