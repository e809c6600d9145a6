"""Files of posteriors of inducing points: the same bits come back, and what does not fit is refused by its name."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import flashgp as fgp
from flashgp.foundations.errors import ModelFileError
from flashgp.sources.source import Held
from inference.plain_gp import data, model
from test_files_hostile import forged

lik = fgp.likelihoods


def posterior(which: str = "read") -> fgp.Posterior:
    x, y = data(60)
    if which == "held":
        return model().condition(x, y, approximation="sparse", inducing=9)
    return model().condition(list(zip(x.split(25), y.split(25), strict=True)), inducing=9)


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
        ("inducing", lambda s: {"sums": dataclasses.replace(s.sums, gram=-1e6 * s.sums.gram), "given": True}),
        ("sample_x", lambda s: {"sample": s.sample._replace(x=s.sample.x[:0], y=s.sample.y[:0]), "given": True}),
        ("inducing", lambda s: {"inducing": s.inducing[:0]}),
        ("inducing", lambda s: {"inducing": s.inducing.to(torch.int64)}),
        ("tensor", lambda s: {"inducing": s.inducing * torch.nan}),
        ("sample_x", lambda s: {"sample": s.sample._replace(x=s.sample.x[:, :1])}),
        ("sample_y", lambda s: {"sample": s.sample._replace(y=s.sample.y[:-1])}),
        ("x", lambda s: {"held": Held(s.held.x.to(torch.int64), s.held.y)}),
        ("y", lambda s: {"held": Held(s.held.x, s.held.y.half())}),
        ("sample_row_variance", lambda s: {"sample": s.sample._replace(numbers={"row_variance": -s.sample.y.abs()})}),
    ],
)
def test_tensors_that_do_not_fit_are_refused(tmp_path: Path, where: str, change: Callable[[Any], Any]) -> None:
    before, path = posterior("held" if where in ("x", "y") else "read"), tmp_path / "m.safetensors"
    state = dataclasses.replace(before.state, **change(before.state))
    fgp.save(fgp.Posterior(state), path)
    with pytest.raises(ModelFileError, match=where):
        fgp.load(path)
