"""The estimated gradient of the log joint, at sizes where the exact one is known."""

import math

import numpy
import pytest
import torch

import flashgp as fgp
from flashgp.foundations.deadline import Deadline, TimeUp
from flashgp.foundations.determinism import deterministically
from flashgp.foundations.errors import ConvergenceError
from flashgp.foundations.events import Event, EventKind
from flashgp.inference.training.fisher_scoring import fisher_information
from flashgp.inference.training.history import Solving
from flashgp.inference.training.settings import EstimateSettings
from flashgp.inference.training.stochastic_objective import EstimatedLogJoint
from flashgp.planner.exact import FACTOR_COLUMNS
from flashgp.solvers.settings import ComparisonSettings, SolveSettings
from inference.training.tables import objectives, prior, table


@pytest.mark.parametrize(("outputs", "stored"), [(None, True), (2, False)])
def test_estimated_gradients_are_unbiased(outputs, stored):
    """(M-102): the mean over independent probes is the exact gradient, within four standard errors."""
    x, y = table(100, outputs=outputs)
    gp = prior(outputs=outputs)
    exact, _ = objectives(gp, x, y)
    theta = exact.parameters.values()
    wanted = exact(theta).gradient
    found = []
    for seed in range(16):
        _, large = objectives(gp, x, y, stored=stored, seed=seed)
        found.append(large(theta).gradient)
    mean, error = numpy.mean(found, axis=0), numpy.std(found, axis=0, ddof=1) / math.sqrt(len(found))
    # Solves stop at a relative residual of 1e-2, which is a bias of that order of each quadratic form.
    assert (numpy.abs(mean - wanted) < 4.0 * error + 2e-2 * numpy.abs(wanted) + 0.5).all()


def test_noise_of_each_row_and_its_weight_take_part():
    x, y = table(120)
    gp = prior()
    gp.likelihood = fgp.likelihoods.Gaussian(0.05, row_variance=torch.linspace(0.01, 0.5, 120, dtype=torch.float64))
    exact, large = objectives(gp, x, y, probes=64)
    theta = exact.parameters.values()
    wanted, found = exact(theta).gradient, large(theta).gradient
    assert numpy.linalg.norm(found - wanted) < 0.1 * numpy.linalg.norm(wanted)


def test_the_estimate_is_a_smooth_function_until_it_is_refreshed():
    x, y = table(150)
    _, large = objectives(prior(), x, y)
    theta = large.parameters.values()
    first, again = large(theta).gradient, large(theta + 1e-9).gradient
    assert numpy.allclose(first, again, rtol=1e-3, atol=1e-3)
    large.refresh(theta)
    other = large(theta).gradient
    assert numpy.abs(other - first).max() > 1e-2


def test_warm_starts_save_passes():
    x, y = table(300)
    _, large = objectives(prior(), x, y)
    theta = large.parameters.values()
    large(theta)
    cold = large.iterations
    large(theta + 0.001)
    assert large.iterations - cold < cold


def test_slow_gradients_take_full_scale_and_the_next_begin_with_it():
    """Eq. (M-121): the gradient is that of the low rank with the same probes, and the report says what happened."""
    x, y = table(700, d=2, noise=1e-2)
    gp = prior(d=2, noise=1e-3)
    gp.kernel.kernel.lengthscale.value = torch.full((2,), 0.4, dtype=torch.float64)
    _, low = objectives(gp, x, y, rank=16, limits={"solving": SolveSettings(stagnation_window=40, compare=False)})
    theta = low.parameters.values()
    wanted = low(theta).gradient
    # As if full scale cost nothing, even to so few.
    _, large = objectives(gp, x, y, rank=16, limits=comparing(math.inf))
    found = large(theta).gradient
    assert numpy.linalg.norm(found - wanted) < 0.05 * numpy.linalg.norm(wanted)
    said = Event(EventKind.GRADIENTS_FULL_SCALE, kept=True)
    assert said in large.problem.direct.workspace.events
    assert said not in low.problem.direct.workspace.events
    assert 2 * large.iterations < low.iterations
    first = large.iterations
    large.refresh(theta)  # with other probes nothing is warm
    large(theta)
    assert large.iterations - first <= first // 3


def comparing(pair_flops):
    comparison = ComparisonSettings(min_left=5, at_once=-1.0, pair_flops=pair_flops)
    return {"solving": SolveSettings(stagnation_window=40, comparison=comparison)}


def slow_objective(pair_flops):
    x, y = table(700, d=2, noise=1e-2)
    gp = prior(d=2, noise=1e-3)
    gp.kernel.kernel.lengthscale.value = torch.full((2,), 0.4, dtype=torch.float64)
    return objectives(gp, x, y, rank=4, limits=comparing(pair_flops))[1]


def test_after_a_gradient_that_needed_no_full_scale_a_slow_one_takes_it_again():
    large = slow_objective(3.75)
    theta, taken = large.parameters.values(), []
    for refreshed in (False, False, True):
        if refreshed:
            large.refresh(theta)
        before = large.iterations
        large(theta)
        taken.append(large.iterations - before)
        assert large._warm.full_scale == ("untried" if taken[-1] == 0 else "kept")
    assert taken[1] == 0  # warm
    assert taken[2] < 50, taken  # 13
    assert Event(EventKind.GRADIENTS_NO_FULL_SCALE) in large.problem.direct.workspace.events


def test_with_deterministic_gradients_say_that_they_took_full_scale_and_nothing_follows():
    with deterministically(True):
        large = slow_objective(math.inf)
        for shift in (0.0, 0.2):
            large(large.parameters.values() + shift)
            assert large._warm.full_scale == "untried"
    assert Event(EventKind.GRADIENTS_FULL_SCALE, kept=True) in large.problem.direct.workspace.events


class Watched(EstimatedLogJoint):
    """Remembers which solves began with float32 products."""

    def __init__(self, of):
        super().__init__(of.problem, of.settings, of.options)
        self.single = []

    def _solve(self, method, rhs, iterations):
        self.single.append(method.settings.single)
        return super()._solve(method, rhs, iterations)


def test_what_float32_products_cannot_finish_float64_ones_do_and_later_gradients_begin_with_them():
    """The gradient is that of solves in float64 with the same probes, and no factor takes over."""
    x, y = table(300, d=2)
    gp = prior(d=2, noise=1e-6)
    gp.kernel.kernel.lengthscale.value = torch.full((2,), 2.0, dtype=torch.float64)
    gp.kernel.variance.value = torch.tensor(100.0, dtype=torch.float64)
    large = Watched(objectives(gp, x, y, rank=30)[1])
    _, sharp = objectives(gp, x, y, rank=30, limits={"solving": SolveSettings(single=False), "solve_error": 1e-3})
    sharp.solve_by(Solving.FLOAT64_ITERATIONS)
    theta = large.parameters.values()
    found = large(theta).gradient
    assert large.solving is Solving.FLOAT64_ITERATIONS
    assert Event(EventKind.GRADIENTS_IN_FLOAT64) in large.problem.direct.workspace.events
    large(theta + 0.1)
    assert large.single == [True, False]
    wanted = sharp(theta).gradient
    assert numpy.linalg.norm(found - wanted) < 0.02 * numpy.linalg.norm(wanted)


@pytest.mark.parametrize("fixed", [False, True])
def test_more_rows_begin_as_a_part_came_to_iterate(fixed):
    """A part that came to a factor hands nothing on, and with deterministic every slow gradient tries full scale."""
    x, y = table(120)
    _, large = objectives(prior(), x, y)
    part = large.on_part(60)
    part.solve_by()
    large.begin_as(part)
    assert large.solving is Solving.ITERATIONS
    part = large.on_part(60)
    part.solve_by(Solving.ROUGH_ITERATIONS)
    part._warm.full_scale, part._warm.size, part._warm.gain = "kept", 1, 2.5
    with deterministically(fixed):
        large.begin_as(part)
    assert large.solving is Solving.FLOAT64_ITERATIONS, "more rows are not rough before they are tried"
    matrix = large._warm
    assert (matrix.full_scale, matrix.size, matrix.gain) == (("untried", 0, 1.0) if fixed else ("kept", 1, 2.5))


def test_solves_end_on_the_error_that_counts_in_the_gradient():
    """(M-106): at small noise a relative residual of 1e-2 would leave the noise out; the gradient here is that of exact
    solves with the same probes, in units of the Fisher information."""
    x, y = table(200, noise=1e-3)
    exact, large = objectives(prior(noise=1e-3), x, y)
    _, sharp = objectives(prior(noise=1e-3), x, y, limits={"solve_error": 1e-6})
    theta = exact.parameters.values()
    found = large(theta).gradient
    wanted = sharp(theta).gradient
    units = numpy.sqrt(2.0 * numpy.diag(fisher_information(exact, theta, 100, 0)))
    limit = 0.03 * math.sqrt(200)
    assert (numpy.abs(found - wanted) < 2.0 * limit * units).all()
    assert large.residual < 0.05


ENDLESS = {"solve_error": 0.0, "residual_goal": 0.0}  # no solve reaches its goal


def test_a_solve_that_gets_nowhere_is_no_gradient():
    """Half solved is not solved: neither when time is up, nor when iterations are."""
    x, y = table(150)
    _, large = objectives(prior(), x, y, deadline=Deadline.after(0.0))
    with pytest.raises(TimeUp):
        large(large.parameters.values())
    _, large = objectives(prior(), x, y, limits={"useless_residual": 0.0, **ENDLESS})
    with pytest.raises(ConvergenceError, match="the solves of one gradient ended"):
        large(large.parameters.values())


def test_a_rough_gradient_is_in_the_report():
    """A solve that ends short of its goal, but is a solution, gives a gradient and an event."""
    x, y = table(150)
    _, sharp = objectives(prior(), x, y, limits=ENDLESS)
    assert numpy.isfinite(sharp(sharp.parameters.values()).gradient).all()
    kinds = [event.kind for event in sharp.problem.direct.workspace.events]
    assert EventKind.GRADIENTS_ROUGH not in kinds
    _, rough = objectives(prior(), x, y, limits={"rough_residual": 0.0, **ENDLESS})
    assert numpy.isfinite(rough(rough.parameters.values()).gradient).all()
    assert Event(EventKind.GRADIENTS_ROUGH, reason="rounding", residual=0.0) in rough.problem.direct.workspace.events


def test_a_factor_takes_over_when_iterations_take_as_long():
    """With P = L L^T probes are draws of the model: the same expectation, by another route, which the report names."""
    x, y = table(150, noise=1e-3)
    gp = prior(noise=1e-3)
    exact, large = objectives(gp, x, y, factor_passes=1, probes=64)
    theta = exact.parameters.values()
    wanted, found = exact(theta).gradient, large(theta).gradient
    assert large.solving is Solving.FLOAT32_FACTOR
    assert Event(EventKind.GRADIENTS_BY_FACTORS) in large.problem.direct.workspace.events
    assert numpy.linalg.norm(found - wanted) < 0.15 * numpy.linalg.norm(wanted)
    _, few = objectives(gp, x, y, factor_passes=1, probes=8)
    few(theta)
    assert few.probes == EstimateSettings().factor_probes == FACTOR_COLUMNS - 1, "planned, and better"


@pytest.mark.parametrize("factors", [Solving.FLOAT32_FACTOR, Solving.FLOAT64_FACTOR])
def test_solves_with_a_factor_go_by_the_settings_of_solves(factors):
    """One that reaches no goal ends after the iterations that its window for progress allows."""
    x, y = table(150)
    taken = []
    for window in (3, 12):
        solving = SolveSettings(stagnation_window=window, followed_share=0.0)
        _, large = objectives(prior(), x, y, limits={"solving": solving, **ENDLESS})
        large.solve_by(factors)
        large(large.parameters.values())
        taken.append(large.iterations)
    assert taken[0] < taken[1], taken


def test_float64_factors_where_float32_has_none():
    """A smooth covariance with little noise; the estimate stays a smooth function."""
    x, y = table(150, noise=1e-6)
    exact, large = objectives(smooth_prior(), x, y, factor_passes=1, probes=64)
    theta = exact.parameters.values()
    wanted, found = exact(theta).gradient, large(theta).gradient
    assert large.solving is Solving.FLOAT64_FACTOR
    events = large.problem.direct.workspace.events
    assert Event(EventKind.GRADIENTS_FLOAT64_FACTORS, corrections=None) in events
    assert numpy.linalg.norm(found - wanted) < 0.15 * numpy.linalg.norm(wanted)
    again, moved = large(theta).gradient, large(theta + 1e-6).gradient
    by_solves = slice(4, None)  # mean and noise; the others are sums in float32 of what nearly cancels here
    assert numpy.abs(moved - again)[by_solves].max() < 1e-5 * numpy.abs(wanted)[by_solves].max()


def smooth_prior():
    kernel = 9.0 * fgp.kernels.RBF(lengthscale=torch.full((3,), 3.0))
    return fgp.GP(kernel, likelihood=fgp.likelihoods.Gaussian(1e-6))


def test_where_no_float64_factor_fits_a_float32_one_goes_on_with_a_jitter():
    x, y = table(600, noise=1e-6)
    # Twenty iterations leave a residual around 1, by the processor's rounding above or below: not what is looked at.
    few = {"factor_probes": 4, "max_iterations": 20, "useless_residual": numpy.inf}
    _, large = objectives(smooth_prior(), x, y, factor_passes=1, probes=4, limits=few)
    workspace = large.problem.direct.workspace
    workspace.budget_bytes = 8 * 600 * 600 - 1
    assert numpy.isfinite(large(large.parameters.values()).gradient).all()
    assert large.solving is Solving.FLOAT64_FACTOR
    assert any(event.kind is EventKind.FACTOR_SHIFTED for event in workspace.events)


def test_float64_factors_after_many_corrections():
    x, y = table(150)
    for limits, factors, rough in (
        ({}, Solving.FLOAT32_FACTOR, False),
        ({"rough_corrections": 0}, Solving.FLOAT32_FACTOR, True),
        ({"double_after": -1}, Solving.FLOAT64_FACTOR, True),
    ):
        _, large = objectives(prior(), x, y, factor_passes=1, limits=limits)
        large.solve_by()
        large(large.parameters.values())
        assert large.solving is factors
        assert large.rough_factors is rough
        assert 0 < large.corrections <= EstimateSettings().rough_corrections
