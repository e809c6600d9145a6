"""log|A| by stochastic Lanczos quadrature against the exact one, eq. (M-99)."""

import math

import pytest
import torch

import flashgp as fgp
from flashgp.foundations.workspace import Workspace
from flashgp.inference.system import CovarianceSystem
from flashgp.solvers.iterative.lanczos import log_determinant
from flashgp.solvers.preconditioners.low_rank import LowRank
from flashgp.solvers.preconditioners.pivoted_cholesky import partial_cholesky
from flashgp.solvers.settings import LanczosSettings, LowRankSettings

F64 = torch.float64


def system(
    n: int, noise: float, kernel: fgp.kernels.Kernel, kind: type[CovarianceSystem] = CovarianceSystem
) -> CovarianceSystem:
    x = torch.rand(n, 2, generator=torch.Generator().manual_seed(0), dtype=F64)
    return kind(kernel.operator(x), torch.full((n,), noise, dtype=F64), workspace=Workspace())


def exact(one: CovarianceSystem) -> float:
    matrix = one.dense(F64)
    return float(torch.linalg.slogdet(matrix.triu() + matrix.triu(1).mT)[1])


@pytest.mark.parametrize(("noise", "rank"), [(1e-1, 40), (1e-3, 40), (1e-5, 100), (1e-2, 0)])
def test_within_its_standard_error(noise: float, rank: int) -> None:
    """A bound of four standard errors holds for every seed, and the spread of the values is what it says."""
    one = system(150, noise, 1.7 * fgp.kernels.Matern(1.5, 0.3))
    wanted = exact(one)
    preconditioner = LowRank(partial_cholesky(one, limit=rank), one.noise)
    found = [log_determinant(one, preconditioner, seed=seed) for seed in range(8)]
    errors = [(value.value - wanted) / value.standard_error for value in found]
    assert max(map(abs, errors)) < 4.5
    spread = math.sqrt(sum(error**2 for error in errors) / len(errors))
    assert 0.4 < spread < 1.8
    assert all(value.standard_error < 0.05 * abs(wanted) for value in found)


def test_a_better_preconditioner_needs_fewer_steps_and_errs_less() -> None:
    one = system(300, 1e-3, fgp.kernels.RBF(0.4))
    poor, good = (log_determinant(one, LowRank(partial_cholesky(one, limit=rank), one.noise)) for rank in (0, 80))
    assert good.standard_error < 0.1 * poor.standard_error
    assert good.steps < poor.steps


def test_more_probes_less_error() -> None:
    one = system(150, 1e-2, fgp.kernels.Matern(0.5, 0.2))
    preconditioner = LowRank(partial_cholesky(one, limit=10), one.noise)
    few, many = (log_determinant(one, preconditioner, LanczosSettings(probes=count)) for count in (8, 128))
    assert few.standard_error / many.standard_error == pytest.approx(4.0, rel=0.6)
    assert many.value == pytest.approx(exact(one), abs=4.5 * many.standard_error)


def test_an_exact_preconditioner_leaves_nothing_to_chance() -> None:
    """With P = A every probe gives 0, after one step."""
    one = system(60, 1e-2, fgp.kernels.RBF(0.4))
    partial = partial_cholesky(one, limit=60, settings=LowRankSettings(trace_share=0.0))
    found = log_determinant(one, LowRank(partial, one.noise))
    assert found.steps <= 3
    assert found.value == pytest.approx(exact(one), rel=1e-9)
    assert found.standard_error < 1e-9


def test_a_few_rows() -> None:
    for n in (1, 2, 3):
        one = system(n, 0.1, fgp.kernels.RBF(0.4))
        found = log_determinant(one, LowRank(partial_cholesky(one, limit=0), one.noise), LanczosSettings(probes=64))
        assert abs(found.value - exact(one)) <= 4.5 * found.standard_error + 1e-9


def test_a_number_that_is_not_finite_stops_it() -> None:
    class Broken(CovarianceSystem):
        def multiply(self, v: torch.Tensor) -> torch.Tensor:
            return super().multiply(v).index_fill(0, torch.tensor([7]), torch.nan)

    one = system(50, 0.1, fgp.kernels.RBF(0.4))
    preconditioner = LowRank(partial_cholesky(one, limit=5), one.noise)
    with pytest.raises(fgp.ConvergenceError, match="Lanczos"):
        log_determinant(system(50, 0.1, fgp.kernels.RBF(0.4), Broken), preconditioner)
