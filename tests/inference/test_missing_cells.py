"""Missing cells of several outputs, eq. (M-252): each output has the rows that it was observed in."""

import re
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.errors import DomainError

F64 = torch.float64


def table(n: int = 30) -> tuple[Tensor, Tensor]:
    """Rows, and targets of two outputs of which each misses some."""
    generator = torch.Generator().manual_seed(0)
    x = 4.0 * torch.rand(n, 2, generator=generator, dtype=F64)
    x[12], x[13] = x[0], x[1]  # which repeat, where the first output misses one of them
    y = torch.stack([torch.sin(2.0 * x[:, 0]), 3.0 * torch.cos(x[:, 1])], -1)
    y += 0.1 * torch.randn(n, 2, generator=generator, dtype=F64)
    y[::3, 0], y[1::3, 1] = torch.nan, torch.nan
    return x, y


def prior(outputs: int | None = 2, **options: Any) -> fgp.GP:
    noise = torch.tensor([0.05, 0.2], dtype=F64) if outputs else options.pop("noise")
    own = fgp.likelihoods.Gaussian(noise, outputs=outputs, **options)
    return fgp.GP(1.3 * fgp.kernels.Matern(1.5), fgp.means.Zero(), own, outputs=outputs)


def alone(x: Tensor, y: Tensor, j: int, noise: float, weight: Tensor | None = None) -> Any:
    rows = ~y[:, j].isnan()
    likelihood = fgp.likelihoods.Gaussian(noise).with_rows(None, None if weight is None else weight[rows])
    return fgp.GP(1.3 * fgp.kernels.Matern(1.5), fgp.means.Zero(), likelihood).condition(x[rows], y[rows, j]), rows


@pytest.mark.parametrize("weighted", [False, True])
def test_outputs_are_those_of_their_own_rows(weighted: bool) -> None:
    x, y = table()
    weight = torch.linspace(0.5, 2.0, 30, dtype=F64) if weighted else None
    gp = prior(row_weight=weight)
    post, at, total = gp.condition(x, y), x + 0.1, 0.0
    found, left = post.predict(at), post.leave_one_out()
    for j, noise in enumerate((0.05, 0.2)):
        one, rows = alone(x, y, j, noise, gp.likelihood.row_weight)
        for name in ("mean", "variance", "observation_variance"):
            torch.testing.assert_close(
                getattr(found, name)[:, j], getattr(one.predict(at), name), rtol=1e-12, atol=1e-14
            )
        for name in ("mean", "variance", "log_prob"):
            cells = getattr(left, name)[:, j]
            torch.testing.assert_close(cells[rows], getattr(one.leave_one_out(), name), rtol=1e-12, atol=1e-14)
            assert bool(cells[~rows].isnan().all())
        total = total + one.log_marginal_likelihood()
    torch.testing.assert_close(post.log_marginal_likelihood(), total, rtol=1e-12, atol=0)
    torch.testing.assert_close(gp.log_marginal_likelihood(x, y).detach(), total, rtol=1e-12, atol=0)
    assert post.count == 30
    assert torch.equal(post.y.isnan(), y.isnan())


def test_rows_come_and_go() -> None:
    x, y = table()
    at, kept = x + 0.1, [i for i in range(30) if i not in (0, 5, 7, 29)]
    gp = prior()
    post = gp.condition(x[:20], y[:20]).append(x[20:], y[20:]).drop([0, 5, 7, 29])
    torch.testing.assert_close(
        post.predict(at).mean, gp.condition(x[kept], y[kept]).predict(at).mean, rtol=1e-9, atol=1e-12
    )
    full = gp.condition(x[:4], y[:4].nan_to_num(nan=0.5))
    longer = full.append(x[4:6], y[4:6])  # cells are first missing in new rows
    wanted = gp.condition(x[:6], torch.cat([y[:4].nan_to_num(nan=0.5), y[4:6]]))
    torch.testing.assert_close(longer.predict(at).mean, wanted.predict(at).mean, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(longer.drop([4, 5]).representer_weights, full.representer_weights, rtol=1e-9, atol=1e-12)
    slid = post.slide(x[:2], y[:2])
    assert slid.count == 26
    assert slid.refine(1).count == 26


def test_what_needs_common_rows_names_the_way_out(tmp_path: Path) -> None:
    x, y = table()
    post = prior().condition(x, y)
    calls = {"paths": lambda ask: ask(2, seed=0)(x), "importance": lambda ask: ask()}
    state = [f"state.{name}" for name in dir(type(post.state)) if not name.startswith("_")]
    refused = set()
    for name in [*(name for name in dir(fgp.Posterior) if not name.startswith("_")), *state]:
        if not name.startswith("state.") and post.can(name) is not None:
            continue  # for another reason
        way = calls.get(name, lambda value: value)
        try:
            way(attrgetter(name)(post))
        except DomainError as error:
            message = str(error)
        else:
            continue
        asked = re.search(r"(?:ask each output:|take) post\.by_output\[j\]\.([\w.]+)$", message)
        assert asked, message
        refused.add(asked[1])
        for one in post.by_output:
            calls.get(asked[1], lambda value: value)(attrgetter(asked[1])(one))
    assert refused >= {"paths", "importance", "representer_weights", "noise", "state.rows"}
    with pytest.raises(fgp.ShapeError, match="plot one at a time"):
        fgp.plots.posterior_1d(post)
    fgp.plots.posterior_1d(post.by_output[0])
    with pytest.raises(DomainError, match=r"save each output: fgp.save\(post.by_output\[j\], path\)"):
        fgp.save(post, tmp_path / "both.safetensors")
    fgp.save(post.by_output[1], tmp_path / "one.safetensors")
    again = fgp.load(tmp_path / "one.safetensors").predict(x).mean
    torch.testing.assert_close(again, post.predict(x).mean[:, 1], rtol=1e-12, atol=1e-14)
    drawn = post.fantasize(x[:2] + 0.1, torch.zeros(2, 2, dtype=F64)).predict(x)
    assert drawn.mean.shape == (30, 2)


def test_what_is_no_table_with_missing_cells() -> None:
    x, y = table()
    empty, column = y.clone(), y.clone()
    empty[4], column[:, 1] = torch.nan, torch.nan
    column[:, 0] = 1.0
    shared = fgp.GP(fgp.kernels.RBF(), likelihood=fgp.likelihoods.Gaussian(0.1, shared=True), outputs=2)
    for call, message in (
        (lambda: prior().condition(x, empty), "must have a value in every row, got none in row 4; leave that row out"),
        (lambda: fgp.fit(prior(), x, column), "must have a value of every output, got none of output 1"),
        (lambda: shared.condition(x, y), "got NaN at row 0 and column 0; cells of single outputs may be missing"),
        (
            lambda: prior().condition(x, y, approximation="sparse"),
            "cells of single outputs may be missing|noise of their own",
        ),
        (lambda: prior().condition(x, y * torch.inf), "must be finite"),
    ):
        with pytest.raises(DomainError, match=message):
            call()


def test_gpregressor_keeps_rows_that_miss_a_column() -> None:
    x, y = (t.numpy() for t in table())
    model = fgp.GPRegressor(starts=1, target_transform="none").fit(x, y)
    assert model.X_train_.shape == (30, 2)
    for j, scaling in enumerate(model.scaling_):
        rows = ~np.isnan(y[:, j])
        assert scaling.target.shift == pytest.approx(y[rows, j].mean(), abs=1e-12)
        assert np.abs(model.predict(x)[rows, j] - y[rows, j]).mean() < 0.3 * y[rows, j].std()
    value = model.log_marginal_likelihood(eval_gradient=True)[0]
    assert value == pytest.approx(model.log_marginal_likelihood_value_, rel=1e-9)
    y[4] = np.nan
    with pytest.raises(
        DomainError, match="`y` must have a value in every row, got none in row 4; fill it in, or pass mi"
    ):
        fgp.GPRegressor().fit(x, y)
    with pytest.warns(fgp.FlashGPWarning, match="1 of 30 rows have a missing value"):
        dropped = fgp.GPRegressor(missing="drop", optimise=False).fit(x, y)
    assert dropped.X_train_.shape == (29, 2)
    counts = np.arange(29) % 3 + 1
    with pytest.raises(DomainError, match="no missing cells where weights are counts"):
        fgp.GPRegressor().fit(np.delete(x, 4, 0), np.delete(y, 4, 0), counts)
    halved = fgp.GPRegressor(optimise=False).fit(np.delete(x, 4, 0), np.delete(y, 4, 0), counts / 2)  # the way out
    assert np.isfinite(halved.predict(x)).all()


@pytest.mark.parametrize("small", [True, False])
def test_the_objective_is_the_sum_over_outputs(small: bool) -> None:
    """Its gradient too, whatever computes it: small models, and the general path (a kernel with a network)."""
    x, y = table()
    torch.manual_seed(0)
    kernel = 1.3 * fgp.kernels.Matern(1.5)
    if not small:
        kernel = kernel + fgp.kernels.Warped(torch.nn.Linear(2, 1).double(), fgp.kernels.RBF())
    gp = fgp.GP(kernel, likelihood=fgp.likelihoods.Gaussian(0.1), outputs=2)
    fit = fgp.fit(gp, x, y, starts=1, initial="given", priors="given", max_iterations=60)
    value = fit.gp.log_marginal_likelihood(x, y)
    torch.testing.assert_close(value.detach(), fit.posterior.log_marginal_likelihood(), rtol=1e-8, atol=0)
    assert float(value.detach()) > float(gp.log_marginal_likelihood(x, y).detach()) + 5.0
    if small:  # at an optimum
        slopes = torch.autograd.grad(value, list(fit.gp.parameters()))
        assert max(float(slope.abs().max()) for slope in slopes) < 0.5
