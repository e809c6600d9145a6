"""Training on many rows: estimated gradients, Fisher information, the search by gradients; at sizes where the exact
answer is known."""

import dataclasses
import math

import numpy
import pytest
import torch

import flashgp as fgp
from flashgp.foundations.determinism import deterministically
from flashgp.foundations.errors import ConvergenceError, NotPositiveDefiniteError
from flashgp.foundations.events import Event, EventKind, of_kind
from flashgp.inference.exact.likelihood import DirectSettings
from flashgp.inference.replicates import equal_rows, join
from flashgp.inference.training import stochastic as large_fit
from flashgp.inference.training import stochastic_objective as large_objective
from flashgp.inference.training.checkpoint import EvaluationLog
from flashgp.inference.training.fisher_information import fisher_information
from flashgp.inference.training.fisher_scoring import STIFFEST, _updated, descend
from flashgp.inference.training.history import Recorder, TimeUp
from flashgp.inference.training.objective import FlatObjective
from flashgp.inference.training.stochastic import part_sizes, with_factored_part
from flashgp.inference.training.stochastic_objective import LargeObjective
from flashgp.pairwise.torch.tiles import TorchTiles
from flashgp.planner import conditioning
from flashgp.solvers.direct import headed_cholesky
from flashgp.solvers.preconditioners import candidate as second


def table(n: int, d: int = 3, outputs: int | None = None, noise: float = 0.1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(n + d)
    x = torch.randn(n, d, generator=generator, dtype=torch.float64)
    f = torch.sin(2.0 * x[:, 0]) + x[:, 1].square() * 0.3
    columns = [f + noise**0.5 * torch.randn(n, generator=generator, dtype=torch.float64) for _ in range(outputs or 1)]
    return x, torch.stack(columns, dim=-1) if outputs else columns[0]


def prior(d: int = 3, outputs: int | None = None, noise: float = 0.1) -> fgp.GP:
    kernel = 1.5 * fgp.kernels.Matern(nu=1.5, lengthscale=torch.full((d,), 1.2, dtype=torch.float64))
    return fgp.GP(kernel, likelihood=fgp.likelihoods.Gaussian(noise), outputs=outputs)


def objectives(gp: fgp.GP, x, y, **options) -> tuple[FlatObjective, LargeObjective]:
    settings = DirectSettings(TorchTiles())
    exact = FlatObjective(gp, x, y, settings, {}, weak=False)
    options = {"stored": True, "seed": 0, **options}
    return exact, LargeObjective(gp, x, y, settings, {}, False, **options)


@pytest.mark.parametrize(("outputs", "stored"), [(None, True), (2, False)])
def test_estimated_gradients_are_unbiased(outputs, stored):
    """(M-102): the mean over independent probes is the exact gradient, within four standard errors."""
    x, y = table(100, outputs=outputs)
    gp = prior(outputs=outputs)
    exact, _ = objectives(gp, x, y)
    theta = exact.vector()
    _, wanted = exact(theta)
    found = []
    for seed in range(16):
        _, large = objectives(gp, x, y, stored=stored, seed=seed)
        found.append(large(theta)[1])
    mean, error = numpy.mean(found, axis=0), numpy.std(found, axis=0, ddof=1) / math.sqrt(len(found))
    # Solves stop at a relative residual of 1e-2, which is a bias of that order of each quadratic form.
    assert (numpy.abs(mean - wanted) < 4.0 * error + 2e-2 * numpy.abs(wanted) + 0.5).all()


def test_noise_of_each_row_and_its_weight_take_part():
    x, y = table(120)
    gp = prior()
    gp.likelihood = fgp.likelihoods.Gaussian(0.05, row_variance=torch.linspace(0.01, 0.5, 120, dtype=torch.float64))
    exact, large = objectives(gp, x, y, probes=64)
    theta = exact.vector()
    wanted, found = exact(theta)[1], large(theta)[1]
    assert numpy.linalg.norm(found - wanted) < 0.1 * numpy.linalg.norm(wanted)


def test_the_estimate_is_a_smooth_function_until_it_is_refreshed():
    x, y = table(150)
    _, large = objectives(prior(), x, y)
    theta = large.vector()
    first, again = large(theta)[1], large(theta + 1e-9)[1]
    assert numpy.allclose(first, again, rtol=1e-3, atol=1e-3)
    large.refresh(theta)
    other = large(theta)[1]
    assert numpy.abs(other - first).max() > 1e-2


def test_warm_starts_save_passes():
    x, y = table(300)
    _, large = objectives(prior(), x, y)
    theta = large.vector()
    large(theta)
    cold = large.iterations
    large(theta + 0.001)
    assert large.iterations - cold < cold


def test_slow_gradients_take_near_rows_and_the_next_begin_with_them(monkeypatch):
    """Eq. (M-121): the gradient is that of the low rank with the same probes, and the report says what happened."""
    x, y = table(700, d=2, noise=1e-2)
    gp = prior(d=2, noise=1e-3)
    gp.kernel.kernel.lengthscale.value = torch.full((2,), 0.4, dtype=torch.float64)
    _, low = objectives(gp, x, y, rank=16)
    theta = low.vector()
    with monkeypatch.context() as patch:
        patch.setattr(second, "WORTHWHILE", math.inf)  # whatever rounding does to so small a solve
        wanted = low(theta)[1]
    monkeypatch.setattr(second, "MAKING_PAIRS", 0)  # as if near rows cost nothing, even to so few
    monkeypatch.setattr(second, "WORTHWHILE", 5)
    _, large = objectives(gp, x, y, rank=16)
    found = large(theta)[1]
    assert numpy.linalg.norm(found - wanted) < 0.05 * numpy.linalg.norm(wanted)
    said = Event(EventKind.GRADIENTS_VECCHIA, kept=True)
    assert said in large.settings.workspace.events
    assert said not in low.settings.workspace.events
    assert 2 * large.iterations < low.iterations
    first = large.iterations
    large.refresh(theta)  # with other probes nothing is warm
    large(theta)
    assert large.iterations - first <= first // 3


def slow_objective():
    x, y = table(700, d=2, noise=1e-2)
    gp = prior(d=2, noise=1e-3)
    gp.kernel.kernel.lengthscale.value = torch.full((2,), 0.4, dtype=torch.float64)
    return objectives(gp, x, y, rank=16)[1]


def test_after_a_gradient_that_needed_no_near_rows_a_slow_one_takes_them_again(monkeypatch):
    monkeypatch.setattr(second, "WORTHWHILE", 5)
    monkeypatch.setattr(second, "MAKING_PAIRS", 15_000)
    large = slow_objective()
    theta, taken = large.vector(), []
    for refreshed in (False, False, True):
        if refreshed:
            large.refresh(theta)
        before = large.iterations
        large(theta)
        taken.append(large.iterations - before)
        assert large._near == ("untried" if taken[-1] == 0 else "kept")
    assert taken[1] == 0  # warm
    assert taken[2] < 60, taken  # without near rows, 145
    assert of_kind(large.settings.workspace.events, EventKind.GRADIENTS_NO_VECCHIA)


def test_with_deterministic_gradients_say_that_they_took_near_rows_and_nothing_follows(monkeypatch):
    monkeypatch.setattr(second, "WORTHWHILE", 5)
    monkeypatch.setattr(second, "MAKING_PAIRS", 0)
    with deterministically(True):
        large = slow_objective()
        for shift in (0.0, 0.2):
            large(large.vector() + shift)
            assert large._near == "untried"
    said = Event(EventKind.GRADIENTS_VECCHIA, kept=True)
    assert said in large.settings.workspace.events


def test_solves_end_on_the_error_that_counts_in_the_gradient():
    """(M-106): at small noise a relative residual of 1e-2 would leave the noise out; the gradient here is that of exact
    solves with the same probes, in units of the Fisher information."""
    x, y = table(200, noise=1e-3)
    exact, large = objectives(prior(noise=1e-3), x, y)
    _, sharp = objectives(prior(noise=1e-3), x, y)
    theta = exact.vector()
    found = large(theta)[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large_objective, "TRAINING_ERROR", 1e-6)
        wanted = sharp(theta)[1]
    units = numpy.sqrt(2.0 * numpy.diag(fisher_information(exact, theta, 100, 0)))
    limit = 0.03 * math.sqrt(200)
    assert (numpy.abs(found - wanted) < 2.0 * limit * units).all()
    assert large.residual < 0.05


def test_a_solve_that_gets_nowhere_is_no_gradient(monkeypatch):
    """Half solved is not solved: neither when time is up, nor when iterations are."""
    x, y = table(150)
    _, large = objectives(prior(), x, y, deadline=0.0)
    with pytest.raises(TimeUp):
        large(large.vector())
    for name in ("USELESS_RESIDUAL", "TRAINING_ERROR", "EXACT_RESIDUAL"):
        monkeypatch.setattr(large_objective, name, 0.0)
    _, large = objectives(prior(), x, y)
    with pytest.raises(ConvergenceError, match="the solves of one gradient ended"):
        large(large.vector())


def test_a_gradient_that_has_to_do_is_said(monkeypatch):
    """A solve that ends short of its goal, but is an answer, gives a gradient and a line in the report."""
    x, y = table(150)
    for name in ("TRAINING_ERROR", "EXACT_RESIDUAL"):
        monkeypatch.setattr(large_objective, name, 0.0)
    _, sharp = objectives(prior(), x, y)
    assert numpy.isfinite(sharp(sharp.vector())[1]).all()
    assert not of_kind(sharp.settings.workspace.events, EventKind.GRADIENTS_ROUGH)
    monkeypatch.setattr(large_objective, "ROUGH_RESIDUAL", 0.0)
    _, rough = objectives(prior(), x, y)
    assert numpy.isfinite(rough(rough.vector())[1]).all()
    (line,) = of_kind(rough.settings.workspace.events, EventKind.GRADIENTS_ROUGH)
    assert line.fields == {"reason": "stagnated", "residual": 0.0}


def test_a_factor_takes_over_when_iterations_take_as_long():
    """With P = L L^T probes are draws of the model: the same expectation, by another route, which the report names."""
    x, y = table(150, noise=1e-3)
    gp = prior(noise=1e-3)
    exact, large = objectives(gp, x, y, factor_passes=1, probes=64)
    theta = exact.vector()
    wanted, found = exact(theta)[1], large(theta)[1]
    assert large.factored
    assert of_kind(large.settings.workspace.events, EventKind.GRADIENTS_BY_FACTORS)
    assert numpy.linalg.norm(found - wanted) < 0.15 * numpy.linalg.norm(wanted)
    assert not large.headed
    _, few = objectives(gp, x, y, factor_passes=1, probes=8)
    few(theta)
    assert few.probes == large_objective.FACTOR_PROBES == conditioning.FACTOR_COLUMNS - 1, "planned, and better"
    assert 4 * headed_cholesky.PANEL_BYTES == conditioning.HEAD_BYTES, "planned: a panel, its rows, a product, a copy"


def test_factors_get_a_float64_head_where_float32_has_none(monkeypatch):
    """A smooth covariance with little noise; also after many corrections, and the estimate stays a smooth function."""
    x, y = table(150, noise=1e-6)
    gp = fgp.GP(9.0 * fgp.kernels.RBF(lengthscale=torch.full((3,), 3.0)), likelihood=fgp.likelihoods.Gaussian(1e-6))
    exact, large = objectives(gp, x, y, factor_passes=1, probes=64)
    theta = exact.vector()
    wanted, found = exact(theta)[1], large(theta)[1]
    assert large.headed
    assert of_kind(large.settings.workspace.events, EventKind.GRADIENTS_HEADED)
    assert numpy.linalg.norm(found - wanted) < 0.15 * numpy.linalg.norm(wanted)
    again, moved = large(theta)[1], large(theta + 1e-6)[1]
    by_solves = slice(4, None)  # mean and noise; the others are sums in float32 of what nearly cancels here
    assert numpy.abs(moved - again)[by_solves].max() < 1e-5 * numpy.abs(wanted)[by_solves].max()
    easy = prior()
    _, many = objectives(easy, x, y, factor_passes=1)
    many.take_factors()
    many(many.vector())
    assert not many.headed
    assert 0 < many.corrections <= large_objective.ROUGH_CORRECTIONS
    assert not many.rough_factors
    monkeypatch.setattr(large_objective, "ROUGH_CORRECTIONS", 0)
    assert many.rough_factors
    monkeypatch.setattr(large_objective, "HEAD_AFTER", -1)
    many(many.vector())
    assert many.headed


def test_a_fit_whose_float32_factors_were_rough_makes_none_for_its_posterior(small_parts, monkeypatch):
    """What is known to fail is not repeated; float32 that worked is taken."""
    x, y = table(300)
    gp = prior()
    plan = dataclasses.replace(fgp.plan(gp, n=300, d=3, dtype=torch.float32), training="recomputed")
    assert fgp.fit(gp, x, y, plan=plan).report.dtype == "float32"
    monkeypatch.setattr(LargeObjective, "rough_factors", True)
    with pytest.warns(fgp.FlashGPWarning, match="were too rough near these parameters.* A float64 Cholesky"):
        found = fgp.fit(gp, x, y, plan=plan)
    assert found.report.dtype == "float64"
    assert found.report.jitter is None


def test_a_failed_trial_is_in_the_checkpoint(small_parts, tmp_path, monkeypatch):
    """A resumed fit recalls it; without it the log would not match and be thrown away."""
    x, y = table(300)
    gp = prior()
    calls = []
    original = LargeObjective.likelihood

    def failing(self, rows, tensors, wanted):
        calls.append(self.rows)
        if self.rows == 300 and calls.count(300) == 2:
            raise ConvergenceError("made up", iterations=1, residual=1.0, tolerance=0.5)
        return original(self, rows, tensors, wanted)

    monkeypatch.setattr(LargeObjective, "likelihood", failing)
    path = tmp_path / "fit.checkpoint"
    whole = fgp.fit(gp, x, y, plan=planned(gp, 300), checkpoint=path)
    assert Event(EventKind.POINTS_REJECTED, points=1, estimated=True) in whole.report.events
    assert Event(EventKind.POINT_FAILED, run="start 0", error="made up") in whole.report.events
    count = len(calls)
    resumed = fgp.fit(gp, x, y, plan=planned(gp, 300), checkpoint=path)
    assert len(calls) == count, "every evaluation came from the checkpoint, the failure too"
    assert resumed.history[-1].theta == whole.history[-1].theta


def test_fisher_information_from_scores():
    """(M-103), (M-104): 1/2 tr(K^-1 dK_i K^-1 dK_j) for covariance parameters, m'^T K^-1 m' for the mean."""
    x, y = table(60)
    gp = prior()
    exact, _ = objectives(gp, x, y)
    theta = exact.vector()
    found = fisher_information(exact, theta, 300, 0)

    def matrix(raw: torch.Tensor) -> torch.Tensor:
        named = {}
        for slot in exact.slots:
            named[slot.name] = raw[slot.start : slot.stop].reshape(slot.tensor.shape)
        return gp.at(
            named,
            x,
            y,
            lambda g: g.kernel.operator(x).to_dense() + torch.diag(g.likelihood.diagonal(60, x.device).expand(60)),
        )

    slopes = torch.autograd.functional.jacobian(matrix, torch.from_numpy(theta))
    inverse = torch.linalg.inv(matrix(torch.from_numpy(theta)))
    wanted = 0.5 * torch.einsum("ab,bci,cd,daj->ij", inverse, slopes, inverse, slopes).detach()
    for slot in exact.slots:
        if slot.name.startswith("mean"):
            wanted[slot.start, slot.start] += inverse.sum().detach()
    wanted = wanted.numpy()
    diagonal = numpy.diag(numpy.diag(wanted))
    wanted = 0.9 * wanted + 0.1 * diagonal
    scale = numpy.sqrt(numpy.outer(numpy.diag(wanted), numpy.diag(wanted)))
    assert (numpy.abs(found - wanted) < 0.25 * scale).all()


@pytest.mark.parametrize("outputs", [None, 2])
def test_fisher_information_counts_what_repeats_say_about_the_noise(outputs):
    """(M-109): the information of the joined rows with their factors is that of all rows, which is known."""
    x, y = table(30, outputs=outputs)
    times = torch.arange(30) % 6 + 1
    x, y = x.repeat_interleave(times, 0), y.repeat_interleave(times, 0)
    y = y + 0.3 * torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    gp = prior(outputs=outputs)
    whole = objectives(gp, x, y)[0]
    wanted = fisher_information(whole, whole.vector(), 400, 0)
    joined = join(gp, x, y, equal_rows(gp, x, y))
    gp.likelihood = joined.likelihood
    few = objectives(gp, joined.x, joined.y)[0]
    assert [s.name for s in few.slots] == [s.name for s in whole.slots]
    found = fisher_information(few, few.vector(), 400, 1)
    scale = numpy.sqrt(numpy.outer(numpy.diag(wanted), numpy.diag(wanted)))
    # Of 400 draws a variance is known to sqrt(2 / 400), the difference of two to 0.1: four of these.
    assert (numpy.abs(found - wanted) < 0.4 * scale).all()
    (noise,) = (s.start for s in few.slots if s.name.startswith("likelihood"))
    variances = gp.likelihood.diagonal(len(joined.x), x.device).expand(len(joined.x)).detach()
    repeats = gp.likelihood.beyond_information(x.device, outputs or 1)
    assert torch.allclose(repeats * variances.square(), 0.5 * (outputs or 1) * gp.likelihood.excess)
    half = 0.5 * (outputs or 1) * (len(x) - 30)
    assert found[noise, noise] > 0.8 * half, "in the logarithm of the noise variance: half of the excess"


def quadratic(condition: float, p: int = 6) -> tuple[numpy.ndarray, numpy.ndarray]:
    rotation = numpy.linalg.qr(numpy.random.default_rng(0).standard_normal((p, p)))[0]
    return rotation @ numpy.diag(numpy.geomspace(1.0, condition, p)) @ rotation.T, numpy.linspace(-0.5, 0.5, p)


@pytest.mark.parametrize("factor", [0.1, 1.0, 10.0])
def test_a_descent_finds_the_minimum_with_a_curvature_that_is_off(factor):
    """(M-105)."""
    matrix, minimum = quadratic(100.0)
    everywhere = numpy.full(6, numpy.inf)
    found = descend(
        lambda t: matrix @ (t - minimum), numpy.zeros(6), factor * matrix, -everywhere, everywhere, enough=1e-6,
        max_evaluations=60,
    )  # fmt: skip
    assert found.converged
    off = found.theta - minimum
    assert 0.5 * off @ matrix @ off < 1e-4


def test_a_descent_learns_from_its_first_step_how_stiff_all_directions_are():
    """A curvature that is three times that of the model: one overshot step says so, and the promise of the next is not
    three times what is left to gain."""
    generator = numpy.random.default_rng(0)
    root = generator.standard_normal((6, 6))
    matrix = root @ root.T + 6.0 * numpy.eye(6)
    everywhere = numpy.full(6, 1e3)
    start = numpy.full(6, 0.02)
    asked = []

    def ask(theta):
        asked.append(theta)
        return matrix @ theta

    def found(model, ask=ask, start=start, most=60, stiffness=1.0):
        asked.clear()
        return descend(
            ask, start, model, -everywhere, everywhere, enough=1e-6, max_evaluations=most, stiffness=stiffness
        )

    overshot = found(matrix / 3.0)
    assert numpy.allclose(overshot.curvature, matrix, rtol=1e-9)
    assert numpy.allclose(overshot.theta, 0.0, atol=1e-3)
    assert overshot.stiffness == pytest.approx(3.0)
    last = found(matrix / 3.0, most=2)  # ends beyond: what one more step would gain is the truth
    assert last.expected == pytest.approx(0.5 * last.theta @ matrix @ last.theta, rel=1e-6)
    assert not numpy.allclose(last.theta, 0.0, atol=1e-3)
    stiffer = found(matrix / 100.0)
    assert numpy.allclose(stiffer.theta, 0.0, atol=1e-3), "of a model that is off by more than STIFFEST too"
    assert found(matrix / 5.0).stiffness == pytest.approx(STIFFEST)
    soft = found(5.0 * matrix, most=2)
    assert soft.stiffness == 1.0, "longer steps than the model's are not taken"
    again = found(matrix, stiffness=STIFFEST)
    assert again.stiffness == pytest.approx(STIFFEST)
    more = found(matrix / 2.0, stiffness=STIFFEST)
    assert more.stiffness == pytest.approx(STIFFEST), "of all searches together"
    taken_back = found(2.0 * matrix, stiffness=STIFFEST)
    assert taken_back.stiffness == pytest.approx(STIFFEST / 2.0)
    assert numpy.allclose(taken_back.curvature, matrix, rtol=1e-9)

    def reluctant(theta):
        asked.append(theta)
        return NotPositiveDefiniteError("not there") if len(asked) == 2 else matrix @ theta

    after = found(matrix / 3.0, reluctant)
    assert numpy.allclose(after.curvature, matrix, rtol=1e-9), "of the first step that could be looked at"

    def wild(theta):
        asked.append(theta)
        return 1e3 * matrix @ theta if len(asked) == 2 else matrix @ theta

    assert found(matrix / 3.0, wild).stiffness == pytest.approx(1.0), "a wild step says nothing of other directions"
    still = found(matrix / 3.0, start=1e-9 * start)
    assert still.evaluations == 1
    assert numpy.allclose(still.curvature, matrix / 3.0), "without a step nothing was learned"


def test_what_one_direction_says_of_all_stays_bounded_over_parts():
    """First steps find the stiffness of one direction, which is put on all that have none."""
    p, rows = 10, [2250 * 2**k for k in range(5)]
    everywhere = numpy.full(p, 1e3)
    model, theta, stiffness = 100.0 * numpy.eye(p), numpy.zeros(p), 1.0
    for k, n in enumerate(rows):
        true = 100.0 * n / rows[0] * numpy.diag([2.0**k] + [1.0] * (p - 1))
        minimum = (k + 1) * numpy.array([0.2] + [0.05] * (p - 1))
        found = descend(
            lambda theta: true @ (theta - minimum),  # noqa: B023
            theta, model * n / rows[max(0, k - 1)], -everywhere, everywhere, enough=1e-3 * n, max_evaluations=40,
            stiffness=stiffness,
        )  # fmt: skip
        model, theta, stiffness = found.curvature, found.theta, found.stiffness
        assert found.converged
        left = 0.5 * (theta - minimum) @ true @ (theta - minimum)
        assert left <= 3.0 * 1e-3 * n
    assert stiffness == STIFFEST == 3.0, "12 without a bound"


@pytest.mark.parametrize("wild", [1e3, 1e6, 1e12, 1e160])
@pytest.mark.parametrize("seed", range(10))
def test_answers_that_make_no_sense_break_nothing(wild, seed):
    """A descent that is given up returns where it was, with a curvature that the next one can begin with."""
    generator = numpy.random.default_rng(seed)
    matrix, far, asked = 1e3 * numpy.eye(4), numpy.full(4, 1e3), []

    def ask(theta):
        asked.append(theta)
        return matrix @ theta if len(asked) == 1 else wild * generator.standard_normal(4)

    start = numpy.full(4, 0.02)
    found = descend(ask, start, matrix, -far, far, enough=1e-6, max_evaluations=60)
    assert numpy.isfinite(found.expected)
    numpy.linalg.cholesky(found.curvature)


@pytest.mark.parametrize("nothing", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_is_none(nothing):
    matrix, everywhere, asked = numpy.eye(4), numpy.full(4, numpy.inf), []

    def ask(theta):
        asked.append(theta)
        return matrix @ theta * (nothing if len(asked) == 2 else 1.0)

    found = descend(ask, numpy.full(4, 0.1), 0.5 * matrix, -everywhere, everywhere, enough=1e-9, max_evaluations=30)
    assert found.converged
    assert numpy.allclose(asked[2], 0.5 * (asked[0] + asked[1])), "half as far"
    with pytest.raises(NotPositiveDefiniteError, match="not finite"):
        asked[:] = [0]
        descend(ask, numpy.full(4, 0.1), matrix, -everywhere, everywhere, enough=1e-9, max_evaluations=30)


def test_updates_that_rounding_spoils_are_not_taken():
    """Nor would Cholesky's method take them for any of the parameters that are free."""
    generator = numpy.random.default_rng(0)
    model = numpy.eye(5)
    for _ in range(200):
        step = generator.standard_normal(5) * 10.0 ** generator.uniform(-8, 8, 5)
        model = _updated(model, step, generator.standard_normal(5) * 10.0 ** generator.uniform(-8, 8, 5))
        for count in range(1, 6):
            free = generator.permutation(5)[:count]
            numpy.linalg.cholesky(model[numpy.ix_(free, free)])


def test_factors_that_take_over_during_the_first_step_are_no_curvature():
    """Another estimate of the gradient has another error."""
    matrix, everywhere, asked = numpy.eye(4), numpy.full(4, numpy.inf), []

    def ask(theta):
        asked.append(theta)
        return matrix @ (theta - 1.0 + (0.0 if len(asked) == 1 else 2.0) * theta)  # steeper by three

    found = descend(
        ask, numpy.zeros(4), matrix, -everywhere, everywhere, enough=1e-6, max_evaluations=2,
        stiffens=lambda: len(asked) > 1,
    )  # fmt: skip
    assert found.stiffness == 1.0
    asked.clear()
    always = descend(ask, numpy.zeros(4), matrix, -everywhere, everywhere, enough=1e-6, max_evaluations=2)
    assert always.stiffness == pytest.approx(3.0), "which would be read as that"


def test_a_descent_stays_within_bounds_and_ends_on_them():
    matrix, minimum = quadratic(10.0)
    low, high = numpy.full(6, -0.2), numpy.full(6, 0.2)
    asked = []

    def ask(theta):
        asked.append(theta)
        return matrix @ (theta - minimum)

    found = descend(ask, numpy.zeros(6), matrix, low, high, enough=1e-8, max_evaluations=60)
    assert found.converged
    assert all((low <= t).all() and (t <= high).all() for t in asked)
    gradient = matrix @ (found.theta - minimum)
    inside = (found.theta > low) & (found.theta < high)
    assert numpy.abs(gradient[inside]).max(initial=0.0) < 1e-3
    assert (gradient[found.theta <= low] >= 0).all()
    assert (gradient[found.theta >= high] <= 0).all()


@pytest.mark.parametrize("most", [1, 2, 3, 4])
def test_the_last_gradient_of_a_descent_does_not_make_it_worse(most):
    """A step that overshoots is not where it ends, however few gradients are left."""
    steep, start, taken = 40.0, numpy.array([0.1]), []

    def ask(theta):
        return steep * numpy.sinh(steep * theta)

    everywhere = numpy.full(1, numpy.inf)
    found = descend(
        ask, start, numpy.eye(1), -everywhere, everywhere, enough=1e-3, max_evaluations=most, accepted=taken.append
    )
    assert found.evaluations == most
    assert abs(found.theta[0]) <= abs(start[0]) + 1e-12
    assert numpy.array_equal(found.theta, taken[-1])
    assert numpy.allclose(found.gradient, ask(found.theta))


def test_a_parameter_on_a_plateau_does_not_hold_back_the_others():
    """(M-105): the seventh would run far away, and another time there is none."""
    matrix, minimum = quadratic(10.0)

    def steps(p, slope):
        asked = []

        def ask(theta):
            asked.append(theta)
            return numpy.append(matrix @ (theta[:6] - minimum), -slope * numpy.exp(-2.0 * theta[6:]))

        curvature = 1e-6 * numpy.eye(p)
        curvature[:6, :6] = matrix
        everywhere = numpy.full(p, numpy.inf)
        descend(ask, numpy.zeros(p), curvature, -everywhere, everywhere, enough=1e-4, max_evaluations=60)
        return next(k for k, theta in enumerate(asked) if numpy.abs(theta[:6] - minimum).max() < 0.05)

    assert steps(7, 0.01) == steps(6, 0.0)


def test_a_descent_steps_back_from_where_nothing_can_be_computed():
    matrix, minimum = quadratic(10.0)
    everywhere = numpy.full(6, numpy.inf)

    def ask(theta):
        if numpy.abs(theta).max() > 0.55:
            return NotPositiveDefiniteError("there")
        return matrix @ (theta - minimum)

    found = descend(ask, numpy.zeros(6), 0.2 * matrix, -everywhere, everywhere, enough=1e-6, max_evaluations=60)
    assert found.converged
    with pytest.raises(NotPositiveDefiniteError):
        descend(ask, numpy.ones(6), matrix, -everywhere, everywhere, enough=1e-6, max_evaluations=60)


def test_parts_grow_by_the_same_factor():
    assert part_sizes(2500, 2000) == []
    assert part_sizes(15_000, 2000) == [3750]
    assert part_sizes(1_000_000, 2000) == [3906, 15_625, 62_500, 250_000]
    assert all(size > 2000 for n in (2001, 8000, 8001, 36_000) for size in part_sizes(n, 2000))


def test_a_part_for_factors_comes_only_where_what_follows_is_larger():
    assert with_factored_part([], 3366, 13_464) == [6732]
    assert with_factored_part([], 7286, 14_574) == []  # two rows fewer than all
    assert with_factored_part([9000], 2250, 36_000) == [4500, 9000]
    assert with_factored_part([9000], 4500, 36_000) == [9000]


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(large_fit, "MIDDLE_ROWS", 200)


def planned(gp: fgp.GP, n: int, training: str = "stored", d: int = 3):
    return dataclasses.replace(fgp.plan(gp, n=n, d=d), training=training)


def test_a_search_that_strays_is_given_up(small_parts, monkeypatch):
    """Gradients that lie are found out by the exact likelihood of the first rows; what was there before is kept."""
    x, y = table(400)
    gp = prior()
    original = LargeObjective.likelihood

    def lying(self, rows, tensors, wanted):
        value, slopes = original(self, rows, tensors, wanted)
        return value, [slopes[0], slopes[1] - 50.0, *slopes[2:]]  # the noise had better vanish

    monkeypatch.setattr(LargeObjective, "likelihood", lying)
    with pytest.warns(fgp.FlashGPWarning, match="was rejected"):
        found = fgp.fit(gp, x, y, plan=planned(gp, 400))
    assert 0.05 < float(found.gp.likelihood.noise_variance.value) < 0.2
    by_factors = dataclasses.replace(planned(gp, 400), training_factor_passes=1)
    told = fgp.fit(gp, x, y, plan=by_factors)
    assert of_kind(told.report.events, EventKind.STAGE_WORSE)


def test_a_search_whose_end_cannot_be_checked_is_given_up(small_parts, monkeypatch):
    """No exact likelihood of the first rows can be had there: what was found before is kept, and the fit goes on."""
    x, y = table(400)
    gp = prior()
    original, seen = large_fit.FlatObjective.__call__, []

    def failing(self, theta):
        if self.rows == large_fit.MIDDLE_ROWS and seen:
            raise NotPositiveDefiniteError("not here")
        return original(self, theta)

    climb = large_fit._Climb.run
    monkeypatch.setattr(large_fit._Climb, "run", lambda self, *a: [climb(self, *a), seen.append(1)][0])
    monkeypatch.setattr(large_fit.FlatObjective, "__call__", failing)
    with pytest.warns(fgp.FlashGPWarning, match="was rejected"):
        found = fgp.fit(gp, x, y, plan=planned(gp, 400))
    assert found.posterior.count == 400


def test_a_search_that_ends_where_it_was_led_returns_that(small_parts, monkeypatch):
    """Nothing is gained by a step from there: no other vector has been seen, and this one is the answer."""
    monkeypatch.setattr(large_fit, "ENOUGH", 1e9)
    monkeypatch.setattr(large_fit.Trend, "ahead", lambda self, *_: self.theta + 0.01)
    x, y = table(400)
    found = fgp.fit(prior(), x, y, plan=planned(prior(), 400))
    middle = [e.theta for e in found.history if e.start == "middle"]
    last = [e.theta for e in found.history if e.start.startswith("start 0")][-1]
    assert last not in middle
    assert math.log(float(found.gp.likelihood.noise_variance.value)) in [pytest.approx(value) for value in last]
    assert float(found.gp.kernel.kernel.lengthscale.value[0]) in [pytest.approx(math.exp(value)) for value in last]


def test_training_beyond_the_memory_is_refused_before_any_work(monkeypatch):
    """Conditioning may fit where training does not; neither is begun."""
    x, y = table(60)
    gp = prior()
    plan = fgp.plan(gp, n=60, d=3)
    tight = dataclasses.replace(plan, training_bytes=plan.available_bytes + 1)
    monkeypatch.setattr("flashgp.inference.training.fit.FlatObjective", None)
    with pytest.raises(fgp.MemoryBudgetError, match=r"fitting 60 rows needs .* pass a larger memory=") as caught:
        fgp.fit(gp, x, y, plan=tight)
    assert caught.value.needed_bytes == plan.available_bytes + 1


@pytest.mark.parametrize("training", ["stored", "recomputed"])
def test_a_fit_by_estimated_gradients_is_as_good_as_the_exact_one(small_parts, training):
    """Within 0.01 nats per row of the optimum, on a table so small that its likelihood has a flat ridge."""
    x, y = table(500)
    gp = prior()
    exact = fgp.fit(gp, x, y)
    found = fgp.fit(gp, x, y, plan=planned(gp, 500, training))
    lost = float((exact.gp.log_marginal_likelihood(x, y) - found.gp.log_marginal_likelihood(x, y)).detach())
    assert lost < 0.01 * 500
    assert of_kind(found.report.events, EventKind.GRADIENTS_ESTIMATED)
    assert not of_kind(exact.report.events, EventKind.GRADIENTS_ESTIMATED)


def test_the_same_seed_gives_the_same_fit(small_parts):
    x, y = table(300)
    gp = prior()
    values = [fgp.fit(gp, x, y, plan=planned(gp, 300), seed=3).history[-1].theta for _ in range(2)]
    assert values[0] == values[1]


def test_values_that_are_gains_are_called_so(small_parts):
    """Of estimated gradients no value is known: history and progress have the gain of each run, by itself."""
    x, y = table(900)
    gp = prior()
    told = []
    found = fgp.fit(gp, x, y, plan=planned(gp, 900), progress=told.append)
    assert {e.measure for e in found.history if e.start.startswith(("part", "start"))} == {"gain"}
    assert {e.measure for e in found.history if e.start.startswith(("subset", "middle"))} == {"log joint"}
    for run in ("part 225", "start 0"):
        own = [e for e in found.history if e.start == run]
        assert own[0].value == 0.0
        assert own[-1].value > 0.0 or len(own) == 1
        best = [p.best for p in told if p.start == run]
        assert best == [max(e.value for e in own[: k + 1]) for k in range(len(own))]
    assert [p.measure for p in told] == [e.measure for e in found.history]
    exact = fgp.fit(gp, x[:30], y[:30])
    assert {e.measure for e in exact.history} == {"log joint"}


def test_gains_of_different_runs_are_not_compared():
    told = []
    recorder = Recorder(EvaluationLog(None, ""), told.append, math.inf, 10)
    zero = numpy.zeros(2)
    for run, value in (("part 500", -9.0), ("part 900", 0.0), ("part 900", -1.0)):
        recorder.record_round([(run, zero, (value, zero))], "gain")
    for run, value in (("start 0", 7.0), ("start 1", 8.0)):
        recorder.record_round([(run, zero, (value, zero))])
    assert [p.best for p in told] == [9.0, 0.0, 1.0, -7.0, -7.0]


def test_a_fit_of_many_rows_resumes(small_parts, tmp_path):
    x, y = table(300)
    gp = prior()
    whole = fgp.fit(gp, x, y, plan=planned(gp, 300))

    def stop(progress):
        if progress.phase == "fitting all rows" and progress.evaluation >= len(whole.history) - 1:
            raise KeyboardInterrupt

    path = tmp_path / "fit.checkpoint"
    cut = fgp.fit(gp, x, y, plan=planned(gp, 300), checkpoint=path, progress=stop)
    assert cut.interrupted
    resumed = fgp.fit(gp, x, y, plan=planned(gp, 300), checkpoint=path)
    assert of_kind(resumed.report.events, EventKind.RESUMED)
    assert numpy.allclose(resumed.history[-1].theta, whole.history[-1].theta, atol=0.05)


@pytest.mark.parametrize("nothing", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_is_no_evaluation(nothing, small_parts, monkeypatch):
    x, y = table(300)
    gp, computed, asked = prior(), LargeObjective.__call__, []

    def broken_once(self, theta):
        value, gradient = computed(self, theta)
        asked.append(theta)
        return (value, gradient * nothing) if len(asked) == 2 else (value, gradient)

    monkeypatch.setattr(LargeObjective, "__call__", broken_once)
    found = fgp.fit(gp, x, y, plan=planned(gp, 300))
    assert len(asked) > 2
    assert all(math.isfinite(e.value) and e.theta != tuple(asked[1].tolist()) for e in found.history)
    assert of_kind(found.report.events, EventKind.POINT_FAILED)


def test_a_time_limit_returns_where_the_last_part_ended(small_parts):
    x, y = table(900)
    gp = prior()
    seen = []

    def slow(progress):
        seen.append(progress.phase)
        if progress.phase == "fitting 225 rows":
            raise KeyboardInterrupt

    found = fgp.fit(gp, x, y, plan=planned(gp, 900), progress=slow, starts=1)
    assert found.interrupted
    assert Event(EventKind.SUBSET_FIT, starts=1, subset=400, rows=900) in found.report.events
    assert "fitting 200 rows" in seen
    middle = [e for e in found.history if e.start.startswith("middle")]
    best = max(middle, key=lambda e: e.value)
    raw = numpy.concatenate([p.detach().reshape(-1).numpy() for p in found.gp.parameters()])
    assert numpy.allclose(raw, best.theta)


def test_parts_that_take_to_factors_hand_them_on(small_parts, tmp_path):
    """The next part begins with factors, one of twice the rows comes before all, and a resumed fit knows all that."""
    x, y = table(900, noise=1e-3)
    gp = prior(noise=1e-3)
    plan = dataclasses.replace(planned(gp, 900), training_factor_passes=1)
    path = tmp_path / "fit.checkpoint"

    def stop(progress):
        if progress.start.startswith("start"):
            raise KeyboardInterrupt

    cut = fgp.fit(gp, x, y, plan=plan, checkpoint=path, progress=stop)
    assert cut.interrupted
    runs = list(dict.fromkeys(e.start for e in cut.history if e.start.startswith(("part", "start"))))
    assert runs == ["part 225, by factors", "part 450, by factors", "start 0, by factors"]
    resumed = fgp.fit(gp, x, y, plan=plan, checkpoint=path)
    (event,) = of_kind(resumed.report.events, EventKind.RESUMED)
    assert event.fields["evaluations"] == len(cut.history), "all of it counts"
    assert list(dict.fromkeys(e.start for e in resumed.history))[-3:] == runs
    whole = fgp.fit(gp, x, y, plan=plan)
    values = [float(one.gp.log_joint(x, y).detach()) for one in (resumed, whole)]
    assert abs(values[0] - values[1]) < 0.01 * 900  # as a fit by estimates against the exact one
