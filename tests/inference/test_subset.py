"""A large fit starts on a subset and ends on all rows: eq. (M-38) over every row is what it maximises."""

import pytest
import torch

import flashgp as fgp
from flashgp.inference.training import fit as fitting


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


def test_a_prior_on_part_of_the_domain_is_refused_before_the_search_leaves_it() -> None:
    """Seen red as torch's own ValueError from the middle of a line search."""
    x = torch.linspace(0, 1, 9, dtype=torch.float64)[:, None]
    prior = torch.distributions.Uniform(torch.tensor(0.9).double(), torch.tensor(1.1).double())
    gp = fgp.GP(fgp.kernels.RBF(fgp.Parameter(1.0, prior=prior)))
    with pytest.raises(fgp.DomainError, match=r"`prior` of kernel.lengthscale .*interval\(0.9, 1.1\)"):
        fgp.fit(gp, x, torch.sin(x[:, 0]), starts=1)
    inside = fgp.Parameter(1.0, torch.distributions.constraints.interval(0.9, 1.1), prior)
    fitted = fgp.fit(fgp.GP(fgp.kernels.RBF(inside)), x, torch.sin(x[:, 0]), starts=1)
    assert 0.9 < fitted.gp.kernel.lengthscale.value.item() < 1.1
