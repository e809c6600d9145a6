"""Learning online equals conditioning on the same rows, eqs. (M-111) to (M-113); older posteriors stay as they were."""

import copy
import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.errors import DomainError, NotPositiveDefiniteError, ShapeError
from flashgp.likelihoods.gaussian import repeated as repeated_rows
from flashgp.solvers.direct import strided
from flashgp.solvers.direct.rotations import Rotations, rotations
from inference.plain_gp import data, model, relative

F64 = torch.float64
Posterior = Any


def _texture(a: Tensor, b: Tensor, scale: Tensor) -> Tensor:
    return torch.minimum(a, b).sum() * scale + torch.exp(-(a - b).square().sum())


def coded(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    x, y = data(n, 2, seed)
    return torch.cat([x.abs(), torch.arange(n, dtype=F64)[:, None] % 3], 1), y


KERNELS: dict[str, Callable[[], Any]] = {
    "matern": lambda: 1.7 * fgp.kernels.Matern(nu=2.5, lengthscale=torch.tensor([0.7, 1.9, 3.0])),
    "sum": lambda: fgp.kernels.RBF(0.8, active_dims=[0, 1]) * fgp.kernels.Periodic(period=2.0, active_dims=[0])
    + fgp.kernels.Linear(active_dims=[1]) + 0.5,
    "categories": lambda: fgp.kernels.RBF(active_dims=[0, 1]) * fgp.kernels.Coregionalization(3, 2, active_dims=2)
    + fgp.kernels.Categorical(0.7, active_dims=2),
    "custom": lambda: fgp.kernels.Custom(_texture, scale=0.3),
    "constant": lambda: fgp.kernels.Constant(1.3),
}  # fmt: skip


def agree(found: Posterior, wanted: Posterior, tolerance: float = 1e-9) -> None:
    """Prediction, likelihood and leave-one-out of two posteriors of the same rows in any order of computing."""
    assert torch.equal(found.x, wanted.x)
    assert torch.equal(found.y, wanted.y)
    at = wanted.x[:1] + torch.linspace(0.05, 0.9, 7, dtype=wanted.x.dtype)[:, None]
    if at.shape[-1] == 3:
        at[:, 2] = wanted.x[0, 2]
    p, q = found.predict(at), wanted.predict(at)
    assert relative(p.mean, q.mean) < tolerance
    assert float((p.variance - q.variance).abs().max()) < tolerance * float(q.observation_variance.max())
    assert float(found.log_marginal_likelihood() - wanted.log_marginal_likelihood()) == pytest.approx(
        0.0, abs=tolerance * max(1.0, abs(float(wanted.log_marginal_likelihood())))
    )
    a, b = found.leave_one_out(), wanted.leave_one_out()
    for name in ("mean", "variance", "log_prob"):
        assert relative(getattr(a, name), getattr(b, name)) < 10 * tolerance


@pytest.mark.parametrize("kind", KERNELS)
def test_every_kernel_appends_and_drops(kind: str) -> None:
    x, y = coded(60)
    gp = fgp.GP(KERNELS[kind](), fgp.means.Linear(torch.tensor([0.3, -0.2, 0.1], dtype=F64), 0.4))
    post = gp.condition(x[:30], y[:30])
    for start, stop in ((30, 31), (31, 32), (32, 40), (40, 60)):
        post = post.append(x[start:stop], y[start:stop])
    agree(post, gp.condition(x, y))
    kept = [i for i in range(60) if i not in (0, 17, 18, 45, 59)]
    agree(post.drop([45, 0, 17, 59, 18]), gp.condition(x[kept], y[kept]))


def test_one_row_at_a_time_is_all_rows_at_once() -> None:
    # Online equals batch, M-111.
    x, y = data(200)
    gp = model()
    post = gp.condition(x[:1], y[:1])
    for i in range(1, 200):
        post = post.append(x[i : i + 1], y[i : i + 1])
    agree(post, gp.condition(x, y), 1e-10)
    assert post.state.online.appended == 199
    assert post.state.online.refactorised == 0
    assert post.report.events == [post.state.online.event]
    assert post.state.online.event.fields["appended"] == 199
    assert post.report.relative_residual < 1e-10


@pytest.mark.parametrize("gone", [[0], [79], [3, 2, 1], list(range(0, 80, 2)), list(range(5, 60))], ids=len)
def test_drop_is_the_rest(gone: list[int]) -> None:
    # M-112.
    x, y = data(80)
    kept = [i for i in range(80) if i not in gone]
    agree(model().condition(x, y).drop(gone), model().condition(x[kept], y[kept]), 1e-10)


def test_slide_and_replace() -> None:
    x, y = data(90)
    gp, post = model(), model().condition(x[:60], y[:60])
    agree(post.slide(x[60:63], y[60:63]), gp.condition(x[3:63], y[3:63]), 1e-10)
    agree(post.slide(x[:60], y[:60]), post)
    rows = [i for i in range(60) if i not in (7, 20)] + [60, 61]
    agree(post.replace([20, 7], x[60:62], y[60:62]), gp.condition(x[rows], y[rows]), 1e-10)


@pytest.mark.parametrize("deterministic", [False, True])
def test_random_sequences_equal_a_fresh_posterior_and_leave_the_older_ones(deterministic: bool) -> None:
    # By rotations where there is a compiler, and by reflections.
    rotations.wait()
    x, y = data(500, 3)
    gp = fgp.GP(1.5 * fgp.kernels.Matern(nu=1.5, lengthscale=torch.tensor([0.8, 1.0, 1.5])), fgp.means.Constant(0.2))
    generator = torch.Generator().manual_seed(5)
    at = x[-5:]

    def number(least: int, most: int) -> int:
        return int(torch.randint(least, most + 1, (), generator=generator))

    rows, following = list(range(40)), 40
    post, older = gp.condition(x[:40], y[:40], deterministic=deterministic), []
    for step in range(120):
        if step % 20 == 0:
            older.append((post, post.predict(at).mean, post.predict(at).variance))
        k = number(1, 4)
        new = list(range(following, following + k))
        kind = number(0, 3)
        if kind == 0:
            post, rows = post.append(x[new], y[new]), rows + new
        elif kind == 1:
            post, rows = post.slide(x[new], y[new]), rows[k:] + new
        else:
            gone = torch.randperm(len(rows), generator=generator)[:k].tolist()
            left = [row for i, row in enumerate(rows) if i not in gone]
            if kind == 2 and len(rows) > 30:
                post, rows = post.drop(gone), left
            else:
                post, rows = post.replace(gone, x[new], y[new]), left + new
        following += k
    agree(post, gp.condition(x[rows], y[rows]), 1e-8)
    for before, mean, variance in older:
        p = before.predict(at)
        assert torch.equal(p.mean, mean)
        assert torch.equal(p.variance, variance)


def test_several_outputs() -> None:
    x, y = data(50)
    targets = torch.stack([y, y.square(), -y], -1)
    gp = fgp.GP(fgp.kernels.RBF(), fgp.means.Constant(torch.tensor([0.1, 0.2, 0.3]), outputs=3), outputs=3)
    post = gp.condition(x[:20], targets[:20]).append(x[20:], targets[20:]).drop([4])
    kept = [i for i in range(50) if i != 4]
    agree(post, gp.condition(x[kept], targets[kept]))


def test_own_mean_and_warped_features() -> None:
    x, y = data(40)
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh()).double()
    gp = fgp.GP(fgp.kernels.Warped(net, fgp.kernels.RBF()), torch.nn.Linear(2, 1).double())
    agree(gp.condition(x[:30], y[:30]).append(x[30:], y[30:]).drop([0]), gp.condition(x[1:], y[1:]))


@pytest.mark.parametrize("noise", [0.1, None])
def test_noise_of_each_row(noise: float | None) -> None:
    x, y = data(30)
    variance = torch.linspace(0.1, 0.5, 30, dtype=F64)
    weight = torch.linspace(1.0, 3.0, 30, dtype=F64)
    relative = weight / weight[:20].log().mean().exp()  # to those of the rows that were there first, (M-251)

    def given(rows: Any) -> dict[str, Tensor]:
        return {"row_variance": variance[rows], **({} if noise is None else {"row_weight": weight[rows]})}

    def gp(rows: Any) -> fgp.GP:
        own = fgp.likelihoods.Gaussian(noise).with_rows(variance[rows], None if noise is None else relative[rows])
        return fgp.GP(fgp.kernels.RBF(), likelihood=own)

    first = fgp.likelihoods.Gaussian(noise, **given(slice(20)))
    post = fgp.GP(fgp.kernels.RBF(), likelihood=first).condition(x[:20], y[:20])
    post = post.append(x[20:], y[20:], **given(slice(20, None)))
    agree(post, gp(slice(None)).condition(x, y))
    kept = [i for i in range(2, 30) if i != 9] + [0]
    slid = post.slide(x[:1], y[:1], **given(slice(1)))
    agree(slid.drop([8]).drop([0]), gp(kept[:8] and kept).condition(x[kept], y[kept]))
    with pytest.raises(DomainError, match="`row_variance` must be given for the new rows"):
        post.append(x[:1], y[:1])
    of_two = "`row_weight` must have one entry per new row" if noise else "`row_weight` must be None without a noise"
    with pytest.raises(ShapeError if noise else DomainError, match=of_two):
        post.append(x[:1], y[:1], row_variance=variance[:1], row_weight=weight[:2])
    plain = fgp.GP(fgp.kernels.RBF()).condition(x[:20], y[:20])
    own = fgp.likelihoods.Gaussian(0.1, row_variance=torch.cat([torch.zeros(20), variance[:10]]))
    agree(
        plain.append(x[20:], y[20:], row_variance=variance[:10]),
        fgp.GP(fgp.kernels.RBF(), likelihood=own).condition(x, y),
    )


def test_weights_without_variances_are_those_of_a_typical_row_by_default() -> None:
    x, y = data(12)
    weights = torch.tensor([2.0, 4.0, 0.125] * 3, dtype=F64)  # of geometric mean 1, (M-251)

    def gp(*weight: Tensor) -> fgp.GP:
        return fgp.GP(fgp.kernels.RBF(), likelihood=fgp.likelihoods.Gaussian(0.2, row_weight=torch.cat(weight)))

    wanted = gp(weights, torch.ones(3, dtype=F64)).condition(x, y)
    agree(gp(10.0 * weights).condition(x[:9], y[:9]).append(x[9:], y[9:]), wanted)


# -- rows of equal x ----------------------------------------------------------------------------------------------
def repeated() -> tuple[Tensor, Tensor]:
    x, y = data(30)
    x[20:25], x[25:28] = x[3], x[7]
    return x, y


def test_a_row_that_repeats_is_a_row_of_its_own() -> None:
    x, y = repeated()
    gp = model()
    post = gp.condition(x[:20], y[:20]).append(x[20:], y[20:])
    assert post.replicates is None
    agree(post, gp.condition(x, y))


@pytest.mark.parametrize("gone", [[3], [21, 22], [3, 20, 21, 22, 23, 24], [0, 7, 29], [25, 26, 27]], ids=str)
def test_members_of_a_joined_row_leave(gone: list[int]) -> None:
    # The noise of the others' mean grows, M-112; M-86 to M-88.
    x, y = repeated()
    gp = model()
    post = gp.condition(x, y)
    assert post.distinct == 22
    kept = [i for i in range(30) if i not in gone]
    agree(post.drop(gone), gp.condition(x[kept], y[kept]))
    extra_x, extra_y = torch.cat([x[3:4], x[:1] + 5.0]), y[:2]
    longer = gp.condition(torch.cat([x[kept], extra_x]), torch.cat([y[kept], extra_y]))
    agree(post.replace(gone[:2], extra_x, extra_y).drop([i - sum(g < i for g in gone[:2]) for i in gone[2:]])
          if len(gone) > 1 else post.drop(gone).append(extra_x, extra_y), longer)  # fmt: skip


@pytest.mark.parametrize("noise", [0.1, 0.0])
def test_joined_rows_in_the_order_of_time(noise: float) -> None:
    # Distinct rows leave in their order; where one of several joined rows leaves, the mean of the others changes.
    place = torch.tensor([i - i // 5 for i in range(50)], dtype=F64)  # every fifth row repeats the one before it
    x, y = place[:, None] / 4, torch.sin(place)
    y = y + (0.1 * torch.randn(50, dtype=F64, generator=torch.Generator().manual_seed(0)) if noise else 0.0)
    gp = fgp.GP(fgp.kernels.Matern(nu=1.5), likelihood=fgp.likelihoods.Gaussian(noise))
    post, at = gp.condition(x[:30], y[:30]), x[30:34] + 0.1
    for i in range(12):
        post = post.drop([0])
        batch = gp.condition(x[i + 1 : 30], y[i + 1 : 30])
        for name in ("mean", "variance"):
            assert relative(getattr(post.predict(at), name), getattr(batch.predict(at), name)) < 1e-9


def test_rows_that_stand_for_several() -> None:
    # What GPRegressor makes of sample_weight, M-87.
    x, y = repeated()
    weights = torch.linspace(1.0, 2.0, 30, dtype=F64)
    gp = fgp.GP(fgp.kernels.RBF(), likelihood=fgp.likelihoods.Gaussian(0.2))

    def weighted(rows: list[int]) -> fgp.GP:
        return fgp.GP(gp.kernel, gp.mean, repeated_rows(gp.likelihood, weights[rows]))

    post = weighted(list(range(30))).condition(x, y)
    kept = [i for i in range(30) if i not in (3, 12)]
    agree(post.drop([3, 12]), weighted(kept).condition(x[kept], y[kept]))
    head = weighted(list(range(25))).condition(x[:25], y[:25])
    agree(head.append(x[25:], y[25:], row_weight=weights[25:]), _with_ones_beyond(weighted, x, y))


def _with_ones_beyond(weighted: Callable[[list[int]], fgp.GP], x: Tensor, y: Tensor) -> Posterior:
    """New rows are one observation each, of the weight that they are given: nothing stands beyond the matrix."""
    gp = weighted(list(range(30)))
    for name in ("excess", "offset", "scatter"):
        getattr(gp.likelihood, name)[25:] = 0.0
    return gp.condition(x, y)


# -- values -------------------------------------------------------------------------------------------------------
def test_children_of_one_posterior_do_not_see_each_other() -> None:
    x, y = data(40)
    gp, base = model(), model().condition(x[:30], y[:30]).append(x[30:31], y[30:31])
    children = [base.append(x[i : i + 1], y[i : i + 1]) for i in range(31, 40)]
    for i, child in zip(range(31, 40), children, strict=True):
        rows = [*range(31), i]
        agree(child, gp.condition(x[rows], y[rows]), 1e-10)
    agree(base, gp.condition(x[:31], y[:31]), 1e-10)


def test_threads_that_update_one_posterior_each_get_their_own() -> None:
    x, y = data(140)
    gp, base = model(), model().condition(x[:100], y[:100]).append(x[100:101], y[100:101])
    found: dict[int, Posterior] = {}
    ready = threading.Barrier(8)

    def work(worker: int) -> None:
        ready.wait()
        post = base
        for i in range(101 + worker, 140, 8):
            post = post.append(x[i : i + 1], y[i : i + 1])
        found[worker] = post

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for worker, post in found.items():
        rows = [*range(101), *range(101 + worker, 140, 8)]
        agree(post, gp.condition(x[rows], y[rows]), 1e-10)


def test_copies_go_on_alone(tmp_path: Path) -> None:
    x, y = data(40)
    gp, post = model(), model().condition(x[:30], y[:30]).append(x[30:31], y[30:31])
    fgp.save(post, tmp_path / "model.safetensors")
    loaded = fgp.load(tmp_path / "model.safetensors")
    p, q = loaded.predict(x[-3:]), post.predict(x[-3:])
    assert relative(p.mean, q.mean) < 1e-15
    assert relative(p.variance, q.variance) < 1e-13
    for again in (loaded, copy.deepcopy(post)):
        agree(
            again.append(x[31:], y[31:]).drop([0, 33]),
            gp.condition(*(t[[*range(1, 33), *range(34, 40)]] for t in (x, y))),
        )


def test_gradients_draws_and_paths_of_an_updated_posterior() -> None:
    x, y = data(40)
    online, batch = model().condition(x[:30], y[:30]).append(x[30:], y[30:]), model().condition(x, y)
    gradients = []
    for post in (online, batch):
        at = torch.full((2, 3, 2), 0.4, dtype=F64) + torch.arange(6, dtype=F64).reshape(2, 3, 1) / 7
        at.requires_grad_()
        p = post.predict(at)
        (first,) = torch.autograd.grad(p.mean.sum() + p.variance.square().sum(), at, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), at)
        gradients.append(torch.cat([first.detach(), second]))
    assert relative(*gradients) < 1e-9
    at = x[:4] + 0.1
    assert relative(online.predict(at).sample(3, seed=1), batch.predict(at).sample(3, seed=1)) < 1e-7
    assert relative(online.paths(3, seed=1)(at), batch.paths(3, seed=1)(at)) < 1e-9
    assert relative(online.predict(at).covariance(), batch.predict(at).covariance()) < 1e-9


def test_nothing_left_is_the_prior_and_it_learns_again() -> None:
    x, y = data(20)
    gp, post = model(), model().condition(x, y)
    empty = post.drop(range(20))
    assert empty.count == 0
    assert relative(empty.predict(x).variance, gp.condition(x[:0], y[:0]).predict(x).variance) == 0.0
    agree(empty.append(x, y), post)
    assert empty.append(x, y).state.online.dropped == 20
    assert post.drop([]) is post
    assert post.append(x[:0], y[:0]) is post


@pytest.mark.parametrize("k", [1, 2])
def test_drift_is_seen_and_the_factor_made_anew(k: int) -> None:
    # M-113: within as many updates as it takes to look at every row.
    x, y = data(100)
    gp, post = model(), model().condition(x[:40], y[:40]).append(x[40:41], y[40:41])
    post.factor._panels[0].rows[20, 3] += 1e-3
    post.state.cache.weights = None
    for i in range(41, 41 + 40 // k * k, k):
        post = post.append(x[i : i + k], y[i : i + k])
    x, y = x[: post.count], y[: post.count]
    assert post.state.online.refactorised == 1
    assert post.report.events[-1].fields["refactorised"] == 1
    agree(post, gp.condition(x, y), 1e-10)


def test_deterministic_ones_repeat_to_the_bit() -> None:
    # Whether or not the rotations are compiled.
    x, y = data(60)
    rotations.wait()
    posts = []
    for loops in (Rotations(), rotations):
        with strided.using_routines(loops):
            posts.append(model().condition(x[:50], y[:50], deterministic=True).slide(x[50:], y[50:]))
    assert torch.equal(posts[0].representer_weights, posts[1].representer_weights)


def test_dtypes_are_those_of_the_joined_table() -> None:
    x, y = (t.float() for t in data(30))
    post = model().condition(x[:20], y[:20], dtype=F64)
    single = post.append(x[20:], y[20:])
    assert single.x.dtype == torch.float32
    agree(single, model().condition(x, y, dtype=F64), 1e-5)
    double = post.append(x[20:].double(), y[20:].double())
    assert double.x.dtype == F64
    whole = post.append([[1, 2]], torch.tensor([1]))
    assert (whole.x.dtype, whole.y.dtype) == (torch.float32, torch.float32)
    assert post.append(x[20:].half(), y[20:].half()).x.dtype == torch.float32


def test_no_memory_is_left_behind() -> None:
    x, y = data(40)
    post = model().condition(x, y)

    def cycle(post: Posterior) -> Posterior:
        post = post.append(x[:1] + 0.3, y[:1]).drop([0])
        post.predict(x[:1]).variance.sum()
        return post

    for _ in range(20):
        post = cycle(post)
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(30):
        post = cycle(post)
    gc.collect()
    assert len(gc.get_objects()) - before < 25


# -- refused --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([30], "from 0 to 29"),
        ([-1], "from 0 to 29"),
        ([3, 5, 3], "row 3 twice"),
        (torch.zeros(30, dtype=torch.bool), "a mask becomes numbers"),
        ([0.5], "whole numbers"),
        (["a"], "whole numbers"),
    ],
)
def test_wrong_indices(indices: Any, message: str) -> None:
    x, y = data(30)
    post = model().condition(x, y)
    for update in (lambda: post.drop(indices), lambda: post.replace(indices, x[:2], y[:2])):
        with pytest.raises(DomainError, match=message):
            update()


def test_wrong_rows_leave_the_posterior_as_it_is() -> None:
    x, y = data(30)
    post = model().condition(x, y)
    before = post.predict(x[:3]).mean
    nan = torch.full((1, 2), torch.nan, dtype=F64)
    for arguments, error, message in (
        ((x[:, :1], y), ShapeError, "must have 2 columns like `x`"),
        ((x[0], y[:1]), ShapeError, "must be a table of rows"),
        ((x[:2], y[:1]), ShapeError, "n = 2 like `x`"),
        ((x[None, :2], y[None, :2]), ShapeError, "append one table"),
        ((x[:2], y[:4].reshape(2, 2)), ShapeError, "`y` must have"),
        ((nan, y[:1]), DomainError, "`x` must be finite, got NaN at row 0 and column 0"),
        ((x[:1], nan[0, :1]), DomainError, "`y` must be finite"),
        ((x[:1].to(torch.complex128), y[:1]), DomainError, "`x` must be real"),
        ((["a"], y[:1]), DomainError, "`x` must be a tensor"),
    ):
        for update in (post.append, post.slide, lambda *rows: post.replace([0], *rows)):
            with pytest.raises(error, match=message):
                update(*arguments)
    with pytest.raises(ShapeError, match="one row for each new one"):
        post.replace([0], x[:2], y[:2])
    with pytest.raises(DomainError, match="at most as many rows as the posterior"):
        post.drop(range(20)).slide(x[:11], y[:11])
    assert torch.equal(post.predict(x[:3]).mean, before)
    agree(post.append(x[:2] + 0.2, y[:2]), model().condition(torch.cat([x, x[:2] + 0.2]), torch.cat([y, y[:2]])))


@pytest.mark.parametrize("outputs", [None, 2])
@pytest.mark.parametrize("batched", ["y", "row_variance"])
def test_a_batch_of_models_is_refused_whatever_the_noise_of_the_new_rows(batched: str, outputs: int | None) -> None:
    x, y = data(6)
    y = y if outputs is None else torch.stack([y, 2.0 * y], dim=-1)
    more = 0.1 + torch.rand(3, 2, generator=torch.Generator().manual_seed(1), dtype=F64)[:, 0]
    known = torch.full((2, 6), 0.1, dtype=F64) if batched == "row_variance" else None
    gp = fgp.GP(fgp.kernels.Matern(), likelihood=fgp.likelihoods.Gaussian(0.1, row_variance=known), outputs=outputs)
    post = gp.condition(x, y if batched == "row_variance" else torch.stack([y, 2.0 * y]))
    assert post.batch_shape == (2,)
    for rows in ({}, {"row_variance": more}, {"row_weight": more}, {"row_variance": more.expand(2, 3)}):
        for update in (post.append, post.slide, lambda *new, **kw: post.replace([0, 1, 2], *new, **kw)):
            with pytest.raises(DomainError, match="of one table, got a batch of shape"):
                update(x[:3] + 0.2, y[:3], **rows)


@pytest.mark.parametrize("name", ["row_variance", "row_weight"])
def test_the_likelihood_of_a_batch_takes_more_rows(name: str) -> None:
    known, more = torch.arange(1.0, 9.0, dtype=F64).reshape(2, 4), torch.arange(1.0, 7.0, dtype=F64).reshape(2, 3)
    likelihood = fgp.likelihoods.Gaussian(0.1, **{name: known})
    unit = known.log().mean(-1, keepdim=True).exp() if name == "row_weight" else 1.0
    for given in (more, more[0]):
        longer = likelihood.extended(4, 3, **{name: given})
        wanted = torch.cat([known, given.expand(2, 3)], dim=-1) / unit
        torch.testing.assert_close(getattr(longer, name), wanted, rtol=1e-14, atol=0.0)
    for wrong in (more.expand(3, 2, 3), more[:, :2], torch.cat([more, more])):
        with pytest.raises(ShapeError, match="must have one entry per new row"):
            likelihood.extended(4, 3, **{name: wrong})


def test_a_duplicate_without_noise_is_refused() -> None:
    x, y = data(20)
    gp = fgp.GP(fgp.kernels.Matern(nu=0.5), likelihood=fgp.likelihoods.Gaussian(0.0))
    post = gp.condition(x[:15], y[:15])
    before = post.predict(x[15:]).mean
    for rows in (x[3:4], torch.cat([x[16:17], x[16:17]])):
        with pytest.raises(NotPositiveDefiniteError, match="repeats one of them, with next to no noise"):
            post.append(rows, y[: len(rows)])
    assert torch.equal(post.predict(x[15:]).mean, before)
    agree(post.append(x[15:], y[15:]), gp.condition(x, y))
    again = [*range(1, 15), 0]  # a row that left is no duplicate
    agree(post.slide(x[:1], y[:1]), gp.condition(x[again], y[again]))


@pytest.mark.parametrize("rows", [1, 3])
def test_numbers_too_large_to_square_are_named(rows: int) -> None:
    x, y = data(30)
    post = model().condition(x[:20], y[:20])
    wrong = x[20 : 20 + rows].clone()
    wrong[rows - 1] = 1e200
    for update in (post.append, post.slide):
        with pytest.raises(NotPositiveDefiniteError, match=rf"finite.*new row {rows - 1} .*too large to square"):
            update(wrong, y[:rows])
    agree(post.append(x[20:], y[20:]), model().condition(x, y))


def test_batches_and_graphs_are_refused() -> None:
    x, y = data(30)
    batched = fgp.GP(fgp.kernels.RBF(), likelihood=fgp.likelihoods.Gaussian(torch.tensor([0.1, 0.2])))
    for post, message in (
        (model().condition(x, y, differentiable=True), "differentiable=True"),
        (batched.condition(x, y), "a batch of shape"),
    ):
        for update in (lambda post=post: post.append(x[:1], y[:1]), lambda post=post: post.drop([0])):
            with pytest.raises(DomainError, match=message):
                update()


def test_weights_wait_until_they_are_asked_for() -> None:
    """The mean at a few points and the likelihood come from z = L^-1 r; many points and gradients take the weights."""
    x, y = data(60)
    batch = model().condition(x, y)
    post = model().condition(x[:40], y[:40]).append(x[40:], y[40:])
    at = x[:3] + 0.1
    few = post.predict(at)
    assert relative(few.mean, batch.predict(at).mean) < 1e-10
    assert relative(few.variance, batch.predict(at).variance) < 1e-9
    assert relative(post.log_marginal_likelihood(), batch.log_marginal_likelihood()) < 1e-12
    assert post.state.cache.weights is None
    slopes = []
    for one in (post, batch):
        leaf = at.clone().requires_grad_()
        slopes.append(torch.autograd.grad(one.predict(leaf).mean.sum(), leaf)[0])
    assert relative(*slopes) < 1e-10
    assert post.state.cache.weights is not None
    assert relative(post.representer_weights, batch.representer_weights) < 1e-8
    many = torch.cat([at] * 6)
    assert relative(post.drop([0]).predict(many).mean, batch.drop([0]).predict(many).mean) < 1e-10
    certain = model().condition(x[:40], y[:40], deterministic=True).append(x[40:], y[40:])
    first = certain.predict(at).mean
    assert certain.state.cache.weights is not None, "its bits must not depend on what was asked for before"
    assert torch.equal(certain.predict(at).mean, first)
