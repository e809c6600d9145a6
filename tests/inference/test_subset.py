"""A large fit starts on a subset and ends on all rows: eq. (M-38) over every row is what it maximises."""

import pytest
import torch

import flashgp as fgp
from flashgp.inference import fit as fitting


def test_what_follows_the_subset_moves_the_model_that_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen red when the subset's objective took the parameters over: all later evaluations were equal."""
    monkeypatch.setattr(fitting, "BATCHED_PAIRS", 1)
    monkeypatch.setattr(fitting, "SUBSET_ROWS", 12)
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(60, 2, generator=generator, dtype=torch.float64)
    y = torch.sin(5 * x[:, 0]) + 0.1 * torch.randn(60, generator=generator, dtype=torch.float64)
    gp = fgp.GP(1.0 * fgp.kernels.Matern(nu=2.5, lengthscale=torch.ones(2)))
    large = fgp.fit(gp, x, y, starts=3, priors="given")
    values = [e.value for e in large.history if e.start.startswith("start")]
    assert max(values) > values[0]
    assert torch.isclose(large.gp.log_joint(x, y), torch.tensor(max(values), dtype=torch.float64), rtol=1e-9, atol=0)
    monkeypatch.setattr(fitting, "BATCHED_PAIRS", 2**20)
    whole = fgp.fit(gp, x, y, priors="given")
    assert abs(float(large.gp.log_joint(x, y) - whole.gp.log_joint(x, y))) < 0.01
