"""Rows join a full-scale posterior: appending equals conditioning with the same layout, eq. (M-176)."""

import copy
import dataclasses
import pickle
from pathlib import Path

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.errors import DomainError, ModelFileError, ShapeError
from flashgp.foundations.events import EventKind, of_kind
from flashgp.foundations.workspace import Workspace
from flashgp.inference.full_scale.factor import Basis, FullScaleFactor
from flashgp.solvers.preconditioners.near_rows import (
    blocks_of_near_rows,
    nearest_earlier_rows,
    nearest_of_all_earlier_rows,
    nearest_rows,
)
from flashgp.solvers.settings import FullScaleSettings
from inference.full_scale.test_posterior import approximate, close, table
from inference.plain_gp import data, model

k, lik = fgp.kernels, fgp.likelihoods


def at_once(post: fgp.Posterior) -> fgp.Posterior:
    """All rows conditioned at once with the layout that appending has made, by what makes every state."""
    state, prior = post.state, post.state.prior
    replicates = state.replicates
    of_rows = prior if replicates is None else prior.with_likelihood(replicates.likelihood)
    x, y = (state.x, state.y) if replicates is None else (replicates.x, replicates.y)
    with torch.no_grad():
        residual, noise, rows, theta = of_rows.likelihood_inputs(x, y)
        function = Basis.of(prior.kernel.form, theta, prior.kernel.rows(state.layout.inducing), Workspace())
        factor = FullScaleFactor.of(function, rows, state.layout.near, residual, noise)
        sums = factor.sums()
    made = dataclasses.replace(
        state, rows=rows, residual=residual, noise=noise, theta=tuple(theta), function=function, sums=sums, tables=None
    )
    return fgp.Posterior(made)


def agree(found: fgp.Posterior, wanted: fgp.Posterior, at: Tensor, off: float = 1e-9) -> None:
    p, q = found.predict(at), wanted.predict(at)
    assert close(p.mean, q.mean, off)
    assert close(p.variance, q.variance, off)
    assert close(p.covariance(), q.covariance(), off)
    assert close(found.log_marginal_likelihood(), wanted.log_marginal_likelihood(), off)
    assert close(found.representer_weights, wanted.representer_weights, off)
    for name in ("mean", "variance", "log_prob"):
        assert close(getattr(found.leave_one_out(), name), getattr(wanted.leave_one_out(), name), off)
    assert close(found.paths(3, seed=0)(at), wanted.paths(3, seed=0)(at), off)
    assert found.lost.nats == pytest.approx(wanted.lost.nats, rel=1e-6, abs=1e-12)


def every_row_after_its_neighbours(post: fgp.Posterior) -> None:
    near = post.state.layout.near
    place = torch.empty(post.distinct, dtype=torch.int64)
    inside = near.blocks >= 0
    place[near.blocks[inside]] = torch.arange(len(near.blocks)).unsqueeze(1).expand_as(near.blocks)[inside]
    assert torch.equal(near.blocks[inside].sort().values, torch.arange(post.distinct))
    for number, row in enumerate(near.neighbours):
        row = row[row >= 0]
        assert len(row.unique()) == len(row)
        assert bool((place[row] < number).all())


@pytest.mark.parametrize("sizes", [(40,), (1,) * 40, (3, 0, 30, 7), (240,)])
@pytest.mark.parametrize("inducing", [0, 10])
def test_appending_is_conditioning_with_the_same_layout(sizes: tuple[int, ...], inducing: int) -> None:
    x, y, t = table(100 + sum(sizes))
    before = approximate(model(), x[:100], y[:100], inducing, 12)
    found, mean, likelihood = before, before.predict(t).mean, before.log_marginal_likelihood()
    for part in zip(x[100:].split(list(sizes)), y[100:].split(list(sizes)), strict=True):
        found = found.append(*part)
    assert found.count == len(x)
    assert torch.equal(found.x, x)
    assert torch.equal(found.y, y)
    every_row_after_its_neighbours(found)
    agree(found, at_once(found), t)
    assert (before.count, before.log_marginal_likelihood()) == (100, likelihood)
    assert torch.equal(before.predict(t).mean, mean)
    (event,) = of_kind(found.report.events, EventKind.UPDATED)
    assert event.fields["appended"] == sum(sizes)
    assert found.append(x[:0], y[:0]) is found


@pytest.mark.parametrize("inducing", [0, 8])
def test_with_every_row_as_neighbour_it_is_the_exact_append(inducing: int) -> None:
    x, y, t = table(80)
    exact, found = model().condition(x[:40], y[:40]), approximate(model(), x[:40], y[:40], inducing, 40)
    for place in range(40, 80, 5):
        part = slice(place, place + 5)
        exact, found = exact.append(x[part], y[part]), found.append(x[part], y[part])
    p, q = exact.predict(t), found.predict(t)
    assert close(q.mean, p.mean)
    assert close(q.variance, p.variance)
    assert close(q.covariance(), p.covariance())
    assert close(found.log_marginal_likelihood(), exact.log_marginal_likelihood())
    assert close(found.leave_one_out().log_prob, exact.leave_one_out().log_prob)
    assert found.lost.nats == 0.0


def test_hundreds_of_rows_one_by_one() -> None:
    """Stay right to rounding: the factor of M is updated without subtraction."""
    x, y, t = table(400)
    found = approximate(model(), x[:100], y[:100], 20, 16)
    for place in range(100, 400):
        found = found.append(x[place : place + 1], y[place : place + 1])
    agree(found, at_once(found), t)
    whole = approximate(model(), x, y, 20, 16)
    exact = model().condition(x, y)
    error, usual = ((one.predict(t).mean - exact.predict(t).mean).abs().max() for one in (found, whole))
    assert error < 3 * usual + 1e-3
    assert found.lost.nats < 3 * whole.lost.nats + 0.01


def test_two_posteriors_that_go_on_from_one_do_not_see_each_other() -> None:
    x, y, t = table(130)
    parent = approximate(model(), x[:100], y[:100], 10, 12).append(x[100:101], y[100:101])
    one = parent.append(x[101:103], y[101:103])
    two = parent.append(x[110:130], y[110:130])
    three = one.append(x[120:125], y[120:125])
    for found, rows in ((one, [*range(103)]), (two, [*range(101), *range(110, 130)]),
                        (three, [*range(103), *range(120, 125)])):  # fmt: skip
        assert torch.equal(found.x, x[rows])
        agree(found, at_once(found), t)


def test_outputs_float32_and_whole_numbers() -> None:
    x, y, t = table(60)
    both = torch.stack([y, y.exp()], 1)
    gp = fgp.GP(model().kernel, likelihood=lik.Gaussian(0.07, shared=True), outputs=2)
    found = approximate(gp, x[:40], both[:40], 5, 12).append(x[40:], both[40:])
    agree(found, at_once(found), t)
    single = approximate(model(), x[:40].float(), y[:40].float(), 5, 12).append(x[40:].float(), y[40:].float())
    assert single.x.dtype == single.predict(t.float()).mean.dtype == torch.float32
    agree(single, at_once(single), t.float(), 1e-6)
    assert single.append([[1, 2]], [3]).x[-1].tolist() == [1.0, 2.0]


def test_rows_with_noise_of_their_own_and_rows_that_repeat() -> None:
    x, y, t = table(60)
    x[30:40] = x[:10]
    noise = lik.Gaussian(0.07, row_variance=torch.linspace(0.0, 0.2, 40))
    given = {"row_variance": torch.linspace(0.3, 0.4, 20), "row_weight": torch.full((20,), 2.0)}
    for gp, options in ((model(), {}), (model(), {"row_weight": torch.full((20,), 3.0)}),
                        (fgp.GP(model().kernel, likelihood=noise), given)):  # fmt: skip
        before, exact = approximate(gp, x[:40], y[:40], 5, 40), gp.condition(x[:40], y[:40])
        assert before.distinct == (30 if options != given else 40)
        x[50] = x[3]
        found, exact = (post.append(x[40:], y[40:], **options) for post in (before, exact))
        agree(found, at_once(found), t)
        assert close(found.predict(t).mean, exact.predict(t).mean)
        assert close(found.leave_one_out().mean, exact.leave_one_out().mean)
        assert close(found.log_marginal_likelihood(), exact.log_marginal_likelihood())
        assert found.distinct == exact.distinct


def test_a_kernel_of_categories_and_no_distance() -> None:
    x, y = data(50)
    x[:, 1] = (x[:, 1] > 0).double()
    gp = fgp.GP(k.Linear(active_dims=[0]) + k.Categorical(active_dims=[1]) * k.Matern(active_dims=[0]))
    found = approximate(gp, x[:30], y[:30], 5, 9).append(x[30:], y[30:])
    agree(found, at_once(found), x[:5])


@pytest.mark.parametrize("repeats", [False, True])
def test_files_and_pickles_give_back_every_answer(tmp_path: Path, *, repeats: bool) -> None:
    x, y, t = table(70)
    if repeats:
        x[40:50] = x[:10]
    found = approximate(model(), x[:50], y[:50], 10, 12).append(x[50:51], y[50:51]).append(x[51:], y[51:])
    fgp.save(found, tmp_path / "m.safetensors")
    loaded = fgp.load(tmp_path / "m.safetensors")  # whose A is made in one piece, which rounds differently
    assert loaded.state.layout.appended == found.state.layout.appended == 20
    for again in (loaded, pickle.loads(pickle.dumps(found)), copy.deepcopy(found)):
        agree(again, found, t, 1e-11)
        assert str(again.report) == str(found.report)
        assert close(again.append(x[:3], y[:3]).predict(t).mean, found.append(x[:3], y[:3]).predict(t).mean, 1e-12)


def test_from_few_rows_neighbours_grow_to_those_of_many() -> None:
    x, y, t = table(200)
    found = approximate(model(), x[:5], y[:5], "auto", "auto").append(x[5:], y[5:])
    assert (found.state.sizes.neighbours, found.state.sizes.predicting) == (96, 200)
    (event,) = of_kind(found.report.events, EventKind.FULL_SCALE)
    assert (event.fields["neighbours"], event.fields["predicting"]) == (96, 200)
    agree(found, at_once(found), t)


def test_a_file_whose_appended_blocks_are_others_is_refused(tmp_path: Path) -> None:
    x, y, _ = table(40)
    found = approximate(model(), x[:30], y[:30], 5, 9).append(x[30:], y[30:])
    near = found.state.layout.near
    object.__setattr__(near, "blocks", near.blocks.roll(1, 0))
    fgp.save(found, tmp_path / "m.safetensors")
    with pytest.raises(ModelFileError, match="blocks"):
        fgp.load(tmp_path / "m.safetensors")


def test_rows_that_do_not_fit_are_refused() -> None:
    x, y, _ = table(40)
    post = approximate(model(), x, y, 5, 9)
    with pytest.raises(ShapeError, match="`x`"):
        post.append(x[:, :1], y)
    with pytest.raises(ShapeError, match="`y`"):
        post.append(x, y[:3])
    with pytest.raises(DomainError, match="`y`"):
        post.append(x, y * torch.inf)
    with pytest.raises(ShapeError, match="`row_variance`"):
        post.append(x, y, row_variance=y[:2].square())
    with pytest.raises(DomainError, match="`append` needs an approximate posterior that has rows"):
        approximate(model(), x[:0], y[:0], "auto", "auto").append(x, y)
    assert post.count == 40


def test_earlier_rows_of_all_are_those_of_near_blocks() -> None:
    x = data(400)[0]
    blocks = blocks_of_near_rows(x, 16, 0)
    asked = torch.tensor([0, 1, 5, 20, 24])
    settings = FullScaleSettings(16, 20, candidates=10_000)
    wanted = nearest_earlier_rows(x, blocks, settings, of=asked)
    assert torch.equal(nearest_of_all_earlier_rows(x, blocks, asked, 20), wanted)
    assert torch.equal(nearest_of_all_earlier_rows(x, blocks, asked, 20, numbers=1), wanted)


def test_rows_behind_the_blocks_are_found_too() -> None:
    x, t = data(3000)[0], data(20, seed=1)[0]
    blocks = blocks_of_near_rows(x[:2500], 32, 0)
    assert torch.equal(nearest_rows(t, x, blocks, 16), nearest_rows(t, x, blocks, 16, candidates=1500))


@pytest.mark.parametrize("inducing", [0, 10])
@pytest.mark.parametrize("count", [1, 30])
def test_rows_too_large_to_square_are_refused(count: int, inducing: int) -> None:
    """Not a posterior of NaN; the one before goes on."""
    x, y, t = table(60)
    before = approximate(model(), x, y, inducing, 12)
    mean = before.append(x[:3] + 0.1, y[:3]).predict(t).mean
    with pytest.raises(DomainError, match=r"`x` .* must have a square"):
        before.append(x[:count] * 1e200, y[:count])
    assert torch.equal(before.append(x[:3] + 0.1, y[:3]).predict(t).mean, mean)
    with pytest.raises(DomainError, match=r"`x` .* must have a square"):
        approximate(model(), x * 1e200, y, inducing, 12)


def test_covariances_that_are_no_numbers_are_refused() -> None:
    """Of a function of the caller's own, which overflows far out."""
    x, y, _ = table(60)

    def own(a: Tensor, b: Tensor, scale: Tensor) -> Tensor:
        return torch.exp(-((a - b) / scale).square().sum()) * (1.0 + a.square().sum() * b.square().sum())

    gp = fgp.GP(k.Custom(own, scale=1.0, columns=x.shape[1]), likelihood=lik.Gaussian(0.1))
    post = approximate(gp, x, y, 5, 6)
    with pytest.raises(fgp.NotPositiveDefiniteError, match="with the new rows must be finite"):
        post.append(x[:1] * 1e100, y[:1])


@pytest.mark.parametrize("kind", ["full_scale", "sparse"])
def test_points_without_an_answer_are_refused(kind: str) -> None:
    x, y, t = table(60)
    post = model().condition(x, y, approximation=kind, inducing=9)
    for name in ("mean", "variance"):
        with pytest.raises(DomainError, match="`x_test` must be points at which covariances are float64 numbers"):
            getattr(post.predict(torch.cat([t, t[:1] * 1e200])), name)


@pytest.mark.parametrize("kind", ["full_scale", "sparse"])
def test_points_of_another_dtype_are_kept_by_a_file(kind: str, tmp_path: Path) -> None:
    x, y, t = table(60)
    post = model().condition(x, y, approximation=kind, inducing=x[:9].float())
    fgp.save(post, tmp_path / "model.safetensors")
    again = fgp.load(tmp_path / "model.safetensors")
    assert close(again.predict(t).mean, post.predict(t).mean, 1e-12)
