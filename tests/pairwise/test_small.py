"""The small exact problem runs the same program on arrays: its matrix and its pullback are those of the loops."""

import pytest
import torch

from flashgp import kernels
from flashgp.pairwise.small import SmallProblem
from pairwise.pair_cases import CASES, EPS, REFERENCE, Case, gradients, job, relative_error

f64 = torch.float64


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("n", [1, 7])
def test_matrix_and_pullback_are_those_of_the_loops(case: Case, n: int) -> None:
    """(M-1) and (M-24) to (M-26) for one model, among repeated rows."""
    given = job(case, n, None)
    if not given.form.fusable:
        with pytest.raises(AssertionError, match="torch tiles"):
            SmallProblem.of(given.form, given.theta, given.rows)
        return
    problem = SmallProblem.of(given.form, given.theta, given.rows)
    wanted = REFERENCE.block(given.form, given.theta, given.rows, None, dtype=f64)
    assert relative_error(torch.from_numpy(problem.matrix), wanted) <= 50 * EPS
    found = problem.pull(given.weights.numpy())
    expected = gradients(REFERENCE.block_gradient(given.form, given.theta, given.rows, None, given.weights))
    for one, two in zip(found, expected, strict=True):
        assert two is not None
        gradient = torch.zeros_like(two) if one is None else torch.as_tensor(one, dtype=f64)
        assert relative_error(gradient, two) <= 200 * EPS


def test_an_offset_costs_no_digits() -> None:
    """(M-24) far from the origin."""
    x = torch.randn(30, 2, generator=torch.Generator().manual_seed(0), dtype=f64)
    x = (x * 2**20).round() / 2**20
    kernel = kernels.SquaredExponential([1.0, 0.5])
    weights = torch.ones(30, 30, dtype=f64).numpy()
    near, far = (SmallProblem.of(kernel.form, [], kernel.rows(p).detach()).pull(weights)[0] for p in (x, x + 1e9))
    assert relative_error(torch.from_numpy(far), torch.from_numpy(near)) <= 100 * EPS


def test_what_was_given_is_left_alone() -> None:
    """Tiles are overwritten and the matrix is factorised in place; features, row scalars and weights are not."""
    given = job(Case("Coregionalization", 0, 3), 7, None)
    before = [t.clone() for t in (*given.rows.tensors, given.weights)]
    problem = SmallProblem.of(given.form, given.theta, given.rows)
    matrix = problem.matrix.copy()
    solved = problem.solve(torch.ones(7, dtype=f64).numpy(), given.right.numpy().copy())
    assert solved is not None
    problem.pull(given.weights.numpy())
    assert all(torch.equal(a, b) for a, b in zip(before, (*given.rows.tensors, given.weights), strict=True))
    # and the factor is that of K + noise
    lower = torch.from_numpy(solved[2])
    assert relative_error(lower @ lower.mT, torch.from_numpy(matrix) + torch.eye(7, dtype=f64)) <= 50 * EPS
