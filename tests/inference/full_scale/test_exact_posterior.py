"""Parameters by an approximation, and the exact posterior of all rows given them, in one call."""

from pathlib import Path
from typing import Any

import pytest
import torch

import flashgp as fgp
from flashgp.foundations.events import EventKind
from flashgp.inference.fit import Fit

F64 = torch.float64


def rows(n: int = 500, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 2, generator=generator, dtype=F64)
    return x, torch.sin(6.0 * x.sum(1)) + 0.1 * torch.randn(n, generator=generator, dtype=F64)


def fitted(x: Any, y: Any, **options: Any) -> Fit:
    gp = fgp.GP(1.0 * fgp.kernels.Matern(nu=1.5, lengthscale=torch.ones(2, dtype=F64)))
    return fgp.fit(gp, x, y, starts=1, progress=False, deterministic=True, **options)  # however many cores are free


@pytest.mark.parametrize("kind", ["full_scale", "sparse", "auto"])
def test_the_posterior_is_that_of_conditioning_on_all_rows(kind: str) -> None:
    x, y = rows()
    fit = fitted(x, y, approximation=kind, inducing=30, exact_posterior=True)
    wanted = fit.gp.condition(x, y, deterministic=True)
    points = rows(50, seed=1)[0]
    found, exact = fit.posterior.predict(points), wanted.predict(points)
    assert torch.equal(found.mean, exact.mean)
    assert torch.equal(found.variance, exact.variance)
    assert torch.equal(fit.posterior.log_marginal_likelihood(), wanted.log_marginal_likelihood())
    kinds = [event.kind for event in fit.report.events]
    assert (EventKind.EXACT_POSTERIOR in kinds) == (kind != "auto")
    assert fit.report.route == wanted.report.route


def test_a_fit_resumes_from_its_checkpoint(tmp_path: Path) -> None:
    x, y = rows()
    path = tmp_path / "fit.checkpoint"
    options = {"approximation": "full_scale", "inducing": 20, "exact_posterior": True, "checkpoint": path}
    first, second = fitted(x, y, **options), fitted(x, y, **options)
    assert any(event.kind is EventKind.RESUMED for event in second.report.events)
    assert torch.equal(first.posterior.predict(x[:5]).mean, second.posterior.predict(x[:5]).mean)


def test_it_is_of_rows_that_are_held() -> None:
    with pytest.raises(fgp.DomainError, match="`exact_posterior` needs rows that are held"):
        fgp.fit(fgp.GP(fgp.kernels.RBF()), [rows()], exact_posterior=True)
    with pytest.raises(fgp.DomainError, match="`exact_posterior` must be True or False"):
        fgp.fit(fgp.GP(fgp.kernels.RBF()), *rows(), exact_posterior="no")
