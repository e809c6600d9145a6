"""The estimated gradient of the log joint, at sizes where the exact one is known."""

import math

import numpy
import pytest
import torch

import flashgp as fgp
from flashgp.foundations.deadline import Deadline, TimeUp
from flashgp.foundations.errors import ConvergenceError
from flashgp.foundations.events import Event, EventKind
from flashgp.inference.training.fisher_scoring import fisher_information
from flashgp.inference.training.history import Solving
from flashgp.inference.training.settings import EstimateSettings
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


def test_the_estimate_is_a_smooth_function_until_it_is_refreshed():
    x, y = table(150)
    _, large = objectives(prior(), x, y)
    theta = large.parameters.values()
    first, again = large(theta).gradient, large(theta + 1e-9).gradient
    assert numpy.allclose(first, again, rtol=1e-3, atol=1e-3)
    large.refresh(theta)
    other = large(theta).gradient
    assert numpy.abs(other - first).max() > 1e-2


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
