"""Learning online without a float64 factor equals conditioning on the same rows, to the tolerance of conditioning."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.errors import DomainError, FlashGPWarning, NotPositiveDefiniteError
from flashgp.foundations.events import EventKind, of_kind
from inference.plain_gp import data, model

F64 = torch.float64
Posterior = Any
TOLERANCE = 1e-5  # standard deviations of an observation
ROUTES = {"stored": ("stored", "cg"), "recomputed": ("recomputed", "cg"), "refined": ("refined", "cholesky")}


def conditioned(gp: fgp.GP, x: Tensor, y: Tensor, way: str, **options: Any) -> Posterior:
    route, solver = ROUTES[way]
    distinct = len(torch.unique(x, dim=0))
    plan = fgp.plan(gp, n=len(x), d=x.shape[1], distinct=distinct, route=route, solver=solver)
    return gp.condition(x, y, plan=plan, **({"tolerance": TOLERANCE} | options))


def agree(post: Posterior, gp: fgp.GP | None = None) -> None:
    """All that a posterior answers, against a float64 factor of the same rows."""
    wanted = (post.gp if gp is None else gp).condition(post.x, post.y, dtype=F64)
    at = post.x[:1] + torch.linspace(0.05, 0.9, 7, dtype=F64)[:, None]
    noise = float(post.noise.min()) ** 0.5
    assert post.report.error_bound <= 1.001 * TOLERANCE * noise
    p, q = post.predict(at), wanted.predict(at)
    assert float((p.mean - q.mean).abs().max()) <= post.report.error_bound
    short = (p.variance - q.variance) / q.variance
    assert float(short.min()) > -1e-6
    assert float(short.max()) <= 0.011, "too large by a hundredth at most, M-101"
    value, truth = float(post.log_marginal_likelihood()), float(wanted.log_marginal_likelihood())
    error = post.report.standard_error
    assert abs(value - truth) <= (1e-4 * abs(truth) if error is None else 5.0 * error + 1e-4)
    if all(one.factor is not None for one in post.by_output or (post,)):
        a, b = post.leave_one_out(), wanted.leave_one_out()
        assert float((a.mean - b.mean).abs().max()) < 1e-3 * noise
        assert float((a.variance / b.variance - 1.0).abs().max()) < 1e-3
    else:
        with pytest.raises(DomainError, match="`leave_one_out` needs a factor"):
            post.leave_one_out()


UPDATES: dict[str, Callable[[Posterior, Tensor, Tensor], Posterior]] = {
    "append one": lambda post, x, y: post.append(x[:1], y[:1]),
    "append sixteen": lambda post, x, y: post.append(x[:16], y[:16]),
    "drop the first": lambda post, x, y: post.drop([0]),
    "drop some": lambda post, x, y: post.drop([3, 50, 51, 52, 149]),
    "slide": lambda post, x, y: post.slide(x[:5], y[:5]),
    "replace": lambda post, x, y: post.replace([140, 7], x[:2], y[:2]),
}


@pytest.mark.parametrize("way", ["recomputed", "refined"])
@pytest.mark.parametrize("kind", UPDATES)
def test_updates_equal_conditioning(way: str, kind: str) -> None:
    x, y = data(180)
    post = conditioned(model(), x[:150], y[:150], way)
    before = post.predict(x[150:]).mean
    found = UPDATES[kind](post, x[150:], y[150:])
    agree(found)
    assert found.report.iterations is not None
    assert found.report.seconds > 0.0
    (line,) = of_kind(found.report.events, EventKind.UPDATED)
    assert line.stage == "update"
    assert line.fields["refactorised"] is None
    assert line.fields["iterations"] == found.report.iterations
    assert line.fields["bound"] == found.report.error_bound
    assert (found.factor is None) == (way != "refined")
    assert torch.equal(post.predict(x[150:]).mean, before), "older posteriors stay as they were"
    assert (post.count, post.state.online.appended, post.state.online.dropped) == (150, 0, 0)


@pytest.mark.parametrize("way", ["stored", "refined"])
def test_a_sequence_of_updates(way: str) -> None:
    x, y = data(180, 3)
    x[150:] += 1.5  # some of what comes lies where no pivot is
    gp = fgp.GP(1.3 * fgp.kernels.Matern(1.5, torch.tensor([0.8, 1.0, 1.5])), fgp.means.Linear(torch.ones(3), 0.2))
    post = conditioned(gp, x[:120], y[:120], way)
    rows = list(range(120))
    for start in range(120, 168, 6):
        new = list(range(start, start + 6))
        if start % 4 == 0:
            post, rows = post.slide(x[new], y[new]), rows[6:] + new
        else:
            gone = [5, 17, 18]
            post, rows = post.append(x[new], y[new]).drop(gone), [r for i, r in enumerate(rows + new) if i not in gone]
    assert torch.equal(post.x, x[rows])
    agree(post)
    kinds = [event.kind for event in post.report.events if event.stage == "update"]
    assert kinds.count(EventKind.UPDATED) == 1, "each update replaces the events of the last"
    assert kinds.count(EventKind.SOLVED) == 1


def test_tiles_that_cannot_be_had_are_recomputed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where enough memory is said to be free: it may be in pieces, or another process may take it meanwhile."""
    x, y = data(820)
    post = conditioned(model(), x[:800], y[:800], "stored")
    empty = torch.empty

    def exhausted(shape: Any, *, dtype: torch.dtype = torch.float32, **options: Any) -> Tensor:
        if dtype == torch.float32 and len(shape) == 1 and shape[0] > 800**2 // 2:
            raise RuntimeError("can't allocate memory")
        return empty(shape, dtype=dtype, **options)

    monkeypatch.setattr(torch, "empty", exhausted)
    found = post.append(x[800:], y[800:])
    monkeypatch.undo()
    assert not found.state.solves.system.stored
    (event,) = of_kind(found.report.events, EventKind.TILES_NOT_STORED)
    assert event.fields["free"] == 0
    agree(found)


def test_a_duplicate_without_noise_is_refused() -> None:
    x, y = data(60)
    variance = torch.full((60,), 0.1, dtype=F64)
    variance[3] = 0.0
    gp = fgp.GP(fgp.kernels.RBF(), likelihood=fgp.likelihoods.Gaussian(None, row_variance=variance))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FlashGPWarning)  # without noise somewhere no bound is known
        post = gp.condition(x, y, solver="cg")
        for rows in (x[3:4], torch.cat([x[16:17] + 0.5, x[16:17] + 0.5])):
            with pytest.raises(NotPositiveDefiniteError, match="repeats another one without noise"):
                post.append(rows, y[: len(rows)], row_variance=torch.zeros(len(rows), dtype=F64))
        found = post.append(x[5:6], y[5:6], row_variance=torch.zeros(1, dtype=F64))
    assert abs(float(found.predict(x[5:6]).mean) - float(y[5])) < 1e-6


def test_a_solve_that_was_ended_early_is_finished_by_the_next_update() -> None:
    x, y = data(151)
    with pytest.warns(FlashGPWarning, match="time limit ended the solve"):
        post = conditioned(model(), x[:150], y[:150], "recomputed", time_limit=0.0)
    found = post.append(x[150:], y[150:])
    agree(found)
    assert not of_kind(found.report.events, EventKind.SOLVE_ENDED), "nothing of it is true any more"
    assert found.state.online.usual_iterations == found.report.iterations
