"""Posteriors by Fourier series beside exact ones, and laws of their sums."""

import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.cli.after_fit import AFTER_FIT
from flashgp.foundations.deadline import Deadline
from flashgp.foundations.events import EventKind, of_kind
from flashgp.inference.fourier.local import WindowSettings
from flashgp.inference.fourier.predictor import predictor
from flashgp.inference.fourier.system import SolveSettings
from inference.fourier import additive

F64 = torch.float64
k = fgp.kernels


def _rows(n: int, d: int, noise: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, d, generator=generator, dtype=F64)
    y = torch.sin(6.0 * x[:, 0]) * torch.cos(4.0 * x.sum(1)) + 0.3
    return x, y + noise**0.5 * torch.randn(n, generator=generator, dtype=F64)


def _gp(d: int, noise: float, lengthscale: float = 0.3, nu: float = 2.5) -> fgp.GP:
    kernel = 1.2 * k.Matern(nu=nu, lengthscale=torch.full((d,), lengthscale, dtype=F64))
    return fgp.GP(kernel, fgp.means.Constant(0.3), fgp.likelihoods.Gaussian(noise))


def _model(name: str) -> tuple[fgp.GP, int]:
    """Of one grid, or of several; and its columns."""
    return (_gp(2, 0.05, 0.7), 2) if name == "one" else (additive.model(nu=2.5), additive.D)


GRIDS = pytest.mark.parametrize("name", ["one", "apart"])
CASES = [(1, 300, 0.01, 0.1, 1.5), (1, 300, 1e-4, 0.3, 2.5), (2, 400, 0.05, 0.4, 2.5), (3, 400, 0.2, 0.8, 2.5)]


@pytest.mark.parametrize(("d", "n", "noise", "lengthscale", "nu"), CASES)
def test_answers_are_those_of_exact_inference(d: int, n: int, noise: float, lengthscale: float, nu: float) -> None:
    """Up to the tail, of which the report says how much there is: (M-435), the evidence and rows left out, (M-438)."""
    x, y = _rows(n, d, noise)
    gp, x_test = _gp(d, noise, lengthscale, nu), _rows(30, d, noise, 1)[0]
    post, exact = gp.condition(x, y, approximation="fourier"), gp.condition(x, y)
    (event,) = of_kind(post.report.events, EventKind.FOURIER_TAIL)
    tail = event.fields["tail"]
    assert tail <= 0.2 * noise
    found, known = post.predict(x_test), exact.predict(x_test)
    assert float((found.mean - known.mean).abs().max()) < tail**0.5
    assert float((found.variance - known.variance).abs().max()) < 2.0 * tail
    assert float((found.covariance() - known.covariance()).abs().max()) < 2.0 * tail
    evidence = float(post.log_marginal_likelihood() - exact.log_marginal_likelihood())
    assert abs(evidence) < n * tail / noise
    left, other = post.leave_one_out(), exact.leave_one_out()
    assert float((left.log_prob - other.log_prob).mean().abs()) < 2.0 * tail / noise


MEANS = [  # d, rows, noise, lengthscale, nu, kind
    (1, 200, 0.01, 0.2, 1.5, "gap"), (1, 300, 4e-4, 2.5, 2.5, "clusters"), (1, 400, 0.3, 0.3, math.inf, "all"),
    (1, 400, 1e-5, 0.05, 2.5, "gap"), (2, 400, 0.05, 0.4, 2.5, "all"), (2, 300, 4e-6, 2.2, math.inf, "clusters"),
    (2, 400, 8e-3, 0.2, 1.5, "twice"), (2, 400, 1e-3, 1.0, 2.5, "clusters"), (3, 300, 0.2, 0.8, 2.5, "all"),
    (3, 150, 3e-3, 0.1, math.inf, "gap"), (3, 200, 0.05, 1.9, 2.5, "twice"),
]  # fmt: skip


def test_means_are_within_the_bound() -> None:
    """(M-465): of exact ones, between rows and close to them, whatever the rows are like; and the bound tells much."""
    ratios = []
    for d, n, noise, lengthscale, nu, kind in MEANS:
        x, y = _rows(n, d, noise)
        generator = torch.Generator().manual_seed(2)
        if kind == "clusters":
            x = (x[torch.randint(5, (n,), generator=generator)] + 0.05 * (x - 0.5)).clamp(0.0, 1.0)
        x = x[x[:, 0] % 0.5 < 0.3] if kind == "gap" else x[torch.arange(n) // 2] if kind == "twice" else x
        y = y[: len(x)]
        low, high = x.amin(0), x.amax(0)
        near = x + 0.3 * lengthscale * torch.randn(x.shape, generator=generator, dtype=F64)
        x_test = torch.cat(
            [low + (high - low) * torch.rand(200, d, generator=generator, dtype=F64), near.clamp(low, high)]
        )
        leaf = (
            k.SquaredExponential(lengthscale=lengthscale) if nu == math.inf else k.Matern(nu, lengthscale=lengthscale)
        )
        gp = fgp.GP(1.2 * leaf, fgp.means.Constant(0.3), fgp.likelihoods.Gaussian(noise))
        post, exact = gp.condition(x, y, approximation="fourier"), gp.condition(x, y)
        found = post.predict(x_test)
        error, bound = float((found.mean - exact.predict(x_test).mean).abs().max()), post.report.error_bound
        assert bound is not None
        assert found.report.error_bound == bound
        assert error <= bound, (d, n, noise, lengthscale, nu, kind)
        ratios.append(bound / error)
    assert sorted(ratios)[len(ratios) // 2] <= 30.0


def test_a_bound_is_of_the_points_that_are_asked_for() -> None:
    """Outside the rows, as far as points may lie, another one; terms have none, as their errors need not cancel."""
    x, y = _rows(200, 1, 1e-4)
    kernel = k.Matern(nu=2.5, lengthscale=0.3) + 0.2 * k.Matern(nu=1.5, lengthscale=0.5)
    gp = fgp.GP(kernel, likelihood=fgp.likelihoods.Gaussian(1e-4))
    post, exact = gp.condition(x, y, approximation="fourier"), gp.condition(x, y)
    low, high = float(x.min()), float(x.max())
    bounds = []
    for beyond in (0.0, 0.24):
        x_test = torch.linspace(low - beyond * (high - low), high + beyond * (high - low), 100, dtype=F64).unsqueeze(1)
        found = post.predict(x_test)
        error, bound = float((found.mean - exact.predict(x_test).mean).abs().max()), found.report.error_bound
        assert bound is not None
        assert error <= bound
        bounds.append(bound)
    assert bounds[0] == post.report.error_bound
    assert bounds[1] > bounds[0]
    assert all(term.predict(x).report.error_bound is None for term in post.components)


def test_a_bound_ends_where_more_rows_join_than_it_was_measured_with() -> None:
    """As the error that a grid makes grows with the rows."""
    x, y = _rows(400, 1, 0.05)
    x[0], x[1] = 0.0, 1.0
    gp, exact = _gp(1, 0.05), _gp(1, 0.05).condition(x[:190], y[:190])
    post = gp.condition(x[:100], y[:100], approximation="fourier").append(x[100:190], y[100:190])
    found, bound = post.predict(x), post.report.error_bound
    assert bound is not None
    assert float((found.mean - exact.predict(x).mean).abs().max()) <= bound
    more = post.append(x[190:], y[190:])
    prediction = more.predict(x[:5])
    assert prediction.mean.shape == (5,)
    assert (more.report.error_bound, prediction.report.error_bound) == (None, None)


@pytest.mark.parametrize("name", ["lines", "constant column"])
def test_what_has_no_coarser_grid_has_a_small_bound(name: str) -> None:
    """A spectrum that ends, and a column that does not vary, which repeats nothing."""
    x, y = _rows(100, 2, 0.01)
    kernel: fgp.kernels.Kernel = k.Cosine(frequency=1.0, active_dims=[0]) + k.Cosine(frequency=2.0, active_dims=[0])
    if name == "constant column":
        x, kernel = torch.stack([x[:, 0], torch.full_like(x[:, 0], 7.0)], 1), 1.2 * k.Matern(nu=2.5, lengthscale=0.4)
    gp = fgp.GP(kernel, likelihood=fgp.likelihoods.Gaussian(0.01))
    post, exact = gp.condition(x, y, approximation="fourier"), gp.condition(x, y)
    found, known, bound = post.predict(x), exact.predict(x), post.report.error_bound
    assert bound is not None
    assert float((found.mean - known.mean).abs().max()) <= bound <= 1e-2 * 0.1
    torch.testing.assert_close(found.variance, known.variance, rtol=0.01, atol=1e-8)


def test_little_noise_lets_little_be_repeated() -> None:
    """(M-431): a long lengthscale comes again at the other end of the box, which the tail does not tell."""
    post = _gp(1, 1e-4, 2.0).condition(*_rows(300, 1, 1e-4), approximation="fourier")
    assert post.report.error_bound is not None
    assert post.report.error_bound <= 0.02 * 1e-4**0.5


def test_what_a_grid_leaves_out_is_in_variances() -> None:
    """(M-435): rows of much noise take few frequencies, and tell little."""
    (x, y), x_test = _rows(50, 1, 1.0), _rows(20, 1, 1.0, 1)[0]
    post = _gp(1, 1e7, 0.1, 1.5).condition(x, y, approximation="fourier")
    assert post.state.tail > 0.05
    found, known = post.predict(x_test), _gp(1, 1e7, 0.1, 1.5).condition(x, y).predict(x_test)
    torch.testing.assert_close(found.variance, known.variance, rtol=5e-3, atol=0.0)
    torch.testing.assert_close(found.covariance().diagonal(), known.variance, rtol=5e-3, atol=0.0)


def test_variances_of_smooth_functions_are_within_a_percent() -> None:
    """Many rows for few coordinates leave little variance, of which the tail is a small part too."""
    x, y = _rows(1500, 2, 0.4)
    gp, x_test = _gp(2, 0.4, 2.7), _rows(100, 2, 0.4, 1)[0]
    post, exact = gp.condition(x, y, approximation="fourier"), gp.condition(x, y)
    ratio = post.predict(x_test).variance / exact.predict(x_test).variance
    assert float((ratio - 1.0).abs().max()) < 0.01


@GRIDS
def test_gradients_to_points_are_those_of_exact_inference(name: str) -> None:
    gp, d = _model(name)
    x, y = _rows(300, d, 0.05)
    x_test = _rows(6, d, 0.05, 1)[0].requires_grad_()

    def slopes(post: fgp.Posterior, name: str) -> Tensor:
        (found,) = torch.autograd.grad(getattr(post.predict(x_test), name).sum(), x_test)
        return found

    post, exact = gp.condition(x, y, approximation="fourier"), gp.condition(x, y)
    for name in ("mean", "variance"):
        one, other = slopes(post, name), slopes(exact, name)
        assert float((one - other).abs().max()) < 2e-3 * float(other.abs().max())


@GRIDS
def test_paths_have_the_moments_of_the_posterior(name: str) -> None:
    gp, d = _model(name)
    post = gp.condition(*_rows(300, d, 0.05), approximation="fourier")
    x_test = _rows(20, d, 0.05, 1)[0]
    paths = post.paths(1000, seed=3)
    values, known = paths(x_test), post.predict(x_test)
    error = 5.0 * (known.variance / 1000).sqrt()
    assert bool(((values.mean(0) - known.mean).abs() < error).all())
    assert float((values.var(0) / known.variance - 1.0).abs().max()) < 0.2
    torch.testing.assert_close(paths(x_test), values)


@GRIDS
def test_order_pieces_and_joining_do_not_matter(name: str) -> None:
    """Rows that are read in batches, in another order, or that join later, (M-439), give the same posterior."""
    gp, d = _model(name)
    x, y = _rows(400, d, 0.05)
    x[0], x[1] = 0.0, 1.0  # so that the first rows span the box
    x_test = _rows(30, d, 0.05, 1)[0]
    whole = gp.condition(x, y, approximation="fourier")
    known = whole.predict(x_test)
    order = torch.randperm(400, generator=torch.Generator().manual_seed(0))
    batches = list(zip(x[order].split(150), y[order].split(150), strict=True))
    read = gp.condition(batches, approximation="fourier")
    joined = gp.condition(x[:300], y[:300], approximation="fourier").append(x[300:], y[300:])
    for other in (read, joined):
        assert other.count == 400
        found = other.predict(x_test)
        torch.testing.assert_close(found.mean, known.mean, rtol=0.0, atol=1e-8)
        torch.testing.assert_close(found.variance, known.variance, rtol=1e-8, atol=0.0)
        evidence = float(whole.log_marginal_likelihood())
        assert float(other.log_marginal_likelihood()) == pytest.approx(evidence, abs=1e-6)
    assert read.state.held is None
    assert len(joined.x) == 400


@pytest.mark.parametrize(("before", "more"), [("row_variance", True), ("row_weight", True), ("row_weight", False)])
def test_rows_join_with_numbers_of_their_own(before: str, more: bool) -> None:
    """As by exact inference; without a weight they are typical rows."""
    x, y = _rows(400, 1, 0.05)
    known = torch.linspace(0.01, 1.0, 400, dtype=F64)
    noise = fgp.likelihoods.Gaussian(0.05, **{before: known[:300]})
    gp = fgp.GP(1.2 * k.Matern(nu=2.5, lengthscale=0.3), likelihood=noise)
    new: dict[str, Any] = {before: known[300:]} if more else {}
    exact = gp.condition(x[:300], y[:300]).append(x[300:], y[300:], **new).predict(x)
    ours = gp.condition(x[:300], y[:300], approximation="fourier").append(x[300:], y[300:], **new)
    assert len(ours.x) == 400
    torch.testing.assert_close(ours.predict(x).mean, exact.mean, rtol=0.0, atol=1e-4)
    torch.testing.assert_close(ours.predict(x).variance, exact.variance, rtol=1e-2, atol=0.0)
    with pytest.raises(fgp.DomainError, match=f"`{before}` must come in the batches"):
        ours.append([(x, y, known)], None, **{before: known})


def test_repeated_rows_count_as_often_as_their_variance_says() -> None:
    x, y = _rows(200, 1, 0.1)
    gp = _gp(1, 0.1, 0.3)
    twice = gp.condition(torch.cat([x, x]), torch.cat([y, y]), approximation="fourier")
    x_test = _rows(20, 1, 0.1, 1)[0]
    exact = gp.condition(torch.cat([x, x]), torch.cat([y, y])).predict(x_test)
    torch.testing.assert_close(twice.predict(x_test).mean, exact.mean, rtol=0.0, atol=1e-2)


def test_known_variances_and_several_outputs() -> None:
    x, y = _rows(300, 1, 0.05)
    known = torch.linspace(0.01, 1.0, 300, dtype=F64)
    kernel = 1.2 * k.Matern(nu=2.5, lengthscale=0.3)
    gp = fgp.GP(kernel, likelihood=fgp.likelihoods.Gaussian(0.05, row_variance=known))
    x_test = _rows(20, 1, 0.05, 1)[0]
    found, exact = (gp.condition(x, y, **how).predict(x_test) for how in ({"approximation": "fourier"}, {}))
    assert float((found.mean - exact.mean).abs().max()) < 0.01
    both = fgp.GP(kernel, likelihood=fgp.likelihoods.Gaussian(0.05, shared=True), outputs=2)
    pair = torch.stack([y, -2.0 * y], 1)
    found, exact = (both.condition(x, pair, **how).predict(x_test) for how in ({"approximation": "fourier"}, {}))
    assert float((found.mean - exact.mean).abs().max()) < 0.02
    assert found.mean.shape == (20, 2)


def test_a_time_limit_ends_solves_and_says_how_far_they_came() -> None:
    """Of a fit and of conditioning, where there is no factor: the posterior is there."""
    x, y = _rows(300, 2, 0.01)
    gp = _gp(2, 0.01, 0.03, 1.5)
    with pytest.warns(fgp.FlashGPWarning):
        post = gp.condition(x, y, approximation="fourier", time_limit=1e-3)
    (event,) = of_kind(post.report.events, EventKind.FOURIER_UNFINISHED)
    assert event.fields["error"] > event.fields["asked"]
    assert post.report.error_bound is None  # nor was there time to measure what the grid leaves out


def _with_little_factored(post: fgp.Posterior, windows: WindowSettings) -> fgp.Posterior:
    """The posterior as if it had more frequencies than a factor takes, and more points than solves have time for."""
    state = post.state
    solves = SolveSettings(dense=20, block=50, share=2)
    few = replace(state.settings, windows=windows, solves=solves, solved_numbers=0, most_rows=0)
    system = replace(state.weights.system, settings=few.solves)
    solution = replace(state.weights.solution, iterations=20)
    weights = replace(state.weights, system=system, solution=solution)
    return fgp.Posterior(replace(state, settings=few, weights=weights))


def test_variances_without_a_factor_are_those_of_few_rows() -> None:
    """Eq. (M-42): the tail in them, and in scores of rows left out, which series of the same rows have within it."""
    x, y = _rows(150, 3, 0.1)
    gp, x_test = _gp(3, 0.1, 0.3), _rows(40, 3, 0.1, 1)[0]
    exact, post = gp.condition(x, y), gp.condition(x, y, approximation="fourier")
    assert not post.state.weights.system.dense
    known, found = exact.predict(x_test), post.predict(x_test)
    torch.testing.assert_close(found.variance, known.variance, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found.covariance(), known.covariance(), rtol=1e-9, atol=1e-12)
    (event,) = of_kind(found.report.events, EventKind.FOURIER_ROWS)
    assert event.fields["rows"] == 150
    taped = x_test[:3].clone().requires_grad_()
    (slope,) = torch.autograd.grad(post.predict(taped).variance.sum(), taped)
    (wanted,) = torch.autograd.grad(exact.predict(taped).variance.sum(), taped)
    torch.testing.assert_close(slope, wanted, rtol=1e-8, atol=1e-10)

    without, said = exact.leave_one_out(), post.leave_one_out()
    torch.testing.assert_close(said.variance, without.variance, rtol=1e-9, atol=0.0)
    assert float((said.mean - without.mean).abs().max()) < 2.0 * post.state.tail**0.5
    part = post.leave_out(x[:20], y[:20])  # of few of the rows that it has seen
    torch.testing.assert_close(part.mean, said.mean[:20], rtol=0.0, atol=2.0 * post.state.tail**0.5)


def test_a_factor_of_the_rows_is_taken_where_it_is_quicker() -> None:
    x, y = _rows(2000, 2, 0.05)
    post = _gp(2, 0.05, 0.4).condition(x, y, approximation="fourier")
    state = _with_little_factored(post, WindowSettings(frequencies=())).state
    for draws, taken in ((1, False), (10_000, True)):
        settings = replace(state.settings, draws=draws, most_rows=2000)
        assert bool(predictor(replace(state, settings=settings), deterministic=False).by_rows) is taken


def test_sampled_variances_say_their_error() -> None:
    x, y = _rows(400, 2, 0.05)
    gp, x_test = _gp(2, 0.05, 0.4), _rows(200, 2, 0.05, 1)[0]
    post = gp.condition(x, y, approximation="fourier")
    sampled = _with_little_factored(post, WindowSettings(frequencies=())).predict(x_test)
    known = post.predict(x_test).variance
    ratio = sampled.variance / known
    assert 0.85 < float(ratio.mean()) < 1.15
    assert float(ratio.std()) < 0.4
    (event,) = of_kind(sampled.report.events, EventKind.FOURIER_VARIANCE)
    assert event.fields["draws"] == 32


@pytest.mark.parametrize(("d", "lengthscale", "frequencies"), [(1, 0.02, 200), (2, 0.12, 500), (2, 0.12, 300)], ids=str)
def test_variances_by_windows_are_within_what_they_say(d: int, lengthscale: float, frequencies: int) -> None:
    """With a gap, whose variances are near the prior's, (M-445)."""
    x, y = _rows(3000, d, 0.05)
    kept = (x - 0.4).norm(dim=1) > 0.15
    gp, x_test = _gp(d, 0.05, lengthscale), _rows(400, d, 0.05, 1)[0]
    post = gp.condition(x[kept], y[kept], approximation="fourier")
    near = _with_little_factored(post, WindowSettings(frequencies=(frequencies,))).predict(x_test)
    ratio = near.variance / post.predict(x_test).variance - 1.0
    (event,) = of_kind(near.report.events, EventKind.FOURIER_WINDOWS)
    assert event.fields["error"] < 0.06
    assert float(ratio.abs().max()) < 1.5 * event.fields["error"] + 1e-3
    assert float(ratio.abs().median()) < 0.01


def test_scores_without_a_factor_are_priced_before_a_time_limit_lets_them_begin() -> None:
    """Windows and the solves that check them, not what conditioning took: these ran on for minutes past the limit."""
    x, y = _rows(3000, 2, 0.05)
    post = _gp(2, 0.05, 0.12).condition(x, y, approximation="fourier")
    slow = _with_little_factored(post, WindowSettings(frequencies=(500,), checked=3000))
    assert slow.predict_seconds(3000) - post.predict_seconds(3000) > 10.0
    soon = Deadline.after(0.5 * slow.predict_seconds(3000), lambda: 0.0)
    assert AFTER_FIT.has_time_for_left_out(post, soon)
    assert not AFTER_FIT.has_time_for_left_out(slow, soon)


@GRIDS
@pytest.mark.parametrize("held", [True, False])
def test_files_keep_every_answer(tmp_path: Path, held: bool, name: str) -> None:
    gp, d = _model(name)
    (x, y), x_test = _rows(300, d, 0.05), _rows(20, d, 0.05, 1)[0]
    rows: tuple[Any, ...] = (x, y) if held else ([(x[:200], y[:200]), (x[200:], y[200:])],)
    post = gp.condition(*rows, approximation="fourier")
    fgp.save(post, tmp_path / "model.fgp")
    other = fgp.load(tmp_path / "model.fgp")
    one, two = post.predict(x_test), other.predict(x_test)
    assert torch.equal(one.mean, two.mean)
    torch.testing.assert_close(one.variance, two.variance, rtol=1e-10, atol=0.0)
    for term, kept in zip(post.components, other.components, strict=True):
        torch.testing.assert_close(term.predict(x_test).mean, kept.predict(x_test).mean, rtol=1e-10, atol=1e-12)
    assert float(post.log_marginal_likelihood()) == pytest.approx(float(other.log_marginal_likelihood()), rel=1e-12)
    assert post.can("leave_one_out") == other.can("leave_one_out")
    assert (post.can("leave_one_out") is None) == held


# -- bad input ---------------------------------------------------------------------------------------------------------
def test_points_outside_the_box_are_refused() -> None:
    x, y = _rows(200, 2, 0.05)
    post = _gp(2, 0.05).condition(x, y, approximation="fourier")
    far = torch.tensor([[0.5, 0.5], [2.0, 0.5]], dtype=F64)
    with pytest.raises(fgp.DomainError, match=r"`x_test` must lie within 10% .* the first is row 1"):
        _ = post.predict(far).mean
    with pytest.raises(fgp.DomainError, match="`x` must lie"):
        post.append(far, torch.zeros(2, dtype=F64))


@pytest.mark.parametrize(
    ("gp", "d", "message"),
    [
        (fgp.GP(k.Linear()), 1, "stationary"),
        (fgp.GP(k.Matern(lengthscale=torch.ones(4, dtype=F64))), 4, "one to 3 columns"),
        (fgp.GP(k.Matern(), outputs=2), 1, "one noise for all outputs"),
        (fgp.GP(k.Matern(nu=0.5, lengthscale=1e-6), likelihood=fgp.likelihoods.Gaussian(1e-6)), 1, "frequencies up to"),
    ],
)
def test_models_without_a_series_are_refused(gp: fgp.GP, d: int, message: str) -> None:
    x, y = _rows(50, d, 0.05)
    y = y.unsqueeze(1).expand(-1, 2) if gp.outputs else y
    with pytest.raises(fgp.DomainError, match=message):
        gp.condition(x, y, approximation="fourier")


def test_more_frequencies_than_memory_holds_are_refused() -> None:
    x, y = _rows(200, 2, 0.05)
    with pytest.raises(fgp.MemoryBudgetError, match="frequencies need"):
        _gp(2, 1e-3, 0.02, 0.5).condition(x, y, approximation="fourier", memory="20 MB")


def test_sizes_of_other_approximations_are_refused() -> None:
    x, y = _rows(50, 1, 0.05)
    with pytest.raises(fgp.DomainError, match="leave them out"):
        _gp(1, 0.05).condition(x, y, approximation="fourier", inducing=20)


def test_an_absent_library_is_named_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "finufft.py").write_text("raise ImportError('absent')\n")
    code = (
        "import dataclasses, torch, flashgp as fgp\n"
        "x = torch.rand(50, 1)\n"
        "try:\n    fgp.GP(fgp.kernels.Matern()).condition(x, x[:, 0], approximation='fourier')\n"
        "except fgp.BackendUnavailableError as error:\n    print(error)\n"
        "plan = fgp.plan(fgp.GP(fgp.kernels.Matern()), n=50, d=1, route='recomputed', device='cpu')\n"
        "slow = dataclasses.replace(plan, seconds=100.0)  # certified solves then go without\n"
        "print(*fgp.GP(fgp.kernels.Matern()).condition(x.double(), x[:, 0], plan=slow).report.events)\n"
    )
    source = str(Path(fgp.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), source])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.count("pip install flashgp[fourier]") == 2
