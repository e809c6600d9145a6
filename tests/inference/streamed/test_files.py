"""Files of posteriors of inducing points: the same bits come back, and what does not fit is refused by its name."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from safetensors import safe_open
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.errors import ModelFileError
from flashgp.sources.source import Held
from inference.plain_gp import F64, data, model
from inference.streamed.test_posterior import with_variances
from test_files_hostile import forged

lik = fgp.likelihoods


def batches(*columns: Tensor) -> list[tuple[Tensor, ...]]:
    return list(zip(*(column.split(25) for column in columns), strict=True))


WHICH = ("read", "held", "float32", "outputs", "known", "read, known", "appended", "fitted")


def posterior(which: str = "read") -> fgp.Posterior:
    x, y = data(60)
    sparse: dict[str, Any] = {"approximation": "sparse", "inducing": 9}
    known, alike = with_variances()
    match which:
        case "held":
            found = model().condition(x, y, **sparse)
        case "float32":
            found = model().condition(batches(x.float(), y.float()), inducing=9)
        case "outputs":
            shared = fgp.GP(model().kernel, likelihood=lik.Gaussian(0.07, shared=True), outputs=2)
            found = shared.condition(batches(x, torch.stack([y, y.exp()], 1)), inducing=9)
        case "known":
            found = known.condition(x, y, **sparse)
        case "read, known":
            found = alike.condition(batches(x, y, known.likelihood.row_variance), inducing=9)
        case "appended":
            found = model().condition(x[:50], y[:50], **sparse).append(x[50:], y[50:])
        case "fitted":
            found = fgp.fit(model(), batches(x, y), inducing=9, max_iterations=2).posterior
        case _:
            found = model().condition(batches(x, y), inducing=9)
    assert found.can("bound") is None
    return found


@pytest.mark.parametrize("which", WHICH)
def test_a_file_gives_back_every_answer(tmp_path: Path, which: str) -> None:
    before, path = posterior(which), tmp_path / "m.safetensors"
    fgp.save(before, path)
    after, t = fgp.load(path), data(7, seed=5)[0].to(before.inducing.dtype)
    assert after.can("bound") is None
    for name in ("mean", "variance", "observation_variance"):
        assert torch.equal(getattr(after.predict(t), name), getattr(before.predict(t), name))
    assert torch.equal(after.predict(t).covariance(), before.predict(t).covariance())
    assert torch.equal(after.paths(2, seed=0)(t), before.paths(2, seed=0)(t))
    assert after.bound == before.bound
    assert after.count == before.count
    assert torch.equal(after.noise, before.noise)
    assert torch.equal(after.inducing, before.inducing)
    assert torch.equal(after.importance().rmse, before.importance().rmse)
    assert str(after.report) == str(before.report)
    assert dataclasses.asdict(after.state.online) == dataclasses.asdict(before.state.online)
    if before.state.held is None:
        with pytest.raises(fgp.DomainError, match="rows that were read"):
            after.leave_one_out()
    else:
        assert torch.equal(after.x, before.x)
        assert torch.equal(after.leave_one_out().log_prob, before.leave_one_out().log_prob)
    fgp.save(after, tmp_path / "n.safetensors")
    assert (tmp_path / "n.safetensors").read_bytes() == path.read_bytes()


def test_a_file_holds_points_sums_and_a_sample_and_no_code(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    fgp.save(posterior(), path)
    with safe_open(path, "pt") as file:
        names, text = set(file.keys()), json.dumps(file.metadata())
    assert names >= {"inducing", "gram", "projected", "sample_x", "sample_y"}
    assert not names & {"x", "y", "factor"}
    assert "sparse" in text


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("approximation.count", lambda c: c.update(count=-1)),
        ("sample_x", lambda c: c.update(count=59)),
        ("approximation.logs", lambda c: c.update(logs="many")),
        ("approximation", lambda c: c.update(squares=-1.0)),
        ("approximation", lambda c: c.update(left=-1e-3)),
        ("approximation", lambda c: c.update(kind="dense")),
        ("approximation", lambda c: c.pop("noise_logs")),
        ("approximation", lambda c: c.update(more=1)),
    ],
)
def test_a_description_that_does_not_fit_is_refused(tmp_path: Path, name: str, change: Callable[[Any], object]) -> None:
    path = tmp_path / "m.safetensors"
    fgp.save(posterior(), path)
    path.write_bytes(forged(path.read_bytes(), lambda config: change(config["approximation"])))
    with pytest.raises(ModelFileError, match=name):
        fgp.load(path)


def indefinite(gram: torch.Tensor) -> torch.Tensor:
    """The same with its smallest eigenvalue turned to -0.9, so that I + gram still has a factor."""
    values, vectors = torch.linalg.eigh(gram)
    values[0] = -0.9
    found = vectors * values @ vectors.mT
    return (found + found.mT) / 2


@pytest.mark.parametrize(
    ("where", "change"),
    [
        ("gram", lambda s: {"sums": dataclasses.replace(s.sums, gram=s.sums.gram[:-1, :-1])}),
        ("gram", lambda s: {"sums": dataclasses.replace(s.sums, gram=s.sums.gram.tril())}),
        ("gram", lambda s: {"sums": dataclasses.replace(s.sums, gram=-1e6 * s.sums.gram)}),
        ("gram", lambda s: {"sums": dataclasses.replace(s.sums, gram=-1e-3 * s.sums.gram)}),  # I + gram has a factor
        ("gram", lambda s: {"sums": dataclasses.replace(s.sums, gram=indefinite(s.sums.gram))}),
        ("projected", lambda s: {"sums": dataclasses.replace(s.sums, projected=1e3 * s.sums.projected)}),
        ("projected", lambda s: {"sums": dataclasses.replace(s.sums, projected=s.sums.projected.float())}),
        ("inducing", lambda s: {"inducing": s.inducing[:0]}),
        ("inducing", lambda s: {"inducing": s.inducing.to(torch.int64)}),
        ("tensor", lambda s: {"inducing": s.inducing * torch.nan}),
        ("sample_x", lambda s: {"sample": s.sample._replace(x=s.sample.x[:, :1])}),
        ("sample_y", lambda s: {"sample": s.sample._replace(y=s.sample.y[:-1])}),
        ("x", lambda s: {"held": Held(s.held.x.to(torch.int64), s.held.y)}),
        ("y", lambda s: {"held": Held(s.held.x, s.held.y.half())}),
        ("sample_row_variance", lambda s: {"sample": s.sample._replace(row_variance=-s.sample.y.abs())}),
    ],
)
def test_tensors_that_do_not_fit_are_refused(tmp_path: Path, where: str, change: Callable[[Any], Any]) -> None:
    before, path = posterior("held" if where in ("x", "y") else "read"), tmp_path / "m.safetensors"
    state = dataclasses.replace(before.state, **change(before.state))
    fgp.save(fgp.Posterior(state), path)
    with pytest.raises(ModelFileError, match=where):
        fgp.load(path)


def test_the_estimator_and_the_model_of_a_table_take_it_and_keep_it(tmp_path: Path) -> None:
    x, y = (t.numpy() for t in data(150))
    options = {"target_transform": "none", "starts": 1, "approximation": "sparse", "inducing": 30}
    found = fgp.GPRegressor(**options).fit(x, y)
    exact = fgp.GPRegressor(target_transform="none", starts=1).fit(x, y)
    assert found.posterior_.can("bound") is None
    assert numpy.abs(found.predict(x[:20]) - exact.predict(x[:20])).max() < 0.3 * y.std()
    fgp.save(found, tmp_path / "e.safetensors")
    again = fgp.load(tmp_path / "e.safetensors")
    assert numpy.array_equal(again.predict(x[:20], return_std=True)[1], found.predict(x[:20], return_std=True)[1])
    assert found.importance().order == again.importance().order
    with pytest.raises(fgp.DomainError, match="alike"):
        fgp.GPRegressor(**options).fit(x, y, sample_weight=numpy.arange(150) % 3 + 1.0)
    variances = torch.full((150,), 0.2 * y.var(), dtype=F64)
    known = fgp.GPRegressor(likelihood=lik.Gaussian(0.1, variances), **options)
    known.fit(x, y)
    fgp.save(known, tmp_path / "k.safetensors")
    assert numpy.array_equal(fgp.load(tmp_path / "k.safetensors").predict(x[:9]), known.predict(x[:9]))

    table = {"one": x[:, 0], "two": x[:, 1], "y": y}
    of_table = fgp.TableModel(**options).fit(table, target="y")
    assert of_table.posterior.can("bound") is None
    prediction = of_table.predict(table)
    assert numpy.corrcoef(prediction.mean, y)[0, 1] > 0.7
    fgp.save(of_table, tmp_path / "t.safetensors")
    loaded = fgp.load(tmp_path / "t.safetensors")
    assert isinstance(loaded, fgp.TableModel)
    assert numpy.array_equal(loaded.predict(table).std, prediction.std)
    assert [*loaded.importance().names] == ["one", "two"]
    assert "TableModel of 'y'" in repr(loaded)
