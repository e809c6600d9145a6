"""One row more and a few points, by few calls, are what the general way gives; and they know what is not theirs."""

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.errors import DomainError, NotPositiveDefiniteError, ShapeError
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


@pytest.mark.parametrize(
    ("outputs", "dtype", "mean"),
    [
        (None, torch.float64, "zero"),
        (1, torch.float64, "constant"),
        (3, torch.float64, "constant"),
        (None, torch.float32, "constant"),
        (3, torch.float32, "one for all"),
    ],
)
def test_outputs_dtypes_and_means(outputs: int | None, dtype: torch.dtype, mean: str) -> None:
    means = {
        "zero": fgp.means.Zero(), "one for all": fgp.means.Constant(0.7),
        "constant": fgp.means.Constant(0.7 if outputs is None else torch.linspace(0.1, 0.9, outputs), outputs),
    }  # fmt: skip
    gp = fgp.GP(1.3 * fgp.kernels.RBF(0.4), means[mean], fgp.likelihoods.Gaussian(0.1, shared=True), outputs=outputs)
    x, y = (t.to(dtype) for t in table(60, outputs=outputs))
    found = grown(gp, x, y, 55)
    assert found.report.backend == "NumPy"
    at = x[:3] + 0.05
    a = answered(found, at)
    b = answered(grown(gp, x, y, 55, general), at)
    assert a.mean.dtype == b.mean.dtype == dtype
    assert a.mean.shape == b.mean.shape
    limit = 1e4 * 60 * EPS if dtype == F64 else 4 * torch.finfo(dtype).eps
    assert torch.allclose(a.mean, b.mean, rtol=limit, atol=limit)
    assert torch.allclose(a.variance, b.variance, rtol=limit, atol=limit)


def model(**likelihood: Any) -> fgp.GP:
    return fgp.GP(fgp.kernels.Matern(nu=2.5, lengthscale=0.5), likelihood=fgp.likelihoods.Gaussian(0.05, **likelihood))


def test_predictions_before_and_after_the_weights_are_known() -> None:
    x, y = table(50)
    fresh, updated = model().condition(x, y), grown(model(), x, y, 40)
    answers = []
    for post in (fresh, updated):
        answers.append(post.predict(x[:1] + 0.1))
        post.representer_weights  # noqa: B018 - from here on means take them
        answers.append(post.predict(x[:1] + 0.1))
        answers.append(post.predict(x[:1] + 0.1))
        answers[-1].variance  # noqa: B018 - before the mean
    found = [(p.mean, p.variance) for p in answers]
    assert {p.report.backend for p in answers} == {"NumPy"}
    wanted = general(model().condition(x, y)).predict(x[:1] + 0.1)
    for mean, variance in found:
        assert torch.allclose(mean, wanted.mean, rtol=1e-11)
        assert torch.allclose(variance, wanted.variance, rtol=1e-10)


ODD: dict[str, Callable[[Tensor, Tensor], tuple[Any, Any]]] = {
    "whole numbers": lambda x, y: ((10 * x).to(torch.int64), y),
    "lists": lambda x, y: (x.tolist(), y.tolist()),
    "float32": lambda x, y: (x.float(), y),
    "half": lambda x, y: (x.half(), y),
    "a graph": lambda x, y: ((x.clone().requires_grad_() * 1.0), y.clone().requires_grad_()),
    "a parameter": lambda x, y: (torch.nn.Parameter(x.clone()), y),
    "read only": lambda x, y: (_read_only(x), y.numpy()),
    "backwards": lambda x, y: (x.numpy()[:, ::-1], y.numpy()),
    "columns": lambda x, y: (numpy.asfortranarray(numpy.concatenate([x.numpy()] * 2))[:1], y.numpy()),
    "other bytes": lambda x, y: (x.numpy().astype(">f8"), y.numpy()),
    "strided": lambda x, y: (torch.stack([x, x], -1)[..., 0], y),
    "arrays": lambda x, y: (x.numpy(), y.numpy()),
    "no rows": lambda x, y: (x[:0], y[:0]),
}


def _read_only(x: Tensor) -> Any:
    array = x.numpy().copy()
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("kind", ODD)
def test_odd_rows_are_joined_as_ever(kind: str) -> None:
    x, y = table(40)
    post = grown(model(), x[:39], y[:39], 30)
    given = ODD[kind](x[39:], y[39:])
    found, at = post.append(*given), x[:1] + 0.05
    answer = answered(found, at)
    wanted = general(post).append(*ODD[kind](x[39:], y[39:]))
    assert not found.x.requires_grad
    same(found, wanted, answer, answered(wanted, at))


def test_bad_rows_are_refused_and_nothing_changes() -> None:
    x, y = table(40)
    post = grown(model(), x[:39], y[:39], 30)
    before = post.factor.lower
    row, target = x[39:], y[39:]
    for bad in (
        lambda: post.append(torch.full_like(row, torch.nan), target),
        lambda: post.append(row, torch.full_like(target, torch.inf)),
        lambda: post.append(torch.cat([row, row], 1), target),
        lambda: post.append(row, torch.cat([target, target])),
        lambda: post.append(row[0], target),
    ):
        with pytest.raises((DomainError, ShapeError), match="must"):
            bad()
    assert torch.equal(post.factor.lower, before)
    found, wanted = post.append(row, target), grown(model(), x, y, 30)
    same(found, wanted, answered(found, x[:1] + 0.05), answered(wanted, x[:1] + 0.05))


def test_a_row_that_repeats_another_without_noise_is_refused() -> None:
    x, y = table(40)
    gp = fgp.GP(fgp.kernels.RBF(0.05), likelihood=fgp.likelihoods.Gaussian(0.0))
    post = grown(gp, x, y, 30)
    with pytest.raises(NotPositiveDefiniteError, match="new row 0") as raised:
        post.append(x[4:5], y[4:5])
    assert raised.value.indices == ((0,),)
    assert torch.isfinite(post.append(x[:1] + 0.02, y[:1]).predict(x[:1]).mean).all()


def test_a_row_too_large_to_square_is_refused() -> None:
    x, y = table(40)
    post = grown(fgp.GP(fgp.kernels.Linear(), likelihood=fgp.likelihoods.Gaussian(0.1)), x, y, 30)
    with pytest.raises(NotPositiveDefiniteError, match="too large to square"):
        post.append(torch.full((1, 2), 1e200, dtype=F64), y[:1])


def test_what_is_not_that_simple_goes_the_general_way() -> None:
    x, y = table(40)
    variances = torch.full((30,), 0.1, dtype=F64)
    own = model(row_variance=variances).condition(x[:30], y[:30])
    own = own.append(x[30:31], y[30:31], row_variance=[0.2])
    assert own.state.numpy_prior is None
    linear = fgp.GP(fgp.kernels.RBF(0.5), fgp.means.Linear(torch.ones(2, dtype=F64)))
    assert grown(linear, x, y, 30).state.numpy_prior is None
    repeated = model().condition(torch.cat([x, x]), torch.cat([y, y]))
    assert repeated.state.numpy_prior is None
    certain = model().condition(x, y, deterministic=True)
    assert certain.state.numpy_prior is None
    differentiable = model().condition(x, y, differentiable=True)
    assert differentiable.state.numpy_prior is None
    usual = grown(model(), x, y, 30)
    batch = usual.predict(x.reshape(4, 10, 2)[:, :2])
    assert batch.mean.shape == (4, 2)
    assert batch.report.backend != "NumPy"
    sure = usual.predict(x[:1], deterministic=True)
    sure.mean  # noqa: B018
    assert sure.report.backend != "NumPy"


def test_gradients_after_values_and_values_in_torch_modes() -> None:
    x, y = table(40)
    post = grown(model(), x, y, 30)
    at = (x[:1] + 0.05).requires_grad_()
    with torch.no_grad():
        p = post.predict(at)
        plain = p.mean, p.variance
    slope = torch.autograd.grad(p.mean.sum() + p.variance.sum(), at)[0]
    assert bool((slope != 0).all())
    assert torch.allclose(p.mean.detach(), plain[0], rtol=1e-11)
    with torch.inference_mode():
        inside = post.predict(at).mean
        one = post.append(x[:1] + 0.3, y[:1])
    assert torch.allclose(inside, plain[0], rtol=1e-11)
    assert not one.x.is_inference()
    with torch.autocast("cpu"):
        cast = post.predict(at.detach())
        assert torch.allclose(cast.mean, plain[0], rtol=1e-11)
        assert post.append(x[:1] + 0.3, y[:1]).factor.lower.dtype == F64


def test_posteriors_and_predictions_that_have_been_asked_are_pickled_and_copied() -> None:
    x, y = table(40)
    post = grown(model(), x, y, 30)
    p = answered(post, x[:1] + 0.05)
    for again in (lambda thing: pickle.loads(pickle.dumps(thing)), copy.deepcopy):
        other = again(post)
        assert torch.equal(again(p).variance, p.variance)
        assert torch.allclose(answered(other, x[:1] + 0.05).mean, p.mean, rtol=1e-12)
        assert other.append(x[:1] + 0.3, y[:1]).count == 41


def test_a_lazy_negation_is_taken_as_it_is() -> None:
    x, y = table(40)
    post = grown(model(), x[:39], y[:39], 30)
    lazy = torch.imag(torch.conj(torch.complex(x, -x)))
    assert lazy.is_neg()
    assert torch.allclose(post.predict(lazy[:1]).mean, post.predict(x[:1]).mean, rtol=1e-12)
    assert torch.equal(post.append(lazy[39:], y[39:]).x, x)


def test_a_variance_far_below_zero_is_said_where_it_is_asked_for() -> None:
    x, y = table(40)
    for points in (1, 40):  # by few calls, and generally
        p = predicted(grown(model(), x, y, 30), x[:points], far_below_zero=-1e15)
        p.mean  # noqa: B018
        with pytest.warns(fgp.FlashGPWarning, match="a computed variance was"):
            p.variance  # noqa: B018
        assert of_kind(p.report.events, EventKind.VARIANCE_NEGATIVE)


def test_rows_without_anything_in_common_are_no_drift() -> None:
    # 0 of 0 entries off, M-113: it was taken for drift, and every fourth row made the factor anew.
    codes = torch.arange(40, dtype=F64)[:, None]
    y = torch.linspace(-1.0, 1.0, 40, dtype=F64)
    gp = fgp.GP(fgp.kernels.Coregionalization(40, 1, active_dims=0), likelihood=fgp.likelihoods.Gaussian(0.1))
    with torch.no_grad():
        gp.kernel.factor.value = torch.zeros(40, 1, dtype=F64)
    for post in (grown(gp, codes, y, 10), gp.condition(codes[:10], y[:10]).append(codes[10:20], y[10:20])):
        assert post.state.online.refactorised == 0


def test_rows_far_from_the_row_that_is_looked_at_are_no_drift() -> None:
    # The entries of L^-1 k are so small there that their squares are zero.
    t = 0.15 * torch.arange(240, dtype=F64)[:, None]
    gp = fgp.GP(fgp.kernels.RBF(lengthscale=1.0), likelihood=fgp.likelihoods.Gaussian(0.01))
    post = grown(gp, t, t[:, 0].sin(), 207)
    assert post.state.online.refactorised == 0


def test_drift_of_a_small_output_is_seen_beside_a_large_one() -> None:
    x, y = table(140, outputs=2)
    y[:, 1] *= 1e-12
    gp = fgp.GP(fgp.kernels.RBF(lengthscale=0.4), likelihood=fgp.likelihoods.Gaussian(0.05, shared=True), outputs=2)
    post = gp.condition(x[:100], y[:100]).append(x[100:101], y[100:101])
    damaged = post.state.whitened.clone()
    damaged[:, 1] *= 1.05
    post = fgp.Posterior(replace(post.state, whitened=damaged))
    for i in range(101, 140):
        post = post.append(x[i : i + 1], y[i : i + 1])
    assert post.state.online.refactorised == 1
    wanted = gp.condition(x, y).predict(x[:5] + 0.05).mean
    assert torch.allclose(post.predict(x[:5] + 0.05).mean, wanted, rtol=1e-9, atol=0.0)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["backwards", "read only"])
def test_odd_arrays_of_kernels_that_only_torch_computes(kind: str) -> None:
    x, y = table(40)
    gp = fgp.GP(fgp.kernels.Periodic(), likelihood=fgp.likelihoods.Gaussian(0.1))
    post = gp.condition(x[:39], y[:39]).append(x[38:39] + 0.1, y[38:39])
    row = {"backwards": x.numpy()[::-1][:1, ::-1], "read only": _read_only(x[39:])}[kind]
    found, wanted = post.append(row, y.numpy()[39:]), post.append(torch.tensor(row.copy()), y[39:])
    assert torch.equal(found.x, wanted.x)
    assert torch.equal(found.factor.lower, wanted.factor.lower)


def test_what_is_no_number_is_drift() -> None:
    x, y = table(60)
    post = model().condition(x[:40], y[:40]).append(x[40:41], y[40:41])
    damaged = post.state.whitened.clone()
    damaged[0] = torch.nan
    post = fgp.Posterior(replace(post.state, whitened=damaged))
    for i in range(41, 60):
        post = post.append(x[i : i + 1], y[i : i + 1])
    assert post.state.online.refactorised == 1
    wanted = model().condition(x, y).predict(x[:5] + 0.05).mean
    assert torch.allclose(post.predict(x[:5] + 0.05).mean, wanted, rtol=1e-9, atol=1e-9)
