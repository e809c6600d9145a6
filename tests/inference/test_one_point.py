"""One row more and a few points, by few calls, are what the general way gives; and they know what is not theirs."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.events import EventKind, of_kind
from flashgp.inference.run import OnlineSettings
from flashgp.kernels import REGISTRY
from inference.plain_gp import predicted

F64 = torch.float64
EPS = torch.finfo(F64).eps
ONES = [pytest.param(name, index, id=f"{name}-{index}") for name, row in REGISTRY.items()
        for index in range(len(row.examples(2)))]  # fmt: skip
Posterior = Any


def table(n: int, kind: str = "", outputs: int | None = None) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(n, 2, generator=generator, dtype=F64)
    if kind and REGISTRY[kind].inputs == "codes":
        x = torch.randint(0, 4, (n, 2), generator=generator).to(F64)
    y = torch.randn(n, *(() if outputs is None else (outputs,)), generator=generator, dtype=F64)
    return x, y


def general(post: Posterior) -> Posterior:
    """The same posterior, which takes torch's way from here on."""
    run = replace(post.state.run, online=OnlineSettings(numpy_pairs=0))
    return fgp.Posterior(replace(post.state, run=run))


def grown(gp: fgp.GP, x: Tensor, y: Tensor, start: int, way: Callable[..., Posterior] = lambda p: p) -> Posterior:
    """From `start` rows on, one by one."""
    post = way(gp.condition(x[:start], y[:start]))
    for i in range(start, len(x)):
        post = post.append(x[i : i + 1], y[i : i + 1])
    return post


def answered(post: Posterior, at: Tensor) -> Any:
    """A prediction that has been asked for."""
    prediction = post.predict(at)
    prediction.mean, prediction.variance  # noqa: B018
    return prediction


def same(found: Posterior, wanted: Posterior, a: Any, b: Any) -> None:
    """Posteriors, and a prediction of each, to the roundings of n rows with a tenth of the variance in noise."""
    n = wanted.count
    assert torch.equal(found.x, wanted.x)
    assert torch.equal(found.y, wanted.y)
    scale = float(wanted.factor.lower.abs().max())
    assert float((found.factor.lower - wanted.factor.lower).abs().max()) <= 100 * n * EPS * scale
    for own, other in zip(found.state.rows.tensors, wanted.state.rows.tensors, strict=True):
        assert torch.allclose(own, other, rtol=4 * EPS, atol=0.0)
    assert a.mean.shape == b.mean.shape
    assert a.mean.dtype == b.mean.dtype
    limit = 1e4 * n * EPS
    assert torch.allclose(a.mean, b.mean, rtol=limit, atol=limit)
    assert torch.allclose(a.variance, b.variance, rtol=limit, atol=limit * scale**2)


@pytest.mark.parametrize(("name", "index"), ONES)
def test_rows_of_every_kernel(name: str, index: int) -> None:
    kernel = REGISTRY[name].examples(2)[index]
    x, y = table(20, name)
    with torch.no_grad():
        largest = float(kernel.operator(x).diagonal().max())
    gp = fgp.GP(kernel, fgp.means.Constant(0.3), fgp.likelihoods.Gaussian(0.1 * largest))
    found = grown(gp, x, y, 15)
    points = [x[:k] + (0.0 if REGISTRY[name].inputs == "codes" else 0.05) for k in (1, 5)]
    answers = [answered(found, at) for at in points]
    served = found.state.numpy_prior is not None
    assert served == (kernel.form.fusable and found.replicates is None)
    if served:
        assert found.report.backend == answers[0].report.backend == "NumPy"
        (event,) = found.report.events
        assert (event.kind, event.fields["appended"]) == (EventKind.UPDATED, 5)
        assert found.report.relative_residual < 1e-12
    wanted = grown(gp, x, y, 15, general)
    assert wanted.report.events == found.report.events
    for at, answer in zip(points, answers, strict=True):
        same(found, wanted, answer, answered(wanted, at))


def model(**likelihood: Any) -> fgp.GP:
    return fgp.GP(fgp.kernels.Matern(nu=2.5, lengthscale=0.5), likelihood=fgp.likelihoods.Gaussian(0.05, **likelihood))


def test_a_variance_far_below_zero_is_said_where_it_is_asked_for() -> None:
    x, y = table(40)
    for points in (1, 40):  # by few calls, and generally
        p = predicted(grown(model(), x, y, 30), x[:points], far_below_zero=-1e15)
        p.mean  # noqa: B018
        with pytest.warns(fgp.FlashGPWarning, match="a computed variance was"):
            p.variance  # noqa: B018
        assert of_kind(p.report.events, EventKind.VARIANCE_NEGATIVE)
