"""Learning online equals conditioning on the same rows, eqs. (M-111) to (M-113); older posteriors stay as they were."""

import gc
import threading
from collections.abc import Callable
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


@pytest.mark.parametrize("gone", [[0], [79], [3, 2, 1], list(range(0, 80, 2)), list(range(5, 60))], ids=len)
def test_drop_is_the_rest(gone: list[int]) -> None:
    # M-112.
    x, y = data(80)
    kept = [i for i in range(80) if i not in gone]
    agree(model().condition(x, y).drop(gone), model().condition(x[kept], y[kept]), 1e-10)


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


# -- rows of equal x ----------------------------------------------------------------------------------------------
def repeated() -> tuple[Tensor, Tensor]:
    x, y = data(30)
    x[20:25], x[25:28] = x[3], x[7]
    return x, y


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


def test_deterministic_ones_repeat_to_the_bit() -> None:
    # Whether or not the rotations are compiled.
    x, y = data(60)
    rotations.wait()
    posts = []
    for loops in (Rotations(), rotations):
        with strided.using_routines(loops):
            posts.append(model().condition(x[:50], y[:50], deterministic=True).slide(x[50:], y[50:]))
    assert torch.equal(posts[0].representer_weights, posts[1].representer_weights)


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
