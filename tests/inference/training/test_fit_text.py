"""What the text of a fit says: what was maximised, under which priors, and to which column each number belongs."""

import pytest
import torch

import flashgp as fgp
from flashgp.inference.fit import Fit

F64 = torch.float64


def rows(n: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(n, 2, dtype=F64, generator=generator)
    return x, torch.sin(5.0 * x[:, 0]) + 0.1 * torch.randn(n, dtype=F64, generator=generator)


def fitted(lengthscale: object = (1.0, 1.0), priors: str = "weak", **options: object) -> Fit:
    value = torch.tensor(lengthscale) if isinstance(lengthscale, tuple) else lengthscale
    kernel = 1.0 * fgp.kernels.Matern(nu=2.5, lengthscale=value)  # type: ignore[arg-type]
    return fgp.fit(fgp.GP(kernel), *rows(), starts=1, priors=priors, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("priors", ["weak", "given"])
def test_what_was_maximised_is_likelihood_plus_priors(priors: str) -> None:
    fit = fitted(priors=priors)
    best = max(entry.value for entry in fit.history)
    evidence = float(fit.posterior.log_marginal_likelihood())
    assert fit.log_prior is not None
    assert evidence + fit.log_prior == pytest.approx(best, rel=1e-8, abs=1e-8)
    assert (fit.log_prior == 0.0) == (priors == "given")
    text = dict(fit.summary())
    assert text["log marginal likelihood"] == f"{evidence:.6g} nats"
    assert text["maximised"].startswith(f"{best:.6g} nats")
    for name, value in text.items():
        assert f"{name:<24} {value}" in repr(fit)
        assert value in fit._repr_html_()


def test_a_fit_without_a_factor_says_who_estimates_its_evidence() -> None:
    gp = fgp.GP(fgp.kernels.Matern(nu=2.5))
    fit = fgp.fit(gp, *rows(), starts=1, plan=fgp.plan(gp, *rows()[0].shape, solver="cg"))
    assert dict(fit.summary())["log marginal likelihood"] == "posterior.log_marginal_likelihood() estimates it"
    evidence = float(fit.posterior.log_marginal_likelihood())
    assert f"{evidence:.6g} nats" in repr(fit)


def test_every_prior_in_force_stands_beside_its_parameter() -> None:
    mine = torch.distributions.LogNormal(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 2.0]))
    fit = fitted(fgp.Parameter(torch.ones(2), prior=mine))
    said = {(row.place, row.of): row.prior for row in fit.rows()}
    assert said["kernel.kernel.lengthscale[0]", "x1"] == "LogNormal(0, 1)"
    assert said["kernel.kernel.lengthscale[1]", "x2"] == "LogNormal(1, 2)"
    variance = float(rows()[1].var(correction=0).log())
    assert said["kernel.variance", ""] == f"log variance ~ Normal({variance:.3g}, 2), weak"
    assert said["likelihood.noise_variance", ""] == f"log noise_variance ~ Normal({variance - 4.0:.3g}, 2), weak"
    assert said["mean.value", ""] == "none"
    given = fitted(fgp.Parameter(torch.ones(2), trainable=False), priors="given")
    assert {row.place: row.prior for row in given.rows()}["kernel.variance"] == "none"
    assert {row.place: row.prior for row in given.rows()}["kernel.kernel.lengthscale[0]"] == "fixed"


def test_a_prior_of_another_family_counts_too() -> None:
    prior = torch.distributions.HalfNormal(2.0)
    fit = fitted(fgp.Parameter(torch.ones(2), prior=prior))
    best = max(entry.value for entry in fit.history)
    assert fit.log_prior is not None
    assert float(fit.posterior.log_marginal_likelihood()) + fit.log_prior == pytest.approx(best, rel=1e-8)
    assert "HalfNormal(2)" in repr(fit)


def test_a_table_names_its_columns() -> None:
    x, y = rows()
    table = {"cement": x[:, 0].numpy(), "water": x[:, 1].numpy(), "strength": y.numpy()}
    model = fgp.TableModel(starts=1).fit(table, target="strength")
    assert model.training is not None
    for text in (repr(model), repr(model.training)):
        line = next(line for line in text.splitlines() if "lengthscale[0]" in line)
        assert line.split()[1] == "cement"
        assert "weak" in line
        assert "maximised" in text


def test_a_model_from_a_file_claims_no_priors(tmp_path: object) -> None:
    x, y = rows()
    model = fgp.TableModel(starts=1).fit({"cement": x[:, 0].numpy(), "strength": y.numpy()}, target="strength")
    model.save(f"{tmp_path}/model.safetensors")
    text = repr(fgp.load(f"{tmp_path}/model.safetensors"))
    assert "cement" in text.split("parameter", 1)[1]
    assert "prior in force" not in text


def test_outputs_and_batches_have_a_text() -> None:
    x, y = rows()
    kernel = 1.0 * fgp.kernels.Matern(nu=2.5)
    both = fgp.fit(fgp.GP(kernel, outputs=2), x, torch.stack([y, -y], dim=1), starts=1)
    assert "all inputs" in repr(both)
    assert "entry 2" in repr(both)
    batch = fgp.fit(fgp.GP(fgp.kernels.RBF(torch.ones(2, 2))), x, y, starts=1, max_iterations=3)
    assert "maximised" in repr(batch)
    assert "maximised" in batch._repr_html_()
