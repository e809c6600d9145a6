"""Windows that slide equal conditioning on the same rows, eqs. (M-118) to (M-120), by a posterior's own methods."""

import copy
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.errors import NotPositiveDefiniteError
from flashgp.inference.online import window as online_window
from flashgp.solvers.direct import strided
from flashgp.solvers.growing import window
from flashgp.solvers.growing.panels import PanelFactor
from flashgp.solvers.growing.window import WindowFactor
from inference.plain_gp import data, model, relative
from inference.test_online import agree, repeated

F64 = torch.float64


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows from a few rows on."""
    monkeypatch.setattr(window, "LEAST_ROWS", 8)


def slid(post: Any, x: Tensor, y: Tensor, rows: range, **given: Tensor) -> Any:
    for i in rows:
        post = post.slide(x[i : i + 1], y[i : i + 1], **{name: value[i : i + 1] for name, value in given.items()})
    return post


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_window_slides_through_sweeps(deterministic: bool) -> None:
    x, y = data(200)
    gp = model()
    post = gp.condition(x[:40], y[:40], deterministic=deterministic)
    for i in range(40, 160):
        post = post.slide(x[i : i + 1], y[i : i + 1])
        assert isinstance(post.factor, PanelFactor if i == 40 else WindowFactor)
        if i % 11 == 0:
            agree(post, gp.condition(x[i - 39 : i + 1], y[i - 39 : i + 1]), 1e-10)
    fields = post.report.events[-1].fields
    assert (fields["appended"], fields["dropped"], fields["refactorised"]) == (120, 120, None)
    assert post.report.relative_residual < 1e-12


@pytest.mark.parametrize("way", ["compiled", "blas", "deterministic"])
def test_random_sequences_equal_a_fresh_posterior_and_leave_the_older_ones(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "compiled" and not strided.rotations.wait():
        pytest.skip("needs numba")
    if way == "blas":
        monkeypatch.setattr(strided.rotations, "forward", lambda n: None)
    x, y = data(2500, 3)
    y = torch.stack([y, y.square()], 1)
    kernel = 1.5 * fgp.kernels.Matern(nu=1.5, lengthscale=torch.tensor([0.8, 1.0, 1.5]))
    gp = fgp.GP(kernel, fgp.means.Constant(torch.tensor([0.2, -0.1]), outputs=2), outputs=2)
    generator = torch.Generator().manual_seed(5)
    at = x[-5:]

    def number(least: int, most: int) -> int:
        return int(torch.randint(least, most + 1, (), generator=generator))

    rows, following, kinds = list(range(60)), 60, set()
    post, older = gp.condition(x[:60], y[:60], deterministic=way == "deterministic"), []
    for step in range(500):
        if step % 20 == 0:
            older.append((post, post.predict(at).mean, post.predict(at).variance))
        k = 1 if number(0, 3) else number(1, 3)
        new = list(range(following, following + k))
        chance = number(0, 99)
        kind = "slide" if chance < 55 else "append" if chance < 75 else "drop" if chance < 95 else "replace"
        kind = "slide" if (kind == "drop" and len(rows) < 40) or (kind == "append" and len(rows) > 90) else kind
        if kind == "append":
            post, rows = post.append(x[new], y[new]), rows + new
        elif kind == "slide":
            post, rows = post.slide(x[new], y[new]), rows[k:] + new
        elif kind == "drop" and chance < 92:
            post, rows = post.drop(range(k)), rows[k:]
        else:
            gone = torch.randperm(len(rows), generator=generator)[:k].tolist()
            left = [row for i, row in enumerate(rows) if i not in gone]
            if kind == "drop":
                post, rows = post.drop(gone), left
            else:
                post, rows = post.replace(gone, x[new], y[new]), left + new
        following += k
        kinds.add((kind, type(post.factor).__name__))
        if step % 50 == 0:
            agree(post, gp.condition(x[rows], y[rows]), 1e-9)
    agree(post, gp.condition(x[rows], y[rows]), 1e-9)
    assert {("slide", "WindowFactor"), ("append", "WindowFactor"), ("drop", "WindowFactor")} <= kinds
    assert post.state.online.refactorised == 0
    for before, mean, variance in older:
        p = before.predict(at)
        assert torch.equal(p.mean, mean)
        assert torch.equal(p.variance, variance)


def test_noise_of_each_row() -> None:
    x, y = data(90)
    variance = torch.linspace(0.1, 0.5, 90, dtype=F64)

    def gp(rows: slice) -> fgp.GP:
        return fgp.GP(fgp.kernels.RBF(), likelihood=fgp.likelihoods.Gaussian(0.1, row_variance=variance[rows]))

    post = slid(gp(slice(30)).condition(x[:30], y[:30]), x, y, range(30, 90), row_variance=variance)
    assert isinstance(post.factor, WindowFactor)
    agree(post, gp(slice(60, 90)).condition(x[60:], y[60:]), 1e-10)


@pytest.mark.parametrize("noise", [0.1, 0.0])
def test_rows_that_were_joined(noise: float) -> None:
    # While one of several joined rows leaves, their mean changes: no window then, and one again after it.
    x, y = repeated()
    x, y = torch.cat([x, data(60, seed=4)[0]]), torch.cat([y, data(60, seed=4)[1]])
    if noise == 0.0:
        y[20:25], y[25:28] = y[3], y[7]
    gp = fgp.GP(fgp.kernels.Matern(nu=1.5), likelihood=fgp.likelihoods.Gaussian(noise))
    post, seen = gp.condition(x[:40], y[:40]), set()
    for i in range(40, 85):
        post = post.slide(x[i : i + 1], y[i : i + 1])
        seen.add(type(post.factor).__name__)
        batch = gp.condition(x[i - 39 : i + 1], y[i - 39 : i + 1])
        if noise:
            agree(post, batch, 1e-10)
        else:  # rows that repeat are certain when one is left out
            for name in ("mean", "variance"):
                assert relative(getattr(post.predict(x[90:]), name), getattr(batch.predict(x[90:]), name)) < 1e-8
    assert seen == {"PanelFactor", "WindowFactor"}


@pytest.mark.parametrize("noise", [0.1, 0.0])
def test_joined_rows_in_the_order_of_time(noise: float) -> None:
    # Distinct rows leave in their order; where one of several joined ones leaves, the others' mean is another one.
    place = torch.tensor([i - i // 5 for i in range(90)], dtype=F64)  # every fifth row repeats the one before it
    x, y = place[:, None] / 4, torch.sin(place)
    y = y + (0.1 * torch.randn(90, dtype=F64, generator=torch.Generator().manual_seed(0)) if noise else 0.0)
    gp = fgp.GP(fgp.kernels.Matern(nu=1.5), likelihood=fgp.likelihoods.Gaussian(noise))
    post, at, seen = gp.condition(x[:60], y[:60]), x[60:64] + 0.1, set()
    post = post.drop([0]).drop([0])
    for i in range(2, 40):
        post = post.drop([0])
        seen.add(type(post.factor).__name__)
        batch = gp.condition(x[i + 1 : 60], y[i + 1 : 60])
        for name in ("mean", "variance"):
            assert relative(getattr(post.predict(at), name), getattr(batch.predict(at), name)) < 1e-9
    assert seen == {"PanelFactor", "WindowFactor"}


def test_children_and_threads_of_a_window() -> None:
    x, y = data(250)
    gp = model()
    base = slid(gp.condition(x[:50], y[:50]), x, y, range(50, 65))
    children = [base.slide(x[i : i + 1], y[i : i + 1]) for i in range(65, 70)]
    for i, child in zip(range(65, 70), children, strict=True):
        rows = [*range(16, 65), i]
        agree(child, gp.condition(x[rows], y[rows]), 1e-10)
    found: dict[int, Any] = {}
    ready = threading.Barrier(4)

    def work(worker: int) -> None:
        ready.wait()
        post = base
        for i in range(70 + worker, 190, 4):
            post = post.slide(x[i : i + 1], y[i : i + 1])
        found[worker] = post

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for worker, post in found.items():
        rows = [*range(15, 65), *range(70 + worker, 190, 4)][-50:]
        agree(post, gp.condition(x[rows], y[rows]), 1e-10)
    agree(base, gp.condition(x[15:65], y[15:65]), 1e-10)


def test_what_a_window_answers_beside_predictions(tmp_path: Path) -> None:
    x, y = data(120)
    gp = model()
    post, batch = slid(gp.condition(x[:40], y[:40]), x, y, range(40, 75)), gp.condition(x[35:75], y[35:75])
    assert isinstance(post.factor, WindowFactor)
    assert post.factor.pending
    assert relative(post.representer_weights, batch.representer_weights) < 1e-9
    at = x[80:84]
    assert relative(post.predict(at).sample(3, seed=1), batch.predict(at).sample(3, seed=1)) < 1e-7
    assert relative(post.paths(3, seed=1)(at), batch.paths(3, seed=1)(at)) < 1e-9
    few = [one.fantasize(x[90:94].reshape(2, 2, -1), y[90:94].reshape(2, 2)).predict(at) for one in (post, batch)]
    assert relative(few[0].mean, few[1].mean) < 1e-9
    assert relative(few[0].variance, few[1].variance) < 1e-9
    gradients = []
    for one in (post, batch):
        leaf = at.clone().requires_grad_()
        p = one.predict(leaf)
        gradients.append(torch.autograd.grad(p.mean.sum() + p.variance.square().sum(), leaf)[0])
    assert relative(*gradients) < 1e-9
    fgp.save(post, tmp_path / "model.safetensors")
    for again in (fgp.load(tmp_path / "model.safetensors"), copy.deepcopy(post)):
        agree(again, batch, 1e-9)
        agree(slid(again, x, y, range(75, 95)), gp.condition(x[55:95], y[55:95]), 1e-9)


def test_a_row_that_left_may_come_again_without_noise() -> None:
    # It is no duplicate of a row that is there, though it is one of a row in the factor.
    x, y = data(60)
    gp = fgp.GP(fgp.kernels.Matern(nu=0.5), likelihood=fgp.likelihoods.Gaussian(0.0))
    post = slid(gp.condition(x[:40], y[:40]), x, y, range(40, 46))
    agree(post.append(x[3:4], y[3:4]), gp.condition(x[[*range(6, 46), 3]], y[[*range(6, 46), 3]]), 1e-9)
    agree(post.slide(x[6:7], y[6:7]), gp.condition(x[[*range(7, 46), 6]], y[[*range(7, 46), 6]]), 1e-9)
    for update in (post.append, post.slide):
        with pytest.raises(NotPositiveDefiniteError, match="repeats one of them without noise"):
            update(x[20:21], y[20:21])
    agree(slid(post, x, y, range(46, 60)), gp.condition(x[20:], y[20:]), 1e-9)


@pytest.mark.filterwarnings("error")
def test_numbers_too_large_to_square_are_named() -> None:
    x, y = data(70)
    post = slid(model().condition(x[:40], y[:40]), x, y, range(40, 50))
    wrong = x[50:51].clone()
    wrong[0] = 1e200
    for update in (post.append, post.slide):
        with pytest.raises(NotPositiveDefiniteError, match=r"must be finite.*new row 0 .*too large to square"):
            update(wrong, y[:1])
    after = slid(post, x, y, range(50, 70))
    agree(after, model().condition(x[30:], y[30:]), 1e-10)


def test_drift_in_a_window_is_seen() -> None:
    # M-113 for the rows of F.
    x, y = data(200)
    gp = model()
    post = slid(gp.condition(x[:40], y[:40]), x, y, range(40, 60))
    post.factor._triangle.last[40:, 35] += 1e-3
    for i in range(60, 80):
        post = slid(post, x, y, range(i, i + 1))
        assert (post.state.online.known is None) == isinstance(post.factor, PanelFactor)
    assert post.state.online.refactorised == 1
    agree(post, gp.condition(x[40:80], y[40:80]), 1e-10)


def test_what_left_is_given_up() -> None:
    """The rows that are kept beside the window are those in its factor, no more."""
    x, y = data(300)
    post = slid(model().condition(x[:40], y[:40]), x, y, range(40, 300))
    assert post.state.online.known.count == post.count + post.factor.pending
    assert post.factor.pending < 30
    assert post.drop([3]).state.online.known is None


def test_small_windows_take_panels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "LEAST_ROWS", 100)
    x, y = data(60)
    post = slid(model().condition(x[:40], y[:40]), x, y, range(40, 60))
    assert isinstance(post.factor, PanelFactor)
    assert online_window.spare_rows(40, 1, post.factor, 3) == 3
