"""The covariance function of a table: one definition, fused, with a prior variance of 1 at standardised rows."""

import pytest
import torch

import flashgp as fgp
from flashgp.kernels import Categorical, Kernel, Linear, Matern
from flashgp.kernels.default import CANDIDATES, DEFAULT, TableKernel


@pytest.mark.parametrize("candidate", CANDIDATES, ids=lambda one: one.name)
@pytest.mark.parametrize(("columns", "codes"), [(1, ()), (4, ()), (4, (2,)), (3, (0, 2))])
def test_a_table_kernel_is_one_fused_form_of_variance_one(
    candidate: TableKernel, columns: int, codes: tuple[int, ...]
) -> None:
    kernel = candidate.build(columns, codes)
    assert kernel.fusion == "fused"
    x = torch.randn(500, columns, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = (x - x.mean(0)) / x.std(0, correction=0)
    x[:, list(codes)] = x[:, list(codes)].sign()
    variance = kernel(x).diagonal().detach()
    assert variance.mean() == pytest.approx(1.0, abs=1e-12)
    scales = [leaf.lengthscale.value for leaf in kernel.leaves() if not isinstance(leaf, Categorical | Linear)]
    assert all(scale.shape == (columns - len(codes),) for scale in scales)
    seen = {tuple(range(columns) if leaf.active_dims is None else leaf.active_dims) for leaf in kernel.leaves()}
    assert {j for dims in seen for j in dims} == set(range(columns))
    assert ("Categorical" in candidate.words(columns, codes)) is bool(codes)
    assert ("Linear" in candidate.words(columns, codes)) is candidate.linear


def test_a_table_of_categories_alone_has_no_trend() -> None:
    for candidate in CANDIDATES:
        kernel = candidate.build(2, (0, 1))
        assert isinstance(kernel.parts[0], Categorical)
        assert candidate.words(2, (0, 1)) == "Categorical (a lengthscale per column)"


def test_the_default_is_what_it_says() -> None:
    columns = 3
    by_hand: Kernel = 0.5 * Matern(1.5, torch.full((3,), 3**0.5)) + Linear(0.5 / 3)
    x = torch.randn(7, columns, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(DEFAULT.build(columns)(x).to_dense(), by_hand(x).to_dense())
    assert DEFAULT.words(2) == "Matern-3/2 (a lengthscale per numeric column) plus Linear"


def test_the_estimator_has_the_default() -> None:
    x = torch.randn(20, 2, generator=torch.Generator().manual_seed(2)).numpy()
    model = fgp.GPRegressor(optimise=False).fit(x, x[:, 0])
    assert model.kernel_.form == DEFAULT.build(2).form
