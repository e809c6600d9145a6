"""The small exact problem, on NumPy or compiled: its matrix and its pullback are those of the loops."""

import math
from collections.abc import Iterator

import numpy
import pytest
import torch

import flashgp as fgp
from flashgp import kernels
from flashgp.foundations.form import Form
from flashgp.pairwise import small
from flashgp.pairwise.cpu.small import ONE_BLOCK, SMALL_BLOCK, CompiledProblem
from flashgp.pairwise.small import COMPILED_ROWS, SMALL_ROWS, NumpyProblem, SmallProblem, arrays_of, small_problem
from pairwise.pair_cases import CASES, EPS, REFERENCE, Case, gradients, job, relative_error

f64 = torch.float64
# Distances, products, codes, row scalars and parameters: every kind of loop, each form one compile.
COMPILED = [Case("Custom", 0, 3), Case("Categorical", 0, 3), Case("Scaled", 0, 3), Case("Coregionalization", 0, 3)]


def check(problem_of: type[SmallProblem], case: Case, n: int) -> None:
    given = job(case, n, None)
    problem = problem_of(*arrays_of(given.form, given.theta, given.rows))
    wanted = REFERENCE.block(given.form, given.theta, given.rows, None, dtype=f64)
    assert relative_error(torch.from_numpy(problem.matrix).triu(), wanted.triu()) <= 50 * EPS
    found = problem.pull(given.weights.numpy())
    expected = gradients(REFERENCE.block_gradient(given.form, given.theta, given.rows, None, given.weights))
    for one, two in zip(found, expected, strict=True):
        assert two is not None
        gradient = torch.zeros_like(two) if one is None else torch.as_tensor(one, dtype=f64)
        # A parameter's gradient adds n^2 terms of both signs: n of their roundings in the sum of n rows' sums.
        assert relative_error(gradient, two) <= 200 * max(1.0, n / 7) * EPS


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("n", [1, 7])
def test_matrix_and_pullback_are_those_of_the_loops(case: Case, n: int) -> None:
    """(M-1) and (M-24) to (M-26) for one model, among repeated rows."""
    if job(case, n, None).form.fusable:
        check(NumpyProblem, case, n)
        return
    given = job(case, n, None)
    with pytest.raises(AssertionError, match="torch tiles"):
        arrays_of(given.form, given.theta, given.rows)


@pytest.mark.parametrize("case", COMPILED, ids=lambda case: case.name)
@pytest.mark.parametrize("n", [1, 7, 2 * SMALL_BLOCK + 3])
def test_compiled_matrix_and_pullback_are_those_of_the_loops(case: Case, n: int) -> None:
    """The same in one block, and in several of which the last is not full."""
    assert 7 < ONE_BLOCK < 2 * SMALL_BLOCK + 3
    check(CompiledProblem, case, n)


@pytest.mark.parametrize("problem_of", [NumpyProblem, CompiledProblem])
def test_an_offset_costs_no_digits(problem_of: type[SmallProblem]) -> None:
    """(M-24) far from the origin."""
    x = torch.randn(30, 2, generator=torch.Generator().manual_seed(0), dtype=f64)
    x = (x * 2**20).round() / 2**20
    kernel = kernels.SquaredExponential([1.0, 0.5])
    weights = torch.ones(30, 30, dtype=f64).numpy()
    both = (problem_of(*arrays_of(kernel.form, [], kernel.rows(p).detach())) for p in (x, x + 1e9))
    near, far = (torch.as_tensor(problem.pull(weights)[0]) for problem in both)
    assert relative_error(far, near) <= 100 * EPS


@pytest.mark.parametrize("problem_of", [NumpyProblem, CompiledProblem])
@pytest.mark.parametrize("n", [7, ONE_BLOCK + 1])
def test_what_was_given_is_left_alone(problem_of: type[SmallProblem], n: int) -> None:
    """Tiles are overwritten and the matrix is factorised in place; features, row scalars and weights are not."""
    given = job(Case("Coregionalization", 0, 3), n, None)
    before = [t.clone() for t in (*given.rows.tensors, given.weights)]
    problem = problem_of(*arrays_of(given.form, given.theta, given.rows))
    matrix = torch.from_numpy(problem.matrix).triu()
    matrix = matrix + matrix.triu(1).mT
    solved = problem.solve(numpy.ones(n), given.right.numpy().copy())
    assert solved is not None
    problem.pull(given.weights.numpy())
    assert all(torch.equal(a, b) for a, b in zip(before, (*given.rows.tensors, given.weights), strict=True))
    # and the factor is that of K + noise
    lower = torch.from_numpy(solved[2]).tril()
    assert relative_error(lower @ lower.mT, matrix + torch.eye(n, dtype=f64)) <= 50 * EPS


# -- when to compile ---------------------------------------------------------------------------------------------------
@pytest.fixture
def form(monkeypatch: pytest.MonkeyPatch) -> Iterator[Form]:
    """A form whose account is empty, and no cache of an earlier process."""
    monkeypatch.setattr(small, "_spent", {})
    monkeypatch.setattr(small, "_is_compiled", lambda form: False)
    return (1.7 * kernels.RBF()).form


def test_compiles_when_the_saved_seconds_reach_the_price(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small, "COMPILE_SECONDS", 10.5 * small._saved_seconds(100))
    monkeypatch.setattr(small, "LOAD_SECONDS", 2.5 * small._saved_seconds(100))
    assert [small_problem(form, 100) for _ in range(10)] == [NumpyProblem] * 10
    assert small_problem(form, 100) is CompiledProblem
    assert small_problem((2.0 * kernels.RBF() + 1.0).form, 100) is NumpyProblem  # another form has its own account


def test_loads_sooner_what_an_earlier_process_compiled(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small, "LOAD_SECONDS", 2.5 * small._saved_seconds(100))
    monkeypatch.setattr(small, "_is_compiled", lambda form: True)
    assert [small_problem(form, 100) for _ in range(3)] == [NumpyProblem, NumpyProblem, CompiledProblem]


def test_sizes_between_the_limits_wait_for_the_compiler(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    assert small_problem(form, SMALL_ROWS + 1) is None
    monkeypatch.setattr(small, "COMPILE_SECONDS", 0.0)
    monkeypatch.setattr(small, "LOAD_SECONDS", 0.0)
    assert small_problem(form, COMPILED_ROWS) is CompiledProblem
    assert small_problem(form, COMPILED_ROWS + 1) is None


def test_without_the_compiler_numpy_goes_on(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small, "COMPILE_SECONDS", 0.0)
    monkeypatch.setattr(small, "LOAD_SECONDS", 0.0)
    monkeypatch.setattr(small, "_can_compile", lambda form: False)
    assert small_problem(form, 100) is NumpyProblem
    assert small_problem(kernels.Constant().form, 100) is NumpyProblem


@pytest.mark.parametrize("n", [20, SMALL_ROWS + 5])
def test_every_route_gives_the_same_likelihood_and_gradient(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """(M-33), (M-34): NumPy, compiled and tiles within rounding."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, 3, generator=generator, dtype=f64)
    y = torch.randn(n, generator=generator, dtype=f64)
    gp = fgp.GP(1.3 * kernels.RBF([0.5, 1.0, 2.0]), likelihood=fgp.likelihoods.Gaussian(0.1))
    found = []
    for limits in (
        {"SMALL_ROWS": 10**6, "COMPILE_SECONDS": math.inf},
        {"COMPILED_ROWS": 0},
        {"COMPILE_SECONDS": 0.0, "LOAD_SECONDS": 0.0},
    ):
        with monkeypatch.context() as patch:
            for name, value in limits.items():
                patch.setattr(small, name, value)
            value = gp.log_marginal_likelihood(x, y)
            gradient = torch.autograd.grad(value, list(gp.parameters()))
        found.append(torch.cat([value.detach().reshape(-1), *(g.reshape(-1) for g in gradient)]))
    torch.testing.assert_close(found[1], found[0], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(found[2], found[0], rtol=1e-10, atol=1e-10)
