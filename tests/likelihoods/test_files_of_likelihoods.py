"""Model files of every likelihood: what is loaded predicts the same, and goes on learning."""

from pathlib import Path
from typing import Any

import pytest
import torch

import flashgp as fgp
from flashgp.foundations.errors import DomainError
from likelihoods.cases import CASES

F64 = torch.float64
lik = fgp.likelihoods


ROUTES: dict[str, dict[str, Any]] = {
    "exact": {},
    "full scale": {"approximation": "full_scale", "inducing": 4, "neighbours": 8},
    "inducing points": {"approximation": "sparse", "inducing": 6},
}


@pytest.mark.parametrize(
    ("name", "route"),
    [
        *((name, "exact") for name in CASES),
        *((n, r) for n in ("Custom", "NegativeBinomial") for r in ROUTES if r != "exact"),
    ],
)
def test_a_loaded_posterior_predicts_the_same(name: str, route: str, tmp_path: Path) -> None:
    likelihood = CASES[name].make()
    x = torch.linspace(0.0, 1.0, 24, dtype=F64)[:, None]
    targets = (-1.0, 0.2) if name == "StudentT" else CASES[name].targets
    y = torch.tensor(targets, dtype=F64).repeat_interleave(24 // len(targets) + 1)[:24]
    gp = fgp.GP(fgp.kernels.Matern(lengthscale=0.4), fgp.means.Constant(0.1), likelihood)
    post = gp.condition(x, y, **ROUTES[route])
    own = isinstance(likelihood, lik.Custom)
    if own:
        with pytest.warns(fgp.FlashGPWarning, match="is not stored"):
            fgp.save(post, tmp_path / "model.safetensors")
    else:
        fgp.save(post, tmp_path / "model.safetensors")
    key = "likelihood.given.function" if route == "inducing points" else "likelihood.likelihood.given.function"
    again = fgp.load(tmp_path / "model.safetensors", modules={key: likelihood.given.function} if own else {})
    at = x[:5] + 0.01
    one, other = post.predict(at), again.predict(at)
    assert torch.equal(one.mean, other.mean)
    assert torch.equal(one.log_prob(y[:5]), other.log_prob(y[:5]))
    more, other = (found.append(at, y[:5]).predict(x).mean for found in (post, again))
    assert torch.allclose(more, other, rtol=0.0, atol=1e-9)


def test_numbers_of_rows_are_in_the_file(tmp_path: Path) -> None:
    x, y = torch.linspace(0.0, 1.0, 6, dtype=F64)[:, None], torch.tensor([1.0, 9.0, 3.0, 2.0, 0.0, 4.0])
    exposure, weight = torch.arange(1.0, 7.0), torch.tensor([1.0, 2.0, 0.0, 1.0, 1.0, 1.0])
    gp = fgp.GP(fgp.kernels.RBF(), likelihood=lik.NegativeBinomial(0.2, exposure, weight))
    post = gp.condition(x, y.double())
    fgp.save(post, tmp_path / "model.safetensors")
    again = fgp.load(tmp_path / "model.safetensors")
    assert torch.equal(post.leave_one_out().log_prob, again.leave_one_out().log_prob)
    found = again.gp.likelihood.underlying
    assert isinstance(found, lik.NegativeBinomial)
    assert torch.equal(found.row_weight, weight.double())
    assert torch.equal(found.exposure, exposure.double())


def test_likelihoods_outside_the_registry_are_not_saved(tmp_path: Path) -> None:
    class Own(lik.Poisson):
        pass

    post = fgp.GP(fgp.kernels.RBF(), likelihood=Own()).condition(torch.zeros(2, 1), torch.ones(2))
    with pytest.raises(DomainError, match=r"REGISTRY to be saved, got Own; .* write it as likelihoods\.Custom"):
        fgp.save(post, tmp_path / "model.safetensors")
