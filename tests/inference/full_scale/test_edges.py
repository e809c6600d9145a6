"""Full-scale posteriors in files, in scikit-learn's contract and as models of tables."""

from pathlib import Path

import numpy
import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.errors import ModelFileError
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
