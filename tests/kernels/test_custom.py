"""Custom: functions of the user's own give what they say, fused or tiled; and what is refused at the door."""

import copy
import math
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import constraints
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import flashgp as fgp
from flashgp import kernels
from flashgp.foundations.errors import DomainError, FlashGPError, ShapeError
from flashgp.foundations.parameters import Parameter
from flashgp.kernels import Custom
from flashgp.pairwise.problem import PairProblem
from flashgp.pairwise.torch import differentiable, opaque
from kernels.user_functions import (
    FUSED,
    TILED,
    Written,
    ard,
    brownian,
    direct,
    laplace,
    matern32,
    polynomial,
)
from pairwise.pair_cases import EPS, relative_error

f64 = torch.float64
ALL = [pytest.param(one, id=one.function.__name__) for one in (*FUSED, *TILED)]
VALUE, GRADIENT = 100 * EPS, 2000 * EPS  # a reordered formula; sums of 30 such gradients


def points(n: int, d: int, seed: int) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=f64)


@pytest.mark.parametrize("written", ALL)
def test_it_is_seen_what_fuses(written: Written) -> None:
    """(M-50): the statistics of the form, or the operation that has none; and the kernel says so."""
    kernel = written.kernel
    if isinstance(written.found, str):
        assert kernel.fusion == written.found
        assert not kernel.form.fusable
    else:
        assert (kernel.fusion, kernel.form.statistics) == ("fused", written.found)
        assert kernel.form.fusable
    assert kernel.fusion in repr(kernel)
    assert (2.0 * kernel + kernels.RBF()).fusion == kernel.fusion
    assert (kernels.RBF() * kernels.Linear()).fusion == "fused"


@pytest.mark.parametrize("written", ALL)
def test_values_products_and_gradients_are_the_functions(written: Written) -> None:
    """(M-48), (M-49): alone, and inside a sum and a product with the library's own; all gradients of U . K V."""
    own = written.kernel
    library, factor = kernels.Matern(2.5, 1.3), kernels.Polynomial(2, 0.5, 0.3)
    x, z = points(6, written.d, 1).requires_grad_(), points(5, written.d, 2).requires_grad_()
    left, right = points(6, 2, 3), points(5, 2, 4).requires_grad_()

    def plain(kernel: kernels.Kernel) -> Tensor:
        return differentiable.block(PairProblem(kernel.form, kernel.theta(), kernel.rows(x), kernel.rows(z)))

    value = direct(own, x, z)
    for kernel, wanted in (
        (own, value),
        (1.7 * (own * factor + library), 1.7 * (value * plain(factor) + plain(library))),
    ):
        operator = kernel.operator(x, z)
        with torch.no_grad():
            assert relative_error(kernel.operator(x, z).to_dense(), wanted) <= VALUE
        product = operator @ right
        assert relative_error(product, (wanted @ right).detach()) <= VALUE
        inputs = {"x": x, "z": z, "right": right, **dict(own.named_parameters())}
        tensors = list(inputs.values())
        found = torch.autograd.grad((left * product).sum(), tensors)
        expected = torch.autograd.grad((left * (wanted @ right)).sum(), tensors, retain_graph=True)
        for name, one, two in zip(inputs, found, expected, strict=True):
            assert relative_error(one, two) <= GRADIENT, name


@pytest.mark.parametrize("written", [FUSED[0], FUSED[1], FUSED[5], FUSED[12]], ids=lambda w: w.function.__name__)
def test_second_derivatives_at_equal_points(written: Written) -> None:
    """Finite where plain torch has 0/0, in the points and in the parameters, eq. (M-4)."""
    kernel = written.kernel
    x = points(3, written.d, 1)
    x[1] = x[0]
    x.requires_grad_()
    inputs = [x, *(p for p in kernel.parameters())]
    total = (kernel.operator(x) @ points(3, 1, 2)).sum()
    first = torch.autograd.grad(total, inputs, create_graph=True)
    assert all(g.isfinite().all() for g in first)
    again = torch.autograd.grad(sum(g.sin().sum() for g in first), inputs)
    assert all(g.isfinite().all() for g in again)


@pytest.mark.parametrize("written", [FUSED[1], FUSED[3], TILED[0], TILED[2]], ids=lambda w: w.function.__name__)
def test_a_batch_of_parameters(written: Written) -> None:
    """As a sampler swaps them in: one model per member, values and gradients."""
    kernel, x, z, weights = written.kernel, points(5, 3, 1), points(4, 3, 2), points(5, 4, 3)
    raws = {n: torch.stack([p.detach(), p.detach() * 1.2]).requires_grad_() for n, p in kernel.named_parameters()}

    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kernel = kernel

        def forward(self) -> Tensor:
            return (weights * self.kernel.operator(x, z).to_dense()).sum((-2, -1))

    batch = torch.func.functional_call(Product(), {f"kernel.{n}": r for n, r in raws.items()})
    gradients = torch.autograd.grad(batch.sum(), list(raws.values()))
    for member in range(2):
        single = {f"kernel.{n}": r[member].detach().requires_grad_() for n, r in raws.items()}
        value = torch.func.functional_call(Product(), single)
        assert relative_error(batch[member].detach(), value.detach()) <= VALUE
        for one, two in zip(gradients, torch.autograd.grad(value, list(single.values())), strict=True):
            assert relative_error(one[member], two) <= GRADIENT


class _Largest(TorchDispatchMode):
    """The most numbers any tensor has that an operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.most = max([self.most, *(t.numel() for t in tree_leaves(out) if isinstance(t, Tensor))])
        return out


def test_a_tiled_function_makes_no_tensor_of_all_pairs_and_columns() -> None:
    """Pieces hold PIECE_NUMBERS at most, whatever n, m and d; the values are those of the pairs one by one."""
    n, m, d, most = 90, 80, 300, opaque.PIECE_NUMBERS
    kernel = TILED[0].kernel
    x, z, right = points(n, d, 1).requires_grad_(), points(m, d, 3).requires_grad_(), points(m, 1, 2)
    inputs = [kernel.warp.raw, x, z]
    with _Largest() as watch:
        product = kernel.operator(x, z) @ right
        found = torch.autograd.grad(product.sum(), inputs)
    assert n * m <= watch.most <= most < n * m * d
    wanted = direct(kernel, x, z) @ right
    assert relative_error(product.detach(), wanted.detach()) <= VALUE
    for one, two in zip(found, torch.autograd.grad(wanted.sum(), inputs), strict=True):
        assert relative_error(one, two) <= GRADIENT
    assert 8 * most <= opaque.temporary_bytes(kernel.form, kernel.rows(torch.zeros(1, d)), 1) <= 10 * 8 * most


@pytest.mark.parametrize("written", [FUSED[1], TILED[0]], ids=lambda w: w.function.__name__)
def test_it_fits_predicts_and_comes_back_from_a_file(written: Written, tmp_path: Path) -> None:
    """`modules=` takes the function; the code of a function is in no file. A copy and a pickle are equal."""
    x = torch.rand(30, 3, generator=torch.Generator().manual_seed(0), dtype=f64)
    fit = fgp.fit(fgp.GP(1.3 * written.kernel), x, x.sum(-1).sin(), max_iterations=3)
    with warnings.catch_warnings(), pytest.warns(fgp.FlashGPWarning, match=r"kernel\.kernel\.function"):
        fgp.save(fit, tmp_path / "m")
    key = "kernel.kernel.function"
    loaded = fgp.load(tmp_path / "m", {key: written.function})
    test = points(5, 3, 1)
    assert torch.equal(loaded.predict(test).mean, fit.posterior.predict(test).mean)
    assert torch.equal(loaded.predict(test).variance, fit.posterior.predict(test).variance)
    assert loaded.gp.kernel.fusion == written.kernel.fusion
    with pytest.raises(DomainError, match=r"must hold the function 'kernel\.kernel\.function'"):
        fgp.load(tmp_path / "m")
    with pytest.raises(DomainError, match="must be the function of two points, got Linear"):
        fgp.load(tmp_path / "m", {key: nn.Linear(3, 3)})
    with pytest.raises(FlashGPError):
        fgp.load(tmp_path / "m", {key: laplace if written.function is brownian else ard})
    kernel = fit.posterior.gp.kernel
    for other in (copy.deepcopy(kernel), pickle.loads(pickle.dumps(kernel))):
        assert other.form == kernel.form
        assert torch.equal(other.operator(test).to_dense(), kernel.operator(test).to_dense())


def test_the_form_follows_what_is_positive() -> None:
    """Weights of unknown sign are two statistics, positive ones are one, eq. (M-50)."""
    for weight in (torch.exp, torch.abs, torch.square, lambda w: w * w.exp(), lambda w: 1 + w**2, lambda w: 2 / w**2):
        kernel = Custom(lambda x, z, w, weight=weight: torch.exp(-((x - z) ** 2 @ weight(w))), w=[0.7, 1.1])
        assert kernel.form.statistics == ("distance",) * (2 if weight(torch.tensor(-1.0)) < 0 else 1)
    real = Custom(polynomial, offset=0.5, weights=torch.tensor([0.5, 1.0]))
    positive = Custom(polynomial, offset=0.5, weights=Parameter(torch.tensor([0.5, 1.0]), constraints.positive))
    assert real.form.statistics == ("product", "product")
    assert positive.form.statistics == ("product",)
    x = points(4, 2, 1)
    assert relative_error(real.operator(x).to_dense(), positive.operator(x).to_dense().detach()) <= VALUE
    with torch.no_grad():
        real.weights.value = torch.tensor([-0.5, 1.0])
    assert relative_error(real.operator(x).to_dense(), direct(real, x, x).detach()) <= VALUE


def _root(x: Tensor, z: Tensor, rate: Tensor) -> Tensor:
    return torch.exp(-torch.sqrt(rate * (x - z).square().sum()))


def _root_of_square(x: Tensor, z: Tensor, rate: Tensor) -> Tensor:
    return torch.exp(-torch.sqrt(rate * rate * (x - z).square().sum()))


def _logarithm(x: Tensor, z: Tensor, rate: Tensor) -> Tensor:
    return (rate + (x - z).square().sum()) ** -0.7


def test_a_form_has_the_functions_values_for_other_parameters_too() -> None:
    """A root or a logarithm of a parameter is one only where it must be positive; elsewhere the function is tiled."""
    x = points(5, 2, 1)
    for function, real, positive in (
        (_root, "tiled: the square root of a parameter that may be negative: give it constraints.positive", "fused"),
        (_root_of_square, "fused", "fused"),
        (_logarithm, "tiled: a logarithm or a power of a sum without a positive term", "fused"),
    ):
        kernel = Custom(function, rate=2.0)
        assert kernel.fusion.startswith(real)
        assert Custom(function, rate=Parameter(2.0, constraints.positive)).fusion == positive
        for rate in (0.3, -0.3, -7.0):
            kernel.rate.value = rate
            found, wanted = kernel.operator(x).to_dense().detach(), direct(kernel, x, x).detach()
            assert torch.equal(found.isnan(), wanted.isnan())
            assert relative_error(found.nan_to_num(), wanted.nan_to_num()) <= VALUE


def test_a_sum_over_columns_needs_their_number() -> None:
    """Its form depends on d: without columns= it is tiled and says what to pass; with it, it fuses."""
    kernel = Custom(laplace, scale=0.9)
    assert kernel.fusion.startswith("tiled: its form depends on the number of columns; pass columns=")
    x = points(5, 3, 1)
    fused = Custom(laplace, scale=0.9, columns=3)
    assert fused.form.statistics == ("distance",) * 3
    assert relative_error(kernel.operator(x).to_dense(), fused.operator(x).to_dense().detach()) <= VALUE
    with pytest.raises(ShapeError, match="`x` must have 3 columns for laplace, got 2"):
        fused.operator(x[:, :2])
    with pytest.raises(ShapeError, match="`x` must have columns that ard takes, got 2"):
        Custom(ard, lengthscale=[1.0, 2.0, 3.0]).operator(x[:, :2])


def _closure() -> Any:
    scale = torch.tensor(0.7)
    return lambda x, z: torch.exp(-((x - z) * scale).square().sum())


def _branch(x: Tensor, z: Tensor) -> Tensor:
    return x @ z if x[0] * z[0] > 0 else x.sum() * 0.0


REFUSED: list[tuple[str, Any, list[str]]] = [
    ("a closure over a tensor", lambda: Custom(_closure()), ["shape ()", "closure or a global", "Custom("]),





    ("a module", lambda: Custom(nn.Linear(2, 1)), ["`function`", "Linear", "Warped"]),

    ("a parameter too few", lambda: Custom(matern32, lengthscale=1.0), ["`parameters`", "['lengthscale']", "variance"]),

    ("text", lambda: Custom(brownian, warp="much"), ["`warp`", "str"]),
    ("a taken name", lambda: Custom(lambda x, z, form: x @ z * form, form=1.0), ["'form'", "rename"]),
    ("several numbers", lambda: Custom(lambda x, z: x * z, columns=2), ["`function`", "one number", "(2,)"]),
    ("no tensor", lambda: Custom(lambda x, z: 1.0), ["`function`", "one number", "float"]),


    ("symmetric by its first value", lambda: Custom(lambda x, z, A: x @ A @ z, A=torch.eye(2)),
     ["symmetric", "A = [[", "A + A.T"]),

    ("symmetric in two columns", lambda: Custom(lambda x, z: x[:2] @ z[:2] + x[2:].sum()), ["symmetric", "x' = ["]),
    ("never a number", lambda: Custom(lambda x, z: x @ z * float("nan")), ["`function`", "finite values", "24 pairs"]),

    ("a branch", lambda: Custom(_branch), ["`function`", "torch.where"]),

    ("wrong in every dimension", lambda: Custom(lambda x, z: x @ torch.eye(37) @ z), ["`function`", "columns=d"]),

    ("other columns", lambda: Custom(brownian, [0, 1], 3, warp=1.0), ["`columns`", "2 of active_dims", "3"]),
    ("too many numbers", lambda: Custom(lambda x, z, w: torch.minimum(x, z).sum() * w.sum(), w=torch.ones(5000)),
     ["`parameters`", "4096", "5000", "Warped"]),
]  # fmt: skip


@pytest.mark.parametrize(("make", "words"), [pytest.param(m, w, id=name) for name, m, w in REFUSED])
def test_what_is_refused(make: Any, words: list[str]) -> None:
    with pytest.raises(FlashGPError) as error:
        make()
    for word in words:
        assert word in str(error.value), str(error.value)


RATE = 1.0


def _of_number(x: Tensor, z: Tensor) -> Tensor:
    return torch.exp(-RATE * (x - z).square().sum())


def test_numbers_from_outside_are_read_when_the_kernel_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    before = Custom(_of_number, columns=1)
    monkeypatch.setitem(globals(), "RATE", 3.0)
    for kernel, rate in ((before, 1.0), (Custom(_of_number, columns=1), 3.0)):
        assert float(kernel.operator(x).to_dense()[0, 1]) == pytest.approx(math.exp(-rate), rel=1e-14)


def test_a_gradient_leaves_the_row_scalars_of_one_column_as_they_are() -> None:
    """The derivative of a(x) a(x') by a(x') is a(x) itself: not a tile whose memory has served."""

    def varying(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return (1.0 + x.sum() ** 2) * (1.0 + z.sum() ** 2) + x @ z

    k = kernels.Custom(varying, columns=2)
    x = torch.tensor([[0.3, -1.2], [0.7, 0.1], [-0.4, 2.0]], dtype=torch.float64, requires_grad=True)
    for one in (x.detach()[:1] + 0.5, x.detach()[:2] - 0.2):
        for left, right in ((x, one), (one, x)):
            K = k(left, right)
            kept = [scalar.detach().clone() for scalar in K.problem.rows.scalars]
            (found,) = torch.autograd.grad(K.to_dense().square().sum(), x)
            assert all(torch.equal(a, b) for a, b in zip(kept, K.problem.rows.scalars, strict=True))
            a, b = (1.0 + side.sum(-1).square() for side in (left, right))
            (wanted,) = torch.autograd.grad((a[:, None] * b + left @ right.mT).square().sum(), x)
            assert torch.allclose(found, wanted, rtol=1e-13, atol=0.0)


def test_writing_in_place_is_tiled_or_refused() -> None:
    """A function that changes its own fresh tensors is not read wrongly."""

    def filled(x: Tensor, z: Tensor) -> Tensor:
        out = (x - z).square()
        out.neg_()
        return torch.exp(out.sum())

    kernel = Custom(filled)
    assert kernel.fusion == "tiled: aten.neg_, which writes into a tensor"
    x = points(4, 2, 1)
    assert relative_error(kernel.operator(x).to_dense(), kernels.RBF(0.5**0.5).operator(x).to_dense().detach()) <= VALUE
