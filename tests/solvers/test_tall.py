"""Products of tall matrices as rows: the same numbers, whatever the layout and width."""

import pytest
import torch

from flashgp.solvers.preconditioners.low_rank import tall_times, tall_transposed_times

EPS = torch.finfo(torch.float64).eps


@pytest.mark.parametrize("t", [0, 1, 2, 3, 4, 5, 14, 16, 17])
@pytest.mark.parametrize("layout", ["columns", "rows"])
@pytest.mark.parametrize(("n", "k"), [(50, 7), (9, 0), (1, 1)])
def test_they_are_the_products(n: int, k: int, layout: str, t: int) -> None:
    generator = torch.Generator().manual_seed(0)
    Q, v, u = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((n, k), (n, t), (k, t)))
    if layout == "rows":
        Q, v, u = (one.mT.contiguous().mT for one in (Q, v, u))
    for found, wanted in ((tall_transposed_times(Q, v), Q.mT @ v), (tall_times(Q, u), Q @ u)):
        assert found.shape == wanted.shape
        assert torch.allclose(found, wanted, rtol=0.0, atol=4 * n * EPS * 10)
