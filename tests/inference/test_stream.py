"""Streams predict before they learn, keep their window, and equal conditioning on the rows that they hold."""

import copy
import math
import os
import pickle
import signal
import sys
import threading
import warnings
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

F64 = torch.float64


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


def test_a_window_smaller_than_the_beginning_drops_at_once() -> None:
    x, y = data(30, 3)
    whole = model(3).condition(x, y)
    stream = fgp.Stream(whole, window=10)
    assert torch.equal(stream.posterior.x, x[20:])
    assert whole.count == 30


def test_rows_without_a_target_are_predicted_only() -> None:
    stream, x, y = started()
    step = stream.step(x[30])
    assert step.y is None
    assert step.mean.shape == (1,)
    assert stream.posterior.count == 20
    assert stream.metrics.rows == 0
    assert math.isnan(stream.metrics.rmse)
    assert stream.metrics.steps == 1
    assert stream.step(x[30].numpy(), float(y[30])).count == 21


def test_several_outputs() -> None:
    stream, x, y = started(outputs=2)
    one = stream.step(x[20], y[20])
    assert one.mean.shape == one.variance.shape == (1, 2)
    many = stream.step(x[21:25], y[21:25])
    assert many.mean.shape == (4, 2)
    assert stream.metrics.rows == 5
    error = torch.cat([y[20:21] - one.mean, y[21:25] - many.mean])
    assert stream.metrics.rmse == pytest.approx(float(error.square().mean().sqrt()))


def test_noise_of_each_row_is_in_its_variance() -> None:
    x, y = data(30, 3)
    noise = torch.linspace(0.1, 0.5, 30, dtype=F64)
    gp = model(3)
    own = fgp.GP(gp.kernel, gp.mean, fgp.likelihoods.Gaussian(0.2, row_variance=noise[:20]))
    stream = fgp.Stream(own.condition(x[:20], y[:20]))
    latent = stream.posterior.predict(x[20:22]).variance
    step = stream.step(x[20:22], y[20:22], row_variance=noise[20:22])
    assert relative(step.variance, latent + 0.2 + noise[20:22]) < 1e-12
    both = fgp.GP(gp.kernel, gp.mean, fgp.likelihoods.Gaussian(0.2, row_variance=noise[:22]))
    assert relative(stream.posterior.predict(x).mean, both.condition(x[:22], y[:22]).predict(x).mean) < 1e-9


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


def test_refining_climbs_the_likelihood_and_leaves_the_older_posterior() -> None:
    x, y = data(80, 3)
    post = model(3).condition(x[:70], y[:70]).append(x[70:], y[70:])
    value, parameters = float(post.log_marginal_likelihood()), [p.clone() for p in post.gp.parameters()]
    better = post.refine(4, priors="given")
    assert float(better.log_marginal_likelihood()) > value + 1.0
    assert float(post.log_marginal_likelihood()) == value
    assert all(torch.equal(a, b) for a, b in zip(post.gp.parameters(), parameters, strict=True))
    more = better.refine(200, priors="given")
    whole = fgp.fit(post.gp, x, y, initial="given", priors="given")
    assert float(more.log_marginal_likelihood()) == pytest.approx(
        float(whole.posterior.log_marginal_likelihood()), abs=1e-2
    )
    assert torch.equal(better.append(x[:1] + 0.5, y[:1]).x[:-1], x)


def test_a_refinement_that_fails_says_so_and_goes_on(set_free_memory: Callable[[int], int]) -> None:
    stream, x, y = started(refine_every=1)
    set_free_memory(2048)
    with pytest.warns(FlashGPWarning, match="could not be refined at 21 rows, they go on: .*memory"):
        stream.step(x[20], y[20])
    assert stream.posterior.count == 21
    assert stream.metrics.refinements == 0


def test_a_refused_row_changes_nothing() -> None:
    stream, x, y = started()
    stream.step(x[20], y[20])
    before, metrics = stream.posterior, stream.metrics
    for wrong_x, wrong_y, error in (
        (x[21], math.nan, DomainError),
        (x[21] * math.inf, y[21], DomainError),
        (x[21, :2], y[21], ShapeError),
        (x[21:23], y[21:24], ShapeError),
        (x[None, 21:23], y[21:23], ShapeError),
    ):
        with pytest.raises(error):
            stream.step(wrong_x, wrong_y)
    with pytest.raises(ShapeError, match="`row_variance` must have one entry per new row"):
        stream.step(x[21:23], y[21:23], row_variance=torch.ones(3))
    with pytest.raises(DomainError, match="`row_weight`"):
        stream.step(x[21:23], row_weight=torch.tensor([1.0, -1.0]))
    with pytest.raises(ShapeError, match="pairs"):
        list(stream.consume([x[21]]))
    assert stream.posterior is before
    assert stream.metrics == metrics


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
    with pytest.raises(DomainError, match="`posterior` must be a Posterior"):
        fgp.Stream(model(3))  # type: ignore[arg-type]
    for steps in (0, 1.5, True):
        with pytest.raises(DomainError, match="`steps` must be"):
            post.refine(steps)  # type: ignore[arg-type]
    with pytest.raises(DomainError, match="`refine` needs a posterior with rows, got one of none"):
        post.drop(range(10)).refine()


def test_rows_are_not_rounded_to_the_posterior_s_dtype() -> None:
    """As `append`: whole numbers take its dtype, floating ones keep their digits."""
    x, y = data(12, 3)
    stream = fgp.Stream(model(3).condition(x[:10].float(), y[:10].float()))
    assert stream.step(x[10], y[10]).mean.dtype == F64
    assert stream.posterior.x.dtype == F64
    stream = fgp.Stream(model(3).condition(x[:10].float(), y[:10].float()))
    assert stream.step([1, 2, 3], 4).mean.dtype == torch.float32


def test_a_stream_keeps_nothing_of_the_past() -> None:
    """Latencies are of the latest steps only, and no graph hangs on to older rows."""
    stream, x, y = started(window=20)
    stream._latencies = type(stream._latencies)(maxlen=5)
    x.requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for i in range(20, 40):
            step = stream.step(x[i], y[i])
    assert len(stream._latencies) == 5
    assert stream.metrics.steps == 20
    assert not step.mean.requires_grad
    assert not stream.posterior.x.requires_grad


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


def test_a_step_keeps_its_target_and_a_copy_goes_on_alone() -> None:
    stream, x, y = started()
    buffer = y[20:21].numpy().copy()
    step = stream.step(x[20:21], buffer)
    buffer[:] = 7.0
    assert torch.equal(step.y, y[20:21])
    for other in (copy.deepcopy(stream), pickle.loads(pickle.dumps(stream))):
        other.step(x[21:22], y[21:22])
        assert (other.posterior.count, stream.posterior.count) == (22, 21)


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
