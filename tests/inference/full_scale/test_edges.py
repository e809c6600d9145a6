"""Full-scale posteriors in files, in scikit-learn's contract and as models of tables."""

import json
from pathlib import Path

import numpy
import pytest
import torch
from safetensors import safe_open
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.errors import DomainError, ModelFileError
from inference.plain_gp import data, model

SCALE = {"approximation": "full_scale", "inducing": 10, "neighbours": 12}


def saved(path: Path, *, repeats: bool = False) -> fgp.Posterior:
    x, y = data(60)
    if repeats:
        x[50:] = x[:10]
    found = model().condition(x, y, **SCALE)
    assert found.can("lost") is None
    fgp.save(found, path)
    return found


@pytest.mark.parametrize("repeats", [False, True])
def test_a_file_gives_back_every_answer(tmp_path: Path, *, repeats: bool) -> None:
    before = saved(tmp_path / "m.safetensors", repeats=repeats)
    after, z = fgp.load(tmp_path / "m.safetensors"), data(7, seed=5)[0]
    assert after.lost.seconds is not None
    assert "twice the neighbours would take" in str(after.lost)
    assert after.can("lost") is None
    for name in ("mean", "variance"):
        assert torch.equal(getattr(after.predict(z), name), getattr(before.predict(z), name))
    assert torch.equal(after.predict(z).covariance(), before.predict(z).covariance())
    assert torch.equal(after.paths(2, seed=0)(z), before.paths(2, seed=0)(z))
    assert torch.equal(after.leave_one_out().log_prob, before.leave_one_out().log_prob)
    assert after.log_marginal_likelihood() == before.log_marginal_likelihood()
    assert after.lost == before.lost
    assert str(after.report) == str(before.report)


def rewritten(path: Path, name: str, value: Tensor) -> None:
    """The posterior in a file, with another tensor, written as one that nothing has damaged."""
    before = fgp.load(path)
    state, near, sums = before.state, before.state.layout.near, before.state.sums
    for owner in (state.layout, near, sums):
        if hasattr(owner, name):
            object.__setattr__(owner, name, value)
    fgp.save(before, path)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("inducing", lambda t: t[:, :1]),
        ("blocks", lambda t: t.clone().fill_(0)),
        ("blocks", lambda t: t + 1000),
        ("neighbours", lambda t: t[:2]),
        ("neighbours", lambda t: t - 5),
        ("inner", lambda t: -t),
        ("inner", lambda t: t.mT.contiguous() + t),
        ("projected", lambda t: t[:-1]),
        ("projected", lambda t: t * torch.nan),
    ],
)
def test_a_file_that_no_model_wrote_is_refused(tmp_path: Path, name: str, change: object) -> None:
    path = tmp_path / "m.safetensors"
    state = saved(path).state
    parts = {
        "inducing": state.layout.inducing, "blocks": state.layout.near.blocks, "inner": state.sums.inner,
        "neighbours": state.layout.near.neighbours, "projected": state.sums.projected,
    }  # fmt: skip
    rewritten(path, name, change(parts[name]))
    with pytest.raises(ModelFileError):
        fgp.load(path)


def test_a_file_says_what_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    saved(path)
    with safe_open(path, "pt") as file:
        names, text = set(file.keys()), json.dumps(file.metadata())
    assert names >= {"x", "y", "inducing", "blocks", "neighbours", "inner", "projected"}
    assert "full_scale" in text
    assert "factor" not in names


def test_the_estimator_takes_an_approximation(tmp_path: Path) -> None:
    x, y = (t.numpy() for t in data(150))
    found = fgp.GPRegressor(target_transform="none", starts=1, **SCALE).fit(x, y)
    exact = fgp.GPRegressor(target_transform="none", starts=1).fit(x, y)
    assert found.posterior_.can("lost") is None
    mean, std = found.predict(x[:20], return_std=True)
    wanted, wide = exact.predict(x[:20], return_std=True)
    assert numpy.abs(mean - wanted).max() < 0.2 * y.std()
    assert numpy.abs(std / wide - 1.0).max() < 0.2
    found.save(tmp_path / "e.safetensors") if hasattr(found, "save") else fgp.save(found, tmp_path / "e.safetensors")
    again = fgp.load(tmp_path / "e.safetensors")
    assert numpy.array_equal(again.predict(x[:20]), mean)
    weighted = fgp.GPRegressor(target_transform="none", optimise=False, **SCALE)
    weighted.fit(x, y, sample_weight=numpy.arange(150) % 3 + 1.0)
    assert numpy.isfinite(weighted.predict(x[:5])).all()


def test_the_model_of_a_table_takes_an_approximation(tmp_path: Path) -> None:
    x, y = (t.numpy() for t in data(120))
    table = {"one": x[:, 0], "two": x[:, 1], "y": y}
    found = fgp.TableModel(starts=1, target_transform="none", **SCALE).fit(table, target="y")
    assert found.posterior.can("lost") is None
    prediction = found.predict(table)
    assert numpy.corrcoef(prediction.mean, y)[0, 1] > 0.7
    found.save(tmp_path / "t.safetensors")
    assert numpy.array_equal(fgp.load(tmp_path / "t.safetensors").predict(table).mean, prediction.mean)


@pytest.mark.parametrize("kind", [fgp.GPRegressor, fgp.TableModel])
def test_settings_of_exact_inference_are_refused_beside_it(kind: type) -> None:
    x, y = (t.numpy() for t in data(30))

    def fit(**options: object) -> object:
        made = kind(target_transform="none", starts=1, **{**SCALE, **options})
        return made.fit({"x": x[:, 0], "y": y}, target="y") if kind is fgp.TableModel else made.fit(x, y)

    with pytest.raises(DomainError, match="`solver` is of exact inference"):
        fit(solver="cg")
    with pytest.raises(DomainError, match="`approximation`"):
        fit(approximation="nystroem")
    with pytest.raises(DomainError, match="`inducing` must be at most the 30 rows"):
        fit(inducing=31)
