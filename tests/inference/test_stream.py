"""Streams predict before they learn, keep their window, and equal conditioning on the rows that they hold."""

import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.errors import DomainError, FlashGPWarning, ShapeError
from flashgp.foundations.events import EventKind, of_kind
from inference.plain_gp import data, model, relative


def started(
    n: int = 20, total: int = 60, outputs: int | None = None, **options: Any
) -> tuple[fgp.Stream, Tensor, Tensor]:
    """A stream that has n rows of a table, and the table."""
    x, y = data(total, 3)
    gp = model(3)
    if outputs:
        y = torch.stack([y, -y], dim=-1)
        gp = fgp.GP(gp.kernel, gp.mean, gp.likelihood, outputs=outputs)
    return fgp.Stream(gp.condition(x[:n], y[:n]), **options), x, y


def test_every_row_is_predicted_before_it_is_learned() -> None:
    stream, x, y = started()
    gp = model(3)
    for i, step in enumerate(stream.consume(zip(x[20:30], y[20:30], strict=True)), start=20):
        wanted = gp.condition(x[:i], y[:i]).predict(x[i : i + 1])
        assert relative(step.mean, wanted.mean) < 1e-9
        assert relative(step.variance, wanted.observation_variance) < 1e-9
        assert torch.equal(step.y, y[i : i + 1])
        assert step.count == stream.posterior.count == i + 1
        assert step.seconds > 0.0
        assert step.refining_seconds == 0.0


@pytest.mark.parametrize("approximation", ["full_scale", "sparse"])
def test_an_approximate_posterior_learns_row_by_row_too(approximation: str) -> None:
    x, y = data(60, 3)
    start = model(3).condition(x[:40], y[:40], approximation=approximation, inducing=10)
    stream, before = fgp.Stream(start), start
    for i, step in enumerate(stream.consume(zip(x[40:], y[40:], strict=True)), start=40):
        wanted = before.predict(x[i : i + 1])
        assert torch.equal(step.mean, wanted.mean)
        assert torch.equal(step.variance, wanted.observation_variance)
        before = before.append(x[i : i + 1], y[i : i + 1])
        assert step.count == i + 1
    assert torch.equal(stream.posterior.predict(x).mean, before.predict(x).mean)
    assert stream.metrics.rows == 20
    assert stream.step(x[:3]).y is None
    assert "60 rows" in repr(stream)
    assert pickle.loads(pickle.dumps(stream)).posterior.count == 60
    with pytest.raises(DomainError, match=r"`window` of a stream .* `drop` is of exact posteriors"):
        fgp.Stream(start, window=30)
    with pytest.raises(ShapeError, match="`x`"):
        stream.step(x[:2, :1], y[:2])


def test_metrics_are_those_of_the_predictions() -> None:
    stream, x, y = started()
    steps = [stream.step(x[i : i + 4], y[i : i + 4]) for i in range(20, 60, 4)]
    mean, variance = (torch.cat([getattr(s, name) for s in steps]) for name in ("mean", "variance"))
    normal, truth = torch.distributions.Normal(mean, variance.sqrt()), y[20:60]
    found = stream.metrics
    assert (found.rows, found.steps, found.refinements) == (40, 10, 0)
    assert found.rmse == pytest.approx(float((truth - mean).square().mean().sqrt()))
    assert found.nll == pytest.approx(-float(normal.log_prob(truth).mean()))
    assert found.coverage == pytest.approx(
        float(((truth - mean).abs() <= 1.959963984540054 * variance.sqrt()).double().mean())
    )
    seconds = np.array([s.seconds for s in steps])
    assert found.median_seconds == np.median(seconds)
    assert found.largest_seconds == seconds.max()
    assert "40 rows: RMSE" in str(found)
    assert "60 rows" in repr(stream)


@pytest.mark.parametrize("block", [1, 3, 25, 40])
def test_a_window_holds_the_latest_rows(block: int) -> None:
    # From less than the window to more, with blocks that are larger than it too.
    stream, x, y = started(window=25)
    for i in range(20, 60, block):
        stream.step(x[i : i + block], y[i : i + block])
    assert stream.posterior.count == 25
    wanted = model(3).condition(x[35:], y[35:])
    assert torch.equal(stream.posterior.x, wanted.x)
    at = x[:5] + 0.1
    assert relative(stream.posterior.predict(at).mean, wanted.predict(at).mean) < 1e-9
    assert relative(stream.posterior.predict(at).variance, wanted.predict(at).variance) < 1e-9


def test_hyperparameters_are_refined_when_it_is_their_turn() -> None:
    stream, x, y = started(n=20, total=120, refine_every=40, refine_steps=3)
    before = float(stream.posterior.gp.likelihood.noise_variance.value)
    seconds = [stream.step(x[i], y[i]).refining_seconds for i in range(20, 120)]
    assert [i for i, s in enumerate(seconds) if s > 0.0] == [39, 79]
    assert stream.metrics.refinements == 2
    assert stream.metrics.refining_seconds == pytest.approx(sum(seconds))
    assert "refined 2 times" in str(stream.metrics)
    post = stream.posterior
    assert float(post.gp.likelihood.noise_variance.value) != before
    assert (post.state.online.appended, post.state.online.refined) == (100, 2)
    (event,) = of_kind(post.report.events, EventKind.UPDATED)
    assert event.fields["refined"] == 2
    wanted = post.gp.condition(x, y)
    assert relative(post.predict(x[:5] + 0.1).mean, wanted.predict(x[:5] + 0.1).mean) < 1e-9


def test_arguments_that_are_no_counts() -> None:
    x, y = data(10, 3)
    post = model(3).condition(x, y)
    for options in (
        {"window": 0},
        {"window": 2.5},
        {"refine_every": 0},
        {"refine_steps": None},
        {"refine_every": True},
    ):
        with pytest.raises(DomainError, match=f"`{next(iter(options))}` must be a whole number, 1 or more"):
            fgp.Stream(post, **options)
    with pytest.raises(DomainError, match=r"`posterior` of a stream .* needs a detached posterior"):
        fgp.Stream(model(3).condition(x, y, differentiable=True))
    with pytest.raises(ShapeError, match="pairs"):
        list(fgp.Stream(post).consume([x[0]]))
    with pytest.raises(ShapeError, match="one row"):
        fgp.Stream(post).step(x[None], y)
    with pytest.raises(DomainError, match="`posterior` must be a Posterior"):
        fgp.Stream(model(3))  # type: ignore[arg-type]
    for steps in (0, 1.5, True):
        with pytest.raises(DomainError, match="`steps` must be"):
            post.refine(steps)  # type: ignore[arg-type]
    with pytest.raises(DomainError, match="`refine` needs a posterior with rows, got one of none"):
        post.drop(range(10)).refine()


def test_steps_of_several_threads_are_all_learned() -> None:
    stream, x, y = started(total=120)

    def run(start: int) -> None:
        for i in range(start, 120, 4):
            stream.step(x[i : i + 1], y[i : i + 1])

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=run, args=(start,)) for start in range(20, 24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert stream.posterior.count == 120
    assert stream.metrics.rows == 100
    assert sorted(stream.posterior.y.tolist()) == sorted(y.tolist())


def test_a_refinement_that_fails_says_so_and_goes_on(set_free_memory: Callable[[int], int]) -> None:
    stream, x, y = started(refine_every=1)
    set_free_memory(2048)
    with pytest.warns(FlashGPWarning, match="could not be refined at 21 rows, they go on: .*memory"):
        stream.step(x[20], y[20])
    assert stream.posterior.count == 21
    assert stream.metrics.refinements == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_during_a_step_leaves_the_child_a_stream() -> None:
    stream, x, y = started()
    with stream._alone():  # as a thread that is in a step
        held = threading.Event()
        child = os.fork()
        if not child:
            signal.alarm(20)
            worker = threading.Thread(target=lambda: (stream.metrics, held.set()))
            worker.start()
            os._exit(0 if held.wait(10) else 1)
        assert os.waitpid(child, 0)[1] == 0
    assert stream.step(x[20], y[20]).count == 21
