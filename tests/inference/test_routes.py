"""Every route gives the answer of a float64 Cholesky factor: mean to the tolerance, variance within a hundredth."""

import dataclasses
import itertools
import math
import warnings

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.events import EventKind, StopReason, of_kind
from flashgp.foundations.profile import BUILT_IN, MachineProfile
from flashgp.foundations.profile_store import keep_profile
from flashgp.inference.predict.exact_predictor import ExactPredictor
from flashgp.inference.predict.prediction import Prediction
from flashgp.inference.predict.variance import PredictOptions
from flashgp.inference.predict.variance_solves import explained
from flashgp.inference.solves import Solves

F64 = torch.float64
pytestmark = pytest.mark.filterwarnings("ignore:Rounding in float64")  # which many of these models end in
k = fgp.kernels
ROUTES = ("refined", "stored", "recomputed")


def data(n: int, d: int = 3, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, d, generator=generator, dtype=F64)
    y = torch.sin(6.0 * x[:, 0]) + x[:, -1] + 0.1 * torch.randn(n, generator=generator, dtype=F64)
    return x, y, torch.rand(20, d, generator=generator, dtype=F64)


def model(kernel: k.Kernel | None = None, noise: float = 1e-2, **options: object) -> fgp.GP:
    kernel = k.Matern(1.5, 0.4) if kernel is None else kernel
    return fgp.GP(1.3 * kernel, likelihood=fgp.likelihoods.Gaussian(noise, **options))


def by(gp: fgp.GP, x: Tensor, y: Tensor, route: str, **options: object) -> fgp.Posterior:
    distinct = len(torch.unique(x, dim=0))
    return gp.condition(x, y, plan=fgp.plan(gp, n=x.shape[0], d=x.shape[1], distinct=distinct, route=route), **options)


def agree(found: fgp.Posterior, exact: fgp.Posterior, x_test: Tensor, deviation: float) -> None:
    """The promise, and that the report's bound holds and was asked for."""
    a, b = found.predict(x_test), exact.predict(x_test)
    error = float((a.mean.double() - b.mean.double()).abs().max())
    assert error <= 1e-3 * deviation + 1e-12
    assert error <= found.report.error_bound + exact.report.error_bound
    ratio = a.variance.double() / b.variance.double()
    assert float((ratio - 1.0).abs().max()) <= 0.01


KERNELS = {
    "matern": lambda: k.Matern(1.5, 0.4),
    "rbf": lambda: k.RBF(0.5),
    "sum": lambda: k.RationalQuadratic(lengthscale=0.5) + k.Linear(),
}


@pytest.mark.parametrize("noise", [1e-1, 1e-3, 1e-5])
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_route_gives_the_answer(kernel: str, noise: float) -> None:
    """Means by (M-76), variances by (M-101)."""
    x, y, x_test = data(600)
    gp = model(KERNELS[kernel](), noise)
    exact = gp.condition(x, y, dtype=F64)
    for route in ROUTES:
        if (route == "stored" and noise < 1e-1) or (route != "refined" and (kernel, noise) == ("sum", 1e-5)):
            continue  # the same iterations as recomputed, and what hands over to float64 as is tested below
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", fgp.FlashGPWarning)
            found = by(gp, x, y, route)
        agree(found, exact, x_test, math.sqrt(noise))
        handed = found.report.route == "direct"
        assert handed or (found.factor is None) == (route != "refined")
        assert handed or found.report.error_bound <= 1e-3 * math.sqrt(noise) * (1.0 + 1e-12)
        assert handed or of_kind(found.report.events, EventKind.SOLVED)


@pytest.mark.parametrize("solver", ["cholesky", "cg"])
def test_a_solver_by_name(solver: str) -> None:
    x, y, x_test = data(300)
    gp = model()
    found = gp.condition(x, y, solver=solver)
    agree(found, gp.condition(x, y), x_test, 0.1)
    assert found.report.route == {"cholesky": "direct"}.get(solver, "stored")
    assert found.plan.solver == solver
    if solver != "cholesky":
        assert found.state.solves.method.name == "conjugate gradients"
    with pytest.raises(fgp.DomainError, match=f"`plan` settles the solver .*, got '{solver}' beside it"):
        by(gp, x, y, "recomputed" if solver == "cholesky" else "direct", solver=solver)
    assert torch.equal(gp.condition(x, y, plan=found.plan).representer_weights, found.representer_weights)
    with pytest.raises(fgp.DomainError, match="`solver` must be one of cholesky, cg, got 'alternating_projections'"):
        gp.condition(x, y, solver="alternating_projections")
    if solver != "cholesky":
        with pytest.raises(fgp.DomainError, match=r"`jitter` is added before .*, got 1e-06 beside a plan of the route"):
            gp.condition(x, y, plan=found.plan, jitter=1e-6)
        for options in ({"jitter": 1e-6}, {"differentiable": True}):
            with pytest.raises(fgp.DomainError, match="leaves no factor"):
                gp.condition(x, y, solver=solver, **options)
        several = fgp.GP(torch.ones(2) * k.RBF())
        with pytest.raises(fgp.DomainError, match="batches of models need"):
            several.condition(x, y, solver=solver)
        with pytest.raises(fgp.DomainError, match='`solver` must be "cholesky" for 2 models'):
            fgp.plan(several, n=300, d=3, solver=solver)
        with pytest.raises(fgp.DomainError, match=r"solves one system, got a batch of shape \(2,\)"):
            gp.condition(x, torch.stack([y, y]), plan=found.plan)


# -- continuity ------------------------------------------------------------------------------------------------------
@pytest.fixture
def switching(profiles: object) -> MachineProfile:
    """A machine so slow that float64 loses patience at a few hundred rows."""
    cpu = dataclasses.replace(BUILT_IN.cpu, cholesky_float64=8e5, cholesky_float32=1.6e6)
    profile = dataclasses.replace(BUILT_IN, cpu=cpu)
    keep_profile(profile)
    return profile


def first_of(route: str, gp: fgp.GP, memory: str | int, low: int = 2, high: int = 700) -> int:
    """The first n at which a plan no longer takes the routes before this one."""
    order = ("direct", "refined", "stored", "recomputed")
    while high - low > 1:
        middle = (low + high) // 2
        chosen = fgp.plan(gp, n=middle, d=3, memory=memory).route
        low, high = (middle, high) if order.index(chosen) < order.index(route) else (low, middle)
    return high


@pytest.mark.parametrize("noise", [1e-5])
@pytest.mark.usefixtures("switching")
def test_no_step_at_any_size(noise: float) -> None:
    gp = model(noise=noise)
    memory = fgp.plan(gp, n=600, d=3, route="refined").peak_bytes  # tiles are of full size from 512 rows on
    switches = [first_of("refined", gp, "1GiB"), first_of("stored", gp, memory)]
    seen = set()
    sizes = itertools.chain([50, 120], *((n - 1, n, n + 1) for n in switches))
    for n in sorted(set(sizes)):
        x, y, x_test = data(n)
        found = gp.condition(x, y, memory=memory)
        seen.add(found.plan.route)
        agree(found, gp.condition(x, y, dtype=F64), x_test, math.sqrt(noise))
    assert {"direct", "refined"} < seen
    assert seen & {"stored", "recomputed"}
    assert 100 < switches[0] < switches[1] <= 601


# -- limits ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("route", ["stored", "refined"])
def test_a_time_limit_labels_the_answer(route: str) -> None:
    x, y, x_test = data(400)
    gp = model(noise=1e-4)
    with pytest.warns(fgp.FlashGPWarning, match="time limit ended the solve"):
        found = by(gp, x, y, route, time_limit=0)
    (event,) = of_kind(found.report.events, EventKind.SOLVE_ENDED)
    assert (event.fields["reason"], event.fields["asked"]) == (StopReason.TIME, pytest.approx(1e-5))
    assert event.fields["bound"] == found.report.error_bound
    exact = gp.condition(x, y).predict(x_test).mean
    error = float((found.predict(x_test).mean - exact).abs().max())
    assert 1e-5 < error <= found.report.error_bound
    assert found.report.route == route, "no other method begins after the deadline"
    for wrong in (-1.0, math.nan, "1"):
        with pytest.raises(fgp.DomainError, match="`time_limit` must be 0 or more seconds"):
            gp.condition(x, y, time_limit=wrong)


def test_progress_is_seen_and_may_stop() -> None:
    x, y, _ = data(300)
    gp = model(noise=1e-4)
    steps: list[object] = []
    by(gp, x, y, "recomputed", progress=steps.append)
    assert len(steps) > 3
    assert all(math.isfinite(float(step.relative.max())) for step in steps)
    with pytest.warns(fgp.FlashGPWarning, match="callback ended the solve"):
        found = by(gp, x, y, "recomputed", progress=lambda step: step.iteration >= 2)
    assert found.report.iterations == 2
    steps.clear()
    by(gp, x, y, "recomputed", progress=steps.append, time_limit=600.0)
    assert len(steps) > 3, "beside a time limit too"


def test_memory_decides_and_refuses() -> None:
    x, y, x_test = data(700)
    gp = model()
    memory = fgp.plan(gp, n=700, d=3, route="refined").peak_bytes - 1
    found = gp.condition(x, y, memory=memory)
    assert found.plan.route in ("stored", "recomputed")
    assert found.plan.peak_bytes <= memory
    agree(found, gp.condition(x, y), x_test, 0.1)
    with pytest.raises(fgp.MemoryBudgetError, match="take fewer rows"):
        gp.condition(x, y, memory="1MB")


def test_a_tolerance_beyond_float64_is_answered_with_its_bound() -> None:
    x, y, _ = data(300)
    gp = model(noise=1e-3)
    found = by(gp, x, y, "recomputed", tolerance=1e-15)
    assert 1e-15 * math.sqrt(1e-3) < found.report.error_bound < 1e-8
    assert of_kind(found.report.events, EventKind.ROUNDING_REACHED)


# -- methods in turn -------------------------------------------------------------------------------------------------
def test_at_the_rounding_of_float64_no_factor_takes_over() -> None:
    """It would be no more exact: the answer comes with its bound."""
    x, y, x_test = data(80)
    gp = model(k.RBF(2.0), 1e-12)
    plan = fgp.plan(gp, n=80, d=3, route="recomputed")
    with pytest.warns(fgp.FlashGPWarning, match="rounding of float64, before its tolerance"):
        found = gp.condition(x, y, plan=plan)
    assert (found.report.route, found.plan) == ("recomputed", plan)
    (event,) = of_kind(found.report.events, EventKind.SOLVE_ENDED)
    assert event.fields["reason"] is StopReason.ROUNDING
    exact = gp.condition(x, y)
    assert found.report.error_bound < 3.0 * exact.report.error_bound
    difference = found.predict(x_test).mean - exact.predict(x_test).mean
    assert float(difference.abs().max()) < found.report.error_bound


def test_a_float32_factor_that_fails_hands_over() -> None:
    x, y, x_test = data(120)
    gp = model(k.RBF(1.0), noise=1e-9)  # far below what float32 rounds away
    plan = fgp.plan(gp, n=120, d=3, route="refined")
    with pytest.warns(fgp.FlashGPWarning, match="refined: .*must be positive definite.* A float64 Cholesky factor"):
        found = gp.condition(x, y, plan=plan)
    assert (found.report.route, found.report.dtype, found.plan) == ("direct", "float64", plan)
    agree(found, gp.condition(x, y), x_test, 1e-9**0.5)
    (price,) = [other for other in plan.alternatives if other.route == "direct"]
    assert (found.report.predicted_bytes, found.report.predicted_seconds) == (price.peak_bytes, price.seconds)
    assert price.peak_bytes != plan.peak_bytes
    with pytest.warns(fgp.FlashGPWarning, match="not positive definite in float32"):
        alone = gp.condition(x, y, plan=dataclasses.replace(plan, alternatives=()))
    assert alone.report.route == "refined"
    (event,) = of_kind(alone.report.events, EventKind.JITTER)
    assert event.fields["factor_only"]


# -- data of every kind ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("route", ROUTES)
def test_noise_by_row_outputs_and_float32_data(route: str) -> None:
    x, y, x_test = data(250)
    rows = torch.linspace(0.0, 0.3, 250, dtype=F64)
    gp = model(noise=1e-2, row_variance=rows)
    agree(by(gp, x, y, route), gp.condition(x, y), x_test, 0.1)

    two = fgp.GP(k.Matern(1.5, 0.4), likelihood=fgp.likelihoods.Gaussian(1e-2), outputs=2)
    both = torch.stack([y, -3.0 * y.square()], dim=-1)
    found = by(two, x, both, route)
    assert found.representer_weights.shape == (250, 2)
    agree(found, two.condition(x, both), x_test, 0.1)
    assert found.predict(x_test).variance.shape == (20, 2)

    single = model()
    found = by(single, x.float(), y.float(), route).predict(x_test.float())
    assert found.mean.dtype == found.variance.dtype == torch.float32
    wanted = single.condition(x.float(), y.float()).predict(x_test.float())
    assert float((found.mean - wanted.mean).abs().max()) <= 1e-4


@pytest.mark.parametrize("route", ROUTES)
def test_hard_rows(route: str) -> None:
    x, y, x_test = data(150)
    gp = model()
    same = torch.ones_like(x)
    agree(by(gp, same, y, route), gp.condition(same, y), torch.cat([same[:3], x_test]), 0.1)
    apart = x + 1e6 * (torch.arange(150) % 2).to(F64).unsqueeze(-1)
    agree(by(gp, apart, y, route), gp.condition(apart, y), torch.cat([apart[:9], x_test]), 0.1)
    for lengthscale in (1e-8, 1e8):
        edge = model(k.RBF(lengthscale))
        agree(by(edge, x, y, route), edge.condition(x, y), x_test, 0.1)


@pytest.mark.parametrize("route", ROUTES)
def test_without_noise_the_residual_decides(route: str) -> None:
    x, y, x_test = data(120)
    gp = model(k.Matern(0.5, 0.3), 0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fgp.FlashGPWarning)
        found = by(gp, x, y, route)
    exact = gp.condition(x, y)
    assert found.report.relative_residual <= 1e-12
    assert float((found.predict(x_test).mean - exact.predict(x_test).mean).abs().max()) <= 1e-9


def test_the_same_again() -> None:
    x, y, x_test = data(150)
    gp = model(noise=1e-3)
    for options in ({"deterministic": True}, {"seed": 5}):
        first, second = (gp.condition(x, y, solver="cg", **options) for _ in range(2))
        assert torch.equal(first.representer_weights, second.representer_weights)
        assert torch.equal(first.predict(x_test).variance, second.predict(x_test).variance)
    assert first.plan.notes[-1].startswith("built-in rates")
    other = gp.condition(x, y, solver="cg", seed=6)
    assert not torch.equal(other.representer_weights, first.representer_weights)
    assert gp.condition(x, y, solver="cg", deterministic=True).plan.profile == "built-in"


# -- variance --------------------------------------------------------------------------------------------------------
def test_an_inexact_solve_never_makes_a_variance_too_small() -> None:
    """Eq. (M-101): the shortfall is |e|_A squared, whatever z."""
    x, y, x_test = data(80)
    gp = model()
    found = by(gp, x, y, "recomputed")
    K = gp.kernel.operator(x).to_dense() + 1e-2 * torch.eye(80, dtype=F64)
    cross = gp.kernel.operator(x, x_test).to_dense().detach()
    exact = (cross * torch.linalg.solve(K, cross)).sum(0).detach()
    prior = torch.full((20,), 1.3, dtype=F64)
    part = explained(found.state.solves, cross, prior)
    shortfall = exact - part.value
    assert bool((shortfall >= -1e-12).all())
    assert bool((shortfall <= part.error + 1e-12).all())
    assert bool((part.error <= 0.01 * (prior - part.value - part.error)).all())


def test_a_small_variance_is_solved_for_again() -> None:
    """A first solve to a thousandth of the prior variance says nothing of a variance of a thousandth."""
    x, y, _ = data(200)
    gp = model(k.RBF(0.5), 1e-4)
    found, exact = by(gp, x, y, "recomputed"), gp.condition(x, y)
    near = x[:20] + 1e-3
    variance = exact.predict(near).variance
    assert float(variance.max()) < 1e-4
    cross = gp.kernel.operator(x, near).to_dense().detach()
    part = explained(found.state.solves, cross, torch.full((20,), 1.3, dtype=F64))
    assert bool((part.error <= 0.01 * (1.3 - part.value - part.error)).all())
    assert float((found.predict(near).variance / variance - 1.0).abs().max()) <= 0.01


@pytest.mark.parametrize("route", ROUTES)
def test_joint_covariance_and_gradients(route: str) -> None:
    x, y, x_test = data(200)
    gp = model()
    found, exact = by(gp, x, y, route), gp.condition(x, y)
    wanted = exact.predict(x_test).covariance()
    joint = found.predict(x_test).covariance()
    assert float((joint - wanted).abs().max()) <= 0.01 * float(wanted.diagonal().max())
    assert torch.linalg.eigvalsh(joint)[0] > -1e-10
    assert found.predict(x_test).sample(3, seed=1).shape == (3, 20)
    slopes = []
    for posterior in (found, exact):
        points = x_test.clone().requires_grad_()
        prediction = posterior.predict(points)
        slopes.append(torch.autograd.grad(prediction.mean.sum() + prediction.variance.log().sum(), points)[0])
    assert float((slopes[0] - slopes[1]).norm() / slopes[1].norm()) < 0.05


@pytest.mark.parametrize("route", ROUTES)
def test_batches_of_test_points(route: str) -> None:
    """One system, several tables of points: every one as it is alone."""
    x, y, x_test = data(150)
    gp = model()
    found = by(gp, x, y, route)
    batch = x_test[:18].reshape(3, 1, 6, 3)
    prediction = found.predict(batch)
    joint = prediction.covariance()
    assert joint.shape == (3, 1, 6, 6)
    assert prediction.sample(2, seed=0).shape == (2, 3, 1, 6)
    for i in range(3):
        alone = found.predict(batch[i, 0])
        assert torch.allclose(joint[i, 0], alone.covariance(), rtol=1e-2, atol=1e-12)
        assert torch.allclose(prediction.variance[i, 0], alone.variance, rtol=1e-2)
        assert torch.allclose(joint[i, 0].diagonal(), alone.variance, rtol=2e-2)
    exact = gp.condition(x, y).predict(batch).covariance()
    assert float((joint - exact).abs().max()) <= 0.01 * float(exact.max())
    assert found.predict(batch[:0]).covariance().shape == (0, 1, 6, 6)
    points = batch.clone().requires_grad_()
    slopes = torch.autograd.grad(found.predict(points).covariance().sum(), points)[0]
    wanted = torch.autograd.grad(gp.condition(x, y).predict(points).covariance().sum(), points)[0]
    assert float((slopes - wanted).norm() / wanted.norm()) < 0.05


def test_a_float32_factor_is_checked_where_correcting_is_dear() -> None:
    options = PredictOptions(correction_seconds=0.0)
    x, y, x_test = data(300)
    for noise, corrected in ((1e-1, False), (1e-5, True)):
        gp = model(k.RBF(0.5), noise)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", fgp.FlashGPWarning)
            state = by(gp, x, y, "refined").state
            prediction = Prediction(ExactPredictor(state, options), x_test, gp.likelihood, None)
            variance = prediction.variance
        (event,) = of_kind(prediction.report.events, EventKind.VARIANCE_BY_FACTOR)
        assert event.fields["instead"] == ("corrected" if corrected else None)
        wanted = gp.condition(x, y).predict(x_test).variance
        assert float((variance / wanted - 1.0).abs().max()) <= 0.01


def test_what_needs_a_factor_says_so() -> None:
    x, y, _ = data(100)
    with pytest.raises(fgp.DomainError, match=r"`leave_one_out` needs a factor of all 100 rows.*dtype=torch\.float32"):
        by(model(), x, y, "stored").leave_one_out()


def test_methods_keep_what_they_prepare() -> None:
    x, y, x_test = data(200)
    found = by(model(), x, y, "stored")
    assert isinstance(found.state.solves, Solves)
    kept = found.state.solves.method.ready
    assert kept is not None
    found.predict(x_test).variance  # noqa: B018 - computed on first use
    assert found.state.solves.method.ready is kept


def test_likelihood_without_a_factor() -> None:
    """Eq. (M-99): within its standard error, which the report carries."""
    x, y, _ = data(300)
    gp = fgp.GP(1.3 * k.Matern(1.5, 0.4), likelihood=fgp.likelihoods.Gaussian(1e-2), outputs=2)
    both = torch.stack([y, y.square()], dim=-1)
    exact = float(gp.condition(x, both).log_marginal_likelihood())
    found = gp.condition(x, both, solver="cg")
    value = found.log_marginal_likelihood()
    assert value.dtype == F64
    assert 0.0 < found.report.standard_error < 0.02 * 600, "nats, of 600 observations"
    assert abs(float(value) - exact) <= 4.0 * found.report.standard_error
    assert torch.equal(value, found.log_marginal_likelihood())
    assert len(of_kind(found.report.events, EventKind.LOG_DETERMINANT)) == 1


def test_the_likelihood_takes_the_preconditioner_that_the_weights_kept() -> None:
    """Full scale as control variate, eq. (M-99): the low rank of the same posterior leaves tens of nats to chance."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(1500, 2, generator=generator, dtype=F64)
    y = torch.sin(20.0 * x[:, 0]) * torch.cos(15.0 * x[:, 1])
    gp = model(k.Matern(1.5, 0.05), noise=1e-3)
    found = gp.condition(x, y, solver="cg")
    (compared,) = of_kind(found.report.events, EventKind.PRECONDITIONER_COMPARED)
    assert compared.fields["kept"]
    value = float(found.log_marginal_likelihood())
    assert found.report.standard_error < 0.1
    exact = float(gp.condition(x, y).log_marginal_likelihood())
    assert abs(value - exact) <= 4.5 * found.report.standard_error + 1e-3


def test_the_rounding_of_a_float32_factor_is_estimated_in_the_likelihood() -> None:
    """Eq. (M-99) with the factor as P: a standard error covers what a float32 log determinant is off by."""
    x, y, _ = data(300)
    gp = model(noise=1e-4)
    exact = float(gp.condition(x, y).log_marginal_likelihood())
    found = by(gp, x, y, "refined")
    assert found.factor is not None
    n, z = len(y), found.representer_weights * found.residual
    of_the_factor = -0.5 * float(z.sum() + found.factor.log_determinant + n * math.log(2.0 * math.pi))
    value = float(found.log_marginal_likelihood())
    assert abs(of_the_factor - exact) > 1e-4, "float32 rounding shows"
    assert found.report.standard_error is not None
    assert 0.0 < found.report.standard_error < 0.01
    assert abs(value - exact) <= 4.0 * found.report.standard_error + 1e-9 * abs(exact)


@pytest.mark.parametrize("route", ["stored", "recomputed"])
def test_a_likelihood_of_unfinished_weights_says_so(route: str) -> None:
    """What is missing of r^T K^-1 r is no standard error of the log determinant."""
    x, y, _ = data(300)
    gp = model(noise=1e-4)
    exact = float(gp.condition(x, y).log_marginal_likelihood())
    with pytest.warns(fgp.FlashGPWarning, match="callback ended the solve"):
        found = by(gp, x, y, route, progress=lambda step: True)
    with pytest.warns(fgp.FlashGPWarning, match="likelihood may be too large by up to .* nats"):
        value = float(found.log_marginal_likelihood())
    error = 4.0 * found.report.standard_error
    (event,) = of_kind(found.report.events, EventKind.LIKELIHOOD_UNCERTAIN)
    over = event.fields["nats"]
    assert error < value - exact <= over + error, "more than chance explains, and no more than is said"
    with pytest.warns(fgp.FlashGPWarning, match="without noise no bound"):
        found = by(model(k.Matern(2.5, 1.0), noise=0.0), x, y, route, progress=lambda step: True)
    with pytest.warns(fgp.FlashGPWarning, match="too large by an unknown amount"):
        found.log_marginal_likelihood()


def test_a_joint_covariance_says_what_its_solves_reached() -> None:
    x, y, x_test = data(200)
    prediction = by(model(), x, y, "stored").predict(x_test)
    prediction.covariance()
    assert of_kind(prediction.report.events, EventKind.VARIANCE_BY_SOLVES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fgp.FlashGPWarning)
        found = by(model(noise=0.0), x, y, "stored")
    with pytest.warns(fgp.FlashGPWarning, match="a variance may be too large by inf of itself"):
        found.predict(x_test).covariance()
