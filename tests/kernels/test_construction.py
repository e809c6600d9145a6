"""Building covariance functions: arguments, columns, sharing, algebra, copies, and what is refused."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from flashgp import kernels
from flashgp.foundations.errors import DomainError, FlashGPError, ShapeError
from flashgp.foundations.parameters import Parameter
from flashgp.pairwise.problem import PairProblem
from pairwise.pair_cases import CASES, TORCH, Case, pulled

f64 = torch.float64


def dense(kernel: kernels.Kernel, x: torch.Tensor) -> torch.Tensor:
    theta = [t.detach() for t in kernel.theta()]
    return TORCH.block(PairProblem(kernel.form, theta, kernel.rows(x).detach()), dtype=f64)


def test_numbers_lists_arrays_and_tensors_are_the_same() -> None:
    wanted = torch.tensor([0.7, 1.1], dtype=f64)
    for value in ([0.7, 1.1], (0.7, 1.1), np.array([0.7, 1.1]), wanted, nn.Parameter(wanted), Parameter([0.7, 1.1])):
        lengthscale = kernels.SquaredExponential(value).lengthscale
        assert lengthscale.batch_shape == ()
        assert torch.allclose(lengthscale.value, wanted, rtol=1e-15)
    shared = kernels.SquaredExponential(0.7).lengthscale
    assert (shared.raw.shape, shared.event_dim) == ((), 0)
    assert shared.value.item() == pytest.approx(0.7, rel=1e-15)


def test_one_parameter_used_twice_is_one() -> None:
    """Sharing is identity: one raw tensor, whose gradient is the sum of both uses."""
    shared = Parameter(0.8)
    kernel = kernels.Matern(2.5, shared, active_dims=[0]) * kernels.Matern(2.5, shared, active_dims=[1])
    assert [name for name, _ in kernel.named_parameters()] == ["kernels.0.lengthscale.raw"]
    apart = kernels.Matern(2.5, 0.8, active_dims=[0]) * kernels.Matern(2.5, 0.8, active_dims=[1])
    x = torch.randn(5, 2, generator=torch.Generator().manual_seed(0), dtype=f64)
    weights = torch.ones(5, 5, dtype=f64)
    one, two = pulled(TORCH, kernel, x, None, weights), pulled(TORCH, apart, x, None, weights)
    total = two["kernels.0.lengthscale.raw"] + two["kernels.1.lengthscale.raw"]
    assert torch.allclose(one["kernels.0.lengthscale.raw"], total, rtol=1e-13)
    again = copy.deepcopy(kernel)
    assert len(list(again.parameters())) == 1
    assert again.parts[0].lengthscale is again.parts[1].lengthscale
    assert again.parts[0].lengthscale is not shared


def test_active_columns() -> None:
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0), dtype=f64)
    for dims in ([2, 0], (2, 0), [-2, 0], [2, -4]):
        kernel = kernels.SquaredExponential([0.7, 1.1], active_dims=dims)
        assert torch.equal(dense(kernel, x), dense(kernels.SquaredExponential([0.7, 1.1]), x[:, [2, 0]]))
    one = kernels.Linear(active_dims=3)
    assert one.active_dims == (3,)
    assert torch.equal(dense(one, x), dense(kernels.Linear(), x[:, 3:]))
    warped = kernels.Warped(nn.Identity(), kernels.SquaredExponential(), active_dims=[1, 2])
    assert torch.equal(dense(warped, x), dense(kernels.SquaredExponential(), x[:, 1:3]))
    assert torch.equal(dense(kernels.Constant(2.0, active_dims=[1]), x), torch.full((5, 5), 2.0, dtype=f64))


REFUSED: list[tuple[str, object, type[FlashGPError], list[str]]] = [
    # constructors: what, the call, the error, words of the message (the argument first)
    ("a negative lengthscale", lambda: kernels.RBF(-1.0), DomainError, ["`lengthscale`", "positive", "-1"]),
    ("one of several", lambda: kernels.RBF([1.0, 0.0]), DomainError, ["`lengthscale`", "positive"]),



















    ("a sum of other things", lambda: kernels.Sum(kernels.RBF(), 3.0), DomainError, ["`kernels`", "float"]),

    ("a scaled number", lambda: kernels.Scaled(2.0), DomainError, ["`kernel`", "float"]),
    ("a warped number", lambda: kernels.Warped(nn.Identity(), 2.0), DomainError, ["`kernel`", "float"]),
    ("a warp by a function", lambda: kernels.Warped(torch.tanh, kernels.RBF()), DomainError, ["`module`", "Module"]),



    (
        "a transposed factor",
        lambda: kernels.Coregionalization(3, 2, factor=torch.ones(2, 3)),
        DomainError,
        ["`factor`", "(*batch, 3, 2)", "(2, 3)"],
    ),
    (
        "lengthscales and columns of categories",
        lambda: kernels.Categorical([1.0, 2.0], active_dims=[0, 1, 2]),
        DomainError,
        ["`lengthscale`", "3", "2"],
    ),
]  # fmt: skip

X = torch.tensor([[0.0, 1.0, 2.0], [1.0, 2.0, 3.0], [2.0, 2.5, 1.0]], dtype=f64)
REFUSED_ROWS: list[tuple[str, kernels.Kernel, type[FlashGPError], list[str]]] = [











    ("several columns of tasks", kernels.Coregionalization(2), DomainError, ["`x`", "one column", "3"]),

    ("fewer categorical columns", kernels.Categorical(1.0), DomainError, ["`x`", "1", "3"]),
    ("a warp that loses rows", kernels.Warped(nn.Flatten(0), kernels.RBF()), ShapeError, ["`module`", "(9,)"]),
]  # fmt: skip


def check_message(message: str, words: list[str]) -> None:
    for word in words:
        assert word in message
    assert message.startswith("`"), "the argument comes first"


@pytest.mark.parametrize(("call", "error", "words"), [pytest.param(*row[1:], id=row[0]) for row in REFUSED])
def test_refused_arguments(call: object, error: type[FlashGPError], words: list[str]) -> None:
    with pytest.raises(error) as caught:
        call()  # type: ignore[operator]
    check_message(str(caught.value), words)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(("kernel", "error", "words"), [pytest.param(*row[1:], id=row[0]) for row in REFUSED_ROWS])
def test_refused_points(kernel: kernels.Kernel, error: type[FlashGPError], words: list[str]) -> None:
    with pytest.raises(error) as caught:
        kernel.rows(X)
    check_message(str(caught.value), words)


def test_a_negative_task_is_refused() -> None:
    with pytest.raises(DomainError, match="task codes 0 to 1, got -1 to 1"):
        kernels.Coregionalization(2).rows(torch.tensor([[1.0], [-1.0]]))


def test_operands_that_are_no_kernels() -> None:
    for call in (lambda: kernels.RBF() + "a", lambda: kernels.RBF() * None, lambda: True * kernels.RBF(),
                 lambda: kernels.RBF() + True, lambda: {} + kernels.RBF()):  # fmt: skip
        with pytest.raises(TypeError):
            call()


def test_algebra_flattens_and_scales() -> None:
    a, b, c = kernels.RBF(), kernels.Linear(), kernels.Matern()
    assert (a + b + c).parts == (a, b, c)
    assert (a + (b + c)).parts == (a, b, c)
    assert (a * b * c).parts == (a, b, c)
    assert ((a + b) * c).parts[1] is c
    for scaled in (2.0 * a, a * 2.0, torch.tensor(2.0) * a, a * torch.tensor(2.0), a * Parameter(2.0), 2 * a):
        assert isinstance(scaled, kernels.Scaled)
        assert scaled.variance.value.item() == pytest.approx(2.0, rel=1e-15)
        assert scaled.parts == (a,)
    for total in (a + 1.5, 1.5 + a, a + torch.tensor(1.5)):
        assert isinstance(total, kernels.Sum)
        assert {type(part) for part in total.parts} == {kernels.SquaredExponential, kernels.Constant}
    assert [type(leaf).__name__ for leaf in (2.0 * (a + b) * kernels.Warped(nn.Identity(), c)).leaves()] == [
        "SquaredExponential", "Linear", "Matern"
    ]  # fmt: skip
    assert kernels.RBF is kernels.SquaredExponential


def test_structures_are_json_and_forms_are_shared() -> None:
    assert kernels.Matern(1.5, active_dims=[0, 2]).structure() == {"kind": "Matern", "active_dims": [0, 2], "nu": 1.5}
    assert kernels.Polynomial(3).structure() == {"kind": "Polynomial", "active_dims": None, "degree": 3}
    assert kernels.Coregionalization(4, 2).structure()["count"] == 4
    assert (2.0 * kernels.RBF()).structure() == {"kind": "Scaled"}
    assert kernels.Warped(nn.Identity(), kernels.RBF()).structure() == {"kind": "Warped", "active_dims": None}
    one, two = 2.0 * kernels.Matern(2.5, 0.3) + 1.0, 5.0 * kernels.Matern(2.5, [1.0, 2.0]) + 3.0
    assert one.form == two.form
    assert hash(one.form) == hash(two.form)
    assert one.form != (1.0 + 2.0 * kernels.Matern(2.5)).form


@pytest.mark.parametrize("case", CASES)
def test_copies_and_precision(case: Case) -> None:
    """deepcopy and pickle give an equal, separate kernel; .to(float32) changes no bit of a parameter."""
    kernel, x = case.kernel, case.points(5, 1)
    wanted = dense(kernel, x)
    if case.name != "Warped":  # whose module follows .to(...) as any module does
        kernel.to(torch.float32)
        assert torch.equal(dense(kernel, x), wanted)
        assert all(p.dtype == f64 for p in kernel.parameters())
    for other in (copy.deepcopy(kernel), pickle.loads(pickle.dumps(kernel))):
        assert other.form == kernel.form
        assert torch.equal(dense(other, x), dense(kernel, x))
        before = dense(kernel, x)
        with torch.no_grad():
            for p in other.parameters():
                p.add_(0.5)
        assert torch.equal(dense(kernel, x), before)
        stored = io.BytesIO()
        torch.save(kernel.state_dict(), stored)
        stored.seek(0)
        other.load_state_dict(torch.load(stored, weights_only=True))
        assert torch.equal(dense(other, x), before)


def test_a_start_is_no_saddle_point() -> None:
    """Coregionalization starts with columns of W that differ and tasks that are positively correlated at rank one."""
    factor = kernels.Coregionalization(5, 1).factor.value
    assert torch.equal(factor, torch.ones(5, 1, dtype=f64))
    assert torch.linalg.matrix_rank(kernels.Coregionalization(5, 3).factor.value) == 3


def test_printing_shows_constrained_values() -> None:
    text = repr(2.0 * kernels.Matern(1.5, [0.5, 4.0], active_dims=[0, 1]))
    for part in ("Scaled", "Matern", "nu=1.5", "active_dims=(0, 1)", "0.5", "4", "positive"):
        assert part in text
