"""Laws that every kind of state keeps: its posterior refuses what it says, learns rows as if it had them, and is
what its file says."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.errors import DomainError
from inference.plain_gp import data, model

KINDS: dict[str, dict[str, Any]] = {
    "float64 factor": {},
    "float32 factor": {"dtype": torch.float32},
    "solves": {"solver": "cg", "tolerance": 1e-9},
    "outputs": {},
    "full scale": {"approximation": "full_scale", "inducing": 6},
    "inducing points": {"approximation": "sparse"},
    "rows that are read": {},
}
APPROXIMATE = ("full scale", "inducing points", "rows that are read")
X, Y = data(40)
AT = data(7, seed=5)[0]


def conditioned(kind: str, rows: int = 40) -> fgp.Posterior:
    x, y, options = X[:rows], Y[:rows], KINDS[kind]
    if kind == "outputs":
        gp = fgp.GP(model().kernel, likelihood=fgp.likelihoods.Gaussian([0.05, 0.2], outputs=2), outputs=2)
        return gp.condition(x, torch.stack([y, y.exp()], 1))
    if kind == "rows that are read":
        return model().condition(list(zip(x.split(13), y.split(13), strict=True)), inducing=X[:10])
    if kind == "inducing points":
        return model().condition(x, y, inducing=X[:10], **options)
    if kind == "full scale":
        return model().condition(x, y, neighbours=rows, **options)
    return model().condition(x, y, **options)


def new_rows(kind: str, first: int) -> tuple[Tensor, Tensor]:
    y = Y[first:]
    return X[first:], torch.stack([y, y.exp()], 1) if kind == "outputs" else y


@pytest.mark.parametrize("kind", KINDS)
def test_appending_is_conditioning_on_all_rows(kind: str) -> None:
    """eqs. (M-111), (M-175) and (M-176); of full scale where all rows are neighbours."""
    found, wanted = conditioned(kind, 33).append(*new_rows(kind, 33)), conditioned(kind)
    assert found.count == wanted.count == 40
    assert found.state.online.appended == 7
    off = {"solves": 1e-2, "float32 factor": 1e-5}.get(kind, 1e-8)  # of solves variances are inexact
    for name in ("mean", "variance"):
        torch.testing.assert_close(
            getattr(found.predict(AT), name), getattr(wanted.predict(AT), name), rtol=off, atol=off
        )


@pytest.mark.parametrize("appended", [False, True], ids=["conditioned", "appended"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_gives_back_every_bit(tmp_path: Path, kind: str, *, appended: bool) -> None:
    before = conditioned(kind, 33).append(*new_rows(kind, 33)) if appended else conditioned(kind)
    fgp.save(before, tmp_path / "m.safetensors")
    after = fgp.load(tmp_path / "m.safetensors")
    off = 0.0 if not appended else 1e-5 if kind == "float32 factor" else 1e-9  # an update leaves weights for later
    close = {"rtol": off, "atol": off}
    for name in ("mean", "variance"):
        torch.testing.assert_close(getattr(after.predict(AT), name), getattr(before.predict(AT), name), **close)
    torch.testing.assert_close(after.paths(2, seed=0)(AT), before.paths(2, seed=0)(AT), **close)
    assert (after.count, after.distinct, type(after.state)) == (before.count, before.distinct, type(before.state))
    assert after.state.online.appended == before.state.online.appended
    assert str(after.report) == str(before.report)


QUESTIONS: dict[str, tuple[Any, ...]] = {
    "append": (X[:2] + 9.0, Y[:2]), "drop": ([0, 3],), "slide": (X[:2] + 9.0, Y[:2]),
    "fantasize": (X[:3, None], Y[:3, None]),
    "replace": ([1], X[:1] + 9.0, Y[:1]), "refine": (1,), "leave_one_out": (), "leave_out": (X[:3], Y[:3]),
    "bracket": (), "importance": (), "log_marginal_likelihood": (), "paths": (2,), "predict": (AT,),
    "predict_seconds": (10,),
}  # fmt: skip
FIELDS = ("x", "y", "points", "residual", "noise", "lost", "bound", "inducing", "replicates", "batch_shape", "distinct")


def answer(post: fgp.Posterior, kind: str, question: str) -> Any:
    if question in FIELDS:
        return getattr(post, question)
    given = QUESTIONS[question]
    if kind == "outputs" and len(given) > 1:
        given = (*given[:-1], torch.stack([given[-1], given[-1]], -1))
    if question == "bracket" and kind == "rows that are read":
        given = ([(X, Y)],)
    return getattr(post, question)(*given)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_refused_raises_the_reason_and_all_else_answers(kind: str) -> None:
    post, refused = conditioned(kind), set()
    for question in (*QUESTIONS, *FIELDS):
        reason = post.can(question)
        if reason is None:
            answer(post, kind, question)
            continue
        refused.add(question)
        assert reason.startswith(f"`{question}` ")
        with pytest.raises(DomainError) as error:
            answer(post, kind, question)
        assert str(error.value) == reason
    exact_only = {"drop", "slide", "replace", "fantasize", "refine"}
    of_points = {"bound", "bracket", "leave_out"}
    assert (
        refused
        == {
            "float64 factor": {*of_points, "lost", "inducing"},
            "float32 factor": {*of_points, "lost", "inducing", "fantasize"},
            "solves": {*of_points, "lost", "inducing", "fantasize", "leave_one_out"},
            "outputs": {*of_points, "lost", "inducing"},
            "full scale": {*of_points, *exact_only},
            "inducing points": exact_only,
            "rows that are read": {*exact_only, "leave_one_out", "x", "y", "points", "residual"},
        }[kind]
    )


def test_a_question_that_no_posterior_has_is_an_error() -> None:
    with pytest.raises(DomainError, match="`question` must be a method or field of Posterior, got 'forget'"):
        conditioned("float64 factor").can("forget")


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_prior_gives_the_same_answers(kind: str) -> None:
    post = conditioned(kind)
    again = post.with_prior(post.gp)
    assert again.state is not post.state
    assert torch.equal(again.predict(AT).mean, post.predict(AT).mean)


@pytest.mark.parametrize("kind", APPROXIMATE)
def test_what_an_approximation_loses_is_in_its_text(kind: str) -> None:
    post = conditioned(kind)
    assert "\nlost " in repr(post)
    assert float(post.lost.nats) >= 0.0
    assert str(post.lost) in repr(post)
    assert "\nlost " not in repr(conditioned("float64 factor"))
