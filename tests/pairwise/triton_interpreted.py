"""The Triton backend under Triton's interpreter, on the CPU; run by test_triton.py in a process of its own.

The interpreter must be chosen before triton is imported. It is slow, so tables have a few rows and tiles 16 x 16: a
table of 18 rows already has two tiles a side, of which the second is mostly padding.
"""

import dataclasses
import os

os.environ["TRITON_INTERPRET"] = "1"

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from flashgp import kernels
from flashgp.foundations.expression import exp, parameter, squared_distance
from flashgp.foundations.form import Form, Rows
from flashgp.kernels import Kernel
from flashgp.pairwise.problem import PairProblem
from flashgp.pairwise.program.program import program_of
from flashgp.pairwise.triton import TritonTiles, launch, packing
from flashgp.pairwise.triton.launch import LaunchSettings, TileShape
from pairwise.pair_cases import ONE_CASE_EACH, REFERENCE, TORCH, Case, Job, gradients, job, relative_error
from pairwise.test_contract import EVERYTHING, everything_rows

f64, f32 = torch.float64, torch.float32
EPS = torch.finfo(f32).eps
# As in the float64 contract: a few dozen operations on numbers of size 1, and sums of a few hundred of those.
VALUE_TOLERANCE = 50 * EPS
GRADIENT_TOLERANCE = 200 * EPS
SMALL_TILES = LaunchSettings(dict.fromkeys(("few", "many", "block", "gradient"), TileShape(16, 16, 4, 1, 32)), 1)
TRITON = TritonTiles(SMALL_TILES)
Tensors = list[Tensor | None]


def compare(given: Job, count: int = 2, blocks: bool = True, triton: TritonTiles = TRITON) -> list[str]:
    """Every operation of the backend against the portable backend in float64, in words where it is off.

    `blocks` False leaves out those that take or give a matrix of all pairs.
    """
    g, theta = given, given.theta
    left, right = (s.repeat(*[1] * (s.dim() - 1), count)[..., :count].float() for s in (g.left, g.right))
    weights = g.weights.float()
    rows, cols, form = g.rows, g.cols, g.form
    outer = left.double() @ right.double().mT
    outer = outer if cols is not None else (outer + outer.mT) / 2
    pairs: list[tuple[str, Callable[[], Tensors], Callable[[], Tensors], Tensor | None]] = [
        (
            "block",
            lambda: [triton.block(PairProblem(form, theta, rows, cols), dtype=f32)],
            lambda: [TORCH.block(PairProblem(form, theta, rows, cols), dtype=f64)],
            None,
        ),
        (
            "product",
            lambda: [triton.product(PairProblem(form, theta, rows, cols), right)],
            lambda: [TORCH.product(PairProblem(form, theta, rows, cols), right.double())],
            None,
        ),
        (
            "block_gradient",
            lambda: gradients(triton.block_gradient(PairProblem(form, theta, rows, cols), weights)),
            lambda: gradients(TORCH.block_gradient(PairProblem(form, theta, rows, cols), weights.double())),
            weights.double(),
        ),
        (
            "bilinear_gradient",
            lambda: gradients(triton.bilinear_gradient(PairProblem(form, theta, rows, cols), left, right)),
            lambda: gradients(
                TORCH.bilinear_gradient(PairProblem(form, theta, rows, cols), left.double(), right.double())
            ),
            outer,
        ),
    ]
    problems = []
    for what, ours, theirs, signed in pairs:
        if not blocks and "block" in what:
            continue
        found, wanted = ours(), theirs()
        # A gradient is a sum with signs: its rounding is that of its terms, whose size the unsigned weights show.
        sizes = (
            wanted
            if signed is None
            else gradients(TORCH.block_gradient(PairProblem(form, theta, rows, cols), signed.abs()))
        )
        tolerance = VALUE_TOLERANCE if signed is None else GRADIENT_TOLERANCE
        for position, (one, two, size) in enumerate(zip(found, wanted, sizes, strict=True)):
            if one is None or two is None or size is None:
                if one is not two:
                    problems.append(f"{what}[{position}] is missing on one side")
                continue
            # A gradient may leave out a batch that it does not have.
            error = relative_error(one, two.expand(one.shape)) if one.numel() else 0.0
            error *= max(1.0, float(two.abs().max())) / max(1.0, float(two.abs().max()), float(size.abs().max()))
            if not error <= tolerance:
                problems.append(f"{what}[{position}] is off by {error / EPS:.0f} eps")
    return problems


def points(n: int, d: int, seed: int = 0) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=f64)


def made(kernel: Kernel, x: Tensor, z: Tensor | None = None, seed: int = 1) -> Job:
    """A job on these points."""
    generator = torch.Generator().manual_seed(seed)
    n, m = x.shape[-2], (x if z is None else z).shape[-2]
    batch = x.shape[:-2]
    weights = torch.randn(*batch, n, m, generator=generator, dtype=f64)
    return Job(
        kernel.form,
        [t.detach() for t in kernel.theta()],
        kernel.rows(x).detach(),
        None if z is None else kernel.rows(z).detach(),
        torch.randn(*batch, n, 2, generator=generator, dtype=f64),
        torch.randn(*batch, m, 2, generator=generator, dtype=f64),
        weights if z is not None else (weights + weights.mT) / 2,
    )


@pytest.mark.parametrize("case", ONE_CASE_EACH)
def test_every_covariance_function(case: Case) -> None:
    """(M-1), (M-20), (M-21) and (M-63), rectangular and symmetric, rows repeating inside and between the sides."""
    assert compare(job(case, 7, 5)) == []
    if case.name in ("Matern", "Coregionalization", "Warped"):
        assert compare(job(case, 5, None), count=6, blocks=False) == []


def test_several_tiles() -> None:
    """One past a tile on either side, few and many right-hand sides, both routes of the weights."""
    assert compare(job(Case("Sum", 0, 3), 17, 33), count=2) == []
    assert compare(job(Case("Scaled", 0, 3), 17, None), count=6) == []


@pytest.mark.parametrize("d", [17, 70])
def test_tensor_core_products(d: int) -> None:
    """Distances and inner products by tl.dot, padded and in chunks; gradients of more columns than a program keeps."""
    kernel = kernels.Matern(1.5, d**0.5) + 0.3 * kernels.Linear(1 / d)
    x, z = points(17, d), points(3, d, 1)
    z[0] = x[0]
    routes = launch.routes(kernel.form, [d, d], careful=False)
    assert [s.route for s in routes] == ["dots" if d == 70 else "dot"] * 2
    assert compare(made(kernel, x, z), count=6) == []
    if d == 17:
        assert compare(made(kernel, x[:9]), count=2) == []


@pytest.mark.parametrize(("d", "symmetric"), [(2, False), (20, True)])
def test_equal_rows_have_distance_zero(d: int, symmetric: bool) -> None:
    """(M-22), (M-64): the variance to the last bit, among rows whose squares are far from exact."""
    x = points(18, d) * 7.3 / d**0.5
    x[17] = x[3]
    kernel = kernels.Matern(1.5, 1.9)
    rows = kernel.rows(x).detach()
    block = TRITON.block(PairProblem(kernel.form, [], rows, None if symmetric else rows), dtype=f32)
    assert torch.equal(block.diagonal(), torch.ones(18))
    assert block[3, 17] == block[17, 3] == 1
    if symmetric:
        assert torch.equal(block, block.mT)


def test_a_symmetric_block_is_symmetric_to_the_last_bit() -> None:
    """Also where left and right enter the arithmetic in another order."""
    rows, theta = everything_rows(18, 1), [torch.tensor(0.7, dtype=f64)]
    block = TRITON.block(PairProblem(EVERYTHING, theta, rows), dtype=f32)
    assert torch.equal(block, block.mT)
    rectangle = TRITON.block(PairProblem(EVERYTHING, theta, rows, rows), dtype=f32)
    assert not torch.equal(rectangle, rectangle.mT), "the arithmetic shows no difference: choose another form"


def test_the_diagonal_pulls_nothing() -> None:
    """(M-24): weights on pairs of equal rows, however large, leave the gradient by a distance's features alone."""
    given = made(kernels.SquaredExponential(4.5), points(9, 20))
    heavy = (given.weights + 1e5 * torch.eye(9, dtype=f64)).float()
    light = heavy - torch.diag(heavy.diagonal())
    one, two = (TRITON.block_gradient(PairProblem(given.form, [], given.rows), w).rows[0] for w in (heavy, light))
    assert one is not None
    assert two is not None
    assert torch.equal(one, two)


@pytest.mark.parametrize(("d", "scale"), [(3, 0.01), (20, 1e8)])
def test_lengthscales(d: int, scale: float) -> None:
    """(M-60), (M-61): short lengthscales take split features, long ones the fast route; both keep the digits."""
    kernel = kernels.SquaredExponential(scale * d**0.5)
    x = points(9, d)
    x[1] = x[0] + 0.3 * scale * points(1, d, 5)[0]  # close in units of the lengthscale
    given = made(kernel, x)
    form_packed = packing.packed(given.form, [], given.rows, None, launch.routes(given.form, [d], False), torch.Size())
    assert form_packed.route.tolist() == [packing.CAREFUL if scale < 1 else packing.FAST]
    assert compare(given) == []


@pytest.mark.parametrize(("d", "scale"), [(1, 1.0), (12, 1e6)])
def test_a_steep_profile_takes_split_features(d: int, scale: float) -> None:
    """(M-61), (M-75): a scale inside the profile makes small errors large; each member of a batch goes its own way."""
    x = 0.5 * points(9, 1).expand(9, d)
    x = torch.cat([x, x[:6] + points(6, d, 3) / scale**0.5])
    one = Form(exp(-parameter(0) * squared_distance(0)), ("distance",), 0, 1)
    rows = Rows((x,), (), len(x))
    theta = [torch.tensor([scale, 1.0, scale], dtype=f64)]
    routes = launch.routes(one, [d], False)
    wanted = packing.CAREFUL if scale > 1.0 else packing.FAST
    found = packing.packed(one, theta, rows, None, routes, torch.Size((3,))).route.tolist()
    assert found == [wanted, packing.FAST, wanted]
    right = points(len(x), 2, 4)
    exact = TORCH.product(PairProblem(one, theta, rows), right.expand(3, -1, -1))
    sizes = TORCH.product(PairProblem(one, theta, rows), right.abs().expand(3, -1, -1))
    ours = TRITON.product(PairProblem(one, theta, rows), right.float().expand(3, -1, -1))
    assert float(((ours - exact).abs() / sizes).max()) <= (1e-6 if d == 1 else packing.DOT_BUDGET)  # as (M-61) states


@pytest.mark.parametrize("d", [20])
def test_an_offset_costs_no_digits(d: int) -> None:
    """(M-60): x + 1000 gives the bits of x, where adding the offset rounds nothing."""
    x = (points(9, d) * 2**20).round() / 2**20
    kernel = kernels.SquaredExponential(2.0)  # a power of two: features are exact as well
    near, far = made(kernel, x), made(kernel, x + 1024.0)
    routes = launch.routes(far.form, [d], False)
    assert packing.packed(far.form, [], far.rows, None, routes, torch.Size()).route.tolist() == [packing.FAST]
    right = near.right.float()
    one = TRITON.product(PairProblem(near.form, [], near.rows), right)
    two = TRITON.product(PairProblem(far.form, [], far.rows), right)
    assert relative_error(two, one.double()) <= 2 * EPS  # the centre itself is rounded, in float64
    for a, b in zip(
        gradients(TRITON.bilinear_gradient(PairProblem(near.form, [], near.rows), near.left.float(), right)),
        gradients(TRITON.bilinear_gradient(PairProblem(far.form, [], far.rows), far.left.float(), right)),
        strict=True,
    ):
        assert a is not None
        assert b is not None
        assert relative_error(b, a.double()) <= 20 * EPS


def test_a_kink_takes_differences() -> None:
    """(M-22): a slope that is unbounded at 0 forbids the product form; its gradients need split features, (M-60)."""
    kernel = kernels.Matern(0.5, 3.0)
    assert not program_of(kernel.form).bounded_slope[0]
    x = points(9, 20)
    x[1] = x[0] + 1e-5
    assert [s.route for s in launch.routes(kernel.form, [20], careful=False)] == ["loop"]
    assert compare(made(kernel, x)) == []


@pytest.mark.parametrize("programs", [4, 10**6])
def test_columns_shared_out(programs: int) -> None:
    """Few rows against many columns: each program takes a part of the columns, eq. (M-20), and the parts add up."""
    triton = TritonTiles(dataclasses.replace(SMALL_TILES, programs=programs))
    kernel = 1.7 * kernels.RationalQuadratic(1.5) + kernels.Linear(0.3)
    for count in (2, 6):
        assert compare(made(kernel, points(3, 2), points(40, 2, 1)), count, blocks=False, triton=triton) == []


def test_row_scalars() -> None:
    """(M-26), (M-63): row scalars inside an exponential; the columns' gradients come from the exchanged form."""
    theta = [torch.tensor(0.7, dtype=f64)]
    generator = torch.Generator().manual_seed(3)
    for n, m in ((7, 5), (9, None)):
        count = n if m is None else m
        weights = torch.randn(n, count, generator=generator, dtype=f64)
        given = Job(
            EVERYTHING,
            theta,
            everything_rows(n, 1),
            None if m is None else everything_rows(m, 2),
            torch.randn(n, 2, generator=generator, dtype=f64),
            torch.randn(count, 2, generator=generator, dtype=f64),
            weights if m is not None else weights + weights.mT,
        )
        assert compare(given) == []


def test_batches() -> None:
    """Members with lengthscales on both sides of the route's limit: each is served by its own, eq. (M-61)."""
    lengthscale = torch.tensor([[1.0], [0.01], [0.3]], dtype=f64)
    kernel = kernels.Scaled(kernels.SquaredExponential(lengthscale), torch.tensor([0.5, 1.0, 2.0], dtype=f64))
    x = points(9, 2).repeat(3, 1, 1) * torch.tensor([1.0, 2.0, 3.0], dtype=f64)[:, None, None]
    given = made(kernel, x)
    assert compare(given) == []
    for member in range(3):  # what one member holds does not change the bits of another
        alone = kernels.Scaled(kernels.SquaredExponential(lengthscale[member]), kernel.variance.value[member].item())
        rows = alone.rows(x[member]).detach()
        theta = [t.detach() for t in alone.theta()]
        together = TRITON.product(PairProblem(given.form, given.theta, given.rows), given.right.float())[member]
        assert torch.equal(TRITON.product(PairProblem(alone.form, theta, rows), given.right[member].float()), together)


def test_equal_calls_give_equal_bits() -> None:
    given = made(kernels.Matern(2.5) + kernels.Linear(), points(18, 9))
    calls = [
        gradients(
            TRITON.bilinear_gradient(
                PairProblem(given.form, given.theta, given.rows), given.left.float(), given.right.float()
            )
        )
        for _ in range(2)
    ]
    for a, b in zip(*calls, strict=True):
        assert a is not None
        assert b is not None
        assert torch.equal(a, b)


def test_compensated_sums() -> None:
    """(M-62): adding tiles one by one loses nothing that grows with their number."""
    triton = TritonTiles(LaunchSettings({"few": TileShape(16, 16, 4, 1, 16)}, programs=1))
    kernel = kernels.Constant(1.0)
    m = 2048
    right = torch.full((m, 6), 0.1) + torch.arange(6) / 64
    rows = kernel.rows(torch.zeros(1, 1, dtype=f64)).detach()
    cols = kernel.rows(torch.zeros(m, 1, dtype=f64)).detach()
    theta = [t.detach() for t in kernel.theta()]
    for columns in (right[:, :1], right):
        found = triton.product(PairProblem(kernel.form, theta, rows, cols), columns.contiguous())
        wanted = columns.double().sum(0, keepdim=True)
        assert float(((found.double() - wanted) / wanted).abs().max()) <= 2 * EPS


def test_what_the_torch_tiles_serve() -> None:
    """float64, no rows, no columns, no right-hand sides: handed on, with the contract's shapes."""
    kernel = kernels.Matern(1.5)
    x = points(7, 2)
    rows, none = kernel.rows(x).detach(), kernel.rows(x[:0]).detach()
    right = torch.ones(7, 2, dtype=f64)
    assert torch.equal(
        TRITON.product(PairProblem(kernel.form, [], rows), right),
        TORCH.product(PairProblem(kernel.form, [], rows), right),
    )
    assert TRITON.product(PairProblem(kernel.form, [], none, rows), right.float()).shape == (0, 2)
    assert torch.equal(TRITON.product(PairProblem(kernel.form, [], rows, none), right[:0].float()), torch.zeros(7, 2))
    assert TRITON.product(PairProblem(kernel.form, [], rows), right[:, :0].float()).shape == (7, 0)
    assert TRITON.block(PairProblem(kernel.form, [], none, rows), dtype=f32).shape == (0, 7)
    assert torch.equal(TRITON.diagonal(PairProblem(kernel.form, [], rows), dtype=f32), torch.ones(7))
    given = job(Case("Sum", 0, 3), 7, None)
    found = TRITON.diagonal_gradient(PairProblem(given.form, given.theta, given.rows), torch.ones(7))
    wanted = REFERENCE.diagonal_gradient(PairProblem(given.form, given.theta, given.rows), torch.ones(7))
    for a, b in zip(gradients(found), gradients(wanted), strict=True):
        assert b is not None
        assert relative_error(torch.zeros_like(b) if a is None else a, b) <= GRADIENT_TOLERANCE


def test_a_disagreement_is_found() -> None:
    """The comparison itself: a kernel off by a little is seen in each operation."""
    given = made(kernels.Matern(1.5), points(7, 2), points(5, 2, 1))
    other = kernels.Matern(1.5, 1.0001).rows(points(7, 2)).detach()

    class Off(TritonTiles):
        def block(self, problem, **options):  # type: ignore[no-untyped-def]
            return super().block(dataclasses.replace(problem, rows=other), **options)

    assert ["block[0]" in problem for problem in compare(given, triton=Off(SMALL_TILES))] == [True]
